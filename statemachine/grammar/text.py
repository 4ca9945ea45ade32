"""Text in which openers are looked for.

Text flows in one run whose pattern knows the first characters of everything that may begin (`formats/scanner.py`); the
functions here are entered only where something may. What is held is the beginning of a marker at the end of a piece,
and a run of line ends, because line ends directly before an opener are markup.
"""

import re
from collections.abc import Generator

from statemachine.buffer import Grammar
from statemachine.candidate import TICK
from statemachine.emitter import Sink
from statemachine.formats.format import Anchor, Section
from statemachine.formats.markers import Markers
from statemachine.formats.scanner import MAX_NEWLINES, Marked, Scanner
from statemachine.formats.unmarked import Found
from statemachine.grammar import call, closers, lines
from statemachine.grammar.fences import opens_plain_fence
from statemachine.grammar.left_over import left_over, may_be_left_over
from statemachine.grammar.objects import into_object, opens_plain_array, opens_plain_object
from statemachine.grammar.saying import blanks, line_ends, say, scanner_of
from statemachine.machine import CODE, INSIDE, QUOTE, START, Machine
from statemachine.runs import Run
from statemachine.states import Input

KEYWORD = r"[A-Za-z_]\w{0,127}+[ \t]{0,16}+(?:\Z|=(?:\Z|(?!=)()))"
ARGUMENTS = rf"\([ \t\r\n]{{0,64}}+(?:\Z|(\))|{KEYWORD})"
list_begins = re.compile(rf"\[[ \t\r\n]{{0,64}}+(?:\Z|[A-Za-z_][\w.]{{0,127}}+[ \t]{{0,16}}+(?:\Z|{ARGUMENTS}))").match
"""A list of call expressions, up to the end of its first call's arguments or to its first keyword."""


def read(machine: Machine) -> Grammar:
    """Text, until something else begins or what is around ends."""
    reader, past = machine.reader, machine.past
    reader.sink = machine.frames.top.sink
    while True:
        if past.place is START and (yield from lines.read(machine)):
            return
        scanner = scanner_of(machine)
        place = past.place
        run = scanner.code if place is CODE else (place is QUOTE and scanner.quote) or scanner.inside
        if past.text_seen and not past.at_message_start and place is not START:
            yield from reader.flow(run)
            ran = reader.ran
            if ran is scanner.objects.members or ran is scanner.objects.string:
                into_object(machine, quoted=ran is scanner.objects.string)
                return
            place = START if ran is scanner.start else CODE if ran is scanner.code else INSIDE
            past.place = place = QUOTE if ran is scanner.quote else place
            if place is START and reader.at < len(reader.text):
                continue
        elif first_text(machine, scanner, run):
            continue
        place = past.place
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif place is CODE or place is QUOTE:
            say(machine, int(place is CODE and reader.text[reader.at] == TICK))
            past.place = INSIDE
        elif (yield from begins(machine, scanner.at)):
            return


def first_text(machine: Machine, scanner: Scanner, run: Run) -> bool:
    """Text up to the next place, while it matters whether something visible has come.

    True if now it has, or if something stands at the start of a line.
    """
    reader, past = machine.reader, machine.past
    found = run.match(reader.text, reader.at)
    if found is None:
        return False
    before, group = (past.text_seen, past.at_message_start), found.lastindex
    say(machine, (found.end() if group is None else found.start(group)) - reader.at)
    into = run.others.get(group or 0)
    if into is scanner.start:
        past.place = START
    elif into is scanner.code:
        past.place = CODE
    elif into is scanner.inside:
        past.place = INSIDE
    elif into is not None and into is scanner.quote:
        past.place = QUOTE
    line_begins = into is scanner.start and reader.at < len(reader.text)
    return line_begins or before != (past.text_seen, past.at_message_start)


def begins(machine: Machine, markers: Markers[Marked]) -> Generator[None, None, bool]:
    """Something may begin here, line ends perhaps before it: true if it did, and the state says what is next."""
    reader, line = machine.reader, machine.tables.line
    run = line_ends(reader.text, reader.at)
    newlines = (run.end() if run else reader.at) - reader.at
    start = reader.at + newlines
    if start >= len(reader.text) or (reader.text[start] == "\r" and start + 1 >= len(reader.text)):
        say(machine, len(reader.text) - reader.at - MAX_NEWLINES)
        yield from reader.more()
        return False
    if newlines > MAX_NEWLINES:
        say(machine, newlines - MAX_NEWLINES)
        return False
    if newlines:
        after = blanks(reader.text, start)
        begin = after.end() if after else start
        if begin >= len(reader.text) or (
            lines.begins_quote(machine, begin, markers if begin == start else None)
            if reader.text[begin] == ">"
            else begin > start and line.match(reader.text, begin)
        ):
            say(machine, begin - reader.at)
            machine.past.place = START
            return False
        found = line.match(reader.text, start)
        if found is not None:
            if found.lastindex is None:
                yield from reader.more()
            elif reader.text[start] == TICK and opens_plain_fence(machine, newlines):
                return True
            machine.past.place = START
            return False
    found = markers.match(reader.text, start)
    if found is None:
        say(machine, newlines + 1)
        return False
    if found.lastindex is None:
        yield from reader.more()
        return False
    value, length = markers.values[found.lastindex - 1], found.end() - reader.at
    del found  # a match of so many groups takes more room than the rest of the parser
    return (yield from marker(machine, value, newlines, length))


def marker(machine: Machine, value: Marked, newlines: int, end: int) -> Generator[None, None, bool]:
    """A marker stands here up to `end`, after line ends; true if the state says what is next."""
    reader = machine.reader
    if value is Found.TICK:
        say(machine, end)
        machine.past.place = CODE
        return False
    if value is Found.TAG:
        machine.past.tags_shown = True
        say(machine, newlines + 1)
        return False
    if isinstance(value, str):
        if may_be_left_over(machine, value):
            yield from left_over(machine, value, newlines, end)
            return False
        if value in machine.tables.closers.strays and not (
            yield from closers.ends_something(machine, value, newlines, end)
        ):
            return False
        if (yield from closers.closes_nothing(machine, value, newlines, end)):
            closers.drop(machine, value, newlines, end)
            return False
        return closers.in_text(machine, value, newlines, end)
    if isinstance(value, Section):
        if machine.frames.reasoning or (machine.past.text_seen and value.anchor is Anchor.REPLY):
            machine.past.shown.add(value.close)
            say(machine, newlines + 1)
            return False
        section(machine, value, end)
    elif value is Found.LIST and not (yield from begins_list(machine, newlines)):
        return False
    elif value is Found.BARE and opens_plain_object(machine, newlines):
        return True
    elif value is Found.BARE and opens_plain_array(machine, newlines):
        return False
    elif value is Found.BARE and scanner_of(machine).begun(reader.text, reader.text.find("{", reader.at + newlines)):
        yield from reader.more()
        return False
    else:
        machine.open()
        if newlines:
            machine.past.opens_line = True
            reader.take(newlines)
        yield from call.read(machine, value, end - newlines)
    return True


def begins_list(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """True if a list of call expressions may begin here; else the bracket is text."""
    reader = machine.reader
    found = list_begins(reader.text, reader.at + newlines)
    if found is None:
        say(machine, newlines + 1)
    elif found.lastindex:
        return True
    else:
        yield from reader.more()
    return False


def section(machine: Machine, found: Section, end: int) -> None:
    """The opener of reasoning, or of text that stands between markers, with the line ends before it."""
    machine.reader.sink = Sink.SYNTAX
    machine.reader.take(end)
    if found.text:
        machine.frames.wrap((found.close,))
        machine.past.place = START
    else:
        machine.frames.go(Input.THINK, found.close, *machine.tables.closers.implied.get(found.close, ()))
