"""A connection to the store's SQLite file, which may fail at any time.

The file is opened when it is first used, and is opened again after a failure or if it was deleted or replaced. Any
thread may use the connection, but only one at a time. No operation waits longer than `TIMEOUT` for another thread, or
for a process that has locked the file. After a failure, the file is not accessed for the same length of time
(`outage`).
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar

from streamtool.core.errors import SettingsError
from streamtool.store.outage import TIMEOUT, Operation, Outage

_SCHEMA: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS age ON replies (until)",
    "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, until REAL NOT NULL, amount INTEGER NOT NULL)",
)
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a database file."""
_TICK: Final = 0.02
"""Seconds between attempts to open a file that another process is creating."""
_creation_lock: Final = threading.Lock()
"""A lock for creating a file. Closing a descriptor drops the locks that SQLite holds on the file in this process, so no
connection may be opened before the descriptor that created the file has been closed.
"""
_log = logging.getLogger("streamtool")

T = TypeVar("T")


class Database:
    """A connection for one kind of operation. `failed` is called with the operation after each failure."""

    def __init__(self, file: str, operation: Operation, failed: Callable[[Operation], object]) -> None:
        self._file = file
        self._outage = Outage(f'store.file: "{file}"', operation, failed)
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the open file."""

    def check(self) -> None:
        """Open and close the file. Raises SettingsError if it cannot be used."""
        end = monotonic() + TIMEOUT
        while True:
            try:
                self._connect().close()
            except (OSError, sqlite3.Error) as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY and monotonic() < end:
                    sleep(_TICK)  # another process is creating the file, and SQLite does not wait for that
                    continue
                raise SettingsError(
                    f'store.file: "{self._file}" cannot be used: {error}; specify another file', param="store.file"
                ) from None
            return

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in its own transaction and return its result. Raises StoreError."""
        outage = self._outage
        outage.check()
        if not self._lock.acquire(timeout=TIMEOUT):
            raise outage.record_failure(f"no response within {TIMEOUT:g} s")
        try:
            outage.check()
            with self._connection() as base:
                result = work(base)
            outage.record_success()
        except (OSError, sqlite3.Error) as error:
            self._disconnect()
            raise outage.record_failure(str(error)) from error
        finally:
            self._lock.release()
        return result

    def check_missing(self) -> None:
        """Raise StoreError if a value that was not found may still be written; see `Outage.check_missing`."""
        self._outage.check_missing()

    def resume(self) -> None:
        """Allow the next operation to access the file, even if the last failure was only a moment ago."""
        self._outage.resume()

    def close(self) -> None:
        """Close the connection, unless another thread keeps it busy for too long. The next operation opens it again."""
        if self._lock.acquire(timeout=TIMEOUT):
            self._disconnect()
            self._lock.release()

    def _connection(self) -> sqlite3.Connection:
        if self._open is not None and _identity(self._file) != self._identity:
            self._disconnect()
        if self._open is None:
            self._open = self._connect()
        return self._open

    def _connect(self) -> sqlite3.Connection:
        with _creation_lock:
            made = self._create_file()
        if made and self._identity is not None:
            _log.warning('store.file: "%s" was deleted; it is created again, without its contents', self._file)
        self._identity = _identity(self._file)
        uri = f"{Path(self._file).absolute().as_uri()}?mode=rw"  # only `_create_file` creates the file, with its mode
        base = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, check_same_thread=False)
        try:
            for statement in _SCHEMA:
                base.execute(statement)
        except BaseException:
            base.close()
            raise
        return base

    def _create_file(self) -> bool:
        """Create the file, readable by its owner only. Return False if it already exists."""
        beside = {self._file + ending: _identity(self._file + ending) for ending in _SIDE_FILES}
        try:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        for left, before in beside.items():  # left over from a file that was deleted without them
            if before is not None and _identity(left) == before:
                Path(left).unlink()
        return True

    def _disconnect(self) -> None:
        base, self._open = self._open, None
        if base is not None:
            with suppress(sqlite3.Error):
                base.close()


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
