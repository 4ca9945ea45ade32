"""Tools of MCP servers, through the official SDK: over standard input and output, or streamable HTTP.

Theory of operation. The SDK's client is a nest of task groups that belongs to the task which opened it, and some of its
errors end all of it. So each connection lives in a task of its own (`_keep`), and calls come from other tasks, which
share the client. A server that has ended costs the calls that were in the middle of it, which say so; nobody knows
whether they were carried out, so none is repeated. The next call finds no connection and opens one. Cancelling a call
tells the server.

The SDK (2.3) is written on anyio throughout, its HTTP on httpx2, which is too: everything here runs under asyncio and
under trio. Nothing of it is imported before a server is opened.
"""

import math
import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TextIO, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from streamtool.agent.tools import Progressed, ToolOutput
from streamtool.conversation import MediaPart, Part, TextPart
from streamtool.errors import AgentError, SettingsError
from streamtool.protocols import wire

Json = Any  # a decoded JSON value

_TERMINATED = "Session terminated"
"""What the SDK says when the server does not know the session any more: the request was not carried out."""


class McpServer:
    """An MCP server: a command line, or a URL of streamable HTTP.

        McpServer("uvx some-server --flag")     McpServer(["python", "server.py"])     McpServer("https://example.com/mcp")

    `name` is for messages. `prefix` stands before the names of its tools, where two servers have the same names;
    otherwise names are kept as they are. `env` adds to the little of the environment that the SDK passes on, `cwd` is
    the command's folder, `log` takes its standard error (None: nobody does). `headers` go with each HTTP request.
    `timeout` bounds one call (None: as the agent has it), `start` the opening, in seconds.
    """

    def __init__(
        self,
        target: str | Sequence[str] | Any,  # or a server object of the SDK, in this process
        *,
        name: str | None = None,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        log: TextIO | None = None,
        timeout: float | None = None,
        start: float = 30.0,
    ) -> None:
        self.url = target if isinstance(target, str) and target.startswith(("http://", "https://")) else None
        if isinstance(target, str):
            self.command = [] if self.url else shlex.split(target)
        else:
            self.command = list(target) if isinstance(target, Sequence) else []
        self._object = None if self.url or isinstance(target, str | Sequence) else target
        if not (self.url or self.command or self._object):
            raise SettingsError("an MCP server is a command or a url; this one is empty")
        told = next((word for word in self.command[1:] if not word.startswith("-")), "")
        if not told or " " in told:  # code, for instance
            told = self.command[0] if self.command else "in-process"
        self.name: str = name or self.url or Path(told).name
        self.prefix = prefix
        self.timeout = timeout
        self.start = start
        self._env = dict(env) if env is not None else None
        self._cwd = cwd
        self._headers = dict(headers or {})
        self._log = log

    @asynccontextmanager
    async def connect(self, over: anyio.Event) -> AsyncIterator[Any]:
        """A client of the SDK, connected; `over` is set when the server closes its output."""
        try:
            import mcp  # noqa: PLC0415  an extra
        except ModuleNotFoundError:
            raise SettingsError('MCP servers need the extra "mcp": pip install "streamtool[mcp]"') from None
        async with AsyncExitStack() as stack:
            if self._object is not None:
                transport = self._object
            elif self.url is not None:
                transport = _watched(await self._http(stack), over)
            else:
                log = self._log or stack.enter_context(_nobody())
                parameters = mcp.StdioServerParameters(
                    command=self.command[0], args=self.command[1:], env=self._env, cwd=self._cwd
                )
                transport = _watched(mcp.stdio_client(parameters, log), over)
            yield await stack.enter_async_context(mcp.Client(transport))

    async def _http(self, stack: AsyncExitStack) -> Any:
        import httpx2  # noqa: PLC0415  of the extra
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        # the SDK's own limits; one call is bounded by whoever makes it
        client = httpx2.AsyncClient(headers=self._headers, timeout=httpx2.Timeout(self.start, read=None))
        return streamable_http_client(cast(str, self.url), http_client=await stack.enter_async_context(client))


def _nobody() -> TextIO:
    """Where a log goes that nobody reads."""
    return Path(os.devnull).open("w", encoding="utf-8")


@asynccontextmanager
async def _watched(transport: Any, over: anyio.Event) -> AsyncIterator[Any]:
    """The transport, with an eye on the end of what it brings."""
    async with transport as (read, write):
        yield _Watched(read, over), write


class _Watched:
    """A stream of the SDK that sets `over` when it ends."""

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


class _Link:
    """One connection to a server while it lasts."""

    __slots__ = ("client", "over", "why")

    def __init__(self) -> None:
        self.client: Any = None
        self.over = anyio.Event()
        """The server has closed its output, or nobody wants the connection any more."""
        self.why = ""
        """Why it is over."""


class Connection:
    """A server that is connected when somebody needs it."""

    def __init__(self, server: McpServer, tasks: TaskGroup) -> None:
        self.server = server
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._link: _Link | None = None
        self._lost = ""
        """Why there is no connection any more."""

    async def tools(self) -> list["McpTool"]:
        """The tools that the server has. Raises AgentError."""
        link = await self._open()
        found: list[McpTool] = []
        cursor = None
        try:
            with anyio.fail_after(self.server.start):
                while True:
                    page = await link.client.list_tools(cursor=cursor)
                    found += [McpTool(self, one.name, one.description or "", one.input_schema) for one in page.tools]
                    cursor = page.next_cursor
                    if cursor is None:
                        return found
        except Exception as error:
            raise AgentError(
                f"the MCP server {self.server.name} does not list its tools: {_sentence(error)}"
            ) from error

    async def call(self, name: str, arguments: Mapping[str, Json], progressed: Progressed) -> ToolOutput:
        """One call. Raises AgentError when the server cannot be opened, or ended during the call."""
        from mcp import MCPError  # noqa: PLC0415  the server could only be opened with it
        from mcp.types import CONNECTION_CLOSED  # noqa: PLC0415

        for again in (True, False):
            link = await self.ready(progressed)
            try:
                return _answer(await link.client.call_tool(name, dict(arguments), progress_callback=progressed))
            except MCPError as error:
                if error.code == CONNECTION_CLOSED:
                    self._end(link, "it closed the connection")
                    break
                if error.message != _TERMINATED or not again:
                    return ToolOutput((TextPart(f"Error: {error.message}"),), error=True)
                self._end(link, "its session was terminated")
        raise AgentError(
            f"the MCP server {self.server.name} ended during this call ({link.why}); "
            "nobody knows whether the call was carried out"
        )

    async def ready(self, progressed: Progressed) -> _Link:
        """The connection, opened again if it was lost. Raises AgentError."""
        if self._lost:
            lost, self._lost = self._lost, ""
            await progressed(0, None, f"the MCP server {self.server.name} had ended ({lost}) and is opened again")
        return await self._open()

    async def _open(self) -> _Link:
        async with self._opening:
            if self._link is None:
                opened: _Link | BaseException = await self._tasks.start(self._keep)
                if isinstance(opened, BaseException):
                    raise AgentError(
                        f"the MCP server {self.server.name} cannot be opened: {_sentence(opened)}"
                    ) from opened
                self._link = opened
            return self._link

    async def _keep(self, *, task_status: TaskStatus[_Link | BaseException]) -> None:
        """One connection, from its opening to its end."""
        link = _Link()
        try:
            with anyio.fail_after(self.server.start) as scope:
                async with self.server.connect(link.over) as link.client:
                    scope.deadline = math.inf
                    task_status.started(link)
                    await link.over.wait()
                    self._end(link, "it closed its output")
        except* Exception as errors:  # noqa: BLE001  whatever a transport raises, beside a cancellation too
            if link.client is None:
                task_status.started(errors)
            self._end(link, _sentence(errors))
        finally:
            self._end(link, "")

    def _end(self, link: _Link, why: str) -> None:
        """The connection is of no use any more. The SDK tells everybody who still waits for an answer."""
        if self._link is link:
            self._link = None
            self._lost = link.why = why
        link.over.set()


class McpTool:
    """A tool of an MCP server."""

    def __init__(self, connection: Connection, name: str, description: str, parameters: Mapping[str, Json]) -> None:
        self.name: str = connection.server.prefix + name
        self.description = description
        self.parameters = parameters
        self.timeout = connection.server.timeout
        self._connection = connection
        self.own_name = name
        """At its server."""

    @property
    def server(self) -> McpServer:
        """Whose it is."""
        return self._connection.server

    async def ready(self, progressed: Progressed) -> None:
        """Open the server, if it has to be opened again."""
        await self._connection.ready(progressed)

    async def call(self, arguments: Mapping[str, Json], progressed: Progressed) -> ToolOutput:
        """Let the server execute one call."""
        return await self._connection.call(self.own_name, arguments, progressed)


@asynccontextmanager
async def opened(servers: Sequence[McpServer]) -> AsyncIterator[list[McpTool]]:
    """The tools of all servers, which stay open inside of the block. Raises AgentError when one cannot be opened."""
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
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001  raised outside of the group
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


# --- what comes back -------------------------------------------------------------------------------------------------


def _answer(result: Any) -> ToolOutput:
    """The SDK's result as ours: text and images as they are, the rest by name."""
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


def _sentence(error: BaseException) -> str:
    """What an error says, whatever it is wrapped in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__
