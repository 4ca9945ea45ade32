"""What the asynchronous and the synchronous transport share: all but the I/O.

httpx exists twice, as `httpx` and as `httpx2`, with the same shape and different classes; SDKs use one or the other.
Both work: requests, responses and streams are made of the package that the caller's request comes from.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import httpx
from attrs import evolve

from statemachine import precompile
from streamtool.errors import RequestError, StreamtoolError, UpstreamError
from streamtool.exchange import Exchange
from streamtool.http.answers import new_id
from streamtool.http.asgi import with_key_in_header
from streamtool.http.services import open_services
from streamtool.http.templates import ChatTemplates
from streamtool.http.token_counting import TokenCount
from streamtool.observe.observers import Observers, OnExchange, Watch
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import MODEL, PROTOCOLS, VERSIONS, counting, without_version
from streamtool.settings import Settings, with_options
from streamtool.state.replies import open_store, shelf
from streamtool.validation.validator import require_library


class TransportCore:
    """What a transport knows, and the requests that it makes of those that come."""

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
        """The protocol that this request speaks, by its name in `paths`, if it is one of ours."""
        if request.method != "POST":
            return None
        ending = self._ending(request.url.path)
        return None if ending is None else self._endings[ending]

    def _ending(self, path: str) -> str | None:
        """How the path ends, as `paths` has it."""
        return next((ending for ending in self._endings if ends_like(ending, path) is not None), None)

    def target(self, request: httpx.Request) -> str:
        """What was asked for: the path as `paths` has it, with its query."""
        path = request.url.path
        ending = self._ending(path) or path
        before = path[: ends_like(ending, path) or 0]
        version = next((version for version in VERSIONS if before.endswith(version)), "")
        query = request.url.query.decode("latin-1")
        return f"{version}{path.removeprefix(before)}{'?' if query else ''}{query}"

    def exchange(self, protocol: ClientProtocol, request: httpx.Request) -> Exchange:
        """The exchange of a request. Raises RequestError."""
        headers = self._headers(protocol, request)
        try:
            exchange = Exchange(
                self.settings,
                protocol,
                request.content,
                headers,
                new_id=new_id,
                now=int(time.time()),
                clock=time.monotonic,
                services=evolve(self.services, memory=shelf(self.store, headers)),
            )
            if exchange.conversation.background:
                raise RequestError(
                    "A response in the background needs a server that makes it: leave `background` out.",
                    param="background",
                )
        except StreamtoolError as error:
            self.observers.refused(protocol.NAME, error, headers)
            raise
        return exchange

    def watch(self, exchange: Exchange, protocol: ClientProtocol, request: httpx.Request) -> Watch:
        """The watch on an exchange that begins now."""
        headers = self._headers(protocol, request)
        return self.observers.watch(exchange, headers, self.on_exchange)

    def attempt(self, exchange: Exchange, request: httpx.Request) -> httpx.Request:
        """The caller's request with the body, headers and path of the next attempt."""
        attempt = exchange.request()
        headers = [pair for pair in attempt.headers if pair[0] != b"content-length"]
        url = request.url
        path = self.settings.app_path or attempt.path
        if path is not None:
            url = self._moved(url, path, query=url.query if attempt.path is None else None)
        return type(request)(request.method, url, headers=headers, content=attempt.body, extensions=request.extensions)

    def untouched(self, exchange: Exchange, request: httpx.Request) -> httpx.Request:
        """The caller's request as it came, but for what the settings change: the model's name, the path."""
        if self.settings.app_path is None and exchange.asked.model.name == exchange.conversation.model:
            return request
        return self.attempt(exchange, request)

    def _headers(self, protocol: ClientProtocol, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """The headers, with the key that stands in the query."""
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {"headers": headers, "query_string": request.url.query}
        found: list[tuple[bytes, bytes]] = with_key_in_header(scope, PROTOCOLS[protocol.NAME].query_key)["headers"]
        return found

    def count(self, protocol: ClientProtocol, request: httpx.Request) -> tuple[TokenCount, httpx.Request | None]:
        """A count of tokens, and what to ask the upstream for it, if it can be asked. Raises RequestError."""
        headers = self._headers(protocol, request)
        services = evolve(self.services, memory=shelf(self.store, headers))
        count = TokenCount.read(self.settings, counting(protocol), request.content, headers, services)
        if count.request is None:
            return count, None
        url = self._moved(request.url, count.path, query=request.url.query)
        asked = type(request)(
            "POST", url, headers=list(count.headers), content=count.request, extensions=request.extensions
        )
        return count, asked

    def _moved(self, url: httpx.URL, path: str, *, query: bytes | None) -> httpx.URL:
        """Another path in the place of the one that the client asked for; what stands before it stays.

        `query` replaces that of `path`.
        """
        ending = self._ending(url.path) or ""
        before = url.path[: ends_like(ending, url.path)]
        version = next((version for version in VERSIONS if before.endswith(version)), "")
        before = before.removesuffix(version)
        if not version and ending not in self.settings.paths:  # the base url has none either
            path = without_version(path)
        raw = (before + path).encode()
        if query is not None:
            raw = raw.partition(b"?")[0] + (b"?" + query if query else b"")
        return url.copy_with(raw_path=raw)

    def broken(self, exchange: Exchange, error: Exception) -> bytes:
        """What the client is to receive when the upstream broke off; raises `error` while it has received nothing."""
        if exchange.head is None:
            raise error
        if not isinstance(error, StreamtoolError):
            error = UpstreamError(f"the connection to the upstream broke: {type(error).__name__}")
        return exchange.fail(error)


def ends_like(ending: str, path: str) -> int | None:
    """Where an ending begins in a path, in which it may name a model; None: the path ends otherwise."""
    before, named, after = ending.partition(MODEL)
    if not path.endswith(after if named else ending):
        return None
    at = path.rfind(before) if named else len(path) - len(ending)
    return at if at >= 0 else None


def package_of(request: httpx.Request) -> Any:
    """The package that the request comes from: `httpx` or `httpx2`."""
    for kind in type(request).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    raise TypeError(f"a request of httpx or httpx2 is needed, not {type(request).__name__}")


def counted(package: Any, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return cast(httpx.Response, package.Response(200, headers=headers, content=body))


def error_response(package: Any, protocol: ClientProtocol, error: StreamtoolError) -> httpx.Response:
    """The error as an answer in the protocol's own shape."""
    request_id = new_id("req_")
    headers = {"content-type": "application/json", protocol.REQUEST_ID.decode(): request_id}
    body = protocol.write_error(error, request_id)
    return cast(httpx.Response, package.Response(error.status, headers=headers, content=body))
