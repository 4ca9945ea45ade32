"""Calls of one reply, executed: all at once, each with its time limit, results in the order of the calls.

Of more than a hundred calls some wait for others to end, before their time begins. Whatever a tool raises is its
result. A call whose time is up is cancelled, and so is every call when the run ends.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
from attrs import frozen

from streamtool.agent.events import Event, Progress, ToolCallResult
from streamtool.agent.tools import ExecutableTool, Prepared
from streamtool.conversation import Part, TextPart
from streamtool.errors import StreamtoolError

Json = Any  # a decoded JSON value
Tell = Callable[[Event], Awaitable[None]]

_AT_ONCE = 100
"""Calls of a reply that run at the same time."""

_log = logging.getLogger("streamtool")


@frozen
class Task:
    """A call that is to be executed."""

    id: str
    tool: ExecutableTool
    arguments: Mapping[str, Json]


async def execute(tasks: Sequence[Task], limit: float | None, tell: Tell) -> list[ToolCallResult]:
    """The results, in the order of the calls; `tell` hears of progress, and of each result when it is there.

    `limit` is the time of one call in seconds, for tools that have none of their own.
    """
    results: dict[int, ToolCallResult] = {}
    running = anyio.CapacityLimiter(_AT_ONCE)

    async def one(number: int, task: Task) -> None:
        async with running:
            results[number] = result = await _execute(task, limit, tell)
        await tell(result)

    async with anyio.create_task_group() as group:
        for number, task in enumerate(tasks):
            group.start_soon(one, number, task)
    return [results[number] for number in range(len(tasks))]


async def _execute(task: Task, limit: float | None, tell: Tell) -> ToolCallResult:
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
            raise  # it is meant: anything else is a task of the tool's own that somebody has cancelled
        _log.debug("the tool %s failed", tool.name, exc_info=error)  # it may hold contents
        content, failed = _error(sentence_of(error)), True
    return ToolCallResult(task.id, tool.name, content, failed, anyio.current_time() - began)


def _error(why: str) -> tuple[Part, ...]:
    return (TextPart(f"Error: {why}"),)


def sentence_of(error: BaseException) -> str:
    """What an error of a tool says: its kind, if it is one of Python's, and its words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StreamtoolError):
        return error.message
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # noqa: BLE001  an error that cannot even be written
        return type(error).__name__
