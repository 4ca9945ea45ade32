"""`Agent`: an upstream, tools, and the loop between them.

    agent = Agent("http://127.0.0.1:8000", [get_weather, McpServer("python notes.py")])
    print(await agent.ask("What is the weather in Paris?"))

    async with agent, agent.run("What is the weather in Paris?") as events:
        async for event in events: …

A run is a task: it reads the model, executes calls, and hands each event over when somebody takes it, so a slow reader
slows the model and nothing piles up. Leaving the block cancels whatever still runs, down to the tools, the servers and
the upstream's connection. MCP servers and connections are opened for each run, or, inside of `async with agent`, once.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import httpx
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from attrs import evolve

from streamtool.agent.events import Event, Final
from streamtool.agent.loop import Approve, Loop, Plan
from streamtool.agent.mcp_servers import McpServer
from streamtool.agent.model_client import ModelClient
from streamtool.agent.resources import OpenResources, Resources, given_tool
from streamtool.agent.tool_names import Names
from streamtool.agent.tools import ExecutableTool
from streamtool.conversation import Conversation, Message, TextPart, Tool, ToolChoice
from streamtool.errors import AgentError, SettingsError
from streamtool.http.asgi import ASGIApp
from streamtool.http.middleware import ToolMiddleware
from streamtool.observe.observers import OnExchange
from streamtool.prompting.one_object import is_whole
from streamtool.protocols import chat
from streamtool.protocols.registry import CLIENTS, upstream_protocol_for
from streamtool.reply import Usage
from streamtool.settings import Settings, UpstreamSettings, with_options
from streamtool.validation.validator import require_library

Json = Any  # a decoded JSON value
Messages = str | Sequence[Mapping[str, Json]]


class Agent:
    """Lets a model call tools.

    `upstream` is a URL, an ASGI app, `"sample"` (the embedded model), or None: the upstreams of `settings`; it speaks
    `protocol`, and gets `key`. `tools` are Python functions, `McpServer`s, or what else is an `ExecutableTool`. A run
    has at most `max_turns` replies, a call at most `timeout` seconds. `settings_options` are those of `Settings`
    (`mode`, `format`); they replace the values of `settings`. Its `retries` also bounds how often replies and calls
    that are not accepted are asked for again.

    `strict` holds for formats in which a whole reply is one object: anything outside of it is rejected, and asked for
    again. `system` stands before all messages, `options` are further fields of Chat Completions (`temperature`).
    `approve` is asked before a call is executed; it says True, False, or why not (a `Veto`). `on_exchange` gets the
    `Record` of each exchange; `transport` replaces the network, `through` (a `middleware_of`) all of that; `headers` go
    with each request. With `first_call` the first reply has to call a tool. Raises SettingsError.
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
        settings: Settings | None = None,
        on_exchange: OnExchange | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        through: ToolMiddleware | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        first_call: bool = False,
        **settings_options: Any,
    ) -> None:
        require_library("agent")  # each call is checked before it is executed
        changed = dict(settings_options)
        app: ASGIApp | None = None
        if isinstance(upstream, str):
            changed["upstreams"] = {"agent": UpstreamSettings(name="agent", url=upstream, protocol=protocol, key=key)}
        elif upstream is not None:
            app = upstream
            changed |= {"upstreams": {}, "app_protocol": None if protocol == "auto" else protocol}
        elif settings is None or not settings.upstreams:
            raise SettingsError("an agent needs an upstream: a url, an ASGI app, or one in the settings")
        self.settings = with_options(settings, changed)
        mine = self.settings.for_model(model)
        self._native = mine.mode != "emulate"
        if max_turns < 1:
            raise SettingsError(f"max_turns: an agent needs at least one turn, not {max_turns}", param="max_turns")
        whole = strict and mine.mode != "native" and is_whole(mine.format)
        self._plan = Plan(max_turns, self.settings.retries, timeout, mine.format if whole else None, approve)
        self._listens = upstream_protocol_for(CLIENTS["chat"], mine.protocol) if whole else None
        self._asked = Conversation("chat", model, (), include_usage=True, raw=dict(options or {}))
        self._system = () if system is None else (Message("system", (TextPart(system),)),)
        self._headers = tuple(headers)
        self._first = ToolChoice("required") if first_call else ToolChoice()
        self._resources = Resources(
            self.settings, tuple(map(given_tool, tools)), model, app, on_exchange, transport, through
        )
        self._opened: OpenResources | None = None
        self._stack: AsyncExitStack | None = None
        """Of the block that the agent is entered in."""

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise AgentError("the agent is entered already; inside of one block it serves any number of runs")
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
        """The tools by name, those of servers included; {} outside of `async with agent`."""
        return {} if self._opened is None else self._opened.tools

    async def ask(self, messages: Messages) -> str:
        """The final answer. Raises what `run` raises."""
        async with self.run(messages) as run:
            return (await run.final()).text

    def run_sync(self, messages: Messages) -> Final:
        """The final answer and what it took, for code that is not asynchronous. Raises what `run` raises.

        Inside of a running event loop it raises RuntimeError: there, `await agent.ask(…)` is the way.
        """

        async def main() -> Final:
            async with self.run(messages) as run:
                return await run.final()

        return anyio.run(main)

    @asynccontextmanager
    async def run(self, messages: Messages) -> "AsyncIterator[AgentRun]":
        """A run; inside of the block its events come out of it, the final answer last.

        `messages` is a text, or messages of Chat Completions; they are read and never changed. The iteration raises
        AgentError when there is no answer, RequestError and UpstreamError as an exchange does.
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
            except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001  raised outside of the group
                failed = error
            finally:
                tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _drive(self, messages: Sequence[Message], send: ObjectSendStream[Event], run: "AgentRun") -> None:
        """The run itself; what it raises is raised by the iteration."""
        async with send:
            try:
                if self._opened is not None:
                    await self._loop(self._opened, messages, send, run)
                else:
                    async with self._resources.open() as found:
                        await self._loop(found, messages, send, run)
            except Exception as error:  # noqa: BLE001  whatever it is
                run._error = error  # noqa: SLF001  the two belong together

    async def _loop(
        self, found: OpenResources, messages: Sequence[Message], send: ObjectSendStream[Event], run: "AgentRun"
    ) -> None:
        offered = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in found.tools.values())
        names = Names(found.tools, restricted=self._native)
        asked = evolve(self._asked, tools=offered)
        talk = ModelClient(found.middleware, asked, names, self._listens, self._headers, choice=self._first)
        run._loop = loop = Loop(talk, found.tools, self._plan, send.send)  # noqa: SLF001  the two belong together
        await send.send(await loop.run(messages))


class AgentRun:
    """The events of one run, as they happen."""

    def __init__(self, events: ObjectReceiveStream[Event]) -> None:
        self._events = events
        self._error: Exception | None = None
        self._loop: Loop | None = None

    @property
    def messages(self) -> tuple[Mapping[str, Json], ...]:
        """All that the run has added to the conversation so far, as messages of Chat Completions.

        Of a run that was left before its end, too: calls that got no result are among them, and a reply that was being
        written is not.
        """
        return () if self._loop is None else tuple(chat.write_messages(self._loop.added))

    @property
    def usage(self) -> Usage:
        """The tokens of all replies so far."""
        return Usage() if self._loop is None else self._loop.usage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self._events.receive()
        except anyio.ClosedResourceError:
            raise AgentError("the run is over: its events come inside of its block only") from None
        except anyio.EndOfStream:
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise StopAsyncIteration from None

    async def final(self) -> Final:
        """The last event, the final answer; those before it are passed over."""
        async for event in self:
            if isinstance(event, Final):
                return event
        raise AgentError("the run has ended")
