"""BFCL's ground truth, written in every format and read back in random pieces.

The cases come from the package `bfcl-eval` (`pip install --no-deps bfcl-eval`; only its data is needed). An answer that
is invalid for its own schema in the data set (a number where the schema demands a string) may change.
"""

import json
import random
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from statemachine import FORMATS, ArgumentsDelta, Call, CallEnd, CallStart, Parser, TextDelta, write
from statemachine.formats import DEFAULT

CATEGORIES = tuple(
    f"BFCL_v4_{name}.json"
    for name in (
        *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple"),
        *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    )
)
TYPES = {
    **{name: name for name in ("object", "array", "string", "integer", "number", "boolean")},
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "double": "number",
    "long": "integer",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
    "Boolean": "boolean",
}
"""JSON Schema's names for the data set's types. Any other type (`String`, `char`, `any`) is a string: the answers of
Java and JavaScript are source code.
"""
CASES = 2_501
CONTRADICTIONS = 30
"""Maximum number of cases whose right answer is invalid for its own schema: 22 in most formats."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed"),
]


def data(folder: str, name: str) -> Iterator[Any]:
    """Yield the records of a file of the data set."""
    spec = util.find_spec("bfcl_eval")
    assert spec is not None
    (root,) = spec.submodule_search_locations or ()
    with (Path(root) / "data" / folder / name).open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def schema_of(written: Any) -> Any:
    """Return the JSON Schema that a parameter's description in the data set means."""
    if isinstance(written, list):
        return [schema_of(one) for one in written]
    if not isinstance(written, dict):
        return written
    schema = {name: schema_of(value) for name, value in written.items()}
    if isinstance(written.get("type"), str):
        schema["type"] = TYPES.get(written["type"], "string")
    return schema


def answer_of(accepted: dict[str, list[Any]]) -> dict[str, Any]:
    """Return one right answer: the first accepted value of each parameter that need not be left out ("" or null)."""
    given = {name: [value for value in values if value not in ("", None)] for name, values in accepted.items()}
    return {name: nested(values[0]) for name, values in given.items() if values}


def nested(value: Any) -> Any:
    """Return a value, with the first accepted value of each member of its objects."""
    if isinstance(value, dict):
        return answer_of(value) if all(isinstance(one, list) for one in value.values()) else value
    return [nested(one) for one in value] if isinstance(value, list) else value


def cases() -> Iterator[tuple[str, dict[str, Any], list[tuple[str, dict[str, Any]]]]]:
    """Yield each case: its id, the schemas of its tools, and the right calls."""
    for name in CATEGORIES:
        answers = {one["id"]: one["ground_truth"] for one in data("possible_answer", name)}
        for case in data("", name):
            tools = {tool["name"]: schema_of(tool["parameters"]) for tool in case["function"]}
            right = [(tool, answer_of(given)) for call in answers[case["id"]] for tool, given in call.items()]
            yield case["id"], tools, right


def found_in(text: str, tools: dict[str, Any], form: str, rng: random.Random) -> list[tuple[str, str, bool]]:
    """Return the name and the arguments of each call that is read in random pieces, and whether it is complete."""
    parser = Parser(tools, formats=dict.fromkeys([*DEFAULT, form]))
    events, at = [], 0
    while at < len(text):
        size = rng.randint(1, 12)
        events += parser.feed(text[at : at + size])
        at += size
    calls: list[tuple[str, str, bool]] = []
    for event in [*events, *parser.close()]:
        match event:
            case CallStart(name=name):
                calls.append((name, "", False))
            case ArgumentsDelta(text=part):
                calls[-1] = (calls[-1][0], calls[-1][1] + part, False)
            case CallEnd(complete=complete):
                calls[-1] = (*calls[-1][:2], complete)
            case TextDelta(text=part):
                assert not part.strip(), part
    return calls


def contradictory(arguments: dict[str, Any], schema: Any) -> bool:
    """Return whether the right answer is invalid for its own schema."""
    try:
        return not jsonschema_rs.is_valid(schema, arguments)
    except ValueError:
        return True  # the schema itself is invalid


def test_the_data_set_is_complete() -> None:
    assert sum(1 for _ in cases()) == CASES


@pytest.mark.parametrize("form", FORMATS)
def test_the_right_calls_are_read_back(form: str) -> None:
    rng = random.Random(form)
    wrong, contradictions = [], 0
    for case, tools, right in cases():
        calls = [Call(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in right]
        found = found_in(write(calls, form), tools, form, rng)
        expected = [(name, arguments, True) for name, arguments in right]
        read = [(name, json.loads(text) if complete else text, complete) for name, text, complete in found]
        if json.dumps(read) == json.dumps(expected) or read == expected:
            continue
        if [one[0] for one in read] == [one[0] for one in expected] and all(
            given == wanted or contradictory(wanted[1], tools[wanted[0]])
            for given, wanted in zip(read, expected, strict=True)
        ):
            contradictions += 1
            continue
        wrong.append((case, expected, read))
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"
    assert contradictions <= CONTRADICTIONS
