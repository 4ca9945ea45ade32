"""`ToolTransport` and `SyncToolTransport`, under httpx and httpx2: streaming, early close, errors, attempts."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from support.validators import assert_valid, validate_chat_stream

from streamtool.settings import Settings
from streamtool.testing import Script, event, text
from streamtool.transport import SyncToolTransport, ToolTransport
from tools import sync_transport

URL = "https://api.test/openai/v1/chat/completions"
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}

both = pytest.mark.anyio
packages = pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])


def request(**fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [PING], **fields}
    return {k: v for k, v in body.items() if v is not None}


class Inner:
    """An inner transport for either package, async and sync: answers with scripts, one per request."""

    def __init__(self, package: ModuleType, *scripts: Script | Exception) -> None:
        self.package = package
        self.scripts = scripts
        self.requests: list[Any] = []
        self.urls: list[str] = []
        self.closed: list[bool] = []
        self.sent = 0
        self.shut = False

    def _next(self, request: Any) -> Script:
        assert isinstance(request, self.package.Request)
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(json.loads(request.content or b"null"))
        self.urls.append(str(request.url))
        if isinstance(script, Exception):
            raise script
        return script

    def _response(self, script: Script, stream: Any) -> Any:
        self.closed.append(False)
        return self.package.Response(script.status, headers={"content-type": script.content_type}, stream=stream)

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        await anyio.lowlevel.checkpoint()
        script, inner, number = self._next(request), self, len(self.closed)

        class Stream(self.package.AsyncByteStream):  # type: ignore[name-defined, misc]
            async def __aiter__(self) -> AsyncIterator[bytes]:
                for step in script.steps:
                    await anyio.lowlevel.checkpoint()
                    if isinstance(step, bytes):
                        inner.sent += 1
                        yield step
                    else:
                        raise inner.package.ReadError("cut")

            async def aclose(self) -> None:
                inner.closed[number] = True

        return self._response(script, Stream())

    def handle_request(self, request: Any) -> Any:
        request.read()
        script, inner, number = self._next(request), self, len(self.closed)

        class Stream(self.package.SyncByteStream):  # type: ignore[name-defined, misc]
            def __iter__(self) -> Iterator[bytes]:
                for step in script.steps:
                    if isinstance(step, bytes):
                        inner.sent += 1
                        yield step
                    else:
                        raise inner.package.ReadError("cut")

            def close(self) -> None:
                inner.closed[number] = True

        return self._response(script, Stream())

    async def aclose(self) -> None:
        self.shut = True

    def close(self) -> None:
        self.shut = True


def broken(*parts: str) -> Script:
    from streamtool.testing import Die

    return text(*parts, finish=None, done=False).then(Die())


def calls(body: bytes) -> list[str]:
    events = [json.loads(e[6:]) for e in body.decode().split("\n\n") if e.startswith("data: {")]
    parts = [p for e in events for c in e.get("choices", ()) for p in c["delta"].get("tool_calls", ())]
    return ["".join(p["function"]["arguments"] for p in parts)] if parts else []


@both
@packages
async def test_a_reply_streams_through_an_async_client(package):
    inner = Inner(package, text("Let me see. ", CALL))
    records: list[Any] = []
    transport = ToolTransport(inner, on_exchange=records.append)
    async with (
        package.AsyncClient(transport=transport) as client,
        client.stream("POST", URL, json=request()) as response,
    ):
        pieces = [piece async for piece in response.aiter_raw()]
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert len(pieces) > 5
    assert_valid(validate_chat_stream(b"".join(pieces), request(), headers=dict(response.headers)))
    assert calls(b"".join(pieces)) == ['{"x": 1}']
    assert "tools" not in inner.requests[0]
    assert inner.closed == [True]
    assert inner.shut
    assert records[0].calls == 1


@packages
def test_a_reply_streams_through_a_sync_client(package):
    inner = Inner(package, text("Let me see. ", CALL))
    with (
        package.Client(transport=SyncToolTransport(inner)) as client,
        client.stream("POST", URL, json=request()) as response,
    ):
        pieces = list(response.iter_raw())
    assert len(pieces) > 5
    assert_valid(validate_chat_stream(b"".join(pieces), request(), headers=dict(response.headers)))
    assert calls(b"".join(pieces)) == ['{"x": 1}']
    assert inner.closed == [True]
    assert inner.shut


@both
@packages
async def test_each_piece_is_sent_before_the_next_is_read_and_an_early_close_closes_the_upstreams_reply(package):
    inner = Inner(package, text("word " * 100))
    response = await ToolTransport(inner).handle_async_request(package.Request("POST", URL, json=request()))
    seen = []
    async for _ in response.stream:
        seen.append(inner.sent)
        if len(seen) == 3:
            break
    await response.aclose()
    assert seen == [1, 2, 3]
    assert inner.sent == 3
    assert inner.closed == [True]


@packages
def test_an_early_close_closes_the_upstreams_reply_in_the_sync_client(package):
    inner = Inner(package, text("word " * 100))
    with package.Client(transport=SyncToolTransport(inner)) as client:
        with client.stream("POST", URL, json=request()) as response:
            next(response.iter_raw())
        assert inner.closed == [True]
    assert inner.sent < 5


@both
@packages
async def test_parallel_off_closes_the_upstreams_reply_after_the_first_call(package):
    inner = Inner(package, text(CALL, " word" * 100))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        response = await client.post(URL, json=request(parallel_tool_calls=False))
    assert response.text.endswith("[DONE]\n\n")
    assert inner.closed == [True]
    assert inner.sent < 30


@both
@packages
async def test_another_attempt_is_another_request(package):
    inner = Inner(package, text("No."), text(CALL))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        response = await client.post(URL, json=request(tool_choice="required", stream=False))
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert len(inner.requests) == 2
    assert inner.closed == [True, True]


@packages
def test_another_attempt_is_another_request_in_the_sync_client(package):
    inner = Inner(package, text("No."), text(CALL))
    with package.Client(transport=SyncToolTransport(inner)) as client:
        response = client.post(URL, json=request(tool_choice="required", stream=False))
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert inner.closed == [True, True]


@both
@packages
async def test_all_other_requests_pass_through(package):
    inner = Inner(package, Script((b"plain",), content_type="text/plain"))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        assert (await client.get("https://api.test/v1/models")).text == "plain"
        assert (await client.post(URL, json=request(tools=None))).text == "plain"
        assert (await client.post("https://api.test/v1/embeddings", json={"input": "x"})).text == "plain"
    assert inner.requests[1] == request(tools=None)


@both
@packages
async def test_the_model_is_mapped_with_and_without_tools(package):
    inner = Inner(package, text("ok"))
    settings = Settings(models=[{"match": "m", "use": "big"}])
    async with package.AsyncClient(transport=ToolTransport(inner, settings=settings)) as client:
        await client.post(URL, json=request())
        await client.post(URL, json=request(tools=None))
    assert [sent["model"] for sent in inner.requests] == ["big", "big"]


@both
@packages
@pytest.mark.parametrize("base", ["https://api.test/openai/v1", "https://api.test/openai"])
async def test_the_path_at_the_app_is_replaced_and_its_prefix_kept(package, base):
    inner = Inner(package, text(CALL))
    settings = Settings(app_path="/v1/generate")
    async with package.AsyncClient(transport=ToolTransport(inner, settings=settings)) as client:
        await client.post(f"{base}/chat/completions?version=2", json=request())
        await client.post(f"{base}/chat/completions?version=2", json=request(tools=None))
        await client.post(f"{base}/embeddings", json={})
    with package.Client(transport=SyncToolTransport(inner, settings=settings)) as sync:
        assert calls(sync.post(f"{base}/chat/completions", json=request()).content) == ['{"x": 1}']
    generate = f"{base}/generate"
    assert inner.urls == [f"{generate}?version=2", f"{generate}?version=2", f"{base}/embeddings", generate]
    assert inner.requests[1] == request(tools=None)


@both
@packages
async def test_the_path_at_an_app_of_another_protocol_may_have_its_own_query(package):
    inner = Inner(package, text(CALL))
    settings = Settings(app_protocol="gemini", app_path="/v1beta/tuned:stream?alt=sse")
    async with package.AsyncClient(transport=ToolTransport(inner, settings=settings)) as client:
        await client.post("https://api.test/v1/chat/completions?version=2", json=request())
    assert inner.urls == ["https://api.test/v1beta/tuned:stream?alt=sse"]


COUNTED = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "ping", "input_schema": {"type": "object"}}],
}
COUNT_URL = "https://api.test/claude/v1/messages/count_tokens"


async def count(package: ModuleType, inner: Inner, settings: Settings | None = None, **fields: Any) -> list[Any]:
    """Return the responses of both transports."""
    body = COUNTED | fields
    async with package.AsyncClient(transport=ToolTransport(inner, settings=settings)) as client:
        first = await client.post(COUNT_URL, json=body)
    with package.Client(transport=SyncToolTransport(inner, settings=settings)) as sync:
        second = sync.post(COUNT_URL, json=body)
    assert first.headers["content-type"] == second.headers["content-type"] == "application/json"
    return [(first.status_code, first.json()), (second.status_code, second.json())]


@both
@packages
async def test_an_upstream_that_can_count_tokens_counts_the_tool_prompt_too(package):
    inner = Inner(package, Script((b'{"input_tokens": 4711}',), content_type="application/json"))
    assert await count(package, inner) == [(200, {"input_tokens": 4711})] * 2
    assert inner.urls == [COUNT_URL] * 2
    assert inner.closed == [True, True]
    for sent in inner.requests:
        assert "tools" not in sent
        assert "## The tools" in sent["system"]


@both
@packages
async def test_tokens_are_estimated_if_the_upstream_cannot_count(package):
    refusing = Inner(package, Script((b"{}",), 404, "application/json"))
    absent = Inner(package, package.ConnectError("no way"))
    other = Inner(package, text("never asked"))
    found = [
        await count(package, refusing),
        await count(package, absent),
        await count(package, other, Settings(app_protocol="chat")),
    ]
    assert found[0] == found[1] == found[2]
    assert found[0][0][0] == 200
    assert found[0][0][1]["input_tokens"] > 200
    assert other.requests == []


@both
@packages
async def test_an_invalid_count_request_is_an_error_in_the_format_of_messages(package):
    (status, answer), _ = await count(package, Inner(package, text("never asked")), messages="hi")
    assert status == 400
    assert answer["type"] == "error"


@both
@packages
async def test_an_invalid_request_is_an_error_response(package):
    async with package.AsyncClient(transport=ToolTransport(Inner(package, text("ok")))) as client:
        response = await client.post(URL, json=request(messages=[]))
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@both
@packages
async def test_errors_before_the_reply_are_raised_unchanged(package):
    error = package.ConnectError("no way")
    async with package.AsyncClient(transport=ToolTransport(Inner(package, error))) as client:
        with pytest.raises(package.ConnectError, match="no way"):
            await client.post(URL, json=request())


@packages
def test_errors_before_the_reply_are_raised_unchanged_in_the_sync_client(package):
    inner = Inner(package, package.ConnectError("no way"))
    with (
        package.Client(transport=SyncToolTransport(inner)) as client,
        pytest.raises(package.ConnectError, match="no way"),
    ):
        client.post(URL, json=request())


@both
@packages
async def test_a_broken_connection_is_an_error_in_the_stream(package):
    inner = Inner(package, broken("Some words"))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        response = await client.post(URL, json=request())
    assert response.status_code == 200
    assert '"error"' in response.text
    assert '"stop"' not in response.text
    assert inner.closed == [True]


@packages
def test_a_broken_connection_is_an_error_in_the_stream_of_the_sync_client(package):
    with package.Client(transport=SyncToolTransport(Inner(package, broken("Some words")))) as client:
        assert '"error"' in client.post(URL, json=request()).text


@both
@packages
async def test_a_connection_that_breaks_after_the_finish_reason_truncates_nothing(package):
    from streamtool.testing import Die

    for forced in (False, True):
        scripts = [text("No. " if forced else CALL, done=False).then(Die()), text(CALL, done=False).then(Die())]
        inner = Inner(package, *scripts)
        body = request(tool_choice="required" if forced else "auto")
        async with package.AsyncClient(transport=ToolTransport(inner)) as client:
            if forced:  # nothing was sent, so the caller may retry
                with pytest.raises(package.ReadError):
                    await client.post(URL, json=body)
            else:
                assert calls((await client.post(URL, json=body)).content) == ['{"x": 1}']
        assert all(inner.closed)


@both
@packages
async def test_a_failing_callback_does_not_affect_the_reply(package, caplog):
    def fail(record: Any) -> None:
        raise RuntimeError("mine")

    transport = ToolTransport(Inner(package, text(CALL)), on_exchange=fail)
    async with package.AsyncClient(transport=transport) as client:
        assert calls((await client.post(URL, json=request())).content) == ['{"x": 1}']
    sync = SyncToolTransport(Inner(package, text(CALL)), on_exchange=fail)
    with package.Client(transport=sync) as client:
        assert calls(client.post(URL, json=request()).content) == ['{"x": 1}']
    assert caplog.text.count("on_exchange failed") == 2


@both
@packages
async def test_an_error_in_the_first_event_is_an_error_status(package):
    inner = Inner(package, Script((event({"error": {"message": "busy", "code": 503}}),)))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        assert (await client.post(URL, json=request())).status_code >= 500


@both
@packages
async def test_cancelling_closes_the_upstreams_reply(package):
    inner = Inner(package, text("word " * 10_000))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        with anyio.CancelScope() as scope:
            async with client.stream("POST", URL, json=request()) as response:
                async for _ in response.aiter_raw():
                    scope.cancel()
    assert inner.closed == [True]


@both
@packages
async def test_a_closed_reply_reads_nothing_more(package):
    inner = Inner(package, text("word " * 1_000))
    async with package.AsyncClient(transport=ToolTransport(inner)) as client:
        async with client.stream("POST", URL, json=request()) as response:
            stream = response.stream._stream
            assert await anext(stream)
        assert await anext(stream, None) is None
    with package.Client(transport=SyncToolTransport(inner)) as client:
        with client.stream("POST", URL, json=request()) as response:
            stream = response.stream._stream
            assert next(stream)
        assert next(stream, None) is None
    assert len(inner.requests) == 2
    assert inner.closed == [True, True]


def test_the_synchronous_transport_is_generated_from_the_asynchronous_one():
    assert sync_transport.TARGET.read_text(encoding="utf-8") == sync_transport.synchronous()


def test_a_request_of_another_library_is_a_type_error():
    handle: Callable[..., Any] = SyncToolTransport().handle_request
    with pytest.raises(TypeError, match="httpx"):
        handle(object())
