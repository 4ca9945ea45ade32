"""Hosted tools executed by MCP servers of the settings: real servers, over sockets, through the official SDKs."""

import gzip
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types
from support.agents import Switch, plain, scripted
from support.servers import uvicorn_server, wait_for

from streamtool.core.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.settings import load
from streamtool.testing import ScriptedUpstream

pytest.importorskip("mcp")
URL = "https://mcp.example.com/sse"
FILE = f"""
[upstream.u]
url = "http://127.0.0.1:9"
[mcp.math]
command = "{shlex.join(word for word in plain().command if word)}"
tools = ["math.*", "fail"]
hosted = ["https://mcp.example.com/*", "sums"]
[mcp.search]
command = "{shlex.join(word for word in plain().command if word)}"
tools = ["steps"]
web_search = "steps"
"""
ADD = '<tool_call>{"name": "math.add", "arguments": {"a": 2, "b": 40}}</tool_call>'
STEPS = '<tool_call>{"name": "steps", "arguments": {"count": 2}}</tool_call>'
ASKED = "What is 2 + 40?"
MCP: dict[str, Any] = {"type": "mcp", "server_label": "m", "server_url": URL, "require_approval": "never"}
SHARED: list[Switch] = []
OWN = {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}


@contextmanager
def proxied(file: str) -> Iterator[Switch]:
    switch = Switch()
    with uvicorn_server(Proxy(load(file), apps={"u": switch})) as server:
        switch.url = server.url
        yield switch


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    with proxied(FILE) as switch:
        SHARED.append(switch)
        yield
        SHARED.clear()


@contextmanager
def serving(*said: str, file: str = FILE) -> Iterator[tuple[str, ScriptedUpstream]]:
    """Yield the URL of a proxy, and its upstream; one proxy serves all tests with the same settings."""
    upstream = scripted(*said)
    with nullcontext(SHARED[0]) if file == FILE else proxied(file) as switch:
        switch.app = upstream
        yield switch.url, upstream


def prompt(upstream: ScriptedUpstream, turn: int = 0) -> str:
    return json.dumps(upstream.requests[turn].json["messages"])


def responses(url: str, *tools: Any, **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        return client.responses.create(model="m", input=ASKED, tools=tools, **more)


def messages(url: str, *tools: Any, **more: Any) -> Any:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        asked = [{"role": "user", "content": ASKED}]
        return client.beta.messages.create(
            model="m", max_tokens=500, messages=asked, tools=tools, betas=["mcp-client-2025-11-20"], **more
        )


def test_an_mcp_server_named_by_a_responses_client_is_used():
    with serving(ADD, "It is 42.") as (url, upstream):
        assert responses(url, MCP).output_text == "It is 42."
    assert "math.add(" in prompt(upstream)
    assert "steps" not in prompt(upstream)
    assert URL not in prompt(upstream)
    assert "42" in upstream.requests[1].json["messages"][-1]["content"]


def test_calls_are_streamed_as_reasoning():
    with (
        serving(f"I add.\n{ADD}", "It is 42.") as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client,
        client.responses.stream(model="m", input=ASKED, tools=[MCP]) as stream,
    ):
        kinds = {event.type for event in stream}
        output = stream.get_final_response().output
    assert not any("mcp" in kind or "function" in kind for kind in kinds)
    thought = "".join(part.text for item in output if item.type == "reasoning" for part in item.content or item.summary)
    assert "[calls math.add" in thought


@pytest.mark.parametrize("label", ["m", "sums"])
def test_a_toolset_of_messages_is_executed(label: str):
    server = {"type": "url", "name": label, "url": "https://elsewhere.example" if label == "sums" else URL}
    toolset = {"type": "mcp_toolset", "mcp_server_name": label, "configs": {"fail": {"enabled": False}}}
    with serving(ADD, "It is 42.") as (url, upstream):
        reply = messages(url, toolset, mcp_servers=[{**server, "authorization_token": "secret"}])
    assert reply.content[-1].text == "It is 42."
    assert "math.add(" in prompt(upstream)
    assert "fail(" not in prompt(upstream)
    assert all("secret" not in json.dumps(request.json) for request in upstream.requests)


@pytest.mark.parametrize("more", [{}, {"tool_choice": {"type": "tool", "name": "web_search"}}], ids=["auto", "forced"])
def test_web_search_is_a_tool_of_a_server(more: dict[str, Any]):
    search = {"type": "web_search_20250305", "name": "web_search"}
    with serving(STEPS, "Found.") as (url, upstream):
        assert messages(url, search, **more).content[-1].text == "Found."
    assert "steps(" in prompt(upstream)
    assert "math.add" not in prompt(upstream)
    assert ("at least one call" in upstream.requests[0].json["messages"][-1]["content"]) is bool(more)
    assert "all steps" in prompt(upstream, 1)


def test_the_web_searches_of_responses_and_gemini_use_the_same_tool():
    with serving(STEPS, "Found.", STEPS, "Found.") as (url, upstream):
        assert responses(url, {"type": "web_search"}, tool_choice="required").output_text == "Found."
        client = genai.Client(api_key="x", http_options=types.HttpOptions(base_url=url))
        config = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])
        found = client.models.generate_content(model="m", contents=ASKED, config=config)
        client.close()
        assert found.text == "Found."
    assert len(upstream.requests) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"server_url": "https://evil.example/mcp"},
        {"server_url": "http://169.254.169.254/"},
        {"require_approval": "always"},
        {"require_approval": None},
        {"allowed_tools": {"read_only": True}},
    ],
    ids=["another server", "an address inside", "approval", "approval by default", "a filter that is not known"],
)
def test_tools_not_allowed_by_the_operator_or_the_client_are_left_out(changed: dict[str, Any]):
    with serving("No tools.") as (url, upstream):
        assert responses(url, {**MCP, **changed}).output_text == "No tools."
    assert "math.add" not in prompt(upstream)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"allowed_tools": ["fail"]},
        {"allowed_tools": {"tool_names": ["fail"]}},
        {"require_approval": {"never": {"tool_names": ["fail"]}}},
    ],
)
def test_only_tools_allowed_by_the_client_are_offered(changed: dict[str, Any]):
    with serving("No.") as (url, upstream):
        responses(url, {**MCP, **changed})
    assert "fail(" in prompt(upstream)
    assert "math.add" not in prompt(upstream)


def test_a_client_with_its_own_tools_executes_them_and_hosted_tools_are_left_out():
    with serving('<tool_call>{"name": "ping", "arguments": {}}</tool_call>') as (url, upstream):
        assert responses(url, MCP, OWN).output[-1].name == "ping"
    assert "math.add" not in prompt(upstream)


def test_demanding_a_hosted_tool_without_a_server_is_rejected():
    with serving("Hello.", file=FILE.replace('web_search = "steps"', "")) as (url, upstream):
        for tool in ({"type": "web_search"}, {"type": "file_search", "vector_store_ids": ["v"]}):
            with pytest.raises(openai.BadRequestError, match="only by its vendor"):
                responses(url, tool, tool_choice={"type": tool["type"]})
    assert not upstream.requests


def test_unsupported_hosted_tools_are_rejected_if_hosted_tools_is_refuse():
    with serving(ADD, "It is 42.", file=f'hosted_tools = "refuse"\n{FILE}') as (url, upstream):
        assert responses(url, MCP).output_text == "It is 42."
        with pytest.raises(openai.BadRequestError, match="file_search"):
            responses(url, MCP, {"type": "file_search", "vector_store_ids": ["v"]})
    assert len(upstream.requests) == 2


def test_a_compressed_request_is_executed():

    body = gzip.compress(json.dumps({"model": "m", "input": ASKED, "tools": [MCP]}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    with serving(ADD, "It is 42.") as (url, _):
        reply = httpx.post(f"{url}/v1/responses", content=body, headers=headers, timeout=20)
    assert reply.status_code == 200
    assert "It is 42." in reply.text


def test_a_search_tool_that_is_not_allowed_is_a_settings_error():
    with pytest.raises(SettingsError, match=r'mcp.search.web_search: "steps" is not a tool of this server'):
        load(FILE.replace('tools = ["steps"]', 'tools = ["wait"]'))


def test_a_background_response_executes_hosted_tools():
    with serving(ADD, "It is 42.") as (url, _):
        made = responses(url, MCP, background=True)
        assert made.status == "in_progress"
        found: list[Any] = []
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:

            def ended() -> bool:
                found.append(client.responses.retrieve(made.id))
                return found[-1].status != "in_progress"

            wait_for(ended, "the response ends")
        assert (found[-1].status, found[-1].output_text) == ("completed", "It is 42.")
