"""Hosted tools of a request that need not be carried out at their origin: MCP servers and a search of the web.

A tool is known by its type, or, in Gemini's protocol, by its key; no two protocols use the same one for different
things. What cannot be done as the client wants it is not among them: a call that needs an approval, say, for which
nobody could be asked. Source: the types of openai 3.54 (`Mcp`), anthropic-python 2.12 (`BetaMCPToolsetParam`) and
google-genai 3.4 (`Tool`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import frozen

Json = Any  # a decoded JSON value
Fields = Mapping[str, Json]


@frozen
class HostedTool:
    """A hosted tool that somebody else than its origin may carry out."""

    position: int
    """Its place in `tools` of the request."""
    kind: Literal["mcp", "web_search"]
    label: str = ""
    """What the client calls the MCP server."""
    url: str = ""
    """Where the client says that it is."""
    only: frozenset[str] | None = None
    """The tools of the server that may be called; None: all."""
    without: frozenset[str] = frozenset()
    """Those that may not."""

    def allows(self, name: str) -> bool:
        """Whether the client lets this tool of the server be called."""
        return name not in self.without and (self.only is None or name in self.only)


def hosted_tools(raw: Fields) -> Iterator[HostedTool]:
    """The hosted tools of a request's body, in its order; the body has been read as a request before."""
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
    """The server that a tool of Responses names; None if its calls need an approval, or what they are is not known."""
    allowed = _names(tool.get("allowed_tools"))
    match tool.get("require_approval"):
        case "never":
            free: frozenset[str] | None = None
        case {"never": Mapping() as never} if "tool_names" in never:
            free = _names(never)
        case _:  # by default every call is to be approved
            return None
    if tool.get("allowed_tools") is not None:
        if allowed is None:
            return None
        free = allowed if free is None else allowed & free
    label, url = (tool.get(name) for name in ("server_label", "server_url"))
    return HostedTool(position, "mcp", _text(label), _text(url), free)


def _names(value: Json) -> frozenset[str] | None:
    """The names in a list, or in a filter that holds nothing else; None if it is neither."""
    if isinstance(value, Mapping) and not any(rule for key, rule in value.items() if key != "tool_names"):
        value = value.get("tool_names")
    return frozenset(map(_text, value)) if isinstance(value, list) else None


def _toolset(position: int, tool: Fields, name: str, servers: Json) -> HostedTool:
    """The server that a toolset of Messages refers to, and which of its tools are switched on."""
    known = (server for server in (servers if isinstance(servers, list) else ()) if isinstance(server, Mapping))
    url = next((server.get("url") for server in known if server.get("name") == name), "")
    configs, default, pinned = (tool.get(key) for key in ("configs", "default_config", "tools"))
    on = not (isinstance(default, Mapping) and default.get("enabled") is False)
    only = None if on else frozenset(_switched(configs, on=True))
    if isinstance(pinned, list):
        listed = frozenset(_text(one.get("name")) for one in pinned if isinstance(one, Mapping))
        only = listed if only is None else listed & only
    return HostedTool(position, "mcp", name, _text(url), only, frozenset(_switched(configs, on=False)))


def _switched(configs: Json, *, on: bool) -> Iterator[str]:
    """The tools that are switched on, or off, one by one."""
    for name, config in configs.items() if isinstance(configs, Mapping) else ():
        if isinstance(config, Mapping) and config.get("enabled") is on:
            yield name


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
