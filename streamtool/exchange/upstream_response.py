"""The upstream's response to one attempt: its body, decoded and read as events; or the error that it is."""

import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange.encoding import Inflate
from streamtool.exchange.error_response import ErrorResponse
from streamtool.protocols.interfaces import Headers, UpstreamProtocol, UpstreamReader
from streamtool.reply import ReplyEvent, ReplyFailure

_COMPRESSED: Final = 4 * 1024 - 500
"""The weight of a compressed body: some 500 bytes of it are read at once."""
_LONG: Final = 4 * 1024
"""Bytes to which one piece may decode without suspicion."""


class UpstreamResponse:
    """One response."""

    __slots__ = ("_inflate", "_protocol", "direct", "error", "reader", "weight")

    def __init__(self, protocol: UpstreamProtocol, choices: int) -> None:
        self._protocol = protocol
        self._inflate: Inflate | None = None
        self.reader: UpstreamReader = protocol.ReplyReader(n=choices)
        self.error: ErrorResponse | None = None
        """The response has an error status; its body says which error."""
        self.direct = True
        """The body is the reply as it stands: neither compressed nor an error."""
        self.weight = 0
        """Bytes as which the next piece counts besides its own: one that is compressed may stand for many more."""

    def begin(self, status: int, headers: Headers) -> None:
        """Status and headers have come (names in lower case). Raises UpstreamError when the body cannot be decoded."""
        if not 200 <= status < 300:
            self.error = ErrorResponse(status)
            self.direct = False
        encoding = dict(headers).get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if encoding in ("", "identity"):
            return
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise UpstreamError(
                f"the upstream answered with content-encoding {encoding}, though identity was asked for"
            )
        self._inflate = Inflate(encoding)
        self.weight = _COMPRESSED
        self.direct = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The decoded body, in pieces of a bounded size. Raises UpstreamError when it cannot be decoded."""
        if self._inflate is None:
            yield data
            return
        size = 0
        try:
            for piece in self._inflate.pieces(data):
                size += len(piece)
                yield piece
        except zlib.error:
            raise UpstreamError("the upstream's compressed reply cannot be decoded") from None
        if size > _LONG:
            self.weight = sys.maxsize

    def close(self) -> list[ReplyEvent]:
        """The body is over: the last events of the reply, or the error."""
        if self.error is not None:
            return [ReplyFailure(self.error.error(self._protocol))]
        return self.reader.close()

    def fail(self, error: StreamtoolError) -> list[ReplyEvent]:
        """The body broke off for this reason: the last events. The reply may be whole all the same."""
        events = self.close() or [ReplyFailure(error)]
        if type(events[-1]) is ReplyFailure and self.error is None:
            events[-1] = ReplyFailure(error)
        return events


def lower(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers with their names in lower case."""
    return tuple((name.lower(), value) for name, value in headers)
