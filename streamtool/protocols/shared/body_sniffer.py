"""Detection of the format of an upstream's response body, because content types are unreliable.

A body is an event stream, a JSON document or a web page. The first byte that is not whitespace identifies the format:
`{` or `[` starts a document (a whole reply instead of a stream, or an error), `<` starts a page, and anything else
starts an event stream. Documents and pages are buffered until they end, up to a limit; a stream is split into events as
it arrives.
"""

from typing import Final

from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.protocols.shared import wire

_PAGE: Final = 8192  # number of bytes of a web page to search for its title
_SHOWN: Final = 80  # number of bytes of an unrecognized body to quote in the error message


class LeadingBytesFilter:
    """Filter that drops leading whitespace and a byte order mark from a body."""

    __slots__ = ("_head",)

    def __init__(self) -> None:
        self._head = b""  # a possible prefix of a byte order mark

    def feed(self, data: bytes) -> bytes:
        """Return `data` from the first significant byte on, or b"" if that byte has not arrived yet."""
        head = self._head + data
        start = head.removeprefix(sse.BOM).lstrip()
        if not start or sse.BOM.startswith(head):
            self._head = head if sse.BOM.startswith(head) else b""
            return b""
        self._head = b""
        return start


class BodySniffer:
    """Incremental parser for one body of unknown format.

    `stream` is the event stream's reader once the body is known to be a stream. `error` is set once the body cannot be
    read any further; the events before the error have already been returned. `final` lists payloads that are valid in
    the last event of a stream even though they are not JSON.
    """

    __slots__ = ("_beginning", "_final", "_held", "_pieces", "_shown", "error", "stream")

    def __init__(self, *, final: tuple[bytes, ...] = ()) -> None:
        self.stream: sse.SseReader | None = None
        self.error: UpstreamError | None = None
        self._final = final
        self._beginning = LeadingBytesFilter()
        self._shown = b""  # the first bytes of a presumed stream, quoted in the error if it is not a stream
        self._pieces: list[bytes] | None = None
        self._held = 0

    @property
    def body(self) -> bytes | None:
        """Part of the document or page that has been received so far; None if the body is neither."""
        return None if self._pieces is None else b"".join(self._pieces)

    def feed(self, data: bytes) -> list[sse.ServerSentEvent]:
        """Return the events that `data` completes."""
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

    def close(self) -> list[sse.ServerSentEvent]:
        """Return a list with the last event of a stream if no blank line terminates that event, or an empty list."""
        body = self.body
        if body is not None and body[:1] == b"<":
            self.error = not_a_reply_error(body)
        return [] if self.stream is None else self.stream.close()

    def truncated_error(self) -> UpstreamError:
        """Return the error for a body that ended before a reply began."""
        if self._shown and not self._shown.startswith((b":", b"data", b"event", b"id", b"retry")):
            return not_a_reply_error(self._shown)
        return truncated_error()

    def _events(self, stream: sse.SseReader, data: bytes) -> list[sse.ServerSentEvent]:
        if len(self._shown) < _SHOWN:
            self._shown += data[: _SHOWN - len(self._shown)]
        events = stream.feed(data)
        self.error = stream.error
        return events

    def _keep(self, pieces: list[bytes], data: bytes) -> None:
        pieces.append(data)
        self._held += len(data)
        if self._held > _PAGE and pieces[0][:1] == b"<":
            self.error = not_a_reply_error(b"".join(pieces))
        elif self._held > sse.MAX_BUFFERED:
            self.error = too_large_error()


def truncated_error() -> UpstreamError:
    """Return the error for a body that ended too early."""
    message = "connection error: the upstream closed the connection before its reply was complete"
    return UpstreamError(message, code="upstream_closed")


def unreadable_error() -> UpstreamError:
    """Return the error for an event that should be JSON but is not."""
    return UpstreamError("The upstream sent an event that is not JSON.", code="upstream_unreadable")


def wrong_type_error(field: str) -> UpstreamError:
    """Return the error for a field whose value has the wrong type."""
    return UpstreamError(f"The upstream's reply is invalid: `{field}` has the wrong type.", code="upstream_unreadable")


def too_large_error() -> UpstreamError:
    """Return the error for a reply that exceeds the buffer limit."""
    return UpstreamError(f"The upstream's reply is larger than {sse.MAX_BUFFERED} bytes.", code="reply_too_large")


def not_a_reply_error(beginning: bytes) -> UpstreamError:
    """Return the error for a body that is not a reply, quoting its `beginning`."""
    if beginning[:1] == b"<":
        title = wire.page_title(beginning)
        what = f"a web page ({title})" if title else "a web page"
    else:
        what = f"neither JSON nor an event stream: {' '.join(beginning.decode('utf-8', 'replace').split())}"
    return UpstreamError(f"The upstream returned {what}; check its URL.", code="upstream_unreadable").quoting()


def token_count(fields: object, key: str) -> int:
    """Return the token count under the key, or 0 if it is missing or invalid."""
    value = fields.get(key) if isinstance(fields, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


def read_error(status: int, body: bytes) -> UpstreamError:
    """Return the error for an upstream's response with an HTTP status other than 200. `body` may have any format.

    A 401 or 403 becomes a plain `UpstreamError` (502), because the rejected API key is ours. If the client's own key
    was forwarded, the caller restores the original status.
    """
    body = body.removeprefix(sse.BOM)
    try:
        value = wire.decode_tolerant(body)
    except ValueError:
        text = wire.page_title(body) if body.lstrip()[:1] == b"<" else body[:500].decode("utf-8", "replace").strip()
        value = text or f"The upstream returned status {status}."
    if isinstance(value, list) and value:
        value = value[0]
    return wire.upstream_error(value, status=status)


def read_models(body: bytes) -> list[str]:
    """Return the names in a model list in OpenAI's or Anthropic's format.

    Raises ValueError if the body is not a model list.
    """
    match wire.decode_tolerant(body):
        case {"data": [*items]} | [*items]:
            return [item["id"] for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]
    raise ValueError("not a list of models")
