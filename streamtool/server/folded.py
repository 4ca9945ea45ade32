"""Joins a streamed reply into one document if the client requested a document and the reply needs no other conversion.

Some apps can only stream. A request that needs no conversion is passed through, so without this module the app's stream
would reach a client that cannot read it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel

from streamtool.asgi.off_loop import LARGE, slices
from streamtool.asgi.types import ASGIMessage, Receive, Send
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.upstream_response import too_large
from streamtool.server.client_connection import ClientConnection
from streamtool.server.served_exchange import GRACE

_EVENTS = b"text/event-stream"
_STREAMS = (_EVENTS, b"application/x-ndjson")


async def run_folding(
    app: Callable[[Receive, Send], Awaitable[None]], exchange: Exchange, receive: Receive, send: Send, limit: int
) -> None:
    """Run the app. If it responds with a stream, join it into one document; pass on all other responses.

    A stream of more than `limit` bytes is an error. The app is cancelled soon after the client has its response.
    """
    with anyio.CancelScope() as running:
        await app(*_fold_stream(exchange, receive, send, limit, running))


def _fold_stream(
    exchange: Exchange, receive: Receive, send: Send, limit: int, app: anyio.CancelScope
) -> tuple[Receive, Send]:
    """Return a `receive` and a `send` for the app that runs in the scope `app`."""
    client: ClientConnection | None = None
    left = limit
    start: ASGIMessage | None = None
    """Head of a stream whose first bytes have not arrived yet, or None."""

    async def listen() -> ASGIMessage:
        message = await receive()
        # Some servers report a disconnect while they send the last message, which the app must not interrupt.
        if message["type"] == "http.disconnect" and client is not None and client.complete:
            await anyio.sleep_forever()
        return message

    async def take(message: ASGIMessage) -> None:
        nonlocal client, start, left
        if message["type"] == "http.response.start" and _announces_stream(message):
            start = message
            return
        if start is not None and message["type"] == "http.response.body":
            if not message.get("body", b"") and message.get("more_body", False):
                return
            if _is_document(start, message):
                await send(start)
            else:
                client = ClientConnection(exchange, receive, send)
                exchange.respond(start["status"], start["headers"])
            start = None
        if client is None:
            await send(message)
        elif message["type"] == "http.response.body" and not client.complete:
            body, last = bytes(message.get("body", b"")), not message.get("more_body", False)
            left -= len(body)
            out = exchange.fail(too_large(limit)) if left < 0 else await _feed(exchange, client, body, last=last)
            if exchange.done:
                await client.send(out)
                app.deadline = anyio.current_time() + (0 if exchange.cut or left < 0 else GRACE)

    return listen, take


async def _feed(exchange: Exchange, client: ClientConnection, body: bytes, *, last: bool) -> bytes:
    """Feed the exchange in pieces, so that other tasks can run in between. Return its output."""
    out = b""
    for piece in slices(body):
        await anyio.lowlevel.checkpoint()
        if exchange.done:
            return out
        feed = partial(exchange.feed, piece)
        out += await client.run_off_loop(feed) if exchange.unread + len(piece) > LARGE else feed()
    if last and not exchange.done:
        out += await client.run_off_loop(exchange.close) if exchange.unread > LARGE else exchange.close()
    return out


def _announces_stream(start: ASGIMessage) -> bool:
    """Return whether the head announces a stream in a content encoding that can be decoded."""
    headers = _lower_headers(start)
    plain = headers.get(b"content-encoding", b"identity") in (b"identity", b"gzip", b"deflate")
    return plain and 200 <= start["status"] < 300 and headers.get(b"content-type", b"").startswith(_STREAMS)


def _is_document(start: ASGIMessage, first: ASGIMessage) -> bool:
    """Return whether the body is one document despite its content type. An event stream never begins with a brace."""
    events = _lower_headers(start).get(b"content-type", b"").startswith(_EVENTS)
    return events and bytes(first.get("body", b"")).lstrip().startswith(b"{")


def _lower_headers(start: ASGIMessage) -> dict[bytes, bytes]:
    return {bytes(name).lower(): bytes(value).lower() for name, value in start.get("headers", ())}
