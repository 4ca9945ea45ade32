"""A forced call, constrained by a grammar or a schema: a random model writes the call that the client demands."""

import json
from typing import Any

import jsonschema_rs
import pytest
from support.engine import Engine
from support.validators import assert_valid, validate_chat_whole

from statemachine import FORMATS
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings, UpstreamSettings
from streamtool.testing import stream_asgi
from streamtool.upstream.app import HttpUpstream

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
"""Schemas without unbounded strings, which the random model would rarely close."""
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
TOKENS = 400
NAME_ONLY = frozenset(("openai_fragment", "minimax_flags", "gemma4", "functiongemma"))
"""Formats whose grammar constrains only opener and name: the model may never end the arguments."""


async def answer(llama: Engine, format: str, protocol: str, forcing: str, **changes: Any) -> tuple[Any, Record]:
    """Return the choice that the client receives, and the record, for a request that demands one call, with
    `changes`.
    """
    records: list[Record] = []
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "noise", "messages": messages, "tools": TOOLS, "tool_choice": "required", "max_tokens": TOKENS}
    body |= {"parallel_tool_calls": False, **changes}
    settings = Settings(format=format, retries=0, app_protocol=protocol, app_forcing=forcing)
    async with HttpUpstream(UpstreamSettings("llama", llama.url, protocol=protocol)) as upstream:
        middleware = ToolMiddleware(upstream, settings=settings, on_exchange=records.append)
        async with stream_asgi(middleware, PATH, body=json.dumps(body).encode()) as reply:
            data = await reply.body()
    if format in NAME_ONLY and reply.status == 502:  # a whole reply contains no call that cannot be read
        assert json.loads(data)["error"]["code"] == "malformed_call"
        return None, records[0]
    assert reply.status == 200
    assert_valid(validate_chat_whole(data, body))
    return json.loads(data)["choices"][0], records[0]


def check(choice: Any) -> None:
    """Check that it is one complete call of an offered tool."""
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
async def test_a_grammar_forces_a_call(llama: Engine, format: str, protocol: str):
    choice, record = await answer(llama, format, protocol, "grammar")
    assert (record.forced, record.format) == ("grammar", format)
    if format in NAME_ONLY:
        assert dict(record.found).get(format), "a call has begun"
    else:
        check(choice)


@pytest.mark.parametrize("forcing", ["grammar", "schema"])
async def test_a_named_tool_is_called(llama: Engine, forcing: str):
    named = {"type": "function", "function": {"name": "ping"}}
    choice, record = await answer(llama, "tool_call", "chat", forcing, tool_choice=named)
    check(choice)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "ping"
    assert record.forced == forcing


async def test_a_grammar_forces_a_single_call(llama: Engine):
    choice, _ = await answer(llama, "tool_call", "chat", "grammar", parallel_tool_calls=True)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    check_arguments(call)


@pytest.mark.parametrize("format", ["tool_call", "invoke", "pythonic"])
async def test_a_schema_forces_a_call(llama: Engine, format: str):
    choice, record = await answer(llama, format, "chat", "schema")
    check(choice)
    assert record.forced == "schema"


async def test_an_unsupported_forcing_method_is_left_out(llama: Engine):
    _, record = await answer(llama, "tool_call", "chat", "structural_tag")
    assert record.forced == "prompt"
    assert record.attempts == ("forcing unsupported",)


@pytest.mark.parametrize("protocol", ["chat", "completions"])
@pytest.mark.parametrize("format", ["tool_call", "qwen3_coder", "mistral"])
async def test_without_forcing_text_is_unchanged(llama: Engine, format: str, protocol: str):
    choice, record = await answer(llama, format, protocol, "grammar", tool_choice="auto", max_tokens=60)
    assert record.forced == "grammar"
    assert choice["message"]["content"] or choice["message"]["tool_calls"]


async def test_nested_bounds_stay_below_the_repetition_limit_of_the_engine(llama: Engine):
    words = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 50}}
    schema = {"type": "object", "properties": {"tags": words}, "required": ["tags"]}
    tools = [{"type": "function", "function": {"name": "tag_all", "description": "A tool.", "parameters": schema}}]
    _, record = await answer(llama, "tool_call", "chat", "grammar", tools=tools, max_tokens=40)
    assert (record.forced, record.attempts) == ("grammar", ())
