"""A store that outlives the process and that several processes can share: an SQLite file, or a Redis server.

The event loop stores values without ever waiting: they are queued in memory, where lookups find them, until a thread
has written them. Values that cannot be written (the disk is full, another process has locked the file, the server is
unreachable) stay in the queue, and are written as soon as this is possible again. The queue is limited in bytes, with a
share for each client. Reading blocks the calling thread for a moment, within the time limit in `outage`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from logging import getLogger
from typing import Final, Protocol

from attrs import evolve

from streamtool.core.errors import StoreError
from streamtool.settings import StoreSettings
from streamtool.store.memory_store import MemoryStore, StoredValue
from streamtool.store.outage import RETRY, Operation

_QUEUE_SIZE: Final = 64 * 1024 * 1024
"""Maximum size of the write queue in bytes."""
_CLOSE_TIMEOUT: Final = 3.0
"""Maximum number of seconds for writing the last values when the store is closed."""

_log = getLogger("streamtool")


class Backend(Protocol):
    """The backend of a shared store. Any thread may read; only one thread at a time may write."""

    @property
    def place(self) -> str:
        """The backend's name in the log."""

    def read(self, key: str, now: float, /) -> bytes | None:
        """Return the value unless it has expired at `now`. Raises StoreError."""

    def write(self, entries: Sequence[StoredValue], now: float, /) -> None:
        """Write these entries; an empty value deletes its key. If StoreError is raised, the entries may be written
        again.
        """

    def count(self, key: str, amount: int, now: float, seconds: float, /) -> int:
        """Add to a counter that expires after this many seconds, and return its sum. Raises StoreError."""

    def resume(self) -> None:
        """Allow the next operation, even if the last failure was only a moment ago."""

    def close(self) -> None:
        """Close all connections. The next operation opens them again."""


class SharedStore:
    """A store in a backend. Thread-safe.

    `failed` is called with `write` if a value is lost because the queue is full.
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
        self._queue = MemoryStore(evolve(settings, size=min(settings.size, _QUEUE_SIZE)), clock)
        self._backend = backend
        self._failed = failed
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._retry: threading.Timer | None = None
        """Timer that starts the next attempt to write the queue; None unless the last attempt failed."""
        self._writing: Future[None] | None = None
        """The task that writes the queue, or None once the queue is empty or a write has failed."""
        self._queue_full = False
        """Whether values have been lost because the queue is full."""

    def get(self, key: str, /) -> bytes | None:
        """Return the value, or None if it is unknown or has expired. Raises StoreError if the backend fails."""
        if self._queue:
            self._write_soon()
        found = self._queue.get(key)
        return self._backend.read(key, self._clock()) if found is None else found or None

    def put(self, key: str, value: bytes, /) -> None:
        """Store the value without waiting. If the queue is full, the client with the most bytes loses its oldest
        entries.
        """
        if len(value) > self._largest:
            return
        lost = self._queue.dropped
        self._queue.put(key, value)
        if self._queue.dropped != lost:
            self._report_loss()
        self._write_soon()

    def forget(self, key: str, /) -> None:
        """Delete the value. Other processes notice this once the deletion has been written."""
        self.put(key, b"")

    def count(self, key: str, amount: int, seconds: float, /) -> int:
        """Add to a counter that expires after this many seconds, and return its sum. Raises StoreError."""
        return self._backend.count(key, amount, self._clock(), seconds)

    def close(self) -> None:
        """Write the queue, within a time limit, and close the backend. The next operation opens it again."""
        self._backend.resume()
        self._cancel_retry()
        if self._queue:
            self._write_soon()
        with self._lock:
            writing, threads, self._threads = self._writing, self._threads, None
        self._cancel_retry()
        if writing is not None:
            wait([writing], _CLOSE_TIMEOUT)
        if threads is not None:
            threads.shutdown(wait=False)
        if self._queue:
            _log.warning("%s: %d values could not be written", self._backend.place, len(self._queue))
        self._backend.close()

    def _report_loss(self) -> None:
        self._failed("write")
        if not self._queue_full:
            self._queue_full = True
            _log.warning("%s is too slow: the write queue is full", self._backend.place)

    def _write_soon(self) -> None:
        """Have a thread write the queue, unless one is already doing so or will soon try again; that thread checks for
        more entries before it finishes.
        """
        with self._lock:
            if self._writing is None and self._retry is None:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(1, "streamtool store")
                with suppress(RuntimeError):  # the interpreter is shutting down
                    self._writing = self._threads.submit(self._write)

    def _write(self) -> None:
        try:
            while entries := self._next():
                self._backend.write(entries, self._clock())
                self._queue.remove(entries)
                self._queue_full = False
        except StoreError:
            with self._lock:
                self._writing = None
                if self._threads is not None:  # not closed
                    self._retry = threading.Timer(RETRY, self._write_again)
                    self._retry.daemon = True
                    self._retry.start()

    def _write_again(self) -> None:
        with self._lock:
            closed = self._retry is None  # `cancel` was too late
            self._retry = None
        if not closed:
            self._write_soon()

    def _cancel_retry(self) -> None:
        with self._lock:
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None

    def _next(self) -> list[StoredValue]:
        """Return the queued entries. If the queue is empty, mark the task as finished."""
        with self._lock:
            entries = self._queue.entries()
            if not entries:
                self._writing = None
            return entries
