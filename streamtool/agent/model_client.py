"""One request from an agent and its reply, in Chat Completions, through the middleware in front of the upstream.

The middleware is called directly, without a socket. The reply arrives in pieces, which the protocol's own reader turns
into agent events. An agent can therefore do everything that a client can, and no part of the emulation is duplicated.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

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
from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolCall, ToolChoice
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
from streamtool.exchange.record import Record
from streamtool.filters import CallIds, comparable_call, shown_calls
from streamtool.middleware import UPSTREAM_KEY, WIRE, ToolMiddleware
from streamtool.observe.observers import OnExchange
from streamtool.protocols import chat
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import Out
from streamtool.server.gate import Gate
from streamtool.settings import ModelSettings, Settings
from streamtool.upstream.chat_templates import ChatTemplates

PATH = "/v1/chat/completions"
LISTENER = "streamtool.agent.listener"
"""ASGI scope key for the listener that receives the raw text of the upstream's replies."""
_ENDED: Final = re.compile(rb"^: ended (\d+) (\d)$", re.MULTILINE)
"""Matches the comment after a complete call: the call's index, and whether it is a repeated call."""
OnCall = Callable[[ToolCallEnd, Callable[[], Awaitable[bool]]], None]
"""Callback for a complete call of a reply that has not ended, and a function that returns whether it is quoted."""
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


class _CallEndWriter(chat.ReplyWriter):
    """A writer that adds a comment after each complete call, since Chat Completions does not mark the end of one."""

    __slots__ = ()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        super()._close_call(event, out)
        if event.complete:
            out.append(b": ended %d %d\n\n" % (event.index, event.repeated))


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

    async def reply(self, messages: Sequence[Message], tell: Emit, on_call: OnCall | None = None) -> ModelReply:
        """Request a reply to these messages. `tell` receives reply events as they arrive, and `on_call` each complete
        call. Raises StreamtoolError.
        """
        listener = None if self._raw_protocol is None else Listener(self._raw_protocol)
        past = (call.id for message in messages for call in message.calls)
        shown = _ShownCalls(self._conversation, self._own_tools, messages)
        checked = None if on_call is None else partial(self._check_call, on_call, shown)
        hearing = _ReplyReceiver(self._names, tell, CallIds(new_id, chat.CALL_ID, past), checked)
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
        return evolve(reply, calls=tuple([await self._compared(call, shown) for call in reply.calls]))

    def _check_call(self, on_call: OnCall, shown: "_ShownCalls", call: ToolCallEnd) -> None:
        async def is_quoted() -> bool:
            return (await self._compared(call, shown)).quoted

        on_call(call, is_quoted)

    async def _compared(self, call: ToolCallEnd, shown: "_ShownCalls") -> ToolCallEnd:
        """Return the call, marked as quoted if a result contains it in another form."""
        if call.quoted or self._tools.settings.quoted == "calls":
            return call
        known = comparable_call(call.name, call.arguments)
        return call if known is None else evolve(call, quoted=known in await shown.found())

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
        if hearing.on_call is not None:
            scope[WIRE] = SimpleNamespace(**{**vars(chat), "ReplyWriter": hearing.marking_writer})
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
    """Reads a reply from the middleware and emits its events. `on_call` receives each complete call at its end.

    Results refer to calls by id. Upstreams with native tools may omit an id or repeat one; such a call gets a new id.
    """

    _names: Names
    _tell: Emit
    _ids: CallIds
    on_call: Callable[[ToolCallEnd], None] | None
    _reader: chat.ReplyReader = field(factory=chat.ReplyReader, init=False)
    calls: dict[int, tuple[str, str, list[str]]] = field(factory=dict, init=False)
    """Id, name and argument pieces of each call, in the order in which the calls started."""
    received_ids: list[str | None] = field(factory=list, init=False)
    """The id that the middleware gave to each call, in the same order."""
    accumulator: ReplyAccumulator = field(factory=ReplyAccumulator, init=False)
    status: int = field(default=0, init=False)
    _ended: set[int] = field(factory=set, init=False)
    """Indices of the calls whose end has been emitted."""
    _marked: bool = field(default=False, init=False)
    """Whether the end of each complete call is marked, because the middleware writes the reply."""

    def marking_writer(self, *args: Any, **options: Any) -> _CallEndWriter:
        """Return the writer for the reply. It is not used if the upstream's reply passes through unchanged."""
        self._marked = True
        return _CallEndWriter(*args, **options)

    async def send(self, message: ASGIMessage) -> None:
        """Receive an ASGI message from the middleware."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            events = self._reader.feed(body)
            last = not message.get("more_body", False)
            if last:
                events += self._reader.close()
            self.accumulator.feed(events)
            for event in events:
                await self._emit(event)
            if self.on_call is not None and not last:
                await self._check_calls(self.on_call, body, events)

    async def _check_calls(self, on_call: Callable[[ToolCallEnd], None], body: bytes, events: list[ReplyEvent]) -> None:
        """Pass on the calls that are complete at the end of this part of the reply."""
        if self._marked:
            ended = [(int(index), repeated == b"1") for index, repeated in _ENDED.findall(body)]
        else:
            ended = [(event.index, False) for event in events if type(event) is ReplyCallEnd and event.complete]
        for index, repeated in ended:
            if index not in self.calls:  # the reader has queued it after a call that was cut off
                continue
            id, name, pieces = self.calls[index]
            arguments = "".join(pieces)
            if index not in self._ended:
                if not wire.is_object(arguments):  # the reader has buffered the rest
                    continue
                self._ended.add(index)
                await self._tell(ToolCallEnd(id, name, arguments))
            on_call(ToolCallEnd(id, name, arguments, quoted=repeated))

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
            case ReplyCallEnd(index=index) if index in self._ended:
                pass
            case ReplyCallEnd(index=index, complete=complete):
                id, name, pieces = self.calls[index]
                self._ended.add(index)
                await self._tell(ToolCallEnd(id, name, "".join(pieces), complete))
            case _:
                pass


@define(eq=False)
class _ShownCalls:
    """Calls in the results of a conversation, searched for when they are first needed."""

    _conversation: Conversation
    _own_tools: tuple[Tool, ...]
    _messages: Sequence[Message]
    _searching: anyio.Lock = field(factory=anyio.Lock, init=False)
    _found: frozenset[Any] | None = field(default=None, init=False)

    async def found(self) -> frozenset[Any]:
        """Return the calls in the form of `comparable_call`."""
        async with self._searching:
            if self._found is None:
                self._found = await self._search()
            return self._found

    async def _search(self) -> frozenset[Any]:
        results = sum(len(part.text) for part in _result_parts(self._messages))
        if not results:
            return frozenset()
        asked = evolve(self._conversation, messages=tuple(self._messages), tools=self._own_tools)
        return await sized(partial(shown_calls, asked), results)


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
