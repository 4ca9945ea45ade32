"""Asks somebody at the terminal whether a call may be executed, and remembers what need not be asked again.

The line is read by the terminal itself, so it may be written by a person or by a script, and the interrupt key stays
what it is. An answer that is neither yes nor a word for it is a no; what follows `n` is the reason, for the model.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TextIO

import anyio
import anyio.lowlevel

from streamtool.agent import ToolCallEnd, Veto
from streamtool.cli.terminal.call_view import CallView
from streamtool.cli.terminal.live import Live

NOBODY = "Nobody is here who could be asked, and this tool is not among those that are allowed. Go on without."


class Asking:
    """Whether a call may be executed. `allowed` are names of tools (`*`, `?`) that are not asked about."""

    def __init__(self, source: TextIO, live: Live, allowed: Iterable[str] = ()) -> None:
        self._source = source
        self._live = live
        self.allowed = list(allowed)
        """Names and patterns."""
        self.all = False
        """Nothing is asked about any more."""

    def allows(self, name: str) -> bool:
        """Whether nobody need be asked about this tool."""
        return self.all or any(fnmatchcase(name, pattern) for pattern in self.allowed)

    async def __call__(self, call: ToolCallEnd) -> bool | Veto:
        """Whether the call may be executed; or why not."""
        if self.allows(call.name):
            return True
        if not self._source.isatty():
            return Veto(NOBODY)
        await anyio.lowlevel.checkpoint()  # whoever shows the call has to come first
        view = CallView(call, self._live.width)
        while True:
            answer = await self._answer(view)
            word, _, reason = answer.partition(" ")
            match word.lower().rstrip(",:"):
                case "v" | "view":
                    self._live.call(call, whole=True)
                    continue
                case "a" | "always":
                    self.allowed.append(_literal(call.name))
                case "l" | "all":
                    self.all = True
                case "y" | "yes":
                    pass
                case "n" | "no":
                    return Veto(reason.strip()) if reason.strip() else False
                case _:
                    return Veto(answer) if reason else False  # a sentence is a reason too
            return True

    async def _answer(self, view: CallView) -> str:
        self._live.ask(f"execute {view.line(before=8, behind=1)}?")
        self._live.ask("  [y]es, [n]o (and why), [a]lways this tool, yes to a[l]l, [v]iew: ", end="")
        await anyio.wait_readable(self._source)  # a thread that reads could not be interrupted
        line = self._source.readline()
        if not line:  # nobody answers any more
            self._live.ask("")
        return line.strip()


def _literal(name: str) -> str:
    """A pattern that fits this name and no other."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
