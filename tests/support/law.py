"""Runtime check of the state tables: parsers that are verified against `EMITS` and `FOLLOWS` on every feed.

`enforce()` makes every new `Parser` a checked one. Only the tests call it, so nothing else pays for it; tests that
measure time call `relax()`.
"""

from typing import Any

from statemachine.events import Event
from statemachine.machine.states import EMITS, EventOrder, State
from statemachine.parser import Parser


class CheckedParser(Parser):
    """Parser that verifies the events it emits.

    Raises:
        AssertionError: an event is illegal in every state that the parser passed through, or after the event before it.
    """

    __slots__ = ("_order",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._order = EventOrder()
        self._machine.frames.trace = list(State) if options.get("prefix") else [self.state]

    def feed(self, text: str) -> list[Event]:
        """Return the events of this piece of the reply."""
        events = Parser.feed(self, text)
        if events:
            return self._checked(events)
        self._machine.frames.trace = [self.state]
        return events

    def close(self, reason: str | None = None) -> list[Event]:
        """Return the last events."""
        events = self._checked(super().close(reason))
        if self.state is not State.CLOSED or self._order.unfinished():
            raise AssertionError(f"closed in {self.state}: {self._order.unfinished()}")
        return events

    @property
    def visited(self) -> list[State]:
        """States since the last feed: the one the parser was in, and those it has passed through."""
        return self._machine.frames.trace or []

    def _checked(self, events: list[Event]) -> list[Event]:
        visited = self.visited
        legal = EMITS[visited[0]] if len(visited) == 1 else frozenset[type]().union(*map(EMITS.__getitem__, visited))
        for event in events:
            if wrong := self._order.violations_by(event):
                raise AssertionError(f"{event}: {wrong}")
            if type(event) not in legal:
                raise AssertionError(f"{event} is not legal in any of {visited}")
        self._machine.frames.trace = [self.state]
        return events


def enforce() -> None:
    """Make every new parser a checked one."""

    def new(cls: type[Parser], *_args: Any, **_options: Any) -> Parser:
        return object.__new__(CheckedParser if cls is Parser else cls)

    Parser.__new__ = new  # type: ignore[method-assign, assignment]


def relax() -> None:
    """Make new parsers ordinary ones, for tests that measure their cost."""

    def new(cls: type[Parser], *_args: Any, **_options: Any) -> Parser:
        return object.__new__(cls)

    Parser.__new__ = new  # type: ignore[method-assign, assignment]
