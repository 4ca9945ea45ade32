"""A repair never invents a value: every string and number of a complete call was written by the model."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.sweeps import each

from statemachine import Call, parse

TOOLS: dict[str, Any] = {"run": {}}
ENVELOPE = '<tool_call>{"name": "run", "arguments": %s}</tool_call>'
WAYS = {
    "envelope": ENVELOPE,
    "string in an envelope": None,
    "name before": "<function=run>%s</function>",
    "no closer": "[TOOL_CALLS]run%s",
    "line": "Action: run\nAction Input: %s",
    "bare": '{"name": "run", "arguments": %s}',
    "expression": "<tool_call>run%s</tool_call>",
}
"""Ways to write arguments; None writes them as a JSON string."""

BROKEN = {
    "two objects": '{"cmd": "a"}{"cmd": "b"}',
    "two objects, a blank between them": '{"cmd": "a"} {"cmd": "b"}',
    "two objects on lines": '{"cmd": "a"}\n{"cmd": "b"}',
    "two objects, a comma between them": '{"cmd": "a"}, {"cmd": "b"}',
    "two inner objects": '{"x": {"cmd": "a"}{"cmd": "b"}}',
    "two arrays": '{"x": ["a"]["b"]}',
    "an object as a member": '{"cmd": "a", {"cmd": "b"}}',
    "two strings": '{"cmd": "a" "b"}',
    "two strings in an array": '{"x": ["a" "b"]}',
    "a sum of strings": '{"cmd": "a" + "b"}',
    "a second colon": '{"cmd": "a": "b"}',
    "an unquoted key": '{"cmd": "a"}{cmd: "b"}',
    "single quotes": "{\"cmd\": \"a\"}{'cmd': 'b'}",
    "numbers": '{"n": 1}{"n": 2}',
    "two numbers": '{"n": 1 2}',
}


def arguments(way: str, text: str) -> str:
    """Return a call with these arguments."""
    return ENVELOPE % json.dumps(text) if WAYS[way] is None else str(WAYS[way]) % text


def leaves(value: Any) -> Iterator[str | float]:
    """Yield the keys, strings and numbers of a value."""
    match value:
        case dict():
            for key, inner in value.items():
                yield key
                yield from leaves(inner)
        case list():
            for inner in value:
                yield from leaves(inner)
        case str() | int() | float() if not isinstance(value, bool):
            yield value


def invented(calls: list[Call], written: set[str | float]) -> list[str | float]:
    """Return the leaves of complete calls that are not among those written."""
    return [
        leaf for call in calls if call.complete for leaf in leaves(json.loads(call.arguments)) if leaf not in written
    ]


@each("way", WAYS)
@each("text", BROKEN.values(), ids=BROKEN)
def test_broken_arguments_keep_their_values(way: str, text: str) -> None:
    _, calls = parse(arguments(way, text), TOOLS)
    assert invented(calls, {"cmd", "x", "n", "a", "b", 1, 2}) == []


TOKENS = ("{", "}", "[", "]", ",", ":", " ", "\n")
STRINGS = ("cmd", "path", "a b", "ls", "é", "1", "x/y", "tool")
NUMBERS = (1, 2.5, -3, 10)


def tokens(value: Any) -> Iterator[str]:
    """Yield the tokens of a value's JSON."""
    yield from re.findall(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', json.dumps(value))


VALUES = st.recursive(
    st.sampled_from([*STRINGS, *NUMBERS, True, None]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(STRINGS), inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(STRINGS), VALUES, min_size=1, max_size=3)


@st.composite
def broken_json(draw: st.DrawFn) -> str:
    """Generate JSON whose strings and numbers are complete, but whose structure is broken: tokens are missing, added,
    repeated or swapped, or another object follows.
    """
    found = [token for value in draw(st.lists(OBJECTS, min_size=1, max_size=2)) for token in tokens(value)]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(1, max(1, len(found) - 1)))
        match draw(st.integers(0, 3)):
            case 0:
                del found[at : at + 1]
            case 1:
                found.insert(at, draw(st.sampled_from(TOKENS)))
            case 2:
                found[at:at] = found[at : at + 2]
            case _:
                found[at - 1 : at + 1] = found[at - 1 : at + 1][::-1]
    assume(not is_text(found))
    between = draw(st.sampled_from(["", " "]))
    return re.sub(r"(?<=\w)\0(?=[\w-])", " ", "\0".join(found)).replace("\0", between)


def is_text(found: list[str]) -> bool:
    """Return whether text that may belong to a string, with quotes that are not escaped, follows it: an opening
    bracket (`"curl -d "{"a": 1}" x"`), a word or a number (`"say "yes", or no"`), or closing brackets and a quote
    (`"say "}" there"`).
    """
    kinds = "".join('"' if one[0] == '"' else "w" if one[0].isalnum() or one[0] == "-" else one for one in found)
    return re.search(r'"\s*(?:[{\[]|[}\],\s]*w|[}\]][}\]\s]*")', kinds) is not None


def check(text: str) -> None:
    """Check the values that are read from broken JSON in each way."""
    known: set[str | float] = {*STRINGS, *NUMBERS}
    for way in WAYS:
        _, calls = parse(arguments(way, text), TOOLS)
        assert invented(calls, known) == [], arguments(way, text)


@given(broken_json())
def test_the_values_of_broken_json_were_written(text: str) -> None:
    check(text)


@pytest.mark.long
@settings(max_examples=5_000, derandomize=False)
@given(broken_json())
def test_the_values_of_more_broken_json_were_written(text: str) -> None:
    check(text)
