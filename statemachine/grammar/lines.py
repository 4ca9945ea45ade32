"""What counts at the start of a line only: labels, code fences, block quotes."""

from collections.abc import Generator

from statemachine.formats.markers import Markers
from statemachine.formats.scanner import Marked
from statemachine.formats.unmarked import Found
from statemachine.grammar import call, fences
from statemachine.grammar.saying import blanks, line_ends, say, scanner_of
from statemachine.machine import INSIDE, QUOTE, START, Machine


def read(machine: Machine) -> Generator[None, None, bool]:
    """At the start of a line, line ends perhaps held before it: true if an opener stood here and was read."""
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
            found = line.match(text, begin)
            if found is None:
                if char != ">" or (yield from opens_quote(machine, newlines)):
                    machine.past.place = INSIDE if machine.past.place is START else machine.past.place
                    return False
            elif found.lastindex is None or fences.too_short(machine, newlines):
                yield from reader.more()
            else:
                value, length = line.values[found.lastindex - 1], found.end() - reader.at
                if value is Found.FENCE:
                    plain = fences.opens_plain_fence(machine, newlines)
                    return plain or (yield from fences.opener(machine, newlines))
                machine.open()
                if newlines:
                    reader.take(newlines)
                yield from call.read(machine, value, length - newlines)
                return True


def begins_quote(machine: Machine, begin: int, markers: Markers[Marked] | None) -> bool:
    """True if the `>` that stands there, first in its line, may make the line one of a block quote.

    It may if none of the markers begins so.
    """
    quotes = scanner_of(machine).quote is not None
    return quotes and (markers is None or markers.match(machine.reader.text, begin) is None)


def opens_quote(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """At a `>` that stands first in its line, after line ends: text to the end of the line, unless it is a marker.

    False: more had to come, look again.
    """
    reader, scanner = machine.reader, scanner_of(machine)
    found = scanner.at.match(reader.text, reader.at + newlines)
    if found is not None and found.lastindex is None:
        yield from reader.more()
        return False
    if found is None and scanner.quote is not None:
        say(machine, newlines)
        machine.past.place = QUOTE
    return True
