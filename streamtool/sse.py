"""Server-Sent Events, both ways: bytes that arrive in pieces become events, an event becomes bytes.

`SseReader` follows the event stream interpretation of the WHATWG HTML standard (section 9.2.6), with three deliberate
differences: data and names stay bytes until a whole line is there, so that a character may be cut anywhere; an
unterminated last event is dispatched if its data is JSON, because upstreams forget the last blank line; and what is
held is bounded.

Theory of operation. Nearly every chunk that an upstream sends is one or more whole events, each a `data:` line or an
`event:` line and a `data:` line. `feed` recognises such a chunk with three searches that run in C and slices it.
Everything else goes line by line through `_line`, which is the standard's algorithm. Both leave the reader in the same
state, so they may alternate from chunk to chunk. A line that is not whole yet is kept as a list of its pieces and
joined once: no byte is searched twice, and the cost of a chunk does not depend on how much is already held.
"""

import json

from attrs import define

from streamtool.errors import UpstreamError

BOM = b"\xef\xbb\xbf"
HELD = 64 * 1024 * 1024
"""Default for the bytes that a reader holds of one unfinished event."""

_LF = 10
_D = 100
_LONGEST_RETRY = 12  # digits; more is nonsense, and int() refuses thousands


@define
class Event:
    """One dispatched event. `data` is what its data lines say, joined by LF; it is UTF-8 if the sender is right."""

    name: str | None
    """The value of the last `event:` line; None without one."""
    data: bytes
    raw: bytes | None = None
    """The event as it came if it was exactly `data: …LF LF`, perhaps after `event: …LF`, to be forwarded; else None."""


class SseReader:
    """Turns the bytes of an event stream into events.

    `error` is set once an event exceeds `limit` bytes: what came before was returned, what follows is ignored.
    `final` are data other than JSON that an unterminated last event may have (`[DONE]`).
    `last_id` and `retry` (milliseconds) are the last values of these fields, for whoever reconnects.
    """

    __slots__ = ("_data", "_final", "_head", "_held", "_limit", "_name", "_piece", "_plain", "_skip_lf", "error",
                 "last_id", "retry")  # fmt: skip

    def __init__(self, *, limit: int = HELD, final: tuple[bytes, ...] = ()) -> None:
        self.error: UpstreamError | None = None
        self.last_id = ""
        self.retry: int | None = None
        self._limit = limit
        self._final = final
        self._head: bytes | None = b""  # the beginning of the stream while it may still become a BOM; None: it is over
        self._piece: list[bytes] = []  # pieces of the line that is not whole yet
        self._data: list[bytes] = []  # data lines of the event that is not dispatched yet
        self._held = 0  # bytes in the two lists
        self._name: str | None = None
        self._plain = True  # no line of this event was anything but its first `data: …LF`
        self._skip_lf = False  # the last chunk ended in CR: an LF at the start of the next one belongs to it

    @property
    def idle(self) -> bool:
        """Whether the next byte begins an event."""
        held = self._held or self._piece or self._skip_lf
        return self._head is None and self._plain and self._name is None and not held

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
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
                    return [Event(None, chunk[6:-2], chunk)]
            elif chunk[first + 1 : first + 7] == b"data: " and chunk.find(b"\n", first + 1) == len(chunk) - 2:
                name = chunk[7:first]
                if chunk[0] != _D and name.isascii():
                    return [Event(name.decode(), chunk[first + 7 : -2], chunk)]
            return self._several(chunk)
        events: list[Event] = []
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

    def close(self) -> list[Event]:
        """The last event if the stream broke off before its blank line and its data is JSON, or one of `final`."""
        events: list[Event] = []
        if self.error is not None:
            return events
        if self._head or self._piece:
            self._lines((self._head or b"") + b"\n", events)
            self._head = None
        data = b"\n".join(self._data)
        if self._data and (data in self._final or _is_json(data)):
            events.append(Event(self._name, data))
        self._reset()
        return events

    def _several(self, chunk: bytes) -> list[Event]:
        """The events of a chunk that begins and ends with whole events; the reader holds nothing before and after."""
        events: list[Event] = []
        for block in chunk[:-2].split(b"\n\n"):
            first, _, second = block.partition(b"\n")
            if first[:6] == b"data: " and not second and len(first) == len(block):
                events.append(Event(None, block[6:], block + b"\n\n"))
            elif first[:7] == b"event: " and second[:6] == b"data: " and b"\n" not in second and first.isascii():
                events.append(Event(first[7:].decode(), second[6:], block + b"\n\n"))
            else:
                self._lines(block + b"\n\n", events)
            if self.error is not None:
                break
        return events

    def _lines(self, chunk: bytes, events: list[Event]) -> None:
        if self._skip_lf:
            self._skip_lf = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        for whole in chunk.splitlines(keepends=True):  # bytes split at LF, CR and CRLF only
            line = whole.rstrip(b"\r\n")
            if len(line) == len(whole):
                self._piece.append(line)
                self._hold(len(line))
                return
            if self._piece:
                self._held -= sum(map(len, self._piece))
                line = b"".join((*self._piece, line))
                self._piece.clear()
            self._line(line, events, lf=whole[-2:] != b"\r\n" and whole[-1] == _LF)
            if self.error is not None:
                return
        self._skip_lf = chunk[-1:] == b"\r"

    def _line(self, line: bytes, events: list[Event], *, lf: bool) -> None:
        """One whole line without its end; `lf` says that the end was a single LF."""
        if not line:
            if self._data:
                data = b"\n".join(self._data)
                raw = encode(self._name, data) if lf and self._plain else None
                events.append(Event(self._name, data, raw))
            self._reset()
            return
        field, _, value = line.partition(b":")
        spaced = value[:1] == b" "
        if spaced:
            value = value[1:]
        if field == b"data":
            self._plain = lf and spaced and self._plain and not self._data
            self._data.append(value)
            self._hold(len(value) + 1)
            return
        again = self._name is not None or bool(self._data)
        plain, self._plain = self._plain, False
        if field == b"event":
            self._plain = plain and lf and spaced and value.isascii() and not again
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self.last_id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) < _LONGEST_RETRY:
            self.retry = int(value)

    def _hold(self, length: int) -> None:
        self._held += length
        if self._held > self._limit:
            self.error = UpstreamError(
                f"An event of the upstream's stream is longer than {self._limit} bytes.", code="event_too_long"
            )
            self._reset()
            self._plain = False  # keeps the short path of `feed` closed

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
    """One event with its blank line. `data` that holds line ends becomes several data lines; JSON never does."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines() + ([b""] if data[-1:] in b"\r\n" else []))
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment, which every client ignores: what keeps a silent connection open."""
    return b": " + text.encode().replace(b"\n", b"\n: ") + b"\n\n"
