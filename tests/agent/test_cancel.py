"""An abandoned run, in any phase, leaves no task, no running thread and no process."""

import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from support.agents import WEATHER, get_weather, plain, scripted
from support.leftovers import children, tasks, threads
from support.sweeps import each

from streamtool.agent import (
    Agent,
    Event,
    McpServer,
    OutputDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallResult,
    TurnStart,
)
from streamtool.testing import Hang, Script, ScriptedUpstream, text

both = pytest.mark.anyio
DEADLINE = 120  # never reached unless something hangs, even on a busy machine


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def hanging(said: str = "") -> ScriptedUpstream:
    steps = text(said, done=False, finish=None).steps if said else ()
    return ScriptedUpstream(Script((*steps, Hang())))


def busy() -> str:
    """Run until cancelled."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        anyio.from_thread.check_cancelled()
        time.sleep(0.005)
    raise AssertionError("nobody cancelled")


async def sleepy() -> str:
    """Sleep until cancelled."""
    await anyio.sleep_forever()
    return ""


async def undecided(made: ToolCallEnd) -> bool:
    await anyio.sleep_forever()
    return True


After = Callable[[Event], bool] | None
PHASES: dict[str, tuple[Callable[[], Agent], After]] = {
    "before anything": (lambda: Agent(hanging(), [get_weather]), None),
    "while the model is silent": (lambda: Agent(hanging(), [get_weather]), lambda e: isinstance(e, TurnStart)),
    "in text": (lambda: Agent(hanging("Let me look"), [get_weather]), lambda e: isinstance(e, OutputDelta)),
    "in text, without tools": (lambda: Agent(hanging("Let me look")), lambda e: isinstance(e, OutputDelta)),
    "in arguments": (lambda: Agent(hanging(WEATHER[:-25]), [get_weather]), lambda e: isinstance(e, ToolArgumentsDelta)),
    "while it is asked whether to execute": (
        lambda: Agent(scripted(WEATHER), [get_weather], approve=undecided),
        lambda e: isinstance(e, ToolCallEnd),
    ),
    "in a function": (lambda: Agent(scripted(call("sleepy")), [sleepy]), lambda e: isinstance(e, ToolCallEnd)),
    "in a thread": (lambda: Agent(scripted(call("busy")), [busy]), lambda e: isinstance(e, ToolCallEnd)),
    "between two calls": (
        lambda: Agent(scripted(WEATHER + call("busy")), [busy, get_weather]),
        lambda e: isinstance(e, ToolCallResult),
    ),
    "in the second turn": (
        lambda: Agent(ScriptedUpstream(text(WEATHER), Script((Hang(),))), [get_weather]),
        lambda e: isinstance(e, TurnStart) and e.turn == 2,
    ),
    "while a server is opened": (
        lambda: Agent(scripted("x"), [McpServer([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"])]),
        None,
    ),
    "while a server lists its tools": (lambda: Agent(scripted("x"), [plain("lists nothing")]), None),
    "in a server": (
        lambda: Agent(scripted(call("wait", '{"seconds": 60}')), [plain()]),
        lambda e: isinstance(e, ToolCallEnd),
    ),
}


async def quiet(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while condition():
        assert time.monotonic() < end, f"left running: {what}: {condition()}"
        await anyio.sleep(0.005)


async def until(run: Any, after: After) -> None:
    if after is not None:
        async for event in run:
            if after(event):
                break
    await anyio.sleep(0.03)


async def left(agent: Agent, after: After) -> None:
    """Leave the block."""
    async with agent.run("Go.") as run:
        await until(run, after)


async def cancelled(agent: Agent, after: After) -> None:
    """Cancel the task while it waits for the next event."""
    with anyio.CancelScope() as scope:
        async with agent.run("Go.") as run:
            await until(run, after)
            scope.cancel()
            await anext(run)
    assert scope.cancelled_caught


@both
@each("how", [left, cancelled])
@each("phase", PHASES)
async def test_nothing_is_left_running(phase: str, how: Callable[[Agent, After], Awaitable[None]]):
    make, after = PHASES[phase]
    agent = make()
    before = tasks(), children()
    with anyio.fail_after(DEADLINE):
        await how(agent, after)
        await quiet(threads, "threads")
        await quiet(lambda: set(children()) - set(before[1]), "processes")
        await quiet(lambda: tasks() > before[0], "tasks")


@both
async def test_leaving_an_agent_stops_its_servers():
    before = tasks(), set(children())
    async with Agent("sample", [plain()]) as agent:
        assert len(set(children()) - before[1]) == 1
        await agent.ask("math.add 1")
    await quiet(lambda: set(children()) - before[1], "processes")
    await quiet(lambda: tasks() > before[0], "tasks")


@both
async def test_a_thread_that_ignores_cancellation_is_abandoned():
    told = threading.Event()

    def deaf() -> None:
        assert told.wait(DEADLINE)

    agent = Agent(scripted(call("deaf"), "Done."), [deaf], timeout=0.05)
    assert await agent.ask("Go.") == "Done."
    assert threads() == ["tool deaf"]
    told.set()
    await quiet(threads, "threads")


@both
async def test_a_thread_that_exceeds_its_time_is_cancelled():
    agent = Agent(scripted(call("busy"), "Done."), [busy], timeout=0.05)
    assert await agent.ask("Go.") == "Done."
    await quiet(threads, "threads")


def eventful() -> Agent:
    """Return an agent with text, calls of all kinds and an invalid reply: everything that a run can wait for."""
    say = '{"action": {"tool": "TOOL", "args": {}}}'
    return Agent(
        scripted(say.replace("TOOL", "brief"), "no", say.replace("TOOL", "quick"), '{"final": {"content": "Done."}}'),
        [brief, quick],
        format="action_object",
        approve=agreed,
    )


async def brief() -> str:
    await anyio.sleep(0.001)
    return "brief"


def quick() -> str:
    return "quick"


async def agreed(made: ToolCallEnd) -> bool:
    await anyio.lowlevel.checkpoint()
    return True


@both
@pytest.mark.filterwarnings("error")
async def test_a_run_can_be_cancelled_at_every_step():
    """Cancel at the first checkpoint, then at the second, and so on until the run completes."""
    before = tasks()
    for step in range(2000):
        scope, answers = anyio.CancelScope(), []

        async def ask(scope: anyio.CancelScope = scope, answers: list[str] = answers) -> None:
            with scope:
                answers.append(await eventful().ask("Go."))

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                for _ in range(step):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
            await quiet(threads, "threads")
            await quiet(lambda: tasks() > before, "tasks")
        if answers:
            break
    assert answers == ["Done."]
