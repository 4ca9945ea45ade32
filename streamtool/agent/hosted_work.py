"""Which hosted tools of a request the MCP servers of the settings carry out, and what is left of the request then.

A client names a server by a label and a URL. Neither is ever opened: they are compared with the patterns of the
settings, and the server that the operator has set is used, with its own command or URL and without the client's
headers. What no server of the settings stands for stays in the request, and is left out or refused as it always is.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from attrs import frozen

from streamtool.protocols import wire
from streamtool.protocols.hosted_tools import HostedTool, hosted_tools
from streamtool.protocols.interfaces import Headers
from streamtool.settings import McpSettings

Json = Any  # a decoded JSON value


@frozen
class Stands:
    """A server of the settings in the place of a hosted tool."""

    server: str
    tool: HostedTool
    search: str | None = None
    """The one tool that searches the web; None: all that the client allows."""

    def offers(self, name: str) -> bool:
        """Whether this tool of the server is for the request."""
        return self.tool.allows(name) if self.search is None else name == self.search


@frozen
class Work:
    """What the gateway does for a request."""

    of_rule: tuple[str, ...] = ()
    """Servers that the model's rule names: all their tools."""
    hosted: tuple[Stands, ...] = ()
    demanded: bool = False
    """The first reply has to call a tool."""

    @property
    def servers(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.of_rule, *(one.server for one in self.hosted))))

    def offers(self, server: str, name: str) -> bool:
        """Whether this tool of the server is for the request."""
        return server in self.of_rule or any(one.server == server and one.offers(name) for one in self.hosted)


def is_asked_for(servers: Mapping[str, McpSettings]) -> bool:
    """Whether clients can ask for any of them."""
    return any(server.hosted or server.web_search for server in servers.values())


def work_for(raw: Mapping[str, Json], of_rule: tuple[str, ...], servers: Mapping[str, McpSettings]) -> Work:
    """What is to be done for a request with this body."""
    choice = raw.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    hosted = () if kind == "none" else tuple(_standing(raw, servers))
    return Work(of_rule, hosted, demanded=bool(hosted) and kind not in (None, "auto"))


def without_hosted(raw: Mapping[str, Json], work: Work) -> bytes:
    """The body without the tools that are carried out, and without a choice that means them."""
    done = {one.tool.position for one in work.hosted}
    left = [tool for position, tool in enumerate(raw["tools"]) if position not in done]
    rest = {name: value for name, value in raw.items() if name not in ("tools", "tool_choice", "mcp_servers")}
    return wire.encode({**rest, "tools": left} if left else rest)


def headers_of(body: bytes, headers: Headers) -> Headers:
    """The headers of a request whose body is another one now."""
    kept = (pair for pair in headers if pair[0].lower() not in (b"content-length", b"content-encoding"))
    return (*kept, (b"content-length", str(len(body)).encode()))


def _standing(raw: Mapping[str, Json], servers: Mapping[str, McpSettings]) -> Iterator[Stands]:
    for tool in hosted_tools(raw):
        for name, server in servers.items():
            if tool.kind == "web_search" and server.web_search:
                yield Stands(name, tool, server.web_search)
                break
            if tool.kind == "mcp" and _means(tool, server):
                yield Stands(name, tool)
                break


def _means(tool: HostedTool, server: McpSettings) -> bool:
    return any(fnmatchcase(said, pattern) for said in (tool.url, tool.label) if said for pattern in server.hosted)
