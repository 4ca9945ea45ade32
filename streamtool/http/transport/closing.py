"""How a transport leaves the upstream's response: twice, because only the asynchronous one can limit a wait."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio

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
