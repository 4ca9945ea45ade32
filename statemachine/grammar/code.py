"""Inline code, which ends at a run of as many backticks as the run that opened it.

Whether a run of backticks opens code is known only when the run that closes it arrives. Text does not wait for that:
until the paragraph ends, it is read as code.
"""

import re
from collections.abc import Generator

from statemachine.formats.markers import closers_of
from statemachine.formats.openers import Opener
from statemachine.formats.scanner import ITEM, TICK
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar.saying import blanks, emit_text, line_ends, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar
from statemachine.stream.runs import Run

MIN_FENCE = 3
"""Minimum number of backticks of a fence."""
CONTENT = Run(r"[^`\r\n]*+", search=re.compile(r"[`\r\n]").search)
BEFORE_MARKER = re.compile(r"[\w \t.,;:!?()'\"]*+")
"""Matches text before a character that may begin a marker."""
more_ticks = re.compile(r"`++").match
word_follows = re.compile(r"[A-Za-z0-9]").match
paragraph_ends = re.compile(
    rf">|#{{1,6}}+(?:[ \t\r\n]|(\Z))|(?:`{{3}}|~{{3}})|[`~]{{1,2}}(\Z)|{ITEM}|(?:[-*+]|[0-9]++[.)])(?:[\r\n]|(\Z))"
    r"|[0-9]++(\Z)|(?:=++|-{2,}+|\*{3,}+|_{3,}+)[ \t]*+(?:[\r\n]|(\Z))|(?:\*{1,2}|_{1,2})(\Z)"
).match
"""Matches the beginning of a line that ends the paragraph before it: a block quote, a heading, a fence, a list item, a
line below a heading or between paragraphs. A group matches the end of the text if that may still change.
"""


def read(machine: Machine, *, span: int = 0, ticks: int | None = None) -> Generator[None, None, bool]:
    """Read inline code to its end, or to the end of its paragraph. Return whether the state has changed.

    `span` is the length of the run that opened it, 0 before that run. `ticks` is the number of backticks that have been
    read of the run that is being read, or None between two runs.
    """
    # A run that closes code also opens it if a call follows directly (`span`), or a word (`loose`: to the end of the
    # line, unless a call follows on it). An odd backtick precedes such code: CommonMark pairs it with the next run.
    reader, past = machine.reader, machine.text_state
    past.place = INSIDE
    loose, info = 0, False
    while True:
        if ticks is not None:
            ticks = yield from read_ticks(machine, ticks)
            closes = span == ticks
            info = not span and ticks >= MIN_FENCE
            span = 0 if closes else span or ticks
            loose = 0 if loose == ticks else loose
            if closes and (yield from call_follows(machine)):
                span = ticks
            elif closes and word_follows(reader.text, reader.at):
                loose = ticks
            if not span and not loose:
                return False
            ticks = None
        if loose and not span and (yield from read_to_call(machine)):
            span = loose
        yield from read_content(machine)
        if reader.text[reader.at] == TICK:
            ticks = 0
            continue
        loose = 0
        if not span or not scanner_of(machine).blocks:
            return False
        if info:  # a fence after other text on its line
            if not machine.options.fence_calls:
                machine.frames.apply(Input.FENCE, TICK * span)
            return not machine.options.fence_calls
        if not (yield from read_line_end(machine, span)):
            return False


def read_ticks(machine: Machine, count: int) -> Generator[None, None, int]:
    """Read the rest of a run of backticks after its first `count`. Return the length of the run."""
    reader = machine.reader
    while True:
        found = more_ticks(reader.text, reader.at)
        if found is not None:
            count += found.end() - reader.at
            emit_text(machine, found.end() - reader.at)
        if reader.at < len(reader.text):
            return count
        yield from reader.more()


def call_follows(machine: Machine) -> Generator[None, None, bool]:
    """Return whether the marker of a call begins here, one that counts at the start of a line included."""
    reader = machine.reader
    for markers in (machine.tables.line, scanner_of(machine).at):
        while (found := markers.match(reader.text, reader.at)) is not None:
            if found.lastindex:
                value = markers.values[found.lastindex - 1]
                return isinstance(value, Opener) or value in (TextFinding.BARE, TextFinding.LIST)
            yield from reader.more()
    return False


def read_to_call(machine: Machine) -> Generator[None, None, bool]:
    """Read code up to a backtick, a newline or the marker of a call. Return whether there is a call."""
    reader = machine.reader
    while True:
        found = BEFORE_MARKER.match(reader.text, reader.at)
        emit_text(machine, found.end() - reader.at if found else 0)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "`\r\n":
            return False
        elif (yield from call_follows(machine)):
            return True
        else:
            emit_text(machine, 1)


def read_content(machine: Machine) -> Grammar:
    """Read code up to a backtick or a newline."""
    reader, past = machine.reader, machine.text_state
    while True:
        if past.text_seen and not past.at_message_start:
            yield from reader.flow(CONTENT)
        elif found := CONTENT.match(reader.text, reader.at):  # `emit_text` notes the first visible text
            emit_text(machine, found.end() - reader.at)
        if reader.at < len(reader.text):
            return
        yield from reader.more()


def read_line_end(machine: Machine, span: int) -> Generator[None, None, bool]:
    """Read a newline in code that a run of `span` backticks opened. Return whether the paragraph continues.

    A newline that ends the paragraph is not read, because it may precede an opener.
    """
    reader = machine.reader
    while True:
        run = line_ends(reader.text, reader.at)
        start = run.end() if run else reader.at + 1
        if start < len(reader.text) and not (reader.text[start] == "\r" and start + 1 == len(reader.text)):
            if run is None:  # a carriage return alone
                emit_text(machine, 1)
                return True
            begin = blanks(reader.text, start).end()  # type: ignore[union-attr]  # * always matches
            if reader.text.count("\n", reader.at, start) > 1:
                return False
            if begin > start:
                emit_text(machine, begin - reader.at)
                machine.text_state.place = START
                goes_on = yield from read_indentation(machine, span)
                machine.text_state.place = INSIDE if goes_on else START
                return goes_on
            ends = ends_paragraph(machine, start, span)
            if ends is not None:
                emit_text(machine, 0 if ends else start - reader.at)
                return not ends
        yield from reader.more()


def read_indentation(machine: Machine, span: int) -> Generator[None, None, bool]:
    """Read the blanks at the start of a line. Return whether the paragraph continues there."""
    reader = machine.reader
    while True:
        found = blanks(reader.text, reader.at)
        emit_text(machine, found.end() - reader.at if found else 0)
        if reader.at < len(reader.text):
            ends = reader.text[reader.at] in "\r\n" or ends_paragraph(machine, reader.at, span)
            if ends is not None:
                return not ends
        yield from reader.more()


def ends_paragraph(machine: Machine, at: int, span: int) -> bool | None:
    """Return whether the line that begins at `at` ends the paragraph before it; None if more text is needed."""
    text = machine.reader.text
    found = more_ticks(text, at)
    if found is not None and found.end() == len(text) and not machine.reader.ended:
        return None
    if found is not None and found.end() - at == span:
        return False
    found = paragraph_ends(text, at)
    if found is not None:
        if text[at] == ">":  # a marker may begin with it
            marker = scanner_of(machine).at.match(text, at)
            return marker is None or (None if not marker.lastindex else False)
        return None if found.lastindex is not None and not machine.reader.ended else True
    tokens = closers_of(tuple(sorted(machine.tables.closers.special))).match(text, at)
    return None if tokens is not None and not tokens.lastindex else tokens is not None
