"""Approval of calls at the terminal. Remembers which tools need no further approval.

The answer is read line by line from the terminal, so it may come from a person or a script, and the interrupt key still
works. An unrecognized answer means no. Text after `n` is passed to the model as the reason.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TextIO

import anyio
import anyio.lowlevel

from streamtool.agent import ToolCallEnd, Veto
from streamtool.cli.terminal.call_view import CallView
from streamtool.cli.terminal.live import Live

NO_TERMINAL = "Nobody is here who could be asked, and this tool is not among those that are allowed. Go on without."

QUOTED = "Careful: this call is copied from the output or the description of a tool."


class Approval:
    """Approves or vetoes calls. `allowed` contains names and patterns (`*`, `?`) of tools that need no approval, unless
    the call repeats a result or a tool's description.
    """

    def __init__(self, source: TextIO, live: Live, allowed: Iterable[str] = ()) -> None:
        self._source = source
        self._live = live
        self.allowed = list(allowed)
        """Names and patterns of tools that need no approval."""
        self.all = False
        """Whether all tools are allowed."""

    def allows(self, name: str) -> bool:
        """Return whether this tool needs no approval."""
        return self.all or any(fnmatchcase(name, pattern) for pattern in self.allowed)

    async def __call__(self, call: ToolCallEnd) -> bool | Veto:
        """Ask the user whether a call may be executed. Return the answer, or a veto if the user gives a reason."""
        if self.allows(call.name) and not call.quoted:
            return True
        if not self._source.isatty():
            return Veto(NO_TERMINAL)
        await anyio.lowlevel.checkpoint()  # let the event consumer show the call first
        view = CallView(call, self._live.width)
        if call.quoted:
            self._live.ask(QUOTED)
        while True:
            answer = await self._answer(view)
            word, _, reason = answer.partition(" ")
            match word.lower().rstrip(",:"):
                case "v" | "view":
                    self._live.call(call, whole=True)
                    continue
                case "a" | "always":
                    self.allowed.append(_escape_pattern(call.name))
                case "l" | "all":
                    self.all = True
                case "y" | "yes":
                    pass
                case "n" | "no":
                    return Veto(reason.strip()) if reason.strip() else False
                case _:
                    return Veto(answer) if reason else False  # a sentence counts as a reason
            return True

    async def _answer(self, view: CallView) -> str:
        self._live.ask(f"execute {view.line(before=8, behind=1)}?")
        self._live.ask("  [y]es, [n]o (and why), [a]lways this tool, yes to a[l]l, [v]iew: ", end="")
        await anyio.wait_readable(self._source)  # reading in a thread could not be interrupted
        line = self._source.readline()
        if not line:  # end of input
            self._live.ask("")
        return line.strip()


def _escape_pattern(name: str) -> str:
    """Escape a name so that, used as a pattern, it matches only itself."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
