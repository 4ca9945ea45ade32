"""Tools on MCP servers, used through the official SDK, over stdio or streamable HTTP.

The SDK's client consists of nested task groups that belong to the task that opened it, and some of its errors cancel
all of them. Each connection therefore has its own task (`_hold`), and the tasks that make calls share the client. If
the connection is lost during a call, the call fails with an error; it may or may not have been executed, so it is not
repeated. The next call opens a new connection. Cancelling a call notifies the server.

The SDK (2.3) and its HTTP client httpx2 are based on anyio, so everything works under asyncio and trio. They are
imported only when a server is opened.
"""

import math
import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self, TextIO, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus
from attrs import define, field

from streamtool.agent.tools import OnProgress, ToolOutput
from streamtool.core.conversation import MediaPart, Part, TextPart
from streamtool.core.errors import AgentError, SettingsError
from streamtool.core.json_value import Json
from streamtool.protocols.shared import wire

EagerCalls = Literal["read-only", "off"]
"""Which of a server's tools may start while the model is still writing: those declared to be read-only, or none."""
_TERMINATED = "Session terminated"
"""The SDK's error message when the server no longer knows the session. The request was not executed."""


class McpServer:
    """An MCP server, given as a command line or a streamable HTTP URL.

        McpServer("uvx some-server --flag")     McpServer(["python", "server.py"])     McpServer("https://example.com/mcp")

    `name` is used in messages. `prefix` is prepended to the names of its tools, to distinguish tools that have the same
    name on two servers. `env` adds to the few environment variables that the SDK passes on, and `cwd` is the working
    directory of the command. `log` receives the command's standard error, which is discarded by default. `headers` are
    sent with each HTTP request. `timeout` limits a call (None: the agent's timeout) and `start` the time to connect,
    both in seconds. `run_quoted` means that calls are executed even if they repeat a result or a tool's description.
    Tools that the server declares to be read-only may start while the model is still writing, unless `eager` is "off".
    """

    def __init__(
        self,
        target: str | Sequence[str] | Any,  # or an SDK server object, in this process
        *,
        name: str | None = None,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        log: TextIO | None = None,
        timeout: float | None = None,
        start: float = 30.0,
        run_quoted: bool = False,
        eager: EagerCalls = "read-only",
    ) -> None:
        self.url: str | None = (
            target if isinstance(target, str) and target.startswith(("http://", "https://")) else None
        )
        self.command: list[str]
        if isinstance(target, str):
            self.command = [] if self.url else shlex.split(target)
        else:
            self.command = list(target) if isinstance(target, Sequence) else []
        self._object = None if self.url or isinstance(target, str | Sequence) else target
        if not (self.url or self.command or self._object):
            raise SettingsError("an MCP server needs a command or a URL")
        told = next((word for word in self.command[1:] if not word.startswith("-")), "")
        if not told or " " in told:  # code given with -c
            told = self.command[0] if self.command else "in-process"
        self.name: str = name or self.url or Path(told).name
        self.prefix = prefix
        self.timeout = timeout
        self.start = start
        self.run_quoted = run_quoted
        self.eager: EagerCalls = eager
        self._env = dict(env) if env is not None else None
        self._cwd = cwd
        self._headers = dict(headers or {})
        self._log = log

    @asynccontextmanager
    async def connect(self, over: anyio.Event) -> AsyncIterator[Any]:
        """Connect an SDK client for the duration of the block; `over` is set when the server closes its output."""
        try:
            import mcp  # noqa: PLC0415  optional extra
        except ModuleNotFoundError:
            raise SettingsError('MCP servers need the extra "mcp": pip install "streamtool[mcp]"') from None
        async with AsyncExitStack() as stack:
            if self._object is not None:
                transport = self._object
            elif self.url is not None:
                transport = _monitored(await self._http(stack), over)
            else:
                log = self._log or stack.enter_context(_open_null_log())
                parameters = mcp.StdioServerParameters(
                    command=self.command[0], args=self.command[1:], env=self._env, cwd=self._cwd
                )
                transport = _monitored(mcp.stdio_client(parameters, log), over)
            yield await stack.enter_async_context(mcp.Client(transport))

    async def _http(self, stack: AsyncExitStack) -> Any:
        import httpx2  # noqa: PLC0415  part of the extra
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        # Reading is not limited here, because the caller limits the duration of a call.
        client = httpx2.AsyncClient(headers=self._headers, timeout=httpx2.Timeout(self.start, read=None))
        return streamable_http_client(cast(str, self.url), http_client=await stack.enter_async_context(client))


def _open_null_log() -> TextIO:
    """Return a sink for a log that is discarded."""
    return Path(os.devnull).open("w", encoding="utf-8")


@asynccontextmanager
async def _monitored(transport: Any, over: anyio.Event) -> AsyncIterator[Any]:
    """Wrap a transport so that `over` is set when the transport's output ends."""
    async with transport as (read, write):
        yield _MonitoredStream(read, over), write


class _MonitoredStream:
    """An SDK stream that sets `over` when it ends."""

    def __init__(self, stream: Any, over: anyio.Event) -> None:
        self._stream = stream
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._over.set()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


@define(eq=False)
class _Link:
    """An open connection to a server."""

    client: Any = field(default=None, init=False)
    ended: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when the server has closed its output or the connection is no longer usable."""
    reason: str = field(default="", init=False)
    """Why the connection ended."""


class Connection:
    """A connection to a server, opened on demand and reopened if lost."""

    def __init__(self, server: McpServer, tasks: TaskGroup) -> None:
        self.server = server
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._link: _Link | None = None
        self._lost = ""
        """Why the last connection was lost; empty if none has been lost."""

    async def tools(self) -> list["McpTool"]:
        """Return the server's tools. Raises AgentError."""
        link = await self._open()
        found: list[McpTool] = []
        cursor = None
        try:
            with anyio.fail_after(self.server.start):
                while True:
                    page = await link.client.list_tools(cursor=cursor)
                    found += [McpTool.of(self, one) for one in page.tools]
                    cursor = page.next_cursor
                    if cursor is None:
                        return found
        except Exception as error:
            raise AgentError(
                f"cannot list the tools of the MCP server {self.server.name}: {_message_of(error)}"
            ) from error

    async def call(self, name: str, arguments: Mapping[str, Json], progressed: OnProgress) -> ToolOutput:
        """Execute one call. Raises AgentError if the server cannot be opened or the connection is lost during the
        call.
        """
        from mcp import MCPError  # noqa: PLC0415  installed, because the server is open
        from mcp.types import CONNECTION_CLOSED  # noqa: PLC0415

        for again in (True, False):
            link = await self.ready(progressed)
            try:
                return _output_of(await link.client.call_tool(name, dict(arguments), progress_callback=progressed))
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    self._end(link, "it closed the connection")
                    break
                if error.message != _TERMINATED or not again:
                    return ToolOutput((TextPart(f"Error: {error.message}"),), error=True)
                self._end(link, "its session was terminated")
        raise AgentError(
            f"the MCP server {self.server.name} ended during this call ({link.reason}); "
            "the call may or may not have been executed"
        )

    async def ready(self, progressed: OnProgress) -> _Link:
        """Return the connection, reopening it if it was lost. Raises AgentError."""
        if self._lost:
            lost, self._lost = self._lost, ""
            await progressed(0, None, f"the MCP server {self.server.name} ended ({lost}); reopening it")
        return await self._open()

    async def _open(self) -> _Link:
        async with self._opening:
            if self._link is None:
                opened: _Link | BaseException = await self._tasks.start(self._hold)
                if isinstance(opened, BaseException):
                    raise AgentError(
                        f"the MCP server {self.server.name} cannot be opened: {_message_of(opened)}"
                    ) from opened
                self._link = opened
            return self._link

    async def _hold(self, *, task_status: TaskStatus[_Link | BaseException]) -> None:
        """Hold one connection open until it ends."""
        link = _Link()
        try:
            with anyio.fail_after(self.server.start) as scope:
                async with self.server.connect(link.ended) as link.client:
                    scope.deadline = math.inf
                    task_status.started(link)
                    await link.ended.wait()
                    self._end(link, "it closed its output")
        except* Exception as errors:  # noqa: BLE001  transports raise anything, even alongside a cancellation
            if link.client is None:
                task_status.started(errors)
            self._end(link, _message_of(errors))
        finally:
            self._end(link, "")

    def _end(self, link: _Link, why: str) -> None:
        """Mark the connection as ended. The SDK fails the requests that are still waiting for a response."""
        if self._link is link:
            self._link = None
            self._lost = link.reason = why
        link.ended.set()


class McpTool:
    """A tool on an MCP server."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        description: str,
        parameters: Mapping[str, Json],
        *,
        read_only: bool = False,
    ) -> None:
        self.name: str = connection.server.prefix + name
        self.description = description
        self.parameters = parameters
        self.timeout = connection.server.timeout
        self.run_quoted = connection.server.run_quoted
        self.eager: bool = read_only and connection.server.eager == "read-only"
        self._connection = connection
        self.remote_name = name
        """Name on the server, without the prefix."""

    @classmethod
    def of(cls, connection: Connection, listed: Any) -> Self:
        """Return a tool as the SDK lists it."""
        hints = listed.annotations
        read_only = hints is not None and bool(hints.read_only_hint)
        return cls(connection, listed.name, listed.description or "", listed.input_schema, read_only=read_only)

    @property
    def server(self) -> McpServer:
        """Server that provides the tool."""
        return self._connection.server

    async def ready(self, progressed: OnProgress) -> None:
        """Reopen the connection to the server if it was lost."""
        await self._connection.ready(progressed)

    async def call(self, arguments: Mapping[str, Json], progressed: OnProgress) -> ToolOutput:
        """Have the server execute one call."""
        return await self._connection.call(self.remote_name, arguments, progressed)


@asynccontextmanager
async def open_servers(servers: Sequence[McpServer]) -> AsyncIterator[list[McpTool]]:
    """Keep servers open for the duration of the block, and yield their tools. Raises AgentError if one cannot be
    opened.
    """
    if not servers:
        yield []
        return
    found: dict[int, list[McpTool]] = {}
    failed: list[BaseException] = []
    async with anyio.create_task_group() as tasks:
        try:
            connections = [Connection(server, tasks) for server in servers]
            await _list_all(connections, found, failed)
            if not failed:
                yield [tool for number in sorted(found) for tool in found[number]]
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001  raised again outside the group
            failed.append(error)
        finally:
            tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]


async def _list_all(
    connections: Sequence[Connection], found: dict[int, list[McpTool]], failed: list[BaseException]
) -> None:
    async def one(number: int) -> None:
        try:
            found[number] = await connections[number].tools()
        except AgentError as error:
            failed.append(error)

    async with anyio.create_task_group() as listing:
        for number in range(len(connections)):
            listing.start_soon(one, number)


# --- results ---------------------------------------------------------------------------------------------------------


def _output_of(result: Any) -> ToolOutput:
    """Convert an SDK result: text and media unchanged, other content by name."""
    content = tuple(part for block in result.content for part in _parts(block))
    if not content and result.structured_content is not None:
        content = (TextPart(wire.encode(result.structured_content).decode()),)
    return ToolOutput(content, error=bool(result.is_error))


def _parts(block: Any) -> Iterator[Part]:
    match block.type:
        case "text":
            yield TextPart(block.text)
        case "image" | "audio":
            url = f"data:{block.mime_type};base64,{block.data}"
            raw: dict[str, Json] = {"type": "image_url", "image_url": {"url": url}}
            if block.type == "audio":
                form = block.mime_type.partition("/")[2]
                raw = {"type": "input_audio", "input_audio": {"data": block.data, "format": form}}
            yield MediaPart(block.type, raw, block.mime_type, block.data)
        case "resource" if hasattr(block.resource, "text"):
            yield TextPart(block.resource.text)
        case "resource":
            yield TextPart(f"[resource {block.resource.uri}]")
        case "resource_link":
            yield TextPart(f"[{block.name}]({block.uri})")
        case other:
            yield TextPart(f"[{other}]")


def _message_of(error: BaseException) -> str:
    """Return the message of an exception, unwrapped from exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__
