"""Content encodings: gzip and deflate, for complete request bodies and for replies that arrive in pieces."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Any, Final

from streamtool.core.errors import RequestError, TooLargeError
from streamtool.protocols.interfaces import Headers

_HEADER: Final = b"content-encoding"
_PIECE: Final = 256 * 1024
"""Maximum size in bytes of a decoded piece of a reply. The encoded piece may be a thousand times smaller."""


class Inflate:
    """An incremental decoder for gzip and deflate. Raises zlib.error for any other data."""

    __slots__ = ("_decoder", "_first", "_raw_too")

    def __init__(self, encoding: str) -> None:
        self._raw_too = encoding == "deflate"
        self._first = b""
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(self, data: bytes, limit: int = 0) -> bytes:
        """Return the decoded data: at most `limit` bytes of it, unless `limit` is 0."""
        try:
            return self._decoder.decompress(data, limit)
        except zlib.error:
            if not self._raw_too:
                raise
            # "deflate" is sent with or without the zlib header; in this case, without
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decoder.decompress(self._first + data, limit)
        finally:
            self._first = (self._first + data[:2])[:2]
            self._raw_too = self._raw_too and len(self._first) < 2  # the header has two bytes

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data in pieces of limited size.

        All data that can be decoded is yielded before zlib.error is raised, regardless of how the network happened to
        split it.
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
    """Return the decoded data up to the first invalid byte. zlib itself would discard the output of a call that
    fails.
    """
    found = bytearray()
    with suppress(zlib.error):
        for at in range(len(data)):
            found += decoder.decompress(data[at : at + 1])
    return bytes(found)


def decoded_size(body: bytes, headers: Headers) -> float:
    """Return the number of bytes to process in a request: infinite if the body is encoded, since it may expand."""
    return inf if _HEADER in dict(headers) else len(body)


def decode_body(body: bytes, headers: Headers, limit: int) -> bytes:
    """Return the request body, decoded according to its content-encoding.

    Raises TooLargeError if the decoded body exceeds `limit` bytes, and RequestError if the body cannot be decoded.
    """
    encoding = dict(headers).get(_HEADER, b"identity").decode("latin-1").lower().strip()
    if encoding not in ("", "identity"):
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise RequestError(f"content-encoding {encoding} is not supported; send gzip, deflate or none")
        try:
            body = Inflate(encoding).feed(body, limit + 1)
        except zlib.error:
            raise RequestError(f"the body is not valid {encoding}") from None
    if len(body) > limit:
        raise TooLargeError(f"the request body is larger than {limit} bytes (limits.body)", code="request_too_large")
    return body
