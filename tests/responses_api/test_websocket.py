"""Responses over a websocket: the official client against `streamtool serve` under both servers; limits in virtual
time.

Requests are handled as over HTTP, so these tests cover only what is specific to a websocket: lanes, state that lasts as
long as the connection, and how a connection ends.
"""

import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from importlib import import_module
from pathlib import Path
from socket import create_connection
from typing import Any

import anyio
import openai
import pytest
import websockets.exceptions
from support.dialects import chat
from support.servers import Process, listener, uvicorn_server, wait_for
from support.validators import validate_responses_stream
from websockets.sync.client import connect

from streamtool import ToolMiddleware
from streamtool.cli.servers import connections
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings
from streamtool.testing import Die, Hold, Script, ScriptedUpstream

pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used")  # the official client triggers this warning
SERVERS = ("uvicorn", "hypercorn")
both = pytest.mark.anyio
TOOL: Any = {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
PATH = "/v1/responses"
FILE = 'chat_template = "none"\n[upstream.u]\nurl = "URL"\n'


def says(*words: str) -> Script:
    return Script(tuple(chat(list(words), "stop")))


def held(*words: str) -> Script:
    """Return a reply that pauses before its end until released."""
    first, *rest = chat(list(words), "stop")
    return Script((first, rest[0], Hold(), *rest[1:]))


class Flag:
    """An event that another thread sets."""

    def __init__(self) -> None:
        self.set = (event := threading.Event()).set
        self._is_set = event.is_set

    async def wait(self) -> None:
        while not self._is_set():  # noqa: ASYNC110  another thread sets it
            await anyio.sleep(0.002)


class Upstream(ScriptedUpstream):
    """A scripted upstream that runs in another thread and whose script can be replaced."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self._released = Flag()  # type: ignore[assignment]

    def release(self) -> None:
        self._released.set()
        self._released = Flag()  # type: ignore[assignment]

    def says(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.requests.clear()


# --- over sockets ----------------------------------------------------------------------------------------------------


class Served:
    """`streamtool serve` in front of a scripted upstream."""

    def __init__(self, server: str, folder: Path, stack: ExitStack, **settings: object) -> None:
        self.upstream = Upstream()
        self.says = self.upstream.says
        behind = stack.enter_context(uvicorn_server(self.upstream))
        file = FILE.replace("URL", behind.url) + str(settings.pop("toml", ""))
        self.process = stack.enter_context(Process(folder, server, file, **settings))
        self.client = openai.OpenAI(base_url=self.process.url + "/v1", api_key="one", max_retries=0)
        self.address = self.process.url.replace("http", "ws") + PATH

    @property
    def prompts(self) -> list[str]:
        """Return the prompts of all requests."""
        return [str(request.json["messages"]) for request in self.upstream.requests]


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(request.param, tmp_path_factory.mktemp(request.param), stack)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:
        yield lambda server, **settings: Served(server, tmp_path, stack, **settings)


def rest(connection: Any) -> list[Any]:
    """Return the events up to the last one of a response."""
    events = []
    for event in connection:
        events.append(event)
        if event.type in ENDS:
            return events
    raise AssertionError(f"the connection ended behind {events}")


def ask(connection: Any, said: Any = "Hi", **more: Any) -> list[Any]:
    connection.response.create(model="m", input=said, **more)
    return rest(connection)


def test_a_conversation_of_two_turns_without_storage(served: Served):
    served.says(says("Let me see. ", CALL), says("Done."))
    with served.client.responses.connect() as connection:
        first = ask(connection, tools=[TOOL], store=False)
        response = first[-1].response
        message, call = response.output
        assert (message.content[0].text, call.name, call.arguments) == ("Let me see. ", "ping", "{}")
        assert [event.sequence_number for event in first] == [*range(len(first))]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "pong"}
        second = ask(connection, [result], tools=[TOOL], store=False, previous_response_id=response.id)
        assert second[-1].response.output_text == "Done."
        assert "Let me see." in served.prompts[1] and "pong" in served.prompts[1]
        with pytest.raises(openai.NotFoundError):
            served.client.responses.retrieve(response.id)
    with served.client.responses.connect() as another:
        (error,) = ask(another, previous_response_id=response.id)
        assert (error.status, error.error.code) == (400, "previous_response_not_found")
        assert error.error.param == "previous_response_id"


def test_a_stored_response_is_available_to_every_connection_of_the_client(served: Served):
    served.says(says("One."), says("Two."), says("Three."))
    with served.client.responses.connect() as connection:
        first = ask(connection)[-1].response
    assert served.client.responses.retrieve(first.id).output_text == "One."
    second = served.client.responses.create(model="m", input="And?", previous_response_id=first.id)
    with served.client.responses.connect() as connection:
        assert ask(connection, previous_response_id=second.id)[-1].response.output_text == "Three."
    with served.client.with_options(api_key="two").responses.connect() as connection:
        assert ask(connection, previous_response_id=second.id)[-1].error.code == "previous_response_not_found"


def test_events_equal_those_of_a_stream_over_http(served: Served):
    script = says("Let ", "me see. ", CALL)
    served.says(script, script)
    with served.client.responses.connect() as connection:
        told = [event.to_dict() for event in ask(connection, tools=[TOOL])]
    stream = [
        event.to_dict() for event in served.client.responses.create(model="m", input="Hi", tools=[TOOL], stream=True)
    ]
    assert [event["type"] for event in told] == [event["type"] for event in stream]
    assert [event.get("delta") for event in told] == [event.get("delta") for event in stream]
    sse = b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in told)
    validate_responses_stream(sse)


def test_lanes_run_concurrently_and_requests_of_a_lane_in_order(served: Served):
    served.says(held("Slow ", "one."), says("Quick."), says("Behind."))
    with served.client.responses.connect() as connection:
        connection.response.create(model="m", input="1", stream_id="slow")
        seen = [next(iter(connection))]
        wait_for(lambda: len(served.upstream.requests) == 1, "the upstream receives the first request")
        connection.response.create(model="m", input="2", stream_id="quick")
        connection.response.create(model="m", input="3", stream_id="slow")
        while seen[-1].type not in ENDS:
            seen.append(next(iter(connection)))
        assert (seen[-1].stream_id, seen[-1].response.output_text) == ("quick", "Quick.")
        assert len(served.upstream.requests) == 2, "later requests of a lane wait"
        served.upstream.release()
        ends = [rest(connection)[-1], rest(connection)[-1]]
        assert [(end.stream_id, end.response.output_text) for end in ends] == [
            ("slow", "Slow one."),
            ("slow", "Behind."),
        ]


def test_a_request_without_generation_does_not_reach_the_upstream(served: Served):
    served.says(says("Hello."))
    with served.client.responses.connect() as connection:
        prepared = ask(connection, "My name is Ann.", tools=[TOOL], store=False, generate=False)[-1].response
        assert (prepared.status, prepared.output) == ("completed", [])
        assert not served.upstream.requests
        assert ask(connection, "And mine?", store=False, previous_response_id=prepared.id)[-1].response.output_text
        assert "My name is Ann." in served.prompts[0]


def test_invalid_requests_are_errors_and_the_connection_stays_open(served: Served):
    served.says(says("Here."))
    with served.client.responses.connect() as connection:
        (background,) = ask(connection, background=True)
        assert (background.status, background.error.param) == (400, "background")
        connection.send_raw("{nonsense")
        (nonsense,) = rest(connection)
        assert (nonsense.status, nonsense.error.code) == (400, "invalid_json")
        connection.send_raw('{"type": "response.sing", "stream_id": "a"}')
        (unknown,) = rest(connection)
        assert (unknown.error.param, unknown.stream_id) == ("type", "a")
        connection.response.steer(input="More.", previous_response_id="resp_1")
        steered = next(iter(connection))
        assert (steered.type, steered.error.code) == ("response.steer.failed", "steering_not_supported")
        assert (steered.steer.input, steered.steer.previous_response_id) == ("More.", "resp_1")
        assert ask(connection)[-1].response.output_text == "Here."


def test_a_dying_upstream_ends_only_its_own_response(served: Served):
    served.says(held("Some ", "words."), Script((*chat(["Half a ", "sentence"], "stop")[:2], Die())))
    with served.client.responses.connect() as connection:
        connection.response.create(model="m", input="1", stream_id="whole")
        wait_for(lambda: len(served.upstream.requests) == 1, "the upstream receives the first request")
        connection.response.create(model="m", input="2", stream_id="cut")
        told = [event for event in rest(connection) if event.stream_id == "cut"]
        assert (told[-1].type, bool(told[-1].error.message)) == ("error", True)
        failed = next(event for event in connection if event.stream_id == "cut")
        assert (failed.type, failed.response.status) == ("response.failed", "failed")
        served.upstream.release()
        assert rest(connection)[-1].response.output_text == "Some words."


def test_a_disconnecting_client_cancels_its_requests(served: Served):
    served.says(held("Some ", "words."))
    left = served.upstream.left
    with served.client.responses.connect() as connection:
        connection.response.create(model="m", input="Hi")
        next(iter(connection))
    wait_for(lambda: served.upstream.left == left + 1, "the upstream request ends")
    wait_for(lambda: [record["outcome"] for record in served.process.records][-1:] == ["left"], "the record reports it")


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        (PATH, {"Origin": "https://evil.example"}, 403, "foreign_origin"),
        (PATH, {"Sec-Fetch-Site": "cross-site"}, 403, "foreign_origin"),
        ("/v1/other", {}, 404, None),
        ("/healthz", {}, 404, None),
    ],
)
def test_a_rejected_handshake_states_the_reason(served: Served, path: str, headers: Any, status: int, code: str | None):
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        connect(served.process.url.replace("http", "ws") + path, additional_headers=headers, proxy=None)
    response = refused.value.response
    assert (response.status_code, json.loads(response.body)["error"]["code"]) == (status, code)
    assert "handshake" not in served.process.log


def test_same_origin_pages_may_connect(served: Served):
    with connect(served.address, origin=served.process.url, proxy=None) as connection:  # type: ignore[arg-type]
        connection.send("{}")
        assert json.loads(connection.recv())["status"] == 400


def test_messages_are_not_compressed(served: Served):
    with connect(served.address, proxy=None) as connection:
        assert connection.response is not None
        assert "sec-websocket-extensions" not in connection.response.headers


@pytest.mark.parametrize("server", SERVERS)
def test_keys_sizes_and_connections_are_checked(server: str, start: Callable[..., Served]):
    toml = '[client_keys]\nann = "one"\n[limits]\nbody = 1000\nconnections = 3\n'
    served = start(server, toml=toml)
    with pytest.raises(websockets.exceptions.InvalidStatus, match="401"):
        connect(served.address, proxy=None)
    key = {"authorization": "Bearer one"}
    served.says(says("Here."))
    with served.client.responses.connect() as connection:
        assert ask(connection)[-1].response.output_text == "Here."
    wait_for(lambda: [record["client"] for record in served.process.records] == ["", "ann"], "the log reports both")
    with connect(served.address, additional_headers=key, proxy=None) as connection:
        with pytest.raises(websockets.exceptions.ConnectionClosedError) as closed:
            connection.send("x" * 2000)
            connection.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    with ExitStack() as stack:

        def enters() -> bool:
            # the response may overtake the client's request, which the client reports as its own error
            with suppress(websockets.exceptions.WebSocketException, OSError, AssertionError):
                stack.enter_context(connect(served.address, additional_headers=key, proxy=None))
                return True
            return False

        for _ in range(2):
            for _ in range(3):
                wait_for(enters, "closed connections no longer count")
            assert not enters()
            stack.close()


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_answers_no_pings_is_cut_off(server: str, monkeypatch: pytest.MonkeyPatch):
    module = import_module(f"streamtool.cli.servers.{server}")
    assert connections.PING == 20.0
    for one in {connections, module}:
        monkeypatch.setattr(one, "PING", 0.3, raising=False)
    lost: list[float] = []

    def run(port: int) -> None:
        try:
            with connect(f"ws://127.0.0.1:{port}{PATH}", proxy=None) as alive:
                began = time.monotonic()
                with create_connection(("127.0.0.1", port), 30) as silent:
                    silent.sendall(
                        f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
                        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n".encode()
                    )
                    found = b""
                    with suppress(ConnectionError):
                        while data := silent.recv(4096):
                            found += data
                    assert b"\x89" in found, "no ping was sent"
                lost.append(time.monotonic() - began)
                time.sleep(0.7)
                alive.send("{}")
                assert json.loads(alive.recv(timeout=20))["status"] == 400
                lost.append(0)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    sock = listener()
    thread = threading.Thread(target=run, args=(sock.getsockname()[1],))
    thread.start()
    assert module.serve(Proxy(grace=1), sock) == [signal.SIGTERM]
    thread.join(20)
    assert len(lost) == 2, "the client that answers was cut off"
    assert lost[0] > 0.3


@pytest.mark.parametrize("server", SERVERS)
def test_a_stopping_server_closes_after_the_last_reply(server: str, start: Callable[..., Served]):
    served = start(server, grace=20)
    served.says(held("Some ", "words."))
    with connect(served.address, proxy=None) as idle, served.client.responses.connect() as connection:
        connection.response.create(model="m", input="Hi")
        wait_for(lambda: len(served.upstream.requests) == 1, "the upstream receives the request")
        served.process.stop()
        began = time.monotonic()
        with pytest.raises(websockets.exceptions.ConnectionClosedError) as closed:
            idle.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        connection.response.create(model="m", input="More", stream_id="b")
        refused = rest(connection)[-1]
        assert (refused.stream_id, refused.error.code) == ("b", "shutting_down")
        served.upstream.release()
        assert rest(connection)[-1].response.output_text == "Some words."
        assert served.process.code() == 0
        assert time.monotonic() - began < 15, "the server does not wait for the end of the grace time"


@pytest.mark.parametrize("server", SERVERS)
def test_responses_still_open_after_the_grace_time_end_with_an_error(server: str, start: Callable[..., Served]):
    served = start(server, grace=1)
    served.says(held("Some ", "words."))
    with served.client.responses.connect() as connection:
        connection.response.create(model="m", input="Hi")
        wait_for(lambda: len(served.upstream.requests) == 1, "the upstream receives the request")
        served.process.stop()
        told = rest(connection)[-1]
        assert (told.type, told.error.code) == ("error", "shutting_down")
        assert next(iter(connection)).type == "response.failed"
        with pytest.raises(websockets.exceptions.ConnectionClosedError, match="1012"):
            next(iter(connection))
        assert served.process.code() == 0
    wait_for(
        lambda: [record["outcome"] for record in served.process.records][-1:] == ["error"], "the record reports it"
    )


# --- without sockets -------------------------------------------------------------------------------------------------


class Socket:
    """The client's end of the websocket of an ASGI app."""

    def __init__(self) -> None:
        self._put, self._receive = anyio.create_memory_object_stream[Any](100)
        self._send, self._got = anyio.create_memory_object_stream[Any](1000)
        self.receive, self.send_message = self._receive.receive, self._send.send

    def close(self) -> None:
        for end in (self._put, self._receive, self._send, self._got):
            end.close()

    async def send(self, **event: Any) -> None:
        await self._put.send({"type": "websocket.receive", "text": json.dumps({"type": "response.create", **event})})

    async def leave(self) -> None:
        await self._put.send({"type": "websocket.disconnect", "code": 1001})

    async def next(self) -> Any:
        """Return the next event, or the close code of the connection."""
        message = await self._got.receive()
        return json.loads(message["text"]) if message["type"] == "websocket.send" else message["code"]

    async def end(self) -> Any:
        """Return the last event of a response, an error, or the close code."""
        while isinstance(event := await self.next(), dict) and event["type"] not in ENDS:
            pass
        return event


@asynccontextmanager
async def opened(app: Any, *, path: str = PATH, headers: Any = ()) -> AsyncIterator[Socket]:
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "ws",
        "root_path": "", "headers": [(b"host", b"localhost"), *headers], "client": None, "server": None,
        "subprotocols": [], "http_version": "1.1", "asgi": {"version": "3.0"},
    }  # fmt: skip
    socket = Socket()
    with closing(socket):
        await socket._put.send({"type": "websocket.connect"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, scope, socket.receive, socket.send_message)
            accepted = await socket._got.receive()
            assert accepted == {"type": "websocket.accept"}
            yield socket
            tasks.cancel_scope.cancel()


@both
async def test_the_middleware_serves_websockets_too():
    upstream = ScriptedUpstream(says("One. ", CALL))
    async with opened(ToolMiddleware(upstream)) as socket:
        await socket.send(model="m", input="Hi", tools=[TOOL])
        output = (await socket.end())["response"]["output"]
        assert [item["type"] for item in output] == ["message", "function_call"]


@both
async def test_other_websockets_are_passed_to_the_app():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await send({"type": "websocket.accept"})

    for path in ("/mine", "/v1/chat/completions"):
        async with opened(ToolMiddleware(app), path=path):
            pass
    assert seen == ["/mine", "/v1/chat/completions"]


@both
async def test_requests_and_lanes_of_a_connection_are_limited():
    upstream = ScriptedUpstream(*[held("Some ", "words.")] * 16, says("Words."))
    async with opened(Proxy(apps={"sample": upstream})) as socket:
        for number in range(17):
            await socket.send(model="m", input="Hi", stream_id=str(number))
        assert (await socket.end())["error"]["code"] == "rate_limit_exceeded"
        await anyio.wait_all_tasks_blocked()
        upstream.release()
        for _ in range(16):
            assert (await socket.end())["type"] == "response.completed"
        for number in range(16, 32):
            await socket.send(model="m", input="Hi", stream_id=str(number))
            assert (await socket.end())["type"] == "response.completed"
        await socket.send(model="m", input="Hi", stream_id="one more")
        refused = await socket.end()
        assert (refused["error"]["code"], refused["stream_id"]) == ("websocket_stream_limit_reached", "one more")
        for lane in ({}, {"stream_id": "31"}):
            await socket.send(model="m", input="Hi", **lane)
            assert (await socket.end())["type"] == "response.completed"


@pytest.mark.trio
async def test_a_connection_ends_with_the_first_reply_after_its_time_limit(autojump_clock: Any):
    upstream = ScriptedUpstream(held("Some ", "words."))
    limits = LimitSettings(websocket_seconds=60.0)
    async with opened(ToolMiddleware(upstream, limits=limits)) as socket:
        await socket.send(model="m", input="Hi")
        with anyio.move_on_after(59):
            assert (await socket.end())["type"] != "error"
        told = await socket.end()
        assert told["error"]["code"] == "websocket_connection_limit_reached"
        await socket.send(model="m", input="More")
        assert (await socket.end())["error"]["code"] == "websocket_connection_limit_reached"
        upstream.release()
        assert (await socket.end())["response"]["status"] == "completed"
        assert await socket.next() == 1000


@both
async def test_a_reply_that_is_not_a_stream_is_sent_as_an_event():
    """The upstream speaks Responses itself and ignores `stream`."""
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    script = Script((json.dumps(response).encode(),), content_type="application/json")
    app = ToolMiddleware(ScriptedUpstream(script), app_protocol="responses", mode="native")
    async with opened(app) as socket:
        await socket.send(model="m", input="Hi", stream_id="a")
        told = await socket.end()
        assert (told["type"], told["response"]["id"], told["stream_id"]) == ("response.completed", "resp_1", "a")


@both
async def test_an_upstream_error_keeps_its_status_and_retry_after():
    body = b'{"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}'
    script = Script((body,), status=429, content_type="application/json", headers=(("retry-after", "7"),))
    async with opened(ToolMiddleware(ScriptedUpstream(script))) as socket:
        await socket.send(model="m", input="Hi", tools=[TOOL])
        told = await socket.end()
        assert (told["status"], told["error"]["code"]) == (429, "rate_limit_exceeded")
        assert told["error"]["headers"] == {"retry-after": "7"}


@both
async def test_a_failing_app_is_an_error_event(caplog: pytest.LogCaptureFixture):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a mistake")

    async with opened(ToolMiddleware(app, app_protocol="responses", mode="native")) as socket:
        await socket.send(model="m", input="Hi")
        assert (await socket.end())["error"]["message"] == "the application failed"
    assert "a mistake" in caplog.text


@both
async def test_responses_that_are_not_stored_are_forgotten_with_the_connection():
    upstream = ScriptedUpstream(*(says("Words.") for _ in range(3)))
    app = ToolMiddleware(upstream)
    async with opened(app) as socket:
        for _ in range(3):
            await socket.send(model="m", input="Hi", store=False)
            assert (await socket.end())["type"] == "response.completed"
        assert len(app.sockets._unstored)
        await socket.leave()
        with anyio.fail_after(2):
            while len(app.sockets._unstored):  # noqa: ASYNC110  there is no event to wait for
                await anyio.sleep(0.001)
    assert not app.gate.on_drain
    assert not len(app.store)  # type: ignore[arg-type]
