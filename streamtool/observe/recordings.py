"""Recordings of exchanges (`recordings = "DIRECTORY"`): what went into the parser and what came out, as lines of JSON.

A file holds one exchange. Its lines are objects with a `type`, most with the `seconds` since the request:

    exchange    what the client asked (`request`), the protocols, models, versions
    attempt     what the upstream was sent (`body`)
    answer      the status with which the upstream answered
    parser      a parser was made, of this choice; `made_with`: its options, where they are not those of the last one
    text        a piece of text that was fed to a parser, its state afterwards, what it holds, and its events
    close       a parser was closed, and its last events
    quotation   a call of the last events is a quotation, and text for the client: `why`
    sent        events that the client got
    record      the end, with what the log says of it
    cut         the end, because the recording reached its size

The lines of parsers suffice to do it all again (`streamtool parse --replay`). Prompts and replies stand in the file,
since whoever set the directory asked for them: it is readable by its owner alone. Headers do not, and fields of a
request in which keys travel are emptied.

Lines are gathered and written in large pieces, so that a recording costs its exchange little; whatever goes wrong with
a file (a full disk) ends the recording, with a warning, and never the exchange.
"""

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from attrs import asdict

import statemachine
from streamtool.conversation import Json
from streamtool.errors import SettingsError
from streamtool.exchange import Exchange, ParserOptions, Record, UpstreamRequest
from streamtool.observe.logs import fields
from streamtool.observe.parser_events import event_as_json, type_name
from streamtool.policy.rules import AnyName
from streamtool.protocols.wire import decode, decode_tolerant, encode
from streamtool.reply import ReplyEvent, ReplyFailure, ReplyFinish, ReplyTextDelta

VERSION: Final = 1
"""Of the lines."""
ENDING: Final = ".jsonl"
_GATHERED = 64 * 1024
"""Bytes that are written at once."""
_LAST = 256
"""Bytes that are kept free for the line that says that the recording is cut."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_SECRET = frozenset(
    ("authorization", "authorization_token", "api_key", "apikey", "access_token", "token", "x-api-key", "password")
)
"""Fields of a request, such as those of an MCP server that the upstream is to ask, in which keys travel."""
_log = logging.getLogger("streamtool")


class Recorder:
    """Records exchanges in a directory, which is made if it is not there. Raises SettingsError if it cannot be."""

    def __init__(self, directory: str, *, size: int, files: int, clock: Callable[[], float]) -> None:
        self._directory = Path(directory)
        self._size = size
        self._files = files
        self._clock = clock
        self._written: deque[Path] = deque()
        self._lock = threading.Lock()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"trace: {directory} cannot be made: {error.strerror}", param="trace") from None

    def record(self, exchange: Exchange) -> "Recording":
        """The recording of an exchange that begins now."""
        return Recording(exchange, self._directory, self._size, self._clock, self._keep)

    def _keep(self, path: Path) -> None:
        """A recording is there; the oldest goes if there are too many."""
        with self._lock:
            self._written.append(path)
            surplus = [self._written.popleft() for _ in range(len(self._written) - self._files)]
        for old in surplus:
            with suppress(OSError):
                old.unlink()


class Recording:
    """One exchange on its way into a file."""

    __slots__ = (
        "_began", "_clock", "_descriptor", "_gathered", "_keep", "_left", "_made_with", "_parsers", "_request_id",
        "path",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        directory: Path,
        size: int,
        clock: Callable[[], float],
        keep: Callable[[Path], None],
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._keep = keep
        self._gathered: list[bytes] = []
        self._left = size - _LAST
        """Bytes that may still be written."""
        self._parsers = 0
        self._made_with: ParserOptions | None = None
        self._request_id = exchange.request_id
        self.path = directory / (safe(exchange.request_id) + ENDING)
        self._descriptor: int | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            self._give_up(error)
            return
        keep(self.path)
        asked = exchange.conversation
        self._line(
            "exchange",
            leaves_out="request",
            trace=VERSION,
            streamtool=_version(),
            request_id=exchange.request_id,
            protocol=asked.protocol,
            upstream_protocol=exchange.asked.upstream.NAME,
            model=asked.model,
            upstream_model=exchange.asked.model.name,
            mode=exchange.asked.mode,
            format=exchange.asked.model.format,
            stream=asked.stream,
            request=without_secrets(asked.raw),
        )

    # --- what an exchange tells

    def attempt(self, request: UpstreamRequest, /) -> None:
        """An attempt begins."""
        try:
            body = without_secrets(decode_tolerant(request.body))
        except ValueError:
            body = None
        self._line(
            "attempt", leaves_out="body", seconds=self._now(), attempt=request.attempt, upstream=request.upstream,
            body=body,
        )  # fmt: skip

    def answered(self, status: int, /) -> None:
        """The upstream has answered."""
        self._line("answer", seconds=self._now(), status=status)

    def parser(self, choice: int, options: ParserOptions | None, /) -> int:
        """A parser was made."""
        number, self._parsers = self._parsers, self._parsers + 1
        line: dict[str, Json] = {"parser": number, "choice": choice}
        if number == 0 or options != self._made_with:
            self._made_with = options
            line["made_with"] = None if options is None else options_as_json(options)
        self._line("parser", seconds=self._now(), **line)
        return number

    def fed(self, number: int, text: str, state: str, held: int, events: Sequence[statemachine.Event], /) -> None:
        """A parser was fed."""
        if self._descriptor is not None:
            shown = [event_as_json(event) for event in events]
            self._line("text", seconds=self._now(), parser=number, text=text, state=state, held=held, events=shown)

    def closed(self, number: int, reason: str | None, state: str, events: Sequence[statemachine.Event], /) -> None:
        """A parser was closed."""
        shown = [event_as_json(event) for event in events]
        self._line("close", seconds=self._now(), parser=number, reason=reason, state=state, events=shown)

    def quoted(self, choice: int, why: str, /) -> None:
        """A call was a quotation."""
        self._line("quotation", seconds=self._now(), choice=choice, why=why)

    def sent(self, events: Sequence[ReplyEvent], /) -> None:
        """The client got events."""
        if self._descriptor is not None:
            self._line("sent", seconds=self._now(), events=[_reply_event(event) for event in events])

    # --- the end

    def end(self, record: Record) -> None:
        """The exchange is over: write what is left, under the name that the client knows the exchange by."""
        self._line("record", **fields(record, contents=True))
        self._close()
        if record.request_id != self._request_id:
            named = self.path.with_name(safe(record.request_id) + ENDING)
            with suppress(OSError):  # there is such a file already, or the system knows no links
                os.link(self.path, named)
                self.path.unlink()
                self.path = named
                self._keep(named)

    def _close(self) -> None:
        self._write()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.close(descriptor)
            except OSError as error:
                self._give_up(error)

    def _now(self) -> float:
        return round(self._clock() - self._began, 6)

    def _line(self, kind: str, /, *, leaves_out: str | None = None, **what: Json) -> None:
        """Gather a line. One that is too long goes without the field `leaves_out`, or ends the recording."""
        if self._descriptor is None:
            return
        line = encode({"type": kind, **what}) + b"\n"
        if leaves_out is not None and len(line) > self._left // 2:
            line = encode({"type": kind, **what, leaves_out: None, "left_out": leaves_out}) + b"\n"
        if len(line) > self._left:
            self._gathered.append(encode({"type": "cut", "seconds": self._now()}) + b"\n")
            self._close()
            return
        before, self._left = self._left, self._left - len(line)
        self._gathered.append(line)
        if before // _GATHERED != self._left // _GATHERED:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._gathered)
        self._gathered.clear()
        try:
            while data and self._descriptor is not None:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        descriptor, self._descriptor = self._descriptor, None
        self._gathered.clear()
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
        _log.warning("the recording of an exchange in %s was given up: %s", self.path, error.strerror)


def safe(request_id: str) -> str:
    """A request's id as the name of a file."""
    return _UNSAFE.sub("_", request_id)[:100] or "_"


def without_secrets(value: Json, depth: int = 8) -> Json:
    """A request's body in which fields that bear keys are emptied; a copy as far as that is needed."""
    if isinstance(value, Mapping):
        return {
            key: "(left out)" if _bears_key(str(key).lower(), item) else without_secrets(item, depth - 1)
            for key, item in value.items()
        } if depth else value  # fmt: skip
    if isinstance(value, list | tuple):
        return [without_secrets(item, depth - 1) for item in value] if depth else value
    return value


def _bears_key(key: str, value: Json) -> bool:
    if key in _SECRET:
        return isinstance(value, str)
    return key == "headers" and isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())


def _version() -> str:
    try:
        return version("streamtool")
    except PackageNotFoundError:  # used from a folder, not installed
        return "unknown"


# --- lines and what they stand for -----------------------------------------------------------------------------------


def _reply_event(event: ReplyEvent) -> dict[str, Json]:
    match event:
        case ReplyFailure(error=error):
            return {"type": "failure", "status": error.status, "kind": error.kind, "message": error.message}
        case ReplyFinish(reason=reason):
            return {"type": "finish", **asdict(event), "reason": reason.value}
        case ReplyTextDelta():
            return {"type": "text_delta", "choice": event.choice, "text": event.text}
        case _:
            return {"type": type_name(type(event)), **asdict(event)}


def options_as_json(options: ParserOptions) -> dict[str, Json]:
    """What a parser was made with, as plain values."""
    made_with = asdict(options, recurse=False)
    made_with["tools"] = dict(options.tools)
    made_with["any_name"] = isinstance(options.tools, AnyName)
    made_with["limits"] = asdict(options.limits)
    return made_with


def options_from_json(made_with: Mapping[str, Json]) -> ParserOptions:
    """What `options_as_json` was given. Raises TypeError, KeyError or AttributeError for anything else."""
    given = dict(made_with)
    any_name = given.pop("any_name")
    given["tools"] = AnyName(given["tools"]) if any_name else given["tools"]
    given["formats"] = None if given["formats"] is None else tuple(given["formats"])
    given["limits"] = statemachine.Limits(**given["limits"])
    return ParserOptions(**given)


read_line: Final = decode
"""The object of a line; raises `wire.UNREADABLE`."""
