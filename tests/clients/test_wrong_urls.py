"""A base URL that is not quite right, with the official SDKs over sockets: it works, or the error names the right one."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from support.servers import uvicorn_server
from support.sweeps import each

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.testing import Script, ScriptedUpstream, text

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
MESSAGES: Any = [{"role": "user", "content": "Weather in Oslo?"}]


def upstream() -> ScriptedUpstream:
    models = Script((b'{"data": [{"id": "m"}]}',), content_type="application/json")
    return ScriptedUpstream(lambda request: models if request.path.endswith("/models") else text(CALL))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings: Any = {"upstreams": {"model": {"url": "http://model.test"}}}
    with uvicorn_server(Proxy(**settings, apps={"model": upstream()})) as served:
        yield served.url


def chat_call(base: str) -> str:
    """Return the arguments of the call in a reply to the openai SDK with this base URL."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": TOOL}}
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=MESSAGES, tools=[tool])
        return str(reply.choices[0].message.tool_calls[0].function.arguments)


def responses_call(base: str) -> str:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": TOOL, "strict": False}
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        first = client.responses.create(model="m", input="Weather in Oslo?", tools=[tool])
        again = client.responses.retrieve(first.id)
        return str(again.output[0].arguments)


def messages_call(base: str) -> str:
    tool: Any = {"name": "get_weather", "input_schema": TOOL}
    with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
        reply = client.messages.create(model="m", messages=MESSAGES, tools=[tool], max_tokens=99)
        return json.dumps(reply.content[0].input)


@each("ask, version", [(chat_call, ""), (responses_call, ""), (messages_call, ""), (chat_call, "/v1")])
def test_a_base_url_without_the_version_works(url: str, ask: Any, version: str):
    assert json.loads(ask(url + version)) == {"city": "Oslo"}


def test_further_paths_without_the_version_work(url: str):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["m"]
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 9}
    assert httpx.post(f"{url}/messages", json=body).json()["content"][0]["type"] == "text"
    assert httpx.post(f"{url}/messages/count_tokens", json=body).json()["input_tokens"] > 0


@each("ask", [messages_call, chat_call])
def test_a_repeated_version_is_named(url: str, ask: Any):
    kind = anthropic.NotFoundError if ask is messages_call else openai.NotFoundError
    path = "/v1/messages" if ask is messages_call else "/v1/chat/completions"
    with pytest.raises(kind) as raised:
        ask(f"{url}/v1" if ask is messages_call else f"{url}/v1/v1")
    assert f"correct the client's base URL, so that the path is {path}" in str(raised.value)


def test_another_prefix_is_named(url: str):
    with pytest.raises(openai.NotFoundError, match="so that the path is /v1/chat/completions"):
        chat_call(f"{url}/openai/v1")


def test_geminis_client_needs_no_version(url: str):
    for version in ("v1beta", "v1"):
        options: Any = {"base_url": url, "api_version": version}
        client = genai.Client(api_key="none", http_options=options)
        declared: Any = {"function_declarations": [{"name": "get_weather", "parameters_json_schema": TOOL}]}
        config: Any = {"tools": [declared], "automatic_function_calling": {"disable": True}}
        reply = client.models.generate_content(model="m", contents="Weather in Oslo?", config=config)
        assert reply.function_calls[0].args == {"city": "Oslo"}
        client.close()


def at_prefix(prefix: str) -> Starlette:
    """Return an app whose own routes are below `prefix`."""
    return Starlette(routes=[Route(f"{prefix}/{{path:path}}", upstream())])


@each("prefix, base", [("", "/v1"), ("/api", "/api/v1"), ("/a/b", "/a/b/v1"), ("/api", "/api")])
def test_a_middleware_finds_its_requests_below_a_prefix(prefix: str, base: str):
    with uvicorn_server(ToolMiddleware(at_prefix(prefix), app_protocol="chat")) as served:
        assert json.loads(chat_call(served.url + base)) == {"city": "Oslo"}
        if base.endswith("/v1"):
            assert json.loads(messages_call(served.url + prefix)) == {"city": "Oslo"}
            assert json.loads(responses_call_once(served.url + base)) == {"city": "Oslo"}


def responses_call_once(base: str) -> str:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": TOOL, "strict": False}
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        return str(client.responses.create(model="m", input="Weather in Oslo?", tools=[tool]).output[0].arguments)


def test_a_mounted_middleware_finds_its_requests():
    app = Starlette(routes=[Mount("/llm", app=ToolMiddleware(upstream(), app_protocol="chat"))])
    with uvicorn_server(app) as served:
        assert json.loads(chat_call(f"{served.url}/llm/v1")) == {"city": "Oslo"}


def test_a_middleware_warns_once_about_a_path_that_may_be_its_own(caplog: pytest.LogCaptureFixture):
    app = ToolMiddleware(at_prefix("/rooms"), app_protocol="chat")
    with caplog.at_level(logging.WARNING, "streamtool"), uvicorn_server(app) as served:
        for _ in range(2):
            assert httpx.post(f"{served.url}/rooms/messages", json={"text": "Hi"}).status_code == 200
    warned = [record.getMessage() for record in caplog.records if record.name == "streamtool"]
    assert warned == [
        "requests to /rooms/messages pass through unchanged: add this path to `paths` if models answer them"
    ]


def test_paths_that_are_set_match_exactly():
    app = ToolMiddleware(at_prefix("/api"), app_protocol="chat", paths=["/v1/chat/completions"])
    with uvicorn_server(app) as served, pytest.raises((openai.APIError, TypeError, AttributeError)):
        chat_call(f"{served.url}/api/v1")
