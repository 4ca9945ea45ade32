"""Agent loop: request a reply, execute its calls and return the results to the model, until it gives a final answer.

    messages ─▶ ModelClient (an exchange with the upstream) ─▶ reply ─▶ no call: the final answer
        ▲                                                         └────▶ calls ─▶ validated ─▶ executed ─▶ results ─┐
        └───────────────────────────────────────────────────────────────────────────────────────────────────────────┘

The exchange decides how tools reach the model and how the model writes calls; the loop does not know whether tools are
emulated. A call that is not accepted is never executed. Its result explains why: it lists the tools if the tool is
unknown, quotes the failing part of the schema if the arguments are invalid, or reports that the call was truncated.
Such results remain in the history. Under the strict protocol, if a reply is not an object, another one is requested
with a correction, and neither the reply nor the correction remains in the history. `retries` limits both kinds of
repetition, and `max_turns` limits the number of replies.

A call to an eager tool starts as soon as the model has written it, unless `approve` has to be asked or the call is
quoted. All other calls start after the reply, and all results are reported after the reply.

The caller's messages are never modified.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from streamtool.agent import one_object
from streamtool.agent.events import Emit, Event, Final, Rejected, ToolCallEnd, ToolCallResult, TurnStart, Veto
from streamtool.agent.execution import Execution, Task, execution
from streamtool.agent.model_client import ModelClient, ModelReply
from streamtool.agent.tools import Eager, ExecutableTool, Trusting
from streamtool.core.conversation import Message, TextPart, ToolResult
from streamtool.core.errors import AgentError
from streamtool.core.reply import Usage
from streamtool.policy import Finding, ProposedCall, WholeReply, find
from streamtool.protocols import chat
from streamtool.protocols.shared import wire
from streamtool.schemas.validator import InvalidArguments, Validator

if TYPE_CHECKING:
    from streamtool.observe.otel import AgentSpans

QuotedCalls = Literal["refuse", "approve"]
Approve = Callable[[ToolCallEnd], bool | Veto | Awaitable[bool | Veto]]
"""A function that decides whether a call may be executed; a `Veto` gives the reason for a refusal."""


@frozen
class LoopOptions:
    """Limits and options for a loop."""

    max_turns: int
    retries: int
    timeout: float | None
    strict: str | None = None
    """Format in which each reply must be exactly one object; None means that replies need not be objects."""
    approve: Approve | None = None
    quoted: QuotedCalls = "refuse"
    """Whether a call that repeats a result or a tool's description is refused, or `approve` decides."""


class Loop:
    """Runs the loop for one run of an agent."""

    def __init__(
        self,
        talk: ModelClient,
        tools: Mapping[str, ExecutableTool],
        plan: LoopOptions,
        tell: Emit,
        spans: "AgentSpans | None" = None,
    ) -> None:
        self._client = talk
        self._spans = spans
        self._tools = tools
        self._plan = plan
        self._tell = tell
        self._history: list[Message] = []
        """Messages that the run has added to the conversation."""
        self._eager = plan.approve is None and any(map(_is_eager, tools.values()))
        self._results_so_far: list[ToolCallResult] = []
        """Results for the calls in the latest reply, until all of them are available."""
        self.usage = Usage()
        """Token usage of all replies so far."""

    @property
    def added(self) -> list[Message]:
        """Messages that the run has added so far, including calls that have no results yet."""
        return [*self._history, *([_results_message(self._results_so_far)] if self._results_so_far else [])]

    async def run(self, messages: Sequence[Message]) -> Final:
        """Run the loop and return the final answer.

        Raises AgentError if the run ends without an answer, and the errors that the exchange raises.
        """
        missed = 0
        for turn in range(1, self._plan.max_turns + 1):
            await self._tell(TurnStart(turn))
            async with execution(self._plan.timeout, self._tell_result, self._spans) as calls:
                told = await self._next_reply(messages, calls)
                self._history.append(told.message)
                if not told.calls:
                    added = chat.write_messages(self._history)
                    return Final(told.message.text, told.reason, turn, self.usage, tuple(added))
                results, executed = await self._results(told.calls, calls)
            self._results_so_far.clear()
            self._history.append(_results_message(results))
            missed = 0 if executed else missed + 1
            if missed > self._plan.retries:
                raise AgentError(
                    f"the model failed to make an executable call {missed} times in a row; "
                    f"the last call was rejected: {results[-1].text}",
                    code="no_valid_call",
                ).quoting()
        raise AgentError(
            f"no final answer after {self._plan.max_turns} turns; raise max_turns to allow more", code="turn_limit"
        )

    async def _next_reply(self, given: Sequence[Message], calls: Execution) -> ModelReply:
        """Request the next reply. Under the strict protocol, repeat until a reply follows it or the retries are used
        up.
        """
        asked = [*given, *self._history]
        on_call = partial(self._start_early, calls) if self._eager else None
        for _ in range(self._plan.retries + 1):
            told = await self._client.reply(asked, self._tell, on_call)
            self.usage += told.usage
            # a reply that consists only of native calls has no text
            asks = self._plan.strict if told.raw or not told.calls else None
            wrong = None if asks is None else one_object.problem(told.raw, asks)
            found = find(WholeReply(violation=None if wrong is None else one_object.correction(wrong, told.raw)))
            if found is None:
                return told
            await calls.discard()
            await self._tell(Rejected(found.cause, found.answer))
            asked = [*given, *self._history, Message("user", (TextPart(found.answer),))]
        raise AgentError(
            f"the model did not follow the protocol in {self._plan.retries + 1} attempts: {wrong}", code="protocol"
        )

    def _start_early(self, calls: Execution, call: ToolCallEnd, quoted: Callable[[], Awaitable[bool]]) -> None:
        """Start a call of a reply that has not ended, if its tool is eager and the call would be executed now."""
        tool = self._tools.get(call.name)
        if tool is None or not _is_eager(tool):
            return
        task = self._task(call)

        async def permitted() -> bool:
            return _runs_quoted(tool) or not await quoted()

        if isinstance(task, Task):
            calls.start_early(task, permitted)

    async def _results(self, calls: Sequence[ToolCallEnd], running: Execution) -> tuple[list[ToolCallResult], bool]:
        """Return the results of all calls in order, and whether the turn was productive. A turn is unproductive if it
        contains calls and all of them are rejected.
        """
        tasks: list[Task] = []
        rejected: dict[str, ToolCallResult] = {}
        for call in calls:
            task = self._task(call)
            if isinstance(task, Task):
                task = find(self._proposed(call, approved=await self._ask_approval(call))) or task
            if isinstance(task, Task):
                tasks.append(task)
                continue
            await self._tell(Rejected(task.cause, task.answer, call.id, call.name))
            rejected[call.id] = ToolCallResult(call.id, call.name, (TextPart(task.answer),), error=True)
            self._results_so_far.append(rejected[call.id])
        done = {result.id: result for result in await running.results(tasks)}
        refused = any(call.id in rejected for call in calls) and not tasks
        return [done.get(call.id) or rejected[call.id] for call in calls], not refused

    async def _tell_result(self, event: Event) -> None:
        if isinstance(event, ToolCallResult):
            self._results_so_far.append(event)
        await self._tell(event)

    def _task(self, call: ToolCallEnd) -> Task | Finding:
        """Return the call as a task, or the reason why it is not executed."""
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
        tool = self._tools.get(call.name)
        asks = self._plan.quoted == "approve" and self._plan.approve is not None
        quoted = call.quoted and not asks and not _runs_quoted(tool)
        allowed, reason = (False, approved.reason) if isinstance(approved, Veto) else (bool(approved), "")
        return ProposedCall(
            name=call.name,
            offered=offered,
            complete=call.complete,
            invalid=invalid,
            quoted=quoted,
            approved=allowed,
            reason=reason,
        )

    async def _ask_approval(self, call: ToolCallEnd) -> bool | Veto:
        if self._plan.approve is None:
            return True
        answer = self._plan.approve(call)
        return await answer if inspect.isawaitable(answer) else answer


def _is_eager(tool: ExecutableTool) -> bool:
    """Return whether calls to the tool may start before the end of the reply."""
    return isinstance(tool, Eager) and tool.eager


def _runs_quoted(tool: ExecutableTool | None) -> bool:
    """Return whether calls to the tool are executed even if they are quoted."""
    return isinstance(tool, Trusting) and tool.run_quoted


def _results_message(results: Sequence[ToolCallResult]) -> Message:
    """Return the results as a history message."""
    parts = [ToolResult(result.id, result.content, result.error, result.name) for result in results]
    return Message("user", results=tuple(parts))
