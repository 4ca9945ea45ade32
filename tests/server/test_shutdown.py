"""Shutdown: open requests continue for the grace time, then their clients and the log receive the reason.

With real processes and signals, under uvicorn and under hypercorn with trio; `drain` runs in virtual time.
"""

import asyncio
import json
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import openai
import pytest
import trio
from attrs import frozen
from support.agents import plain
from support.dialects import CLIENTS, PATHS, Ask, chat, read, write
from support.servers import Process, RawClient, hypercorn_server, uvicorn_server, wait_for
from support.validators import (
    assert_valid,
    validate_chat_error,
    validate_chat_stream,
    validate_messages_error,
    validate_messages_stream,
    validate_responses_error,
    validate_responses_stream,
)

from streamtool import Settings, ToolMiddleware
from streamtool.cli.servers.stopping import stop
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, StoreSettings, UpstreamSettings
from streamtool.store.memory_store import MemoryStore
from streamtool.testing import Hang, ScriptedUpstream, stream_asgi, text

pytest.importorskip("mcp")

SERVERS = ("uvicorn", "hypercorn")
STREAMED = {"chat": validate_chat_stream, "messages": validate_messages_stream, "responses": validate_responses_stream}
ERRORS = {"chat": validate_chat_error, "messages": validate_messages_error, "responses": validate_responses_error}
SENTENCE = "the server shut down before the reply was complete"
JSON = {"content-type": "application/json"}
EMPTY = {"type": "object", "properties": {}}
WAIT = '<tool_call>{"name": "wait", "arguments": {"seconds": 60}}</tool_call>'
FILE = f"""
passthrough = ["/v1/slow"]
chat_template = "none"
[upstream.u]
url = "URL"
[mcp.math]
command = "{shlex.join(word for word in plain().command if word)}"
tools = ["wait"]
[[model]]
match = "agent"
mcp = ["math"]
"""

both = pytest.mark.anyio
servers = pytest.mark.parametrize("server", SERVERS)


def alone(url: str) -> str:
    return f'chat_template = "none"\n[upstream.u]\nurl = "{url}"'


class Upstream:
    """A Chat Completions upstream whose behavior is selected by the model's name; counts disconnects."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.left: list[str] = []
        self.released = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        model = json.loads(body)["model"] if body else "quiet"
        self.begun.append(model)
        gone = asyncio.create_task(receive())
        if model != "quiet":
            await self._speak(model, send)
        if model in ("quiet", "stalls"):
            await gone
            self.left.append(model)
        gone.cancel()

    async def _speak(self, model: str, send: Any) -> None:
        said = WAIT if model == "agent" else "Some words."
        pieces = chat([said], "stop")
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces[:2]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if model == "stalls":
            return
        if model == "floods":
            for _ in range(4000):
                await send({"type": "http.response.body", "body": chat(["x" * 4000], "stop")[1], "more_body": True})
            return
        while model == "ends" and not self.released.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b"".join(pieces[2:]), "more_body": False})


@frozen
class Got:
    status: int
    headers: httpx.Headers
    body: bytes


def asked(client: str, model: str, *, tools: bool = True, stream: bool = True) -> bytes:
    ask = Ask((("user", "Hi"),), (("ping", "Pings.", EMPTY),) if tools else (), stream=stream)
    return json.dumps({**write(client, ask), "model": model}).encode()


def ready(process: Process) -> int:
    """Return the status of `/readyz`."""
    return httpx.get(f"{process.url}/readyz", trust_env=False).status_code


def said_hello(process: Process) -> int:
    """Return the status of a request to the embedded model."""
    body = {"model": "sample", "messages": [{"role": "user", "content": "Hello."}]}
    return httpx.post(f"{process.url}/v1/chat/completions", json=body, trust_env=False).status_code


def post(url: str, path: str, body: bytes) -> Got:
    with httpx.stream("POST", url + path, content=body, headers=JSON, timeout=60, trust_env=False) as reply:
        return Got(reply.status_code, reply.headers, reply.read())


KINDS = {
    **{f"{client}, in the middle": (client, "stalls", True, True) for client in CLIENTS},
    **{f"{client}, no status yet": (client, "quiet", True, True) for client in CLIENTS},
    **{f"{client}, not streamed": (client, "stalls", True, False) for client in CLIENTS},
    "passed on, in the middle": ("chat", "stalls", False, True),
    "passed on, no status yet": ("chat", "quiet", False, True),
    "an agent, in its tool": ("chat", "agent", False, True),
    "an agent, of Messages": ("messages", "agent", False, True),
    "it ends in time": ("chat", "ends", True, True),
}


class Stopped:
    """A server that was stopped while it was serving clients of all kinds."""

    def __init__(self, folder: Path, server: str, upstream: Upstream, url: str) -> None:
        with (
            ThreadPoolExecutor(32) as pool,
            Process(folder, server, FILE.replace("URL", url), grace=3, shutdown_delay=0) as process,
        ):
            found: dict[str, Future[Got]] = {}
            for name, (client, model, tools, stream) in KINDS.items():
                body = asked(client, model, tools=tools, stream=stream)
                found[name] = pool.submit(post, process.url, PATHS[client], body)
            found["a passed path"] = pool.submit(post, process.url, "/v1/slow", b"")
            wait_for(lambda: len(upstream.begun) == len(found), "the upstream receives the request", 30)
            half = socket.create_connection(("127.0.0.1", process.port), timeout=30)
            half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
            idle = httpx.Client(trust_env=False)
            self.ready = idle.get(process.url + "/readyz")
            time.sleep(0.3)  # the agents are running their tools
            began = time.monotonic()
            process.stop()
            self.refuses = self._refuses(process.port)
            upstream.released.set()
            self.code = process.code()
            self.took = time.monotonic() - began
            self.got = {name: future.result(30) for name, future in found.items()}
            self.half = b"".join(iter(lambda: half.recv(65536), b""))
            half.close()
            idle.close()
            self.log, self.records = process.log, process.records

    def _refuses(self, port: int) -> bool:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return True
            time.sleep(0.01)
        return False


@pytest.fixture(scope="module", params=SERVERS)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    upstream = Upstream()
    with uvicorn_server(upstream) as served:
        ended = Stopped(tmp_path_factory.mktemp("stopped"), request.param, upstream, served.url)
        waiting = [model for model in upstream.begun if model in ("quiet", "stalls")]
        wait_for(lambda: len(upstream.left) == len(waiting), "the upstream connection is closed")
        yield ended


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_ends_with_the_error_of_its_protocol(stopped: Stopped, client: str):
    got = stopped.got[f"{client}, in the middle"]
    assert got.status == 200
    assert_valid(STREAMED[client](got.body, json.loads(asked(client, "stalls")), headers=dict(got.headers)))
    assert SENTENCE.encode() in got.body
    assert read(client, got.body, stream=True).parts == ("Some words.",)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", ["no status yet", "not streamed"])
def test_a_reply_whose_status_was_not_sent_is_a_503(stopped: Stopped, client: str, kind: str):
    got = stopped.got[f"{client}, {kind}"]
    assert got.status == 503
    assert got.headers["retry-after"] == "2"
    assert_valid(ERRORS[client](got.body))
    assert json.loads(got.body)["error"]["message"] == SENTENCE


def test_a_passed_on_stream_ends_with_an_error_too(stopped: Stopped):
    got = stopped.got["passed on, in the middle"]
    assert got.status == 200
    assert SENTENCE.encode() in got.body
    for kind in ("passed on, no status yet", "a passed path"):
        got = stopped.got[kind]
        assert (got.status, got.headers["retry-after"]) == (503, "2")
        assert json.loads(got.body)["error"]["code"] == "shutting_down"


def test_an_agent_ends_while_its_tool_runs(stopped: Stopped):
    for name in ("an agent, in its tool", "an agent, of Messages"):
        assert SENTENCE.encode() in stopped.got[name].body
    assert stopped.log.count(f": an agent, turns 1, calls 0, failed: {SENTENCE} (") == 2


def test_a_reply_that_ends_in_time_is_complete(stopped: Stopped):
    got = stopped.got["it ends in time"]
    assert got.status == 200
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert b"error" not in got.body


def test_an_incomplete_request_is_answered(stopped: Stopped):
    assert stopped.half.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"shutting_down"' in stopped.half


def test_new_connections_are_refused(stopped: Stopped):
    assert (stopped.ready.status_code, stopped.ready.json()) == (200, {"status": "ready"})
    assert stopped.refuses


def test_the_records_contain_the_reason(stopped: Stopped):
    told = [(one["outcome"], one["error"] and one["error"]["code"]) for one in stopped.records]
    ended = len(KINDS) - 3  # one reply was complete, and agents have finished with the model
    assert told.count(("error", "shutting_down")) == ended
    assert "left" not in {outcome for outcome, _ in told}
    assert len(told) == len(KINDS)


def test_the_server_exits_in_time_and_logs_nothing_else(stopped: Stopped):
    assert stopped.code == 0
    assert stopped.took < 10
    assert "Traceback" not in stopped.log
    others = [entry["message"] for entry in map(json.loads, stopped.log.splitlines()) if "streamtool" not in entry]
    assert [message for message in others if "an agent" not in message] == [
        f"shutting down: ending {len(KINDS) + 1} open requests"
    ]


@servers
def test_a_client_that_does_not_read_delays_nothing(server: str, tmp_path: Path):
    upstream = Upstream()
    with (
        uvicorn_server(upstream) as served,
        Process(tmp_path, server, alone(served.url), grace=2) as process,
        RawClient(process.port, asked("chat", "floods")),
        RawClient(process.port, asked("chat", "floods", tools=False)),
    ):
        wait_for(lambda: len(upstream.begun) == 2, "the upstream receives the request", 30)
        time.sleep(0.5)  # the buffers are full
        process.stop()
        assert process.code() == 0
        assert "Traceback" not in process.log
        assert [one["error"]["code"] for one in process.records] == ["shutting_down", "shutting_down"]


@servers
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_second_signal_stops_the_server_immediately(server: str, number: int, code: int, tmp_path: Path):
    upstream = Upstream()
    with (
        uvicorn_server(upstream) as served,
        Process(tmp_path, server, alone(served.url), grace=600) as process,
        RawClient(process.port, asked("chat", "stalls")) as client,
    ):
        client.until(b"words")
        process.stop(number)
        time.sleep(0.5)
        assert process.running
        process.stop(number)
        assert process.code() == code
        assert client.rest().endswith(b"0\r\n\r\n")
        assert SENTENCE.encode() in client.received
        assert "Traceback" not in process.log


@pytest.mark.parametrize("workers", [1, 2])
@servers
def test_a_load_balancer_sees_the_stop_before_connections_are_refused(server: str, workers: int, tmp_path: Path):
    """Until then, requests are served. A second signal ends the delay."""
    with Process(tmp_path, server, "shutdown_delay = 60", workers=workers) as process:
        for _ in range(8 * workers):  # each worker reports for itself
            assert ready(process) == 200
        process.stop()
        wait_for(lambda: ready(process) == 503, "the load balancer sees it")
        for _ in range(8):
            assert (ready(process), said_hello(process)) == (503, 200)
        process.stop()
        assert process.code() == 0


@servers
def test_the_delay_ends(server: str, tmp_path: Path):
    with Process(tmp_path, server, "shutdown_delay = 1") as process:
        assert ready(process) == 200
        process.stop()
        assert process.code() == 0


@pytest.mark.parametrize("workers", [1, 2])
@servers
def test_a_reload_does_not_cancel_the_stop(server: str, workers: int, tmp_path: Path):
    """After a reload, the delay is not skipped; during the delay, the settings are not reloaded."""
    with Process(tmp_path, server, "shutdown_delay = 60", workers=workers) as process:
        for _ in range(8 * workers):
            assert ready(process) == 200
        process.stop(signal.SIGHUP)
        wait_for(lambda: process.log.count("the settings were reloaded") == workers, "the settings are reloaded")
        process.stop()
        wait_for(lambda: ready(process) == 503, "the load balancer sees it")
        process.stop(signal.SIGHUP)
        wait_for(lambda: "not reloaded: the server is stopping" in process.log, "the log reports it")
        for _ in range(8):
            assert (ready(process), said_hello(process)) == (503, 200)
        process.stop()
        assert process.code() == 0


@pytest.mark.parametrize("workers", [1, 2])
@servers
def test_an_interrupt_is_not_delayed(server: str, workers: int, tmp_path: Path):
    with Process(tmp_path, server, "shutdown_delay = 600", workers=workers) as process:
        assert ready(process) == 200
        process.stop(signal.SIGINT)
        assert process.code() == 130


@servers
def test_without_a_load_balancer_there_is_no_delay(server: str, tmp_path: Path):
    """`/readyz` has never been requested."""
    with Process(tmp_path, server, "shutdown_delay = 600") as process:
        assert said_hello(process) == 200
        process.stop()
        assert process.code() == 0


@servers
def test_an_idle_server_stops_immediately(server: str, tmp_path: Path):
    with Process(tmp_path, server, "", grace=600) as process, httpx.Client(trust_env=False) as client:
        assert client.get(process.url + "/healthz").status_code == 200
        with socket.create_connection(("127.0.0.1", process.port)):
            process.stop()
            assert process.code() == 0
    assert process.log == ""


@servers
def test_an_sdk_raises_the_error(server: str, tmp_path: Path):
    upstream = Upstream()
    with (
        uvicorn_server(upstream) as served,
        Process(tmp_path, server, alone(served.url), grace=1) as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        tool: Any = {"type": "function", "function": {"name": "ping", "parameters": EMPTY}}
        stream = client.chat.completions.create(
            model="stalls", messages=[{"role": "user", "content": "Hi"}], tools=[tool], stream=True
        )
        words = []
        with pytest.raises(openai.APIError, match=SENTENCE):
            for chunk in stream:
                words.append(chunk.choices[0].delta.content)
                if "Some words." in words:
                    process.stop()
        assert process.code() == 0


# --- drain


@pytest.mark.parametrize(
    "serve",
    [partial(uvicorn_server, timeout_keep_alive=60), partial(hypercorn_server, keep_alive=60)],
    ids=["uvicorn", "hypercorn"],
)
def test_new_requests_over_open_connections_are_rejected_while_old_ones_continue(serve: Callable[..., Any]):
    upstream = Upstream()
    with uvicorn_server(upstream) as behind:
        proxy = Proxy(Settings(upstreams={"u": UpstreamSettings(name="u", url=behind.url)}))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/stop":
                await proxy.drain(60)
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await proxy(scope, receive, send)

        with (
            serve(app) as served,
            httpx.Client(base_url=served.url, trust_env=False) as client,
            RawClient(served.port, asked("chat", "ends")) as old,
            ThreadPoolExecutor() as pool,
        ):
            assert client.get("/readyz").status_code == 200
            old.until(b"words")
            drained = pool.submit(httpx.get, served.url + "/stop", timeout=60, trust_env=False)
            wait_for(lambda: client.get("/readyz").status_code == 503, "it drains")
            assert client.get("/readyz").json() == {"status": "draining"}
            assert client.get("/healthz").status_code == 200
            for kind in CLIENTS:
                reply = client.post(PATHS[kind], content=asked(kind, "ends"), headers=JSON)
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
                assert_valid(ERRORS[kind](reply.content))
            assert client.get("/v1/models").status_code == 503
            upstream.released.set()
            assert old.rest().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert drained.result(30).status_code == 204


@both
@pytest.mark.parametrize("passed", [False, True], ids=["tools", "passed on"])
async def test_a_mounted_middleware_is_drained_by_its_owner(passed: bool):
    upstream = ScriptedUpstream(text("Some words.", finish=None, done=False).then(Hang()))
    records: list[Any] = []
    app = ToolMiddleware(upstream, on_exchange=records.append)
    async with anyio.create_task_group() as tasks:
        async with stream_asgi(app, body=asked("chat", "m", tools=not passed)) as reply:
            body = await anext(reply)
            tasks.start_soon(app.drain, 0)
            body += b"".join([piece async for piece in reply])
        assert SENTENCE.encode() in body
        async with stream_asgi(app, body=asked("chat", "m")) as refused:
            assert await refused.head() == 503
    assert [record.error.code for record in records] == ["shutting_down"]
    assert upstream.left == 1


@both
async def test_a_request_ends_while_it_waits_for_the_store_of_the_budgets():
    began, ended = threading.Event(), threading.Event()

    class SlowStore(MemoryStore):
        blocks = True

        def count(self, key: str, amount: int, seconds: float) -> int:
            began.set()
            assert ended.wait(30)
            return super().count(key, amount, seconds)

    upstream = ScriptedUpstream(text("Some words."))
    limits, store = LimitSettings(requests_per_minute=5), SlowStore(StoreSettings())
    app = ToolMiddleware(upstream, limits=limits, opened_store=store)

    async def answer() -> None:
        for _ in range(1_000_000):
            if app.gate.end_error is not None:
                break
            await anyio.lowlevel.checkpoint()
        ended.set()

    async with anyio.create_task_group() as tasks, stream_asgi(app, body=asked("chat", "m")) as reply:
        assert await anyio.to_thread.run_sync(began.wait, 30)
        tasks.start_soon(answer)
        await app.drain(0)
        assert await reply.head() == 503
        assert SENTENCE.encode() in await reply.body()
    assert not upstream.requests


@both
@pytest.mark.parametrize("path", [PATHS["chat"], "/v1/conversations", "/v1/messages/count_tokens"])
async def test_a_request_ends_while_its_body_arrives(path: str):
    app, sent, begun = ToolMiddleware(ScriptedUpstream()), [], anyio.Event()

    async def receive() -> Any:
        begun.set()
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, scope, receive, send)
        await begun.wait()
        with anyio.fail_after(30):
            await app.drain(0)
    assert sent[0]["status"] == 503
    assert SENTENCE.encode() in sent[1]["body"]


@pytest.mark.trio
async def test_open_requests_may_use_the_grace_time(autojump_clock: trio.abc.Clock):
    app = ToolMiddleware(ScriptedUpstream(text("Some words.", finish=None, done=False).then(Hang())))
    began = trio.current_time()
    async with trio.open_nursery() as tasks, stream_asgi(app, body=asked("chat", "m")) as reply:
        await anext(reply)
        tasks.start_soon(app.drain, 100)
        async for _ in reply:
            pass
        assert trio.current_time() - began == pytest.approx(100)


@pytest.mark.trio
async def test_drain_returns_when_the_last_request_has_ended(autojump_clock: trio.abc.Clock):
    app = ToolMiddleware(ScriptedUpstream(text("Some words.")))
    began = trio.current_time()
    await app.drain(100)
    assert trio.current_time() == began


@pytest.mark.trio
@pytest.mark.parametrize(("grace", "given"), [(20.0, 18.0), (3.0, 1.5)])
async def test_part_of_the_grace_period_is_reserved_for_shutting_down(
    grace: float, given: float, autojump_clock: trio.abc.Clock
):
    class Service:
        """A proxy whose requests never end by themselves."""

        settings = Settings(grace=grace)

        def __init__(self) -> None:
            self.drained: list[float] = []

        async def drain(self, seconds: float) -> None:
            self.drained.append(seconds)
            await trio.sleep(seconds)

    service = Service()
    cut: list[float] = []
    began = trio.current_time()
    await stop(service, [signal.SIGTERM], {"a connection"}, lambda: cut.append(trio.current_time()))  # type: ignore[arg-type]
    assert service.drained[0] == given
    assert given < cut[0] - began < grace


@both
async def test_a_passed_on_body_of_known_length_is_cut():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        await anyio.sleep_forever()

    middleware = ToolMiddleware(app)
    async with stream_asgi(middleware, body=asked("chat", "m", tools=False)) as reply:
        assert await anext(reply) == b"{"
        await middleware.drain(0)
        assert [piece async for piece in reply] == []
        assert not reply._ended  # the server closes the connection before the last byte
