"""The proxy: the middleware around the upstreams, with routing and key checks.

    client ─▶ /healthz, /readyz
          ├─▶ /inspect, if enabled
          └─▶ browser rules, key ─▶ /metrics, if enabled
                          ├─▶ a Responses websocket ─▶ each of its messages as a separate request
                          └─▶ gate ─▶ our paths ─▶ ToolMiddleware ─▶ the upstream chosen by the model's rule
                                    │ /v1/models, /api/tags … ─▶ a list of all upstreams' models
                                    │ /v1/completions ─▶ the upstream chosen by the model's rule, unchanged
                                    │ `passthrough` ─▶ the first upstream, unchanged
                                    │ everything else: 404 (some upstream paths delete things)

The proxy is an ASGI app; any ASGI server can run it. Connections to upstreams are pooled, opened on first use and
closed when the server shuts down. If the settings contain no upstream, it serves the embedded sample model.
"""

import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import httpx
from attrs import evolve

from streamtool.agent.hosted_work import any_requestable
from streamtool.agent.mcp_gateway import McpGateway
from streamtool.asgi.answers import send_error
from streamtool.asgi.off_loop import sized
from streamtool.asgi.request_body import ClientLeft, drop_body, read_body
from streamtool.asgi.types import (
    ASGIApp,
    ASGIMessage,
    Receive,
    Scope,
    Send,
    below,
    route_path,
    target,
    with_key_in_header,
)
from streamtool.core.clients import ClientNames
from streamtool.core.errors import (
    AuthenticationError,
    LoopError,
    MethodError,
    NotFoundError,
    RequestError,
    StreamtoolError,
)
from streamtool.exchange.encoding import decode_body, decoded_size
from streamtool.middleware import UPSTREAM_KEY, ToolMiddleware
from streamtool.observe.logs import log_refused
from streamtool.observe.observers import OnExchange
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import body_fields, model_name
from streamtool.protocols.table import LISTS, PROTOCOLS, at_path, find_ending, protocol_for_errors
from streamtool.responses_api.websocket import reject
from streamtool.server.model_list import PATH as MODELS
from streamtool.server.model_list import Models, requested_path
from streamtool.server.origins import Origins
from streamtool.server.services import warm_up
from streamtool.settings import Settings, UpstreamSettings, with_options
from streamtool.store.replies import Store
from streamtool.store.storing import close_store_async
from streamtool.upstream.app import VIA, HttpUpstream, model_servers
from streamtool.upstream.chat_templates import ChatTemplates
from streamtool.upstream.circuit import Circuit, monitor_health
from streamtool.upstream.failover import circuits_of, with_fallbacks

HEALTH = "/healthz"
READY = "/readyz"
METRICS = "/metrics"
COMPLETIONS = "/v1/completions"
"""The path for text completion. Requests to it contain no tools and are only routed."""
_CONVERSATIONS = "/v1/conversations"
_VERSION = "/v1"
_HOPS = 8
"""Maximum number of our servers that a request may pass through."""
_COMPLETING = ("chat", "completions", "ollama")
"""The protocols whose upstreams serve `COMPLETIONS`."""
_VERB = ":"
"""Separates the model from the method in Gemini API paths."""

_log = logging.getLogger("streamtool")


class Proxy:
    """An ASGI app that serves our paths with the upstreams in `settings`.

    `options` are fields of `Settings` and take precedence over `settings`. `apps` replaces upstreams with ASGI apps, by
    name; `transport` replaces the network of the other upstreams. `on_exchange` is called with the `Record` of each
    exchange. `opened_store` is a store that is already open, taken over from a proxy that this one replaces.
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
        self._id = secrets.token_hex(8).encode()
        self._clients = ClientNames(settings.client_keys)
        self._origins = Origins(settings)
        self._apps: dict[str, ASGIApp] = {
            name: (apps or {}).get(name) or self._open(upstream, transport)
            for name, upstream in settings.upstreams.items()
        }
        self._first = next(iter(self._apps))
        self._templates = ChatTemplates(self.settings, model_servers(self._apps))
        self._models = Models(self.settings, self._apps, self._templates)
        self._tools = ToolMiddleware(
            self._route,
            settings=self.settings,
            on_exchange=on_exchange,
            templates=self._templates,
            opened_store=opened_store,
        )
        self.circuits: dict[str, Circuit] = circuits_of(settings.upstreams, self._tools.observers.metrics)
        """The upstreams' circuits, by name."""
        self._routes = with_fallbacks(settings.upstreams, self._apps, self.circuits, settings.limits)
        versioned = [
            path for path in (*settings.paths, MODELS, COMPLETIONS, _CONVERSATIONS) if path.startswith(_VERSION)
        ]
        self._unversioned = tuple(
            short for path in versioned if (short := path.removeprefix(_VERSION)) not in settings.paths
        )
        """Paths that clients request if their base URL lacks the version; they are served at the path with it."""
        self._checked = False
        """Whether `/readyz` has been requested."""
        self._stops = False
        """Whether a stop has been announced."""
        self.keeps_store = False
        """Whether to leave the store open when this proxy is closed, because another proxy still uses it."""
        self._gateway: McpGateway | None = None
        if any(rule.mcp for rule in settings.models) or any_requestable(settings.mcp):
            self._gateway = McpGateway(settings, self._tools, self._routes, on_exchange=on_exchange)

    def _open(self, upstream: UpstreamSettings, transport: httpx.AsyncBaseTransport | None) -> ASGIApp:
        if upstream.url == "sample":
            from streamtool import sample  # noqa: PLC0415  imported only if it is served

            return sample.app
        return HttpUpstream(
            upstream,
            pass_authorization=not self.settings.client_keys,
            limits=self.settings.limits,
            transport=transport,
            server_id=self._id,
        )

    @property
    def engines(self) -> Mapping[str, str]:
        """The servers that were recognized at the upstreams, and the consequences, in one line for each name."""
        return self._templates.engines.lines()

    @property
    def store(self) -> Store:
        """The store for earlier replies."""
        return self._tools.store

    def replace(self, before: "Proxy") -> None:
        """Take over from another proxy, which from now on only finishes its open requests."""
        before.keeps_store = before.store is self.store
        self._checked, self._stops = before._checked, before._stops  # noqa: SLF001  another `Proxy`
        rings = self._tools.observers.ring, before._tools.observers.ring  # noqa: SLF001  another `Proxy`
        if rings[0] is not None and rings[1] is not None:
            rings[0].add_exchanges_of(rings[1])
        for circuit in before.circuits.values():
            circuit.detach()
        for circuit in self.circuits.values():
            circuit.report()

    def when_quiet(self, call: Callable[[], object]) -> None:
        """Register `call` to be called each time the last open request has ended."""
        self._tools.gate.on_idle = call

    async def aclose(self) -> None:
        """Close all connections to upstreams, and write the store's pending data."""
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
                raise RuntimeError(f"the proxy serves HTTP and websockets, not {other!r}")

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
        """Serve while the block runs, and close all connections and the store afterwards. Raises StreamtoolError."""
        host = nullcontext() if self._gateway is None else self._gateway.running()
        health = monitor_health(self.settings.upstreams, self._apps, self.circuits)
        async with host, self._templates.learning(), health:
            await warm_up(self.settings, self._templates, self._tools.services)
            yield
        await self.aclose()

    def announce_stop(self) -> float:
        """Answer 503 on `/readyz` from now on, but continue to serve. Return for how many seconds to do so.

        Load balancers that check `/readyz` need that time to notice; without any, it is 0.
        """
        self._stops = True
        return self.settings.shutdown_delay if self._checked else 0.0

    async def drain(self, seconds: float) -> None:
        """Reject new requests (503), let open requests continue for `seconds`, and then end them with an error.

        Returns when all requests have ended. In the meantime, `/readyz` returns 503.
        """
        await self._tools.drain(seconds)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if path.startswith(self._unversioned):
            scope, path = below(scope, _VERSION), _VERSION + path
        near = self._tools.remembers(path) or protocol_for_errors(self.settings.paths, requested_path(scope))
        wire = client_protocol(near, target(scope))
        scope = with_key_in_header(scope, PROTOCOLS[wire.NAME].query_key)
        send = self._origins.with_cors_headers(scope, send)
        gate = self._tools.gate
        if path == HEALTH or (path == "/" and scope["method"] == "HEAD"):  # agents check whether a server is running
            await _respond(send, b'{"status":"ok"}')
            return
        if path == READY:
            self._checked = True
            status, said = self._readiness()
            await _respond(send, json.dumps(said, separators=(",", ":")).encode(), status=status)
            return
        if self._tools.inspector is not None and self._tools.inspector.serves(path):
            await self._tools.inspector(scope, receive, send)
            return
        try:
            if asked := self._origins.admit(scope):
                await _respond(send, b"", extra=asked)
                return
            self._check_key(scope)
            passed = dict(scope["headers"]).get(VIA)
            if passed is not None and (self._id in passed or passed.count(b",") >= _HOPS):
                raise LoopError("this server is its own upstream: correct the upstream's url in the settings")
            if path == METRICS and self.settings.metrics:
                await self._serve_metrics(scope, send)
                return
            app = self._app_at(path, scope)
        except StreamtoolError as error:
            log_refused(scope["method"], path, error)
            await drop_body(scope, receive)
            await send_error(wire, error, send)
            return
        refused, bounded = partial(self._tools.observers.rejected, path=path), self._tools.remembers(path) is None
        ends_early = app is self._tools
        await gate.run(app, scope, receive, send, wire, on_rejected=refused, bounded=bounded, ends_early=ends_early)

    def _readiness(self) -> tuple[int, Mapping[str, object]]:
        """Return the status and body of the readiness check."""
        if self._stops or self._tools.gate.draining:
            return 503, {"status": "draining"}
        if not any(upstream.health or upstream.fallbacks for upstream in self.settings.upstreams.values()):
            return 200, {"status": "ready"}
        states = {name: circuit.state for name, circuit in self.circuits.items()}
        if any(circuit.healthy for circuit in self.circuits.values()):
            return 200, {"status": "ready", "upstreams": states}
        return 503, {"status": "no upstream", "upstreams": states}

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, sockets = route_path(scope), self._tools.sockets
        if path.startswith(self._unversioned):
            scope, path = below(scope, _VERSION), _VERSION + path
        try:
            self._origins.admit({**scope, "method": "POST"})
            self._check_key(scope)
            if not sockets.serves(scope):
                raise NotFoundError(f"no websocket is served at {path}: send the request as a POST")
        except StreamtoolError as error:
            log_refused("websocket", path, error)
            await reject(error, scope, receive, send)
            return
        await sockets.serve(self, scope, receive, send)

    def _app_at(self, path: str, scope: Scope) -> ASGIApp:
        """Return the app that serves the path. Raises MethodError, MediaTypeError, ForbiddenError or NotFoundError."""
        method = scope["method"]
        if at_path(self.settings.paths, path) is not None:
            _check_method(scope, path, "POST")
            self._origins.check_type(scope)
            return self._gateway or self._tools
        if allowed := self._tools.stored.allowed_methods(path) or self._tools.conversations.allowed_methods(path):
            _check_method(scope, path, *allowed)
            self._origins.check_type(scope)
            return self._tools
        lists = path == MODELS or path.startswith(MODELS + "/")
        told = "GET" if lists else (at_path(LISTS, path) or ("", ""))[1]
        if told and not _has_dot_segments(path) and not (method == "POST" and _VERB in path):
            _check_method(scope, path, told)
            self._origins.check_type(scope)
            return self._list
        if path in self.settings.passthrough:
            return self._pass
        if path == COMPLETIONS:
            _check_method(scope, path, "POST")
            self._origins.check_type(scope)
            return self._complete
        served = {**self.settings.paths, MODELS: ""}
        if right := find_ending(served, path):
            raise NotFoundError(
                f"nothing is served at {path}: correct the client's base URL, so that the path is {right}"
            )
        raise NotFoundError(f"nothing is served at {path}; the paths are {', '.join(served)}")

    async def _list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the models of all upstreams."""
        try:
            body = await read_body(scope, receive, self.settings.limits) if scope["method"] == "POST" else b""
        except ClientLeft:
            return
        await _respond(
            send, await self._models.answer({**scope, "method": "GET"}, requested_path(scope), body, receive)
        )

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the model's upstream. Only the model's name is changed. Raises RequestError."""
        limits = self.settings.limits
        try:
            body = await read_body(scope, receive, limits)
        except ClientLeft:
            return
        given = await sized(
            partial(decode_body, body, scope["headers"], limits.body), decoded_size(body, scope["headers"])
        )
        raw = await sized(partial(body_fields, given, limits), len(given))
        model = self.settings.for_model(model_name(raw))
        upstream = model.upstream or next(iter(self.settings.upstreams.values()))
        if upstream.wire_protocol not in _COMPLETING:
            raise RequestError(
                f"the upstream for this model does not serve {COMPLETIONS}: it speaks {upstream.wire_protocol}; "
                "use /v1/chat/completions",
                param="model",
            )
        if model.name != raw["model"]:
            given = wire.encode_request({**raw, "model": model.name})
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-encoding", b"content-length")]
        pieces = [given]

        async def replay() -> ASGIMessage:
            return {"type": "http.request", "body": pieces.pop()} if pieces else await receive()

        await self._pass({**scope, "headers": headers, UPSTREAM_KEY: upstream.name}, replay, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request, unchanged, to the upstream named in the scope, or to the first upstream."""
        try:
            await self._route(scope, receive, send)
        except StreamtoolError as error:  # not logged anywhere else
            _log.warning("upstream: %s", error.message)
            raise

    async def _serve_metrics(self, scope: Scope, send: Send) -> None:
        """Answer with the page of Prometheus metrics."""
        metrics = self._tools.observers.metrics
        assert metrics is not None  # noqa: S101  the middleware creates them if the settings enable them
        _check_method(scope, METRICS, "GET")
        kind, page = metrics.page()
        await _respond(send, page, kind)

    def _check_key(self, scope: Scope) -> None:
        """Raise AuthenticationError unless the request carries one of the client keys."""
        if self.settings.client_keys and not self._clients.of(scope["headers"]):
            raise AuthenticationError(
                "the key is missing or wrong; send it as `authorization: Bearer …`, `x-api-key` or `x-goog-api-key`",
                code="invalid_api_key",
            )

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the upstream chosen by the exchange, or to the first upstream."""
        await self._routes[scope.get(UPSTREAM_KEY, self._first)](scope, receive, send)


def _check_method(scope: Scope, path: str, *wanted: str) -> None:
    """Raise MethodError unless the request's method is one of `wanted`; HEAD counts as GET."""
    allowed = (*wanted, "HEAD") if "GET" in wanted else wanted
    if scope["method"] not in allowed:
        error = MethodError(f"{path} accepts {' and '.join(wanted)}, not {scope['method']}")
        error.headers = (*error.headers, (b"allow", ", ".join(allowed).encode()))
        raise error


def _has_dot_segments(path: str) -> bool:
    """Return whether the path contains dot segments, which an upstream would resolve to a different path."""
    return any(part in (".", "..") for part in path.split("/"))


async def _respond(
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
