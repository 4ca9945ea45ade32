"""Hosted tools that can be run outside their origin: MCP servers and web search.

A tool is identified by its type or, in Gemini's protocol, by its key; no two protocols use the same name for different
tools. Tools that cannot be run in the way the client requires are not included. An example is an MCP tool whose calls
require approval, because approval cannot be requested here. Source: the types of openai 3.54 (`Mcp`), anthropic-python
2.12 (`BetaMCPToolsetParam`) and google-genai 3.4 (`Tool`).
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from attrs import frozen

from streamtool.core.json_value import Fields, Json


@frozen
class HostedTool:
    """Hosted tool that can be run outside its origin."""

    position: int
    """Index in the request's `tools`."""
    kind: Literal["mcp", "web_search"]
    label: str = ""
    """The client's label for the MCP server."""
    url: str = ""
    """URL of the MCP server, as sent by the client."""
    allowed: frozenset[str] | None = None
    """Names of the server's tools that may be called; None means all."""
    disallowed: frozenset[str] = frozenset()
    """Names of the server's tools that may not be called."""

    def allows(self, name: str) -> bool:
        """Return whether the client allows calls to the server's tool with this name."""
        return name not in self.disallowed and (self.allowed is None or name in self.allowed)


def hosted_tools(raw: Fields) -> Iterator[HostedTool]:
    """Yield the hosted tools in a request body, in order. The body must already have been validated as a request."""
    tools = raw.get("tools")
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        match tool:
            case {"type": "mcp"}:
                found = _mcp(position, tool)
            case {"type": "mcp_toolset", "mcp_server_name": str(name)}:
                found = _toolset(position, tool, name, raw.get("mcp_servers"))
            case {"type": str(kind)} if kind.startswith("web_search"):
                found = HostedTool(position, "web_search")
            case {"googleSearch": Mapping()} | {"google_search": Mapping()} if len(tool) == 1:
                found = HostedTool(position, "web_search")
            case _:
                found = None
        if found is not None:
            yield found


def _mcp(position: int, tool: Fields) -> HostedTool | None:
    """Return the server of an MCP tool in a Responses request, or None if the tool's calls require approval or its
    restrictions are not understood.
    """
    allowed = _names(tool.get("allowed_tools"))
    match tool.get("require_approval"):
        case "never":
            free: frozenset[str] | None = None
        case {"never": Mapping() as never} if "tool_names" in never:
            free = _names(never)
        case _:  # by default, every call requires approval
            return None
    if tool.get("allowed_tools") is not None:
        if allowed is None:
            return None
        free = allowed if free is None else allowed & free
    label, url = (tool.get(name) for name in ("server_label", "server_url"))
    return HostedTool(position, "mcp", _text(label), _text(url), free)


def _names(value: Json) -> frozenset[str] | None:
    """Return the names in a list, or in a filter that has no other criteria, or None for any other value."""
    if isinstance(value, Mapping) and not any(rule for key, rule in value.items() if key != "tool_names"):
        value = value.get("tool_names")
    return frozenset(map(_text, value)) if isinstance(value, list) else None


def _toolset(position: int, tool: Fields, name: str, servers: Json) -> HostedTool:
    """Return the server that a toolset in a Messages request refers to, with its enabled tools."""
    known = (server for server in (servers if isinstance(servers, list) else ()) if isinstance(server, Mapping))
    url = next((server.get("url") for server in known if server.get("name") == name), "")
    configs, default, pinned = (tool.get(key) for key in ("configs", "default_config", "tools"))
    on = not (isinstance(default, Mapping) and default.get("enabled") is False)
    only = None if on else frozenset(_configured(configs, on=True))
    if isinstance(pinned, list):
        listed = frozenset(_text(one.get("name")) for one in pinned if isinstance(one, Mapping))
        only = listed if only is None else listed & only
    return HostedTool(position, "mcp", name, _text(url), only, frozenset(_configured(configs, on=False)))


def _configured(configs: Json, *, on: bool) -> Iterator[str]:
    """Yield the names of the tools that are individually enabled, or disabled if `on` is false."""
    for name, config in configs.items() if isinstance(configs, Mapping) else ():
        if isinstance(config, Mapping) and config.get("enabled") is on:
            yield name


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
