"""The inspector over HTTP: access control, what is served, and live updates."""

import json
from typing import Any

import anyio
import pytest
from support.inspected import CALL, ask, inspected, model

from streamtool.inspector.app import MAX_WATCHERS, PAGE
from streamtool.proxy import Proxy
from streamtool.testing import stream_asgi

both = pytest.mark.anyio
KEYS = {"client_keys": {"ann": "key-of-ann"}}
ANN = (b"authorization", b"Bearer key-of-ann")
FORWARDED = (
    b"forwarded", b"via", b"X-Forwarded-For", b"x-forwarded-host", b"x-real-ip", b"x-original-uri", b"x-nginx-proxy",
    b"fastly-client-ip", b"cf-visitor", b"x-envoy-attempt-count", b"x-varnish", b"client-ip", b"x-amzn-trace-id",
    b"cdn-loop", b"tailscale-user-login", b"ngrok-skip-browser-warning", b"x-anything",
)  # fmt: skip


async def get(
    app: Any, path: str, *headers: tuple[bytes, bytes], method: str = "GET", body: bytes = b"", **scope: Any
) -> Any:
    given = [(b"host", b"127.0.0.1:8700"), (b"content-type", b"application/json"), *headers]
    async with stream_asgi(app, path, method=method, body=body, headers=given, scope=scope) as reply:
        data = await reply.body()
        return reply.status, reply.headers, data


@both
async def test_the_page_contacts_no_other_host():
    app = inspected(model("ok"))
    for rest, (_, kind) in PAGE.items():
        status, headers, data = await get(app, f"/inspect/{rest}".rstrip("/"))
        assert (status, headers["content-type"]) == (200, kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert b"http://" not in data and b"https://" not in data
        assert b"innerHTML" not in data and b"insertAdjacentHTML" not in data and b"eval(" not in data


@both
async def test_the_page_cannot_be_framed_and_runs_only_its_own_script():
    app = inspected(model("ok"))
    for path in ("/inspect", "/inspect/main.js", "/inspect/exchanges"):
        _, headers, _ = await get(app, path)
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert (rules["frame-ancestors"], rules["script-src"], rules["connect-src"]) == ("'none'", "'self'", "'self'")
        assert headers["x-content-type-options"] == "nosniff"


@both
async def test_an_exchange_is_listed_and_shown():
    app = inspected(model(f"Let me look.\n{CALL}"))
    await ask(app)
    _, _, data = await get(app, "/inspect/exchanges")
    (one,) = json.loads(data)["exchanges"]
    assert (one["outcome"], one["calls"], one["found"]) == ("calls", 1, {"tool_call": 1})
    for part in ("", "/prompt", "/requests", "/bytes", "/case?parser=0", "/recording"):
        status, _, data = await get(app, f"/inspect/exchanges/1{part}")
        assert status == 200 and data
    assert (await get(app, "/inspect/exchanges/99"))[0] == 404
    assert (await get(app, "/inspect/nothing"))[0] == 404
    assert (await get(app, "/inspect/exchanges", method="POST"))[0] == 405


@both
async def test_with_keys_everything_but_the_page_requires_a_key():
    app = Proxy(apps={"sample": model("ok")}, inspect=True, contents=True, **KEYS)
    assert (await get(app, "/inspect"))[0] == 200
    assert (await get(app, "/inspect/exchanges"))[0] == 401
    assert (await get(app, "/inspect/exchanges", (b"authorization", b"Bearer wrong")))[0] == 401
    assert (await get(app, "/inspect/exchanges", ANN, client=("203.0.113.9", 1)))[0] == 200


@both
async def test_without_keys_only_local_clients_are_allowed():
    app = inspected(model("ok"))
    assert (await get(app, "/inspect/exchanges", client=("127.0.0.1", 1)))[0] == 200
    assert (await get(app, "/inspect/exchanges", client=("::1", 1)))[0] == 200
    for scope in ({"client": ("192.0.2.7", 1)}, {"client": None}, {"client": ("testclient", 1)}):
        assert (await get(app, "/inspect/exchanges", **scope))[0] == 403
    for name in FORWARDED:
        assert (await get(app, "/inspect/exchanges", (name, b"192.0.2.7")))[0] == 403
    for host in (b"127.0.0.1", b"localhost:8700", b"[::1]:8700", b"a.localhost"):
        assert await status_for_host(app, host) == 200
    for host in (
        *(b"tools.example", b"203.0.113.9:8700", b"localhost.example", b"", b"evil.example#.localhost"),
        *(b"[::1]evil.example", b"127.0.0.1.example", b"localhost:80:80", b"localhost/"),
    ):
        assert await status_for_host(app, host) in (403, 421)
    assert await status_for_host(app, None) == 403


async def status_for_host(app: Any, host: bytes | None) -> int:
    given = [] if host is None else [(b"host", host)]
    async with stream_asgi(app, "/inspect/exchanges", method="GET", headers=given) as reply:
        await reply.body()
        return reply.status


@both
async def test_a_setting_shows_it_to_everyone_without_keys():
    app = inspected(model("ok"), inspect_remote=True, hosts=("tools.example",))
    for scope in ({"client": ("192.0.2.7", 1)}, {"client": ("127.0.0.1", 1)}):
        assert (await get(app, "/inspect/exchanges", (b"x-real-ip", b"192.0.2.7"), **scope))[0] == 200
    assert await status_for_host(app, b"tools.example") == 200
    assert await status_for_host(app, b"evil.example") == 421


@both
async def test_pages_of_other_origins_are_rejected():
    app = inspected(model("ok"))
    async with stream_asgi(app, "/inspect/exchanges", method="GET", headers=[(b"host", b"evil.example")]) as reply:
        await reply.body()
        assert reply.status == 421, "a foreign name that resolves to this server"
    foreign = ((b"origin", b"http://evil.example"), (b"sec-fetch-site", b"cross-site"))
    assert (await get(app, "/inspect/parse", *foreign, method="POST", body=b'{"text": "x"}'))[0] == 403
    _, headers, _ = await get(app, "/inspect/exchanges", (b"origin", b"http://evil.example"))
    assert "access-control-allow-origin" not in headers


@both
async def test_without_contents_only_a_masked_timeline_is_shown():
    app = inspected(model(f"Secret.\n{CALL}"), contents=False)
    await ask(app)
    status, _, data = await get(app, "/inspect/exchanges/1")
    assert status == 200 and b"Secret" not in data and b"Paris" not in data
    for part in ("prompt", "requests", "bytes", "case", "recording"):
        status, _, data = await get(app, f"/inspect/exchanges/1/{part}")
        assert status == 403 and b"contents = true" in data


@both
async def test_nothing_is_served_when_disabled():
    app = Proxy(apps={"sample": model("ok")})
    assert (await get(app, "/inspect"))[0] == 404
    assert (await get(app, "/inspect/exchanges"))[0] == 404


@both
async def test_the_playground_answers():
    app = inspected(model("ok"))
    asked = {"text": CALL, "tools": None, "formats": [], "cut": 5}
    status, _, data = await get(app, "/inspect/parse", method="POST", body=json.dumps(asked).encode())
    (reply,) = json.loads(data)["replies"]
    assert status == 200 and reply["text"] == CALL
    assert [event["name"] for _, _, events in reply["sent"] for event in events if event["type"] == "call_start"] == [
        "get_weather"
    ]
    status, _, data = await get(app, "/inspect/parse", method="POST", body=b"{")
    assert status == 400 and b"JSON" in data


@pytest.mark.trio
async def test_a_watcher_receives_changes(autojump_clock):
    app = inspected(model(f"Let me look.\n{CALL}"))
    async with stream_asgi(app, "/inspect/events", method="GET", headers=[(b"host", b"localhost")]) as watched:
        first = json.loads((await anext(watched.chunks())).removeprefix(b"data: "))
        assert first == {"exchanges": [], "gone": [], "contents": True}
        await ask(app)
        told = json.loads((await anext(watched.chunks())).removeprefix(b"data: "))
        assert [one["outcome"] for one in told["exchanges"]] == ["calls"]
        assert await anext(watched.chunks()) == b": \n\n", "a comment keeps the connection alive"
    assert app.inspector._watchers == 0


@pytest.mark.trio
async def test_a_stopping_server_ends_the_streams_of_watchers(autojump_clock):
    app = inspected(model("ok"))
    async with stream_asgi(app, "/inspect/events", method="GET", headers=[(b"host", b"localhost")]) as watched:
        await anext(watched.chunks())
        await app.drain(0)
        with anyio.fail_after(5):
            await watched.finished.wait()


@pytest.mark.trio
async def test_watchers_are_limited(autojump_clock):
    app = inspected(model("ok"))
    app.inspector._watchers = MAX_WATCHERS
    assert (await get(app, "/inspect/events"))[0] == 503


@both
async def test_a_reload_keeps_the_exchanges():
    before = Proxy(apps={"sample": model(CALL)}, inspect=True, contents=True)
    await ask(before)
    after = Proxy(apps={"sample": model(CALL)}, inspect=True, contents=True)
    after.replace(before)
    await ask(after)
    _, _, data = await get(after, "/inspect/exchanges")
    assert [one["id"] for one in json.loads(data)["exchanges"]] == ["1", "2"]
