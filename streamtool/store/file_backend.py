"""A store backend that uses an SQLite file, which only its owner can read."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from streamtool.core.errors import StoreError
from streamtool.settings import StoreSettings
from streamtool.store.database import Database
from streamtool.store.memory_store import StoredValue
from streamtool.store.outage import Operation

_CLIENT: Final = "substr(key, 1, instr(key, ' '))"
"""SQL expression for the client part of a key, including the space."""


class FileBackend:
    """A backend that reads and writes an SQLite file over separate connections.

    The total size is not computed for each write, since the time required grows with the size. Raises SettingsError if
    the file cannot be used at all.
    """

    def __init__(self, settings: StoreSettings, failed: Callable[[Operation], object]) -> None:
        file = settings.file or ""
        self.place = f'store.file: "{file}"'
        self._size = settings.size
        self._reader = Database(file, "read", failed)
        self._writer = Database(file, "write", failed)
        self._room = 0
        """Number of bytes that may be written before the total size is computed again; other processes write to the
        file too.
        """
        for database in (self._writer, self._reader):
            database.check()

    def read(self, key: str, now: float, /) -> bytes | None:
        """Return the value unless it has expired at `now`. Raises StoreError if the file does not respond in time."""
        found = self._reader.run(partial(self._read, key, now))
        if found is None:
            self._reader.check_missing()
        return found

    def write(self, entries: Sequence[StoredValue], now: float, /) -> None:
        """Write these entries; delete empty and expired entries, and any that do not fit. Raises StoreError."""
        try:
            self._writer.run(partial(self._write, entries, now))
        except StoreError:
            self._room = 0
            raise

    def count(self, key: str, amount: int, now: float, seconds: float, /) -> int:
        """Add to a counter that expires after this many seconds, and return its sum. Raises StoreError."""
        return self._writer.run(partial(self._count, key, amount, now, now + seconds))

    def resume(self) -> None:
        """Allow the next write, even if the last one failed only a moment ago."""
        self._writer.resume()

    def close(self) -> None:
        """Close both connections. The next operation opens them again."""
        self._reader.close()
        self._writer.close()

    def _read(self, key: str, now: float, base: sqlite3.Connection) -> bytes | None:
        found = base.execute("SELECT value FROM replies WHERE key = ? AND until > ?", (key, now))
        row = found.fetchone()
        return None if row is None else bytes(row[0])

    def _write(self, entries: Sequence[StoredValue], now: float, base: sqlite3.Connection) -> None:
        rows = [(entry.key, entry.until, entry.value) for entry in entries if entry.value]
        base.executemany("REPLACE INTO replies VALUES (?, ?, ?)", rows)
        base.executemany("DELETE FROM replies WHERE key = ?", [(entry.key,) for entry in entries if not entry.value])
        base.execute("DELETE FROM replies WHERE until <= ?", (now,))
        self._room -= sum(len(entry.value) for entry in entries)
        if self._room < 0:
            self._room = self._make_room(base)

    def _count(self, key: str, amount: int, now: float, until: float, base: sqlite3.Connection) -> int:
        base.execute("DELETE FROM counts WHERE until <= ?", (now,))
        found = base.execute(
            "INSERT INTO counts VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET amount = amount + excluded.amount RETURNING amount",
            (key, until, amount),
        )
        return int(found.fetchone()[0])

    def _make_room(self, base: sqlite3.Connection) -> int:
        """Delete the oldest entries of the largest clients until all entries fit.

        Return the number of bytes that may be written before the next call.
        """
        sizes: dict[str, int] = dict(
            base.execute(f"SELECT {_CLIENT}, sum(length(value)) FROM replies GROUP BY {_CLIENT}")  # noqa: S608  only our own text is inserted
        )
        held: dict[str, Iterator[tuple[int, int]]] = {}
        size = sum(sizes.values())
        while size > self._size:
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
        return min(self._size - size, self._size // 16)
