"""The proxy: the middleware around the upstreams, with routing and key checks.

    client ─▶ browsers, key ─▶ /healthz │ our paths ─▶ ToolMiddleware ─▶ the upstream that the model's rule names
                                        │ /v1/models ─▶ a list of what all upstreams have
                                        │ /metrics, if they are wanted
                                        │ `passthrough` ─▶ the first upstream, as it is
                                        │ everything else: 404 (an upstream has paths that delete)

It is an ASGI app; any server can run it. Connections to upstreams are pooled, opened at the first use and closed when
the server shuts down. Without any upstream in the settings it serves the embedded sample model.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import httpx
from attrs import evolve

from streamtool.agent.mcp_gateway import McpGateway
from streamtool.conversation import Conversation
from streamtool.errors import AuthenticationError, MethodError, NotFoundError, StreamtoolError
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send
from streamtool.http.middleware import UPSTREAM_KEY, ToolMiddleware, new_id, route_path, send_error
from streamtool.http.models import PATH as MODELS
from streamtool.http.models import Models
from streamtool.http.origins import Origins
from streamtool.http.templates import ChatTemplates
from streamtool.http.upstream import HttpUpstream, open_servers
from streamtool.observe.observers import OnExchange
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import client_protocol
from streamtool.reply import ReplyFailure
from streamtool.settings import Settings, UpstreamSettings, with_options
from streamtool.state.clients import ClientNames

HEALTH = "/healthz"
METRICS = "/metrics"
_READ_ONLY = (MODELS, METRICS)

_log = logging.getLogger("streamtool")


class Proxy:
    """An ASGI app that serves our paths with the upstreams of `settings`.

    `options` are those of `Settings`; they replace the values of `settings`. `apps` replaces upstreams by ASGI apps, by
    name; `transport` replaces the network of the others. `on_exchange` is called with the `Record` of each exchange.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        apps: Mapping[str, ASGIApp] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_exchange: OnExchange | None = None,
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
            self._route, settings=self.settings, on_exchange=on_exchange, templates=self._templates
        )
        self._host: McpGateway | None = None
        if any(rule.mcp for rule in settings.models):
            self._host = McpGateway(settings, self._tools, self._apps, on_exchange=on_exchange)

    def _open(self, upstream: UpstreamSettings, transport: httpx.AsyncBaseTransport | None) -> ASGIApp:
        if upstream.url == "sample":
            from streamtool import sample  # noqa: PLC0415  only who serves it pays for it

            return sample.app
        limit = self.settings.limits.body
        return HttpUpstream(
            upstream, pass_authorization=not self.settings.client_keys, limit=limit, transport=transport
        )

    async def aclose(self) -> None:
        """Close all connections to upstreams."""
        for app in self._apps.values():
            if isinstance(app, HttpUpstream):
                await app.aclose()
        self._tools.store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise RuntimeError(f"the proxy serves HTTP; the server offered {other!r}")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with nullcontext() if self._host is None else self._host.running(), self._templates.asked():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except StreamtoolError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        settings = self.settings
        wire = client_protocol(settings.paths.get(path))
        send = self._origins.answering(scope, send)
        if path == HEALTH or (path == "/" and scope["method"] == "HEAD"):  # agents look whether somebody is there
            await _answer(send, b'{"status":"ok"}')
            return
        try:
            if asked := self._origins.admit(scope):
                await _answer(send, b"", extra=asked)
                return
            self._check_key(scope)
            if path in settings.paths:
                if scope["method"] != "POST":
                    raise MethodError(f"{path} takes POST, not {scope['method']}")
                self._origins.check_type(scope)
                app: ASGIApp = self._host or self._tools
            elif path == MODELS or (path.startswith(MODELS + "/") and not _climbs(path)):
                if scope["method"] not in ("GET", "HEAD"):
                    raise MethodError(f"{path} takes GET, not {scope['method']}")
                await _answer(send, await self._models.answer({**scope, "method": "GET"}, path, receive))
                return
            elif path == METRICS and settings.metrics:
                await self._count(scope, send)
                return
            elif path in settings.passthrough:
                app = self._route
            else:
                raise NotFoundError(f"nothing is served at {path}; served are {', '.join(settings.paths)} and {MODELS}")
        except StreamtoolError as error:
            allow = b"GET, HEAD" if path.startswith(_READ_ONLY) else b"POST"
            extra = ((b"allow", allow),) if isinstance(error, MethodError) else ()
            await send_error(wire, error, send, extra=extra)
            return
        await _Guard(wire, send, tells=path not in settings.paths).run(app, scope, receive)

    async def _count(self, scope: Scope, send: Send) -> None:
        """What Prometheus reads."""
        metrics = self._tools.observers.metrics
        assert metrics is not None  # noqa: S101  the settings want them, so the middleware has them
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodError(f"{METRICS} takes GET, not {scope['method']}")
        kind, page = metrics.page()
        await _answer(send, page, kind)

    def _check_key(self, scope: Scope) -> None:
        """Raises AuthenticationError unless the request shows one of the client keys."""
        if self.settings.client_keys and not self._clients.of(scope["headers"]):
            raise AuthenticationError(
                "the key is missing or wrong; send it as `authorization: Bearer …` or `x-api-key`",
                code="invalid_api_key",
            )

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the upstream that the exchange chose, else the first one."""
        await self._apps[scope.get(UPSTREAM_KEY, self._first)](scope, receive, send)


class _Guard:
    """Turns the error of an upstream that was only passed through into an answer, as far as that is still possible."""

    __slots__ = ("_send", "_started", "_stream", "_tells", "_wire")

    def __init__(self, wire: ClientProtocol, send: Send, *, tells: bool) -> None:
        self._wire = wire
        self._tells = tells
        """Nobody else writes it into the log."""
        self._send = send
        self._started = False
        self._stream = False

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        try:
            await app(scope, receive, self._watch)
        except StreamtoolError as error:
            if self._tells:
                _log.warning("upstream: %s", error.message)
            if not self._started:
                await send_error(self._wire, error, self._send)
            elif self._stream:
                wire = self._wire
                conversation = Conversation(wire.NAME, "", (), stream=True)
                writer = wire.ReplyWriter(conversation, id=new_id(wire.REPLY_ID), created=int(time.time()), model="")
                data = b"\n\n" + writer.feed([ReplyFailure(error)])
                await self._send({"type": "http.response.body", "body": data, "more_body": False})
            else:
                raise  # the server breaks the connection off: a cut body must not look whole

    async def _watch(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self._stream = headers.get(b"content-type", b"").startswith(b"text/event-stream") and not (
                b"content-length" in headers or b"content-encoding" in headers  # then nothing can be added
            )
        await self._send(message)


def _climbs(path: str) -> bool:
    """Whether the path is not below what it begins with: the upstream would take its dots away."""
    return any(part in (".", "..") for part in path.split("/"))


async def _answer(
    send: Send, body: bytes, kind: str = "application/json", *, extra: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
