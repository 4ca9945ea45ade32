"""An empty list of tools, which many upstreams reject."""

import gzip
import json
from typing import Any

import httpx
import pytest
from support.dialects import ALL_CLIENTS, UPSTREAMS, Ask, path, said, write
from support.sweeps import each

from streamtool.middleware import ToolMiddleware
from streamtool.testing import ScriptedUpstream, stream_asgi
from streamtool.transport import SyncToolTransport

FIELDS: dict[str, dict[str, Any]] = {
    "chat": {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "messages": {"tools": [], "tool_choice": {"type": "auto"}},
    "responses": {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "ollama": {"tools": []},
    "gemini": {"tools": [{"functionDeclarations": []}], "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
}
OF_TOOLS = {key for fields in FIELDS.values() for key in fields}

both = pytest.mark.anyio


async def sent(client: str, upstream: str, mode: Any, body: bytes, *headers: tuple[bytes, bytes]) -> Any:
    app = ScriptedUpstream(said(upstream, "hello"))
    middleware = ToolMiddleware(app, mode=mode, app_protocol=upstream)  # type: ignore[arg-type]
    async with stream_asgi(middleware, path(client), body=body, headers=headers) as reply:
        await reply.body()
        assert reply.status == 200
    return app.requests[0]


@both
@each("client", ALL_CLIENTS)
@each("upstream", UPSTREAMS)
@each("mode", ["emulate", "rescue", "auto"])
async def test_an_empty_list_of_tools_is_not_sent(client: str, upstream: str, mode: str):
    body = {**write(client, Ask((("user", "hi"),))), **FIELDS[client]}
    if client == "responses":
        body.pop("store")
    found = (await sent(client, upstream, mode, json.dumps(body).encode())).json
    assert not OF_TOOLS & found.keys()
    if client == upstream:
        assert found == {key: value for key, value in body.items() if key not in OF_TOOLS}


@both
async def test_a_compressed_request_with_an_empty_list_of_tools():
    body = {**write("chat", Ask((("user", "hi"),))), "functions": [], "function_call": "auto"}
    data = gzip.compress(json.dumps(body).encode())
    found = await sent("chat", "chat", "emulate", data, (b"content-encoding", b"gzip"))
    assert found.json == write("chat", Ask((("user", "hi"),)))
    assert "content-encoding" not in dict(found.headers)


@both
async def test_other_requests_without_tools_pass_unchanged():
    plain = json.dumps({**write("chat", Ask((("user", "hi"),))), "tools": None, "tool_choice": "none"}, indent=2)
    assert (await sent("chat", "chat", "emulate", plain.encode())).body == plain.encode()
    empty = json.dumps({**write("chat", Ask((("user", "hi"),))), "tools": []}, indent=2).encode()
    assert (await sent("chat", "chat", "native", empty)).body == empty


def test_the_transport_omits_an_empty_list_of_tools():
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={})

    plain = write("chat", Ask((("user", "hi"),)))
    with httpx.Client(transport=SyncToolTransport(httpx.MockTransport(answer))) as client:
        client.post("http://localhost/v1/chat/completions", json={**plain, "tools": []})
    assert seen == [plain]


@both
async def test_hosted_tools_alone_share_nothing_between_conversations():
    """The tools that may be called are then those of the history."""
    search = [{"type": "web_search", "filters": {"allowed_domains": [f"d{n}.example.com" for n in range(400)]}}]
    for name in ("read_mail", "delete_file"):
        app = ScriptedUpstream(said("chat", f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'))
        called = {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}
        asked = [
            {"role": "user", "content": "Go on."},
            called,
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
        ]
        body = json.dumps({"model": "m", "tools": search, "input": asked}).encode()
        async with stream_asgi(ToolMiddleware(app, app_protocol="chat"), path("responses"), body=body) as reply:
            parts = json.loads(await reply.body())["output"]
        assert [part.get("name") for part in parts if part["type"] == "function_call"] == [name]
