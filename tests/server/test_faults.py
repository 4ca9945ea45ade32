"""The client disconnects or the upstream dies in each phase, over real sockets, under uvicorn and under hypercorn with
trio.

When the client disconnects, the upstream's socket reads EOF at once, and tasks, threads and sockets return to
their previous counts. When the upstream dies, the client receives an error, and the reply never ends cleanly.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from support.servers import (
    DEADLINE,
    LINGERING,
    RawClient,
    RawUpstream,
    Served,
    http_stream,
    hypercorn_server,
    uvicorn_server,
)
from support.validators import assert_valid, validate_chat_error, validate_chat_stream

from statemachine import precompile
from streamtool.proxy import Proxy
from streamtool.refusals import default_phrases
from streamtool.settings import Settings
from streamtool.testing import text

PATH = "/v1/chat/completions"
PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}
CALL = '<tool_call>{"name": "ping", "arguments": {"x": "y"}}</tool_call>'
OPEN = '<tool_call>{"name": "ping", "arguments": {"x": "looooZ'
SOON = 2.0
"""Seconds, far below all time limits; on a busy machine, each of the three threads involved may wait for the others."""

PHASES = {
    "before the first byte": (None, b""),
    "after the status": ("", b'"role"'),
    "in text": ("Some words here!", b"!"),
    "in arguments": ("Look: " + OPEN, b"Z"),
    "between calls": (CALL, b'y\\"}'),
    "after the reason": ("Some words here!", b"!"),
}
"""Data sent by the upstream, and received by the client, before the failure."""


def request_body(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [PING], **fields}
    ).encode()


def said(phase: str) -> bytes:
    words, _ = PHASES[phase]
    if words is None:
        return b""
    script = text(words, finish="stop" if phase == "after the reason" else None, done=False, size=6)
    return http_stream(b"".join(s for s in script.steps if isinstance(s, bytes)))


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    upstream = RawUpstream()
    yield upstream
    upstream.close()


@pytest.fixture(
    scope="module",
    params=[uvicorn_server, partial(hypercorn_server, keep_alive=LINGERING)],
    ids=["uvicorn", "hypercorn-trio"],
)
def server(request: pytest.FixtureRequest, upstream: RawUpstream) -> Iterator[Served]:
    settings = Settings(upstreams={"raw": {"url": upstream.url}})
    precompile(
        settings.formats
    )  # the server does this in a thread at its start; on a busy machine, it would not be done
    default_phrases()
    with request.param(Proxy(settings)) as server:
        upstream.reset(said("after the status"), dies=True)
        httpx.post(server.url + PATH, content=request_body())  # everything created by the first request is created now
        server.settle()
        yield server


@pytest.mark.parametrize("tools", [True, False], ids=["tools", "passed on"])
@pytest.mark.parametrize("phase", PHASES)
def test_the_upstream_connection_closes_when_the_client_disconnects(server, upstream, phase, tools):
    _, mark = PHASES[phase]
    if not tools:
        mark = mark and b"data: "
    upstream.reset(said(phase))
    with RawClient(server.port, request_body() if tools else request_body(tools=[])) as client:
        assert upstream.said.wait(DEADLINE)
        if mark:
            client.until(mark)
        left = client.leave()
    assert upstream.saw_eof.wait(DEADLINE)
    assert upstream.eof is not None
    assert upstream.eof - left < SOON
    server.assert_quiet()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", PHASES)
def test_the_client_receives_an_error_when_the_upstream_dies(server, upstream, phase, stream):
    words, _ = PHASES[phase]
    upstream.reset(said(phase), dies=True)
    with httpx.Client() as client:
        response = client.post(server.url + PATH, content=request_body(stream=stream))
        body = response.content
    if phase == "after the reason":  # only the end mark is missing
        assert response.status_code == 200
        assert b'"error"' not in body
        assert b'"finish_reason":"stop"' in body
    elif stream and words is not None:
        assert response.status_code == 200
        assert_valid(validate_chat_stream(body, json.loads(request_body()), headers=dict(response.headers)))
        assert b'"error"' in body
        assert b'"finish_reason":"' not in body
    else:
        assert response.status_code == 502
        assert_valid(validate_chat_error(body))
    server.assert_quiet()


@pytest.mark.parametrize("tools", [True, False], ids=["tools", "passed on"])
def test_a_connection_reset_is_treated_like_a_closed_connection(server, upstream, tools):
    body = b'{"error":{"message":"no room","type":"server_error"}}'
    upstream.reset(
        b"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n" + body, dies=True
    )
    response = None
    try:
        response = httpx.post(server.url + PATH, content=request_body() if tools else request_body(tools=[]))
    except httpx.RemoteProtocolError:
        assert not tools  # data that was passed on cannot be withdrawn, so the connection is aborted
    if response is not None:
        assert response.status_code == 503


def test_an_invalid_http_response_is_a_bad_gateway(server, upstream):
    upstream.reset(b"this is not HTTP at all\r\n\r\n", dies=True)
    response = httpx.post(server.url + PATH, content=request_body())
    assert response.status_code == 502
    assert_valid(validate_chat_error(response.content))


def test_an_incomplete_character_is_not_a_clean_end(server, upstream):
    cut = b"data: " + '{"choices":[{"index":0,"delta":{"content":"é'.encode()[:-1]
    upstream.reset(http_stream(cut), dies=True)
    assert httpx.post(server.url + PATH, content=request_body()).status_code == 502


def test_many_simultaneous_disconnects_leak_nothing(server, upstream):
    clients = [RawClient(server.port, request_body(model=f"m{i}")) for i in range(20)]
    time.sleep(0.02)
    for client in clients:
        client.leave()
    server.assert_quiet()
