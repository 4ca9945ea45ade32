"""Failures of the store's file: locked, deleted, read-only, full or not a database. They cost no reply and no time.

The errors are real ones, from SQLite and the operating system.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import httpx
import openai
import pytest
from support.servers import Served, hypercorn_server, uvicorn_server, wait_for
from support.stored_replies import RESPONSES, ask, served_by

from streamtool import ToolTransport, sample
from streamtool.core.errors import SettingsError, StoreError
from streamtool.proxy import Proxy
from streamtool.settings import StoreSettings
from streamtool.store import database
from streamtool.store.replies import ClientStoreView, open_store
from streamtool.store.shared_store import SharedStore

LOCK = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("PRAGMA locking_mode=EXCLUSIVE")
base.execute("BEGIN EXCLUSIVE")
base.execute("CREATE TABLE held (x)")
print("locked", flush=True)
sys.stdin.read()
"""
"""Another process that locks the file until its input ends."""


class Failing:
    """A store in a file, with counts of the failed operations."""

    def __init__(self, file: Path, size: int = 1_000_000) -> None:
        self.failed: list[str] = []
        self.file = file
        self.store = open_store(StoreSettings(file=str(file), size=size), failed=self.failed.append)

    def finds(self, key: str) -> bytes | None:
        """Return the value in the store, or None."""
        return ClientStoreView(self.store, "client").recall(key)

    def put(self, key: str, value: bytes) -> None:
        ClientStoreView(self.store, "client").remember(key, value)

    def holds(self, key: str) -> bool:
        """Return whether the file contains this value by now."""
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
    """Lock the file exclusively from another process."""
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


def test_a_value_is_found_while_the_file_is_locked_and_written_afterwards(
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
    wait_for(lambda: len(messages(caplog)) == 2, "both are logged")
    assert messages(caplog) == [
        f'store.file: "{made.file}" cannot be written: database is locked; meanwhile new entries wait in memory',
        f'store.file: "{made.file}" can be written again',
    ]
    assert set(made.failed) == {"write"}


def test_repeated_reads_of_a_failing_file_wait_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = Failing(tmp_path / "replies.db")
    with locked(made.file):
        assert [made.finds(f"r{number}") for number in range(200)] == [None] * 200
        with pytest.raises(StoreError, match="try again"):
            made.store.get("client r")
    assert set(made.failed) == {"read"}
    assert len(made.failed) >= 201
    assert len(messages(caplog)) == 1
    again = f'store.file: "{made.file}" can be read again'
    wait_for(lambda: made.finds("r") is None and messages(caplog)[-1] == again, "it works again")
    made.store.close()


def test_pending_values_are_written_when_the_store_is_closed(made: Failing):
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        made.put("a", b"1")
        wait_for(lambda: "write" in made.failed, "writing fails")
        other.execute("ROLLBACK")
    made.store.close()
    assert made.holds("a")


def test_pending_values_are_written_when_a_process_exits_without_closing(tmp_path: Path):
    file = tmp_path / "replies.db"
    script = (
        CHILD
        + """
store = open_store(StoreSettings(file=str(file)), failed=failed.append)
for number in range(100):
    store.put(f"client r{number}", b"x" * 10_000)
"""
    )
    subprocess.run([sys.executable, "-c", script, str(file)], check=True)
    with closing(sqlite3.connect(file)) as base:
        assert base.execute("SELECT count(*) FROM replies").fetchone() == (100,)


def test_closing_with_a_locked_file_returns_and_reports_lost_values(made: Failing, caplog: pytest.LogCaptureFixture):
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        made.put("a", b"1")
        made.store.close()
        other.execute("ROLLBACK")
    assert messages(caplog)[-1] == f'store.file: "{made.file}": 1 values could not be written'


def test_pending_values_are_bounded_and_each_client_has_its_share(made: Failing, caplog: pytest.LogCaptureFixture):
    small = open_store(StoreSettings(file=str(made.file), size=1000), failed=made.failed.append)
    with closing(sqlite3.connect(made.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        small.put("quiet a", b"x" * 300)
        for number in range(100):
            small.put(f"loud r{number}", b"y" * 100)
        assert small.get("quiet a") == b"x" * 300
        assert small.get("loud r99") == b"y" * 100
        other.execute("ROLLBACK")
    assert "write" in made.failed
    slow = f'store.file: "{made.file}" is too slow: the write queue is full'
    assert messages(caplog).count(slow) == 1
    small.close()


# --- the file is deleted, replaced, read-only, not a database


def test_a_deleted_file_is_created_again(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    for file in made.file.parent.iterdir():
        file.unlink()
    wait_for(lambda: made.finds("a") is None, "the loss is noticed")
    made.put("b", b"2")
    wait_for(lambda: made.holds("b"), "b is written")
    assert made.finds("b") == b"2"
    assert made.file.stat().st_mode & 0o777 == 0o600
    assert messages(caplog) == [f'store.file: "{made.file}" was deleted; it is created again, without its contents']
    assert made.failed == []


def test_remnants_of_a_deleted_file_are_harmless(made: Failing):
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


def test_a_deleted_folder_disables_the_store_until_it_is_back(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.holds("a"), "a is written")
    assert made.finds("a") == b"1"
    shutil.rmtree(made.file.parent)
    wait_for(lambda: made.finds("a") is None and "read" in made.failed, "the loss is noticed")
    made.put("b", b"2")
    assert made.finds("b") == b"2"
    made.file.parent.mkdir()
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")
    again = f'store.file: "{made.file}" can be read again'
    wait_for(lambda: made.finds("c") is None and again in messages(caplog), "reading works again")
    assert any("cannot be read: [Errno 2]" in text for text in messages(caplog))


def test_a_replaced_file_is_read(made: Failing, tmp_path: Path):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    other = Failing(tmp_path / "other.db")
    other.put("b", b"2")
    other.store.close()
    made.store.close()
    assert made.finds("a") == b"1"
    other.file.replace(made.file)
    wait_for(lambda: made.finds("b") == b"2", "the other file is read")


def test_a_dropped_table_is_created_again(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    with closing(sqlite3.connect(made.file)) as base:
        base.execute("DROP TABLE replies")
    made.put("b", b"2")
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")
    assert any("no such table: replies" in text for text in messages(caplog))


def test_an_invalid_file_disables_the_store_until_it_is_deleted(made: Failing, caplog: pytest.LogCaptureFixture):
    made.put("a", b"1")
    wait_for(lambda: made.finds("a") and made.holds("a"), "a is written")
    made.store.close()
    made.file.write_bytes(b"no database" * 1000)
    assert made.finds("a") is None
    made.put("b", b"2")
    wait_for(lambda: "write" in made.failed, "writing fails")
    assert made.finds("b") == b"2"
    assert sum("file is not a database" in text for text in messages(caplog)) == 2  # one for reading, one for writing
    made.file.unlink()
    wait_for(lambda: made.finds("b") == b"2" and made.holds("b"), "b is written")


def test_an_invalid_file_at_startup_is_a_settings_error(tmp_path: Path):
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 9)
    with pytest.raises(SettingsError) as caught:
        Proxy(store=StoreSettings(file=str(tmp_path / "text")))
    assert caught.value.message == (
        f'store.file: "{tmp_path / "text"}" cannot be used: file is not a database; specify another file'
    )


CHILD = """
import os, resource, sys, time
from pathlib import Path
from streamtool.settings import StoreSettings
from streamtool.proxy import Proxy
from streamtool.store.replies import open_store

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
store = open_store(StoreSettings(file=str(file)), failed=failed.append)
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
store = open_store(StoreSettings(file=str(file), size=4_000_000), failed=failed.append)
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
def test_a_full_or_read_only_file_disables_writing_for_a_while(script: str, error: str):
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", script, f"{folder}/replies.db"], capture_output=True, text=True, check=False
        )
        os.chmod(folder, 0o700)  # noqa: PTH101
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert len(re.findall(f"cannot be written: .*(?:{error})", done.stderr)) == 1, done.stderr


# --- over sockets


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Serve a proxy with its store in this file on a real server."""
    with ExitStack() as stack:
        yield lambda file: stack.enter_context(request.param(Proxy(store=StoreSettings(file=str(file)), metrics=True)))


def get(served: Served, path: str) -> str:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.get(served.url + path).raise_for_status().text


def holds(file: Path, id: str) -> bool:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as base:
        return base.execute("SELECT 1 FROM replies WHERE key LIKE ?", (f"% {id}",)).fetchone() is not None


def test_while_another_process_locks_the_file_replies_are_sent_and_stored(serve: Any, tmp_path: Path):
    file = tmp_path / "replies.db"
    served = serve(file)
    first = ask(served).json()["id"]
    wait_for(lambda: holds(file, first), "the first reply is written")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        second = ask(served, previous_response_id=first)
        third = ask(served, previous_response_id=second.json()["id"])
        assert (second.status_code, third.status_code) == (200, 200)
        assert get(served, "/healthz") == '{"status":"ok"}'
        assert not holds(file, third.json()["id"])
        other.execute("ROLLBACK")
    wait_for(lambda: ask(served).is_success and holds(file, third.json()["id"]), "all is written")


def test_while_one_request_waits_for_the_file_others_are_answered(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database, "TIMEOUT", 50.0)  # longer than the test may take
    file = tmp_path / "replies.db"
    first = ask(serve(file)).json()["id"]
    wait_for(lambda: holds(file, first), "the first reply is written")
    served = serve(file)  # its connections are not open yet
    copy = tmp_path / "held.db"
    with closing(sqlite3.connect(file)) as base, closing(sqlite3.connect(copy)) as other:
        base.backup(other)
    copy.replace(file)
    answers: list[httpx.Response] = []
    with locked(file):
        thread = Thread(target=lambda: answers.append(ask(served, previous_response_id=first)))
        thread.start()
        for _ in range(3):
            assert get(served, "/healthz") == '{"status":"ok"}'
        assert ask(served).status_code == 200
        assert not answers
    thread.join()
    assert [answer.status_code for answer in answers] == [200]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_while_a_transport_waits_for_the_file_its_loop_keeps_running(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database, "TIMEOUT", 50.0)
    file = tmp_path / "replies.db"
    transport = ToolTransport(httpx.ASGITransport(sample.app), store=StoreSettings(file=str(file)))
    answers: list[httpx.Response] = []

    async def ask(client: httpx.AsyncClient) -> None:
        body = {"model": "sample", "input": "Hello.", "previous_response_id": "resp_unknown"}
        answers.append(await client.post(RESPONSES, json=body))

    async def main() -> None:
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://up.test") as client,
            anyio.create_task_group() as tasks,
        ):
            with locked(file):
                tasks.start_soon(ask, client)
                for _ in range(5):
                    await anyio.sleep(0.01)
                assert not answers

    anyio.run(main, backend=backend)
    assert [answer.json()["error"]["code"] for answer in answers] == ["previous_response_not_found"]


def test_an_earlier_reply_that_cannot_be_read_is_unavailable_not_unknown(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "replies.db"
    served = serve(file)
    first = ask(served).json()["id"]
    wait_for(lambda: holds(file, first), "the first reply is written")
    (tmp_path / "text").write_bytes(b"no database" * 1000)
    (tmp_path / "text").replace(file)
    with openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model="sample", input="Hello.", previous_response_id=first)
        body = caught.value.body
        assert (caught.value.status_code, body["code"]) == (503, "store_unavailable")
        assert body["message"] == "earlier replies cannot be read at the moment: try again"
        assert client.responses.create(model="sample", input="Hello.").status == "completed"
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "tool_calls": calls}]
    turns.append({"role": "tool", "tool_call_id": "call_1", "content": "x"})
    with httpx.Client(trust_env=False) as client:
        history = client.post(f"{served.url}/v1/chat/completions", json={"model": "sample", "messages": turns})
    assert history.status_code == 200
    for operation in ("read", "write"):
        told = f'\nstreamtool_store_failures_total{{operation="{operation}"}} '
        wait_for(lambda told=told: told in get(served, "/metrics"), f"a {operation} has failed")
    assert "a request (responses) was rejected with 503" in caplog.text
    file.unlink()
    wait_for(lambda: ask(served, previous_response_id=first).status_code != 503, "the file is created again")
    unknown = ask(served, previous_response_id=first)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
    second = ask(served).json()["id"]
    assert ask(served, previous_response_id=second).status_code == 200


# --- two processes on one file


def test_two_processes_see_each_others_replies_even_after_the_file_was_deleted(tmp_path: Path):
    file = tmp_path / "replies.db"

    def finds(there: Served, here: Served) -> bool:
        id = ask(here).json()["id"]
        return any(ask(there, previous_response_id=id).status_code == 200 for _ in range(20))

    variables = {"STREAMTOOL_STORE__FILE": str(file)}
    with served_by(variables) as one, served_by(variables) as other:
        for gone in ([], ["replies.db"], ["replies.db", "replies.db-wal", "replies.db-shm"]):
            for name in gone:
                (tmp_path / name).unlink()
            for here, there in ((one, other), (other, one)):
                wait_for(lambda there=there, here=here: finds(there, here), f"a reply is found, without {gone}")


def test_two_processes_on_one_file_both_respect_its_bounds(tmp_path: Path):
    file = tmp_path / "replies.db"
    command = [sys.executable, "-c", FILL, str(file)]
    running = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in ("one", "two")]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    with closing(sqlite3.connect(file)) as base:
        rows = base.execute(
            "SELECT substr(key, 1, 3), count(*), sum(length(value)) FROM replies GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert [client for client, _, _ in rows] == ["one", "two"]
    assert all(count >= 20 for _, count, _ in rows)
    assert sum(size for _, _, size in rows) <= 16_000 * 1.125 + 2 * 5_000


FILL = (
    CHILD
    + """
name = sys.argv[2]
store = open_store(StoreSettings(file=str(file), size=16_000), failed=failed.append)
for number in range(400):
    store.put(f"{name} r{number}", b"x" * 100)
    if number % 10 == 9:
        store.close()
store.close()
until(lambda: store.get(f"{name} r399") is not None)
store.close()
"""
)


class Unwritable:
    """A backend that cannot be written."""

    place = "store"

    def __init__(self) -> None:
        self.writes = 0

    def read(self, key: str, now: float, /) -> bytes | None:
        return None

    def write(self, entries: Any, now: float, /) -> None:
        self.writes += 1
        raise StoreError("no", code="store_unavailable")

    def count(self, key: str, amount: int, now: float, seconds: float, /) -> int:
        return 0

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def test_an_outage_takes_one_thread_and_ends_with_the_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamtool.store.shared_store.RETRY", 0.01)
    backend, before = Unwritable(), threading.active_count()
    store = SharedStore(StoreSettings(), backend)
    for n in range(200):
        store.put(f"c {n}", b"1")
        store.get(f"c {n}")
    assert threading.active_count() <= before + 2  # the writer, and the timer of the next attempt
    tried = backend.writes
    wait_for(lambda: backend.writes > tried, "it is tried again")
    store.close()
    wait_for(lambda: threading.active_count() <= before, "all threads have ended")
    written = backend.writes
    time.sleep(0.05)
    assert backend.writes == written
