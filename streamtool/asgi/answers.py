"""Responses that do not come from an exchange, and errors that occur while a response is being sent."""

import secrets
import time

from streamtool.asgi.types import ASGIMessage, Send
from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import ReplyFailure
from streamtool.protocols.interfaces import ClientProtocol, Headers


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 24 random hexadecimal digits."""
    return prefix + secrets.token_hex(12)


async def send_error(wire: ClientProtocol, error: StreamtoolError, send: Send, *, extra: Headers = ()) -> None:
    """Send `error` as a response in the protocol's format."""
    request_id = new_id("req_")
    body = wire.write_error(error, request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (wire.REQUEST_ID, request_id.encode()),
        *error.headers,
        *extra,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Answer:
    """A response that is being sent to the client."""

    __slots__ = ("_appendable", "_last", "_send", "_started", "_wire")

    def __init__(self, wire: ClientProtocol, send: Send) -> None:
        self._wire = wire
        self._send = send
        self._started = False
        self._appendable = False
        """Whether events can be appended to the body."""
        self._last: ASGIMessage = {}
        """The last message sent to the client; pieces written by `write_now` do not count."""

    def _begin(self, message: ASGIMessage) -> None:
        """Record whether events can be appended to the response that begins with this message."""
        self._started = True
        headers = {name.lower(): value for name, value in message.get("headers", ())}
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        self._appendable = (
            bool(self._wire.BREAK)
            and kind == dict(self._wire.STREAM_HEADERS)[b"content-type"].partition(b";")[0]
            and not (b"content-length" in headers or b"content-encoding" in headers)  # these rule out appending
        )

    async def report(self, error: StreamtoolError) -> bool:
        """Report an error, as a status or as the last event. Return False if it is too late for either, in which case
        the response must be cut off.
        """
        wire, last = self._wire, self._last
        if not self._started:
            await send_error(wire, error, self._send)
        elif last["type"] == "http.response.start" or last.get("more_body", False):
            if not self._appendable:
                return False
            conversation = Conversation(wire.NAME, "", (), stream=True)
            writer = wire.ReplyWriter(conversation, id=new_id(wire.REPLY_ID), created=int(time.time()), model="")
            # The last piece may end inside an event, and an extra break is harmless.
            data = wire.BREAK + writer.feed([ReplyFailure(error)])
            await self._send({"type": "http.response.body", "body": data, "more_body": False})
        return True
