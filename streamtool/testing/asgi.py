"""A caller of ASGI apps that sees a reply while it is being made.

The ready-made callers wait for the app to end and hand over one body; here each message of the app can be looked at as
soon as it was sent, the client can leave in the middle, and everything runs on the backend of the test, without a
socket. The app's `send` returns at once (there is no back-pressure) unless `buffer` is given.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class StreamedReply:
    """What the app answers, as it answers.

    `head()` waits for the status and the headers; the body comes out of `chunks()` piece by piece, as sent; `body()`
    is the rest of it in one piece. An exception of the app is raised by whichever of these waits for it.
    """

    def __init__(self, messages: ObjectReceiveStream[Message], disconnected: anyio.Event) -> None:
        self._messages = messages
        self._disconnected = disconnected
        self._error: BaseException | None = None
        self._ended = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.finished = anyio.Event()
        """Set when the app has returned, or was cancelled."""

    async def head(self) -> int:
        """The status; `headers` (names in lower case) are filled in as well. Waits until the app has sent them."""
        if not self.status:
            message = await self._next()
            if message is None:
                raise RuntimeError("the app returned without a response")
            self.status = message["status"]
            self.raw_headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.raw_headers}
        return self.status

    def chunks(self) -> Self:
        """The body messages that hold bytes, one by one; ends with the last of them, or when the app returns."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await self.head()
        while not self._ended and (message := await self._next()) is not None:
            self._ended = not message.get("more_body", False)
            if body := message.get("body", b""):
                return bytes(body)
        raise StopAsyncIteration

    async def body(self) -> bytes:
        """The rest of the body."""
        return b"".join([chunk async for chunk in self])

    def disconnect(self) -> None:
        """The client leaves: the app's `receive` says so from now on."""
        self._disconnected.set()

    async def _next(self) -> Message | None:
        try:
            return await self._messages.receive()
        except anyio.EndOfStream:
            if self._error is not None:
                raise self._error from None
            return None


@asynccontextmanager
async def stream_asgi(
    app: ASGIApp,
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
    scope: Scope | None = None,
    buffer: float = math.inf,
) -> AsyncIterator[StreamedReply]:
    """Call `app` with one request; inside the block the reply can be read as it is sent.

    Leaving the block cancels what still runs. `path` may have a query. `scope` adds to or replaces the keys of the ASGI
    scope; `buffer` is how many messages the app may send ahead of the reader.
    """
    path, _, query = path.partition("?")
    call: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
        **(scope or {}),
    }
    sender, receiver = anyio.create_memory_object_stream[Message](buffer)
    disconnected = anyio.Event()
    reply = StreamedReply(receiver, disconnected)
    async with anyio.create_task_group() as tasks, receiver:
        tasks.start_soon(_run, app, call, body, sender, reply, disconnected)
        try:
            yield reply
        finally:
            tasks.cancel_scope.cancel()


async def _run(  # noqa: PLR0917  the body of one task, started with all it needs
    app: ASGIApp,
    scope: Scope,
    body: bytes,
    sender: ObjectSendStream[Message],
    reply: StreamedReply,
    disconnected: anyio.Event,
) -> None:
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await sender.send(message)

    try:
        await app(scope, receive, send)
    except Exception as error:  # noqa: BLE001  whatever the app raised is raised where the test reads
        reply._error = error  # noqa: SLF001  the two belong together
    finally:
        reply.finished.set()
        await sender.aclose()
