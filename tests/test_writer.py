"""Calls as text, format by format, as they are taught and as they stand in the history."""

import json

import pytest

from statemachine import FORMATS, Call, parse, write

ONE = [Call("get_weather", '{"city": "Paris", "days": 3}', "call_1")]
TWO = [*ONE, Call("ping", "{}")]

WRITTEN = {
    "tool_call": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "labelled": 'TOOL_CALL: get_weather\nARGUMENTS: {"city": "Paris", "days": 3}\nTOOL_CALL: ping\nARGUMENTS: {}',
    "invoke": '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
    '<invoke name="ping">\n</invoke>',
    "fenced": '```json action\n{"tool": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n```\n'
    '```json action\n{"tool": "ping", "arguments": {}}\n```',
    "object": '{"tool": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n{"tool": "ping", "arguments": {}}',
    "command": '@get_weather {"city": "Paris", "days": 3}\n@ping {}',
    "react": 'Action: get_weather\nAction Input: {"city": "Paris", "days": 3}\nAction: ping\nAction Input: {}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "ping", "arguments": {}}]',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("form", WRITTEN)
def test_two_calls_in_each_format(form: str) -> None:
    assert write(TWO, form) == WRITTEN[form]


def test_the_formats_that_are_nested() -> None:
    """What matters is that they have the documented grammar; where an id may stand it may be written."""
    fragment = write(TWO, "openai_fragment")
    assert fragment.startswith('"tool_calls": [{')
    calls = json.loads("{" + fragment + "}")["tool_calls"]
    assert [call["type"] for call in calls] == ["function", "function"]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "ping"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris", "days": 3}
    reply = json.loads(write(ONE, "action_object"))
    assert reply["action"] == {"tool": "get_weather", "args": {"city": "Paris", "days": 3}}


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_no_calls_are_no_text(form: str) -> None:
    assert write([], form) == ""


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_arguments_keep_their_spelling_and_order(form: str) -> None:
    arguments = '{"z": 1.50, "a": 1e5, "m": [1, {"b": null}], "n": true}'
    _, calls = parse(write([Call("f", arguments)], form), {"f": {}}, formats=[form])
    assert [call.arguments for call in calls] == [arguments]


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("arguments", ["", "  ", "{}", " {} "])
def test_empty_arguments_are_an_empty_object(form: str, arguments: str) -> None:
    assert [
        (call.name, call.arguments) for call in parse(write([Call("f", arguments)], form), ["f"], formats=[form])[1]
    ] == [("f", "{}")]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_arguments_over_several_lines(form: str) -> None:
    """A command is one line, a label's arguments may be: white space between the tokens is not kept."""
    arguments = '{\n  "a": [\r\n    1\n  ]\n}'
    _, calls = parse(write([Call("f", arguments)], form), {"f": {}}, formats=[form])
    assert [json.loads(call.arguments) for call in calls] == [{"a": [1]}]


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("arguments", ["[1]", "null", '"x"', "x"])
def test_arguments_that_are_no_object_are_refused(form: str, arguments: str) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        write([Call("f", arguments)], form)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_arguments_that_are_broken_are_refused(form: str) -> None:
    """An incomplete call of the history must not become a text that reads as another call."""
    for arguments in ('{"a": ', '{"a": 1', '{"a" 1}', '{"a": 1} {'):
        with pytest.raises(ValueError, match=r"not a JSON object|Expecting|JSON"):
            write([Call("f", arguments)], form)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(KeyError):
        write(ONE, "nope")


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("name", ["f", "get_weather", "a.b.v1.f", "ns:f", "f-g", "Größe", "f/1"])
def test_names(form: str, name: str) -> None:
    _, calls = parse(write([Call(name, '{"a": 1}')], form), [name], formats=[form])
    assert [call.name for call in calls] == [name]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_the_ids_of_the_calls_are_not_confused(form: str) -> None:
    _, calls = parse(write([Call("f", "{}", "one"), Call("f", "{}", "two")], form), ["f"], formats=[form])
    assert [call.id for call in calls] in ([None, None], ["one", "two"])


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_what_is_written_is_read_by_all_formats_together(form: str) -> None:
    tools = {"get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, "ping": {}}
    text, calls = parse(write(TWO, form), tools, formats=FORMATS)
    assert text == ""
    assert [(call.name, call.arguments) for call in calls] == [
        ("get_weather", '{"city": "Paris", "days": 3}'),
        ("ping", "{}"),
    ]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_what_is_written_survives_text_around_it(form: str) -> None:
    if form == "action_object":
        return
    text, calls = parse(f"Before.\n{write(TWO, form)}\nAfter.", {"get_weather": {}, "ping": {}})
    assert text == "Before.\nAfter."
    assert [call.name for call in calls] == ["get_weather", "ping"]
