"""Pairs calls and results of a history in which ids may be missing, in protocols that know calls by name and order.

A call without an id gets one that no other call of the history has. A result names its call by the id; without one it
belongs to the first call of its name that is still open, and without a name to the first call that is.
"""

from collections import deque
from collections.abc import Iterable


class CallIds:
    """The ids of one history. `given` are those that stand in it."""

    __slots__ = ("_count", "_given", "_open", "_waiting")

    def __init__(self, given: Iterable[str]) -> None:
        self._given = set(given)
        self._count = 0
        self._open: dict[str, str] = {}
        """Id -> name of the calls that no result has answered."""
        self._waiting: dict[str | None, deque[str]] = {}
        """The ids of calls by name, all under None; those of answered calls go when they come first."""

    def call(self, given: str | None, name: str) -> str:
        """The id of a call."""
        while given is None:
            self._count += 1
            made = f"call_{self._count}"
            given = None if made in self._given else made
        self._open[given] = name
        for key in (name, None):
            self._waiting.setdefault(key, deque()).append(given)
        return given

    def result(self, given: str | None, name: str | None) -> tuple[str, str | None]:
        """The id of the call that a result answers, and the name of its tool; of an orphan what it bears."""
        waiting = self._waiting.get(name, deque())
        while given is None and waiting:
            found = waiting.popleft()
            given = found if found in self._open else None
        called = None if given is None else self._open.pop(given, None)
        return given or name or "", name or called
