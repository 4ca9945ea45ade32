"""Functions that a transport uses to stop reading the upstream's response. There are two variants of each function,
because only asynchronous code can limit a wait.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio

from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import MOMENT

_DRAIN_SECONDS = 0.1
"""Maximum number of seconds to wait for the end of a body after its reply, so that the connection can be reused."""


async def drain_async(pieces: AsyncIterator[bytes] | None) -> None:
    """Read the remaining body of a response whose reply has ended."""
    with anyio.move_on_after(_DRAIN_SECONDS):
        try:
            while pieces is not None and await anext(pieces, None) is not None:
                pass
        except Exception:  # noqa: BLE001, S110  the reply is complete, so errors on its connection do not matter
            pass


def drain_sync(pieces: Iterator[bytes] | None) -> None:
    """Do nothing: a blocking read cannot be given a time limit, so the connection is not reused."""


async def linger_async(exchange: Exchange, pieces: AsyncIterator[bytes]) -> bytes:
    """Wait a limited time for the trailing usage of a finished reply. Return the output for the client."""
    out = b""
    with anyio.move_on_after(MOMENT):
        while exchange.lingers:
            data = await anext(pieces, None)
            out += exchange.close() if data is None else exchange.feed(bytes(data))
    return out + finish(exchange)


def linger_sync(exchange: Exchange, pieces: Iterator[bytes]) -> bytes:  # noqa: ARG001  see `drain_sync`
    """Close a finished reply without waiting for its trailing usage. Return the output for the client."""
    return finish(exchange)


def finish(exchange: Exchange) -> bytes:
    """Close an exchange and return its last output."""
    out = exchange.close()
    exchange.remember()
    return out


async def close_async(pieces: Any, response: Any) -> None:
    """Close a response and its iterator, which may be a generator."""
    with anyio.CancelScope(shield=True):
        if hasattr(pieces, "aclose"):
            await pieces.aclose()
        if response is not None:
            await response.aclose()


def close_sync(pieces: Any, response: Any) -> None:  # noqa: ARG001  see below
    """Close a response. Its iterator is not closed: another thread may be blocked in it, and wakes up when the response
    is closed.
    """
    if response is not None:
        response.close()
