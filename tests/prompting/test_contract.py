"""The tool prompt: its content, its size, and the correctness of its examples."""

import json

import pytest
from support.sweeps import each

from statemachine import FORMATS, Call, parse, write
from streamtool.core.conversation import Tool
from streamtool.core.errors import RequestError
from streamtool.prompting.one_object import is_one_object
from streamtool.prompting.tool_prompt import build_tool_prompt, build_tool_prompt_from_calls
from streamtool.schemas.examples import example_call
from streamtool.settings import Settings

WEATHER = Tool(
    "get_weather",
    "Get the weather. It may rain.",
    {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "City name"},
            "unit": {"enum": ["c", "f"], "default": "c"},
        },
        "required": ["location"],
    },
)
NOW = Tool("now")
TOOLS = (WEATHER, NOW)


def model(**settings):
    return Settings(**settings).for_model("x")


def text(tools=TOOLS, format="tool_call", **settings):
    return build_tool_prompt(tools, format, model(**settings)).text


def listed(*args, **settings):
    whole = text(*args, **settings)
    return whole.partition("## The tools\n\n")[2].partition("\n\n## Example")[0]


@each("format", FORMATS)
def test_the_example_reads_back_as_the_call_it_shows(format):
    whole = text(format=format)
    example = whole.partition("you write:\n\n")[2].partition("\n\nThe next message is:")[0]
    names = {tool.name: tool.parameters or {} for tool in TOOLS}
    visible, calls = parse(example, names, formats=[format])
    assert visible.strip() == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"location": "some location"})
    ]


@each("format", FORMATS)
def test_the_tool_prompt_shows_every_call_exactly_as_written(format):
    whole = text(format=format)
    calls = [Call("get_weather", '{"location": "some location"}'), Call("now", "{}")]
    assert write(calls[:1], format) in whole
    assert is_one_object(format) or write(calls, format) in whole


def test_the_tool_prompt_explains_that_a_call_is_a_request_and_the_result_follows():
    whole = text()
    assert "You do not run them yourself: the next message contains the results." in whole
    assert "Never invent a tool" in whole
    assert "answer in plain text" in whole
    assert "you may write several in one reply" in whole
    assert '<tool_response name="get_weather">\n(the result of get_weather)\n</tool_response>' in whole
    assert whole.endswith("The example ends here.")


def test_a_single_object_format_has_its_own_final_answer():
    whole = text(format="action_object")
    assert '{"final": {"content": "Here is what I found."}}' in whole
    assert "plain text" not in whole
    assert "one call, or the final answer" in whole


def test_compact_lists_signatures_with_their_notes():
    assert listed() == (
        "`?` marks an optional parameter, `=` its default.\n\n"
        "get_weather(\n"
        " location: string // City name\n"
        ' unit?: "c"|"f" = "c"\n'
        ")\n"
        " Get the weather. It may rain.\n"
        "now()"
    )


def test_json_lists_the_full_schema():
    lines = listed(schema="json").split("\n")
    assert json.loads(lines[0]) == {
        "name": "get_weather",
        "description": "Get the weather. It may rain.",
        "parameters": WEATHER.parameters,
    }
    assert json.loads(lines[1])["parameters"] == {"type": "object", "properties": {}}


def test_markdown_lists_parameters_and_how_to_use_them():
    assert listed(schema="markdown") == (
        "**get_weather**\n"
        "  Get the weather. It may rain.\n"
        "Parameters:\n"
        "  - location (string) (required): City name\n"
        '  - unit ("c"|"f") (optional, default: c)\n'
        "To use:\n" + write([Call("get_weather", '{"location": "some location"}')], "tool_call") + "\n"
        "\n"
        "**now**\n"
        "Parameters: none\n"
        "To use:\n" + write([Call("now", "{}")], "tool_call")
    )


@pytest.mark.parametrize("style", ["compact", "json", "markdown"])
def test_a_budget_shortens_the_tool_prompt_in_tiers(style):
    whole = build_tool_prompt(TOOLS, "tool_call", model(schema=style))
    compact = build_tool_prompt(TOOLS, "tool_call", model(schema=style, schema_budget=80))
    names = build_tool_prompt(TOOLS, "tool_call", model(schema=style, schema_budget=50))
    assert (whole.tier, compact.tier, names.tier) == ("full", "compact", "names")
    assert 'get_weather(location: string, unit?: "c"|"f" = "c")\n Get the weather.\nnow()\n' in compact.text
    assert "\n\nget_weather: Get the weather.\nnow\n" in names.text
    assert "parameters are not listed" in names.text


def test_a_tool_prompt_that_does_not_fit_the_context_is_an_error():
    assert build_tool_prompt(TOOLS, "tool_call", model(context=4096))
    with pytest.raises(RequestError) as caught:
        build_tool_prompt(TOOLS, "tool_call", model(context=100))
    assert (caught.value.param, caught.value.status) == ("tools", 400)
    assert "2 tools" in caught.value.message


def test_the_tool_prompt_depends_only_on_tools_and_settings():
    again = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in TOOLS)
    assert build_tool_prompt(again, "tool_call", model()) is build_tool_prompt(TOOLS, "tool_call", model())
    assert text(again[::-1]) != text()


def test_another_description_gives_another_tool_prompt():
    other = (Tool("get_weather", "Other.", WEATHER.parameters), NOW)
    assert "Other." in text(other)
    assert "Other." not in text()


def test_a_custom_tool_takes_its_raw_text_as_input():
    assert listed((Tool("patch", "Apply it.", custom=True),)).endswith("\n\npatch(input: string)\n Apply it.")


def test_the_tool_prompt_of_names_refers_to_earlier_calls():
    whole = build_tool_prompt_from_calls([Call("f", '{"a": 1}'), Call("g", "{}")], "tool_call", model()).text
    assert "call them as earlier in this conversation.\n\nf\ng\n" in whole
    assert write([Call("f", '{"a": 1}')], "tool_call") in whole


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (None, {}),
        ({"properties": {"a": {"type": "integer"}, "b": {}}}, {"a": 1}),
        (
            {
                "properties": {
                    "a": {"type": "integer", "minimum": 5},
                    "b": {"type": "boolean"},
                    "c": {"type": "array", "items": {"type": "number"}},
                    "d": {"$ref": "#/$defs/d"},
                    "e": {"type": ["null", "string"]},
                    "f": {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]},
                    "g": {"type": "string", "examples": ["Paris"]},
                    "h": {"type": "null"},
                },
                "required": ["a", "b", "c", "d", "e", "f", "g", "h"],
                "$defs": {"d": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}},
            },
            {"a": 5, "b": True, "c": [1], "d": {"x": "some x"}, "e": "some e", "f": "x", "g": "Paris", "h": None},
        ),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"a": {"a": {"a": {}}}}),
    ],
)
def test_example_arguments_come_from_the_schema(schema, arguments):
    assert json.loads(example_call(Tool("f", "", schema)).arguments) == arguments
