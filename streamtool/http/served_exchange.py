"""One exchange while it runs: the app on one side, the client on the other.

What the app sends goes through the exchange to the client in the same step that brought it. Another attempt is another
call of the app, which is cancelled as soon as it is not needed any more.
"""

import logging
from functools import partial
from math import inf
from typing import Final, Protocol

import anyio

from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange import MOMENT, Exchange, UpstreamRequest
from streamtool.http.asgi import ATTENDED, ASGIApp, Message, Receive, Scope, Send
from streamtool.http.client_connection import ClientConnection
from streamtool.http.gate import ENTRY, Entry
from streamtool.http.off_loop import LARGE, slices
from streamtool.http.templates import ChatTemplates
from streamtool.settings import Settings

PREPARES: Final = "streamtool.prepares"
"""Key of a scope that says: the request only prepares for a later one, so the app is not asked."""
GRACE: Final = 5.0
"""Seconds that the app may go on after the reply has ended by itself, to finish its own business."""
_SHORTCUTS: Final = ("http.response.pathsend", "http.response.zerocopysend")
"""Extensions with which an app could answer past its `send`."""

_log = logging.getLogger("streamtool")


class Shell(Protocol):
    """What a run needs of the middleware."""

    @property
    def app(self) -> ASGIApp: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def templates(self) -> ChatTemplates: ...
    def inner_scope(self, scope: Scope, request: UpstreamRequest) -> Scope: ...


class ServedExchange:
    """One exchange while it runs; `large`: its request is not written on the event loop."""

    __slots__ = (
        "_app", "_client", "_ended", "_entry", "_exchange", "_large", "_left", "_lingers", "_scope", "_shell",
    )  # fmt: skip

    def __init__(
        self, shell: Shell, exchange: Exchange, scope: Scope, receive: Receive, send: Send, *, large: bool
    ) -> None:
        self._shell = shell
        self._exchange = exchange
        self._scope = scope
        self._entry: Entry = scope[ENTRY]
        self._ended: StreamtoolError | None = None
        """With which it was ended early, beside that of its entry."""
        self._large = large
        """The request is not written on the event loop."""
        self._client = ClientConnection(exchange, receive, send)
        self._left = shell.settings.limits.reply
        """Bytes that the app may still send."""
        self._app: anyio.CancelScope | None = None
        """Around the app while it runs."""
        self._lingers = False
        """The app is given a moment to tell its counts."""

    def end(self, error: StreamtoolError | None = None) -> None:
        """End early, with this error or that of the entry."""
        self._ended = self._ended or error
        self._stop(0)

    @property
    def _early(self) -> StreamtoolError | None:
        """With which it has to end early."""
        return self._ended or self._entry.error

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                silent = self._exchange.conversation.background
                self._client.attend(tasks, inf if silent else self._shell.settings.keepalive)
                templates, model = self._shell.templates, self._exchange.asked.model
                if templates.wants(model, self._scope["headers"]):
                    tasks.start_soon(templates.learn, model, self._scope["headers"])
                await self._attempts()
                tasks.cancel_scope.cancel()
        except Exception:  # an app may fail while it is cancelled
            if not self._client.gone:
                raise
            _log.exception("the application failed, after its client had left")

    async def _attempts(self) -> None:
        exchange = self._exchange
        if PREPARES in self._scope:
            await self._client.write(exchange.prepare())
        while not (exchange.done or self._client.gone):
            try:
                request = await self._client.aside(exchange.request) if self._large else exchange.request()
            except StreamtoolError as error:
                await self._client.write(exchange.fail(error))
                return
            scope = self._shell.inner_scope(self._scope, request)
            scope[ATTENDED] = True
            if "extensions" in scope:
                scope["extensions"] = {k: v for k, v in scope["extensions"].items() if k not in _SHORTCUTS}
            bodies = [request.body]
            del request  # the stream may stay open for long, and nobody needs the body once it was handed out
            await self._attempt(scope, bodies)

    async def _attempt(self, scope: Scope, bodies: list[bytes]) -> None:
        """Call the app once, to its end or until it is not needed any more."""
        exchange = self._exchange

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await self._client.leaves()
            return {"type": "http.disconnect"}

        error: StreamtoolError
        try:
            with anyio.CancelScope() as self._app:
                if self._early is None:
                    await self._shell.app(scope, receive, self._take)
            error = UpstreamError("the application ended without a whole response")
        except StreamtoolError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  whatever an app does, the client gets an answer
            _log.exception("the application failed")
            error = StreamtoolError("the application failed")
            error.__cause__ = raised
        self._app = None
        if not (exchange.done or exchange.retry or self._client.gone):
            await self._client.write(exchange.fail(self._early or error))

    async def _take(self, message: Message) -> None:
        """What the app sends."""
        exchange = self._exchange
        if self._client.complete or self._client.gone:
            return
        match message["type"]:
            case "http.response.body":
                body, last = message.get("body", b""), not message.get("more_body", False)
                self._left -= len(body)
                if self._left < 0:
                    await self._client.write(exchange.fail(self._endless()))
                elif exchange.unread + len(body) > LARGE:
                    await self._take_large(body, last=last)
                else:
                    out = exchange.feed(body)
                    if last:
                        out += exchange.close()
                    if out or exchange.done:
                        await self._client.write(out)
                if exchange.lingers and not self._lingers:
                    self._lingers = True
                    self._stop(MOMENT)
                elif exchange.done or exchange.retry:
                    self._stop(0 if exchange.cut or exchange.retry else GRACE)
            case "http.response.start":
                out = exchange.respond(message["status"], [(bytes(k), bytes(v)) for k, v in message.get("headers", ())])
                if exchange.done:
                    await self._client.write(out)
                    self._stop(0)
            case _:
                pass  # trailers, early hints, debug messages: nothing that the rewritten reply could carry

    async def _take_large(self, body: bytes, *, last: bool) -> None:
        """Read what is so long that others may want to do something meanwhile."""
        exchange, client = self._exchange, self._client
        for piece in slices(body):
            await anyio.lowlevel.checkpoint()
            if exchange.done or exchange.retry:
                return
            feed = partial(exchange.feed, piece, long=True)
            out = await client.aside(feed) if exchange.unread + len(piece) > LARGE else feed()
            if out or exchange.done:
                await client.write(out)
        if last:
            out = await client.aside(exchange.close) if exchange.unread > LARGE else exchange.close()
            if out or exchange.done:
                await client.write(out)

    def _endless(self) -> UpstreamError:
        most = self._shell.settings.limits.reply
        return UpstreamError(f"the upstream's reply is larger than {most} bytes (limits.reply)", code="reply_too_large")

    def _stop(self, seconds: float) -> None:
        """The app is not needed any more, or only for so long."""
        if self._app is not None:
            if seconds:
                self._app.deadline = anyio.current_time() + seconds
            else:
                self._app.cancel()
