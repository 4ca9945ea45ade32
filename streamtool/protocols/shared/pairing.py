"""Pairing of calls with results when ids are missing, for protocols that identify calls by name and order.

A call without an id gets an id that no other call in the history has. A result with an id belongs to the call with that
id. A result without an id belongs to the oldest unanswered call with the same name, or, if the result has no name
either, to the oldest unanswered call.
"""

from collections import deque
from collections.abc import Iterable


class PairedCallIds:
    """Call ids of one history. `given` contains the ids that its calls already have."""

    __slots__ = ("_count", "_given", "_open", "_waiting")

    def __init__(self, given: Iterable[str]) -> None:
        self._given = set(given)
        self._count = 0
        self._open: dict[str, str] = {}
        """Names of the unanswered calls, by id."""
        self._waiting: dict[str | None, deque[str]] = {}
        """Call ids by name, and all call ids under None. Ids of answered calls are skipped."""

    def call(self, given: str | None, name: str) -> str:
        """Return the call's own id, or a new id if it has none."""
        while given is None:
            self._count += 1
            made = f"call_{self._count}"
            given = None if made in self._given else made
        self._open[given] = name
        for key in (name, None):
            self._waiting.setdefault(key, deque()).append(given)
        return given

    def result(self, given: str | None, name: str | None) -> tuple[str, str | None]:
        """Return the id of the call that a result answers, and the name of the call's tool.

        For a result that belongs to no call, return the result's own id and name.
        """
        waiting = self._waiting.get(name, deque())
        while given is None and waiting:
            found = waiting.popleft()
            given = found if found in self._open else None
        called = None if given is None else self._open.pop(given, None)
        return given or name or "", name or called
