"""An exchange around an ASGI app: `ToolMiddleware(app)` gives tools to an app that only serves text.

A request to one of our paths is read whole (bounded) and handed to an `Exchange`; the app is called with the rewritten
body, and what it sends goes through the exchange to the client, one message for each of the app's messages, in the
same step that brought it. Another attempt is another call of the app. When the client leaves, the app is cancelled at
once (`client_connection`).

Everything else (other paths, websockets, lifespan, requests with neither tools nor tool history) reaches the app with
its own `receive` and `send`, untouched. Written on anyio: runs under asyncio servers and under trio.
"""

import logging
import time
from functools import partial
from math import inf
from typing import Any
from urllib.parse import unquote

import anyio
from attrs import evolve

from statemachine import precompile
from streamtool.errors import RequestError, StreamtoolError, UpstreamError
from streamtool.exchange import MOMENT, Exchange, UpstreamRequest
from streamtool.http.answers import new_id, send_error
from streamtool.http.asgi import (
    ATTENDED,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    json_answer,
    nobody_leaves,
    route_path,
    target,
    with_key_in_header,
)  # fmt: skip
from streamtool.http.background import Background
from streamtool.http.client_connection import ClientConnection
from streamtool.http.folded import folded
from streamtool.http.gate import ENTRY, Entry, Gate
from streamtool.http.off_loop import LARGE, clock, off_loop, slices
from streamtool.http.request_body import ClientLeft, read_body
from streamtool.http.services import open_services
from streamtool.http.stored_responses import StoredResponses
from streamtool.http.templates import ChatTemplates
from streamtool.http.token_counting import count_tokens
from streamtool.observe.observers import Observers, OnExchange
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import COUNTS, PROTOCOLS, at_path, client_protocol, counting
from streamtool.settings import Settings, with_options
from streamtool.state.replies import Shelf, open_store, shelf
from streamtool.validation.validator import require_library

UPSTREAM_KEY = "streamtool.upstream"
"""Key of the ASGI scope under which the app is told the name of the upstream that the settings choose."""

GRACE = 5.0
"""Seconds that the app may go on after the reply has ended by itself, to finish its own business."""
_SHORTCUTS = ("http.response.pathsend", "http.response.zerocopysend")
"""Extensions with which an app could answer past its `send`."""

_log = logging.getLogger("streamtool")


class ToolMiddleware:
    """Gives tools to `app`, which answers with text only, in any of the protocols that upstreams speak.

    `options` are those of `Settings` (`mode="native"`); they replace the values of `settings`. `on_exchange` is called
    with the `Record` of each exchange when it is over. `templates` are the chat templates of the models; without them,
    those of the settings' files. Raises SettingsError for contradictory or unavailable settings.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        templates: ChatTemplates | None = None,
        **options: Any,
    ) -> None:
        self.app = app
        self.settings = with_options(settings, options)
        if self.settings.checks_arguments:
            require_library("arguments")
        self.on_exchange = on_exchange
        self.observers = Observers(self.settings, clock)
        self.store = open_store(self.settings.store, failed=self.observers.store_failed)
        precompile(self.settings.formats)
        for protocol in set(self.settings.paths.values()):
            client_protocol(protocol)  # loads it: a request needs no file
        self.templates = ChatTemplates(self.settings) if templates is None else templates
        self.services = open_services(self.settings, self.templates, self.store)
        self.background = Background()
        self.stored = StoredResponses(self.settings)
        self.gate = Gate(self.settings.limits)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests (503), give those that are open so many seconds, then end them with an error.

        Returns when all are over. For whoever stops the server; requests that just reach the app count as well, if they
        are for our paths.
        """
        await self.gate.drain(seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = None
        if scope["type"] == "http":
            path = route_path(scope)
            protocol = at_path(self.settings.paths, path) if scope["method"] == "POST" else None
            protocol = protocol or self.stored.protocol(path)
        if protocol is None:
            await self.app(scope, receive, send)
            return
        wire = client_protocol(protocol, target(scope))
        scope = with_key_in_header(scope, PROTOCOLS[wire.NAME].query_key)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if not bounded:
                await self.stored.serve(self.store, self.background, scope, receive, send)
            else:
                await self._serve(protocol, wire, scope, receive, send)

        bounded = self.stored.protocol(path) is None
        await self.gate.run(serve, scope, receive, send, wire, refused=self.observers.refused, bounded=bounded)

    async def _serve(self, protocol: str, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to one of our paths."""
        entry: Entry = scope[ENTRY]
        body = await self._body(wire, scope, receive, send)
        if body is None:
            return
        if protocol in COUNTS:
            await self._count(wire, scope, body, receive, send)
            return
        memory = shelf(self.store, scope["headers"])
        begin = partial(
            Exchange,
            self.settings,
            wire,
            body,
            scope["headers"],
            new_id=new_id,
            now=int(time.time()),
            clock=clock,
            services=evolve(self.services, memory=memory),
        )
        large = len(body) > LARGE or self.store.blocks
        try:
            exchange = await off_loop(begin) if large else begin()
        except StreamtoolError as error:
            self.observers.refused(wire.NAME, error, scope["headers"])
            await send_error(wire, error, send)
            return
        watch = self.observers.watch(exchange, scope["headers"], self.on_exchange)
        if exchange.passthrough:
            with watch.passing(), entry.cancelling():
                await self._pass(exchange, scope, body, receive, send)
        else:
            del body, begin
            try:
                if exchange.conversation.background:
                    await self._make(exchange, memory, scope, receive, send, large=large)
                else:
                    run = _Run(self, exchange, scope, receive, send, large=large)
                    with entry.ends_by(run.end):
                        await run.run()
            finally:
                watch.end(None if exchange.done else entry.error)
                exchange.release()

    async def _make(
        self, exchange: Exchange, memory: Shelf, scope: Scope, receive: Receive, send: Send, *, large: bool
    ) -> None:
        """A response in the background."""
        entry: Entry = scope[ENTRY]
        with self.background.making(exchange, memory, self.settings.store.lease) as made:
            run = _Run(self, exchange, scope, nobody_leaves, made.take, large=large)
            with entry.ends_by(run.end):
                await made.make(run.run, run.end, receive, send, self.settings.keepalive)

    def inner_scope(self, scope: Scope, request: UpstreamRequest) -> Scope:
        """The scope with which the app is called."""
        inner = dict(scope)
        del inner[ENTRY]
        inner["headers"] = list(request.headers)
        if request.upstream is not None:
            inner[UPSTREAM_KEY] = request.upstream
        path = self.settings.app_path or request.path
        if path is not None:
            path, _, query = path.partition("?")
            inner["raw_path"] = (scope.get("root_path", "").rstrip("/") + path).encode()
            inner["path"] = unquote(inner["raw_path"].decode())
            inner["query_string"] = query.encode() if request.path is not None else scope.get("query_string", b"")
        return inner

    async def _count(self, wire: ClientProtocol, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        try:
            counted = await count_tokens(
                self.settings,
                counting(wire),
                self.app,
                scope,
                body,
                receive=receive,
                upstream_key=UPSTREAM_KEY,
                services=evolve(self.services, memory=shelf(self.store, scope["headers"])),
                blocks=self.store.blocks,
            )
        except StreamtoolError as error:
            await send_error(wire, error, send)
            return
        await json_answer(send, counted)

    async def _body(self, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """The request body; None when there is nothing to answer any more."""
        try:
            return await read_body(scope, receive, self.settings.limits)
        except RequestError as error:
            self.observers.refused(wire.NAME, error, scope["headers"])
            await send_error(wire, error, send)
        except ClientLeft:
            pass
        return None

    async def _pass(self, exchange: Exchange, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """A request that needs nothing of us: the app gets it as it came, and answers for itself."""
        request = exchange.request()
        inner = self.inner_scope(scope, request)
        if request.body is body:
            inner["headers"] = scope["headers"]
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if not replayed:
                replayed = True
                return {"type": "http.request", "body": request.body, "more_body": False}
            return await receive()

        stream = exchange.conversation.stream
        await self.app(inner, replay, send if stream else folded(exchange, receive, send))


class _Run:
    """One exchange while it runs: the app on one side, the client on the other."""

    __slots__ = (
        "_app", "_client", "_ended", "_entry", "_exchange", "_large", "_left", "_lingers", "_middleware", "_scope",
    )  # fmt: skip

    def __init__(
        self, middleware: ToolMiddleware, exchange: Exchange, scope: Scope, receive: Receive, send: Send, *, large: bool
    ) -> None:
        self._middleware = middleware
        self._exchange = exchange
        self._scope = scope
        self._entry: Entry = scope[ENTRY]
        self._ended: StreamtoolError | None = None
        """With which it was ended early, beside that of its entry."""
        self._large = large
        """The request is not written on the event loop."""
        self._client = ClientConnection(exchange, receive, send)
        self._left = middleware.settings.limits.reply
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
                self._client.attend(tasks, inf if silent else self._middleware.settings.keepalive)
                templates, model = self._middleware.templates, self._exchange.asked.model
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
        while not (exchange.done or self._client.gone):
            try:
                request = await self._client.aside(exchange.request) if self._large else exchange.request()
            except StreamtoolError as error:
                await self._client.write(exchange.fail(error))
                return
            scope = self._middleware.inner_scope(self._scope, request)
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
                    await self._middleware.app(scope, receive, self._take)
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
        most = self._middleware.settings.limits.reply
        return UpstreamError(f"the upstream's reply is larger than {most} bytes (limits.reply)", code="reply_too_large")

    def _stop(self, seconds: float) -> None:
        """The app is not needed any more, or only for so long."""
        if self._app is not None:
            if seconds:
                self._app.deadline = anyio.current_time() + seconds
            else:
                self._app.cancel()
