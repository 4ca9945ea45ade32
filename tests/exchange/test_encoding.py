"""Truncated compressed replies: everything received is decoded, wherever the break is."""

import gzip
import zlib

import pytest

from streamtool.exchange.encoding import Inflate

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
