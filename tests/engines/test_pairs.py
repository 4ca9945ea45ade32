"""Each client protocol over each protocol that llama.cpp's server speaks: the official clients, over sockets.

The model writes noise. Whatever it is, the client receives what its protocol allows, and counts of tokens that are the
engine's own.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import httpx
import openai
import pytest
from dialects import CLIENTS, PATHS, Ask, read, write
from engines.engine import START, Engine
from servers import hypercorn_server, uvicorn_server
from test_matrix import VALIDATORS

from streamtool import Proxy, Settings
from streamtool.testing import assert_valid

pytestmark = pytest.mark.engines
UPSTREAMS = ("chat", "messages", "completions")
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOKENS = 40
LIMITS = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}
upstreams = pytest.mark.parametrize("upstream", UPSTREAMS)


@pytest.fixture(scope="module", params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def addresses(request: pytest.FixtureRequest, llama: Engine) -> Iterator[dict[str, str]]:
    """Upstream protocol -> the address of a proxy that speaks it with the engine."""
    with ExitStack() as stack:
        found = {}
        for upstream in UPSTREAMS:
            settings = Settings(upstreams={"llama": {"url": llama.url, "protocol": upstream}}, retries=0)
            found[upstream] = stack.enter_context(request.param(Proxy(settings))).url
        yield found


def asked(protocol: str, **changes: Any) -> dict[str, Any]:
    ask = Ask((("system", "Be short."), ("user", "hi")), (("ping", "Pings.", SCHEMA),), **changes)
    return {**write(protocol, ask), LIMITS[protocol]: TOKENS}


def without_stream(protocol: str) -> dict[str, Any]:
    body = asked(protocol)
    del body["stream"]
    body.pop("stream_options", None)
    return body


@upstreams
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_whatever_comes_is_legal(addresses: dict[str, str], client: str, upstream: str, stream: bool, choice: str):
    body = asked(client, stream=stream, choice=choice)
    reply = httpx.post(addresses[upstream] + PATHS[client], json=body, timeout=START)
    assert reply.status_code == 200
    streamed, whole, _ = VALIDATORS[client]
    assert_valid(streamed(reply.content, body, headers=reply.headers.raw) if stream else whole(reply.content, body))
    got = read(client, reply.content, stream=stream)
    assert got.error is None
    assert got.parts
    assert got.usage is not None
    assert got.usage[0] > 0  # Messages counts what is cached elsewhere
    assert 0 < got.usage[1] <= TOKENS


@upstreams
def test_the_client_of_chat(addresses: dict[str, str], upstream: str):
    with openai.OpenAI(base_url=f"{addresses[upstream]}/v1", api_key="none", max_retries=0, timeout=START) as client:
        chunks = list(client.chat.completions.create(**without_stream("chat"), stream=True))
        whole = client.chat.completions.create(**without_stream("chat")).choices[0]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [*reasons, whole.finish_reason] == ["length", "length"]


@upstreams
def test_the_client_of_messages(addresses: dict[str, str], upstream: str):
    with anthropic.Anthropic(base_url=addresses[upstream], api_key="none", max_retries=0, timeout=START) as client:
        with client.messages.stream(**without_stream("messages")) as events:
            message = events.get_final_message()
        whole = client.messages.create(**without_stream("messages"))
    for found in (message, whole):
        assert found.content[0].text
        assert found.stop_reason == "max_tokens"


@upstreams
def test_the_client_of_responses(addresses: dict[str, str], upstream: str):
    with openai.OpenAI(base_url=f"{addresses[upstream]}/v1", api_key="none", max_retries=0, timeout=START) as client:
        *_, last = client.responses.create(**without_stream("responses"), stream=True)
        whole = client.responses.create(**without_stream("responses"))
    for found in (last.response, whole):
        assert found.output_text
        assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@upstreams
def test_the_model_is_listed(addresses: dict[str, str], upstream: str):
    names = [model["id"] for model in httpx.get(f"{addresses[upstream]}/v1/models").json()["data"]]
    assert [name.rpartition("/")[2] for name in names] == ["noise.gguf"]


def test_each_upstream_protocol_gives_the_model_the_same_prompt(addresses: dict[str, str]):
    counts = set()
    for upstream in UPSTREAMS:
        reply = httpx.post(addresses[upstream] + PATHS["chat"], json=asked("chat", stream=False), timeout=START)
        counts.add(json.loads(reply.content)["usage"]["prompt_tokens"])
    assert len(counts) == 1
