"""One request from an agent and its reply, in Chat Completions, through the middleware in front of the upstream.

The middleware is called directly, without a socket. The reply arrives in pieces, which the protocol's own reader turns
into agent events. An agent can therefore do everything that a client can, and no part of the emulation is duplicated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
from attrs import define, evolve, field, frozen

from streamtool.agent.events import (
    Emit,
    OutputDelta,
    ThoughtDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from streamtool.agent.tool_names import Names
from streamtool.asgi.answers import new_id
from streamtool.asgi.off_loop import sized
from streamtool.asgi.types import SCOPE, ASGIApp, ASGIMessage, Receive, Scope, Send
from streamtool.core.conversation import Conversation, Message, TextPart, ToolCall, ToolChoice
from streamtool.core.errors import RequestError, StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.core.reply import (
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
from streamtool.exchange import Record
from streamtool.filters import CallIds, comparable_call, shown_calls
from streamtool.middleware import UPSTREAM_KEY, ToolMiddleware
from streamtool.observe.observers import OnExchange
from streamtool.protocols import chat
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.server.gate import Gate
from streamtool.settings import ModelSettings, Settings
from streamtool.upstream.chat_templates import ChatTemplates

PATH = "/v1/chat/completions"
LISTENER = "streamtool.agent.listener"
"""ASGI scope key for the listener that receives the raw text of the upstream's replies."""
_records: ContextVar[Callable[[Record], object]] = ContextVar("records")
"""Receives the records of the current run; context-local because several runs share one middleware."""


@frozen
class ModelReply:
    """A reply from the model."""

    message: Message
    """The reply as a history message, with its calls."""
    calls: tuple[ToolCallEnd, ...]
    reason: Reason
    usage: Usage
    raw: str = field(repr=False)
    """Text exactly as written by the upstream, including call syntax; empty if no listener was used."""


class Listener:
    """Collects the text that the upstream writes in one attempt."""

    __slots__ = ("_pieces", "_reader", "_upstream")

    def __init__(self, upstream: UpstreamProtocol) -> None:
        self._upstream = upstream
        self.begin()

    def begin(self) -> None:
        """Start a new attempt, and discard the text of the previous attempt."""
        self._reader = self._upstream.ReplyReader(n=1)
        self._pieces: list[str] = []

    def feed(self, body: bytes, *, last: bool) -> None:
        """Add a piece of the body."""
        events = self._reader.feed(body) + (self._reader.close() if last else [])
        self._pieces += [event.text for event in events if isinstance(event, ReplyTextDelta)]

    @property
    def text(self) -> str:
        """All text written so far."""
        return "".join(self._pieces)


def with_listener(app: ASGIApp) -> ASGIApp:
    """Wrap `app` so that its replies are also passed to the listener in the scope, if there is one."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        listener: Listener | None = scope.get(LISTENER)
        if listener is None:
            await app(scope, receive, send)
            return
        listener.begin()

        async def hear(message: ASGIMessage) -> None:
            if message["type"] == "http.response.body":
                listener.feed(message.get("body", b""), last=not message.get("more_body", False))
            await send(message)

        await app(scope, receive, hear)

    return call


def make_middleware(
    settings: Settings,
    apps: Mapping[str, ASGIApp],
    on_exchange: OnExchange | None = None,
    templates: ChatTemplates | None = None,
) -> ToolMiddleware:
    """Return the middleware that connects runs to these upstreams.

    `apps` maps names to upstreams. The first one serves every model that no rule routes elsewhere.
    """
    first = next(iter(apps))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[scope.get(UPSTREAM_KEY, first)](scope, receive, send)

    def heard(record: Record) -> None:
        _records.get()(record)
        if on_exchange is not None:
            on_exchange(record)

    # Calls are streamed as they arrive and with any name, because the agent checks names and arguments itself.
    quoted = "report" if settings.quoted == "text" else settings.quoted
    # They are executed, so no name is guessed from one that differs in a letter.
    settings = evolve(
        settings, unknown_tools="deliver", arguments="stream", tools={}, quoted=quoted, tool_names="spelling"
    )
    made = ToolMiddleware(with_listener(route), settings=settings, on_exchange=heard, templates=templates)
    made.gate = Gate()  # its only client is the agent
    return made


class ModelClient:
    """Sends the requests of one run to the model."""

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
        self._conversation = evolve(conversation, tools=tuple(map(names.translate_tool, conversation.tools)))
        self._own_tools = conversation.tools
        """The tools under their original names."""
        self._names = names
        self._raw_protocol = listens
        self._headers = headers
        self._tool_choice = choice
        """Tool choice for the first reply; later replies choose freely."""
        self._record: Record | None = None

    def _recorded(self, record: Record) -> None:
        self._record = record

    async def reply(self, messages: Sequence[Message], tell: Emit) -> ModelReply:
        """Request a reply to these messages. `tell` receives reply events as they arrive. Raises StreamtoolError."""
        listener = None if self._raw_protocol is None else Listener(self._raw_protocol)
        past = (call.id for message in messages for call in message.calls)
        hearing = _ReplyReceiver(self._names, tell, CallIds(lambda: new_id(chat.CALL_ID), past))
        self._record = None
        asked = evolve(
            self._conversation, messages=tuple(map(self._names.translate_message, messages)), choice=self._tool_choice
        )
        self._tool_choice = ToolChoice()
        model = ModelSettings(asked.model)
        await self._call(chat.write_request(asked, model, stream=True), hearing, listener)
        fold = hearing.accumulator.close()
        if hearing.status >= 400 or fold.failure is not None or not fold.choices:
            raise self._error(hearing, fold.failure)
        raw = "" if listener is None else listener.text
        reply = _model_reply(fold.choices[0], hearing, fold.usage, raw, self._repeated())
        return evolve(reply, calls=await self._compared(reply.calls, messages))

    async def _compared(self, calls: tuple[ToolCallEnd, ...], messages: Sequence[Message]) -> tuple[ToolCallEnd, ...]:
        """Return the calls; those that a result contains in another form are marked as quoted."""
        known = {call.id: comparable_call(call.name, call.arguments) for call in calls if not call.quoted}
        results = sum(len(part.text) for part in _result_parts(messages))
        if self._tools.settings.quoted == "calls" or not results or not any(known.values()):
            return calls
        asked = evolve(self._conversation, messages=tuple(messages), tools=self._own_tools)
        shown = await sized(partial(shown_calls, asked), results)
        return tuple(evolve(call, quoted=call.quoted or known.get(call.id) in shown) for call in calls)

    def _repeated(self) -> tuple[str, ...]:
        """Return the ids of the calls in the last reply that repeat a result or a tool's description."""
        return () if self._record is None else self._record.repeated

    async def _call(self, body: bytes, hearing: "_ReplyReceiver", listener: Listener | None) -> None:
        bodies = [body]

        async def receive() -> ASGIMessage:
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

    def _error(self, hearing: "_ReplyReceiver", failure: StreamtoolError | None) -> StreamtoolError:
        """Return the error recorded by the exchange, falling back to the one sent to the client."""
        if self._record is not None and self._record.error is not None:
            return self._record.error
        if failure is None:
            return UpstreamError("the upstream sent no reply")
        # If no exchange took place, the request was invalid, or it contained no tools and was forwarded unchanged.
        if hearing.status == 400:
            return RequestError(failure.message, param=failure.param, code=failure.code)
        if hearing.status > 400:
            return UpstreamRefused(failure.message, status=hearing.status, code=failure.code)
        return failure


@define(eq=False)
class _ReplyReceiver:
    """Reads a reply from the middleware and emits its events.

    Results refer to calls by id. Upstreams with native tools may omit an id or repeat one; such a call gets a new id.
    """

    _names: Names
    _tell: Emit
    _ids: CallIds
    _reader: chat.ReplyReader = field(factory=chat.ReplyReader, init=False)
    calls: dict[int, tuple[str, str, list[str]]] = field(factory=dict, init=False)
    """Id, name and argument pieces of each call, in the order in which the calls started."""
    received_ids: list[str | None] = field(factory=list, init=False)
    """The id that the middleware gave to each call, in the same order."""
    accumulator: ReplyAccumulator = field(factory=ReplyAccumulator, init=False)
    status: int = field(default=0, init=False)

    async def send(self, message: ASGIMessage) -> None:
        """Receive an ASGI message from the middleware."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            events = self._reader.feed(message.get("body", b""))
            if not message.get("more_body", False):
                events += self._reader.close()
            self.accumulator.feed(events)
            for event in events:
                await self._emit(event)

    async def _emit(self, event: ReplyEvent) -> None:
        match event:
            case ReplyTextDelta(text=text):
                await self._tell(OutputDelta(text))
            case ReplyReasoningDelta(text=text):
                await self._tell(ThoughtDelta(text))
            case ReplyCallStart(index=index, id=id, name=name):
                self.received_ids.append(id)
                self.calls[index] = (self._ids.take(id), self._names.original_name(name), [])
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


def _result_parts(messages: Sequence[Message]) -> Iterator[TextPart]:
    """Yield the text parts of all results."""
    for message in messages:
        for result in message.results:
            yield from (part for part in result.content if isinstance(part, TextPart))


def _model_reply(
    choice: Choice, hearing: _ReplyReceiver, usage: Usage | None, raw: str, repeated: Sequence[str]
) -> ModelReply:
    heard = zip(hearing.calls.values(), hearing.received_ids, choice.calls, strict=True)
    calls = tuple(
        ToolCallEnd(id, name, call.arguments, call.complete, quoted=received in repeated)
        for (id, name, _), received, call in heard
    )
    kept = [
        # arguments that were cut off are not valid JSON, and some upstreams reject a history that contains them
        ToolCall(end.id, end.name, call.arguments if call.complete else "{}", signature=call.signature)
        for end, call in zip(calls, choice.calls, strict=True)
    ]
    content = (TextPart(choice.text),) if choice.text else ()
    return ModelReply(
        Message("assistant", content, calls=tuple(kept)), calls, choice.reason or Reason.STOP, usage or Usage(), raw
    )
