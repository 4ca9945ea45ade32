"""HTTP/1.1 client connections on asyncio: `AsyncioNetwork`, which is also an httpx transport.

A model emits about fifty events a second, and each arrives in a separate read. For each read, httpcore wakes a task,
starts a timer and detects the running async library. This transport instead gives the output of the C parser
(`httptools`) to the reader's callback, within the call that reads from the socket (`ResponseBody.pass_to`). It
implements only the features that upstreams require: no redirects, no HTTP/2, no proxies, no read timeouts.

Idle connections are reused. If a reused connection breaks before any byte of the response has arrived, the server had
already closed it, and the request is sent again on a new connection (RFC 9112, section 9.3.1).
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Coroutine
from math import inf
from time import monotonic
from typing import Any, Final, Self, cast

import httptools
import httpx
from aiohappyeyeballs import start_connection

from streamtool.asgi.pieces import TakePiece
from streamtool.upstream.http_messages import HeaderTimeout, HttpOrigin, HttpRequest, HttpResponse, RequestUrl

_MAX_IDLE: Final = 100
"""Maximum number of idle connections per origin."""
_MAX_IDLE_SECONDS: Final = 5.0
"""Maximum idle time of a connection; many servers close an idle connection after this time."""
_HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds before the next address of a host is tried in parallel (RFC 8305, section 8)."""
_MAX_HEADER: Final = 100 * 1024
"""Maximum size of a response header, in bytes."""
_MAX_UNREAD: Final = 256 * 1024
"""Number of unread body bytes above which reading from the socket is paused."""
_TICKS: Final = 8
"""Number of checks for silence within a time limit (before the first piece, within the shorter of the two limits)."""
_LONGEST_TICK: Final = 3600.0
"""Maximum number of seconds between two checks for silence."""
# RFC 9110, sections 5.1 and 5.6.2:
#
#     field-name = token
#     token      = 1*tchar
#     tchar      = "!" / "#" / "$" / "%" / "&" / "'" / "*" / "+" / "-" / "." / "^" / "_" / "`" / "|" / "~"
#                / DIGIT / ALPHA
#
# A method is a token as well (RFC 9110, section 9.1). The pattern is exactly this grammar.
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# RFC 9110, section 5.5:
#
#     field-value   = *field-content
#     field-content = field-vchar [ 1*( SP / HTAB / field-vchar ) field-vchar ]
#     field-vchar   = VCHAR / obs-text
#
# Laxer than the grammar: only the characters that could end the line are rejected. No other control character can turn
# a client's header into a second header, so the upstream decides whether to accept it.
_ENDS_LINE: Final = re.compile(rb"[\0\r\n]")


class AsyncioNetwork(httpx.AsyncBaseTransport):
    """Connections to any origin. `certificates` contains the trusted certificates."""

    def __init__(self, certificates: ssl.SSLContext) -> None:
        self._certificates = certificates
        self._idle: dict[HttpOrigin, list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of httpx and return its response, with the body unread. Raises httpx.TransportError."""
        # The body is read once, up front, so that the request can be sent twice. It is in memory in any case.
        body = b"".join([piece async for piece in request.stream])  # type: ignore[union-attr]
        plain = HttpRequest(request.method, RequestUrl(request.url), request.headers.raw, body)
        response = await self.send(plain, connect=request.extensions.get("timeout", {}).get("connect"))
        return httpx.Response(response.status, headers=response.headers, stream=cast(ResponseBody, response.body))

    async def send(
        self, request: HttpRequest, *, connect: float | None = None, first_byte: float | None = None
    ) -> HttpResponse:
        """Send the request and return its response, with the body unread. A new connection has to open within `connect`
        seconds, and the header of the response has to arrive within `first_byte` seconds. Raises httpx.TransportError;
        it is httpx.ConnectTimeout or HeaderTimeout if a limit is exceeded.
        """
        written = _serialise(request)
        loop = asyncio.get_running_loop()
        end = None if first_byte is None else loop.time() + first_byte
        origin = request.url.origin
        connection = self._reuse(origin)
        if connection is not None:
            try:
                # RFC 9110, section 9.2.2, allows a client to repeat a POST only if it knows that doing so is harmless.
                # In this case, it is: at worst, the upstream generates one reply that is never read. Once any byte of a
                # response has arrived, the server is known to have handled the request, so the error is raised.
                return await connection.send(request.method, written, end)
            except HeaderTimeout:
                raise
            except httpx.TransportError:
                if connection.received:
                    raise
        connection = await self._connect(origin, connect, end)
        return await connection.send(request.method, written, end)

    async def aclose(self) -> None:
        """Close all connections. Returns once they are closed, except those that belong to other event loops."""
        for connection in list(self._open):
            connection.close()
        loop = asyncio.get_running_loop()
        while any(connection.loop is loop for connection in self._open):  # noqa: ASYNC110  takes a few iterations
            await asyncio.sleep(0)

    def _reuse(self, origin: HttpOrigin) -> "_Connection | None":
        """Return a usable idle connection, or None."""
        loop, now = asyncio.get_running_loop(), monotonic()
        kept = self._idle.get(origin, [])
        # Reuse the newest: the server is least likely to have closed it, and `release` closes the others in time.
        while kept:
            connection = kept.pop()
            if connection.loop is loop and now - connection.idle_since < _MAX_IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: HttpOrigin, seconds: float | None, end: float | None) -> "_Connection":
        """Open a connection within this many seconds and before the time `end`. Raises httpx.ConnectTimeout,
        HeaderTimeout or httpx.ConnectError.
        """
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        left = inf if end is None else max(0.0, end - loop.time())
        exceeded: type[httpx.TimeoutException] = httpx.ConnectTimeout
        if left < (inf if seconds is None else seconds):
            seconds, exceeded = left, HeaderTimeout
        connection = _Connection(self, origin, loop)
        tls: dict[str, Any] = {"ssl": self._certificates, "server_hostname": host} if scheme == "https" else {}
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(seconds):
                addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                sock = await start_connection(addresses, happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY)
                await loop.create_connection(lambda: connection, sock=sock, **tls)
        except BaseException as error:
            if sock is not None:
                sock.close()
            connection.close()
            if isinstance(error, TimeoutError):
                raise exceeded("the connection timed out") from error
            if isinstance(error, OSError | RuntimeError):  # uvloop raises either
                raise httpx.ConnectError(str(error)) from error
            raise
        # The server may have closed the connection before this point. `send` then raises the reason. A closed
        # connection would stay in the set of open ones forever, because `drop` has already run.
        if connection.open:
            self._open.add(connection)
        return connection

    def release(self, connection: "_Connection") -> None:
        """Keep a connection whose response is complete, so that the next request can use it."""
        kept = self._idle.setdefault(connection.origin, [])
        now = connection.idle_since = monotonic()
        while kept and now - kept[0].idle_since >= _MAX_IDLE_SECONDS:
            kept[0].close()  # which removes it
        if len(kept) < _MAX_IDLE:
            kept.append(connection)
        else:
            connection.close()

    def drop(self, connection: "_Connection", *, closed: bool = False) -> None:
        """Stop reusing a connection. `closed` means that it has been closed."""
        if closed:
            self._open.discard(connection)
        kept = self._idle.get(connection.origin, [])
        if connection in kept:
            kept.remove(connection)


class _Connection(asyncio.Protocol):
    """An HTTP/1.1 connection that handles requests one after another."""

    __slots__ = (
        "_bodiless",
        "_changed",
        "_ends_at_close",
        "_header_complete",
        "_headers",
        "_network",
        "_parser",
        "_paused",
        "_reusable",
        "_size",
        "_status",
        "_transport",
        "blocked",
        "complete",
        "error",
        "heard",
        "idle_since",
        "loop",
        "on_body",
        "origin",
        "pieces",
        "received",
        "take",
    )

    def __init__(self, network: AsyncioNetwork, origin: HttpOrigin, loop: asyncio.AbstractEventLoop) -> None:
        self._network = network
        self.origin = origin
        self.loop = loop
        self.idle_since = 0.0
        """Time when the connection became idle."""
        self.pieces: list[bytes] = []
        """Body pieces that have arrived and are unread. The attribute is never rebound, because the parser appends to
        this list.
        """
        # The parser looks up `on_body` when it is created. Using `list.append` for it saves a Python frame for each
        # piece.
        self.on_body = self.pieces.append
        # llhttp's default strictness applies to all that is received (RFC 9112, sections 4, 5 and 7.1):
        #
        #     status-line  = HTTP-version SP status-code SP [ reason-phrase ]
        #     field-line   = field-name ":" OWS field-value OWS
        #     chunked-body = *chunk last-chunk trailer-section CRLF
        #     chunk        = chunk-size [ chunk-ext ] CRLF chunk-data CRLF
        #     chunk-size   = 1*HEXDIG
        #     last-chunk   = 1*("0") [ chunk-ext ] CRLF
        #     chunk-ext    = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )
        #
        # Stricter than the RFC: a bare LF, obs-fold, whitespace around a chunk size, a repeated Content-Length, and
        # Content-Length together with Transfer-Encoding are errors. A recipient may (for BWS and obs-fold even must)
        # accept them, but they make it ambiguous where a message ends, which is how response smuggling works, and no
        # model server sends them. Laxer: empty lines before the status line are skipped, and the SP after the status
        # code may be missing, as it is from servers that send no reason phrase. Chunk extensions are ignored, and a
        # chunk size has at most 64 bits.
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None  # uvloop's transports do not derive from asyncio's
        self.error: httpx.TransportError | None = None
        """The error that closed the connection."""
        self._begin(bodiless=False)
        # No request is pending yet, so anything that arrives now is unsolicited (see `data_received`).
        self.complete = True

    @property
    def open(self) -> bool:
        return self._transport is not None

    def _begin(self, *, bodiless: bool) -> None:
        """Reset the state for the next response."""
        self._bodiless = bodiless
        self.received = False
        """Whether a byte of the response has arrived."""
        self._header_complete = False
        """Whether the header is complete."""
        self._status = 0
        self.complete = False
        """Whether the body is complete."""
        self._ends_at_close = False
        """Whether the body ends when the connection closes."""
        self._reusable = False
        """Whether the connection can handle another request."""
        self._changed: asyncio.Future[None] | None = None
        """Resolved when there is something to do for the task that waits for the response."""
        self.take: TakePiece | None = None
        """The function that takes the pieces as they arrive, while the task waits for the body."""
        self.heard = False
        """Whether a piece has arrived since the last check of the time limit."""
        self.blocked: Coroutine[Any, Any, None] | None = None
        """A coroutine that `take` has returned, which the task has to await before the next piece is taken."""
        self._headers: list[tuple[bytes, bytes]] = []
        self.pieces.clear()
        self._size = 0
        """Number of header bytes so far, then of unread body bytes."""
        self._paused = False

    async def send(self, method: str, written: bytes, end: float | None) -> HttpResponse:
        """Send a request and return its response once the header has arrived, which has to be before the time `end`.
        Raises httpx.TransportError.
        """
        if self.error is not None:
            raise self.failure()
        self._begin(bodiless=method == "HEAD")
        self._transport.write(written)
        del written  # a stream may stay open for long, and the body is not needed any more
        timer = None if end is None else self.loop.call_at(end, self._end_wait)
        try:
            await self._receive_header()
        # Even on cancellation: the response may still arrive, and would be taken for the next request's response.
        except BaseException:
            self.close()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return HttpResponse(self._status, self._headers, ResponseBody(self))

    def failure(self) -> httpx.TransportError:
        """Return a copy of the error that closed the connection. The traceback of a raised error refers to the frames
        of its request, and the connection would keep them, with the body, until the next garbage collection.
        """
        assert self.error is not None  # noqa: S101  the callers check it
        copy = type(self.error)(str(self.error))
        copy.__cause__ = self.error.__cause__
        return copy

    def _end_wait(self) -> None:
        """Close the connection unless the header has arrived, and the task has not run since."""
        if not self._header_complete:
            self.close(HeaderTimeout("no header arrived in time"))

    async def _receive_header(self) -> None:
        while not self._header_complete:
            if self.error is not None:
                raise self.failure()
            await self.change()

    def change(self) -> asyncio.Future[None]:
        """Return a future for the next change: a complete header, the end of the body, an error, or an arrival that
        `take` has not taken.
        """
        changed = self._changed = self.loop.create_future()
        return changed

    def release(self) -> None:
        """Return the connection to the pool, or close it if it cannot be reused. Its response will not be read any
        further.
        """
        if self.blocked is not None:
            self.blocked.close()
            self.blocked = None
        if self._reusable and self.error is None:
            self.pieces.clear()
            self._network.release(self)
        else:
            self.close()

    def close(self, error: httpx.TransportError | None = None) -> None:
        """Close the connection, even in the middle of a response."""
        if self.error is None:
            self.error = error or httpx.ReadError("the connection was closed")
        self._network.drop(self)
        if self._transport is None or self.loop.is_closed():
            return
        # Transports are not thread-safe, and `aclose` may run in an event loop other than the connection's.
        if self.loop is asyncio.get_running_loop():
            self._transport.abort()
        else:
            self.loop.call_soon_threadsafe(self._transport.abort)

    def take_pieces(self) -> bytes:
        """Remove and return the unread part of the body, which must not be empty."""
        pieces = self.pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:  # the connection may have been lost meanwhile
                self._transport.resume_reading()
        return taken

    def _wake(self) -> None:
        """Wake the task that waits for a change."""
        self.take = None
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _fail(self, error: Exception) -> None:
        """Handle input that is not valid HTTP, or that follows the response."""
        # The server has answered, even if not in HTTP: sending the request again would not help.
        self.received = True
        self._reusable = False
        # Bytes after a complete response do not invalidate it (`on_message_begin` raises for them), but where the next
        # response would begin is unknown, so the connection is not reused.
        if self.complete:
            self._wake()
        else:
            where = "body" if self._header_complete else "header" if self._headers else "status line"
            self.close(httpx.RemoteProtocolError(f"illegal {where}: {error}"))

    # Called by the event loop.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        # RFC 9112, section 9.2: unsolicited data must not be taken for the response to a later request.
        if self.complete:  # and no request is pending
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(error)
            return
        take, pieces, changed = self.take, self.pieces, self._changed
        # The usual case in a stream; `take` leaves no data unread that would have to be counted. A task that has been
        # cancelled, but has not run since, would not await the coroutine.
        if take is not None and changed is not None and not changed.done():
            if pieces:
                self.heard = True
                try:
                    self.blocked = take(pieces.pop() if len(pieces) == 1 else self.take_pieces())
                except Exception as error:  # noqa: BLE001  the task raises it
                    self.blocked = _raise(error)
            if self.blocked is not None or self.complete:
                self._wake()
            return
        self._size += len(data)
        if self._header_complete:
            self._wake()
            if self._size > _MAX_UNREAD and not self._paused and not self.complete:
                self._paused = True
                self._transport.pause_reading()
        elif self._size > _MAX_HEADER:
            self.close(httpx.RemoteProtocolError("the response header is too large"))

    def eof_received(self) -> None:
        """Let the transport close the connection, because the server will send nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # RFC 9112, section 8: a body without a declared length is complete when the connection closes, unless the
        # connection reports an error, such as a TLS session cut short.
        if self._header_complete and self._ends_at_close and exc is None:
            self.complete = True
        if self.error is None:
            self.error = _loss_error(exc, begun=self._header_complete)
        self._network.drop(self, closed=True)
        self._wake()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("unsolicited response")
        self.received = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser strips only the leading OWS of a field value. Trailers are dropped: according to RFC
        # 9112, section 7.1.2, they must not be merged into the header unless the field allows it.
        if not self._header_complete:  # anything later is a trailer
            self._headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        # Interim responses (1xx) precede the final one. A 101 also returns here, and the parser then raises
        # HttpParserUpgrade, because we never request an upgrade.
        if self._status < 200:
            return
        self._header_complete = True
        self._size = 0
        # RFC 9112, section 6.3. Stricter than its rule 4: a body with any Transfer-Encoding is complete only after its
        # last chunk. In the RFC, closing the connection completes the body if chunked is not the final coding. But we
        # send no TE field, so no other coding may be used, and a truncated stream would pass for a complete one.
        self._ends_at_close = {b"content-length", b"transfer-encoding"}.isdisjoint(
            name.lower() for name, _ in self._headers
        )
        # The parser does not know that a HEAD request was sent, and would wait for the declared body. As `_reusable`
        # stays False, the connection is closed and not reused.
        self.complete = self._bodiless

    def on_message_complete(self) -> None:
        if not self._header_complete:  # an interim response; the final one follows
            self._headers = []
        elif not self.complete:
            self.complete = True
            self._reusable = self._parser.should_keep_alive()


class ResponseBody(httpx.AsyncByteStream):
    """The body of a response (`http_messages.ResponsePieces`)."""

    def __init__(self, connection: _Connection) -> None:
        self._connection: _Connection | None = connection
        self.begun = False
        """Whether a piece had arrived when the time limit was last checked."""
        self._timer: asyncio.TimerHandle | None = None

    async def pass_to(self, take: TakePiece, *, first: float, idle: float) -> None:
        """Pass each piece to `take` as it arrives, until the end of the body. Pieces are never empty.

        `take` is usually called outside this task, directly from the event loop. If it returns a coroutine, the task
        awaits it before the next piece. The first piece has to arrive within `first` seconds, and each of the others
        within `idle` seconds. Raises httpx.ReadTimeout, another httpx.TransportError, or an error that `take` raises.
        """
        connection = self._connection
        if connection is None:
            return
        self._watch(connection, first, idle)
        try:
            # Pieces first, then the end, then the error: a connection that breaks after a complete body has not failed,
            # and if it breaks within the body, the pieces before that are still passed on.
            while True:
                if connection.blocked is not None:
                    blocked, connection.blocked = connection.blocked, None
                    await blocked
                elif connection.pieces:
                    connection.heard = True
                    connection.blocked = take(connection.take_pieces())
                elif connection.complete:
                    break
                elif connection.error is not None:
                    raise connection.failure()
                else:
                    connection.take = take
                    await connection.change()
        finally:
            connection.take = None
            if self._timer is not None:
                self._timer.cancel()

    def _watch(self, connection: _Connection, first: float, idle: float, silent: float = 0.0) -> None:
        """Close the connection if it is silent for too long."""
        # The limit is divided into ticks, in which each piece sets a flag, because a timer for each piece would cost
        # more than passing it on. An exceeded limit is noticed up to one tick late.
        self.begun = self.begun or connection.heard
        limit = idle if self.begun else first
        # While the task waits for something else, such as a slow client, the upstream is not silent.
        if connection.heard or connection.take is None:
            silent = 0.0
        connection.heard = False
        tick = min(limit / _TICKS, idle / _TICKS, _LONGEST_TICK)
        if silent >= limit - tick / 2:  # the sum has a rounding error
            connection.close(httpx.ReadTimeout(f"nothing arrived for {limit:g} seconds"))
            return
        self._timer = connection.loop.call_later(tick, self._watch, connection, first, idle, silent + tick)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece of the body, which is never empty."""
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        while not connection.pieces:
            if connection.complete:
                raise StopAsyncIteration
            if connection.error is not None:
                raise connection.failure()
            await connection.change()
        return connection.take_pieces()

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None


async def _raise(error: Exception) -> None:
    raise error


def _loss_error(cause: Exception | None, *, begun: bool) -> httpx.TransportError:
    """Return the error for a reader whose connection closed before the response was complete. `begun` means that the
    response header has arrived.
    """
    if cause is not None:
        error: httpx.TransportError = httpx.ReadError(str(cause))
        error.__cause__ = cause
        return error
    what = "complete message body" if begun else "any response"
    return httpx.RemoteProtocolError(f"the server closed the connection without {what}")


def _serialise(request: HttpRequest) -> bytes:
    """Return the request as bytes. Raises httpx.LocalProtocolError."""
    # RFC 9112, section 3: `request-line = method SP request-target SP HTTP-version`. A non-ASCII character becomes `?`,
    # which is not a tchar, so such a method is rejected below. The target is already percent-encoded.
    method = request.method.encode("ascii", "replace")
    lines = [b"%b %b HTTP/1.1" % (method, request.url.path)]
    fine = _TOKEN.fullmatch(method) is not None
    for name, value in request.headers:
        fine = fine and _TOKEN.fullmatch(name) is not None and _ENDS_LINE.search(value) is None
        lines.append(b"%b: %b" % (name, value))
    if not fine:
        raise httpx.LocalProtocolError("the method or a header of the request contains an illegal character")
    return b"\r\n".join((*lines, b"", request.body))
