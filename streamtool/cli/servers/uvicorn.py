"""The proxy under uvicorn, on asyncio."""

import asyncio
import socket
from contextlib import suppress
from types import FrameType

import uvicorn

from streamtool.cli.servers.stopping import stop
from streamtool.errors import StreamtoolError
from streamtool.proxy import Proxy


def serve(proxy: Proxy, sock: socket.socket) -> list[int]:
    """Serve until SIGINT or SIGTERM. Returns the signals that came.

    Raises StreamtoolError if the proxy does not start.
    """
    config = uvicorn.Config(
        proxy,
        log_config=None,  # what it has to say goes where our log goes
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="on",
    )
    server = _Server(config, proxy)
    try:
        server.run(sockets=[sock])
    except SystemExit:
        if server.started:
            raise
        raise StreamtoolError("the proxy did not start") from None  # why stands in the log
    return server.caught


class _Server(uvicorn.Server):
    """A server that stops as `stopping` says."""

    def __init__(self, config: uvicorn.Config, proxy: Proxy) -> None:
        super().__init__(config)
        self._proxy = proxy
        self.caught: list[int] = []
        """The signals that came."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  the base class hands it over
        """Stop. The base class would raise the signal again at the end."""
        self.caught.append(sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop within the grace time."""
        stopping = asyncio.create_task(stop(self._proxy, self.caught, self.server_state.connections, self._cut))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._proxy.settings.grace):
                await super().shutdown(sockets)
        stopping.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
