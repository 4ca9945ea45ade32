"""Functions that access the store: asynchronous variants for code on an event loop, and synchronous variants."""

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import CancelScope

from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.types import Scope
from streamtool.store.replies import ClientStoreView, Store

UNSTORED: Final = "streamtool.unstored"
"""Key of the ASGI scope for the connection's client store, which holds items that must not be stored permanently."""

T = TypeVar("T")


def memory_of(store: Store, scope: Scope, client: str) -> ClientStoreView:
    """Return the store of the client with this identity, for use in a request."""
    return ClientStoreView(store, client, scope.get(UNSTORED))


async def use_async(store: Store, call: Callable[[], T]) -> T:
    """Call `call`, which uses the store, and return its result. If it may take long, run it off the event loop."""
    return await off_loop(call) if store.blocks else call()


async def close_store_async(store: Store) -> None:
    """Write pending data and close the store, even if the caller is cancelled."""
    with CancelScope(shield=True):
        await use_async(store, store.close)


def use_sync(store: Store, call: Callable[[], T]) -> T:  # noqa: ARG001  see `use_async`
    """Call `call`, which uses the store, and return its result."""
    return call()


def close_store_sync(store: Store) -> None:
    """Write pending data and close the store."""
    store.close()
