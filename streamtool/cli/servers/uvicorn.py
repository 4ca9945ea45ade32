"""Server that runs the proxy with uvicorn, on asyncio."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from types import FrameType
from typing import Any, Final

import sniffio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from streamtool.cli.servers.connections import LINGER, PING, Connections, Phase, error_response, invalid_request
from streamtool.cli.servers.stopping import Service, stop, stop_delay
from streamtool.core.errors import StreamtoolError, UnavailableError
from streamtool.settings import LimitSettings

_STUCK: Final = 5.0
"""Seconds to wait after the grace period for tasks that do not finish even though their connections were aborted."""
_CLOSING: Final = 0.5
"""Minimum number of seconds that the proxy has to close its resources."""
_TICK: Final = 0.05
_PIPELINED: Final = 16
"""Maximum number of pipelined requests on a connection."""
_CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""The line before a chunk, by its size in bytes. Formatting it would take a third of the time of writing a delta."""


def serve(proxy: Service, sock: socket.socket) -> list[int]:
    """Serve until SIGINT or SIGTERM, and return the signals received.

    Raises StreamtoolError if the proxy does not start.
    """
    config = uvicorn.Config(
        proxy,
        log_config=None,  # uvicorn's messages go to our log
        log_level="warning",
        access_log=False,
        http=_UvicornConnection,
        ws=_Upgraded,
        ws_ping_interval=PING,
        ws_ping_timeout=PING,
        ws_max_size=proxy.settings.limits.body,
        ws_per_message_deflate=False,  # saves little for deltas, and a small message could expand to a huge one
        lifespan="on",
        timeout_keep_alive=proxy.settings.limits.keep_alive_seconds,  # type: ignore[arg-type]  # takes a float
    )
    server = _UvicornServer(config, proxy)
    sniffio.thread_local.name = "asyncio"  # saves anyio from looking for the current task each time
    try:
        server.run(sockets=[sock])
    except SystemExit:
        if server.started:
            raise
        raise StreamtoolError("the proxy did not start") from None  # the log contains the reason
    finally:
        sniffio.thread_local.name = None
    return server.caught


class _State(ServerState):
    """State shared by a server's connections."""

    def __init__(self, limits: LimitSettings) -> None:
        super().__init__()
        self.limits = limits
        self.counted = Connections(limits)


class _UvicornServer(uvicorn.Server):
    """A server that shuts down as described in `stopping` and enforces limits on its connections."""

    server_state: _State

    def __init__(self, config: uvicorn.Config, proxy: Service) -> None:
        super().__init__(config)
        self.server_state = _State(proxy.settings.limits)
        self._proxy = proxy
        self.caught: list[int] = []
        """Signals received."""
        self._stops_at = inf
        """Time when the server stops accepting connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  part of the base signature
        """Stop the server. The base class would also raise the signal again on exit."""
        self.caught.append(sig)
        self._stops_at = monotonic() + stop_delay(self._proxy, self.caught)

    async def on_tick(self, counter: int) -> bool:
        """Check the connections for timeouts, and apply reloaded settings. uvicorn calls this ten times per second."""
        self.config.ws_max_size = self._proxy.settings.limits.body
        self.should_exit = self.should_exit or monotonic() >= self._stops_at
        self.server_state.counted.expire_late(self.server_state.connections)  # type: ignore[arg-type]  # all are our classes
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down within the grace period."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._proxy.settings.grace + _STUCK) as limit:
                ending = asyncio.create_task(self._end(limit))
                await super().shutdown(sockets)
        ending.cancel()

    async def _end(self, limit: asyncio.Timeout) -> None:
        """End all requests, and limit the time for the remainder of the shutdown."""
        end = asyncio.get_running_loop().time() + self._proxy.settings.grace
        await stop(self._proxy, self.caught, self.server_state.connections, self._cut)
        while self.server_state.tasks:  # noqa: ASYNC110  uvicorn's set of connections cannot set an event
            await asyncio.sleep(_TICK)
        limit.reschedule(max(end, asyncio.get_running_loop().time() + _CLOSING))

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _UvicornConnection(HttpToolsProtocol):
    """A connection that limits the size and arrival time of request headers. uvicorn itself closes idle connections."""

    __slots__ = ("_address", "_running", "_size", "_unread", "phase", "since")  # cheaper than the base class's __dict__
    server_state: _State

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or reject it if too many are open."""
        super().connection_made(transport)
        self._address: str | None = None
        self._running: Any = None
        """Cycle of the request being served; `cycle` in the base class belongs to the request received last."""
        self._size = 0
        """Bytes of the header parsed so far."""
        self._unread = 0
        """Bytes received since the parser last made progress."""
        self._enter(Phase.HEADER)
        address = self.client[0] if self.client else ""
        try:
            self.server_state.counted.enter(address)
        except UnavailableError as error:
            self._enter(Phase.CLOSING)
            self.transport.write(error_response(error))
            self.transport.close()
        else:
            self._address = address

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._notify_disconnect()
        if self._running is not None:
            self._running.transport = self.transport  # instead of a `_Head`, which refers to the cycle
        if self._address is not None:
            self.server_state.counted.leave(self._address)
            self._address = None

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.CLOSING:
            return
        if self.phase is Phase.QUIET:
            self._enter(Phase.HEADER)
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.server_state.limits.header_bytes:
            self._reject(self.server_state.counted.too_large_error())

    def handle_websocket_upgrade(self) -> None:
        """Turn the connection into a websocket, which still counts as the same connection."""
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        assert isinstance(upgraded, _Upgraded)  # noqa: S101  set in the configuration
        upgraded.address, self._address = self._address, None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._size = 0
        if self.phase is not Phase.HEADER:
            self._enter(Phase.HEADER)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # otherwise, the connection becomes a websocket
            self.cycle.__class__ = _Response  # uvicorn has no hook for this class
            self.cycle.transport = _Head(self.cycle, self.loop)  # type: ignore[assignment]  # all that a cycle uses
        if not self.pipeline:
            self._running = self.cycle
        self._unread = 0
        self._enter(Phase.BODY)
        if len(self.pipeline) > _PIPELINED:
            raise StreamtoolError("too many pipelined requests on this connection")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unread = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._unread = 0
        self._enter(Phase.QUIET)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  part of the base signature
        """Reject the request, because it is invalid or because a callback raised an error."""
        counted, limits = self.server_state.counted, self.server_state.limits
        self._reject(counted.too_large_error() if self._size > limits.header_bytes else invalid_request())

    def expire(self) -> None:
        """Handle a timeout of the current phase."""
        match self.phase:
            case Phase.HEADER if self._serves:
                pass  # a pipelined request; its timeout applies once the current reply has been sent
            case Phase.HEADER if self._unread:
                self._reject(self.server_state.counted.timeout_error())
            case Phase.HEADER | Phase.BODY:
                self._enter(Phase.CLOSING)
                self.transport.close()
            case _:
                self.transport.abort()

    @property
    def _serves(self) -> bool:
        """Whether a reply is still being sent."""
        return self._running is not None and not self._running.response_complete

    def shutdown(self) -> None:
        self._send_header()
        super().shutdown()

    def _send_header(self) -> None:
        """Send the header of the response that has begun, if it is still waiting."""
        head = None if self._running is None else self._running.transport
        if isinstance(head, _Head):
            head.flush()

    def _notify_disconnect(self) -> None:
        """Notify the request being served, if any, that its client has disconnected."""
        if self._serves:
            self._running.disconnected = True
            self._running.message_event.set()
            if self._running.left is not None:
                self._running.left()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = monotonic()

    def _count_header(self, size: int) -> None:
        self._size += size
        if self._size > self.server_state.limits.header_bytes:
            raise self.server_state.counted.too_large_error()

    def _reject(self, error: StreamtoolError) -> None:
        """Send an error response unless a response has begun, and give the client a moment to read it."""
        if self.phase is Phase.CLOSING:
            return
        self._send_header()
        running = self._running
        told = running is not None and running.response_started and (self._serves or self.phase is Phase.BODY)
        self._enter(Phase.CLOSING)
        self._notify_disconnect()  # the application must not respond as well
        if told or self.transport.is_closing():
            self.transport.close()
        else:
            self.transport.write(error_response(error))
            if not self.transport.is_closing():  # the client may have disconnected
                self.transport.write_eof()


class _Response(RequestResponseCycle):
    """A request and its response, which need neither a coroutine for each piece nor a task that waits for the client's
    disconnect (see `asgi.pieces`).
    """

    left: Callable[[], object] | None = None
    """Called when the client disconnects before the response is complete."""

    def take_body(self) -> bytes | None:
        """Return the whole body if it has arrived, or None. `receive` then waits until the client disconnects."""
        if self.more_body or self.disconnected or self.response_complete or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()  # paused by a large body
        return body

    def on_disconnect(self, call: Callable[[], object] | None) -> None:
        """Set the function to call when the client disconnects, or remove it."""
        self.left = call
        if call is None:
            return
        if self.disconnected:
            call()
        else:
            self.flow.resume_reading()  # paused by a large body; a disconnect is noticed only while reading

    def write_now(self, piece: bytes) -> bool:
        """Write a piece of the body, or return False if `send` has to wait, or does more than writing it."""
        if (
            not (piece and self.chunked_encoding)
            or self.flow.write_paused
            or self.disconnected
            or self.response_complete
        ):
            return False
        try:
            head = _CHUNK_HEADS[len(piece)]
        except IndexError:
            head = b"%x\r\n" % len(piece)
        self.transport.write(b"".join((head, piece, b"\r\n")))
        return True


class _Head:
    """The transport of a response until its header has been sent.

    The header waits until the application has finished its step of the event loop. If it has also sent the first piece
    of the body by then, both are one write, which saves a system call and wakes the client once instead of twice.
    """

    __slots__ = ("_cycle", "_header", "_loop", "_transport")

    def __init__(self, cycle: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle = cycle
        self._loop = loop
        self._transport = cycle.transport
        self._header = b""

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # an interim response
            self._transport.write(data)
        elif not self._header:
            self._header = data
            self._loop.call_soon(self.flush)
        else:
            self._header += data
            self.flush()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    def flush(self) -> None:
        """Send what has been written, and leave the rest of the response to the transport itself."""
        if self._header:
            written, self._header = self._header, b""
            self._cycle.transport = self._transport
            if not self._transport.is_closing():
                self._transport.write(written)


class _Upgraded(WebSocketsSansIOProtocol):
    """A websocket connection. uvicorn's pings detect lost clients; during shutdown, the proxy closes the connection."""

    phase = Phase.QUIET
    since = 0.0

    def __init__(self, config: uvicorn.Config, server_state: _State, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._counted = server_state.counted
        self.address: str | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.address is not None:
            self._counted.leave(self.address)
            self.address = None

    def data_received(self, data: bytes) -> None:
        if self.conn.parser_exc is None:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        """Send a close frame for invalid input, and give the client a moment to read it."""
        assert self.conn.close_sent is not None  # noqa: S101  set along with the exception
        self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_sent.code})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(LINGER, self.transport.close)
        self.transport.resume_reading()  # unread input would turn the close into a reset

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # otherwise uvicorn logs an error after every rejected handshake

    def shutdown(self) -> None:
        """Do nothing: the proxy closes its websockets after the last reply."""

    def expire(self) -> None:
        """Do nothing: uvicorn's own pings detect lost clients."""
