"""Clients that are slow, endless or many: each is bounded, is told so where it can be, and leaves the others alone.

Over sockets, under uvicorn and under hypercorn with trio; what only waits, in virtual time.
"""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, Self

import httpx
import openai
import pytest
import trio
from dialects import CLIENTS, PATHS, Ask, write
from servers import DEADLINE, RawClient, Served, hypercorn_server, uvicorn_server, wait_for

from streamtool import ToolMiddleware
from streamtool.http.asgi import Message
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, UpstreamSettings
from streamtool.testing import (
    Hang,
    ScriptedUpstream,
    assert_valid,
    stream_asgi,
    text,
    validate_chat_error,
    validate_messages_error,
    validate_responses_error,
)

ERRORS = {"chat": validate_chat_error, "messages": validate_messages_error, "responses": validate_responses_error}
JSON = {"content-type": "application/json"}
TOOL = ("ping", "Pings.", {"type": "object", "properties": {}})

both = pytest.mark.anyio
clients = pytest.mark.parametrize("client", CLIENTS)


def asked(client: str = "chat", *, tools: bool = True) -> bytes:
    return json.dumps(write(client, Ask((("user", "Hi"),), (TOOL,) if tools else ()))).encode()


def stalling() -> ScriptedUpstream:
    return ScriptedUpstream(text("Some words.", size=50, finish=None, done=False).then(Hang()))


UPSTREAM = {"u": UpstreamSettings(name="u", url="http://127.0.0.1:9")}


class Raw:
    """A connection on which a test says what it likes."""

    def __init__(self, port: int, data: bytes = b"", host: str = "127.0.0.1") -> None:
        self._sock = socket.create_connection((host, port), timeout=DEADLINE)
        self.say(data)

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        found = b""
        try:
            while data := self._sock.recv(65536):
                found += data
        except ConnectionError:  # what it had said has arrived
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
    sent: list[Message] = []

    async def receive() -> Message:
        await trio.sleep(2)  # a byte now and then is not enough
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Message) -> None:
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
def test_half_a_body_is_answered_and_its_connection_closed(small: Served, path: str, framing: str):
    with Raw(small.port, head(path, framing)) as client:
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"the request body did not arrive within 0.2 seconds (limits.body_seconds)"' in answer


@pytest.mark.parametrize("framing", ["content-length: 100000000", "transfer-encoding: chunked"])
def test_a_body_that_is_too_large_is_not_read_to_its_end(small: Served, framing: str):
    with Raw(small.port, head(PATHS["chat"], framing) + b"800\r\n" + bytes(2048) + b"\r\n") as client:
        answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


# --- open requests


@clients
def test_more_requests_than_the_server_may_have_open_are_a_503(serve: Callable[..., Any], client: str):
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
def test_more_requests_than_a_client_may_have_open_are_a_429(serve: Callable[..., Any], client: str):
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


def test_an_sdk_knows_that_it_has_too_many_open(serve: Callable[..., Any]):
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


@both
async def test_a_request_that_is_over_is_not_counted():
    app = ToolMiddleware(
        ScriptedUpstream(text("Some words.")), limits=LimitSettings(exchanges=1, exchanges_per_client=1)
    )
    for _ in range(3):
        async with stream_asgi(app, body=asked()) as reply:
            assert await reply.head() == 200
            await reply.body()
            await reply.finished.wait()


@both
async def test_0_bounds_nothing():
    app = ToolMiddleware(stalling(), limits=LimitSettings(exchanges=0, exchanges_per_client=0))
    async with stream_asgi(app, body=asked()) as one, stream_asgi(app, body=asked()) as two:
        assert (await one.head(), await two.head()) == (200, 200)
