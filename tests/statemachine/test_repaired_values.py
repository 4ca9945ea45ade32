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
    "array": '[{"name": "run", "arguments": %s}]',
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
    "a semicolon between objects": '{"cmd": "a"}; {"cmd": "b"}',
    "a word between objects": '{"cmd": "a"} and {"cmd": "b"}',
    "an invisible character between objects": '{"cmd": "a"}\u200b{"cmd": "b"}',
    "a literal escape between objects": r'{"cmd": "a"}\n{"cmd": "b"}',
    "an object with escaped quotes": r'{"cmd": "a"}\n{\"cmd\": \"b\"}',
    "a member after the object": '{"cmd": "a"}"x": "b"}',
    "a string after the object": '{"cmd": "a"} "b"}',
    "a full-width comma": '{"cmd": "a"，"x": "b"}',
    "a full-width comma after a quoted word": '{"cmd": "a "b" a"，"x": "b"}',
    "a space that JSON does not allow": '{"cmd": "a"\xa0, "x": "b"}',
    "a word between members": '{"cmd": "a" and "x": "b"}',
    "an unquoted key without a comma": '{"cmd": "a" x: "b"}',
    "an equals sign": '{"cmd": "a", x = "b"}',
    "an equals sign and a number": '{"cmd": "a" x = 1}',
    "an unquoted key and an object": '{"cmd": "a"; x: {"n": "b"}}',
    "a semicolon between items": '{"x": ["a"; "b"]}',
    "words between items": '{"x": ["a" and "b" and "a"]}',
    "an operator between strings": '{"cmd": "a" && "b"}',
    "a sum of strings in single quotes": "{'cmd': 'a' + 'b'}",
    "two strings in single quotes": "{'cmd': 'a' 'b'}",
    "a semicolon between members in single quotes": "{'cmd': 'a'; 'x': 'b'}",
    "a word between objects in single quotes": "{'cmd': 'a'} and {'cmd': 'b'}",
    "other quotes": '{"cmd": \'a\' "b"}',
    "typographic quotes": "{‘cmd’: ‘a’ ‘b’}",
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "no schema": {},
    "the keys": {"type": "object", "properties": {"cmd": {"type": "string"}, "x": {}, "n": {}}},
    "other keys": {"type": "object", "properties": {"other": {}}},
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


@each("schema", SCHEMAS)
@each("text", BROKEN.values(), ids=BROKEN)
def test_broken_arguments_keep_their_values(text: str, schema: str) -> None:
    for way in WAYS:
        _, calls = parse(arguments(way, text), {"run": SCHEMAS[schema]})
        assert invented(calls, {"cmd", "x", "n", "a", "b", 'a "b" a', 1, 2}) == [], way


TEXTS = (
    'curl -d "{"a": 1}" x',
    'echo "a" && echo "b"',
    'say "}" there',
    'cut -d"|" -f1 x',
    "awk -F\";\" '{print $1}' x",
    's.split("|")',
    'grep "a" x | cut -d":" -f1',
    '<p style="color: red" id="x">y</p>',
    'if x == "a" and y == "b": z()',
    'f("a", x="b")',
    'use "a; b: c" twice',
)
"""Texts with quotes, each the value of one argument."""


@each("text", TEXTS)
@each("way", ("envelope", "name before", "bare", "array"))
def test_text_with_unescaped_quotes_is_one_value(way: str, text: str) -> None:
    _, (call,) = parse(arguments(way, f'{{"cmd": "{text}", "x": 1}}'), TOOLS)
    assert (call.complete, json.loads(call.arguments)) == (True, {"cmd": text, "x": 1})


@each("text", ("the dogs' and cats' food", "rock 'n' roll", "it's 'fine', isn't it", "say 'a' and 'b' twice"))
def test_text_with_apostrophes_is_one_value(text: str) -> None:
    _, calls = parse(arguments("envelope", f"{{'cmd': '{text}'}}"), TOOLS)
    assert invented(calls, {"cmd", text}) == []


def test_the_schema_decides_about_a_key_without_quotes() -> None:
    text = '{"cmd": "print(" Total: " + x)"}'
    for key, complete in (("Total", False), ("cmd", True)):
        _, (call,) = parse(arguments("envelope", text), {"run": {"type": "object", "properties": {key: {}}}})
        assert call.complete is complete


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


SEPARATORS = (
    *(
        ",",
        ";",
        "，",
        "、",
        "؛",
        "|",
        "||",
        "&&",
        "+",
        "->",
        "=>",
        "/",
        "\u200b",
        "\ufeff",
        "\xa0",
        r"\n",
        r"\r\n",
        "\n\n",
    ),
    *(" and ", " oder ", " そして ", "; then ", ", and ", r"\n and \n", " \u2060 "),
)
BLANKS = ("", " ", "\n")


@st.composite
def separated_json(draw: st.DrawFn) -> str:
    """Generate JSON in which other text separates the values: words, punctuation, invisible characters, escapes. Keys
    and strings are in double or single quotes; a key may have none.
    """

    def separator() -> str:
        blank = draw(st.sampled_from(BLANKS))
        return blank + draw(st.sampled_from(SEPARATORS)) + draw(st.sampled_from(BLANKS))

    def quoted(text: str) -> str:
        return quote + text + quote

    def key(*, bare: bool) -> str:
        kind = draw(st.integers(0, 3 if bare else 1))
        mark = draw(st.sampled_from((": ", ":")))
        if kind < 2:
            return quoted(draw(st.sampled_from(STRINGS))) + mark
        return draw(st.sampled_from(("path", "tool"))) + draw(st.sampled_from((mark, " = ")))

    def one(depth: int) -> str:
        match draw(st.integers(0, 7 if depth else 4)):
            case 0:
                return str(draw(st.sampled_from(NUMBERS)))
            case 5:
                return "[" + one(depth - 1) + separator() + one(depth - 1) + "]"
            case 6:
                return pair(depth - 1)
            case 7:
                return "[" + pair(depth - 1) + separator() + pair(depth - 1) + "]"
            case _:
                return quoted(draw(st.sampled_from(STRINGS)))

    def pair(depth: int) -> str:
        text = "{" + key(bare=False) + one(depth)
        for _ in range(draw(st.integers(0, 2))):
            between = separator()
            text += between + key(bare=between[-1].isspace()) + one(depth)
        return text + "}"

    quote = draw(st.sampled_from("\"'"))
    text = pair(2)
    match draw(st.integers(0, 3)):
        case 0:
            return text + separator() + pair(1)
        case 1:
            return text + separator() + one(0) + "}"
        case 2:
            return text[:-1] + separator() + quoted("ls") + "}"
        case _:
            return text


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


@given(separated_json())
def test_the_values_of_separated_json_were_written(text: str) -> None:
    check(text)


@pytest.mark.long
@settings(max_examples=5_000, derandomize=False)
@given(separated_json())
def test_the_values_of_more_separated_json_were_written(text: str) -> None:
    check(text)
