"""What the runs of an agent need and may share: the tools, with their MCP servers, and the upstreams."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import httpx
from attrs import frozen

from streamtool.agent.functions import FunctionTool
from streamtool.agent.mcp_servers import McpServer, opened
from streamtool.agent.model_client import middleware_of
from streamtool.agent.tools import ExecutableTool
from streamtool.errors import SettingsError
from streamtool.http.asgi import ASGIApp
from streamtool.http.middleware import ToolMiddleware
from streamtool.http.templates import ChatTemplates
from streamtool.http.upstream import HttpUpstream, open_servers
from streamtool.observe.observers import OnExchange
from streamtool.settings import Settings, UpstreamSettings

PATIENCE = 1.0
"""Seconds that an agent waits for the chat template of its model: the whole run is written in the format it tells."""


@frozen
class OpenResources:
    """What a run works with."""

    middleware: ToolMiddleware
    tools: Mapping[str, ExecutableTool]


@frozen
class Resources:
    """What an agent was given, before anything of it is open."""

    settings: Settings
    tools: tuple[ExecutableTool | McpServer, ...]
    model: str = "default"
    app: ASGIApp | None = None
    """What answers in the place of the upstreams."""
    on_exchange: OnExchange | None = None
    transport: httpx.AsyncBaseTransport | None = None
    """In the place of the network."""
    through: ToolMiddleware | None = None
    """In the place of all that leads to an upstream; whoever made it closes it."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenResources]:
        """The servers and upstreams, open."""
        async with AsyncExitStack() as stack:
            functions = [tool for tool in self.tools if not isinstance(tool, McpServer)]
            servers = [tool for tool in self.tools if isinstance(tool, McpServer)]
            tools = _by_name([*functions, *await stack.enter_async_context(opened(servers))])
            if self.through is not None:
                yield OpenResources(self.through, tools)
                return
            apps: dict[str, ASGIApp] = {"": self.app} if self.app is not None else {}
            for name, upstream in self.settings.upstreams.items():
                apps[name] = app = self._upstream(upstream)
                if isinstance(app, HttpUpstream):
                    stack.push_async_callback(_closed, app)
            templates = ChatTemplates(self.settings, open_servers(apps))
            middleware = middleware_of(self.settings, apps, self.on_exchange, templates)
            stack.callback(middleware.store.close)
            with anyio.move_on_after(PATIENCE):
                await templates.learn(self.settings.for_model(self.model))
            yield OpenResources(middleware, tools)

    def _upstream(self, upstream: UpstreamSettings) -> ASGIApp:
        if upstream.url == "sample":
            from streamtool import sample  # noqa: PLC0415  only who asks it pays for it

            return sample.app
        return HttpUpstream(upstream, limits=self.settings.limits, transport=self.transport)


def given_tool(given: Callable[..., Any] | McpServer | ExecutableTool) -> ExecutableTool | McpServer:
    """The tool, or the server of tools, that was given; a plain function becomes a tool. Raises SettingsError."""
    if isinstance(given, McpServer):
        return given
    if hasattr(given, "parameters") and hasattr(given, "call"):
        return cast(ExecutableTool, given)
    return FunctionTool(given)


async def _closed(app: HttpUpstream) -> None:
    with anyio.CancelScope(shield=True):
        await app.aclose()


def _by_name(tools: Iterable[ExecutableTool]) -> dict[str, ExecutableTool]:
    found: dict[str, ExecutableTool] = {}
    for tool in tools:
        if found.setdefault(tool.name, tool) is not tool:
            raise SettingsError(
                f"two tools are named {tool.name}: give one another name, or its MCP server a prefix", param="tools"
            )
    return found
