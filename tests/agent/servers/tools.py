"""An MCP server for the tests: `python tools.py` on standard input and output, `python tools.py PORT` over HTTP.

Notes are written to the file named by NOTES, where the test checks what really happened.
"""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("tools", log_level="CRITICAL")


def note(text: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{text}\n")


@server.tool(name="math.add")
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def wait(seconds: float) -> str:
    """Waits."""
    note(f"wait {seconds:g}")
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        note("cancelled")
        raise
    return f"waited {seconds:g}"


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Tells its progress."""
    for done in range(1, count + 1):
        await ctx.report_progress(done, count, f"step {done}")
    return "all steps"


@server.tool()
async def die() -> str:
    """Ends the server."""
    note("dies")
    os._exit(1)


@server.tool()
async def fail() -> str:
    """Fails."""
    raise RuntimeError("no luck")


@server.tool()
async def picture() -> list[object]:
    """Text and an image."""
    from mcp.types import ImageContent

    return ["a dot", ImageContent(type="image", data="AAAA", mime_type="image/png")]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="critical")
    else:
        server.run()
