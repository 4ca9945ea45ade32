"""Every client protocol over every upstream protocol, with real sockets on both sides and the official clients."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import ollama
import openai
import pytest
from google import genai
from google.genai import types
from support.clients import TIMEOUT
from support.dialects import UPSTREAMS, Ask, said, write
from support.servers import hypercorn_server, uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TEXT = (
    'Grüße 🌡.\n<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>\n<tool_call>{"name": "ping"}</tool_call>'
)
CALLS = [("ping", '{"x": 1}'), ("ping", "{}")]


@pytest.fixture(scope="module", params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def addresses(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Yield upstream protocol → the URL of a proxy with an upstream of that protocol."""
    with ExitStack() as stack:
        found = {}
        for upstream in UPSTREAMS:
            behind = stack.enter_context(uvicorn_server(ScriptedUpstream(said(upstream, TEXT))))
            settings = Settings(upstreams={"u": {"url": behind.url, "protocol": upstream}})
            found[upstream] = stack.enter_context(request.param(Proxy(settings))).url
        yield found


def ask(protocol: str) -> dict[str, Any]:
    body = write(protocol, Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA),)))
    body.pop("stream", None)
    body.pop("stream_options", None)
    return body


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_chat(addresses: dict[str, str], upstream: str):
    with openai.OpenAI(base_url=f"{addresses[upstream]}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        with client.chat.completions.stream(**ask("chat")) as events:
            message = events.get_final_completion().choices[0].message
        whole = client.chat.completions.create(**ask("chat")).choices[0].message
    for found in (message, whole):
        assert found.content == "Grüße 🌡."
        assert [(call.function.name, call.function.arguments) for call in found.tool_calls] == CALLS


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_messages(addresses: dict[str, str], upstream: str):
    with anthropic.Anthropic(base_url=addresses[upstream], api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        with client.messages.stream(**ask("messages")) as events:
            message = events.get_final_message()
        whole = client.messages.create(**ask("messages"))
    for found in (message, whole):
        assert found.content[0].text == "Grüße 🌡."
        assert [(block.name, block.input) for block in found.content[1:]] == [("ping", {"x": 1}), ("ping", {})]


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_responses(addresses: dict[str, str], upstream: str):
    with openai.OpenAI(base_url=f"{addresses[upstream]}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        with client.responses.stream(**ask("responses")) as events:
            response = events.get_final_response()
        whole = client.responses.create(**ask("responses"))
    for found in (response, whole):
        assert found.output_text == "Grüße 🌡."
        assert [(item.name, item.arguments) for item in found.output[1:]] == CALLS


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_ollama(addresses: dict[str, str], upstream: str):
    with ollama.Client(host=addresses[upstream], timeout=TIMEOUT) as client:
        messages = [part.message for part in client.chat(stream=True, **ask("ollama"))]
        whole = client.chat(**ask("ollama")).message
    assert "".join(message.content for message in messages) == whole.content == "Grüße 🌡."
    streamed = [call for message in messages for call in message.tool_calls or ()]
    for found in (streamed, whole.tool_calls):
        assert [(call.function.name, call.function.arguments) for call in found] == [("ping", {"x": 1}), ("ping", {})]


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_gemini(addresses: dict[str, str], upstream: str):
    options = types.HttpOptions(base_url=addresses[upstream], timeout=int(1000 * TIMEOUT))
    with genai.Client(api_key="none", vertexai=False, http_options=options) as client:
        body = ask("gemini")
        asked: dict[str, Any] = {"model": "m", "contents": body["contents"], "config": {"tools": body["tools"]}}
        chunks = list(client.models.generate_content_stream(**asked))
        whole = client.models.generate_content(**asked)
    streamed = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    for found in (streamed, whole.candidates[0].content.parts):
        assert "".join(part.text or "" for part in found) == "Grüße 🌡."
        calls = [part.function_call for part in found if part.function_call]
        assert [(call.name, call.args) for call in calls] == [("ping", {"x": 1}), ("ping", {})]
