"""`streamtool inspect`: recordings on a page, and `streamtool parse --page`: a text of one's own on it.

A server on this machine serves the inspector until it is interrupted. It asks no upstream, and no other host.
"""

import webbrowser
from collections.abc import Sequence

import uvicorn

from streamtool.cli.common import Screen, open_source, read_tools
from streamtool.cli.parse import pieces, read_formats
from streamtool.cli.serve import address, bind
from streamtool.conversation import Json
from streamtool.http.asgi import Receive, Scope, Send
from streamtool.inspector.app import PATH, Inspector
from streamtool.inspector.recorded import RecordedExchanges
from streamtool.settings import Settings

HOST = "127.0.0.1"


def run(names: Sequence[str], *, port: int, open_page: bool) -> None:
    """Show recordings. Raises SettingsError for what is none, StreamtoolError where nothing can listen."""
    _serve(RecordedExchanges(names), None, "", port=port, open_page=open_page)


def play(name: str | None, tools: str | None, formats: str | None, delta: int | None) -> None:
    """Show a text as the parser reads it. Raises as `run` does."""
    example: dict[str, Json] = {"tools": None if tools is None else read_tools(tools), "cut": delta}
    example["formats"] = [] if formats is None else read_formats(formats)
    if name is not None:
        with open_source(name) as source:
            example["text"] = "".join(pieces(source, None))
    _serve(RecordedExchanges(()), example, "#/try", port=0, open_page=True)


def _serve(exchanges: RecordedExchanges, example: Json, part: str, *, port: int, open_page: bool) -> None:
    with bind(HOST, port) as sock:
        url = f"http://{address(HOST, sock.getsockname()[1])}"
        inspector = Inspector(Settings(contents=True), exchanges, lambda: server.should_exit, example=example)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if Inspector.serves(scope["path"]):
                await inspector(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 307, "headers": [(b"location", PATH.encode())]})
                await send({"type": "http.response.body", "body": b""})

        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        Screen().line("the inspector is at ", (f"{url}{PATH}{part}", "bold"), "  (ctrl-c ends it)")
        if open_page:
            webbrowser.open(f"{url}{PATH}{part}")
        server.run(sockets=[sock])
