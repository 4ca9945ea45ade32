"""Per-protocol work of the drivers: keep-alives, keys, request ids, models, token counts; and SDKs without a server."""

import json
from typing import Any

import anthropic
import fastapi
import httpx
import httpx2
import ollama
import openai
import pydantic
import pytest
import trio
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from google import genai
from langchain_openai import ChatOpenAI
from support.dialects import ALL_CLIENTS, CLIENTS, PATHS, UPSTREAMS, Ask, events, path, read, refusal, said, write
from support.sweeps import alternating, each

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Pause, Script, ScriptedUpstream, stream_asgi
from streamtool.transport import SyncToolTransport, ToolTransport

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
CALL = 'So.\n<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
ASK = Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA),))

both = pytest.mark.anyio
clients = each("client", ALL_CLIENTS)
upstreams = each("upstream", UPSTREAMS)


def body(client: str, ask: Ask = ASK) -> bytes:
    return json.dumps(write(client, ask)).encode()


def pairs(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


# --- keep-alives

BEATS = {
    "chat": (b": keep-alive\n\n", b": keep-alive\n\n"),
    "messages": (b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'),
    "responses": (b": keep-alive\n\n", b": keep-alive\n\n"),
    "ollama": (b" ", b" "),
    "gemini": (b"\n", b"\n"),
}
"""Keep-alives before the reply has begun, and after."""


@pytest.mark.trio
@clients
async def test_keep_alives_have_the_form_of_the_protocol(client: str, autojump_clock: Any):
    whole = said("chat", CALL).steps
    script = Script((Pause(25), *whole[:3], Pause(25), *whole[3:]))
    app = ToolMiddleware(ScriptedUpstream(script), app_protocol="chat")
    began = trio.current_time()
    async with stream_asgi(app, PATHS[client], body=body(client)) as reply:
        heard = [(round(trio.current_time() - began), piece) async for piece in reply]
    before, within = BEATS[client]
    beats = [(at, piece) for at, piece in heard if piece in (before, within)]
    assert [piece for _, piece in beats] == [before, before, within, within]
    assert all(at % 25 in range(7, 25) for at, _ in beats)
    assert read(client, b"".join(piece for _, piece in heard), stream=True).parts == ("So.", ("ping", '{"x": 1}'))


# --- keys


KEYS = {
    "chat": ("authorization", "Bearer sk"),
    "messages": ("x-api-key", "sk"),
    "responses": ("authorization", "Bearer sk"),
    "ollama": ("authorization", "Bearer sk"),
    "gemini": ("x-goog-api-key", "sk"),
    "completions": ("authorization", "Bearer sk"),
}
ALL_KEYS = {"authorization", "x-api-key", "x-goog-api-key"}


class Seen(httpx.AsyncBaseTransport):
    """A network that records the requests and answers like the upstream."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the response of the network."""
        self.requests.append(request)
        data = b"".join(step for step in self.script.steps if isinstance(step, bytes))
        return httpx.Response(
            self.script.status, headers={"content-type": self.script.content_type}, stream=httpx.ByteStream(data)
        )


@both
@upstreams
@each("shown", [{"authorization": "Bearer sk"}, {"x-api-key": "sk"}], ids=list)
@clients
@alternating
async def test_the_clients_key_reaches_the_upstream_in_its_own_header(
    client: str, upstream: str, shown: dict[str, str]
):
    network = Seen(said(upstream, CALL))
    settings = Settings(upstreams={"u": {"url": "http://up.test", "protocol": upstream}})
    async with stream_asgi(
        Proxy(settings, transport=network), PATHS[client], body=body(client), headers=pairs(shown)
    ) as reply:
        assert await reply.head() == 200
        await reply.body()
    name, value = KEYS[upstream]
    if upstream == client == "messages":  # it accepts either
        [(name, value)] = shown.items()
    sent = network.requests[0].headers
    assert {key: sent[key] for key in ALL_KEYS if key in sent} == {name: value}


@both
@upstreams
@clients
async def test_our_own_key_replaces_the_clients(client: str, upstream: str):
    network = Seen(said(upstream, CALL))
    settings = Settings(
        client_keys=["door"], upstreams={"u": {"url": "http://up.test", "protocol": upstream, "key": "sk"}}
    )
    shown = {"x-api-key": "door"}
    async with stream_asgi(
        Proxy(settings, transport=network), PATHS[client], body=body(client), headers=pairs(shown)
    ) as reply:
        assert await reply.head() == 200
        assert "sk" not in str(reply.headers)
        await reply.body()
    sent = network.requests[0].headers
    name, value = KEYS[upstream]
    assert {key: sent[key] for key in ALL_KEYS if key in sent} == {name: value}
    assert "door" not in str(sent)
    async with stream_asgi(Proxy(settings, transport=network), PATHS[client], body=body(client)) as reply:
        assert await reply.head() == 401
        assert "the key is missing or wrong" in str(json.loads(await reply.body())["error"])


@both
async def test_the_url_and_headers_of_upstream_requests():
    """Check the path, the query and the headers that every request of the protocol has."""
    found = {}
    for upstream in UPSTREAMS:
        network = Seen(said(upstream, CALL))
        settings = Settings(
            upstreams={"u": {"url": "http://up.test", "protocol": upstream}}, models=[{"match": "m", "use": "org/a b"}]
        )
        shown = {"anthropic-beta": "x", "openai-beta": "y"}
        app = Proxy(settings, transport=network)
        async with stream_asgi(app, "/v1/responses", body=body("responses"), headers=pairs(shown)) as reply:
            await reply.body()
        sent = network.requests[0]
        found[upstream] = str(sent.url)
        assert sent.headers.get("anthropic-version") == ("2023-06-01" if upstream == "messages" else None)
        kept = {"anthropic-beta", "openai-beta"} & set(sent.headers)
        assert kept == ({"anthropic-beta", "openai-beta"} if upstream == "responses" else set())
    assert found == {
        "chat": "http://up.test/v1/chat/completions",
        "messages": "http://up.test/v1/messages",
        "responses": "http://up.test/v1/responses",
        "ollama": "http://up.test/api/chat",
        "gemini": "http://up.test/v1beta/models/org%2Fa%20b:streamGenerateContent?alt=sse",
        "completions": "http://up.test/v1/completions",
    }


@both
@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("https://api.anthropic.com", "messages"),
        ("https://generativelanguage.googleapis.com", "gemini"),
        ("http://127.0.0.1:11434", "chat"),
    ],
)
async def test_a_known_host_determines_its_protocol(url: str, protocol: str):
    assert Settings(upstreams={"u": {"url": url}}).for_model("m").protocol == protocol


@both
@clients
@pytest.mark.parametrize("status", [200, 429])
async def test_the_request_id_is_in_the_header_that_the_client_reads(client: str, status: int):
    script = said("chat", CALL) if status == 200 else refusal("chat")
    app = ToolMiddleware(ScriptedUpstream(script), app_protocol="chat")
    async with stream_asgi(app, PATHS[client], body=body(client)) as reply:
        assert await reply.head() == status
        await reply.body()
        assert reply.headers["request-id" if client == "messages" else "x-request-id"].startswith("req_")


@both
@pytest.mark.parametrize("client", CLIENTS)
async def test_hosted_tools_are_dropped_or_rejected(client: str):
    sent = write(client, ASK)
    sent["tools"].append(
        {"type": "web_search_20250305" if client == "messages" else "web_search", "name": "web_search"}
    )
    records: list[Any] = []
    app = ToolMiddleware(ScriptedUpstream(said("chat", CALL)), app_protocol="chat", on_exchange=records.append)
    async with stream_asgi(app, PATHS[client], body=json.dumps(sent).encode()) as reply:
        assert await reply.head() == 200
        await reply.body()
    assert any(note.startswith("tool of type web_search") for note in records[0].dropped)
    strict = ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=Settings(hosted_tools="refuse"))
    async with stream_asgi(strict, PATHS[client], body=json.dumps(sent).encode()) as reply:
        assert await reply.head() == 400
        assert "omit it" in json.loads(await reply.body())["error"]["message"]


SEARCHED = {
    "chat": {"tool_choice": {"type": "web_search"}},
    "messages": {"tool_choice": {"type": "tool", "name": "web_search"}},
    "responses": {"tool_choice": {"type": "web_search"}},
}


@both
@pytest.mark.parametrize("more", [True, False], ids=["beside others", "alone"])
@pytest.mark.parametrize("client", SEARCHED)
async def test_a_call_of_a_hosted_tool_cannot_be_demanded(client: str, more: bool):
    sent = write(client, ASK)
    hosted = {"type": "web_search_20250305" if client == "messages" else "web_search", "name": "web_search"}
    sent["tools"] = [*(sent["tools"] if more else ()), hosted]
    upstream = ScriptedUpstream(said("chat", CALL))
    demanded = json.dumps({**sent, **SEARCHED[client]}).encode()
    async with stream_asgi(ToolMiddleware(upstream, app_protocol="chat"), PATHS[client], body=demanded) as reply:
        assert await reply.head() == 400
        assert "can be run only by its vendor" in json.loads(await reply.body())["error"]["message"]
    assert not upstream.requests


@both
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_complete_reply_is_assembled_from_an_app_that_only_streams(client: str):
    sent = json.dumps(write(client, Ask(ASK.turns, stream=False))).encode()
    answer = said(client if client != "responses" else "chat", "Good morning.", size=3)
    app = ToolMiddleware(ScriptedUpstream(answer))
    async with stream_asgi(app, PATHS[client], body=sent) as reply:
        assert await reply.head() == 200
        assert reply.headers["content-type"].startswith("application/json")
        assert read(client, await reply.body(), stream=False).parts == ("Good morning.",)


@both
async def test_a_document_labelled_as_a_stream_passes_unchanged():
    document = b' {"id": "x", "object": "chat.completion", "choices": [], "more": 1.50}'

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (b"", document[:9], document[9:]):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    sent = json.dumps(write("chat", Ask(ASK.turns, stream=False))).encode()
    async with stream_asgi(ToolMiddleware(app), body=sent) as reply:
        assert await reply.body() == document


# --- models and token counts

LISTS = {
    "chat": {"object": "list", "data": [{"id": "qwen3", "object": "model", "created": 5, "owned_by": "me", "max": 9}]},
    "messages": {"data": [{"type": "model", "id": "qwen3", "display_name": "Q"}], "has_more": False},
    "responses": {"object": "list", "data": [{"id": "qwen3", "object": "model"}]},
    "ollama": {"models": [{"name": "qwen3", "model": "qwen3", "size": 1}]},
    "gemini": {"models": [{"name": "models/qwen3", "displayName": "Q"}]},
    "completions": {"object": "list", "data": [{"id": "qwen3", "object": "model"}]},
}


@both
@upstreams
async def test_models_are_listed_with_their_treatment(upstream: str):
    network = Seen(Script((json.dumps(LISTS[upstream]).encode(),), content_type="application/json"))
    settings = Settings(
        upstreams={"u": {"url": "http://up.test", "protocol": upstream}},
        models=[{"match": "claude-x", "use": "qwen3", "format": "qwen3_coder"}, {"match": "*", "format": "invoke"}],
    )
    app = Proxy(settings, transport=network)
    async with stream_asgi(app, "/v1/models", method="GET") as reply:
        listed = json.loads(await reply.body())
    assert listed["object"] == "list"
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("claude-x", "qwen3", False)
    alias, model = listed["data"]
    assert alias["streamtool"] == {
        "mode": "emulate", "format": "qwen3_coder", "reason": "by setting", "model": "qwen3", "upstream": "u",
    }  # fmt: skip
    assert model["streamtool"] == {
        "mode": "emulate", "format": "invoke", "reason": "by setting", "model": "qwen3", "upstream": "u",
    }  # fmt: skip
    assert model["object"] == "model"
    assert model["type"] == "model"
    if upstream == "chat":
        assert (model["created"], model["owned_by"], model["max"]) == (5, "me", 9)
    async with stream_asgi(app, "/v1/models/qwen3", method="GET") as reply:
        assert json.loads(await reply.body()) == model
    async with stream_asgi(app, "/v1/models/none", method="GET") as reply:
        assert await reply.head() == 404
        assert json.loads(await reply.body())["error"]["code"] == "model_not_found"


@both
@pytest.mark.parametrize(
    ("script", "status"),
    [(refusal("chat", 401), 401), (Script((b"<html>",)), 502), (refusal("chat", 500), 500)],
    ids=["refused", "page", "broken"],
)
async def test_a_list_that_cannot_be_fetched_is_an_error(script: Script, status: int):
    app = Proxy(Settings(upstreams={"u": {"url": "http://up.test"}}), transport=Seen(script))
    async with stream_asgi(app, "/v1/models", method="GET") as reply:
        assert await reply.head() == status
        assert json.loads(await reply.body())["error"]["message"]


@both
async def test_an_upstream_of_messages_counts_tokens_itself():
    upstream = ScriptedUpstream(Script((b'{"input_tokens": 321}',), content_type="application/json"))
    sent = write("messages", ASK)
    del sent["max_tokens"], sent["stream"]
    async with stream_asgi(
        ToolMiddleware(upstream), "/v1/messages/count_tokens", body=json.dumps(sent).encode()
    ) as reply:
        assert (await reply.head(), json.loads(await reply.body())) == (200, {"input_tokens": 321})
    asked = upstream.requests[0]
    assert asked.path == "/v1/messages/count_tokens"
    assert "tools" not in asked.json
    assert "ping" in json.dumps(asked.json["system"])


@both
@pytest.mark.parametrize("protocol", ["chat", "ollama", None])
async def test_all_other_counts_are_estimates(protocol: Any):
    upstream = ScriptedUpstream(Script((b"not here",), 404, "text/plain"))
    app = ToolMiddleware(upstream, app_protocol=protocol)
    counts = []
    for tools in (1, 20):
        sent = write(
            "messages", Ask((("user", "hi" * 500),), tuple((f"t{i}", "Does it.", SCHEMA) for i in range(tools)))
        )
        async with stream_asgi(app, "/v1/messages/count_tokens", body=json.dumps(sent).encode()) as reply:
            assert await reply.head() == 200
            counts.append(json.loads(await reply.body())["input_tokens"])
    assert 500 < counts[0] < counts[1] < 2000
    async with stream_asgi(app, "/v1/messages/count_tokens", body=b'{"model": 5}') as reply:
        assert await reply.head() == 400
        assert json.loads(await reply.body())["type"] == "error"


@both
async def test_counting_a_response_includes_the_previous_responses():
    upstream = ScriptedUpstream(said("chat", "Good morning."))
    app = ToolMiddleware(upstream)
    counts = []
    sent = {"model": "m", "input": "hi" * 500}
    async with stream_asgi(app, "/v1/responses", body=json.dumps(sent).encode()) as reply:
        sent["previous_response_id"] = json.loads(await reply.body())["id"]
    for more in (("previous_response_id",), ()):
        fields = {key: value for key, value in sent.items() if key not in more}
        async with stream_asgi(app, "/v1/responses/input_tokens", body=json.dumps(fields).encode()) as reply:
            assert await reply.head() == 200
            told = json.loads(await reply.body())
        assert told["object"] == "response.input_tokens"
        counts.append(told["input_tokens"])
    assert 200 < counts[0] < counts[1] < 700
    assert len(upstream.requests) == 1


@both
async def test_an_upstream_of_responses_counts_tokens_itself():
    upstream = ScriptedUpstream(Script((b'{"input_tokens": 321}',), content_type="application/json"))
    sent = {**write("responses", ASK), "store": False}
    app = ToolMiddleware(upstream, app_protocol="responses")
    async with stream_asgi(app, "/v1/responses/input_tokens", body=json.dumps(sent).encode()) as reply:
        assert json.loads(await reply.body()) == {"object": "response.input_tokens", "input_tokens": 321}
    asked = upstream.requests[0]
    assert (asked.path, {*asked.json}) == ("/v1/responses/input_tokens", {"model", "input"})
    assert "ping" in json.dumps(asked.json["input"])


# --- SDKs without a server


def inner(script: Script, seen: list[Any]) -> httpx2.MockTransport:
    """Return the network of an SDK."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        data = b"".join(step for step in script.steps if isinstance(step, bytes))
        return httpx2.Response(script.status, headers={"content-type": script.content_type}, content=data)

    return httpx2.MockTransport(answer)


@pytest.mark.parametrize("upstream", [None, "chat", "ollama"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_anthropic_sdk_without_a_server(upstream: Any, stream: bool):
    seen: list[Any] = []
    transport = SyncToolTransport(
        inner(said(upstream or "messages", CALL), seen), settings=Settings(app_protocol=upstream)
    )
    with anthropic.Anthropic(
        api_key="sk", base_url="http://up.test", http_client=httpx2.Client(transport=transport)
    ) as client:
        asked: dict[str, Any] = write("messages", ASK)
        del asked["stream"]
        if stream:
            with client.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    assert message.content[-1].input == {"x": 1}
    path = {None: "/v1/messages", "chat": "/v1/chat/completions", "ollama": "/api/chat"}[upstream]
    assert seen[0].url.path == path
    assert {key: seen[0].headers[key] for key in ALL_KEYS if key in seen[0].headers} == {"authorization": "Bearer sk"}


@both
@pytest.mark.parametrize("stream", [True, False])
async def test_the_openai_sdk_speaks_responses_without_a_server(stream: bool):
    seen: list[Any] = []
    transport = ToolTransport(inner(said("chat", CALL), seen))
    async with openai.AsyncOpenAI(
        api_key="sk", base_url="http://up.test/openai/v1", http_client=httpx2.AsyncClient(transport=transport)
    ) as client:
        asked: dict[str, Any] = write("responses", ASK)
        del asked["stream"]
        if stream:
            async with client.responses.stream(**asked) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**asked)
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert response.output[1].arguments == '{"x": 1}'
    assert str(seen[0].url) == "http://up.test/openai/v1/chat/completions"


def test_langchain_without_a_server():
    seen: list[Any] = []
    client = httpx2.Client(transport=SyncToolTransport(inner(said("chat", CALL), seen)))
    model = ChatOpenAI(model="m", api_key="sk", base_url="http://up.test/v1", http_client=client)
    tool = {"type": "function", "function": {"name": "ping", "description": "Pings.", "parameters": SCHEMA}}
    message = model.bind_tools([tool]).invoke("hi")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("ping", {"x": 1})]
    assert "tools" not in json.loads(seen[0].content)


# --- tools of namespaces


@both
@pytest.mark.parametrize(
    ("written", "called"),
    [
        ("docs.lookup", ("docs", "lookup")),
        ("lookup", ("docs", "lookup")),
        ("ping", (None, "ping")),
        ("docs.ping", ("docs", "ping")),
        ("twice", (None, "twice")),  # ambiguous, so that the client tells the model
        ("two.twice", ("two", "twice")),
    ],
)
async def test_a_tool_of_a_namespace_may_be_called_by_its_short_name(written: str, called: Any):
    def group(name: str, *tools: str) -> Any:
        inner = [{"type": "function", "name": tool, "parameters": SCHEMA} for tool in tools]
        return {"type": "namespace", "name": name, "description": "A group.", "tools": inner}

    sent = write("responses", ASK)
    sent["tools"] += [group("docs", "lookup", "ping", "twice"), group("two", "twice")]
    upstream = ScriptedUpstream(
        said("chat", f'<tool_call>{{"name": "{written}", "arguments": {{"x": 1}}}}</tool_call>')
    )
    async with stream_asgi(ToolMiddleware(upstream), "/v1/responses", body=json.dumps(sent).encode()) as reply:
        output = events(await reply.body())[-1]["response"]["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [called]


# --- custom tools


@both
async def test_the_text_of_a_custom_tool_may_replace_the_arguments():
    sent = {**write("responses", ASK), "tools": [{"type": "custom", "name": "apply_patch"}]}
    patch = '*** Begin Patch\n+ "x"\n*** End Patch'
    written = f'<tool_call>{{"name": "apply_patch", "arguments": {json.dumps(patch)}}}</tool_call>'
    upstream = ScriptedUpstream(said("chat", written))
    async with stream_asgi(ToolMiddleware(upstream), "/v1/responses", body=json.dumps(sent).encode()) as reply:
        output = events(await reply.body())[-1]["response"]["output"]
    assert [(item["type"], item["input"]) for item in output] == [("custom_tool_call", patch)]


@both
async def test_the_text_of_a_custom_tool_is_streamed_in_each_step():
    patch = '*** Begin Patch\n+\tx = "ä\\n" </tool_call>\n*** End Patch\n' * 4
    written = json.dumps({"input": patch}, ensure_ascii=False)
    steps = said("chat", f'<tool_call>{{"name": "apply_patch", "arguments": {written}}}</tool_call>').steps
    sent = {**write("responses", ASK), "tools": [{"type": "custom", "name": "apply_patch"}]}
    async with stream_asgi(
        ToolMiddleware(ScriptedUpstream(Script(steps))), "/v1/responses", body=json.dumps(sent).encode()
    ) as reply:
        pieces = [
            "".join(
                event["delta"] for event in events(data) if event["type"] == "response.custom_tool_call_input.delta"
            )
            async for data in reply
        ]
    assert "".join(pieces) == patch
    brought = [piece for piece in pieces if piece]
    assert max(map(len, brought)) <= 8  # a delta has four characters, and an escape may wait for its end
    assert len(brought) >= len(patch) // 5


# --- details


@both
@clients
async def test_the_embedded_model_serves_every_client_protocol(client: str):
    sent = write(client, Ask((("user", "Use ping with 5, please."),), (("ping", "Pings.", SCHEMA),)))
    async with stream_asgi(Proxy(), PATHS[client], body=json.dumps(sent).encode()) as reply:
        assert await reply.head() == 200
        assert read(client, await reply.body(), stream=True).reason == "calls"


@both
async def test_only_the_first_upstream_receives_the_clients_key():
    network = Seen(Script((json.dumps(LISTS["chat"]).encode(),), content_type="application/json"))
    settings = Settings(
        upstreams={"a": {"url": "http://a.test"}, "b": {"url": "http://b.test"}},
        models=[{"match": "qwen3", "upstream": "b"}],
    )
    app = Proxy(settings, transport=network)
    shown = {"authorization": "Bearer sk"}
    async with stream_asgi(app, "/v1/models", method="GET", headers=pairs(shown)) as reply:
        listed = json.loads(await reply.body())["data"]
    keys = {request.url.host: request.headers.get("authorization") for request in network.requests}
    assert keys == {"a.test": "Bearer sk", "b.test": None}
    assert [(entry["id"], entry["streamtool"]["upstream"]) for entry in listed] == [("qwen3", "b")]


@both
@pytest.mark.parametrize("client", [*CLIENTS, "gemini"])
async def test_a_content_filter_within_a_call_keeps_its_finish_reason(client: str):
    app = ToolMiddleware(ScriptedUpstream(said("chat", CALL[:50], "filter")), app_protocol="chat")
    async with stream_asgi(app, PATHS[client], body=body(client)) as reply:
        assert read(client, await reply.body(), stream=True).reason == "filter"


@both
@pytest.mark.parametrize(("tools", "kept"), [(True, False), (False, True)])
async def test_the_response_format_is_part_of_the_prompt_when_tools_are_emulated(tools: bool, kept: bool):
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    for wanted, words in ((form, '"answer"'), ({"type": "json_object"}, "one JSON object")):
        sent = {**write("chat", ASK), "response_format": wanted}
        if not tools:
            del sent["tools"]
        upstream = ScriptedUpstream(said("chat", "{}"))
        app = ToolMiddleware(upstream, settings=Settings(models=[{"match": "m", "use": "other"}]))
        async with stream_asgi(app, PATHS["chat"], body=json.dumps(sent).encode()) as reply:
            await reply.body()
        asked = upstream.requests[0].json
        assert asked.get("response_format") == (wanted if kept else None)
        assert (words in asked["messages"][-1]["content"]) == tools


@both
async def test_an_unknown_response_format_is_forwarded_if_the_protocols_match():
    form = {"type": "grammar", "grammar": "root ::= x"}
    upstream = ScriptedUpstream(said("chat", "x"))
    records: list[Any] = []
    settings = Settings(models=[{"match": "m", "use": "other"}])
    app = ToolMiddleware(upstream, settings=settings, on_exchange=records.append)
    for tools in (False, True):
        sent = {**write("chat", ASK), "response_format": form}
        if not tools:
            del sent["tools"]
        async with stream_asgi(app, PATHS["chat"], body=json.dumps(sent).encode()) as reply:
            await reply.body()
    assert [request.json.get("response_format") for request in upstream.requests] == [form, None]
    assert "form of the answer" in records[-1].dropped


@both
async def test_the_grammar_of_a_custom_tool_is_in_the_prompt():
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "x"+'}}
    sent = {**write("chat", ASK), "tools": [{"type": "custom", "custom": {"name": "xs", "format": grammar}}]}
    upstream = ScriptedUpstream(said("chat", "x"))
    async with stream_asgi(ToolMiddleware(upstream), PATHS["chat"], body=json.dumps(sent).encode()) as reply:
        await reply.body()
    assert 'start: "x"+' in upstream.requests[0].json["messages"][0]["content"]


# --- limits of chat templates


@both
async def test_content_is_a_string_unless_it_contains_more_than_text():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    marked = {"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}
    contents = [
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [{"type": "text", "text": "see"}, picture],
        [marked],
    ]
    turns = [{"role": "user", "content": content} for content in contents]
    answers = [{"role": "assistant", "content": "Fine."}] * 2
    messages = [turns[0], answers[0], turns[1], answers[1], turns[2]]
    upstream = ScriptedUpstream(said("chat", "Done."))
    app = ToolMiddleware(upstream, app_protocol="chat")
    body = {**write("chat", ASK), "messages": messages}
    async with stream_asgi(app, "/v1/chat/completions", body=json.dumps(body).encode()) as reply:
        await reply.body()
    sent = upstream.requests[0].json["messages"][1:]
    assert [message["content"] for message in sent] == ["a\nb", "Fine.", contents[1], "Fine.", [marked]]


@both
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."),
        (400, "System role not supported"),
        (500, "Jinja Exception: System message must be at the beginning."),
    ],
)
async def test_a_chat_template_error_suggests_settings(status: int, message: str):
    refusal = Script((json.dumps({"error": {"message": message}}).encode(),), status, "application/json")
    app = ToolMiddleware(ScriptedUpstream(refusal), app_protocol="chat")
    async with stream_asgi(app, "/v1/chat/completions", body=json.dumps(write("chat", ASK)).encode()) as reply:
        told = json.loads(await reply.body())["error"]["message"]
    assert told.startswith(message)
    assert 'roles = "strict", system_role = false or media = false' in told


# --- clients of Ollama and Gemini, whose SDKs accept a transport


def test_the_ollama_client_over_the_transport():
    tool = {"type": "function", "function": {"name": "ping", "description": "Pings.", "parameters": SCHEMA}}
    network = Seen(said("chat", CALL))
    wrapped = SyncToolTransport(httpx.MockTransport(network.answer), app_protocol="chat")
    with ollama.Client(host="http://up.test/base", transport=wrapped) as client:
        reply = client.chat("m", [{"role": "user", "content": "hi"}], tools=[tool])
    assert (reply.message.content, reply.message.tool_calls[0].function.arguments) == ("So.", {"x": 1})
    assert str(network.requests[0].url) == "http://up.test/base/v1/chat/completions"


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        ("chat", "http://up.test/v1/chat/completions"),
        ("gemini", "http://up.test/v1beta/models/m:streamGenerateContent?alt=sse"),
    ],
)
def test_the_google_client_over_the_transport(upstream: str, url: str):
    network = Seen(said(upstream, CALL))
    wrapped = SyncToolTransport(httpx.MockTransport(network.answer), app_protocol=upstream)  # type: ignore[arg-type]
    declared = {"name": "ping", "description": "Pings.", "parameters_json_schema": SCHEMA}
    with httpx.Client(transport=wrapped) as inner:
        options = genai.types.HttpOptions(base_url="http://up.test", api_version="v1beta", httpx_client=inner)
        client = genai.Client(api_key="sk", vertexai=False, http_options=options)
        reply = client.models.generate_content(
            model="m", contents="hi", config={"tools": [{"function_declarations": [declared]}]}
        )
        assert (reply.text, reply.function_calls[0].args) == ("So.", {"x": 1})
        assert client.models.count_tokens(model="m", contents="hi").total_tokens > 0
    assert str(network.requests[0].url) == url
    name, value = KEYS[upstream]
    assert network.requests[0].headers[name] == value


# --- model details for clients of Ollama and Gemini


@both
@pytest.mark.parametrize(
    ("client", "path", "found"),
    [
        ("ollama", "/api/tags", ("models", "size")),
        ("gemini", "/v1beta/models", ("models", "displayName")),
    ],
)
@upstreams
async def test_model_details_are_passed_on_if_the_protocols_match(
    client: str, path: str, found: tuple[str, str], upstream: str
):
    list_, field = found
    network = Seen(Script((json.dumps(LISTS[upstream]).encode(),), content_type="application/json"))
    settings = Settings(upstreams={"u": {"url": "http://up.test", "protocol": upstream}})
    async with stream_asgi(Proxy(settings, transport=network), path, method="GET") as reply:
        assert await reply.head() == 200
        (entry,) = json.loads(await reply.body())[list_]
    assert entry["name"].removeprefix("models/") == "qwen3"
    own = {"ollama": 1, "gemini": "Q"}[client]
    assert (entry[field] == own) is (client == upstream)


@both
async def test_model_details_of_an_ollama_upstream_are_passed_on():
    network = Seen(Script((b'{"capabilities": ["vision"]}',), content_type="application/json"))
    settings = Settings(upstreams={"u": {"url": "http://up.test", "protocol": "ollama"}})
    asked = b'{"model": "qwen3"}'
    async with stream_asgi(Proxy(settings, transport=network), "/api/show", body=asked) as reply:
        assert await reply.body() == b'{"capabilities": ["vision"]}'
    assert [(request.url.path, request.content) for request in network.requests] == [("/api/show", asked)]


# --- strict apps


class Asked(pydantic.BaseModel):
    """A request as validated by a strict app."""

    model_config = pydantic.ConfigDict(extra="forbid")
    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    max_tokens: int | None = None


def strict(refused: list[Any]) -> fastapi.FastAPI:
    """Return an app that streams, and rejects unknown fields."""
    app = fastapi.FastAPI()

    @app.post("/v1/chat/completions")
    async def answer(_: Asked) -> StreamingResponse:
        return StreamingResponse(iter(said("chat", CALL).steps), media_type="text/event-stream")

    @app.exception_handler(RequestValidationError)
    async def refuse(request: fastapi.Request, error: RequestValidationError) -> fastapi.Response:
        refused.append(error.errors())
        return await request_validation_exception_handler(request, error)

    return app


@both
@clients
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_app_that_rejects_unknown_fields_gets_only_fields_sent_by_the_client(client: str, stream: bool):
    refused: list[Any] = []
    app = ToolMiddleware(strict(refused), app_protocol="chat")
    ask = Ask(ASK.turns, ASK.tools, stream=stream)
    sent = {key: value for key, value in write(client, ask).items() if key != "stream_options"}
    for _ in range(2):
        async with stream_asgi(app, path(client, stream=stream), body=json.dumps(sent).encode()) as reply:
            assert await reply.head() == 200
            assert read(client, await reply.body(), stream=stream).parts[1][0] == "ping"
        assert len(refused) == (0 if client == "chat" and stream else 1)
