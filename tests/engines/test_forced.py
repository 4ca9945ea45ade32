"""A call that the client demands, held by a grammar or a schema: whatever the model would say, it is the call."""

import json
from typing import Any

import jsonschema_rs
import pytest
from engines.engine import Engine

from statemachine import FORMATS
from streamtool.exchange import Record
from streamtool.http.middleware import ToolMiddleware
from streamtool.http.upstream import HttpUpstream
from streamtool.settings import Settings, UpstreamSettings
from streamtool.testing import assert_valid, stream_asgi, validate_chat_whole

pytestmark = [pytest.mark.engines, pytest.mark.anyio]
PATH = "/v1/chat/completions"
SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer"}, "wet": {"type": "boolean"}},
        "required": ["city", "days", "wet"],
    },
    "ping": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}
"""Values that come to an end by themselves: a string goes on until the model closes it, and this one knows of no end."""
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
TOKENS = 400
NAME_ONLY = frozenset(
    ("openai_fragment", "minimax_flags", "pythonic", "olmo3", "lfm2", "gemma4", "functiongemma", "tool_code")
)
"""Formats of which the grammar holds opener and name: the model may write on for ever in the arguments."""


async def answer(llama: Engine, format: str, protocol: str, forcing: str, **changes: Any) -> tuple[Any, Record]:
    """The choice that the client receives, and the record. It demands one call; `changes` are fields of its request."""
    records: list[Record] = []
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "noise", "messages": messages, "tools": TOOLS, "tool_choice": "required", "max_tokens": TOKENS}
    body |= {"parallel_tool_calls": False, **changes}
    settings = Settings(format=format, retries=0, app_protocol=protocol, app_forcing=forcing)
    async with HttpUpstream(UpstreamSettings("llama", llama.url, protocol=protocol)) as upstream:
        middleware = ToolMiddleware(upstream, settings=settings, on_exchange=records.append)
        async with stream_asgi(middleware, PATH, body=json.dumps(body).encode()) as reply:
            data = await reply.body()
    assert reply.status == 200
    assert_valid(validate_chat_whole(data, body))
    return json.loads(data)["choices"][0], records[0]


def check(choice: Any) -> None:
    """It is one complete call of an offered tool."""
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    check_arguments(call)


def check_arguments(call: Any) -> None:
    schema = SCHEMAS[call["function"]["name"]]
    assert jsonschema_rs.is_valid(schema, json.loads(call["function"]["arguments"]))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("protocol", ["chat", "completions"])
@pytest.mark.parametrize("format", FORMATS)
async def test_a_grammar_holds_the_model_to_a_call(llama: Engine, format: str, protocol: str):
    choice, record = await answer(llama, format, protocol, "grammar")
    assert (record.forced, record.format) == ("grammar", format)
    if format in NAME_ONLY:
        assert [call["function"]["name"] in SCHEMAS for call in choice["message"]["tool_calls"]] == [True]
    else:
        check(choice)


@pytest.mark.parametrize("forcing", ["grammar", "schema"])
async def test_a_named_tool_is_the_one_that_is_called(llama: Engine, forcing: str):
    named = {"type": "function", "function": {"name": "ping"}}
    choice, record = await answer(llama, "tool_call", "chat", forcing, tool_choice=named)
    check(choice)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "ping"
    assert record.forced == forcing


async def test_a_grammar_allows_several_calls(llama: Engine):
    choice, _ = await answer(llama, "tool_call", "chat", "grammar", parallel_tool_calls=True)
    *calls, _ = choice["message"]["tool_calls"]
    assert calls
    assert choice["finish_reason"] == "length"  # it never has enough
    for call in calls:
        check_arguments(call)


@pytest.mark.parametrize("format", ["tool_call", "invoke", "pythonic"])
async def test_a_schema_holds_the_model_to_a_call(llama: Engine, format: str):
    choice, record = await answer(llama, format, "chat", "schema")
    check(choice)
    assert record.forced == "schema"


async def test_a_method_that_the_engine_refuses_is_left_out(llama: Engine):
    _, record = await answer(llama, "tool_call", "chat", "structural_tag")
    assert record.forced == "prompt"
    assert record.attempts == ("forcing unsupported",)


@pytest.mark.parametrize("protocol", ["chat", "completions"])
@pytest.mark.parametrize("format", ["tool_call", "qwen3_coder", "mistral"])
async def test_a_free_choice_leaves_text_as_it_is(llama: Engine, format: str, protocol: str):
    choice, record = await answer(llama, format, protocol, "grammar", tool_choice="auto", max_tokens=60)
    assert record.forced == "grammar"
    assert choice["message"]["content"] or choice["message"]["tool_calls"]


async def test_bounds_inside_of_bounds_are_no_repetition_that_the_engine_refuses(llama: Engine):
    words = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 50}}
    schema = {"type": "object", "properties": {"tags": words}, "required": ["tags"]}
    tools = [{"type": "function", "function": {"name": "tag_all", "description": "A tool.", "parameters": schema}}]
    _, record = await answer(llama, "tool_call", "chat", "grammar", tools=tools, max_tokens=40)
    assert (record.forced, record.attempts) == ("grammar", ())
