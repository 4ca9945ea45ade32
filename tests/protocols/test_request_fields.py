"""Fields of requests and tools: every field in the SDKs is documented, and those that affect the model take effect."""

import json
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from anthropic.types import beta, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from google.genai import types as genai_types
from ollama import _types
from openai.types.chat import completion_create_params
from openai.types.responses import CustomToolParam, FunctionToolParam, response_create_params
from openai.types.shared_params import FunctionDefinition
from support.dialects import ALL_CLIENTS

from streamtool.core.errors import RequestError
from streamtool.prompting.tool_prompt import build_tool_prompt
from streamtool.protocols import messages, responses
from streamtool.protocols.chat import request_fields as of_chat
from streamtool.protocols.decisions import Field
from streamtool.protocols.gemini import request_fields as of_gemini
from streamtool.protocols.messages import request_fields as of_messages
from streamtool.protocols.messages.upstream import write_request
from streamtool.protocols.ollama import request_fields as of_ollama
from streamtool.protocols.responses import request_fields as of_responses
from streamtool.settings import LimitSettings, Settings

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
LATER = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
SHARED = {**LOOK, "description": "Looks. " * 200}
"""A tool that requests share, because it is long."""
REFERENCE = {"type": "tool_reference", "tool_name": "later"}


def fields_of(*types: Any) -> set[str]:
    return {name for kind in types for name in typing.get_type_hints(kind, include_extras=True)}


def modelled(kind: Any) -> set[str]:
    """Return the wire names of a pydantic model's fields."""
    return {field.alias or name for name, field in kind.model_fields.items()}


CONFIG = modelled(genai_types.GenerationConfig) | {"imageConfig"}
"""Fields of `generationConfig`; the SDK puts `imageConfig` there as well."""
OF_THE_SDK = {
    *("automaticContinuation", "automaticFunctionCalling", "generationOutputConfig", "httpOptions"),
    "shouldReturnHttpResponse",
}
"""Fields that the SDK uses only itself, or does not send to the Gemini API."""


@pytest.mark.parametrize(
    ("table", "known"),
    [
        (of_chat.REQUEST_FIELDS.rows, fields_of(completion_create_params.CompletionCreateParamsStreaming)),
        (of_chat.TOOL_FIELDS, fields_of(FunctionDefinition)),
        (
            of_messages.REQUEST_FIELDS.rows,
            fields_of(
                message_create_params.MessageCreateParamsStreaming,
                beta_message_create_params.MessageCreateParamsStreaming,
            ),
        ),
        (of_messages.TOOL_FIELDS, fields_of(beta.BetaToolParam)),
        (of_responses.REQUEST_FIELDS.rows, fields_of(response_create_params.ResponseCreateParamsStreaming)),
        (of_responses.TOOL_FIELDS, fields_of(FunctionToolParam, CustomToolParam)),
        (
            of_ollama.REQUEST_FIELDS.rows,
            modelled(_types.ChatRequest)
            | modelled(_types.GenerateRequest)
            | {f"options.{name}" for name in modelled(_types.Options)},
        ),
        (of_ollama.TOOL_FIELDS, modelled(_types.Tool.Function)),
        (
            of_gemini.REQUEST_FIELDS.rows,
            {"model", "contents", "generationConfig"}
            | (modelled(genai_types.GenerateContentConfig) - CONFIG - OF_THE_SDK)
            | {f"generationConfig.{name}" for name in CONFIG},
        ),
        (of_gemini.TOOL_FIELDS, modelled(genai_types.FunctionDeclaration)),
    ],
    ids=[f"{name}{of}" for name in ALL_CLIENTS for of in ("", "-tool")],
)
def test_every_field_in_the_sdks_is_documented(table: Mapping[str, Field], known: set[str]):
    assert known - table.keys() == set()


def test_fields_specific_to_the_origin_are_not_among_the_supported_ones():
    sent = asked(LOOK, service_tier="auto", stop_sequences=["x"], inference_geo=None)
    assert messages.REQUEST_FIELDS.dropped(sent, "chat", prompted=True) == ["service_tier"]
    limited = requested(FUNCTION, max_tool_calls=3)
    assert responses.REQUEST_FIELDS.dropped(limited, "chat", prompted=True) == ["max_tool_calls"]


# --- Messages


def asked(*tools: Any, said: Any = ({"role": "user", "content": "hi"},), **more: Any) -> Any:
    body = {"model": "m", "max_tokens": 9, "messages": list(said), "tools": list(tools), **more}
    return messages.read_request(json.dumps(body).encode(), LimitSettings())


def names(*tools: Any, **more: Any) -> list[str]:
    return [tool.name for tool in asked(*tools, **more).tools]


def answered(*content: Any) -> list[Any]:
    """Return a call of the client's own search, and its result."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": list(content)}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def change(kind: str, tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


BY_NAME = {"type": "tool_reference", "name": "later"}


@pytest.mark.parametrize(
    ("said", "more", "offered"),
    [
        ([], {}, ["look"]),
        (answered({"type": "text", "text": "later"}), {}, ["look"]),
        (answered(REFERENCE), {}, ["look", "later"]),
        ([], {"tool_choice": {"type": "tool", "name": "later"}}, ["look", "later"]),
        ([change("tool_addition", BY_NAME)], {}, ["look", "later"]),
        ([change("tool_addition", BY_NAME), change("tool_removal", BY_NAME)], {}, ["look"]),
        ([change("tool_removal", {"type": "tool_reference", "name": "look"})], {}, []),
        (
            [change("tool_addition", {"type": "tool_definition", "definition": {**LOOK, "name": "new"}})],
            {},
            ["look", "new"],
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "compaction",
                            "content": "We looked.",
                            "tool_changes": [{"type": "tool_addition", "tool": BY_NAME}],
                        }
                    ],
                }
            ],
            {},
            ["look", "later"],
        ),
    ],
    ids=[
        "nothing",
        "only text",
        "found by a search",
        "chosen",
        "added",
        "added and removed",
        "removed",
        "defined",
        "compacted",
    ],
)
def test_a_deferred_tool_is_offered_when_the_conversation_refers_to_it(said: Any, more: Any, offered: list[str]):
    user = {"role": "user", "content": "hi"}
    for look in (LOOK, SHARED, SHARED):
        assert names(look, LATER, said=[*said, user] if said else [user], **more) == offered


def test_messages_requests_with_the_same_tools_share_what_was_read():
    user = {"role": "user", "content": "hi"}
    tools = asked(SHARED, said=[user]).tools
    assert asked(SHARED, said=[*answered(REFERENCE), user]).tools is tools
    assert asked(SHARED, LATER, said=[user]).tools == tools
    assert asked(SHARED, said=[change("tool_removal", {"type": "tool_reference", "name": "look"}), user]).tools == ()
    assert asked(SHARED, said=[user]).tools is tools


def test_all_tools_are_offered_if_only_the_origin_can_search():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert names(LOOK, LATER, search) == ["look", "later"]
    assert names(LATER) == ["later"]


def test_a_deferred_tool_is_passed_to_an_upstream_that_searches_itself():
    sent = json.loads(write_request(asked(LOOK, LATER), Settings().for_model("m"), stream=True))
    assert sent["tools"] == [LOOK, LATER]


def test_a_tool_callable_only_by_code_is_left_out_and_recorded():
    code = {**LOOK, "name": "code", "allowed_callers": ["code_execution_20260120"]}
    both = {**LOOK, "name": "both", "allowed_callers": ["direct", "code_execution_20260120"]}
    found = asked(code, both)
    assert [tool.name for tool in found.tools] == ["both"]
    assert found.dropped == ("tool code, which only code may call",)
    with pytest.raises(RequestError, match="names `code`"):
        asked(code, both, tool_choice={"type": "tool", "name": "code"})


def test_the_summary_of_a_compaction_is_kept():
    block = {"type": "compaction", "content": "They want a red door.", "encrypted_content": "x"}
    failed = {"type": "compaction", "content": None}
    [first, *_] = asked(
        LOOK, said=[{"role": "assistant", "content": [failed, block]}, {"role": "user", "content": "Go on."}]
    ).messages
    assert first.text == "[What was said before, in short]\nThey want a red door."


@pytest.mark.parametrize("style", ["compact", "json", "markdown"])
def test_examples_are_in_the_tool_prompt(style: str):
    long = {"at": "x" * 3000}
    [tool] = asked({**LOOK, "input_examples": [{"at": "the sky"}, long, {"at": "the sea"}, {"at": "the fourth"}]}).tools
    said = build_tool_prompt([tool], "tool_call", Settings(schema=style).for_model("m")).text  # type: ignore[arg-type]
    assert 'Example: {"at": "the sky"}' in said
    assert 'Example: {"at": "the sea"}' in said
    assert "the fourth" not in said
    assert "xxx" not in said


# --- Responses

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
DEFERRED = {**FUNCTION, "name": "later", "defer_loading": True}
SEARCH = {"type": "tool_search", "execution": "client"}


def requested(*tools: Any, input: Any = "hi", **more: Any) -> Any:  # noqa: A002  the name of the field
    body = {"model": "m", "input": input, "tools": list(tools), **more}
    return responses.read_request(json.dumps(body).encode(), LimitSettings())


def test_with_client_side_search_a_deferred_tool_is_offered_once_found():
    group = {"type": "namespace", "name": "g", "description": "More.", "tools": [{**DEFERRED, "name": "inner"}]}

    def offered(*tools: Any, **more: Any) -> list[str]:
        return [tool.name for tool in requested(*tools, **more).tools]

    assert offered(FUNCTION, DEFERRED, group) == ["look", "later", "g.inner"]
    assert offered(FUNCTION, DEFERRED, group, {"type": "tool_search"}) == ["look", "later", "g.inner"]
    assert offered(FUNCTION, DEFERRED, group, SEARCH) == ["look", "tool_search"]
    choice = {"type": "function", "name": "later"}
    assert offered(FUNCTION, DEFERRED, SEARCH, tool_choice=choice) == ["look", "later", "tool_search"]
    found = [
        {"role": "user", "content": "hi"},
        {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "x"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [DEFERRED]},
    ]
    assert offered(FUNCTION, DEFERRED, group, SEARCH, input=found) == ["look", "later", "tool_search"]


def test_responses_requests_with_the_same_tools_share_what_was_read():
    shared = {**FUNCTION, "description": "Looks. " * 200}
    tools = requested(shared, DEFERRED).tools
    assert [tool.name for tool in tools] == ["look", "later"]
    assert requested(shared, DEFERRED).tools is tools
    more = {"type": "additional_tools", "role": "developer", "tools": [{**FUNCTION, "name": "more"}]}
    found = requested(shared, DEFERRED, input=[more, {"role": "user", "content": "hi"}])
    assert [tool.name for tool in found.tools] == ["look", "later", "more"]
    assert requested(shared, DEFERRED).tools is tools
    searched = [requested(shared, DEFERRED, SEARCH).tools for _ in range(2)]
    assert [[tool.name for tool in tools] for tools in searched] == [["look", "tool_search"]] * 2


def test_the_output_schema_of_a_function_is_in_the_tool_prompt():
    returns = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}
    [tool] = requested({**FUNCTION, "output_schema": returns}).tools
    said = build_tool_prompt([tool], "tool_call", Settings().for_model("m")).text
    assert 'Returns: {sky: "blue"|"grey"}' in said


def test_a_function_callable_only_by_code_is_left_out_and_recorded():
    found = requested(FUNCTION, {**FUNCTION, "name": "code", "allowed_callers": ["programmatic"]})
    assert [tool.name for tool in found.tools] == ["look"]
    assert found.dropped == ("tool code, which only code may call",)
