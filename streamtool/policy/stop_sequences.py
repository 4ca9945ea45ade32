"""Finds the caller's stop strings in visible text that arrives in pieces.

The upstream never hears of them: it would look for them in our call syntax and in arguments too, and cut a call. Each
string is looked for with its table of borders (the automaton of Knuth, Morris and Pratt), so that no character is
looked at twice, however long the strings are and however the text is cut. What may still become one of them waits.
"""

from collections.abc import Iterable


class _StopSequence:
    """One string, and how much of it stands at the end of the text."""

    __slots__ = ("_borders", "met", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.met = 0
        self._borders = [0] * len(text)
        for place in range(1, len(text)):
            self._borders[place] = self._next(self._borders[place - 1], text[place])

    def _next(self, met: int, char: str) -> int:
        while met and self.text[met] != char:
            met = self._borders[met - 1]
        return met + (self.text[met] == char)

    def feed(self, char: str) -> bool:
        """Whether the string is whole with this character."""
        self.met = self._next(self.met, char)
        return self.met == len(self.text)


class StopSequences:
    """Looks for the first of some strings.

    Of many strings only those are advanced that have begun, or begin with the character at hand.
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
        """Something waits."""
        return bool(self._held)

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown, and the string that stands directly behind it, if one does."""
        if not self._held and self._starts.keys().isdisjoint(text):
            return text, None
        text, before = self._held + text, len(self._held)
        for place in range(before, len(text)):
            char = text[place]
            starts = self._starts.get(char)
            if starts is None and not self._begun:
                continue
            ones = [*self._begun, *(one for one in starts or () if not one.met)]
            whole = [one.text for one in ones if one.feed(char)]
            if whole:
                found = max(whole, key=len)  # of two that end at the same place, it begins first
                self._begun = ones
                self.close()
                return text[: place + 1 - len(found)], found
            self._begun = [one for one in ones if one.met]
        waits = len(text) - max((one.met for one in self._begun), default=0)
        self._held = text[waits:]
        return text[:waits], None

    def close(self) -> str:
        """What waited: it became none of them. Looking begins anew."""
        held, self._held = self._held, ""
        for one in self._begun:
            one.met = 0
        self._begun = []
        return held
