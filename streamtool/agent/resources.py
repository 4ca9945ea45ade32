"""Resources that the runs of an agent can share: tools with their MCP servers, and upstreams."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import httpx
from attrs import frozen

from streamtool.agent.functions import FunctionTool
from streamtool.agent.mcp_servers import McpServer, open_servers
from streamtool.agent.model_client import make_middleware
from streamtool.agent.tools import ExecutableTool
from streamtool.asgi.types import ASGIApp
from streamtool.core.errors import SettingsError
from streamtool.middleware import ToolMiddleware
from streamtool.observe.observers import OnExchange
from streamtool.protocols.shared.fields import is_visible_name, same_spelling
from streamtool.settings import Settings, UpstreamSettings
from streamtool.upstream.app import HttpUpstream, model_servers
from streamtool.upstream.chat_templates import ChatTemplates

TEMPLATE_TIMEOUT = 1.0
"""Maximum seconds to wait for the model's chat template, which determines the format for the entire run."""


@frozen
class OpenResources:
    """Open resources of a run: the middleware in front of the model, and the tools by name."""

    middleware: ToolMiddleware
    tools: Mapping[str, ExecutableTool]


@frozen
class Resources:
    """Resources given to an agent, before they are opened."""

    settings: Settings
    tools: tuple[ExecutableTool | McpServer, ...]
    model: str = "default"
    app: ASGIApp | None = None
    """An app that replaces the upstreams."""
    on_exchange: OnExchange | None = None
    transport: httpx.AsyncBaseTransport | None = None
    """A transport that replaces the network."""
    through: ToolMiddleware | None = None
    """A middleware that replaces everything between the agent and the model. Its creator closes it."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenResources]:
        """Open the MCP servers and upstreams for the duration of the block."""
        async with AsyncExitStack() as stack:
            functions = [tool for tool in self.tools if not isinstance(tool, McpServer)]
            servers = [tool for tool in self.tools if isinstance(tool, McpServer)]
            tools = _tools_by_name([*functions, *await stack.enter_async_context(open_servers(servers))])
            if self.through is not None:
                yield OpenResources(self.through, tools)
                return
            apps: dict[str, ASGIApp] = {"": self.app} if self.app is not None else {}
            for name, upstream in self.settings.upstreams.items():
                apps[name] = app = self._upstream(upstream)
                if isinstance(app, HttpUpstream):
                    stack.push_async_callback(_close, app)
            templates = ChatTemplates(self.settings, model_servers(apps))
            middleware = make_middleware(self.settings, apps, self.on_exchange, templates)
            stack.callback(middleware.store.close)
            with anyio.move_on_after(TEMPLATE_TIMEOUT):
                await templates.learn_once(self.model)
            yield OpenResources(middleware, tools)

    def _upstream(self, upstream: UpstreamSettings) -> ASGIApp:
        if upstream.url == "sample":
            from streamtool import sample  # noqa: PLC0415  imported on demand

            return sample.app
        return HttpUpstream(upstream, limits=self.settings.limits, transport=self.transport)


def as_tool(given: Callable[..., Any] | McpServer | ExecutableTool) -> ExecutableTool | McpServer:
    """Return a tool or MCP server unchanged, and a plain function as a tool. Raises SettingsError."""
    if isinstance(given, McpServer):
        return given
    if hasattr(given, "parameters") and hasattr(given, "call"):
        return cast(ExecutableTool, given)
    return FunctionTool(given)


async def _close(app: HttpUpstream) -> None:
    with anyio.CancelScope(shield=True):
        await app.aclose()


def _tools_by_name(tools: Iterable[ExecutableTool]) -> dict[str, ExecutableTool]:
    found: dict[str, ExecutableTool] = {}
    for tool in tools:
        if found.setdefault(tool.name, tool) is not tool:
            raise SettingsError(
                f"two tools are named {tool.name}; rename one, or give its MCP server a prefix", param="tools"
            )
        if not is_visible_name(tool.name):
            raise SettingsError(
                f"the name of the tool {tool.name!a} contains spaces, quotes, brackets or invisible characters",
                param="tools",
            )
    same = same_spelling(found)
    if same is not None:
        names = " and ".join(ascii(name) for name in same)
        raise SettingsError(f"two tools have names that look the same: {names}", param="tools")
    return found
