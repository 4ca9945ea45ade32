"""Replaces the hosted tools in a request with MCP servers from the settings.

A client identifies a server by a label and a URL. That server is never contacted: the label and the URL are only
compared with patterns in the settings. If a pattern matches, the operator's server is used, with its own command or URL
and without the client's headers. Hosted tools without a matching server remain in the request, and are dropped or
rejected as usual.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from streamtool.core.json_value import Json
from streamtool.protocols.interfaces import Headers
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.hosted_tools import HostedTool, hosted_tools
from streamtool.settings import McpSettings


@frozen
class Replacement:
    """An MCP server from the settings that replaces a hosted tool."""

    server: str
    tool: HostedTool
    search: str | None = None
    """The server's web search tool; None for all tools that the client allows."""

    def offers(self, name: str) -> bool:
        """Return whether the request may use this tool on the server."""
        return self.tool.allows(name) if self.search is None else name == self.search


@frozen
class Work:
    """Work that the gateway does for a request: the servers whose tools it offers, and whether a call is required."""

    rule_servers: tuple[str, ...] = ()
    """Servers listed by the model's rule, with all their tools."""
    hosted: tuple[Replacement, ...] = ()
    call_required: bool = False
    """Whether the first reply must call a tool."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of all servers, without duplicates."""
        return tuple(dict.fromkeys((*self.rule_servers, *(one.server for one in self.hosted))))

    def offers(self, server: str, name: str) -> bool:
        """Return whether the request may use this tool on the server."""
        return server in self.rule_servers or any(one.server == server and one.offers(name) for one in self.hosted)


def any_requestable(servers: Mapping[str, McpSettings]) -> bool:
    """Return whether any server can be requested by clients."""
    return any(server.hosted or server.web_search for server in servers.values())


def plan_work(raw: Mapping[str, Json], of_rule: tuple[str, ...], servers: Mapping[str, McpSettings]) -> Work:
    """Return the work for a request with the body `raw`. `of_rule` contains the names of the servers listed by the
    model's rule.
    """
    choice = raw.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    hosted = () if kind == "none" else tuple(_find_replacements(raw, servers))
    return Work(of_rule, hosted, call_required=bool(hosted) and kind not in (None, "auto"))


def remove_hosted_tools(raw: Mapping[str, Json], work: Work) -> bytes:
    """Return the body without the replaced tools, and without the tool choice."""
    done = {one.tool.position for one in work.hosted}
    left = [tool for position, tool in enumerate(raw["tools"]) if position not in done]
    rest = {name: value for name, value in raw.items() if name not in ("tools", "tool_choice", "mcp_servers")}
    return wire.encode({**rest, "tools": left} if left else rest)


def adapt_headers(body: bytes, headers: Headers) -> Headers:
    """Return the headers adapted to a changed body."""
    kept = (pair for pair in headers if pair[0].lower() not in (b"content-length", b"content-encoding"))
    return (*kept, (b"content-length", str(len(body)).encode()))


def _find_replacements(raw: Mapping[str, Json], servers: Mapping[str, McpSettings]) -> Iterator[Replacement]:
    for tool in hosted_tools(raw):
        for name, server in servers.items():
            if tool.kind == "web_search" and server.web_search:
                yield Replacement(name, tool, server.web_search)
                break
            if tool.kind == "mcp" and _matches(tool, server):
                yield Replacement(name, tool)
                break


def _matches(tool: HostedTool, server: McpSettings) -> bool:
    return any(fnmatchcase(said, pattern) for said in (tool.url, tool.label) if said for pattern in server.hosted)
