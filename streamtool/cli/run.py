"""`streamtool run`: an agent in the terminal.

What the model says goes to standard output as it comes; calls while they are written, results and times go to standard
error, so that a pipe gets the text alone. `--json` prints every event as a line instead. Before a call is executed
somebody is asked, unless `--yes` says that nobody need be; where nobody can be asked, nothing begins.
"""

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import anyio
import anyio.lowlevel
import attrs
from rich.console import Console
from rich.text import Text

from streamtool.agent import (
    Agent,
    Event,
    Final,
    McpServer,
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
from streamtool.agent.functions import THREADS
from streamtool.cli.common import HARMLESS
from streamtool.cli.exit_codes import DONE, INTERRUPTED
from streamtool.cli.serve import ServeFlags
from streamtool.errors import SettingsError
from streamtool.observe import logs

_SHOWN = 160
"""Characters of a result, or of what is told of a rejection, that are shown."""


@attrs.frozen
class RunFlags:
    """The flags of `run`; None: not given."""

    task: str
    upstream: ServeFlags
    """Those that say where the model is, and what holds for it."""
    system: str | None = None
    tools: Sequence[str] = ()
    mcp: Sequence[str] = ()
    max_turns: int = 20
    timeout: float = 60.0
    yes: bool = False
    json: bool = False

    def agent(self) -> Agent:
        """The agent that these flags, the environment and the settings file amount to. Raises SettingsError."""
        settings = self.upstream.settings()
        if settings.debug:
            logs.configure(settings)
        tools: list[Callable[..., Any] | McpServer] = [*map(function_of, self.tools), *map(McpServer, self.mcp)]
        if tools and not (self.yes or sys.stdin.isatty()):
            raise SettingsError(
                "nobody can be asked before a call is executed: there is no terminal; --yes does without"
            )
        return Agent(
            None if settings.upstreams else "sample",
            tools,
            settings=settings,
            system=self.system,
            max_turns=self.max_turns,
            timeout=self.timeout,
            approve=None if self.yes else Asking(sys.stdin, sys.stderr),
        )


def run(flags: RunFlags) -> None:
    """Run the task to its end. Raises StreamtoolError."""
    agent = flags.agent()
    show: Callable[[Event], None] = InputLines().show if flags.json else Live().show

    async def main() -> None:
        async with agent.run(flags.task) as events:
            async for event in events:
                show(event)

    try:
        anyio.run(main)
    except KeyboardInterrupt:
        _leave(INTERRUPTED)
        raise
    _leave(DONE)


def _leave(code: int) -> None:
    """End the process here if a function still runs in a thread: Python would wait for it, however long it takes."""
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def function_of(path: str) -> Callable[..., Any]:
    """What `module:function` names; modules of the working directory count. Raises SettingsError."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise SettingsError(f"--tool: expected module:function, found {path!r}", param="--tool")
    if os.getcwd() not in sys.path:  # noqa: PTH109  as an entry of sys.path
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"--tool: {path} cannot be loaded: {error}", param="--tool") from None
    if not callable(found) and not hasattr(found, "call"):
        raise SettingsError(f"--tool: {path} is no function", param="--tool")
    return found  # type: ignore[no-any-return]  # it is callable, or a tool of its own kind


class Asking:
    """Asks before each call: yes, no, or yes to all that follow."""

    def __init__(self, source: TextIO, screen: TextIO) -> None:
        self._source = source
        self._screen = screen
        self._all = False

    async def __call__(self, call: ToolCallEnd) -> bool:
        """Whether the call may be executed."""
        if self._all:
            return True
        shown = f"{call.name}({call.arguments})".translate(HARMLESS)
        await anyio.lowlevel.checkpoint()  # whoever shows the call has to come first
        self._screen.write(f"execute {shown}? [y]es, [n]o, [a]ll: ")
        self._screen.flush()
        await anyio.wait_readable(self._source)  # a thread that reads could not be interrupted
        line = self._source.readline()
        if not line:  # nobody answers any more
            self._screen.write("\n")
        answer = line.strip().lower()
        self._all = answer in ("a", "all")
        return self._all or answer in ("y", "yes")


class _Written(Console):
    """A console that leaves it to the command what happens when its reader has enough."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process as if it had failed."""
        raise BrokenPipeError


class Live:
    """Shows a run to a person, as it happens."""

    def __init__(self) -> None:
        self._said = _Written(file=sys.stdout, highlight=False, soft_wrap=True)
        self._told = _Written(file=sys.stderr, highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._calls = 0
        self._open: Console | None = None
        """Where the last line has no end yet."""
        self._thinks = False

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
                self._calls += 1
                self._print(self._told, f"● {name}(", "green")
            case ToolArgumentsDelta(text=text):
                self._print(self._told, text, "green")
            case ToolCallEnd(complete=complete):
                self._print(self._told, ")" if complete else " … cut off", "green")
                self._line()
            case Progress():
                self._note(f"  {event.name}: {event.message or ''} {_share(event)}".rstrip(), "dim")
            case ToolCallResult(name=name, text=text, error=error, seconds=seconds):
                self._note(f"  {name} → {_short(text)}", "red" if error else "", f"  {seconds:.2f} s")
            case Rejected(why=why, name=name, message=message):
                self._note(f"  rejected {name or 'the reply'} ({why}): {_short(message)}", "yellow")
            case Final(turns=turns, usage=usage):
                self._line()
                passed = time.monotonic() - self._began
                tokens = f"{usage.input} + {usage.output} tokens"
                self._note(f"{turns} turns, {self._calls} calls, {tokens}, {passed:.1f} s", "dim")
            case TurnStart():
                self._line()

    def _note(self, text: str, style: str, behind: str = "") -> None:
        self._line()
        self._print(self._told, text, style)
        self._print(self._told, f"{behind}\n", "dim")

    def _line(self) -> None:
        """End the line that is open."""
        if self._open is not None:
            self._print(self._open, "\n", "")
        self._thinks = False

    def _print(self, console: Console, text: str, style: str) -> None:
        console.print(Text(text.translate(HARMLESS), style), end="")
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
