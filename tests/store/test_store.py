"""The store of replies: bounded in bytes and time, separated by client, in memory or in a file."""

import gc
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.dialects import PATHS, Ask, said, write
from support.redis_server import places
from support.servers import wait_for

from streamtool import ToolMiddleware
from streamtool.core.errors import SettingsError
from streamtool.settings import StoreSettings
from streamtool.store.replies import Store, client_store_of, open_store
from streamtool.store.shared_store import SharedStore
from streamtool.testing import stream_asgi


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with places(tmp_path, request.param) as place:
        made = open_store(StoreSettings(**place, seconds=60, size=100), clock)
        yield made
        made.close()


def written(store: Store) -> None:
    """Wait until everything stored is in the file: closing writes it, and the next use opens the file again."""
    if isinstance(store, SharedStore):
        store.close()


def test_values_expire(store: Store, clock: Clock):
    store.put("a", b"1")
    clock.now += 59
    assert store.get("a") == b"1"
    clock.now += 1
    assert store.get("a") is None


def test_the_oldest_value_is_evicted_first(store: Store, clock: Clock):
    for name in "abc":
        store.put(name, b"x" * 40)
        written(store)
        clock.now += 1
    assert [store.get(name) for name in "abc"] == [None, b"x" * 40, b"x" * 40]
    store.put("b", b"y" * 50)
    written(store)
    assert (store.get("b"), store.get("c")) == (b"y" * 50, b"x" * 40)


def test_a_value_over_the_limit_is_not_stored(store: Store):
    store.put("a", b"x" * 101)
    assert store.get("a") is None


def test_clients_are_separated(store: Store):
    one = client_store_of(store, [(b"Authorization", b"Bearer 1")])
    two = client_store_of(store, [(b"x-api-key", b"2")])
    one.remember("resp_1", b"mine")
    assert one.recall("resp_1") == b"mine"
    assert two.recall("resp_1") is None
    two.remember("resp_1", b"theirs")
    assert one.recall("resp_1") == b"mine"
    assert client_store_of(store, []).recall("resp_1") is None


def test_a_file_outlives_the_process_and_is_private_to_its_owner(tmp_path: Path, clock: Clock):
    settings = StoreSettings(file=str(tmp_path / "replies.db"))
    first = open_store(settings, clock)
    first.put("a", b"1")
    first.close()
    assert first.get("a") == b"1"  # reopens the file
    first.close()
    second = open_store(settings, clock)
    assert second.get("a") == b"1"
    second.close()
    assert stat.S_IMODE((tmp_path / "replies.db").stat().st_mode) == 0o600


def test_an_unusable_file_is_reported(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"store\.file"):
        open_store(StoreSettings(file=str(tmp_path / "no" / "where.db")))
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 9)
    with pytest.raises(SettingsError, match=r"store\.file"):
        open_store(StoreSettings(file=str(tmp_path / "text")))


def test_a_file_is_bounded_without_being_measured_each_time(tmp_path: Path, clock: Clock):
    settings = StoreSettings(file=str(tmp_path / "replies.db"), size=16_000)
    one, other = open_store(settings, clock), open_store(settings, clock)
    for number in range(200):
        (one, other)[number % 2].put(f"a{number}", b"x" * 500)
        written((one, other)[number % 2])
        clock.now += 1
        there = [i for i in range(number + 1) if one.get(f"a{i}") is not None]
        assert there == list(range(there[0], number + 1))
        assert len(there) * 500 <= 16_000 * 1.125
    one.close()
    other.close()


def test_a_file_contains_a_digest_of_the_key_and_never_the_key(tmp_path: Path, clock: Clock):
    store = open_store(StoreSettings(file=str(tmp_path / "replies.db")), clock)
    client_store_of(store, [(b"authorization", b"Bearer sk-of-a-client-0123")]).remember("resp_1", b"a reply")
    store.close()
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"a reply" in found
    assert b"sk-of-a-client" not in found


def test_the_mode_of_an_existing_file_is_kept(tmp_path: Path, clock: Clock):
    file = tmp_path / "replies.db"
    file.touch(mode=0o640)
    file.chmod(0o640)
    store = open_store(StoreSettings(file=str(file)), clock)
    store.put("a", b"1")
    store.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_the_files_next_to_the_file_are_private_too(tmp_path: Path, clock: Clock):
    old = os.umask(0)
    try:
        store = open_store(StoreSettings(file=str(tmp_path / "replies.db")), clock)
        store.put("a", b"1")
        wait_for(lambda: len(list(tmp_path.iterdir())) == 3, "it is written")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(old)
    assert modes == {f"replies.db{ending}": 0o600 for ending in ("", "-wal", "-shm")}


def test_expired_values_are_deleted_from_the_file_when_the_next_one_is_stored(tmp_path: Path, clock: Clock):
    file = tmp_path / "replies.db"
    store = open_store(StoreSettings(file=str(file), seconds=60), clock)
    for name in "ab":
        store.put(name, b"1")
        store.close()
        clock.now += 61
        with closing(sqlite3.connect(file)) as base:
            assert [key for (key,) in base.execute("SELECT key FROM replies")] == [name]
    store.close()


def test_a_store_without_space_stores_nothing(clock: Clock):
    store = open_store(StoreSettings(size=0), clock)
    store.put("a", b"1")
    assert store.get("a") is None
    store.close()


FLOWER = "tulip"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a search of all objects takes seconds
async def test_without_a_store_nothing_of_a_conversation_is_kept(caplog: pytest.LogCaptureFixture):
    """All strings of the process are searched for its words, which no constant of the test contains."""
    word, answered = f"{FLOWER}-asked", f"{FLOWER}-answered"
    app = ToolMiddleware(SpokenOnce(answered), app_protocol="chat", store=StoreSettings(size=0))
    ask = Ask((("user", word),), (("ping", "Pings.", {"type": "object"}),))
    async with stream_asgi(
        app, PATHS["responses"], body=json.dumps({**write("responses", ask), "store": True}).encode()
    ) as reply:
        assert answered.encode() in await reply.body()
        await reply.finished.wait()
    del ask, reply, word, answered
    caplog.clear()
    assert holders("-a") == set()


def holders(ending: str) -> set[type]:
    """Return the types of all objects that contain a string or bytes with this word. No cell may contain it here."""
    gc.collect()
    word, every, found = FLOWER + ending, gc.get_objects(), set()
    if is_in(every, word):
        for holder in every:
            if is_in([holder], word):
                found.add(type(holder))
    return found


def is_in(holders: list[Any], word: str) -> bool:
    encoded = word.encode()
    for one in gc.get_referents(*holders):
        if (type(one) is str and word in one) or (type(one) is bytes and encoded in one):
            return True
    return False


class SpokenOnce:
    """An upstream that gives one reply and forgets it."""

    def __init__(self, words: str) -> None:
        self.steps = said("chat", words).steps

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        steps, self.steps = self.steps, ()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"".join(steps)})
