"""A bounded cache of values that were computed for one request and may be reused for later ones.

The bound applies to the total weight of the values, in a unit that the cache's owner chooses. The garbage collector
traverses every object in the process, and all requests wait for it, so a long-lived value must not consist of many
objects.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V")
_FEW: Final = 8
"""Maximum number of derived values stored with one list."""


class LruCache(Generic[V]):
    """A cache of the most recently used values, with a total weight of at most `most`.

    Threads may share it without a lock: each step is a single dict operation, and a value that another thread has just
    removed is computed again. The weights are only added up when the cache may be full, and then an eighth of it is
    freed, since the number of values may be large.
    """

    __slots__ = ("_most", "_put", "_values")

    def __init__(self, most: int) -> None:
        self._most = most
        self._put = 0
        """The total weight when it was last added up, and the weights of all values stored since. Values that have been
        replaced count too.
        """
        self._values: dict[Hashable, tuple[V, int]] = {}  # in order of use, the most recently used last

    @property
    def weight(self) -> int:
        """The total weight of all values."""
        return sum(weight for _, weight in list(self._values.values()))

    def get(self, key: Hashable) -> V | None:
        """Return the value stored under this key, or None if it is not cached."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._values[key] = found
        return found[0]

    def put(self, key: Hashable, value: V, weight: int) -> None:
        """Cache the value, evicting the least recently used values if necessary. A value whose weight reaches `most` is
        not cached.

        One is added to the given weight, so that the number of weightless values is bounded too.
        """
        self._values.pop(key, None)
        if weight >= self._most:
            return
        self._values[key] = value, weight + 1
        self._put += weight + 1
        if self._put > self._most:
            self._evict()

    def _evict(self) -> None:
        """Evict the least recently used values if the cache is full, but never the last one stored."""
        weight = self.weight
        if weight > self._most:
            for oldest in list(self._values)[:-1]:
                if weight <= self._most - self._most // 8:
                    break
                weight -= self._values.pop(oldest, (None, 0))[1]
        self._put = weight


class SharedList(list[Any]):
    """A list from a request's JSON that many requests share, and values derived from it.

    Neither the list nor the values may be changed.
    """

    __slots__ = ("made",)

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.made: dict[Hashable, Any] = {}
        """The derived values, each under a key that its owner chooses."""

    def keep(self, key: Hashable, value: Any) -> None:
        """Store a value derived from the list. If too many are stored, all earlier ones are discarded."""
        if len(self.made) >= _FEW:
            self.made.clear()
        self.made[key] = value
