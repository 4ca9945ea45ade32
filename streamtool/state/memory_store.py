"""A store in memory: bounded in bytes and in time, each client with an equal share of the room.

If there is too much, the client that holds most loses its oldest. So nobody can push out what others have as long as
they hold no more than an equal share, and one client alone has all the room.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field, frozen

from streamtool.settings import StoreSettings

_COUNTS: Final = 1024
"""Numbers after which those that are too old are looked for."""


@frozen(eq=False)
class StoredValue:
    """A value under a key."""

    key: str
    until: float
    """The time at which it is too old."""
    value: bytes


@define
class _Share:
    """What one client holds."""

    size: int = 0
    """Bytes."""
    keys: OrderedDict[str, None] = field(factory=OrderedDict)
    """The oldest first."""


class MemoryStore:
    """A store that ends with the process. Safe to use from any thread."""

    blocks = False

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, StoredValue] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._size = 0
        self._counts: dict[str, tuple[float, int]] = {}
        """Key -> when it is forgotten, and the sum."""
        self.lost = 0
        """Values for which there was no room, or no more."""

    def get(self, key: str, /) -> bytes | None:
        """The value, if it is there and not too old."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and entry.until > self._clock() else None

    def put(self, key: str, value: bytes, /) -> None:
        """Keep the value; when there is too much, whoever holds most loses the oldest."""
        now = self._clock()
        with self._lock:
            self._delete(key)
            if len(value) > self._settings.size:
                self.lost += 1
                return
            self._entries[key] = StoredValue(key, now + self._settings.seconds, value)
            share = self._shares.setdefault(client_in(key), _Share())
            share.keys[key] = None
            share.size += len(value)
            self._size += len(value)
            while self._entries[oldest := next(iter(self._entries))].until <= now:
                self._delete(oldest)
            while self._size > self._settings.size:
                largest = max(self._shares.values(), key=lambda share: share.size)
                self._delete(next(iter(largest.keys)))
                self.lost += 1

    def forget(self, key: str, /) -> None:
        """Delete the value."""
        with self._lock:
            self._delete(key)

    def count(self, key: str, amount: int, seconds: float, /) -> int:
        """Add to a number that is forgotten after so many seconds; returns the sum."""
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
        """All that is kept, the oldest first."""
        with self._lock:
            return list(self._entries.values())

    def remove(self, entries: Iterable[StoredValue]) -> None:
        """Forget these, unless another value has taken the place."""
        with self._lock:
            for entry in entries:
                if self._entries.get(entry.key) is entry:
                    self._delete(entry.key)

    def leave(self, client: str) -> None:
        """Forget all that belongs to this client."""
        with self._lock:
            share = self._shares.get(f"{client} ")
            for key in list(share.keys) if share is not None else ():
                self._delete(key)

    def close(self) -> None:
        """Forget everything."""
        self.remove(self.entries())

    def _delete(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        client = client_in(key)
        share = self._shares[client]
        share.size -= len(entry.value)
        self._size -= len(entry.value)
        del share.keys[key]
        if not share.keys:
            del self._shares[client]


def client_in(key: str) -> str:
    """The client whose key it is, with the space."""
    return key[: key.find(" ") + 1]
