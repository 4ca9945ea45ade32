"""Responses that are created in the background, whether or not a client reads them.

The ASGI call for a request that creates such a response continues, after the client has received its reply, until the
response is complete. No detached task is therefore necessary, and the gate counts the response as an open request, both
for its limits and on shutdown. Every reader of the response's events, including the first client, reads from the
response's log, and may disconnect and reconnect.

The store contains the data that other processes require to serve the response: its state, its events, the time until
which its process is presumed alive, and whether a client has cancelled it. The store is polled and updated once a
second.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol

import anyio
from attrs import define, field

from streamtool.asgi.types import ASGIMessage, ClientWatch, Receive, Send, send_json
from streamtool.core.errors import ReplyCancelled, StreamtoolError
from streamtool.exchange import Exchange
from streamtool.protocols import responses
from streamtool.protocols.responses import background
from streamtool.protocols.shared import wire
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
    """

    def __init__(self, memory: ClientStoreView, id: str, count: int) -> None:
        self._store = memory
        self._id = id
        self._count = count
        self._pieces_read = 0
        """Number of pieces read so far."""
        self._events_read = 0
        """Number of events in the pieces read so far."""
        self._ready = b""
        """Events that were not returned because the caller was cancelled."""
        self._ended = False

    async def read(self) -> bytes:
        """Return the next events. If the process that was creating the response has stopped, these include events that
        report the failure.
        """
        await self._poll()
        while not (self._ready or self._ended):
            await anyio.sleep(POLL_SECONDS / 2)
            await self._poll()
        events, self._ready = self._ready, b""
        return events

    async def _poll(self) -> None:
        if not (self._ready or self._ended):
            await use_async(self._store.store, self._read_store)

    def _read_store(self) -> None:
        # Checked first: if the process has stopped, all events that it wrote are in the store by now.
        at_work = is_at_work(self._store, self._id)
        pieces, over = stored_pieces(self._store, self._id) or (0, False)
        while self._pieces_read < pieces and not self._ready:
            piece = self._store.demand(background.events_key(self._id, self._pieces_read)) or b""
            self._pieces_read += 1
            self._events_read += piece.count(background.BREAK)
            self._ready, self._count = background.skip_events(piece, self._count)
        if self._pieces_read < pieces:
            return
        self._ended = over or not at_work
        if self._ended and not over:
            response = responses.read_stored(self._id, self._store.demand).whole
            self._ready += background.failed_events(background.failed_response(response), self._events_read)


def is_at_work(memory: ClientStoreView, id: str) -> bool:
    """Return whether the process that creates a response has recently renewed its lease. Raises StoreError."""
    until = memory.demand(background.lease_key(id))
    return until is not None and float(until) > time.time()


def stored_pieces(memory: ClientStoreView, id: str) -> tuple[int, bool] | None:
    """Return the number of stored event pieces and whether they are complete, or None if none are stored. Raises
    StoreError.
    """
    found = memory.demand(background.events_key(id))
    if found is None:
        return None
    pieces, over = found.split()
    return int(pieces), over == b"1"


class BackgroundResponse:
    """A response that this process creates. `begun` contains its first events."""

    def __init__(self, exchange: Exchange, begun: bytes, memory: ClientStoreView, lease: float) -> None:
        self._conversation = exchange.conversation
        self._request_id = exchange.request_id
        self._store = memory
        self._lease = lease
        self._streamed = exchange.conversation.raw.get("stream") is True
        self._stop: Callable[[StreamtoolError], object] | None = None
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
        self._write(background.unfinished_entries(exchange.conversation, response))
        self._publish()

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
        self,
        run: Callable[[], Awaitable[None]],
        stop: Callable[[StreamtoolError], object],
        receive: Receive,
        send: Send,
        keepalive: float,
    ) -> None:
        """Create the response with `run` while responding to the client that requested it. `stop` ends `run` early."""
        self._stop = stop
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sync)
                tasks.start_soon(self._answer, receive, send, keepalive)
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

    async def _answer(self, receive: Receive, send: Send, keepalive: float) -> None:
        if self._streamed:
            await send_events(LogReader(self.log, 0), receive, send, keepalive)
            return
        with suppress(OSError):  # some servers report a disconnect this way
            begun = wire.encode(background.last_response(self.log.pieces[0]))
            await send_json(send, begun, extra=((responses.REQUEST_ID, self._request_id.encode()),))

    async def _sync(self) -> None:
        """Publish the state for other processes, and check whether one of them has cancelled the response."""
        cancelled = partial(self._store.recall, background.cancel_key(self.id))
        while not self.log.ended.is_set():
            with anyio.move_on_after(min(POLL_SECONDS, self._lease / 3)):
                await self.log.ended.wait()
                return
            self._publish()
            if await use_async(self._store.store, cancelled):
                await self.cancel()

    def _publish(self) -> None:
        """Store this process's lease and any new events."""
        now = time.time()
        if now - self._leased > self._lease / 3:
            self._leased = now
            self._store.remember(background.lease_key(self.id), b"%f" % (now + self._lease))
        over = self.log.ended.is_set()
        new = b"".join(self.log.pieces[self._stored_entries :]) if self._streamed else b""
        if new:
            self._store.remember(background.events_key(self.id, self._stored_pieces), new)
            self._stored_entries = len(self.log.pieces)
            self._stored_pieces += 1
        if new or (over and self._streamed):
            self._store.remember(background.events_key(self.id), b"%d %d" % (self._stored_pieces, over))

    def _end(self) -> None:
        """Store the final state."""
        if self.log.ended.is_set():
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
        self._publish()

    def _write(self, entries: list[tuple[str, bytes]]) -> None:
        for id, value in entries:
            self._store.remember(id, value)


class Background:
    """The responses that this process is creating in the background."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], BackgroundResponse] = {}

    @contextmanager
    def making(self, exchange: Exchange, memory: ClientStoreView, lease: float) -> Iterator[BackgroundResponse]:
        """Yield the response of the exchange. `find` returns it while the block runs."""
        made = BackgroundResponse(exchange, exchange.announce(), memory, lease)
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
