"""A conversation of ten turns: the engine finds the whole previous prompt in its cache, and with verbatim history its
own reply too. A grammar sent by the client makes the model write a call in a spelling that `write` never uses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest
from attrs import frozen
from support.engine import START, Engine
from support.servers import uvicorn_server

from streamtool import Proxy, Settings

pytestmark = pytest.mark.engines
TURNS = 10
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SPELLING = r'root ::= "Now:\n<tool_call>\n{\"name\" : \"ping\" , \"arguments\" :{\"n\" :   " [1-9] "}}\n</tool_call>"'
TOOL: Any = {"type": "function", "function": {"name": "ping", "description": "Pings.", "parameters": SCHEMA}}
upstreams = pytest.mark.parametrize("protocol", ["chat", "messages", "completions"])


@frozen
class Count:
    """Token usage of a turn, as reported by the engine."""

    prompt: int
    cached: int
    written: int


@contextmanager
def proxy(llama: Engine, protocol: str, **settings: Any) -> Iterator[str]:
    """Return a proxy that uses this protocol with the engine."""
    upstreams = {"llama": {"url": llama.url, "protocol": protocol}}
    with uvicorn_server(Proxy(Settings(upstreams=upstreams, retries=0, **settings))) as served:
        yield served.url


def of_chat(usage: Any) -> Count:
    return Count(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens)


def of_messages(usage: Any) -> Count:
    cached = usage.cache_read_input_tokens
    return Count(usage.input_tokens + cached, cached, usage.output_tokens)


@pytest.mark.parametrize("verbatim", [True, False], ids=["verbatim", "written"])
def test_calls_are_cached_as_the_model_wrote_them(llama: Engine, verbatim: bool):
    messages: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Count with ping."}]
    counts = []
    with (
        proxy(llama, "chat", verbatim=verbatim) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START) as client,
    ):
        for turn in range(TURNS):
            reply = client.chat.completions.create(
                model="noise", messages=messages, tools=[TOOL], max_tokens=200, extra_body={"grammar": SPELLING}
            )
            counts.append(of_chat(reply.usage))
            (call,) = reply.choices[0].message.tool_calls
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"Pong {turn}."})
    for before, now in pairwise(counts):
        assert now.prompt > before.prompt + before.written
        assert now.cached >= before.prompt
        assert (now.cached >= before.prompt + before.written - 1) == verbatim


@upstreams
def test_a_chat_client_finds_the_previous_prompt_in_the_cache(llama: Engine, protocol: str):
    messages: list[Any] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Count."}]
    counts = []
    with (
        proxy(llama, protocol) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START) as client,
    ):
        for _ in range(TURNS):
            reply = client.chat.completions.create(model="noise", messages=messages, tools=[TOOL], max_tokens=20)
            counts.append(of_chat(reply.usage))
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": "Go on."})
    for before, now in pairwise(counts):
        assert now.cached >= before.prompt


@upstreams
def test_a_messages_client_finds_the_previous_prompt_in_the_cache(llama: Engine, protocol: str):
    tool: Any = {"name": "ping", "description": "Pings.", "input_schema": SCHEMA}
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    counts = []
    with (
        proxy(llama, protocol) as url,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=START) as client,
    ):
        for _ in range(TURNS):
            reply = client.messages.create(model="noise", messages=messages, tools=[tool], max_tokens=20)
            counts.append(of_messages(reply.usage))
            messages.append({"role": "assistant", "content": reply.content})
            messages.append({"role": "user", "content": "Go on."})
    for before, now in pairwise(counts):
        assert now.cached >= before.prompt
