"""`streamtool parse --field`: files of records, parsed by several processes, resumed after an interruption."""

import contextlib
import gzip
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from support.failing_upstreams import good, settings, to_openai
from support.servers import ROOT, uvicorn_server, wait_for

from statemachine import parse
from streamtool.batch.outputs import PROGRESS, Checkpoint, LinesOutput
from streamtool.batch.reading import value_at
from streamtool.batch.sources import LARGEST, batches
from streamtool.cli import main
from streamtool.proxy import Proxy

CALL = '<tool_call>\n{"name": "ping", "arguments": {"n": %d, "é": "\\u00e9"}}\n</tool_call>'


def records(count: int) -> list[dict[str, Any]]:
    """Return replies with a call, without one, and with a truncated one."""
    texts = ["Hi. " + CALL, "Only text.", '<tool_call>{"name": "ping", "argum']
    return [{"id": i, "out": {"choices": [{"text": texts[i % 3].replace("%d", str(i))}]}} for i in range(count)]


def lines(data: bytes | str) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def command(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    """Run `streamtool parse`; in this process unless it is to start others."""
    if code or ("--jobs", "2") not in itertools.pairwise(arguments):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert main(["parse", *arguments]) == code
        return subprocess.CompletedProcess(arguments, code, out.buffer.getvalue(), err.buffer.getvalue())
    done = subprocess.run(
        [sys.executable, "-m", "streamtool", "parse", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


def written(folder: Path, name: str, given: list[dict[str, Any]]) -> str:
    """Write the records in the format of the file's extension."""
    text = json.dumps(given, indent=1) if ".json" in name and ".jsonl" not in name else ""
    text = text or "".join(json.dumps(one) + "\n" for one in given)
    data = text.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".zst"):
        data = pytest.importorskip("zstandard").compress(data)
    (folder / name).write_bytes(data)
    return name


@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.jsonl.gz", "r.json.gz", "r.jsonl.zst"])
def test_each_kind_of_file(tmp_path: Path, name: str):
    written(tmp_path, name, records(30))
    done = command(name, "--field", "out.choices.0.text", "--jobs", "1", cwd=tmp_path)
    found = lines(done.stdout)
    assert [one["record"] for one in found] == list(range(1, 31))
    assert found[3] == {
        "file": name, "record": 4, "text": "Hi. ",
        "calls": [{"name": "ping", "format": "tool_call", "arguments": '{"n": 3, "é": "\\u00e9"}', "complete": True}],
    }  # fmt: skip
    assert found[1]["text"] == "Only text."
    assert b"30 records" in done.stderr
    assert b"calls by format: tool_call" in done.stderr


def test_several_processes_give_the_same_output(tmp_path: Path):
    """The order is kept, and each text and call equals the parser's."""
    given = [{"about": "x" * 500, **record} for record in records(3_000)]  # several batches
    written(tmp_path, "r.jsonl", given)
    one = command("r.jsonl", "--field", "out.choices.0.text", "--jobs", "1", cwd=tmp_path)
    two = command("r.jsonl", "--field", "out.choices.0.text", "--jobs", "2", cwd=tmp_path)
    assert one.stdout == two.stdout
    assert one.stderr == two.stderr
    for record, found in zip(given[::997], lines(one.stdout)[::997], strict=True):
        text, calls = parse(record["out"]["choices"][0]["text"])
        assert found["text"] == text
        assert [call["arguments"] for call in found["calls"]] == [call.arguments for call in calls]


def test_broken_records_are_reported(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text('{"text": "fine"}\nno json\n\n{"other": 1}\n{"text": 5}\n{"text": "\\ud800"}\n')
    done = command("r.jsonl", "--field", "text", cwd=tmp_path)
    found = lines(done.stdout)
    assert [one.get("error") for one in found] == [
        None, "invalid JSON: Expecting value: line 1 column 1 (char 0)", "no value at text", "text is not a string", None,
    ]  # fmt: skip
    said = done.stderr.decode()
    assert "streamtool: r.jsonl, record 2: invalid JSON" in said
    assert "5 records" in said
    assert "3 broken" in said


def test_an_overlong_line_is_a_single_broken_record(tmp_path: Path):
    with (tmp_path / "r.jsonl").open("wb") as file:
        file.write(b'{"text": "a"}\n' + b"x" * (LARGEST + 10) + b'\n{"text": "b"}\n')
    found = [record for batch in batches(str(tmp_path / "r.jsonl")) for record in batch.records]
    assert found == [b'{"text": "a"}\n', b"", b'{"text": "b"}\n']


def test_tools_are_read_from_each_record(tmp_path: Path):
    """As a list or as text; a name that is not among them is not a call."""
    tool = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
    text = CALL % 1
    given = [{"t": text, "tools": tool}, {"t": text, "tools": json.dumps(tool)}, {"t": text, "tools": [{"name": "x"}]},
             {"t": text, "tools": 5}, {"t": text}]  # fmt: skip
    written(tmp_path, "r.jsonl", given)
    found = lines(command("r.jsonl", "--field", "t", "--tools-field", "tools", cwd=tmp_path).stdout)
    assert [len(one.get("calls", ())) for one in found] == [1, 1, 0, 0, 1]
    assert found[2]["looks_like_a_call"]
    assert found[3]["error"] == "tools is not a list of tools"


def test_a_killed_run_is_resumed(tmp_path: Path):
    written(tmp_path, "a.jsonl", [{"about": "x" * 1500, **record} for record in records(3_500)])  # several batches
    written(tmp_path, "b.json", records(900))
    whole = command("a.jsonl", "b.json", "--field", "out.choices.0.text", "--jobs", "1", cwd=tmp_path)
    arguments = ["a.jsonl", "b.json", "--field", "out.choices.0.text", "--jobs", "2", "--output", "out.jsonl"]
    argv = [sys.executable, "-m", "streamtool", "parse", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(argv, cwd=tmp_path, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
    progress = tmp_path / f"out.jsonl{PROGRESS}"
    wait_for(lambda: progress.exists() and "a.jsonl" in progress.read_text(), "the run has begun", 60)
    child.send_signal(signal.SIGKILL)
    child.wait()
    begun = json.loads(progress.read_text())
    assert begun["done"]["a.jsonl"] > 0
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(b'{"half a li')  # as a crash may leave it
    wait_for(lambda: not _workers(child.pid), "its processes end with it", 20)
    done = command(*arguments, "--resume", cwd=tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == whole.stdout
    assert done.stderr == whole.stderr  # the totals cover both runs
    assert not progress.exists()


def _workers(session: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_parquet(tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    written(tmp_path, "r.jsonl", records(9))
    command("r.jsonl", "--field", "out.choices.0.text", "--output", "out.parquet", cwd=tmp_path)
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["record"] for row in rows] == list(range(1, 10))
    assert rows[0]["calls"][0]["name"] == "ping"
    assert json.loads(rows[0]["calls"][0]["arguments"]) == {"n": 0, "é": "é"}


def test_recordings(tmp_path: Path):
    """A folder of them gives one line per attempt of each exchange, parsed with the tools of that exchange."""
    folder = tmp_path / "recordings"
    with uvicorn_server(good()) as model:
        chosen = evolve(settings(model.url), recordings=str(folder))
        with uvicorn_server(Proxy(chosen)) as served:
            for _ in range(3):
                assert to_openai(served.url, stream=True) == ("good", 1)
            wait_for(lambda: len([*folder.glob("*.jsonl")]) == 3, "they are written")
    done = command("recordings", "--jobs", "1", cwd=tmp_path)
    found = lines(done.stdout)
    assert [(one["record"], one["text"], one["calls"][0]["name"]) for one in found] == [(1, "good", "ping")] * 3
    assert b"3 records" in done.stderr
    one, other, third = sorted(folder.glob("*.jsonl"))
    first, *more = one.read_bytes().splitlines(keepends=True)
    one.write_bytes(first + b'{"type": "text", "parser": 9, "text": "x"}\n' + b"".join(more))
    other.write_bytes(other.read_bytes()[:-30])  # the process was killed
    third.write_bytes(third.read_bytes().replace(b'"formats":["tool_call","invoke"]', b'"formats":["invoke"]'))
    bad, cut, invoked = lines(command("recordings", "--jobs", "1", cwd=tmp_path).stdout)
    assert "not a line of a recording" in bad["error"]
    assert cut["calls"][0]["name"] == "ping"
    assert not invoked["calls"]  # parsed with the original options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl", "--field", "text"], "no such file or folder"),
        ([".", "--field", "text"], "no .jsonl"),
        (["a.txt", "--output", "x.jsonl"], "add --field"),
        (["a.txt", "--field", "text", "--resume"], "--resume requires --output"),
        (["a.txt", "--field", "text", "--resume", "--output", "x.jsonl"], "cannot be resumed"),
        (["a.txt", "--field", "text", "--output", "a.txt"], "is one of the input files"),
        (["a.txt", "--field", "text", "--delta", "3"], "--delta does not apply to records"),
    ],
)
def test_invalid_combinations_of_options_are_rejected(tmp_path: Path, arguments: list[str], said: str):
    (tmp_path / "a.txt").write_text('{"text": "a"}\n')
    assert said in command(*arguments, cwd=tmp_path, code=2).stderr.decode()


def test_records_read_as_a_single_text_get_a_hint(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text('{"text": "a"}\n')
    assert b"--field PATH" in command("r.jsonl", cwd=tmp_path).stderr
    (tmp_path / "r.txt").write_text("{} is empty\n")
    assert not command("r.txt", cwd=tmp_path).stderr


def test_a_truncated_array(tmp_path: Path):
    """The records before the truncation are written; the error gives its position."""
    (tmp_path / "r.json").write_text('[{"text": "a"}, {"text": "b"}, {"te')
    done = command("r.json", "--field", "text", "--jobs", "1", cwd=tmp_path, code=2)
    assert "is invalid after record 2" in done.stderr.decode()


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(tmp_path: Path, packed: bool):
    data = b'{"text": "a"}\n{"text": "b"}\n'
    done = subprocess.run(
        [sys.executable, "-m", "streamtool", "parse", "--field", "text"],
        input=gzip.compress(data) if packed else data,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert [(one["file"], one["text"]) for one in lines(done.stdout)] == [("-", "a"), ("-", "b")]


def test_a_run_interrupted_before_its_first_record_is_resumed(tmp_path: Path):
    written(tmp_path, "r.jsonl", records(3))
    (tmp_path / "out.jsonl").touch()
    begun = LinesOutput(str(tmp_path / "out.jsonl"), Checkpoint())
    with pytest.raises(KeyboardInterrupt), begun:
        raise KeyboardInterrupt
    command("r.jsonl", "--field", "out.choices.0.text", "--output", "out.jsonl", "--resume", cwd=tmp_path)
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 3


def test_a_path_into_a_record():
    value = {"a": [{"b": "c"}], "d.e": 1}
    assert value_at(value, "a.0.b") == value_at(value, "a.-1.b") == "c"
    assert (
        value_at(value, "a.1.b") is value_at(value, "a.b") is value_at(value, "x") is value_at(value, "a.0.b.c") is None
    )
