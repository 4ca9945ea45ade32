"""Code fences. If a call is the first thing in a fence, the fence is part of its markup; any other fence is text.

A fence of tildes is always text. After text, a call with markers is recognized only if the fence announces calls.
"""

import re
from collections.abc import Callable, Generator
from re import Match
from typing import NamedTuple

from statemachine.formats.openers import Opener
from statemachine.formats.scanner import TICK
from statemachine.formats.unmarked import JSON_INFOS, MAX_INFO, MAX_TICKS
from statemachine.grammar import call, closers, code
from statemachine.grammar.saying import emit_text, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.runs import Run

fence_line = re.compile(rf"(`{{3,{MAX_TICKS}}}+)(?!`)([^`\r\n]{{0,{MAX_INFO}}})(?:(\r?\n)|(\r?\Z))").match
tildes = re.compile(r"~++").match


class FenceLines(NamedTuple):
    """Lines of fences of one character."""

    run: Run
    """Run inside the fence. A line that is not the closing line flows. Group 1 is a line that may still become the
    closing line (a newline, up to three blanks, fewer than three of the characters) and has to wait. The run stops
    before a newline that is followed by three of them.
    """
    end: Callable[[str, int], Match[str] | None]
    """Matches a closing line. Group 2 is its end if that is the end of the text."""
    begun: Callable[[str, int], Match[str] | None]
    """Matches text that may become a closing line."""

    @classmethod
    def of(cls, char: str) -> "FenceLines":
        """Return the lines of fences of this character."""
        run = (
            rf"[^\n]*+(?:\n(?![ \t]{{0,3}}+(?:{char * 3}|{char}{{0,2}}\Z))[^\n]*+)*+(\n[ \t]{{0,3}}+{char}{{0,2}}\Z)?+"
        )
        end = rf"[ \t]{{0,3}}+({char}{{3,{MAX_TICKS}}}+)(?!{char})[ \t]{{0,64}}+(?:(?=\r?\n)|(\r?\Z))"
        begun = rf"[ \t]{{0,3}}+{char}{{0,2}}\Z"
        return cls(Run(run, search=re.compile(r"\n").search), re.compile(end).match, re.compile(begun).match)


LINES_OF = {char: FenceLines.of(char) for char in (TICK, "~")}
"""First character of a fence → its lines."""
fence_end = LINES_OF[TICK].end


def read(machine: Machine) -> Grammar:
    """Read a fence that is text, through its closing line."""
    reader, past = machine.reader, machine.text_state
    frame = machine.frames.top
    reader.sink = frame.sink
    fence = LINES_OF[frame.closers[0][0]]
    while True:
        if past.place is not START:
            yield from reader.flow(fence.run)
            if reader.at >= len(reader.text):
                yield from reader.more()
                continue
            emit_text(machine, 1)
            past.place = START
        # `fence.end` decides once the line is complete. While the available text ends right after the backticks, the
        # line is not known to be complete (group 2 matched the end of the text).
        found = fence.end(reader.text, reader.at)
        if (found.lastindex == 2) if found else fence.begun(reader.text, reader.at):
            yield from reader.more()
        elif found is None or len(found[1]) < len(frame.closers[0]):
            past.place = INSIDE
            if reader.text[reader.at] != "\n":
                emit_text(machine, 1)
        else:
            emit_text(machine, found.end() - reader.at)
            machine.frames.apply(Input.END)
            return


def open_plain_fence(machine: Machine, newlines: int) -> bool:
    """Open the fence here as text if the first thing in it is not a call. Return whether it was opened."""
    reader = machine.reader
    plain = machine.tables.plain_fences[machine.text_state.text_seen].match(reader.text, reader.at + newlines)
    if plain is None or machine.options.fence_calls or machine.frames.wrappers:
        return False
    emit_text(machine, plain.end() - reader.at)
    machine.frames.apply(Input.FENCE, plain[1])
    return True


def open_tilde_fence(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Open the fence of tildes here, after newlines, as text. Return whether it was opened."""
    reader = machine.reader
    while (found := tildes(reader.text, reader.at + newlines)) and found.end() == len(reader.text) and not reader.ended:
        yield from reader.more()
    machine.text_state.place = INSIDE
    if found is None:
        return False
    emit_text(machine, found.end() - reader.at)
    if not machine.options.fence_calls:
        machine.frames.apply(Input.FENCE, found[0])
    return not machine.options.fence_calls


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
            return (yield from code.read(machine, ticks=0))
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
    yield from read_first(machine, found[2].strip().lower())
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
        if len(found[1]) < len(close):
            if reader.ended or found.end(1) < len(reader.text):
                break
        elif found.lastindex != 2 or reader.ended:
            return found.end() - reader.at
        yield
    return 0


def read_first(machine: Machine, info: str) -> Grammar:
    """Read the first thing in a fence, if it is a call."""
    reader, tables = machine.reader, machine.tables
    fences = tables.fences
    # A model that wraps its calls in fences begins with the fence. A fence after text shows an example, unless it
    # announces a call, or is one of the fences that JSON formats are written in.
    shown = machine.text_state.text_seen and not fences.announces(info) and not machine.options.fence_calls
    if shown and info not in JSON_INFOS:
        raise Mismatch
    machine.set_marked(info in fences.infos)
    yield from machine.skip_whitespace()
    found, markers = None, tables.opening
    while not shown:
        for markers in (tables.line, tables.opening):
            found = markers.match(reader.text, reader.at)
            if found is not None:
                break
        if found is None or found.lastindex:
            break
        yield from reader.more()
    value = markers.values[found.lastindex - 1] if found is not None and found.lastindex else None
    if isinstance(value, Opener) and found is not None:
        machine.set_marked(True)
        yield from call.read(machine, value, found.end() - reader.at)
        return
    expression = fences.expressions.get(info)
    char = reader.text[reader.at]
    if expression and char not in "{[":
        machine.set_marked(False)
        yield from call.read_expression(machine, expression)
    elif char in fences.keys:
        yield from call.read_envelope(machine, fences.keys[char])
    else:
        raise Mismatch
