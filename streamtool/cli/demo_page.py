"""`streamtool demo --page`: open the inspector in a browser before the demo begins."""

import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from streamtool.asgi.types import ASGIApp, Receive, Scope, Send
from streamtool.cli.common import Screen
from streamtool.inspector.app import PATH

_LOAD_TIMEOUT: Final = 8.0
"""Maximum seconds to wait for the page to load before the demo begins."""
_FIRST: Final = "#/first"
"""Fragment that makes the page show the first exchange as soon as it exists."""


class DemoPage:
    """The demo's inspector page, and whether a browser has loaded it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._looks = threading.Event()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap the app to detect when the page is loaded."""

        async def noticing(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == f"{PATH}/events":
                self._looks.set()
            await app(scope, receive, send)

        return noticing

    @contextmanager
    def open_page(self, url: str) -> Iterator[None]:
        """Open the page and wait until it is loaded, then run the block. Afterwards, wait until interrupted."""
        page = f"{url}{PATH}{_FIRST}"
        self._screen.line("  The page: ", (page, "bold"))
        webbrowser.open(page)
        self._looks.wait(_LOAD_TIMEOUT)
        yield
        with suppress(KeyboardInterrupt):
            self._screen.line(
                "  Play the demo back on the page to see what was buffered and why. Press ctrl-c to end it."
            )
            threading.Event().wait()
