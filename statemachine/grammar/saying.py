"""Text that is said, and how text is read where it stands."""

import re

from statemachine.formats.scanner import Scanner
from statemachine.machine import INSIDE, START, Machine

line_ends = re.compile(r"(?:\r?\n)++").match
blanks = re.compile(r"[ \t]*+").match


def say(machine: Machine, length: int) -> None:
    """Text, emitted at once."""
    if length > 0:
        past, reader = machine.past, machine.reader
        if past.text_seen and not past.at_message_start:
            reader.take(length)
        else:
            hidden = reader.emitter.hidden
            if reader.take(length)[hidden:].strip() and not machine.frames.reasoning:
                past.saw()
        if past.place is START:
            past.place = INSIDE


def scanner_of(machine: Machine) -> Scanner:
    """How text is read where we are."""
    frames, past, scanners = machine.frames, machine.past, machine.tables.scanners
    if frames.reasoning:
        return scanners.get(closers=True)
    if not frames.wrappers and not past.at_message_start:
        return scanners.usual if past.text_seen else scanners.first
    return scanners.get(first=not past.text_seen, fresh=past.at_message_start, closers=bool(frames.wrappers))
