"""Content encodings, of a request's body at once and of a reply's piece by piece: gzip and deflate, with the standard
library."""

import zlib

from streamtool.errors import RequestError, TooLargeError
from streamtool.exchange.shapes import Headers


class Inflate:
    """Decodes gzip or deflate, piece by piece. Raises zlib.error when the data is neither."""

    __slots__ = ("_decoder", "_raw_too")

    def __init__(self, encoding: str) -> None:
        self._raw_too = encoding == "deflate"
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(self, data: bytes, limit: int = 0) -> bytes:
        """What `data` decodes to; with a limit, at most that many bytes of it."""
        try:
            return self._decoder.decompress(data, limit)
        except zlib.error:
            if not self._raw_too:
                raise
            # "deflate" is sent with and without the zlib header; the header is missing
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decoder.decompress(data, limit)
        finally:
            self._raw_too = False


def decode_body(body: bytes, headers: Headers, limit: int) -> bytes:
    """The request body without its content-encoding. Raises TooLargeError beyond `limit` bytes, RequestError when it
    cannot be decoded."""
    encoding = next((value for name, value in headers if name == b"content-encoding"), b"").decode("latin-1").lower()
    if encoding.strip() not in ("", "identity"):
        if encoding.strip() not in ("gzip", "x-gzip", "deflate"):
            raise RequestError(f"content-encoding {encoding} is not supported; send gzip, deflate or none")
        try:
            body = Inflate(encoding.strip()).feed(body, limit + 1)
        except zlib.error:
            raise RequestError(f"the body is not valid {encoding}") from None
    if len(body) > limit:
        raise TooLargeError(f"the request body is larger than {limit} bytes (limits.body)", code="request_too_large")
    return body
