"""How the store is used: asynchronously where there is an event loop that must not wait, and without one."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CancelScope

from streamtool.http.off_loop import off_loop
from streamtool.state.replies import Store

T = TypeVar("T")


async def use_async(store: Store, call: Callable[[], T]) -> T:
    """What `call` returns, which uses the store; off the loop if that may take long."""
    return await off_loop(call) if store.blocks else call()


async def close_store_async(store: Store) -> None:
    """Write what the store has not written yet, and close it, even if whoever asks is cancelled."""
    with CancelScope(shield=True):
        await use_async(store, store.close)


def use_sync(store: Store, call: Callable[[], T]) -> T:  # noqa: ARG001  see `use_async`
    """What `call` returns, which uses the store."""
    return call()


def close_store_sync(store: Store) -> None:
    """Write what the store has not written yet, and close it."""
    store.close()
