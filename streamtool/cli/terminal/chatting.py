"""The conversation loop: read a line and handle it as a task or a command."""

import re
from collections.abc import Callable

import anyio
from attrs import frozen

from streamtool.agent import Agent
from streamtool.cli.exit_codes import message_of
from streamtool.cli.terminal.asking import Approval
from streamtool.cli.terminal.costs import Meter
from streamtool.cli.terminal.dialog import Dialog, Interrupts
from streamtool.cli.terminal.live import Live
from streamtool.cli.terminal.reading import TaskSource
from streamtool.cli.terminal.sessions import Session
from streamtool.core.errors import StreamtoolError

COMMANDS = {
    "/help": "show this list",
    "/tools": "list the tools, and which of them run without asking",
    "/costs": "show the usage and costs of the session",
    "/new": "start a new conversation",
    "/quit": "quit",
}
_COMMAND = re.compile(r"/[a-z]+\Z")
_KEYS = (
    "enter sends, alt-enter starts a new line, ctrl-R searches the history",
    "ctrl-C interrupts a task, ctrl-D quits",
)


@frozen
class Chat:
    """A conversation at a terminal."""

    agent: Agent
    dialog: Dialog
    live: Live
    meter: Meter
    lines: TaskSource
    asking: Approval | None
    """Approval of calls; None to run tools without asking."""
    new_session: Callable[[], Session | None]

    async def run(self, task: str | None, leave: Callable[[], None]) -> None:
        """Run the first task, if given, and then tasks from the input until there are no more.

        `leave` ends the process if a task does not stop after an interrupt. Raises SettingsError, the errors raised by
        opening tools and upstreams, and KeyboardInterrupt after two interrupts while no task is running.
        """
        failed: Exception | None = None
        async with self.agent, anyio.create_task_group() as group:
            interrupts = Interrupts(group.cancel_scope, leave)
            await group.start(interrupts.watch)
            try:
                await self._loop(task, interrupts)
            except Exception as error:  # noqa: BLE001  the task group would wrap it in an exception group
                failed = error
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if interrupts.ended:
            raise KeyboardInterrupt

    async def _loop(self, task: str | None, interrupts: Interrupts) -> None:
        self.live.note(f"{self._opening} Type /help for help; ctrl-D quits.", "dim")
        while True:
            if task is None:
                line = await self.lines.read()
                if line is None or line in ("/quit", "/exit"):
                    return
                if not line or self._run_command(line):
                    continue
                task = line
            await self._do(task, interrupts)
            task = None

    @property
    def _opening(self) -> str:
        session = self.dialog.session
        if session is None:
            return "This conversation is not saved."
        resumed = f", {len(self.dialog.messages)} messages so far" if self.dialog.messages else ""
        return f"Session {session.name}{resumed}."

    async def _do(self, task: str, interrupts: Interrupts) -> None:
        try:
            if not await interrupts.run(self.dialog, task):
                self.live.note("interrupted", "yellow")
                return
        except StreamtoolError as error:
            self.live.note(message_of(error), "red")
            return
        if self.meter.session.runs > 1:
            self.live.note(self.meter.of_session, "dim")

    def _run_command(self, line: str) -> bool:
        """Execute the line if it is a command, and return whether it was."""
        if not _COMMAND.match(line):
            return False
        match line:
            case "/help":
                for name, what in COMMANDS.items():
                    self.live.note(f"  {name:<8}{what}")
                for keys in _KEYS:
                    self.live.note(f"  {keys}", "dim")
            case "/tools":
                self._show_tools()
            case "/costs":
                self.live.note(self.meter.of_session)
            case "/new":
                self.dialog.begin_again(self.new_session())
                self.live.note(self._opening, "dim")
            case _:
                self.live.note(f"unknown command {line}; /help lists all commands", "red")
        return True

    def _show_tools(self) -> None:
        tools = self.agent.tools
        for name, tool in tools.items():
            free = self.asking is None or self.asking.allows(name)
            told = tool.description.strip().partition("\n")[0]
            self.live.note(f"  {name}{' (runs without asking)' if free else ''}  {told}")
        if not tools:
            self.live.note("  no tools; add some with --tool or --mcp")
