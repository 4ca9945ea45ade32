"""trio as a guest of asyncio: it runs inside the callbacks of asyncio's event loop, but has its own clock and tasks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from streamtool.asgi.off_loop import asyncio_loop, clock, stop_scope


def run_as_guest(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of an asynchronous function, which trio runs inside asyncio's event loop."""

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            call, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        assert asyncio_loop() is loop
        return (await done).unwrap()

    return asyncio.run(main())


def test_the_clock_is_trios():
    async def call() -> None:
        assert asyncio_loop() is None
        assert clock() == pytest.approx(trio.current_time(), abs=60)

    run_as_guest(call)


def test_a_scope_runs_for_as_long_as_it_may():
    async def call() -> float:
        scope = anyio.CancelScope()
        stop_scope(scope, 1000.0)
        return scope.deadline - trio.current_time()

    assert run_as_guest(call) == pytest.approx(1000.0, abs=60)
