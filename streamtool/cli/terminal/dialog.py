"""A conversation with an agent: a sequence of tasks with a shared history.

The messages of a task are saved as they arrive: after each reply with its results, and at the end of the task, however
it ends. If a task is interrupted, the output so far is kept. It may include calls without results, which are marked as
such in the next prompt. A task that has produced nothing is not saved, so the user can submit it again.
"""

import signal
from collections.abc import Callable, Mapping, Sequence

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from streamtool.agent import Agent, AgentRun, Event, OutputDelta, Rejected, TurnStart
from streamtool.cli.terminal.costs import Meter
from streamtool.cli.terminal.sessions import Session
from streamtool.core.json_value import Json
from streamtool.core.reply import Usage

SavedMessage = Mapping[str, Json]
Show = Callable[[Event], None]


@define
class _Task:
    """State of a running task."""

    asked: SavedMessage
    saved: int = 0
    """Number of the run's messages already in the history."""
    before: int = 0
    """Number of messages that the run had added when the current reply began."""
    pieces: list[str] = field(factory=list)
    """Text of the current reply so far."""
    completed: bool = False
    """Whether the run has ended normally."""


class Dialog:
    """A conversation, saved to `session` if given."""

    def __init__(self, agent: Agent, show: Show, meter: Meter, session: Session | None = None) -> None:
        self._agent = agent
        self._show = show
        self._meter = meter
        self.session = session
        self.messages: list[SavedMessage] = [] if session is None else list(session.contents.messages)

    def begin_again(self, session: Session | None) -> None:
        """Start a new conversation, saved to `session` if given."""
        self.close()
        self.session = session
        self.messages = [] if session is None else list(session.contents.messages)

    def close(self) -> None:
        """Close the session."""
        if self.session is not None:
            self.session.close()

    async def ask(self, text: str) -> None:
        """Run a task to its end. Raises StreamtoolError if the run fails."""
        task = _Task({"role": "user", "content": text})
        run: AgentRun | None = None
        self._meter.begin()
        try:
            async with self._agent.run([*self.messages, task.asked]) as run:
                async for event in run:
                    self._see(event, task, run)
                    self._meter.observe(event)
                    self._show(event)
            task.completed = True
        finally:
            self._meter.end(Usage() if run is None else run.usage)
            if run is not None:
                self._end(task, run)

    def _see(self, event: Event, task: _Task, run: AgentRun) -> None:
        match event:
            case TurnStart():
                self._save(task, run.messages)
                task.before = len(run.messages)
                task.pieces.clear()
            case OutputDelta(text=text):
                task.pieces.append(text)
            case Rejected(id=None):
                task.pieces.clear()

    def _end(self, task: _Task, run: AgentRun) -> None:
        added = list(run.messages)
        said = "".join(task.pieces)
        if not task.completed and len(added) == task.before and said:
            added.append({"role": "assistant", "content": said})
        self._save(task, added)
        if self.session is not None and task.saved:
            self.session.add_run(**self._meter.entry)

    def _save(self, task: _Task, added: Sequence[SavedMessage]) -> None:
        """Add the new messages to the history and the session."""
        new = list(added[task.saved :])
        if not new:
            return
        if not task.saved:
            new.insert(0, task.asked)
        task.saved = len(added)
        self.messages += new
        if self.session is not None:
            self.session.add(new)


class Interrupts:
    """Handler that makes the interrupt signal stop the running task.

    If a second signal arrives while that task is still stopping, `leave` is called, which ends the process. While no
    task is running, the first signal is ignored, because it was meant for a task that has just finished. The second
    signal ends the conversation.
    """

    def __init__(self, conversation: anyio.CancelScope, leave: Callable[[], None]) -> None:
        self._conversation = conversation
        self._leave = leave
        self._scope: anyio.CancelScope | None = None
        """Cancel scope of the running task."""
        self._late = False
        """Whether a signal has arrived since the last task ended."""
        self.ended = False
        """Whether interrupts have ended the conversation."""

    async def watch(self, *, task_status: TaskStatus[None]) -> None:
        """Handle the signal until cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if self._scope is None:
                    if self._late:
                        self.ended = True
                        self._conversation.cancel()
                    self._late = True
                elif self._scope.cancel_called:
                    self._leave()
                else:
                    self._scope.cancel()

    async def run(self, dialog: Dialog, task: str) -> bool:
        """Run a task and return whether it finished without an interrupt. Raises StreamtoolError if the run fails."""
        with anyio.CancelScope() as scope:
            self._scope, self._late = scope, False
            try:
                await dialog.ask(task)
            finally:
                self._scope = None
        return not scope.cancelled_caught
