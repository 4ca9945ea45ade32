"""Recordings of exchanges (`recordings = "DIRECTORY"`): what went into the parser and what came out, as lines of JSON.

A file holds one exchange, in the lines that `lines` describes, so that it can be looked at (`streamtool inspect`) and
done again (`streamtool parse --replay`). Prompts and replies stand in the file, since whoever set the directory asked
for them: it is readable by its owner alone.

Lines are gathered and written in large pieces, so that a recording costs its exchange little; whatever goes wrong with
a file (a full disk) ends the recording, with a warning, and never the exchange.
"""

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import statemachine
from streamtool.errors import SettingsError
from streamtool.exchange import Exchange, Fed, ObservedParser, ParserOptions, Record, UpstreamRequest
from streamtool.observe import lines
from streamtool.protocols.wire import encode
from streamtool.reply import ReplyEvent

ENDING: Final = ".jsonl"
_GATHERED = 64 * 1024
"""Bytes that are written at once."""
_LAST = 256
"""Bytes that are kept free for the line that says that the recording is cut."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
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
        "_began", "_clock", "_descriptor", "_gathered", "_keep", "_left", "_made", "_parsers", "_request_id",
        "_waits_for", "path",
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
        self._parsers: list[ObservedParser] = []
        self._made = lines.ParserLines()
        self._waits_for = ""
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
        asked = lines.without_secrets(exchange.conversation.raw)
        self._write_line(lines.exchange_line(exchange, asked), leaves_out="request")

    # --- what an exchange tells

    def attempt(self, request: UpstreamRequest, /) -> None:
        """An attempt begins."""
        self._write_line(lines.attempt_line(self._now(), request), leaves_out="body")

    def answered(self, status: int, /) -> None:
        """The upstream has answered."""
        self._write_line(lines.answer_line(self._now(), status))

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:
        """A parser was made."""
        self._parsers.append(parser)
        self._write_line(self._made.line(self._now(), choice, options))
        return len(self._parsers) - 1

    def fed(self, fed: Fed, /) -> None:
        """A parser was fed."""
        if self._descriptor is not None:
            parser = self._parsers[fed[0]]
            self._write_line(lines.text_line(self._now(), fed, parser.events, state=parser.state, held=parser.held))

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """A parser was closed."""
        self._write_line(lines.close_line(self._now(), number, reason, self._parsers[number].state, events))

    def quoted(self, choice: int, why: str, /) -> None:
        """A call was a quotation."""
        self._write_line(lines.quotation_line(self._now(), choice, why))

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """The client got events."""
        if self._descriptor is None:
            return
        if waits_for != self._waits_for:
            self._waits_for = waits_for
            self._write_line(lines.waits_line(self._now(), waits_for))
        if events:
            self._write_line(lines.sent_line(self._now(), events, data))

    # --- the end

    def end(self, record: Record) -> None:
        """The exchange is over: write what is left, under the name that the client knows the exchange by."""
        self._write_line(lines.record_line(record))
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

    def _write_line(self, line: lines.Line, /, *, leaves_out: str | None = None) -> None:
        """Gather a line. One that is too long goes without the field `leaves_out`, or ends the recording."""
        if self._descriptor is None:
            return
        data = encode(line) + b"\n"
        if leaves_out is not None and len(data) > self._left // 2:
            data = encode({**line, leaves_out: None, "left_out": leaves_out}) + b"\n"
        if len(data) > self._left:
            self._gathered.append(encode(lines.cut_line(self._now())) + b"\n")
            self._close()
            return
        before, self._left = self._left, self._left - len(data)
        self._gathered.append(data)
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
