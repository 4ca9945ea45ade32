"""A parser for a reply whose beginning was already part of the prompt.

Most servers reply with the continuation of that beginning. But some servers repeat it, a model whose server does not
support continuation begins its call again, and some models write something else altogether. The first characters
decide: if the reply begins with the marker that the beginning contains, or cannot continue the beginning, it is parsed
on its own. Until this is decided, the characters are buffered: at most as many as the marker has, not counting
whitespace.
"""

from collections.abc import Callable

import statemachine
from statemachine.stream.flow import Flow
from streamtool.core.conversation import Forcing
from streamtool.filters.null_parser import TextParser

_BLANKS = 1000
"""Maximum number of whitespace characters before a repeated beginning."""


class Prefilled:
    """A parser for one reply to this beginning. `new_parser` returns a parser for a reply with the given prefix."""

    __slots__ = ("_beginning", "_held", "_new_parser", "_parser")

    def __init__(self, beginning: Forcing, new_parser: Callable[[str], TextParser]) -> None:
        self._beginning = beginning
        self._new_parser = new_parser
        self._parser: TextParser | None = None
        self._held = ""

    @property
    def in_call(self) -> bool:
        """Whether the parser is inside a call or its markup."""
        return self._parser is not None and self._parser.in_call

    @property
    def flow(self) -> Flow | None:
        """The parser's `flow`, once the parser is determined."""
        return None if self._parser is None else self._parser.flow

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """Feed a piece of the reply and return the resulting events."""
        if self._parser is not None:
            return self._parser.feed(text)
        text, self._held = self._held + text, ""
        known = continues_beginning(text, self._beginning)
        if known is None:
            self._held = text
            return []
        self._parser = self._new_parser(self._beginning.value if known else "")
        return self._parser.feed(text)

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:
        """Note the end of the reply and return the last events. An empty reply is not a call, even if the prompt began
        one.
        """
        if self._parser is None:
            if not self._held.strip():
                return []
            self._parser = self._new_parser(self._beginning.value)
            return [*self._parser.feed(self._held), *self._parser.close(reason)]
        return self._parser.close(reason)


def continues_beginning(text: str, beginning: Forcing) -> bool | None:
    """Return whether a reply that begins with `text` continues the beginning, or None if that is not known yet."""
    begun = text.lstrip()
    marker = beginning.triggers[0]
    if begun.startswith(marker):
        return False
    if marker.startswith(begun) and len(text) < len(begun) + _BLANKS:
        return None
    return begun.startswith(beginning.follows)
