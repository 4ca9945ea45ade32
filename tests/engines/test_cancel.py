"""A client that disconnects in the middle of a reply: the engine stops, and its slot is free for the next request."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import anyio
import httpx
import openai
import pytest
from support.dialects import CLIENTS, PATHS, Ask, write
from support.engine import START, Engine
from support.servers import RawClient, hypercorn_server, uvicorn_server, wait_for

import streamtool
from streamtool import Proxy, Settings
from streamtool.agent import Agent, OutputDelta

pytestmark = pytest.mark.engines
LONG = 30_000
"""Tokens of a full reply: at least ten seconds of work."""
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASK = Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA),))
MARKS = {"chat": b'"content":"', "messages": b"text_delta", "responses": b"output_text.delta"}
LIMITS = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}


@pytest.fixture
def stopped(llama: Engine) -> Callable[[], None]:
    """Return a function to call after the disconnect: checks that the slot becomes free long before the reply would
    end.
    """
    wait_for(lambda: not llama.busy(), "nobody else asks", START)
    before = llama.decoded()

    def check() -> None:
        wait_for(lambda: not llama.busy(), "the slot is free", START)
        assert 0 < llama.decoded() - before < LONG

    return check


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.param


def asked(client: str) -> dict[str, Any]:
    return {**write(client, ASK), LIMITS[client]: LONG}


def proxy(llama: Engine, protocol: str = "chat") -> Proxy:
    return Proxy(Settings(upstreams={"llama": {"url": llama.url, "protocol": protocol}}, retries=0))


@pytest.mark.parametrize("protocol", ["chat", "messages", "completions"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_of_the_proxy_disconnects(llama: Engine, stopped: Any, server: Any, client: str, protocol: str):
    body = json.dumps(asked(client)).encode()
    with server(proxy(llama, protocol)) as served, RawClient(served.port, body, PATHS[client]) as left:
        left.until(MARKS[client])
        assert len(llama.busy()) == 1
        left.leave()
        stopped()


def openai_chunks(url: str, wrap: Callable[[Any], Any]) -> Any:
    client = wrap(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=START))
    return client, client.chat.completions.create(**asked("chat"))


def anthropic_events(url: str, wrap: Callable[[Any], Any]) -> Any:
    client = wrap(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=START))
    return client, client.messages.create(**asked("messages"))


@pytest.mark.parametrize("open_stream", [openai_chunks, anthropic_events], ids=["openai", "anthropic"])
@pytest.mark.parametrize("how", ["proxy", "wrap"])
def test_an_sdk_closes_a_stream(llama: Engine, stopped: Any, open_stream: Any, how: str):
    def leave(url: str, wrap: Callable[[Any], Any]) -> None:
        client, stream = open_stream(url, wrap)
        with client:
            for _, _ in zip(range(5), stream, strict=False):
                pass
            assert len(llama.busy()) == 1
            stream.close()
            stopped()

    if how == "wrap":
        leave(llama.url, streamtool.wrap)
        return
    with uvicorn_server(proxy(llama)) as served:
        leave(served.url, lambda client: client)


@pytest.mark.anyio
async def test_a_run_of_an_agent_is_abandoned(llama: Engine, stopped: Any):
    agent = Agent(llama.url, [ping], model="noise", options={"max_tokens": LONG})
    async with agent.run("hi") as events:
        async for event in events:
            if isinstance(event, OutputDelta):
                break
        assert len(llama.busy()) == 1
    await anyio.to_thread.run_sync(stopped)


def ping() -> str:
    """Pings."""
    return "pong"


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_stop_sequence_of_the_client_stops_the_engine(llama: Engine, stopped: Any, client: str):
    """The exchange checks for it; the upstream never receives it."""
    body = asked(client) | ({"stop": ["e"]} if client == "chat" else {"stop_sequences": ["e"]})
    with uvicorn_server(proxy(llama)) as served:
        reply = httpx.post(served.url + PATHS[client], json=body, timeout=START)
        stopped()
    assert {"chat": '"finish_reason":"stop"', "messages": '"stop_reason":"stop_sequence"'}[client] in reply.text
