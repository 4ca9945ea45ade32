"""Work that may take a long time, run in a worker thread so that other clients' streams are not delayed.

The cost of a request grows with its bytes, and much faster with its values (figures are in docs/security.md), so both
decide where it is processed. An ordinary request of an agent takes 1 ms, and handing it to a thread and back a third of
that. A few threads are enough: they share the interpreter with the event loop, and more of them would only slow each
other down.
"""

from asyncio import AbstractEventLoop, _get_running_loop
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.lowlevel import RunVar
from sniffio import thread_local

LARGE: Final = 4 * 1024
"""Maximum number of bytes of a reply to process on the event loop at a time. This takes 17 ms in the worst known case,
and usually less than 1 ms.
"""
LARGE_REQUEST: Final = 96 * 1024
"""The same limit for a request."""
MANY_VALUES: Final = 1_500
"""Maximum number of JSON values of a request to process on the event loop. Reading them, and then writing them for the
upstream, take at most 30 ms each in the worst known case, and usually less than 1 ms. Claude Code's request with 24
tools has 1,250.
"""
LARGE_STEP: Final = 12 * 1024
"""Number of bytes of a request above which other tasks run between reading it and writing one for the upstream."""
_BEFORE_VALUES: Final = b",[{"
_THREADS: Final = 4

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("streamtool_threads")
_began: ContextVar[float | None] = ContextVar("streamtool_began", default=None)

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """Run `call` in a worker thread and return its result. A cancelled caller waits for the thread, which is never
    abandoned.
    """
    began = anyio.current_time()

    def work() -> T:
        _began.set(began)  # the thread has its own context
        return call()

    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


async def sized(call: Callable[[], T], size: float) -> T:
    """Run `call` and return its result. Run it off the event loop if the number of bytes to process, `size`, exceeds
    `LARGE`.
    """
    return call() if size <= LARGE else await off_loop(call)


def is_large(body: bytes, size: float) -> bool:
    """Return whether a request is to be processed off the event loop. `size` is the number of bytes to process, which
    is infinite if the body is compressed. Commas and brackets in strings count as values too, since only speed depends
    on it.
    """
    if size <= MANY_VALUES:  # each value has at least one byte
        return False
    # Removing these bytes reads the body once; counting each of them would read it three times.
    return size > LARGE_REQUEST or len(body) - len(body.translate(None, _BEFORE_VALUES)) > MANY_VALUES


async def sized_request(call: Callable[[], T], body: bytes, size: float) -> T:
    """Run `call`, which processes a request, and return its result. Run it off the event loop if the request
    `is_large`.
    """
    return await off_loop(call) if is_large(body, size) else call()


async def pause() -> None:
    """Let other tasks run."""
    await anyio.lowlevel.checkpoint()


def clock() -> float:
    """Return the event loop's time in seconds or, inside `off_loop`, the time when the work was submitted."""
    began = _began.get()
    if began is not None:
        return began
    # asyncio's loop first: it is also known in a callback, where anyio finds no event loop because no task is running.
    loop = asyncio_loop()
    return anyio.current_time() if loop is None else loop.time()


def asyncio_loop() -> AbstractEventLoop | None:
    """Return asyncio's event loop if the caller runs in it, and None on trio, which may itself run inside asyncio's
    callbacks.
    """
    return None if thread_local.name == "trio" else _get_running_loop()


def stop_scope(scope: anyio.CancelScope, seconds: float) -> None:
    """Cancel the scope, or let it run for at most this many more seconds."""
    if seconds:
        scope.deadline = min(scope.deadline, clock() + seconds)
    else:
        scope.cancel()


def slices(body: bytes) -> Iterator[bytes]:
    """Split part of a stream into pieces of whole events, each of at most `LARGE` bytes. An event that is longer than
    that forms a piece by itself.
    """
    begin = 0
    while begin < len(body):
        end = begin + LARGE
        if end < len(body):
            last = body.rfind(b"\n\n", begin, end)
            if last < 0:
                last = body.find(b"\n\n", end - 1)
            end = len(body) if last < 0 else last + 2
        yield body[begin:end]
        begin = end
