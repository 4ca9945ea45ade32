"""The proxies that streamtool is compared with: `peers.py NAME DESCRIPTOR URL` serves one on that socket.

Each proxy is an ASGI app under uvicorn that copies bytes. The exceptions are the `PROTOCOLS`, event loop protocols
without a server; the last `LAYERS`, which already contain parts of streamtool; and `with_necessary`.
"""

import asyncio
import re
import socket
import sys
from json.encoder import encode_basestring
from typing import Any, Final
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


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Served(asyncio.Protocol):
    """A client's connection. `answered` is called once the request is complete."""

    def __init__(self) -> None:
        import httptools

        self.body = b""
        self.path = ""
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.answered()

    def answered(self) -> None:
        raise NotImplementedError


def parsing(url: str) -> Any:
    """Return an event loop protocol that parses HTTP on both sides and writes chunks, without a task."""
    import httptools

    parts = urlsplit(url)

    class Answering(asyncio.Protocol):
        def __init__(self, client: _Served) -> None:
            self.client = client
            self.parser = httptools.HttpResponseParser(self)

        def connection_made(self, transport: Any) -> None:
            head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            transport.write(head % (self.client.path.encode(), len(self.client.body)) + self.client.body)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_headers_complete(self) -> None:
            self.client.transport.write(_HEAD)

        def on_body(self, piece: bytes) -> None:
            self.client.transport.write(_chunk(piece))

        def on_message_complete(self) -> None:
            self.client.transport.write(_END)

    class Asking(_Served):
        def answered(self) -> None:
            loop = asyncio.get_running_loop()
            opened = loop.create_connection(lambda: Answering(self), parts.hostname, parts.port)
            self.task = loop.create_task(opened)

    return Asking


def _streamed(url: str) -> Any:
    """Return a function that yields the body of a response through streamtool's connections, without httpx's client."""
    import httpx

    from streamtool.upstream.http1 import AsyncioNetwork

    network = AsyncioNetwork(httpx.create_ssl_context())

    async def stream(path: str, body: bytes) -> Any:
        request = httpx.Request("POST", url + path, content=body)
        response = await network.handle_async_request(request)
        return response.stream

    return stream


_PATIENT: Final = {"first": 600.0, "idle": 600.0}
"""Time limits in seconds."""


def with_client(url: str) -> Any:
    """Return an event loop protocol in which a task reads the reply through streamtool's connections."""
    stream = _streamed(url)

    class Asking(_Served):
        def answered(self) -> None:
            self.task = asyncio.get_running_loop().create_task(self.passed())

        async def passed(self) -> None:
            body = await stream(self.path, self.body)
            self.transport.write(_HEAD)
            await body.pass_to(lambda piece: self.transport.write(_chunk(piece)), **_PATIENT)
            self.transport.write(_END)

    return Asking


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


class Pieces:
    """A client's response, as a receiver of pieces (see `streamtool.asgi.pieces`)."""

    def __init__(self, send: Any) -> None:
        from streamtool.asgi.pieces import writer_of

        self._send = send
        self._write_now: Any = writer_of(send)

    async def send(self, message: Any) -> None:
        await self._send(message)

    def take_piece(self, piece: bytes) -> Any:
        if self._write_now(piece):
            return None
        return self.send({"type": "http.response.body", "body": piece, "more_body": True})


def with_server(url: str) -> Any:
    """Return an app that reads the reply through streamtool's connections."""
    stream = _streamed(url)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await stream(scope["path"], await body_of(receive))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await body.pass_to(Pieces(send).take_piece, **_PATIENT)
        await send({"type": "http.response.body", "body": b""})

    return app


def with_upstream(url: str) -> Any:
    """Return streamtool's upstream, which is an app."""
    from streamtool.settings import UpstreamSettings
    from streamtool.upstream.app import HttpUpstream

    upstream = HttpUpstream(UpstreamSettings(name="u", url=url))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await upstream(scope, receive, Pieces(send).send)

    return app


_EVENT: Final = re.compile(rb'data: \{[^"]*"id[^\n]*?"delta": ?\{"content": ?"((?:[^"\\]|\\.)*+)"\}[^\n]*\n\n').match
_OPENER: Final = re.compile(r"[<\[{`@|\u2581]").search
_CALL: Final = re.compile(r'<tool_call>\{"name": "(\w+)", "arguments": ').match
_VALUE: Final = re.compile(r"""[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+""").match
_WHOLE: Final = b'data: {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [%b]}}]}\n\n'


def with_necessary(url: str) -> Any:
    """Return an app that does only what a proxy for tool calls has to do, through streamtool's connections.

    For a request: decode it, describe its tools in the prompt (the same tools only once), rewrite the calls and results
    of the history as text, and encode it. For a delta: find its text, search for an opener, and forward the event, or
    turn its text into arguments. It writes to the socket itself, and ignores limits, errors, retries, records, other
    formats and protocols, and the end of a call.
    """
    import msgspec

    stream = _streamed(url)
    top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    decode, encode = msgspec.json.decode, msgspec.json.encode
    prompts: dict[bytes, str] = {}

    def asked(body: bytes) -> bytes:
        fields = top(body)
        tools = bytes(fields.pop("tools"))
        if tools not in prompts:
            prompts[tools] = "\n".join(encode(tool).decode() for tool in decode(tools))
        messages: list[dict[str, Any]] = []
        for message in decode(fields["messages"]):
            role, text = message["role"], message["content"]
            for call in message.get("tool_calls", ()):
                function = call["function"]
                text += (
                    f'\n<tool_call>{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}</tool_call>'
                )
            if role == "tool":
                role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
            messages.append({"role": role, "content": text})
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["content"] += f"\n\n{prompts[tools]}"
        return encode({**fields, "messages": messages})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await stream(scope["path"], asked(await body_of(receive)))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        held, in_call = "", False
        transport = send.__self__.transport

        def take(piece: bytes) -> None:
            nonlocal held, in_call
            at, out = 0, b""
            while found := _EVENT(piece, at):
                at = found.end()
                text = found[1].decode() if b"\\" not in found[1] else decode(b'"%b"' % found[1])
                if in_call:
                    value = _VALUE(text)
                    out += _WHOLE % encode_basestring(text[: value.end()] if value else text).encode()
                elif held or _OPENER(text):
                    held += text
                    in_call = _CALL(held) is not None
                    if in_call or len(held) > 80:
                        out, held = out + _WHOLE % encode_basestring(held).encode(), ""
                else:
                    out += found[0]
            out += piece[at:]
            if out:
                transport.write(_chunk(out))

        await body.pass_to(take, **_PATIENT)
        await send({"type": "http.response.body", "body": b""})

    return app


class Passing:
    """A response that passes through an exchange."""

    def __init__(self, exchange: Any, send: Any) -> None:
        self._exchange = exchange
        self._client = Pieces(send)
        self._begun = False

    async def send(self, message: Any) -> None:
        exchange, client = self._exchange, self._client
        if message["type"] == "http.response.start":
            exchange.respond(message["status"], message["headers"])
            return
        out = exchange.feed(message["body"])
        if not message["more_body"]:
            out += exchange.close()
        if out and not self._begun:
            self._begun = True
            start = {"status": exchange.head.status, "headers": list(exchange.head.headers)}
            await client.send({"type": "http.response.start", **start})
        if out or not message["more_body"]:
            await client.send({"type": "http.response.body", "body": out, "more_body": message["more_body"]})

    def take_piece(self, piece: bytes) -> Any:
        if not self._begun:
            return self.send({"type": "http.response.body", "body": piece, "more_body": True})
        out = self._exchange.feed(piece)
        return self._client.take_piece(out) if out else None


def with_exchange(url: str) -> Any:
    """Return an app that passes the reply of streamtool's upstream through an exchange, without the middleware."""
    from statemachine import precompile
    from streamtool.exchange.exchange import Exchange
    from streamtool.protocols.registry import client_protocol
    from streamtool.settings import Settings, UpstreamSettings
    from streamtool.upstream.app import HttpUpstream

    precompile()  # otherwise, a thread does this during the first requests
    settings = Settings(upstreams={"u": UpstreamSettings(name="u", url=url)})
    upstream = HttpUpstream(settings.upstreams["u"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        wire = client_protocol("chat", scope["path"])
        exchange = Exchange(settings, wire, await body_of(receive), (), new_id=lambda prefix: prefix, now=1)
        asked: Any = {"type": "http.request", "body": exchange.request().body, "more_body": False}
        unread = [asked]

        async def ask() -> Any:
            return unread.pop() if unread else await receive()

        await upstream(scope, ask, Passing(exchange, send).send)

    return app


PROTOCOLS = {"pump": pump, "parsing": parsing, "client": with_client}
LAYERS = {"server": with_server, "upstream": with_upstream, "exchange": with_exchange}
PEERS = {
    "httpx": with_httpx,
    "httpx-aiohttp": with_httpx_aiohttp,
    "aiohttp": with_aiohttp,
    "pyreqwest": with_pyreqwest,
    "httptools": with_httptools,
    "necessary": with_necessary,
    **LAYERS,
}


async def _served(protocol: Any, sock: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, sock=sock)
    await server.serve_forever()


def main(name: str, descriptor: str, url: str) -> None:
    sock = socket.socket(fileno=int(descriptor))
    if name in PROTOCOLS:
        import uvloop

        uvloop.run(_served(PROTOCOLS[name](url), sock))
        return
    import uvicorn

    config = uvicorn.Config(PEERS[name](url), log_level="error", ws="none", access_log=False)
    server = uvicorn.Server(config)
    if name in LAYERS:
        from streamtool.cli.servers.uvicorn import _State, _UvicornConnection
        from streamtool.settings import LimitSettings

        config.http = _UvicornConnection
        server.server_state = _State(LimitSettings(connections=0, connections_per_address=0))
    server.run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
