"""Server that runs the proxy with hypercorn, on trio.

hypercorn's own loop does not track its connections and can close them only by cancelling their tasks; a client that
does not read can prevent that. This module therefore builds the loop from hypercorn's parts. It speaks only HTTP/1.1,
like uvicorn.
"""

import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

import h11
import hypercorn.config
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app
from wsproto.events import Ping

from streamtool.cli.servers.connections import Connections, Phase, error_response, invalid_request
from streamtool.cli.servers.stopping import Service, stop, stop_delay
from streamtool.core.errors import StreamtoolError, UnavailableError

_CLOSING = 0.5
"""Seconds that the tasks of aborted connections have to finish."""
_TOO_LARGE = 431


def serve(proxy: Service, sock: socket.socket) -> list[int]:
    """Serve until SIGINT or SIGTERM, and return the signals received.

    Raises StreamtoolError if the proxy does not start.
    """
    config = hypercorn.config.Config()
    config.errorlog = logging.getLogger("hypercorn.error")
    config.loglevel = "WARNING"
    config.websocket_max_message_size = proxy.settings.limits.body
    config.h11_max_incomplete_size = proxy.settings.limits.header_bytes
    server = _HypercornServer(proxy, config)
    with _unwrap_start_error():
        trio.run(server.run, sock)
    return server.caught


@contextmanager
def _unwrap_start_error() -> Iterator[None]:
    """Unwrap the StreamtoolError that prevented the start from hypercorn's exception groups."""
    try:
        yield
    except ExceptionGroup as failed:
        error: BaseException | None = failed
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None and isinstance(error.__context__, StreamtoolError):
            raise error.__context__ from None
        raise


async def _set_after(seconds: float, event: trio.Event) -> None:
    await trio.sleep(seconds)
    event.set()


class _HypercornServer:
    """Server loop that accepts connections until a signal arrives, and then shuts down as described in `stopping`."""

    def __init__(self, proxy: Service, config: hypercorn.config.Config) -> None:
        self._proxy = proxy
        self._config = config
        self._connections: set[_HypercornConnection] = set()
        self._counted = Connections(proxy.settings.limits)
        self.caught: list[int] = []
        """Signals received."""

    async def run(self, sock: socket.socket) -> None:
        app = wrap_app(self._proxy, self._config.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]  # its scope is a TypedDict
        context = WorkerContext(None)
        lifespan = Lifespan(app, self._config, {})

        def connection(stream: Any) -> Awaitable[None]:
            each = _HypercornConnection(
                app, self._config, context, stream, counted=self._counted, open_=self._connections
            )
            return each.run()

        async with trio.open_nursery() as around:
            stopped = await around.start(self._signals)
            await around.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            around.start_soon(self._look)
            async with trio.open_nursery() as handlers:
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(
                        partial(trio.serve_listeners, connection, [listener], handler_nursery=handlers)
                    )
                    await stopped.wait()
                    accepting.cancel_scope.cancel()
                deadline = trio.current_time() + self._proxy.settings.grace
                await context.terminated.set()  # keep-alive connections stop waiting for another request
                for each in self._connections:
                    each.close_if_idle()
                await stop(self._proxy, self.caught, self._connections, self._cut)
                handlers.cancel_scope.deadline = trio.current_time() + _CLOSING
            with trio.CancelScope(deadline=deadline):
                await lifespan.wait_for_shutdown()
            around.cancel_scope.cancel()

    async def _look(self) -> None:
        while True:
            await trio.sleep(self._counted.period)
            self._counted.expire_late(self._connections)
            self._config.websocket_max_message_size = self._proxy.settings.limits.body  # a reload may change it

    async def _signals(self, task_status: trio.TaskStatus[trio.Event]) -> None:
        stopped = trio.Event()
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started(stopped)
            async with trio.open_nursery() as delays:
                async for number in signals:
                    self.caught.append(number)
                    delays.start_soon(_set_after, stop_delay(self._proxy, self.caught), stopped)

    def _cut(self) -> None:
        for connection in list(self._connections):
            connection.cut()


class _HypercornConnection(TCPServer):
    """A connection that limits the size and arrival time of request headers, and detects idleness without a separate
    task.
    """

    protocol: "_Protocol"  # type: ignore[assignment]  # the base class allows HTTP/2 as well

    def __init__(
        self,
        app: AppWrapper,
        config: hypercorn.config.Config,
        context: WorkerContext,
        stream: Any,
        *,
        counted: Connections,
        open_: "set[_HypercornConnection]",
    ) -> None:
        super().__init__(app, config, context, ConnectionState({}), stream)
        self._counted = counted
        self._open = open_
        self._reading = trio.CancelScope()
        self._header_begun = False
        """Whether part of a header has been received."""
        self._active = True
        """Whether anything has been received over the websocket since the last ping."""
        self._enter(Phase.HEADER)

    async def run(self) -> None:
        """Serve the connection until it closes."""
        sock = self.stream.socket
        address: str | None = None
        self._open.add(self)
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            host = client[0] if client else ""
            self._counted.enter(host)
            address = host
            async with TaskGroup() as self._task_group:
                self.protocol = _Protocol(
                    self._counted,
                    self._reject,
                    partial(self._enter, Phase.WEBSOCKET),
                    self.app,
                    self.config,
                    self.context,
                    self._task_group,
                    self.state,
                    ssl=False,
                    client=client,
                    server=parse_socket_addr(sock.family, sock.getsockname()),
                    send=self.protocol_send,
                )
                await self._read_data()
        except UnavailableError as error:
            await self._answer(error)
        except OSError:
            pass
        except Exception:  # noqa: BLE001  must not affect other connections
            await self.config.log.exception("a connection failed")
        finally:
            self._open.discard(self)
            if address is not None:
                self._counted.leave(address)
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        """Handle a protocol event: a change of state, or data to send."""
        if isinstance(event, Updated):
            self._header_begun = event.idle and bool(
                self.protocol.connection.trailing_data[0]
            )  # part of the next header has arrived
            self._enter(Phase.HEADER if self._header_begun else Phase.IDLE if event.idle else Phase.BODY)
        else:
            try:
                await super().protocol_send(event)
            except trio.BusyResourceError:  # the connection is being closed
                await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        while self.phase is not Phase.CLOSING:
            try:
                with trio.CancelScope() as self._reading:
                    data = await self.stream.receive_some(MAX_RECV)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            if self._reading.cancelled_caught:
                if self._header_begun:
                    await self._reject(self._counted.timeout_error())
                break
            if self.phase is Phase.IDLE:
                self._enter(Phase.HEADER)
            self._header_begun = self._active = True
            await self.protocol.handle(RawData(bytes(data)))
            if not data:
                break
        await self.protocol.handle(Closed())

    def expire(self) -> None:
        """Handle a timeout of the current phase."""
        if self.phase is Phase.BODY and self.protocol.connection.their_state is not h11.SEND_BODY:
            self._enter(Phase.QUIET)
        elif self.phase in (Phase.HEADER, Phase.IDLE):
            self._reading.cancel()
        elif self.phase is Phase.WEBSOCKET and self._active:
            self._active = False
            self._enter(Phase.WEBSOCKET)
            self._task_group.spawn(self.protocol.ping)
        else:
            self.cut()

    def close_if_idle(self) -> None:
        """Close the connection unless it is serving a request."""
        if self.phase in (Phase.HEADER, Phase.IDLE):
            self._header_begun = False
            self._reading.cancel()

    def cut(self) -> None:
        """Abort the connection."""
        self.stream.socket.close()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = monotonic()

    async def _reject(self, error: StreamtoolError) -> None:
        """Send an error response, and give the client a moment to read it."""
        self._enter(Phase.CLOSING)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            await self._answer(error)
            while await self.stream.receive_some(MAX_RECV):
                pass

    async def _answer(self, error: StreamtoolError) -> None:
        async with self.send_lock:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                await self.stream.send_all(error_response(error))
                await self.stream.send_eof()


class _Protocol(H11Protocol):
    """The HTTP/1.1 protocol. `refuse` sends the error response for a request that cannot be served; `upgraded` is
    called when a connection becomes a websocket.
    """

    def __init__(
        self,
        counted: Connections,
        refuse: Callable[[StreamtoolError], Awaitable[None]],
        upgraded: Callable[[], None],
        *args: Any,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._counted = counted
        self._reject = refuse
        self._upgraded = upgraded

    async def ping(self) -> None:
        """Ping a websocket client. hypercorn's own pings continue after their connection is closed."""
        if isinstance(self.stream, WSStream) and not self.stream.closed:
            await self.stream._send_wsproto_event(Ping())  # noqa: SLF001  as hypercorn does

    async def handle(self, event: Event) -> None:
        """Handle data from the connection."""
        try:
            await super().handle(event)
        except StreamtoolError as error:
            await self._reject(error)

    async def _create_stream(self, request: h11.Request) -> None:
        """Create a stream without websocket compression, because a small message could expand to a huge one.

        hypercorn has no option to disable it.
        """
        kept = [pair for pair in request.headers if pair[0] != b"sec-websocket-extensions"]
        await super()._create_stream(
            h11.Request(method=request.method, target=request.target, headers=kept, http_version=request.http_version)
        )

        if isinstance(self.stream, WSStream):
            self._upgraded()

    async def _check_protocol(self, event: h11.Request) -> None:
        size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
        if size > self.config.h11_max_incomplete_size:
            raise self._counted.too_large_error()
        if event.http_version not in (b"1.0", b"1.1"):
            raise invalid_request()

    async def _send_error_response(self, status_code: int) -> None:
        raise self._counted.too_large_error() if status_code == _TOO_LARGE else invalid_request()
