"""Recordings of exchanges (`recordings = "DIRECTORY"`): the input and output of the parsers, as JSON Lines.

A file contains one exchange, as lines in the format that `lines` describes, so that it can be viewed (`streamtool
inspect`) and replayed (`streamtool parse --replay`). A file contains prompts and replies, since that is the purpose of
the setting, and only its owner can read it.

Lines are collected and written in large blocks, so that recording adds little cost to the exchange. Any problem with a
file, such as a full disk, ends the recording with a warning, but never the exchange.
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

from streamtool.core.errors import SettingsError
from streamtool.core.reply import ReplyEvent
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.listener import FedText
from streamtool.exchange.record import Record
from streamtool.observe import lines
from streamtool.observe.line_listener import LineListener
from streamtool.protocols.shared.wire import encode

ENDING: Final = ".jsonl"
_GATHERED = 64 * 1024
"""Approximate number of bytes to write at a time."""
_LAST = 256
"""Number of bytes reserved for the line that marks the recording as cut."""
_BODIES: Final = {"exchange": "request", "attempt": "body"}
"""The fields with a request's body, by type of line."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_log = logging.getLogger("streamtool")


class Recorder:
    """A recorder for exchanges. The directory is created if necessary. Raises SettingsError if that fails."""

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
            raise SettingsError(
                f"recordings: {directory} cannot be created: {error.strerror}", param="recordings"
            ) from None

    def record(self, exchange: Exchange) -> "Recording":
        """Return a recording of an exchange that begins now."""
        return Recording(exchange, self._directory, self._size, self._clock, self._keep)

    def _keep(self, path: Path) -> None:
        """Register a new recording, and delete the oldest one if there are too many."""
        with self._lock:
            self._written.append(path)
            surplus = [self._written.popleft() for _ in range(len(self._written) - self._files)]
        for old in surplus:
            with suppress(OSError):
                old.unlink()


class Recording(LineListener):
    """A listener that records one exchange in a file."""

    __slots__ = ("_began", "_buffer", "_clock", "_descriptor", "_keep", "_left", "_request_id", "path")

    def __init__(
        self,
        exchange: Exchange,
        directory: Path,
        size: int,
        clock: Callable[[], float],
        keep: Callable[[Path], None],
    ) -> None:
        super().__init__(self._record, self._seconds)
        self._clock = clock
        self._began = clock()
        self._keep = keep
        self._buffer: list[bytes] = []
        self._left = size - _LAST
        """Number of bytes that may still be written."""
        self._request_id = exchange.request_id
        self.path = directory / (safe_file_name(exchange.request_id) + ENDING)
        self._descriptor: int | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            self._abandon(error)
            return
        keep(self.path)
        asked = lines.strip_secrets(exchange.conversation.raw)
        self._record(lines.exchange_line(exchange, asked))

    def fed(self, fed: FedText, /) -> None:
        """Record text that was fed to a parser."""
        if self._descriptor is not None:
            super().fed(fed)

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Record events that the client received."""
        if self._descriptor is not None:
            super().sent(events, data, waits_for)

    # --- the end

    def end(self, record: Record) -> None:
        """Write the remaining lines, and rename the file if the client knows the exchange by another id."""
        self._record(lines.record_line(record))
        self._close()
        if record.request_id != self._request_id:
            named = self.path.with_name(safe_file_name(record.request_id) + ENDING)
            with suppress(OSError):  # the name is already taken, or the file system has no links
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
                self._abandon(error)

    def _seconds(self) -> float:
        return round(self._clock() - self._began, 6)

    def _record(self, line: lines.Line, /) -> None:
        """Add a line to the buffer. If it is too long, omit the body in it; if it is still too long, end the
        recording.
        """
        if self._descriptor is None:
            return
        data = encode(line) + b"\n"
        leaves_out = _BODIES.get(line["type"])
        if leaves_out is not None and len(data) > self._left // 2:
            data = encode({**line, leaves_out: None, "left_out": leaves_out}) + b"\n"
        if len(data) > self._left:
            self._buffer.append(encode(lines.cut_line(self._seconds())) + b"\n")
            self._close()
            return
        before, self._left = self._left, self._left - len(data)
        self._buffer.append(data)
        if before // _GATHERED != self._left // _GATHERED:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._buffer)
        self._buffer.clear()
        try:
            while data and self._descriptor is not None:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._abandon(error)

    def _abandon(self, error: OSError) -> None:
        descriptor, self._descriptor = self._descriptor, None
        self._buffer.clear()
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
        _log.warning("the recording of an exchange in %s was abandoned: %s", self.path, error.strerror)


def safe_file_name(request_id: str) -> str:
    """Return a request id in a form that is safe as a file name."""
    return _UNSAFE.sub("_", request_id)[:100] or "_"
