"""Whether a shared store answers, for one operation: after a failure it is left alone for a while.

So whoever looks many things up waits once. The log says once when the store begins to fail, and once when it works
again. Safe to use from any thread.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Literal

from streamtool.errors import StoreError

SECONDS: Final = 1.0
"""The time limit of one use, and the pause after a failure."""
_WORDS: Final = {
    "read": ("read", "earlier replies are not found"),
    "write": ("written", "what is to be remembered waits in memory"),
}
"""What cannot be done, and what that costs."""
_log = logging.getLogger("streamtool")

Operation = Literal["read", "write"]


class Outage:
    """The failures of one operation at `place`, which the log names; `failed` is called with the operation at each."""

    __slots__ = ("_failing", "_operation", "_rests_until", "_tell", "place")

    def __init__(self, place: str, operation: Operation, failed: Callable[[Operation], object]) -> None:
        self.place = place
        self._operation: Operation = operation
        self._tell = failed
        self._failing = False
        self._rests_until = 0.0

    def check(self) -> None:
        """Raises StoreError while the store is left alone."""
        if time.monotonic() < self._rests_until:
            raise self._error()

    def begin(self, why: str) -> StoreError:
        """The store has failed just now; returns the error to raise."""
        self._rests_until = time.monotonic() + SECONDS
        if not self._failing:
            self._failing = True
            done, cost = _WORDS[self._operation]
            _log.warning("%s cannot be %s: %s; meanwhile %s", self.place, done, why, cost)
        return self._error()

    def end(self) -> None:
        """The store has done what it should."""
        if self._failing:
            self._failing = False
            _log.warning("%s can be %s again", self.place, _WORDS[self._operation][0])

    def resume(self) -> None:
        """Let the next use try, however short ago the last one failed."""
        self._rests_until = 0.0

    def _error(self) -> StoreError:
        self._tell(self._operation)
        return StoreError("earlier replies cannot be read at the moment: try again", code="store_unavailable")
