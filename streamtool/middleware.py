"""Exchanges around an ASGI app: `ToolMiddleware(app)` adds tool calling to an app that only replies with text.

The body of a request to one of our paths is read completely, within limits, and passed to an `Exchange`. The app is
called with the rewritten body. Each message from the app passes through the exchange, which sends one message to the
client (`served_exchange`). When the client disconnects, the app is cancelled immediately (`client_connection`).

A large request is read in a worker thread, which also creates the first request to the app. All other calls (other
paths, other websockets, lifespan, requests with neither tools nor tool history) reach the app unchanged, with the
server's own `receive` and `send`. The module uses anyio, so it runs under asyncio and trio.
"""

import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from attrs import define, evolve, frozen

from streamtool.asgi.answers import new_id, send_error
from streamtool.asgi.off_loop import LARGE_STEP, clock, is_large, off_loop, pause
from streamtool.asgi.request_body import ClientLeft, arrived_body, read_body
from streamtool.asgi.types import (
    OUTER_ROOT,
    ASGIApp,
    ASGIMessage,
    Receive,
    Scope,
    Send,
    never_disconnects,
    route_path,
    send_json,
    target,
    with_key_in_header,
    with_root,
)
from streamtool.core.errors import RequestError, StreamtoolError
from streamtool.exchange.encoding import decoded_size
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import Services, UpstreamRequest
from streamtool.observe.observers import Observers, OnExchange
from streamtool.protocols import responses
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.protocols.registry import PROTOCOLS, as_counting_protocol, client_protocol
from streamtool.protocols.table import COMPACT, COUNTS, PATHS, at_path, find_ending, without_version
from streamtool.responses_api.background import Background
from streamtool.responses_api.compaction import compact
from streamtool.responses_api.conversations import StoredConversations
from streamtool.responses_api.journal import Continued, JournaledRequest, claim, give_up, repeat_response
from streamtool.responses_api.stored import StoredResponses
from streamtool.responses_api.websocket import Sockets
from streamtool.schemas.validator import require_library
from streamtool.server.budgets import Budgets
from streamtool.server.folded import run_folding
from streamtool.server.gate import ENTRY, Entry, Gate
from streamtool.server.served_exchange import PREPARES, ServedExchange
from streamtool.server.services import open_services, warm_up
from streamtool.server.token_counting import count_tokens
from streamtool.settings import Settings, with_options
from streamtool.store.replies import ClientStoreView, Store, open_store
from streamtool.store.storing import UNSTORED, memory_of, use_async
from streamtool.upstream.chat_templates import ChatTemplates

if TYPE_CHECKING:
    from streamtool.inspector.app import Inspector

UPSTREAM_KEY = "streamtool.upstream"
"""The ASGI scope key for the name of the upstream that the settings choose; the app reads it."""
WIRE: Final = "streamtool.wire"
"""The ASGI scope key for a client protocol that replaces the one of the path; a client in the same process sets it."""

_ENDINGS: Final = tuple(dict.fromkeys(without_version(path).rpartition("{model}")[2] for path in PATHS))
"""Endings of all paths of requests, without the protocol's version."""
_UNMISTAKABLE: Final = "/chat/completions"
"""The only ending without a version that no other kind of app is likely to serve."""
_WARNINGS: Final = 8
"""Maximum number of paths that warnings are logged for."""
_AT_ONCE: Final = nullcontext()
"""The context of work that need not be cancelled, because it does not wait."""
_log = logging.getLogger("streamtool")


class ToolMiddleware:
    """Middleware that adds tool calling to `app`, which replies with text in any upstream protocol.

    `options` are fields of `Settings` (`mode="native"`) and take precedence over `settings`. `on_exchange` is called
    with the `Record` of each exchange after it has ended. `templates` contains the models' chat templates; by default,
    they are read from the files named in the settings. Raises SettingsError if settings are contradictory or
    unavailable.
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
        self.settings: Settings = with_options(settings, options)
        if self.settings.checks_arguments:
            require_library("arguments")
        self.on_exchange = on_exchange
        self.observers: Observers = Observers(self.settings, clock)
        self.store: Store = (
            open_store(self.settings.store, failed=self.observers.store_failed)
            if opened_store is None
            else opened_store
        )
        for protocol in set(self.settings.paths.values()):
            client_protocol(protocol)  # loads the protocol, so that no request has to
        self.templates: ChatTemplates = ChatTemplates(self.settings) if templates is None else templates
        self.services: Services = open_services(self.settings, self.templates, self.store)
        self.background: Background = Background()
        self.hosted: bool = False
        """Whether the app executes the tools of background responses, so that no other process may continue one."""
        self.stored: StoredResponses = StoredResponses(self.settings)
        self.conversations: StoredConversations = StoredConversations(self.settings)
        self.budgets: Budgets = Budgets(self.settings, self.store)
        self.gate: Gate = Gate(self.settings.limits, self.budgets)
        self.sockets: Sockets = Sockets(self.settings, self.gate)
        self.inspector: Inspector | None = _inspector(self)
        self._warned: set[str] = set()
        """Paths that a warning has been logged for."""

    async def drain(self, seconds: float) -> None:
        """Reject new requests (503), give open requests this many seconds to finish, and then end them with an error.

        Returns when all requests have ended. Call it before the server stops. It includes requests to our paths that
        pass through to the app unchanged.
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
            if protocol is None and scope["method"] == "POST" and path.endswith(_ENDINGS):
                prefix, protocol = self._at_another_path(path)
                if prefix:
                    scope, path = with_root(scope, prefix), path.removeprefix(prefix)
        elif scope["type"] == "websocket" and self.sockets.serves(scope):
            await self.sockets.serve(self, scope, receive, send)
            return
        elif scope["type"] == "lifespan":
            await warm_up(self.settings, self.templates, self.services)
            await self.app(scope, receive, send)
            return
        if protocol is None:
            await self.app(scope, receive, send)
            return
        wire = scope.pop(WIRE, None) or client_protocol(protocol, target(scope))
        scope = with_key_in_header(scope, PROTOCOLS[wire.NAME].query_key)

        bounded = self.remembers(path) is None
        serve = self._serve if bounded else self._serve_stored
        asked = _Request(serve, self.observers, protocol, wire, path)
        await self.gate.run(
            asked.serve, scope, receive, send, wire, on_rejected=asked.rejected, bounded=bounded, ends_early=True
        )

    def _at_another_path(self, path: str) -> tuple[str, str | None]:
        """Return the part of the path before one of our paths, and the protocol of that path; ("", None) if the path
        does not end with one of our paths. Another path without the protocol's version causes a warning, once.
        """
        if self.settings.paths == PATHS:
            found = find_ending(PATHS, path)
            if found:
                return path.removesuffix(found), at_path(PATHS, found)
            if path.endswith(_UNMISTAKABLE):
                return path.removesuffix(_UNMISTAKABLE), "chat"
        if path not in self._warned and len(self._warned) < _WARNINGS:
            self._warned.add(path)
            _log.warning("requests to %s pass through unchanged: add this path to `paths` if models answer them", path)
        return "", None

    def remembers(self, path: str) -> str | None:
        """Return the protocol of a path that serves stored responses or conversations, or None for any other path."""
        if path in self.settings.paths:  # nearly always
            return None
        return self.stored.protocol(path) or self.conversations.protocol(path)

    async def _serve_stored(
        self, _protocol: str, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request for a conversation or a stored response."""
        entry: Entry = scope[ENTRY]
        with entry.cancelling():
            await self._answer_stored(wire, scope, receive, send)

    async def _answer_stored(self, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send) -> None:
        if self.conversations.protocol(route_path(scope)):
            body = await self._body(wire, scope, receive, send) if scope["method"] == "POST" else b""
            if body is not None:
                await self.conversations.serve(self.store, scope, body, send)
        else:
            take_over = partial(self._take_over, scope, receive, send)
            await self.stored.serve(self.store, self.background, scope, receive, send, take_over=take_over)

    async def _serve(
        self,
        protocol: str,
        wire: ClientProtocol,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        begun: "_Begun | None" = None,
    ) -> None:
        """Serve a request to one of our paths. It may have `begun` in another process, as a background response."""
        entry: Entry = scope[ENTRY]
        if begun is None:
            begun = await self._begun(protocol, wire, scope, receive, send)
            if begun is None:
                return
        exchange = begun.exchange
        watch = self.observers.watch(exchange, scope["headers"], self.on_exchange)
        try:
            if exchange.conversation.background:
                await self._make(begun, scope, receive, send)
            else:
                run = ServedExchange(self, exchange, scope, receive, send, large=begun.large)
                before = entry.end_with(run.end)
                try:
                    await run.run()
                finally:
                    entry.end_with(before)
            await watch.examine()
        finally:
            usage = watch.end(None if exchange.done else entry.error)
            exchange.release()
            await self.budgets.spend(scope["headers"], usage, entry.client)

    async def _begun(
        self, protocol: str, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send
    ) -> "_Begun | None":
        """Begin the exchange for a request, or return None if the request has been answered."""
        body = await self._body(wire, scope, receive, send)
        if body is None:
            return None
        entry: Entry = scope[ENTRY]
        if protocol in COUNTS:
            with entry.cancelling():
                await self._count(wire, scope, body, receive, send)
            return None
        memory = ClientStoreView(self.store, entry.client, scope.get(UNSTORED))
        if protocol == COMPACT:
            with entry.cancelling():
                answer = await compact(self, self.settings.limits, scope, body, receive=receive, memory=memory)
                await send_json(send, answer.body, status=answer.status)
            return None
        large = is_large(body, decoded_size(body, scope["headers"])) or self.store.blocks
        begin = partial(self._begin, wire, body, scope, memory, ready=large and PREPARES not in scope)
        with entry.cancelling() if large else _AT_ONCE:
            try:
                exchange = await off_loop(begin) if large else begin()
            except StreamtoolError as error:
                self.observers.rejected(wire.NAME, error, scope["headers"])
                await send_error(wire, error, send)
                return None
        if not large and len(body) > LARGE_STEP:
            await pause()
        if exchange.passthrough and PREPARES not in scope:
            watch = self.observers.watch(exchange, scope["headers"], self.on_exchange)
            with watch.passing(), entry.cancelling():
                await self._pass(exchange, scope, body, receive, send)
            return None
        return _Begun(exchange, memory, large)

    def _begin(
        self, wire: ClientProtocol, body: bytes, scope: Scope, memory: ClientStoreView, *, ready: bool
    ) -> Exchange:
        """Begin an exchange. If `ready` is true (in a worker thread), create its first request as well. Raises
        StreamtoolError.
        """
        services = self.services.for_client(memory)
        exchange = self.observers.new_exchange(
            self.settings,
            wire,
            body,
            scope["headers"],
            new_id=new_id,
            now=int(time.time()),
            clock=clock,
            services=services,
            identity=memory.client,
        )
        continuable = exchange.conversation.background and self.store.blocks and not self.hosted
        if continuable and JournaledRequest.may_store(exchange.conversation.raw):
            asked = JournaledRequest.of(scope, body, new_id(""))
            exchange = asked.exchange(self.settings, wire, scope, clock=clock, services=services, client=memory.client)
        if ready:
            exchange.make_ready()
        return exchange

    async def _make(self, begun: "_Begun", scope: Scope, receive: Receive, send: Send) -> None:
        """Create a response in the background. Raises RequestError if the response could not be retrieved later."""
        exchange, continued = begun.exchange, begun.continued
        entry: Entry = scope[ENTRY]
        if not self.settings.store.size:
            raise RequestError(
                "This server does not store responses (store.size): omit `background`.", param="background"
            )
        entry.keeps_slot = True
        lease = self.settings.store.lease
        with self.background.making(exchange, begun.memory, lease, hosted=self.hosted, continued=continued) as made:
            run = ServedExchange(self, exchange, scope, never_disconnects, made.put, large=begun.large)
            answer = [] if continued else [partial(made.answer, receive, send, self.settings.keepalive)]
            before = entry.end_with(run.end)
            try:
                await made.make(run.run, run.end, *answer)
            finally:
                entry.end_with(before)

    async def _take_over(
        self, asking: Scope, receive: Receive, send: Send, memory: ClientStoreView, id: str
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Claim a background response whose process has stopped, for a client that is `asking` for it. Return a
        function that continues it, or None if this process cannot. Raises StoreError.
        """
        found = await use_async(self.store, partial(claim, memory, id, self.settings.store))
        if found is None:
            return None
        scope = found.asked.scope(asking)
        wire = client_protocol(responses.NAME, target(scope))
        services = self.services.for_client(memory)
        new = partial(
            found.asked.exchange, self.settings, wire, scope, clock=clock, services=services, client=memory.client
        )
        try:
            model = (await off_loop(new)).plan.model
            await self.templates.learn(model, scope["headers"], memory.client)
            exchange, continued = await off_loop(partial(repeat_response, new, found, memory, id))
        except (StreamtoolError, ValueError) as error:
            _log.warning("a background response cannot be continued: %s", error)
            give_up(memory, id, found)
            return None
        _log.info("a background response of a process that has stopped is continued")
        begun = _Begun(exchange, memory, True, continued)
        return partial(self._serve, responses.NAME, wire, scope, receive, send, begun=begun)

    def inner_scope(self, scope: Scope, request: UpstreamRequest) -> Scope:
        """Return the scope to call the app with."""
        inner = dict(scope)
        del inner[ENTRY]
        inner["headers"] = list(request.headers)
        if request.upstream is not None:
            inner[UPSTREAM_KEY] = request.upstream
        path = self.settings.app_path or request.path
        outer = inner.pop(OUTER_ROOT, None)
        if path is not None:
            path, _, query = path.partition("?")
            inner["raw_path"] = (scope.get("root_path", "").rstrip("/") + path).encode()
            inner["path"] = unquote(inner["raw_path"].decode())
            inner["query_string"] = query.encode() if request.path is not None else scope.get("query_string", b"")
        if outer is not None:
            inner["root_path"] = outer
        return inner

    async def _count(self, wire: ClientProtocol, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        try:
            counted = await count_tokens(
                self.settings,
                as_counting_protocol(wire),
                self.app if OUTER_ROOT not in scope else partial(_in_outer_root, self.app),
                scope,
                body,
                receive=receive,
                upstream_key=UPSTREAM_KEY,
                services=evolve(self.services, store=memory_of(self.store, scope, scope[ENTRY].client)),
                blocks=self.store.blocks,
            )
        except StreamtoolError as error:
            await send_error(wire, error, send)
            return
        await send_json(send, counted)

    async def _body(self, wire: ClientProtocol, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """Return the request body, or None if an error was sent instead or the client has disconnected."""
        entry: Entry = scope[ENTRY]
        try:
            arrived = arrived_body(scope, receive, self.settings.limits)
            if arrived is not None:
                return arrived
            with entry.cancelling():
                return await read_body(scope, receive, self.settings.limits)
        except RequestError as error:
            self.observers.rejected(wire.NAME, error, scope["headers"], path=route_path(scope))
            await send_error(wire, error, send)
        except ClientLeft:
            pass
        return None

    async def _pass(self, exchange: Exchange, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass a request that requires no tool support to the app unchanged. The app answers the client itself."""
        request = exchange.request()
        inner = self.inner_scope(scope, request)
        if request.body is body:
            inner["headers"] = scope["headers"]
        replayed = False

        async def replay() -> ASGIMessage:
            nonlocal replayed
            if not replayed:
                replayed = True
                return {"type": "http.request", "body": request.body, "more_body": False}
            return await receive()

        if exchange.conversation.stream:
            await self.app(inner, replay, send)
        else:
            await run_folding(partial(self.app, inner), exchange, replay, send, self.settings.limits.reply)


@frozen
class _Begun:
    """An exchange that has begun."""

    exchange: Exchange
    memory: ClientStoreView
    large: bool
    """Whether its upstream requests are made in worker threads."""
    continued: Continued | None = None
    """The background response of another process that it continues, if any."""


@define(eq=False)
class _Request:
    """A request to one of our paths, as the gate needs it. Its methods take less memory than closures, which would be
    kept while the reply is streamed.
    """

    _serve: Callable[[str, ClientProtocol, Scope, Receive, Send], Coroutine[Any, Any, None]]
    _observers: Observers
    _protocol: str
    _wire: ClientProtocol
    _path: str

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return a coroutine that serves the request."""
        return self._serve(self._protocol, self._wire, scope, receive, send)

    def rejected(self, protocol: str, error: StreamtoolError, headers: Headers) -> None:
        """Report that the gate has rejected the request."""
        self._observers.rejected(protocol, error, headers, path=self._path)


async def _in_outer_root(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the app with the root path that it expects."""
    await app({**scope, "root_path": scope[OUTER_ROOT]}, receive, send)


def _inspector(tools: ToolMiddleware) -> "Inspector | None":
    """Return the inspector, or None if the settings do not enable it."""
    ring = tools.observers.ring
    if ring is None:
        return None
    from streamtool.inspector.app import Inspector  # noqa: PLC0415  imported only where it is used

    return Inspector(tools.settings, ring, lambda: tools.gate.draining)
