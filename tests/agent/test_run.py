"""`streamtool run`: live output for a person, JSON lines for a script; nothing is executed without approval."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamtool.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = '''
from pathlib import Path

def get_weather(city: str) -> str:
    """The weather in a city."""
    Path("ran").write_text(city)
    return f"18 degrees\\x1b[2J in {city}"

def fail(why: str) -> str:
    raise ValueError(why)

def sleep() -> None:
    import time

    time.sleep(60)

NUMBER = 5
'''
ASK = "What is the weather in Paris?"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("STREAMTOOL_")]:
        monkeypatch.delenv(name)
    Path("mine.py").write_text(TOOLS)
    sys.modules.pop("mine", None)
    yield tmp_path
    sys.modules.pop("mine", None)


def run(capsys, *argv):
    code = main(["run", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_goes_to_standard_output_and_everything_else_to_standard_error(capsys):
    code, out, err = run(capsys, ASK, "--tool", "mine:get_weather", "--yes")
    assert code == 0
    assert out == "Let me look that up.\nHere is what I found: 18 degrees�[2J in Paris\n"
    lines = err.splitlines()
    assert lines[0] == '● get_weather({"city": "Paris"})'
    assert lines[1].startswith("  get_weather → 18 degrees�[2J in Paris  0.")
    assert re.fullmatch(r"2 turns, 1 call, [\d,]+ \+ \d+ tokens, [\d.]+ s \(first byte [\d.]+ s\)", lines[-1])


def test_every_event_is_a_json_line_for_scripts(capsys):
    code, out, err = run(capsys, ASK, "--tool", "mine:get_weather", "--yes", "--json")
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    kinds = list(dict.fromkeys(event["type"] for event in events))
    assert kinds == [
        "turn_start", "output_delta", "tool_call_start", "tool_arguments_delta", "tool_call_end", "tool_call_result",
        "final",
    ]  # fmt: skip
    assert all(event["at"] >= 0 for event in events)
    result = next(event for event in events if event["type"] == "tool_call_result")
    assert (result["name"], result["error"]) == ("get_weather", False)
    assert events[-1]["text"] == "Here is what I found: 18 degrees\x1b[2J in Paris"
    assert events[-1]["reason"] == "stop"
    assert [message["role"] for message in events[-1]["messages"]] == ["assistant", "tool", "assistant"]


def test_tools_need_a_terminal_or_yes(capsys):
    code, out, err = run(capsys, ASK, "--tool", "mine:get_weather")
    assert (code, out) == (2, "")
    assert "without a terminal; pass --yes to run all tools" in err
    assert not Path("ran").exists()


def test_without_tools_no_approval_is_needed(capsys):
    code, out, _ = run(capsys, "Hello")
    assert (code, out) == (0, "You said: Hello\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--tool", "mine"), "--tool: expected module:function, found 'mine'"),
        (("--tool", "nowhere:f"), "--tool: cannot load nowhere:f: No module named 'nowhere'"),
        (("--tool", "mine:nothing"), "--tool: cannot load mine:nothing"),
        (("--tool", "mine:NUMBER"), "--tool: mine:NUMBER is not a function"),
        (("--mcp", ""), "an MCP server needs a command or a URL"),
        (("--format", "nope"), "format"),
    ],
)
def test_wrong_usage_is_an_error_message(capsys, argv, says):
    code, out, err = run(capsys, ASK, "--yes", *argv)
    assert (code, out) == (2, "")
    assert says in err


def test_unreachable_upstreams_and_servers_have_exit_codes(capsys):
    code, _, err = run(capsys, ASK, "--upstream", "http://127.0.0.1:9", "--tool", "mine:get_weather", "--yes")
    assert code == 3
    assert "cannot be reached" in err
    code, _, err = run(capsys, ASK, "--mcp", "/nowhere/at/all", "--yes")
    assert code == 1
    assert "the MCP server all cannot be opened" in err


def test_progress_and_servers_are_shown(capsys):
    pytest.importorskip("mcp")
    server = f"{sys.executable} -S {ROOT / 'tests' / 'agent' / 'servers' / 'plain.py'}"
    code, out, err = run(capsys, "Use math.add and steps for 4", "--mcp", server, "--yes")
    assert code == 0
    assert "  math.add → 8  " in err
    assert "  steps: step 4 4/4" in err
    assert out.endswith("8 | all steps\n")


def test_duplicate_tool_names_are_an_error(capsys):
    code, _, err = run(capsys, ASK, "--tool", "mine:fail", "--tool", "mine:fail", "--yes")
    assert code == 2
    assert "two tools are named fail" in err


@pytest.fixture
def terminal(monkeypatch):
    """Yield the input of a terminal, for the lines that a user types."""
    leader, follower = pty.openpty()
    with os.fdopen(leader, "wb", buffering=0) as hand, os.fdopen(follower) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield hand


@pytest.mark.parametrize(
    ("answer", "executed"), [("y", True), ("a", True), ("l", True), ("v\ny", True), ("n", False), ("", False)]
)
def test_a_terminal_user_is_asked(answer, executed, terminal, capsys):
    terminal.write(f"{answer}\n".encode())
    code, _, err = run(capsys, ASK, "--tool", "mine:get_weather", "--max-turns", "2")
    assert code == 0
    question = "  [y]es, [n]o (and why), [a]lways this tool, yes to a[l]l, [v]iew: "
    assert 'execute get_weather({"city": "Paris"})?\n' + question in err
    assert Path("ran").exists() == executed
    assert ("rejected get_weather (refused)" in err) == (not executed)


def started(*argv: str, **streams: Any) -> subprocess.Popen[bytes]:
    """Start the command in a separate process."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STREAMTOOL_FORMATS": "tool_call"}  # fast to compile
    return subprocess.Popen([sys.executable, "-m", "streamtool", "run", *argv], env=environ, **streams)


@pytest.mark.parametrize(
    ("tool", "flags", "until"),
    [("get_weather", (), b"[v]iew: "), ("sleep", ("--yes",), b"sleep({")],
    ids=["at the question", "while a thread works"],
)
def test_control_c_ends_it_immediately(tool, flags, until):
    leader, follower = pty.openpty()
    with os.fdopen(leader, "r+b", buffering=0) as hand:
        argv = (f"Use {tool}", "--tool", f"mine:{tool}", *flags)
        with started(*argv, stdin=follower, stdout=follower, stderr=follower, start_new_session=True) as process:
            os.close(follower)
            seen = b""
            while until not in re.sub(rb"\x1b\[\d*m", b"", seen):
                seen += hand.read(1000)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(10) == 130


def test_a_closed_pipe_is_not_an_error():
    argv = (ASK, "--tool", "mine:get_weather", "--yes")
    with started(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(30) == 0
        assert b"Traceback" not in process.stderr.read()


def test_a_timed_out_thread_does_not_keep_the_command_from_exiting():
    with started("Use sleep", "--tool", "mine:sleep", "--yes", "--timeout", "0.1", stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=30)[0].endswith(b"took longer than 0.1 seconds and was stopped\n")
        assert process.wait(1) == 0


def test_debug_logs_are_shown_on_request():
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STREAMTOOL_DEBUG": "1", "STREAMTOOL_FORMATS": "tool_call"}
    done = subprocess.run(
        [sys.executable, "-m", "streamtool", "run", "Hello"], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "You said: Hello\n"
    assert ": [0] user" in done.stderr
