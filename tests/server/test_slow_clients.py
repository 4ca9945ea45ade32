"""Slow, endless or numerous clients: each is bounded, receives an error if possible, and does not affect the others.

Over sockets, under uvicorn and under hypercorn with trio; tests that only wait run in virtual time.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import anthropic
import anyio
import httpx
import openai
import pytest
import trio
from support.dialects import CLIENTS, PATHS, Ask, write
from support.servers import DEADLINE, Process, RawClient, Served, hypercorn_server, uvicorn_server, wait_for
from support.validators import assert_valid, validate_chat_error, validate_messages_error, validate_responses_error

from streamtool import Settings, ToolMiddleware
from streamtool.agent.model_client import make_middleware
from streamtool.asgi.request_body import drop_body
from streamtool.asgi.types import ASGIMessage
from streamtool.core.errors import UpstreamError
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, UpstreamSettings
from streamtool.testing import Hang, ScriptedUpstream, stream_asgi, text

ERRORS = {"chat": validate_chat_error, "messages": validate_messages_error, "responses": validate_responses_error}
JSON = {"content-type": "application/json"}
TOOL = ("ping", "Pings.", {"type": "object", "properties": {}})

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)


def asked(client: str = "chat", *, tools: bool = True) -> bytes:
    return json.dumps(write(client, Ask((("user", "Hi"),), (TOOL,) if tools else ()))).encode()


def stalling() -> ScriptedUpstream:
    return ScriptedUpstream(text("Some words.", size=50, finish=None, done=False).then(Hang()))


def lingering() -> ScriptedUpstream:
    """Return an upstream that keeps its response open after the last event."""
    return ScriptedUpstream(text("Some words.", size=50).then(Hang()))


UPSTREAM = {"u": UpstreamSettings(name="u", url="http://127.0.0.1:9")}


class Raw:
    """A raw connection on which a test sends arbitrary bytes."""

    def __init__(self, port: int, data: bytes = b"", source: str = "127.0.0.1") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), DEADLINE, (source, 0))
        self.say(data)

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def until(self, mark: bytes) -> None:
        found = b""
        while mark not in found:
            data = self._sock.recv(65536)
            assert data, found
            found += data

    def heard(self, seconds: float = 0) -> bytes:
        """Return what arrives within the given number of seconds."""
        if not select.select([self._sock], [], [], seconds)[0]:
            return b""
        try:
            return self._sock.recv(65536)
        except ConnectionError:
            return b""

    def closed(self) -> bool:
        """Return whether the server has closed the connection; data received before is dropped."""
        while select.select([self._sock], [], [], 0)[0]:
            try:
                if not self._sock.recv(65536):
                    return True
            except ConnectionError:
                return True
        return False

    def rest(self) -> bytes:
        """Return everything that arrives until the server closes the connection."""
        found = b""
        try:
            while data := self._sock.recv(65536):
                found += data
        except ConnectionError:  # its response has arrived
            pass
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


@pytest.fixture(scope="module", params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Callable[..., Any]:
    server: Callable[..., Any] = request.param
    return server


# --- the body


@pytest.mark.trio
@clients
async def test_a_body_that_does_not_arrive_is_a_408(client: str, autojump_clock: trio.abc.Clock):
    app = ToolMiddleware(stalling(), limits=LimitSettings(body_seconds=7))
    sent: list[ASGIMessage] = []

    async def receive() -> ASGIMessage:
        await trio.sleep(2)  # an occasional byte is not enough
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: ASGIMessage) -> None:
        sent.append(message)

    began = trio.current_time()
    await app({"type": "http", "method": "POST", "path": PATHS[client], "headers": []}, receive, send)
    assert trio.current_time() - began == pytest.approx(7)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert_valid(ERRORS[client](sent[1]["body"]))
    error = json.loads(sent[1]["body"])["error"]
    assert error["message"] == "the request body did not arrive within 7 seconds (limits.body_seconds)"


@pytest.fixture(scope="module")
def small(serve: Callable[..., Any]) -> Iterator[Served]:
    with serve(Proxy(limits=LimitSettings(body=1000, body_seconds=0.2), passthrough=("/v1/files",))) as served:
        yield served


@pytest.mark.parametrize("path", [*PATHS.values(), "/v1/messages/count_tokens"])
@pytest.mark.parametrize("framing", ["content-length: 900", "transfer-encoding: chunked"])
def test_an_incomplete_body_is_rejected_and_its_connection_closed(small: Served, path: str, framing: str):
    with Raw(small.port, head(path, framing)) as client:
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"the request body did not arrive within 0.2 seconds (limits.body_seconds)"' in answer


@pytest.mark.parametrize("framing", ["content-length: 100000000", "transfer-encoding: chunked"])
def test_an_oversized_body_is_not_read_to_its_end(small: Served, framing: str):
    with Raw(small.port, head(PATHS["chat"], framing) + b"800\r\n" + bytes(2048) + b"\r\n") as client:
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.trio
async def test_an_unused_body_is_read_for_a_second_or_up_to_a_megabyte(autojump_clock: trio.abc.Clock):
    scope = {"type": "http", "headers": [(b"transfer-encoding", b"chunked")]}
    pause, taken = 0.0, 0

    async def receive() -> ASGIMessage:
        nonlocal taken
        await trio.sleep(pause)
        taken += 65536
        return {"type": "http.request", "body": bytes(65536), "more_body": True}

    for each, seconds, size in ((0.15, 1.0, 6 * 65536), (0.001, 0.016, 2**20)):
        pause, taken, began = each, 0, trio.current_time()
        await drop_body(scope, receive)
        assert trio.current_time() - began == pytest.approx(seconds)
        assert taken == size


# --- open requests


@clients
def test_requests_over_the_limit_of_the_server_are_a_503(serve: Callable[..., Any], client: str):
    app = ToolMiddleware(stalling(), app_protocol="chat", limits=LimitSettings(exchanges=2))
    with (
        serve(app) as served,
        RawClient(served.port, asked()) as one,
        RawClient(served.port, asked(tools=False)) as two,
    ):
        one.until(b"words")
        two.until(b"words")
        with httpx.Client(base_url=served.url, trust_env=False, headers=JSON) as http:
            reply = http.post(PATHS[client], content=asked(client))
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
            assert_valid(ERRORS[client](reply.content))
            assert reply.json()["error"]["message"].startswith("the server has 2 requests open (limits.exchanges)")
            one.leave()

            def admitted() -> bool:
                with http.stream("POST", PATHS[client], content=asked(client)) as reply:
                    return reply.status_code == 200

            wait_for(admitted, "there is room again")


@clients
def test_requests_over_the_limit_of_a_client_are_a_429(serve: Callable[..., Any], client: str):
    limits = LimitSettings(exchanges_per_client=1)
    app = Proxy(apps={"u": stalling()}, upstreams=UPSTREAM, client_keys=("a", "b"), limits=limits)
    with (
        serve(app) as served,
        httpx.Client(base_url=served.url, trust_env=False, headers=JSON) as http,
        http.stream("POST", PATHS["chat"], content=asked(), headers={"authorization": "Bearer a"}) as one,
    ):
        assert one.status_code == 200
        for key in ({"authorization": "Bearer a"}, {"x-api-key": "a"}):
            reply = http.post(PATHS[client], content=asked(client), headers=key)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
            assert_valid(ERRORS[client](reply.content))
        with http.stream("POST", PATHS["chat"], content=asked(), headers={"authorization": "Bearer b"}) as two:
            assert two.status_code == 200


@pytest.mark.parametrize("framing", ["content-length: 9", "transfer-encoding: chunked"])
def test_the_connection_stays_usable_after_a_rejected_request(serve: Callable[..., Any], framing: str):
    app = Proxy(apps={"u": stalling()}, upstreams=UPSTREAM, client_keys=("a",))
    body = b"4\r\nwhat\r\n0\r\n\r\n" if "chunked" in framing else b"what ever"
    with serve(app) as served, Raw(served.port) as client:
        for path, key, status in (
            ("/v1/messages", "b", b"401"),
            ("/nowhere", "a", b"404"),
            ("/v1/messages", "a", b"415"),
        ):
            head = (
                f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-type: text/plain\r\n{framing}\r\n\r\n"
            )
            client.say(head.encode())
            time.sleep(0.05)  # the body arrives in a separate packet
            client.say(body)
            client.until(b"HTTP/1.1 " + status)
            assert not client.closed()


def test_an_sdk_raises_a_rate_limit_error_for_too_many_open_requests(serve: Callable[..., Any]):
    app = Proxy(apps={"u": stalling()}, upstreams=UPSTREAM, limits=LimitSettings(exchanges_per_client=1))
    with (
        serve(app) as served,
        openai.OpenAI(base_url=served.url + "/v1", api_key="mine", max_retries=0) as client,
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], stream=True) as one,
    ):
        next(iter(one))
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        assert refused.value.code == "rate_limit_exceeded"


@clients
def test_a_slot_is_free_once_the_client_has_the_last_byte(serve: Callable[..., Any], client: str):
    """Even if the upstream keeps its response open after the last event."""
    app = Proxy(apps={"u": lingering()}, upstreams=UPSTREAM, limits=LimitSettings(exchanges=1, exchanges_per_client=1))
    with serve(app) as served, httpx.Client(base_url=served.url, trust_env=False, headers=JSON) as http:
        for _ in range(6):
            reply = http.post(PATHS[client], content=asked(client))
            assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("kind", ["an invalid body", "a passed error", "a passed reply", "a dead upstream"])
def test_a_slot_is_free_after_any_response(serve: Callable[..., Any], kind: str):
    """Errors and replies of known length end before their last message."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if kind == "a dead upstream":
            raise UpstreamError("dead")
        status = 404 if kind == "a passed error" else 200
        head = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": b"{}", "more_body": True})
        await anyio.sleep(0.001)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    limits = LimitSettings(exchanges=1, exchanges_per_client=1)
    proxy = Proxy(apps={"u": app}, upstreams=UPSTREAM, limits=limits, passthrough=("/v1/embeddings",))
    path, body = ("/v1/completions", b"{") if kind == "an invalid body" else ("/v1/embeddings", b"{}")
    with serve(proxy) as served, httpx.Client(base_url=served.url, trust_env=False, headers=JSON) as http:
        found = {http.post(path, content=body).status_code for _ in range(60)}
    assert len(found) == 1
    assert not found & {429, 503}


@both
async def test_a_finished_request_is_not_counted():
    app = ToolMiddleware(
        ScriptedUpstream(text("Some words.")), limits=LimitSettings(exchanges=1, exchanges_per_client=1)
    )
    for _ in range(3):
        async with stream_asgi(app, body=asked()) as reply:
            assert await reply.head() == 200
            await reply.body()
            await reply.finished.wait()


@both
async def test_0_disables_a_limit():
    app = ToolMiddleware(stalling(), limits=LimitSettings(exchanges=0, exchanges_per_client=0))
    async with stream_asgi(app, body=asked()) as one, stream_asgi(app, body=asked()) as two:
        assert (await one.head(), await two.head()) == (200, 200)


@both
async def test_in_process_requests_of_an_agent_are_not_limited():
    app = make_middleware(Settings(limits=LimitSettings(exchanges=1, exchanges_per_client=1)), {"u": stalling()})
    async with stream_asgi(app, body=asked()) as one, stream_asgi(app, body=asked()) as two:
        assert (await one.head(), await two.head()) == (200, 200)


# --- connections: limits that only the server can enforce

SMALL = {
    "header_bytes": 2000,
    "header_seconds": 0.4,
    "keep_alive_seconds": 0.4,
    "body_seconds": 0.4,
    "connections": 20,
}
"""Settings of the process that most of these tests share."""


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    limits = {f"limits__{name}": value for name, value in SMALL.items()}
    with Process(tmp_path_factory.mktemp("slow"), request.param, "", **limits) as process:
        yield process
        assert httpx.get(process.url + "/healthz", trust_env=False).status_code == 200
        assert "Traceback" not in process.log


def refused(answer: bytes, status: bytes, code: str) -> str:
    """Return the message of a complete raw response."""
    top, _, body = answer.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 " + status.lower()
    assert {b"connection: close", b"content-type: application/json", b"content-length: %d" % len(body)} <= {*lines}
    told = json.loads(body)
    assert told["type"] == "error"
    assert told["error"]["code"] == code
    return str(told["error"]["message"])


TOO_LARGE = b"431 Request Header Fields Too Large"
LONG = {
    "one line": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 300_000,
    "many lines": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n" + b"x-one: y\r\n" * 30_000,
    "a path": b"GET /" + b"x" * 300_000,
    "a whole one": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 2000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", LONG)
def test_an_oversized_header_is_a_431(started: Process, kind: str):
    with Raw(started.port) as client:
        with contextlib.suppress(ConnectionError):  # the server may have closed the connection already
            client.say(LONG[kind])
        sentence = refused(client.rest(), TOO_LARGE, "header_too_large")
    assert sentence == "the header is larger than 2000 bytes (limits.header_bytes)"


def test_a_header_of_the_maximum_size_is_read(started: Process):
    with Raw(started.port) as client:
        client.say(
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-long: " + b"x" * 1800 + b"\r\n\r\n"
        )
        assert client.rest().startswith(b"HTTP/1.1 200")


def test_trailers_are_limited_too(started: Process):
    body = head("/v1/messages", "transfer-encoding: chunked") + b"1\r\n{\r\n0\r\nx-trailer: "
    with Raw(started.port, body) as client:
        with contextlib.suppress(ConnectionError):
            client.say(b"x" * 300_000)
        assert client.rest().startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


HALF = b"POST /v1/messages HTTP/1.1\r\nhost: local"


def test_an_incomplete_header_is_a_408(started: Process):
    with Raw(started.port, HALF) as client:
        sentence = refused(client.rest(), b"408 Request Timeout", "request_timeout")
    assert sentence == "the header did not arrive within 0.4 seconds (limits.header_seconds)"


def test_a_header_that_arrives_byte_by_byte_is_a_408(started: Process):
    with Raw(started.port) as client:
        answer = b""
        for byte in HALF + b"host: localhost" * 40:
            with contextlib.suppress(ConnectionError):
                client.say(bytes([byte]))
            time.sleep(0.01)
            if answer := client.heard():
                break
        refused(answer + client.rest(), b"408 Request Timeout", "request_timeout")


def test_an_incomplete_header_after_a_reply_is_a_408(started: Process):
    with Raw(started.port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n") as client:
        client.until(b'{"status":"ok"}')
        client.say(HALF)
        refused(client.rest(), b"408 Request Timeout", "request_timeout")


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["new", "served"])
def test_an_idle_connection_is_closed_silently(started: Process, said: bytes):
    with Raw(started.port, said) as client:
        if said:
            client.until(b'{"status":"ok"}')
        assert client.rest() == b""


def test_empty_lines_do_not_keep_a_connection_open(started: Process):
    with Raw(started.port) as client:
        for _ in range(500):
            with contextlib.suppress(ConnectionError):
                client.say(b"\r\n")
            time.sleep(0.01)
            if client.closed():
                break
        assert client.closed()


def test_invalid_http_is_a_400(started: Process):
    with Raw(started.port, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n") as client:
        assert refused(client.rest(), b"400 Bad Request", "invalid_http") == "this is not a valid HTTP/1.1 request"


def test_an_endless_body_after_an_early_response_is_cut(started: Process, monkeypatch: pytest.MonkeyPatch):
    with Raw(started.port, head("/nowhere", "transfer-encoding: chunked")) as client:
        client.until(b"not_found_error")
        for _ in range(1500):  # its time limit and five seconds
            if client.closed():
                break
            with contextlib.suppress(ConnectionError):
                client.say(b"1\r\n{\r\n")
            time.sleep(0.01)
        assert client.closed()


def test_connections_over_the_limit_are_a_503(started: Process):
    def full() -> bool:
        with Raw(started.port) as one:
            return b" 503 " in one.heard(0.05)

    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(Raw(started.port))
        with Raw(started.port) as late:
            sentence = refused(late.rest(), b"503 Service Unavailable", "overloaded")
        assert sentence == "the server has reached its limit of 20 connections (limits.connections); try again later"
    wait_for(lambda: not full(), "there is room again")


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_connections_from_a_single_address_have_a_separate_limit(server: str, tmp_path: Path):
    with (
        Process(tmp_path, server, "", limits__connections_per_address=2) as process,
        Raw(process.port, HALF),
        Raw(process.port, HALF),
        Raw(process.port) as third,
        Raw(process.port, source="127.0.0.2") as other,
    ):
        sentence = refused(third.rest(), b"503 Service Unavailable", "overloaded")
        assert sentence == (
            "your address has reached its limit of 2 connections (limits.connections_per_address); try again later"
        )
        other.say(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert other.rest().startswith(b"HTTP/1.1 200")


def test_sdks_raise_an_error_for_a_rejected_connection(tmp_path: Path):
    with Process(tmp_path, "uvicorn", "", limits__connections=1) as process, Raw(process.port, HALF):
        for client in (
            openai.OpenAI(base_url=process.url + "/v1", api_key="x", max_retries=0),
            anthropic.Anthropic(base_url=process.url, api_key="x", max_retries=0),
        ):
            with (
                client,
                pytest.raises((openai.InternalServerError, anthropic.InternalServerError), match="limits"),
            ):
                client.models.list()


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_a_process_with_a_low_limit_of_open_files_accepts_fewer_connections(server: str, tmp_path: Path):
    with Process(tmp_path, server, "", ulimit="-n 100") as process, contextlib.ExitStack() as stack:
        for _ in range(18):
            stack.enter_context(Raw(process.port, HALF))
        with Raw(process.port) as late:
            refused(late.rest(), b"503 Service Unavailable", "overloaded")
        assert "so it accepts 18 connections, not 4096 (limits.connections)" in process.log


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_the_soft_limit_of_open_files_is_raised(server: str, tmp_path: Path):
    with Process(tmp_path, server, "", ulimit="-S -n 100") as process, contextlib.ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(Raw(process.port, HALF))
        assert httpx.get(process.url + "/healthz", trust_env=False).status_code == 200
        assert process.log == ""


def test_http_2_is_rejected(started: Process):
    with Raw(started.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") as client:
        refused(client.rest(), b"400 Bad Request", "invalid_http")


def test_an_upgrade_is_ignored(started: Process):
    upgrade = b"connection: Upgrade, HTTP2-Settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n"
    with Raw(started.port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + upgrade) as client:
        assert client.rest().startswith(b"HTTP/1.1 200")


def test_a_websocket_ends_only_its_own_connection(started: Process):
    top = b"GET /v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    keys = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    with Raw(started.port, top + keys) as client:
        client.rest()


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_a_client_that_disconnects_after_two_requests_is_noticed(server: str, tmp_path: Path):
    upstream = stalling()
    toml = 'chat_template = "none"\n[upstream.u]\nurl = "URL"'
    with (
        uvicorn_server(upstream) as behind,
        Process(tmp_path, server, toml.replace("URL", behind.url), keepalive=0.2) as process,
    ):
        with Raw(process.port, head("/v1/chat/completions", f"content-length: {len(asked())}") + asked()) as client:
            client.until(b"words")
            client.say(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            time.sleep(0.2)
        wait_for(lambda: upstream.left == 1, "the upstream connection is closed")


def test_pipelined_requests_are_limited(started: Process):
    with Raw(started.port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5000) as client:
        assert len(client.rest()) < 1_000_000  # closed immediately, or when all are answered
    assert httpx.get(started.url + "/healthz", trust_env=False).status_code == 200
