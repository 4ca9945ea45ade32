"""The transport for asynchronous clients, and the body of a reply that it streams."""

from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any, Self, cast

import httpx

from streamtool.errors import StreamtoolError
from streamtool.exchange import Exchange
from streamtool.http.resending import send_async
from streamtool.http.storing import close_store_async, use_async
from streamtool.http.transport.closing import close_async, drain_async, linger_async
from streamtool.http.transport.core import TransportCore, counted, error_response, package_of
from streamtool.observe.observers import OnExchange, Watch, as_error
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import COUNTS, client_protocol
from streamtool.settings import Settings


class ToolTransport(httpx.AsyncBaseTransport):
    """Gives tools to what is behind `transport` (None: the network); for asynchronous clients of httpx and httpx2."""

    def __init__(
        self,
        transport: Any = None,  # a transport of httpx or httpx2
        *,
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        **options: Any,
    ) -> None:
        self._inner = transport
        self._core = TransportCore(settings, on_exchange, options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; what the client calls."""
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
                return counted(package, await self._count(package, protocol, request))
            exchange = await use_async(self._core.store, partial(self._core.exchange, protocol, request))
            watch = self._core.watch(exchange, protocol, request)
            if exchange.passthrough:
                request = self._core.untouched(exchange, request)
                with watch.passing():
                    return cast(httpx.Response, await send_async(self._inner, request, package))
            reply = _stream_class(package.AsyncByteStream)(self._core, self._inner, exchange, watch, request)
            await reply.begin()
        except StreamtoolError as error:
            return error_response(package, protocol, error)
        head = exchange.head
        assert head is not None  # noqa: S101  begin() ends no sooner
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
        """Close the inner transport, and write what the store has not written yet."""
        try:
            if self._inner is not None:
                await self._inner.aclose()
        finally:
            await close_store_async(self._core.store)


class AsyncReply:
    """The body of a reply, made of as many attempts as it takes."""

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
        while not (data or exchange.done or self._closed):
            data = await self._step()
        if data:
            return data
        if not (exchange.cut or self._closed):
            await drain_async(self._pieces)
        await self.aclose()
        raise StopAsyncIteration

    async def _step(self) -> bytes:
        """One more piece of the upstream's reply; what the client is to receive for it."""
        exchange = self._exchange
        try:
            if self._pieces is None:
                return await self._open()
            if exchange.lingers:
                return await linger_async(exchange, self._pieces)
            data = await anext(self._pieces, None)
        except Exception as error:  # noqa: BLE001  whatever a transport raises
            out = self._core.broken(exchange, error)
        else:
            out = exchange.close() if data is None else exchange.feed(data)
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
        """Close the upstream's reply."""
        if not self._closed:
            self._closed = True
            await self._close_attempt()
            self._watch.end()


@cache
def _stream_class(base: type[Any]) -> type[AsyncReply]:
    """The reply as a stream of the caller's package."""
    return type("AsyncReply", (AsyncReply, base), {})
