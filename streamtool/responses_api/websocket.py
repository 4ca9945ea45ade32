"""Responses over a websocket: each message that requests a response becomes a separate request to the app.

    receive ─▶ read ─▶ lane ─▶ the app, called as for a POST ─▶ its events, one per message ─▶ send
                    └▶ lane ─▶ …

Limits, keys, records, retries and shutdown therefore work as for any other request. A connection adds lanes, which
process their requests in sequence, and a store for responses that the client does not want stored permanently; this
store is discarded when the connection closes. When the client disconnects, each of its requests is notified of the
disconnect. When the server stops, or the connection has reached its maximum age, no more requests are accepted, and the
connection is closed after the last reply.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final

import anyio
from anyio.abc import TaskGroup

from streamtool.asgi.answers import send_error
from streamtool.asgi.off_loop import sized
from streamtool.asgi.types import ASGIApp, ASGIMessage, Receive, Scope, Send, route_path
from streamtool.core.errors import RequestError, StreamtoolError, TooManyError, UnavailableError, UpstreamError
from streamtool.core.sse import SseReader
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.responses import websocket
from streamtool.protocols.responses.complete import write_error
from streamtool.protocols.responses.websocket import SocketRequest, SteerRejected
from streamtool.protocols.table import WEBSOCKETS, at_path
from streamtool.server.gate import Gate
from streamtool.server.origins import Origins
from streamtool.server.served_exchange import PREPARES
from streamtool.settings import LimitSettings, Settings
from streamtool.store.memory_store import MemoryStore
from streamtool.store.replies import ClientStoreView
from streamtool.store.storing import UNSTORED

_STREAM: Final = b"text/event-stream"
_MAX_OPEN: Final = 16
"""Maximum number of pending requests per connection."""
_MAX_LANES: Final = 32
"""Maximum number of named lanes per connection."""
_MAX_REASON: Final = 123
"""Maximum length of the reason in a close frame, in bytes."""
_LEAVE_SECONDS: Final = 5.0
"""Maximum number of seconds to wait for requests to end after the client has disconnected."""
_OK: Final = 200
_GOING_AWAY: Final = 1012
"""The close code of a server that is stopping; it makes clients connect again."""
_HANDSHAKE: Final = frozenset(
    (b"connection", b"upgrade", b"content-type", b"content-length", b"transfer-encoding", b"expect")
)
"""Headers that apply only to the connection, not to the requests on it."""


_log = logging.getLogger("streamtool")


class Sockets:
    """The websockets of a driver."""

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self._paths = settings.paths
        self._limits = settings.limits
        self._origins = Origins(settings)
        self._gate = gate
        self._unstored = MemoryStore(settings.store)
        self._names = count()

    def serves(self, scope: Scope) -> bool:
        """Return whether clients may use the path over a websocket."""
        return at_path(self._paths, route_path(scope)) in WEBSOCKETS

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a websocket until the client disconnects or the connection has to be closed. `app` serves its
        requests.
        """
        try:
            self._origins.check_origin({**scope, "method": "POST"})  # websockets have no preflight
        except StreamtoolError as error:
            await reject(error, scope, receive, send)
            return
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        name = f"socket-{next(self._names)}"
        session = _Session(app, _request_scope(scope, ClientStoreView(self._unstored, name)), send, self._limits)
        self._gate.on_drain.add(session.drain)
        if self._gate.draining:
            session.drain()
        try:
            await session.run(receive)
        finally:
            self._gate.on_drain.discard(session.drain)
            self._unstored.forget_client(name)


class _Session:
    """One connection."""

    def __init__(self, app: ASGIApp, scope: Scope, send: Send, limits: LimitSettings) -> None:
        self._app = app
        self._scope = scope
        self._send = send
        self._limits = limits
        self._lanes: dict[str | None, deque[SocketRequest]] = {}
        """Pending requests by lane, including lanes that are now empty. The first request of a lane is being served."""
        self._open = 0
        self._idle = anyio.Event()
        """Set when the last open request has ended."""
        self._drained = anyio.Event()
        self._closing: StreamtoolError | None = None
        """The error that rejects further requests; None while they are accepted."""
        self._disconnected = anyio.Event()
        """Set when the client has disconnected."""
        self._reading = anyio.CancelScope()
        self._sending = anyio.Lock(fast_acquire=True)

    def drain(self) -> None:
        """Stop accepting requests, because the server is shutting down."""
        self._drained.set()

    async def run(self, receive: Receive) -> None:
        """Serve messages until the client has disconnected or the connection is closed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._close_in_time)
            with self._reading:
                while (message := await receive())["type"] != "websocket.disconnect":
                    await self._handle(message, tasks)
            self._disconnected.set()
            with anyio.move_on_after(_LEAVE_SECONDS):
                await self._wait_until_idle()
            tasks.cancel_scope.cancel()

    async def _wait_until_idle(self) -> None:
        """Wait until no request is open."""
        while self._open:
            if self._idle.is_set():
                self._idle = anyio.Event()
            await self._idle.wait()

    async def _close_in_time(self) -> None:
        """Close the connection when the server stops or the connection has reached its maximum age."""
        seconds = self._limits.websocket_seconds
        with anyio.move_on_after(seconds):
            await self._drained.wait()
        if self._drained.is_set():
            self._closing = UnavailableError("the server is shutting down; connect again", code="shutting_down")
        else:
            self._closing = RequestError(
                f"this connection has been open for {seconds:g} seconds (limits.websocket_seconds); open a new one",
                code="websocket_connection_limit_reached",
            )
            await self._reject(self._closing, None)
        await self._wait_until_idle()
        if not self._disconnected.is_set():
            await self._put({"type": "websocket.close", "code": _GOING_AWAY if self._drained.is_set() else 1000})
        self._reading.cancel()

    async def _handle(self, message: ASGIMessage, tasks: TaskGroup) -> None:
        """Handle a message from the client."""
        text = message.get("text")
        data: bytes = message.get("bytes") or b"" if text is None else text.encode("utf-8", "replace")
        try:
            if self._closing is not None:
                raise self._closing
            request = await sized(partial(websocket.read_message, data, self._limits), len(data))
            self._admit(request)
        except SteerRejected as refused:
            await self._send_text(refused.message)
        except StreamtoolError as error:
            await self._reject(error, await sized(partial(websocket.lane_of, data), len(data)))
        else:
            self._open += 1
            lane = self._lanes.setdefault(request.lane, deque())
            lane.append(request)
            if len(lane) == 1:
                tasks.start_soon(self._serve, lane)

    def _admit(self, request: SocketRequest) -> None:
        """Raise TooManyError if the request exceeds one of the connection's limits."""
        if self._open >= _MAX_OPEN:
            raise TooManyError(
                f"this connection has {_MAX_OPEN} requests open; send the request again when one of them has ended",
                code="rate_limit_exceeded",
            )
        named = len(self._lanes) - (None in self._lanes)
        if request.lane not in (None, *self._lanes) and named >= _MAX_LANES:
            raise TooManyError(
                f"this connection has {_MAX_LANES} lanes; use one of them, or another connection",
                param=websocket.LANE,
                code="websocket_stream_limit_reached",
            )

    async def _serve(self, lane: deque[SocketRequest]) -> None:
        """Serve the requests of a lane one after another."""
        while lane:
            if not self._disconnected.is_set():
                await self._serve_one(lane[0])
            lane.popleft()
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _serve_one(self, request: SocketRequest) -> None:
        given = [request.body]
        answer = _Answer(request.lane, self._send_text, self._limits.reply)

        async def receive() -> ASGIMessage:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await self._disconnected.wait()
            return {"type": "http.disconnect"}

        scope = dict(self._scope)
        if request.stored:
            del scope[UNSTORED]
        if not request.generates:
            scope[PREPARES] = True
        try:
            await self._app(scope, receive, answer.put)
        except StreamtoolError as error:
            await answer.fail(error)
        except Exception:  # noqa: BLE001  the other requests of the connection continue
            _log.exception("the application failed")
            await answer.fail(StreamtoolError("the application failed"))
        else:
            await answer.fail(UpstreamError("the reply was cut off"))

    async def _reject(self, error: StreamtoolError, lane: str | None) -> None:
        await self._send_text(websocket.write_rejection(error.status, write_error(error), lane))

    async def _send_text(self, text: str) -> None:
        await self._put({"type": "websocket.send", "text": text})

    async def _put(self, message: ASGIMessage) -> None:
        try:
            async with self._sending:
                await self._send(message)
        except OSError:  # some servers report a disconnect this way
            self._disconnected.set()


class _Answer:
    """The app's response to one request, converted to messages.

    `tell` sends a message. `most` limits the size of a response that is not streamed, in bytes.
    """

    def __init__(self, lane: str | None, tell: Callable[[str], Awaitable[None]], most: int) -> None:
        self._lane = lane
        self._tell = tell
        self._limit = most
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._events: SseReader | None = None
        """The parser for a streamed response; None if the response is one document."""
        self._body = bytearray()
        self._ended = False

    async def put(self, message: ASGIMessage) -> None:
        """Handle a message from the app. This is the app's `send`."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.lower(): value for name, value in message.get("headers", ())}
            if self._status == _OK and self._headers.get(b"content-type", b"").startswith(_STREAM):
                self._events = SseReader()
        elif message["type"] == "http.response.body":
            body, last = message.get("body", b""), not message.get("more_body", False)
            if self._events is None:
                await self._gather(body, last=last)
            else:
                for event in [*self._events.feed(body), *(self._events.close() if last else ())]:
                    if event.data.startswith(b"{"):
                        await self._tell(websocket.write_event(event, self._lane))
            self._ended = self._ended or last

    async def fail(self, error: StreamtoolError) -> None:
        """Report an error unless the response has already ended. Called once the app has stopped sending."""
        if not self._ended:
            self._ended = True
            await self._tell(websocket.write_rejection(error.status, write_error(error), self._lane))

    async def _gather(self, piece: bytes, *, last: bool) -> None:
        self._body += piece
        if len(self._body) > self._limit:
            raise UpstreamError(f"the upstream's reply is larger than {self._limit} bytes (limits.reply)")
        if not last:
            return
        body = bytes(self._body)
        if self._status == _OK:
            await self._tell(websocket.write_whole(body, self._lane))
        else:
            wait = self._headers.get(b"retry-after", b"").decode("latin-1")
            await self._tell(websocket.write_rejection(self._status, body, self._lane, wait))


async def reject(error: StreamtoolError, scope: Scope, receive: Receive, send: Send) -> None:
    """Reject a websocket. The client learns the reason if the server software can report it."""
    await receive()
    if "websocket.http.response" not in (scope.get("extensions") or ()):
        reason = error.message.encode("utf-8", "replace")[:_MAX_REASON].decode("utf-8", "ignore")
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return

    async def answer(message: ASGIMessage) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_error(client_protocol("responses"), error, answer)


def _request_scope(scope: Scope, unstored: ClientStoreView) -> Scope:
    """Return the scope of a request that arrives over the websocket of `scope`."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in _HANDSHAKE and not name.lower().startswith(b"sec-websocket-")
    ]
    inner = {name: value for name, value in scope.items() if name not in ("subprotocols", "extensions")}
    return {
        **inner,
        "type": "http",
        "method": "POST",
        "scheme": "https" if scope.get("scheme") == "wss" else "http",
        "headers": [*headers, (b"content-type", b"application/json")],
        UNSTORED: unstored,
    }
