"""What reads the text of an upstream: a parser, or for a request without tools something that finds nothing."""

from typing import Protocol

import statemachine


class TextParser(Protocol):
    """What the choice filter needs of a parser."""

    def feed(self, text: str, /) -> list[statemachine.Event]: ...
    def close(self, reason: str | None = None, /) -> list[statemachine.Event]: ...


class NullParser:
    """The parser of a request without tools: text is text, whatever stands in it."""

    __slots__ = ()

    held = 0
    in_reasoning: bool = False

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """The text itself."""
        return [statemachine.TextDelta(text)]

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:  # noqa: ARG002  as the parser has it
        """Nothing was held."""
        return []
