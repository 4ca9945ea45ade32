"""An in-memory store, limited in bytes and in time, with an equal share of the space for each client.

If the store is full, the client with the most bytes loses its oldest entries. No client can therefore displace the
entries of clients that use no more than an equal share, but a single client can use all of the space.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field, frozen

from streamtool.settings import StoreSettings

_COUNTS: Final = 1024
"""Number of counters above which expired counters are removed."""


@frozen(eq=False)
class StoredValue:
    """A value and its key."""

    key: str
    until: float
    """Time when the value expires."""
    value: bytes


@define
class _Share:
    """The entries of one client."""

    size: int = 0
    """Total size of the values in bytes."""
    keys: OrderedDict[str, None] = field(factory=OrderedDict)
    """The client's keys, oldest first."""


class MemoryStore:
    """A store that lasts as long as the process. Thread-safe."""

    blocks = False

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, StoredValue] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._size = 0
        self._counts: dict[str, tuple[float, int]] = {}
        """Expiry time and sum of each counter."""
        self.dropped = 0
        """Number of values that were dropped for lack of space."""

    def get(self, key: str, /) -> bytes | None:
        """Return the value, or None if it is unknown or has expired."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and entry.until > self._clock() else None

    def put(self, key: str, value: bytes, /) -> None:
        """Store the value. If the store is full, the client with the most bytes loses its oldest entries."""
        now = self._clock()
        with self._lock:
            self._delete(key)
            if len(value) > self._settings.size:
                self.dropped += 1
                return
            self._entries[key] = StoredValue(key, now + self._settings.seconds, value)
            share = self._shares.setdefault(client_prefix(key), _Share())
            share.keys[key] = None
            share.size += len(value)
            self._size += len(value)
            while self._entries[oldest := next(iter(self._entries))].until <= now:
                self._delete(oldest)
            while self._size > self._settings.size:
                largest = max(self._shares.values(), key=lambda share: share.size)
                self._delete(next(iter(largest.keys)))
                self.dropped += 1

    def forget(self, key: str, /) -> None:
        """Delete the value."""
        with self._lock:
            self._delete(key)

    def count(self, key: str, amount: int, seconds: float, /) -> int:
        """Add to a counter that expires after this many seconds, and return its sum."""
        now = self._clock()
        with self._lock:
            if len(self._counts) >= _COUNTS:
                self._counts = {known: found for known, found in self._counts.items() if found[0] > now}
            until, sum_ = self._counts.get(key, (now + seconds, 0))
            self._counts[key] = (until, sum_ + amount)
            return sum_ + amount

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[StoredValue]:
        """Return all entries, oldest first."""
        with self._lock:
            return list(self._entries.values())

    def remove(self, entries: Iterable[StoredValue]) -> None:
        """Delete these entries, except those that have been replaced by another value."""
        with self._lock:
            for entry in entries:
                if self._entries.get(entry.key) is entry:
                    self._delete(entry.key)

    def forget_client(self, client: str) -> None:
        """Delete all entries of this client."""
        with self._lock:
            share = self._shares.get(f"{client} ")
            for key in list(share.keys) if share is not None else ():
                self._delete(key)

    def close(self) -> None:
        """Delete all entries."""
        self.remove(self.entries())

    def _delete(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        client = client_prefix(key)
        share = self._shares[client]
        share.size -= len(entry.value)
        self._size -= len(entry.value)
        del share.keys[key]
        if not share.keys:
            del self._shares[client]


def client_prefix(key: str) -> str:
    """Return the client part of a key, including the space."""
    return key[: key.find(" ") + 1]
