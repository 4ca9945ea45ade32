"""Execution of the calls in one reply: concurrent, each with a timeout, with results in call order.

At most a hundred calls run at a time; a call's timeout starts when the call does. An exception raised by a tool becomes
the result of the call. A call is cancelled when it times out, and all calls are cancelled when the run ends.

A call may start early, while the model is still writing the reply. Nothing is reported about it until the reply has
been accepted. If the reply fails or is rejected, or does not contain the call, the call is cancelled and its result
discarded.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen

from streamtool.agent.events import Emit, Event, Progress, ToolCallResult
from streamtool.agent.tools import ExecutableTool, Prepared
from streamtool.core.conversation import Part, TextPart
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json

if TYPE_CHECKING:
    from streamtool.observe.otel import AgentSpans

_MAX_CONCURRENT = 100
"""Maximum number of calls from one reply that run concurrently."""

_log = logging.getLogger("streamtool")


@frozen
class Task:
    """A call to execute."""

    id: str
    tool: ExecutableTool
    arguments: Mapping[str, Json]


@define(eq=False)
class _EarlyCall:
    """A call that has started before the end of the reply."""

    task: Task
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    ended: anyio.Event = field(factory=anyio.Event, init=False)
    result: ToolCallResult | None = field(default=None, init=False)
    """The result; None until it is available, and if the call was not permitted to start."""
    _progress: Event | None = field(default=None, init=False)
    """The latest progress that has not been reported."""
    _emit: Emit | None = field(default=None, init=False)
    """The receiver of progress events, once the reply has ended."""

    async def tell(self, event: Event) -> None:
        """Report progress, or keep it until the reply has ended."""
        if self._emit is None:
            self._progress = event
        else:
            await self._emit(event)

    async def take(self, tell: Emit) -> ToolCallResult | None:
        """Report progress from now on, and return the result as soon as it is available."""
        self._emit = tell
        if self._progress is not None:
            await tell(self._progress)
        await self.ended.wait()
        return self.result


class Execution:
    """The calls of one reply while they are executed.

    `tell` receives progress events, and each result as soon as it is available and the reply has ended. `limit` is the
    timeout, in seconds, for calls to tools that do not define one. `spans`, if there are any, create a span for each
    call.
    """

    def __init__(self, group: TaskGroup, limit: float | None, tell: Emit, spans: "AgentSpans | None") -> None:
        self._group = group
        self._limit = limit
        self._tell = tell
        self._spans = spans
        self._running = anyio.CapacityLimiter(_MAX_CONCURRENT)
        self._early: dict[str, _EarlyCall] = {}

    def start_early(self, task: Task, permitted: Callable[[], Awaitable[bool]]) -> None:
        """Start a call before the reply has ended, if `permitted` returns true."""
        self._early[task.id] = call = _EarlyCall(task)
        self._group.start_soon(self._run_early, call, permitted)

    async def _run_early(self, call: _EarlyCall, permitted: Callable[[], Awaitable[bool]]) -> None:
        with call.scope:
            if await permitted():
                call.result = await self._run(call.task, call.tell)
        call.ended.set()

    async def discard(self) -> None:
        """Cancel the calls that have started early, because the reply was rejected, and wait until they have ended."""
        discarded = list(self._early.values())
        self._early.clear()
        for call in discarded:
            call.scope.cancel()
        for call in discarded:
            await call.ended.wait()

    async def results(self, tasks: Sequence[Task]) -> list[ToolCallResult]:
        """Execute the calls of a reply that has ended and return their results in order. A call that has started early
        continues; one that is not among them is cancelled.
        """
        early = {task.id: call for task in tasks if (call := self._early.get(task.id)) and call.task == task}
        for id in early:
            del self._early[id]
        await self.discard()
        results: dict[str, ToolCallResult] = {id: call.result for id, call in early.items() if call.result is not None}

        async def one(task: Task) -> None:
            call = early.get(task.id)
            result = None if call is None else await call.take(self._tell)
            results[task.id] = result = result or await self._run(task, self._tell)
            await self._tell(result)

        finished = list(filter(None, (results.get(task.id) for task in tasks)))
        async with anyio.create_task_group() as group:
            for task in tasks:
                if task.id not in results:
                    group.start_soon(one, task)
            for result in finished:
                await self._tell(result)
        return [results[task.id] for task in tasks]

    async def _run(self, task: Task, tell: Emit) -> ToolCallResult:
        """Execute one call, once fewer than the maximum number are running."""
        async with self._running:
            if self._spans is None:
                return await _execute(task, self._limit, tell)
            with self._spans.tool(task.tool.name, task.id, task.arguments, task.tool.description) as returned:
                result = await _execute(task, self._limit, tell)
                returned(result.text, result.error)
                return result


@asynccontextmanager
async def execution(limit: float | None, tell: Emit, spans: "AgentSpans | None") -> AsyncIterator[Execution]:
    """Yield the execution of one reply's calls. Calls that are still running at the end of the block are cancelled."""
    failed: Exception | None = None
    async with anyio.create_task_group() as group:
        try:
            yield Execution(group, limit, tell, spans)
        except Exception as error:  # noqa: BLE001  raised again outside the group
            failed = error
        finally:
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _execute(task: Task, limit: float | None, tell: Emit) -> ToolCallResult:
    tool = task.tool
    limit = limit if tool.timeout is None else tool.timeout

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        await tell(Progress(task.id, tool.name, done, total, message))

    began = anyio.current_time()
    try:
        if isinstance(tool, Prepared):
            await tool.ready(progressed)
        began = anyio.current_time()
        with anyio.move_on_after(limit) as scope:
            answer = await tool.call(task.arguments, progressed)
            content, failed = answer.content, answer.error
        if scope.cancelled_caught:
            content, failed = _error(f"the call took longer than {limit:g} seconds and was stopped"), True
    except (Exception, SystemExit, anyio.get_cancelled_exc_class()) as error:
        if isinstance(error, anyio.get_cancelled_exc_class()) and anyio.current_effective_deadline() == -math.inf:
            raise  # the run itself was cancelled; otherwise, something inside the tool was
        _log.debug("the tool %s failed", tool.name, exc_info=error)  # the error may contain private data
        content, failed = _error(error_message(error)), True
    return ToolCallResult(task.id, tool.name, content, failed, anyio.current_time() - began)


def _error(why: str) -> tuple[Part, ...]:
    return (TextPart(f"Error: {why}"),)


def error_message(error: BaseException) -> str:
    """Return an error's message, preceded by the exception type unless it is a StreamtoolError."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StreamtoolError):
        return error.message
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # noqa: BLE001  its __str__ fails
        return type(error).__name__
