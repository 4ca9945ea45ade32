"""The parser of a reply whose beginning stood in the prompt already.

Most servers reply with what follows that beginning. Some repeat it, a model that was not let go on begins its call
anew, and one may write something else altogether. The first characters tell: a reply that begins with the marker of the
beginning, or cannot go on behind it, is read as it is. Until that is known they wait; they are no more than the marker.
"""

from collections.abc import Callable

import statemachine
from streamtool.conversation import Forcing
from streamtool.policy.null_parser import TextParser

_BLANKS = 1000
"""White space that may come before a repeated beginning."""


class Prefilled:
    """Reads one reply to this beginning. `new_parser` makes a parser that knows this prefix of the reply."""

    __slots__ = ("_beginning", "_held", "_new_parser", "_parser")

    def __init__(self, beginning: Forcing, new_parser: Callable[[str], TextParser]) -> None:
        self._beginning = beginning
        self._new_parser = new_parser
        self._parser: TextParser | None = None
        self._held = ""

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """What the parser makes of it."""
        if self._parser is not None:
            return self._parser.feed(text)
        text, self._held = self._held + text, ""
        known = goes_on(text, self._beginning)
        if known is None:
            self._held = text
            return []
        self._parser = self._new_parser(self._beginning.value if known else "")
        return self._parser.feed(text)

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:
        """What is left. A reply that says nothing is no call, whatever it was to begin with."""
        if self._parser is None:
            if not self._held.strip():
                return []
            self._parser = self._new_parser(self._beginning.value)
            return [*self._parser.feed(self._held), *self._parser.close(reason)]
        return self._parser.close(reason)


def goes_on(text: str, beginning: Forcing) -> bool | None:
    """Whether a reply that begins with `text` goes on behind the beginning; None: that is not known yet."""
    begun = text.lstrip()
    marker = beginning.triggers[0]
    if begun.startswith(marker):
        return False
    if marker.startswith(begun) and len(text) < len(begun) + _BLANKS:
        return None
    return begun.startswith(beginning.follows)
