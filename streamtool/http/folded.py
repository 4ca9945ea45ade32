"""A reply that is passed on, but comes as a stream although the client asked for one document: it is made into one.

Some apps only stream. What needs nothing else of us passes them as it came, so their stream would reach a client that
cannot read it.
"""

from streamtool.exchange import Exchange
from streamtool.http.asgi import Message, Receive, Send
from streamtool.http.client_connection import ClientConnection

_EVENTS = b"text/event-stream"
_STREAMS = (_EVENTS, b"application/x-ndjson")


def folded(exchange: Exchange, receive: Receive, send: Send) -> Send:
    """What the app calls instead of `send`: a stream becomes one document, all else passes."""
    client: ClientConnection | None = None
    start: Message | None = None
    """It announces a stream that has yet to begin."""

    async def take(message: Message) -> None:
        nonlocal client, start
        if message["type"] == "http.response.start" and _streams(message):
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


def _streams(start: Message) -> bool:
    """Whether a stream is announced that can be read."""
    headers = _lower(start)
    plain = headers.get(b"content-encoding", b"identity") in (b"identity", b"gzip", b"deflate")
    return plain and 200 <= start["status"] < 300 and headers.get(b"content-type", b"").startswith(_STREAMS)


def _is_document(start: Message, first: Message) -> bool:
    """Whether the body is one document, whatever was announced: no stream of events begins with a brace."""
    events = _lower(start).get(b"content-type", b"").startswith(_EVENTS)
    return events and bytes(first.get("body", b"")).lstrip().startswith(b"{")


def _lower(start: Message) -> dict[bytes, bytes]:
    return {bytes(name).lower(): bytes(value).lower() for name, value in start.get("headers", ())}
