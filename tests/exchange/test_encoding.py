"""Truncated compressed replies: everything received is decoded, wherever the break is."""

import gzip
import zlib

import pytest

from streamtool.core.errors import TooLargeError
from streamtool.exchange.encoding import Inflate, decode_body

TEXT = "".join(f"line {i} of a reply, and é\n" for i in range(400)).encode()
BROKEN = b"this was never packed"


def flushed() -> bytes:
    """Return the compressed text, completely flushed but without an end."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return packer.compress(TEXT) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000, 100_000])
def test_all_text_before_the_break_is_decoded(size: int):
    data = flushed() + BROKEN
    inflate, found = Inflate("gzip"), b""
    with pytest.raises(zlib.error):
        for at in range(0, len(data), size):
            for piece in inflate.pieces(data[at : at + size]):
                found += piece
    assert found == TEXT


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_complete_body_is_decoded(size: int):
    data = gzip.compress(TEXT)
    inflate = Inflate("gzip")
    found = b"".join(piece for at in range(0, len(data), size) for piece in inflate.pieces(data[at : at + size]))
    assert found == TEXT


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_all_members_are_decoded(size: int):
    data = gzip.compress(TEXT[:5000]) + gzip.compress(b"") + gzip.compress(TEXT[5000:])
    inflate = Inflate("gzip")
    found = b"".join(piece for at in range(0, len(data), size) for piece in inflate.pieces(data[at : at + size]))
    assert found == TEXT
    headers = ((b"content-encoding", b"gzip"),)
    assert decode_body(data, headers, len(TEXT)) == TEXT
    with pytest.raises(TooLargeError):
        decode_body(data, headers, len(TEXT) - 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [1, 1000])
def test_data_after_the_end_is_neither_decoded_nor_kept(size: int, encoding: str):
    data = gzip.compress(TEXT) if encoding == "gzip" else zlib.compress(TEXT)
    data += b"\x1f garbage" * 500
    inflate = Inflate(encoding)
    found = b"".join(piece for at in range(0, len(data), size) for piece in inflate.pieces(data[at : at + size]))
    assert found == TEXT
    assert len(inflate._decoder.unused_data) <= 4096
