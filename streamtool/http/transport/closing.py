"""How a transport leaves the upstream's response: twice, because only the asynchronous one can limit a wait."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio

from streamtool.exchange import MOMENT, Exchange

_DRAIN = 0.1
"""Seconds to wait for the end of a body whose reply is over, so that the connection can be used again."""


async def drain_async(pieces: AsyncIterator[bytes] | None) -> None:
    """Read to the end of a body whose reply is over."""
    with anyio.move_on_after(_DRAIN):
        try:
            while pieces is not None and await anext(pieces, None) is not None:
                pass
        except Exception:  # noqa: BLE001, S110  the reply is whole; how its connection ends does not matter
            pass


def drain_sync(pieces: Iterator[bytes] | None) -> None:
    """Read nothing: a blocking read has no time limit of ours, so the connection is given up instead."""


async def linger_async(exchange: Exchange, pieces: AsyncIterator[bytes]) -> bytes:
    """Hear a reply to its end that is over but for the upstream's counts; what the client is to receive then."""
    out = b""
    with anyio.move_on_after(MOMENT):
        while exchange.lingers:
            data = await anext(pieces, None)
            out += exchange.close() if data is None else exchange.feed(data)
    return out + ended(exchange)


def linger_sync(exchange: Exchange, pieces: Iterator[bytes]) -> bytes:  # noqa: ARG001  see `drain_sync`
    """End a reply that is over but for the upstream's counts; what the client is to receive then."""
    return ended(exchange)


def ended(exchange: Exchange) -> bytes:
    """The end of a reply that nothing more follows."""
    out = exchange.close()
    exchange.remember()
    return out


async def close_async(pieces: Any, response: Any) -> None:
    """Close a response and what iterates over it: a generator, or any other iterator."""
    with anyio.CancelScope(shield=True):
        if hasattr(pieces, "aclose"):
            await pieces.aclose()
        if response is not None:
            await response.aclose()


def close_sync(pieces: Any, response: Any) -> None:  # noqa: ARG001  see below
    """Close a response. Its iterator is left alone: another thread may be waiting in it, and close to get out."""
    if response is not None:
        response.close()
