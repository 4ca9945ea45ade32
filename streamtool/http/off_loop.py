"""What may take long, in a worker thread: everybody else's streams go on meanwhile.

What a request costs grows with its bytes (docs/security.md has the figures), so its size decides. A few threads are
enough: they take turns with the event loop for the interpreter, and more of them would only slow down each other.
"""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

LARGE: Final = 4 * 1024
"""Bytes that are read on the event loop at a time: some 15 ms in the worst case known, far less in all others."""
_THREADS: Final = 4

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("streamtool_threads")
_began: ContextVar[float | None] = ContextVar("streamtool_began", default=None)

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """What `call` returns, in a worker thread. It is not abandoned: a cancelled caller waits for its end."""
    began = anyio.current_time()

    def work() -> T:
        _began.set(began)  # in a context of the thread's own
        return call()

    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


async def sized(call: Callable[[], T], size: int) -> T:
    """What `call` returns; off the loop if it reads more than `LARGE` bytes."""
    return call() if size <= LARGE else await off_loop(call)


def clock() -> float:
    """The event loop's time, in seconds. It stands still in `off_loop`."""
    began = _began.get()
    return anyio.current_time() if began is None else began


def slices(body: bytes) -> Iterator[bytes]:
    """A piece of a stream in pieces of at most `LARGE` bytes, each of whole events; a longer event is one piece."""
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
