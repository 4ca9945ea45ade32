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
"""Maximum size in bytes of a decoded piece. The encoded piece may be a thousand times smaller."""
_STEP: Final = 4 * 1024
"""Number of encoded bytes to decode at a time. zlib copies the rest of them at the end of each member."""
_MEMBER: Final = b"\x1f\x8b"
"""The first bytes of a member of gzip."""


class Inflate:
    """An incremental decoder for gzip, which may consist of several members, and for deflate.

    Raises zlib.error for any other data, but ignores data after the end.
    """

    __slots__ = ("_decoder", "_first", "_member", "_raw_too")

    def __init__(self, encoding: str) -> None:
        self._raw_too = encoding == "deflate"
        self._first = b""
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._member: bytes | None = None if self._raw_too else b""
        """The data after a member, until it is known whether another one begins; None if no other may follow."""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data in pieces of limited size.

        All data that can be decoded is yielded before zlib.error is raised, regardless of how the network happened to
        split it.
        """
        for at in range(0, len(data), _STEP):
            yield from self._step(data[at : at + _STEP])

    def _step(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._decoder.eof:
                data = self._next_member(data)
                if not data:
                    return
            before = self._decoder.copy()
            try:
                piece = self._decode(data)
            except zlib.error:
                yield _decoded(before, data)
                raise
            if piece:
                yield piece
            elif not self._decoder.eof:
                return
            data = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail

    def _next_member(self, data: bytes) -> bytes:
        """Return the data after a member if it begins another one. Ignore all data after the last one: zlib would keep
        it, and copy it whenever more arrives.
        """
        if self._member is None:
            return b""
        data = self._member + data
        if not data.startswith(_MEMBER):
            self._member = data if _MEMBER.startswith(data) else None
            return b""
        self._member = b""
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return data

    def _decode(self, data: bytes) -> bytes:
        try:
            return self._decoder.decompress(data, _PIECE)
        except zlib.error:
            if not self._raw_too:
                raise
            # "deflate" is sent with or without the zlib header; in this case, without
            self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._decoder.decompress(self._first + data, _PIECE)
        finally:
            self._first = (self._first + data[:2])[:2]
            self._raw_too = self._raw_too and len(self._first) < 2  # the header has two bytes


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
            found = bytearray()
            for piece in Inflate(encoding).pieces(body):
                found += piece
                if len(found) > limit:
                    break
            body = bytes(found)
        except zlib.error:
            raise RequestError(f"the body is not valid {encoding}") from None
    if len(body) > limit:
        raise TooLargeError(f"the request body is larger than {limit} bytes (limits.body)", code="request_too_large")
    return body
