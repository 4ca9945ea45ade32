"""Shutdown of a server. Open requests may finish within the grace period. The remaining ones receive an error and are
then cut off.

        SIGTERM            delay                  grace - last                    grace
    ─────┼───────────────────┼───────────────────────────┼───────────────┼─────────────┤
         /readyz reports     no new connections          open requests   remaining     the process has exited
         503                                             end with an     connections
                                                         error           are cut

The delay gives load balancers time to notice. It is skipped after an interrupt, or if `/readyz` has never been
requested. A second signal ends open requests immediately.
"""

import signal
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import anyio

from streamtool.asgi.types import Receive, Scope, Send
from streamtool.settings import Settings

_LAST: Final = 2.0
"""Maximum seconds at the end of the grace period that are reserved for sending errors and cleaning up."""
_FLUSH: Final = 0.3
"""Seconds for sending errors after a second signal."""
_TICK: Final = 0.05


class Service(Protocol):
    """The served application: a `Proxy`, or a `ReloadingProxy` that manages several."""

    @property
    def settings(self) -> Settings:
        """Settings for new requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or the lifespan."""

    def announce_stop(self) -> float:
        """Report on `/readyz` that the server is about to stop. Return for how many seconds to keep serving."""

    async def drain(self, seconds: float) -> None:
        """Stop accepting requests, and end the open ones within this many seconds."""


def stop_delay(proxy: Service, caught: Sequence[int]) -> float:
    """Return for how many more seconds to serve after these signals."""
    return proxy.announce_stop() if list(caught) == [signal.SIGTERM] else 0


async def stop(
    proxy: Service, caught: Sequence[int], connections: Collection[object], cut: Callable[[], object]
) -> None:
    """End all requests and connections within the grace period, whatever the clients do.

    `caught` contains the signals received, and `connections` the open connections; the server updates both, and closes
    idle connections itself. `cut` aborts the remaining connections.
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
    while not condition():  # noqa: ASYNC110  no event is set for these conditions
        await anyio.sleep(_TICK)
