"""The path of an upstream request: a client cannot leave the upstream's path, where the operator's key is used."""

import socket
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.dialects import ALL_CLIENTS, PATHS, Ask, path, said, write
from support.servers import hypercorn_server, uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, text

SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server}
serving = pytest.mark.parametrize("serve", SERVERS.values(), ids=SERVERS)
ESCAPES = (
    "../../../theirs/v1beta/models/x",
    "x/../../../../theirs/v1beta/models/x",
    "models/../../x",
    "..\\..\\x",
    "x\0",
    "x\r\ny",
)


class Recording:
    """An upstream that records the raw paths of its requests."""

    def __init__(self, protocol: str) -> None:
        self.paths: list[str] = []
        self._script = said(protocol, "Hello.")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.paths.append(scope["raw_path"].decode())
        await ScriptedUpstream(self._script)(scope, receive, send)


def proxy(url: str, protocol: str, **more: Any) -> Proxy:
    upstream = {"url": url, "protocol": protocol, "key": "the-operators-secret-key"}
    return Proxy(Settings(upstreams={"u": upstream}, client_keys=("k",), chat_template="none", **more))  # type: ignore[dict-item]


def raw_get(port: int, target: str) -> int:
    """Return the status of a GET request whose target is sent exactly as it is."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        head = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\nconnection: close\r\n\r\n"
        sock.sendall(head.encode())
        return int(sock.recv(65536).split(b" ")[1])


@serving
@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_a_model_name_does_not_leave_the_path(serve: Callable[..., Any], client: str):
    upstream = Recording("gemini")
    with (
        uvicorn_server(upstream) as up,
        serve(proxy(f"{up.url}/ours/v1beta", "gemini")) as served,
        httpx.Client(base_url=served.url, trust_env=False, headers={"authorization": "Bearer k"}) as http,
    ):
        for name in ESCAPES:
            body = {**write(client, Ask((("user", "Hi."),))), "model": name}
            reply = http.post(path(client, model=quote(name, safe="")), json=body)
            assert 400 <= reply.status_code < 500, (name, reply.status_code)
        body = {**write(client, Ask((("user", "Hi."),))), "model": "a/b"}
        assert http.post(path(client, model="a/b"), json=body).is_success
    assert [one for one in upstream.paths if "generatecontent" in one.lower()] == upstream.paths[-1:]
    name = "a/b" if client == "gemini" else "a%2Fb"  # as the client wrote it
    assert upstream.paths[-1].startswith(f"/ours/v1beta/models/{name}:")
    assert all(one.startswith("/ours/v1beta/") and ".." not in one for one in upstream.paths)


@serving
def test_a_path_that_is_passed_on_keeps_its_escapes(serve: Callable[..., Any]):
    upstream = Recording("chat")
    with (
        uvicorn_server(upstream) as up,
        serve(
            proxy(f"{up.url}/ours", "chat", passthrough=("/v1/files/org/name a", "/v1/files/../../theirs"))
        ) as served,
    ):
        for target in (
            "/v1/models/..%2f..%2ftheirs",
            "/v1/models/../../theirs",
            "/v1/models/%2e%2e/%2e%2e/theirs",
            "/v1/models/a%00",
            "/v1/models/a%5c..%5cb",
            "/v1/files/../../theirs",
            "/v1/files/..%2f..%2ftheirs",
        ):
            assert raw_get(served.port, target) >= 400, target
        assert set(upstream.paths) <= {"/ours/v1/models"}
        assert raw_get(served.port, "/v1/files/org%2Fname%20a") == 200
    assert upstream.paths[-1] == "/ours/v1/files/org%2Fname%20a"


@serving
def test_the_limit_on_a_reply_concerns_a_stream_that_becomes_one_document(serve: Callable[..., Any]):
    limit = 100_000
    script = text("word " * 100_000, size=5_000, done=False)
    with uvicorn_server(ScriptedUpstream(script)) as up:
        settings = Settings(upstreams={"u": {"url": up.url}}, limits={"reply": limit}, chat_template="none")  # type: ignore[dict-item, arg-type]
        with serve(Proxy(settings)) as served:
            body = {**write("chat", Ask((("user", "Go."),))), "stream": False}
            reply = httpx.post(served.url + PATHS["chat"], json=body, trust_env=False, timeout=20)
    assert reply.status_code == 502
    assert f"larger than {limit} bytes (limits.reply)" in reply.text


@serving
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", [True, False])
def test_the_limit_on_a_reply_concerns_its_decoded_size(serve: Callable[..., Any], stream: bool, tools: bool):
    limit = 300_000
    event = text("word " * 100_000, size=10_000).steps
    packed = zlib.compressobj(wbits=31)
    body = packed.compress(b"".join(step for step in event if isinstance(step, bytes))) + packed.flush()
    assert len(body) < limit / 10
    script = Script((body,), headers=(("content-encoding", "gzip"),))
    asked = write("chat", Ask((("user", "Go."),), (("ping", "Pings.", {"type": "object"}),) if tools else ()))
    with uvicorn_server(ScriptedUpstream(script)) as up:
        app = Proxy(Settings(upstreams={"u": {"url": up.url}}, limits={"reply": limit}))  # type: ignore[dict-item, arg-type]
        with serve(app) as served:
            reply = httpx.post(
                served.url + PATHS["chat"], json={**asked, "stream": stream}, trust_env=False, timeout=20
            )
    if tools or not stream:
        assert "limits.reply" in reply.text
        assert len(reply.content) < 2 * limit
