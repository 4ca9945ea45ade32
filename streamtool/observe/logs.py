"""The log of exchanges: the facts that are logged about each exchange, and the way `streamtool serve` writes them.

Each exchange produces one log record in the `streamtool.exchange` logger. Its message is a sentence, and its
`streamtool` attribute contains all facts, as a tree of plain values for JSON formatters. This module decides which
facts may be logged. Keys are never logged, because this module does not receive any headers. Contents are logged only
if the settings allow it: otherwise, all values that may quote the prompt or the reply (an upstream's error message, a
fault in arguments) are omitted. Names that clients or models chose are truncated and made printable.
"""

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from streamtool.core.errors import RequestError, StreamtoolError
from streamtool.core.json_value import Json, json_line
from streamtool.exchange.record import NearCall, Record
from streamtool.observe.printable import code_word, loggable_message, printable
from streamtool.observe.verdicts import ExchangeVerdict, verdict, verdict_of_error
from streamtool.policy import FAILURES, TOOL_SEARCH
from streamtool.settings import Settings

EXCHANGES: Final = "streamtool.exchange"
"""The logger for the records of exchanges."""
KEY: Final = "streamtool"
"""The attribute of a log record that contains the facts."""
_log = logging.getLogger(EXCHANGES)

_MANY = 20
_TOLD = 3
"""Maximum number of notes in the sentence; the facts contain all of them."""


def fields(record: Record, *, contents: bool = False, found: ExchangeVerdict | None = None) -> dict[str, Json]:
    """Return the record as plain values. Unless `contents` is true, omit all fields that may quote messages. `found` is
    the verdict, if it is known.
    """
    usage, error = record.usage, record.error
    return {
        "request_id": printable(record.request_id),
        "client": printable(record.client),
        "outcome": record.outcome,
        "status": record.status,
        "protocol": record.protocol,
        "upstream_protocol": record.upstream_protocol,
        "upstream": record.upstream,
        "server": record.server,
        "model": printable(record.model),
        "upstream_model": printable(record.upstream_model),
        "served_model": None if record.served_model is None else printable(record.served_model),
        "stream": record.stream,
        "choices": record.choices,
        "mode": record.mode,
        "tool_prompt": record.tool_prompt,
        "history": record.history,
        "turn": record.turn,
        "format": record.format,
        "forced": record.forced,
        "tools": record.tools,
        "calls": record.calls,
        "found": dict(record.found),
        "repairs": list(record.repairs),
        "discarded": dict(_sum_by_name(record.discarded)),
        "refused": record.refused,
        "quoted": dict(record.quoted),
        "repeated": list(record.repeated),
        "incomplete": record.incomplete,
        "reason": None if record.reason is None else record.reason.value,
        "attempts": _attempts(record, contents=contents),
        "resumed": [
            {
                "cause": one.cause,
                "character": one.character,
                "place": printable(one.place),
                "seconds": round(one.seconds, 6),
            }
            for one in record.resumed
        ],
        "unmet": record.unmet,
        "held": record.held,
        "seconds": round(record.seconds, 6),
        "first_byte": _round(record.first_byte),
        "first_call": _round(record.first_call),
        "tokens": {
            "input": usage.input,
            "output": usage.output,
            "cached": usage.cached,
            "reasoning": usage.reasoning,
            "estimated": usage.estimated,
            "retried": 0 if usage.retried is None else usage.retried.input + usage.retried.output,
        },
        "options": dict(record.options),
        "engine": printable(record.engine),
        "prompt_cut": None if (cut := record.prompt_cut) is None else {"read": cut.read, "least": cut.least},
        "dropped": [printable(note) for note in record.dropped[:_MANY]],
        "warning": record.warning,
        "near": _near(record.near, contents=contents),
        "verdict": (found or verdict(record, contents=contents)).as_json(),
        "error": None if error is None else error_fields(error, contents=contents),
    }


def error_fields(error: StreamtoolError, *, contents: bool = False) -> dict[str, Json]:
    """Return an error as plain values."""
    own = contents or not error.quotes
    return {
        "status": error.status,
        "kind": code_word(error.kind),
        "code": code_word(error.code),
        "param": printable(error.param) if own and error.param is not None else None,
        "message": loggable_message(error, contents=contents),
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _attempts(record: Record, *, contents: bool) -> list[Json]:
    """Return the rejected attempts, each with its reason, its time and its detail; the detail is omitted if it might
    quote contents that the settings do not allow.
    """
    if not record.attempts:
        return []
    ours = {failure.cause for failure in FAILURES if failure.detail_is_ours}
    told = zip(record.attempts, record.details, record.retried, strict=True)
    return [
        {"reason": why, "detail": detail if contents or why in ours else "", "seconds": round(seconds, 6)}
        for why, detail, seconds in told
    ]


def _near(near: NearCall | None, *, contents: bool) -> Json:
    """Return text that looks like a call as plain values. The text itself is omitted unless contents are allowed."""
    if near is None:
        return None
    told: dict[str, Json] = {"cause": near.cause, "character": near.character, "format": near.format}
    return {**told, "text": printable(near.text), "name": printable(near.name)} if contents else told


def _sum_by_name(pairs: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    summed: dict[str, int] = {}
    for name, count in pairs:
        summed[name] = summed.get(name, 0) + count
    return summed.items()


def summarize(record: Record, verdict_text: str, *, contents: bool = False) -> str:
    """Return a one-line summary of the exchange, without a warning or an error message that its verdict quotes."""
    said = [_served(record)]
    if record.dropped:
        more = len(record.dropped) - _TOLD
        notes = [printable(note) for note in record.dropped[:_TOLD]] + ([f"{more} more"] if more > 0 else [])
        said.append(f"left out or repaired: {', '.join(notes)}")
    if record.warning and record.warning not in verdict_text:
        said.append(record.warning)
    if record.quoted:
        said.append(f"quoted: {', '.join(f'{count} {why}' for why, count in record.quoted)}")
    rejected = [cause for cause in record.attempts if cause != TOOL_SEARCH.cause]
    if rejected:
        said.append(f"not accepted: {', '.join(rejected)}")
    if searches := len(record.attempts) - len(rejected):
        said.append(f"tool searches {searches}")
    if record.resumed:
        said.append(f"resumed: {len(record.resumed)}, {printable('; '.join(map(str, record.resumed[:_TOLD])), 300)}")
    if record.unmet is not None:
        said.append(f"delivered despite: {record.unmet}")
    if record.outcome == "left":
        said.append("the client left")
    elif record.incomplete:
        said.append("cut off")
    if record.error is not None:
        message = loggable_message(record.error, contents=contents)
        said.append("failed" if message in verdict_text else f"failed: {message}")
    if record.client:
        said.append(f"client {printable(record.client)}")
    return f"{', '.join(said)} ({record.seconds:.2f} s)"


def _served(record: Record) -> str:
    name = printable(record.model)
    if record.model != record.upstream_model:
        name = f"{name} → {printable(record.upstream_model)}"
    if record.passed:
        return f"{name}: passed on" + (f", tools {record.tools}" if record.tools else "")
    if record.mode == "translate":
        return f"{name}: translated to {record.upstream_protocol}"
    formats = f" ({', '.join(record.formats)})" if record.formats else ""
    return f"{name}: tools {record.tools}, calls {record.calls}{formats}"


def level_of(record: Record) -> int:
    """Return the log level: WARNING if anything failed or the record contains a warning, and INFO if not."""
    worth = record.error, record.unmet, record.prompt_cut
    return logging.WARNING if record.warning or worth != (None, None, None) else logging.INFO


def logs_exchange(record: Record) -> bool:
    """Return whether the record would be logged."""
    return _log.isEnabledFor(level_of(record))


def log_exchange(record: Record, *, contents: bool = False, trace: str | None = None) -> None:
    """Log the record. `trace` is the file that contains the recording of the exchange, if there is one."""
    grave = level_of(record)
    if _log.isEnabledFor(grave):
        found = verdict(record, contents=contents)
        known = {**fields(record, contents=contents, found=found), "trace": trace}
        told = found.text if found.ordinary else str(found)
        _log.log(grave, "%s · %s", summarize(record, told, contents=contents), told, extra={KEY: known})


def log_rejected(
    protocol: str, error: StreamtoolError, *, client: str = "", path: str = "", contents: bool = False
) -> None:
    """Log that a request from this client was rejected before it became an exchange.

    The reason is logged if contents are allowed, or if the error is not about them: then its status is not 400.
    """
    found = verdict_of_error(error, contents=contents)
    known = {
        "outcome": "refused",
        "client": printable(client),
        "protocol": protocol,
        "path": printable(path),
        "verdict": found.as_json(),
        "error": error_fields(error, contents=contents),
    }
    invalid = error.status == RequestError.status
    place = f" at {printable(error.param)}" if error.param is not None else ""
    said = f": {loggable_message(error, contents=True)}" if contents or not (invalid or error.quotes) else ""
    whose = f" from {printable(client)}" if client else ""
    where = f" to {printable(path)}" if path and not invalid else ""
    step = f" · {found.step}" if found.step else ""
    _log.warning(
        "a request (%s)%s%s was rejected with %s%s%s%s",
        *(protocol, where, whose, error.status, place, said, step),
        extra={KEY: known},
    )


def log_refused(method: str, path: str, error: StreamtoolError) -> None:
    """Log that a request was refused before it was read. The query of its path, which may contain a key, is unknown
    here.
    """
    found = verdict_of_error(error, contents=True)
    known = {
        "outcome": "refused",
        "client": "",
        "method": printable(method),
        "path": printable(path),
        "verdict": found.as_json(),
        "error": error_fields(error, contents=True),
    }
    told = (printable(method), printable(path), error.status, loggable_message(error, contents=True))
    step = f" · {found.step}" if found.step else ""
    _log.warning("%s %s was refused with %s: %s%s", *told, step, extra={KEY: known})


class TextFormatter(logging.Formatter):
    """A formatter for human-readable lines: the time, the name of the logger's component and, for an exchange, the
    status and the request id.
    """

    def __init__(self) -> None:
        super().__init__()
        self._time = 0, ""
        """The second of the last record, and the text for it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        second = int(record.created)
        if second != self._time[0]:
            self._time = second, self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        name = "streamtool" if record.name.partition(".")[0] == "streamtool" else record.name
        known = getattr(record, KEY, None) or {}
        about = ""
        if "request_id" in known:
            error = known["error"] or {}
            about = f"{known['status'] or error.get('status', '-')} {known['request_id']} "
        return f"{self._time[1]} {name}: {about}{super().format(record)}"


class JsonFormatter(logging.Formatter):
    """A formatter that writes a JSON object per log record: `time`, `level`, `logger`, `message`, and facts in
    `streamtool`.
    """

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
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
        return json_line(entry, default=str)


class _StandardStreamHandler(logging.Handler):
    """A handler that writes to the object that `sys.stderr` or `sys.stdout` refers to at the time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._stream = name

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            stream = getattr(sys, self._stream)
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except (OSError, ValueError):  # the stream is closed
            self.handleError(record)


def configure(settings: Settings) -> None:
    """Configure logging for the whole process, according to the settings. Libraries should not call this.

    Records no longer name the place in the code, the thread and the process that they come from, which are not shown.
    """
    handler = _StandardStreamHandler(settings.log_to)
    handler.setFormatter(JsonFormatter() if settings.log == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Our formatters show neither the caller nor the thread nor the process. Finding them for each record would take a
    # quarter of the time that logging takes. Source: "Optimization" in the documentation's Logging HOWTO.
    unused = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks")
    for name, value in (("_srcfile", None), *((name, False) for name in unused)):
        setattr(logging, name, value)
    logging.getLogger(KEY).setLevel(logging.DEBUG if settings.debug else logging.INFO)
