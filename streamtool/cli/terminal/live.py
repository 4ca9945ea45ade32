"""What a run says, while it says it: `Live` for a person, `InputLines` for a program.

The model's text goes to standard output; calls while they are written, results and times go to standard error, so that
a pipe gets the text alone. Nothing that the model, its tools and servers write reaches the terminal with control
characters in it.
"""

import json
import sys
import time
from typing import Any

import attrs
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from streamtool.agent import (
    Event,
    Final,
    OutputDelta,
    Progress,
    Rejected,
    ThoughtDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
    TurnStart,
)
from streamtool.cli.columns import fitted, harmless
from streamtool.cli.terminal.call_view import CallView
from streamtool.cli.terminal.costs import Meter

_SHOWN = 160
"""Characters of a result, or of what is told of a rejection, that are shown."""


class _Written(Console):
    """A console that leaves it to the command what happens when its reader has enough."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process as if it had failed."""
        raise BrokenPipeError


class Live:
    """Shows runs to a person, as they happen."""

    def __init__(self, meter: Meter) -> None:
        self._said = _Written(file=sys.stdout, highlight=False, soft_wrap=True)
        self._told = _Written(file=sys.stderr, highlight=False, soft_wrap=True)
        self._meter = meter
        self._open: Console | None = None
        """Where the last line has no end yet."""
        self._thinks = False
        self._room = 0
        """Columns that are left for the arguments of the call that is being written."""

    @property
    def width(self) -> int:
        """Columns that there are."""
        return self._told.width

    def show(self, event: Event) -> None:
        """Show what happened."""
        match event:
            case OutputDelta(text=text):
                if self._thinks:
                    self._line()
                self._thinks = False
                self._print(self._said, text, "")
            case ThoughtDelta(text=text):
                if not self._thinks:
                    self._line()
                self._thinks = True
                self._print(self._told, text, "dim italic")
            case ToolCallStart(name=name):
                self._line()
                self._room = self.width - len(name) - len("● (…)")
                self._print(self._told, f"● {name}(", "green")
            case ToolArgumentsDelta(text=text):
                self._arguments(text)
            case ToolCallEnd(complete=complete):
                self._print(self._told, ")" if complete else " … cut off", "green")
                self._line()
                if complete and not CallView(event, self.width).simple:
                    self.call(event)
            case Progress():
                self.note(f"  {event.name}: {event.message or ''} {_share(event)}".rstrip(), "dim")
            case ToolCallResult(name=name, text=text, error=error, seconds=seconds):
                self.note(f"  {name} → {_short(text)}", "red" if error else "", f"  {seconds:.2f} s")
            case Rejected(why=why, name=name, message=message):
                self.note(f"  rejected {name or 'the reply'} ({why}): {_short(message)}", "yellow")
            case Final():
                self._line()
                self.note(self._meter.of_run, "dim")
            case TurnStart():
                self._line()

    def call(self, call: ToolCallEnd, *, whole: bool = False) -> None:
        """Show the arguments of a call, and the diff that it is; `whole`: all of them."""
        self._line()
        for line in CallView(call, self.width).lines(whole=whole):
            self._told.print(line)
        self._told.file.flush()

    def ask(self, text: str, end: str = "\n") -> None:
        """Ask something; `end` is "" where the answer stands in the same line."""
        self._line()
        self._told.print(Text(harmless(text), "bold"), end=end)
        self._told.file.flush()

    def note(self, text: str, style: str = "", behind: str = "") -> None:
        """Tell something in a line of its own, and something less important behind it."""
        self._line()
        self._print(self._told, text, style)
        self._print(self._told, f"{behind}\n", "dim")

    def _arguments(self, text: str) -> None:
        """Show a piece of arguments. A terminal gets one line of them: the whole of them follows, arranged."""
        if not self._told.is_terminal:
            self._print(self._told, text, "green")
        elif self._room >= 0:
            shown = text if cell_len(text) <= self._room else fitted(text, self._room) if self._room else "…"
            self._room -= cell_len(text)
            self._print(self._told, shown, "green")

    def _line(self) -> None:
        """End the line that is open."""
        if self._open is not None:
            self._print(self._open, "\n", "")
        self._thinks = False

    def _print(self, console: Console, text: str, style: str) -> None:
        console.print(Text(harmless(text), style), end="")
        console.file.flush()
        if text:
            self._open = None if text.endswith("\n") else console


class InputLines:
    """Prints each event as one JSON object."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def show(self, event: Event) -> None:
        """Print the event, with the seconds since the run began."""
        fields = {
            "type": _snake(type(event).__name__),
            "at": round(time.monotonic() - self._began, 3),
            **_fields(event),
        }
        print(json.dumps(fields, ensure_ascii=False), flush=True)


def _fields(event: Event) -> dict[str, Any]:
    match event:
        case ToolCallResult():
            return {"id": event.id, "name": event.name, "text": event.text, "error": event.error,
                    "seconds": round(event.seconds, 3)}  # fmt: skip
        case Final():
            return {"text": event.text, "reason": event.reason.value, "turns": event.turns,
                    "usage": attrs.asdict(event.usage), "messages": list(event.messages)}  # fmt: skip
        case _:
            return attrs.asdict(event)


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def _share(event: Progress) -> str:
    return f"{event.done:g}/{event.total:g}" if event.total else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
