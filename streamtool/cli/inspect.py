"""`streamtool inspect` and `streamtool parse --page`: serve recordings, or text to parse, in the inspector.

The server runs on this machine until interrupted. It contacts neither an upstream nor any other host.
"""

import webbrowser
from collections.abc import Sequence

import uvicorn

from streamtool.asgi.types import Receive, Scope, Send
from streamtool.cli.common import Screen, open_source, read_formats, read_tools
from streamtool.cli.parse import pieces
from streamtool.cli.serve import address, bind
from streamtool.core.json_value import Json
from streamtool.inspector.app import PATH, Inspector
from streamtool.inspector.recorded import RecordedExchanges
from streamtool.settings import Settings

HOST = "127.0.0.1"


def run(names: Sequence[str], *, port: int, open_page: bool) -> None:
    """Show recordings. Raises SettingsError for a file that is not a recording, and StreamtoolError if the port cannot
    be opened.
    """
    _serve(RecordedExchanges(names), None, "", port=port, open_page=open_page)


def play(name: str | None, tools: str | None, formats: str | None, delta: int | None) -> None:
    """Show text as the parser reads it. Raises the same errors as `run`."""
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
        Screen().line("the inspector is at ", (f"{url}{PATH}{part}", "bold"), "  (ctrl-c to stop)")
        if open_page:
            webbrowser.open(f"{url}{PATH}{part}")
        server.run(sockets=[sock])
