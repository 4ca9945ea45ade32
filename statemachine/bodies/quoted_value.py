"""Raw value between the quote markers of its format (such as CDATA), between which no other marker is recognized."""

from collections.abc import Generator, Sequence

from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import Marker, Tables, marker_at
from statemachine.bodies.raw_value import RawValue
from statemachine.bodies.shown import MarkupKind
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import Grammar


class Quoted(RawValue):
    """Value between the quote markers of its format, read from the text after the opening marker."""

    __slots__ = ()

    def __init__(self, machine: Machine, table: Tables, levels: Sequence[Level], slot: Slot) -> None:
        super().__init__(machine, table, levels, slot, trimmed=False)
        if table.quoted is not None:
            self.run = table.quoted.run

    def marker(self, offset: int) -> Generator[None, None, tuple[Marker | None, int]]:
        """Return the marker at `offset`, which may be the quote's closer or another quote's opener, and the offset of
        its end.
        """
        if self.table.quoted is None:
            return None, 0
        return (yield from marker_at(self.machine, self.table.quoted.markers, offset))

    def ends(self, mark: Marker | None, end: int, offset: int) -> Generator[None, None, bool]:  # noqa: ARG002  (signature of the base class)
        """Return whether this is the quote's closer, followed by the value's closer or by text that implies it."""
        machine = self.machine
        reader = machine.reader
        if mark is not Marker.VALUE_END:
            if reader.ended:
                yield from reader.more()
            return False
        after = yield from machine.reader.whitespace_end(end)
        if after < 0:
            return False
        if self.shown.closes_shown_key:
            end = yield from self.closer(after)
            return end > 0 and (yield from self.ends_call(end))
        if reader.ended and reader.at + after >= len(reader.text):
            return True
        if (yield from self.closer(after)) > 0:
            return True
        mark, end = yield from super().marker(after)
        return (yield from super().ends(mark, end, after))

    def show(self, mark: Marker | None, end: int) -> Generator[None, None, int]:
        """Return the length of the text here: the opener or closer of a quote that is part of the value, or one
        character.
        """
        if mark is Marker.OPEN:
            self.shown.open(MarkupKind.QUOTE)
        elif mark is Marker.VALUE_END:
            self.shown.close_key()
        yield from ()
        return end or 1

    def close(self) -> Grammar:
        """Consume the closers of the quote and of the value, if present."""
        mark, end = yield from self.marker(0)
        if mark is Marker.VALUE_END:
            after = yield from self.machine.reader.whitespace_end(end)
            self.machine.reader.take(max(after, end))
        yield from super().close()
