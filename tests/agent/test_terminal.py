"""Components of `streamtool run`: display of calls, approval, costs and sessions."""

import io
import json
import os
import pty
import stat
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from rich.cells import cell_len
from support.agents import WEATHER, get_weather, prompt, scripted

from streamtool.agent import Agent, Final, OutputDelta, ToolCallEnd, ToolCallStart, TurnStart, Veto
from streamtool.cli import main
from streamtool.cli.terminal.asking import NO_TERMINAL, Approval
from streamtool.cli.terminal.call_view import CallView, escape_invisible
from streamtool.cli.terminal.costs import Meter, Prices
from streamtool.cli.terminal.dialog import Dialog
from streamtool.cli.terminal.edits import edit_of
from streamtool.cli.terminal.live import Live
from streamtool.cli.terminal.sessions import Session, latest_name, read_session, sessions_folder
from streamtool.core.errors import SettingsError, UpstreamError
from streamtool.core.reply import Reason, Usage
from streamtool.testing import Hold, Script, status, text

both = pytest.mark.anyio


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def shown(name: str, arguments: object, width: int = 60, *, whole: bool = False) -> list[str]:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return [line.plain for line in CallView(ToolCallEnd("1", name, given), width).lines(whole=whole)]


# --- edits -----------------------------------------------------------------------------------------------------------

TEN = "".join(f"{i}\n" for i in range(10))
DIFF = ["--- f", "+++ f", "@@ -2,7 +2,7 @@", " 1", " 2", " 3", "-4", "+four", " 5", " 6", " 7"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "f", "old": "4", "new": "four"},
        {"file_path": "f", "old_string": "4\n", "new_string": "four\n", "replace_all": False},
        {"command": "str_replace", "path": "f", "old_str": "3\n4", "new_str": "3\nfour"},
        {"path": "f", "edits": [{"oldText": "4", "newText": "IV"}, {"oldText": "IV", "newText": "four"}]},
        {"path": "f", "content": TEN.replace("4", "four")},
        {"filename": "f", "contents": TEN.replace("4", "four")},
    ],
)
def test_an_edit_is_recognised_by_its_shape_and_compared_with_the_file(arguments):
    Path("f").write_text(TEN)
    edit = edit_of(arguments)
    assert edit is not None
    assert (list(edit.lines), edit.note) == (DIFF, "")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "f"},
        {"content": "no path"},
        {"path": "f", "text": "searched for"},
        {"path": "f", "content": "appended", "append": True},
        {"path": "f", "old": "4"},
        {"path": "f", "edits": []},
        {"path": "f", "edits": [{"oldText": "4"}]},
        {"path": 5, "content": "x"},
        {"note": "--- not\na diff"},
    ],
)
def test_other_arguments_are_not_an_edit(arguments):
    assert edit_of(arguments) is None


def test_a_diff_in_the_arguments_is_shown_unchanged():
    patch = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch"
    assert edit_of({"input": patch}).lines == tuple(patch.splitlines())
    assert edit_of({"diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"}).keys == {"diff"}


def test_an_edit_of_an_unreadable_file_notes_the_error():
    Path("folder").mkdir()
    os.mkfifo("pipe")  # opening it would wait for a writer
    Path("bytes").write_bytes(b"\xff")
    Path("f").write_text(TEN)
    notes = {name: edit_of({"path": name, "content": "x\n"}).note for name in ("new", "folder", "pipe", "bytes", "\0")}
    assert notes.pop("\0").startswith("cannot read the file: ")  # the rest depends on the version of Python
    assert notes == {
        "new": "no such file",
        "folder": "not a regular file",
        "pipe": "not a regular file",
        "bytes": "the file is not UTF-8",
    }
    missed = edit_of({"path": "f", "old": "eleven", "new": "x"})
    assert (missed.lines, missed.note) == (("-eleven", "+x"), "the text to replace is not in the file")


def test_new_and_unchanged_files():
    assert edit_of({"path": "f", "content": "a\nb\n"}).lines == ("--- f", "+++ f", "@@ -0,0 +1,2 @@", "+a", "+b")
    Path("f").write_text("a\n")
    assert edit_of({"path": "f", "content": "a\n"}).lines == ()


def test_large_files_are_compared_quickly():
    Path("f").write_text("x\n" * 50_000)
    lines = edit_of({"path": "f", "content": "y\nx\n" * 20_000}).lines
    assert (lines[2], len(lines)) == ("@@ -1,50000 +1,40000 @@", 90_003)


# --- display of calls ------------------------------------------------------------------------------------------------


def test_arguments_are_shown_one_per_line_with_long_ones_shortened_and_texts_as_blocks():
    given = {"n": 3, "list": [1, {"a": None}], "long": "x" * 100, "text": "\n".join("abcdefghijklmnopq"), "nl": "a\n"}
    assert shown("f", given) == [
        "  n: 3",
        '  list: [1, {"a": null}]',
        f'  long: "{"x" * 32}…  (102 characters)',
        "  text: 17 lines",
        *(f"  │ {char}" for char in "abcdefghijkl"),
        "  … 5 more lines",
        '  nl: "a\\n"',
    ]
    assert f'  long: "{"x" * 100}"' in shown("f", given, whole=True)
    assert "  │ q" in shown("f", given, whole=True)
    assert shown("f", "[1]") == ["  arguments: 1 lines", "  │ [1]"]


def test_only_a_call_that_fits_on_one_line_is_simple():
    assert CallView(ToolCallEnd("1", "get", '{"a": 1}'), 80).simple
    assert not CallView(ToolCallEnd("1", "get", json.dumps({"a": "x" * 80})), 80).simple
    assert not CallView(ToolCallEnd("1", "put", '{"path": "f", "content": "x"}'), 80).simple


HOSTILE = "\x1b[2J\x9b\r\b\x07\u202e\u200b\u2066\ufeff\U000e0001"


@pytest.mark.parametrize(
    "given",
    [
        {"a": HOSTILE, HOSTILE: 1, "b": f"one\n{HOSTILE}", "c": [HOSTILE]},
        {"path": f"f{HOSTILE}", "content": f"x\n{HOSTILE}\n" + "東" * 100},
        {"input": f"*** Begin Patch\n-{HOSTILE}\n"},
        f"{HOSTILE} no json",
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_text_of_a_model_cannot_move_the_cursor_or_hide_or_reverse_text(given, whole):
    lines = shown(HOSTILE, given, whole=whole)
    assert not set(HOSTILE) - set("[2J") & set("".join(lines))
    assert whole or max(map(cell_len, lines)) <= 60
    call = ToolCallEnd("1", HOSTILE, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
    assert not set(HOSTILE) - set("[2J") & set(CallView(call, 60).line())
    assert escape_invisible("\x1b\x9b\u202e\U000e0001é東") == "\\x1b\\x9b\\u202e\\U000e0001é東"


# --- approval --------------------------------------------------------------------------------------------------------


@pytest.fixture
def answered():
    """Return a function that asks for approval and returns the answer, for the line typed at a terminal."""
    leader, follower = pty.openpty()
    with os.fdopen(leader, "wb", buffering=0) as hand, os.fdopen(follower) as source:
        silent = SimpleNamespace(width=80, ask=lambda *_, **__: None)
        asking = Approval(source, silent)

        async def ask(line: str, name: str = "f") -> object:
            hand.write(f"{line}\n".encode())
            return await asking(ToolCallEnd("1", name, "{}"))

        ask.asking = asking
        yield ask


@both
async def test_a_denial_may_give_a_reason(answered):
    for line in ("y", "YES", "yes"):
        assert await answered(line) is True
    for line in ("", "n", "no", "nope", "x"):
        assert await answered(line) is False
    assert await answered("n use grams") == Veto("use grams")
    assert await answered("no, use grams") == Veto("use grams")
    assert await answered("Use grams instead") == Veto("Use grams instead")


@both
async def test_always_allows_a_tool_and_all_allows_every_tool(answered):
    assert await answered("a", "f[1]") is True
    call = ToolCallEnd("1", "f[1]", "{}")
    assert await answered.asking(call) is True
    assert not answered.asking.allows("f1")
    assert await answered("l", "g") is True
    assert answered.asking.allows("anything")


@both
async def test_without_a_terminal_the_model_is_informed(capsys):
    asking = Approval(io.StringIO("y\n"), Live(Meter()), ["read_*"])
    assert await asking(ToolCallEnd("1", "read_file", "{}")) is True
    assert await asking(ToolCallEnd("1", "write_file", "{}")) == Veto(NO_TERMINAL)


# --- costs -----------------------------------------------------------------------------------------------------------


def test_usage_and_costs_of_runs_are_summed():
    now = [0.0]
    meter = Meter(Prices(1.0, 4.0), lambda: now[0])
    for first, usage in ((0.25, Usage(1000, 500)), (0.5, Usage(2000, 0))):
        meter.begin()
        meter.observe(TurnStart(1))
        now[0] += first
        meter.observe(ToolCallStart("1", "f"))
        meter.observe(OutputDelta("x"))
        meter.observe(TurnStart(2))
        now[0] += 1.0
        meter.observe(Final("x", Reason.STOP, 2, usage, ()))
        meter.end(Usage(9, 9))  # after the end
    assert meter.of_run == "2 turns, 1 call, 2,000 + 0 tokens, 1.5 s (first byte 0.50 s), cost 0.002"
    assert meter.of_session == "session: 2 tasks, 4 turns, 2 calls, 3,000 + 500 tokens, 2.8 s, cost 0.005"
    assert Meter(Prices(2.0)).of_session.endswith("cost 0")
    assert "cost" not in Meter().of_session


# --- sessions --------------------------------------------------------------------------------------------------------


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_session_is_a_file_of_lines_readable_only_by_its_user():
    with Session("notes") as session:
        session.add([said("user", "Grüße\ud800")])
        session.add_run(turns=2, calls=1)
    path = sessions_folder() / "notes.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert kinds == ["session", "message", "run"]
    with Session("notes") as session:
        assert (session.contents.messages, session.contents.turns) == ([said("user", "Grüße?")], 2)
        session.add([said("assistant", "Hello")])
    assert [message["role"] for message in read_session(path).messages] == ["user", "assistant"]


def test_an_invalid_line_is_reported_and_skipped(capsys):
    with Session("notes") as session:
        session.add([said("user", "one"), said("assistant", "two")])
    path = sessions_folder() / "notes.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type": "message", "message": {"role": "nobody"}}\n{"type": "message", "mess')  # truncated
    with Session("notes") as session:
        session.add([said("user", "three")])
    err = capsys.readouterr().err
    assert "session notes: skipping unreadable line 4" in err
    assert "session notes: skipping unreadable line 5" in err
    assert [message["content"] for message in read_session(path).messages] == ["one", "two", "three"]


def test_only_one_process_at_a_time_writes_a_session():
    with Session("notes"), pytest.raises(SettingsError, match="another process has the session notes open"):
        Session("notes")


def test_an_empty_session_leaves_no_file():
    Session("notes").close()
    assert not list(sessions_folder().iterdir())


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a b", "x" * 101, "\x1b"])
def test_invalid_session_names_are_rejected(name):
    with pytest.raises(SettingsError, match="expected letters"):
        Session(name)


def test_missing_sessions_cannot_be_resumed():
    with pytest.raises(SettingsError, match="no session to resume"):
        latest_name()
    with pytest.raises(SettingsError, match="no session 'x'"):
        Session("x", resume=True)


def test_sessions_are_listed_latest_first(capsys):
    for i, name in enumerate(("first", "second")):
        with Session(name) as session:
            session.add([said("user", f"Do {name}\x1b[2J\nand more")])
            session.add_run(turns=i + 1)
        os.utime(sessions_folder() / f"{name}.jsonl", (i, i))
    assert main(["sessions"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["second", "first"]
    assert out[0].endswith("  2 turns    Do second\\x1b[2J and more")
    assert out[1].endswith("  1 turn     Do first\\x1b[2J and more")
    assert latest_name() == "second"


def test_without_sessions_a_message_names_their_folder(capsys):
    assert main(["sessions"]) == 0
    assert f"no sessions found in {sessions_folder()}" in capsys.readouterr().err


# --- dialogs ---------------------------------------------------------------------------------------------------------


def dialog_of(agent: Agent, session: Session | None = None) -> Dialog:
    return Dialog(agent, lambda _: None, Meter(), session)


@both
async def test_each_task_sees_the_previous_messages_even_from_another_process():
    upstream = scripted(WEATHER, "Mild.", "You are welcome.", "Still mild.")
    agent = Agent(upstream, [get_weather])
    with Session("notes") as session:
        dialog = dialog_of(agent, session)
        await dialog.ask("Weather?")
        await dialog.ask("Thanks.")
    with Session("notes") as session:
        dialog = dialog_of(agent, session)
        await dialog.ask("And now?")
        assert session.contents.turns == 4
    roles = [message["role"] for message in dialog.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]
    for word in ("Weather?", "18 °C in Paris", "Mild.", "Thanks.", "You are welcome.", "And now?"):
        assert word in prompt(upstream)


@both
async def test_an_interrupted_task_keeps_the_messages_so_far():
    upstream = scripted(Script((*text("Half an ans", done=False, finish=None).steps, Hold())), "Go on.")
    heard = anyio.Event()

    def show(event: object) -> None:
        if isinstance(event, OutputDelta):
            heard.set()

    with Session("notes") as session:
        dialog = Dialog(Agent(upstream), show, Meter(), session)
        async with anyio.create_task_group() as group:
            group.start_soon(dialog.ask, "Tell me.")
            await heard.wait()
            group.cancel_scope.cancel()
        upstream.release()
        assert session.contents.task == "Tell me."
        assert session.contents.messages[-1]["content"].startswith("Half")
        await dialog.ask("Well?")
    assert "Half" in prompt(upstream)


@both
async def test_an_interrupted_call_is_marked_when_the_session_is_resumed():
    async def wait(city: str) -> None:
        started.set()
        await anyio.sleep_forever()

    started = anyio.Event()
    call = WEATHER.replace("get_weather", "wait")
    with Session("notes") as session:
        async with anyio.create_task_group() as group:
            group.start_soon(dialog_of(Agent(scripted(call), [wait]), session).ask, "Wait.")
            await started.wait()
            group.cancel_scope.cancel()
    assert [message["role"] for message in session.contents.messages] == ["user", "assistant"]
    further = scripted("I see.")
    with Session("notes") as session:
        await dialog_of(Agent(further, [wait]), session).ask("Well?")
    assert "(no result: interrupted)" in prompt(further)


@both
async def test_a_failed_task_leaves_no_messages():
    upstream = scripted(status(500, "broken"), "Hello.")
    with Session("notes") as session:
        dialog = dialog_of(Agent(upstream, retries=0), session)
        with pytest.raises(UpstreamError):
            await dialog.ask("Hi")
        assert (dialog.messages, session.contents.messages) == ([], [])
        await dialog.ask("Hi")
    assert [message["content"] for message in dialog.messages] == ["Hi", "Hello."]
