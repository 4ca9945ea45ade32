"""How tools reach the model: as text, natively, automatically (remembering the upstream's support), or natively with a
parsed text.
"""

import json
from typing import Any

import pytest
from support.dialects import CLIENTS, PATHS, UPSTREAMS, Ask, Got, read, said, write
from support.native_upstreams import LEAK, NO_TOOLS, native, refused
from support.sweeps import each

from streamtool.middleware import ToolMiddleware
from streamtool.policy import denies_tools
from streamtool.settings import Settings
from streamtool.store.capabilities import CapabilityCache
from streamtool.testing import ScriptedUpstream, stream_asgi

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASK = Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA), ("pong", "Pongs.", SCHEMA)))

both = pytest.mark.anyio
clients = each("client", CLIENTS)


async def got(app: ToolMiddleware, client: str, ask: Ask = ASK, **headers: str) -> tuple[Got, dict[str, str]]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    body = json.dumps(write(client, ask)).encode()
    async with stream_asgi(app, PATHS[client], body=body, headers=pairs) as reply:
        data = await reply.body()
        assert reply.status == 200, data
        return read(client, data, stream=ask.stream), reply.headers


@both
@clients
@each("upstream", [upstream for upstream in UPSTREAMS if upstream != "completions"])
async def test_native_passes_tools_on(client: str, upstream: str):
    """In the upstream's protocol; the text is not parsed. (Completions do not support tools.)"""
    app = ScriptedUpstream(said(upstream, LEAK))
    found, headers = await got(ToolMiddleware(app, mode="native", app_protocol=upstream), client)  # type: ignore[arg-type]
    assert (found.parts, found.reason) == ((LEAK,), "stop")
    sent = json.dumps(app.requests[0].json["tools"])
    assert "ping" in sent
    assert "pong" in sent
    assert "<tool_call>" not in json.dumps(app.requests[0].json)
    assert headers.get("x-streamtool-mode") == (None if client == upstream else "native")


@both
@clients
async def test_native_calls_of_another_protocol_arrive(client: str):
    app = ScriptedUpstream(native(("ping", '{"x": 1}'), ("elsewhere", "{}"), text="So."))
    found, _ = await got(ToolMiddleware(app, mode="native", app_protocol="chat"), client)
    assert (found.parts, found.reason) == (("So.", ("ping", '{"x": 1}'), ("elsewhere", "{}")), "calls")


@both
@clients
async def test_rescue_finds_a_leaked_call_next_to_native_ones(client: str):
    app = ScriptedUpstream(native(("pong", '{"x": 2}'), text=LEAK))
    found, headers = await got(ToolMiddleware(app, mode="rescue", app_protocol="chat"), client)
    assert (found.parts, found.reason) == (("So.", ("ping", '{"x": 1}'), ("pong", '{"x": 2}')), "calls")
    assert len(set(found.ids)) == 2
    assert headers["x-streamtool-mode"] == "rescue"
    assert [tool["function"]["name"] for tool in app.requests[0].json["tools"]] == ["ping", "pong"]


@both
async def test_rescue_finds_a_call_that_the_upstream_missed():
    found, _ = await got(ToolMiddleware(ScriptedUpstream(native(text=LEAK, finish="stop")), mode="rescue"), "chat")
    assert (found.parts, found.reason) == (("So.", ("ping", '{"x": 1}')), "calls")


@both
@clients
@each("server", NO_TOOLS)
@each("stream", [True, False])
async def test_auto_emulates_once_the_upstream_rejects_tools_and_remembers_it(client: str, server: str, stream: bool):
    app = ScriptedUpstream(refused(*NO_TOOLS[server]), said("chat", LEAK))
    records: list[Any] = []
    middleware = ToolMiddleware(app, mode="auto", app_protocol="chat", on_exchange=records.append)
    ask = Ask(ASK.turns, ASK.tools, stream=stream)
    for _ in range(2):
        found, headers = await got(middleware, client, ask)
        assert [part for part in found.parts if isinstance(part, str)] == ["So."]
        assert found.reason == "calls"
        assert headers["x-streamtool-mode"] == "emulate"
    assert ["tools" in request.json for request in app.requests] == [True, False, False]
    assert [record.attempts for record in records] == [("tools unsupported",), ()]
    assert [record.mode for record in records] == ["emulate", "emulate"]


@both
async def test_an_error_that_may_quote_the_request_is_not_remembered():
    words = "Tells whether a model does not support tools."
    quoting = refused(400, {"error": {"message": f"bad schema in tool 'ping' ({words})"}})
    app = ScriptedUpstream(quoting, said("chat", LEAK), native(("pong", "{}")))
    middleware = ToolMiddleware(app, mode="auto")
    found, headers = await got(middleware, "chat", Ask(ASK.turns, (("ping", words, SCHEMA),)))
    assert (found.reason, headers["x-streamtool-mode"]) == ("calls", "emulate")
    found, headers = await got(middleware, "chat")
    assert [part[0] for part in found.parts if isinstance(part, tuple)] == ["pong"]
    assert headers["x-streamtool-mode"] == "native"
    assert ["tools" in request.json for request in app.requests] == [True, False, True]


@both
async def test_auto_is_native_and_parses_the_text_if_the_upstream_supports_tools():
    app = ScriptedUpstream(native(("pong", "{}"), text=LEAK))
    found, headers = await got(ToolMiddleware(app, mode="auto"), "chat")
    assert [part[0] for part in found.parts if isinstance(part, tuple)] == ["ping", "pong"]
    assert headers["x-streamtool-mode"] == "native"


@both
async def test_an_unrelated_rejection_does_not_prove_missing_support():
    app = ScriptedUpstream(refused(400, {"error": {"message": "temperature is too high"}}))
    async with stream_asgi(ToolMiddleware(app, mode="auto"), body=json.dumps(write("chat", ASK)).encode()) as reply:
        assert await reply.head() == 400
    assert len(app.requests) == 1


@both
async def test_native_between_equal_protocols_passes_byte_for_byte():
    script = native(("ping", "{}"))
    app = ScriptedUpstream(script)
    body = json.dumps({**write("chat", ASK), "odd": 1}, indent=3).encode()
    async with stream_asgi(ToolMiddleware(app, mode="native"), body=body) as reply:
        data = await reply.body()
    assert app.requests[0].body == body
    assert data == b"".join(step for step in script.steps if isinstance(step, bytes))


@both
async def test_a_rule_sets_the_mode_of_a_model():
    app = ScriptedUpstream(native(("ping", "{}")))
    settings = Settings(models=[{"match": "m", "mode": "rescue"}])
    _, headers = await got(ToolMiddleware(app, settings=settings), "chat")
    assert headers["x-streamtool-mode"] == "rescue"


@both
async def test_headers_override_the_mode_where_allowed():
    app = ScriptedUpstream(said("chat", LEAK))
    allowed = ToolMiddleware(app, settings=Settings(allow_overrides=True))
    _, headers = await got(allowed, "chat", x_streamtool_mode="rescue")
    assert headers["x-streamtool-mode"] == "rescue"
    await got(allowed, "chat", x_streamtool_format="invoke")
    assert "<invoke" in json.dumps(app.requests[-1].json["messages"])
    for wrong in ({"x_streamtool_mode": "odd"}, {"x_streamtool_format": "odd"}):
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in wrong.items()]
        body = json.dumps(write("chat", ASK)).encode()
        async with stream_asgi(allowed, body=body, headers=pairs) as reply:
            assert await reply.head() == 400
            assert "invalid header" in json.loads(await reply.body())["error"]["message"]
    _, headers = await got(ToolMiddleware(app), "chat", x_streamtool_mode="native")
    assert headers["x-streamtool-mode"] == "emulate"


@pytest.mark.parametrize(("status", "body"), NO_TOOLS.values(), ids=NO_TOOLS)
def test_server_messages_that_reject_tools(status: int, body: Any):
    assert denies_tools(json.dumps(body))


@pytest.mark.parametrize(
    "message",
    [
        "invalid tool schema: parameters.type must be object",
        "rate limit exceeded",
        "tool_choice names a tool that is not among the tools",
        "the model is overloaded",
    ],
)
def test_messages_that_do_not_prove_missing_support(message: str):
    assert not denies_tools(message)


def test_learned_capabilities_expire_after_ten_minutes():
    now = [0.0]
    capabilities = CapabilityCache(lambda: now[0])
    capabilities.learn("c", "u", "m", "tools")
    now[0] = 599.0
    assert capabilities.lacks("c", "u", "m", "tools")
    assert not capabilities.lacks("c", "u", "other", "tools")
    assert not capabilities.lacks("c", "u", "m", "grammar")
    assert not capabilities.lacks("c", None, "m", "tools")
    now[0] = 600.0
    assert not capabilities.lacks("c", "u", "m", "tools")


def test_capabilities_learned_from_one_client_apply_to_others_only_on_a_shared_account():
    capabilities = CapabilityCache(shared=("ours",))
    for upstream in ("theirs", "ours", None):
        capabilities.learn("one", upstream, "m", "tools")
    known = [(upstream, capabilities.lacks("two", upstream, "m", "tools")) for upstream in ("theirs", "ours", None)]
    assert known == [("theirs", False), ("ours", True), (None, False)]
    assert capabilities.lacks("one", "theirs", "m", "tools")


def test_a_client_that_adds_endless_entries_evicts_only_its_own():
    capabilities = CapabilityCache(shared=("ours",))
    capabilities.learn("quiet", "theirs", "m", "tools")
    capabilities.learn("quiet", "ours", "m", "tools")
    for i in range(2000):
        capabilities.learn("loud", "ours", f"m{i}", "tools")
    assert capabilities.lacks("quiet", "theirs", "m", "tools")
    assert capabilities.lacks("quiet", "ours", "m", "tools")
    assert capabilities.lacks("loud", "ours", "m1999", "tools")
    assert not capabilities.lacks("loud", "ours", "m1001", "tools")


def test_learned_capabilities_are_bounded():
    now = [0.0]
    capabilities = CapabilityCache(lambda: now[0])
    for i in range(2000):
        capabilities.learn("c", None, f"m{i}", "tools")
    assert not capabilities.lacks("c", None, "m999", "tools")
    assert capabilities.lacks("c", None, "m1000", "tools")
    assert capabilities.lacks("c", None, "m1999", "tools")


def test_learned_capabilities_can_be_forgotten():
    capabilities = CapabilityCache()
    capabilities.learn("c", "u", "m", "tools")
    capabilities.forget("c", "u", "m", "tools")
    capabilities.forget("c", "u", "m", "never learned")
    assert not capabilities.lacks("c", "u", "m", "tools")
