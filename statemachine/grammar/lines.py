"""Markers that count only at the start of a line: labels, code fences, block quotes."""

from collections.abc import Generator

from statemachine.formats.markers import Markers
from statemachine.formats.scanner import Marked
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar import call, fences
from statemachine.grammar.saying import blanks, emit_text, line_ends, scanner_of
from statemachine.machine.machine import INSIDE, QUOTE, START, Machine


def read(machine: Machine) -> Generator[None, None, bool]:
    """Read an opener at the start of a line, possibly after buffered newlines. Return whether there was one."""
    reader, line = machine.reader, machine.tables.line
    while True:
        text, at = reader.text, reader.at
        run = line_ends(text, at)
        newlines = run.end() - at if run else 0
        begin = at + newlines
        char = text[begin : begin + 1]
        if not char:
            if newlines:
                return False
            yield from reader.more()
        elif char in " \t":
            reader.take(blanks(text, begin).end() - at)  # type: ignore[union-attr]  # * always matches
        else:
            # The order matters: a label or a fence takes precedence over a block quote, and only a line with none of
            # these is ordinary text.
            found = line.match(text, begin)
            if found is None:
                if char != ">" or (yield from open_quote(machine, newlines)):
                    machine.text_state.place = INSIDE if machine.text_state.place is START else machine.text_state.place
                    return False
            elif found.lastindex is None or fences.is_too_short(machine, newlines):
                yield from reader.more()
            else:
                value, length = line.values[found.lastindex - 1], found.end() - reader.at
                if value is TextFinding.FENCE:
                    plain = fences.open_plain_fence(machine, newlines)
                    return plain or (yield from fences.read_opener(machine, newlines))
                machine.open_candidate()
                if newlines:
                    reader.take(newlines)
                yield from call.read(machine, value, length - newlines)
                return True


def begins_quote(machine: Machine, begin: int, markers: Markers[Marked] | None) -> bool:
    """Return whether the `>` at `begin`, the first character of its line, may begin a block quote.

    This is possible if block quotes count here and none of the markers begins at that position.
    """
    quotes = scanner_of(machine).quote is not None
    return quotes and (markers is None or markers.match(machine.reader.text, begin) is None)


def open_quote(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Read a `>` that is the first character of its line, after newlines, as a block quote unless it begins a marker.

    Return False if more text was needed, so that the line has to be examined again.
    """
    reader, scanner = machine.reader, scanner_of(machine)
    found = scanner.at.match(reader.text, reader.at + newlines)
    if found is not None and found.lastindex is None:
        yield from reader.more()
        return False
    if found is None and scanner.quote is not None:
        emit_text(machine, newlines)
        machine.text_state.place = QUOTE
    return True
