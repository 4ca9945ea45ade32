"""HTTP/1.1 to an upstream on asyncio, as a transport of httpx: `AsyncioNetwork`.

A model writes some fifty events a second, and each comes in a read of its own. Where httpcore wakes a task, starts a
timer and asks which library runs for each of them, this hands what the parser in C (`httptools`) has found to whoever
waits for it, as the result of the future that it waits for. It knows just what an upstream needs: no redirects, no
HTTP/2, no proxy on the way, no timer for a read.

Connections are kept for the next request. One that breaks before anything of an answer has come was closed by its
server, and the request is sent again on a new one (RFC 9112, section 9.3.1).
"""

import asyncio
import re
import socket
import ssl
from time import monotonic
from typing import Any, Final, Self

import httptools
import httpx
from aiohappyeyeballs import start_connection

_KEPT: Final = 100
"""Connections to one origin that are kept for the next request."""
_KEPT_SECONDS: Final = 5.0
"""For how long: many servers close one after this time."""
_DELAY: Final = 0.25
"""Seconds after which the next address of a name is tried as well (RFC 8305, section 8)."""
_HEADER: Final = 100 * 1024
"""Bytes that the header of an answer may have."""
_UNREAD: Final = 256 * 1024
"""Bytes of a body that wait at most before nothing more is read."""
_PORTS: Final = {"http": 80, "https": 443}
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ENDS_LINE: Final = re.compile(rb"[\0\r\n]")

_Origin = tuple[str, str, int]
"""Scheme, host and port."""


class AsyncioNetwork(httpx.AsyncBaseTransport):
    """Connections to any origin; `certificates` are those that are trusted."""

    def __init__(self, certificates: ssl.SSLContext) -> None:
        self._certificates = certificates
        self._idle: dict[_Origin, list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, its body still to come. Raises httpx.TransportError."""
        url = request.url
        origin = (url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        written = _written(request, b"".join([piece async for piece in request.stream]))  # type: ignore[union-attr]
        connection = self._reuse(origin)
        if connection is not None:
            try:
                return await connection.ask(request, written)
            except httpx.TransportError:
                if connection.heard:
                    raise
        connection = await self._connect(origin, request.extensions.get("timeout", {}).get("connect"))
        return await connection.ask(request, written)

    async def aclose(self) -> None:
        """Close all connections; they are closed when this returns, but for those of other event loops."""
        for connection in list(self._open):
            connection.close()
        loop = asyncio.get_running_loop()
        while any(connection.loop is loop for connection in self._open):  # noqa: ASYNC110  the loop does so soon
            await asyncio.sleep(0)

    def _reuse(self, origin: _Origin) -> "_Connection | None":
        """A connection that was kept, if one is left."""
        loop, now = asyncio.get_running_loop(), monotonic()
        kept = self._idle.get(origin, [])
        while kept:
            connection = kept.pop()
            if connection.loop is loop and now - connection.since < _KEPT_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: _Origin, seconds: float | None) -> "_Connection":
        """A new connection. Raises httpx.ConnectTimeout, httpx.ConnectError."""
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        connection = _Connection(self, origin, loop)
        tls: dict[str, Any] = {"ssl": self._certificates, "server_hostname": host} if scheme == "https" else {}
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(seconds):
                addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                sock = await start_connection(addresses, happy_eyeballs_delay=_DELAY)
                await loop.create_connection(lambda: connection, sock=sock, **tls)
        except BaseException as error:
            if sock is not None:
                sock.close()
            connection.close()
            if isinstance(error, TimeoutError):
                raise httpx.ConnectTimeout("no connection in time") from error
            if isinstance(error, OSError | RuntimeError):  # uvloop raises either
                raise httpx.ConnectError(str(error)) from error
            raise
        if connection.open:
            self._open.add(connection)
        return connection

    def keep(self, connection: "_Connection") -> None:
        """Its answer is complete, and it may serve the next request."""
        kept = self._idle.setdefault(connection.origin, [])
        if len(kept) < _KEPT:
            connection.since = monotonic()
            kept.append(connection)
        else:
            connection.close()

    def drop(self, connection: "_Connection", *, over: bool = False) -> None:
        """Use it no more; `over`: it is closed."""
        if over:
            self._open.discard(connection)
        kept = self._idle.get(connection.origin, [])
        if connection in kept:
            kept.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection: a request and its answer, again and again."""

    __slots__ = (
        "_begun", "_bodiless", "_ends", "_head", "_headers", "_lasts", "_network", "_parser", "_paused", "_size",
        "_status", "_transport", "error", "heard", "loop", "on_body", "origin", "pieces", "reader", "since", "whole",
    )  # fmt: skip

    def __init__(self, network: AsyncioNetwork, origin: _Origin, loop: asyncio.AbstractEventLoop) -> None:
        self._network = network
        self.origin = origin
        self.loop = loop
        self.since = 0.0
        """When it was kept."""
        self.pieces: list[bytes] = []
        """What has come of the body and was not read."""
        self.on_body = self.pieces.append
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None  # uvloop's are none of asyncio's
        self.error: httpx.TransportError | None = None
        """Why it has ended."""
        self._begin(bodiless=False)
        self.whole = True

    @property
    def open(self) -> bool:
        return self._transport is not None

    def _begin(self, *, bodiless: bool) -> None:
        """Nothing of the next answer has come yet."""
        self._bodiless = bodiless
        self.heard = False
        """Something of the answer has come."""
        self._begun = False
        """Its header is complete."""
        self._status = 0
        self.whole = False
        """So is its body."""
        self._ends = False
        """The body ends with the connection."""
        self._lasts = False
        """The connection can serve the next request."""
        self._head: asyncio.Future[None] | None = None
        """The header is there."""
        self.reader: asyncio.Future[bytes] | None = None
        """The next piece of the body that somebody asked for."""
        self._headers: list[tuple[bytes, bytes]] = []
        self.pieces.clear()
        self._size = 0
        """Bytes of the header so far, then of what waits."""
        self._paused = False

    async def ask(self, request: httpx.Request, written: bytes) -> httpx.Response:
        """Send a request; returns its answer when that begins. Raises httpx.TransportError."""
        if self.error is not None:
            raise self.error
        self._begin(bodiless=request.method == "HEAD")
        self._head = self.loop.create_future()
        self._transport.write(written)
        del written  # the body may take longer than anybody needs it
        try:
            await self._head
        except BaseException:
            self.close()
            raise
        return httpx.Response(self._status, headers=self._headers, stream=_Body(self))

    def release(self) -> None:
        """Nobody reads its answer any more."""
        if self._lasts and self.error is None:
            self.pieces.clear()
            self._network.keep(self)
        else:
            self.close()

    def close(self, error: httpx.TransportError | None = None) -> None:
        """End it, whatever is on its way."""
        if self.error is None:
            self.error = error or httpx.ReadError("the connection was closed")
        self._network.drop(self)
        if self._transport is None or self.loop.is_closed():
            return
        if self.loop is asyncio.get_running_loop():
            self._transport.abort()
        else:
            self.loop.call_soon_threadsafe(self._transport.abort)

    def deliver(self) -> None:
        """Whoever waits gets what has come, or learns how it ended."""
        head, reader = self._head, self.reader
        if head is not None and not head.done():
            if self._begun:
                head.set_result(None)
            elif self.error is not None:
                head.set_exception(self.error)
        if reader is None or reader.done():
            return
        if self.pieces:
            reader.set_result(self._taken())
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
        elif self.whole:
            reader.set_exception(StopAsyncIteration())
        elif self.error is not None:
            reader.set_exception(self.error)

    def _taken(self) -> bytes:
        """What has come of the body."""
        pieces = self.pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        return taken

    def _fail(self, error: Exception) -> None:
        """What has come is no HTTP, or more than one answer."""
        self.heard = True
        self._lasts = False
        if self.whole:
            self.deliver()
        else:
            where = "body" if self._begun else "header" if self._headers else "status line"
            self.close(httpx.RemoteProtocolError(f"illegal {where}: {error}"))

    # What the event loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.whole:  # and nothing more was asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(error)
            return
        reader = self.reader
        if reader is not None and len(self.pieces) == 1 and not reader.done():  # of a stream, which somebody awaits
            reader.set_result(self.pieces.pop())
            return
        self._size += len(data)
        if self._begun:
            self.deliver()
            if self._size > _UNREAD and not self._paused and not self.whole:
                self._paused = True
                self._transport.pause_reading()
        elif self._size > _HEADER:
            self.close(httpx.RemoteProtocolError("the header of the answer is too large"))

    def eof_received(self) -> None:
        """Nothing more will come; the connection closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._begun and self._ends and exc is None:
            self.whole = True
        if self.error is None:
            self.error = _lost(exc, begun=self._begun)
        self._network.drop(self, over=True)
        self.deliver()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.whole:
            raise ValueError("an answer that nobody asked for")
        self.heard = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._begun:  # else it is a trailer
            self._headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._begun = True
        self._size = 0
        self._ends = {b"content-length", b"transfer-encoding"}.isdisjoint(name.lower() for name, _ in self._headers)
        self.whole = self._bodiless

    def on_message_complete(self) -> None:
        if not self._begun:  # it was for information, and the answer follows
            self._headers = []
        elif not self.whole:
            self.whole = True
            self._lasts = self._parser.should_keep_alive()


class _Body(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, connection: _Connection) -> None:
        self._connection: _Connection | None = connection

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> asyncio.Future[bytes]:
        """The next that comes of the body, at least a byte. Its end is a StopAsyncIteration."""
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        reader = connection.reader = connection.loop.create_future()
        if connection.pieces or connection.whole or connection.error is not None:
            connection.deliver()
        return reader

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None


def _lost(cause: Exception | None, *, begun: bool) -> httpx.TransportError:
    """What the end of a connection means for whoever waits for more of an answer."""
    if cause is not None:
        error: httpx.TransportError = httpx.ReadError(str(cause))
        error.__cause__ = cause
        return error
    what = "complete message body" if begun else "any response"
    return httpx.RemoteProtocolError(f"the server closed the connection without {what}")


def _written(request: httpx.Request, body: bytes) -> bytes:
    """The request as it is sent. Raises httpx.LocalProtocolError."""
    method = request.method.encode("ascii", "replace")
    lines = [b"%b %b HTTP/1.1" % (method, request.url.raw_path)]
    fine = _TOKEN.fullmatch(method) is not None
    for name, value in request.headers.raw:
        fine = fine and _TOKEN.fullmatch(name) is not None and _ENDS_LINE.search(value) is None
        lines.append(b"%b: %b" % (name, value))
    if not fine:
        raise httpx.LocalProtocolError("the method or a header of the request contains what it must not")
    return b"\r\n".join((*lines, b"", body))
