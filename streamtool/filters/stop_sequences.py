"""Search for the client's stop sequences in visible text that arrives in pieces.

The upstream never receives the stop sequences: it would find them in call syntax and arguments as well, and truncate a
call. Each one is searched for with its border table (the Knuth-Morris-Pratt automaton), so that no character is
examined twice, however long the stop sequences are and however the text is split. Text that may still become a stop
sequence is buffered.
"""

from collections.abc import Iterable


class _StopSequence:
    """One stop sequence, and the number of its characters that the end of the text matches."""

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = [0] * len(text)
        for place in range(1, len(text)):
            self._borders[place] = self._next(self._borders[place - 1], text[place])

    def _next(self, met: int, char: str) -> int:
        while met and self.text[met] != char:
            met = self._borders[met - 1]
        return met + (self.text[met] == char)

    def feed(self, char: str) -> bool:
        """Advance by one character. Return whether the stop sequence is complete."""
        self.matched = self._next(self.matched, char)
        return self.matched == len(self.text)


class StopSequences:
    """A matcher that finds the first of several stop sequences.

    Only stop sequences that have begun, or that begin with the current character, are advanced.
    """

    __slots__ = ("_begun", "_held", "_starts")

    def __init__(self, strings: Iterable[str]) -> None:
        self._starts: dict[str, list[_StopSequence]] = {}
        for text in dict.fromkeys(strings):
            self._starts.setdefault(text[0], []).append(_StopSequence(text))
        self._begun: list[_StopSequence] = []
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether any text is buffered."""
        return bool(self._held)

    @property
    def held(self) -> str:
        """The buffered text."""
        return self._held

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the text that may be shown, and the stop sequence that directly follows it, or None if none has been
        found.
        """
        if not self._held and self._starts.keys().isdisjoint(text):
            return text, None
        text, before = self._held + text, len(self._held)
        for place in range(before, len(text)):
            char = text[place]
            starts = self._starts.get(char)
            if starts is None and not self._begun:
                continue
            ones = [*self._begun, *(one for one in starts or () if not one.matched)]
            whole = [one.text for one in ones if one.feed(char)]
            if whole:
                found = max(whole, key=len)  # if two end at the same place, the longer one begins first
                self._begun = ones
                self.close()
                return text[: place + 1 - len(found)], found
            self._begun = [one for one in ones if one.matched]
        waits = len(text) - max((one.matched for one in self._begun), default=0)
        self._held = text[waits:]
        return text[:waits], None

    def close(self) -> str:
        """Return the buffered text, which did not become a stop sequence, and start over."""
        held, self._held = self._held, ""
        for one in self._begun:
            one.matched = 0
        self._begun = []
        return held
