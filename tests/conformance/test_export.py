"""`python -m conformance.export` and the runner that measures any parser with its output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.format_cases import all_cases

from conformance import cases, export
from statemachine import FORMATS, OPT_IN, Call, parse

ROOT = Path(__file__).resolve().parent.parent.parent
CONFORMANCE = ROOT / "conformance"
BAD = """
def nothing(pieces, tools, options):
    return {"text": "".join(pieces), "reasoning": "", "calls": []}

def broken(pieces, tools, options):
    raise RuntimeError("I cannot read")
"""


@pytest.fixture(scope="module")
def document():
    """Return the printed document, as another program reads it."""
    return json.loads(json.dumps(export.document()))


@pytest.fixture(scope="module")
def file(document, tmp_path_factory):
    """Return the document as a file, next to modules with bad parsers."""
    folder = tmp_path_factory.mktemp("conformance")
    (folder / "bad.py").write_text(BAD)
    (folder / "formats.json").write_text(json.dumps(document))
    return folder / "formats.json"


def run(file, parser, *argv):
    env = {"PYTHONPATH": f"{ROOT}"}
    command = [sys.executable, str(CONFORMANCE / "run.py"), str(file), parser, *argv]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True, env=env, check=False)


def test_the_table_is_complete(document):
    assert [row["name"] for row in document["formats"]] == list(FORMATS)
    assert document["opt_in"] == sorted(OPT_IN)
    assert [row["name"] for row in document["formats"] if row["opt_in"]] == [name for name in FORMATS if name in OPT_IN]
    rows = {row["name"]: row for row in document["formats"]}
    assert rows["tool_call"]["openers"] == ["<tool_call{:}>"]
    assert rows["invoke"]["variants"][0]["body"]["kind"] == "parameters"
    assert rows["invoke"]["variants"][0]["name_rule"]["attribute"] == "name"
    assert {variant["body"]["kind"] for row in rows.values() for variant in row["variants"]} == {
        *("json", "envelope", "parameters", "expression", "message")
    }
    seed = {
        "open": "<seed:think>",
        "close": "</seed:think>",
        "text": False,
        "anchor": "reply",
        "alone": False,
    }
    assert seed in rows["seed_oss"]["sections"]
    assert rows["llama3"]["special_tokens"] == ["<|python_tag|>"]
    tools = {"get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
    for name, row in rows.items():
        assert parse(row["example"], tools, formats=[name])[1][0].arguments == '{"city": "Paris", "days": 3}'


def test_every_pattern_piece_in_a_marker_is_explained(document):
    from statemachine.formats.markers import PIECES

    assert set(document["markers"]) >= {piece for piece in PIECES if piece != "{quote}"} | {"{ns}", "{key}", "{tool}"}


def test_the_cases_equal_those_of_the_tests(document):
    found = {case["id"]: case for case in document["cases"]}
    known = all_cases()
    assert list(found) == [case.id for case in known]
    for case in known:
        assert found[case.id]["text"] == case.text
        assert found[case.id]["tools"] == case.tools
        assert found[case.id]["reason"] == case.reason
        assert len(found[case.id]["events"]) == len(case.expected)
        assert set(found[case.id]["options"]) == set(case.options)


def test_a_call_has_all_its_properties(document):
    case = next(case for case in document["cases"] if case["format"] == "tool_call")
    assert case["events"] == [
        {
            "type": "call",
            "name": "get_weather",
            "id": None,
            "format": "tool_call",
            "arguments": Call("get_weather", '{"city": "Paris", "days": 3}').arguments,
            "complete": True,
            "repairs": [],
        }
    ]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("# f\n\n## A\n\n~~~~ txt\nx\n~~~~\n", "f:5: unknown block 'txt'"),
        ("# f\n\n## A\n\n~~~~ text\nx\n", "f: unclosed block"),
        ("# f\n\n## A\n\n~~~~ text\nx\n~~~~\n\n~~~~ text\nx\n~~~~\n", "f:11: duplicate block"),
        ("# f\n\n## A\n\n~~~~ text\nx\n~~~~\n", "f:3 A: 'events'"),
        ("# f\n\n## A\n\n~~~~ text\nx\n~~~~\n~~~~ events\ntxt\n~~~~\n", "f:3 A: unknown event: 'txt'"),
        ("# f\n\n## A\n\n~~~~ text\nx\n~~~~\n~~~~ events\n    id 3\n~~~~\n", "f:3 A: no call above this line"),
        (
            "# f\n\n## A\n\n~~~~ settings\na: b\n~~~~\n~~~~ text\nx\n~~~~\n~~~~ events\n~~~~\n",
            "unknown setting: 'a: b'",
        ),
    ],
)
def test_an_invalid_case_reports_its_position(written, sentence):
    with pytest.raises(ValueError) as caught:
        list(cases.read_cases("f", written))
    assert sentence in str(caught.value)


# --- the runner ------------------------------------------------------------------------------------------------------


def test_our_own_parser_passes(file, document):
    """`test_formats.py` covers all cases, and the pieces."""
    some = document["cases"][::30]
    (file.parent / "some.json").write_text(json.dumps({**document, "cases": some}))
    done = run(file.parent / "some.json", "ours:read", "--sizes", "0")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1].split() == ["all", *f"{len(some)} of {len(some)}".split()]
    assert [line.split()[0] for line in lines[:-1]] == list(dict.fromkeys(case["format"] for case in some))


def test_a_parser_that_finds_nothing_fails_by_name(file):
    done = run(file, "bad:nothing", "--format", "tool_call")
    assert (done.returncode, done.stderr) == (1, "")
    assert "    tool_call:6 One call\n        in pieces of 0: text: expected " in done.stdout
    passed, _, count = done.stdout.splitlines()[-1].split()[1:]
    assert 0 < int(passed) < int(count)
    assert "    " not in run(file, "bad:nothing", "--format", "react", "--quiet").stdout.replace(" " * 11, "")


def test_a_parser_that_raises_fails_and_the_others_continue(file):
    done = run(file, "bad:broken", "--format", "react")
    assert done.returncode == 1
    assert "RuntimeError: I cannot read" in done.stdout
    assert done.stdout.splitlines()[-1].split()[1] == "0"


def test_wrong_usage_of_the_runner_exits_with_2(file):
    assert run(file, "bad:nothing", "--nope").returncode == 2
