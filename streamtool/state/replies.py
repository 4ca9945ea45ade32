"""What is remembered of replies, so that later requests can refer to them (`previous_response_id`, item references).

Bounded in bytes and in time, and kept apart by client: what one key's owner was told, no other can ask for. If there is
too much, the client that holds most loses its oldest. So nobody can push out what others have as long as they hold no
more than an equal share, and one client alone has all the room. By default it lives in memory; with a file it is an
SQLite database that outlives the process and may be shared by several.
"""

import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from attrs import define, field, frozen

from streamtool.errors import SettingsError
from streamtool.settings import StoreSettings
from streamtool.state.clients import client_of

_CLIENT = "substr(key, 1, instr(key, ' '))"
"""In SQL, the client whose key it is, with the space."""

_log = logging.getLogger("streamtool")


class Store(Protocol):
    """What both stores do. A key is a client's name, a space, and an id."""

    blocks: bool
    """A step may take so long that it is not for the event loop."""

    def get(self, key: str, /) -> bytes | None: ...
    def put(self, key: str, value: bytes, /) -> None: ...
    def delete(self, key: str, /) -> bool: ...
    def close(self) -> None: ...


@frozen
class Shelf:
    """The part of a store that belongs to one client."""

    store: Store
    client: str

    def recall(self, id: str, /) -> bytes | None:
        """What was remembered under this id, unless it is too old or was too much."""
        return self.store.get(f"{self.client} {id}")

    def remember(self, id: str, value: bytes, /) -> None:
        """Keep `value` for later."""
        self.store.put(f"{self.client} {id}", value)

    def forget(self, id: str, /) -> bool:
        """Whether there was something to forget."""
        return self.store.delete(f"{self.client} {id}")


def shelf(store: Store, headers: Iterable[tuple[bytes, bytes]]) -> Shelf:
    """The shelf of the client whose key stands in these headers; clients without a key share one."""
    return Shelf(store, client_of(headers))


def open_store(settings: StoreSettings, clock: Callable[[], float] = time.time) -> Store:
    """The store that the settings describe. Raises SettingsError when its file cannot be used."""
    if settings.file is None:
        return MemoryStore(settings, clock)
    return FileStore(settings, clock)


@define
class _Share:
    """What one client holds in memory."""

    size: int = 0
    """Bytes."""
    keys: OrderedDict[str, None] = field(factory=OrderedDict)
    """The oldest first."""


class MemoryStore:
    """A store that ends with the process."""

    blocks = False

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._size = 0

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] > self._clock() else None

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; when there is too much, whoever holds most loses the oldest."""
        self.delete(key)
        if len(value) > self._settings.size:
            return
        now = self._clock()
        self._entries[key] = (now + self._settings.seconds, value)
        share = self._shares.setdefault(_client(key), _Share())
        share.keys[key] = None
        share.size += len(value)
        self._size += len(value)
        while self._entries[oldest := next(iter(self._entries))][0] <= now:
            self.delete(oldest)
        while self._size > self._settings.size:
            largest = max(self._shares.values(), key=lambda share: share.size)
            self.delete(next(iter(largest.keys)))

    def delete(self, key: str, /) -> bool:
        """Whether there was such a value."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._size -= len(entry[1])
        share = self._shares[_client(key)]
        share.size -= len(entry[1])
        del share.keys[key]
        if not share.keys:
            del self._shares[_client(key)]
        return True

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._shares.clear()
        self._size = 0


class FileStore:
    """A store in an SQLite file, readable by its owner only. Each step is short, so that none needs a thread.

    A file that cannot be used for a moment (its disk is full, another process holds it) costs what should have been
    remembered, and never a reply. How much is in it is not counted each time: that would take as long as it is large.
    """

    blocks = True

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
        """Keep the value; when there is too much, whoever holds most loses the oldest."""
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
        """How much may be put before this is done again: whoever holds most loses the oldest until all has room."""
        sizes: dict[str, int] = dict(
            base.execute(f"SELECT {_CLIENT}, sum(length(value)) FROM replies GROUP BY {_CLIENT}")  # noqa: S608  ours
        )
        held: dict[str, Iterator[tuple[int, int]]] = {}
        size = sum(sizes.values())
        while size > self._settings.size:
            client = max(sizes, key=sizes.__getitem__)
            if client not in held:
                held[client] = iter(
                    base.execute(
                        f"SELECT rowid, length(value) FROM replies WHERE {_CLIENT} = ? ORDER BY until, rowid",  # noqa: S608
                        (client,),
                    ).fetchall()
                )
            row, length = next(held[client])
            base.execute("DELETE FROM replies WHERE rowid = ?", (row,))
            size -= length
            sizes[client] -= length
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


def _client(key: str) -> str:
    """The client whose key it is, with the space."""
    return key[: key.find(" ") + 1]


def _failed(error: sqlite3.Error) -> None:
    _log.warning("what is remembered of replies cannot be reached: %s", error)
