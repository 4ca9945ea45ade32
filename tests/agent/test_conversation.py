"""`streamtool run` for an interactive user: the command in a terminal of 80 columns, driven by keys."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.forked import Forked
from support.servers import uvicorn_server

from streamtool.cli import main
from streamtool.testing import ScriptedUpstream, text

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60.0
"""Seconds until waiting fails; a busy machine needs a few."""
TOOLS = '''
from pathlib import Path

def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"

def edit_file(path: str, old: str, new: str) -> str:
    """Replaces a text in a file."""
    Path(path).write_text(Path(path).read_text().replace(old, new, 1))
    return "edited"

def sleep() -> None:
    import time

    time.sleep(600)
'''
CTRL_C, CTRL_D, CTRL_R, UP, ENTER = b"\x03", b"\x04", b"\x12", b"\x1b[A", b"\r"
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])|\r")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STREAMTOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # no terminal answers cursor position requests
    Path("mine.py").write_text(TOOLS)
    return tmp_path


class Terminal:
    """A terminal that runs the command."""

    def __init__(self, leader: int, process: Forked) -> None:
        self._leader = leader
        self.process = process
        self.text = ""
        """All output, without escape sequences."""
        self._seen = 0

    def keys(self, *keys: str | bytes) -> None:
        """Press keys."""
        for key in keys:
            os.write(self._leader, key.encode() if isinstance(key, str) else key)

    def until(self, expected: str) -> str:
        """Return the output up to this text, starting after the previous match."""
        ends = time.monotonic() + PATIENCE
        while (at := self.text.find(expected, self._seen)) < 0:
            if not select.select([self._leader], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise AssertionError(f"{expected!r} does not come:\n{self.text}")
            try:
                data = os.read(self._leader, 4096)
            except OSError:  # the other end is closed
                data = b""
            assert data, f"the command ended before {expected!r}:\n{self.text}"
            self.text = ESCAPES.sub("", self.text + data.decode(errors="replace"))
        found = self.text[self._seen : at]
        self._seen = at + len(expected)
        return found

    def prompt(self) -> str:
        """Return the output before the next line is requested, once editing is on."""
        return self.until("\n>")

    def ended(self) -> int:
        """Return the exit code, once the command has ended."""
        while True:
            try:
                if not os.read(self._leader, 4096):
                    break
            except OSError:
                break
        return self.process.wait(PATIENCE)


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    """Run the command in its own terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STREAMTOOL_FORMATS": "tool_call"}  # fast to compile
    environ["STREAMTOOL_CHAT_TEMPLATE"] = "none"  # a scripted upstream only expects requests for replies
    environ["STREAMTOOL_RECOGNIZE"] = "false"
    process = Forked(["run", *argv], environ, terminal=follower)
    os.close(follower)
    try:
        yield Terminal(leader, process)
    finally:
        process.kill()
        os.close(leader)
        process.communicate()


def messages_of(name: str) -> list[dict[str, object]]:
    lines = (Path("state") / "streamtool" / "sessions" / f"{name}.jsonl").read_text().splitlines()
    return [entry["message"] for entry in map(json.loads, lines) if entry["type"] == "message"]


def test_a_conversation_continues_until_quit(capsys):
    with terminal("--tool", "mine:get_weather", "--session", "talk", "--price-input", "2") as screen:
        assert "Session talk. Type /help for help; ctrl-D quits." in screen.prompt()
        screen.keys("What is the weather in Paris?", ENTER)
        screen.until('● get_weather({"city": "Paris"})')
        screen.until("[v]iew: ")
        screen.keys("a\n")
        screen.until("Here is what I found: 18 degrees in Paris")
        screen.until("2 turns, 1 call, ")
        assert ", cost 0.00" in screen.prompt()
        screen.keys(UP)  # the previous input can be recalled
        screen.until("What is the weather in Paris?")
        screen.keys(ENTER)
        answer = screen.until("session: 2 tasks, 4 turns, 2 calls, ")
        assert "execute" not in answer  # the tool is always allowed
        screen.prompt()
        screen.keys("/tools", ENTER)
        screen.until("get_weather (runs without asking)  The weather in a city.")
        screen.prompt()
        screen.keys("a line that is given up", CTRL_C)
        screen.until("given up")
        screen.prompt()
        screen.keys("/nope", ENTER)
        screen.until("unknown command /nope; /help lists all commands")
        screen.prompt()
        screen.keys(CTRL_D)
        assert screen.ended() == 0
    roles = ["user", "assistant", "tool", "assistant"] * 2
    assert [message["role"] for message in messages_of("talk")] == roles
    assert main(["sessions"]) == 0
    assert re.search(r"^talk +\d{4}-\d\d-\d\d \d\d:\d\d  4 turns +What is the weather", capsys.readouterr().out)


def test_an_edit_is_shown_as_a_diff_and_a_denial_tells_the_model_why():
    Path("notes.txt").write_text("".join(f"line {i}\n" for i in range(9)))
    call = {"path": "notes.txt", "old": "line 4\n", "new": "line four \x1b[2J" + "and so on " * 20 + "\n"}
    said = f"<tool_call>{json.dumps({'name': 'edit_file', 'arguments': call})}</tool_call>"
    upstream = ScriptedUpstream(text(said, size=9), text("Then I leave it."))
    with (
        uvicorn_server(upstream) as served,
        terminal("Edit it", "--upstream", served.url, "--protocol", "chat", "--tool", "mine:edit_file") as screen,
    ):
        before = screen.until("[v]iew: ")
        assert (
            "\n  @@ -2,7 +2,7 @@\n   line 1\n   line 2\n   line 3\n  -line 4\n  +line four \\x1b[2Jand so on" in before
        )
        assert "\x1b" not in screen.text
        assert max(map(cell_len, before.splitlines())) <= 80
        screen.keys("v\n")
        assert "and so on " * 20 in screen.until("[v]iew: ")
        screen.keys("no, call it line IV\n")
        screen.until("Then I leave it.")
        screen.until("continue with streamtool run --resume")
        assert screen.ended() == 0
    assert "They say: call it line IV" in json.dumps(upstream.requests[-1].json["messages"])
    assert "line 4\n" in Path("notes.txt").read_text()


def test_ctrl_c_ends_the_task_but_keeps_the_conversation_resumable():
    with terminal("Use sleep", "--chat", "--tool", "mine:sleep", "--allow", "sleep", "--session", "talk") as screen:
        screen.until("sleep({})")
        screen.until("\n")
        screen.keys(CTRL_C)
        screen.until("interrupted")
        screen.prompt()
        screen.keys("Hello", ENTER)
        screen.until("Here is what I found: (no result: interrupted)")
        screen.prompt()
        screen.keys("/quit", ENTER)
        assert screen.ended() == 0  # although the function still sleeps
    with terminal("--resume") as screen:
        assert "Session talk, 4 messages so far." in screen.prompt()
        ends = time.monotonic() + PATIENCE
        while screen.process.poll() is None and time.monotonic() < ends:  # the first may be too late for the task
            os.kill(screen.process.pid, signal.SIGINT)
            time.sleep(0.5)
        assert screen.process.poll() in (130, -signal.SIGINT)  # a third may hit a process that is exiting
    assert [message["role"] for message in messages_of("talk")] == ["user", "assistant", "user", "assistant"]


def test_several_pasted_lines_are_a_single_task():
    with terminal("--no-session") as screen:
        assert "This conversation is not saved." in screen.prompt()
        screen.keys(b"\x1b[200~one\ntwo\x1b[201~")
        screen.until("two")
        screen.keys(ENTER)
        assert screen.until("tokens").count("You said: one\ntwo\n") == 1
        screen.prompt()
        screen.keys(CTRL_D)
        assert screen.ended() == 0
    assert not Path("state").exists()


def test_a_failing_task_does_not_end_the_conversation():
    with terminal("Hello", "--chat", "--upstream", "http://127.0.0.1:9", "--no-session") as screen:
        screen.until("cannot be reached")
        screen.prompt()
        screen.keys(CTRL_D)
        assert screen.ended() == 0


def test_other_commands_do_not_import_the_terminal_library():
    code = "import sys; from streamtool.cli import main; main(sys.argv[1:]); print('prompt_toolkit' in sys.modules)"
    for argv in (["--help"], ["sessions"], ["run", "Hello"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "a conversation requires a terminal; to run a single task, pass it as an argument"),
        (("Hi", "--chat"), "a conversation requires a terminal"),
        (("--json",), "--json requires a task"),
        (("Hi", "--json", "--chat"), "--json and --chat cannot be combined"),
        (("Hi", "--no-session", "--resume"), "--no-session cannot be combined with --session or --resume"),
        (("Hi", "--resume"), "no session to resume"),
        (("Hi", "--session", "a/b"), "--session: expected letters"),
        (("Hi", "--resume", "--session", "gone"), "no session 'gone'"),
    ],
)
def test_conflicting_flags_are_an_error_message(argv, says, capsys):
    assert main(["run", *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, says in err) == ("", True)


def test_in_a_pipe_only_a_named_session_is_stored(capsys):
    assert main(["run", "I am Ann."]) == 0
    assert not Path("state").exists()
    for task in ("I am Ann.", "Who am I?"):
        assert main(["run", task, "--session", "ann", "--json"]) == 0
    assert [message["role"] for message in messages_of("ann")] == ["user", "assistant"] * 2


def test_calls_not_allowed_are_denied_without_a_terminal(capsys):
    argv = ("run", "What is the weather in Paris?", "--tool", "mine:get_weather", "--tool", "mine:sleep")
    assert main([*argv, "--allow", "get_*"]) == 0
    assert "18 degrees in Paris" in capsys.readouterr().out
    assert main([*argv, "--allow", "nothing"]) == 0
    assert "rejected get_weather (refused): The user refused this call. They say: Nobody is here" in (
        capsys.readouterr().err
    )
