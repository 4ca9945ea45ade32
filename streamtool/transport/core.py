"""The parts of the transports that do no I/O, shared by the asynchronous and the synchronous transport.

httpx exists as two packages, `httpx` and `httpx2`, with the same API and different classes; each SDK uses one of them.
Both are supported: requests, responses and streams are created with the package that the caller's request came from.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import httpx
from attrs import evolve

from statemachine import precompile
from streamtool.asgi.answers import new_id
from streamtool.asgi.types import with_key_in_header
from streamtool.core.errors import RequestError, StreamtoolError, UpstreamError
from streamtool.exchange.exchange import Exchange
from streamtool.observe.observers import Observers, OnExchange, Watch
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import PROTOCOLS, as_counting_protocol
from streamtool.protocols.table import MODEL, VERSIONS, without_version
from streamtool.schemas.validator import require_library
from streamtool.server.services import open_services
from streamtool.server.token_counting import TokenCount
from streamtool.settings import Settings, with_options
from streamtool.store.replies import client_store_of, open_store
from streamtool.upstream.chat_templates import ChatTemplates


class TransportCore:
    """The state of a transport, and the derivation of upstream requests from the caller's requests."""

    def __init__(self, settings: Settings | None, on_exchange: OnExchange | None, options: Mapping[str, Any]) -> None:
        self.settings = with_options(settings, options)
        if self.settings.checks_arguments:
            require_library("arguments")
        self.on_exchange = on_exchange
        self.observers = Observers(self.settings, time.monotonic)
        precompile(self.settings.formats)
        self.store = open_store(self.settings.store, failed=self.observers.store_failed)
        self.services = open_services(self.settings, ChatTemplates(self.settings), self.store)
        self._endings = {without_version(path): name for path, name in self.settings.paths.items()}

    def protocol_name(self, request: httpx.Request) -> str | None:
        """Return the request's protocol, as named in `paths`, or None if the request is to be passed through."""
        if request.method != "POST":
            return None
        ending = self._ending(request.url.path)
        return None if ending is None else self._endings[ending]

    def _ending(self, path: str) -> str | None:
        """Return the entry of `paths`, without its version, that the path ends with, or None if no entry matches."""
        return next((ending for ending in self._endings if ending_position(ending, path) is not None), None)

    def target(self, request: httpx.Request) -> str:
        """Return the requested path in the form used in `paths`, including the query."""
        path = request.url.path
        ending = self._ending(path) or path
        before = path[: ending_position(ending, path) or 0]
        version = next((version for version in VERSIONS if before.endswith(version)), "")
        query = request.url.query.decode("latin-1")
        return f"{version}{path.removeprefix(before)}{'?' if query else ''}{query}"

    def exchange(self, protocol: ClientProtocol, request: httpx.Request) -> Exchange:
        """Return the exchange for a request. Raises RequestError."""
        headers = self._headers(protocol, request)
        try:
            exchange = self.observers.new_exchange(
                self.settings,
                protocol,
                request.content,
                headers,
                new_id=new_id,
                now=int(time.time()),
                clock=time.monotonic,
                services=evolve(self.services, store=client_store_of(self.store, headers)),
            )
            if exchange.conversation.background:
                raise RequestError(
                    "Background responses require a server: omit `background`.",
                    param="background",
                )
        except StreamtoolError as error:
            self.observers.rejected(protocol.NAME, error, headers)
            raise
        return exchange

    def watch(self, exchange: Exchange, protocol: ClientProtocol, request: httpx.Request) -> Watch:
        """Start watching an exchange."""
        headers = self._headers(protocol, request)
        return self.observers.watch(exchange, headers, self.on_exchange)

    def attempt(self, exchange: Exchange, request: httpx.Request) -> httpx.Request:
        """Return the caller's request with the body, headers and path of the next attempt."""
        attempt = exchange.request()
        headers = [pair for pair in attempt.headers if pair[0] != b"content-length"]
        url = request.url
        path = self.settings.app_path or attempt.path
        if path is not None:
            url = self._with_path(url, path, query=url.query if attempt.path is None else None)
        return type(request)(request.method, url, headers=headers, content=attempt.body, extensions=request.extensions)

    def passed_request(self, exchange: Exchange, request: httpx.Request) -> httpx.Request:
        """Return the caller's request, unchanged except for an empty list of tools, and the model's name and the path
        if the settings change them.
        """
        same_model = exchange.plan.model.name == exchange.conversation.model
        if self.settings.app_path is None and same_model and exchange.request().body == request.content:
            return request
        return self.attempt(exchange, request)

    def _headers(self, protocol: ClientProtocol, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """Return the request headers, including a key that was sent in the query."""
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {"headers": headers, "query_string": request.url.query}
        found: list[tuple[bytes, bytes]] = with_key_in_header(scope, PROTOCOLS[protocol.NAME].query_key)["headers"]
        return found

    def count(self, protocol: ClientProtocol, request: httpx.Request) -> tuple[TokenCount, httpx.Request | None]:
        """Return the token count, and the upstream request for it. The request is None if the upstream cannot count
        tokens. Raises RequestError.
        """
        headers = self._headers(protocol, request)
        services = evolve(self.services, store=client_store_of(self.store, headers))
        count = TokenCount.read(self.settings, as_counting_protocol(protocol), request.content, headers, services)
        if count.request is None:
            return count, None
        url = self._with_path(request.url, count.path, query=request.url.query)
        asked = type(request)(
            "POST", url, headers=list(count.headers), content=count.request, extensions=request.extensions
        )
        return count, asked

    def _with_path(self, url: httpx.URL, path: str, *, query: bytes | None) -> httpx.URL:
        """Return the URL with the requested path replaced by `path`. The part before the requested path is preserved.

        If `query` is not None, it replaces the query of `path`.
        """
        ending = self._ending(url.path) or ""
        before = url.path[: ending_position(ending, url.path)]
        version = next((version for version in VERSIONS if before.endswith(version)), "")
        before = before.removesuffix(version)
        if not version and ending not in self.settings.paths:  # the base URL contains no version either
            path = without_version(path)
        raw = (before + path).encode()
        if query is not None:
            raw = raw.partition(b"?")[0] + (b"?" + query if query else b"")
        return url.copy_with(raw_path=raw)

    def handle_failure(self, exchange: Exchange, error: Exception) -> bytes:
        """Return the output for the client after the upstream's response was cut off.

        Raises `error` instead if the client has not received anything yet.
        """
        if exchange.head is None:
            raise error
        if not isinstance(error, StreamtoolError):
            error = UpstreamError("connection error: the connection to the upstream broke")
        return exchange.fail(error)


def ending_position(ending: str, path: str) -> int | None:
    """Return the position of the path's `ending`, or None if the path ends differently. `ending` may contain a
    placeholder for the model's name.
    """
    before, named, after = ending.partition(MODEL)
    if not path.endswith(after if named else ending):
        return None
    at = path.rfind(before) if named else len(path) - len(ending)
    return at if at >= 0 else None


def package_of(request: httpx.Request) -> Any:
    """Return the package that the request's class belongs to: `httpx` or `httpx2`."""
    for kind in type(request).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    raise TypeError(f"expected an httpx or httpx2 request, not {type(request).__name__}")


def count_response(package: Any, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return cast(httpx.Response, package.Response(200, headers=headers, content=body))


def error_response(package: Any, protocol: ClientProtocol, error: StreamtoolError) -> httpx.Response:
    """Return the error as a response in the protocol's format."""
    request_id = new_id("req_")
    headers = {"content-type": "application/json", protocol.REQUEST_ID.decode(): request_id}
    body = protocol.write_error(error, request_id)
    return cast(httpx.Response, package.Response(error.status, headers=headers, content=body))
