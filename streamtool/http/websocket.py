"""Responses over a websocket: each message that asks for a response is a request of its own to the app.

    receive ─▶ read ─▶ lane ─▶ the app, called as for a POST ─▶ its events, one in a message ─▶ send
                    └▶ lane ─▶ …

So bounds, keys, records, retries and the end of a server are those of any request. A connection adds: lanes, in which
one request follows the other, and a memory for what the client does not want to be stored, which ends with it. When the
client leaves, its requests learn that as those of any client that leaves. When the server stops, or after the time that
a connection may last, no request begins any more, and the connection is closed behind the last reply.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final

import anyio
from anyio.abc import TaskGroup

from streamtool.errors import RequestError, StreamtoolError, TooManyError, UnavailableError, UpstreamError
from streamtool.http.answers import send_error
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send, route_path
from streamtool.http.gate import Gate
from streamtool.http.off_loop import sized
from streamtool.http.origins import Origins
from streamtool.http.served_exchange import PREPARES
from streamtool.http.storing import UNSTORED
from streamtool.protocols.registry import WEBSOCKETS, at_path, client_protocol
from streamtool.protocols.responses import websocket
from streamtool.protocols.responses.complete import write_error
from streamtool.protocols.responses.websocket import SocketRequest, SteerRefused
from streamtool.settings import LimitSettings, Settings
from streamtool.sse import SseReader
from streamtool.state.memory_store import MemoryStore
from streamtool.state.replies import Shelf

_STREAM: Final = b"text/event-stream"
_OPEN: Final = 16
"""Requests of one connection that wait or are served."""
_LANES: Final = 32
"""Names of lanes on one connection."""
_REASON: Final = 123
"""Bytes of a sentence that a closing frame can bear."""
_LEAVING: Final = 5.0
"""Seconds in which what is served may end once the client has left."""
_OK: Final = 200
_GOING_AWAY: Final = 1012
"""The code with which a server closes that stops: clients connect again."""
_HANDSHAKE: Final = frozenset(
    (b"connection", b"upgrade", b"content-type", b"content-length", b"transfer-encoding", b"expect")
)
"""Headers that belong to the connection."""


_log = logging.getLogger("streamtool")


class Sockets:
    """The websockets of a shell."""

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self._paths = settings.paths
        self._limits = settings.limits
        self._origins = Origins(settings)
        self._gate = gate
        self._unstored = MemoryStore(settings.store)
        self._names = count()

    def serves(self, scope: Scope) -> bool:
        """Whether a websocket asks for one of the paths at which clients may speak over one."""
        return at_path(self._paths, route_path(scope)) in WEBSOCKETS

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one, with `app` for its requests, until its client leaves or it has to end."""
        try:
            self._origins.check_origin({**scope, "method": "POST"})  # no preflight has asked
        except StreamtoolError as error:
            await refuse(error, scope, receive, send)
            return
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        name = f"socket-{next(self._names)}"
        session = _Session(app, _request_scope(scope, Shelf(self._unstored, name)), send, self._limits)
        self._gate.at_drain.add(session.drain)
        if self._gate.draining:
            session.drain()
        try:
            await session.run(receive)
        finally:
            self._gate.at_drain.discard(session.drain)
            self._unstored.leave(name)


class _Session:
    """One connection."""

    __slots__ = (
        "_app", "_closing", "_drained", "_gone", "_lanes", "_limits", "_open", "_quiet", "_reading", "_scope", "_send",
        "_sending",
    )  # fmt: skip

    def __init__(self, app: ASGIApp, scope: Scope, send: Send, limits: LimitSettings) -> None:
        self._app = app
        self._scope = scope
        self._send = send
        self._limits = limits
        self._lanes: dict[str | None, deque[SocketRequest]] = {}
        """What waits in each lane that was ever named; the first one is served."""
        self._open = 0
        self._quiet = anyio.Event()
        """Set when nothing is served any more."""
        self._drained = anyio.Event()
        self._closing: StreamtoolError | None = None
        """Why no request begins any more."""
        self._gone = anyio.Event()
        """Nobody is there any more."""
        self._reading = anyio.CancelScope()
        self._sending = anyio.Lock(fast_acquire=True)

    def drain(self) -> None:
        """The server stops."""
        self._drained.set()

    async def run(self, receive: Receive) -> None:
        """Until the client has left, or the connection is closed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._close_in_time)
            with self._reading:
                while (message := await receive())["type"] != "websocket.disconnect":
                    await self._take(message, tasks)
            self._gone.set()
            with anyio.move_on_after(_LEAVING):
                await self._until_quiet()
            tasks.cancel_scope.cancel()

    async def _until_quiet(self) -> None:
        """Wait until nothing is served."""
        while self._open:
            if self._quiet.is_set():
                self._quiet = anyio.Event()
            await self._quiet.wait()

    async def _close_in_time(self) -> None:
        """Close the connection when the server stops, or when it has lasted long enough."""
        seconds = self._limits.websocket_seconds
        with anyio.move_on_after(seconds):
            await self._drained.wait()
        if self._drained.is_set():
            self._closing = UnavailableError("the server is shutting down; connect again", code="shutting_down")
        else:
            self._closing = RequestError(
                f"this connection has lasted {seconds:g} seconds (limits.websocket_seconds); open a new one",
                code="websocket_connection_limit_reached",
            )
            await self._refuse(self._closing, None)
        await self._until_quiet()
        if not self._gone.is_set():
            await self._put({"type": "websocket.close", "code": _GOING_AWAY if self._drained.is_set() else 1000})
        self._reading.cancel()

    async def _take(self, message: Message, tasks: TaskGroup) -> None:
        """What the client sends."""
        text = message.get("text")
        data: bytes = message.get("bytes") or b"" if text is None else text.encode("utf-8", "replace")
        try:
            if self._closing is not None:
                raise self._closing
            request = await sized(partial(websocket.read_message, data, self._limits), len(data))
            self._admit(request)
        except SteerRefused as refused:
            await self._tell(refused.message)
        except StreamtoolError as error:
            await self._refuse(error, await sized(partial(websocket.lane_of, data), len(data)))
        else:
            self._open += 1
            lane = self._lanes.setdefault(request.lane, deque())
            lane.append(request)
            if len(lane) == 1:
                tasks.start_soon(self._serve, lane)

    def _admit(self, request: SocketRequest) -> None:
        """Raises TooManyError."""
        if self._open >= _OPEN:
            raise TooManyError(
                f"this connection has {_OPEN} requests open; send the request again when one of them is over",
                code="rate_limit_exceeded",
            )
        named = len(self._lanes) - (None in self._lanes)
        if request.lane not in (None, *self._lanes) and named >= _LANES:
            raise TooManyError(
                f"this connection has {_LANES} lanes; use one of them, or another connection",
                param=websocket.LANE,
                code="websocket_stream_limit_reached",
            )

    async def _serve(self, lane: deque[SocketRequest]) -> None:
        """What waits in a lane, one after the other."""
        while lane:
            if not self._gone.is_set():
                await self._answer(lane[0])
            lane.popleft()
            self._open -= 1
            if not self._open:
                self._quiet.set()

    async def _answer(self, request: SocketRequest) -> None:
        given = [request.body]
        answer = _Answer(request.lane, self._tell, self._limits.reply)

        async def receive() -> Message:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await self._gone.wait()
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
        except Exception:  # noqa: BLE001  the other requests of the connection go on
            _log.exception("the application failed")
            await answer.fail(StreamtoolError("the application failed"))
        else:
            await answer.fail(UpstreamError("the reply broke off"))

    async def _refuse(self, error: StreamtoolError, lane: str | None) -> None:
        await self._tell(websocket.write_refusal(error.status, write_error(error), lane))

    async def _tell(self, text: str) -> None:
        await self._put({"type": "websocket.send", "text": text})

    async def _put(self, message: Message) -> None:
        try:
            async with self._sending:
                await self._send(message)
        except OSError:  # how a server tells that the client has left
            self._gone.set()


class _Answer:
    """What the app answers to one request, told in messages. `tell` sends one; `most` bounds an answer in one piece."""

    __slots__ = ("_body", "_events", "_headers", "_lane", "_most", "_over", "_status", "_tell")

    def __init__(self, lane: str | None, tell: Callable[[str], Awaitable[None]], most: int) -> None:
        self._lane = lane
        self._tell = tell
        self._most = most
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._events: SseReader | None = None
        """Of a stream; None: the answer comes in one piece."""
        self._body = bytearray()
        self._over = False

    async def put(self, message: Message) -> None:
        """The `send` of the app."""
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
            self._over = self._over or last

    async def fail(self, error: StreamtoolError) -> None:
        """The app will say no more; tell of the error unless it had come to an end."""
        if not self._over:
            self._over = True
            await self._tell(websocket.write_refusal(error.status, write_error(error), self._lane))

    async def _gather(self, piece: bytes, *, last: bool) -> None:
        self._body += piece
        if len(self._body) > self._most:
            raise UpstreamError(f"the upstream's reply is larger than {self._most} bytes (limits.reply)")
        if not last:
            return
        body = bytes(self._body)
        if self._status == _OK:
            await self._tell(websocket.write_whole(body, self._lane))
        else:
            wait = self._headers.get(b"retry-after", b"").decode("latin-1")
            await self._tell(websocket.write_refusal(self._status, body, self._lane, wait))


async def refuse(error: StreamtoolError, scope: Scope, receive: Receive, send: Send) -> None:
    """Do not accept a websocket; the client learns why if its server can tell it."""
    await receive()
    if "websocket.http.response" not in (scope.get("extensions") or ()):
        reason = error.message.encode("utf-8", "replace")[:_REASON].decode("utf-8", "ignore")
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return

    async def answer(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_error(client_protocol("responses"), error, answer)


def _request_scope(scope: Scope, unstored: Shelf) -> Scope:
    """The scope of a request that comes over the websocket of `scope`."""
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
