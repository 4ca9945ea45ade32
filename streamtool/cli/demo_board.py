"""Display of `streamtool demo`: `Board` prints the rows, `Tap` and `Shadow` report what the model does.

A row shows one model delta on the left, and the data that the client has received for it on the right. If the client
has received nothing, the row shows why. The reason is exact, because `Shadow` runs a parser like the proxy's on the
same deltas and checks after each one whether text is buffered. All lines fit into 80 columns, whatever the model
writes.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.cells import cell_len

import statemachine
from streamtool.asgi.types import ASGIApp, ASGIMessage, Receive, Scope, Send
from streamtool.cli.columns import WIDTH, fit, pad, replace_controls, wrap
from streamtool.cli.common import Screen, quoted
from streamtool.core.reply import ReplyTextDelta
from streamtool.protocols import chat

_LEFT = 22  # columns for the model's text
_INDENT = 11  # columns before the model's text
_KIND = 11  # columns for the kind of a piece
_RIGHT = WIDTH - _INDENT - _LEFT - 2

HELD = "buffered: may become a call"
ENDS = "buffered: may be markup"
MARKUP = "markup of the call"
SENT = "not received yet"


class Shadow:
    """A parser like the proxy's, which explains what happens to each delta of a reply."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], formats: tuple[str, ...] | None) -> None:
        self._parser = statemachine.Parser(list(tools), formats=formats)
        self._called = False

    def explain(self, text: str) -> str:
        """Feed a delta and return why the client may have received nothing for it.

        `HELD`: the delta, or its end, is buffered because a call may begin there. `ENDS`: it is buffered inside or
        after a call. `SENT`: it produced text or a piece of a call, which has been sent. `MARKUP`: it was parsed as
        markup.
        """
        events = self._parser.feed(text)
        self._called = self._called or any(isinstance(event, statemachine.CallStart) for event in events)
        if self._parser.held:
            return ENDS if self._called else HELD
        return SENT if any(not isinstance(event, statemachine.CallEnd) for event in events) else MARKUP


class Tap:
    """Wrapper around an upstream that shows its requests and replies on the board."""

    def __init__(
        self, app: ASGIApp, board: "Board", tools: Sequence[Mapping[str, Any]], formats: tuple[str, ...] | None
    ) -> None:
        self._app = app
        self._board = board
        self._tools = tools
        self._formats = formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request. Show the size of the prompt, and each delta before it is sent back."""
        reader = chat.ReplyReader()
        shadow = Shadow(self._tools, self._formats)
        body = bytearray()

        async def watch_request() -> ASGIMessage:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    self._board.prompt(len(body), tools=b'"tools"' in body)
            return message

        async def watch_reply(message: ASGIMessage) -> None:
            if message["type"] == "http.response.body":
                for event in reader.feed(message.get("body", b"")):
                    if isinstance(event, ReplyTextDelta):
                        self._board.model(event.text, shadow.explain(event.text))
            await send(message)

        await self._app(scope, watch_request, watch_reply)


class Board:
    """Rows that show what the model writes on the left and what the client receives for it on the right."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lock = threading.RLock()
        self._began = 0.0
        self._open = ""
        """Why the right side of the last row may stay empty; "" if it has been filled."""
        self._turn = 0
        self._waits = ""
        """Reason shown in the previous row whose right side stayed empty."""

    def introduce(self, client: str, url: str, model: str) -> None:
        """Print the names of the client, the proxy and the model."""
        self._screen.line()
        parts = (client, f"streamtool at {url}", replace_controls(model))
        if 2 + sum(map(cell_len, parts)) + 2 * len("  ⇄  ") <= WIDTH:
            self._screen.line("  ", (parts[0], "bold"), "  ⇄  ", (parts[1], "cyan"), "  ⇄  ", (parts[2], "bold"))
        else:
            self._screen.line("  ", (parts[0], "bold"), "  ⇄  ", (parts[1], "cyan"))
            self._screen.line("     ⇄  ", (fit(parts[2], WIDTH - 8), "bold"))
        self._screen.line(("  sends tools, gets calls   tools become text, text becomes calls", "dim"))
        self._screen.line(("  The model reads only text and writes only text.", "dim"))

    def question(self, text: str, offered: Sequence[str]) -> None:
        """Print the user's question and the offered tools."""
        self._screen.line()
        self._screen.line(("  user    ", "dim"), (text, "bold"))
        self._screen.line(("  offered ", "dim"), (", ".join(offered), "green"))

    def turn(self) -> None:
        """Start a turn: the client sends a request."""
        self._turn += 1
        self._began = time.monotonic()

    def prompt(self, size: int, *, tools: bool) -> None:
        """Print that the upstream has received a request of this size, and the table header."""
        with self._lock, suppress(BrokenPipeError):  # the client's thread reports it
            inside = "tools field included" if tools else "without a tools field"
            self._screen.line()
            self._screen.line(
                (f"  Request {self._turn}", "bold cyan"), (f"  {size:,} bytes to the model, {inside}", "dim")
            )
            head = f"  {'seconds':<9}{'the model writes':<{_LEFT + 2}}the client receives"
            self._screen.line((head, "dim"))

    def model(self, text: str, why: str) -> None:
        """Print a model delta; `why` is the reason why the client may receive nothing for it."""
        with self._lock, suppress(BrokenPipeError):
            self._fill()
            passed = f"  {time.monotonic() - self._began:>5.2f}"
            written = pad(replace_controls(quoted(text)), _LEFT)
            self._screen.line((f"{passed:<{_INDENT}}", "dim"), f"{written}  ", end="")
            self._open = why

    def client(self, kind: str, text: str) -> None:
        """Print a piece that the client has received."""
        with self._lock:
            if not self._open:
                self._screen.line(" " * (_INDENT + _LEFT + 2), end="")
            self._open = self._waits = ""
            style = {"text": "", "call": "bold green", "arguments": "green", "reasoning": "italic"}.get(kind, "cyan")
            shown = quoted(text) if kind in ("text", "arguments", "reasoning") else text
            self._screen.line((f"{kind:<{_KIND}}", "dim"), (fit(replace_controls(shown), _RIGHT - _KIND), style))

    def end_turn(self) -> None:
        """Finish the rows of a reply."""
        with self._lock:
            self._fill()

    def _fill(self) -> None:
        """Print why the client received nothing for the last row."""
        if self._open:
            self._screen.line(("·" if self._open == self._waits else f"·  {self._open}", "dim"))
            self._waits, self._open = self._open, ""

    def verdict(self, text: str) -> None:
        """Print the verdict on a reply."""
        self._screen.line()
        self._lines("  Verdict  ", text, "")

    def result(self, name: str, arguments: str, result: str) -> None:
        """Print a call that the client has executed, and its result."""
        self._screen.line()
        lead, arrow = "  The client runs ", "  →  "
        call, result = replace_controls(f"{name}({_one_line(arguments)})"), replace_controls(_one_line(result))
        if cell_len(lead + call + arrow + result) <= WIDTH:
            self._screen.line(lead, (call, "green"), arrow, (result, "bold"))
            return
        self._screen.line(lead, (fit(call, WIDTH - len(lead)), "green"))
        self._screen.line(arrow, (fit(result, WIDTH - len(arrow)), "bold"))

    def conclude(self, answer: str, further: Sequence[tuple[str, str]]) -> None:
        """Print the final answer and suggestions for what to try next, each a tuple of purpose and command."""
        self._screen.line()
        self._lines("  Final answer  ", answer, "bold")
        self._screen.line()
        for what, command in further:
            self._screen.line((f"  {what + ':':<17}", "dim"), command)
        self._screen.line()

    def _lines(self, lead: str, text: str, style: str) -> None:
        """Print text in as many lines as necessary, the first one after `lead`."""
        for i, line in enumerate(wrap(replace_controls(text), WIDTH - len(lead))):
            self._screen.line((lead if i == 0 else " " * len(lead), "bold cyan"), (line, style))


def _one_line(text: str) -> str:
    """Return the text on one line. JSON stays valid."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False) if "\n" in text else text
    except ValueError:
        return " ".join(text.split())
