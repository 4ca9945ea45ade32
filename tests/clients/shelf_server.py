"""An MCP server for the tests, on standard input and output: a shelf that remembers where things are."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("shelf", log_level="CRITICAL")
PLACES: dict[str, str] = {}


@server.tool()
def mcp_shelf_put(title: str, place: str) -> str:
    """Puts a thing somewhere."""
    PLACES[title] = place
    return f"{title} stands at {place}"


@server.tool()
def mcp_shelf_find(title: str, near: list[str] | None = None) -> str:
    """Finds a thing."""
    return PLACES.get(title, f"nobody knows {title}") + (f", not at {near}" if near else "")


@server.tool(name="mcp_shelf_count-all")
def count() -> int:
    """Counts the things."""
    return len(PLACES)


if __name__ == "__main__":
    server.run()
