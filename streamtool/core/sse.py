"""Server-Sent Events in both directions: decoding bytes that arrive in pieces, and encoding events.

`SseReader` follows the event stream interpretation of the WHATWG HTML standard (section 9.2.6), with three deliberate
differences: data and names remain bytes until a line is complete, so that a chunk may end inside a character; an
unterminated last event is dispatched if its data is JSON, because some upstreams omit the last blank line; and the
amount of buffered data is bounded.

Theory of operation. Nearly every chunk that an upstream sends consists of one or more complete events, each with a
`data:` line that may follow an `event:` line. `feed` recognizes such a chunk with three searches that run in C, and
slices it. All other chunks are processed line by line in `_line`, which implements the standard's algorithm. Both paths
leave the reader in the same state, so they may alternate from chunk to chunk. An incomplete line is stored as a list of
pieces and joined once: no byte is searched twice, and the cost of a chunk does not depend on how much is already
buffered.
"""

import json

from attrs import define

from streamtool.core.errors import UpstreamError

BOM = b"\xef\xbb\xbf"
MAX_BUFFERED = 64 * 1024 * 1024
"""The default limit on the number of bytes that a reader buffers for one unfinished event."""

_LF = 10
_D = 100


@define
class ServerSentEvent:
    """A dispatched event. `data` is the content of its data lines, joined by LF; it is UTF-8 if the sender follows the
    standard.
    """

    name: str | None
    """The value of the last `event:` line, or None if it is missing."""
    data: bytes
    raw: bytes | None = None
    """The bytes to forward if the event was exactly `data: …LF LF`, optionally after `event: …LF`. None in any other
    case.
    """


class SseReader:
    """A decoder for the bytes of an event stream.

    `error` is set once an event exceeds `limit` bytes; events before it have been returned, and later bytes are
    ignored. `final` lists data that is not JSON but is accepted in an unterminated last event (`[DONE]`).
    """

    __slots__ = ("_data", "_final", "_head", "_held", "_limit", "_name", "_piece", "_plain", "_skip_lf", "error")

    def __init__(self, *, limit: int = MAX_BUFFERED, final: tuple[bytes, ...] = ()) -> None:
        self.error: UpstreamError | None = None
        self._limit = limit
        self._final = final
        self._head: bytes | None = b""  # the beginning of the stream while it may still become a BOM; then None
        self._piece: list[bytes] = []  # the pieces of the incomplete line
        self._data: list[bytes] = []  # the data lines of the event that has not been dispatched
        self._held = 0  # the number of bytes in the two lists
        self._name: str | None = None
        self._plain = True  # so far, the event is `data: …LF`, optionally after `event: …LF`
        self._skip_lf = False  # the last chunk ended in CR: an LF at the start of the next one belongs to it

    @property
    def idle(self) -> bool:
        """Whether the reader is between events: nothing is buffered."""
        held = self._held or self._piece or self._skip_lf
        return self._head is None and self._plain and self._name is None and not held

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes."""
        if (
            self._head is None
            and (chunk[:6] == b"data: " or chunk[:7] == b"event: ")
            and chunk[-2:] == b"\n\n"
            and not self._held
            and self._plain
            and self._name is None
            and b"\r" not in chunk
        ):
            self._skip_lf = False
            first = chunk.find(b"\n")
            if first == len(chunk) - 2:
                if chunk[0] == _D:
                    return [ServerSentEvent(None, chunk[6:-2], chunk)]
            elif chunk[first + 1 : first + 7] == b"data: " and chunk.find(b"\n", first + 1) == len(chunk) - 2:
                name = chunk[7:first]
                if chunk[0] != _D and name.isascii():
                    return [ServerSentEvent(name.decode(), chunk[first + 7 : -2], chunk)]
            return self._split_events(chunk)
        events: list[ServerSentEvent] = []
        if not chunk or self.error is not None:
            return events
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(BOM) and BOM.startswith(chunk):
                self._head = chunk
                return events
            self._head = None
            chunk = chunk.removeprefix(BOM)
            if chunk[:6] == b"data: " or chunk[:7] == b"event: ":
                return self.feed(chunk)
        self._lines(chunk, events)
        return events

    def close(self) -> list[ServerSentEvent]:
        """End the stream. Return an unterminated last event if its data is JSON or listed in `final`."""
        events: list[ServerSentEvent] = []
        if self.error is not None:
            return events
        if self._head or self._piece:
            self._lines((self._head or b"") + b"\n", events)
            self._head = None
        data = b"\n".join(self._data)
        if self._data and (data in self._final or _is_json(data)):
            events.append(ServerSentEvent(self._name, data))
        self._reset()
        return events

    def _split_events(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events of a chunk that consists of complete events only; nothing is buffered before or after
        it.
        """
        events: list[ServerSentEvent] = []
        for block in chunk[:-2].split(b"\n\n"):
            first, _, second = block.partition(b"\n")
            if first[:6] == b"data: " and not second and len(first) == len(block):
                events.append(ServerSentEvent(None, block[6:], block + b"\n\n"))
            elif first[:7] == b"event: " and second[:6] == b"data: " and b"\n" not in second and first.isascii():
                events.append(ServerSentEvent(first[7:].decode(), second[6:], block + b"\n\n"))
            else:
                self._lines(block + b"\n\n", events)
            if self.error is not None:
                break
        return events

    def _lines(self, chunk: bytes, events: list[ServerSentEvent]) -> None:
        if self._skip_lf:
            self._skip_lf = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        for whole in chunk.splitlines(keepends=True):  # bytes.splitlines splits at LF, CR and CRLF only
            line = whole.rstrip(b"\r\n")
            if len(line) == len(whole):
                self._piece.append(line)
                self._count_buffered(len(line))
                return
            if self._piece:
                self._held -= sum(map(len, self._piece))
                line = b"".join((*self._piece, line))
                self._piece.clear()
            self._line(line, events, lf=whole[-2:] != b"\r\n" and whole[-1] == _LF)
            if self.error is not None:
                return
        self._skip_lf = chunk[-1:] == b"\r"

    def _line(self, line: bytes, events: list[ServerSentEvent], *, lf: bool) -> None:
        """Process one complete line without its line break; `lf` means that the line break was a single LF."""
        if not line:
            if self._data:
                data = b"\n".join(self._data)
                raw = encode(self._name, data) if lf and self._plain else None
                events.append(ServerSentEvent(self._name, data, raw))
            self._reset()
            return
        field, _, value = line.partition(b":")
        spaced = value[:1] == b" "
        if spaced:
            value = value[1:]
        if field == b"data":
            self._plain = lf and spaced and self._plain and not self._data
            self._data.append(value)
            self._count_buffered(len(value) + 1)
            return
        again = self._name is not None or bool(self._data)
        plain, self._plain = self._plain, False
        if field == b"event":
            self._plain = plain and lf and spaced and value.isascii() and not again
            self._name = value.decode("utf-8", "replace")

    def _count_buffered(self, length: int) -> None:
        self._held += length
        if self._held > self._limit:
            self.error = UpstreamError(
                f"An event in the upstream's stream exceeds {self._limit} bytes.", code="event_too_long"
            )
            self._reset()
            self._plain = False  # keep the fast path of `feed` closed

    def _reset(self) -> None:
        self._piece.clear()
        self._data.clear()
        self._held = 0
        self._name = None
        self._plain = True


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def encode(name: str | None, data: bytes) -> bytes:
    """Encode one event with its blank line. `data` with line breaks becomes several data lines; JSON never contains
    any.
    """
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines() + ([b""] if data[-1:] in b"\r\n" else []))
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Encode a comment, which every client ignores; it keeps a silent connection alive."""
    return b": " + text.encode().replace(b"\n", b"\n: ") + b"\n\n"
