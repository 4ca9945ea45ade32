"""Output of a run as it happens: `Live` for people, `JsonLines` for programs.

The model's text is written to standard output. Calls (as they are written), results and times are written to standard
error, so that a pipe receives only the text. Control characters in text from the model, tools and servers never reach
the terminal.
"""

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
from streamtool.cli.columns import fit, replace_controls
from streamtool.cli.console import PipeConsole
from streamtool.cli.terminal.call_view import CallView
from streamtool.cli.terminal.costs import Meter
from streamtool.core.json_value import json_line
from streamtool.exchange.record import Record
from streamtool.observe.verdicts import verdict

_SHOWN = 160
"""Maximum number of characters to show of a result or a rejection."""


class Live:
    """Displays runs for people."""

    def __init__(self, meter: Meter) -> None:
        self._stdout = PipeConsole(file=sys.stdout, highlight=False, soft_wrap=True)
        self._stderr = PipeConsole(file=sys.stderr, highlight=False, soft_wrap=True)
        self._meter = meter
        self._open: Console | None = None
        """Console with an unfinished line."""
        self._thinks = False
        self._room = 0
        """Number of columns left for the arguments of the call that is being written."""
        self._verdicts: list[str] = []
        """Verdicts on replies that have ended, until they are shown."""

    @property
    def width(self) -> int:
        """Width of the terminal in columns."""
        return self._stderr.width

    def show(self, event: Event) -> None:
        """Print an event in readable form."""
        if isinstance(event, TurnStart | Rejected | ToolCallResult | Final):
            verdicts, self._verdicts = self._verdicts, []
            for told in verdicts:
                self.note(f"  {told}", "dim")
        match event:
            case OutputDelta(text=text):
                if self._thinks:
                    self._line()
                self._thinks = False
                self._print(self._stdout, text, "")
            case ThoughtDelta(text=text):
                if not self._thinks:
                    self._line()
                self._thinks = True
                self._print(self._stderr, text, "dim italic")
            case ToolCallStart(name=name):
                self._line()
                self._room = self.width - len(name) - len("● (…)")
                self._print(self._stderr, f"● {name}(", "green")
            case ToolArgumentsDelta(text=text):
                self._arguments(text)
            case ToolCallEnd(complete=complete):
                self._print(self._stderr, ")" if complete else " … cut off", "green")
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

    def judge(self, record: Record) -> None:
        """Show the verdict on an exchange after its events, unless it went as usual or its error is shown anyway."""
        found = verdict(record, contents=True)
        if record.error is None and not found.ordinary:
            self._verdicts.append(str(found))

    def call(self, call: ToolCallEnd, *, whole: bool = False) -> None:
        """Print the arguments of a call and its diff. If `whole` is true, nothing is shortened."""
        self._line()
        for line in CallView(call, self.width).lines(whole=whole):
            self._stderr.print(line)
        self._stderr.file.flush()

    def ask(self, text: str, end: str = "\n") -> None:
        """Print a question. `end` is "" if the answer follows on the same line."""
        self._line()
        self._stderr.print(Text(replace_controls(text), "bold"), end=end)
        self._stderr.file.flush()

    def note(self, text: str, style: str = "", behind: str = "") -> None:
        """Print a message on a separate line, followed by a suffix in a dim style."""
        self._line()
        self._print(self._stderr, text, style)
        self._print(self._stderr, f"{behind}\n", "dim")

    def _arguments(self, text: str) -> None:
        """Print a piece of a call's arguments. On a terminal, only one line is printed, because the complete arguments
        follow in readable form.
        """
        if not self._stderr.is_terminal:
            self._print(self._stderr, text, "green")
        elif self._room >= 0:
            shown = text if cell_len(text) <= self._room else fit(text, self._room) if self._room else "…"
            self._room -= cell_len(text)
            self._print(self._stderr, shown, "green")

    def _line(self) -> None:
        """End the unfinished line."""
        if self._open is not None:
            self._print(self._open, "\n", "")
        self._thinks = False

    def _print(self, console: Console, text: str, style: str) -> None:
        console.print(Text(replace_controls(text), style), end="")
        console.file.flush()
        if text:
            self._open = None if text.endswith("\n") else console


class JsonLines:
    """Prints events as JSON Lines."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def show(self, event: Event) -> None:
        """Print an event with the number of seconds since the run began."""
        fields = {
            "type": _snake(type(event).__name__),
            "at": round(time.monotonic() - self._began, 3),
            **_fields(event),
        }
        print(json_line(fields), flush=True)

    def judge(self, record: Record) -> None:
        """Print the verdict on an exchange, unless it went as usual."""
        found = verdict(record, contents=True)
        if not found.ordinary:
            fields = {"type": "verdict", "at": round(time.monotonic() - self._began, 3)}
            print(json_line({**fields, **found.as_json()}), flush=True)


def _fields(event: Event) -> dict[str, Any]:
    match event:
        case ToolCallResult():
            return {
                "id": event.id,
                "name": event.name,
                "text": event.text,
                "error": event.error,
                "seconds": round(event.seconds, 3),
            }
        case Final():
            return {
                "text": event.text,
                "reason": event.reason.value,
                "turns": event.turns,
                "usage": attrs.asdict(event.usage),
                "messages": list(event.messages),
            }
        case _:
            return attrs.asdict(event)


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def _share(event: Progress) -> str:
    return f"{event.done:g}/{event.total:g}" if event.total else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
