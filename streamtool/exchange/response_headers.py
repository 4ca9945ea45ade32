"""Status and headers of what the client receives: those of the upstream that may pass, and those of our own."""

from typing import Final

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import ResponseHead
from streamtool.exchange.request import ClientRequest
from streamtool.protocols.interfaces import ClientProtocol, Headers

_DROPPED: Final = frozenset(
    (
        *(b"content-length", b"content-encoding", b"transfer-encoding", b"content-type", b"cache-control", b"etag"),
        *(b"connection", b"keep-alive", b"x-accel-buffering", b"x-request-id", b"request-id", b"trailer"),
        *(b"x-streamtool-mode", b"x-streamtool-format", b"x-streamtool-attempts", b"x-streamtool-unmet"),
    )
)
_RETRY_HINTS: Final = frozenset((b"retry-after", b"retry-after-ms", b"x-should-retry"))


class ResponseHeaders:
    """What is known of them so far."""

    __slots__ = ("_protocol", "_request", "_upstream", "attempts", "request_id", "unmet")

    def __init__(self, protocol: ClientProtocol, request: ClientRequest, request_id: str) -> None:
        self._protocol = protocol
        self._request = request
        self._upstream: Headers = ()
        self.request_id = request_id
        """The upstream's own, or else one that was made here."""
        self.attempts = 0
        self.unmet: str | None = None
        """Cause of the failure with which the last attempt is delivered."""

    def take(self, headers: Headers) -> None:
        """The upstream's headers (names in lower case); those of the last attempt count."""
        self._upstream = tuple((name, value) for name, value in headers if name not in _DROPPED)
        found = dict(headers)
        told = found.get(b"x-request-id") or found.get(b"request-id") or b""
        self.request_id = told.decode("latin-1") or self.request_id

    def stream(self) -> ResponseHead:
        """The head of a stream."""
        return ResponseHead(200, (*self._upstream, *self._protocol.STREAM_HEADERS, *self._own()))

    def complete(self, body: bytes) -> ResponseHead:
        """The head of a reply in one piece."""
        return ResponseHead(200, (*self._upstream, *self._of(body), *self._own()))

    def failure(self, error: StreamtoolError, body: bytes) -> ResponseHead:
        """The head of an error."""
        hints = tuple(pair for pair in self._upstream if pair[0] in _RETRY_HINTS)
        return ResponseHead(error.status, (*hints, *error.headers, *self._of(body), *self._own()))

    def _of(self, body: bytes) -> Headers:
        return (*self._protocol.COMPLETE_HEADERS, (b"content-length", str(len(body)).encode()))

    def _own(self) -> Headers:
        request = self._request
        return (
            (self._protocol.REQUEST_ID, self.request_id.encode("latin-1", "replace")),
            (b"x-streamtool-mode", request.mode.encode()),
            *(((b"x-streamtool-format", request.model.format.encode()),) if request.emulates else ()),
            (b"x-streamtool-attempts", str(self.attempts).encode()),
            *(((b"x-streamtool-unmet", self.unmet.encode()),) if self.unmet is not None else ()),
        )
