"""Detection of a model that repeats one passage without end inside an argument."""

from typing import Final

STEP: Final = 4096
"""Number of characters between two examinations, so that a delta costs one comparison."""
_LONGEST: Final = 1024
"""Maximum size of a passage in bytes. Small models repeat a line, or a few."""


def passage_of(text: bytes) -> int:
    """Return the size of the passage whose repetitions make up all of this text, or 0 if it is not repetitive."""
    tail = text[-_LONGEST:]
    before = text.rfind(tail, 0, len(text) - 1)
    size = len(text) - len(tail) - before
    return size if before >= 0 and size <= _LONGEST and text[size:] == text[:-size] else 0
