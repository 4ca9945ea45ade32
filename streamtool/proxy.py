"""The proxy: the middleware around the upstreams, with routing and key checks.

    client ─▶ /healthz, /readyz
          ├─▶ /inspect, if it is wanted
          └─▶ browsers, key ─▶ /metrics, if they are wanted
                          ├─▶ a websocket of Responses ─▶ each of its messages, as a request of its own
                          └─▶ gate ─▶ our paths ─▶ ToolMiddleware ─▶ the upstream that the model's rule names
                                    │ /v1/models, /api/tags … ─▶ a list of what all upstreams have
                                    │ /v1/completions ─▶ the upstream that the model's rule names, as it is
                                    │ `passthrough` ─▶ the first upstream, as it is
                                    │ everything else: 404 (an upstream has paths that delete)

It is an ASGI app; any server can run it. Connections to upstreams are pooled, opened at the first use and closed when
the server shuts down. Without any upstream in the settings it serves the embedded sample model.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import httpx
from attrs import evolve

from streamtool.agent.hosted_work import is_asked_for
from streamtool.agent.mcp_gateway import McpGateway
from streamtool.errors import AuthenticationError, MethodError, NotFoundError, RequestError, StreamtoolError
from streamtool.exchange import decode_body
from streamtool.http.answers import send_error
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send, route_path, target, with_key_in_header
from streamtool.http.failover import circuits_of, with_fallbacks
from streamtool.http.health import watched
from streamtool.http.middleware import UPSTREAM_KEY, ToolMiddleware
from streamtool.http.models import PATH as MODELS
from streamtool.http.models import Models, asked_path
from streamtool.http.off_loop import sized
from streamtool.http.origins import Origins
from streamtool.http.request_body import ClientLeft, drop_body, read_body
from streamtool.http.services import warmed
from streamtool.http.storing import close_store_async
from streamtool.http.templates import ChatTemplates
from streamtool.http.upstream import HttpUpstream, open_servers
from streamtool.http.websocket import refuse
from streamtool.observe.observers import OnExchange
from streamtool.protocols import wire
from streamtool.protocols.fields import body_fields, model_name
from streamtool.protocols.registry import LISTS, PROTOCOLS, at_path, client_protocol, protocol_near
from streamtool.settings import Settings, UpstreamSettings, with_options
from streamtool.state.clients import ClientNames
from streamtool.state.replies import Store

HEALTH = "/healthz"
READY = "/readyz"
METRICS = "/metrics"
COMPLETIONS = "/v1/completions"
"""Where a client asks for the continuation of a text: there are no tools, so there is nothing to do but to route it."""
_COMPLETE = ("chat", "completions", "ollama")
"""Protocols of servers that have this path, too."""
_VERB = ":"
"""Between a model and what it is asked to do, in paths of Gemini's."""

_log = logging.getLogger("streamtool")


class Proxy:
    """An ASGI app that serves our paths with the upstreams of `settings`.

    `options` are those of `Settings`; they replace the values of `settings`. `apps` replaces upstreams by ASGI apps, by
    name; `transport` replaces the network of the others. `on_exchange` is called with the `Record` of each exchange.
    `opened_store` is the store of a proxy whose place this one takes.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        apps: Mapping[str, ASGIApp] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_exchange: OnExchange | None = None,
        opened_store: Store | None = None,
        **options: Any,
    ) -> None:
        settings = with_options(settings, options)
        if not settings.upstreams:
            settings = evolve(settings, upstreams={"sample": UpstreamSettings(name="sample", url="sample")})
        self.settings = settings
        self._clients = ClientNames(settings.client_keys)
        self._origins = Origins(settings)
        self._apps: dict[str, ASGIApp] = {
            name: (apps or {}).get(name) or self._open(upstream, transport)
            for name, upstream in settings.upstreams.items()
        }
        self._first = next(iter(self._apps))
        self._templates = ChatTemplates(self.settings, open_servers(self._apps))
        self._models = Models(self.settings, self._apps, self._templates)
        self._tools = ToolMiddleware(
            self._route,
            settings=self.settings,
            on_exchange=on_exchange,
            templates=self._templates,
            opened_store=opened_store,
        )
        self.circuits = circuits_of(settings.upstreams, self._tools.observers.metrics)
        """Those of the upstreams, by name."""
        self._routes = with_fallbacks(settings.upstreams, self._apps, self.circuits, settings.limits)
        self.keeps_store = False
        """Another proxy uses the store when this one is closed."""
        self._host: McpGateway | None = None
        if any(rule.mcp for rule in settings.models) or is_asked_for(settings.mcp):
            self._host = McpGateway(settings, self._tools, self._routes, on_exchange=on_exchange)

    def _open(self, upstream: UpstreamSettings, transport: httpx.AsyncBaseTransport | None) -> ASGIApp:
        if upstream.url == "sample":
            from streamtool import sample  # noqa: PLC0415  only who serves it pays for it

            return sample.app
        return HttpUpstream(
            upstream,
            pass_authorization=not self.settings.client_keys,
            limits=self.settings.limits,
            transport=transport,
        )

    @property
    def store(self) -> Store:
        """What is remembered."""
        return self._tools.store

    def replace(self, before: "Proxy") -> None:
        """Serve in the place of another proxy from now on, which just ends what it has begun."""
        before.keeps_store = before.store is self.store
        rings = self._tools.observers.ring, before._tools.observers.ring  # noqa: SLF001  it is one of ours
        if rings[0] is not None and rings[1] is not None:
            rings[0].take_over(rings[1])
        for circuit in before.circuits.values():
            circuit.part()
        for circuit in self.circuits.values():
            circuit.tell()

    def when_quiet(self, call: Callable[[], object]) -> None:
        """Have `call` called whenever the last open request is over."""
        self._tools.gate.quiet = call

    async def aclose(self) -> None:
        """Close all connections to upstreams, and write what the store has not written yet."""
        try:
            for app in self._apps.values():
                if isinstance(app, HttpUpstream):
                    await app.aclose()
        finally:
            if not self.keeps_store:
                await close_store_async(self.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case other:
                raise RuntimeError(f"the proxy serves HTTP; the server offered {other!r}")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except StreamtoolError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Inside of the block it serves; behind it, what it has opened is closed. Raises StreamtoolError."""
        host = nullcontext() if self._host is None else self._host.running()
        health = watched(self.settings.upstreams, self._apps, self.circuits)
        async with host, self._templates.asked(), warmed(self.settings), health:
            yield
        await self.aclose()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests (503), give those that are open so many seconds, then end them with an error.

        Returns when all are over. Meanwhile `/readyz` says no.
        """
        await self._tools.drain(seconds)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        near = self._tools.remembers(path) or protocol_near(self.settings.paths, asked_path(scope))
        wire = client_protocol(near, target(scope))
        scope = with_key_in_header(scope, PROTOCOLS[wire.NAME].query_key)
        send = self._origins.answering(scope, send)
        gate = self._tools.gate
        if path == HEALTH or (path == "/" and scope["method"] == "HEAD"):  # agents look whether somebody is there
            await _answer(send, b'{"status":"ok"}')
            return
        if path == READY:
            status, said = self._readiness()
            await _answer(send, json.dumps(said, separators=(",", ":")).encode(), status=status)
            return
        if self._tools.inspector is not None and self._tools.inspector.serves(path):
            await self._tools.inspector(scope, receive, send)
            return
        try:
            if asked := self._origins.admit(scope):
                await _answer(send, b"", extra=asked)
                return
            self._check_key(scope)
            if path == METRICS and self.settings.metrics:
                await self._count(scope, send)
                return
            app = self._app_at(path, scope)
        except StreamtoolError as error:
            await drop_body(scope, receive)
            await send_error(wire, error, send)
            return
        refused, bounded = self._tools.observers.refused, self._tools.remembers(path) is None
        await gate.run(app, scope, receive, send, wire, refused=refused, bounded=bounded)

    def _readiness(self) -> tuple[int, Mapping[str, object]]:
        """Whether requests should come here: the status, and what is said of it."""
        if self._tools.gate.draining:
            return 503, {"status": "draining"}
        if not any(upstream.health or upstream.fallbacks for upstream in self.settings.upstreams.values()):
            return 200, {"status": "ready"}
        states = {name: circuit.state for name, circuit in self.circuits.items()}
        if any(circuit.healthy for circuit in self.circuits.values()):
            return 200, {"status": "ready", "upstreams": states}
        return 503, {"status": "no upstream", "upstreams": states}

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, sockets = route_path(scope), self._tools.sockets
        try:
            self._origins.admit({**scope, "method": "POST"})
            self._check_key(scope)
            if not sockets.serves(scope):
                raise NotFoundError(f"no websocket is served at {path}: send the request with a POST")
        except StreamtoolError as error:
            await refuse(error, scope, receive, send)
            return
        await sockets.serve(self, scope, receive, send)

    def _app_at(self, path: str, scope: Scope) -> ASGIApp:
        """What serves the path. Raises MethodError, MediaTypeError, ForbiddenError, NotFoundError."""
        method = scope["method"]
        if at_path(self.settings.paths, path) is not None:
            _check_method(scope, path, "POST")
            self._origins.check_type(scope)
            return self._host or self._tools
        if allowed := self._tools.stored.allowed(path) or self._tools.conversations.allowed(path):
            _check_method(scope, path, *allowed)
            return self._tools
        lists = path == MODELS or path.startswith(MODELS + "/")
        told = "GET" if lists else (at_path(LISTS, path) or ("", ""))[1]
        if told and not _climbs(path) and not (method == "POST" and _VERB in path):
            _check_method(scope, path, told)
            return self._list
        if path in self.settings.passthrough:
            return self._pass
        if path == COMPLETIONS:
            _check_method(scope, path, "POST")
            self._origins.check_type(scope)
            return self._complete
        raise NotFoundError(f"nothing is served at {path}; served are {', '.join(self.settings.paths)} and {MODELS}")

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The models of all upstreams."""
        try:
            body = await read_body(scope, receive, self.settings.limits) if scope["method"] == "POST" else b""
        except ClientLeft:
            return
        await _answer(send, await self._models.answer({**scope, "method": "GET"}, asked_path(scope), body, receive))

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the upstream of the model, as it is but for the model's name. Raises RequestError."""
        limits = self.settings.limits
        try:
            body = await read_body(scope, receive, limits)
        except ClientLeft:
            return
        given = await sized(partial(decode_body, body, scope["headers"], limits.body), len(body))
        raw = await sized(partial(body_fields, given, limits), len(given))
        model = self.settings.for_model(model_name(raw))
        upstream = model.upstream or next(iter(self.settings.upstreams.values()))
        if upstream.wire_protocol not in _COMPLETE:
            raise RequestError(
                f"the upstream of this model has no {COMPLETIONS}: it speaks {upstream.wire_protocol}; "
                "ask at /v1/chat/completions",
                param="model",
            )
        if model.name != raw["model"]:
            given = wire.encode_request({**raw, "model": model.name})
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-encoding", b"content-length")]
        pieces = [given]

        async def replay() -> Message:
            return {"type": "http.request", "body": pieces.pop()} if pieces else await receive()

        await self._pass({**scope, "headers": headers, UPSTREAM_KEY: upstream.name}, replay, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the upstream that the scope names, else the first one, as it is."""
        try:
            await self._route(scope, receive, send)
        except StreamtoolError as error:  # which nobody else writes into the log
            _log.warning("upstream: %s", error.message)
            raise

    async def _count(self, scope: Scope, send: Send) -> None:
        """What Prometheus reads."""
        metrics = self._tools.observers.metrics
        assert metrics is not None  # noqa: S101  the settings want them, so the middleware has them
        _check_method(scope, METRICS, "GET")
        kind, page = metrics.page()
        await _answer(send, page, kind)

    def _check_key(self, scope: Scope) -> None:
        """Raises AuthenticationError unless the request shows one of the client keys."""
        if self.settings.client_keys and not self._clients.of(scope["headers"]):
            raise AuthenticationError(
                "the key is missing or wrong; send it as `authorization: Bearer …`, `x-api-key` or `x-goog-api-key`",
                code="invalid_api_key",
            )

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the upstream that the exchange chose, else the first one."""
        await self._routes[scope.get(UPSTREAM_KEY, self._first)](scope, receive, send)


def _check_method(scope: Scope, path: str, *wanted: str) -> None:
    """Raises MethodError if the request asks by another method; HEAD is a GET."""
    allowed = (*wanted, "HEAD") if "GET" in wanted else wanted
    if scope["method"] not in allowed:
        error = MethodError(f"{path} takes {' and '.join(wanted)}, not {scope['method']}")
        error.headers = (*error.headers, (b"allow", ", ".join(allowed).encode()))
        raise error


def _climbs(path: str) -> bool:
    """Whether the path is not below what it begins with: the upstream would take its dots away."""
    return any(part in (".", "..") for part in path.split("/"))


async def _answer(
    send: Send,
    body: bytes,
    kind: str = "application/json",
    *,
    status: int = 200,
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
