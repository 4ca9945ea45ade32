"""Arguments outside the arguments object, in every format whose JSON contains the name; see
`tests/formats/flat_arguments.md` for the rules.
"""

import json

import pytest
from support.statemachine_fold import calls_of, outcome, pieces
from support.sweeps import each

from statemachine import FORMATS, ArgumentsDelta, Call, CallEnd, CallStart, Parser, write
from statemachine.formats.format import SYNONYMS, Envelope, Parameters
from statemachine.formats.openers import envelope_of

STRING = {"type": "string"}
TOOLS = {
    "find_bird": {
        "type": "object",
        "properties": {"habitat": STRING, "count": {"type": "integer"}},
        "required": ["habitat"],
    }
}
ARGUMENTS = '{"habitat": "reed", "count": 2}'
MARKED = [
    name
    for name, form in FORMATS.items()
    if (form.openers or form.fence)
    and isinstance(form.variants[0].body, Envelope)
    and not (envelope_of(form).keyed or envelope_of(form).by_keys)
]
SIZES = (1, 3, 0)


def written(form: str, arguments: str = ARGUMENTS) -> tuple[str, str]:
    """Return a call in a format, and its member with the arguments as written in it."""
    body = envelope_of(FORMATS[form])
    value = json.dumps(arguments) if body.as_string else arguments
    return write([Call("find_bird", arguments)], form), f'"{body.arguments[0]}": {value}'


def parsed(form: str, text: str) -> tuple[str, bool | None, tuple[str, ...]]:
    """Return the arguments, completeness and repairs of the only call, which are the same at every piece size."""
    found = [outcome(pieces(text, size), TOOLS, "stop", formats=[form]) for size in SIZES]
    assert found[1:] == found[:-1]
    [call] = calls_of(found[0])
    return call.arguments, call.complete, call.repairs


@each("form", MARKED)
def test_declared_members_are_arguments(form: str) -> None:
    text, member = written(form)
    assert member in text
    assert parsed(form, text.replace(member, ARGUMENTS[1:-1])) == (ARGUMENTS, True, ("flat_arguments",))


@each("form", MARKED)
def test_a_declared_member_joins_the_arguments_object(form: str) -> None:
    text, member = written(form, '{"habitat": "reed"}')
    assert member in text
    for changed in (f'{member}, "count": 2', f'"count": 2, {member}'):
        arguments, complete, repairs = parsed(form, text.replace(member, changed))
        assert (json.loads(arguments), complete) == (json.loads(ARGUMENTS), True)
        assert "flat_arguments" in repairs


@each("form", MARKED)
@each("key", ["argument", "arg", "kwargs", "Arguments", "payload", "some_other_key"])
def test_another_key_for_the_arguments_object(form: str, key: str) -> None:
    text, member = written(form)
    assert parsed(form, text.replace(member, f'"{key}": {ARGUMENTS}')) == (ARGUMENTS, True, ("arguments_key",))


@each("form", MARKED)
def test_members_that_fit_no_parameter_make_the_call_incomplete(form: str) -> None:
    text, member = written(form)
    assert parsed(form, text.replace(member, '"place": "reed"')) == ("", False, ("ignored_member",))


@each("form", MARKED)
def test_a_comment_beside_the_arguments_is_ignored_and_named(form: str) -> None:
    text, member = written(form)
    found = parsed(form, text.replace(member, f'{member}, "reason": "I look."'))
    assert found == (ARGUMENTS, True, ("ignored_member",))


@pytest.mark.parametrize(
    "head",
    [
        '{"name": "find_bird", ',
        '{"name": "find_bird", "arguments": {"count": 2}, ',
        '{"count": 2, "name": "find_bird", ',
        '{"name": "find_bird", "kwargs": {',
        '{"name": "find_bird", "thought": "Reed.", "habitat_": 1, ',
    ],
)
def test_declared_members_stream(head: str) -> None:
    parser = Parser(TOOLS)
    parser.feed(f'<tool_call>{head}"habitat": "')
    for word in ("reed ", "by the ", "lake"):
        assert parser.feed(word) == [ArgumentsDelta(0, word)]


def test_members_before_the_name_are_emitted_with_it() -> None:
    parser = Parser(TOOLS)
    assert parser.feed('<tool_call>{"habitat": "reed", "name": "find_bird') == []
    assert parser.feed('"') == [
        CallStart(0, "find_bird", None, "tool_call"),
        ArgumentsDelta(0, '{"habitat": "reed"'),
    ]


def test_only_the_closer_of_an_arguments_object_is_withheld() -> None:
    parser = Parser(TOOLS)
    parser.feed('<tool_call>{"name": "find_bird", "arguments": ')
    assert parser.feed('{"count": 2}') == [ArgumentsDelta(0, '{"count": 2')]
    assert parser.feed("}") == [ArgumentsDelta(0, "}"), CallEnd(0, True, ())]


def test_without_a_schema_nothing_is_withheld() -> None:
    parser = Parser(None)
    parser.feed('<tool_call>{"name": "find_bird", "arguments": ')
    assert parser.feed('{"count": 2}') == [ArgumentsDelta(0, '{"count": 2}')]


def test_kept_members_are_bounded() -> None:
    long = json.dumps("x" * 300_000)
    text = f'<tool_call>{{"name": "find_bird", "a": {long}, "b": {{"habitat": {long}}}}}</tool_call>'
    [call] = calls_of(outcome(pieces(text, 1000), TOOLS, "stop"))
    assert (call.arguments, call.complete, call.repairs) == ("", False, ("ignored_member",))


@each("form", [name for name, form in FORMATS.items() if isinstance(form.variants[0].body, Parameters)])
@each("key", ["arguments", "parameters", "args", "kwargs"])
def test_one_parameter_with_all_arguments_is_unwrapped(form: str, key: str) -> None:
    wrapped = write([Call("find_bird", f'{{"{key}": "@"}}')], form).replace("@", ARGUMENTS)
    assert parsed(form, wrapped) == (ARGUMENTS, True, ("arguments_key",))


@each("form", [name for name, form in FORMATS.items() if isinstance(form.variants[0].body, Parameters)])
def test_a_repeated_parameter_is_a_list(form: str) -> None:
    text = write([Call("find_bird", '{"tags": "a", "tagz": "b", "count": 2}')], form).replace("tagz", "tags")
    tools = {"find_bird": {"type": "object", "properties": {"tags": {"type": "array"}, "count": {"type": "integer"}}}}
    for size in SIZES:
        [call] = calls_of(outcome(pieces(text, size), tools, "stop", formats=[form]))
        assert (json.loads(call.arguments), call.complete) == ({"tags": ["a", "b"], "count": 2}, True)
        assert call.repairs == ("repeated_list",)


def test_a_further_item_streams() -> None:
    parser = Parser({"f": {"type": "object", "properties": {"tags": {"type": "array", "items": STRING}}}})
    head = '<invoke name="f"><parameter name="tags">'
    assert parser.feed(f"{head}oats</parameter>") == [CallStart(0, "f", None, "invoke"), ArgumentsDelta(0, '{"tags": ')]
    assert parser.feed('<parameter name="tags">ry') == [ArgumentsDelta(0, '["oats", "ry')]
    assert parser.feed("e and") == [ArgumentsDelta(0, "e and")]


def test_synonyms_are_folded() -> None:
    assert all(key == key.lower() and key.isalpha() for key in SYNONYMS)
