"""How a server stops: what is open goes on for the grace time, is told then, and is cut if it does not take that.

        signal                  grace - last                    grace
    ─────┼───────────────────────────┼───────────────┼─────────────┤
         no new connections          open requests   connections   the process has ended
                                     end with an     that are left
                                     error           are cut

A second signal ends what is open at once.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import anyio

from streamtool.http.asgi import Receive, Scope, Send
from streamtool.settings import Settings

_LAST: Final = 2.0
"""Seconds before the end of the grace time, at most, in which clients are told and the process cleans up."""
_FLUSH: Final = 0.3
"""Seconds in which they are told after a second signal."""
_TICK: Final = 0.05


class Service(Protocol):
    """What is served, a `Proxy` or what stands for several."""

    @property
    def settings(self) -> Settings:
        """Those of new requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the lifespan."""

    async def drain(self, seconds: float) -> None:
        """Let nothing begin, and end what is open within so many seconds."""


async def stop(
    proxy: Service, caught: Sequence[int], connections: Collection[object], cut: Callable[[], object]
) -> None:
    """End all that is open within the grace time of the settings, whatever clients do.

    `caught` are the signals that have come; `connections` those that are open, while the server closes what is idle.
    `cut` breaks them off.
    """
    grace = proxy.settings.grace
    last = min(_LAST, grace / 2)

    async def hurry() -> None:
        await _until(lambda: len(caught) > 1)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.cancel_scope.deadline = anyio.current_time() + grace - last / 2
        tasks.start_soon(hurry)
        await _end(proxy, grace - last, connections)
        tasks.cancel_scope.cancel()
    if connections:
        with anyio.move_on_after(_FLUSH if len(caught) > 1 else last / 4):
            await _end(proxy, 0, connections)
    cut()


async def _end(proxy: Service, seconds: float, connections: Collection[object]) -> None:
    await proxy.drain(seconds)
    await _until(lambda: not connections)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  neither a signal's handler nor a server's set can set an event
        await anyio.sleep(_TICK)
