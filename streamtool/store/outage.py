"""Outages of a shared store, for one kind of operation: after a failure, the store is not accessed for a while.

Therefore, only one of a series of lookups has to wait. The log reports once that the store has begun to fail, and once
that it works again. Thread-safe.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Literal

from streamtool.core.errors import StoreError

TIMEOUT: Final = 1.0
"""Time limit for an operation, and pause after a failure, in seconds."""
RETRY: Final = 1.1 * TIMEOUT
"""Seconds until values that could not be written are written again."""
_SETTLES: Final = 3 * TIMEOUT
"""Seconds after a failure, or after a new connection that replaces a lost one, in which a missing value may still be on
its way: another process writes its values up to `RETRY` seconds after the store is back, plus the time limit of the
write.
"""
_WORDS: Final = {
    "read": ("read", "earlier replies are not found"),
    "write": ("written", "new entries wait in memory"),
}
"""The failing operation and its consequence, as worded in the log."""
_log = logging.getLogger("streamtool")

Operation = Literal["read", "write"]


class Outage:
    """The outages of one kind of operation. `place` names the store in the log; `failed` is called for each failure."""

    def __init__(self, place: str, operation: Operation, failed: Callable[[Operation], object]) -> None:
        self.place = place
        self._operation: Operation = operation
        self._on_failure = failed
        self._failing = False
        self._rests_until = 0.0
        self._settles_until = 0.0

    def check(self) -> None:
        """Raise StoreError if the last failure was only a moment ago."""
        if time.monotonic() < self._rests_until:
            raise self._error()

    def record_failure(self, why: str) -> StoreError:
        """Record that the store has just failed, and return the error to raise."""
        self._rests_until = time.monotonic() + TIMEOUT
        self._settles_until = time.monotonic() + _SETTLES
        if not self._failing:
            self._failing = True
            done, cost = _WORDS[self._operation]
            _log.warning("%s cannot be %s: %s; meanwhile %s", self.place, done, why, cost)
        return self._error()

    def record_reconnection(self) -> None:
        """Record that a connection to the store was lost, so that other processes may not have been able to write."""
        self._settles_until = time.monotonic() + _SETTLES

    def record_success(self) -> None:
        """Record that the operation has succeeded."""
        if self._failing:
            self._failing = False
            _log.warning("%s can be %s again", self.place, _WORDS[self._operation][0])

    def check_missing(self) -> None:
        """Raise StoreError if a value that was not found may still be written, because an outage was recent."""
        if time.monotonic() < self._settles_until:
            raise self._error()

    def resume(self) -> None:
        """Allow the next operation, even if the last failure was only a moment ago."""
        self._rests_until = 0.0

    def _error(self) -> StoreError:
        self._on_failure(self._operation)
        return StoreError("earlier replies cannot be read at the moment: try again", code="store_unavailable")
