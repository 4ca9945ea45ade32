"""A conversation with an agent: one task after the other, each with what was said before.

What a task adds is kept when it is there: after each reply with its results, and at the end, however it comes. A task
that is interrupted leaves what was said; calls that got no result are among it, and the next prompt marks them. A task
that has brought nothing at all leaves nothing, so it can be asked again.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from streamtool.agent import Agent, AgentRun, Event, OutputDelta, Rejected, TurnStart
from streamtool.cli.terminal.costs import Meter
from streamtool.cli.terminal.sessions import Session
from streamtool.reply import Usage

Json = Any  # a decoded JSON value
Message = Mapping[str, Json]
Show = Callable[[Event], None]


@define
class _Task:
    """One task while it runs."""

    asked: Message
    kept: int = 0
    """Messages of the run that are in the history."""
    before: int = 0
    """Messages that the run had added when the reply began."""
    said: list[str] = field(factory=list)
    """The text of the reply so far."""
    whole: bool = False
    """The run has ended by itself."""


class Dialog:
    """A conversation. `session`: where it is kept; None: nowhere."""

    def __init__(self, agent: Agent, show: Show, meter: Meter, session: Session | None = None) -> None:
        self._agent = agent
        self._show = show
        self._meter = meter
        self.session = session
        self.messages: list[Message] = [] if session is None else list(session.kept.messages)

    def begin_again(self, session: Session | None) -> None:
        """Forget what was said; what comes is kept in this session."""
        self.close()
        self.session = session
        self.messages = [] if session is None else list(session.kept.messages)

    def close(self) -> None:
        """Close the session."""
        if self.session is not None:
            self.session.close()

    async def ask(self, text: str) -> None:
        """Do a task, to its end. Raises StreamtoolError as a run does."""
        task = _Task({"role": "user", "content": text})
        run: AgentRun | None = None
        self._meter.begin()
        try:
            async with self._agent.run([*self.messages, task.asked]) as run:
                async for event in run:
                    self._see(event, task, run)
                    self._meter.see(event)
                    self._show(event)
            task.whole = True
        finally:
            self._meter.end(Usage() if run is None else run.usage)
            if run is not None:
                self._end(task, run)

    def _see(self, event: Event, task: _Task, run: AgentRun) -> None:
        match event:
            case TurnStart():
                self._keep(task, run.messages)
                task.before = len(run.messages)
                task.said.clear()
            case OutputDelta(text=text):
                task.said.append(text)
            case Rejected(id=None):
                task.said.clear()

    def _end(self, task: _Task, run: AgentRun) -> None:
        added = list(run.messages)
        said = "".join(task.said)
        if not task.whole and len(added) == task.before and said:
            added.append({"role": "assistant", "content": said})
        self._keep(task, added)
        if self.session is not None and task.kept:
            self.session.add_run(**self._meter.entry)

    def _keep(self, task: _Task, added: Sequence[Message]) -> None:
        """Put what is new of it into the history, and into the session."""
        new = list(added[task.kept :])
        if not new:
            return
        if not task.kept:
            new.insert(0, task.asked)
        task.kept = len(added)
        self.messages += new
        if self.session is not None:
            self.session.add(new)


class Interrupts:
    """The interrupt signal ends the task that runs.

    A second one, while that task has not ended yet, calls `leave`, which ends the process. Where no task runs, the
    first one is passed over, since it was meant for a task that has just ended; the second one ends the conversation.
    """

    def __init__(self, conversation: anyio.CancelScope, leave: Callable[[], None]) -> None:
        self._conversation = conversation
        self._leave = leave
        self._scope: anyio.CancelScope | None = None
        """Of the task that runs."""
        self._late = False
        """One came while no task ran, and none has run since."""
        self.left = False
        """The conversation was ended so."""

    async def watch(self, *, task_status: TaskStatus[None]) -> None:
        """Take the signal until this is cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if self._scope is None:
                    if self._late:
                        self.left = True
                        self._conversation.cancel()
                    self._late = True
                elif self._scope.cancel_called:
                    self._leave()
                else:
                    self._scope.cancel()

    async def run(self, dialog: Dialog, task: str) -> bool:
        """Do a task; False: it was interrupted. Raises StreamtoolError as a run does."""
        with anyio.CancelScope() as scope:
            self._scope, self._late = scope, False
            try:
                await dialog.ask(task)
            finally:
                self._scope = None
        return not scope.cancelled_caught
