"""The proxy executes MCP tools itself, for clients that have none; a real server, each client protocol."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent.leftovers import children
from agent.parts import scripted
from dialects import CLIENTS, PATHS, Ask, read, write
from servers import uvicorn_server

from streamtool.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.settings import Settings, load
from streamtool.testing import Hang, Script, ScriptedUpstream, stream_asgi, text

pytest.importorskip("mcp")
SCRIPT = str(Path(__file__).parent / "servers" / "tools.py")
FILE = f"""
[upstream.u]
url = "http://127.0.0.1:9"
[mcp.math]
command = "{shlex.quote(sys.executable)} {shlex.quote(SCRIPT)}"
tools = ["math.*", "fail"]
[[model]]
match = "helper*"
use = "up"
mcp = ["math"]
"""
ADD = '<tool_call>{"name": "math.add", "arguments": {"a": 2, "b": 40}}</tool_call>'
FAIL = '<tool_call>{"name": "fail", "arguments": {}}</tool_call>'
WAIT = '<tool_call>{"name": "wait", "arguments": {"seconds": 0}}</tool_call>'
both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)


def body(client: str, model: str = "helper", **fields: Any) -> bytes:
    ask = Ask((("system", "Be brief."), ("user", "What is 2 + 40?")), **fields)
    return json.dumps({**write(client, ask), "model": model}).encode()


async def told(proxy: Proxy, client: str, given: bytes) -> tuple[bytes, Any]:
    async with stream_asgi(proxy, PATHS[client], body=given) as reply:
        data = b"".join([piece async for piece in reply])
    return data, read(client, data, stream=json.loads(given)["stream"])


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await anyio.sleep(0.01)
    raise AssertionError("it never came")


def proxy_of(upstream: ScriptedUpstream, file: str = FILE) -> Proxy:
    return Proxy(load(file), apps={"u": upstream})


@both
@clients
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_client_gets_the_answer_and_what_was_done_for_it(client: str, stream: bool):
    upstream = scripted(f"I add them.\n{ADD}", "It is 42.")
    data, got = await told(proxy_of(upstream), client, body(client, stream=stream))
    assert "".join(part for part in got.parts if isinstance(part, str)).endswith("It is 42.")
    assert (got.reason, [part for part in got.parts if isinstance(part, tuple)]) == ("stop", [])
    assert b"math.add" in data
    assert b"2 characters" in data
    assert len(upstream.requests) == 2
    assert "42" in upstream.requests[1].json["messages"][-1]["content"]
    assert upstream.requests[0].json["model"] == "up"
    assert not children()


@both
async def test_only_what_is_allowed_is_offered_and_called():
    upstream = scripted(WAIT, FAIL, "I give up.")
    _, got = await told(proxy_of(upstream), "chat", body("chat"))
    said = upstream.requests[0].json["messages"][0]["content"]
    assert "math.add(" in said
    assert "wait(" not in said
    assert "There is no tool `wait`" in upstream.requests[1].json["messages"][-1]["content"]
    assert "Error executing tool fail" in upstream.requests[2].json["messages"][-1]["content"]
    assert got.parts == ("I give up.",)


@both
@clients
async def test_other_models_and_clients_with_tools_of_their_own_are_served_as_ever(client: str):
    tools = (("ping", "Pings.", {"type": "object", "properties": {}}),)
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    upstream = scripted(call, "Hello.")
    proxy = proxy_of(upstream)
    _, got = await told(proxy, client, body(client, tools=tools))
    assert (got.parts, got.reason) == ((("ping", "{}"),), "calls")
    _, got = await told(proxy, client, body(client, "another"))
    assert (got.parts, got.reason) == (("Hello.",), "stop")
    assert all("math.add" not in json.dumps(request.json) for request in upstream.requests)


@both
async def test_a_model_that_finds_no_end_is_an_error_in_the_clients_protocol():
    upstream = scripted(WAIT)
    _, got = await told(proxy_of(upstream), "chat", body("chat"))
    assert got.error is not None
    assert "no call that can be executed" in got.error


@both
async def test_a_client_that_leaves_stops_the_model_and_the_servers():
    upstream = scripted(Script((*text(ADD).steps[:3], Hang())))
    proxy = proxy_of(upstream)
    with anyio.move_on_after(20):
        async with stream_asgi(proxy, PATHS["chat"], body=body("chat")) as reply:
            async for _ in reply:
                break
            await until(lambda: bool(upstream.requests))
    await until(lambda: not children())
    assert upstream.left == 1


def test_servers_are_opened_once_when_the_proxy_starts():
    upstream = scripted(ADD, "It is 42.", ADD, "It is 42.")
    import httpx

    before = set(children())
    with uvicorn_server(proxy_of(upstream)) as server:
        opened = set(children()) - before
        assert len(opened) == 1
        for _ in range(2):
            reply = httpx.post(f"{server.url}/v1/chat/completions", content=body("chat", stream=False), timeout=20)
            assert reply.json()["choices"][0]["message"]["content"] == "It is 42."
        assert set(children()) - before == opened
    assert set(children()) == before


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ('[mcp.a]\ntools = ["*"]', "mcp.a: an MCP server has either a command or a url"),
        ('[mcp.a]\ncommand = "x"', "mcp.a.tools: this setting is needed"),
        ('[[model]]\nmatch = "*"\nmcp = ["b"]', 'model[0].mcp: there is no MCP server "b"'),
    ],
)
def test_wrong_settings_are_said(file: str, sentence: str):
    with pytest.raises(SettingsError) as caught:
        load(file)
    assert sentence in caught.value.message


def test_nothing_is_executed_by_default():
    assert Settings().mcp == {}
    assert Settings().for_model("helper").mcp == ()
