"""Content encodings, of a request's body at once and of a reply's piece by piece: gzip and deflate, with the standard
library."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from streamtool.errors import RequestError, TooLargeError
from streamtool.protocols.interfaces import Headers

_PIECE: Final = 256 * 1024
"""Bytes to which a piece of a reply is decoded at once: it may be a thousand times shorter than what it stands for."""


class Inflate:
    """Decodes gzip or deflate, piece by piece. Raises zlib.error when the data is neither."""

    __slots__ = ("_decoder", "_first", "_raw_too")

    def __init__(self, encoding: str) -> None:
        self._raw_too = encoding == "deflate"
        self._first = b""
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
            return self._decoder.decompress(self._first + data, limit)
        finally:
            self._first = (self._first + data[:2])[:2]
            self._raw_too = self._raw_too and len(self._first) < 2  # the header has two bytes

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What `data` decodes to, in pieces of a bounded size.

        Before zlib.error comes all that can be decoded, wherever the network has cut what came.
        """
        while True:
            before = self._decoder.copy()
            try:
                piece = self.feed(data, _PIECE)
            except zlib.error:
                yield _decoded(before, data)
                raise
            if not piece:
                return
            yield piece
            data = self._decoder.unconsumed_tail


def _decoded(decoder: Any, data: bytes) -> bytes:
    """What `data` decodes to up to the byte that cannot be: zlib keeps nothing of a call that fails."""
    found = bytearray()
    with suppress(zlib.error):
        for at in range(len(data)):
            found += decoder.decompress(data[at : at + 1])
    return bytes(found)


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
