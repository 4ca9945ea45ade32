"""Responses that are made in the background, whether or not somebody reads them.

The ASGI call of the request that asks for one goes on behind its answer until the response is made. So no task is
anybody else's: the response counts among the open requests of the gate, in their bounds and when the server stops.
Whoever reads its events, the first client too, reads from its log, and may leave and come back.

What another process needs to answer for it stands in the store, which is looked at and written once a second: how it
stands, its events, until when its server is believed to be at work, and whether a client has cancelled it.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol

import anyio

from streamtool.errors import ReplyCancelled, StreamtoolError
from streamtool.exchange import Exchange
from streamtool.http.asgi import Message, Receive, Send, cancel_when_left, json_answer
from streamtool.http.storing import use_async
from streamtool.protocols import responses, wire
from streamtool.protocols.responses import background
from streamtool.state.replies import Shelf

BEAT: Final = 1.0
"""Seconds between two looks at the store."""
_CANCELLING: Final = 5.0
"""Seconds in which a response that is cancelled ends."""


class EventReader(Protocol):
    """Reads the events of a response from one of them on."""

    async def read(self) -> bytes:
        """The next ones, as they become known; b"" behind the last one. May be cancelled and called again."""


class EventLog:
    """The events of a response, for any number of readers."""

    __slots__ = ("_more", "over", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.over = anyio.Event()
        """There will be no more."""
        self._more = anyio.Event()

    def put(self, events: bytes) -> None:
        """Add events."""
        self.pieces.append(events)
        self._wake()

    def close(self) -> None:
        """That was all."""
        self.over.set()
        self._wake()

    async def wait(self) -> None:
        """Wait for more, or for the end."""
        await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()


class LogReader:
    """Reads from a log what comes behind the first `count` events."""

    __slots__ = ("_count", "_log", "_place")

    def __init__(self, log: EventLog, count: int) -> None:
        self._log = log
        self._count = count
        self._place = 0

    async def read(self) -> bytes:
        """The next events."""
        while True:
            while self._place < len(self._log.pieces):
                events, self._count = background.skip(self._log.pieces[self._place], self._count)
                self._place += 1
                if events:
                    return events
            if self._log.over.is_set():
                return b""
            await self._log.wait()


class StoreReader:
    """Reads from the store what comes behind the first `count` events of a response that another process makes."""

    __slots__ = ("_count", "_id", "_memory", "_over", "_place", "_ready", "_told")

    def __init__(self, memory: Shelf, id: str, count: int) -> None:
        self._memory = memory
        self._id = id
        self._count = count
        self._place = 0
        """Pieces that were read."""
        self._told = 0
        """Events in them."""
        self._ready = b""
        """Events that nobody has taken: whoever asked for them was cancelled meanwhile."""
        self._over = False

    async def read(self) -> bytes:
        """The next events, and those that tell of the end of a server that makes no more."""
        await self._looked()
        while not (self._ready or self._over):
            await anyio.sleep(BEAT / 2)
            await self._looked()
        events, self._ready = self._ready, b""
        return events

    async def _looked(self) -> None:
        if not (self._ready or self._over):
            await use_async(self._memory.store, self._look)

    def _look(self) -> None:
        at_work = is_at_work(self._memory, self._id)  # asked first: then what a server wrote before it stopped is there
        pieces, over = told(self._memory, self._id) or (0, False)
        while self._place < pieces and not self._ready:
            piece = self._memory.demand(background.events_key(self._id, self._place)) or b""
            self._place += 1
            self._told += piece.count(background.BREAK)
            self._ready, self._count = background.skip(piece, self._count)
        if self._place < pieces:
            return
        self._over = over or not at_work
        if self._over and not over:
            response = responses.read_stored(self._id, self._memory.demand).whole
            self._ready += background.lost_events(background.lost(response), self._told)


def is_at_work(memory: Shelf, id: str) -> bool:
    """Whether the server that makes a response has said lately that it does. Raises StoreError."""
    until = memory.demand(background.lease_key(id))
    return until is not None and float(until) > time.time()


def told(memory: Shelf, id: str) -> tuple[int, bool] | None:
    """How many pieces of events the store has, and whether these are all; None: none are kept. Raises StoreError."""
    found = memory.demand(background.events_key(id))
    if found is None:
        return None
    pieces, over = found.split()
    return int(pieces), over == b"1"


class BackgroundResponse:
    """A response that this process makes. `begun` are its first events."""

    __slots__ = (
        "_conversation", "_kept", "_last", "_lease", "_leased", "_memory", "_request_id", "_stop", "_streamed",
        "_written", "id", "log",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, begun: bytes, memory: Shelf, lease: float) -> None:
        self._conversation = exchange.conversation
        self._request_id = exchange.request_id
        self._memory = memory
        self._lease = lease
        self._streamed = exchange.conversation.raw.get("stream") is True
        self._stop: Callable[[StreamtoolError], object] | None = None
        self.log = EventLog()
        self.log.put(begun)
        self._last = b""
        """The last events; empty before the end."""
        self._kept = 0
        """Pieces of the log that the store has, which are larger there."""
        self._written = 0
        """Pieces in the store."""
        self._leased = 0.0
        """When other processes were last told that this one is at work."""
        response = background.last_response(begun)
        self.id: str = response["id"]
        self._remember(background.unfinished_memories(exchange.conversation, response))
        self._keep()

    async def take(self, message: Message) -> None:
        """The `send` of the run: what a client would be sent that waits."""
        if message["type"] == "http.response.body":
            events = message["body"]
            if not message.get("more_body", False):
                self._last = events
            if self._streamed and events:
                self.log.put(events)

    async def make(
        self,
        run: Callable[[], Awaitable[None]],
        stop: Callable[[StreamtoolError], object],
        receive: Receive,
        send: Send,
        keepalive: float,
    ) -> None:
        """Make it by `run`, which `stop` ends early; meanwhile answer the client that has asked for it."""
        self._stop = stop
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tend)
                tasks.start_soon(self._answer, receive, send, keepalive)
                await run()
                self._end()
        finally:
            self._end()

    async def cancel(self) -> None:
        """End it, as cancelled. Returns when that is done, or takes too long."""
        if self._stop is not None:
            self._stop(ReplyCancelled("the client has cancelled the response"))
        with anyio.move_on_after(_CANCELLING):
            await self.log.over.wait()

    async def _answer(self, receive: Receive, send: Send, keepalive: float) -> None:
        if self._streamed:
            await send_events(LogReader(self.log, 0), receive, send, keepalive)
            return
        with suppress(OSError):  # how a server tells that the client has left
            begun = wire.encode(background.last_response(self.log.pieces[0]))
            await json_answer(send, begun, extra=((responses.REQUEST_ID, self._request_id.encode()),))

    async def _tend(self) -> None:
        """Tell other processes how it goes, and hear from them."""
        cancelled = partial(self._memory.recall, background.cancel_key(self.id))
        while not self.log.over.is_set():
            with anyio.move_on_after(min(BEAT, self._lease / 3)):
                await self.log.over.wait()
                return
            self._keep()
            if await use_async(self._memory.store, cancelled):
                await self.cancel()

    def _keep(self) -> None:
        """Remember that this process is at work, and the events that are new."""
        now = time.time()
        if now - self._leased > self._lease / 3:
            self._leased = now
            self._memory.remember(background.lease_key(self.id), b"%f" % (now + self._lease))
        over = self.log.over.is_set()
        new = b"".join(self.log.pieces[self._kept :]) if self._streamed else b""
        if new:
            self._memory.remember(background.events_key(self.id, self._written), new)
            self._kept = len(self.log.pieces)
            self._written += 1
        if new or (over and self._streamed):
            self._memory.remember(background.events_key(self.id), b"%d %d" % (self._written, over))

    def _end(self) -> None:
        """It is over: remember how it ended."""
        if self.log.over.is_set():
            return
        if self._last:
            response = background.last_response(self._last)
        else:  # the server has broken it off
            response = background.lost(background.last_response(self.log.pieces[0]))
            number = sum(piece.count(background.BREAK) for piece in self.log.pieces)
            self.log.put(background.lost_events(response, number))
        if response["status"] in background.ENDED_EARLY:  # else it is remembered like any other
            self._remember(background.unfinished_memories(self._conversation, response))
        self.log.close()
        self._keep()

    def _remember(self, memories: list[tuple[str, bytes]]) -> None:
        for id, value in memories:
            self._memory.remember(id, value)


class Background:
    """The responses that this process makes in the background."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], BackgroundResponse] = {}

    @contextmanager
    def making(self, exchange: Exchange, memory: Shelf, lease: float) -> Iterator[BackgroundResponse]:
        """The response of the exchange, which is found inside of the block."""
        made = BackgroundResponse(exchange, exchange.announce(), memory, lease)
        key = memory.client, made.id
        self._made[key] = made
        try:
            yield made
        finally:
            del self._made[key]

    def find(self, memory: Shelf, id: str) -> BackgroundResponse | None:
        """A client's response, if this process makes it."""
        return self._made.get((memory.client, id))


async def send_events(reader: EventReader, receive: Receive, send: Send, keepalive: float) -> None:
    """Send a client what is read, until it leaves."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
        with suppress(OSError):  # how a server tells that the client has left
            await send({"type": "http.response.start", "status": 200, "headers": list(responses.STREAM_HEADERS)})
            more = True
            while more:
                events = responses.KEEPALIVE
                with anyio.move_on_after(keepalive):
                    events = await reader.read()
                    more = bool(events)
                await send({"type": "http.response.body", "body": events, "more_body": more})
        tasks.cancel_scope.cancel()
