"""Detection of replies that repeat themselves without end.

Small models often repeat a passage until the maximum length. At temperature 0 such a reply contains nothing new, but
costs as much time as several other replies, so `eval` ends it.
"""

import re
from typing import Final

TIMES: Final = 3
"""Number of times that a passage must be repeated at the end of a reply."""
LENGTH: Final = 200
"""Minimum number of characters of all repetitions. No right reply of our suite or of BFCL repeats that much."""
_WINDOW: Final = 2400
"""Number of characters at the end of a reply that are examined, and so `TIMES` × the longest passage."""
_DIGIT: Final = re.compile(r"\d")


class RepetitionDetector:
    """A detector for the end of a growing text. Digits count as equal, so that a numbered list of equal entries is a
    repetition.
    """

    def __init__(self) -> None:
        self._end = ""
        self._new = 0
        """Number of characters since the last examination."""

    def feed(self, text: str) -> bool:
        """Add text, and return whether the text so far ends with a repetition. The text is examined only after every
        `LENGTH / TIMES` characters.
        """
        self._end = (self._end + _DIGIT.sub("0", text))[-_WINDOW:]
        self._new += len(text)
        if self._new < LENGTH // TIMES:
            return False
        self._new = 0
        return any(self._repeats(length) for length in range(1, len(self._end) // TIMES + 1))

    def _repeats(self, length: int) -> bool:
        """Return whether the text ends with a passage of this length that is repeated often enough."""
        size = max(LENGTH, TIMES * length)
        return len(self._end) >= size and self._end[-size:-length] == self._end[length - size :]
