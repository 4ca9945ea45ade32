"""The store's file fails: it is locked, deleted, read-only, full or no database. That costs no reply and no time.

Nothing is made up: the errors are those of SQLite and of the system.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from servers import wait_for

from streamtool.errors import SettingsError, StoreError
from streamtool.proxy import Proxy
from streamtool.settings import StoreSettings
from streamtool.state.file_store import FileStore
from streamtool.state.replies import Shelf

RESPONSES = "/v1/responses"
LOCK = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("PRAGMA locking_mode=EXCLUSIVE")
base.execute("BEGIN EXCLUSIVE")
base.execute("CREATE TABLE held (x)")
print("locked", flush=True)
sys.stdin.read()
"""
"""Another process that lets nobody read or write until its input ends."""


class Failing:
    """A store in a file, and how often each operation has failed."""

    def __init__(self, file: Path, size: int = 1_000_000) -> None:
        self.failed: list[str] = []
        self.file = file
        self.store = FileStore(StoreSettings(file=str(file), size=size), failed=self.failed.append)

    def finds(self, key: str) -> bytes | None:
        """What is found in the store, or nothing."""
        return Shelf(self.store, "client").recall(key)

    def put(self, key: str, value: bytes) -> None:
        Shelf(self.store, "client").remember(key, value)

    def holds(self, key: str) -> bool:
        """Whether the file has this value by now."""
        try:
            with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as base:
                return base.execute("SELECT 1 FROM replies WHERE key = ?", (f"client {key}",)).fetchone() is not None
        except sqlite3.Error:
            return False


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Failing]:
    (tmp_path / "folder").mkdir()
    failing = Failing(tmp_path / "folder" / "replies.db")
    yield failing
    failing.store.close()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process holds the file for itself alone."""
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        yield
        process.stdin.close()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "streamtool"]


# --- another process holds the file


def test_a_value_is_found_while_the_file_cannot_be_written_and_written_when_it_can(
    made: Failing, caplog: pytest.LogCaptureFixture
):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        made.put("b", b"2")
        assert (made.finds("a"), made.finds("b")) == (b"1", b"2")
        wait_for(lambda: "write" in made.failed, "writing fails")
        assert (made.finds("a"), made.finds("b")) == (b"1", b"2")
        other.execute("ROLLBACK")
    wait_for(lambda: made.finds("b") and made.holds("b"), "b is written at a later use")
    wait_for(lambda: len(messages(caplog)) == 2, "the log tells of both")
    assert messages(caplog) == [
        f'store.file: "{made.file}" fails to write: database is locked; meanwhile what is to be remembered waits in memory',
        f'store.file: "{made.file}" works again to write',
    ]
    assert set(made.failed) == {"write"}


def test_who_asks_much_of_a_file_that_fails_waits_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = Failing(tmp_path / "replies.db")
    with locked(made.file):
        assert [made.finds(f"r{number}") for number in range(200)] == [None] * 200
        with pytest.raises(StoreError, match="try again"):
            made.store.get("client r")
    assert set(made.failed) == {"read"}
    assert len(made.failed) >= 201
    assert len(messages(caplog)) == 1
    wait_for(lambda: made.finds("r") is None and not made.store._reader._failing, "it works again")
    assert messages(caplog)[-1] == f'store.file: "{made.file}" works again to read'
    made.store.close()


def test_what_waits_is_written_when_the_store_is_closed(made: Failing):
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        made.put("a", b"1")
        wait_for(lambda: "write" in made.failed, "writing fails")
        other.execute("ROLLBACK")
    made.store.close()
    assert made.holds("a")


def test_closing_ends_though_the_file_is_locked_and_says_what_is_lost(made: Failing, caplog: pytest.LogCaptureFixture):
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        made.put("a", b"1")
        made.store.close()
        other.execute("ROLLBACK")
    assert messages(caplog)[-1] == f'store.file: "{made.file}" lacks 1 values, which were not written'


def test_what_waits_is_bounded_and_each_client_has_its_share(made: Failing, caplog: pytest.LogCaptureFixture):
    small = FileStore(StoreSettings(file=str(made.file), size=1000), failed=made.failed.append)
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        small.put("quiet a", b"x" * 300)
        for number in range(100):
            small.put(f"loud r{number}", b"y" * 100)
        assert small.get("quiet a") == b"x" * 300
        assert small.get("loud r99") == b"y" * 100
        other.execute("ROLLBACK")
    assert "write" in made.failed
    assert any(text.endswith("meanwhile what is to be remembered waits in memory") for text in messages(caplog))
    small.close()


# --- the file is deleted, replaced, read-only, no database


def test_a_file_that_is_deleted_is_made_anew(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    for file in made.file.parent.iterdir():
        file.unlink()
    wait_for(lambda: made.finds("a") is None, "the loss is noticed")
    made.put("b", b"2")
    wait_for(lambda: made.holds("b"), "b is written")
    assert made.finds("b") == b"2"
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert messages(caplog) == [f'store.file: "{made.file}" was deleted; it is made anew, without what it held']
    assert made.failed == []


def test_what_is_left_of_a_file_that_is_deleted_does_no_harm(made: Failing):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    assert made.finds("a") == b"1"
    made.file.unlink()
    assert sorted(file.name for file in made.file.parent.iterdir()) == ["replies.db-shm", "replies.db-wal"]
    wait_for(lambda: made.finds("a") is None, "the loss is noticed")
    made.put("b", b"2")
    wait_for(lambda: made.holds("b"), "b is written")
    made.store.close()
    assert (made.finds("a"), made.finds("b")) == (None, b"2")


def test_a_folder_that_is_deleted_costs_the_feature_until_it_is_back(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    assert made.finds("a") == b"1"
    shutil.rmtree(made.file.parent)
    wait_for(lambda: made.finds("a") is None and "read" in made.failed, "the loss is noticed")
    made.put("b", b"2")
    assert made.finds("b") == b"2"
    made.file.parent.mkdir()
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")
    wait_for(lambda: made.finds("c") is None and not made.store._reader._failing, "reading works again")
    assert any("fails to read: [Errno 2]" in text for text in messages(caplog))


def test_a_file_that_is_replaced_is_read(made: Failing, tmp_path: Path):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    other = Failing(tmp_path / "other.db")
    other.put("b", b"2")
    other.store.close()
    made.store.close()
    assert made.finds("a") == b"1"
    other.file.replace(made.file)
    wait_for(lambda: made.finds("b") == b"2", "the other file is read")


def test_a_table_that_is_gone_is_made_anew(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    with closing(sqlite3.connect(made.file)) as base:
        base.execute("DROP TABLE replies")
    made.put("b", b"2")
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")
    assert any("no such table: replies" in text for text in messages(caplog))


def test_a_file_that_is_no_database_costs_the_feature_until_it_is_deleted(
    made: Failing, caplog: pytest.LogCaptureFixture
):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    made.store.close()
    made.file.write_bytes(b"no database" * 1000)
    assert made.finds("a") is None
    made.put("b", b"2")
    wait_for(lambda: "write" in made.failed, "writing fails")
    assert made.finds("b") == b"2"
    assert sum("file is not a database" in text for text in messages(caplog)) == 2  # to read, to write
    made.file.unlink()
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")


def test_a_file_that_is_no_database_at_the_start_is_a_settings_error(tmp_path: Path):
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 9)
    with pytest.raises(SettingsError) as caught:
        Proxy(store=StoreSettings(file=str(tmp_path / "text")))
    assert caught.value.message == (
        f'store.file: "{tmp_path / "text"}" cannot be used: file is not a database; '
        "name a file that can be written, or none yet"
    )


CHILD = """
import os, resource, sys, time
from pathlib import Path
from streamtool.settings import StoreSettings
from streamtool.state.file_store import FileStore
from streamtool.proxy import Proxy

failed = []
file = Path(sys.argv[1])

def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, failed
        time.sleep(0.01)
"""
READ_ONLY = (
    CHILD
    + """
if os.getuid() == 0:
    os.setuid(65534)
store = FileStore(StoreSettings(file=str(file)), failed=failed.append)
store.put("client a", b"1")
store.close()
file.chmod(0o444)
file.parent.chmod(0o555)
until(lambda: (store.put("client b", b"2"), "write" in failed)[1])
assert store.get("client b") == b"2"
file.parent.chmod(0o755)
file.chmod(0o600)
store.close()
assert store.get("client a") == b"1" and store.get("client b") == b"2"
store.close()
"""
)
FULL = (
    CHILD
    + """
store = FileStore(StoreSettings(file=str(file), size=4_000_000), failed=failed.append)
store.put("client a", b"1")
store.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
store.put("client b", os.urandom(300_000))
until(lambda: "write" in failed)
assert store.get("client a") == b"1" and len(store.get("client b")) == 300_000
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.close()
assert store.get("client a") == b"1" and len(store.get("client b")) == 300_000
store.close()
"""
)


@pytest.mark.parametrize(("script", "error"), [(READ_ONLY, "readonly database"), (FULL, "full|disk I/O error")])
def test_a_file_that_cannot_grow_or_be_written_costs_the_feature_for_a_while(script: str, error: str):
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", script, f"{folder}/replies.db"], capture_output=True, text=True, check=False
        )
        os.chmod(folder, 0o700)  # noqa: PTH101
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert len(re.findall(f"fails to write: .*(?:{error})", done.stderr)) == 1, done.stderr
