"""One request of an agent and its reply: Chat Completions, spoken to the middleware around the upstream.

The middleware is called in place, without a socket: the request is a body, the reply comes in pieces, which the
protocol's own reader turns into the events that the agent tells. So an agent can do what any client can, and nothing
of the emulation exists twice.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
from attrs import evolve, field, frozen

from streamtool.agent.events import Event, OutputDelta, ThoughtDelta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart
from streamtool.agent.tool_names import Names
from streamtool.conversation import Conversation, Message, TextPart, ToolCall, ToolChoice
from streamtool.errors import RequestError, StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.exchange import Record
from streamtool.http.answers import new_id
from streamtool.http.asgi import SCOPE, ASGIApp, Receive, Scope, Send
from streamtool.http.asgi import Message as Sent
from streamtool.http.gate import Gate
from streamtool.http.middleware import UPSTREAM_KEY, ToolMiddleware
from streamtool.http.templates import ChatTemplates
from streamtool.observe.observers import OnExchange
from streamtool.policy import CallIds
from streamtool.protocols import chat
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.reply import (
    Choice,
    Reason,
    ReplyAccumulator,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyReasoningDelta,
    ReplyTextDelta,
    Usage,
)
from streamtool.settings import ModelSettings, Settings

Tell = Callable[[Event], Awaitable[None]]

PATH = "/v1/chat/completions"
LISTENER = "streamtool.agent.listener"
"""Key of the ASGI scope under which the raw text of the upstream's replies is listened for."""
_records: ContextVar[Callable[[Record], object]] = ContextVar("records")
"""Who is told of an exchange: several runs share one middleware."""


@frozen
class ModelReply:
    """A reply."""

    message: Message
    """As a message of the history, with its calls."""
    calls: tuple[ToolCallEnd, ...]
    reason: Reason
    usage: Usage
    raw: str = field(repr=False)
    """What the upstream has written, call syntax and all, if somebody listened."""


class Listener:
    """Hears what the upstream writes in one attempt."""

    __slots__ = ("_pieces", "_reader", "_upstream")

    def __init__(self, upstream: UpstreamProtocol) -> None:
        self._upstream = upstream
        self.begin()

    def begin(self) -> None:
        """Another attempt begins: what the last one said does not count."""
        self._reader = self._upstream.ReplyReader(n=1)
        self._pieces: list[str] = []

    def hear(self, body: bytes, *, last: bool) -> None:
        """A piece of the body."""
        events = self._reader.feed(body) + (self._reader.close() if last else [])
        self._pieces += [event.text for event in events if isinstance(event, ReplyTextDelta)]

    @property
    def text(self) -> str:
        """All that was written as text."""
        return "".join(self._pieces)


def listening(app: ASGIApp) -> ASGIApp:
    """`app`, with whoever listens to its replies."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        listener: Listener | None = scope.get(LISTENER)
        if listener is None:
            await app(scope, receive, send)
            return
        listener.begin()

        async def hear(message: Sent) -> None:
            if message["type"] == "http.response.body":
                listener.hear(message.get("body", b""), last=not message.get("more_body", False))
            await send(message)

        await app(scope, receive, hear)

    return call


def middleware_of(
    settings: Settings,
    apps: Mapping[str, ASGIApp],
    on_exchange: OnExchange | None = None,
    templates: ChatTemplates | None = None,
) -> ToolMiddleware:
    """What runs talk through to these upstreams, by name; the first one is for models that no rule sends elsewhere."""
    first = next(iter(apps))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[scope.get(UPSTREAM_KEY, first)](scope, receive, send)

    def heard(record: Record) -> None:
        _records.get()(record)
        if on_exchange is not None:
            on_exchange(record)

    # calls go out as they come and by whatever name, because the agent itself looks at names and arguments
    settings = evolve(settings, unknown_tools="deliver", arguments="stream", tools={})
    made = ToolMiddleware(listening(route), settings=settings, on_exchange=heard, templates=templates)
    made.gate = Gate()  # its one client is the agent
    return made


class ModelClient:
    """What one run says to the model, and hears."""

    __slots__ = ("_choice", "_conversation", "_headers", "_listens", "_names", "_record", "_tools")

    def __init__(
        self,
        middleware: ToolMiddleware,
        conversation: Conversation,
        names: Names,
        listens: UpstreamProtocol | None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        *,
        choice: ToolChoice,
    ) -> None:
        self._tools = middleware
        self._conversation = evolve(conversation, tools=tuple(map(names.offered, conversation.tools)))
        self._names = names
        self._listens = listens
        self._headers = headers
        self._choice = choice
        """Of the first reply; later ones may call what they like."""
        self._record: Record | None = None

    def _recorded(self, record: Record) -> None:
        self._record = record

    async def reply(self, messages: Sequence[Message], tell: Tell) -> ModelReply:
        """The reply to these messages; `tell` hears of it as it comes. Raises StreamtoolError when there is none."""
        listener = None if self._listens is None else Listener(self._listens)
        past = (call.id for message in messages for call in message.calls)
        hearing = _Hearing(self._names, tell, CallIds(lambda: new_id(chat.CALL_ID), past))
        self._record = None
        asked = evolve(self._conversation, messages=tuple(map(self._names.out, messages)), choice=self._choice)
        self._choice = ToolChoice()
        model = ModelSettings(asked.model)
        await self._call(chat.write_request(asked, model, stream=True), hearing, listener)
        fold = hearing.fold.close()
        if hearing.status >= 400 or fold.failure is not None or not fold.choices:
            raise self._error(hearing, fold.failure)
        return _told(fold.choices[0], hearing, fold.usage, "" if listener is None else listener.text)

    async def _call(self, body: bytes, hearing: "_Hearing", listener: Listener | None) -> None:
        bodies = [body]

        async def receive() -> Sent:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await anyio.sleep_forever()
            return {"type": "http.disconnect"}

        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._headers,
        ]
        loopback = ("127.0.0.1", 0)
        asked = {"method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"", "headers": headers}
        scope: dict[str, Any] = {**SCOPE, **asked, "client": loopback, "server": loopback}
        if listener is not None:
            scope[LISTENER] = listener
        token = _records.set(self._recorded)
        try:
            await self._tools(scope, receive, hearing.send)
        finally:
            _records.reset(token)

    def _error(self, hearing: "_Hearing", failure: StreamtoolError | None) -> StreamtoolError:
        """Why there is no reply: what the exchange recorded, else what it answered."""
        if self._record is not None and self._record.error is not None:
            return self._record.error
        if failure is None:
            return UpstreamError("the upstream gave no reply")
        # there was no exchange at all: what was asked cannot be asked, or had nothing to do with tools and passed
        if hearing.status == 400:
            return RequestError(failure.message, param=failure.param, code=failure.code)
        if hearing.status > 400:
            return UpstreamRefused(failure.message, status=hearing.status, code=failure.code)
        return failure


class _Hearing:
    """Takes the reply of the middleware, and tells it.

    A result finds its call by its id, and upstreams with native tools may give none, or one twice: such a call gets an
    id of its own.
    """

    __slots__ = ("_ids", "_names", "_reader", "_tell", "calls", "fold", "status")

    def __init__(self, names: Names, tell: Tell, ids: CallIds) -> None:
        self._reader = chat.ReplyReader()
        self._names = names
        self._tell = tell
        self._ids = ids
        self.calls: dict[int, tuple[str, str, list[str]]] = {}
        """Id, name and arguments, in the order in which they were begun."""
        self.fold = ReplyAccumulator()
        self.status = 0

    async def send(self, message: Sent) -> None:
        """What the middleware sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            events = self._reader.feed(message.get("body", b""))
            if not message.get("more_body", False):
                events += self._reader.close()
            self.fold.feed(events)
            for event in events:
                await self._told(event)

    async def _told(self, event: ReplyEvent) -> None:
        match event:
            case ReplyTextDelta(text=text):
                await self._tell(OutputDelta(text))
            case ReplyReasoningDelta(text=text):
                await self._tell(ThoughtDelta(text))
            case ReplyCallStart(index=index, id=id, name=name):
                self.calls[index] = (self._ids.take(id), self._names.back(name), [])
                await self._tell(ToolCallStart(*self.calls[index][:2]))
            case ReplyArgumentsDelta(index=index, text=text):
                id, _, pieces = self.calls[index]
                pieces.append(text)
                await self._tell(ToolArgumentsDelta(id, text))
            case ReplyCallEnd(index=index, complete=complete):
                id, name, pieces = self.calls[index]
                await self._tell(ToolCallEnd(id, name, "".join(pieces), complete))
            case _:
                pass


def _told(choice: Choice, hearing: _Hearing, usage: Usage | None, raw: str) -> ModelReply:
    heard = zip(hearing.calls.values(), choice.calls, strict=True)
    calls = tuple(ToolCallEnd(id, name, call.arguments, call.complete) for (id, name, _), call in heard)
    kept = [
        # what was cut off is no JSON, and some upstreams refuse a history that holds it
        ToolCall(end.id, end.name, call.arguments if call.complete else "{}", signature=call.signature)
        for end, call in zip(calls, choice.calls, strict=True)
    ]
    content = (TextPart(choice.text),) if choice.text else ()
    return ModelReply(
        Message("assistant", content, calls=tuple(kept)), calls, choice.reason or Reason.STOP, usage or Usage(), raw
    )
