"""The proxy under uvicorn, on asyncio."""

import asyncio
import socket
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from streamtool.cli.servers.connections import LINGER, PING, Connections, Phase, answer, not_http
from streamtool.cli.servers.stopping import Service, stop
from streamtool.errors import StreamtoolError, UnavailableError
from streamtool.settings import LimitSettings

_STUCK: Final = 5.0
"""Seconds beyond the grace time for tasks that do not end although their connections are cut."""
_CLOSING: Final = 0.5
"""Seconds, at least, in which the proxy may close what it has opened."""
_TICK: Final = 0.05
_PIPELINED: Final = 16
"""Requests that may wait on one connection for the reply to another one."""


def serve(proxy: Service, sock: socket.socket) -> list[int]:
    """Serve until SIGINT or SIGTERM. Returns the signals that came.

    Raises StreamtoolError if the proxy does not start.
    """
    config = uvicorn.Config(
        proxy,
        log_config=None,  # what it has to say goes where our log goes
        log_level="warning",
        access_log=False,
        http=_Connection,
        ws=_Upgraded,
        ws_ping_interval=PING,
        ws_ping_timeout=PING,
        ws_max_size=proxy.settings.limits.body,
        ws_per_message_deflate=False,  # a delta would become no shorter, and a small message may unpack to a huge one
        lifespan="on",
        timeout_keep_alive=proxy.settings.limits.keep_alive_seconds,  # type: ignore[arg-type]  # the loop takes a float
    )
    server = _Server(config, proxy)
    try:
        server.run(sockets=[sock])
    except SystemExit:
        if server.started:
            raise
        raise StreamtoolError("the proxy did not start") from None  # why stands in the log
    return server.caught


class _State(ServerState):
    """What the connections of a server share."""

    def __init__(self, limits: LimitSettings) -> None:
        super().__init__()
        self.limits = limits
        self.counted = Connections(limits)


class _Server(uvicorn.Server):
    """A server that stops as `stopping` says, and looks after its connections."""

    server_state: _State

    def __init__(self, config: uvicorn.Config, proxy: Service) -> None:
        super().__init__(config)
        self.server_state = _State(proxy.settings.limits)
        self._proxy = proxy
        self.caught: list[int] = []
        """The signals that came."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  the base class hands it over
        """Stop. The base class would raise the signal again at the end."""
        self.caught.append(sig)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        self.server_state.counted.look(self.server_state.connections)  # type: ignore[arg-type]  # all are ours
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop within the grace time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._proxy.settings.grace + _STUCK) as limit:
                ending = asyncio.create_task(self._end(limit))
                await super().shutdown(sockets)
        ending.cancel()

    async def _end(self, limit: asyncio.Timeout) -> None:
        """End all requests, and bound what is left to do behind them."""
        end = asyncio.get_running_loop().time() + self._proxy.settings.grace
        await stop(self._proxy, self.caught, self.server_state.connections, self._cut)
        while self.server_state.tasks:  # noqa: ASYNC110  uvicorn's set cannot set an event
            await asyncio.sleep(_TICK)
        limit.reschedule(max(end, asyncio.get_running_loop().time() + _CLOSING))

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Connection(HttpToolsProtocol):
    """A connection whose header is bounded in bytes and in time. uvicorn itself closes it when it is idle."""

    __slots__ = ("_address", "_running", "_size", "_unread", "phase", "since")  # cheaper than in the base's dictionary
    server_state: _State

    def connection_made(self, transport: Any) -> None:
        """Refuse it if there are too many."""
        super().connection_made(transport)
        self._address: str | None = None
        self._running: Any = None
        """The request that is served; the base class knows the one that came last."""
        self._size = 0
        """Bytes of the header so far, as far as it is read."""
        self._unread = 0
        """Bytes that came since something was read."""
        self._enters(Phase.HEADER)
        address = self.client[0] if self.client else ""
        try:
            self.server_state.counted.enter(address)
        except UnavailableError as error:
            self._enters(Phase.CLOSING)
            self.transport.write(answer(error))
            self.transport.close()
        else:
            self._address = address

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leaves()
        if self._address is not None:
            self.server_state.counted.leave(self._address)
            self._address = None

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.CLOSING:
            return
        if self.phase is Phase.QUIET:
            self._enters(Phase.HEADER)
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.server_state.limits.header_bytes:
            self._refuse(self.server_state.counted.too_large())

    def handle_websocket_upgrade(self) -> None:
        """From here on it is a websocket, which counts as this connection did."""
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        assert isinstance(upgraded, _Upgraded)  # noqa: S101  what the configuration names
        upgraded.address, self._address = self._address, None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._size = 0
        if self.phase is not Phase.HEADER:
            self._enters(Phase.HEADER)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._grows(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._grows(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        self._unread = 0
        self._enters(Phase.BODY)
        if len(self.pipeline) > _PIPELINED:
            raise StreamtoolError("too many requests wait on this connection")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unread = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._unread = 0
        self._enters(Phase.QUIET)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  the base class hands it over
        """What came cannot be read, or a callback has raised."""
        counted, limits = self.server_state.counted, self.server_state.limits
        self._refuse(counted.too_large() if self._size > limits.header_bytes else not_http())

    def expire(self) -> None:
        """The phase has lasted too long."""
        match self.phase:
            case Phase.HEADER if self._serves:
                pass  # another request on the same connection; its time is up when that is answered
            case Phase.HEADER if self._unread:
                self._refuse(self.server_state.counted.late())
            case Phase.HEADER | Phase.BODY:
                self._enters(Phase.CLOSING)
                self.transport.close()
            case _:
                self.transport.abort()

    @property
    def _serves(self) -> bool:
        """A reply is not complete."""
        return self._running is not None and not self._running.response_complete

    def _leaves(self) -> None:
        """The request that is served, if there is one, learns that its client has left."""
        if self._serves:
            self._running.disconnected = True
            self._running.message_event.set()

    def _enters(self, phase: Phase) -> None:
        self.phase = phase
        self.since = monotonic()

    def _grows(self, size: int) -> None:
        self._size += size
        if self._size > self.server_state.limits.header_bytes:
            raise self.server_state.counted.too_large()

    def _refuse(self, error: StreamtoolError) -> None:
        """Answer, if there is room for an answer and none was given, and wait a moment for the client to take it."""
        if self.phase is Phase.CLOSING:
            return
        running = self._running
        told = running is not None and running.response_started and (self._serves or self.phase is Phase.BODY)
        self._enters(Phase.CLOSING)
        self._leaves()  # it must not answer as well
        if told or self.transport.is_closing():
            self.transport.close()
        else:
            self.transport.write(answer(error))
            if not self.transport.is_closing():  # the client may be gone
                self.transport.write_eof()


class _Upgraded(WebSocketsSansIOProtocol):
    """A connection that has become a websocket. Pings find out whether somebody is there; the proxy closes it."""

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
        """What comes cannot be read: say so, and wait a moment for the client to take that."""
        assert self.conn.close_sent is not None  # noqa: S101  with the exception
        self.queue.put_nowait({"type": "websocket.disconnect", "code": self.conn.close_sent.code})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(LINGER, self.transport.close)
        self.transport.resume_reading()  # what is not read would make a reset of the end

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # else uvicorn misses it behind every refusal, and says so in the log

    def shutdown(self) -> None:
        """The server stops: the proxy closes its websockets behind the last reply."""

    def expire(self) -> None:
        """Never: no phase of it is bounded here."""
