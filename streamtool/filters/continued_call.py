"""A parser that continues a broken call: it has read the text before the break, and the client knows more than that.

A parser that reads ahead may have emitted arguments because of the text that broke the call. The client has received
them, so the text that follows has to lead to the same arguments: they are compared and dropped.
"""

from statemachine import ArgumentsDelta, CallEnd, Event
from streamtool.filters.null_parser import TextParser


class ContinuedCall:
    """A parser inside the arguments of a call. The client has already received the next arguments (`ahead`).

    If the text leads to other arguments, the call breaks once more.
    """

    __slots__ = ("_ahead", "_parser")

    flow = None  # the arguments are compared

    def __init__(self, parser: TextParser, ahead: str) -> None:
        self._parser = parser
        self._ahead = ahead

    @property
    def in_call(self) -> bool:
        """Whether the parser is inside a call or its markup."""
        return self._parser.in_call

    @property
    def contradicted(self) -> bool:
        """Whether the arguments that the client has received have not been written yet."""
        return bool(self._ahead)

    def feed(self, text: str, /) -> list[Event]:
        """Feed a piece of text and return the resulting events."""
        events = self._parser.feed(text)
        return self._compare(events) if self._ahead else events

    def close(self, reason: str | None = None, /) -> list[Event]:
        """Note the end of the text and return the last events."""
        events = self._parser.close(reason)
        return self._compare(events) if self._ahead else events

    def _compare(self, events: list[Event]) -> list[Event]:
        """Return the events without the arguments that the client has received."""
        for number, event in enumerate(events):
            if not isinstance(event, ArgumentsDelta):
                return [CallEnd(getattr(event, "index", 0), False)]
            known, new = self._ahead[: len(event.text)], event.text[len(self._ahead) :]
            if event.text[: len(known)] != known:
                return [CallEnd(event.index, False)]
            self._ahead = self._ahead[len(known) :]
            if not self._ahead:
                rest = events[number + 1 :]
                return [ArgumentsDelta(event.index, new), *rest] if new else rest
        return []
