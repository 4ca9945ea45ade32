"""Calls to eager tools start while the model is still writing, and are reported and discarded like all others.

Durations are virtual (trio's autojump clock); under asyncio, a held upstream shows what runs before the reply has ended.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.agents import events_of, last_said, only, plain, scripted, story
from support.continuing import Continuing, Fault, settings_for
from support.dialects import SAYS, path, read
from support.native_replies import native_call

from streamtool.agent import (
    Agent,
    Event,
    FunctionTool,
    McpServer,
    Progress,
    Rejected,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
    ToolOutput,
    TurnStart,
    execution,
    mcp_gateway,
    tool,
)
from streamtool.agent.model_client import make_middleware
from streamtool.core.conversation import TextPart
from streamtool.core.errors import StreamtoolError
from streamtool.proxy import Proxy
from streamtool.settings import load
from streamtool.testing import Die, Hang, Hold, Pause, Script, ScriptedUpstream, chunk, stream_asgi, text
from streamtool.testing.upstream import DONE, Step
from streamtool.testing.upstream import event as sse

both = pytest.mark.anyio


def call(name: str, **arguments: object) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>\n'


def said(*parts: str | float | Step, ends: bool = True) -> Script:
    """Return a reply in which numbers are pauses in seconds."""
    steps: list[Step] = []
    for part in parts:
        match part:
            case str():
                steps += text(part, finish=None, done=False).steps
            case int() | float():
                steps.append(Pause(part))
            case _:
                steps.append(part)
    return Script((*steps, *((chunk({}, finish="stop"), DONE) if ends else ())))


class Look:
    """A tool that takes a while, and notes what happens to its calls."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.notes: list[str] = []

    @property
    def begun(self) -> list[str]:
        return [note.removeprefix("begins ") for note in self.notes if note.startswith("begins ")]

    async def look(self, at: str = "", seconds: float | None = None) -> str:
        """Look at something."""
        self.notes.append(f"begins {at}")
        try:
            await anyio.sleep(self.seconds if seconds is None else seconds)
        except anyio.get_cancelled_exc_class():
            self.notes.append(f"cancelled {at}")
            raise
        self.notes.append(f"ends {at}")
        return f"saw {at}"

    def tool(self, *, eager: bool = True, **options: Any) -> FunctionTool:
        return tool(self.look, eager=eager, **options)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await anyio.sleep(0.01)
    raise AssertionError("it never came")


@asynccontextmanager
async def held(
    agent: Agent, upstream: ScriptedUpstream, messages: Any = "Go.", *, reported: list[Event] | None = None
) -> AsyncIterator[list[Event]]:
    """Run the agent until the upstream waits in a `Hold`, and to its end after the block. Yield the growing list of
    events. Raises the run's error.
    """
    events: list[Event] = [] if reported is None else reported
    failed: list[Exception] = []

    async def collect() -> None:
        try:
            async with agent.run(messages) as run:
                async for event in run:
                    events.append(event)  # noqa: PERF401  the list is read while it grows
        except Exception as error:
            failed.append(error)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(collect)
            await until(lambda: bool(upstream.requests))
            await anyio.wait_all_tasks_blocked()
            yield events
            upstream.release()
    if failed:
        raise failed[0]


async def timed(agent: Agent) -> tuple[list[Event], dict[int, float]]:
    """Return the events of a run, and when each turn began."""
    events, turns, began = [], {}, anyio.current_time()
    async with agent.run("Go.") as run:
        async for event in run:
            events.append(event)
            if isinstance(event, TurnStart):
                turns[event.turn] = anyio.current_time() - began
    return events, turns


THREE = (0.4, call("look", at="a"), 0.4, call("look", at="b"), 0.4, call("look", at="c"))


# --- what it saves ---------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize(
    ("eager", "reply", "seconds"),
    [
        (True, (*THREE, 0.8, "I wait."), 2.0),
        (True, (*THREE[:-2], 1.2, THREE[-1]), 2.5),
        (True, (*THREE[:-2], 1.0, THREE[-1], 0.2), 2.3),
        (False, (*THREE, 0.8, "I wait."), 2.5),
    ],
    ids=["early", "last at the end", "last before the end", "not eager"],
)
async def test_a_turn_takes_as_long_as_the_reply_and_what_is_left_of_its_calls(autojump_clock, eager, reply, seconds):
    looks = Look(0.5)
    upstream = scripted(said(*reply), "Done.")
    events, turns = await timed(Agent(upstream, [looks.tool(eager=eager)]))
    assert turns[2] == pytest.approx(seconds)
    results = sorted((event.text, event.seconds) for event in only(events, ToolCallResult))
    assert results == [(f"saw {at}", pytest.approx(0.5)) for at in "abc"]
    assert sorted(looks.begun) == ["a", "b", "c"]


def notes_server(*, read_only: bool | None = True) -> Any:
    """Return a server of the official SDK, in this process."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("notes", log_level="CRITICAL")

    @server.tool(annotations=None if read_only is None else ToolAnnotations(read_only_hint=read_only))
    async def look(at: str) -> str:
        """Look at something."""
        await anyio.sleep(0.5)
        return f"saw {at}"

    return server


PROXY = """
[upstream.u]
url = "http://127.0.0.1:9"
[mcp.notes]
command = "replaced"
tools = ["*"]
{}
[[model]]
match = "helper"
mcp = ["notes"]
"""


@pytest.mark.trio
@pytest.mark.parametrize(
    ("read_only", "setting", "seconds"),
    [(True, "", 2.0), (True, 'eager = "off"', 2.5), (False, "", 2.5), (None, "", 2.5)],
    ids=["read-only", "off", "writes", "unknown"],
)
async def test_the_proxy_starts_read_only_tools_early(autojump_clock, monkeypatch, read_only, setting, seconds):
    pytest.importorskip("mcp")
    make = mcp_gateway._make_server

    def in_process(settings: Any) -> McpServer:
        server = make(settings)
        return McpServer(notes_server(read_only=read_only), timeout=server.timeout, eager=server.eager)

    monkeypatch.setattr(mcp_gateway, "_make_server", in_process)
    asked: list[float] = []

    def done(_: object) -> Script:
        asked.append(anyio.current_time())
        return text("Done.")

    upstream = scripted(said(*THREE, 0.8, "I wait."), done)
    proxy = Proxy(load(PROXY.format(setting)), apps={"u": upstream})
    body = {"model": "helper", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    began = anyio.current_time()
    async with stream_asgi(proxy, path("chat"), body=json.dumps(body).encode()) as reply:
        data = b"".join([piece async for piece in reply])
    assert asked[0] - began == pytest.approx(seconds)
    assert "".join(part for part in read("chat", data, stream=True).parts if isinstance(part, str)).endswith("Done.")
    told = last_said(upstream)
    assert told.index("saw a") < told.index("saw b") < told.index("saw c")


@both
async def test_a_server_process_runs_a_read_only_call_while_the_model_writes(tmp_path: Path):
    pytest.importorskip("mcp")
    notes = tmp_path / "notes"
    notes.touch()
    upstream = scripted(said(call("wait", seconds=0), Hold(), "I wait."), "Done.")
    agent = Agent(upstream, [plain("read-only", notes=notes)])
    with anyio.fail_after(20):
        async with agent.run("Go.") as run:
            async for event in run:
                if isinstance(event, ToolCallEnd):
                    await until(lambda: "wait 0" in notes.read_text())
                    upstream.release()
                if isinstance(event, ToolCallResult):
                    assert event.text == "waited"
    assert notes.read_text().count("wait") == 1


# --- what starts -----------------------------------------------------------------------------------------------------


def quoting(call: str) -> list[dict[str, Any]]:
    """Return messages with a result that contains a call."""
    asks = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [asks]},
        {"role": "tool", "tool_call_id": "c0", "content": f"It says\n{call}\nand ends."},
    ]


PAGE = call("look", at="page")
REWRITTEN = '<tool_call>{"arguments": {"at": "page"}, "name": "look"}</tool_call>\n'


@both
@pytest.mark.parametrize(
    ("reply", "options", "begins"),
    [
        ((call("look", at="a"),), {}, ["a"]),
        ((call("look", at="a"), call("look", at="b"), call("look", at="c")), {}, ["a", "b", "c"]),
        ((call("look", at="a"),), {"approve": lambda _: True}, []),
        ((call("nothing", at="a"),), {}, []),
        ((call("look", to="a"),), {}, []),
        (('<tool_call>{"name": "look", "arguments": {"at": "a"}',), {}, []),
        ((call("look", at="a"),), {"eager": False}, []),
        ((PAGE, call("look", at="a")), {"quotes": True}, ["a"]),
        ((REWRITTEN,), {"quotes": True}, []),
        ((PAGE, call("look", at="a")), {"quotes": True, "quoted": "calls"}, ["a", "page"]),
    ],
    ids=[
        "a call",
        "calls",
        "approved",
        "an unknown tool",
        "invalid arguments",
        "an open call",
        "not eager",
        "quoted",
        "quoted in another form",
        "quoted and allowed",
    ],
)
async def test_what_starts_before_the_reply_has_ended(reply, options, begins):
    looks, options = Look(), dict(options)
    eager, quotes = options.pop("eager", True), options.pop("quotes", False)
    upstream = scripted(said(*reply, Hold()), "Done.")
    agent = Agent(upstream, [looks.tool(eager=eager)], **options)
    async with held(agent, upstream, quoting(PAGE) if quotes else "Go.") as events:
        assert sorted(looks.begun) == begins
    assert events[-1].text == "Done."
    assert len(looks.begun) == len(set(looks.begun))


@both
async def test_a_call_from_a_description_does_not_start():
    looks = Look()
    upstream = scripted(said(PAGE, call("look", at="a"), Hold()), "Done.")
    example = looks.tool(description=f"Look at something. Begin with\n{PAGE}")
    async with held(Agent(upstream, [example]), upstream) as events:
        assert looks.begun == ["a"]
    assert looks.begun == ["a"]
    assert [event.why for event in only(events, Rejected)] == ["quoted"]


@both
@pytest.mark.parametrize("quoted", [{"run_quoted": True}, {}], ids=["run", "refuse"])
async def test_a_tool_that_runs_quoted_calls_starts_them(quoted):
    looks = Look()
    given = looks.tool()
    for name, value in quoted.items():
        setattr(given, name, value)
    upstream = scripted(said(PAGE, call("look", at="a"), Hold()), "Done.")
    async with held(Agent(upstream, [given]), upstream, quoting(REWRITTEN)):
        assert sorted(looks.begun) == (["a", "page"] if quoted else ["a"])


@both
async def test_a_tool_with_side_effects_starts_after_the_reply():
    looks, writes = Look(), Look()
    upstream = scripted(said(call("write", at="1"), call("look", at="2"), call("write", at="3"), Hold()), "Done.")
    agent = Agent(upstream, [looks.tool(), writes.tool(eager=False, name="write")])
    async with held(agent, upstream) as events:
        assert (looks.begun, writes.begun) == (["2"], [])
        assert [event.name for event in only(events, ToolCallEnd)] == ["write", "look", "write"]
    assert (looks.begun, sorted(writes.begun)) == (["2"], ["1", "3"])
    told = last_said(upstream)
    assert told.index("saw 1") < told.index("saw 2") < told.index("saw 3")


@both
@pytest.mark.parametrize("mode", ["native", "auto"])
async def test_a_native_call_starts_when_the_next_output_begins(mode: str):
    looks = Look()
    first = [step for step in native_call("look", '{"at": "a"}').steps if b'finish_reason":null' in step]
    upstream = scripted(said(*first, "I wait.", Hold()), "Done.")
    async with held(Agent(upstream, [looks.tool()], mode=mode), upstream) as events:
        assert looks.begun == ["a"]
    assert looks.begun == ["a"]
    assert len(only(events, ToolCallEnd)) == 1


@both
async def test_calls_after_one_that_cannot_be_read_start_after_the_reply():
    looks = Look()
    cut = '<tool_call>{"name": "look", "arguments": {"at": "a", "x"}}</tool_call>\n'
    upstream = scripted(said(cut, call("look", at="b"), call("look", at="c"), Hold()), "Done.")
    async with held(Agent(upstream, [looks.tool()]), upstream) as events:
        assert looks.begun == []
    assert [event.why for event in only(events, Rejected)] == ["incomplete"]
    assert sorted(looks.begun) == ["b", "c"]


# --- what is reported ------------------------------------------------------------------------------------------------


async def fails(at: str) -> str:
    """Fail."""
    raise ValueError(f"no {at}")


async def leaves(at: str) -> str:
    """Exit."""
    raise SystemExit(at)


async def answers_with_an_error(at: str) -> str:
    """Take too long."""
    await anyio.sleep(100)
    return at


@pytest.mark.trio
async def test_events_and_results_are_the_same_as_without(autojump_clock):
    told = []
    for eager in (True, False):
        looks = Look()
        tools = [looks.tool(eager=eager), *(tool(one, eager=eager, timeout=5) for one in FAILING)]
        calls = [call("look", at="a", seconds=3), call("look", at="b", seconds=2), call("unknown", at="x")]
        calls += [call(one.__name__, at="f") for one in FAILING]
        upstream = scripted(said(*calls, 1, "I wait."), "Done.")
        events = await events_of(Agent(upstream, tools))
        assert type(events[-1]).__name__ == "Final"
        kinds = [type(event) for event in events]
        ends = max(at for at, kind in enumerate(kinds) if kind is ToolCallEnd)
        assert ends < kinds.index(Rejected) < kinds.index(ToolCallResult)
        results = {(event.name, event.text, event.error, event.seconds) for event in only(events, ToolCallResult)}
        said_to_model = last_said(upstream)
        told.append((story(events)[:1], results, said_to_model))
    assert told[0] == told[1]
    assert told[0][1] == {
        ("look", "saw a", False, 3.0),
        ("look", "saw b", False, 2.0),
        ("fails", "Error: ValueError: no f", True, 0.0),
        ("leaves", "Error: SystemExit: f", True, 0.0),
        ("answers_with_an_error", "Error: the call took longer than 5 seconds and was stopped", True, 5.0),
    }


FAILING = (fails, leaves, answers_with_an_error)


@pytest.mark.trio
async def test_results_that_are_ready_are_reported_in_the_order_of_the_calls_and_the_others_as_they_arrive(
    autojump_clock,
):
    looks = Look()
    seconds = {"a": 5, "b": 2, "c": 1, "d": 0.5, "e": 4}
    upstream = scripted(said(*(call("look", at=at, seconds=took) for at, took in seconds.items()), 3, "Wait."), "Done.")
    events = await events_of(Agent(upstream, [looks.tool()]))
    assert [event.text[-1] for event in only(events, ToolCallResult)] == ["b", "c", "d", "e", "a"]
    told = last_said(upstream)
    assert sorted("abcde", key=lambda at: told.index(f"saw {at}")) == [*"abcde"]


@pytest.mark.trio
async def test_a_timeout_counts_from_the_start_of_the_call(autojump_clock):
    looks = Look()
    upstream = scripted(said(0.5, call("look", at="a", seconds=9), 3.5, "I wait."), "Done.")
    events, turns = await timed(Agent(upstream, [looks.tool()], timeout=1))
    (result,) = only(events, ToolCallResult)
    assert (result.text, result.seconds) == ("Error: the call took longer than 1 seconds and was stopped", 1.0)
    assert turns[2] == pytest.approx(4.0)
    assert looks.notes == ["begins a", "cancelled a"]


@pytest.mark.trio
async def test_the_number_of_concurrent_calls_includes_those_that_started_early(autojump_clock, monkeypatch):
    monkeypatch.setattr(execution, "_MAX_CONCURRENT", 10)
    inside, most = 0, 0

    async def slow(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(10)
        inside -= 1
        return number

    early, late = ("".join(call(name, number=number) for number in range(8)) for name in ("early", "slow"))
    upstream = scripted(said(early, 5, late), "Done.")
    events, turns = await timed(Agent(upstream, [slow, tool(slow, name="early", eager=True)], timeout=15))
    assert not any(event.error for event in only(events, ToolCallResult))
    assert len(only(events, ToolCallResult)) == 16
    assert most == 10
    assert turns[2] == pytest.approx(20.0)


class Stepping:
    """An eager tool that reports progress."""

    name, description, parameters, timeout, eager = "steps", "Steps.", {"type": "object"}, None, True

    async def call(self, arguments: Any, progressed: Callable[..., Any]) -> ToolOutput:
        for done in range(6):
            await progressed(done, 5, None)
            await anyio.sleep(1)
        return ToolOutput((TextPart("done"),))


@pytest.mark.trio
async def test_only_the_latest_progress_is_kept_until_the_reply_has_ended(autojump_clock):
    upstream = scripted(said(call("steps"), 3.5, "I wait."), "Done.")
    events = await events_of(Agent(upstream, [Stepping()]))
    kinds = [type(event) for event in events]
    assert [event.done for event in only(events, Progress)] == [3, 4, 5]
    assert kinds.index(ToolCallEnd) < kinds.index(Progress) < kinds.index(ToolCallResult)


# --- replies that are not accepted -----------------------------------------------------------------------------------

ERROR = sse({"error": {"message": "broken pipe", "type": "server_error", "code": None}})
OBJECT = '{"thought": "", "action": {"tool": "look", "args": {"at": "AT"}}}'


@both
async def test_a_rejected_reply_cancels_its_calls_and_reports_nothing_about_them():
    looks = Look(1000)

    def another(_: object) -> Script:
        assert looks.notes == ["begins a", "cancelled a"]
        looks.seconds = 0
        return text(OBJECT.replace("AT", "a"))

    upstream = scripted(
        said(OBJECT.replace("AT", "a"), " And", Hold(), " text."), another, '{"final": {"content": "Done."}}'
    )
    async with held(Agent(upstream, [looks.tool()], format="action_object"), upstream) as events:
        assert looks.begun == ["a"]
    assert story(events) == [("rejected", "protocol"), ("result", "look", "saw a"), ("final", "Done.")]
    assert looks.notes == ["begins a", "cancelled a", "begins a", "ends a"]


@both
async def test_the_result_of_a_call_in_a_rejected_reply_is_discarded():
    looks = Look()
    upstream = scripted(
        said(OBJECT.replace("AT", "a"), " And", Hold(), " text."),
        OBJECT.replace("AT", "b"),
        '{"final": {"content": "Done."}}',
    )
    async with held(Agent(upstream, [looks.tool()], format="action_object"), upstream) as events:
        assert looks.notes == ["begins a", "ends a"]
    assert story(events) == [("rejected", "protocol"), ("result", "look", "saw b"), ("final", "Done.")]
    assert "saw a" not in last_said(upstream)


@both
@pytest.mark.parametrize("mode", ["emulate", "native"])
@pytest.mark.parametrize("ends", [(Die(),), (), (ERROR,)], ids=["died", "broken off", "error"])
async def test_a_reply_that_fails_cancels_its_calls_and_starts_no_other(mode: str, ends: tuple[Step, ...]):
    looks, writes = Look(1000), Look()
    if mode == "native":
        made = [
            {
                "index": i,
                "id": name,
                "type": "function",
                "function": {"name": name[:-1], "arguments": json.dumps({"at": at})},
            }
            for i, (name, at) in enumerate((("write1", "a"), ("look1", "a"), ("look2", "b")))
        ]
        parts: tuple[str | Step, ...] = tuple(chunk({"tool_calls": [one]}) for one in made)
    else:
        parts = (call("write", at="a"), call("look", at="a"), OPEN)
    upstream = scripted(said(*parts, Hold(), *ends, ends=False))
    agent = Agent(upstream, [looks.tool(), writes.tool(eager=False, name="write")], mode=mode)
    reported: list[Event] = []
    with pytest.raises((StreamtoolError, ConnectionError)):
        async with held(agent, upstream, reported=reported):
            assert looks.begun == ["a"]
    assert looks.notes == ["begins a", "cancelled a"]
    assert writes.begun == []
    assert only(reported, ToolCallResult) == []


OPEN = '<tool_call>{"name": "look", "arguments": {"at": "b"}'


@both
async def test_a_run_that_is_left_cancels_its_calls():
    looks = Look(1000)
    upstream = scripted(said(call("look", at="a"), Hang()))
    async with Agent(upstream, [looks.tool()]).run("Go.") as run:
        async for event in run:
            if isinstance(event, ToolCallEnd):
                break
        await anyio.wait_all_tasks_blocked()
        assert looks.notes == ["begins a"]
        assert run.messages == ()
    assert looks.notes == ["begins a", "cancelled a"]


@both
async def test_a_client_of_the_proxy_that_leaves_cancels_its_calls(monkeypatch):
    pytest.importorskip("mcp")
    looks = Look(1000)

    def in_process(_: Any) -> McpServer:
        from mcp.server.mcpserver import MCPServer
        from mcp.types import ToolAnnotations

        server = MCPServer("notes", log_level="CRITICAL")
        server.tool(annotations=ToolAnnotations(read_only_hint=True))(looks.look)
        return McpServer(server)

    monkeypatch.setattr(mcp_gateway, "_make_server", in_process)
    upstream = scripted(said(call("look", at="a"), Hang()))
    proxy = Proxy(load(PROXY.format("")), apps={"u": upstream})
    body = {"model": "helper", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    with anyio.fail_after(20):
        async with stream_asgi(proxy, path("chat"), body=json.dumps(body).encode()) as reply:
            async for piece in reply:
                if b"calls look" in piece:
                    break
            await until(lambda: bool(looks.begun))
        await until(lambda: len(looks.notes) > 1)
    assert looks.notes == ["begins a", "cancelled a"]


@both
async def test_a_reply_that_is_continued_keeps_its_calls():
    looks = Look()
    whole = call("look", at="a") + "I wait.\n" + call("look", at="b")
    model = Continuing("completions", whole, Fault(whole.index("wait"), "reset"))
    upstream = scripted(
        model.reply,
        lambda request: Script((Hold(), *model.reply(request).steps)),
        Script(tuple(SAYS["completions"](["Done."], "stop"))),
    )
    settings = settings_for("completions")
    agent = Agent(None, [looks.tool()], settings=settings, through=make_middleware(settings, {"u": upstream}))
    async with held(agent, upstream) as events:
        await until(lambda: len(upstream.requests) == 2)
        await anyio.wait_all_tasks_blocked()
        assert looks.begun == ["a"]
    assert [event.text for event in only(events, ToolCallResult)] == ["saw a", "saw b"]
    assert looks.begun == ["a", "b"]
    assert len(only(events, ToolCallStart)) == 2
    assert events[-1].text == "Done."


@both
async def test_an_error_that_is_no_exception_ends_the_run():
    class Stop(BaseException):
        pass

    async def stop() -> None:
        """Stop."""
        raise Stop

    with pytest.raises(BaseExceptionGroup) as raised:
        await Agent(scripted(said(call("stop"), Hang())), [tool(stop, eager=True)]).ask("Go.")
    assert raised.group_contains(Stop)
