"""Code fences. If a call is the first thing in a fence, the fence is part of its markup; any other fence is text.

A fence of tildes is always text. After text, a call with markers is recognized only if the fence announces calls.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from re import Match
from typing import NamedTuple

from statemachine.bodies import envelope
from statemachine.formats.openers import Opener
from statemachine.formats.scanner import MAX_NEWLINES, TICK
from statemachine.formats.unmarked import JSON_INFOS, MAX_INFO, MAX_TICKS
from statemachine.grammar import call, closers
from statemachine.grammar.saying import TAB, columns, emit_text, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, Mismatch, match_whitespace
from statemachine.stream.runs import Run

MIN_FENCE = 3
"""Minimum number of characters of a fence."""
CLOSER_INDENT = 3
"""Maximum number of columns that the closing line may be indented more than the fence."""
MAX_INDENT = 64
"""Maximum number of columns that a fence may be indented."""
fence_line = re.compile(rf"(`{{3,{MAX_TICKS}}}+)(?!`)([^`\r\n]{{0,{MAX_INFO}}})(?:(\r?\n)|(\r?\Z))").match
tildes = re.compile(r"~++").match
TILDE_INFO = re.compile(r"[^~^\r\n]*+").match
"""Matches the info string of a fence of tildes. CommonMark also allows tildes in it, but compilers print them under
code.
"""

line_content = re.compile(r"[^\n]*+").match
next_line = re.compile(rf"\r?\n[ \t]{{0,{MAX_INDENT}}}+(?:(\r?\n)|()\r?\Z)").match


class FenceLines(NamedTuple):
    """Lines of fences of one character whose closing line is indented by at most a number of columns."""

    run: Run
    """Run inside the fence. A line that is not the closing line flows. Group 1 is a line that may still become the
    closing line (a newline, blanks, fewer than three of the characters) and has to wait. The run stops before a newline
    that is followed by three of them.
    """
    end: Callable[[str, int], Match[str] | None]
    """Matches a closing line. Group 1 is its blanks, group 2 its characters, group 3 its end if that is the end of the
    text.
    """
    begun: Callable[[str, int], Match[str] | None]
    """Matches text that may become a closing line."""


@lru_cache(maxsize=256)
def fence_lines(char: str, indent: int) -> FenceLines:
    """Return the lines of fences of this character whose closing line is indented by at most `indent` columns."""
    blank = rf" {{0,{indent}}}+" if indent < TAB else rf"[ \t]{{0,{indent}}}+"
    run = rf"[^\n]*+(?:\n(?!{blank}(?:{char * 3}|{char}{{0,2}}\Z))[^\n]*+)*+(\n{blank}{char}{{0,2}}\Z)?+"
    end = rf"({blank})({char}{{3,{MAX_TICKS}}}+)(?!{char})[ \t]{{0,64}}+(?:(?=\r?\n)|(\r?\Z))"
    begun = rf"{blank}{char}{{0,2}}\Z"
    return FenceLines(Run(run, search=re.compile(r"\n").search), re.compile(end).match, re.compile(begun).match)


@lru_cache(maxsize=2)
def first_line(char: str) -> Run:
    """Return the run for the first line in a fence of this character if it is not indented."""
    run = Run(rf"(?:(?!)()|(?=[^ \t\r\n{char}])[^\n]*+()\Z)?+")
    run.next_runs = {2: fence_lines(char, CLOSER_INDENT).run}
    return run


fence_end = fence_lines(TICK, MAX_INDENT).end


def read(machine: Machine) -> Grammar:
    """Read a fence that is text, through its closing line."""
    reader, past = machine.reader, machine.text_state
    frame = machine.frames.top
    reader.sink = frame.sink
    char, limit = frame.closers[0][0], CLOSER_INDENT
    first = None
    if past.fence_indent == 0 and past.text_seen and reader.at >= len(reader.text):
        past.fence_indent, first = None, first_line(char)
        yield from reader.flow(first)
    flowed = first is not None and reader.last_run is not first
    if not flowed:
        past.fence_indent = 0 if first is not None else past.fence_indent
        indent = yield from read_first_indent(machine)
        limit += min(indent, MAX_INDENT)
    if flowed or not reader.text.startswith(char, reader.at):  # the first line has begun
        past.place = INSIDE
    fence = fence_lines(char, limit)
    while True:
        if past.place is not START:
            if not flowed:
                yield from reader.flow(fence.run)
            flowed = False
            if reader.at >= len(reader.text):
                yield from reader.more()
                continue
            emit_text(machine, 1)
            past.place = START
        # `fence.end` decides once the line is complete. While the available text ends right after the backticks, the
        # line is not known to be complete (group 3 matched the end of the text).
        found = fence.end(reader.text, reader.at)
        if (found.lastindex == 3) if found else fence.begun(reader.text, reader.at):
            yield from reader.more()
        elif found is None or len(found[2]) < len(frame.closers[0]) or (found[1] and columns(found[1], 0) > limit):
            past.place = INSIDE
            if reader.text[reader.at] != "\n":
                emit_text(machine, 1)
        else:
            emit_text(machine, found.end() - reader.at)
            machine.frames.apply(Input.END)
            return


def read_first_indent(machine: Machine) -> Generator[None, None, int]:
    """Read a fence up to the first character in it that is not whitespace. Return the column of that character.

    The content of a fence is indented at least as far as the list item that contains the fence.
    """
    reader, past = machine.reader, machine.text_state
    column, past.fence_indent = past.fence_indent, None
    while True:
        if past.place is not START and column is None:  # on the line of the fence
            found = line_content(reader.text, reader.at)
            emit_text(machine, found.end() - reader.at if found else 0)
        while reader.at < len(reader.text):
            char = reader.text[reader.at]
            if char == "\n":
                column = 0
            elif column is None and past.place is not START:
                break
            elif char in " \t":
                column = columns(char, column or 0)
            elif char != "\r":
                return column or 0
            emit_text(machine, 1)
            if column is not None:
                past.place = START
        yield from reader.more()


def open_plain_fence(machine: Machine, newlines: int) -> bool:
    """Open the fence here as text if the first thing in it is not a call. Return whether it was opened."""
    reader = machine.reader
    past = machine.text_state
    plains = machine.tables.plain_fences[past.text_seen and not past.wrapping_infos]
    plain = plains.match(reader.text, reader.at + newlines)
    if plain is None or machine.options.fence_calls or machine.frames.wrappers:
        return False
    note_indent(machine, plain[0])
    emit_text(machine, plain.end() - reader.at)
    machine.text_state.place = START
    machine.frames.apply(Input.FENCE, plain[1])
    return True


def note_indent(machine: Machine, text: str) -> None:
    """Note the indentation of the first line in a fence: that of the last line of this text, which is whitespace."""
    machine.text_state.fence_indent = 0 if text[-1] == "\n" else columns(text[text.rfind("\n") + 1 :], 0)


def open_tilde_fence(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Read a line of tildes that begins here, after newlines, and open the fence that it may be, as text. Return
    whether a fence was opened.
    """
    reader = machine.reader
    indented = not newlines and machine.text_state.place is START and machine.text_state.text_seen
    emit_text(machine, newlines)
    machine.text_state.place = INSIDE
    length = 0
    for pattern in (tildes, TILDE_INFO):
        while True:
            found = pattern(reader.text, reader.at)
            if found is not None:
                length += found.end() - reader.at if pattern is tildes else 0
                emit_text(machine, found.end() - reader.at)
            if reader.at < len(reader.text):
                break
            yield from reader.more()
        if not MIN_FENCE <= length <= MAX_TICKS or machine.options.fence_calls:
            return False
    if reader.text[reader.at] in "~^":
        return False
    if indented and (yield from blank_line_follows(machine)):
        return False
    machine.text_state.fence_indent = None
    machine.frames.apply(Input.FENCE, "~" * length)
    return True


def blank_line_follows(machine: Machine) -> Generator[None, None, bool]:
    """Return whether a blank line follows the line that ends here: an indented line of tildes then underlines code."""
    reader = machine.reader
    while True:
        found = next_line(reader.text, reader.at)
        if found is None or found.lastindex is None:
            return False
        if found.lastindex == 1 or reader.ended:
            return True
        yield from reader.more()


def open_in_line(machine: Machine, length: int, info: str) -> bool:
    """Open a fence of `length` backticks after other text on its line, which has been read to its end. A call may be
    the first thing in it. Return whether a fence was opened.
    """
    if machine.options.fence_calls:
        return False
    machine.text_state.fence_indent = None
    machine.frames.apply(Input.FENCE, TICK * length)
    if info in JSON_INFOS or machine.tables.fences.announces(info):
        machine.open_candidate()
        machine.candidate.wrappers.append(TICK * length)
        machine.next_grammar = read_first(machine, info)
    return True


def is_too_short(machine: Machine, offset: int) -> bool:
    """Return whether a fence begins here that is still too short to show whether the first thing in it is a call."""
    reader = machine.reader
    return (
        reader.text[reader.at + offset] == TICK
        and not machine.options.fence_calls
        and not fence_closer(machine)
        and scanner_of(machine).fence_begun(reader.text, reader.at + offset) is not None
    )


def read_opener(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Read at least three backticks at the start of a line, after newlines. They may begin a fence around a call.

    Return whether the state has changed.
    """
    reader = machine.reader
    if length := (yield from closing_line(machine, newlines)):
        return closers.read_in_text(machine, fence_closer(machine), newlines, length)
    while True:
        found = fence_line(reader.text, reader.at + newlines)
        if found is None:
            emit_text(machine, newlines)
            machine.text_state.place = INSIDE
            return False
        if found[3]:
            break
        yield from reader.more()
    # The fence's frame goes beneath the candidate: if the candidate is rejected, the text continues inside a fence.
    # With `fence_calls`, a fence has no frame, because its text is read like any other text.
    if not machine.options.fence_calls:
        machine.frames.apply(Input.FENCE, found[1])
    machine.open_candidate()
    if newlines:
        reader.take(newlines)
    reader.take(found.end() - reader.at)
    machine.candidate.wrappers.append(found[1])
    machine.text_state.fence_indent = None
    machine.next_grammar = read_first(machine, found[2].strip(" \t").lower())
    return True


def fence_closer(machine: Machine) -> str:
    """Return the closer of the fence around a call, or "" if the call is not in a fence."""
    for close in machine.frames.wrappers:
        if close[0] == TICK:
            return close
    return ""


def closing_line(machine: Machine, offset: int) -> Generator[None, None, int]:
    """Return the end of the closing line of the fence around a call, relative to the current position, or 0 if that
    line does not begin `offset` characters from here.
    """
    reader = machine.reader
    while close := fence_closer(machine):
        found = fence_end(reader.text, reader.at + offset)
        if found is None:
            break
        if len(found[2]) < len(close):
            if reader.ended or found.end(2) < len(reader.text):
                break
        elif found.lastindex != 3 or reader.ended:
            return found.end() - reader.at
        yield
    return 0


def read_first(machine: Machine, info: str) -> Grammar:
    """Read the first thing in a fence, if it is a call."""
    reader, tables = machine.reader, machine.tables
    fences = tables.fences
    # A model that wraps its calls in fences begins with the fence. A fence after text shows an example, unless it
    # announces a call, is one of the fences that JSON formats are written in, or resembles a fence that began the reply
    # and contained a call.
    past = machine.text_state
    own = fences.openers.get(info, frozenset[str]())
    announced = not own and fences.announces(info)
    shown = past.text_seen and not (announced or machine.options.fence_calls or info in past.wrapping_infos)
    if not past.text_seen:
        machine.candidate.info = info
    considered = machine.frames.reasoning and machine.options.openers_in_reasoning is not None
    if considered or (shown and info not in JSON_INFOS and not own):
        machine.set_marked(False)
        raise Mismatch
    machine.set_marked(info in fences.infos)
    yield from skip_to_first(machine)
    found, markers = None, tables.opening
    while own or not shown:
        for markers in (tables.line, tables.opening):
            found = markers.match(reader.text, reader.at)
            if found is not None:
                break
        if found is None or found.lastindex:
            break
        yield from reader.more()
    value = markers.values[found.lastindex - 1] if found is not None and found.lastindex else None
    if isinstance(value, Opener) and value.lead and info in fences.expressions:
        value = None  # a prefix of the name in an expression
    if isinstance(value, Opener) and found is not None and (not shown or value.literal in own):
        machine.set_marked(True)
        machine.next_grammar = call.read(machine, value, found.end() - reader.at)
        return
    if shown and own:
        raise Mismatch
    expression = fences.expressions.get(info)
    char = reader.text[reader.at]
    if expression and char not in "{[":
        machine.set_marked(False)
        machine.next_grammar = call.read_expression(machine, expression)
    elif char in fences.keys:
        machine.next_grammar = envelope.read(machine, fences.keys[char])
    else:
        raise Mismatch


def skip_to_first(machine: Machine) -> Grammar:
    """Skip whitespace before the first thing in a fence, and note the indentation of its line.

    Raises:
        Mismatch: there is more whitespace than may be skipped.
    """
    reader, skipped = machine.reader, ""
    while True:
        found = match_whitespace(reader.text, reader.at)
        if found is not None and found.end() > reader.at:
            skipped += reader.take(found.end() - reader.at)
            note_indent(machine, skipped)
        if len(skipped) > MAX_NEWLINES:
            raise Mismatch
        if reader.at < len(reader.text):
            return
        yield from reader.more()
