"""A reply that is passed on, but comes as a stream although the client asked for one document: it is made into one.

Some apps only stream. What needs nothing else of us passes them as it came, so their stream would reach a client that
cannot read it.
"""

from streamtool.exchange import Exchange
from streamtool.http.asgi import Message, Receive, Send
from streamtool.http.client_connection import ClientConnection

_STREAMS = (b"text/event-stream", b"application/x-ndjson")


def folded(exchange: Exchange, receive: Receive, send: Send) -> Send:
    """What the app calls instead of `send`: a stream becomes one document, all else passes."""
    client: ClientConnection | None = None

    async def take(message: Message) -> None:
        nonlocal client
        if message["type"] == "http.response.start" and _streams(message):
            client = ClientConnection(exchange, receive, send)
            exchange.respond(message["status"], message["headers"])
        elif client is None:
            await send(message)
        elif message["type"] == "http.response.body" and not client.complete:
            out = exchange.feed(message.get("body", b""))
            if not message.get("more_body", False):
                out += exchange.close()
            if exchange.done:
                await client.write(out)

    return take


def _streams(start: Message) -> bool:
    """Whether a stream begins that can be read."""
    headers = {bytes(name).lower(): bytes(value).lower() for name, value in start.get("headers", ())}
    plain = headers.get(b"content-encoding", b"identity") in (b"identity", b"gzip", b"deflate")
    return plain and 200 <= start["status"] < 300 and headers.get(b"content-type", b"").startswith(_STREAMS)
