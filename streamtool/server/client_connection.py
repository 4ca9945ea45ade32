"""The client's side of an exchange: writing the reply, detecting a disconnect, and keep-alive comments.

While the app runs, the client is attended to: when it disconnects, the app is cancelled immediately, and long silences
are broken with a comment. While a comment is being written, the reply waits. If the server reports disconnects by a
call (`asgi.pieces`), a timer is enough; otherwise, a small task waits for them. On asyncio this is a plain task, and a
timer looks for silence: a task group takes up a tenth of an open stream's memory.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from streamtool.asgi.off_loop import asyncio_loop, off_loop, sized, stop_scope
from streamtool.asgi.pieces import OnDisconnect, WriteNow, disconnects_of, writer_of
from streamtool.asgi.types import Receive, Send
from streamtool.exchange.exchange import Exchange

_LAST_WRITE_SECONDS = 5.0
"""Seconds that the app may continue after a complete reply, once the client has disconnected."""
_TICKS = 4
"""Number of silence checks per keep-alive interval."""

T = TypeVar("T")


def _do_nothing(_: float) -> None:
    """Do nothing: the client is not attended to."""


class ClientConnection:
    """The client of one exchange."""

    __slots__ = (
        "_commenting",
        "_exchange",
        "_left_event",
        "_receive",
        "_send",
        "_silent",
        "_started",
        "_stop",
        "_timer",
        "_waiter",
        "_watching",
        "_writing",
        "closed",
        "comment",
        "complete",
        "disconnected",
        "heard",
        "write_now",
    )

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self.disconnected = False
        """Whether the client has disconnected."""
        self._left_event: anyio.Event | None = None
        """Event that is set when the client disconnects; None unless something is waiting for it."""
        self.complete = False
        """Whether the whole reply has been passed to the client."""
        self.closed = False
        """Whether nothing more is passed on: the reply is complete, or the client has disconnected."""
        self._started = False
        self.write_now: WriteNow | None = None
        """The server's `write_now`, once the response has begun."""
        self.heard = False
        """Whether anything has been sent since the last silence check."""
        self._writing = False
        self.comment: anyio.Event | None = None
        """Event that is set once the comment being written has been sent; None if no comment is being written."""
        self._stop: Callable[[float], object] = _do_nothing
        """Stops the app, or lets it run for at most this many more seconds."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the next silence check, if no task makes it."""
        self._commenting: asyncio.Task[None] | None = None
        """The task that the timer has started to send a comment."""
        self._watching = False
        """Whether a task of a task group is waiting for the client to disconnect."""
        self._waiter: asyncio.Task[None] | None = None
        """The plain task that is waiting for the client to disconnect, if any."""
        self._silent = 0
        """Number of silence checks since anything has been sent."""

    def attend(self, tasks: TaskGroup, keepalive: float) -> None:
        """Start the task that attends to the client. When it disconnects, the whole task group is cancelled."""
        self._stop = partial(stop_scope, tasks.cancel_scope)
        self._watching = True
        tasks.start_soon(self._watch, tasks, self._tick(keepalive))

    @property
    def is_attended(self) -> bool:
        """Whether the task that attends to the client is still running; if so, it has to be cancelled at the end."""
        # A cancelled task keeps the exchange in memory until the next garbage collection, by a cycle of its error and
        # its frame. Usually, it does not have to be cancelled: after a complete reply, servers send http.disconnect.
        return self._watching

    @property
    def on_disconnect(self) -> OnDisconnect | None:
        """The server's `on_disconnect`, or one that waits for the disconnect in a plain task. None on trio, where a
        task needs a task group, so that `attend` has to be used.
        """
        offered = disconnects_of(self._send)
        if offered is None:
            return None if asyncio_loop() is None else self._on_disconnect
        return offered

    def attend_by_call(self, stop: Callable[[float], object], on_disconnect: OnDisconnect, keepalive: float) -> None:
        """Attend to the client until `dismiss`. When it disconnects, `stop` is called with the maximum number of
        seconds that the app may still run.
        """
        self._stop = stop
        on_disconnect(self._left)
        tick = self._tick(keepalive)
        if tick < inf:
            self._timer = asyncio.get_running_loop().call_later(tick, self._end_tick, tick)

    async def dismiss(self, on_disconnect: OnDisconnect) -> None:
        """Stop what `attend_by_call` has started. Raises the server's error if it could not report a disconnect."""
        on_disconnect(None)
        self._stop = _do_nothing  # the method of an object that refers to this one
        if self._timer is not None:
            self._timer.cancel()
        if self._commenting is not None:
            self._commenting.cancel()
        waiter, self._waiter = self._waiter, None  # a reference to the task would be part of a cycle
        if waiter is None:
            return
        if not waiter.done():
            waiter.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait((waiter,))
        if not waiter.cancelled():
            waiter.result()

    def _on_disconnect(self, call: Callable[[], object] | None) -> None:
        """Do what a server's `on_disconnect` does. The call is always `_left`, or None."""
        if call is not None:
            self._waiter = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Exception:
            self._disconnected_now()
            raise
        self._left()

    def _tick(self, keepalive: float) -> float:
        """Return the number of seconds between two silence checks."""
        return keepalive / _TICKS if self._exchange.conversation.stream else inf

    async def wait_disconnected(self) -> None:
        """Wait until the client has disconnected."""
        if not self.disconnected:
            self._left_event = self._left_event or anyio.Event()
            await self._left_event.wait()

    async def run_off_loop(self, call: Callable[[], T]) -> T:
        """Run a step of the exchange in a worker thread while nothing else uses the exchange, and return its result."""
        # An exchange is not thread-safe. `_writing` keeps `_break_silence` from asking it for a comment while the
        # thread runs, and a comment that is already being written has to finish first.
        if self.comment is not None:
            await self.comment.wait()
        self._writing = True
        try:
            return await off_loop(call)
        finally:
            self._writing = False

    async def send(self, data: bytes) -> None:
        """Send `data` to the client, and end the response if the exchange is done."""
        if self.comment is not None:
            await self.comment.wait()
        if not self.complete:
            # Set before the next await: no comment may follow, and only this write may end the response.
            self.complete = self._exchange.done
            if self.complete:
                self.closed = True
                # Before the last bytes are sent, because the client's next request may refer to this reply.
                await sized(self._exchange.remember, self._exchange.written)
            await self.put(data)

    async def put(self, data: bytes) -> None:
        """Send a piece of the response while no comment is being written."""
        self.heard = self._writing = True
        try:
            if not self._started:
                head = self._exchange.head
                if head is None:
                    return
                self._started = True
                await self._send({"type": "http.response.start", "status": head.status, "headers": list(head.headers)})
                self.write_now = writer_of(self._send)
            await self._send({"type": "http.response.body", "body": data, "more_body": not self.complete})
        except OSError:  # some servers report a disconnect this way
            self._disconnected_now()
        finally:
            self._writing = False

    def _disconnected_now(self) -> None:
        self.disconnected = self.closed = True
        if self._left_event is not None:
            self._left_event.set()
        self._stop(0)

    def _left(self) -> None:
        """Handle the client's disconnect."""
        if not self.complete:
            self._disconnected_now()
        # The app may still have work to do. `receive` also returns http.disconnect after a complete reply.
        else:
            self._stop(_LAST_WRITE_SECONDS)

    def _end_tick(self, tick: float) -> None:
        if self._is_silent():
            self._commenting = asyncio.get_running_loop().create_task(self._break_silence())
        self._timer = asyncio.get_running_loop().call_later(tick, self._end_tick, tick)

    def _is_silent(self) -> bool:
        """Return whether a comment is due, at a silence check."""
        # Checks are counted instead of setting a timer on each write: a write only sets a flag.
        self._silent = 0 if self.heard else self._silent + 1
        self.heard = False
        if self._silent < _TICKS or not self._may_comment:
            return False
        self._silent = 0
        return True

    async def _watch(self, tasks: TaskGroup, tick: float) -> None:
        """Wait for the client to disconnect, and send a comment whenever it has received nothing for the keep-alive
        interval.
        """
        while True:
            # Servers expect that `receive` is cancelled and called again: Starlette's `is_disconnected` does the same.
            # A second task would take up a tenth of an open stream's memory.
            with anyio.move_on_after(tick):
                if (await self._receive())["type"] == "http.disconnect":
                    break
                continue
            if self._is_silent():
                tasks.start_soon(self._break_silence)  # the client may disconnect meanwhile
        self._watching = False
        self._left()

    @property
    def _may_comment(self) -> bool:
        """Whether a comment may be sent now: not after the reply, and never during a write, because a comment inside an
        event would corrupt it.
        """
        return not (self._writing or self.complete or self._exchange.done)

    async def _break_silence(self) -> None:
        """Send a comment, unless the reply has continued before this task begins."""
        if self._may_comment:
            self.comment = anyio.Event()
            try:
                await self.put(self._exchange.keepalive())
            finally:  # if this fails, so will the reply's own next write
                self.comment.set()
                self.comment = None
            self.heard = False  # our own comment does not count as activity: the next one is due an interval later
