"""Properties that hold for any model, with small real ones on llama.cpp's server.

The models are weak, so nothing here depends on what they say: a demanded call is made in every protocol and is valid,
no markup reaches the client, no reply runs to its limit, the prefix cache survives, and a client that leaves frees the
slot.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, groupby, pairwise, product
from typing import Any

import anthropic
import httpx
import jsonschema_rs
import openai
import pytest
from attrs import evolve
from support.dialects import ALL_CLIENTS, PATHS, WITH_CHOICE, Ask, path, read, write
from support.engine import START, Engine
from support.servers import RawClient, uvicorn_server, wait_for

from statemachine import FORMATS
from streamtool import Proxy, Settings

pytestmark = pytest.mark.models
CALLED = "get_weather"
LIMIT = 600
"""Tokens of a reply; the longest valid calls have about 40 each, and a grammar allows eight."""
SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    },
    "set_alarm": {
        "type": "object",
        "properties": {"hour": {"type": "integer"}, "label": {"type": "string", "maxLength": 20}},
        "required": ["hour"],
    },
}
TOOLS = (
    ("get_weather", "Get the weather in a city.", SCHEMAS["get_weather"]),
    ("set_alarm", "Set an alarm.", SCHEMAS["set_alarm"]),
)
ASK = Ask((("user", "What is the weather in Oslo?"),), TOOLS)
MARKUP = ("<tool_call", "</tool_call", "<invoke", "</invoke", "<parameter", "[TOOL_CALLS]", "<|im_", '{"name":')
LIMITS = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}


@contextmanager
def proxy(engine: Engine, protocol: str, **settings: Any) -> Iterator[str]:
    """Run a proxy that uses this protocol with the engine."""
    forcing = settings.pop("forcing", "auto")
    upstreams = {"llama": {"url": engine.url, "protocol": protocol, "forcing": forcing}}
    with uvicorn_server(Proxy(Settings(upstreams=upstreams, **settings))) as served:
        yield served.url


def reply_to(url: str, client: str, ask: Ask) -> Any:
    """Send a request in a client's protocol and return the reply."""
    body = write(client, ask)
    if client in LIMITS:
        body[LIMITS[client]] = LIMIT
    answer = httpx.post(f"{url}{path(client, stream=ask.stream)}", json=body, timeout=START, trust_env=False)
    assert answer.status_code == 200, answer.text
    return read(client, answer.content, stream=ask.stream)


def check_calls(reply: Any) -> None:
    """Check that the reply consists of valid calls and ended by itself."""
    assert reply.reason == "calls"
    assert reply.parts
    for name, arguments in reply.parts:
        jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments) if isinstance(arguments, str) else arguments)


@pytest.mark.parametrize(("protocol", "forcing"), [("chat", "schema"), ("completions", "grammar")])
@pytest.mark.parametrize("client", WITH_CHOICE)
def test_a_demanded_call_is_a_valid_call(chat_model: Engine, client: str, protocol: str, forcing: str):
    with proxy(chat_model, protocol, forcing=forcing) as url:
        for stream in (True, False):
            check_calls(reply_to(url, client, evolve(ASK, choice="required", stream=stream)))


def check_demanded_calls(engine: Engine, demands: Iterable[tuple[str, str]]) -> None:
    """Check, with default settings, that a demanded tool is called in each of these formats and client protocols."""
    for format, group in groupby(demands, lambda demand: demand[0]):
        with uvicorn_server(Proxy(Settings(upstreams={"llama": {"url": engine.url}}, format=format))) as served:
            for number, (_, client) in enumerate(group):
                reply = reply_to(served.url, client, evolve(ASK, choice=CALLED, stream=number % 2 == 0))
                check_calls(reply)
                assert {name for name, _ in reply.parts} == {CALLED}, (format, client)


@pytest.mark.long
@pytest.mark.usefixtures("asking")
@pytest.mark.timeout(7200)
def test_the_demanded_tool_is_called_in_every_format_and_protocol(chat_model: Engine):
    check_demanded_calls(chat_model, product(FORMATS, WITH_CHOICE))


@pytest.mark.long
@pytest.mark.usefixtures("asking")
@pytest.mark.timeout(7200)
def test_a_base_model_calls_the_demanded_tool_in_every_format(base_model: Engine):
    """A vocabulary of 262,144 tokens makes a constraint slow, so each format is tried with one protocol."""
    check_demanded_calls(base_model, zip(FORMATS, cycle(WITH_CHOICE), strict=False))


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_no_markup_reaches_the_client(chat_model: Engine, client: str):
    with proxy(chat_model, "chat") as url:
        reply = reply_to(url, client, ASK)
    texts = [part for part in reply.parts if isinstance(part, str)]
    assert not [mark for mark in MARKUP for text in texts if mark in text]


def test_a_conversation_keeps_the_prefix_cache(chat_model: Engine):
    messages: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say hello."}]
    tools: Any = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
        for name, about, schema in TOOLS
    ]
    counts = []
    with (
        proxy(chat_model, "chat") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START) as client,
    ):
        for turn in range(10):
            reply = client.chat.completions.create(model="m", messages=messages, tools=tools, max_tokens=16)
            counts.append(reply.usage)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            messages.append({"role": "user", "content": f"And now say {turn}."})
    for before, now in pairwise(counts):
        assert now.prompt_tokens_details.cached_tokens >= before.prompt_tokens


def test_the_second_turn_of_an_agent_processes_only_what_is_new(chat_model: Engine):
    """Each request has another billing line and another time of day, as from Claude Code and from Home Assistant."""
    tools: Any = [
        {"name": name, "description": about, "input_schema": schema} for name, about, schema in TOOLS if name == CALLED
    ]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    counts = []
    with (
        proxy(chat_model, "chat", format="tool_call") as url,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=START) as client,
    ):
        for turn in range(3):
            billing = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={turn:05x};"
            now = f"Current time is 10:3{turn}:12. Today's date is 2026-11-27."
            system: Any = [{"type": "text", "text": text} for text in (billing, now, "Rule: be brief.\n" * 40)]
            reply = client.messages.create(
                model="m",
                system=system,
                messages=messages,
                tools=tools,
                tool_choice={"type": "tool", "name": CALLED},
                max_tokens=LIMIT,
            )
            counts.append(reply.usage)
            (call,) = [block for block in reply.content if block.type == "tool_use"]
            messages.append({"role": "assistant", "content": reply.content})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": f"{turn} °C"}
            messages.append({"role": "user", "content": [result]})
    for before, now in pairwise(counts):
        prompt = before.input_tokens + before.cache_read_input_tokens
        assert prompt > 300
        assert now.cache_read_input_tokens >= prompt
        assert now.input_tokens < 100 + before.output_tokens  # a grammar divides the reply into other tokens


def test_a_client_that_leaves_frees_the_slot(chat_model: Engine):
    body = json.dumps({**write("chat", Ask((("user", "Count to one thousand."),))), "max_tokens": 10_000}).encode()
    wait_for(lambda: not chat_model.busy(), "no request is open", START)
    before = chat_model.decoded()
    with uvicorn_server(Proxy(Settings(upstreams={"llama": {"url": chat_model.url}}))) as served:
        with RawClient(served.port, body, PATHS["chat"]) as left:
            left.until(b'"content":"')
            left.leave()
        wait_for(lambda: not chat_model.busy(), "the slot is free", START)
    assert chat_model.decoded() - before < 2000


@pytest.mark.long
@pytest.mark.parametrize("format", ["tool_call", "invoke", "qwen3_coder", "pythonic"])
def test_a_base_model_is_forced_to_call(base_model: Engine, format: str):
    with proxy(base_model, "completions", forcing="grammar", format=format) as url:
        check_calls(reply_to(url, "chat", evolve(ASK, choice="required")))
