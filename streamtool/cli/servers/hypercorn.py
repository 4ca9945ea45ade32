"""The proxy under hypercorn, on trio.

hypercorn's own loop knows neither its connections nor another way to end them than to cancel what serves them, which a
client that does not read prevents. So the loop is made here, of hypercorn's parts.
"""

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import hypercorn.config
import trio
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app

from streamtool.cli.servers.stopping import stop
from streamtool.errors import StreamtoolError
from streamtool.proxy import Proxy

_CLOSING = 0.5
"""Seconds that the tasks of connections that were cut have to end."""


def serve(proxy: Proxy, sock: socket.socket) -> list[int]:
    """Serve until SIGINT or SIGTERM. Returns the signals that came.

    Raises StreamtoolError if the proxy does not start.
    """
    config = hypercorn.config.Config()
    config.errorlog = logging.getLogger("hypercorn.error")
    config.loglevel = "WARNING"
    server = _Server(proxy, config)
    with _reasons():
        trio.run(server.run, sock)
    return server.caught


@contextmanager
def _reasons() -> Iterator[None]:
    """Raise the StreamtoolError that says why the proxy did not start, in the place of what hypercorn makes of it."""
    try:
        yield
    except ExceptionGroup as failed:
        error: BaseException | None = failed
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None and isinstance(error.__context__, StreamtoolError):
            raise error.__context__ from None
        raise


class _Server:
    """The loop."""

    def __init__(self, proxy: Proxy, config: hypercorn.config.Config) -> None:
        self._proxy = proxy
        self._config = config
        self._connections: set[trio.SocketStream] = set()
        self.caught: list[int] = []
        """The signals that came."""

    async def run(self, sock: socket.socket) -> None:
        app = wrap_app(self._proxy, self._config.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]  # its scope is a TypedDict
        context = WorkerContext(None)
        lifespan = Lifespan(app, self._config, {})

        async def connection(stream: Any) -> None:
            self._connections.add(stream)
            try:
                await TCPServer(app, self._config, context, {}, stream)
            finally:
                self._connections.discard(stream)

        async with trio.open_nursery() as around:
            stopped = await around.start(self._signals)
            await around.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as handlers:
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(
                        partial(trio.serve_listeners, connection, [listener], handler_nursery=handlers)
                    )
                    await stopped.wait()
                    accepting.cancel_scope.cancel()
                deadline = trio.current_time() + self._proxy.settings.grace
                await context.terminated.set()  # which closes idle connections
                await stop(self._proxy, self.caught, self._connections, self._cut)
                handlers.cancel_scope.deadline = trio.current_time() + _CLOSING
            with trio.CancelScope(deadline=deadline):
                await lifespan.wait_for_shutdown()
            around.cancel_scope.cancel()

    async def _signals(self, task_status: trio.TaskStatus[trio.Event]) -> None:
        stopped = trio.Event()
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started(stopped)
            async for number in signals:
                self.caught.append(number)
                stopped.set()

    def _cut(self) -> None:
        for stream in list(self._connections):
            stream.socket.close()
