"""A store in an SQLite file, which outlives the process and may be shared by several.

The event loop puts values and never waits: they wait in memory, where they are found as well, until a thread has
written them. Those that cannot be written (the disk is full, another process holds the file) keep waiting, and are
tried again with the next use; there is room for so many bytes, of which each client has its share. Reading takes a
moment of the thread that reads, within the time limit of `database`.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import Final

from attrs import evolve

from streamtool.errors import StoreError
from streamtool.settings import StoreSettings
from streamtool.state.database import Database, Operation
from streamtool.state.memory_store import MemoryStore, StoredValue

_WAITING: Final = 64 * 1024 * 1024
"""Bytes that may wait to be written."""
_CLOSING: Final = 3.0
"""Seconds in which the last values are written when the store is closed."""
_CLIENT: Final = "substr(key, 1, instr(key, ' '))"
"""In SQL, the client whose key it is, with the space."""

_log = getLogger("streamtool")


class FileStore:
    """A store in a file that only its owner can read. Safe to use from any thread.

    `failed` is called with `read` or `write` whenever the file cannot be used. How much is in the file is not counted
    each time: that would take as long as it is large. Raises SettingsError when the file cannot be used at all.
    """

    blocks = True

    def __init__(
        self,
        settings: StoreSettings,
        clock: Callable[[], float] = time.time,
        failed: Callable[[Operation], object] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._waiting = MemoryStore(evolve(settings, size=min(settings.size, _WAITING)), clock)
        self._reader = Database(settings.file or "", "read", failed)
        self._writer = Database(settings.file or "", "write", failed)
        self._failed = failed
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        """The writing of what waits, from when it is asked for until nothing waits or it has failed."""
        self._room = 0
        """Bytes that may be written before the file is measured; other processes write as well."""
        self._loses = False
        """There is no room for all that waits."""
        for database in (self._writer, self._reader):
            database.check()

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old. Raises StoreError when the file does not answer in time."""
        if self._waiting:
            self._write_soon()
        found = self._waiting.get(key)
        return self._reader.run(partial(self._read, key)) if found is None else found

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; when there is too much, whoever holds most loses the oldest. Never waits for the file."""
        if len(value) > self._settings.size:
            return
        lost = self._waiting.lost
        self._waiting.put(key, value)
        if self._waiting.lost != lost:
            self._lose()
        self._write_soon()

    def close(self) -> None:
        """Write what waits, within a time limit, and close the file; the next use opens it again."""
        self._writer.resume()
        if self._waiting:
            self._write_soon()
        with self._lock:
            writing, threads, self._threads = self._writing, self._threads, None
        if writing is not None:
            wait([writing], _CLOSING)
        if threads is not None:
            threads.shutdown(wait=False)
        if self._waiting:
            _log.warning(
                'store.file: "%s" lacks %d values, which were not written', self._settings.file, len(self._waiting)
            )
        self._reader.close()
        self._writer.close()

    def _lose(self) -> None:
        self._failed("write")
        if not self._loses:
            self._loses = True
            _log.warning('store.file: "%s" is too slow: more waits than there is room for', self._settings.file)

    def _write_soon(self) -> None:
        """Have a thread write what waits, unless it is at it: it looks for more before it ends."""
        with self._lock:
            if self._writing is None:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(1, "streamtool store")
                with suppress(RuntimeError):  # the interpreter ends
                    self._writing = self._threads.submit(self._write)

    def _write(self) -> None:
        try:
            while entries := self._next():
                self._writer.run(partial(self._put, entries))
                self._waiting.remove(entries)
                self._loses = False
        except StoreError:
            self._room = 0
            with self._lock:
                self._writing = None

    def _next(self) -> list[StoredValue]:
        """What waits; without anything, the writing is over."""
        with self._lock:
            entries = self._waiting.entries()
            if not entries:
                self._writing = None
            return entries

    def _read(self, key: str, base: sqlite3.Connection) -> bytes | None:
        found = base.execute("SELECT value FROM replies WHERE key = ? AND until > ?", (key, self._clock()))
        row = found.fetchone()
        return None if row is None else bytes(row[0])

    def _put(self, entries: Sequence[StoredValue], base: sqlite3.Connection) -> None:
        rows = [(entry.key, entry.until, entry.value) for entry in entries]
        base.executemany("REPLACE INTO replies VALUES (?, ?, ?)", rows)
        base.execute("DELETE FROM replies WHERE until <= ?", (self._clock(),))
        self._room -= sum(len(entry.value) for entry in entries)
        if self._room < 0:
            self._room = self._make_room(base)

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
