"""Tells what an upstream's answer is, because content types lie: an event stream, one JSON document, or a web page.

The first byte that is not white space decides: `{` or `[` is a document (a whole reply where a stream was expected, or
an error), `<` is a page, anything else an event stream. A document and a page are kept, within bounds, until the end;
a stream is cut into events as it comes.
"""

from typing import Final

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire

_PAGE: Final = 8192  # bytes of a web page that are read, for its title
_SHOWN: Final = 80  # bytes of an answer that is none of these


class Beginning:
    """The beginning of an answer, up to the first byte that is not white space or part of a byte order mark."""

    __slots__ = ("_head",)

    def __init__(self) -> None:
        self._head = b""  # what may still become a byte order mark

    def feed(self, data: bytes) -> bytes:
        """The answer from its first byte that tells something on; b"" if none has come."""
        head = self._head + data
        start = head.removeprefix(sse.BOM).lstrip()
        if not start or sse.BOM.startswith(head):
            self._head = head if sse.BOM.startswith(head) else b""
            return b""
        self._head = b""
        return start


class BodySniffer:
    """Takes one answer apart.

    `stream` is the event stream's reader once the answer is known to be one, `body` the document that has come so far,
    None while it is none. `error` is set when nothing more can come of it; the events before it were returned.
    `final` are the data other than JSON that the stream's last event may have.
    """

    __slots__ = ("_beginning", "_final", "_held", "_pieces", "_shown", "error", "stream")

    def __init__(self, *, final: tuple[bytes, ...] = ()) -> None:
        self.stream: sse.SseReader | None = None
        self.error: UpstreamError | None = None
        self._final = final
        self._beginning = Beginning()
        self._shown = b""  # how a stream began, for the sentence about what it was
        self._pieces: list[bytes] | None = None
        self._held = 0

    @property
    def body(self) -> bytes | None:
        """The document, as far as it came."""
        return None if self._pieces is None else b"".join(self._pieces)

    def feed(self, data: bytes) -> list[sse.Event]:
        """The events that `data` completes."""
        if self.stream is not None:
            return self._events(self.stream, data)
        if self._pieces is not None:
            self._keep(self._pieces, data)
            return []
        start = self._beginning.feed(data)
        if not start:
            return []
        if start[:1] in (b"{", b"[", b"<"):
            self._pieces = []
            self._keep(self._pieces, start)
            return []
        self.stream = sse.SseReader(final=self._final)
        return self._events(self.stream, start)

    def close(self) -> list[sse.Event]:
        """The last event, if the answer is a stream whose end was not closed."""
        body = self.body
        if body is not None and body[:1] == b"<":
            self.error = not_a_reply(body)
        return [] if self.stream is None else self.stream.close()

    def broken_off(self) -> UpstreamError:
        """Why an answer that said nothing is no reply."""
        if self._shown and not self._shown.startswith((b":", b"data", b"event", b"id", b"retry")):
            return not_a_reply(self._shown)
        return broken_off()

    def _events(self, stream: sse.SseReader, data: bytes) -> list[sse.Event]:
        if len(self._shown) < _SHOWN:
            self._shown += data[: _SHOWN - len(self._shown)]
        events = stream.feed(data)
        self.error = stream.error
        return events

    def _keep(self, pieces: list[bytes], data: bytes) -> None:
        pieces.append(data)
        self._held += len(data)
        if self._held > _PAGE and pieces[0][:1] == b"<":
            self.error = not_a_reply(b"".join(pieces))
        elif self._held > sse.HELD:
            self.error = too_large()


def broken_off() -> UpstreamError:
    """The answer ended too early."""
    return UpstreamError("The upstream closed the connection before its reply was whole.", code="upstream_closed")


def unreadable() -> UpstreamError:
    """An event that should be JSON is none."""
    return UpstreamError("The upstream sent an event that is not JSON.", code="upstream_unreadable")


def too_large() -> UpstreamError:
    """More has to be held than anybody holds."""
    return UpstreamError(f"The upstream's reply is larger than {sse.HELD} bytes.", code="reply_too_large")


def not_a_reply(beginning: bytes) -> UpstreamError:
    """The answer is something else; `beginning` is shown."""
    if beginning[:1] == b"<":
        title = wire.page_title(beginning)
        what = f"a web page ({title})" if title else "a web page"
    else:
        what = f"neither JSON nor an event stream: {' '.join(beginning.decode('utf-8', 'replace').split())}"
    return UpstreamError(f"The upstream answered with {what}; check its address.", code="upstream_unreadable").quoting()


def tokens(fields: object, key: str) -> int:
    """The count of tokens under the key; 0 if there is none."""
    value = fields.get(key) if isinstance(fields, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


def read_error(status: int, body: bytes) -> UpstreamError:
    """The error that an upstream answered with: `status` is its HTTP status, not 200; `body` may be anything.

    401 and 403 become a plain `UpstreamError` (502): the key is ours. Where the client's own key was passed on, the
    caller keeps the status.
    """
    body = body.removeprefix(sse.BOM)
    try:
        value = wire.decode_tolerant(body)
    except ValueError:
        text = wire.page_title(body) if body.lstrip()[:1] == b"<" else body[:500].decode("utf-8", "replace").strip()
        value = text or f"The upstream answered with status {status}."
    if isinstance(value, list) and value:
        value = value[0]
    return wire.upstream_error(value, status=status)


def read_models(body: bytes) -> list[str]:
    """The names in a list of models as OpenAI and Anthropic write it; raises ValueError if there is none."""
    match wire.decode_tolerant(body):
        case {"data": [*items]} | [*items]:
            return [item["id"] for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    raise ValueError("no list of models")
