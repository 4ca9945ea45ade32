"""Text that is searched for openers.

Text flows in one run whose pattern recognizes the first characters of everything that may begin (`formats/scanner.py`);
the functions here are entered only where something may begin. Two things are buffered: an incomplete marker at the end
of a piece, and newlines, because newlines directly before an opener are markup.
"""

import re
from collections.abc import Generator

from statemachine.formats.format import Anchor, Section
from statemachine.formats.markers import Markers
from statemachine.formats.scanner import MAX_NEWLINES, TICK, LinePlace, Marked, Scanner
from statemachine.formats.table import OWN_TURNS, STRUCK
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar import call, closers, code, fences, lines, turns
from statemachine.grammar.left_over import may_be_left_over, read_left_over
from statemachine.grammar.objects import emit_plain_array, enter_object, open_plain_object
from statemachine.grammar.saying import blanks, emit_text, line_ends, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar
from statemachine.stream.emitter import Sink
from statemachine.stream.runs import Run

KEYWORD = r"[A-Za-z_]\w{0,127}+[ \t]{0,16}+(?:\Z|=(?:\Z|(?!=)()))"
ARGUMENTS = rf"\([ \t\r\n]{{0,64}}+(?:\Z|(\))|{KEYWORD}|\{{[ \t\r\n]{{0,64}}+(?:\Z|[\"'}}]()))"
list_begins = re.compile(rf"\[[ \t\r\n]{{0,64}}+(?:\Z|[A-Za-z_][\w.]{{0,127}}+[ \t]{{0,16}}+(?:\Z|{ARGUMENTS}))").match
"""Matches a list of call expressions, up to the end of the first call's arguments or to its first keyword."""


def read(machine: Machine) -> Grammar:
    """Read text until something else begins or the surrounding frame ends."""
    reader, past = machine.reader, machine.text_state
    reader.sink = machine.frames.top.sink
    while True:
        if past.place is START and (yield from lines.read(machine)):
            return
        scanner = scanner_of(machine)
        place = past.place
        run = scanner.runs[INSIDE if place is START else place]
        # Once visible text has been seen, text no longer affects how later text is read, so it may flow without the
        # grammar. Before that, each stretch passes through `emit_text`, which notes the first visible character: from
        # that point on another scanner applies, because reasoning no longer opens.
        if past.text_seen and not past.at_message_start and place is not START:
            yield from reader.flow(run)
            ran = reader.last_run
            if ran is scanner.objects.members or ran is scanner.objects.string:
                enter_object(machine, quoted=ran is scanner.objects.string)
                return
            # `feed` may have followed the text through several runs, so the place is derived from the run in which it
            # stopped.
            past.place = scanner.places.get(ran, INSIDE)  # type: ignore[arg-type]  # a run has flowed
            if past.place is START and reader.at < len(reader.text):
                continue
        elif read_first_text(machine, scanner, run):
            continue
        place = past.place
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif place is not INSIDE and place is not START:
            if (yield from read_place(machine, place)):
                return
        elif (yield from read_beginning(machine, scanner.at)):
            return


def read_place(machine: Machine, place: LinePlace) -> Generator[None, None, bool]:
    """Read a character that stopped a run, in a place other than the start of a line or its inside.

    Return whether the state has changed.
    """
    past, reader = machine.text_state, machine.reader
    if place is LinePlace.OPENING:
        return (yield from code.read(machine, ticks=1))
    if place is LinePlace.CODE:
        return (yield from code.read(machine, span=1))
    if place is LinePlace.CLOSING:
        return (yield from code.read(machine, span=1, ticks=1))
    if place is LinePlace.COLON and reader.text[reader.at] == TICK:
        if not past.text_seen:  # after reasoning
            past.place, past.indent = START, None
            return False
        return (yield from code.read(machine, ticks=0, opens=True))
    if lines.read_item(machine, place):
        if reader.text[reader.at] == TICK:
            return (yield from code.read(machine, ticks=0, opens=True))
        return (yield from fences.open_tilde_fence(machine, 0))
    if (place is LinePlace.INDENTED or place in lines.INDENT_COLUMNS) and lines.begins_indentation(machine):
        return False
    past.place = LinePlace.QUOTE if lines.quote_follows(place, reader.text, reader.at) else INSIDE
    if place is LinePlace.ESCAPE:
        emit_text(machine, int(reader.text[reader.at] in "`\\"))
    return False


def read_first_text(machine: Machine, scanner: Scanner, run: Run) -> bool:
    """Read text up to the next position where something may begin, while it still matters whether the text is visible.

    Return whether the first visible text was seen, or the start of a line was reached.
    """
    reader, past = machine.reader, machine.text_state
    found = run.match(reader.text, reader.at)
    if found is None:
        return False
    before, group = (past.text_seen, past.at_message_start), found.lastindex
    emit_text(machine, (found.end() if group is None else found.start(group)) - reader.at)
    into = run.next_runs.get(group or 0)
    if into is not None:
        past.place = scanner.places.get(into, past.place)
    line_begins = past.place is START and into is not None and reader.at < len(reader.text)
    return line_begins or before != (past.text_seen, past.at_message_start)


def read_beginning(machine: Machine, markers: Markers[Marked]) -> Generator[None, None, bool]:
    """Read whatever may begin here, possibly after newlines. Return whether the state has changed."""
    reader, line = machine.reader, machine.tables.line
    # Newlines before an opener are markup, so they wait until the text after them is known. There are three cases: more
    # than MAX_NEWLINES newlines are text; a marker that is recognized at the start of a line is read by `lines.read`;
    # any other marker is read here, together with its newlines.
    run = line_ends(reader.text, reader.at)
    newlines = (run.end() if run else reader.at) - reader.at
    start = reader.at + newlines
    if start >= len(reader.text) or (reader.text[start] == "\r" and start + 1 >= len(reader.text)):
        emit_text(machine, len(reader.text) - reader.at - MAX_NEWLINES)
        yield from reader.more()
        return False
    if newlines > MAX_NEWLINES:
        emit_text(machine, newlines - MAX_NEWLINES)
        return False
    if newlines:
        after = blanks(reader.text, start)
        begin = after.end() if after else start
        if (
            lines.follows_blank_line(machine, newlines, begin)
            or begin >= len(reader.text)
            or lines.begins_quote(machine, begin, markers if begin == start else None)
            or (begin > start and (reader.text[begin] in "\r\n" or line.match(reader.text, begin)))
        ):
            emit_text(machine, begin - reader.at)
            machine.text_state.place = START
            return False
        found = line.match(reader.text, start)
        if found is not None:
            if found.lastindex is None:
                yield from reader.more()
            elif reader.text[start] == TICK and fences.open_plain_fence(machine, newlines):
                return True
            machine.text_state.place = START
            return False
    found = markers.match(reader.text, start)
    if found is None:
        if reader.text[start] == "\\":
            machine.text_state.place = LinePlace.ESCAPE
        elif reader.text[start] == ":":
            machine.text_state.place = LinePlace.COLON
        emit_text(machine, newlines + 1)
        return False
    if found.lastindex is None:
        yield from reader.more()
        return False
    value, length = markers.values[found.lastindex - 1], found.end() - reader.at
    del found  # a match with this many groups takes more memory than the rest of the parser
    return (yield from read_marker(machine, value, newlines, length))


def read_marker(machine: Machine, value: Marked, newlines: int, end: int) -> Generator[None, None, bool]:
    """Read the marker that ends at `end`, after newlines. Return whether the state has changed."""
    reader = machine.reader
    if value is TextFinding.TICK:
        emit_text(machine, end)
        return (yield from code.read(machine, ticks=1))
    if value is TextFinding.TAG:
        machine.text_state.call_markup_shown = True
        emit_text(machine, newlines + 1)
        return False
    if value is TextFinding.STRUCK:
        machine.text_state.shown_closers |= {STRUCK[0]}
        emit_text(machine, newlines + 1)
        return False
    if value is TextFinding.TURN:
        return turns.read(machine, newlines)
    # A string is a closer. The tests come in this order: a call closer without an opener, a special token that closes
    # nothing, a reasoning closer without an opener. Any other closer closes the frame around it, or is text.
    if isinstance(value, str):
        if may_be_left_over(machine, value):
            yield from read_left_over(machine, value, newlines, end)
            return False
        if value in machine.tables.closers.special:
            begins = yield from turns.begins_after(machine, value, end)
            if begins:
                turns.end_turn(machine, value, newlines, end)
                return True
            if begins is None or not (yield from closers.is_markup(machine, value, newlines, end)):
                return False
        if (yield from closers.is_stray(machine, value, newlines, end)):
            closers.drop_stray(machine, value, newlines, end)
            return False
        return closers.read_in_text(machine, value, newlines, end)
    if isinstance(value, Section):
        shown = machine.frames.reasoning or (machine.text_state.text_seen and value.anchor is Anchor.REPLY)
        if not shown and not machine.text_state.at_message_start:
            opens = yield from closers.opens_after_text(machine, value, end)
            if opens is None:
                return False
            shown = not opens
        if shown:
            machine.text_state.shown_closers |= {value.close}
            machine.text_state.turn_shown = machine.text_state.turn_shown or value.open in OWN_TURNS
            emit_text(machine, newlines + 1)
            return False
        open_section(machine, value, end)
    elif value is TextFinding.LIST and not (yield from begins_list(machine, newlines)):
        return False
    elif value is TextFinding.BARE and open_plain_object(machine, newlines):
        return True
    elif value is TextFinding.BARE and emit_plain_array(machine, newlines):
        return False
    elif value is TextFinding.BARE and scanner_of(machine).begun(
        reader.text, reader.text.find("{", reader.at + newlines)
    ):
        yield from reader.more()
        return False
    else:
        machine.open_candidate()
        if newlines:
            machine.text_state.opens_line = True
            reader.take(newlines)
        machine.next_grammar = call.read(machine, value, end - newlines)
    return True


def begins_list(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Return whether a list of call expressions may begin here; if not, emit the bracket as text."""
    reader = machine.reader
    found = list_begins(reader.text, reader.at + newlines)
    if found is None:
        emit_text(machine, newlines + 1)
    elif found.lastindex:
        return True
    else:
        yield from reader.more()
    return False


def open_section(machine: Machine, found: Section, end: int) -> None:
    """Open reasoning or a section of text: consume its opener, along with the newlines before it, as markup."""
    machine.reader.sink = Sink.SYNTAX
    machine.reader.take(end)
    if found.text:
        machine.frames.open_wrappers((found.close,))
        machine.text_state.place = START
    else:
        machine.frames.apply(Input.THINK, found.close, *machine.tables.closers.implied.get(found.close, ()))
