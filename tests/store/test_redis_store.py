"""The store on a Redis server: bounded, separated by client and shared by processes; a failure never fails a reply."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from support.redis_server import Server, redis_server
from support.servers import Served, hypercorn_server, uvicorn_server, wait_for
from support.stored_replies import ask, served_by

from streamtool import Proxy, ToolTransport, sample
from streamtool.core.errors import SettingsError, StoreError
from streamtool.settings import StoreSettings, load
from streamtool.store.capabilities import CapabilityCache
from streamtool.store.replies import Store, open_store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with redis_server(tmp_path) as running:
        yield running


def opened(server: Server, clock: Any = lambda: 1000.0, **settings: Any) -> Store:
    return open_store(StoreSettings(redis=server.url, **settings), clock)


# --- bounds


def test_the_largest_client_loses_its_oldest_values_whichever_process_stored_them(server: Server):
    now = [1000.0]
    one, other = (opened(server, lambda: now[0], size=1000) for _ in range(2))
    one.put("quiet a", b"x" * 300)
    one.close()
    for number in range(20):
        now[0] += 1
        store = (one, other)[number % 2]
        store.put(f"loud r{number}", b"y" * 100)
        store.close()
    assert one.get("quiet a") == b"x" * 300
    found = [number for number in range(20) if other.get(f"loud r{number}") is not None]
    assert found == list(range(13, 20))
    assert server.client.get("streamtool:total") == b"1000"
    one.close()
    other.close()


def test_replaced_deleted_and_expired_values_are_not_counted(server: Server):
    now = [1000.0]
    store = opened(server, lambda: now[0], size=1000, seconds=60)
    for _ in range(5):
        store.put("c a", b"x" * 100)
        store.put("c b", b"x" * 50)
        store.close()
    assert server.client.get("streamtool:total") == b"150"
    store.forget("c b")
    assert store.get("c b") is None
    store.close()
    assert (store.get("c a"), store.get("c b")) == (b"x" * 100, None)
    assert server.client.get("streamtool:total") == b"100"
    now[0] += 60
    store.put("c d", b"x")
    store.close()
    assert server.client.get("streamtool:total") == b"1"
    assert server.client.keys("streamtool:c *") == [b"streamtool:c d"]
    store.close()


def test_every_key_in_redis_expires(server: Server):
    store = opened(server, seconds=60)
    store.put("c a", b"x")
    store.close()
    lives = {name: server.client.ttl(name) for name in server.client.keys("*")}
    assert len(lives) == 5
    assert all(0 < life <= 120 for life in lives.values())


# --- sharing


def test_processes_share_learned_capabilities(server: Server):
    now = [1000.0]
    stores = [opened(server, lambda: now[0]) for _ in range(2)]
    one, other = (CapabilityCache(lambda: now[0], shared=("ours",), store=store) for store in stores)
    one.learn("c", "theirs", "m", "tools")
    one.learn("c", "ours", "m", "tools")
    stores[0].close()
    assert [other.lacks(client, "theirs", "m", "tools") for client in ("c", "d")] == [True, False]
    assert [other.lacks(client, "ours", "m", "tools") for client in ("c", "d")] == [True, True]
    one.forget("c", "theirs", "m", "tools")
    stores[0].close()
    assert not other.lacks("c", "theirs", "m", "tools")
    now[0] += 600
    assert not other.lacks("c", "ours", "m", "tools")
    for store in stores:
        store.close()


def test_two_processes_continue_each_others_conversations(server: Server):
    variables = {"STREAMTOOL_STORE__REDIS": server.url}
    with served_by(variables) as one, served_by(variables) as other:
        last = ask(one).json()["id"]
        for there in (other, one, other):
            answers = [ask(there, previous_response_id=last)]

            def found(there: Served = there, answers: list[httpx.Response] = answers, last: str = last) -> bool:
                answers.append(ask(there, previous_response_id=last))
                return answers[-1].is_success

            wait_for(lambda found=found: found(), "the other process finds the reply")
            last = answers[-1].json()["id"]


# --- failures


def test_an_unavailable_server_disables_the_store_until_it_is_back(server: Server, caplog: pytest.LogCaptureFixture):
    failed: list[str] = []
    store = open_store(StoreSettings(redis=server.url), failed=failed.append)
    server.stop()
    store.put("c a", b"1")
    assert store.get("c a") == b"1"
    with pytest.raises(StoreError, match="try again"):
        store.get("c b")
    wait_for(lambda: "write" in failed, "writing fails")
    server.start()

    def back() -> bool:
        with suppress(StoreError):
            return store.get("c b") is None
        return False

    wait_for(back, "it answers again")
    wait_for(lambda: back() and server.client.exists("streamtool:c a"), "the pending value is written")
    wait_for(lambda: len(caplog.records) == 4, "both outages and their ends are logged")
    place = re.escape(f'store.redis: "{server.url}"')
    told = [record.getMessage() for record in caplog.records]
    assert re.match(f"{place} cannot be (read|written): .+; meanwhile ", told[0])
    assert sum(text.endswith("again") for text in told) == 2
    store.close()


def test_pending_values_are_written_when_the_server_is_back(server: Server):
    """Without another use of the store. Meanwhile, a process that lacks a value cannot know that it does not exist."""
    one, other = (open_store(StoreSettings(redis=server.url)) for _ in range(2))
    server.stop()
    one.put("c a", b"1")
    found: list[bytes | None] = []

    def read() -> bool:
        try:
            found.append(other.get("c a"))
        except StoreError:
            return False
        return True

    assert not read()
    server.start()
    wait_for(lambda: server.client.exists("streamtool:c a"), "the pending value is written")
    wait_for(read, "the other process finds the value")
    assert found == [b"1"]
    wait_for(lambda: settled(other), "a missing value is reported as missing again")
    for store in (one, other):
        store.close()


def test_a_process_that_did_not_notice_an_outage_reports_no_value_as_missing_too_early(
    server: Server, caplog: pytest.LogCaptureFixture
):
    """The value of another process may still be on its way."""
    one, other = (open_store(StoreSettings(redis=server.url)) for _ in range(2))
    assert other.get("c a") is None
    server.stop()
    one.put("c a", b"1")
    wait_for(lambda: "cannot be written" in caplog.text, "its write fails")
    server.start()
    found: list[bytes | None] = []
    wait_for(lambda: tried(other, found), "the value is found")
    assert found == [b"1"]
    assert "cannot be read" not in caplog.text
    for store in (one, other):
        store.close()


def test_more_connections_are_no_sign_of_an_outage(server: Server):
    store = open_store(StoreSettings(redis=server.url))
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda number: store.get(f"c {number}"), range(64))] == [None] * 64
    store.close()


def tried(store: Store, found: list[bytes | None]) -> bool:
    """Read a value and add it to `found`. Return False if the store is unavailable."""
    with suppress(StoreError):
        found.append(store.get("c a"))
    return bool(found)


def settled(store: Store) -> bool:
    """Return whether a value that does not exist is reported as missing."""
    with suppress(StoreError):
        return store.get("c missing") is None
    return False


@pytest.mark.parametrize("serve", [uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def test_an_unavailable_server_fails_no_reply(serve: Any, server: Server):
    with serve(Proxy(store=StoreSettings(redis=server.url))) as served:
        first = ask(served).json()["id"]
        wait_for(lambda: ask(served, previous_response_id=first).is_success, "the reply is found")
        wait_for(lambda: len(server.client.keys("streamtool:ages:*")) == 1, "it is written")
        wait_for(lambda: any(first.encode() in key for key in server.client.keys("*")), "it is written")
        server.stop()
        assert ask(served).status_code == 200
        refused = ask(served, previous_response_id=first)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")


def test_an_unresponsive_server_is_waited_for_only_once():
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SettingsError, match=r"store\.redis: .* cannot be used: "):
            open_store(StoreSettings(redis=f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}/0"))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_transport_shares_the_store(backend: str, server: Server):
    async def ask(previous: str | None) -> str:
        transport = ToolTransport(httpx.ASGITransport(sample.app), store=StoreSettings(redis=server.url))
        async with httpx.AsyncClient(transport=transport, base_url="http://up.test") as client:
            body = {"model": "sample", "input": "Hello.", "previous_response_id": previous}
            answer = await client.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["id"])

    async def main() -> None:
        await ask(await ask(None))

    anyio.run(main, backend=backend)


# --- settings


def test_the_password_is_never_shown(caplog: pytest.LogCaptureFixture):
    url = "redis://:secret@127.0.0.1:1/0"
    with pytest.raises(SettingsError) as raised:
        open_store(StoreSettings(redis=url))
    assert str(raised.value).startswith('store.redis: "redis://127.0.0.1:1/0" cannot be used: ')
    assert "secret" not in str(raised.value) + caplog.text + repr(StoreSettings(redis=url))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('redis = "http://h"', "store.redis: expected a redis, rediss or unix url"),
        ('redis = "redis://h"\nfile = "f"', "store: set either file or redis"),
    ],
)
def test_contradictory_settings_are_reported(text: str, says: str):
    with pytest.raises(SettingsError, match=re.escape(says)):
        load(f"[store]\n{text}")
