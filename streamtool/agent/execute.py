"""Calls of one reply, executed: all at once, each with its time limit, results in the order of the calls.

Whatever a tool raises is its result. A call whose time is up is cancelled, and so is every call when the run ends.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
from attrs import frozen

from streamtool.agent.events import Event, Progress, Result
from streamtool.agent.tools import Answer, Prepared, Tool
from streamtool.conversation import Text

Json = Any  # a decoded JSON value
Tell = Callable[[Event], Awaitable[None]]

_log = logging.getLogger("streamtool")


@frozen
class Task:
    """A call that is to be executed."""

    id: str
    tool: Tool
    arguments: Mapping[str, Json]


async def execute(tasks: Sequence[Task], limit: float | None, tell: Tell) -> list[Result]:
    """The results, in the order of the calls; `tell` hears of progress, and of each result when it is there.

    `limit` is the time of one call in seconds, for tools that have none of their own.
    """
    results: dict[int, Result] = {}

    async def one(number: int, task: Task) -> None:
        results[number] = result = await _execute(task, limit, tell)
        await tell(result)

    async with anyio.create_task_group() as group:
        for number, task in enumerate(tasks):
            group.start_soon(one, number, task)
    return [results[number] for number in range(len(tasks))]


async def _execute(task: Task, limit: float | None, tell: Tell) -> Result:
    tool = task.tool
    limit = limit if tool.timeout is None else tool.timeout

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        await tell(Progress(task.id, tool.name, done, total, message))

    began = anyio.current_time()
    answer: Answer | None = None
    try:
        if isinstance(tool, Prepared):
            await tool.ready(progressed)
        began = anyio.current_time()
        with anyio.move_on_after(limit):
            answer = await tool.call(task.arguments, progressed)
        if answer is None:
            answer = _failed(f"the call took longer than {limit:g} seconds and was stopped")
    except Exception as error:  # noqa: BLE001  the model is told
        _log.info("the tool %s failed", tool.name, exc_info=error)
        answer = _failed(sentence_of(error))
    return Result(task.id, tool.name, answer.content, answer.error, anyio.current_time() - began)


def _failed(why: str) -> Answer:
    return Answer((Text(f"Error: {why}"),), error=True)


def sentence_of(error: Exception) -> str:
    """What an error of a tool says: its kind, if it is one of Python's, and its words."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    message = getattr(error, "message", None)  # one of ours
    return message if isinstance(message, str) else f"{type(error).__name__}: {error}".rstrip(": ")
