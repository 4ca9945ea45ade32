"""`Agent`: connects an upstream to tools, and runs the loop between them.

    agent = Agent("http://127.0.0.1:8000", [get_weather, McpServer("python notes.py")])
    print(await agent.ask("What is the weather in Paris?"))

    async with agent, agent.run("What is the weather in Paris?") as events:
        async for event in events: …

A run is a background task that reads the model's replies and executes calls. It waits until each event is consumed, so
a slow consumer slows the model down and nothing is queued. Leaving the block cancels everything that is still running:
tools, servers and the connection to the upstream. MCP servers and connections are opened for each run, or once for all
runs with `async with agent`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from attrs import evolve

from streamtool.agent.events import Event, Final
from streamtool.agent.loop import Approve, Loop, LoopOptions, QuotedCalls
from streamtool.agent.mcp_servers import McpServer
from streamtool.agent.model_client import ModelClient
from streamtool.agent.resources import OpenResources, Resources, as_tool
from streamtool.agent.tool_names import Names
from streamtool.agent.tools import ExecutableTool
from streamtool.asgi.types import ASGIApp
from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolChoice
from streamtool.core.errors import AgentError, SettingsError
from streamtool.core.json_value import Json
from streamtool.core.reply import Usage
from streamtool.middleware import ToolMiddleware
from streamtool.observe.observers import OnExchange
from streamtool.prompting.one_object import is_one_object
from streamtool.protocols import chat
from streamtool.protocols.registry import CLIENTS, upstream_protocol_for
from streamtool.schemas.validator import require_library
from streamtool.settings import Settings, UpstreamSettings, with_options

if TYPE_CHECKING:
    from streamtool.observe.otel import AgentSpans

Messages = str | Sequence[Mapping[str, Json]]


class Agent:
    """Runs a model with tools.

    `upstream` is a URL, an ASGI app, `"sample"` (the embedded model), or None for the upstreams in `settings`.
    `protocol` and `key` apply to the given upstream. `tools` are Python functions, `McpServer`s or other
    `ExecutableTool`s. A run consists of at most `max_turns` replies, and a call takes at most `timeout` seconds.
    `settings_options` are fields of `Settings` (`mode`, `format`) that override the ones in `settings`.
    `Settings.retries` also limits how often a rejected reply or call is requested again.

    `strict` applies to formats in which an entire reply is one object: a reply with anything outside the object is
    rejected and requested again. `system` is placed before all messages, and `options` are further Chat Completions
    fields, such as `temperature`. `approve` is called before each call is executed and returns True, False or a `Veto`
    with a reason; then no call starts before the reply has ended. A call that repeats a result or a tool's description,
    but no user's message, is not executed; with `quoted_calls="approve"`, `approve` decides. `on_exchange` receives the
    `Record` of each exchange. `transport` replaces the network; `through`, a middleware from `middleware_of`, replaces
    everything between the agent and the model. `headers` are sent with each request. If `first_call` is true, the first
    reply must call a tool. Raises SettingsError.
    """

    def __init__(
        self,
        upstream: str | ASGIApp | None,
        tools: Iterable[Callable[..., Any] | McpServer | ExecutableTool] = (),
        *,
        model: str = "default",
        protocol: str = "auto",
        key: str | None = None,
        max_turns: int = 20,
        timeout: float | None = 60.0,
        strict: bool = True,
        system: str | None = None,
        options: Mapping[str, Json] | None = None,
        approve: Approve | None = None,
        quoted_calls: QuotedCalls = "refuse",
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        through: ToolMiddleware | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        first_call: bool = False,
        **settings_options: Any,
    ) -> None:
        require_library("agent")  # arguments are validated before each call
        changed = dict(settings_options)
        app: ASGIApp | None = None
        if isinstance(upstream, str):
            changed["upstreams"] = {"agent": UpstreamSettings(name="agent", url=upstream, protocol=protocol, key=key)}
        elif upstream is not None:
            app = upstream
            changed |= {"upstreams": {}, "app_protocol": None if protocol == "auto" else protocol}
        elif settings is None or not settings.upstreams:
            raise SettingsError("an agent needs an upstream: a URL, an ASGI app, or one in the settings")
        self.settings: Settings = with_options(settings, changed)
        mine = self.settings.for_model(model)
        self._native = mine.mode != "emulate"
        if max_turns < 1:
            raise SettingsError(f"max_turns: expected 1 or more, found {max_turns}", param="max_turns")
        whole = strict and mine.mode != "native" and is_one_object(mine.format)
        self._plan = LoopOptions(
            max_turns, self.settings.retries, timeout, mine.format if whole else None, approve, quoted_calls
        )
        self._listens = upstream_protocol_for(CLIENTS["chat"], mine.protocol) if whole else None
        self._asked = Conversation("chat", model, (), include_usage=True, raw=dict(options or {}))
        self._system = () if system is None else (Message("system", (TextPart(system),)),)
        self._headers = tuple(headers)
        self._first = ToolChoice("required") if first_call else ToolChoice()
        self._resources = Resources(
            self.settings, tuple(map(as_tool, tools)), model, app, on_exchange, transport, through
        )
        self._spans = _agent_spans() if self.settings.otel else None
        self._protocol = mine.protocol or chat.NAME
        self._opened: OpenResources | None = None
        self._stack: AsyncExitStack | None = None
        """Exit stack for `async with agent`."""

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise AgentError("the agent has already been entered; a single block can serve any number of runs")
        self._stack = AsyncExitStack()
        try:
            self._opened = await self._stack.enter_async_context(self._resources.open())
        except BaseException:
            self._stack = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened = None
        try:
            if self._stack is not None:
                await self._stack.__aexit__(kind, error, traceback)
        finally:
            self._stack = None

    @property
    def tools(self) -> Mapping[str, ExecutableTool]:
        """Tools by name, including MCP tools; empty outside `async with agent`."""
        return {} if self._opened is None else self._opened.tools

    async def ask(self, messages: Messages) -> str:
        """Run to completion and return the text of the final answer. Raises the same errors as `run`."""
        async with self.run(messages) as run:
            return (await run.final()).text

    def run_sync(self, messages: Messages) -> Final:
        """Run to completion and return the final answer with its usage, for synchronous code. Raises the same errors as
        `run`.

        Raises RuntimeError inside a running event loop; use `await agent.ask(…)` there.
        """

        async def main() -> Final:
            async with self.run(messages) as run:
                return await run.final()

        return anyio.run(main)

    @asynccontextmanager
    async def run(self, messages: Messages) -> "AsyncIterator[AgentRun]":
        """Start a run and yield an iterator over its events; the last event is the final answer.

        `messages` is a string or a list of Chat Completions messages; the list is never modified. The iteration raises
        AgentError if the run ends without an answer, and RequestError or UpstreamError if an exchange fails.
        """
        if isinstance(messages, str):
            given: Sequence[Message] = (Message("user", (TextPart(messages),)),)
        else:
            given = chat.read_messages(list(messages))
        send, receive = anyio.create_memory_object_stream[Event](0)
        run = AgentRun(receive)
        failed: BaseException | None = None
        async with send, receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._drive, (*self._system, *given), send, run)
            try:
                yield run
            except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001  raised again outside the group
                failed = error
            finally:
                tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _drive(self, messages: Sequence[Message], send: ObjectSendStream[Event], run: "AgentRun") -> None:
        """Execute the run. Store any exception, so that the iteration raises it."""
        async with send:
            try:
                if self._opened is not None:
                    await self._loop(self._opened, messages, send, run)
                else:
                    async with self._resources.open() as found:
                        await self._loop(found, messages, send, run)
            except Exception as error:  # noqa: BLE001  raised by the iteration
                run._error = error  # noqa: SLF001  both classes are in this module

    async def _loop(
        self, found: OpenResources, messages: Sequence[Message], send: ObjectSendStream[Event], run: "AgentRun"
    ) -> None:
        offered = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in found.tools.values())
        names = Names(found.tools, restricted=self._native)
        asked = evolve(self._asked, tools=offered)
        talk = ModelClient(found.middleware, asked, names, self._listens, self._headers, choice=self._first)
        run._loop = loop = Loop(talk, found.tools, self._plan, send.send, self._spans)  # noqa: SLF001  both classes are in this module
        if self._spans is None:
            final = await loop.run(messages)
        else:
            with self._spans.run(self._asked.model, self._protocol) as used:
                try:
                    final = await loop.run(messages)
                finally:
                    used(loop.usage)
        await send.send(final)


def _agent_spans() -> "AgentSpans":
    from streamtool.observe.otel import AgentSpans  # noqa: PLC0415  requires an extra

    return AgentSpans()


class AgentRun:
    """Events of one run, as they occur."""

    def __init__(self, events: ObjectReceiveStream[Event]) -> None:
        self._events = events
        self._error: Exception | None = None
        self._loop: Loop | None = None

    @property
    def messages(self) -> tuple[Mapping[str, Json], ...]:
        """Messages that the run has added to the conversation so far, in Chat Completions form.

        If the run was abandoned, they include calls without results, but not a reply that was still being written.
        """
        return () if self._loop is None else tuple(chat.write_messages(self._loop.added))

    @property
    def usage(self) -> Usage:
        """Token usage of all replies so far."""
        return Usage() if self._loop is None else self._loop.usage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self._events.receive()
        except anyio.ClosedResourceError:
            raise AgentError("the run has ended; iterate over its events inside its block") from None
        except anyio.EndOfStream:
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise StopAsyncIteration from None

    async def final(self) -> Final:
        """Skip to the last event, the final answer, and return it."""
        async for event in self:
            if isinstance(event, Final):
                return event
        raise AgentError("the run has ended")
