"""The upstream's response to one attempt: its body, decoded and read as events, or the error that it represents."""

import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.reply import ReplyEvent, ReplyFailure
from streamtool.exchange.cumulative import CumulativeReader
from streamtool.exchange.encoding import Inflate
from streamtool.exchange.error_response import ErrorResponse
from streamtool.exchange.resumption import ContinuationReader, Resumption
from streamtool.protocols.interfaces import Headers, UpstreamProtocol, UpstreamReader

_COMPRESSED: Final = 4 * 1024 - 500
"""Weight of a piece of a compressed body, chosen so that about 500 bytes of the body may be read at a time."""
_LONG: Final = 4 * 1024
"""Maximum size in bytes that one compressed piece may expand to before the body is treated as costly."""


class UpstreamResponse:
    """The upstream's response to one attempt, which may continue the text of earlier ones."""

    __slots__ = (
        "_inflate",
        "_limited",
        "_on_continued",
        "_ordinary_reader",
        "_protocol",
        "direct",
        "error",
        "reader",
        "weight",
    )

    def __init__(
        self,
        protocol: UpstreamProtocol,
        choices: int,
        tool_names: Collection[str],
        resumption: Resumption | None = None,
        on_continued: Callable[[int], None] | None = None,
    ) -> None:
        self._protocol = protocol
        self._inflate: Inflate | None = None
        reader: UpstreamReader = protocol.ReplyReader(n=choices)
        reader.tool_names = tool_names
        self._ordinary_reader = reader
        self.reader: UpstreamReader = CumulativeReader(reader, self._use_ordinary_reader)
        self._on_continued = on_continued
        self._limited = False
        """Whether the number of tokens in a continued reply is limited, and has to be counted."""
        if resumption is not None and resumption.text:
            self._limited = resumption.left is not None
            self.reader = ContinuationReader(self.reader, resumption.readings, self._continue, resumption.left)
        self.error: ErrorResponse | None = None
        """The error response that the body describes, or None if the status is not an error."""
        self.direct = True
        """Whether the body is the reply itself: not compressed, and not an error."""
        self.weight = 0
        """Number of bytes to add to the size of the next piece, because a compressed piece may expand to many more
        bytes.
        """

    def _use_ordinary_reader(self) -> None:
        """Stop looking for repeated text."""
        if isinstance(self.reader, ContinuationReader):
            self.reader.reader = self._ordinary_reader
        else:
            self.reader = self._ordinary_reader

    def _continue(self, again: int) -> None:
        """Stop comparing the text with that of earlier attempts, which has been written again in this many deltas."""
        if isinstance(self.reader, ContinuationReader) and not self._limited:
            self.reader = self.reader.reader
        if self._on_continued is not None:
            self._on_continued(again)

    def begin(self, status: int, headers: Headers) -> None:
        """Process the status and the headers (names in lower case). Raises UpstreamError if the body cannot be
        decoded.
        """
        if not 200 <= status < 300:
            self.error = ErrorResponse(status)
            self.direct = False
        encoding = dict(headers).get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if encoding in ("", "identity"):
            return
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise UpstreamError(
                f"the upstream answered with content-encoding {encoding} although identity was requested"
            )
        self._inflate = Inflate(encoding)
        self.weight = _COMPRESSED
        self.direct = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded body in pieces of limited size. Raises UpstreamError if it cannot be decoded."""
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
        """Note the end of the body and return the last events of the reply, or the error."""
        if self.error is not None:
            return [ReplyFailure(self.error.error(self._protocol))]
        return self.reader.close()

    def fail(self, error: StreamtoolError) -> list[ReplyEvent]:
        """Note that the body was cut off by this error. Return the last events; the reply may still be complete."""
        events = self.close() or [ReplyFailure(error)]
        if type(events[-1]) is ReplyFailure and self.error is None:
            events[-1] = ReplyFailure(error)
        return events


def too_large(limit: int) -> UpstreamError:
    """Return the error for a reply that exceeds the limit."""
    return UpstreamError(f"the upstream's reply is larger than {limit} bytes (limits.reply)", code="reply_too_large")


def lower_names(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers with names in lower case."""
    return tuple((name.lower(), value) for name, value in headers)
