"""Tools are accepted in any common shape; anything else is reported."""

from typing import Annotated, Any, Literal

import pytest

from statemachine import Call, Parser, parse, tools_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TEXT = '<tool_call>{"name": "get_weather", "arguments": {"city": 7}}</tool_call>'


class McpTool:
    """A tool as an MCP client represents it."""

    name = "get_weather"
    inputSchema = SCHEMA  # noqa: N815  (the protocol's name)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": SCHEMA}},
        {"type": "function", "name": "get_weather", "parameters": SCHEMA},
        {"name": "get_weather", "input_schema": SCHEMA},
        {"name": "get_weather", "inputSchema": SCHEMA},
        {"name": "get_weather", "parametersJsonSchema": SCHEMA},
        McpTool(),
    ],
    ids=["chat", "responses", "anthropic", "mcp", "gemini", "an object of mcp"],
)
def test_tools_in_the_shapes_that_clients_use(tool: object) -> None:
    assert tools_of([tool]) == {"get_weather": SCHEMA}
    text, (call,) = parse(TEXT, [tool])
    assert (text, call, call.repairs) == ("", Call("get_weather", '{"city": "7"}'), ("typed_value",))


def test_names_mappings_and_any_name() -> None:
    assert tools_of(None) is None
    assert tools_of(["a", "b"]) == {"a": None, "b": None}
    assert tools_of(name for name in ("a", "b")) == {"a": None, "b": None}
    given = {"a": SCHEMA, "type": {}}
    assert tools_of(given) is given
    assert tools_of([]) == {}
    assert tools_of([{"name": "a"}]) == {"a": None}


def test_functions_get_the_schema_of_their_signature() -> None:
    def find(
        what: str,
        many: int = 3,
        *rest: str,
        where: list[str] | None = None,
        how: Literal["a", "b"] = "a",
        near: Annotated[float, "km"] = 1,
        plain=None,
        odd: Any = None,
        both: dict[str, int] | complex = 1j,
    ) -> None: ...

    def any_key(**more: int) -> None: ...

    assert tools_of([find, any_key]) == {
        "find": {
            "type": "object",
            "properties": {
                "what": {"type": "string"},
                "many": {"type": "integer"},
                "where": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                "how": {"enum": ["a", "b"]},
                "near": {"type": "number"},
                "plain": {},
                "odd": {},
                "both": {},
            },
            "required": ["what"],
            "additionalProperties": False,
        },
        "any_key": {"type": "object", "properties": {}},
    }


def test_unresolvable_annotations_are_ignored() -> None:
    def late(what: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert tools_of([late])["late"]["properties"] == {"what": {}}  # type: ignore[index]


@pytest.mark.parametrize("wrong", [3, None, {"description": "no name"}, {"name": 3}, {"function": {}}, object()])
def test_an_invalid_tool_is_reported(wrong: object) -> None:
    with pytest.raises(TypeError, match="is not a tool: pass a name"):
        Parser([wrong])


@pytest.mark.parametrize("wrong", ["get_weather", {"type": "function", "function": {"name": "f"}}, {"name": "f"}])
def test_a_single_tool_is_not_a_list_of_tools(wrong: Any) -> None:
    with pytest.raises(TypeError, match="pass a list of"):
        Parser(wrong)


def test_a_call_reports_whether_it_is_complete() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call><tool_call>{"name": "f", "arguments": {"a": "b'
    _, calls = parse(text)
    assert calls == [Call("f", '{"a": "b"}'), Call("f", '{"a": "b', complete=False)]
    assert [call.repairs for call in calls] == [(), ()]
