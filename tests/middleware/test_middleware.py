"""The middleware around FastAPI, Starlette and bare apps: which requests it handles, which pass untouched, and
errors.
"""

import gc
import inspect
import json
import math
import sys
import weakref
from types import FrameType
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import fastapi
import pytest
import starlette.applications
import starlette.middleware.base
import starlette.middleware.gzip
import starlette.responses
import starlette.routing
import starlette.testclient
import trio
from hypercorn.middleware import AsyncioWSGIMiddleware
from support.validators import assert_valid, validate_chat_stream

from streamtool.middleware import ToolMiddleware
from streamtool.settings import LimitSettings, Settings
from streamtool.testing import DONE, Die, Hang, Hold, Pause, Script, ScriptedUpstream, chunk, status, stream_asgi, text

PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
PATH = "/v1/chat/completions"

both = pytest.mark.anyio
virtual = pytest.mark.trio


def request(**fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [PING], **fields}
    return json.dumps({k: v for k, v in body.items() if v is not None}).encode()


def calls(body: bytes) -> list[tuple[str, str]]:
    """Return the calls of a stream, after validating it."""
    assert_valid(validate_chat_stream(body))
    found: dict[int, list[str]] = {}
    for line in body.decode().split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                for part in choice["delta"].get("tool_calls", ()):
                    entry = found.setdefault(part["index"], ["", ""])
                    entry[0] += part["function"].get("name", "")
                    entry[1] += part["function"]["arguments"]
    return [(name, arguments) for name, arguments in found.values()]


# --- which requests are handled


@both
@pytest.mark.parametrize(
    ("path", "scope"),
    [
        (PATH, {}),
        ("/llm" + PATH, {"root_path": "/llm"}),  # the path includes the root path, as in current servers
        (PATH, {"root_path": "/llm"}),  # as in older servers
        ("/a/b" + PATH, {"root_path": "/a/b/"}),
        ("/a/b" + PATH, {"root_path": "/a"}),
        ("/other/chat/completions", {}),
    ],
)
async def test_paths_are_matched_below_the_root_path(path, scope):
    upstream = ScriptedUpstream(text("Look: ", CALL))
    async with stream_asgi(ToolMiddleware(upstream), path, body=request(), scope=scope) as reply:
        body = await reply.body()
    assert calls(body) == [("ping", '{"x": 1}')]
    assert upstream.requests[0].path == path
    assert "tools" not in upstream.requests[0].json


@both
@pytest.mark.parametrize("path", ["/other/chat", PATH + "/", PATH + "/x", "/messages", "/"])
async def test_other_paths_pass_with_the_same_receive_and_send(path):
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend((scope, receive, send))

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}
    await ToolMiddleware(app)(scope, receive, send)
    assert seen == [scope, receive, send]
    assert seen[0] is scope


@both
async def test_an_app_without_lifespan_raises_its_own_error():
    async def app(*_: Any) -> None:
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        await ToolMiddleware(app)({"type": "lifespan"}, receive=None, send=None)  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("kind", ["websocket", "lifespan", "http"])
async def test_websockets_lifespan_and_other_methods_pass_with_the_same_objects(kind):
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        raise AssertionError

    scope = {"type": kind, "path": PATH, "method": "GET", "headers": []}
    await ToolMiddleware(app)(scope, receive, send)
    assert seen[0] is scope
    assert seen[1] is receive
    assert seen[2] is send


@both
async def test_paths_can_be_configured():
    upstream = ScriptedUpstream(text(CALL))
    app = ToolMiddleware(upstream, paths=["/api/chat/completions"])
    async with stream_asgi(app, "/api/chat/completions", body=request()) as reply:
        assert calls(await reply.body()) == [("ping", '{"x": 1}')]
    async with stream_asgi(app, PATH, body=request()) as reply:
        assert calls(await reply.body()) == []


def test_options_override_settings():
    app = ToolMiddleware(ScriptedUpstream(text("x")), settings=Settings(retries=1, keepalive=3), retries=0)
    assert app.settings.retries == 0
    assert app.settings.keepalive == 3


@both
async def test_the_path_of_the_app_may_differ():
    upstream = ScriptedUpstream(text(CALL))
    app = ToolMiddleware(upstream, app_path="/inner/chat")
    async with stream_asgi(app, "/llm" + PATH, body=request(), scope={"root_path": "/llm"}) as reply:
        await reply.body()
    assert upstream.requests[0].path == "/llm/inner/chat"
    assert upstream.requests[0].scope["raw_path"] == b"/llm/inner/chat"


# --- requests passed byte for byte


@both
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}',
        b'{ "messages" : [{"role":"user","content":"\\u00e4"}],\n "model": "m", "tools": null, "x": 1.50}',
        b'{"messages":[{"role":"critic","content":7}],"n":1000,"stream":"yes"}',  # the app may understand it
        b'{"model":"m","messages":[],"tool_choice":"none","stop":7}',
    ],
)
async def test_a_request_without_tools_passes_byte_for_byte(body):
    script = Script((b"any", b" thing", b"\x00"), status=207, content_type="x/y", headers=(("etag", "1"),))
    upstream = ScriptedUpstream(script)
    headers = [(b"Content-Type", b"application/json"), (b"X-Own", b"1"), (b"accept-encoding", b"br")]
    async with stream_asgi(ToolMiddleware(upstream), body=body, headers=headers) as reply:
        assert await reply.head() == 207
        assert [chunk async for chunk in reply.chunks()] == [b"any", b" thing", b"\x00"]
    assert reply.raw_headers == [(b"content-type", b"x/y"), (b"etag", b"1")]
    assert upstream.requests[0].body == body
    assert upstream.requests[0].scope["headers"] == headers


@both
async def test_a_passed_on_request_sees_the_client_disconnect():
    upstream = ScriptedUpstream(Script((b"a", Hang())))
    body = request(tools=None)
    async with stream_asgi(ToolMiddleware(upstream), body=body) as reply:
        await anext(aiter(reply.chunks()))
        reply.disconnect()
        with anyio.fail_after(5):
            await reply.finished.wait()
    assert upstream.left == 1


# --- streaming


@both
async def test_each_piece_is_sent_before_the_next_is_produced():
    held = [Hold()]
    script = text("xy", CALL, size=1)
    steps = [step for each in script.steps for step in (each, *held)]
    upstream = ScriptedUpstream(Script(tuple(steps)))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        seen = b""
        chunks = aiter(reply.chunks())
        for expected in (b'"role"', b'"content":"x"', b'"content":"y"'):
            with anyio.fail_after(5):
                seen = await anext(chunks)
            assert expected in seen
            upstream.release()


@both
async def test_events_sent_in_a_single_message_leave_in_a_single_message():
    script = text("Only plain words here.", size=3)
    joined = Script((b"".join(s for s in script.steps[:4] if isinstance(s, bytes)), *script.steps[4:]))
    async with stream_asgi(ToolMiddleware(ScriptedUpstream(joined)), body=request()) as reply:
        first = await anext(aiter(reply.chunks()))
    assert first.count(b"data: ") == 4


@both
@pytest.mark.parametrize("kind", [bytearray, memoryview])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_app_may_send_any_buffer_and_reuse_it(kind, stream):
    upstream = ScriptedUpstream(text("Look: ", CALL))

    async def app(scope, receive, send):
        async def sends(message):
            buffer = bytearray(message.get("body", b""))
            await send({**message, "body": kind(buffer)} if buffer else message)
            buffer[:] = b"x" * len(buffer)

        await upstream(scope, receive, sends)

    tools = ToolMiddleware(app, inspect=True)
    async with stream_asgi(tools, PATH, body=request(stream=stream)) as reply:
        body = await reply.body()
    assert b"Look" in body
    assert b"ping" in body
    assert "differs" not in [line["type"] for line in tools.observers.ring.lines("1")]


@both
async def test_a_complete_reply_is_a_single_message_with_its_length():
    async with stream_asgi(ToolMiddleware(ScriptedUpstream(text("See ", CALL))), body=request(stream=False)) as reply:
        body = await reply.body()
    assert reply.status == 200
    assert reply.headers["content-length"] == str(len(body))
    assert reply.headers["x-streamtool-mode"] == "emulate"
    assert json.loads(body)["choices"][0]["finish_reason"] == "tool_calls"


@both
async def test_the_app_receives_the_whole_rewritten_body_and_its_length():
    upstream = ScriptedUpstream(text("x"))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"5"),
        (b"accept-encoding", b"gzip"),
        (b"authorization", b"Bearer k"),
    ]
    async with stream_asgi(ToolMiddleware(upstream), body=request(), headers=headers[:1] + headers[2:]) as reply:
        await reply.body()
    sent = upstream.requests[0]
    assert sent.headers["content-length"] == str(len(sent.body))
    assert sent.headers["accept-encoding"] == "identity"
    assert sent.headers["authorization"] == "Bearer k"
    assert sent.headers["content-type"] == "application/json"


@both
async def test_another_attempt_calls_the_app_again():
    upstream = ScriptedUpstream(text("No."), text(CALL))
    records = []
    app = ToolMiddleware(upstream, on_exchange=records.append)
    async with stream_asgi(app, body=request(tool_choice="required")) as reply:
        body = await reply.body()
    assert calls(body) == [("ping", '{"x": 1}')]
    assert len(upstream.requests) == 2
    assert records[0].attempts == ("required call missing",)
    assert records[0].error is None


@both
async def test_a_failing_callback_does_not_affect_the_reply(caplog):
    def fail(record: Any) -> None:
        raise RuntimeError("mine")

    app = ToolMiddleware(ScriptedUpstream(text(CALL)), on_exchange=fail)
    async with stream_asgi(app, body=request()) as reply:
        assert calls(await reply.body())
        await reply.finished.wait()
    assert "on_exchange" in caplog.text


@both
async def test_parallel_off_stops_the_app_immediately():
    upstream = ScriptedUpstream(text(CALL, done=False, finish=None).then(Hang()))
    async with stream_asgi(ToolMiddleware(upstream), body=request(parallel_tool_calls=False)) as reply:
        with anyio.fail_after(5):
            body = await reply.body()
            await reply.finished.wait()
    assert body.endswith(DONE)
    assert upstream.left == 1


@both
async def test_an_app_may_continue_after_the_reply():
    finished = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ScriptedUpstream(text(CALL))(scope, receive, send)
        await anyio.sleep(0.01)
        finished.set()

    async with stream_asgi(ToolMiddleware(app), body=request()) as reply:
        await reply.body()
        with anyio.fail_after(5):
            await reply.finished.wait()
    assert finished.is_set()


# --- limits and errors of the request


@both
@pytest.mark.parametrize("with_length", [True, False])
async def test_a_body_over_the_limit_is_413(with_length):
    body = request(padding="x" * 1000)
    headers = [(b"content-length", str(len(body)).encode())] if with_length else []
    upstream = ScriptedUpstream(text("x"))
    async with stream_asgi(
        ToolMiddleware(upstream, limits=LimitSettings(body=500)), body=body, headers=headers
    ) as reply:
        assert await reply.head() == 413
        assert "500 bytes" in json.loads(await reply.body())["error"]["message"]
    assert upstream.requests == []


@both
@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"{", None),
        (request(messages="no"), "messages"),
        (request(tools="no"), "tools"),
        (request(tool_choice={"type": "function", "function": {"name": "nope"}}), "tool_choice"),
    ],
)
async def test_an_unreadable_request_is_400_in_the_protocols_format(body, place):
    async with stream_asgi(ToolMiddleware(ScriptedUpstream(text("x"))), body=body) as reply:
        assert await reply.head() == 400
        error = json.loads(await reply.body())["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(place or "")
    assert reply.headers["x-request-id"].startswith("req_")


@both
async def test_a_client_that_disconnects_while_sending_is_not_an_error():
    sent = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    await ToolMiddleware(ScriptedUpstream(text("x")))(scope, receive, send)
    assert sent == []


# --- failing apps


@both
async def test_an_app_that_raises_before_it_responds_is_a_server_error(caplog):
    upstream = ScriptedUpstream(Script((), before=(Die(RuntimeError("secret detail")),)))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        assert await reply.head() == 500
        body = await reply.body()
    assert "error" in json.loads(body)
    assert b"secret" not in body
    assert "secret detail" in caplog.text


@both
async def test_an_app_that_raises_in_the_middle_is_an_error_in_the_stream(caplog):
    upstream = ScriptedUpstream(text("Some words", finish=None, done=False).then(Die()))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        body = await reply.body()
    assert reply.status == 200
    assert b'"error"' in body
    assert b'finish_reason":"stop' not in body


@both
async def test_an_app_without_a_response_is_a_bad_gateway():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    async with stream_asgi(ToolMiddleware(app), body=request()) as reply:
        assert await reply.head() == 502


@both
async def test_an_error_of_the_app_keeps_its_status():
    async with stream_asgi(
        ToolMiddleware(ScriptedUpstream(status(429, "slow down", headers=[("retry-after", "3")]))), body=request()
    ) as reply:
        assert await reply.head() == 429
        assert json.loads(await reply.body())["error"]["message"] == "slow down"
    assert reply.headers["retry-after"] == "3"


# --- the client disconnects


@both
@pytest.mark.parametrize(
    "said",
    ["", "Some text", 'See <tool_call>{"name": "ping", "arguments": {"x": ', CALL],
    ids=["before the first byte", "in text", "in arguments", "between calls"],
)
async def test_the_app_is_cancelled_when_the_client_disconnects(said):
    script = text(said, finish=None, done=False).then(Hang()) if said else Script((), before=(Hang(),))
    upstream = ScriptedUpstream(script)
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        if said:
            chunks = aiter(reply.chunks())
            for _ in range(2):
                await anext(chunks)
        else:
            await anyio.wait_all_tasks_blocked()
        reply.disconnect()
        with anyio.fail_after(5):
            await reply.finished.wait()
    assert upstream.left == 1


@both
@pytest.mark.parametrize("leaves", [True, False])
async def test_an_app_that_fails_while_it_is_cancelled_is_not_an_error(leaves, caplog):
    async def fail_at_the_end() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("mine")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_at_the_end)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for step in text(CALL, finish=None, done=False).steps:
                await send({"type": "http.response.body", "body": step, "more_body": True})
            await anyio.sleep_forever()

    body = request(parallel_tool_calls=leaves)  # the app is stopped after its call, or the client disconnects
    async with stream_asgi(ToolMiddleware(app), body=body) as reply:
        await anext(reply)
        if leaves:
            reply.disconnect()
        with anyio.fail_after(5):
            await reply.finished.wait()
        rest = await reply.body()
    assert leaves or rest.endswith(DONE)


@virtual
async def test_nothing_waits_for_a_client_that_disconnected_without_reading(autojump_clock):
    upstream = ScriptedUpstream(text("12345", finish=None, done=False).then(Die()))
    async with stream_asgi(ToolMiddleware(upstream), body=request(), buffer=0) as reply:
        for _ in range(3):  # the role and two pieces of text; only the error remains
            await anext(reply)
        await trio.sleep(1)
        reply.disconnect()
        with trio.fail_after(6):
            await reply.finished.wait()


@both
async def test_the_apps_receive_reports_the_disconnect():
    heard = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        with anyio.CancelScope(shield=True):
            heard.append(await receive())

    async with stream_asgi(ToolMiddleware(app), body=request()) as reply:
        await anyio.wait_all_tasks_blocked()
        reply.disconnect()
        with anyio.fail_after(5):
            await reply.finished.wait()
    assert heard == [{"type": "http.disconnect"}]


@both
async def test_a_server_that_raises_after_a_disconnect_stops_the_app():
    upstream = ScriptedUpstream(text("words ", finish=None, done=False).then(Hang()))
    started = False

    async def receive() -> Any:
        nonlocal started
        if not started:
            started = True
            return {"type": "http.request", "body": request(), "more_body": False}
        return await anyio.sleep(math.inf)

    async def send(message: Any) -> None:
        raise OSError("gone")

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    with anyio.fail_after(5):
        await ToolMiddleware(upstream)(scope, receive, send)
    assert upstream.left == 1


# --- keep-alives


@virtual
async def test_comments_are_sent_while_the_upstream_is_silent(autojump_clock):
    first, *rest = text("Hi", CALL).steps
    upstream = ScriptedUpstream(Script((Pause(26), first, Pause(13), *rest)))
    began = trio.current_time()
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        seen = [(round(trio.current_time() - began, 1), piece) async for piece in reply]
    comments = [at for at, piece in seen if piece == b": keep-alive\n\n"]
    assert comments[:2] == [10.0, 20.0]
    assert len(comments) == 3
    assert comments[2] == 37.5  # silence is checked four times per keep-alive interval
    assert calls(b"".join(piece for _, piece in seen)) == [("ping", '{"x": 1}')]


@virtual
async def test_after_a_comment_an_upstream_error_is_sent_in_the_stream(autojump_clock):
    upstream = ScriptedUpstream(Script((b'{"error":{"message":"late no"}}',), status=503, before=(Pause(11),)))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        body = await reply.body()
    assert reply.status == 200
    assert body.startswith(b": keep-alive\n\n")
    assert b"late no" in body


@virtual
async def test_a_complete_reply_waits_without_comments(autojump_clock):
    upstream = ScriptedUpstream(Script((Pause(35), *text("Hi").steps)))
    async with stream_asgi(ToolMiddleware(upstream), body=request(stream=False)) as reply:
        body = await reply.body()
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hi"


@both
async def test_a_complete_request_leaves_no_garbage():
    ended = anyio.Event()
    pending = [request()]

    async def receive() -> Any:  # like servers, which report the end of the response as a disconnect
        if pending:
            return {"type": "http.request", "body": pending.pop()}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if not message.get("more_body", True):
            ended.set()

    async def upstream(_: Any, __: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": chunk({"content": "Hi"}) + chunk(finish="stop") + DONE})
        await anyio.lowlevel.checkpoint()

    sent_with = weakref.ref(send)
    scope = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "query_string": b"", "headers": []}
    gc.disable()
    try:
        await ToolMiddleware(upstream)(scope, receive, send)
        del send
        assert sent_with() is None
    finally:
        gc.enable()


@virtual
async def test_comments_stop_with_the_upstream(autojump_clock):
    upstream = ScriptedUpstream(Script((*text("Hi", finish=None, done=False).steps, Pause(15), Die())))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        body = await reply.body()
        await trio.sleep(60)
        assert reply.finished.is_set()
    assert body.count(b": keep-alive") == 1
    assert b'"error"' in body


@virtual
async def test_an_app_that_never_ends_is_stopped_after_the_reply(autojump_clock):
    upstream = ScriptedUpstream(text(CALL).then(Hang()))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        await reply.body()
        with trio.fail_after(30):
            await reply.finished.wait()
    assert upstream.left == 1


# --- frameworks


def fastapi_app() -> tuple[fastapi.FastAPI, ScriptedUpstream]:
    upstream = ScriptedUpstream(text("Let me look. ", CALL))
    app = fastapi.FastAPI()

    @app.post(PATH)
    async def complete(request: fastapi.Request) -> starlette.responses.StreamingResponse:
        body = await request.json()
        if body["model"] == "refuse":
            raise fastapi.HTTPException(418, "a teapot")
        if body["model"] == "crash":
            raise RuntimeError("crashed")

        async def stream() -> Any:
            for step in text("Let me look. ", CALL).steps:
                await anyio.lowlevel.checkpoint()
                yield step

        return starlette.responses.StreamingResponse(stream(), media_type="text/event-stream")

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    app.add_middleware(ToolMiddleware)
    return app, upstream


@both
async def test_a_fastapi_app_supports_tools():
    app, _ = fastapi_app()
    async with stream_asgi(app, body=request()) as reply:
        assert calls(await reply.body()) == [("ping", '{"x": 1}')]
    async with stream_asgi(app, "/hello", method="GET") as reply:
        assert json.loads(await reply.body()) == {"hello": "world"}


@both
@pytest.mark.parametrize("outside", [True, False])
async def test_a_function_middleware_works_on_either_side(outside):
    upstream = ScriptedUpstream(text(CALL, finish=None, done=False).then(Hang()))
    inner: Any = starlette.applications.Starlette(routes=[starlette.routing.Mount("/", app=upstream)])
    app = (
        inner
        if not outside
        else starlette.applications.Starlette(routes=[starlette.routing.Mount("/", app=ToolMiddleware(upstream))])
    )

    async def dispatch(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-mine"] = "1"
        return response

    app.add_middleware(starlette.middleware.base.BaseHTTPMiddleware, dispatch=dispatch)
    async with stream_asgi(app if outside else ToolMiddleware(app), body=request()) as reply:
        assert b'"role"' in await anext(reply)
        assert reply.headers["x-mine"] == "1"
        reply.disconnect()
        with anyio.fail_after(5):
            await reply.finished.wait()
    assert upstream.left == 1


def test_a_sync_test_client_works():
    app, _ = fastapi_app()
    with starlette.testclient.TestClient(app) as client:
        body = client.post(PATH, content=request()).content
    assert calls(body) == [("ping", '{"x": 1}')]


@both
async def test_an_exception_in_a_route_is_an_error_status():
    app, _ = fastapi_app()
    async with stream_asgi(app, body=request(model="refuse")) as reply:
        assert await reply.head() == 418
        assert json.loads(await reply.body())["error"]["message"] == "a teapot"
    async with stream_asgi(app, body=request(model="crash")) as reply:
        assert await reply.head() == 500


@both
async def test_a_mounted_app_supports_tools():
    inner = ToolMiddleware(ScriptedUpstream(text(CALL)))
    app = starlette.applications.Starlette(routes=[starlette.routing.Mount("/deep/llm", app=inner)])
    async with stream_asgi(app, "/deep/llm" + PATH, body=request()) as reply:
        assert calls(await reply.body()) == [("ping", '{"x": 1}')]


@both
@pytest.mark.parametrize("outside", [True, False])
async def test_compression_works_on_either_side(outside):
    upstream = ScriptedUpstream(text(CALL))
    gzip = starlette.middleware.gzip.GZipMiddleware
    app: Any = (
        gzip(ToolMiddleware(upstream), minimum_size=0) if outside else ToolMiddleware(gzip(upstream, minimum_size=0))
    )
    headers = [(b"accept-encoding", b"gzip"), (b"content-type", b"application/json")]
    async with stream_asgi(app, body=request(), headers=headers) as reply:
        body = await reply.body()
    assert reply.headers.get("content-encoding") is None
    assert calls(body) == [("ping", '{"x": 1}')]


@both
async def test_headers_of_the_app_reach_the_client():
    script = text(CALL)
    upstream = ScriptedUpstream(
        Script(script.steps, headers=(("access-control-allow-origin", "*"), ("content-length", "3")))
    )
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        await reply.body()
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "content-length" not in reply.headers


@both
async def test_an_event_stream_with_the_wrong_content_type_is_read():
    for kind in ("application/json", "text/plain", ""):
        upstream = ScriptedUpstream(Script(text(CALL).steps, content_type=kind))
        async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
            assert calls(await reply.body()) == [("ping", '{"x": 1}')]
    assert chunk({"content": "x"}).startswith(b"data: ")


@virtual
@pytest.mark.parametrize("seconds", [1, 5, 22])
async def test_a_client_that_disconnects_in_a_silence_stops_the_app(autojump_clock, seconds: int):
    upstream = ScriptedUpstream(text("Hi", finish=None, done=False).then(Hang()))
    async with stream_asgi(ToolMiddleware(upstream), body=request()) as reply:
        await trio.sleep(seconds)
        reply.disconnect()
        with trio.fail_after(1):
            await reply.finished.wait()
    assert upstream.left == 1


@virtual
async def test_a_client_that_disconnects_without_reading_a_comment_stops_the_app(autojump_clock):
    upstream = ScriptedUpstream(text("Hi", finish=None, done=False).then(Hang()))
    given, commented = [request()], trio.Event()

    async def receive() -> Any:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        await commented.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b": keep-alive"):
            commented.set()
            await trio.sleep_forever()

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    with trio.fail_after(13):
        await ToolMiddleware(upstream)(scope, receive, send)
    assert upstream.left == 1


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def body_of(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


PIECES = (
    START,
    body_of(chunk({"content": "Hello "})),
    body_of(chunk({"content": "world."})),
    body_of(chunk(finish="stop") + DONE, more=False),
)


async def send_in_coroutines_that_wait(send: Any) -> None:
    for sending in [send(piece) for piece in PIECES]:
        await sending


async def send_from_a_thread(send: Any) -> None:
    def work() -> None:
        for piece in PIECES:
            anyio.from_thread.run(send, piece)

    await anyio.to_thread.run_sync(work)


async def send_once_more_what_was_never_sent(send: Any) -> None:
    start, first, second, last = PIECES
    await send(start)
    await send(first)
    send(second).close()
    await send(second)
    await send(last)


@both
@pytest.mark.parametrize(
    "way",
    [send_in_coroutines_that_wait, send_from_a_thread, send_once_more_what_was_never_sent],
)
async def test_a_message_counts_when_it_is_awaited(way):
    async def app(scope, receive, send):
        await receive()
        assert inspect.iscoroutinefunction(send)
        await way(send)

    async with stream_asgi(ToolMiddleware(app), PATH, body=request()) as reply:
        body = await reply.body()
    assert_valid(validate_chat_stream(body))
    written = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in written) == "Hello world."


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wsgi_app_supports_tools():
    def wsgi(_: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("content-type", "text/event-stream")])
        return [chunk({"content": f"Look: {CALL}"}), chunk(finish="stop") + DONE]

    app = ToolMiddleware(AsyncioWSGIMiddleware(wsgi))
    async with stream_asgi(app, PATH, body=request(), scope={"client": ("127.0.0.1", 1)}) as reply:
        body = await reply.body()
    assert calls(body) == [("ping", '{"x": 1}')]


# --- the cost of a delta


@both
async def test_a_text_delta_passes_through_eight_functions():
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and ("/streamtool/" in name or "/statemachine/" in name):
            calls.append(frame.f_code.co_qualname)

    async def upstream(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        *deltas, last = [chunk({"content": f"{number} or "}) for number in range(50)]
        for delta in deltas:
            await send({"type": "http.response.body", "body": delta, "more_body": True})
        sys.setprofile(profile)
        await send({"type": "http.response.body", "body": last, "more_body": True})
        sys.setprofile(None)
        await send({"type": "http.response.body", "body": chunk(finish="stop") + DONE})

    given = [request()]

    async def receive() -> Any:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        return await anyio.sleep(math.inf)

    async def send(_: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "query_string": b"", "headers": []}
    try:
        await ToolMiddleware(upstream)(scope, receive, send)
    finally:
        sys.setprofile(None)
    assert [name for name in calls if name not in ("EventOrder.violations_by", "Parser.state")] == [  # of our own tests
        "ServedExchange._handle",
        "ServedExchange.take_piece",
        "Exchange.feed",
        "ReplyReader.feed",
        "ChoiceFilter.feed_text",
        "ReplyWriter.text",
        "ClientConnection.put",
        "Entry.send",
    ]
