"""How the store is used: asynchronously where there is an event loop that must not wait, and without one."""

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import CancelScope
from attrs import evolve

from streamtool.http.asgi import Scope
from streamtool.http.off_loop import off_loop
from streamtool.state.replies import Shelf, Store, shelf

UNSTORED: Final = "streamtool.unstored"
"""Key of the ASGI scope under which a request has the shelf that its connection has for what is not to be stored."""

T = TypeVar("T")


def memory_of(store: Store, scope: Scope) -> Shelf:
    """What is remembered for the client of a request."""
    return evolve(shelf(store, scope["headers"]), unstored=scope.get(UNSTORED))


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
