"""`streamtool demo --page`: the inspector beside the demo, opened in a browser before anything is asked."""

import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from streamtool.cli.common import Screen
from streamtool.http.asgi import ASGIApp, Receive, Scope, Send
from streamtool.inspector.app import PATH

_LOOKS: Final = 8.0
"""Seconds for which the demo waits until somebody looks."""
_FIRST: Final = "#/first"
"""The part of the page that shows the first exchange as soon as there is one."""


class DemoPage:
    """Whether somebody looks, and the page for whoever does."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._looks = threading.Event()

    def around(self, app: ASGIApp) -> ASGIApp:
        """The app; it notices when the page is there."""

        async def noticing(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == f"{PATH}/events":
                self._looks.set()
            await app(scope, receive, send)

        return noticing

    @contextmanager
    def opened(self, url: str) -> Iterator[None]:
        """The page is open inside of the block; behind it the demo stays until it is interrupted."""
        page = f"{url}{PATH}{_FIRST}"
        self._screen.line("  The page: ", (page, "bold"))
        webbrowser.open(page)
        self._looks.wait(_LOOKS)
        yield
        with suppress(KeyboardInterrupt):
            self._screen.line("  Play it back on the page: what was held, and why. ctrl-c ends the demo.")
            threading.Event().wait()
