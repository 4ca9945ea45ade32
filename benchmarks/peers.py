"""The proxies that streamtool is compared with: `peers.py NAME DESCRIPTOR URL` serves one on that socket.

Each proxy, except the pump, is an ASGI app under uvicorn that copies bytes.
"""

import asyncio
import socket
import sys
from typing import Any
from urllib.parse import urlsplit


def pump(url: str) -> Any:
    """Return an event loop protocol that copies all received bytes: the minimum for a proxy in Python."""
    parts = urlsplit(url)

    class Copy(asyncio.Protocol):
        def __init__(self, other: Any = None) -> None:
            self.other = other
            self.waiting = b""

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            if self.other is None:
                loop = asyncio.get_running_loop()
                self.task = loop.create_task(loop.create_connection(lambda: Copy(self), parts.hostname, parts.port))
            else:
                transport.write(self.other.waiting)
                self.other.other = self

        def data_received(self, data: bytes) -> None:
            if self.other is None:
                self.waiting += data
            else:
                self.other.transport.write(data)

        def connection_lost(self, _: Exception | None) -> None:
            if self.other is not None:
                self.other.transport.close()

    return Copy


async def body_of(receive: Any) -> bytes:
    """Return the body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


def copying(stream: Any) -> Any:
    """Return an app that copies the output of `stream(path, body)`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await body_of(receive)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in stream(scope["path"], body):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def with_httpx(url: str, transport: Any = None) -> Any:
    import httpx

    limits = httpx.Limits(max_connections=None)
    client = httpx.AsyncClient(timeout=None, limits=limits, transport=transport)

    async def stream(path: str, body: bytes) -> Any:
        async with client.stream("POST", url + path, content=body) as response:
            async for piece in response.aiter_raw():
                yield piece

    return copying(stream)


def with_httpx_aiohttp(url: str) -> Any:
    import httpx
    from httpx_aiohttp import AiohttpTransport

    return with_httpx(url, AiohttpTransport(limits=httpx.Limits(max_connections=100_000)))


def with_httptools(url: str) -> Any:
    import httpx

    from streamtool.upstream.http1 import AsyncioNetwork

    return with_httpx(url, AsyncioNetwork(httpx.create_ssl_context()))


def with_aiohttp(url: str) -> Any:
    import aiohttp

    client: Any = None

    async def stream(path: str, body: bytes) -> Any:
        nonlocal client
        if client is None:
            timeout = aiohttp.ClientTimeout(total=None)
            client = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        async with client.post(url + path, data=body) as response:
            async for piece in response.content.iter_any():
                yield piece

    return copying(stream)


def with_pyreqwest(url: str) -> Any:
    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().build()

    async def stream(path: str, body: bytes) -> Any:
        async with client.post(url + path).body_bytes(body).streamed_read_buffer_limit(0).build_streamed() as response:
            while (piece := await response.body_reader.read_chunk()) is not None:
                yield bytes(piece)

    return copying(stream)


PEERS = {
    "httpx": with_httpx,
    "httpx-aiohttp": with_httpx_aiohttp,
    "aiohttp": with_aiohttp,
    "pyreqwest": with_pyreqwest,
    "httptools": with_httptools,
}


async def _pumped(sock: socket.socket, url: str) -> None:
    server = await asyncio.get_running_loop().create_server(pump(url), sock=sock)
    await server.serve_forever()


def main(name: str, descriptor: str, url: str) -> None:
    sock = socket.socket(fileno=int(descriptor))
    if name == "pump":
        import uvloop

        uvloop.run(_pumped(sock, url))
        return
    import uvicorn

    config = uvicorn.Config(PEERS[name](url), log_level="error", ws="none", access_log=False)
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
