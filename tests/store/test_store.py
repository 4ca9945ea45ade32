"""The store of replies: bounded in bytes and time, separated by client, in memory or in a file."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.redis_server import places

from streamtool.core.errors import SettingsError
from streamtool.settings import StoreSettings
from streamtool.store.replies import Store, client_store_of, open_store
from streamtool.store.shared_store import SharedStore


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
