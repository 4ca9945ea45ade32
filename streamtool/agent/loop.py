"""The loop: ask, execute what the reply calls, hand the results back, until there is an answer.

    messages ─▶ Talk (an exchange around the upstream) ─▶ reply ─▶ no call: the final answer
        ▲                                                   └────▶ calls ─▶ validated ─▶ executed ─▶ results ─┐
        └─────────────────────────────────────────────────────────────────────────────────────────────────────┘

How tools reach the model, and in what form it writes calls, is the exchange's business, so that nothing here knows
whether they are emulated. What is not accepted is answered, never executed: an unknown tool with the list of tools,
arguments that do not fit with the part of the schema that failed, a call that was cut off with a word about that. Such
answers are results like any other and stay in the history. A reply that is no object of the strict protocol is asked
for again instead, with a correction that does not stay. Both are bounded by `retries`, replies by `max_turns`.

The messages that come in are only ever read.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence

from attrs import frozen

from streamtool.agent import one_object
from streamtool.agent.events import Event, Final, Rejected, ToolCallEnd, ToolCallResult, TurnStart, Veto
from streamtool.agent.execution import Task, Tell, execute
from streamtool.agent.model_client import ModelClient, ModelReply
from streamtool.agent.tools import ExecutableTool
from streamtool.conversation import Message, TextPart, ToolResult
from streamtool.errors import AgentError
from streamtool.policy import Finding, ProposedCall, WholeReply, find
from streamtool.protocols import chat, wire
from streamtool.reply import Usage
from streamtool.validation.validator import InvalidArguments, Validator

Approve = Callable[[ToolCallEnd], bool | Veto | Awaitable[bool | Veto]]
"""Whether a call may be executed; a `Veto` says why not."""


@frozen
class Plan:
    """How a loop is to go."""

    max_turns: int
    retries: int
    timeout: float | None
    strict: str | None = None
    """The format whose whole replies are one object and nothing else; None: nothing to insist on."""
    approve: Approve | None = None


class Loop:
    """One run."""

    __slots__ = ("_done", "_history", "_plan", "_talk", "_tell", "_tools", "usage")

    def __init__(self, talk: ModelClient, tools: Mapping[str, ExecutableTool], plan: Plan, tell: Tell) -> None:
        self._talk = talk
        self._tools = tools
        self._plan = plan
        self._tell = tell
        self._history: list[Message] = []
        """What the run has added to the conversation."""
        self._done: list[ToolCallResult] = []
        """Results of the last reply's calls, while others are still missing."""
        self.usage = Usage()
        """The tokens of all replies so far."""

    @property
    def added(self) -> list[Message]:
        """What the run has added so far; calls whose results are missing are among it."""
        return [*self._history, *([_message(self._done)] if self._done else [])]

    async def run(self, messages: Sequence[Message]) -> Final:
        """The final answer. Raises AgentError when there is none, and what the exchange raises."""
        missed = 0
        for turn in range(1, self._plan.max_turns + 1):
            await self._tell(TurnStart(turn))
            told = await self._accepted(messages)
            if not told.calls:
                self._history.append(told.message)
                added = chat.write_messages(self._history)
                return Final(told.message.text, told.reason, turn, self.usage, tuple(added))
            self._history.append(told.message)
            results, executed = await self._results(told.calls)
            self._done.clear()
            self._history.append(_message(results))
            missed = 0 if executed else missed + 1
            if missed > self._plan.retries:
                raise AgentError(
                    f"the model made no call that can be executed, {missed} times in a row; the last one was answered: "
                    f"{results[-1].text}",
                    code="no_valid_call",
                ).quoting()
        raise AgentError(
            f"there is no final answer after {self._plan.max_turns} turns; max_turns allows more", code="turn_limit"
        )

    async def _accepted(self, given: Sequence[Message]) -> ModelReply:
        """The next reply; one that keeps to the protocol, if that is asked for."""
        asked = [*given, *self._history]
        for _ in range(self._plan.retries + 1):
            told = await self._talk.reply(asked, self._tell)
            self.usage += told.usage
            # a reply of native calls alone has no text
            asks = self._plan.strict if told.raw or not told.calls else None
            wrong = None if asks is None else one_object.problem(told.raw, asks)
            found = find(WholeReply(violation=None if wrong is None else one_object.correction(wrong, told.raw)))
            if found is None:
                return told
            await self._tell(Rejected(found.cause, found.answer))
            asked = [*given, *self._history, Message("user", (TextPart(found.answer),))]
        raise AgentError(
            f"the model does not keep to the protocol, after {self._plan.retries + 1} tries: {wrong}", code="protocol"
        )

    async def _results(self, calls: Sequence[ToolCallEnd]) -> tuple[list[ToolCallResult], bool]:
        """The results of all calls, in order, and whether any was executed."""
        tasks: list[Task] = []
        rejected: dict[str, ToolCallResult] = {}
        for call in calls:
            task = self._task(call)
            if isinstance(task, Task):
                task = find(self._proposed(call, approved=await self._approved(call))) or task
            if isinstance(task, Task):
                tasks.append(task)
                continue
            await self._tell(Rejected(task.cause, task.answer, call.id, call.name))
            rejected[call.id] = ToolCallResult(call.id, call.name, (TextPart(task.answer),), error=True)
            self._done.append(rejected[call.id])
        done = {result.id: result for result in await execute(tasks, self._plan.timeout, self._tell_result)}
        refused = any(call.id in rejected for call in calls) and not tasks
        return [done.get(call.id) or rejected[call.id] for call in calls], not refused

    async def _tell_result(self, event: Event) -> None:
        if isinstance(event, ToolCallResult):
            self._done.append(event)
        await self._tell(event)

    def _task(self, call: ToolCallEnd) -> Task | Finding:
        """The call as something to execute, or why it is not executed."""
        tool = self._tools.get(call.name)
        arguments, invalid = call.arguments, None
        if tool is not None and call.complete:
            arguments, invalid, _ = Validator.of(tool.parameters).check(call.arguments)
        found = find(self._proposed(call, invalid=invalid))
        if found is not None:
            return found
        return Task(call.id, self._tools[call.name], wire.decode(arguments) if arguments.strip() else {})

    def _proposed(
        self, call: ToolCallEnd, *, invalid: InvalidArguments | None = None, approved: bool | Veto = True
    ) -> ProposedCall:
        offered = tuple(self._tools)
        allowed, reason = (False, approved.reason) if isinstance(approved, Veto) else (bool(approved), "")
        return ProposedCall(
            name=call.name, offered=offered, complete=call.complete, invalid=invalid, approved=allowed, reason=reason
        )

    async def _approved(self, call: ToolCallEnd) -> bool | Veto:
        if self._plan.approve is None:
            return True
        answer = self._plan.approve(call)
        return await answer if inspect.isawaitable(answer) else answer


def _message(results: Sequence[ToolCallResult]) -> Message:
    """The results as a message of the history."""
    parts = [ToolResult(result.id, result.content, result.error, result.name) for result in results]
    return Message("user", results=tuple(parts))
