"""MCP tools that the proxy executes itself, for requests that contain no tools.

    client ─▶ McpGateway ─▶ request for MCP servers: ToolMiddleware (any protocol to Chat) ─▶ `_chat` ─▶ Agent ─▶ …
                        └─▶ any other request: the proxy's middleware

An agent takes the place of the upstream. It speaks Chat Completions, and the middleware in front of it adds the other
protocols. The client sees a single reply: the model's text as it is written, and the calls and their outcomes as
reasoning. The servers and their permitted tools are defined only by the settings. A request uses them because of its
model's rule, or because it contains hosted tools that they replace (`hosted_work`). `running` opens the servers when
the proxy starts; if it is not used, they are opened for each request.

The exchanges with the model are logged and counted. The exchange with the client is neither logged nor counted;
instead, one line is logged for each run.
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
from streamtool.agent.hosted_work import Work, adapt_headers, plan_work, remove_hosted_tools
from streamtool.agent.mcp_servers import McpServer, McpTool, open_servers
from streamtool.agent.model_client import make_middleware
from streamtool.asgi.answers import new_id, send_error
from streamtool.asgi.off_loop import off_loop, sized_request
from streamtool.asgi.request_body import ClientLeft, read_body
from streamtool.asgi.types import ASGIApp, ClientWatch, Receive, Scope, Send, route_path, target
from streamtool.core.conversation import Conversation
from streamtool.core.errors import RequestError, StreamtoolError
from streamtool.core.reply import (
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
from streamtool.exchange.encoding import decode_body, decoded_size
from streamtool.exchange.exchange import Exchange
from streamtool.middleware import ToolMiddleware
from streamtool.observe.observers import Observers, OnExchange, Watch
from streamtool.observe.printable import loggable_message, printable
from streamtool.protocols import chat
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.shared.wire import KEY_HEADERS
from streamtool.protocols.table import OTHER_REQUESTS, at_path
from streamtool.server.gate import ENTRY
from streamtool.settings import McpSettings, Settings
from streamtool.store.storing import memory_of

_PATH = "/v1/chat/completions"
_OWN_FIELDS = frozenset(("model", "messages", "stream", "stream_options", "n", "store"))
"""Request fields that are not passed on to the model."""
_WORK = "streamtool.work"
"""ASGI scope key for the `Work` of a request."""
_MAX_SHOWN = 200
"""Maximum number of characters shown to the client for arguments or an error."""

_log = logging.getLogger("streamtool")


class McpGateway:
    """ASGI app in front of the proxy's middleware, whose store it shares. `apps` maps names to upstreams."""

    def __init__(
        self,
        settings: Settings,
        behind: ToolMiddleware,
        apps: Mapping[str, ASGIApp],
        *,
        on_exchange: OnExchange | None = None,
    ) -> None:
        self._settings = settings
        self._middleware = behind
        self._model_middleware = make_middleware(settings, apps, on_exchange, behind.templates)
        self._model_middleware.observers = behind.observers
        self._model_middleware.gate = behind.gate.inner()
        self._model_middleware.services = evolve(
            self._model_middleware.services, capabilities=behind.services.capabilities
        )
        front = evolve(
            settings,
            upstreams={},
            models=(),
            mode="emulate",
            tool_names="spelling",
            app_protocol="chat",
            app_path=_PATH,
            metrics=False,
            otel=False,
            recordings=None,
            debug=False,
        )
        self._front = ToolMiddleware(self._chat, settings=front)
        self._front.observers = _Unobserved(front, anyio.current_time)
        self._front.store = self._model_middleware.store = behind.store
        self._front.background, self._front.hosted = behind.background, True
        self._tools: dict[str, list[McpTool]] | None = None
        """Tools by server, while the servers are open."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the servers open for the duration of the block. Raises AgentError if one cannot be opened."""
        async with self._open_servers(tuple(self._settings.mcp)) as found:
            self._tools = found
            try:
                yield
            finally:
                self._tools = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = at_path(self._settings.paths, route_path(scope)) if scope["type"] == "http" else None
        if protocol is None or protocol in OTHER_REQUESTS or scope["method"] != "POST":
            await self._middleware(scope, receive, send)
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
        blocks = self._middleware.store.blocks and wire.store_entries is not None
        planned = await (off_loop(plan) if blocks else sized_request(plan, body, decoded_size(body, scope["headers"])))
        given = [body]
        if planned is not None:
            work, changed = planned
            scope = {**scope, _WORK: work}
            if changed is not None:
                given = [changed]
                scope["headers"] = adapt_headers(changed, scope["headers"])

        async def replay() -> Any:
            return {"type": "http.request", "body": given.pop(), "more_body": False} if given else await receive()

        await (self._middleware if planned is None else self._front)(scope, replay, send)

    def _plan(self, wire: ClientProtocol, body: bytes, scope: Scope) -> tuple[Work, bytes | None] | None:
        """Return the work for a request and, if hosted tools were removed, the changed body. Return None if the request
        uses no MCP server.
        """
        limits = self._settings.limits
        memory = (memory_of(self._middleware.store, scope, scope[ENTRY].client).recall,) if wire.store_entries else ()
        try:
            body = decode_body(body, scope["headers"], limits.body)
            unread = wire.read_unread(body, limits)
            if unread is not None and not self._settings.rule_for(unread.model).mcp:
                return None
            asked = wire.read_request(body, limits, *memory)
        except StreamtoolError:
            return None  # the middleware reports the error
        work = plan_work(asked.raw, self._settings.rule_for(asked.model).mcp or (), self._settings.mcp)
        if asked.tools or asked.has_tool_history or not work.servers:
            return None
        return work, remove_hosted_tools(asked.raw, work) if work.hosted else None

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as an upstream that speaks Chat Completions."""
        limits = self._settings.limits
        try:
            body = await read_body(scope, receive, limits)
            asked = await sized_request(partial(chat.read_request, body, limits), body, len(body))
            if asked.options.n > 1:
                raise RequestError("requests that use MCP servers support only one choice; omit n", param="n")
        except StreamtoolError as error:
            await send_error(chat, error, send)
            return
        except ClientLeft:
            return
        client = ClientWatch(receive, send)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.cancel_on_disconnect, tasks.cancel_scope)
            reply = _GatewayReply(asked, client.send, self._settings.keepalive)
            with suppress(OSError):  # raised by servers when the client has disconnected
                await self._answer(asked, scope, reply)
            tasks.cancel_scope.cancel()

    async def _answer(self, asked: Conversation, scope: Scope, reply: "_GatewayReply") -> None:
        """Run the agent and send its events, or its error, to the client."""
        began = anyio.current_time()
        failed = ""
        try:
            async with self._run(asked, scope) as run:
                await reply.write_run(run)
        except StreamtoolError as error:
            failed = f", failed: {loggable_message(error, contents=self._settings.contents)}"
            await reply.fail(error)
        except OSError:
            raise
        except Exception:  # noqa: BLE001  reported to the client
            _log.exception("an agent failed")
            failed = ", failed"
            await reply.fail(StreamtoolError("the proxy failed while executing calls"))
        except anyio.get_cancelled_exc_class():
            if (ended := self._model_middleware.gate.end_error) is not None:
                failed = f", failed: {ended.message}"
            raise
        finally:
            passed = anyio.current_time() - began
            client = printable(self._middleware.observers.clients.of(scope["headers"]))
            _log.log(
                logging.WARNING if failed else logging.INFO,
                "%s: an agent, turns %d, calls %d%s%s%s (%.2f s)",
                printable(asked.model),
                reply.turns,
                reply.calls,
                f", quoted {reply.quoted}" if reply.quoted else "",
                failed,
                f", client {client}" if client else "",
                passed,
            )

    @asynccontextmanager
    async def _run(self, asked: Conversation, scope: Scope) -> AsyncIterator[AgentRun]:
        """Start the agent's run, and cancel it at the end of the block."""
        work: Work = scope[_WORK]
        options = {name: value for name, value in asked.raw.items() if name not in _OWN_FIELDS}
        headers = [(name, value) for name, value in scope["headers"] if name in KEY_HEADERS]
        async with self._open_servers(work.servers) as found:
            agent = Agent(
                None,
                [tool for name in work.servers for tool in found[name] if work.offers(name, tool.remote_name)],
                model=asked.model,
                settings=self._settings,
                through=self._model_middleware,
                options=options,
                headers=headers,
                first_call=work.call_required,
            )
            async with agent.run(asked.raw["messages"]) as run:
                yield run

    @asynccontextmanager
    async def _open_servers(self, names: tuple[str, ...]) -> AsyncIterator[dict[str, list[McpTool]]]:
        if self._tools is not None:
            yield self._tools
            return
        servers = {name: _make_server(self._settings.mcp[name]) for name in names}
        async with open_servers(list(servers.values())) as tools:
            yield {
                name: [tool for tool in tools if tool.server is server and _is_allowed(tool, self._settings.mcp[name])]
                for name, server in servers.items()
            }


def _make_server(settings: McpSettings) -> McpServer:
    target = settings.url or settings.command
    return McpServer(
        target,
        name=settings.name,
        prefix=settings.prefix or "",
        timeout=settings.timeout,
        run_quoted=settings.quoted == "run",
        eager=settings.eager,
    )


def _is_allowed(tool: McpTool, settings: McpSettings) -> bool:
    return any(fnmatchcase(tool.remote_name, pattern) for pattern in settings.tools)


class _Unobserved(Observers):
    """Observers that report nothing."""

    def watch(
        self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]], on_exchange: OnExchange | None
    ) -> Watch:
        """Return a watch that reports nothing."""
        return _Unwatched(self, exchange, headers, on_exchange)


class _Unwatched(Watch):
    __slots__ = ()

    def end(self, error: StreamtoolError | None = None) -> int:  # noqa: ARG002  not reported
        """Do nothing: the exchanges with the model are counted instead."""
        return 0


class _GatewayReply:
    """A reply to a client, written from the events of a run."""

    def __init__(self, asked: Conversation, send: Send, keepalive: float) -> None:
        self._asked = asked
        self._send = send
        self._keepalive = keepalive
        self._id = new_id(chat.REPLY_ID)
        self._created = int(time.time())
        self._accumulator = None if asked.stream else ReplyAccumulator()
        self._writer = chat.ReplyWriter(asked, id=self._id, created=self._created, model=asked.model)
        self._begun = False
        """Whether any event has been written."""
        self._started = False
        self._text_turn = 0
        """Turn that the most recent text belongs to."""
        self.turns = 0
        self.calls = 0
        """Number of executed calls."""
        self.quoted = 0
        """Number of calls that were not executed because they repeat a result or a tool's description."""

    async def write_run(self, run: AgentRun) -> None:
        """Write all events of the run until it ends. Raises whatever the run raises."""
        while True:
            event: Event | None = None
            with anyio.move_on_after(self._keepalive) as silence:
                event = await anext(run, None)
            if silence.cancelled_caught:
                await self._comment()
            elif event is None:
                break
            else:
                await self._write_events(self._events_of(event))
        await self._close()

    def _events_of(self, event: Event) -> list[ReplyEvent]:
        """Update the counts and return the reply events, with a blank line between the text of one turn and that of the
        next.
        """
        match event:
            case TurnStart(turn=turn):
                self.turns = turn
            case ToolCallResult():
                self.calls += 1
            case Rejected(why="quoted"):
                self.quoted += 1
            case OutputDelta(text=text):
                before, self._text_turn = self._text_turn, self.turns
                if before not in (0, self.turns):
                    return [ReplyTextDelta(0, "\n\n"), ReplyTextDelta(0, text)]
            case _:
                pass
        return _reply_events(event)

    async def fail(self, error: StreamtoolError) -> None:
        """Send an error: as a response with the error's status if nothing has been sent yet, and as the end of the
        stream if not.
        """
        if not self._started:
            await send_error(chat, error, self._send)
            return
        await self._write_events([ReplyFailure(error)])
        await self._close()

    async def _write_events(self, events: list[ReplyEvent]) -> None:
        if events and not self._begun:
            self._begun = True
            events = [ReplyStart(self._id, self._created, self._asked.model), *events]
        if self._accumulator is not None:
            self._accumulator.feed(events)
        elif data := self._writer.feed(events):
            await self._put(data, more=True)

    async def _comment(self) -> None:
        """Send a keep-alive comment if the reply is streamed."""
        if self._accumulator is None:
            await self._put(self._writer.keepalive(), more=True)

    async def _close(self) -> None:
        if self._accumulator is None:
            await self._put(b"", more=False)
            return
        whole = chat.write_complete(
            self._asked, self._accumulator.close(), id=self._id, created=self._created, model=self._asked.model
        )
        await self._put(whole, more=False)

    async def _put(self, data: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            headers = [*(chat.STREAM_HEADERS if self._accumulator is None else chat.COMPLETE_HEADERS)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _reply_events(event: Event) -> list[ReplyEvent]:
    """Return the reply events for a run event: text as text, the agent's actions as reasoning."""
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
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
