"""The interface of the parsers that read the upstream's text, and a no-op parser for requests without tools."""

from typing import Protocol

from statemachine import Event, TextDelta
from statemachine.stream.flow import Flow


class TextParser(Protocol):
    """The part of a parser's interface that the choice filter uses."""

    @property
    def in_call(self) -> bool: ...
    @property
    def flow(self) -> Flow | None: ...
    def feed(self, text: str, /) -> list[Event]: ...
    def close(self, reason: str | None = None, /) -> list[Event]: ...


class _AllText:
    """The flow of text that needs no parser."""

    remaining = 0
    delta: type[Event] | None = TextDelta

    @staticmethod
    def scan(text: str, /) -> None:
        """Find nothing."""


class NullParser:
    """A parser for requests without tools, which treats all text as plain text."""

    __slots__ = ()

    flow: Flow = _AllText()
    held = 0
    in_call: bool = False
    in_reasoning: bool = False

    def feed(self, text: str, /) -> list[Event]:
        """Return the text as a single event."""
        return [TextDelta(text)]

    def close(self, reason: str | None = None, /) -> list[Event]:  # noqa: ARG002  same signature as the parser
        """Return no events, since nothing is ever buffered."""
        return []
