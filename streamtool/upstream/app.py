"""An HTTP upstream as an ASGI app, which sends each request to the upstream and passes the response on as it arrives.

Nothing is decoded, joined or buffered. Requests go through `network` rather than the httpx client, which would share
cookies between callers, follow redirects and wrap each piece three times. Allow-lists restrict the headers in both
directions. The client's authorization is passed on unless the settings contain a key for the upstream; if the upstream
rejects that key, the configuration is at fault (502), not the caller. Failures are raised as `UpstreamError`, which the
exchange or the proxy formats in the client's protocol.

If the upstream echoes our key, for example in an error message, the key is masked before it reaches the client
(`_Mask`).

Time limits: the network enforces `connect`, and `first_byte` for the header. `first_byte` for the first piece of the
body, and `idle` between two pieces, are checked a few times within each limit, because a timer for each piece would
cost more than processing the piece.
"""

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote, unquote, urlsplit

import anyio
import httpx
from attrs import define

from streamtool.asgi.off_loop import clock
from streamtool.asgi.pieces import TakePiece, taker_of
from streamtool.asgi.request_body import ClientLeft, read_body
from streamtool.asgi.types import ATTENDED, ASGIApp, ClientWatch, Receive, Scope, Send, encoded_path
from streamtool.core.errors import RequestError, UpstreamError, UpstreamTimeout
from streamtool.models.engines import HOSTED
from streamtool.protocols.registry import UPSTREAMS
from streamtool.protocols.shared import wire
from streamtool.settings import LimitSettings, UpstreamSettings
from streamtool.upstream.http_messages import HeaderTimeout, HttpRequest, HttpResponse, RequestUrl, ResponsePieces
from streamtool.upstream.network import Network, failure_of, open_network, proxy_of

VIA = b"x-streamtool-via"
"""Request header with the ids of the servers that a request has passed through, separated by commas."""
REQUEST_HEADERS = frozenset(
    (
        VIA,
        b"accept",
        b"accept-encoding",
        b"content-type",
        b"content-encoding",
        b"authorization",
        b"x-api-key",
        b"x-goog-api-key",
        b"openai-organization",
        b"openai-project",
        b"openai-beta",
        b"anthropic-version",
        b"anthropic-beta",
        b"idempotency-key",
        b"x-request-id",
        b"traceparent",
        b"tracestate",
    )
)
"""Request headers that are passed to the upstream."""
RESPONSE_HEADERS = frozenset(
    (
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"cache-control",
        b"vary",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"x-request-id",
        b"request-id",
        b"openai-processing-ms",
        b"openai-version",
        b"openai-organization",
        b"anthropic-organization-id",
    )
)
"""Response headers that are passed to the client, in addition to rate limits."""
UNVERSIONED_PATHS = frozenset(("/props", "/api/show", "/api/chat", "/api/tags"))
"""Paths outside `/v1` where servers (llama.cpp, Ollama) describe a model, and those of Ollama's protocol."""
OUTSIDE_VERSION: Final = "streamtool.outside_version"
"""Scope key of questions about a server, whose paths are outside the version in the base URL."""
_DOWN: Final = frozenset((502, 503, 504))
"""Statuses of a server that is not running, or has not loaded its model."""
_RATE_LIMITS = (b"x-ratelimit-", b"anthropic-ratelimit-")
_IN_PATHS = "/:@!$&'()*+,;=~%"
"""Characters that are not escaped in an encoded path, in addition to letters, digits and `_.-`."""
_UNSAFE = re.compile(r"(?:^|/)\.{1,2}(?:[/;]|$)|[\x00-\x1f\x7f\\]")
"""Parts of a decoded path that could lead a client out of the upstream's path, where its key is used as well: a
server may resolve dot segments after it has decoded the path, and end a path at NUL.
"""
_FIELD_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
"""A header value (RFC 9110, section 5.5). A client's value that does not match would fail at the upstream's connection,
and must not count as the upstream's failure.
"""
_MIN_SECRET = 16
"""Minimum length of a key to mask. A shorter key (`ollama`) is not a secret, and the reply may contain it as a word."""
_URLS = 64
"""Maximum number of cached URLs."""


class HttpUpstream:
    """The upstream that `settings` describe. Close it with `aclose`, or use it as an async context manager.

    If `pass_authorization` is False, the client's authorization is not sent to the upstream, because it is one of the
    proxy's client keys. `limits` bound the request body. `transport` replaces the network, for tests and embedding.
    `server_id` identifies the server that sends the requests, in the header `VIA`; empty: the header is not sent.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        *,
        pass_authorization: bool = True,
        limits: LimitSettings = LimitSettings(),  # noqa: B008  it is frozen
        transport: httpx.AsyncBaseTransport | None = None,
        server_id: bytes = b"",
    ) -> None:
        self.settings = settings
        self._server_id = server_id
        self._pass_authorization = pass_authorization
        self._limits = limits
        self._network = open_network(settings.url) if transport is None else Network(transport)
        proxy = None if transport else proxy_of(settings.url)
        self.proxy_note = f" (through the proxy {proxy.url.netloc.decode('ascii', 'replace')})" if proxy else ""
        """The part of error messages that names the proxy; empty if no proxy is used."""
        self.on_return: Callable[[], object] = _nothing
        """Called when a response arrives after a failure."""
        self._failed = False
        self._urls: dict[tuple[str, bytes, bool], RequestUrl] = {}
        self._base = settings.url.rstrip("/")
        self._base_path = urlsplit(self._base).path
        self._is_vendor = settings.is_vendor
        self._wire = UPSTREAMS[settings.wire_protocol]
        key = (settings.key or "").encode()
        self.secret = key if len(key) >= _MIN_SECRET else b""
        """The key that must not reach the client; empty if there is nothing to mask."""

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
        """Pass on one HTTP request. Raises UpstreamError, TooLargeError, or RequestError for an invalid header."""
        try:
            body = await read_body(scope, receive, self._limits)
        except ClientLeft:
            return
        outside = OUTSIDE_VERSION in scope
        url = self._request_url(encoded_path(scope), scope.get("query_string", b""), outside=outside)
        headers = [(b"host", url.host), *self._headers(scope["headers"])]
        if body or scope["method"] not in ("GET", "HEAD"):
            headers.append((b"content-length", str(len(body)).encode()))
        request = HttpRequest(scope["method"], url, headers, body)
        del body  # the request keeps the body for as long as it may have to be resent
        client = None if ATTENDED in scope else ClientWatch(receive, send)
        await _Forwarding(self, request, client, send).run()

    def _request_url(self, path: str, query: bytes, *, outside: bool) -> RequestUrl:
        """Return the URL of `path` at the upstream. Cached, because the same few URLs are requested repeatedly. Raises
        RequestError.
        """
        known = self._urls.get((path, query, outside))
        if known is None:
            if len(self._urls) >= _URLS:
                self._urls.clear()
            try:
                known = RequestUrl(httpx.URL(self.url(path, query, outside=outside)))
            except httpx.InvalidURL as error:
                raise RequestError(f"the upstream's URL for this request is invalid: {error}") from None
            self._urls[path, query, outside] = known
        return known

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return its response, with the body unread."""
        try:
            response = await self._network.send(request, self.settings.timeout)
        except HeaderTimeout:  # a server that is slow has not failed
            raise
        except Exception:
            self._failed = True
            raise
        failed, self._failed = self._failed, response.status in _DOWN
        if failed and not self._failed:
            self.on_return()
        return response

    def url(self, path: str, query: bytes = b"", *, outside: bool = False) -> str:
        """Return the URL of `path`, which is percent-encoded, at the upstream. Raises RequestError for a path that may
        lead elsewhere.

        A version that occurs in both the base URL and the path is used only once. Paths that describe a model are
        siblings of the version, not below it, and so is any path that is `outside` of it.
        """
        if _UNSAFE.search(unquote(path)):
            raise RequestError("the path must not contain dot segments, backslashes or control characters")
        base = self._base
        for version in ("/v1", "/v1beta"):
            if self._base_path.endswith(version):
                if path in UNVERSIONED_PATHS or (outside and not path.startswith(version + "/")):
                    base = base.removesuffix(version)
                elif path.startswith(version + "/"):
                    path = path.removeprefix(version)
                break
        return base + quote(path, safe=_IN_PATHS) + ("?" + query.decode("latin-1") if query else "")

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name.lower() in REQUEST_HEADERS:
                if not _FIELD_VALUE.fullmatch(value):
                    raise RequestError(f"the header {name.decode('latin-1')} contains an illegal character")
                found.setdefault(name.lower(), value)
        header = self._wire.KEY_HEADER
        if self.settings.key is not None or not self._pass_authorization:
            found = {name: value for name, value in found.items() if name not in wire.KEY_HEADERS}
        if self.settings.key is not None:
            found[header] = (b"Bearer " if header == b"authorization" else b"") + self.settings.key.encode()
        elif not (self._wire.NAME == "messages" and b"authorization" in found):  # the Messages API takes either header
            found = dict(wire.with_key(list(found.items()), header))
        for name, value in self._wire.HEADERS:
            found.setdefault(name, value)
        if self._server_id and not self._is_vendor:
            found[VIA] = b",".join(filter(None, (found.get(VIA), self._server_id)))
        if self.secret:
            found[b"accept-encoding"] = b"identity"  # a compressed body would hide the key from the mask
        found.setdefault(b"accept-encoding", b"identity")
        return list(found.items())


def model_servers(apps: Mapping[str, ASGIApp]) -> dict[str, ASGIApp]:
    """Return the upstreams that may describe their models, by name: HTTP upstreams other than vendor APIs."""
    return {
        name: app
        for name, app in apps.items()
        if isinstance(app, HttpUpstream) and urlsplit(app.settings.url).hostname not in HOSTED
    }


def _nothing() -> None:
    """Do nothing."""


class _Mask:
    """A filter that replaces our key in the upstream's output with text of the same length."""

    __slots__ = ("_held", "_instead", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._instead = b"[key]".ljust(len(key), b"*")
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Return `data` with the key replaced."""
        return data.replace(self._key, self._instead)

    def feed(self, data: bytes) -> bytes:
        """Return the next piece without the key. If it ends with text that may be the beginning of the key, that part
        is buffered.
        """
        if self._held:
            data, self._held = self._held + data, b""
        if self._key in data:
            data = self.whole(data)
        if data[-1:] == b"\n":  # usual in a stream: the key has no newline
            return data
        at = data.find(self._key[:1], max(0, len(data) - len(self._key) + 1))
        while at >= 0:
            if self._key.startswith(data[at:]):
                self._held = data[at:]
                return data[:at]
            at = data.find(self._key[:1], at + 1)
        return data

    def before(self, take: TakePiece) -> TakePiece:
        """Return a function that calls `take` with what `feed` returns, if that is not empty."""
        return lambda piece: take(masked) if (masked := self.feed(piece)) else None

    def close(self) -> bytes:
        """Return the buffered text, which turned out not to be the key."""
        held, self._held = self._held, b""
        return held


@define(eq=False)
class _Forwarding:
    """One request in progress."""

    _upstream: HttpUpstream
    _request: HttpRequest
    _client: ClientWatch | None
    """The client, or None if the caller already watches for its disconnect."""
    _send: Send

    async def run(self) -> None:
        """Pass the response on, and return when the client has received all of it."""
        if self._client is None:
            await self._pass()
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._client.cancel_on_disconnect, tasks.cancel_scope)
                await self._pass()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # the watcher raises nothing, so this is a single error
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            _, cancelled = group.split(Exception)
            if cancelled is not None:  # the caller was cancelled and does not expect an error
                raise cancelled from None
            raise

    async def _pass(self) -> None:
        limits, start = self._upstream.settings.timeout, clock()
        body: ResponsePieces | None = None
        try:
            response = await self._open()
            self._request.body = b""
            first = limits.first_byte - (clock() - start)
            try:
                # Before the status is sent: the client must not see a 401 for a key that it does not know.
                self._raise_if_our_key(response.status)
                mask = _Mask(self._upstream.secret) if self._upstream.secret else None
                headers = [
                    (name, value if mask is None else mask.whole(value))
                    for name, value in ((name.lower(), value) for name, value in response.headers)
                    if name in RESPONSE_HEADERS or name.startswith(_RATE_LIMITS)
                ]
                await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
                take = taker_of(self._send)
                body = response.body
                await body.pass_to(take if mask is None else mask.before(take), first=first, idle=limits.idle)
            finally:
                await response.body.aclose()
        except httpx.ReadTimeout as error:
            raise self._timeout(begun=body is not None and body.begun) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise failure_of(error, self._where) from error
        last = b"" if mask is None else mask.close()
        send = self._send if self._client is None else self._client.send
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _open(self) -> HttpResponse:
        """Return the response once its header has arrived."""
        try:
            return await self._upstream.send(self._request)
        except (OSError, ImportError) as error:  # not wrapped by httpx
            raise failure_of(error, self._where) from error

    def _timeout(self, *, begun: bool) -> UpstreamTimeout:
        limits = self._upstream.settings.timeout
        if begun:
            return UpstreamTimeout(f"the upstream sent nothing for {limits.idle:g} seconds")
        return UpstreamTimeout(f"the upstream did not begin its reply within {limits.first_byte:g} seconds")

    def _raise_if_our_key(self, status: int) -> None:
        if status in (401, 403) and self._upstream.settings.key is not None:
            raise UpstreamError("the upstream rejects the configured key", code="upstream_authentication")

    @property
    def _where(self) -> str:
        return f"the upstream at {self._request.url.host.decode('ascii', 'replace')}{self._upstream.proxy_note}"
