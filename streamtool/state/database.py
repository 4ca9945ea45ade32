"""A connection to the SQLite file of the store, which may fail at any time.

It is opened at its first use, and anew after a failure or when the file was deleted or replaced. Any thread may use it,
one at a time. Nothing waits longer than `SECONDS` for another thread, or for a process that holds the file; then the
file is left alone for as long (`outage`).
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

from streamtool.errors import SettingsError
from streamtool.state.outage import SECONDS, Operation, Outage

_SCHEMA: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS age ON replies (until)",
    "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, until REAL NOT NULL, amount INTEGER NOT NULL)",
)
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Files that belong to the one whose name they continue."""
_TICK: Final = 0.02
"""Seconds between two attempts to open a file that another process makes."""
_making: Final = threading.Lock()
"""Closing a file drops the locks that SQLite holds on it in this process, so nobody opens it before it is closed."""
_log = logging.getLogger("streamtool")

T = TypeVar("T")


class Database:
    """A connection that is used for one operation. `failed` is called with it whenever it fails."""

    def __init__(self, file: str, operation: Operation, failed: Callable[[Operation], object]) -> None:
        self._file = file
        self._outage = Outage(f'store.file: "{file}"', operation, failed)
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the open file."""

    def check(self) -> None:
        """Open and close the file. Raises SettingsError when it cannot be used."""
        end = monotonic() + SECONDS
        while True:
            try:
                self._connect().close()
            except (OSError, sqlite3.Error) as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY and monotonic() < end:
                    sleep(_TICK)  # another process makes it at this moment, which SQLite does not wait for
                    continue
                raise SettingsError(
                    f'store.file: "{self._file}" cannot be used: {error}; name another file', param="store.file"
                ) from None
            return

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns, in a transaction of its own. Raises StoreError."""
        outage = self._outage
        outage.check()
        if not self._lock.acquire(timeout=SECONDS):
            raise outage.begin(f"no answer for {SECONDS:g} seconds")
        try:
            outage.check()
            with self._connection() as base:
                result = work(base)
            outage.end()
        except (OSError, sqlite3.Error) as error:
            self._disconnect()
            raise outage.begin(str(error)) from error
        finally:
            self._lock.release()
        return result

    def resume(self) -> None:
        """Let the next use try, however short ago the last one failed."""
        self._outage.resume()

    def close(self) -> None:
        """Close the connection, unless somebody has used it for too long; the next use opens it again."""
        if self._lock.acquire(timeout=SECONDS):
            self._disconnect()
            self._lock.release()

    def _connection(self) -> sqlite3.Connection:
        if self._open is not None and _identity(self._file) != self._identity:
            self._disconnect()
        if self._open is None:
            self._open = self._connect()
        return self._open

    def _connect(self) -> sqlite3.Connection:
        with _making:
            made = self._make()
        if made and self._identity is not None:
            _log.warning('store.file: "%s" was deleted; it is made anew, without what it held', self._file)
        self._identity = _identity(self._file)
        uri = f"{Path(self._file).absolute().as_uri()}?mode=rw"  # only `_make` makes it, with its mode
        base = sqlite3.connect(uri, uri=True, timeout=SECONDS, check_same_thread=False)
        try:
            for statement in _SCHEMA:
                base.execute(statement)
        except BaseException:
            base.close()
            raise
        return base

    def _make(self) -> bool:
        """Make the file, readable by its owner only; False if it is there."""
        beside = {self._file + ending: _identity(self._file + ending) for ending in _BESIDE}
        try:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        for left, before in beside.items():  # of a file that was deleted alone
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
        found = os.stat(file)  # noqa: PTH116  as it is called
    except OSError:
        return None
    return found.st_dev, found.st_ino
