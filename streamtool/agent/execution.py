"""Execution of the calls in one reply: concurrent, each with a timeout, with results in call order.

At most a hundred calls run at a time; a call's timeout starts when the call does. An exception raised by a tool becomes
the result of the call. A call is cancelled when it times out, and all calls are cancelled when the run ends.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
from attrs import frozen

from streamtool.agent.events import Emit, Progress, ToolCallResult
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


async def execute_calls(
    tasks: Sequence[Task], limit: float | None, tell: Emit, spans: "AgentSpans | None" = None
) -> list[ToolCallResult]:
    """Execute calls and return their results in order.

    `tell` receives progress events, and each result as soon as it is available. `limit` is the timeout, in seconds, for
    calls to tools that do not define one. `spans`, if there are any, create a span for each call.
    """
    results: dict[int, ToolCallResult] = {}
    running = anyio.CapacityLimiter(_MAX_CONCURRENT)

    async def one(number: int, task: Task) -> None:
        async with running:
            if spans is None:
                result = await _execute(task, limit, tell)
            else:
                with spans.tool(task.tool.name, task.id, task.arguments, task.tool.description) as returned:
                    result = await _execute(task, limit, tell)
                    returned(result.text, result.error)
            results[number] = result
        await tell(result)

    async with anyio.create_task_group() as group:
        for number, task in enumerate(tasks):
            group.start_soon(one, number, task)
    return [results[number] for number in range(len(tasks))]


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
