"""Names of parameters that are nearly right: which ones are repaired, and which are not."""

import json
from typing import Any

from support.statemachine_fold import FoldedCall, calls_of, outcome, pieces, text_of
from support.sweeps import each

from statemachine import FORMATS, Call, Parser, write

SIZES = (0, 1, 3)
STRING = {"type": "string"}
PROPERTIES = {"city": STRING, "file_path": STRING, "days": {"type": "integer"}}
TOOLS = {"save": {"type": "object", "properties": PROPERTIES}}
WRITTEN = {"city": "City", "file_path": "filePath", "days": "DAYS"}


def read(text: str, tools: Any = TOOLS, **options: Any) -> FoldedCall:
    """Return the only call, which must be the same at every piece size."""
    found, *others = [outcome(pieces(text, size), tools, **options) for size in SIZES]
    assert others == [found] * len(others)
    assert text_of(found) == ""
    (call,) = calls_of(found)
    return call


def called(arguments: str, properties: Any = PROPERTIES, **schema: Any) -> tuple[str, tuple[str, ...]]:
    """Return the arguments and the repairs of a call with these arguments."""
    call = read(
        f'<tool_call>{{"name": "save", "arguments": {arguments}}}</tool_call>',
        {"save": {"type": "object", "properties": properties, **schema}},
    )
    assert call.complete
    return call.arguments, call.repairs


@each("form", sorted(FORMATS))
def test_the_only_parameter_with_nearly_this_name_is_given(form: str) -> None:
    text = write([Call("save", json.dumps({"city": "Oslo", "file_path": "a", "days": 3}))], form)
    expected = read(text, formats=[form])
    for name, other in WRITTEN.items():
        text = text.replace(name, other)
    call = read(text, formats=[form])
    assert (call.arguments, call.complete) == (expected.arguments, True)
    assert "parameter_name" in call.repairs
    assert "parameter_name" not in read(text, {"save": {}}, formats=[form]).repairs


@each(
    ("arguments", "expected"),
    [
        ('{"File-Path": "a"}', '{"file_path": "a"}'),
        ('{"file path" : "a"}', '{"file_path" : "a"}'),
        ('{"Cit\\u0079": "a"}', '{"city": "a"}'),
        ('{DAYS: "3"}', '{"days": 3}'),
    ],
)
def test_the_type_is_that_of_the_parameter(arguments: str, expected: str) -> None:
    found, repairs = called(arguments)
    assert (found, "parameter_name" in repairs) == (expected, True)


@each(
    ("arguments", "properties", "schema"),
    [
        ('{"City": "a"}', {"city": STRING, "CITY": STRING}, {}),
        ('{"city": "a", "City": "b"}', PROPERTIES, {}),
        ('{"town": "a"}', PROPERTIES, {}),
        ('{"citi": "a"}', PROPERTIES, {}),
        ('{"City": "a"}', PROPERTIES, {"additionalProperties": STRING}),
        ('{"City": "a"}', PROPERTIES, {"additionalProperties": True}),
        ('{"City": "a"}', PROPERTIES, {"patternProperties": {"^C": STRING}}),
        ('{"City": "a"}', {"city": STRING, "City": STRING}, {}),
        ('{"City": "a"}', PROPERTIES, {"anyOf": [{"properties": {"City": STRING}}, {"properties": {}}]}),
        ('{"-": "a"}', {"_": STRING}, {}),
        ('{"key_1_2": "a"}', {"key_12": STRING}, {}),
    ],
)
def test_another_key_is_kept(arguments: str, properties: Any, schema: Any) -> None:
    found, repairs = called(arguments, properties, **schema)
    assert (found, "parameter_name" in repairs) == (arguments, False)


def test_nested_members() -> None:
    inner = {"type": "object", "properties": {"zip_code": {"type": "integer"}, "street": STRING}}
    properties = {"addr": inner, "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}}}
    defs = {"stop": {"allOf": [inner, {"additionalProperties": False}]}}
    arguments = '{"addr": {"zipCode": "12", "ZipCode": 3}, "Stops": [{"Street": "a"}, {"Street": "b", "street": "c"}]}'
    assert called(arguments, properties, **{"$defs": defs}) == (
        '{"addr": {"zip_code": 12, "ZipCode": 3}, "stops": [{"street": "a"}, {"street": "b", "street": "c"}]}',
        ("parameter_name", "typed_value", "repeated_key"),
    )


def test_the_exact_key_wins() -> None:
    assert called('{"City": "a", "city": "b"}') == ('{"city": "a", "city": "b"}', ("parameter_name", "repeated_key"))
    call = read('<tool_call>{"name": "save", "City": "a", "city": "b"}</tool_call>')
    assert (call.arguments, call.repairs) == ('{"city": "b"}', ("flat_arguments", "ignored_member"))


@each(
    "text",
    [
        '<tool_call>{"name": "save", "City": "a", "days": 3}</tool_call>',
        '<tool_call>{"City": "a", "name": "save", "days": 3}</tool_call>',
        '<tool_call>{"name": "save", "City": "a", "arguments": {"days": 3}}</tool_call>',
        '<tool_call>{"name": "save", "days": 3, "City": "a"}</tool_call>',
        '<tool_call>{"name": "save", "arguments": {"days": 3}, "City": "a"}</tool_call>',
    ],
)
def test_members_outside_the_arguments_object(text: str) -> None:
    call = read(text)
    assert (call.arguments, call.complete) == ('{"days": 3, "city": "a"}', True)
    assert "parameter_name" in call.repairs


def test_a_value_after_a_repaired_key_streams() -> None:
    parser = Parser(TOOLS)
    parser.feed('<tool_call>{"name": "save", "arguments": {"City')
    assert [event.text for event in parser.feed('":')] == ['city":']
    assert [event.text for event in parser.feed(' "Os')] == [' "Os']


def test_elements() -> None:
    tools = {"save": {"type": "object", "properties": {"addr": {"type": "object", "properties": {"zip_code": STRING}}}}}
    arguments = json.dumps({"addr": {"zip_code": "a"}})
    for form in ("minimax_m3", "gigachat35"):
        if form in FORMATS:
            text = write([Call("save", arguments)], form).replace("zip_code", "zipCode")
            assert read(text, tools, formats=[form]).arguments == arguments


def test_a_declared_name_that_begins_with_the_key() -> None:
    assert called('{"city": "a"}', {"city_": STRING}) == ('{"city_": "a"}', ("parameter_name",))
    assert called('{"citY": "a"}', {"City": STRING, "citizen": STRING}) == ('{"City": "a"}', ("parameter_name",))


def test_a_cut_in_a_key_leaves_the_key() -> None:
    found = [outcome(pieces('<tool_call>{"name": "save", "arguments": {"Cit', n), TOOLS, "length") for n in SIZES]
    assert [(call.arguments, call.complete) for items in found for call in calls_of(items)] == [('{"Cit', False)] * 3
