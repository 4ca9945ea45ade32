"""Arguments that are written outside the object that they belong to."""

import json
from typing import Any

import pytest
from support.statemachine_fold import FoldedCall, calls_of, outcome, pieces, text_of
from support.sweeps import each

from statemachine import FORMATS, Call, Parser, write

SIZES = (0, 1, 3)
STRING = {"type": "string"}
ADDRESS = {"type": "object", "properties": {"street": STRING, "zip": {"type": "integer"}}, "required": ["street"]}
PROPERTIES = {"text": STRING, "n": {"type": "integer"}, "addr": ADDRESS}
FLAT = {"text": "x", "street": "a", "zip": 3}
NESTED = '{"text": "x", "addr": {"street": "a", "zip": 3}}'


def tool(properties: Any = PROPERTIES, **schema: Any) -> Any:
    return {"save": {"type": "object", "properties": properties, **schema}}


def read(text: str, tools: Any = None, reason: str | None = None, **options: Any) -> FoldedCall:
    """Return the only call, which must be the same at every piece size."""
    given = tool() if tools is None else tools
    found, *others = [outcome(pieces(text, size), given, reason, **options) for size in SIZES]
    assert others == [found] * len(others)
    assert text_of(found) == ""
    (call,) = calls_of(found)
    return call


def called(arguments: str, tools: Any = None, **options: Any) -> tuple[str, bool]:
    """Return the arguments of a complete call, and whether members were nested."""
    call = read(f'<tool_call>{{"name": "save", "arguments": {arguments}}}</tool_call>', tools, **options)
    assert call.complete
    json.loads(call.arguments)
    return call.arguments, "nested_arguments" in call.repairs


@each("form", sorted({*FORMATS} - {"minimax_flags"}))
def test_every_format(form: str) -> None:
    text = write([Call("save", json.dumps(FLAT))], form)
    call = read(text, formats=[form])
    assert (json.loads(call.arguments), call.complete) == (json.loads(NESTED), True)
    assert "nested_arguments" in call.repairs
    kept = read(text, formats=[form], flattened="keep")
    assert (json.loads(kept.arguments), "nested_arguments" in kept.repairs) == (FLAT, False)
    assert "nested_arguments" not in read(text, {"save": {}}, formats=[form]).repairs


@each(
    ("arguments", "expected"),
    [
        ('{"text": "x", "street": "a", "zip": "3"}', NESTED),
        ('{"street": "a", "text": "x", "zip": 3}', NESTED),
        ('{"zip": 3, "street": "a" }', '{"addr": {"zip": 3, "street": "a"}}'),
        ('{"text": "x", "street": "a", "zip": 3,}', NESTED),
        ('{"text": "x", "street": "a", "n": 4}', '{"text": "x", "n": 4, "addr": {"street": "a"}}'),
        ('{"street": "a, \\"b\\"}"}', '{"addr": {"street": "a, \\"b\\"}"}}'),
    ],
)
def test_members_are_nested_in_any_order(arguments: str, expected: str) -> None:
    assert called(arguments) == (expected, True)


@each(
    ("arguments", "expected"),
    [
        ('{"text": "x", "zip": 3}', None),  # a required member is missing
        ('{"addr": {"street": "b"}, "street": "a"}', None),
        ('{"street": "a", "addr": {"street": "b"}}', '{"addr": {"street": "b"}, "street": "a"}'),
        ('{"street": "a", "zip": "12a"}', None),
        ('{"street": "a", "zip": {"code": 3}, "n": 1}', '{"n": 1, "street": "a", "zip": {"code": 3}}'),
        ('{"town": "a"}', None),
    ],
)
def test_members_that_do_not_make_the_object_are_kept(arguments: str, expected: str | None) -> None:
    assert called(arguments) == (expected or arguments, False)


OTHER = {"type": "object", "properties": {"street": STRING}}


@each(
    "tools",
    [
        tool({**PROPERTIES, "home": ADDRESS}),
        tool({**PROPERTIES, "stops": {"type": "array", "items": OTHER}}),
        tool({**PROPERTIES, "inner": {"type": "object", "properties": {"deep": OTHER}}}),
        tool({**PROPERTIES, "meta": {"type": "object"}}),
        tool({**PROPERTIES, "meta": {"type": "object", "additionalProperties": STRING}}),
        tool({**PROPERTIES, "street": STRING, "zip": {}}),
        tool({"text": STRING, "addr": {"anyOf": [ADDRESS, {**OTHER, "required": ["no"]}]}}),
        tool({"text": STRING, "addr": {**ADDRESS, "type": ["object", "string"]}}),
        tool({"text": STRING, "addr": {"type": "object", "properties": {"deep": ADDRESS}}}),
        tool({"text": STRING, "addrs": {"type": "array", "items": ADDRESS}}),
        tool(additionalProperties=True),
        tool(additionalProperties=STRING),
        tool(patternProperties={"^s": STRING}),
    ],
)
def test_a_schema_that_leaves_another_way(tools: Any) -> None:
    assert called(json.dumps(FLAT), tools)[1] is False
    assert json.loads(called(json.dumps(FLAT), tools)[0]).keys() == FLAT.keys()


@each(
    "tools",
    [
        tool({**PROPERTIES, "other": {"type": "object", "properties": {"b": STRING}}, "list": {"type": "array"}}),
        tool(
            {"text": STRING, "addr": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, **{"$defs": {"a": ADDRESS}}
        ),
        tool(additionalProperties=False),
    ],
)
def test_a_schema_that_leaves_one_way(tools: Any) -> None:
    assert called(json.dumps(FLAT), tools) == (NESTED, True)


@each(
    "text",
    [
        '<tool_call>{"name": "save", "text": "x", "street": "a", "zip": "3"}</tool_call>',
        '<tool_call>{"street": "a", "name": "save", "text": "x", "zip": 3}</tool_call>',
        '<tool_call>{"name": "save", "arguments": {"text": "x"}, "street": "a", "zip": 3}</tool_call>',
    ],
)
def test_members_outside_the_arguments_object(text: str) -> None:
    call = read(text)
    assert (json.loads(call.arguments), call.complete) == (json.loads(NESTED), True)
    assert "nested_arguments" in call.repairs


@each("form", ["tool_call", "qwen3_coder", "lfm2", "gemma4", "minimax_m2"])
def test_a_call_that_is_cut_keeps_what_has_arrived(form: str) -> None:
    text = write([Call("save", json.dumps({"text": "x", "street": "abcdef"}))], form)
    call = read(text[: text.index("def")], reason="length", formats=[form])
    assert (call.arguments, call.complete) == ('{"text": "x", "street": "abc', False)


def test_other_members_stream() -> None:
    parser = Parser(tool())
    parser.feed('<tool_call>{"name": "save", "arguments": {"street": "a", "text": ')
    assert [event.text for event in parser.feed('"long ')] == ['"long ']
    assert [event.text for event in parser.feed("text")] == ["text"]


def test_too_long_a_member_ends_the_call_as_incomplete() -> None:
    text = '<tool_call>{"name": "save", "arguments": {"text": "x", "street": "%s", "zip": 3}}</tool_call>'
    found = [calls_of(outcome(pieces(text % ("a" * 70_000), size), tool())) for size in (0, 7, 4096)]
    assert [[(call.arguments, call.complete) for call in calls] for calls in found] == [[('{"text": "x", ', False)]] * 3


def test_a_recursive_schema_is_read_in_bounded_time() -> None:
    names = {f"p{i}": {"$ref": "#/$defs/t"} for i in range(40)}
    tools = tool({"addr": {"$ref": "#/$defs/t"}}, **{"$defs": {"t": {"type": "object", "properties": names}}})
    assert called('{"zip": 3}', tools) == ('{"zip": 3}', False)


def test_an_unknown_value_is_reported() -> None:
    with pytest.raises(ValueError, match="flattened must be"):
        Parser(flattened="no")
