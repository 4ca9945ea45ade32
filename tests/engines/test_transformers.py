"""Specifics of `transformers serve`: it computes one reply at a time, and rejects unknown fields."""

import json
from typing import Any

import httpx
import pytest
from support.engine import START, Engine
from support.servers import RawClient, hypercorn_server, uvicorn_server

from streamtool import Proxy, Settings
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.settings import UpstreamSettings
from streamtool.testing import stream_asgi
from streamtool.upstream.app import HttpUpstream

pytestmark = pytest.mark.engines
PATH = "/v1/chat/completions"
ENDLESS = 10_000_000
"""Tokens that would take the engine longer than any timeout."""
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
BURST = 500


def body(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello."}]
    return {"model": "noise", "messages": messages, "tools": [TOOL], "max_tokens": 2, **changes}


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def served(request: pytest.FixtureRequest, transformers: Engine) -> Any:
    with request.param(Proxy(Settings(upstreams={"t": {"url": transformers.url}}, retries=0))) as running:
        yield running


def test_a_disconnecting_client_frees_the_engine(served: Any):
    """The next reply waits until the previous one has ended."""
    for _ in range(3):
        with RawClient(served.port, json.dumps(body(max_tokens=ENDLESS, stream=True)).encode()) as left:
            left.until(b'"content":"')
            left.leave()
        assert httpx.post(served.url + PATH, json=body(), timeout=START).status_code == 200


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_burst_through_the_proxy(served: Any, stream: bool):
    with httpx.Client(base_url=served.url, timeout=START) as client:
        for _ in range(BURST):
            reply = client.post(PATH, json=body(stream=stream))
            assert (reply.status_code, '"error"' in reply.text) == (200, False)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("protocol", "forcing"),
    [
        *(("chat", method) for method in ("grammar", "guided", "prefill")),
        *(("completions", method) for method in ("grammar", "guided", "schema", "structural_tag")),
    ],
)
async def test_an_unsupported_field_is_left_out(transformers: Engine, protocol: str, forcing: str):
    records: list[Record] = []
    settings = Settings(retries=0, app_protocol=protocol, app_forcing=forcing)
    asked = json.dumps(body(tool_choice="required")).encode()
    async with HttpUpstream(UpstreamSettings("t", transformers.url, protocol=protocol)) as upstream:
        middleware = ToolMiddleware(upstream, settings=settings, on_exchange=records.append)
        async with stream_asgi(middleware, PATH, body=asked) as reply:
            await reply.body()
    assert reply.status == 200
    assert records[0].forced == "prompt"
    assert records[0].attempts == ("forcing unsupported",)


def test_ten_turns_of_a_conversation(served: Any):
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    prompts = []
    for _ in range(10):
        reply = httpx.post(served.url + PATH, json=body(messages=messages, max_tokens=20), timeout=START).json()
        prompts.append(reply["usage"]["prompt_tokens"])
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": "Go on."})
    assert sorted(set(prompts)) == prompts


@pytest.mark.anyio
@pytest.mark.usefixtures("asking")
async def test_the_server_is_recognized_and_forces_only_with_words(transformers: Engine):
    records: list[Record] = []
    app = Proxy(Settings(upstreams={"t": {"url": transformers.url}}, retries=0), on_exchange=records.append)
    async with app.running():
        assert app.engines["t"].startswith(f"transformers serve at {transformers.url}: chat, window unknown")
        async with stream_asgi(app, PATH, body=json.dumps(body(tool_choice="required")).encode()) as reply:
            await reply.body()
    assert (reply.status, records[0].forced, records[0].attempts) == (200, "prompt", ())
