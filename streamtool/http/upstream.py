"""An upstream over HTTP, as an ASGI app: what it is sent goes to the upstream, the answer comes back as it comes.

Nothing is decoded, joined or held. It is httpx without its client: a client would keep cookies of one caller for the
next, follow redirects and wrap each piece three times. Headers pass through allow-lists in both directions. The
client's authorization is passed on unless a key of our own is configured; then an upstream that refuses the key is our
fault (502), not the caller's. What goes wrong is raised as an `UpstreamError`, for the exchange or the proxy to put
into the protocol's shape.

A key of ours that the upstream echoes, in an error say, does not get as far as the client (`_Mask`).

Time limits: `connect` is httpx's own; `first_byte` (to the first piece of the body) and `idle` (between two pieces) are
watched by one small task per request, because a timer per piece costs more than the piece.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlsplit

import anyio
import httpx

from streamtool.errors import UpstreamError, UpstreamTimeout
from streamtool.http.asgi import ATTENDED, ASGIApp, Receive, Scope, Send, cancel_when_left, route_path
from streamtool.http.network import failure, open_network, proxy_of
from streamtool.http.request_body import ClientLeft, read_body
from streamtool.http.resending import send_async
from streamtool.protocols import wire
from streamtool.protocols.registry import UPSTREAMS, protocol_of_host
from streamtool.settings import LimitSettings, UpstreamSettings

REQUEST_HEADERS = frozenset(
    (
        *(b"accept", b"accept-encoding", b"content-type", b"content-encoding", b"authorization", b"x-api-key"),
        b"x-goog-api-key",
        *(b"openai-organization", b"openai-project", b"openai-beta", b"anthropic-version", b"anthropic-beta"),
        *(b"idempotency-key", b"x-request-id", b"traceparent", b"tracestate"),
    )
)
"""The client's headers that reach the upstream."""
RESPONSE_HEADERS = frozenset(
    (
        *(b"content-type", b"content-encoding", b"content-length", b"cache-control", b"vary"),
        *(b"retry-after", b"retry-after-ms", b"x-should-retry", b"x-request-id", b"request-id"),
        *(b"openai-processing-ms", b"openai-version", b"openai-organization", b"anthropic-organization-id"),
    )
)
"""The upstream's headers that reach the client, besides rate limits."""
BESIDE = frozenset(("/props", "/api/show"))
"""Paths at which servers (llama.cpp, Ollama) tell of a model."""
_RATE_LIMITS = (b"x-ratelimit-", b"anthropic-ratelimit-")
_IN_PATHS = "/:@!$&'()*+,;=~"
"""What stands in a path as it is, besides letters, digits and `_.-`."""
_SECRET = 16
"""Characters of the shortest key that is looked for in what the upstream says; a shorter one (`ollama`) is no secret,
and may be a word of the reply."""
_ENDING = 0.1
"""Seconds that a body which was given up may take to end."""
_LOOKS = 8
"""How often in one idle time the upstream's silence is looked at."""


class HttpUpstream:
    """The upstream that `settings` describes. Close it with `aclose`, or use it as an async context manager.

    `pass_authorization` False keeps the client's authorization from the upstream (it was a key of ours). `limits`
    bound a request's body. `transport` replaces the network, for tests and embedding.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        pass_authorization: bool = True,
        limits: LimitSettings = LimitSettings(),  # noqa: B008  it is frozen
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.settings = settings
        self._pass_authorization = pass_authorization
        self._limits = limits
        self._network = transport or open_network(settings.url)
        proxy = None if transport else proxy_of(settings.url)
        self.through = f" (through the proxy {proxy.url.netloc.decode('ascii', 'replace')})" if proxy else ""
        """What errors say of the way."""
        self._base = settings.url.rstrip("/")
        self._base_path = urlsplit(self._base).path
        self._wire = UPSTREAMS[settings.wire_protocol]
        key = (settings.key or "").encode()
        self.secret = key if len(key) >= _SECRET else b""
        """What the client must not get to see."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. The next request opens new ones."""
        await self._network.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one HTTP request on. Raises UpstreamError, TooLargeError."""
        try:
            body = await read_body(scope, receive, self._limits)
        except ClientLeft:
            return
        timeout = self.settings.timeout
        url = httpx.URL(self.url(route_path(scope), scope.get("query_string", b"")))
        headers = [(b"host", url.netloc), *self._headers(scope["headers"])]
        if body or scope["method"] not in ("GET", "HEAD"):
            headers.append((b"content-length", str(len(body)).encode()))
        request = httpx.Request(
            scope["method"],
            url,
            stream=_Body(body),
            headers=headers,
            extensions={"timeout": {"connect": timeout.connect, "write": timeout.idle, "read": None, "pool": None}},
        )
        del body  # it is the request's, as long as it may be needed
        await _Pass(self, request, None if ATTENDED in scope else receive, send).run()

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The upstream's answer, its body still to come. Connections are pooled and opened when needed."""
        return cast(httpx.Response, await send_async(self._network, request, httpx))

    def url(self, path: str, query: bytes = b"") -> str:
        """Where `path` is at the upstream. A version that both the address and the path name counts once.

        What a server says of itself stands beside the version.
        """
        base = self._base
        for version in ("/v1", "/v1beta"):
            if self._base_path.endswith(version):
                if path in BESIDE:
                    base = base.removesuffix(version)
                elif path.startswith(version + "/"):
                    path = path.removeprefix(version)
                break
        return base + quote(path, safe=_IN_PATHS) + ("?" + query.decode("latin-1") if query else "")

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name.lower() in REQUEST_HEADERS:
                found.setdefault(name.lower(), value)
        header = self._wire.KEY_HEADER
        if self.settings.key is not None or not self._pass_authorization:
            found = {name: value for name, value in found.items() if name not in wire.KEY_HEADERS}
        if self.settings.key is not None:
            found[header] = (b"Bearer " if header == b"authorization" else b"") + self.settings.key.encode()
        elif not (self._wire.NAME == "messages" and b"authorization" in found):  # which takes either of the two
            found = dict(wire.with_key(list(found.items()), header))
        for name, value in self._wire.HEADERS:
            found.setdefault(name, value)
        if self.secret:
            found[b"accept-encoding"] = b"identity"  # or it could not be seen
        found.setdefault(b"accept-encoding", b"identity")
        return list(found.items())


def open_servers(apps: Mapping[str, ASGIApp]) -> dict[str, ASGIApp]:
    """Those of the upstreams, by name, that may tell of their models: they are asked over HTTP, and are no vendor's."""
    return {
        name: app
        for name, app in apps.items()
        if isinstance(app, HttpUpstream) and protocol_of_host(urlsplit(app.settings.url).hostname) == "chat"
    }


class _Body(httpx.AsyncByteStream):
    """A request's body, each time it is read. An iterator of its own: httpx's is a generator, which a cancelled request
    leaves unfinished.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = b""

    def forget(self) -> None:
        """It will not be read again: a stream may stay open for long."""
        self._body = b""

    def __aiter__(self) -> Self:
        self._left = self._body
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        left, self._left = self._left, b""
        return left


class _Mask:
    """Replaces a key of ours in what comes from the upstream, by something of the same length."""

    __slots__ = ("_held", "_instead", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._instead = b"[key]".ljust(len(key), b"*")
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """All of `data` without the key."""
        return data.replace(self._key, self._instead)

    def feed(self, data: bytes) -> bytes:
        """The next piece; the beginning of a key at its end waits for more."""
        if self._held:
            data, self._held = self._held + data, b""
        if self._key in data:
            data = self.whole(data)
        if data[-1:] == b"\n":  # most pieces of a stream: no key goes on behind
            return data
        at = data.find(self._key[:1], max(0, len(data) - len(self._key) + 1))
        while at >= 0:
            if self._key.startswith(data[at:]):
                self._held = data[at:]
                return data[:at]
            at = data.find(self._key[:1], at + 1)
        return data

    def close(self) -> bytes:
        """What has waited, which was no key."""
        held, self._held = self._held, b""
        return held


async def give_up(response: Any, pieces: Any) -> None:
    """Close a response whose body may have been left in the middle. Cannot be cancelled.

    The body of httpx is several generators, one in the other. They end properly only from inside: by the error that
    reading from the closed connection raises.
    """
    with anyio.CancelScope(shield=True):
        await response.aclose()
        with anyio.move_on_after(_ENDING):
            try:
                async for _ in pieces:
                    pass
            except Exception:  # noqa: BLE001, S110  any error will do
                pass


class _Pass:
    """One request on its way."""

    __slots__ = ("_begun", "_heard", "_late", "_receive", "_request", "_send", "_upstream", "_waiting")

    def __init__(self, upstream: HttpUpstream, request: httpx.Request, receive: Receive | None, send: Send) -> None:
        self._upstream = upstream
        self._request = request
        self._receive = receive
        """Tells when the client leaves; None: nobody need look."""
        self._send = send
        self._begun = False
        self._heard = False
        self._waiting = True
        """For the upstream, not for the client."""
        self._late: UpstreamTimeout | None = None

    async def run(self) -> None:
        """Returns when the client has all of the answer.

        The answer is passed in a task of its own: the caller's is suspended in some twenty coroutines, and each of them
        would be resumed for each piece. So it is the caller's that watches the time.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass, tasks.cancel_scope)
                if self._receive is not None:
                    tasks.start_soon(cancel_when_left, self._receive, tasks.cancel_scope)
                await self._watch_time()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # the watchers raise nothing, so it is one error in a wrapping
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            _, cancelled = group.split(Exception)
            if cancelled is not None:  # nobody waits for the error any more
                raise cancelled from None
            raise
        if self._late is not None:
            raise self._late

    async def _pass(self, scope: anyio.CancelScope) -> None:
        """Pass the answer on, and end `scope` with it."""
        try:
            response = await self._open()
            if isinstance(self._request.stream, _Body):  # a transport may have put another one in its place
                self._request.stream.forget()
            pieces = aiter(cast(httpx.AsyncByteStream, response.stream))
            try:
                self._refuse_our_fault(response)
                mask = _Mask(self._upstream.secret) if self._upstream.secret else None
                headers = [
                    (name, value if mask is None else mask.whole(value))
                    for name, value in ((name.lower(), value) for name, value in response.headers.raw)
                    if name in RESPONSE_HEADERS or name.startswith(_RATE_LIMITS)
                ]
                await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
                send = self._send
                async for piece in pieces:
                    self._begun = True
                    self._waiting = False
                    if mask is not None:
                        piece = mask.feed(piece)  # noqa: PLW2901  the same piece, without the key
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    self._waiting = self._heard = True
                self._waiting = False
            finally:
                await give_up(response, pieces)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise failure(error, self._where) from error
        last = b"" if mask is None else mask.close()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        scope.cancel()

    async def _open(self) -> httpx.Response:
        try:
            return await self._upstream.send(self._request)
        except (OSError, ImportError) as error:  # past httpx; behind this, an OSError is the client's
            raise failure(error, self._where) from error

    def _refuse_our_fault(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403) and self._upstream.settings.key is not None:
            raise UpstreamError("the upstream refuses the configured key", code="upstream_authentication")

    @property
    def _where(self) -> str:
        return f"the upstream at {self._request.url.netloc.decode('ascii', 'replace')}{self._upstream.through}"

    async def _watch_time(self) -> None:
        """Return when the upstream was silent for too long."""
        timeout = self._upstream.settings.timeout
        silent = tick = 0.0
        while silent < (timeout.idle if self._begun else timeout.first_byte) - tick / 2:  # the sum is rounded
            tick = (timeout.idle if self._begun else min(timeout.first_byte, timeout.idle)) / _LOOKS
            self._heard = False
            await anyio.sleep(tick)
            silent = silent + tick if self._waiting and not self._heard else 0.0
        if self._begun:
            self._late = UpstreamTimeout(f"the upstream fell silent for {timeout.idle:g} seconds")
        else:
            self._late = UpstreamTimeout(f"the upstream did not begin its reply within {timeout.first_byte:g} seconds")
