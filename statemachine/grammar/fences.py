"""Code fences. A call that stands first in one is a call, and the fence its markup; any other fence is text."""

import re
from collections.abc import Generator

from statemachine.buffer import Grammar, Mismatch
from statemachine.candidate import TICK
from statemachine.formats.openers import Opener
from statemachine.formats.unmarked import FENCE_BEGUN, INFO, TICKS
from statemachine.grammar import call, closers
from statemachine.grammar.saying import say
from statemachine.machine import CODE, INSIDE, START, Machine
from statemachine.runs import Run
from statemachine.states import Input

fence_line = re.compile(rf"(`{{3,{TICKS}}}+)(?!`)([^`\r\n]{{0,{INFO}}})(?:(\r?\n)|(\r?\Z))").match
opening_begun = re.compile(FENCE_BEGUN).match
fence_end = re.compile(rf"[ \t]{{0,3}}+(`{{3,{TICKS}}}+)(?!`)[ \t]{{0,64}}+(?:(?=\r?\n)|(\r?\Z))").match
fence_begun = re.compile(r"[ \t]{0,3}+`{0,2}\Z").match
ticks = re.compile(r"`++").match
FENCE = Run(
    r"[^\n]*+(?:\n(?![ \t]{0,3}+(?:```|`{0,2}\Z))[^\n]*+)*+(\n[ \t]{0,3}+`{0,2}\Z)?+",
    search=re.compile(r"\n").search,
)


def read(machine: Machine) -> Grammar:
    """A fence that is text, to its closing line."""
    reader, past = machine.reader, machine.past
    frame = machine.frames.top
    reader.sink = frame.sink
    while True:
        if past.place is not START:
            yield from reader.flow(FENCE)
            if reader.at >= len(reader.text):
                yield from reader.more()
                continue
            say(machine, 1)
            past.place = START
        found = fence_end(reader.text, reader.at)
        if (found.lastindex == 2) if found else fence_begun(reader.text, reader.at):
            yield from reader.more()
        elif found is None or len(found[1]) < len(frame.closers[0]):
            past.place = INSIDE
            if reader.text[reader.at] != "\n":
                say(machine, 1)
        else:
            say(machine, found.end() - reader.at)
            machine.frames.go(Input.END)
            return


def opens_plain_fence(machine: Machine, newlines: int) -> bool:
    """True if a fence stands here, after line ends, in which no call stands first: it is text from here on."""
    reader = machine.reader
    plain = machine.tables.plain_fence.match(reader.text, reader.at + newlines)
    if plain is None or machine.options.fence_calls or machine.frames.wrappers:
        return False
    say(machine, plain.end() - reader.at)
    machine.frames.go(Input.FENCE, plain[1])
    return True


def too_short(machine: Machine, offset: int) -> bool:
    """True if a fence stands here of which too little has come to say whether a call stands first in it."""
    reader = machine.reader
    return (
        reader.text[reader.at + offset] == TICK
        and not machine.options.fence_calls
        and not around(machine)
        and opening_begun(reader.text, reader.at + offset) is not None
    )


def opener(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Three backticks at the start of a line, after line ends, in which a call may stand first.

    True if the state says what is next.
    """
    reader = machine.reader
    if length := (yield from closing_line(machine, newlines)):
        return closers.in_text(machine, around(machine), newlines, length)
    while True:
        found = fence_line(reader.text, reader.at + newlines)
        if found is None:
            not_a_fence(machine, newlines)
            return False
        if found[3]:
            break
        yield from reader.more()
    if not machine.options.fence_calls:
        machine.frames.go(Input.FENCE, found[1])
    machine.open()
    if newlines:
        reader.take(newlines)
    reader.take(found.end() - reader.at)
    machine.candidate.wrappers.append(found[1])
    yield from first(machine, found[2].strip().lower())
    return True


def around(machine: Machine) -> str:
    """The closer of the fence around a call; "" if there is none."""
    for close in machine.frames.wrappers:
        if close[0] == TICK:
            return close
    return ""


def closing_line(machine: Machine, offset: int) -> Generator[None, None, int]:
    """Where the closing line of the fence around a call ends, counted from here; 0 if none stands `offset` on."""
    reader = machine.reader
    while close := around(machine):
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


def not_a_fence(machine: Machine, newlines: int) -> None:
    """Backticks at the start of a line that open no fence: text, perhaps inline code."""
    reader = machine.reader
    found = ticks(reader.text, reader.at + newlines)
    length = len(found[0]) if found else 0
    say(machine, newlines + length)
    machine.past.place = CODE if length % 2 else INSIDE


def first(machine: Machine, info: str) -> Grammar:
    """What stands first in a fence, if it is a call."""
    reader, tables = machine.reader, machine.tables
    fences = tables.fences
    machine.mark(info in fences.infos)
    yield from machine.blank()
    while True:
        for markers in (tables.line, tables.opening):
            found = markers.match(reader.text, reader.at)
            if found is not None:
                break
        if found is None or found.lastindex:
            break
        yield from reader.more()
    value = markers.values[found.lastindex - 1] if found is not None and found.lastindex else None
    if isinstance(value, Opener) and found is not None:
        machine.mark(True)
        yield from call.read(machine, value, found.end() - reader.at)
        return
    expression = fences.expressions.get(info)
    char = reader.text[reader.at]
    if expression and char not in "{[":
        machine.mark(False)
        yield from call.expression(machine, expression)
    elif char in fences.keys:
        yield from call.envelope(machine, fences.keys[char])
    else:
        raise Mismatch
