"""Errors of an upstream, with the official SDKs over sockets: they say whose they are, and keep their type."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from support.servers import free_port, uvicorn_server
from support.sweeps import each

from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Die, Script, ScriptedUpstream, text

MESSAGES: Any = [{"role": "user", "content": "Weather in Oslo?"}]
SCHEMA = {"type": "object", "properties": {}}


@contextmanager
def failing(status: int, body: Any, protocol: str = "chat") -> Iterator[tuple[str, str]]:
    """Yield the URLs of a proxy and of its upstream, which answers every request with this error over a socket."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    script = Script((data,), status, "application/json", headers=(("retry-after", "7"),))
    with uvicorn_server(ScriptedUpstream(lambda _: script)) as model:
        settings = Settings(upstreams={"model": {"url": f"{model.url}/v1", "protocol": protocol}})  # type: ignore[dict-item]
        with uvicorn_server(Proxy(settings)) as served:
            yield served.url, f"{model.url}/v1"


def ask_chat(url: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "ping", "parameters": SCHEMA}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=MESSAGES, tools=[tool])


def ask_responses(url: str) -> None:
    tool: Any = {"type": "function", "name": "ping", "parameters": SCHEMA, "strict": False}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        client.responses.create(model="m", input="Ping.", tools=[tool])


def ask_messages(url: str) -> None:
    tool: Any = {"name": "ping", "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        client.messages.create(model="m", messages=MESSAGES, tools=[tool], max_tokens=9)


def ask_gemini(url: str) -> None:
    options: Any = {"base_url": url}
    client = genai.Client(api_key="none", http_options=options)
    tool: Any = {"function_declarations": [{"name": "ping", "parameters_json_schema": SCHEMA}]}
    config: Any = {"tools": [tool], "automatic_function_calling": {"disable": True}}
    try:
        client.models.generate_content(model="m", contents="Ping.", config=config)
    finally:
        client.close()


CLIENTS: tuple[tuple[Callable[[str], None], type[Exception]], ...] = (
    (ask_chat, openai.RateLimitError),
    (ask_responses, openai.RateLimitError),
    (ask_messages, anthropic.RateLimitError),
    (ask_gemini, genai.errors.ClientError),
)
TYPES = {ask_chat: "rate_limit_error", ask_responses: "rate_limit_error", ask_messages: "rate_limit_error"}


@pytest.mark.parametrize("body", [{"error": {"message": "Slow down."}}, b"Slow down."], ids=["json", "text"])
def test_a_rate_limit_keeps_its_type_and_its_delay(body: Any):
    with failing(429, body) as (url, model):
        for ask, kind in CLIENTS:
            with pytest.raises(kind) as raised:
                ask(url)
            assert f"the upstream ({model}) answered 429: Slow down." in str(raised.value)
            response: Any = getattr(raised.value, "response", None)
            assert response.headers["retry-after"] == "7"
            if ask in TYPES:
                assert response.json()["error"]["type"] == TYPES[ask]
            else:
                assert raised.value.status == "RESOURCE_EXHAUSTED"  # type: ignore[attr-defined]


@each("ask", [ask for ask, _ in CLIENTS])
def test_a_wrong_url_or_protocol_is_doubted(ask: Callable[[str], None]):
    with failing(404, {"detail": "Not Found"}) as (url, model), pytest.raises(Exception) as raised:
        ask(url)
    assert f"the upstream ({model}) answered 404: Not Found; are url and protocol right?" in str(raised.value)


@each(
    "status, body, message",
    [
        (405, b"", "answered 405; are url and protocol right?"),
        (302, b"", "answered 302; are url and protocol right?"),
        (500, {"error": "CUDA out of memory"}, "answered 500: CUDA out of memory"),
        (503, b"", "answered 503"),
        (404, {"error": 'model "m" not found, try pulling it first'}, 'answered 404: model "m" not found, try pulling'),
        (401, {"error": {"message": "Wrong key."}}, "answered 401: Wrong key."),
    ],
)
def test_an_error_names_the_upstream_and_its_status(status: int, body: Any, message: str):
    with failing(status, body) as (url, model):
        request = {"model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]}
        told = httpx.post(f"{url}/v1/chat/completions", json=request).json()["error"]["message"]
    assert told.startswith(f"the upstream ({model}) {message}")
    assert ("right?" in told) == ("right?" in message)


def test_a_prompt_that_is_too_long_keeps_the_words_that_agents_look_for():
    body = {"error": {"message": "This model's maximum context length is 4096 tokens."}}
    with failing(400, body) as (url, _), pytest.raises(anthropic.BadRequestError) as raised:
        ask_messages(url)
    response = raised.value.response.json()["error"]
    assert response["message"].startswith("prompt is too long: ")


def test_an_error_contains_no_names_of_classes():
    begun = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
    script = Script((begun, Die()))
    with uvicorn_server(ScriptedUpstream(lambda _: script)) as model:
        for url in (model.url, f"http://127.0.0.1:{free_port()}"):
            settings = Settings(upstreams={"model": {"url": url}}, retries=0)  # type: ignore[dict-item]
            with uvicorn_server(Proxy(settings)) as served, pytest.raises(openai.InternalServerError) as raised:
                ask_chat(served.url)
            assert "the upstream at 127.0.0.1" in str(raised.value)
            assert not re.search(r"[a-z](?:Error|Exception)\b", raised.value.message)


class Late:
    """An app that is set after its server has started, when the server's address is known."""

    def __init__(self) -> None:
        self.app: Any = None
        self.posts = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.posts += scope["method"] == "POST"
        await self.app(scope, receive, send)


def proxy_to(url: str) -> Proxy:
    return Proxy(Settings(upstreams={"model": {"url": url}}))  # type: ignore[dict-item]


@each("ask", [ask_chat, ask_messages])
def test_a_proxy_that_is_its_own_upstream_answers_at_once(ask: Callable[[str], None]):
    late = Late()
    with uvicorn_server(late, lifespan="off") as served:
        late.app = proxy_to(served.url)
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as raised:
            ask(served.url)
        listed = httpx.get(f"{served.url}/v1/models")
    assert "answered 508: this server is its own upstream: correct the upstream's url" in str(raised.value)
    assert late.posts == 2
    assert listed.status_code == 508


def test_two_proxies_in_a_row_are_no_loop():
    model = ScriptedUpstream(lambda _: text("Hi"))
    with (
        uvicorn_server(model) as served,
        uvicorn_server(proxy_to(served.url)) as inner,
        uvicorn_server(proxy_to(inner.url)) as outer,
    ):
        ask_chat(outer.url)
    assert model.requests[-1].headers["x-streamtool-via"].count(",") == 1


def test_proxies_that_are_each_others_upstream_are_a_loop():
    late = Late()
    with uvicorn_server(late, lifespan="off") as first, uvicorn_server(proxy_to(first.url)) as second:
        late.app = proxy_to(second.url)
        with pytest.raises(openai.InternalServerError, match="its own upstream"):
            ask_chat(first.url)
    assert late.posts == 2
