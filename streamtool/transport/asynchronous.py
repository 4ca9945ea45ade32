"""The transport for asynchronous clients, and the body of its streamed replies."""

from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any, Self, cast

import httpx

from streamtool.core.errors import StreamtoolError
from streamtool.exchange.exchange import Exchange
from streamtool.observe.observers import OnExchange, Watch, as_error
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.table import COUNTS
from streamtool.settings import Settings
from streamtool.store.storing import close_store_async, use_async
from streamtool.transport.closing import close_async, drain_async, linger_async
from streamtool.transport.core import TransportCore, count_response, error_response, package_of
from streamtool.upstream.resending import send_async


class ToolTransport(httpx.AsyncBaseTransport):
    """A transport that adds tool calling to an upstream, for asynchronous httpx and httpx2 clients. It sends requests
    through the inner `transport`; if that is None, over the network.
    """

    def __init__(
        self,
        transport: Any = None,  # an httpx or httpx2 transport
        *,
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        **options: Any,
    ) -> None:
        self._inner = transport
        self._core = TransportCore(settings, on_exchange, options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request. Called by the HTTP client."""
        package = package_of(request)
        if self._inner is None:
            self._inner = package.AsyncHTTPTransport()
        name = self._core.protocol_name(request)
        if name is None:
            return cast(httpx.Response, await self._inner.handle_async_request(request))
        protocol = client_protocol(name, self._core.target(request))
        await request.aread()
        try:
            if name in COUNTS:
                return count_response(package, await self._count(package, protocol, request))
            exchange = await use_async(self._core.store, partial(self._core.exchange, protocol, request))
            watch = self._core.watch(exchange, protocol, request)
            if exchange.passthrough:
                request = self._core.passed_request(exchange, request)
                with watch.passing():
                    return cast(httpx.Response, await send_async(self._inner, request, package))
            reply = _stream_class(package.AsyncByteStream)(self._core, self._inner, exchange, watch, request)
            await reply.begin()
        except StreamtoolError as error:
            return error_response(package, protocol, error)
        head = exchange.head
        assert head is not None  # noqa: S101  `begin` has set it
        return cast(httpx.Response, package.Response(head.status, headers=list(head.headers), stream=reply))

    async def _count(self, package: Any, protocol: ClientProtocol, request: httpx.Request) -> bytes:
        counting, asked = self._core.count(protocol, request)
        if asked is None:
            return counting.answer(None)
        try:
            response = await send_async(self._inner, asked, package)
            try:
                told = await response.aread()
            finally:
                await response.aclose()
        except package.HTTPError:
            return counting.answer(None)
        return counting.answer(told if response.status_code == 200 else None)

    async def aclose(self) -> None:
        """Close the inner transport, and write the store's pending data."""
        try:
            if self._inner is not None:
                await self._inner.aclose()
        finally:
            await close_store_async(self._core.store)


class AsyncReply:
    """The body of a reply, produced by one or more attempts."""

    def __init__(
        self, core: TransportCore, inner: Any, exchange: Exchange, watch: Watch, request: httpx.Request
    ) -> None:
        self._core = core
        self._watch = watch
        self._inner = inner
        self._exchange = exchange
        self._request = request
        self._ready = b""
        self._response: Any = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._closed = False

    async def begin(self) -> None:
        """Read until the response status is known."""
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
        """Return the next piece for the client. This is a method rather than part of a generator, because an abandoned
        generator is not closed in time.
        """
        data, self._ready = self._ready, b""
        exchange = self._exchange
        while not (data or exchange.done or self._closed):
            data = await self._step()
        if data:
            return data
        if not (exchange.cut or self._closed):
            await drain_async(self._pieces)
        await self.aclose()
        raise StopAsyncIteration

    async def _step(self) -> bytes:
        """Process one more piece of the upstream's reply and return the output for the client."""
        exchange = self._exchange
        try:
            if self._pieces is None:
                return await self._open()
            if exchange.lingers:
                return await linger_async(exchange, self._pieces)
            data = await anext(self._pieces, None)
        except Exception as error:  # noqa: BLE001  transports may raise anything
            out = self._core.handle_failure(exchange, error)
        else:
            out = exchange.close() if data is None else exchange.feed(bytes(data))
        if exchange.done:
            exchange.remember()
        if exchange.cut or exchange.retry:
            await self._close_attempt()
        return out

    async def _open(self) -> bytes:
        core = self._core
        request = await use_async(core.store, partial(core.attempt, self._exchange, self._request))
        self._response = await send_async(self._inner, request, package_of(request))
        self._pieces = aiter(self._response.stream)
        return self._exchange.respond(self._response.status_code, self._response.headers.raw)

    async def _close_attempt(self) -> None:
        response, self._response = self._response, None
        pieces, self._pieces = self._pieces, None
        await close_async(pieces, response)

    async def aclose(self) -> None:
        """Close the upstream's response."""
        if not self._closed:
            self._closed = True
            await self._close_attempt()
            self._watch.end()


@cache
def _stream_class(base: type[Any]) -> type[AsyncReply]:
    """Return the reply class as a subclass of the stream class from the caller's package."""
    return type("AsyncReply", (AsyncReply, base), {})
