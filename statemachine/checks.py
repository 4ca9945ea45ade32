"""The law at run time: a parser that is held to `EMITS` and `FOLLOWS` at every feed.

`enforce()` makes every `Parser` such a one. Only the tests call it, so nobody else pays; those that measure time
`relax()` it again.
"""

from typing import Any

from statemachine.events import Event
from statemachine.parser import Parser
from statemachine.states import EMITS, Order, State


class CheckedParser(Parser):
    """A parser that looks at what it emits.

    Raises:
        AssertionError: an event is not legal in any state that the parser passed through, or after the one before.

    """

    __slots__ = ("_order",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._order = Order()
        self._machine.frames.trace = list(State) if options.get("prefix") else [self.state]

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of the reply brings."""
        return self._checked(super().feed(text))

    def close(self, reason: str | None = None) -> list[Event]:
        """The last events."""
        events = self._checked(super().close(reason))
        if self.state is not State.CLOSED or self._order.unfinished():
            raise AssertionError(f"closed in {self.state}: {self._order.unfinished()}")
        return events

    @property
    def visited(self) -> list[State]:
        """The state that the parser was in, and those that it passed through since."""
        return self._machine.frames.trace or []

    def _checked(self, events: list[Event]) -> list[Event]:
        if events:
            visited = {*self.visited}
            for event in events:
                if wrong := self._order.wrong(event):
                    raise AssertionError(f"{event}: {wrong}")
                if not any(type(event) in EMITS[state] for state in visited):
                    raise AssertionError(f"{event} is not legal in any of {visited}")
        self._machine.frames.trace = [self.state]
        return events


def enforce() -> None:
    """From here on every parser is held to the law."""

    def new(cls: type[Parser], *_args: Any, **_options: Any) -> Parser:
        return object.__new__(CheckedParser if cls is Parser else cls)

    Parser.__new__ = new  # type: ignore[method-assign, assignment]


def relax() -> None:
    """From here on parsers are what everybody else gets: for tests that measure what they cost."""

    def new(cls: type[Parser], *_args: Any, **_options: Any) -> Parser:
        return object.__new__(cls)

    Parser.__new__ = new  # type: ignore[method-assign, assignment]
