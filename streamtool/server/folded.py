"""Joins a streamed reply into one document if the client requested a document and the reply needs no other conversion.

Some apps can only stream. A request that needs no conversion is passed through, so without this module the app's stream
would reach a client that cannot read it.
"""

from streamtool.asgi.types import ASGIMessage, Receive, Send
from streamtool.exchange import Exchange
from streamtool.server.client_connection import ClientConnection

_EVENTS = b"text/event-stream"
_STREAMS = (_EVENTS, b"application/x-ndjson")


def fold_stream(exchange: Exchange, receive: Receive, send: Send) -> Send:
    """Return a `send` for the app that joins a stream into one document and passes on all other responses."""
    client: ClientConnection | None = None
    start: ASGIMessage | None = None
    """Head of a stream whose first bytes have not arrived yet, or None."""

    async def take(message: ASGIMessage) -> None:
        nonlocal client, start
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
            out = exchange.feed(message.get("body", b""))
            if not message.get("more_body", False):
                out += exchange.close()
            if exchange.done:
                await client.write(out)

    return take


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
