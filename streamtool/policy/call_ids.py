"""Ids of calls: the id that the model or the upstream proposes, if it may be used, else a new one."""

import re
from collections.abc import Callable, Iterable

_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


class CallIds:
    """Ids of calls, each used once in a conversation."""

    __slots__ = ("_made", "_make", "_used")

    def __init__(self, make: Callable[[], str], used: Iterable[str]) -> None:
        self._make = make
        self._used = set(used)
        self._made = set[str]()

    def take(self, proposed: str | None) -> str:
        """`proposed` if it is legal and new in the conversation, else a new id."""
        while proposed is None or proposed in self._used or _LEGAL_ID.fullmatch(proposed) is None:
            proposed = self._make()
            self._made.add(proposed)
        self._used.add(proposed)
        return proposed

    def made(self, call_id: str) -> bool:
        """Whether it was made here: a model gives the same ids to calls of other conversations."""
        return call_id in self._made
