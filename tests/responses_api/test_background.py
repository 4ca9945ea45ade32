"""Background responses through the official client: polled, streamed again, cancelled, bounded.

The test controls the upstream, so nothing depends on timing. In some tests, two processes share a file or a Redis
server.
"""

import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import openai
import pytest
from support.continuing import Continuing, Fault
from support.dialects import chat
from support.redis_server import places
from support.servers import Process, RawUpstream, Served, http_stream, hypercorn_server, uvicorn_server, wait_for
from support.validators import assert_valid, validate_responses_stream

from streamtool import Settings, ToolMiddleware, ToolTransport
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, StoreSettings, UpstreamSettings
from streamtool.testing import stream_asgi

WORDS = ["One ", "two ", "three ", "four."]
TOOL: Any = {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
OPEN = ("queued", "in_progress")


class Held:
    """An upstream that sends a word each time it is allowed to."""

    def __init__(self, words: list[str], end: str = "stop") -> None:
        *self._said, self._end = [*chat(words, end), b""]
        self.may = threading.Semaphore(0)
        self.stopped = threading.Event()
        """Set when its request is cancelled."""

    def go(self, words: int = 1000) -> None:
        self.may.release(words)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["method"] != "POST":  # a readiness probe of the test server
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        try:
            for event in self._said:
                while not self.may.acquire(blocking=False):  # noqa: ASYNC110  another thread releases it
                    await anyio.sleep(0.005)
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except anyio.get_cancelled_exc_class():
            self.stopped.set()
            raise
        await send({"type": "http.response.body"})


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a function that runs an app under a real server."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(request.param(app))


@pytest.fixture
def client_of() -> Iterator[Any]:
    with ExitStack() as stack:

        def made(served: Served | Process, key: str = "one") -> Any:
            http = stack.enter_context(httpx2.Client(trust_env=False))
            return openai.OpenAI(base_url=served.url + "/v1", api_key=key, http_client=http, max_retries=0).responses

        yield made


def ask(client: Any, **more: Any) -> Any:
    return client.create(model="m", input="Count.", background=True, **more)


def ended(client: Any, id: str) -> Any:
    found: list[Any] = []
    wait_for(lambda: found.append(client.retrieve(id)) or found[-1].status not in OPEN, "the response ends")
    return found[-1]


def told(events: Any) -> list[tuple[int, str]]:
    return [(event.sequence_number, event.type) for event in events]


def test_a_response_is_generated_without_a_waiting_client_and_read_when_complete(serve: Any, client_of: Any):
    upstream = Held([*WORDS, CALL])
    client = client_of(serve(ToolMiddleware(upstream)))
    made = ask(client, tools=[TOOL])
    assert (made.status, made.background, made.output) == ("in_progress", True, [])
    assert client.retrieve(made.id) == made
    with pytest.raises(openai.BadRequestError, match="still in progress"):
        client.delete(made.id)
    with pytest.raises(openai.BadRequestError, match="in progress"):
        client.create(model="m", input="And?", previous_response_id=made.id)
    upstream.go()
    found = ended(client, made.id)
    assert (found.status, found.output_text, found.background) == ("completed", "".join(WORDS), True)
    assert [item.type for item in found.output] == ["message", "function_call"]
    assert client.cancel(made.id) == found
    result: Any = {"type": "function_call_output", "call_id": found.output[1].call_id, "output": "pong"}
    assert client.create(model="m", input=[result], previous_response_id=made.id).status == "completed"
    client.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(made.id)


def test_an_abandoned_stream_continues_and_can_be_resumed(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    client = client_of(serve(ToolMiddleware(upstream)))
    upstream.go(3)
    stream = ask(client, stream=True)
    first = [next(stream) for _ in range(5)]
    stream.close()
    id = first[0].response.id
    upstream.go()
    assert ended(client, id).output_text == "".join(WORDS)
    whole = [*client.retrieve(id, stream=True)]
    assert told(whole)[:5] == told(first)
    assert [number for number, _ in told(whole)] == [*range(len(whole))]
    assert whole[-1].response == client.retrieve(id)
    assert told(client.retrieve(id, stream=True, starting_after=4)) == told(whole)[5:]
    assert told(client.retrieve(id, stream=True, starting_after=999)) == []
    client.delete(id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(id, stream=True)


def test_events_reach_all_readers_immediately(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    client = client_of(serve(ToolMiddleware(upstream)))
    stream = ask(client, stream=True)
    id = next(stream).response.id
    other = client.retrieve(id, stream=True, starting_after=1)
    upstream.go(2)
    assert next(event for event in other if event.type == "response.output_text.delta").delta == "One "
    assert next(event for event in stream if event.type == "response.output_text.delta").delta == "One "
    upstream.go()
    assert told(stream)[-1] == told(other)[-1]


def test_cancelling_a_response_stops_its_upstream_request(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    client = client_of(serve(ToolMiddleware(upstream)))
    upstream.go(3)
    stream = ask(client, stream=True)
    first = [next(stream) for _ in range(6)]
    id = first[0].response.id
    found = client.cancel(id)
    assert (found.status, found.error) == ("cancelled", None)
    assert upstream.stopped.wait(5)
    rest = [*stream]
    assert rest[-1].type == "response.failed"
    assert rest[-1].response == found == client.retrieve(id) == client.cancel(id)
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.create(model="m", input="And?", previous_response_id=id)
    client.delete(id)


def test_failures_are_reported_in_the_response(serve: Any, client_of: Any):
    upstream = Held(WORDS, "error")
    client = client_of(serve(ToolMiddleware(upstream)))
    upstream.go()
    made = ended(client, ask(client).id)
    assert (made.status, made.error.code) == ("failed", "server_error")

    async def refuses(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b'{"error": {"message": "slow down"}}'})

    client = client_of(serve(ToolMiddleware(refuses)))
    made = ended(client, ask(client).id)
    assert (made.status, made.error.code) == ("failed", "rate_limit_exceeded")


def test_invalid_background_requests_are_rejected(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    client = client_of(serve(ToolMiddleware(upstream)))
    with pytest.raises(openai.BadRequestError, match="store"):
        ask(client, store=False)
    with pytest.raises(openai.BadRequestError, match="input"):
        client.create(model="m", input=[], background=True)
    forgetful = client_of(serve(ToolMiddleware(upstream, store=StoreSettings(size=0))))
    with pytest.raises(openai.BadRequestError, match=r"store\.size"):
        ask(forgetful)
    upstream.go()
    made = ended(client, ask(client).id)
    with pytest.raises(openai.BadRequestError, match="omit `stream`"):
        client.retrieve(made.id, stream=True)
    streamed = ended(client, next(ask(client, stream=True)).response.id)
    with pytest.raises(openai.BadRequestError, match="sequence number"):
        client.retrieve(streamed.id, stream=True, extra_query={"starting_after": "x"})


def test_background_responses_count_as_open_requests(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    app = ToolMiddleware(upstream, limits=LimitSettings(exchanges_per_client=2))
    client = client_of(serve(app))
    made = ask(client)
    ask(client)
    with pytest.raises(openai.RateLimitError):
        ask(client)
    upstream.go()
    assert ended(client, made.id).status == "completed"


def test_responses_of_other_clients_cannot_be_read_streamed_or_cancelled(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    served = serve(ToolMiddleware(upstream))
    mine, theirs = client_of(served), client_of(served, "two")
    made = next(ask(mine, stream=True)).response
    for asked in (theirs.retrieve, theirs.cancel, theirs.delete, lambda id: theirs.retrieve(id, stream=True)):
        with pytest.raises(openai.NotFoundError):
            asked(made.id)
    upstream.go()
    assert ended(mine, made.id).status == "completed"


@pytest.mark.anyio
async def test_a_response_fails_when_its_server_shuts_down():
    app = ToolMiddleware(Held(WORDS))
    async with anyio.create_task_group() as tasks, stream_asgi(app, "/v1/responses", body=BODY) as reply:
        await reply.head()
        tasks.start_soon(app.drain, 0.0)
        events = await reply.body()
    assert_valid(validate_responses_stream(events))
    assert b'"status":"failed"' in events
    assert b"the server shut down" in events


@pytest.mark.anyio
async def test_the_stream_of_a_cancelled_response_is_valid():
    upstream = Held(WORDS)
    upstream.go(3)
    app = ToolMiddleware(upstream)
    async with stream_asgi(app, "/v1/responses", body=BODY) as reply:
        events = await anext(reply)
        id = events.partition(b'"id":"')[2].partition(b'"')[0].decode()
        async with stream_asgi(app, f"/v1/responses/{id}/cancel", body=b"") as cancelled:
            assert b'"status":"cancelled"' in await cancelled.body()
        events += await reply.body()
    assert_valid(validate_responses_stream(events))


BODY = b'{"model": "m", "input": "Count.", "background": true, "stream": true}'


@pytest.mark.anyio
async def test_a_transport_rejects_background_requests():
    async with httpx.AsyncClient(transport=ToolTransport(httpx.MockTransport(lambda _: httpx.Response(500)))) as client:
        answer = await client.post("http://x/v1/responses", content=BODY)
    assert answer.status_code == 400
    assert "require a server" in answer.text


# --- two processes

FILE = """
chat_template = "none"
[upstream.u]
url = "URL"
"""


@pytest.fixture
def raw() -> Iterator[RawUpstream]:
    upstream = RawUpstream()
    yield upstream
    upstream.close()


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_another_process_can_poll_stream_and_cancel_and_outlives_the_first(
    kind: str, raw: RawUpstream, client_of: Any, tmp_path: Path
):
    raw.reset(http_stream(b"".join(chat(["One ", "two "], "die"))))
    with ExitStack() as stack:
        where = stack.enter_context(places(tmp_path, kind))
        variables: Any = {f"store__{name}": value for name, value in where.items()}
        file = FILE.replace("URL", raw.url)
        one, other = (
            stack.enter_context(Process(folder(tmp_path, name), "uvicorn", file, store__lease=1.5, **variables))
            for name in ("one", "other")
        )
        here, there = client_of(one), client_of(other)
        streams = (ask(here, stream=True) for _ in range(2))

        stream = next(streams)
        id = next(stream).response.id
        wait_for(lambda: known(there, id), "the other process finds it")
        assert there.retrieve(id).status == "in_progress"
        seen = there.retrieve(id, stream=True)
        assert next(event for event in seen if event.type == "response.output_text.delta").delta == "One "
        assert there.cancel(id).status == "cancelled"
        assert told(stream)[-1] == told(seen)[-1]
        assert raw.saw_eof.wait(5)

        raw.reset(raw.script)
        stream = next(streams)
        id = next(stream).response.id
        wait_for(lambda: known(there, id), "the other process finds it")
        seen = there.retrieve(id, stream=True)
        assert next(event for event in seen if event.type == "response.output_text.delta").delta == "One "
        one.stop(signal.SIGKILL)
        *_, before, error, failed = seen
        assert (error.type, failed.type, failed.response.status) == ("error", "response.failed", "failed")
        assert "has stopped" in error.message
        assert failed.sequence_number == error.sequence_number + 1 == before.sequence_number + 2
        assert ended(there, id).status == "failed"
        with pytest.raises(openai.BadRequestError, match="is failed"):
            there.create(model="m", input="And?", previous_response_id=id)


CONTINUING = """
chat_template = "none"
[upstream.u]
url = "URL"
protocol = "completions"
"""
WRITE: Any = {"type": "function", "name": "write", "parameters": {"type": "object", "properties": {"text": {}}}}
GIVEN = '{"text": "größe = 3.14159\\n\\tand more"}'
WRITTEN = f'Look: <tool_call>{{"name": "write", "arguments": {GIVEN}}}</tool_call>'
AT = WRITTEN.index("3.14") + 3


@pytest.mark.parametrize("kind", ["file", pytest.param("redis", marks=pytest.mark.long)])
def test_another_process_continues_a_response_in_the_middle_of_a_call(kind: str, client_of: Any, tmp_path: Path):
    upstream = Continuing("completions", WRITTEN, *[Fault(AT, "hang")] * 2, Fault(AT + 7, "hang"))
    with ExitStack() as stack:
        url = stack.enter_context(uvicorn_server(upstream.app)).url
        where = stack.enter_context(places(tmp_path, kind))
        variables: Any = {f"store__{name}": value for name, value in where.items()}
        file = CONTINUING.replace("URL", url)
        one, other, last = (
            stack.enter_context(Process(folder(tmp_path, name), "uvicorn", file, store__lease=1.2, **variables))
            for name in ("one", "other", "last")
        )
        polled = ask(client_of(one), tools=[WRITE]).id
        streamed = next(ask(client_of(one), tools=[WRITE], stream=True)).response.id
        wait_for(lambda: len(upstream.requests) == 2, "the upstream is asked")
        events: list[Any] = []
        for process, until in ((one, '{"text": "größe = 3.1'), (other, '{"text": "größe = 3.14159')):
            for event in client_of(other).retrieve(streamed, stream=True, starting_after=len(events) - 1):
                events.append(event)
                if arguments_of(events).startswith(until):
                    break
            process.stop(signal.SIGKILL)
            assert process.code() != 0
        there = client_of(last)
        events += there.retrieve(streamed, stream=True, starting_after=len(events) - 1)
        assert [event.sequence_number for event in events] == [*range(len(events))]
        for found in (ended(there, streamed), ended(there, polled)):
            assert (found.status, [item.type for item in found.output]) == ("completed", ["message", "function_call"])
            assert found.output[1].arguments == arguments_of(events) == GIVEN
        assert events[-1].response == ended(there, streamed)
        assert len(upstream.requests) == 5
        if kind == "file":
            with closing(sqlite3.connect(where["file"])) as base, base:
                assert not base.execute("SELECT key FROM replies WHERE key LIKE '% journal %'").fetchall()


def arguments_of(events: Any) -> str:
    return "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def known(client: Any, id: str) -> bool:
    try:
        client.retrieve(id)
    except openai.NotFoundError:
        return False
    return True


def test_the_proxy_generates_background_responses_to_requests_without_tools_itself(serve: Any, client_of: Any):
    upstream = Held(WORDS)
    settings = Settings(upstreams={"u": UpstreamSettings(name="u", url="http://127.0.0.1:9", protocol="chat")})
    client = client_of(serve(Proxy(settings, apps={"u": upstream})))
    made = ask(client)
    upstream.go()
    assert ended(client, made.id).output_text == "".join(WORDS)
