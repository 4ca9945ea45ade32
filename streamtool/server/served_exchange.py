"""A running exchange, between the app and the client.

Each message from the app passes through the exchange to the client in the same step. Each attempt is a separate call to
the app, which is cancelled as soon as it is no longer needed.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, Protocol

import anyio

from streamtool.asgi.off_loop import LARGE, slices, stop_scope
from streamtool.asgi.types import ATTENDED, ASGIApp, ASGIMessage, Receive, Scope, Send
from streamtool.core.errors import CONTEXT_EXCEEDED, StreamtoolError, UpstreamError
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import INPUT_OVERHEAD, RecordedExchange
from streamtool.exchange.interfaces import MOMENT, UpstreamRequest
from streamtool.exchange.upstream_response import too_large
from streamtool.server.client_connection import ClientConnection
from streamtool.server.gate import ENTRY, Entry
from streamtool.settings import Settings
from streamtool.upstream.chat_templates import ChatTemplates
from streamtool.upstream.failover import INTERRUPTIONS, Interruptions

PREPARES: Final = "streamtool.prepares"
"""Scope key that marks a request as preparation for a later one; the app is not called."""
GRACE: Final = 5.0
"""Seconds that the app has to finish its own work after the reply has ended normally."""
COUNT_STEP: Final = 32 * 1024
"""Size in bytes of the recorded pieces that are counted at once."""
_SHORTCUTS: Final = ("http.response.pathsend", "http.response.zerocopysend")
"""ASGI extensions that an app could use to bypass its `send`."""

_log = logging.getLogger("streamtool")
_feed: Final = Exchange.feed
"""The method that a recorded exchange's own `feed` calls, which would cost each delta another frame."""


class Driver(Protocol):
    """The part of the middleware that a running exchange uses."""

    @property
    def app(self) -> ASGIApp: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def templates(self) -> ChatTemplates: ...
    def inner_scope(self, scope: Scope, request: UpstreamRequest) -> Scope: ...


class ServedExchange:
    """A running exchange. If `large` is true, its upstream request is created in a worker thread."""

    __slots__ = (
        "_app",
        "_bytes_left",
        "_client",
        "_driver",
        "_end_error",
        "_entries",
        "_entry",
        "_exchange",
        "_failing",
        "_finishing",
        "_input_log",
        "_interruptions",
        "_large",
        "_lingers",
        "_read_time",
        "_scope",
        "_uncounted",
    )

    def __init__(
        self, driver: Driver, exchange: Exchange, scope: Scope, receive: Receive, send: Send, *, large: bool
    ) -> None:
        self._driver = driver
        self._exchange = exchange
        self._scope = scope
        self._entry: Entry = scope[ENTRY]
        self._end_error: StreamtoolError | None = None
        """The error passed to `end`, which takes precedence over the entry's error."""
        self._large = large
        """Whether the upstream request is created in a worker thread."""
        self._client = ClientConnection(exchange, receive, send)
        self._bytes_left = driver.settings.limits.reply
        """Number of bytes that the app may still send."""
        log = exchange.log if isinstance(exchange, RecordedExchange) else None
        self._input_log = log
        self._entries = None if log is None else log.open_entries
        """The log's entries, which receive each piece and its time; None if pieces are not recorded."""
        self._read_time = monotonic if log is None else log.read_time
        self._uncounted = 0
        """Size in bytes of the recorded pieces that the log has not counted."""
        self._app: anyio.CancelScope | None = None
        """Cancel scope of the current call to the app; None while no call is running."""
        self._failing: anyio.CancelScope | None = None
        """Cancel scope in which an error is sent that the app has not caused; None while none is sent."""
        upstream = exchange.plan.model.upstream
        self._interruptions = Interruptions() if upstream is not None and upstream.fallbacks else None
        self._finishing = False
        """Whether a coroutine that `take_piece` has returned is not complete yet."""
        self._lingers = False
        """Whether the app has been given a moment to send its usage."""

    def end(self, error: StreamtoolError | None = None) -> None:
        """End the exchange early with this error, or by default with the entry's error."""
        self._end_error = self._end_error or error
        if not self._finishing:  # output that has been taken from the exchange is sent first
            self._stop(0)

    @property
    def _early(self) -> StreamtoolError | None:
        """Error that ends the exchange early; None unless it has to end."""
        return self._end_error or self._entry.error

    async def run(self) -> None:
        keepalive = inf if self._exchange.conversation.background else self._driver.settings.keepalive
        templates, model = self._driver.templates, self._exchange.plan.model
        client = self._exchange.received.client
        headers = self._scope["headers"]
        learns = templates.wants(model, client) and not templates.begin_learning(model, headers, client)
        on_disconnect = None if learns else self._client.on_disconnect
        try:
            if on_disconnect is not None:
                self._client.attend_by_call(self._stop_for_client, on_disconnect, keepalive)
                await self._attempts()
                return
            async with anyio.create_task_group() as tasks:
                self._client.attend(tasks, keepalive)
                if learns:
                    tasks.start_soon(templates.learn, model, headers, client)
                await self._attempts()
                if self._client.is_attended or learns:
                    tasks.cancel_scope.cancel()
        except Exception:  # an app may fail while it is being cancelled
            if not self._client.disconnected:
                raise
            _log.exception("the application failed after its client had disconnected")
        finally:
            self._count()
            if on_disconnect is not None:
                await self._client.dismiss(on_disconnect)

    async def _attempts(self) -> None:
        exchange = self._exchange
        if PREPARES in self._scope:
            await self._client.send(exchange.prepare())
        while not (exchange.done or self._client.disconnected):
            try:
                aside = self._large and exchange.ready is None
                request = await self._client.run_off_loop(exchange.request) if aside else exchange.request()
            except StreamtoolError as error:
                await self._fail(error)
                return
            scope = self._driver.inner_scope(self._scope, request)
            scope[ATTENDED] = True
            if self._interruptions is not None:
                scope[INTERRUPTIONS] = self._interruptions
                self._interruptions.now = self._interruptions.died = False
            if "extensions" in scope:
                scope["extensions"] = {k: v for k, v in scope["extensions"].items() if k not in _SHORTCUTS}
            bodies = [request.body]
            del request  # a stream may stay open for a long time, and the body is not needed once it has been sent
            await self._attempt(scope, bodies)

    async def _attempt(self, scope: Scope, bodies: list[bytes]) -> None:
        """Call the app once, and return when the call ends or is no longer needed."""
        exchange = self._exchange

        async def receive() -> ASGIMessage:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await self._client.wait_disconnected()
            return {"type": "http.disconnect"}

        error: StreamtoolError
        self._finishing = False
        try:
            with anyio.CancelScope() as self._app:
                if not (self._end_error or self._entry.error or self._client.disconnected):
                    await self._driver.app(scope, receive, self._handle)
            error = UpstreamError("the application ended without a complete response")
        except StreamtoolError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  the client gets a response whatever the app does
            _log.exception("the application failed")
            error = StreamtoolError("the application failed")
            error.__cause__ = raised
        self._app = None
        if not (exchange.done or exchange.retry or self._client.disconnected):
            await self._fail(self._early or error)

    async def _fail(self, error: StreamtoolError) -> None:
        """End the reply with this error, while no call to the app is running."""
        with anyio.CancelScope() as self._failing:
            if error.code == CONTEXT_EXCEEDED:  # the server may have been started again with a larger window
                await self._driver.templates.engines.doubt(self._exchange.plan.model)
            await self._client.send(self._exchange.fail(error))
        self._failing = None

    async def _handle(self, message: ASGIMessage) -> None:
        """Handle a message from the app. This is the app's `send`."""
        client = self._client
        if client.closed:
            return
        if message["type"] != "http.response.body":
            await self._begin(message)
            return
        body = message.get("body", b"")
        if type(body) is not bytes:  # some apps send a buffer, and change it later
            body = bytes(body)
        sending = self.take_piece(body, last=not message.get("more_body", False), awaited=True)
        if sending is not None:
            await sending

    def take_piece(
        self, piece: bytes, *, last: bool = False, awaited: bool = False
    ) -> Coroutine[Any, Any, None] | None:
        """Process a piece of the app's body. If something is left to be done, return a coroutine that has to be awaited
        before the next message. `awaited` means that the caller does so at once.
        """
        exchange, client = self._exchange, self._client
        if client.closed:
            return None
        size = len(piece)
        self._bytes_left = left = self._bytes_left - size
        finish: Callable[[bytes], Coroutine[Any, Any, None]]
        if left < 0:
            finish, out = self._conclude, exchange.fail(too_large(self._driver.settings.limits.reply))
        elif exchange.unread + size > LARGE:
            finish, out = partial(self._handle_large, last=last), piece
        else:
            entries = self._entries
            if entries is None:
                out = exchange.feed(piece)
            else:
                out, read_time = _feed(exchange, piece), self._read_time
                entries.append(piece)
                entries.append(read_time())
                self._uncounted = uncounted = self._uncounted + size + INPUT_OVERHEAD
                if uncounted > COUNT_STEP:
                    self._count()
            if last:
                out += exchange.close()
            if exchange.done or exchange.retry or exchange.lingers:
                finish = self._conclude
            elif not out:
                return None
            elif client.comment is not None:
                finish = client.send
            # The usual case in a stream: no coroutine is needed.
            elif (write := client.write_now) is not None and write(out):
                client.heard = True
                return None
            else:
                finish = client.put
        if awaited:
            return finish(out)
        self._finishing = True
        return self._finish(finish, out)

    def _count(self) -> None:
        """Let the log count the recorded pieces since the last call, which may close it."""
        log, size = self._input_log, self._uncounted
        if log is not None and size:
            self._uncounted = 0
            log.count(size)
            self._entries = log.open_entries

    async def _finish(self, finish: Callable[[bytes], Coroutine[Any, Any, None]], out: bytes) -> None:
        """Await `finish(out)`, and then stop the app if the exchange has to end early."""
        try:
            await finish(out)
        finally:
            self._finishing = False
            if self._early is not None:
                self._stop(0)

    async def _begin(self, message: ASGIMessage) -> None:
        """Handle the start of a response."""
        # Other messages (trailers, early hints, debug messages) are meaningless in the rewritten reply.
        if message["type"] == "http.response.start":
            exchange = self._exchange
            out = exchange.respond(message["status"], [(bytes(k), bytes(v)) for k, v in message.get("headers", ())])
            if exchange.done:
                await self._client.send(out)
                self._stop(0)

    async def _conclude(self, out: bytes) -> None:
        """Write more output and, if it is the last of the reply or of the attempt, stop the app."""
        exchange = self._exchange
        if exchange.done:
            self._lift_limit()
        if out or exchange.done:
            await self._client.send(out)
        if exchange.lingers and not self._lingers:
            self._lingers = True
            self._stop(MOMENT)
        elif exchange.done or exchange.retry:
            if self._interruptions is not None:
                self._interruptions.now, self._interruptions.died = exchange.avoids_upstream, exchange.died
            self._check_protocol()
            self._stop(0 if exchange.cut or exchange.retry else GRACE)

    def _check_protocol(self) -> None:
        """Stop speaking the protocol of a recognized server if the server does not serve its path."""
        model = self._exchange.plan.model
        if self._exchange.misdirected and model.upstream and model.protocol != model.upstream.wire_protocol:
            self._driver.templates.engines.distrust(model)

    async def _handle_large(self, body: bytes, *, last: bool) -> None:
        """Process a body in pieces, so that other tasks can run in between."""
        exchange, client = self._exchange, self._client
        for piece in slices(body):
            await anyio.lowlevel.checkpoint()
            if exchange.done or exchange.retry:
                break
            feed = partial(exchange.feed, piece, long=True)
            out = await client.run_off_loop(feed) if exchange.unread + len(piece) > LARGE else feed()
            if exchange.done:
                self._lift_limit()
            if out or exchange.done:
                await client.send(out)
        out = b""
        if last and not (exchange.done or exchange.retry):
            out = await client.run_off_loop(exchange.close) if exchange.unread > LARGE else exchange.close()
        await self._conclude(out)

    def _lift_limit(self) -> None:
        """Remove the time limit of the app, which must not cancel the last write to the client."""
        if self._app is not None:
            self._app.deadline = inf

    def _stop(self, seconds: float) -> None:
        """Stop the app, or let it run for at most this many more seconds."""
        if self._app is not None:
            stop_scope(self._app, seconds)

    def _stop_for_client(self, seconds: float) -> None:
        """Stop whatever is running, or let it run for at most this many more seconds: the client has disconnected."""
        scope = self._app or self._failing
        if scope is not None:
            stop_scope(scope, seconds)
