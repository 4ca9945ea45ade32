"""Paced streams: an upstream that writes at a fixed rate, and the clients that read from it, in one process.

Each delta is a separate event with a timestamp, so that a client can compute the delay. The deltas of all streams are
spread evenly over time. This code runs on one event loop and does as little as possible, because it shares the machine
with the measured process.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final, Self

from attrs import field, frozen
from common import CHAT_END, CLIENTS, delta, opening, request

PERIOD: Final = 0.04
"""Seconds between two deltas of a stream."""
SLOTS: Final = 40
"""Number of time slots in a period; all streams in one slot are written to at the same time."""
CLOCK: Final = 0.001
"""Minimum duration of a timer in uvloop, in seconds; shorter timers fire immediately, so that a loop of them never
pauses.
"""
PATIENCE: Final = 60.0
"""Maximum seconds for all streams to begin or to end."""
_STAMP = re.compile(rb"=(\d{18});")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_MODEL = re.compile(rb'"model": ?"(\w+)"')
_LONGEST: Final = 20
"""Length of a timestamp in bytes."""
_LAST = b"\r\n0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_BEGINS = {
    kind: b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"".join(map(_chunk, opening("chat", kind)))
    for kind in ("text", "arguments")
}
_DELTA = _chunk(delta("chat", f"={0:018d};")).split(b"0" * 18)
_ENDS = _chunk(CHAT_END) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Upstream:
    """A model server for any number of streams."""

    def __init__(self) -> None:
        self.sent = 0
        """Number of deltas sent to the open streams, in total."""
        self._slots: list[set[asyncio.Transport]] = [set() for _ in range(SLOTS)]
        self._next = 0
        self._ticks: asyncio.TimerHandle | None = None

    async def serve(self) -> int:
        """Listen on loopback, begin to write, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Answering(self), "127.0.0.1", 0, backlog=4096)
        self._tick(loop, loop.time())
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop writing."""
        assert self._ticks is not None
        self._ticks.cancel()
        self._server.close()

    def add(self, transport: asyncio.Transport) -> None:
        """Send deltas to this connection from now on."""
        least = min(self._slots[self._next :] + self._slots[: self._next], key=len)
        least.add(transport)

    def drop(self, transport: asyncio.Transport) -> None:
        for slot in self._slots:
            slot.discard(transport)

    def finish(self) -> int:
        """End all streams, and return the number of deltas that were sent to them."""
        for slot in self._slots:
            for transport in slot:
                transport.write(_ENDS)
            slot.clear()
        sent, self.sent = self.sent, 0
        return sent

    def step(self) -> None:
        """Send a delta to each stream in the next slot."""
        slot = self._slots[self._next]
        for transport in slot:
            transport.write(b"%b%018d%b" % (_DELTA[0], time.monotonic_ns(), _DELTA[1]))
        self.sent += len(slot)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        while due <= loop.time():
            self.step()
            self._next = (self._next + 1) % SLOTS
            due += PERIOD / SLOTS
        self._ticks = loop.call_at(max(due, loop.time() + CLOCK), self._tick, loop, due)


class _Answering(asyncio.Protocol):
    """A connection to the upstream."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._unread = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._upstream.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, found, body = self._unread.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._unread = b""
        asked = _MODEL.search(body)
        if asked is None or b"/chat/" not in head:  # a request for information about the model
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self._transport.write(_BEGINS[asked[1].decode()])
        self._upstream.add(self._transport)


class _Asking(asyncio.Protocol):
    """A client with one stream."""

    def __init__(self, asked: bytes) -> None:
        self._asked = asked
        self._tail = b""
        self.heard = 0
        """Number of deltas received so far."""
        self.lags: list[int] = []
        """Delay of each delta, in nanoseconds."""
        self.begun = asyncio.get_running_loop().create_future()
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._asked)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.begun, self.over):
            if not future.done():
                future.set_exception(exc or ConnectionError(f"the reply was cut off after {self._tail!r}"))
                future.exception()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self._tail:
            data = self._tail + data
        end = 0
        for found in _STAMP.finditer(data):
            self.lags.append(now - int(found[1]))
            self.heard += 1
            end = found.end()
        if not self.begun.done():
            if data[:12] not in (b"HTTP/1.1 200", b"HTTP/1.1 200"[: len(data)]) and not self.lags and not self._tail:
                self.begun.set_exception(ConnectionError(data[:500].decode("latin-1")))
            elif self.lags:
                self.begun.set_result(None)
        if data.endswith(_LAST) and not self.over.done():
            self.over.set_result(None)
        self._tail = data[max(end, len(data) - _LONGEST) :]


@frozen
class Heard:
    """Measurements from the clients in one run."""

    seconds: float
    lags: list[int] = field(repr=False)
    """Delays of all measured deltas in nanoseconds, sorted."""
    spent: float
    """CPU seconds used by the measured process."""

    def lag(self, part: float) -> float:
        """Return the delay in ms that is not exceeded by this fraction of the deltas."""
        return self.lags[min(len(self.lags) - 1, int(part * len(self.lags)))] / 1e6

    @property
    def cost(self) -> float:
        """CPU time per delta, in µs."""
        return self.spent / len(self.lags) * 1e6

    @property
    def pace(self) -> float:
        """Deltas per second in all streams together."""
        return len(self.lags) / self.seconds


class Streams:
    """Open streams through one port."""

    def __init__(self, upstream: Upstream, port: int, kind: str, tools: int) -> None:
        self._upstream = upstream
        self._port = port
        body = request("chat", tools, kind)
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._asked = head % (CLIENTS["chat"].encode(), len(body)) + body
        self._clients: list[_Asking] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.transport.abort()
        await asyncio.sleep(0.1)  # until the other side notices

    @property
    def heard(self) -> int:
        """Number of deltas received so far."""
        return sum(client.heard for client in self._clients)

    async def open(self, count: int) -> None:
        """Open `count` more streams, a few at a time, and return when each of them has received a delta."""
        loop = asyncio.get_running_loop()
        for at in range(0, count, 10):
            made = [
                await loop.create_connection(lambda: _Asking(self._asked), "127.0.0.1", self._port)
                for _ in range(min(10, count - at))
            ]
            clients = [client for _, client in made]
            self._clients += clients
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(client.begun for client in clients))

    async def measure(self, seconds: float, cpu: Callable[[], float]) -> Heard:
        """Measure for `seconds`; `cpu` returns the CPU seconds used by the measured process so far."""
        for client in self._clients:
            client.lags.clear()
        before, began = cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        spent, took = cpu() - before, time.monotonic() - began
        return Heard(took, sorted(lag for client in self._clients for lag in client.lags), spent)

    async def finish(self) -> int:
        """End all streams, and return the number of deltas that were sent but did not arrive."""
        sent = self._upstream.finish()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(client.over for client in self._clients))
        return sent - sum(client.heard for client in self._clients)
