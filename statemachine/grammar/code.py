"""Inline code, which ends at a run of as many backticks as the run that opened it.

Whether a run of backticks opens code is known only when the run that closes it arrives. Text does not wait for that:
until the paragraph ends, it is read as code.
"""

import re
from collections.abc import Generator

from statemachine.formats.markers import closers_of, run_to
from statemachine.formats.openers import Opener
from statemachine.formats.scanner import TICK
from statemachine.formats.unmarked import MAX_INFO, MAX_TICKS, TextFinding
from statemachine.grammar import fences
from statemachine.grammar.saying import blanks, emit_text, line_ends, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.stream.buffer import Grammar
from statemachine.stream.runs import Run

CONTENT = Run(r"[^`\r\n]*+", search=re.compile(r"[`\r\n]").search)
BEFORE_MARKER = re.compile(r"[\w \t.,;:!?()'\"]*+")
"""Matches text before a character that may begin a marker."""
more_ticks = re.compile(r"`++").match
word_follows = re.compile(r"[A-Za-z0-9]").match
letters = re.compile(r"[A-Za-z0-9]{1,4}").match
ENDINGS = frozenset(("d", "ed", "er", "es", "ing", "n", "s", "th"))
"""Endings that are written directly after code, as in "the `foo`s", and do not begin a sentence."""
MAX_ENDING = 4
"""Number of letters of a word that is certainly longer than such an ending."""
MAX_DIGITS = 9
"""Maximum number of digits of a list item."""
paragraph_ends = re.compile(
    rf">|#{{1,6}}+(?:[ \t\r\n]|(\Z))|`{{3,{MAX_TICKS}}}+(?!`)|~{{3}}|[`~]{{1,2}}(\Z)|[-*+](?:[ \t\r\n]|(\Z))"
    rf"|[0-9]{{1,{MAX_DIGITS}}}+(?:(\Z)|[.)](?:[ \t\r\n]|(\Z)))"
).match
"""Matches the beginning of a line that ends the paragraph before it: a block quote, a heading, a fence, a list item. A
group matches the end of the text if that may still change.
"""
RULES = {"=": 1, "-": 2, "*": 3, "_": 3}
"""Character of a line below a heading, or between paragraphs → how many of them such a line contains at least."""


def read(
    machine: Machine, *, span: int = 0, ticks: int | None = None, opens: bool = False
) -> Generator[None, None, bool]:
    """Read inline code to its end, or to the end of its paragraph. Return whether the state has changed.

    `span` is the length of the run that opened it, 0 before that run. `ticks` is the number of backticks that have been
    read of the run that is being read, or None between two runs. With `opens`, the first run may be that of a fence: a
    colon or a list marker precedes it.
    """
    # A run that closes code also opens it if a call follows directly (`span`), or a word (`loose`: to the end of the
    # line, unless a call follows on it). An odd backtick precedes such code: CommonMark pairs it with the next run.
    reader, past = machine.reader, machine.text_state
    past.place = INSIDE
    loose = 0
    while True:
        if ticks is not None:
            ticks = yield from read_ticks(machine, ticks)
            closes = span == ticks
            if opens and fences.MIN_FENCE <= ticks <= MAX_TICKS and scanner_of(machine).blocks:
                info = yield from read_info(machine)
                if info is not None:
                    return fences.open_in_line(machine, ticks, info)
            opens = False
            span = 0 if closes else span or ticks
            loose = 0 if loose == ticks else loose
            if closes and (yield from call_follows(machine)):
                span = ticks
            elif closes and word_follows(reader.text, reader.at) and not (yield from read_ending(machine)):
                loose = ticks
            if not span and not loose:
                return False
            ticks = None
            shown = span and not closes and machine.frames.reasoning and (yield from call_follows(machine, lines=False))
            if shown:
                yield from read_shown_call(machine, span)
                return False
        if loose and not span and (yield from read_to_call(machine)):
            span = loose
        yield from read_content(machine)
        if reader.text[reader.at] == TICK:
            ticks = 0
            continue
        loose = 0
        if not span or not scanner_of(machine).blocks:
            return False
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


def read_info(machine: Machine) -> Generator[None, None, str | None]:
    """Read text up to a backtick or a newline after a run of backticks in a line. Return it in lower case if it is the
    info string of a fence: of at most one word, or one that announces a call.
    """
    reader, info = machine.reader, ""
    while True:
        found = CONTENT.match(reader.text, reader.at)
        if found is not None and len(info) <= MAX_INFO:
            info += found[0][: MAX_INFO + 1]
        emit_text(machine, found.end() - reader.at if found else 0)
        if reader.at < len(reader.text) and reader.text[reader.at :] != "\r":
            break
        yield from reader.more()
    word = info.strip(" \t").lower()
    if len(info) > MAX_INFO or line_ends(reader.text, reader.at) is None:
        return None
    return word if len(word.split()) <= 1 or machine.tables.fences.announces(word) else None


def call_follows(machine: Machine, *, lines: bool = True) -> Generator[None, None, bool]:
    """Return whether the marker of a call begins here; with `lines`, also one that counts only at the start of a
    line.
    """
    reader = machine.reader
    for markers in (machine.tables.line, scanner_of(machine).at)[not lines :]:
        while (found := markers.match(reader.text, reader.at)) is not None:
            if found.lastindex:
                value = markers.values[found.lastindex - 1]
                return isinstance(value, Opener) or value in (TextFinding.BARE, TextFinding.LIST)
            yield from reader.more()
    return False


def read_ending(machine: Machine) -> Generator[None, None, bool]:
    """Read up to four letters after code. Return whether they are an ending of that code, not a word."""
    reader, word = machine.reader, ""
    while True:
        found = letters(reader.text, reader.at)
        if found is not None:
            word += found[0]
            emit_text(machine, len(found[0]))
        if len(word) >= MAX_ENDING or reader.at < len(reader.text):
            return word in ENDINGS
        yield from reader.more()


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


def read_shown_call(machine: Machine, span: int) -> Grammar:
    """Read code in reasoning that begins with the marker of a call: to the run of `span` backticks that closes it,
    or up to the end of its paragraph or of the reasoning.
    """
    reader = machine.reader
    ends = (TICK, "\n\n", "\r\n\r\n", *machine.frames.reasoning)
    run, markers = run_to(ends), closers_of(ends)
    while True:
        yield from reader.flow(run)
        found = markers.match(reader.text, reader.at)
        if found is None or not found.lastindex:
            yield from reader.more()
        elif markers.values[found.lastindex - 1] != TICK or (yield from read_ticks(machine, 0)) == span:
            return


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
        if run is not None and reader.text.count("\n", reader.at, start) > 1:
            return False
        if start < len(reader.text) and not (reader.text[start] == "\r" and start + 1 == len(reader.text)):
            if run is None:  # a carriage return alone
                emit_text(machine, 1)
                return True
            begin = blanks(reader.text, start).end()  # type: ignore[union-attr]  # * always matches
            if begin > start:
                emit_text(machine, begin - reader.at)
                machine.text_state.place = START
                goes_on = yield from read_indentation(machine, span)
                machine.text_state.place = INSIDE if goes_on else START
                return goes_on
            ends = ends_paragraph(machine, start, span)
            if ends is not None:
                emit_text(machine, 0 if ends else start - reader.at)
                return not ends and not (yield from read_rule(machine))
        yield from reader.more()


def read_indentation(machine: Machine, span: int) -> Generator[None, None, bool]:
    """Read the blanks at the start of a line. Return whether the paragraph continues there."""
    reader = machine.reader
    while True:
        found = blanks(reader.text, reader.at)
        emit_text(machine, found.end() - reader.at if found else 0)
        if reader.at < len(reader.text):
            if reader.text[reader.at] in "\r\n":
                return False
            ends = ends_paragraph(machine, reader.at, span)
            if ends is not None:
                return not ends and not (yield from read_rule(machine))
        yield from reader.more()


def read_rule(machine: Machine) -> Generator[None, None, bool]:
    """Read the beginning of a line that may be a line of dashes or of similar characters. Return whether it is one."""
    reader = machine.reader
    char, count, blank = reader.text[reader.at], 0, False
    if char not in RULES:
        return False
    machine.text_state.place = INSIDE
    while True:
        while reader.at < len(reader.text):
            found = reader.text[reader.at]
            if found in "\r\n":
                return count >= RULES[char]
            if found in " \t":
                blank = True
            elif found != char or blank:
                return False
            else:
                count += 1
            emit_text(machine, 1)
        yield from reader.more()


def ends_paragraph(machine: Machine, at: int, span: int) -> bool | None:
    """Return whether the line that begins at `at` ends the paragraph before it; None if more text is needed. A line of
    dashes is left to `read_rule`.
    """
    text, ended = machine.reader.text, machine.reader.ended
    found = more_ticks(text, at, at + MAX_TICKS + 1)
    if found is not None:
        length = found.end() - at
        if length > MAX_TICKS:
            return False
        if found.end() == len(text) and not ended:
            return None
        if length == span:
            return False
    found = paragraph_ends(text, at)
    if found is not None:
        if text[at] == ">":  # a marker may begin with it
            marker = scanner_of(machine).at.match(text, at)
            return marker is None or (None if not marker.lastindex else False)
        return None if found.lastindex is not None and not ended else True
    tokens = closers_of(tuple(sorted(machine.tables.closers.special))).match(text, at)
    return None if tokens is not None and not tokens.lastindex else tokens is not None
