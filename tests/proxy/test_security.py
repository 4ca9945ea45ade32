"""Keys, headers and paths: requests without the key, secrets that never leak, and request smuggling."""

import json
import logging
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import click
import httpx
import pytest
import typer
from attrs import evolve
from support.dialects import CLIENTS, PATHS, Ask, write
from support.dialects import said as reply_of
from support.network import JSON, Network
from support.servers import DEADLINE, RawUpstream, Served, hypercorn_server, uvicorn_server
from support.sweeps import each

from streamtool.cli import main
from streamtool.cli.app import app as cli
from streamtool.core.errors import SettingsError
from streamtool.exchange.record import Record
from streamtool.proxy import Proxy
from streamtool.settings import Settings, load
from streamtool.testing import ScriptedUpstream, chunk, event, status, stream_asgi, text

KEY = "sk-upstream-0123456789abcdef"
CLIENT_KEY = "sk-client-fedcba9876543210"
CHAT = "/v1/chat/completions"
TOOLS = (("ping", "Pings.", {"type": "object", "properties": {}}),)

both = pytest.mark.anyio


def asked(client: str = "chat", *, tools: bool = True, stream: bool = True) -> bytes:
    return json.dumps(write(client, Ask((("user", "Hi"),), TOOLS if tools else (), stream=stream))).encode()


def keyed(answer: Any, **settings: Any) -> tuple[Proxy, Network]:
    network = Network(answer)
    upstreams = {"up": {"url": "http://up.test", "key": KEY}}
    return Proxy(Settings(upstreams=upstreams, **settings), transport=network), network


async def ask(app: Any, path: str = CHAT, body: bytes = b"", headers: Any = (JSON,), method: str = "POST") -> Any:
    async with stream_asgi(app, path, method=method, body=body, headers=headers) as reply:
        code = await reply.head()
        return code, await reply.body(), reply.headers


# --- the client's key


@both
@each(
    "header",
    [
        (b"authorization", b"Bearer " + CLIENT_KEY[:-1].encode()),
        (b"authorization", b"Bearer " + CLIENT_KEY.encode() + b"\x00"),
        (b"authorization", b"Bearer " + CLIENT_KEY.upper().encode()),
        (b"authorization", CLIENT_KEY.encode()),
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"authorization", b"Bearer \xff\xfe"),
        (b"x-api-key", b""),
        (b"x-goog-api-key", CLIENT_KEY.upper().encode()),
        (b"x-streamtool-key", CLIENT_KEY.encode()),
        (b"cookie", b"authorization=" + CLIENT_KEY.encode()),
    ],
)
@each("client", CLIENTS)
async def test_a_wrong_client_key_is_rejected_in_the_clients_protocol(client: str, header: Any):
    app, network = keyed(lambda _: (200, [], []), client_keys=(CLIENT_KEY,))
    code, body, headers = await ask(app, PATHS[client], asked(client), [JSON, header])
    error = json.loads(body)["error"]
    assert code == 401
    assert error["type"] == "authentication_error"
    assert error["message"].startswith("the key is missing or wrong")
    assert network.requests == []
    assert CLIENT_KEY not in body.decode() + str(headers)


@both
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/x", "/v1/files", "/v1/messages/count_tokens", "/", "/metrics"]
)
async def test_only_health_is_served_without_a_key(path: str):
    app, network = keyed(lambda _: (200, [], []), client_keys=(CLIENT_KEY,))
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        assert (await ask(app, path, method=method))[0] == 401
    assert (await ask(app, "/healthz", method="GET"))[:2] == (200, b'{"status":"ok"}')
    assert network.requests == []


@both
async def test_readiness_needs_no_key():
    app, network = keyed(lambda _: (200, [], []), client_keys=(CLIENT_KEY,))
    assert (await ask(app, "/readyz", method="GET"))[:2] == (200, b'{"status":"ready"}')
    assert network.requests == []


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("streamtool.core.clients.hmac.compare_digest", compare)
    app = Proxy(Settings(client_keys=("first", "second", "third")))
    app._check_key({"headers": [(b"authorization", b"Bearer first")]})
    assert compared == [(b"first", b"first"), (b"first", b"second"), (b"first", b"third")]


# --- our key for the upstream

ECHOES: dict[str, tuple[int, list[tuple[str, str]], list[bytes]]] = {
    "refused": (401, [("content-type", "application/json")], [b'{"error":{"message":"bad key %s"}}' % KEY.encode()]),
    "forbidden": (403, [], [b'{"error":{"message":"no right: %s"}}' % KEY.encode()]),
    "invalid": (400, [], [b'{"error":{"message":"what is %s?","type":"invalid_request_error"}}' % KEY.encode()]),
    "broken": (500, [], [b"<title>Error with %s</title>" % KEY.encode()]),
    "in two pieces": (429, [], [b'{"error":{"message":"slow down, sk-upstream-01234', b'56789abcdef"}}']),
    "in headers": (200, [("x-request-id", KEY), ("openai-organization", f"org {KEY}")], list(text("ok").steps)),  # type: ignore[dict-item]  # all bytes
    "in the stream": (200, [], [event({"error": {"message": f"lost {KEY}", "code": 500}})]),
    "behind text": (200, [], [chunk({"content": "ok"}), event({"error": {"message": f"lost {KEY}", "type": "x"}})]),
    "by the model": (200, [], list(text(f"It is {KEY}.", size=99).steps)),  # type: ignore[dict-item]  # all bytes
}


@both
@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_key_echoed_by_an_upstream_is_redacted_everywhere(
    client: str, echo: str, tools: bool, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    code, headers, steps = ECHOES[echo]
    records: list[Record] = []
    network = Network(lambda _: (code, headers, steps))
    settings = Settings(upstreams={"up": {"url": "http://up.test", "key": KEY}})
    app = Proxy(settings, transport=network, on_exchange=records.append)
    got, body, told = await ask(app, PATHS[client], asked(client, tools=tools))
    assert network.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert got == {401: 502, 403: 502}.get(code, got)
    for said in (body.decode(), str(told), caplog.text, repr(records), repr(app.settings)):
        assert KEY not in said
    if echo not in ("refused", "forbidden") and tools:
        assert "[key]" in body.decode() + str(told)


@both
async def test_a_short_key_is_not_redacted():
    network = Network(lambda _: (200, [], list(text("I am ollama.", size=99).steps)))
    app = Proxy(Settings(upstreams={"up": {"url": "http://up.test", "key": "ollama"}}), transport=network)
    assert b"I am ollama." in (await ask(app, body=asked()))[1]


@both
async def test_authorization_in_upstream_headers_is_not_passed_to_the_client():
    echoed = [(name, "secret") for name in ("authorization", "x-api-key", "proxy-authorization", "set-cookie")]
    app, _ = keyed(lambda _: (200, echoed, list(text("ok").steps)))
    for tools in (True, False):
        _, _, headers = await ask(app, body=asked(tools=tools))
        assert "secret" not in str(headers)


def test_settings_never_show_a_key(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setenv("CLIENT_KEY", CLIENT_KEY)
    config = 'client_keys = ["env:CLIENT_KEY"]\n[upstream.up]\nurl = "http://127.0.0.1:9"\nkey = "env:THE_KEY"\n'
    (tmp_path / "s.toml").write_text(config)
    settings = load(config, {"THE_KEY": KEY, "CLIENT_KEY": CLIENT_KEY})
    assert settings.upstreams["up"].key == KEY
    assert settings.client_keys == {"key 1": CLIENT_KEY}
    assert main(["serve", "--check", "--config", str(tmp_path / "s.toml")]) == 0
    shown = repr(settings) + str(settings) + "".join(capsys.readouterr())
    assert "127.0.0.1:9" in shown
    assert KEY not in shown
    assert CLIENT_KEY not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        'client_keys = [["sk-client-fedcba9876543210"]]',
        'client_keys = {a = ["sk-client-fedcba9876543210"]}',
        'client_keys = {a = "sk-client-fedcba9876543210", b = "sk-client-fedcba9876543210"}',
        'client_keys = "sk-client-fedcba9876543210"',
        '[upstream.up]\nurl = "http://h"\nkey = ["sk-client-fedcba9876543210"]',
        '[upstream.up]\nurl = "http://user:sk-client-fedcba9876543210@h"',
        '[upstream.up]\nurl = "h://user:sk-client-fedcba9876543210@h"',
        '[upstream.up]\nurl = "http://h"\nkey = "sk-client-fedcba9876543210"\nkeys = "sk-client-fedcba9876543210"',
    ],
)
def test_a_settings_error_never_shows_a_key(wrong: str):
    with pytest.raises(SettingsError) as caught:
        load(wrong)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert CLIENT_KEY not in shown


# --- request smuggling


@pytest.fixture(scope="module")
def upstream() -> ScriptedUpstream:
    """Return the upstream of both servers."""
    return ScriptedUpstream(text("Hello."))


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn"])
def server(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[Served]:
    """Yield the proxy over a socket, with its upstream over another one."""
    with uvicorn_server(upstream) as behind:
        settings = Settings(
            upstreams={"up": {"url": behind.url, "key": KEY}},
            passthrough=("/v1/embeddings",),
            client_keys=(CLIENT_KEY,),
        )
        serve = uvicorn_server if request.param == "uvicorn" else hypercorn_server
        with serve(Proxy(settings)) as served:
            yield served


def raw(server: Served, data: bytes) -> bytes:
    """Return the response to these bytes until the server closes, or until half a second of silence."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as client:
        client.sendall(data)
        said = b""
        try:
            while piece := client.recv(65536):
                said += piece
                client.settimeout(0.3)
        except TimeoutError:
            pass
        return said


def statuses(said: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", said)]


AUTH = b"authorization: Bearer " + CLIENT_KEY.encode() + b"\r\n"
BODY = asked(tools=False, stream=False)
HIDDEN = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n" + AUTH + b"content-length: 2\r\n\r\n{}"


def http(target: bytes, headers: bytes, body: bytes = b"", method: bytes = b"POST") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + AUTH + headers + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


SMUGGLED = {
    "two lengths": http(b"/v1/chat/completions", b"content-length: 4\r\ncontent-length: 90\r\n", BODY),
    "a list of lengths": http(b"/v1/chat/completions", b"content-length: 4, 90\r\n", BODY),
    "a length with a sign": http(b"/v1/chat/completions", b"content-length: +4\r\n", BODY),
    "a length and chunks": http(
        b"/v1/chat/completions",
        b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % len(BODY),
        chunked(BODY) + HIDDEN,
    ),
    "unknown encoding": http(b"/v1/chat/completions", b"transfer-encoding: xchunked\r\n", chunked(BODY)),
    "a return in a value": http(b"/v1/chat/completions", b"x-a: b\rtransfer-encoding: chunked\r\n", HIDDEN),
    "a zero in a value": http(b"/v1/chat/completions", b"traceparent: a\x00b\r\n", HIDDEN),
    "a folded line": http(b"/v1/chat/completions", b"x-a: b\r\n content-length: 2\r\n", HIDDEN),
    "a blank in a name": http(b"/v1/chat/completions", b"content-length : 2\r\n", HIDDEN),
    "a name of nothing": http(b"/v1/chat/completions", b": 2\r\n", HIDDEN),
}


@pytest.mark.parametrize("attempt", SMUGGLED)
def test_a_smuggled_request_reaches_no_upstream(attempt: str, server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    said = raw(server, SMUGGLED[attempt])
    assert all(code in (200, 400, 401, 411, 501) for code in statuses(said))
    assert [sent.path for sent in upstream.requests] in ([], [CHAT])
    assert KEY.encode() not in said


TARGETS = {
    b"//v1/chat/completions": 404,
    b"/v1//chat/completions": 404,
    b"/v1/chat/completions/": 404,
    b"/v1/chat/completions%00": 404,
    b"/v1/chat/completions;a=b": 404,
    b"/v1/../v1/embeddings": 404,
    b"/v1/%2e%2e/api/delete": 404,
    b"/v1/embeddings/..%2fapi": 404,
    b"/v1/models/..%2f..%2fapi%2ftags": 404,
    b"/v1/models/%00": 404,
    b"/V1/embeddings": 404,
    b"/v1%5cembeddings": 404,
    b"/api/delete": 404,
}


@pytest.mark.parametrize("target", TARGETS, ids=bytes.decode)
def test_only_exact_paths_are_served(target: bytes, server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    method = b"GET" if b"models" in target else b"POST"
    said = raw(
        server,
        http(target, b"content-length: 2\r\n" if method == b"POST" else b"", b"{}"[: 2 * (method == b"POST")], method),
    )
    assert statuses(said) in ([TARGETS[target]], [400], [502])
    assert {sent.path for sent in upstream.requests} <= {"/v1/models"}


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"FOO"])
def test_only_post_is_allowed(method: bytes, server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    for path in PATHS.values():
        assert statuses(raw(server, http(path.encode(), b"", method=method))) in ([405], [400])
    assert upstream.requests == []


def test_only_the_settings_determine_the_address_of_the_upstream(server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    body = json.dumps({"model": "m", "input": "x"}).encode()
    headers = (
        b"forwarded: host=evil.test\r\nx-forwarded-host: evil.test\r\nx-forwarded-for: 6.6.6.6\r\n"
        b"x-forwarded-proto: https\r\nx-original-url: /api/delete\r\nx-rewrite-url: /api/delete\r\n"
        b"x-http-method-override: DELETE\r\nx-streamtool-mode: native\r\nx-streamtool-upstream: http://evil.test\r\n"
        b"te: trailers\r\nupgrade: h2c\r\nproxy-authorization: Basic eA==\r\nproxy-connection: keep-alive\r\n"
        b"keep-alive: 5\r\ncookie: a=b\r\nx-api-key: theirs\r\nx-goog-api-key: theirs\r\ntraceparent: 00-1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n"
    )
    for target in (b"/v1/embeddings", b"/v1/chat/completions"):
        raw(server, http(target, headers % len(body), body))
    [sent] = [each for each in upstream.requests if each.path == "/v1/embeddings"]
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["host"].startswith("127.0.0.1:")
    assert set(sent.headers) == {
        *("host", "content-length", "content-type", "authorization", "accept-encoding", "traceparent"),
        "x-streamtool-via",
    }


def test_an_absolute_request_target_does_not_change_the_upstream(server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    length = b"content-length: %d\r\n" % len(BODY)
    for target in (b"http://evil.test/v1/chat/completions", b"http://evil.test/api/delete", b"evil.test:80"):
        codes = statuses(raw(server, http(target, length, BODY)))
        assert codes in ([200], [400], [404])
    assert {sent.path for sent in upstream.requests} <= {CHAT}
    assert all(sent.headers["host"].startswith("127.0.0.1:") for sent in upstream.requests)


def test_a_wrong_key_over_a_socket(server: Served, upstream: ScriptedUpstream):
    upstream.requests.clear()
    for path in PATHS.values():
        wrong = http(path.encode(), b"content-length: 2\r\n", b"{}").replace(CLIENT_KEY.encode(), b"sk-wrong")
        said = raw(server, wrong)
        assert statuses(said) == [401]
        assert b"the key is missing or wrong" in said
    assert upstream.requests == []


@both
async def test_overrides_in_headers_apply_only_if_allowed():
    headers = [JSON, (b"x-streamtool-mode", b"native"), (b"x-streamtool-format", b"react")]
    for allowed, mode, format_ in ((False, "emulate", "invoke"), (True, "native", "react")):
        records: list[Record] = []
        app = Proxy(Settings(allow_overrides=allowed), on_exchange=records.append)
        await ask(app, body=asked(), headers=headers)
        assert (records[0].mode, records[0].format) == (mode, format_)


@pytest.mark.parametrize("command", typer.main.get_command(cli).commands.values(), ids=lambda command: command.name)  # type: ignore[attr-defined]
def test_a_key_is_never_a_flag(command: click.Command):
    """Flags appear in lists of processes."""
    for option in command.params:
        if "key" in (option.name or ""):
            assert (option.name, option.metavar) == ("key_env", "NAME")
        assert not {"token", "secret", "password"} & {*(option.name or "").split("_")}


@pytest.mark.parametrize("serving", [uvicorn_server, hypercorn_server])
def test_a_key_in_the_query_is_moved_to_a_header(serving: Callable[..., Any], caplog: pytest.LogCaptureFixture):
    """Gemini clients send it there; it reaches neither the log nor, as one of our keys, the upstream."""
    caplog.set_level(logging.DEBUG)
    upstream = ScriptedUpstream(reply_of("gemini", "Hello."))
    body = json.dumps(write("gemini", Ask((("user", "Hi"),)))).encode()
    with uvicorn_server(upstream) as behind:
        upstreams = {"up": {"url": behind.url, "protocol": "gemini", "key": KEY}}
        settings = Settings(upstreams=upstreams, client_keys=(CLIENT_KEY,), debug=True)  # type: ignore[arg-type]  # attrs converts it
        with serving(Proxy(settings)) as served:
            for key, status in ((CLIENT_KEY, 200), (CLIENT_KEY[:-1], 401)):
                target = f"{PATHS['gemini']}&key={key}".encode()
                given = http(target, b"content-length: %d\r\n" % len(body), body)
                assert statuses(raw(served, given.replace(AUTH, b""))) == [status]
    [sent] = upstream.requests
    assert sent.scope["query_string"] == b"alt=sse"
    assert sent.headers["x-goog-api-key"] == KEY
    assert CLIENT_KEY not in str(sent.headers) + caplog.text


@pytest.mark.parametrize("serving", [uvicorn_server, hypercorn_server])
def test_cookies_of_an_upstream_are_not_stored(serving: Callable[..., Any]):
    script = text("Hello.")
    upstream = ScriptedUpstream(evolve(script, headers=(*script.headers, ("set-cookie", "a=b; Path=/"))))
    with (
        uvicorn_server(upstream) as behind,
        serving(Proxy(Settings(upstreams={"up": {"url": behind.url}}))) as served,  # type: ignore[dict-item]  # attrs converts it
    ):
        for tools in (True, False) * 2:
            answer = httpx.post(
                served.url + CHAT,
                content=asked(tools=tools),
                headers={"content-type": "application/json"},
                trust_env=False,
            )
            assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    assert [sent.headers.get("cookie") for sent in upstream.requests] == [None] * 4


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [(b"traceparent", b"a\r\nx-evil: 1"), (b"x-request-id", b"a\x00"), (b"openai-organization", b"\n")],
)
@pytest.mark.parametrize("tools", [True, False])
async def test_an_invalid_header_is_not_passed_on(name: bytes, value: bytes, tools: bool):
    upstream = RawUpstream()
    try:
        upstream.reset(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", dies=True)
        app = Proxy(Settings(upstreams={"up": {"url": upstream.url}}))
        code, body, _ = await ask(app, body=asked(tools=tools), headers=[JSON, (name, value)])
        assert code == 400
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert not upstream.said.is_set()
        await app.aclose()
    finally:
        upstream.close()


@pytest.mark.parametrize("serving", [uvicorn_server, hypercorn_server])
def test_network_logs_contain_no_key(caplog: pytest.LogCaptureFixture, serving: Callable[..., Any]):
    caplog.set_level(logging.DEBUG)
    for script in (text("Hello."), status(400, f"what is {KEY}?"), status(500, KEY)):
        with uvicorn_server(ScriptedUpstream(script)) as behind:
            settings = Settings(upstreams={"up": {"url": behind.url, "key": KEY}}, client_keys=(CLIENT_KEY,))
            with serving(Proxy(settings)) as served:
                for tools in (True, False):
                    body = asked(tools=tools)
                    said = raw(served, http(CHAT.encode(), b"content-length: %d\r\n" % len(body), body))
                    assert KEY.encode() not in said
    if serving is hypercorn_server:  # httpcore logs each step here
        assert "httpcore" in {record.name.partition(".")[0] for record in caplog.records}
    assert KEY not in caplog.text
    assert CLIENT_KEY not in caplog.text
