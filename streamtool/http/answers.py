"""What a client is answered where no exchange answers it: errors, as far as one can still be told."""

import time
import uuid

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.http.asgi import Message, Send
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.reply import ReplyFailure


def new_id(prefix: str) -> str:
    """`prefix` and 24 random letters and digits."""
    return prefix + uuid.uuid4().hex[:24]


async def send_error(wire: ClientProtocol, error: StreamtoolError, send: Send, *, extra: Headers = ()) -> None:
    """Answer with `error` in the protocol's own shape."""
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
    """An answer on its way to the client."""

    __slots__ = ("_last", "_send", "_started", "_stream", "_wire")

    def __init__(self, wire: ClientProtocol, send: Send) -> None:
        self._wire = wire
        self._send = send
        self._started = False
        self._stream = False
        """An event can be added."""
        self._last: Message = {}
        """What was handed to the client last."""

    def _begin(self, message: Message) -> None:
        """What the answer is, as its head says."""
        self._started = True
        headers = {name.lower(): value for name, value in message.get("headers", ())}
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        self._stream = (
            bool(self._wire.BREAK)
            and kind == dict(self._wire.STREAM_HEADERS)[b"content-type"].partition(b";")[0]
            and not (b"content-length" in headers or b"content-encoding" in headers)  # then nothing can be added
        )

    async def tell(self, error: StreamtoolError) -> bool:
        """Tell of an error, as a status or as the last event. False: too late, the answer has to be cut."""
        wire, last = self._wire, self._last
        if not self._started:
            await send_error(wire, error, self._send)
        elif last["type"] == "http.response.start" or last.get("more_body", False):
            if not self._stream:
                return False
            conversation = Conversation(wire.NAME, "", (), stream=True)
            writer = wire.ReplyWriter(conversation, id=new_id(wire.REPLY_ID), created=int(time.time()), model="")
            before = b"" if last.get("body", b"").endswith(wire.BREAK) else wire.BREAK  # one too many does no harm
            data = before + writer.feed([ReplyFailure(error)])
            await self._send({"type": "http.response.body", "body": data, "more_body": False})
        return True
