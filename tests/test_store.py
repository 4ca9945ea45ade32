"""What is remembered of replies: bounded in bytes and time, apart for each client, in memory or in a file."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import places

from streamtool.errors import SettingsError
from streamtool.settings import StoreSettings
from streamtool.state.replies import Store, open_store, shelf
from streamtool.state.shared_store import SharedStore


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
    """Wait until all that was put stands in the file: closing writes it, and the next use opens the file again."""
    if isinstance(store, SharedStore):
        store.close()


def test_what_was_put_is_there_for_a_time(store: Store, clock: Clock):
    store.put("a", b"1")
    clock.now += 59
    assert store.get("a") == b"1"
    clock.now += 1
    assert store.get("a") is None


def test_the_oldest_goes_first(store: Store, clock: Clock):
    for name in "abc":
        store.put(name, b"x" * 40)
        written(store)
        clock.now += 1
    assert [store.get(name) for name in "abc"] == [None, b"x" * 40, b"x" * 40]
    store.put("b", b"y" * 50)
    written(store)
    assert (store.get("b"), store.get("c")) == (b"y" * 50, b"x" * 40)


def test_what_is_too_large_is_not_kept(store: Store):
    store.put("a", b"x" * 101)
    assert store.get("a") is None


def test_clients_are_apart(store: Store):
    one = shelf(store, [(b"Authorization", b"Bearer 1")])
    two = shelf(store, [(b"x-api-key", b"2")])
    one.remember("resp_1", b"mine")
    assert one.recall("resp_1") == b"mine"
    assert two.recall("resp_1") is None
    two.remember("resp_1", b"theirs")
    assert one.recall("resp_1") == b"mine"
    assert shelf(store, []).recall("resp_1") is None


def test_a_file_outlives_the_process_and_is_the_owners(tmp_path: Path, clock: Clock):
    settings = StoreSettings(file=str(tmp_path / "replies.db"))
    first = open_store(settings, clock)
    first.put("a", b"1")
    first.close()
    assert first.get("a") == b"1"  # opened again
    first.close()
    second = open_store(settings, clock)
    assert second.get("a") == b"1"
    second.close()
    assert stat.S_IMODE((tmp_path / "replies.db").stat().st_mode) == 0o600


def test_a_file_that_cannot_be_used_is_said(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"store\.file"):
        open_store(StoreSettings(file=str(tmp_path / "no" / "where.db")))
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 9)
    with pytest.raises(SettingsError, match=r"store\.file"):
        open_store(StoreSettings(file=str(tmp_path / "text")))


def test_a_file_is_bounded_though_it_is_not_measured_each_time(tmp_path: Path, clock: Clock):
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
