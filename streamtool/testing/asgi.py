"""A caller for ASGI apps that receives a reply while it is being sent.

Other callers wait for the app to finish and return one body. Here, each message can be inspected as soon as the app has
sent it, the client can disconnect in the middle of a reply, and everything runs on the test's async backend, without a
socket. The app's `send` returns immediately (without back-pressure) unless `buffer` is given.
"""

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Self

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from streamtool.asgi.types import ASGIApp, ASGIMessage, Scope


class StreamedReply:
    """The app's response while it is being sent.

    `head()` waits for the status and the headers; `chunks()` yields the body in pieces, as sent; `body()` returns the
    remaining body in one piece. An exception from the app is raised by the method that is waiting for the app.
    """

    def __init__(self, messages: ObjectReceiveStream[ASGIMessage], disconnected: anyio.Event) -> None:
        self._messages = messages
        self._disconnected = disconnected
        self._error: BaseException | None = None
        self._ended = False
        self.status: int = 0
        self.headers: dict[str, str] = {}
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.finished: anyio.Event = anyio.Event()
        """Set when the app has returned or has been cancelled."""

    async def head(self) -> int:
        """Wait for the status and return it. Also sets `headers` (names in lower case)."""
        if not self.status:
            message = await self._next()
            if message is None:
                raise RuntimeError("the app returned without a response")
            self.status = message["status"]
            self.raw_headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.raw_headers}
        return self.status

    def chunks(self) -> Self:
        """Return an iterator over the non-empty body messages. It stops after the last one, or when the app returns."""
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
        """Return the remaining body."""
        return b"".join([chunk async for chunk in self])

    def disconnect(self) -> None:
        """Disconnect the client. From then on, the app's `receive` returns `http.disconnect`."""
        self._disconnected.set()

    async def _next(self) -> ASGIMessage | None:
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
    """Call `app` with one request. Inside the block, the reply can be read as it is sent.

    Leaving the block cancels the app. `path` may contain a query. `scope` adds or replaces keys of the ASGI scope.
    `buffer` is the number of messages that the app may send ahead of the reader.
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
    sender, receiver = anyio.create_memory_object_stream[ASGIMessage](buffer)
    disconnected = anyio.Event()
    reply = StreamedReply(receiver, disconnected)
    async with anyio.create_task_group() as tasks, receiver:
        tasks.start_soon(_run, app, call, body, sender, reply, disconnected)
        try:
            yield reply
        finally:
            tasks.cancel_scope.cancel()


async def _run(  # noqa: PLR0917  the body of a task, which starts with everything it needs
    app: ASGIApp,
    scope: Scope,
    body: bytes,
    sender: ObjectSendStream[ASGIMessage],
    reply: StreamedReply,
    disconnected: anyio.Event,
) -> None:
    pending = [body]

    async def receive() -> ASGIMessage:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: ASGIMessage) -> None:
        await sender.send(message)

    try:
        await app(scope, receive, send)
    except Exception as error:  # noqa: BLE001  raised again when the test reads the reply
        reply._error = error  # noqa: SLF001  the classes belong together
    finally:
        reply.finished.set()
        await sender.aclose()
