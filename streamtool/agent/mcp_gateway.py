"""MCP tools that the proxy executes itself, for clients that have none.

    client ─▶ Host ─▶ servers are for it: ToolMiddleware (any protocol to Chat) ─▶ `_chat` ─▶ Agent ─▶ …
                  └─▶ everything else: the app behind

An agent stands in the place of the upstream. It speaks Chat Completions, and the middleware around it gives it the
other protocols. The client sees one reply: text as the model writes it, and as reasoning what was called and how it
went. Servers, and the tools of theirs that may be called, come from the settings only: by the model's rule, or because
the request has hosted tools in whose place they stand (`hosted_work`). They are opened when the proxy starts, by
`running`; without it, for each request.

What is logged and counted are the exchanges with the model. The middleware in front tells nobody of its own; instead
there is one line about each run.
"""

import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, assert_never

import anyio
from attrs import evolve

from streamtool.agent.agent import Agent, AgentRun
from streamtool.agent.events import (
    Event,
    Final,
    OutputDelta,
    Progress,
    Rejected,
    ThoughtDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
    TurnStart,
)
from streamtool.agent.hosted_work import Work, headers_of, without_hosted, work_for
from streamtool.agent.mcp_servers import McpServer, McpTool, opened
from streamtool.agent.model_client import middleware_of
from streamtool.conversation import Conversation
from streamtool.errors import RequestError, StreamtoolError
from streamtool.exchange import Exchange
from streamtool.exchange.encoding import decode_body
from streamtool.http.answers import new_id, send_error
from streamtool.http.asgi import ASGIApp, Receive, Scope, Send, cancel_when_left, route_path, target
from streamtool.http.middleware import ToolMiddleware
from streamtool.http.off_loop import off_loop, sized
from streamtool.http.request_body import ClientLeft, read_body
from streamtool.http.storing import memory_of
from streamtool.observe.logs import plain, problem
from streamtool.observe.observers import Observers, OnExchange, Watch
from streamtool.protocols import chat
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import BESIDE, at_path, client_protocol
from streamtool.protocols.wire import KEY_HEADERS
from streamtool.reply import (
    ReplyAccumulator,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    UsageReport,
)
from streamtool.settings import McpSettings, Settings

_PATH = "/v1/chat/completions"
_OURS = frozenset(("model", "messages", "stream", "stream_options", "n", "store"))
"""Fields of a request that are not handed on to the model."""
_WORK = "streamtool.work"
"""Where the scope says what is to be done for a request."""
_SHOWN = 200
"""Characters of arguments, or of a failure, that the client is told."""

_log = logging.getLogger("streamtool")


class McpGateway:
    """An ASGI app in front of `behind`, whose memory it shares. `apps` are the upstreams of the settings, by name."""

    def __init__(
        self,
        settings: Settings,
        behind: ToolMiddleware,
        apps: Mapping[str, ASGIApp],
        *,
        on_exchange: OnExchange | None = None,
    ) -> None:
        self._settings = settings
        self._behind = behind
        self._through = middleware_of(settings, apps, on_exchange, behind.templates)
        self._through.observers = behind.observers
        self._through.gate = behind.gate.inner()
        self._through.services = evolve(self._through.services, capabilities=behind.services.capabilities)
        front = evolve(
            settings, upstreams={}, models=(), mode="emulate", app_protocol="chat", app_path=_PATH,
            metrics=False, otel=False, recordings=None, debug=False,
        )  # fmt: skip
        self._front = ToolMiddleware(self._chat, settings=front)
        self._front.observers = _Unobserved(front, anyio.current_time)
        self._front.store = self._through.store = behind.store
        self._front.background = behind.background
        self._tools: dict[str, list[McpTool]] | None = None
        """By server, while they are open."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The servers are open inside of the block. Raises AgentError when one cannot be opened."""
        async with self._opened(tuple(self._settings.mcp)) as found:
            self._tools = found
            try:
                yield
            finally:
                self._tools = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = at_path(self._settings.paths, route_path(scope)) if scope["type"] == "http" else None
        if protocol is None or protocol in BESIDE or scope["method"] != "POST":
            await self._behind(scope, receive, send)
            return
        wire = client_protocol(protocol, target(scope))
        try:
            body = await read_body(scope, receive, self._settings.limits)
        except ClientLeft:
            return
        except StreamtoolError as error:
            await send_error(wire, error, send)
            return
        plan = partial(self._plan, wire, body, scope)
        blocks = self._behind.store.blocks and wire.memories is not None
        planned = await (off_loop(plan) if blocks else sized(plan, len(body)))
        given = [body]
        if planned is not None:
            work, changed = planned
            scope = {**scope, _WORK: work}
            if changed is not None:
                given = [changed]
                scope["headers"] = headers_of(changed, scope["headers"])

        async def replay() -> Any:
            return {"type": "http.request", "body": given.pop(), "more_body": False} if given else await receive()

        await (self._behind if planned is None else self._front)(scope, replay, send)

    def _plan(self, wire: ClientProtocol, body: bytes, scope: Scope) -> tuple[Work, bytes | None] | None:
        """What is to be done for this request, and its body if that changes; None: it is not for us."""
        limits = self._settings.limits
        memory = (memory_of(self._behind.store, scope).recall,) if wire.memories else ()
        try:
            body = decode_body(body, scope["headers"], limits.body)
            unread = wire.read_unread(body, limits)
            if unread is not None and not self._settings.rule_for(unread.model).mcp:
                return None
            asked = wire.read_request(body, limits, *memory)
        except StreamtoolError:
            return None  # whoever answers says what is wrong
        work = work_for(asked.raw, self._settings.rule_for(asked.model).mcp or (), self._settings.mcp)
        if asked.tools or asked.has_tool_history or not work.servers:
            return None
        return work, without_hosted(asked.raw, work) if work.hosted else None

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The agent as an upstream that speaks Chat Completions."""
        limits = self._settings.limits
        try:
            body = await read_body(scope, receive, limits)
            asked = await sized(partial(chat.read_request, body, limits), len(body))
            if asked.options.n > 1:
                raise RequestError("an agent gives one answer: leave n out", param="n")
        except StreamtoolError as error:
            await send_error(chat, error, send)
            return
        except ClientLeft:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            reply = _Reply(asked, send, self._settings.keepalive)
            with suppress(OSError):  # how a server tells that the client has left
                await self._answer(asked, scope, reply)
            tasks.cancel_scope.cancel()

    async def _answer(self, asked: Conversation, scope: Scope, reply: "_Reply") -> None:
        """The run, told to the client; whatever goes wrong is told as well."""
        began = anyio.current_time()
        failed = ""
        try:
            async with self._run(asked, scope) as run:
                await reply.tell(run)
        except StreamtoolError as error:
            failed = f", failed: {problem(error, contents=self._settings.contents)}"
            await reply.fail(error)
        except OSError:
            raise
        except Exception:  # noqa: BLE001  the client is told
            _log.exception("an agent failed")
            failed = ", failed"
            await reply.fail(StreamtoolError("the proxy failed while it executed calls"))
        except anyio.get_cancelled_exc_class():
            if (ended := self._through.gate.ended) is not None:
                failed = f", failed: {ended.message}"
            raise
        finally:
            passed = anyio.current_time() - began
            client = plain(self._behind.observers.clients.of(scope["headers"]))
            _log.log(
                logging.WARNING if failed else logging.INFO,
                "%s: an agent, turns %d, calls %d%s%s (%.2f s)",
                plain(asked.model), reply.turns, reply.calls, failed, f", client {client}" if client else "", passed,
            )  # fmt: skip

    @asynccontextmanager
    async def _run(self, asked: Conversation, scope: Scope) -> AsyncIterator[AgentRun]:
        """The agent at work."""
        work: Work = scope[_WORK]
        options = {name: value for name, value in asked.raw.items() if name not in _OURS}
        headers = [(name, value) for name, value in scope["headers"] if name in KEY_HEADERS]
        async with self._opened(work.servers) as found:
            agent = Agent(
                None,
                [tool for name in work.servers for tool in found[name] if work.offers(name, tool.own_name)],
                model=asked.model,
                settings=self._settings,
                through=self._through,
                options=options,
                headers=headers,
                first_call=work.demanded,
            )
            async with agent.run(asked.raw["messages"]) as run:
                yield run

    @asynccontextmanager
    async def _opened(self, names: tuple[str, ...]) -> AsyncIterator[dict[str, list[McpTool]]]:
        if self._tools is not None:
            yield self._tools
            return
        servers = {name: _server(self._settings.mcp[name]) for name in names}
        async with opened(list(servers.values())) as tools:
            yield {
                name: [tool for tool in tools if tool.server is server and _allowed(tool, self._settings.mcp[name])]
                for name, server in servers.items()
            }


def _server(settings: McpSettings) -> McpServer:
    target = settings.url or settings.command
    return McpServer(target, name=settings.name, prefix=settings.prefix or "", timeout=settings.timeout)


def _allowed(tool: McpTool, settings: McpSettings) -> bool:
    return any(fnmatchcase(tool.own_name, pattern) for pattern in settings.tools)


class _Unobserved(Observers):
    """Tells nobody of an exchange."""

    def watch(
        self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]], on_exchange: OnExchange | None
    ) -> Watch:
        """A watch that nobody is told of."""
        return _Unwatched(self, exchange, headers, on_exchange)


class _Unwatched(Watch):
    __slots__ = ()

    def end(self, error: StreamtoolError | None = None) -> int:  # noqa: ARG002  nobody is told of it
        """Nobody is told, and nothing is counted: the client's own request is."""
        return 0


class _Reply:
    """The reply that a client gets of a run."""

    __slots__ = (
        "_asked", "_begun", "_created", "_fold", "_id", "_keepalive", "_said", "_send", "_started", "_writer", "calls",
        "turns",
    )  # fmt: skip

    def __init__(self, asked: Conversation, send: Send, keepalive: float) -> None:
        self._asked = asked
        self._send = send
        self._keepalive = keepalive
        self._id = new_id(chat.REPLY_ID)
        self._created = int(time.time())
        self._fold = None if asked.stream else ReplyAccumulator()
        self._writer = chat.ReplyWriter(asked, id=self._id, created=self._created, model=asked.model)
        self._begun = False
        """There is something to show; until then an error has its own status."""
        self._started = False
        self._said = 0
        """The turn whose text came last."""
        self.turns = 0
        self.calls = 0
        """That were executed."""

    async def tell(self, run: AgentRun) -> None:
        """All that happens, to the end. Raises what the run raises."""
        while True:
            event: Event | None = None
            with anyio.move_on_after(self._keepalive) as silence:
                event = await anext(run, None)
            if silence.cancelled_caught:
                await self._comment()
            elif event is None:
                break
            else:
                await self._tell(self._counted(event))
        await self._close()

    def _counted(self, event: Event) -> list[ReplyEvent]:
        """What the client is told of an event, a turn's text apart from that of the one before."""
        match event:
            case TurnStart(turn=turn):
                self.turns = turn
            case ToolCallResult():
                self.calls += 1
            case OutputDelta(text=text):
                before, self._said = self._said, self.turns
                if before not in (0, self.turns):
                    return [ReplyTextDelta(0, "\n\n"), ReplyTextDelta(0, text)]
            case _:
                pass
        return _told(event)

    async def fail(self, error: StreamtoolError) -> None:
        """What went wrong: as a status while nothing was said, later in the stream."""
        if not self._started:
            await send_error(chat, error, self._send)
            return
        await self._tell([ReplyFailure(error)])
        await self._close()

    async def _tell(self, events: list[ReplyEvent]) -> None:
        if events and not self._begun:
            self._begun = True
            events = [ReplyStart(self._id, self._created, self._asked.model), *events]
        if self._fold is not None:
            self._fold.feed(events)
        elif data := self._writer.feed(events):
            await self._put(data, more=True)

    async def _comment(self) -> None:
        """Break a silence: a tool may take long."""
        if self._fold is None:
            await self._put(self._writer.keepalive(), more=True)

    async def _close(self) -> None:
        if self._fold is None:
            await self._put(b"", more=False)
            return
        whole = chat.write_complete(
            self._asked, self._fold.close(), id=self._id, created=self._created, model=self._asked.model
        )
        await self._put(whole, more=False)

    async def _put(self, data: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            headers = [*(chat.STREAM_HEADERS if self._fold is None else chat.COMPLETE_HEADERS)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _told(event: Event) -> list[ReplyEvent]:
    """What the client is told of an event: text as text, what the agent does as reasoning."""
    match event:
        case OutputDelta(text=text):
            return [ReplyTextDelta(0, text)]
        case ThoughtDelta(text=text):
            return [ReplyReasoningDelta(0, text)]
        case ToolCallEnd(name=name, arguments=arguments):
            return [ReplyReasoningDelta(0, f"\n[calls {name} {_short(arguments)}]\n")]
        case ToolCallResult(name=name, error=True):
            return [ReplyReasoningDelta(0, f"[{name} failed: {_short(event.text)}]\n")]
        case ToolCallResult(name=name):
            return [ReplyReasoningDelta(0, f"[{name} answered, {len(event.text)} characters]\n")]
        case Rejected(why=why, name=name):
            return [ReplyReasoningDelta(0, f"[not accepted: {why}{f', {name}' if name else ''}]\n")]
        case Final(reason=reason, usage=usage):
            return [ReplyFinish(0, reason), UsageReport(usage), ReplyEnd()]
        case TurnStart() | ToolCallStart() | ToolArgumentsDelta() | Progress():
            return []
        case _:
            assert_never(event)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
