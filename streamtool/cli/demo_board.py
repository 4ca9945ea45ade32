"""What `streamtool demo` shows: `Board` prints the rows, `Tap` and `Shadow` tell it what the model's side does.

A row is one delta of the model: on the left the delta, on the right what the client has received for it. Where that is
nothing, the row says why. Nobody guesses: `Shadow` is a parser like the proxy's, fed with the same deltas, and knows
after each of them whether something is held. All lines fit into 80 columns, whatever the model writes.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.cells import cell_len

import statemachine
from streamtool.cli.columns import WIDTH, fitted, folded, harmless, padded
from streamtool.cli.common import Screen, quoted
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send
from streamtool.protocols import chat
from streamtool.reply import ReplyTextDelta

_LEFT = 22  # columns of what the model writes
_INDENT = 11  # columns before it
_KIND = 11  # columns of what kind a piece is
_RIGHT = WIDTH - _INDENT - _LEFT - 2

HELD = "held back: may become a call"
ENDS = "held back: may be markup"
MARKUP = "markup of the call"
SENT = "not received yet"


class Shadow:
    """A parser like the proxy's; it says what becomes of each delta of one reply."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], formats: tuple[str, ...] | None) -> None:
        self._parser = statemachine.Parser(list(tools), formats=formats)
        self._called = False

    def of(self, text: str) -> str:
        """Why the client may have received nothing for this delta.

        `HELD`: all or the end of it waits; `ENDS`: the same, inside or behind a call. `SENT`: it brings text or a piece
        of a call, which is on its way. `MARKUP`: it has been read as markup.
        """
        events = self._parser.feed(text)
        self._called = self._called or any(isinstance(event, statemachine.CallStart) for event in events)
        if self._parser.held:
            return ENDS if self._called else HELD
        return SENT if any(not isinstance(event, statemachine.CallEnd) for event in events) else MARKUP


class Tap:
    """An upstream that shows what it writes on the board."""

    def __init__(
        self, app: ASGIApp, board: "Board", tools: Sequence[Mapping[str, Any]], formats: tuple[str, ...] | None
    ) -> None:
        self._app = app
        self._board = board
        self._tools = tools
        self._formats = formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; show the prompt's size and each delta before it goes back."""
        reader = chat.ReplyReader()
        shadow = Shadow(self._tools, self._formats)
        body = bytearray()

        async def watch_request() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    self._board.prompt(len(body), tools=b'"tools"' in body)
            return message

        async def watch_reply(message: Message) -> None:
            if message["type"] == "http.response.body":
                for event in reader.feed(message.get("body", b"")):
                    if isinstance(event, ReplyTextDelta):
                        self._board.model(event.text, shadow.of(event.text))
            await send(message)

        await self._app(scope, watch_request, watch_reply)


class Board:
    """The rows: on the left what the model writes, on the right what the client receives for it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lock = threading.RLock()
        self._began = 0.0
        self._open = ""
        """Why the right side of the last row may stay empty; "": it is written."""
        self._turn = 0
        self._waits = ""
        """What the last empty right side said."""

    def introduce(self, client: str, url: str, model: str) -> None:
        """Who takes part."""
        self._screen.line()
        parts = (client, f"streamtool at {url}", harmless(model))
        if 2 + sum(map(cell_len, parts)) + 2 * len("  ⇄  ") <= WIDTH:
            self._screen.line("  ", (parts[0], "bold"), "  ⇄  ", (parts[1], "cyan"), "  ⇄  ", (parts[2], "bold"))
        else:
            self._screen.line("  ", (parts[0], "bold"), "  ⇄  ", (parts[1], "cyan"))
            self._screen.line("     ⇄  ", (fitted(parts[2], WIDTH - 8), "bold"))
        self._screen.line(("  sends tools, gets calls   tools become text, text becomes calls", "dim"))
        self._screen.line(("  The model is given nothing but text and gives nothing but text.", "dim"))

    def question(self, text: str, offered: Sequence[str]) -> None:
        """What the user asks, and which tools there are."""
        self._screen.line()
        self._screen.line(("  user    ", "dim"), (text, "bold"))
        self._screen.line(("  offered ", "dim"), (", ".join(offered), "green"))

    def turn(self) -> None:
        """A request begins."""
        self._turn += 1
        self._began = time.monotonic()

    def prompt(self, size: int, *, tools: bool) -> None:
        """The upstream has the request."""
        with self._lock, suppress(BrokenPipeError):  # the client's side says so
            inside = "tools field included" if tools else "without a tools field"
            self._screen.line()
            self._screen.line(
                (f"  Request {self._turn}", "bold cyan"), (f"  {size:,} bytes to the model, {inside}", "dim")
            )
            head = f"  {'seconds':<9}{'the model writes':<{_LEFT + 2}}the client receives"
            self._screen.line((head, "dim"))

    def model(self, text: str, why: str) -> None:
        """The model has written a delta; `why` is why the client may get nothing for it."""
        with self._lock, suppress(BrokenPipeError):
            self._fill()
            passed = f"  {time.monotonic() - self._began:>5.2f}"
            written = padded(harmless(quoted(text)), _LEFT)
            self._screen.line((f"{passed:<{_INDENT}}", "dim"), f"{written}  ", end="")
            self._open = why

    def client(self, kind: str, text: str) -> None:
        """The client has received a piece."""
        with self._lock:
            if not self._open:
                self._screen.line(" " * (_INDENT + _LEFT + 2), end="")
            self._open = self._waits = ""
            style = {"text": "", "call": "bold green", "arguments": "green", "reasoning": "italic"}.get(kind, "cyan")
            shown = quoted(text) if kind in ("text", "arguments", "reasoning") else text
            self._screen.line((f"{kind:<{_KIND}}", "dim"), (fitted(harmless(shown), _RIGHT - _KIND), style))

    def end_turn(self) -> None:
        """The reply is whole."""
        with self._lock:
            self._fill()

    def _fill(self) -> None:
        """Say why the client got nothing for the last row."""
        if self._open:
            self._screen.line(("·" if self._open == self._waits else f"·  {self._open}", "dim"))
            self._waits, self._open = self._open, ""

    def result(self, name: str, arguments: str, result: str) -> None:
        """The client has executed a call."""
        self._screen.line()
        lead, arrow = "  The client runs ", "  →  "
        call, result = harmless(f"{name}({_one_line(arguments)})"), harmless(_one_line(result))
        if cell_len(lead + call + arrow + result) <= WIDTH:
            self._screen.line(lead, (call, "green"), arrow, (result, "bold"))
            return
        self._screen.line(lead, (fitted(call, WIDTH - len(lead)), "green"))
        self._screen.line(arrow, (fitted(result, WIDTH - len(arrow)), "bold"))

    def conclude(self, answer: str, further: Sequence[tuple[str, str]]) -> None:
        """The final answer, and where to go from here: what for, and the command."""
        self._screen.line()
        lead = "  Final answer  "
        for i, line in enumerate(folded(harmless(answer), WIDTH - len(lead))):
            self._screen.line((lead if i == 0 else " " * len(lead), "bold cyan"), (line, "bold"))
        self._screen.line()
        for what, command in further:
            self._screen.line((f"  {what + ':':<17}", "dim"), command)
        self._screen.line()


def _one_line(text: str) -> str:
    """Text without line ends: an object of JSON stays one."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False) if "\n" in text else text
    except ValueError:
        return " ".join(text.split())
