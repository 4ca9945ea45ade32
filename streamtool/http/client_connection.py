"""The client's side of an exchange: what it is sent, when it leaves, and comments while it waits.

Two small tasks attend to the client while the app runs: one waits for it to leave, in order to cancel the app at once,
the other breaks long silences with a comment. While a comment is being written, the reply waits.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from streamtool.exchange import Exchange
from streamtool.http.asgi import Receive, Send
from streamtool.http.off_loop import off_loop, sized

_LAST = 5.0
"""Seconds that the last write may take once the client has left."""
_TICKS = 4
T = TypeVar("T")
"""How often in one keep-alive time the silence is looked at."""


class ClientConnection:
    """The client of one exchange."""

    __slots__ = (
        "_cancel_scope", "_comment", "_exchange", "_heard", "_left", "_receive", "_send", "_started", "_writing",
        "complete", "gone",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self.gone = False
        """The client has left."""
        self._left: anyio.Event | None = None
        """While somebody waits for that."""
        self.complete = False
        """The client has the whole reply."""
        self._started = False
        self._heard = False
        """The client heard something since the silence was last looked at."""
        self._writing = False
        self._comment: anyio.Event | None = None
        """While a comment is being written: set once it is out."""
        self._cancel_scope: anyio.CancelScope | None = None
        """What is cancelled when the client leaves."""

    def attend(self, tasks: TaskGroup, keepalive: float) -> None:
        """Start the tasks. The whole group is cancelled when the client leaves."""
        self._cancel_scope = tasks.cancel_scope
        tasks.start_soon(self._watch)
        if self._exchange.conversation.stream:
            tasks.start_soon(self._break_silence, keepalive / _TICKS)

    async def leaves(self) -> None:
        """Wait until the client has left."""
        if not self.gone:
            self._left = self._left or anyio.Event()
            await self._left.wait()

    async def aside(self, call: Callable[[], T]) -> T:
        """What a step of the exchange returns, off the event loop. Nobody else asks anything of it meanwhile."""
        if self._comment is not None:
            await self._comment.wait()
        self._writing = True
        try:
            return await off_loop(call)
        finally:
            self._writing = False

    def write(self, data: bytes) -> Awaitable[None]:
        """Hand `data` to the client, and the end when the exchange is over."""
        if self._comment is None and not self._exchange.done:  # a piece of a stream takes no step more than it must
            return self._put(data)
        return self._write(data)

    async def _write(self, data: bytes) -> None:
        if self._comment is not None:
            await self._comment.wait()
        if not self.complete:
            self.complete = self._exchange.done
            if self.complete:
                await sized(self._exchange.remember, self._exchange.written)
            await self._put(data)

    async def _put(self, data: bytes) -> None:
        self._heard = self._writing = True
        try:
            if not self._started:
                head = self._exchange.head
                if head is None:
                    return
                self._started = True
                await self._send({"type": "http.response.start", "status": head.status, "headers": list(head.headers)})
            await self._send({"type": "http.response.body", "body": data, "more_body": not self.complete})
        except OSError:  # how a server tells that the client has left
            self._leave()
        finally:
            self._writing = False

    def _leave(self) -> None:
        self.gone = True
        if self._left is not None:
            self._left.set()
        if self._cancel_scope is not None:
            self._cancel_scope.cancel()

    async def _watch(self) -> None:
        """Wait for the client to leave."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.complete:
            self._leave()
        elif self._cancel_scope is not None:  # servers also say so once a reply is complete
            self._cancel_scope.deadline = anyio.current_time() + _LAST

    async def _break_silence(self, tick: float) -> None:
        """A comment for the client whenever it heard nothing for the keep-alive time."""
        silent = 0
        while not self.complete:
            await anyio.sleep(tick)
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if silent >= _TICKS and not (self._writing or self._exchange.done):
                silent = 0
                self._comment = anyio.Event()
                await self._put(self._exchange.keepalive())
                self._comment.set()
                self._comment = None
                self._heard = False
