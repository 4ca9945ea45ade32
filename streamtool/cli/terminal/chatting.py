"""The loop of a conversation: a line, which is a task or a command, and what comes of it."""

import re
from collections.abc import Callable

import anyio
from attrs import frozen

from streamtool.agent import Agent
from streamtool.cli.exit_codes import sentence_of
from streamtool.cli.terminal.asking import Asking
from streamtool.cli.terminal.costs import Meter
from streamtool.cli.terminal.dialog import Dialog, Interrupts
from streamtool.cli.terminal.live import Live
from streamtool.cli.terminal.reading import TaskSource
from streamtool.cli.terminal.sessions import Session
from streamtool.errors import StreamtoolError

COMMANDS = {
    "/help": "this list",
    "/tools": "the tools, and which of them are executed without asking",
    "/costs": "what the session has taken",
    "/new": "begin a new conversation",
    "/quit": "leave",
}
_COMMAND = re.compile(r"/[a-z]+\Z")
_KEYS = (
    "enter sends, alt-enter begins a new line, ctrl-R searches what was sent",
    "ctrl-C ends what runs, ctrl-D leaves",
)


@frozen
class Chat:
    """A conversation at a terminal."""

    agent: Agent
    dialog: Dialog
    live: Live
    meter: Meter
    lines: TaskSource
    asking: Asking | None
    """None: nobody is asked."""
    new_session: Callable[[], Session | None]

    async def run(self, task: str | None, leave: Callable[[], None]) -> None:
        """Do the first task, if there is one, and then what is asked for, until there are no more lines.

        `leave` ends the process, when a task does not end although it was interrupted. Raises SettingsError, what is
        raised when tools or upstreams cannot be opened, and KeyboardInterrupt for two signals while nothing runs.
        """
        failed: Exception | None = None
        async with self.agent, anyio.create_task_group() as group:
            interrupts = Interrupts(group.cancel_scope, leave)
            await group.start(interrupts.watch)
            try:
                await self._loop(task, interrupts)
            except Exception as error:  # noqa: BLE001  the task group would put it into a group
                failed = error
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if interrupts.left:
            raise KeyboardInterrupt

    async def _loop(self, task: str | None, interrupts: Interrupts) -> None:
        self.live.note(f"{self._opening} /help tells more, ctrl-D leaves.", "dim")
        while True:
            if task is None:
                line = await self.lines.read()
                if line is None or line in ("/quit", "/exit"):
                    return
                if not line or self._obeyed(line):
                    continue
                task = line
            await self._do(task, interrupts)
            task = None

    @property
    def _opening(self) -> str:
        session = self.dialog.session
        if session is None:
            return "This conversation is not kept."
        resumed = f", {len(self.dialog.messages)} messages so far" if self.dialog.messages else ""
        return f"Session {session.name}{resumed}."

    async def _do(self, task: str, interrupts: Interrupts) -> None:
        try:
            if not await interrupts.run(self.dialog, task):
                self.live.note("interrupted", "yellow")
                return
        except StreamtoolError as error:
            self.live.note(sentence_of(error), "red")
            return
        if self.meter.session.runs > 1:
            self.live.note(self.meter.of_session, "dim")

    def _obeyed(self, line: str) -> bool:
        """Whether the line was a command, which has been obeyed."""
        if not _COMMAND.match(line):
            return False
        match line:
            case "/help":
                for name, what in COMMANDS.items():
                    self.live.note(f"  {name:<8}{what}")
                for keys in _KEYS:
                    self.live.note(f"  {keys}", "dim")
            case "/tools":
                self._tell_tools()
            case "/costs":
                self.live.note(self.meter.of_session)
            case "/new":
                self.dialog.begin_again(self.new_session())
                self.live.note(self._opening, "dim")
            case _:
                self.live.note(f"there is no command {line}; /help lists them", "red")
        return True

    def _tell_tools(self) -> None:
        tools = self.agent.tools
        for name, tool in tools.items():
            free = self.asking is None or self.asking.allows(name)
            told = tool.description.strip().partition("\n")[0]
            self.live.note(f"  {name}{' (executed without asking)' if free else ''}  {told}")
        if not tools:
            self.live.note("  there are no tools; --tool and --mcp give some")
