"""One raw value between quotes of its format, in which no other marker counts."""

from collections.abc import Generator, Sequence

from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import Marker, Tables, look
from statemachine.bodies.raw_value import RawValue
from statemachine.bodies.shown import Kind
from statemachine.buffer import Grammar
from statemachine.machine import Machine


class Quoted(RawValue):
    """A value between quotes of its format, opened already, in which no other marker counts."""

    __slots__ = ()

    def __init__(self, machine: Machine, table: Tables, levels: Sequence[Level], slot: Slot) -> None:
        super().__init__(machine, table, levels, slot, trimmed=False)
        if table.quoted is not None:
            self.run = table.quoted.run

    def marker(self, offset: int) -> Generator[None, None, tuple[Marker | None, int]]:
        """The quote's closer, or another quote's opener, and where it ends."""
        if self.table.quoted is None:
            return None, 0
        return (yield from look(self.machine, self.table.quoted.markers, offset))

    def ends(self, mark: Marker | None, end: int, offset: int) -> Generator[None, None, bool]:  # noqa: ARG002  (the base's)
        """True if this is the quote's closer, and the value's closer, or what implies it, follows."""
        machine = self.machine
        reader = machine.reader
        if mark is not Marker.VALUE_END:
            if reader.ended:
                yield from reader.more()
            return False
        after = yield from machine.reader.past_blanks(end)
        if after < 0:
            return False
        if self.shown.balances:
            end = yield from self.closer(after)
            return end > 0 and (yield from self.ends_call(end))
        if reader.ended and reader.at + after >= len(reader.text):
            return True
        if (yield from self.closer(after)) > 0:
            return True
        mark, end = yield from super().marker(after)
        return (yield from super().ends(mark, end, after))

    def show(self, mark: Marker | None, end: int) -> Generator[None, None, int]:
        """Length of what stands here: a quote that the value shows opens or closes, or one character."""
        if mark is Marker.OPEN:
            self.shown.open(Kind.QUOTE)
        elif mark is Marker.VALUE_END:
            self.shown.close_key()
        yield from ()
        return end or 1

    def close(self) -> Grammar:
        """The closers of the quote and of the value, when they are there."""
        mark, end = yield from self.marker(0)
        if mark is Marker.VALUE_END:
            after = yield from self.machine.reader.past_blanks(end)
            self.machine.reader.take(max(after, end))
        yield from super().close()
