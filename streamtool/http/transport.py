"""An exchange as an HTTP transport: an SDK over httpx gets tools with no server at all.

    client = AsyncOpenAI(http_client=httpx.AsyncClient(transport=ToolTransport()), base_url=…)

A POST to a path that ends like one of ours (`…/chat/completions`; the base address is the caller's own) goes through an
exchange around the inner transport, a count of tokens is answered as the middleware answers it, and everything else
goes straight on. The reply streams; closing it early closes the upstream's. Errors of the inner transport are raised as
they are while the reply has not begun, so that an SDK retries them as usual; later they become an error in the stream.

httpx exists twice, as `httpx` and as `httpx2`, with the same shape and different classes; SDKs use one or the other.
Both work: requests, responses and streams are made of the package that the caller's request comes from.
"""

import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any, Self, cast

import anyio
import httpx

from statemachine import precompile
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange import Exchange
from streamtool.http.middleware import new_id
from streamtool.http.phrases import open_phrases
from streamtool.http.token_counting import TokenCount
from streamtool.observe.observers import Observers, OnExchange, Watch, as_error
from streamtool.protocols import messages
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings, with_options
from streamtool.state.capabilities import CapabilityCache
from streamtool.state.replies import open_store, shelf

_DRAIN = 0.1
"""Seconds to wait for the end of a body whose reply is over, so that the connection can be used again."""


class _Tools:
    """What both transports share."""

    def __init__(self, settings: Settings | None, on_exchange: OnExchange | None, options: Mapping[str, Any]) -> None:
        self.settings = with_options(settings, options)
        self.on_exchange = on_exchange
        self.observers = Observers(self.settings, time.monotonic)
        precompile(self.settings.formats)
        self.phrases = open_phrases(self.settings)
        self.store = open_store(self.settings.store)
        self.capabilities = CapabilityCache()
        self._endings = {path.removeprefix("/v1"): name for path, name in self.settings.paths.items()}

    def protocol(self, request: httpx.Request) -> str | None:
        """The protocol that this request speaks, by its name in `paths`, if it is one of ours."""
        if request.method != "POST":
            return None
        path = request.url.path
        return next((name for ending, name in self._endings.items() if path.endswith(ending)), None)

    def exchange(self, wire: ClientProtocol, request: httpx.Request) -> tuple[Exchange, Watch]:
        """The exchange, and the watch on it. Raises RequestError."""
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        try:
            exchange = Exchange(
                self.settings,
                wire,
                request.content,
                headers,
                new_id=new_id,
                now=int(time.time()),
                clock=time.monotonic,
                memory=shelf(self.store, headers),
                capabilities=self.capabilities,
                phrases=self.phrases,
            )
        except StreamtoolError as error:
            self.observers.refused(wire.NAME, error)
            raise
        return exchange, self.observers.watch(exchange, headers, self.on_exchange)

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
        if self.settings.app_path is None and exchange.model.name == exchange.conversation.model:
            return request
        return self.attempt(exchange, request)

    def count(self, request: httpx.Request) -> tuple[TokenCount, httpx.Request | None]:
        """A count of tokens, and what to ask the upstream for it, if it can be asked. Raises RequestError."""
        counting = TokenCount.read(self.settings, request.content, request.headers.raw)
        if counting.request is None:
            return counting, None
        url = self._moved(request.url, messages.COUNT_PATH, query=request.url.query)
        headers = list(counting.headers)
        asked = type(request)("POST", url, headers=headers, content=counting.request, extensions=request.extensions)
        return counting, asked

    def _moved(self, url: httpx.URL, path: str, *, query: bytes | None) -> httpx.URL:
        """Another path in the place of the one that the client asked for; what stands before it stays.

        `query` replaces that of `path`.
        """
        ending = next(ending for ending in self._endings if url.path.endswith(ending))
        before = url.path.removesuffix(ending)
        if before.endswith("/v1"):
            before = before.removesuffix("/v1")
        else:
            path = path.removeprefix("/v1")
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


class ToolTransport(httpx.AsyncBaseTransport):
    """Gives tools to what is behind `transport` (None: the network); for the `AsyncClient` of httpx and of httpx2."""

    def __init__(
        self,
        transport: Any = None,  # an async transport of httpx or httpx2
        *,
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        **options: Any,
    ) -> None:
        self._inner = transport
        self._tools = _Tools(settings, on_exchange, options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; what the client calls."""
        package = _package(request)
        if self._inner is None:
            self._inner = package.AsyncHTTPTransport()
        protocol = self._tools.protocol(request)
        if protocol is None:
            return cast(httpx.Response, await self._inner.handle_async_request(request))
        wire = client_protocol(protocol)
        await request.aread()
        try:
            if protocol == "count_tokens":
                return _counted(package, await self._count(package, request))
            exchange, watch = self._tools.exchange(wire, request)
            if exchange.passthrough:
                request = self._tools.untouched(exchange, request)
                with watch.passing():
                    return cast(httpx.Response, await self._inner.handle_async_request(request))
            reply = _async_stream(package.AsyncByteStream)(self._tools, self._inner, exchange, watch, request)
            await reply.begin()
        except StreamtoolError as error:
            return _refusal(package, wire, error)
        head = exchange.head
        assert head is not None  # noqa: S101  begin() ends no sooner
        return cast(httpx.Response, package.Response(head.status, headers=_plain(head.headers), stream=reply))

    async def _count(self, package: Any, request: httpx.Request) -> bytes:
        counting, asked = self._tools.count(request)
        if asked is None:
            return counting.answer(None)
        try:
            response = await self._inner.handle_async_request(asked)
            try:
                told = await response.aread()
            finally:
                await response.aclose()
        except package.HTTPError:
            return counting.answer(None)
        return counting.answer(told if response.status_code == 200 else None)

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()


class _AsyncReply:
    """The body of a reply, made of as many attempts as it takes."""

    def __init__(self, tools: _Tools, inner: Any, exchange: Exchange, watch: Watch, request: httpx.Request) -> None:
        self._tools = tools
        self._watch = watch
        self._inner = inner
        self._exchange = exchange
        self._request = request
        self._ready = b""
        self._response: Any = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._closed = False

    async def begin(self) -> None:
        """Until the status is known."""
        try:
            while self._exchange.head is None:
                self._ready += await self._step()
        except Exception as error:
            self._watch.end(as_error(error))
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece for the client. An iterator, because a generator that is left early is not closed in time."""
        data, self._ready = self._ready, b""
        exchange = self._exchange
        while not (data or exchange.done):
            data = await self._step()
        if data:
            return data
        if not (exchange.cut or self._closed):
            await self._drain()
        await self.aclose()
        raise StopAsyncIteration

    async def _drain(self) -> None:
        """To the end of a body whose reply is over."""
        with anyio.move_on_after(_DRAIN):
            try:
                while self._pieces is not None and await anext(self._pieces, None) is not None:
                    pass
            except Exception:  # noqa: BLE001, S110  the reply is whole; how its connection ends does not matter
                pass

    async def _step(self) -> bytes:
        """One more piece of the upstream's reply; what the client is to receive for it."""
        exchange = self._exchange
        try:
            if self._pieces is None:
                return await self._open()
            data = await anext(self._pieces, None)
        except Exception as error:  # noqa: BLE001  whatever a transport raises
            out = self._tools.broken(exchange, error)
        else:
            out = exchange.close() if data is None else exchange.feed(data)
        if exchange.cut or exchange.retry:
            await self._close_attempt()
        return out

    async def _open(self) -> bytes:
        self._response = await self._inner.handle_async_request(self._tools.attempt(self._exchange, self._request))
        self._pieces = aiter(self._response.stream)
        return self._exchange.respond(self._response.status_code, self._response.headers.raw)

    async def _close_attempt(self) -> None:
        response, self._response = self._response, None
        pieces: Any = self._pieces  # a generator, or any other iterator
        self._pieces = None
        with anyio.CancelScope(shield=True):
            if hasattr(pieces, "aclose"):
                await pieces.aclose()
            if response is not None:
                await response.aclose()

    async def aclose(self) -> None:
        """Close the upstream's reply."""
        if not self._closed:
            self._closed = True
            await self._close_attempt()
            self._watch.end()


class SyncToolTransport(httpx.BaseTransport):
    """Gives tools to what is behind `transport` (None: the network); for the `Client` of httpx and of httpx2."""

    def __init__(
        self,
        transport: Any = None,  # a transport of httpx or httpx2
        *,
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        **options: Any,
    ) -> None:
        self._inner = transport
        self._tools = _Tools(settings, on_exchange, options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; what the client calls."""
        package = _package(request)
        if self._inner is None:
            self._inner = package.HTTPTransport()
        protocol = self._tools.protocol(request)
        if protocol is None:
            return cast(httpx.Response, self._inner.handle_request(request))
        wire = client_protocol(protocol)
        request.read()
        try:
            if protocol == "count_tokens":
                return _counted(package, self._count(package, request))
            exchange, watch = self._tools.exchange(wire, request)
            if exchange.passthrough:
                request = self._tools.untouched(exchange, request)
                with watch.passing():
                    return cast(httpx.Response, self._inner.handle_request(request))
            reply = _sync_stream(package.SyncByteStream)(self._tools, self._inner, exchange, watch, request)
            reply.begin()
        except StreamtoolError as error:
            return _refusal(package, wire, error)
        head = exchange.head
        assert head is not None  # noqa: S101  begin() ends no sooner
        return cast(httpx.Response, package.Response(head.status, headers=_plain(head.headers), stream=reply))

    def _count(self, package: Any, request: httpx.Request) -> bytes:
        counting, asked = self._tools.count(request)
        if asked is None:
            return counting.answer(None)
        try:
            response = self._inner.handle_request(asked)
            try:
                told = response.read()
            finally:
                response.close()
        except package.HTTPError:
            return counting.answer(None)
        return counting.answer(told if response.status_code == 200 else None)

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()


class _SyncReply:
    """The body of a reply, made of as many attempts as it takes."""

    def __init__(self, tools: _Tools, inner: Any, exchange: Exchange, watch: Watch, request: httpx.Request) -> None:
        self._tools = tools
        self._watch = watch
        self._inner = inner
        self._exchange = exchange
        self._request = request
        self._ready = b""
        self._response: Any = None
        self._pieces: Iterator[bytes] | None = None
        self._closed = False

    def begin(self) -> None:
        """Until the status is known."""
        try:
            while self._exchange.head is None:
                self._ready += self._step()
        except Exception as error:
            self._watch.end(as_error(error))
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        ready, self._ready = self._ready, b""
        if ready:
            yield ready
        while not self._exchange.done:
            if data := self._step():
                yield data
        self.close()

    def _step(self) -> bytes:
        exchange = self._exchange
        try:
            if self._pieces is None:
                return self._open()
            data = next(self._pieces, None)
        except Exception as error:  # noqa: BLE001  whatever a transport raises
            out = self._tools.broken(exchange, error)
        else:
            out = exchange.close() if data is None else exchange.feed(data)
        if exchange.cut or exchange.retry:
            self._close_attempt()
        return out

    def _open(self) -> bytes:
        self._response = self._inner.handle_request(self._tools.attempt(self._exchange, self._request))
        self._pieces = iter(self._response.stream)
        return self._exchange.respond(self._response.status_code, self._response.headers.raw)

    def _close_attempt(self) -> None:
        response, self._response = self._response, None
        self._pieces = None
        if response is not None:
            response.close()

    def close(self) -> None:
        """Close the upstream's reply."""
        if not self._closed:
            self._closed = True
            self._close_attempt()
            self._watch.end()


def _package(request: httpx.Request) -> Any:
    """The package that the request comes from: `httpx` or `httpx2`."""
    for kind in type(request).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("httpx", "httpx2"):
            return sys.modules[name]
    raise TypeError(f"a request of httpx or httpx2 is needed, not {type(request).__name__}")


@cache
def _async_stream(base: type[Any]) -> type[_AsyncReply]:
    """The reply as a stream of the caller's package."""
    return type("AsyncReply", (_AsyncReply, base), {})


@cache
def _sync_stream(base: type[Any]) -> type[_SyncReply]:
    return type("SyncReply", (_SyncReply, base), {})


def _plain(headers: Headers) -> list[tuple[bytes, bytes]]:
    return list(headers)


def _counted(package: Any, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return cast(httpx.Response, package.Response(200, headers=headers, content=body))


def _refusal(package: Any, wire: ClientProtocol, error: StreamtoolError) -> httpx.Response:
    """The error as an answer in the protocol's own shape."""
    request_id = new_id("req_")
    headers = {"content-type": "application/json", wire.REQUEST_ID.decode(): request_id}
    body = wire.write_error(error, request_id)
    return cast(httpx.Response, package.Response(error.status, headers=headers, content=body))
