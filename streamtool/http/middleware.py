"""An exchange around an ASGI app: `ToolMiddleware(app)` gives tools to an app that only serves text.

A request to one of our paths is read whole (bounded) and handed to an `Exchange`; the app is called with the rewritten
body, and what it sends goes through the exchange to the client, one message for each of the app's messages
(`served_exchange`). When the client leaves, the app is cancelled at once (`client_connection`).

Everything else (other paths, other websockets, lifespan, requests with neither tools nor tool history) reaches the app
with its own `receive` and `send`, untouched. Written on anyio: runs under asyncio servers and under trio.
"""

import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from attrs import evolve

from streamtool.errors import RequestError, StreamtoolError
from streamtool.exchange import Exchange, UpstreamRequest
from streamtool.http.answers import new_id, send_error
from streamtool.http.asgi import (
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
from streamtool.http.budgets import Budgets
from streamtool.http.compacting import compact
from streamtool.http.folded import folded
from streamtool.http.gate import ENTRY, Entry, Gate
from streamtool.http.off_loop import LARGE, clock, off_loop
from streamtool.http.request_body import ClientLeft, read_body
from streamtool.http.served_exchange import PREPARES, ServedExchange
from streamtool.http.services import open_services, warmed
from streamtool.http.stored_conversations import StoredConversations
from streamtool.http.stored_responses import StoredResponses
from streamtool.http.storing import memory_of
from streamtool.http.templates import ChatTemplates
from streamtool.http.token_counting import count_tokens
from streamtool.http.websocket import Sockets
from streamtool.observe.observers import Observers, OnExchange
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import COMPACT, COUNTS, PROTOCOLS, at_path, client_protocol, counting
from streamtool.settings import Settings, with_options
from streamtool.state.replies import Shelf, Store, open_store
from streamtool.validation.validator import require_library

if TYPE_CHECKING:
    from streamtool.inspector.app import Inspector

UPSTREAM_KEY = "streamtool.upstream"
"""Key of the ASGI scope under which the app is told the name of the upstream that the settings choose."""


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
        opened_store: Store | None = None,
        **options: Any,
    ) -> None:
        self.app = app
        self.settings = with_options(settings, options)
        if self.settings.checks_arguments:
            require_library("arguments")
        self.on_exchange = on_exchange
        self.observers = Observers(self.settings, clock)
        self.store: Store = (
            open_store(self.settings.store, failed=self.observers.store_failed)
            if opened_store is None
            else opened_store
        )
        for protocol in set(self.settings.paths.values()):
            client_protocol(protocol)  # loads it: a request needs no file
        self.templates = ChatTemplates(self.settings) if templates is None else templates
        self.services = open_services(self.settings, self.templates, self.store)
        self.background = Background()
        self.stored = StoredResponses(self.settings)
        self.conversations = StoredConversations(self.settings)
        self.budgets = Budgets(self.settings, self.store)
        self.gate = Gate(self.settings.limits, self.budgets)
        self.sockets = Sockets(self.settings, self.gate)
        self.inspector = _inspector(self)

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
            if self.inspector is not None and self.inspector.serves(path):
                await self.inspector(scope, receive, send)
                return
            protocol = at_path(self.settings.paths, path) if scope["method"] == "POST" else None
            protocol = protocol or self.remembers(path)
        elif scope["type"] == "websocket" and self.sockets.serves(scope):
            await self.sockets.serve(self, scope, receive, send)
            return
        elif scope["type"] == "lifespan":
            async with warmed(self.settings):
                await self.app(scope, receive, send)
            return
        if protocol is None:
            await self.app(scope, receive, send)
            return
        wire = client_protocol(protocol, target(scope))
        scope = with_key_in_header(scope, PROTOCOLS[wire.NAME].query_key)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if self.conversations.protocol(path):
                body = await self._body(wire, scope, receive, send) if scope["method"] == "POST" else b""
                if body is not None:
                    await self.conversations.serve(self.store, scope, body, send)
            elif not bounded:
                await self.stored.serve(self.store, self.background, scope, receive, send)
            else:
                await self._serve(protocol, wire, scope, receive, send)

        bounded = self.remembers(path) is None
        await self.gate.run(serve, scope, receive, send, wire, refused=self.observers.refused, bounded=bounded)

    def remembers(self, path: str) -> str | None:
        """The protocol of a path at which clients ask for what is remembered; None: it is none of those."""
        return self.stored.protocol(path) or self.conversations.protocol(path)

    async def _serve(self, protocol: str, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to one of our paths."""
        entry: Entry = scope[ENTRY]
        body = await self._body(wire, scope, receive, send)
        if body is None:
            return
        if protocol in COUNTS:
            await self._count(wire, scope, body, receive, send)
            return
        memory = memory_of(self.store, scope)
        if protocol == COMPACT:
            answer = await compact(self, self.settings.limits, scope, body, receive=receive, memory=memory)
            await json_answer(send, answer.body, status=answer.status)
            return
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
        if exchange.passthrough and PREPARES not in scope:
            with watch.passing(), entry.cancelling():
                await self._pass(exchange, scope, body, receive, send)
        else:
            del body, begin
            try:
                if exchange.conversation.background:
                    await self._make(exchange, memory, scope, receive, send, large=large)
                else:
                    run = ServedExchange(self, exchange, scope, receive, send, large=large)
                    with entry.ends_by(run.end):
                        await run.run()
            finally:
                usage = watch.end(None if exchange.done else entry.error)
                exchange.release()
                await self.budgets.spend(scope["headers"], usage)

    async def _make(
        self, exchange: Exchange, memory: Shelf, scope: Scope, receive: Receive, send: Send, *, large: bool
    ) -> None:
        """A response in the background. Raises RequestError where nobody could ask for it."""
        entry: Entry = scope[ENTRY]
        if not self.settings.store.size:
            raise RequestError("Nothing is remembered here (store.size): leave `background` out.", param="background")
        with self.background.making(exchange, memory, self.settings.store.lease) as made:
            run = ServedExchange(self, exchange, scope, nobody_leaves, made.take, large=large)
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
                services=evolve(self.services, memory=memory_of(self.store, scope)),
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


def _inspector(tools: ToolMiddleware) -> "Inspector | None":
    """The page that shows exchanges, if it is wanted."""
    ring = tools.observers.ring
    if ring is None:
        return None
    from streamtool.inspector.app import Inspector  # noqa: PLC0415  only who wants it pays for it

    return Inspector(tools.settings, ring, lambda: tools.gate.draining)
