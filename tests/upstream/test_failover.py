"""Fallback upstreams: another one is asked before the first byte, never after it."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import pytest
import trio
from attrs import evolve
from support.dialects import chat, said
from support.failing_upstreams import TOOL, failing, good, settings, to_openai
from support.network import JSON, Network, request
from support.servers import RawUpstream, Served, http_stream, hypercorn_server, uvicorn_server

from streamtool.core.errors import SettingsError
from streamtool.proxy import Proxy
from streamtool.settings import CircuitSettings, load
from streamtool.testing import Script, ScriptedUpstream, stream_asgi
from streamtool.upstream.circuit import Circuit

SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server}
PATH = "/v1/chat/completions"

both = pytest.mark.anyio
virtual = pytest.mark.trio


def to_anthropic(url: str, *, stream: bool) -> tuple[str, int]:
    tool: Any = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
    ask: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    with anthropic.Anthropic(
        base_url=url, api_key="x", max_retries=0, http_client=httpx2.Client(trust_env=False)
    ) as client:
        if stream:
            with client.messages.stream(**ask) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**ask)
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, sum(block.type == "tool_use" for block in message.content)


@pytest.fixture
def raw() -> Iterator[RawUpstream]:
    upstream = RawUpstream()
    yield upstream
    upstream.close()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("ask", [to_openai, to_anthropic])
@pytest.mark.parametrize("fault", ["refuses", "429", "503", "500", "hangs", "half a header", "no first byte"])
def test_a_fallback_is_asked_if_the_first_upstream_fails(
    server: str, ask: Callable[..., tuple[str, int]], fault: str, raw: RawUpstream
):
    with ExitStack() as stack:
        second = good()
        other = stack.enter_context(uvicorn_server(second)).url
        match fault:
            case "refuses":
                first = "http://127.0.0.1:9"
            case "hangs" | "half a header" | "no first byte":
                first = raw.url
                scripts = {"half a header": b"HTTP/1.1 200 OK\r\n", "no first byte": http_stream(b"")}
                raw.reset(scripts.get(fault, b""), dies=fault != "hangs")
            case status:
                first = stack.enter_context(uvicorn_server(failing(int(status)))).url
        proxy: Served = stack.enter_context(SERVERS[server](Proxy(settings(first, other))))
        assert ask(proxy.url, stream=True) == ("good", 1)
        assert ask(proxy.url, stream=False) == ("good", 1)
        assert second.asked == 2


@pytest.mark.parametrize("server", SERVERS)
def test_no_fallback_is_asked_after_the_first_byte(server: str, raw: RawUpstream):
    second = good()
    raw.reset(http_stream(chat(["Half"], "stop")[0] + chat(["Half"], "stop")[1]), dies=True)
    with (
        uvicorn_server(second) as other,
        SERVERS[server](Proxy(settings(raw.url, other.url))) as proxy,
        pytest.raises((openai.APIError, httpx.TransportError)),
    ):
        to_openai(proxy.url, stream=True)
    assert second.asked == 0


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_client_errors_are_returned_without_a_fallback(status: int):
    first, second = failing(status), good()
    with (
        uvicorn_server(first) as one,
        uvicorn_server(second) as other,
        uvicorn_server(Proxy(settings(one.url, other.url))) as proxy,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            to_openai(proxy.url, stream=True)
        assert refused.value.status_code == status
    assert second.asked == 0


def test_the_last_error_reaches_the_client():
    with (
        uvicorn_server(failing(503)) as one,
        uvicorn_server(failing(429)) as other,
        uvicorn_server(Proxy(settings(one.url, other.url))) as proxy,
    ):
        with pytest.raises(openai.RateLimitError) as refused:
            to_openai(proxy.url, stream=True)
        assert refused.value.response.headers["retry-after"] == "7"


def test_an_upstream_that_fails_repeatedly_is_skipped():
    first, second = failing(503), good()
    with (
        uvicorn_server(first) as one,
        uvicorn_server(second) as other,
        uvicorn_server(Proxy(settings(one.url, other.url, more="circuit.failures = 2"))) as proxy,
    ):
        for _ in range(6):
            assert to_openai(proxy.url, stream=True) == ("good", 1)
        ready = httpx.get(f"{proxy.url}/readyz", trust_env=False)
        assert (ready.status_code, ready.json()["upstreams"]) == (200, {"u0": "failing", "u1": "ok"})
    assert (first.asked, second.asked) == (2, 6)


def test_requests_are_spread_by_weight():
    first, second = good("one"), good("two")
    with (
        uvicorn_server(first) as one,
        uvicorn_server(second) as other,
        uvicorn_server(Proxy(settings(one.url, other.url, more="balance = true\nweight = 3"))) as proxy,
    ):
        for _ in range(60):
            to_openai(proxy.url, stream=True)
    assert first.asked > second.asked > 0


def test_the_states_of_a_circuit():
    now = 0.0
    circuit = Circuit(CircuitSettings(failures=2, seconds=10.0), lambda: now)
    assert not circuit.record_failure()
    assert circuit.admits
    assert circuit.record_failure()
    assert (circuit.state, circuit.admits) == ("failing", False)
    now = 10.0
    assert circuit.admits
    circuit.record_attempt()
    assert not circuit.admits  # a single trial request
    assert not circuit.record_failure()
    now = 20.0
    assert circuit.admits
    assert circuit.record_success()
    assert (circuit.state, circuit.admits, circuit.record_success()) == ("ok", True, False)


@pytest.mark.trio
async def test_health_checks(autojump_clock: trio.testing.MockClock):
    first, second = failing(503), good()
    text = """chat_template = "none"
[upstream.a]
url = "http://a"
fallbacks = ["b"]
health = "/health"
[upstream.b]
url = "http://b"
health = "/health"
health_seconds = 5
"""
    proxy = Proxy(load(text, {}, {}), apps={"a": first, "b": second})

    async def ready() -> tuple[int, Any]:
        return proxy._readiness()

    async with proxy.running():
        await trio.sleep(1)
        assert await ready() == (200, {"status": "ready", "upstreams": {"a": "unhealthy", "b": "ok"}})
        first.status = 200
        await trio.sleep(10)
        assert await ready() == (200, {"status": "ready", "upstreams": {"a": "ok", "b": "ok"}})


@pytest.mark.trio
async def test_readiness_fails_without_a_healthy_upstream(autojump_clock: trio.testing.MockClock):
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep_forever()

    proxy = Proxy(load('[upstream.a]\nurl = "http://a"\nhealth = "/health"', {}, {}), apps={"a": silent})
    async with proxy.running():
        await trio.sleep(11)
        assert proxy._readiness()[0] == 503


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('["c"]', '"c" is not the name of another upstream'),
        ('["a"]', "is not the name of another upstream"),
        ('["b"]', "speaks messages"),
    ],
)
def test_invalid_fallbacks_are_rejected(more: str, told: str):
    text = f'[upstream.a]\nurl = "http://a"\nfallbacks = {more}\n[upstream.b]\nurl = "http://b"\nprotocol = "messages"'
    with pytest.raises(SettingsError, match=told):
        load(text, {}, {})


# --- how results are counted


class Scripted:
    """An upstream that gives the next of these answers to each request: a status, or pieces of a stream.

    After the pieces, it waits until the caller disconnects.
    """

    def __init__(self, *answers: int | list[bytes]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, int):
            await send({"type": "http.response.start", "status": answer, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for piece in answer:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass


def states(url: str) -> dict[str, str]:
    """Return the states of the upstreams."""
    return httpx.get(f"{url}/readyz", trust_env=False).json()["upstreams"]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_of_the_last_upstream_counts(server: str, stream: bool):
    """The caller cancels a request as soon as it has an error response."""
    with (
        uvicorn_server(failing(503)) as one,
        uvicorn_server(failing(429)) as other,
        SERVERS[server](Proxy(settings(one.url, other.url, more="circuit.failures = 2"))) as proxy,
    ):
        for _ in range(2):
            with pytest.raises(openai.RateLimitError):
                to_openai(proxy.url, stream=stream)
        assert states(proxy.url) == {"u0": "failing", "u1": "ok"}  # the second has the default of five
        for _ in range(3):
            with pytest.raises(openai.APIStatusError):
                to_openai(proxy.url, stream=stream)
        assert states(proxy.url) == {"u0": "failing", "u1": "failing"}


@pytest.mark.parametrize("server", SERVERS)
def test_a_reply_that_the_rules_cut_is_a_success(server: str):
    """Failures open a circuit only if they follow one another."""
    first = Scripted(503, chat(["One. Two. Three."], "stop")[:2])
    first.answers *= 4
    with (
        uvicorn_server(first) as one,
        uvicorn_server(good()) as other,
        SERVERS[server](Proxy(settings(one.url, other.url, more="circuit.failures = 2"))) as proxy,
        openai.OpenAI(
            base_url=f"{proxy.url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False)
        ) as client,
    ):
        for expected in ("good", "One. ") * 4:
            reply = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], tools=[TOOL], stop=["Two"]
            )
            assert reply.choices[0].message.content == expected
            assert states(proxy.url) == {"u0": "ok", "u1": "ok"}
    assert first.asked == 8


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("key", ["a%0d", "a%0a", "a%00", "a%01", "a%7f", "a%0d%0ax-other:%20b"])
def test_a_header_that_cannot_be_sent_is_the_clients_error(server: str, key: str):
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    upstream = good()
    with (
        uvicorn_server(upstream) as one,
        uvicorn_server(good()) as other,
        SERVERS[server](Proxy(settings(one.url, other.url))) as proxy,
    ):
        for method in ("generateContent", "streamGenerateContent"):
            for _ in range(3):
                url = f"{proxy.url}/v1beta/models/m:{method}?key={key}"
                reply = httpx.post(url, json=body, trust_env=False)
                assert (reply.status_code, reply.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert states(proxy.url) == {"u0": "ok", "u1": "ok"}
        assert upstream.asked == 0
        assert httpx.post(f"{proxy.url}/v1beta/models/m:generateContent", json=body, trust_env=False).status_code == 200


@pytest.mark.parametrize("server", SERVERS)
def test_an_upstream_with_an_open_circuit_is_asked_if_all_others_fail(server: str):
    first, second = failing(503), failing(200)
    with (
        uvicorn_server(first) as one,
        uvicorn_server(second) as other,
        SERVERS[server](Proxy(settings(one.url, other.url, more="circuit.failures = 1"))) as proxy,
    ):
        second.status = 503
        with pytest.raises(openai.APIStatusError):
            to_openai(proxy.url, stream=True)
        assert states(proxy.url) == {"u0": "failing", "u1": "ok"}
        first.status, asked = 400, first.asked  # it is back, and rejects the request
        with pytest.raises(openai.BadRequestError):
            to_openai(proxy.url, stream=True)
        assert first.asked == asked + 1


# --- in one process


def between(first: Any, second: Any, more: str = "") -> Proxy:
    """Return a proxy in front of two apps. The second is the fallback of the first."""
    return Proxy(settings("http://one.test", "http://two.test", more=more), apps={"u0": first, "u1": second})


async def asked(app: Any, path: str = PATH) -> tuple[int, bytes]:
    """Return the status and the body of a reply."""
    async with stream_asgi(app, path, body=request(), headers=(JSON,)) as reply:
        return await reply.head(), await reply.body()


@both
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
async def test_a_failing_status_is_hidden_by_the_fallback(status: int):
    first, second = failing(status), good()
    code, body = await asked(between(first, second))
    assert (code, b"good" in body, first.asked, second.asked) == (200, True, 1, 1)


@both
async def test_a_web_page_in_place_of_a_reply_is_hidden_by_the_fallback():
    page = Script((b"\n<html><title>Sign in</title></html>",), content_type="text/html")
    pieces = evolve(page, steps=(b"\n", b" \r\n", *page.steps))
    for script in (page, evolve(page, content_type="text/event-stream"), pieces):
        first, second = ScriptedUpstream(script), good()
        proxy = between(first, second)
        code, body = await asked(proxy)
        assert (code, b"good" in body, len(first.requests), second.asked) == (200, True, 1, 1)
        code, body = await asked(between(ScriptedUpstream(script), ScriptedUpstream(script)))
        assert (code, b"Sign in" in body) == (502, True)


@both
async def test_blank_lines_may_precede_a_reply():
    blank = (b"\n", b" " * 5000, b"\n")
    for pieces in (blank[:1], blank):
        reply = said("chat", "good")
        status, body = await asked(between(ScriptedUpstream(evolve(reply, steps=(*pieces, *reply.steps))), good()))
        assert (status, b"good" in body) == (200, True)


@both
async def test_an_empty_reply_is_hidden_by_the_fallback():
    first, second = ScriptedUpstream(said("chat", "")), ScriptedUpstream(said("chat", "good"))
    proxy = between(first, second)
    tools = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]
    body = json.dumps({**json.loads(request()), "tools": tools}).encode()
    async with stream_asgi(proxy, PATH, body=body, headers=(JSON,)) as reply:
        assert (await reply.head(), b"good" in await reply.body()) == (200, True)
    assert (len(first.requests), len(second.requests)) == (1, 1)


@virtual
async def test_each_fallback_has_its_own_key_and_timeout(autojump_clock: trio.testing.MockClock):
    network = Network(lambda _: ("late", 100, []))
    text = """chat_template = "none"
keepalive = 60
[upstream.a]
url = "http://a.test"
key = "key-of-a"
fallbacks = ["b"]
timeout = {first_byte = 3}
[upstream.b]
url = "http://b.test"
key = "key-of-b"
timeout = {first_byte = 7}
"""
    began = trio.current_time()
    assert (await asked(Proxy(load(text, {}, {}), transport=network)))[0] == 504
    assert 10 <= trio.current_time() - began < 14
    shown = [(one.url.host, one.headers["authorization"]) for one in network.requests]
    assert shown == [("a.test", "Bearer key-of-a"), ("b.test", "Bearer key-of-b")]


@both
async def test_with_balance_the_others_are_tried_if_the_chosen_one_fails():
    first, second = failing(503), good()
    proxy = between(first, second, "balance = true\ncircuit.failures = 1000")
    for _ in range(40):
        assert (await asked(proxy))[0] == 200
    assert 0 < first.asked < 40
    assert second.asked == 40


@both
async def test_a_client_that_leaves_does_not_count_as_a_failure():
    """Its reply had begun, so it is a success: failures before and after it are not in a row."""
    first = Scripted(503, chat(["One."], "stop")[:2])
    first.answers *= 4
    proxy = between(first, good(), "circuit.failures = 2")
    for _ in range(4):
        assert (await asked(proxy))[0] == 200
        async with stream_asgi(proxy, PATH, body=request(), headers=(JSON,)) as reply:
            await anext(reply)
            reply.disconnect()
            await reply.finished.wait()
        assert proxy.circuits["u0"].state == "ok"
    assert first.asked == 8


@virtual
async def test_an_unhealthy_upstream_gets_no_requests(autojump_clock: trio.testing.MockClock):
    """Any status outside 200 to 299 is unhealthy, and so is silence. If all others fail, it is asked after all."""

    class Checked:
        """An upstream whose health differs from its replies; None: it does not answer health checks."""

        def __init__(self, status: int | None) -> None:
            self.status = status
            self.serves = good()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"] != "/health":
                await self.serves(scope, receive, send)
            elif self.status is None:
                await anyio.sleep_forever()
            else:
                await send({"type": "http.response.start", "status": self.status, "headers": []})
                await send({"type": "http.response.body", "body": b""})

    for status in (None, 302, 404, 503):
        first, second = Checked(status), good()
        proxy = between(first, second, 'health = "/health"')
        async with proxy.running():
            await trio.sleep(10.5)
            assert proxy._readiness()[1]["upstreams"] == {"u0": "unhealthy", "u1": "ok"}
            for _ in range(3):
                assert (await asked(proxy))[0] == 200
            assert (first.serves.asked, second.asked) == (0, 3)
            first.status = 204
            await trio.sleep(20)
            await asked(proxy)
            assert first.serves.asked == 1
    first, second = Checked(503), failing(503)
    proxy = between(first, second, 'health = "/health"')
    async with proxy.running():
        await trio.sleep(1)
        assert (await asked(proxy))[0] == 200
        assert (first.serves.asked, second.asked) == (1, 1)


@both
async def test_failures_and_changes_of_state_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="streamtool")
    first = failing(503)
    proxy = between(first, failing(503), "circuit = {failures = 2, seconds = 0.001}")
    for _ in range(2):
        await asked(proxy)
    first.status = 400  # a reply, although an error
    await anyio.sleep(0.002)
    await asked(proxy)
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith("upstream u0")]
    assert told == [
        "upstream u0: it responded with status 503",
        "upstream u0: it responded with status 503",
        "upstream u0: skipped for 0.001 seconds after repeated failures",
        "upstream u0: responding again",
    ]


def test_an_abandoned_attempt_keeps_the_circuit_open():
    """A client that leaves must not send the next one to an upstream that hangs."""
    now = 0.0
    circuit = Circuit(CircuitSettings(failures=1, seconds=10.0), lambda: now)
    circuit.record_failure()
    now = 11.0
    circuit.record_attempt()
    assert not circuit.admits
    now = 20.9
    assert not circuit.admits
    now = 21.0
    assert circuit.admits
