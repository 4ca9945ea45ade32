"""Each client protocol over each protocol of an engine: the official clients, over sockets.

The model writes noise. Whatever it is, the client receives a valid reply, and the token usage of the engine.
"""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from support.dialects import CLIENTS, PATHS, Ask, read, write
from support.engine import START, Engine
from support.protocol_validators import VALIDATORS
from support.servers import hypercorn_server, uvicorn_server
from support.validators import assert_valid

from streamtool import Proxy, Settings

pytestmark = pytest.mark.engines
SPOKEN = {"llama": ("chat", "messages", "completions"), "transformers": ("chat", "completions")}
"""Engine → the protocols of its server."""
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOKENS = 40
LIMITS = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}
SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server}
PLACES = [(server, engine, protocol) for server in SERVERS for engine in SPOKEN for protocol in SPOKEN[engine]]


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a proxy that uses one protocol with one engine."""
    server, name, protocol = request.param
    engine: Engine = request.getfixturevalue(name)
    settings = Settings(upstreams={name: {"url": engine.url, "protocol": protocol}}, retries=0)
    with SERVERS[server](Proxy(settings)) as served:
        yield served.url


def asked(protocol: str, **changes: Any) -> dict[str, Any]:
    ask = Ask((("system", "Be short."), ("user", "hi")), (("ping", "Pings.", SCHEMA),), **changes)
    return {**write(protocol, ask), "model": "noise", LIMITS[protocol]: TOKENS}


def without_stream(protocol: str) -> dict[str, Any]:
    body = asked(protocol)
    del body["stream"]
    body.pop("stream_options", None)
    return body


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_every_reply_is_valid(url: str, client: str, stream: bool, choice: str):
    body = asked(client, stream=stream, choice=choice)
    reply = httpx.post(url + PATHS[client], json=body, timeout=START)
    assert reply.status_code == 200
    streamed, whole, _ = VALIDATORS[client]
    assert_valid(streamed(reply.content, body, headers=reply.headers.raw) if stream else whole(reply.content, body))
    got = read(client, reply.content, stream=stream)
    assert got.error is None
    assert got.parts or (not stream and got.reason == "length"), "a whole reply contains no call that was cut off"
    assert got.usage is not None
    assert got.usage[0] > 0  # Messages counts cached tokens separately
    assert 0 < got.usage[1] <= TOKENS


def test_the_chat_completions_client(url: str):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START) as client:
        chunks = list(client.chat.completions.create(**without_stream("chat"), stream=True))
        whole = client.chat.completions.create(**without_stream("chat")).choices[0]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [*reasons, whole.finish_reason] == ["length", "length"]


def test_the_messages_client(url: str):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=START) as client:
        with client.messages.stream(**without_stream("messages")) as events:
            message = events.get_final_message()
        whole = client.messages.create(**without_stream("messages"))
    for found in (message, whole):
        assert found.content[0].text
        assert found.stop_reason == "max_tokens"


def test_the_responses_client(url: str):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START) as client:
        *_, last = client.responses.create(**without_stream("responses"), stream=True)
        whole = client.responses.create(**without_stream("responses"))
    for found in (last.response, whole):
        assert found.output_text
        assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("engine", SPOKEN)
def test_all_client_protocols_give_the_model_the_same_prompt(request: pytest.FixtureRequest, engine: str):
    counts = set()
    for protocol in SPOKEN[engine]:
        upstreams = {engine: {"url": request.getfixturevalue(engine).url, "protocol": protocol}}
        with uvicorn_server(Proxy(Settings(upstreams=upstreams, retries=0))) as served:
            reply = httpx.post(served.url + PATHS["chat"], json=asked("chat", stream=False), timeout=START)
        counts.add(reply.json()["usage"]["prompt_tokens"])
    assert len(counts) == 1


def test_models_are_listed(llama: Engine):
    with uvicorn_server(Proxy(Settings(upstreams={"llama": {"url": llama.url}}))) as served:
        models = httpx.get(f"{served.url}/v1/models", timeout=START).json()["data"]
    assert [model["id"].rpartition("/")[2] for model in models] == ["noise.gguf"]
