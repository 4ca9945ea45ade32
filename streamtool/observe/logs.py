"""What the log says of exchanges: a record for each, and how `streamtool serve` writes them.

Each exchange gives one record of the logger `streamtool.exchange`: its message is a sentence for people, and everything
that is known stands under the attribute `streamtool`, a tree of plain values, where a JSON formatter finds it. Here it
is decided what may stand there. Keys never do, because nothing here sees a header. Contents do only when they are
allowed: without that, whatever may quote the prompt or the reply (the sentence of an upstream's error, what was wrong
with arguments) is left out, and names that came from outside are cut and made printable.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from streamtool.conversation import Json
from streamtool.errors import RequestError, StreamtoolError
from streamtool.exchange import Record
from streamtool.policy import FAILURES
from streamtool.settings import Settings

EXCHANGES: Final = "streamtool.exchange"
"""The logger of the records."""
KEY: Final = "streamtool"
"""The attribute of a log record that holds what is known."""
_log = logging.getLogger(EXCHANGES)

_LENGTH = 100
_MANY = 20
_TOLD = 3
"""Notes that stand in the sentence; all of them are fields."""
_WORD = re.compile(r"[a-z][a-z_]{0,39}")
"""A code that is a word; anything else may be a piece of a key."""


def plain(text: str, limit: int = _LENGTH) -> str:
    """The text on one line, in printable characters, cut to `limit` of them."""
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)
    return cut if len(cut) <= limit else cut[: limit - 1] + "…"


def problem(error: StreamtoolError, *, contents: bool) -> str:
    """What an error says, or what kind of error it is if its sentence may hold contents."""
    if contents or not (error.quotes or isinstance(error, RequestError)):
        return plain(error.message, 1000 if contents else 300)
    return f"{error.status} {_word(error.code) or _word(error.kind) or 'error'}"


def fields(record: Record, *, contents: bool = False) -> dict[str, Json]:
    """The record as plain values; contents only if they are allowed."""
    usage, error = record.usage, record.error
    return {
        "request_id": plain(record.request_id),
        "client": plain(record.client),
        "outcome": record.outcome,
        "status": record.status,
        "protocol": record.protocol,
        "upstream_protocol": record.upstream_protocol,
        "upstream": record.upstream,
        "server": record.server,
        "model": plain(record.model),
        "upstream_model": plain(record.upstream_model),
        "served_model": None if record.served_model is None else plain(record.served_model),
        "stream": record.stream,
        "choices": record.choices,
        "mode": record.mode,
        "contract": record.contract,
        "history": record.history,
        "turn": record.turn,
        "format": record.format,
        "forced": record.forced,
        "tools": record.tools,
        "calls": record.calls,
        "found": dict(record.found),
        "repairs": list(record.repairs),
        "discarded": dict(_summed(record.discarded)),
        "refused": record.refused,
        "quoted": dict(record.quoted),
        "incomplete": record.incomplete,
        "reason": None if record.reason is None else record.reason.value,
        "attempts": _attempts(record, contents=contents),
        "unmet": record.unmet,
        "held": record.held,
        "seconds": round(record.seconds, 6),
        "first_byte": _rounded(record.first_byte),
        "first_call": _rounded(record.first_call),
        "tokens": {
            "input": usage.input,
            "output": usage.output,
            "cached": usage.cached,
            "reasoning": usage.reasoning,
            "estimated": usage.estimated,
            "retried": 0 if usage.retried is None else usage.retried.input + usage.retried.output,
        },
        "options": dict(record.options),
        "dropped": [plain(note) for note in record.dropped[:_MANY]],
        "error": None if error is None else error_fields(error, contents=contents),
    }


def error_fields(error: StreamtoolError, *, contents: bool = False) -> dict[str, Json]:
    """An error as plain values."""
    own = contents or not error.quotes
    return {
        "status": error.status,
        "kind": _word(error.kind),
        "code": _word(error.code),
        "param": plain(error.param) if own and error.param is not None else None,
        "message": problem(error, contents=contents),
    }


def _word(code: str | None) -> str | None:
    return code if code is not None and _WORD.fullmatch(code) else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _attempts(record: Record, *, contents: bool) -> list[Json]:
    """Each attempt that was not accepted: why, when, and the detail, if it quotes no contents."""
    ours = {failure.cause for failure in FAILURES if failure.detail_is_ours}
    told = zip(record.attempts, record.details, record.retried, strict=True)
    return [
        {"reason": why, "detail": detail if contents or why in ours else "", "seconds": round(seconds, 6)}
        for why, detail, seconds in told
    ]


def _summed(pairs: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    summed: dict[str, int] = {}
    for name, count in pairs:
        summed[name] = summed.get(name, 0) + count
    return summed.items()


def sentence(record: Record, *, contents: bool = False) -> str:
    """What happened, on one line."""
    said = [_served(record)]
    if record.dropped:
        more = len(record.dropped) - _TOLD
        notes = [plain(note) for note in record.dropped[:_TOLD]] + ([f"{more} more"] if more > 0 else [])
        said.append(f"left out or mended: {', '.join(notes)}")
    if record.quoted:
        said.append(f"quoted: {', '.join(f'{count} {why}' for why, count in record.quoted)}")
    if record.attempts:
        said.append(f"not accepted: {', '.join(record.attempts)}")
    if record.unmet is not None:
        said.append(f"lacks in the end: {record.unmet}")
    if record.outcome == "left":
        said.append("the client left")
    elif record.incomplete:
        said.append("cut off")
    if record.error is not None:
        said.append(f"failed: {problem(record.error, contents=contents)}")
    if record.client:
        said.append(f"client {plain(record.client)}")
    return f"{', '.join(said)} ({record.seconds:.2f} s)"


def _served(record: Record) -> str:
    name = plain(record.model)
    if record.model != record.upstream_model:
        name = f"{name} → {plain(record.upstream_model)}"
    if record.passed:
        return f"{name}: passed on" + (f", tools {record.tools}" if record.tools else "")
    if record.mode == "translate":
        return f"{name}: translated to {record.upstream_protocol}"
    formats = f" ({', '.join(record.formats)})" if record.formats else ""
    return f"{name}: tools {record.tools}, calls {record.calls}{formats}"


def level(record: Record) -> int:
    """WARNING for what went wrong, else INFO."""
    return logging.INFO if record.error is None and record.unmet is None else logging.WARNING


def log(record: Record, *, contents: bool = False, trace: str | None = None) -> None:
    """Write the record; `trace`: the file in which the exchange was recorded."""
    grave = level(record)
    if _log.isEnabledFor(grave):
        known = {**fields(record, contents=contents), "trace": trace}
        _log.log(grave, "%s", sentence(record, contents=contents), extra={KEY: known})


def log_refused(protocol: str, error: StreamtoolError, *, client: str = "", contents: bool = False) -> None:
    """Write that a request of this client was refused before anything came of it."""
    known = {
        "outcome": "refused",
        "client": plain(client),
        "protocol": protocol,
        "error": error_fields(error, contents=contents),
    }
    place = f" at {plain(error.param)}" if error.param is not None else ""
    said = f": {problem(error, contents=True)}" if contents else ""
    whose = f" of {plain(client)}" if client else ""
    _log.warning(
        "a request (%s)%s was refused with %s%s%s", protocol, whose, error.status, place, said, extra={KEY: known}
    )


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, behind the name of whoever says it."""
        name = "streamtool" if record.name.partition(".")[0] == "streamtool" else record.name
        return f"{name}: {super().format(record)}"


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: `time`, `level`, `logger`, `message`, and what is known under `streamtool`."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The object, on one line."""
        entry: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = getattr(record, KEY, None)
        if known is not None:
            entry[KEY] = known
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class _Standard(logging.Handler):
    """Writes to what `stderr` or `stdout` is at that moment."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._stream = name

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            stream = getattr(sys, self._stream)
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            self.handleError(record)


def configure(settings: Settings) -> None:
    """Write the log as `settings` say. For whoever owns the process."""
    handler = _Standard(settings.log_to)
    handler.setFormatter(JsonFormatter() if settings.log == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(KEY).setLevel(logging.DEBUG if settings.debug else logging.INFO)
