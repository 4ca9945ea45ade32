"""Names of tools that are nearly right: which ones are repaired, and which are not."""

import json
from typing import Any

import pytest
from support.statemachine_fold import Item, calls_of, outcome, pieces, text_of
from support.sweeps import each

from statemachine import FORMATS, Call, write
from statemachine.names import NAMESPACES, SEPARATORS, differs_in_one, spelling_of, without_namespace

SIZES = (0, 1, 5)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WITH_SCHEMA = {"get_weather": SCHEMA, "ping": {"type": "object", "properties": {}}}
WITHOUT = ["get_weather", "ping"]
SPELLINGS = (
    "getWeather",
    "GetWeather",
    "get-weather",
    "GET_WEATHER",
    "functions.get_weather",
    "default_api:getWeather",
)
NAMED = sorted(name for name, form in FORMATS.items() if not form.by_tool)
"""Formats that write the name of a tool as text; in the others, it is the marker."""


def read(text: str, tools: Any, **options: Any) -> list[Item]:
    """Return the outcome, which must be the same at every piece size."""
    found, *others = [outcome(pieces(text, size), tools, **options) for size in SIZES]
    assert others == [found] * len(others)
    return found


def spelled(form: str, name: str) -> str:
    """Return a call of `get_weather` in a format, with its name written differently."""
    return write([Call("get_weather", json.dumps({"city": "Oslo"}))], form).replace("get_weather", name)


def called(name: str, tools: Any, form: str = "tool_call", **options: Any) -> str | None:
    """Return the tool that is called by a name, or None if the text of the call is unchanged."""
    text = spelled(form, name)
    items = read(text, tools, **options)
    calls = calls_of(items)
    assert bool(calls) != (text_of(items) == text)
    return calls[0].name if calls else None


def check_spelling(form: str, name: str, tools: Any) -> None:
    items = read(spelled(form, name), tools, formats=[form])
    (call,) = calls_of(items)
    assert (call.name, call.arguments, call.complete) == ("get_weather", '{"city": "Oslo"}', True)
    native = (form, name) == ("functionary", "functions.get_weather")
    assert ("tool_name" in call.repairs) is not native
    assert text_of(items) == ""


@each(
    ("form", "name", "tools"),
    [(form, SPELLINGS[i % len(SPELLINGS)], (WITH_SCHEMA, WITHOUT)[i % 2]) for i, form in enumerate(NAMED)],
)
def test_the_only_tool_with_nearly_this_name_is_called(form: str, name: str, tools: Any) -> None:
    check_spelling(form, name, tools)


@pytest.mark.long
@each("form", NAMED)
def test_every_spelling_in_every_format(form: str) -> None:
    for tools in (WITH_SCHEMA, WITHOUT):
        for name in SPELLINGS:
            check_spelling(form, name, tools)


def test_the_repair_is_in_the_stream_as_soon_as_the_name_is_known() -> None:
    begun = '<tool_call>{"name": "getWeather"'
    assert [call.name for call in calls_of(outcome([begun], WITH_SCHEMA, "length"))] == ["get_weather"]


@each("name", [*SPELLINGS, "getweather", "get.weather"])
def test_two_tools_with_nearly_this_name(name: str) -> None:
    assert called(name, ["get_weather", "get-Weather"]) is None
    assert called(name, ["get_weather", "get-Weather", name]) == name


@each("namespace", NAMESPACES)
def test_every_namespace_is_ignored(namespace: str) -> None:
    for separator in SEPARATORS:
        assert called(f"{namespace}{separator}get_weather", WITHOUT) == "get_weather"
    assert called(f"{namespace}.get_weather", [f"{namespace}_get_weather", "get_weather"]) is None
    assert called(f"{namespace}.", WITHOUT) is None


@each(
    ("name", "tools"),
    [
        ("delete_user", ["delete_users"]),
        ("other.get_weather", ["get_weather"]),
        ("getweatherr", ["get_weather"]),
        ("step_1_2", ["step_12"]),
        ("v2", ["v1"]),
        ("__", ["--"]),
        ("weather", ["get_weather"]),
    ],
)
def test_another_name_is_not_a_spelling(name: str, tools: list[str]) -> None:
    assert called(name, tools) is None


@each(
    ("name", "tools", "meant"),
    [
        ("get_weathr", WITHOUT, "get_weather"),
        ("get_weatherr", WITHOUT, "get_weather"),
        ("get_weaxher", WITHOUT, "get_weather"),
        ("get_waether", WITHOUT, "get_weather"),
        ("functions.get_weathr", WITHOUT, "get_weather"),
        ("get_weth", WITHOUT, None),
        ("get_weathr", ["get_weathe", "get_weather"], None),
        ("get_weather", ["get_weathe", "get_weather"], "get_weather"),
        ("getWeather", ["get_weather", "getWeathe"], "get_weather"),
        ("run_v1", ["run_v2"], None),
        ("run_v", ["run_v2"], None),
        ("cat", ["cut"], None),
    ],
)
def test_one_edit_if_it_is_allowed(name: str, tools: list[str], meant: str | None) -> None:
    assert called(name, tools, names="edit") == meant
    if spelling_of(name) not in map(spelling_of, tools):
        assert called(name, tools) is None


UNMARKED = {"object", "tool_code", "xlam"}
"""Formats whose calls are recognized by their content alone, so that no letter may differ."""


@each("form", NAMED)
def test_one_edit_in_every_format(form: str) -> None:
    text = spelled(form, "get_weathr")
    assert calls_of(read(text, WITHOUT, formats=[form])) == []
    names = [call.name for call in calls_of(read(text, WITHOUT, formats=[form], names="edit"))]
    assert names == ([] if form in UNMARKED else ["get_weather"])


NOT_CALLS = (
    'I would use {"name": "getWeather", "arguments": {"city": "Oslo"}} for that.',
    'See `<tool_call>{"name": "getWeather", "arguments": {}}</tool_call>` for the form.',
    'Text:\n```xml\n<tool_call>{"name": "getWeather", "arguments": {}}</tool_call>\n```\n',
    '> <tool_call>{"name": "getWeather", "arguments": {}}</tool_call>',
    "So getWeather(city='Oslo') and [get-weather] differ.",
    'Use [getWeather(city="Oslo")] there.',
    '{"name": "getWeather", "description": "Weather", "parameters": {"type": "object", "properties": {}}}',
)


@each("text", NOT_CALLS)
def test_text_that_mentions_a_name_is_text(text: str) -> None:
    for names in ("spelling", "edit"):
        items = read(text, WITH_SCHEMA, names=names)
        assert (calls_of(items), text_of(items)) == ([], text)


def test_an_object_without_a_marker() -> None:
    text = '{"name": "%s", "arguments": {"city": "Oslo"}}'
    (call,) = calls_of(read(text % "getWeather", WITHOUT))
    assert (call.name, call.repairs) == ("get_weather", ("tool_name",))
    assert calls_of(read("So: " + text % "getWeather", WITHOUT)) == []
    assert calls_of(read(text % "get_weathr", WITHOUT, names="edit")) == []


def test_spellings() -> None:
    assert spelling_of("Get__Weather-v1.2") == "getweatherv1_2"
    assert spelling_of("1.2") == ""
    assert without_namespace("functions.Default_API::f") == "f"
    assert without_namespace("functions.") == "functions."
    assert differs_in_one("abcd", "abdc")
    assert not differs_in_one("abcd", "dbca")


def test_an_unknown_value_is_reported() -> None:
    with pytest.raises(ValueError, match="names must be"):
        outcome([""], WITHOUT, names="guess")
