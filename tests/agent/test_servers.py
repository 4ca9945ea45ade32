"""Real MCP servers, over pipes and HTTP: listed, called concurrently, slow, killed in the middle, and started again."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from support.agents import events_of, only, plain, scripted
from support.leftovers import children
from support.servers import free_port, wait_for

from streamtool.agent import Agent, McpServer, Progress, ToolCallResult
from streamtool.core.errors import AgentError, SettingsError

pytest.importorskip("mcp")
SCRIPT = str(Path(__file__).parent / "servers" / "tools.py")
both = pytest.mark.anyio


def write(*calls: str) -> str:
    named = [call.split(" ", 1) for call in calls]
    return "".join(f'<tool_call>{{"name": "{name}", "arguments": {given}}}</tool_call>\n' for name, given in named)


@pytest.fixture
def notes(tmp_path) -> Path:
    file = tmp_path / "notes"
    file.touch()
    return file


class Http:
    """The server over HTTP, which can be killed and started again on its port."""

    def __init__(self, notes: Path) -> None:
        self.port = free_port()
        self._env = {**os.environ, "NOTES": str(notes)}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, SCRIPT, str(self.port)], env=self._env)
        wait_for(self._answers, "the MCP server starts", 20)

    def _answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=["stdio", "http"])
def server(request, notes) -> Iterator[McpServer]:
    if request.param == "stdio":
        yield McpServer([sys.executable, SCRIPT], env={"NOTES": str(notes)})
        return
    http = Http(notes)
    made = McpServer(f"http://127.0.0.1:{http.port}/mcp", headers={"x-test": "1"})
    made.http = http
    yield made
    http.stop()


def results(events) -> dict[str, tuple[str, bool]]:
    return {event.name: (event.text, event.error) for event in only(events, ToolCallResult)}


@both
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_one_server_through_a_whole_conversation(server, notes):
    """Tools are listed with their own names and called concurrently; the server is slow, fails, is killed and restarts.

    A cancelled call over HTTP leaves generators of the SDK's HTTP client unfinished, which trio warns about.
    """
    upstream = scripted(
        write('math.add {"a": 2, "b": 3}', 'steps {"count": 2}', "fail {}", "picture {}", 'wait {"seconds": 0.2}'),
        write('wait {"seconds": 30}', 'math.add {"a": 1, "b": 1}'),
        write('wait {"seconds": 31}', "die {}"),
        write('math.add {"a": 4, "b": 4}'),
        "Done.",
    )
    agent = Agent(upstream, [server], timeout=2)
    async with agent:
        with anyio.fail_after(60):
            async with agent.run("Go.") as run:
                turns: list[list[object]] = []
                async for event in run:
                    if type(event).__name__ == "TurnStart":
                        turns.append([])
                        if event.turn == 4 and hasattr(server, "http"):
                            server.http.stop()
                            await anyio.to_thread.run_sync(server.http.start)
                    turns[-1].append(event)
    listed = upstream.requests[0].json["messages"][0]["content"]
    assert "math.add(a: integer, b: integer)\n Adds two numbers." in listed
    first, slow, killed, again, final = turns
    assert results(first) == {
        "math.add": ("5", False),
        "steps": ("all steps", False),
        "fail": ("Error executing tool fail", True),
        "picture": ("a dot", False),
        "wait": ("waited 0.2", False),
    }
    assert [(event.done, event.total, event.message) for event in only(first, Progress)] == [
        (1, 2, "step 1"),
        (2, 2, "step 2"),
    ]
    assert results(slow) == {
        "wait": ("Error: the call took longer than 2 seconds and was stopped", True),
        "math.add": ("2", False),
    }
    for text, error in results(killed).values():
        assert error
        assert f"the MCP server {server.name} ended during this call" in text
        assert "the call may or may not have been executed" in text
    assert results(again) == {"math.add": ("8", False)}
    assert "reopening it" in only(again, Progress)[0].message
    assert final[-1].text == "Done."
    # the server was notified of the call that timed out; no call was made twice
    noted = notes.read_text().split()
    assert {"cancelled", "dies", "0.2", "30"} <= set(noted)
    assert max(map(noted.count, {"cancelled", "dies", "0.2", "30", "31"})) == 1


def in_place():
    """Return a server object of the SDK, in this process."""
    from mcp.server.mcpserver import MCPServer

    made = MCPServer("inside")

    @made.tool(name="math.add")
    def add(a: int, b: int) -> int:
        return a + b

    return made


@both
async def test_several_servers_and_functions_serve_one_run():
    def double(x: int) -> int:
        return 2 * x

    one = plain()
    two = McpServer(in_place(), prefix="second.", name="second")
    upstream = scripted(
        write('math.add {"a": 1, "b": 2}', 'second.math.add {"a": 3, "b": 4}', 'double {"x": 5}'), "Done."
    )
    events = await events_of(Agent(upstream, [double, one, two]))
    assert {name: text for name, (text, _) in results(events).items()} == {
        "math.add": "3",
        "second.math.add": "7",
        "double": "10",
    }


@both
async def test_names_are_adapted_to_a_native_upstream_and_mapped_back():
    from support.native_replies import native_call

    upstream = scripted(native_call("math_add", '{"a": 1, "b": 2}'), "Done.")
    events = await events_of(Agent(upstream, [McpServer(in_place())], mode="native"))
    assert results(events) == {"math.add": ("3", False)}
    offered = [tool["function"]["name"] for tool in upstream.requests[0].json["tools"]]
    assert offered[0] == "math_add"
    assert upstream.requests[1].json["messages"][1]["tool_calls"][0]["function"]["name"] == "math_add"
    assert events[-1].messages[0]["tool_calls"][0]["function"]["name"] == "math.add"


NOT_THERE: dict[str, Callable[[], McpServer]] = {
    "no such command": lambda: McpServer("/nowhere/server --flag"),
    "ends at once": lambda: McpServer([sys.executable, "-c", "pass"], name="gone"),
    "says nothing": lambda: McpServer([sys.executable, "-c", "import sys; sys.stdin.read()"], start=0.3),
    "nobody listens": lambda: McpServer("http://127.0.0.1:9/mcp"),
    "ends before it is there": lambda: plain("ends before it is there"),
    "refuses": lambda: plain("refuses"),
}


@both
@pytest.mark.parametrize("case", NOT_THERE)
async def test_a_server_that_cannot_be_started_ends_the_run_with_an_error_message(case):
    began = time.monotonic()
    with pytest.raises(AgentError, match=r"the MCP server \S+ cannot be opened: \S+"):
        await Agent(scripted("x"), [NOT_THERE[case]()]).ask("Go.")
    assert time.monotonic() - began < 10
    assert not children()


@both
@pytest.mark.parametrize(
    ("way", "start"), {"ends while it lists": 20, "lists nothing": 2, "lists without end": 2}.items()
)
async def test_a_server_that_does_not_list_its_tools_ends_the_run_with_an_error_message(way, start):
    with anyio.fail_after(30), pytest.raises(AgentError, match="cannot list the tools of the MCP server plain: "):
        await Agent(scripted("x"), [plain(way, start=start)]).ask("Go.")
    assert not children()


ENDED = "the MCP server plain ended during this call"
IN_A_CALL = {
    "ends in a call": ENDED,
    "breaks off in an answer": ENDED,
    "refuses calls": "Error: not today",
    "answers nonsense": "Error: ValidationError",
}


@both
@pytest.mark.parametrize("way", IN_A_CALL)
async def test_any_failure_of_a_server_during_a_call_is_a_result_and_the_loop_continues(way):
    add = 'math.add {"a": 1, "b": 1}'
    agent = Agent(scripted(write(add, add), write(add), "Done."), [plain(way)])
    with anyio.fail_after(20):
        events = await events_of(agent)
    told = [(event.error, IN_A_CALL[way] in event.text) for event in only(events, ToolCallResult)]
    assert told == [(True, True)] * 3
    assert events[-1].text == "Done."
    assert not children()


@both
async def test_a_server_that_exited_between_calls_is_started_again(notes, monkeypatch):
    connect, ends = McpServer.connect, []

    def noted(self, over):
        ends.append(over)
        return connect(self, over)

    monkeypatch.setattr(McpServer, "connect", noted)
    upstream = scripted(write('math.add {"a": 1, "b": 1}'), write('math.add {"a": 2, "b": 2}'), "Done.")
    async with Agent(upstream, [plain(notes=notes)]).run("Go.") as run:
        events = []
        async for event in run:
            events.append(event)
            if getattr(event, "turn", 0) == 2:
                for child in children():
                    os.kill(child, 9)
                with anyio.fail_after(20):
                    await ends[0].wait()
    assert [event.text for event in only(events, ToolCallResult)] == ["2", "4"]
    assert "the MCP server plain ended (it closed its output); reopening it" in only(events, Progress)[0].message
    assert notes.read_text().split() == ["starts", "starts"]


class Rude(McpServer):
    """A server whose connection fails on close, because a part of it is cancelled."""

    @asynccontextmanager
    async def connect(self, over):
        async def part() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise RuntimeError("rude")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(part)
            yield self

    async def list_tools(self, cursor=None):
        return SimpleNamespace(tools=[], next_cursor=None)


@both
async def test_a_connection_that_fails_on_close_does_not_fail_the_run():
    assert await Agent(scripted("Done."), [Rude("rude")]).ask("Go.") == "Done."


@both
async def test_a_server_that_cannot_be_restarted_is_an_error_result(tmp_path):
    flag = tmp_path / "flag"
    script = plain().command[2]
    code = f"import os, sys; sys.exit(1) if os.path.exists({str(flag)!r}) else os.execv(sys.executable, [sys.executable, {script!r}])"
    server = McpServer([sys.executable, "-S", "-c", code], name="flaky")

    def block() -> str:
        flag.touch()
        return "blocked"

    upstream = scripted(write("block {}"), write("die {}"), write('math.add {"a": 1, "b": 1}'), "Done.")
    events = await events_of(Agent(upstream, [server, block]))
    assert events[-1].text == "Done."
    assert results(events)["math.add"][0].startswith("Error: the MCP server flaky cannot be opened:")


def test_a_server_has_a_name_and_a_target():
    assert McpServer("uvx some-server --root /tmp").name == "some-server"
    assert McpServer("python -m x", name="mine").name == "mine"
    assert McpServer("https://example.com/mcp").name == "https://example.com/mcp"
    with pytest.raises(SettingsError, match="needs a command or a URL"):
        McpServer("")


def test_without_the_extra_a_server_reports_the_missing_package():
    code = """
import sys
sys.modules["mcp"] = sys.modules["pydantic"] = sys.modules["httpx2"] = None
import anyio
from streamtool import Agent, McpServer
try:
    anyio.run(Agent("sample", [McpServer("some command")]).ask, "Hello")
except Exception as error:
    print(error)
"""
    env = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout.splitlines() == [
        'the MCP server command cannot be opened: MCP servers need the extra "mcp": pip install "streamtool[mcp]"',
    ], done.stderr
