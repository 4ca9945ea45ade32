"""The MCP gateway: the proxy executes MCP tools itself for clients without tools; a real server, each client
protocol.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import anyio
import httpx
import openai
import pytest
from support.agents import Switch, plain, scripted
from support.dialects import ALL_CLIENTS, CLIENTS, PATHS, Ask, path, read, write
from support.leftovers import children
from support.servers import uvicorn_server

from streamtool.agent import McpServer
from streamtool.core.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.settings import Settings, load
from streamtool.testing import Hang, Script, ScriptedUpstream, status, stream_asgi, text

pytest.importorskip("mcp")
FILE = f"""
[upstream.u]
url = "http://127.0.0.1:9"
[mcp.math]
command = "{shlex.join(word for word in plain().command if word)}"
tools = ["math.*", "fail", "die", "slow*"]
[[model]]
match = "helper*"
use = "up"
mcp = ["math"]
"""
ADD = '<tool_call>{"name": "math.add", "arguments": {"a": 2, "b": 40}}</tool_call>'
FAIL = '<tool_call>{"name": "fail", "arguments": {}}</tool_call>'
DIE = '<tool_call>{"name": "die", "arguments": {}}</tool_call>'
SLOW = '<tool_call>{"name": "wait", "arguments": {"seconds": 30}}</tool_call>'
WAIT = '<tool_call>{"name": "wait", "arguments": {"seconds": 0}}</tool_call>'
both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)


def body(client: str, model: str = "helper", **fields: Any) -> bytes:
    ask = Ask((("system", "Be brief."), ("user", "What is 2 + 40?")), **fields)
    return json.dumps({**write(client, ask), "model": model}).encode()


async def told(proxy: Proxy, client: str, given: bytes, *, streamed: bool = True) -> tuple[bytes, Any]:
    stream = json.loads(given).get("stream", streamed)
    async with stream_asgi(proxy, path(client, stream=stream, model="helper"), body=given) as reply:
        data = b"".join([piece async for piece in reply])
    return data, read(client, data, stream=stream)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await anyio.sleep(0.01)
    raise AssertionError("it never came")


def proxy_of(upstream: ScriptedUpstream, file: str = FILE) -> Proxy:
    return Proxy(load(file), apps={"u": upstream})


@both
@pytest.mark.parametrize("client", ALL_CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_client_receives_the_answer_and_a_summary_of_the_calls(client: str, stream: bool):
    upstream = scripted(f"I add them.\n{ADD}", "It is 42.")
    data, got = await told(proxy_of(upstream), client, body(client, stream=stream), streamed=stream)
    assert "".join(part for part in got.parts if isinstance(part, str)).endswith("It is 42.")
    assert (got.reason, [part for part in got.parts if isinstance(part, tuple)]) == ("stop", [])
    assert b"math.add" in data
    assert b"2 characters" in data
    assert len(upstream.requests) == 2
    assert "42" in upstream.requests[1].json["messages"][-1]["content"]
    assert upstream.requests[0].json["model"] == "up"
    assert not children()


@both
async def test_only_allowed_tools_are_offered_and_called():
    upstream = scripted(WAIT, FAIL, "I give up.")
    _, got = await told(proxy_of(upstream), "chat", body("chat"))
    said = upstream.requests[0].json["messages"][0]["content"]
    assert "math.add(" in said
    assert "wait(" not in said
    assert "There is no tool `wait`" in upstream.requests[1].json["messages"][-1]["content"]
    assert "no luck" in upstream.requests[2].json["messages"][-1]["content"]
    assert got.parts == ("I give up.",)


@both
async def test_no_hosted_tool_is_executed_because_of_a_similar_name():
    upstream = scripted(ADD.replace("math.add", "math.adds"), ADD.replace("math.add", "Math-Add"), "It is 42.")
    _, got = await told(proxy_of(upstream, 'tool_names = "edit"\n' + FILE), "chat", body("chat"))
    assert "There is no tool `math.adds`" in upstream.requests[1].json["messages"][-1]["content"]
    assert "42" in upstream.requests[2].json["messages"][-1]["content"]
    assert "".join(part for part in got.parts if isinstance(part, str)).endswith("It is 42.")


@both
@clients
async def test_other_models_and_clients_with_their_own_tools_are_not_affected(client: str):
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
async def test_a_model_without_an_answer_is_an_error_in_the_clients_protocol():
    upstream = scripted(WAIT)
    _, got = await told(proxy_of(upstream), "chat", body("chat"))
    assert got.error is not None
    assert "failed to make an executable call" in got.error


def half(said: str) -> Script:
    return Script((*text(said, done=False, finish=None).steps, Hang()))


PHASES = {
    "before the model says anything": (Script((Hang(),)),),
    "in text": (half("Let me see"),),
    "in a call": (half(f"I add. {ADD[:-25]}"),),
    "while a server works": (text(f"I wait. {SLOW}"),),
    "in the second turn": (text(f"I add. {ADD}"), half("So it")),
}


@both
@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_disconnecting_client_stops_the_model_and_the_servers(client: str, phase: str):
    upstream = ScriptedUpstream(*PHASES[phase])
    proxy = proxy_of(upstream, FILE.replace('"slow*"', '"wait"'))
    async with stream_asgi(proxy, PATHS[client], body=body(client)) as reply:
        await until(lambda: len(upstream.requests) == len(PHASES[phase]))
        if not phase.startswith("before"):
            await anext(reply)
        await anyio.sleep(0.05)
        reply.disconnect()
        with anyio.fail_after(10):
            await reply.finished.wait()
    await until(lambda: not children())
    assert upstream.left == (0 if phase == "while a server works" else 1)


@both
async def test_a_server_that_dies_fails_its_call_and_is_started_again():
    upstream = scripted(DIE, "Oh.", ADD, "It is 42.")
    proxy = proxy_of(upstream)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(proxy._gateway.running())
        data, got = await told(proxy, "chat", body("chat"))
        assert got.parts == ("Oh.",)
        assert b"the call may or may not have been executed" in data
        _, got = await told(proxy, "chat", body("chat"))
        assert got.parts == ("It is 42.",)
    assert "42" in upstream.requests[3].json["messages"][-1]["content"]
    assert not children()


@pytest.mark.trio
@clients
async def test_keep_alives_are_sent_during_a_slow_tool(client: str, monkeypatch, autojump_clock):
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("math")

    @server.tool()
    async def slow() -> str:
        await anyio.sleep(35)
        return "at last"

    monkeypatch.setattr("streamtool.agent.mcp_gateway._make_server", lambda settings: McpServer(server))
    call = '<tool_call>{"name": "slow", "arguments": {}}</tool_call>'
    data, got = await told(proxy_of(scripted(call, "Done.")), client, body(client))
    assert (got.parts[-1], got.reason) == ("Done.", "stop")
    assert len([line for line in data.splitlines() if line.startswith((b":", b"event: ping"))]) == 3


@both
@clients
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_upstream_error_keeps_its_status_if_nothing_was_sent(client: str, stream: bool):
    proxy = proxy_of(scripted(status(429, "slow down"), ADD, status(503, "no room")))
    for code, says in ((429, b"slow down"), (200 if stream else None, b"no room")):
        async with stream_asgi(proxy, PATHS[client], body=body(client, stream=stream)) as reply:
            found, data = await reply.head(), await reply.body()
        assert found == code or (code is None and found >= 500)
        assert says in data


@both
@pytest.mark.parametrize("client", ["chat", "messages"])
async def test_a_client_that_disconnects_before_a_write_is_not_an_error(client: str):
    proxy, gone = proxy_of(scripted("Hello.")), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def broken(message: Any) -> None:
            nonlocal gone
            gone += 1
            raise OSError("the client has left")

        await proxy(scope, receive, broken)

    async with stream_asgi(app, PATHS[client], body=body(client)) as reply:
        with pytest.raises(Exception, match=r"the app|ended|over|without"):
            await reply.head()
        await reply.finished.wait()
        assert reply._error is None
    assert gone == 1


def counted(proxy: Proxy) -> float:
    """Return how many exchanges the metrics of this process count."""
    _, page = proxy._tools.observers.metrics.page()
    lines = page.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("streamtool_exchanges_total"))


@both
async def test_each_exchange_with_the_model_is_counted_and_the_run_is_logged_in_one_line(caplog):
    records: list[Any] = []
    file = FILE.replace("[upstream.u]", "metrics = true\n[upstream.u]")
    for client in ("chat", "messages"):
        upstream = scripted(ADD, "It is 42.", ADD, status(503, "no room"))
        proxy = Proxy(load(file), apps={"u": upstream}, on_exchange=records.append)
        before = counted(proxy)
        caplog.clear()
        with caplog.at_level("INFO", "streamtool"):
            await told(proxy, client, body(client))
            await told(proxy, client, body(client))
        assert [entry.getMessage().partition(" · ")[0].rpartition(" (")[0] for entry in caplog.records] == [
            "helper → up: tools 3, calls 1 (tool_call)",
            "helper → up: tools 3, calls 0",
            "helper: an agent, turns 2, calls 1",
            "helper → up: tools 3, calls 1 (tool_call)",
            "helper → up: tools 3, calls 0, failed: 503 test_error",
            "helper: an agent, turns 2, calls 1, failed: 503 test_error",
        ]
        assert [record.calls for record in records] == [1, 0, 1, 0]
        records.clear()
        assert counted(proxy) - before == 4


@both
@pytest.mark.parametrize("keys", [True, False], ids=["our keys", "its own"])
@clients
async def test_the_clients_authorization_is_for_the_upstream_unless_it_is_a_proxy_key(client: str, keys: bool):
    shown: list[str | None] = []
    said = [b"".join(step for step in text(one).steps if isinstance(step, bytes)) for one in (ADD, "It is 42.")]

    def answer(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers.get("authorization"))
        return httpx.Response(200, content=said[len(shown) - 1], headers={"content-type": "text/event-stream"})

    file = ('client_keys = ["secret"]\n' if keys else "") + FILE.replace(":9", ":9/v1")
    proxy = Proxy(load(file), transport=httpx.MockTransport(answer))
    header = (b"x-api-key", b"secret") if client == "messages" else (b"authorization", b"Bearer secret")
    async with stream_asgi(proxy, PATHS[client], body=body(client), headers=[header]) as reply:
        assert await reply.head() == 200
        assert b"42" in await reply.body()
    assert shown == ([None] * 2 if keys else ["Bearer secret"] * 2)
    if keys:
        async with stream_asgi(proxy, PATHS[client], body=body(client)) as reply:
            assert await reply.head() == 401


@both
async def test_several_choices_are_rejected():
    async with stream_asgi(proxy_of(scripted("x")), PATHS["chat"], body=body("chat", n=2)) as reply:
        assert await reply.head() == 400
        assert b"omit n" in await reply.body()


# --- official clients, over a socket ---------------------------------------------------------------------------------

SAYS = (
    text("I add them.\n", ADD, usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}),
    text("It is 42.", usage={"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}),
)
DID = '\n[calls math.add {"a": 2, "b": 40}]\n[math.add answered, 2 characters]\n'


@pytest.fixture(scope="module")
def served() -> Iterator[Switch]:
    switch = Switch()
    with uvicorn_server(Proxy(load(FILE), apps={"u": switch})) as server:
        switch.url = server.url
        yield switch


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_chat_completions_client(served: Switch, stream: bool):
    served.app = ScriptedUpstream(*SAYS)
    asked: Any = {"model": "helper", "messages": [{"role": "user", "content": "What is 2 + 40?"}]}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        if not stream:
            reply = client.chat.completions.create(**asked)
            message = reply.choices[0].message
            content, did = message.content, message.reasoning_content
        else:
            chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            content = "".join(delta.content or "" for delta in deltas)
            did = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
            reply = chunks[-1]
    assert (content, did, reply.model) == ("I add them.\n\nIt is 42.", DID, "helper")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (110, 12)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_responses_client_continues_a_conversation(served: Switch, stream: bool):
    served.app = ScriptedUpstream(*SAYS, text("Yes."))
    asked: Any = {"model": "helper", "input": "What is 2 + 40?"}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        if not stream:
            reply = client.responses.create(**asked)
        else:
            with client.responses.stream(**asked) as events:
                reply = events.get_final_response()
        assert [part.type for part in reply.output] == ["message", "reasoning", "message"]
        assert (reply.output_text, reply.output[1].summary[0].text) == ("I add them.\n\nIt is 42.", DID)
        assert (reply.model, reply.usage.input_tokens, reply.usage.output_tokens) == ("helper", 110, 12)
        more = client.responses.create(model="helper", input="Sure?", previous_response_id=reply.id)
        assert more.output_text == "Yes."
    messages = served.app.requests[2].json["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "It is 42." in messages[2]["content"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_messages_client(served: Switch, stream: bool):
    served.app = ScriptedUpstream(*SAYS)
    asked: Any = {"model": "helper", "max_tokens": 99, "messages": [{"role": "user", "content": "What is 2 + 40?"}]}
    with anthropic.Anthropic(base_url=served.url, api_key="x") as client:
        if not stream:
            reply: Any = client.messages.create(**asked)
        else:
            with client.messages.stream(**asked) as events:
                reply = events.get_final_message()
    assert [part.type for part in reply.content] == ["text", "thinking", "text"]
    assert [reply.content[0].text, reply.content[1].thinking] == ["I add them.", DID]
    assert (reply.content[2].text.strip(), reply.stop_reason, reply.model) == ("It is 42.", "end_turn", "helper")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (110, 12)


def test_servers_are_started_once_when_the_proxy_starts():
    upstream = scripted(ADD, "It is 42.", ADD, "It is 42.")
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
        ('[mcp.a]\ntools = ["*"]', "mcp.a: an MCP server needs either a command or a url"),
        ('[mcp.a]\ncommand = "x"', "mcp.a.tools: this setting is required"),
        ('[[model]]\nmatch = "*"\nmcp = ["b"]', 'model[0].mcp: unknown MCP server "b"'),
    ],
)
def test_invalid_settings_are_errors(file: str, sentence: str):
    with pytest.raises(SettingsError) as caught:
        load(file)
    assert sentence in caught.value.message


def test_nothing_is_executed_by_default():
    assert Settings().mcp == {}
    assert Settings().rule_for("helper").mcp is None


@both
@clients
async def test_a_web_page_cannot_run_tools(client: str):
    upstream = scripted(ADD, "It is 42.")
    proxy = proxy_of(upstream)
    for expected, sent in (
        (403, [(b"origin", b"https://evil.example"), (b"content-type", b"text/plain")]),
        (403, [(b"sec-fetch-site", b"cross-site")]),
        (415, [(b"content-type", b"text/plain")]),
        (421, [(b"host", b"evil.example")]),
    ):
        async with stream_asgi(proxy, PATHS[client], body=body(client), headers=sent) as reply:
            assert await reply.head() == expected
    assert upstream.requests == []
