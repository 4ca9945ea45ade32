"""What is remembered of replies, so that later requests can refer to them (`previous_response_id`, item references).

Bounded in bytes and in time, and kept apart by client: what one key's owner was told, no other can ask for. By default
it lives in memory; with a file it is an SQLite database that outlives the process and may be shared by several.
"""

import hashlib
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from attrs import frozen

from streamtool.errors import SettingsError
from streamtool.settings import StoreSettings

_log = logging.getLogger("streamtool")


class Store(Protocol):
    """What both stores do. A key is an owner's digest and an id."""

    def get(self, key: str, /) -> bytes | None: ...
    def put(self, key: str, value: bytes, /) -> None: ...
    def delete(self, key: str, /) -> bool: ...
    def close(self) -> None: ...


@frozen
class Shelf:
    """The part of a store that belongs to one client."""

    store: Store
    owner: str

    def recall(self, id: str, /) -> bytes | None:
        """What was remembered under this id, unless it is too old or was too much."""
        return self.store.get(f"{self.owner} {id}")

    def remember(self, id: str, value: bytes, /) -> None:
        """Keep `value` for later."""
        self.store.put(f"{self.owner} {id}", value)

    def forget(self, id: str, /) -> bool:
        """Whether there was something to forget."""
        return self.store.delete(f"{self.owner} {id}")


def shelf(store: Store, headers: Iterable[tuple[bytes, bytes]]) -> Shelf:
    """The shelf of the client whose key stands in these headers; clients without a key share one."""
    found = {name.lower(): value for name, value in headers}
    key = found.get(b"authorization") or found.get(b"x-api-key") or b""
    return Shelf(store, hashlib.sha256(key).hexdigest()[:32])


def open_store(settings: StoreSettings, clock: Callable[[], float] = time.time) -> Store:
    """The store that the settings describe. Raises SettingsError when its file cannot be used."""
    if settings.file is None:
        return MemoryStore(settings, clock)
    return FileStore(settings, clock)


class MemoryStore:
    """A store that ends with the process."""

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] > self._clock() else None

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; the oldest go when there is too much."""
        self.delete(key)
        if len(value) > self._settings.size:
            return
        now = self._clock()
        self._entries[key] = (now + self._settings.seconds, value)
        self._size += len(value)
        while self._entries:
            oldest = next(iter(self._entries))
            if self._size <= self._settings.size and self._entries[oldest][0] > now:
                break
            self.delete(oldest)

    def delete(self, key: str, /) -> bool:
        """Whether there was such a value."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= len(entry[1])
        return entry is not None

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._size = 0


class FileStore:
    """A store in an SQLite file, readable by its owner only. Each step is short, so that none needs a thread.

    A file that cannot be used for a moment (its disk is full, another process holds it) costs what should have been
    remembered, and never a reply. How much is in it is not counted each time: that would take as long as it is large.
    """

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._room = 0
        """Bytes that may be put before the file is measured; other processes put as well."""
        self._open: sqlite3.Connection | None = None
        try:
            Path(settings.file or "").touch(mode=0o600)
            self._base()
        except (OSError, sqlite3.Error) as error:
            raise SettingsError(f'store.file: "{settings.file}" cannot be used: {error}', param="store.file") from None

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old."""
        try:
            with self._lock:
                row = (
                    self._base()
                    .execute("SELECT value FROM replies WHERE key = ? AND until > ?", (key, self._clock()))
                    .fetchone()
                )
        except sqlite3.Error as error:
            _failed(error)
            return None
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; the oldest go when there is too much."""
        if len(value) > self._settings.size:
            return
        now = self._clock()
        try:
            with self._lock, self._base() as base:
                base.execute("REPLACE INTO replies VALUES (?, ?, ?)", (key, now + self._settings.seconds, value))
                base.execute("DELETE FROM replies WHERE until <= ?", (now,))
                self._room -= len(value)
                if self._room < 0:
                    self._room = self._make_room(base)
        except sqlite3.Error as error:
            self._room = 0
            _failed(error)

    def _make_room(self, base: sqlite3.Connection) -> int:
        """How much may be put before this is done again: the oldest go until all of it has room."""
        size: int = base.execute("SELECT coalesce(sum(length(value)), 0) FROM replies").fetchone()[0]
        while size > self._settings.size:
            [oldest, length] = base.execute(
                "SELECT key, length(value) FROM replies ORDER BY until, rowid LIMIT 1"
            ).fetchone()
            base.execute("DELETE FROM replies WHERE key = ?", (oldest,))
            size -= length
        return min(self._settings.size - size, self._settings.size // 16)

    def delete(self, key: str, /) -> bool:
        """Whether there was such a value."""
        try:
            with self._lock, self._base() as base:
                return base.execute("DELETE FROM replies WHERE key = ?", (key,)).rowcount > 0
        except sqlite3.Error as error:
            _failed(error)
            return False

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        base, self._open = self._open, None
        if base is not None:
            base.close()

    def _base(self) -> sqlite3.Connection:
        if self._open is None:
            base = sqlite3.connect(str(self._settings.file), timeout=1, check_same_thread=False)
            base.execute("PRAGMA journal_mode=WAL")
            base.execute("PRAGMA synchronous=OFF")
            base.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL)"
            )
            base.execute("CREATE INDEX IF NOT EXISTS age ON replies (until)")
            self._open = base
        return self._open


def _failed(error: sqlite3.Error) -> None:
    _log.warning("what is remembered of replies cannot be reached: %s", error)
