"""`streamtool parse --negatives`: false positives of the parser in ordinary files, and the text that it loses."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamtool.cli import main, negatives
from streamtool.cli.plausible_tools import plausible_tools

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = main(["parse", "--negatives", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "notes.md").write_text('One.\n\n{"name": "search", "arguments": {"query": "x"}}\nTwo.\n')
    (tmp_path / "inner" / "code.py").write_text('print({"a": 1})\n')
    (tmp_path / "page.html").write_text("<p>It is <b>so</b>.</p>\n</invoke>\n")
    (tmp_path / "cut.txt").write_text('<tool_call>{"name": "ping", "arguments": {"a": }}</tool_call>')
    (tmp_path / "picture").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "link").symlink_to(tmp_path / "notes.md")
    (tmp_path / "again").symlink_to(tmp_path / "inner", target_is_directory=True)
    return tmp_path


def test_findings_of_a_folder(run: Run, folder: Path) -> None:
    code, out, err = run(str(folder))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f'{folder}/cut.txt:1: call: ping, tool_call, "<tool_call>{{\\"name\\": \\"ping\\", \\"arguments\\": {{\\"a\\": "',
        f'{folder}/cut.txt:1: discard: "}}}}"',
        f'{folder}/notes.md:3: call: search, object, "{{\\"name\\": \\"search\\", \\"arguments\\": {{\\"query\\": \\"x\\"}}}}"',
        f'{folder}/page.html:2: loss: "</invoke>\\n"',
        "files 5, 0.0 MB; not read: binary 1, large 0, unreadable 0, links and devices 1, passed over 0",
        "calls 2, discards 1, losses 1; 17142.8571 calls and losses per MB",
    ]


def test_findings_as_records(run: Run, folder: Path) -> None:
    _, out, _ = run(str(folder), "--json")
    *found, sums = map(json.loads, out.splitlines())
    assert found[2] == {
        "type": "finding",
        "kind": "call",
        "name": "search",
        "format": "object",
        "file": f"{folder}/notes.md",
        "line": 3,
        "excerpt": '{"name": "search", "arguments": {"query": "x"}}',
    }
    assert sums == {
        "type": "sums",
        "files": 5,
        "mb": 0.0,
        "skipped": {"binary": 1, "large": 0, "unreadable": 0, "links_and_devices": 1, "passed_over": 0},
        "calls": 2,
        "discards": 1,
        "losses": 1,
        "per_mb": 17142.8571,
    }


def test_tools_and_formats_can_be_chosen(run: Run, folder: Path) -> None:
    (folder / "tools.json").write_text('[{"name": "nothing"}]')
    assert "calls 0, discards 0, losses 1" in run(str(folder), "--tools", str(folder / "tools.json"))[1]
    assert "calls 1, discards 1, losses 0" in run(str(folder), "--formats", "tool_call")[1]


def test_several_calls_in_one_place_are_separate_findings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("@ping {}\n@ping {}\nText.\n@ping {}\n")
    _, out, _ = run(str(tmp_path))
    assert [line.partition("two.txt:")[2][:13] for line in out.splitlines()[:3]] == [
        "1: call: ping",
        "1: call: ping",
        "4: call: ping",
    ]


def test_reasoning_is_not_a_loss_but_its_markup_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<think>Hm.</think>Hello.")
    _, out, _ = run(str(tmp_path))
    assert [line.rpartition(": ")[2] for line in out.splitlines()[:2]] == ['"<think>"', '"</think>"']


def test_the_number_and_size_of_files_are_limited(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "LARGE", 10)
    monkeypatch.setattr(negatives, "MANY", 2)
    for name in "abc":
        (tmp_path / name).write_text("x" * (11 if name == "a" else 10))
    assert (
        "files 1, 0.0 MB; not read: binary 0, large 1, unreadable 0, links and devices 0, passed over 1"
        in run(str(tmp_path))[1]
    )


def test_thirty_tools_are_offered_each_with_a_schema() -> None:
    tools = plausible_tools()
    assert len(tools) == 30
    assert tools["edit_file"] == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old_string": {"type": "string"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["path"],
    }


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nowhere"], "nowhere is not a readable folder"),
        ([".", "--delta", "3"], "cannot be combined"),
        ([".", "--replay", "x"], "cannot be combined"),
    ],
)
def test_wrong_usage_is_an_error_message(run: Run, argv: list[str], sentence: str) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert sentence in err
