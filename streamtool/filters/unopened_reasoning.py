"""Detection of reasoning that a reply closes although it has not opened it, because the prompt opened it unnoticed.

The text before the closer has been read as the reply itself, and its calls have been delivered. A model that writes a
call in its reasoning usually writes the same call again after it, so the calls before the closer count as calls in
reasoning (`repeated_calls`).

The closer is only searched for when another call begins, not in each delta. To find out which calls precede it, the
text up to the closer is then parsed again, once per reply.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from statemachine import CallEnd, CallStart
from statemachine.formats import FORMATS, REASONING
from streamtool.filters.null_parser import TextParser

_SECTIONS: Final = [
    section
    for section in dict.fromkeys((*REASONING, *(section for form in FORMATS.values() for section in form.sections)))
    if not section.text and "think" in section.close.lower()
]
"""The kinds of reasoning whose closers have no other meaning."""
_CLOSERS: Final = frozenset(section.close.encode() for section in _SECTIONS)
_MARKER: Final = re.compile(b"|".join(re.escape(one.encode()) for s in _SECTIONS for one in (s.open, s.close)))
_LONGEST: Final = max(len(section.close.encode()) for section in _SECTIONS)


class UnopenedReasoning:
    """A detector for one attempt at a choice. `new_parser` returns a parser for its text."""

    __slots__ = ("_begin", "_calls", "_choice", "_inside", "_new_parser", "_searched")

    def __init__(self, choice: int, new_parser: Callable[[int], TextParser]) -> None:
        self._choice = choice
        self._new_parser = new_parser
        self.restart(0)

    def restart(self, begin: int) -> None:
        """Prepare for the next attempt, whose text begins at this position in bytes."""
        self._begin = self._searched = begin
        self._calls = 0
        """Number of calls that have begun."""
        self._inside: int | None = None
        """Number of calls before the closer; 0 if the reasoning was opened, None if no closer has been found."""

    def ends_before_call(self, written: bytearray) -> bool:
        """Note that a call has begun in the text, and return whether it is the first one after the closer."""
        number, self._calls = self._calls, self._calls + 1
        if number and self._inside is None:
            self._inside = self._search(written)
        return number > 0 and number == self._inside

    def _search(self, written: bytearray) -> int | None:
        for found in _MARKER.finditer(written, self._searched):
            if found[0] not in _CLOSERS:
                return 0
            if written[found.start() - 1 : found.start()] == b"`":  # a closer that is only mentioned
                continue
            text = written[self._begin : found.start()].decode("utf-8", "surrogatepass")
            kinds = Counter(map(type, self._new_parser(self._choice).feed(text)))
            if kinds[CallStart] == kinds[CallEnd]:  # the closer is not part of a call
                return kinds[CallStart]
        self._searched = max(self._searched, len(written) - _LONGEST)
        return None
