"""The proxy and its upstream over HTTP: keys, headers, routing, timeouts, and errors when the upstream fails."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from support.network import JSON, PING, Network, request
from support.servers import RawUpstream, http_stream, hypercorn_server, uvicorn_server
from support.validators import assert_valid, validate_chat_stream

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.refusals import Phrases, default_phrases
from streamtool.settings import Settings, UpstreamSettings
from streamtool.testing import DONE, Script, ScriptedUpstream, stream_asgi, text
from streamtool.upstream.app import HttpUpstream

PATH = "/v1/chat/completions"
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'

both = pytest.mark.anyio
virtual = pytest.mark.trio


def streamed(*parts: str, **options: Any) -> Callable[[httpx.Request], Any]:
    steps = list(text(*parts, **options).steps)
    return lambda _: (200, [("content-type", "text/event-stream")], steps)


def proxy(
    answer: Any,
    *,
    key: str | None = None,
    client_keys: tuple[str, ...] = (),
    url: str = "http://up.test",
    **settings: Any,
) -> tuple[Proxy, Network]:
    network = Network(answer)
    upstream = UpstreamSettings(name="up", url=url, key=key)
    return Proxy(Settings(upstreams={"up": upstream}, client_keys=client_keys, **settings), transport=network), network


async def ask(
    app: Any, body: bytes | None = None, path: str = PATH, method: str = "POST", headers: Any = (JSON,)
) -> tuple[int, bytes, dict[str, str]]:
    async with stream_asgi(
        app, path, method=method, body=request() if body is None else body, headers=headers
    ) as reply:
        status = await reply.head()
        return status, await reply.body(), reply.headers


# --- forwarding


@both
async def test_a_client_with_tools_is_served_by_a_text_only_upstream():
    app, network = proxy(streamed("See: ", CALL))
    status, body, headers = await ask(app)
    assert status == 200
    assert headers["x-streamtool-mode"] == "emulate"
    assert body.endswith(DONE)
    assert_valid(validate_chat_stream(body, json.loads(request()), headers=headers))
    sent = network.requests[0]
    assert str(sent.url) == "http://up.test/v1/chat/completions"
    assert sent.headers["accept-encoding"] == "identity"
    assert "user-agent" not in sent.headers
    assert "tools" not in json.loads(sent.content)


@both
async def test_without_tools_bytes_pass_both_ways():
    steps = [b": comment\r\n\r\n", b'data: {"odd":1}\n\n', b"\xff\x00"]
    app, network = proxy(lambda _: (200, [("content-type", "text/event-stream"), ("content-encoding", "x")], steps))
    sent = b'{ "model":"m","messages":[{"role":"user","content":"hi"}] }'
    status, body, headers = await ask(app, sent, headers=[JSON, (b"accept-encoding", b"br")])
    assert status == 200
    assert body == b"".join(steps)
    assert headers["content-encoding"] == "x"
    assert network.requests[0].content == sent
    assert network.requests[0].headers["accept-encoding"] == "br"


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("http://h:1", "/v1/models", "http://h:1/v1/models"),
        ("http://h:1/", "/v1/models", "http://h:1/v1/models"),
        ("https://h/api/v1", "/v1/models", "https://h/api/v1/models"),
        ("https://h/api", "/v1/models", "https://h/api/v1/models"),
        ("https://h/v1x", "/v1/models", "https://h/v1x/v1/models"),
        ("http://h:1", "/v1/models/a%3Fb%23c%20d%25/\u00e4", "http://h:1/v1/models/a%3Fb%23c%20d%25/%C3%A4"),
    ],
)
def test_a_version_in_the_url_is_not_repeated(base, path, expected):
    upstream = HttpUpstream(UpstreamSettings(name="u", url=base))
    assert upstream.url(path) == expected
    assert upstream.url(path, b"a=1") == expected + "?a=1"


@both
async def test_models_are_routed_by_the_first_matching_rule():
    seen: list[tuple[str, str]] = []

    def answer(sent: httpx.Request) -> Any:
        seen.append((sent.url.host, json.loads(sent.content)["model"]))
        return 200, [("content-type", "text/event-stream")], list(text("ok").steps)

    settings = Settings(
        upstreams={"a": {"url": "http://a.test"}, "b": {"url": "http://b.test"}},
        models=[{"match": "claude-*", "use": "qwen", "upstream": "b"}, {"match": "claude-x", "upstream": "a"}],
    )
    app = Proxy(settings, transport=Network(answer))
    for model, tools in (("claude-x", [PING]), ("claude-x", None), ("other", [PING]), ("other", None)):
        assert (await ask(app, request(model=model, tools=tools)))[0] == 200
    assert seen == [("b.test", "qwen"), ("b.test", "qwen"), ("a.test", "other"), ("a.test", "other")]


@both
async def test_without_an_upstream_the_sample_model_answers():
    status, body, headers = await ask(Proxy())
    assert status == 200
    assert_valid(validate_chat_stream(body, json.loads(request()), headers=headers))
    assert b'"name":"ping"' in body


# --- paths


@both
async def test_paths_that_are_served_and_others():
    app, network = proxy(
        lambda _: (200, [("content-type", "application/json")], [b'{"data":[]}']), passthrough=("/v1/embeddings",)
    )
    assert await ask(app, b"", "/healthz", "GET") == (
        200,
        b'{"status":"ok"}',
        {"content-type": "application/json", "content-length": "15"},
    )
    assert network.requests == []
    status, body, _ = await ask(app, b"", "/v1/models", "GET")
    assert (status, json.loads(body)["data"]) == (200, [])
    assert (await ask(app, b"", "/v1/models/x", "GET"))[0] == 404
    assert (await ask(app, b"", "/", "HEAD"))[0] == 200
    assert (await ask(app, b"{}", "/v1/embeddings"))[0] == 200
    assert [r.url.path for r in network.requests] == ["/v1/models", "/v1/models", "/v1/embeddings"]
    below = ("/v1/models/../../api/tags", "/v1/models/./x", "/v1/models/..")
    elsewhere = (("/", "GET"), ("/api/delete", "DELETE"), ("/v1/chat", "POST"), ("/v1/files", "GET"))
    for path, method in (*elsewhere, *((each, "GET") for each in below)):
        status, body, _ = await ask(app, b"", path, method)
        assert status == 404
        error = json.loads(body)["error"]
        assert f"nothing is served at {path}" in (error if path.startswith("/api/") else error["message"])
    status, body, headers = await ask(app, b"", PATH, "GET")
    assert status == 405
    assert headers["allow"] == "POST"
    assert (await ask(app, b"", "/v1/models", "DELETE"))[0] == 405
    assert len(network.requests) == 3


@both
async def test_websockets_at_other_paths_are_rejected():
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Proxy()({"type": "websocket", "path": "/x", "headers": []}, receive, send)
    (refusal,) = sent
    assert (refusal["type"], refusal["code"]) == ("websocket.close", 1008)
    assert refusal["reason"] == "no websocket is served at /x: send the request as a POST"


@both
async def test_connections_are_closed_with_the_server():
    app, network = proxy(streamed("ok"))
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        if len(messages) == 1:
            await ask(app)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert network.closed


@both
@pytest.mark.parametrize("kind", [Proxy, ToolMiddleware])
async def test_no_request_is_served_before_everything_is_compiled(kind: Any, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    monkeypatch.setattr("streamtool.server.services.precompile", lambda _: order.append("formats"))

    def phrases() -> Phrases:
        order.append("phrases")
        return default_phrases()

    monkeypatch.setattr("streamtool.server.services.default_phrases", phrases)

    async def inner(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    messages = ["lifespan.shutdown", "lifespan.startup"]

    async def receive() -> Any:
        return {"type": messages.pop()}

    async def send(message: Any) -> None:
        order.append(message["type"])

    app = Proxy() if kind is Proxy else ToolMiddleware(inner, app_protocol="chat")
    await app({"type": "lifespan"}, receive, send)
    assert order == ["formats", "phrases", "lifespan.startup.complete", "lifespan.shutdown.complete"]


# --- keys


@both
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        (((b"authorization", b"Bearer wrong"),), 401),
        (((b"authorization", b"Basic one"),), 401),
        (((b"x-api-key", b""),), 401),
        (((b"Authorization", b"bearer one"),), 200),
        (((b"authorization", b"Bearer two"),), 200),
        (((b"X-Api-Key", b"one"),), 200),
    ],
)
async def test_client_keys_are_required_if_set(headers, status):
    app, network = proxy(streamed("ok"), client_keys=("one", "two"))
    found, body, _ = await ask(app, headers=[JSON, *headers])
    assert found == status
    if status == 401:
        assert json.loads(body)["error"]["code"] == "invalid_api_key"
        assert network.requests == []
        assert (await ask(app, b"", "/v1/models", "GET"))[0] == 401
        assert (await ask(app, b"", "/healthz", "GET"))[0] == 200
    else:
        assert "authorization" not in network.requests[0].headers
        assert "x-api-key" not in network.requests[0].headers


@both
@pytest.mark.parametrize(
    ("sent", "key", "expected"),
    [
        ((b"authorization", b"Bearer theirs"), None, "Bearer theirs"),
        ((b"x-api-key", b"theirs"), None, "Bearer theirs"),
        ((b"authorization", b"Bearer theirs"), "ours", "Bearer ours"),
        ((b"x-other", b"1"), "ours", "Bearer ours"),
        ((b"x-other", b"1"), None, None),
    ],
)
async def test_authorization_towards_the_upstream(sent, key, expected):
    app, network = proxy(streamed("ok"), key=key)
    for tools in ([PING], None):
        await ask(app, request(tools=tools), headers=[JSON, sent])
    for seen in network.requests:
        assert seen.headers.get("authorization") == expected
        assert "x-api-key" not in seen.headers


@both
@pytest.mark.parametrize("tools", [[PING], None])
@pytest.mark.parametrize(("key", "expected"), [(None, 401), ("ours", 502)])
async def test_a_rejected_key_is_a_401_for_its_owner_and_a_502_if_it_is_ours(tools, key, expected):
    refusal = b'{"error":{"message":"bad key sk-secret","type":"authentication_error"}}'
    app, _ = proxy(lambda _: (401, [JSON], [refusal]), key=key)
    status, body, _ = await ask(app, request(tools=tools))
    assert status == expected
    if key:
        assert b"sk-secret" not in body


@both
async def test_headers_pass_only_by_allow_lists():
    answered = [
        ("content-type", "text/event-stream"), ("set-cookie", "a=b"), ("www-authenticate", "x"), ("server", "s"),
        ("x-ratelimit-remaining-tokens", "9"), ("openai-processing-ms", "3"), ("x-request-id", "req_up"),
    ]  # fmt: skip
    app, network = proxy(lambda _: (200, answered, list(text("ok").steps)))
    sent = [
        JSON,
        (b"cookie", b"c"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"openai-organization", b"org"),
        (b"host", b"localhost"),
    ]
    for tools in ([PING], None):
        _, _, headers = await ask(app, request(tools=tools), headers=sent)
        assert headers["x-ratelimit-remaining-tokens"] == "9"
        assert headers["x-request-id"] == "req_up"
        assert not {"set-cookie", "www-authenticate", "server"} & set(headers)
    for seen in network.requests:
        assert seen.headers["openai-organization"] == "org"
        assert seen.headers["host"] == "up.test"
        assert "cookie" not in seen.headers
        assert "x-forwarded-for" not in seen.headers


# --- errors


@both
@pytest.mark.parametrize("tools", [[PING], None])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (httpx.ConnectError("no"), 502),
        (httpx.ConnectTimeout("slow"), 504),
        (httpx.ReadError("broke"), 502),
        (httpx.RemoteProtocolError("nonsense"), 502),
    ],
)
async def test_an_unreachable_upstream_is_an_error_status(tools, error, status):
    app, _ = proxy(lambda _: error)
    found, body, _ = await ask(app, request(tools=tools))
    assert found == status
    assert json.loads(body)["error"]["message"]


@both
async def test_redirects_are_not_followed():
    app, network = proxy(lambda _: (307, [("location", "http://elsewhere.test/")], [b""]))
    assert (await ask(app))[0] == 502
    assert len(network.requests) == 1


@both
@pytest.mark.parametrize("tools", [[PING], None])
async def test_a_broken_connection_is_an_error_in_the_stream(tools):
    steps = [*text("Some words", finish=None, done=False).steps, httpx.ReadError("cut")]
    app, network = proxy(lambda _: (200, [("content-type", "text/event-stream")], steps))
    status, body, _ = await ask(app, request(tools=tools))
    assert status == 200
    last = [e for e in body.split(b"\n\n") if e.startswith(b"data: {")][-1]
    assert json.loads(last[6:])["error"]["type"] == "server_error"
    assert b'"finish_reason":"stop"' not in body
    assert network.bodies[0].closed


@both
async def test_a_complete_body_that_breaks_when_passed_on_is_cut_off():
    app, _ = proxy(lambda _: (200, [JSON], [b'{"a', httpx.ReadError("cut")]))
    async with stream_asgi(app, body=request(tools=None)) as reply:
        with pytest.raises(Exception, match="broke"):
            await reply.body()


@both
@pytest.mark.parametrize("header", [("content-length", "99"), ("content-encoding", "gzip")])
async def test_a_stream_that_cannot_be_extended_is_cut_off(header):
    headers = [("content-type", "text/event-stream"), header]
    app, _ = proxy(lambda _: (200, headers, [b"data: {}\n\n", httpx.ReadError("cut")]))
    async with stream_asgi(app, body=request(tools=None)) as reply:
        with pytest.raises(Exception, match="broke"):
            await reply.body()


@both
async def test_a_disconnect_closes_the_connection_to_the_upstream():
    app, network = proxy(lambda _: (200, [], [*text("Hi", finish=None, done=False).steps, 1000]))
    for tools in ([PING], None):
        async with stream_asgi(app, body=request(tools=tools)) as reply:
            await anext(reply)
            reply.disconnect()
            with anyio.fail_after(5):
                await reply.finished.wait()
        assert network.bodies[-1].closed


# --- timeouts


@virtual
@pytest.mark.parametrize("tools", [[PING], None])
async def test_a_missing_first_byte_is_a_504(autojump_clock, tools):
    app, _ = proxy(lambda _: ("late", 1000, []), keepalive=5000.0)
    assert (await ask(app, request(tools=tools)))[0] == 504
    assert autojump_clock.current_time() < 700


@virtual
async def test_headers_do_not_count_as_the_first_byte(autojump_clock):
    app, _ = proxy(lambda _: (200, [], [1000, b"x"]), keepalive=5000.0)
    assert (await ask(app))[0] == 504


@virtual
async def test_a_slow_first_byte_within_the_limit_is_not_an_error(autojump_clock):
    app, _ = proxy(lambda _: (200, [], [500, *text("ok").steps]))
    status, body, _ = await ask(app)
    assert status == 200
    assert body.endswith(DONE)


@virtual
@pytest.mark.parametrize("tools", [[PING], None])
async def test_silence_in_the_middle_is_an_error_in_the_stream(autojump_clock, tools):
    steps = [*text("Hi", finish=None, done=False).steps, 100, b": still here\n\n", 1000]
    app, network = proxy(lambda _: (200, [("content-type", "text/event-stream")], steps))
    status, body, _ = await ask(app, request(tools=tools))
    assert status == 200
    assert b"server_error" in body
    assert network.bodies[0].closed
    assert 220 <= autojump_clock.current_time() <= 300


@virtual
async def test_a_slow_client_does_not_count_as_silence_of_the_upstream(autojump_clock):
    app, _ = proxy(lambda _: (200, [("content-type", "text/event-stream")], list(text("Hello there").steps)))
    async with stream_asgi(app, body=request(tools=None), buffer=0) as reply:
        body = b""
        async for piece in reply:
            await anyio.sleep(300)
            body += piece
    assert body.endswith(DONE)


# --- over sockets


def test_a_connection_is_reused_after_a_complete_reply():
    upstream = ScriptedUpstream(text("Hi ", CALL))
    with (
        uvicorn_server(upstream) as up,
        uvicorn_server(Proxy(Settings(upstreams={"u": {"url": up.url}}))) as server,
        httpx.Client() as client,
    ):
        for tools in ([PING], None, [PING]):
            assert client.post(server.url + PATH, content=request(tools=tools)).text.endswith("[DONE]\n\n")
    ports = [sent.scope["client"][1] for sent in upstream.requests]
    assert len(ports) == 3
    assert len(set(ports)) == 1


def test_an_upstream_that_continues_after_the_end_is_closed(monkeypatch):
    monkeypatch.setattr("streamtool.server.served_exchange.GRACE", 0.05)
    upstream = RawUpstream()
    try:
        upstream.reset(http_stream(b"".join(s for s in text("Hi").steps if isinstance(s, bytes))))
        with uvicorn_server(Proxy(Settings(upstreams={"u": {"url": upstream.url}}))) as server:
            body = httpx.post(server.url + PATH, content=request()).text
            assert body.endswith("[DONE]\n\n")
            assert upstream.saw_eof.wait(5)
    finally:
        upstream.close()


def test_a_port_without_a_listener_is_a_bad_gateway():
    with uvicorn_server(Proxy(Settings(upstreams={"u": {"url": "http://127.0.0.1:9"}}))) as server:
        assert httpx.post(server.url + PATH, content=request()).status_code == 502
        assert httpx.get(server.url + "/v1/models").status_code == 502


@pytest.mark.parametrize("serve", [uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn-trio"])
def test_a_reply_has_a_single_date_header(serve: Any):
    script = Script((text("Hi."), DONE))
    with uvicorn_server(ScriptedUpstream(script)) as upstream:
        settings = Settings(upstreams={"m": {"url": upstream.url}})  # type: ignore[dict-item]  # attrs converts it
        with serve(Proxy(settings)) as served:
            kind = {"content-type": "application/json"}
            headers = httpx.post(served.url + PATH, content=request(), headers=kind).headers
            assert [name for name, _ in headers.multi_items()].count("date") == 1
