"""How a transport reads the store: twice, because only the asynchronous one has an event loop that must not wait."""

from collections.abc import Callable
from typing import TypeVar

from streamtool.http.off_loop import off_loop
from streamtool.state.replies import Store

T = TypeVar("T")


async def reading_async(store: Store, call: Callable[[], T]) -> T:
    """What `call` returns, which reads the store; off the loop if that may take long."""
    return await off_loop(call) if store.blocks else call()


def reading_sync(store: Store, call: Callable[[], T]) -> T:  # noqa: ARG001  see `reading_async`
    """What `call` returns, which reads the store."""
    return call()
