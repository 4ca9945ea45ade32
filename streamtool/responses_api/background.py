"""Responses that are created in the background, whether or not a client reads them.

The ASGI call for a request that creates such a response continues, after the client has received its reply, until the
response is complete. No detached task is therefore necessary, and the gate counts the response as an open request, both
for its limits and on shutdown. Every reader of the response's events, including the first client, reads from the
response's log, and may disconnect and reconnect.

The store contains the data that other processes require to serve the response: its state, its events, the time until
which its process is presumed alive, whether a client has cancelled it, and its journal, from which another process
continues it (`journal`). The store is polled and updated once a second.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import anyio
from attrs import define, field

from streamtool.asgi.types import ASGIMessage, ClientWatch, Receive, Send, send_json
from streamtool.core.errors import ReplyCancelled, StreamtoolError
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import ExchangeInput
from streamtool.protocols import responses
from streamtool.protocols.responses import background
from streamtool.protocols.shared import wire
from streamtool.responses_api.journal import (
    HOSTED,
    Continued,
    JournaledExchange,
    Lease,
    pack,
    read_lease,
    read_lease_value,
    stored_pieces,
)
from streamtool.store.replies import ClientStoreView
from streamtool.store.storing import use_async

POLL_SECONDS: Final = 1.0
"""Seconds between polls of the store."""
_CANCEL_SECONDS: Final = 5.0
"""Maximum number of seconds to wait for a cancelled response to end."""


class EventReader(Protocol):
    """A reader of a response's events, which can start at any event."""

    async def read(self) -> bytes:
        """Wait for the next events and return them, or return b"" after the last one. May be cancelled and called
        again.
        """


@define(eq=False)
class EventLog:
    """The events of a response, for any number of readers."""

    pieces: list[bytes] = field(factory=list, init=False)
    ended: anyio.Event = field(factory=anyio.Event, init=False)
    """Set after the last event."""
    _more: anyio.Event = field(factory=anyio.Event, init=False)

    def put(self, events: bytes) -> None:
        """Append events."""
        self.pieces.append(events)
        self._wake()

    def close(self) -> None:
        """Mark the log as complete."""
        self.ended.set()
        self._wake()

    async def wait(self) -> None:
        """Wait for more events or for the end."""
        await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()


@define(eq=False)
class LogReader:
    """A reader of the events in a log, which skips the first `count` events."""

    _log: EventLog
    _count: int
    _place: int = field(default=0, init=False)

    async def read(self) -> bytes:
        """Wait for the next events and return them."""
        while True:
            while self._place < len(self._log.pieces):
                events, self._count = background.skip_events(self._log.pieces[self._place], self._count)
                self._place += 1
                if events:
                    return events
            if self._log.ended.is_set():
                return b""
            await self._log.wait()


class StoreReader:
    """A reader, from the store, of the events of a response that another process creates. It skips the first `count`
    events.

    `take_over` is called if the process has stopped, and returns whether another one continues the response.
    """

    def __init__(self, memory: ClientStoreView, id: str, count: int, take_over: Callable[[], Awaitable[bool]]) -> None:
        self._store = memory
        self._take_over = take_over
        self._id = id
        self._count = count
        self._pieces_read = 0
        """Number of pieces read so far."""
        self._events_read = 0
        """Number of events in the pieces read so far."""
        self._ready = b""
        """Events that were not returned because the caller was cancelled."""
        self._ended = False
        self._stopped = False
        """Whether the process that was creating the response has stopped."""

    async def read(self) -> bytes:
        """Return the next events. If the process that was creating the response has stopped, and no other one continues
        it, these include events that report the failure.
        """
        await self._poll()
        while not (self._ready or self._ended):
            if self._stopped and not await self._take_over():
                await self._poll()  # it may have just ended
                if self._stopped:
                    await use_async(self._store.store, self._fail)
            else:
                await anyio.sleep(POLL_SECONDS / 2)
                await self._poll()
        events, self._ready = self._ready, b""
        return events

    async def _poll(self) -> None:
        if not (self._ready or self._ended):
            await use_async(self._store.store, self._read_store)

    def _read_store(self) -> None:
        # Checked first: if the process has stopped, all events that it wrote are in the store by now.
        lease = read_lease(self._store, self._id)
        pieces, over = stored_pieces(self._store, self._id) or (0, False)
        while self._pieces_read < pieces and not self._ready:
            piece = self._store.demand(background.events_key(self._id, self._pieces_read)) or b""
            self._pieces_read += 1
            self._events_read += piece.count(background.BREAK)
            self._ready, self._count = background.skip_events(piece, self._count)
        if self._pieces_read < pieces:
            return
        self._ended = over
        self._stopped = not over and lease.until <= time.time()

    def _fail(self) -> None:
        """Add the events that report that the process has stopped."""
        response = responses.read_stored(self._id, self._store.demand).whole
        hosted = read_lease(self._store, self._id).generation == HOSTED
        failed = background.failed_response(response, hosted=hosted)
        self._ready += background.failed_events(failed, self._events_read)
        self._ended = True


@define(eq=False)
class _New:
    """The state that has to be published."""

    entries: int
    """Number of log entries."""
    inputs: list[ExchangeInput]
    """The inputs since the last piece of the journal."""
    piece: bytes = b""
    """The same, as a piece of the journal."""


Answering = Callable[[], Coroutine[Any, Any, None]]


class BackgroundResponse:
    """A response that this process creates. `begun` contains its first events. `hosted` means that this server executes
    its tools, so that no other process may continue it.
    """

    def __init__(
        self,
        exchange: Exchange,
        begun: bytes,
        memory: ClientStoreView,
        lease: float,
        *,
        hosted: bool = False,
        continued: Continued | None = None,
    ) -> None:
        self._conversation = exchange.conversation
        self._request_id = exchange.request_id
        self._store = memory
        self._lease = lease
        self._journal = exchange if isinstance(exchange, JournaledExchange) else None
        self._generation = HOSTED if hosted else self._journal.generation if self._journal is not None else 0
        self._streamed = exchange.conversation.raw.get("stream") is True
        self._stop: Callable[[StreamtoolError], object] | None = None
        self._lost = False
        """Whether another process has continued the response, because this one seemed to have stopped."""
        self.log = EventLog()
        self.log.put(begun)
        self._last = b""
        """The last events; empty until the response ends."""
        self._stored_entries = 0
        """Number of log entries that are in the store, where several entries may be joined in one piece."""
        self._stored_pieces = 0
        """Number of pieces in the store."""
        self._leased = 0.0
        """Time when the lease in the store was last renewed."""
        response = background.last_response(begun)
        self.id: str = response["id"]
        if continued is None:
            self._write(background.unfinished_entries(exchange.conversation, response))
            if self._journal is not None:
                self._store.remember(background.journal_key(self.id), self._journal.asked.write())
        else:
            self._continue(continued)
        self._publish(self._take() if continued is None else _New(self._stored_entries, []))

    def _continue(self, continued: Continued) -> None:
        """Adopt the events of the process that has created the response so far."""
        if continued.complete:
            self._last = continued.rest or continued.published
        if not self._streamed:
            return
        if continued.published:
            self.log.put(continued.published)
        self._stored_pieces = continued.pieces
        self._stored_entries = len(self.log.pieces) if continued.pieces else 0
        if continued.rest:
            self.log.put(continued.rest)

    async def put(self, message: ASGIMessage) -> None:
        """Handle a message from the exchange, which behaves as if a client were waiting. This is the exchange's
        `send`.
        """
        if message["type"] == "http.response.body":
            events = message["body"]
            if not message.get("more_body", False):
                self._last = events
            if self._streamed and events:
                self.log.put(events)

    async def make(
        self, run: Callable[[], Awaitable[None]], stop: Callable[[StreamtoolError], object], *answers: Answering
    ) -> None:
        """Create the response with `run`, and respond to clients with `answers`. `stop` ends `run` early."""
        self._stop = stop
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sync)
                for answer in answers:
                    tasks.start_soon(answer)
                await run()
                self._end()
        finally:
            self._end()

    async def cancel(self) -> None:
        """End the response as cancelled. Returns when it has ended, or after a few seconds if it has not."""
        if self._stop is not None:
            self._stop(ReplyCancelled("the client has cancelled the response"))
        with anyio.move_on_after(_CANCEL_SECONDS):
            await self.log.ended.wait()

    async def answer(self, receive: Receive, send: Send, keepalive: float) -> None:
        """Respond to the client that has requested the response."""
        if self._streamed:
            await send_events(LogReader(self.log, 0), receive, send, keepalive)
            return
        with suppress(OSError):  # some servers report a disconnect this way
            begun = wire.encode(background.last_response(self.log.pieces[0]))
            await send_json(send, begun, extra=((responses.REQUEST_ID, self._request_id.encode()),))

    async def _sync(self) -> None:
        """Publish the state for other processes, and check whether one of them has cancelled or continued the
        response.
        """
        while not self.log.ended.is_set():
            with anyio.move_on_after(min(POLL_SECONDS, self._lease / 3)):
                await self.log.ended.wait()
                return
            new = self._take()
            cancelled = await use_async(self._store.store, partial(self._look, new))
            if self._lost and self._stop is not None:
                self._stop(ReplyCancelled("another process has continued the response"))
            if self._lost or self.log.ended.is_set():
                return
            self._publish(new)
            if cancelled:
                await self.cancel()

    def _take(self) -> "_New":
        """Return the state that has to be published."""
        return _New(len(self.log.pieces), [] if self._journal is None else self._journal.log.next_for_journal())

    def _look(self, new: "_New") -> bool:
        """Return whether a client has cancelled the response. Prepare a piece of the journal."""
        lease = self._store.recall(background.lease_key(self.id))
        self._lost = lease is not None and read_lease_value(lease).generation > self._generation
        new.piece = pack(new.inputs) if new.inputs else b""
        return bool(self._store.recall(background.cancel_key(self.id)))

    def _publish(self, new: "_New") -> None:
        """Store this process's lease and any new inputs and events. The inputs are stored first, so that another
        process can repeat the events that it finds.
        """
        now = time.time()
        if now - self._leased > self._lease / 3:
            self._leased = now
            self._store.remember(background.lease_key(self.id), Lease(now + self._lease, self._generation).write())
        if new.piece and self._journal is not None:
            self._journal.store(self._store, self.id, new.piece)
        over = self.log.ended.is_set()
        events = b"".join(self.log.pieces[self._stored_entries : new.entries]) if self._streamed else b""
        if events:
            self._store.remember(background.events_key(self.id, self._stored_pieces), events)
            self._stored_entries = new.entries
            self._stored_pieces += 1
        if events or (over and self._streamed):
            self._store.remember(background.events_key(self.id), b"%d %d" % (self._stored_pieces, over))

    def _end(self) -> None:
        """Store the final state."""
        if self.log.ended.is_set():
            return
        if self._lost:
            self.log.close()
            return
        if self._last:
            response = background.last_response(self._last)
        else:  # the exchange was aborted
            response = background.failed_response(background.last_response(self.log.pieces[0]))
            number = sum(piece.count(background.BREAK) for piece in self.log.pieces)
            self.log.put(background.failed_events(response, number))
        if response["status"] in background.ENDED_EARLY:  # any other response is stored by its exchange
            self._write(background.unfinished_entries(self._conversation, response))
        self.log.close()
        self._publish(self._take())
        if self._journal is not None:
            self._journal.forget(self._store, self.id)

    def _write(self, entries: list[tuple[str, bytes]]) -> None:
        for id, value in entries:
            self._store.remember(id, value)


class Background:
    """The responses that this process is creating in the background."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], BackgroundResponse] = {}

    @contextmanager
    def making(
        self,
        exchange: Exchange,
        memory: ClientStoreView,
        lease: float,
        *,
        hosted: bool = False,
        continued: Continued | None = None,
    ) -> Iterator[BackgroundResponse]:
        """Yield the response of the exchange. `find` returns it while the block runs."""
        begun = exchange.announce() if continued is None else continued.begun
        made = BackgroundResponse(exchange, begun, memory, lease, hosted=hosted, continued=continued)
        key = memory.client, made.id
        self._made[key] = made
        try:
            yield made
        finally:
            del self._made[key]

    def find(self, memory: ClientStoreView, id: str) -> BackgroundResponse | None:
        """Return a client's response, or None if this process is not creating it."""
        return self._made.get((memory.client, id))


async def send_events(reader: EventReader, receive: Receive, send: Send, keepalive: float) -> None:
    """Send the reader's events to a client until they end or the client disconnects."""
    client = ClientWatch(receive, send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.cancel_on_disconnect, tasks.cancel_scope)
        with suppress(OSError):  # some servers report a disconnect this way
            await client.send({"type": "http.response.start", "status": 200, "headers": list(responses.STREAM_HEADERS)})
            more = True
            while more:
                events = responses.KEEPALIVE
                with anyio.move_on_after(keepalive):
                    events = await reader.read()
                    more = bool(events)
                await client.send({"type": "http.response.body", "body": events, "more_body": more})
        tasks.cancel_scope.cancel()
