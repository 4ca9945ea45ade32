"""Call ids: the id proposed by the model or the upstream if it is usable, otherwise a new one."""

import re
from collections.abc import Callable, Iterable

_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


class CallIds:
    """Generator of call ids that are unique within a conversation."""

    __slots__ = ("_made", "_make", "_used")

    def __init__(self, make: Callable[[], str], used: Iterable[str]) -> None:
        self._make = make
        self._used = set(used)
        self._made = set[str]()

    def take(self, proposed: str | None) -> str:
        """Return `proposed` if it is legal and not yet used in the conversation, otherwise a new id."""
        while proposed is None or proposed in self._used or _LEGAL_ID.fullmatch(proposed) is None:
            proposed = self._make()
            self._made.add(proposed)
        self._used.add(proposed)
        return proposed

    def is_generated(self, call_id: str) -> bool:
        """Return whether the id was generated here. An id that a model chose may recur in other conversations."""
        return call_id in self._made
