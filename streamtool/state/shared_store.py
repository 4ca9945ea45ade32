"""A store that outlives the process and is shared by several: an SQLite file, or a Redis server.

The event loop puts values and never waits: they wait in memory, where they are found as well, until a thread has
written them. Those that cannot be written (the disk is full, another process holds the file, the server is away) keep
waiting, and are tried again with the next use; there is room for so many bytes, of which each client has its share.
Reading takes a moment of the thread that reads, within the time limit of `outage`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from logging import getLogger
from typing import Final, Protocol

from attrs import evolve

from streamtool.errors import StoreError
from streamtool.settings import StoreSettings
from streamtool.state.memory_store import MemoryStore, StoredValue
from streamtool.state.outage import Operation

_WAITING: Final = 64 * 1024 * 1024
"""Bytes that may wait to be written."""
_CLOSING: Final = 3.0
"""Seconds in which the last values are written when the store is closed."""

_log = getLogger("streamtool")


class Backend(Protocol):
    """Where a shared store keeps its values. Any thread may read; one at a time writes."""

    @property
    def place(self) -> str:
        """Its name in the log."""

    def read(self, key: str, now: float, /) -> bytes | None:
        """The value that is not too old at `now`. Raises StoreError."""

    def write(self, entries: Sequence[StoredValue], now: float, /) -> None:
        """Put these; an empty value is deleted. Raises StoreError, and then they may be put again."""

    def count(self, key: str, amount: int, now: float, seconds: float, /) -> int:
        """Add to a number that is forgotten after so many seconds; returns the sum. Raises StoreError."""

    def resume(self) -> None:
        """Let the next use try, however short ago the last one failed."""

    def close(self) -> None:
        """Close all connections; the next use opens them again."""


class SharedStore:
    """A store in a backend. Safe to use from any thread.

    `failed` is called with `write` when a value is lost because too many wait.
    """

    blocks = True

    def __init__(
        self,
        settings: StoreSettings,
        backend: Backend,
        clock: Callable[[], float] = time.time,
        failed: Callable[[Operation], object] = lambda _: None,
    ) -> None:
        self._largest = settings.size
        self._clock = clock
        self._waiting = MemoryStore(evolve(settings, size=min(settings.size, _WAITING)), clock)
        self._backend = backend
        self._failed = failed
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        """The writing of what waits, from when it is asked for until nothing waits or it has failed."""
        self._loses = False
        """There is no room for all that waits."""

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old. Raises StoreError when no answer comes in time."""
        if self._waiting:
            self._write_soon()
        found = self._waiting.get(key)
        return self._backend.read(key, self._clock()) if found is None else found or None

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; when there is too much, whoever holds most loses the oldest. Never waits for it."""
        if len(value) > self._largest:
            return
        lost = self._waiting.lost
        self._waiting.put(key, value)
        if self._waiting.lost != lost:
            self._lose()
        self._write_soon()

    def forget(self, key: str, /) -> None:
        """Delete the value, here at once and for others when it is written."""
        self.put(key, b"")

    def count(self, key: str, amount: int, seconds: float, /) -> int:
        """Add to a number that is forgotten after so many seconds; returns the sum. Raises StoreError."""
        return self._backend.count(key, amount, self._clock(), seconds)

    def close(self) -> None:
        """Write what waits, within a time limit, and close the backend; the next use opens it again."""
        self._backend.resume()
        if self._waiting:
            self._write_soon()
        with self._lock:
            writing, threads, self._threads = self._writing, self._threads, None
        if writing is not None:
            wait([writing], _CLOSING)
        if threads is not None:
            threads.shutdown(wait=False)
        if self._waiting:
            _log.warning("%s lacks %d values, which were not written", self._backend.place, len(self._waiting))
        self._backend.close()

    def _lose(self) -> None:
        self._failed("write")
        if not self._loses:
            self._loses = True
            _log.warning("%s is too slow: more waits than there is room for", self._backend.place)

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
                self._backend.write(entries, self._clock())
                self._waiting.remove(entries)
                self._loses = False
        except StoreError:
            with self._lock:
                self._writing = None

    def _next(self) -> list[StoredValue]:
        """What waits; without anything, the writing is over."""
        with self._lock:
            entries = self._waiting.entries()
            if not entries:
                self._writing = None
            return entries
