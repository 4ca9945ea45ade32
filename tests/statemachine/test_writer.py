"""Calls written as text in each format, as in tool prompts and in the history."""

import ast
import json

import pytest
from attrs import evolve
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Call, parse, write
from statemachine.formats import Anchor, Expression
from statemachine.writing.writer import write_blocks

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
    "llama3": '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}'
    '<|python_tag|>{"name": "ping", "parameters": {}}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n'
    "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|>'
    "<|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "apertus": '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 3}}, {"ping": {}}]<|tools_suffix|>',
    "harmony": "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Paris", "days": 3}<|call|>'
    "<|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>",
    "functionary": '>>>get_weather\n{"city": "Paris", "days": 3}>>>ping\n{}',
    "inkling": '<|message_model|><|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris", "days": 3}}'
    '<|end_message|><|message_model|><|content_invoke_tool_json|>{"name": "ping", "args": {}}<|end_message|>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": "]<]minimax[>[<tool_call>"
    ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>'
    "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>"
    ']<]minimax[>[<invoke name="ping">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>',
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
    "glm47": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>ping</tool_call>",
    "hunyuan_v3": "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping<tool_sep>\n</tool_call>\n</tool_calls>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="get_weather"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="integer"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="ping"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "muse": '<atem:function_calls>\n<atem:invoke name="get_weather.get_weather">\n'
    '<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n'
    '<atem:invoke name="ping.ping">\n</atem:invoke>\n</atem:function_calls>',
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>get_weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>"
    "<ifm|arg_value>Paris</ifm|arg_value><ifm|arg_key>days</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type>"
    "<ifm|arg_value>3</ifm|arg_value></ifm|tool_call><ifm|tool_call>ping</ifm|tool_call></ifm|tool_calls>",
    "tag": "<get_weather>\n<city>\nParis\n</city>\n<days>\n3\n</days>\n</get_weather>\n<ping>\n</ping>",
    "pythonic": '<|python_start|>[get_weather(city="Paris", days=3), ping()]<|python_end|>',
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:ping{}<tool_call|>',
    "tool_code": '```tool_code\nget_weather(city="Paris", days=3)\n```\n```tool_code\nping()\n```',
}


@pytest.mark.parametrize("form", WRITTEN)
def test_two_calls_in_each_format(form: str) -> None:
    assert write(TWO, form) == WRITTEN[form]


def test_an_opener_around_all_calls_is_written_once() -> None:
    """If the wrapper of a reply is the call's own opener, the calls share one block, each on its own line."""
    one_block = evolve(FORMATS["tool_call"], around="<tool_call{:}>")
    first, second = (
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        '{"name": "ping", "arguments": {}}',
    )
    assert write_blocks(one_block, one_block.variants[0], TWO) == [f"<tool_call>\n{first}\n{second}\n</tool_call>"]


NESTED = '{"o": {"a": [1, {"b": "x y"}], "c": {}}, "e": [], "s": "1 < 2"}'


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (
            "minimax_m3",
            "<o><a><item>1</item><item><b>x y</b></item></a><c>{}</c></o><e>[]</e><s>1 < 2</s>",
        ),
        (
            "minicpm5",
            '<param name="e">[]</param><param name="s"><![CDATA[1 < 2]]></param>',
        ),
        ("gemma4", 'call:f{o:{a:[1,{b:<|"|>x y<|"|>}],c:{}},e:[],s:<|"|>1 < 2<|"|>}'),
        ("pythonic", 'f(o={"a": [1, {"b": "x y"}], "c": {}}, e=[], s="1 < 2")'),
    ],
)
def test_nested_values(form: str, written: str) -> None:
    assert written in write([Call("f", NESTED)], form).replace("]<]minimax[>[", "")


@pytest.mark.parametrize(
    "value",
    ['{"item": 1}', '{"a b": 1}', '{"": 1}', '{"a": "5"}', '{"a": " x"}', '["true"]', '["]<]minimax[>[<b>"]'],
)
def test_ambiguous_elements_are_written_as_json(value: str) -> None:
    call = Call("f", f'{{"v": {value}}}')
    text = write([call], "minimax_m3")
    assert f"<v>{value}]" in text
    assert parse(text, ["f"], formats=["minimax_m3"])[1] == [call]


@each("form", ["minimax_m3", "minimax_m3_plain", "tag"])
def test_keys_that_no_closer_can_repeat_are_written_as_json(form: str) -> None:
    call = Call("f", '{"a": "x", "b c": 1}')
    text = write([call], form)
    assert '{"a": "x", "b c": 1}' in text
    assert parse(text, ["f"], formats=[form])[1] == [call]


def test_strings_that_contain_the_quote_of_the_format() -> None:
    call = Call("f", json.dumps({"a": '<|"|>', "b:c": "<escape>"}))
    assert write([call], "gemma4") == '<|tool_call>call:f{a:"<|\\"|>",<|"|>b:c<|"|>:<|"|><escape><|"|>}<tool_call|>'
    for form in ("gemma4", "functiongemma"):
        assert parse(write([call], form), ["f"], formats=[form])[1] == [call]


def test_keys_that_are_not_identifiers() -> None:
    call = Call("f", '{"a b": 1, "c": null}')
    assert write([call], "lfm2") == '<|tool_call_start|>[f({"a b": 1, "c": None})]<|tool_call_end|>'
    assert parse(write([call], "lfm2"), ["f"], formats=["lfm2"])[1] == [call]


@pytest.mark.parametrize("key", ["#", "#a", "//", "/*", "/a", "a#b", ")", ")a", "a)"])
@pytest.mark.parametrize("form", ["functiongemma", "gemma4"])
def test_an_ambiguous_key_is_quoted(form: str, key: str) -> None:
    """One that begins like a comment, or like the end of the enclosing value."""
    arguments = json.dumps({key: 1, "b": {key: 2}})
    _, [call] = parse(write([Call("f", arguments)], form), ["f"], formats=[form])
    assert json.loads(call.arguments) == {key: 1, "b": {key: 2}}


def test_python_reads_written_strings_back() -> None:
    strings = ["a/b", "\n\t\r\b\f\0", "\"'\\", "é 😀", "\ud800"]
    text = write([Call("f", json.dumps({"s": strings}).replace("/", "\\/"))], "lfm2")
    assert ast.literal_eval(text[text.index("s=") + 2 : text.rindex(")]<")]) == strings


def test_deep_values() -> None:
    """Values too deep for any parser are still written."""
    for form in FORMATS:
        assert "[" * 400 in write([Call("f", '{"a": ' + "[" * 400 + "]" * 400 + "}")], form)


def test_nested_formats() -> None:
    """They must have the documented grammar; where an id is optional it may be written."""
    fragment = write(TWO, "openai_fragment")
    assert fragment.startswith('"tool_calls": [{')
    calls = json.loads("{" + fragment + "}")["tool_calls"]
    assert [call["type"] for call in calls] == ["function", "function"]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "ping"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris", "days": 3}
    reply = json.loads(write(ONE, "action_object"))
    assert reply["action"] == {"tool": "get_weather", "args": {"city": "Paris", "days": 3}}


def test_an_empty_list_of_calls_is_empty_text() -> None:
    assert {form: write([], form) for form in FORMATS} == dict.fromkeys(FORMATS, "")


@each("form", sorted(FORMATS))
def test_arguments_keep_their_spelling_and_order(form: str) -> None:
    """In formats without spaces, those of nested values are lost."""
    arguments = '{"z": 1.50, "a": 1e5, "m": [1, {"b": null}], "n": true}'
    _, calls = parse(write([Call("f", arguments)], form), {"f": {}}, formats=[form])
    body = FORMATS[form].variants[0].body
    if isinstance(body, Expression) and body.quote:
        arguments = arguments.replace('[1, {"b": null}]', '[1,{"b":null}]')
    assert [call.arguments for call in calls] == [arguments]


@each("form", sorted(FORMATS))
def test_empty_arguments_are_an_empty_object(form: str) -> None:
    for arguments in ("", "  ", "{}", " {} "):
        _, calls = parse(write([Call("f", arguments)], form), ["f"], formats=[form])
        assert [(call.name, call.arguments) for call in calls] == [("f", "{}")], repr(arguments)


@each("form", sorted(FORMATS))
def test_multiline_arguments(form: str) -> None:
    """A command is one line, a label's arguments may span several: whitespace between tokens is not preserved."""
    arguments = '{\n  "a": [\r\n    1\n  ]\n}'
    _, calls = parse(write([Call("f", arguments)], form), {"f": {}}, formats=[form])
    assert [json.loads(call.arguments) for call in calls] == [{"a": [1]}]


@pytest.mark.parametrize("arguments", ["[1]", "null", '"x"', "x"])
def test_arguments_that_are_not_an_object_are_rejected(arguments: str) -> None:
    for form in FORMATS:
        with pytest.raises(ValueError, match="not a JSON object"):
            pytest.fail(f"{form} writes {write([Call('f', arguments)], form)}")


@each("form", sorted(FORMATS))
def test_malformed_arguments_are_rejected(form: str) -> None:
    """An incomplete call in the history must not become a text that parses as another call."""
    for arguments in ('{"a": ', '{"a": 1', '{"a" 1}', '{"a": 1} {'):
        with pytest.raises(ValueError, match=r"not a JSON object|Expecting|JSON"):
            write([Call("f", arguments)], form)


def test_an_unknown_format_is_rejected() -> None:
    with pytest.raises(KeyError):
        write(ONE, "nope")


@each("form", sorted(FORMATS))
def test_names(form: str) -> None:
    for name in ("f", "get_weather", "a.b.v1.f", "ns:f", "f-g", "Größe", "f/1"):
        if FORMATS[form].by_tool and name == "f/1":
            continue  # not a valid tag name
        _, calls = parse(write([Call(name, '{"a": 1}')], form), [name], formats=[form])
        assert [call.name for call in calls] == [name]


@each("form", sorted(FORMATS))
def test_call_ids_are_not_mixed_up(form: str) -> None:
    _, calls = parse(write([Call("f", "{}", "one"), Call("f", "{}", "two")], form), ["f"], formats=[form])
    rule = FORMATS[form].variants[0].name_rule
    if rule and "{index}" in rule.spelling:
        assert [call.id for call in calls] == ["functions.f:0", "functions.f:1"]
    else:
        assert [call.id for call in calls] in ([None, None], ["one", "two"])


@each("form", sorted(FORMATS))
def test_written_calls_are_read_by_all_formats_together(form: str) -> None:
    tools = {"get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}, "ping": {}}
    text, calls = parse(write(TWO, form), tools, formats=FORMATS)
    assert text == ""
    assert [(call.name, call.arguments) for call in calls] == [
        ("get_weather", '{"city": "Paris", "days": 3}'),
        ("ping", "{}"),
    ]


@each("form", sorted(FORMATS))
def test_written_calls_survive_surrounding_text(form: str) -> None:
    if FORMATS[form].anchor is Anchor.REPLY:
        return
    formats = {*FORMATS} - OPT_IN | {form}
    text, calls = parse(f"Before.\n{write(TWO, form)}\nAfter.", {"get_weather": {}, "ping": {}}, formats=formats)
    assert text == "Before.\nAfter."
    assert [call.name for call in calls] == ["get_weather", "ping"]


@each("form", sorted(FORMATS))
def test_json_only_escapes_are_read_back(form: str) -> None:
    arguments = r'{"path": {"a\/b": "c\/d"}}'
    [call] = parse(write([Call("look", arguments)], form), {"look": {}}, formats=[form])[1]
    assert json.loads(call.arguments) == {"path": {"a/b": "c/d"}}
