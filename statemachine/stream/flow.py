"""The state in which text flows through a parser unchanged."""

from collections.abc import Callable
from typing import Protocol

from statemachine.events import Event


class Flow(Protocol):
    """The part of a parser's state that decides whether text flows; see `Parser.flow`."""

    remaining: int

    @property
    def scan(self) -> Callable[[str], object] | None: ...
    @property
    def delta(self) -> type[Event] | None: ...
