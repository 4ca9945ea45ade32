"""What was worked out for one request and is kept for the next ones, within bounds.

What is bounded is the weight of all values, in whatever unit their owner counts. The collector of garbage walks all
objects that a process holds, and everybody waits for it: so what is kept for long must not be many objects.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(Generic[V]):
    """The values that were used last, as many as weigh no more than `most` in all.

    Threads may share it without a lock: each step is one operation of a dict, and a value that another thread has just
    taken out is made once more.
    """

    __slots__ = ("_most", "_values")

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Hashable, tuple[V, int]] = {}  # the one that was used last at the end

    @property
    def weight(self) -> int:
        """Of all values."""
        return sum(weight for _, weight in list(self._values.values()))

    def get(self, key: Hashable) -> V | None:
        """The value under this key; None if there is none any more."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._values[key] = found
        return found[0]

    def put(self, key: Hashable, value: V, weight: int) -> None:
        """Keep the value, and forget those that were not used for the longest time; one that is too heavy is not kept.

        A value weighs one more than its owner says.
        """
        self._values.pop(key, None)
        if weight >= self._most:
            return
        self._values[key] = value, weight + 1
        left = self._most - self.weight
        for oldest in list(self._values):
            if left >= 0:
                break
            left += self._values.pop(oldest, (None, 0))[1]
