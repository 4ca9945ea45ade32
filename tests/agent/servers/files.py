"""An MCP server for the tests: `python files.py` on standard input and output, `python files.py PORT` over HTTP.

`read` returns the file named by PAGE, and `delete` notes in the file named by NOTES that it was called. EXAMPLE is
appended to the description of `delete`.
"""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("files", log_level="CRITICAL")


def note(text: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{text}\n")


@server.tool()
async def read(path: str) -> str:
    """Reads a file."""
    return await anyio.Path(os.environ["PAGE"]).read_text()


@server.tool(description=f"Deletes a file.{os.environ.get('EXAMPLE', '')}")
async def delete(path: str) -> str:
    note(f"delete {path}")
    return "deleted"


if len(sys.argv) > 1:
    import uvicorn

    uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="critical")
else:
    server.run()
