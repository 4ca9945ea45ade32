"""Visible text, and the scanner that reads it."""

import re

from statemachine.formats.scanner import Scanner
from statemachine.machine.machine import INSIDE, START, Machine

line_ends = re.compile(r"(?:\r?\n)++").match
blanks = re.compile(r"[ \t]*+").match
TAB = 4


def columns(blank: str, before: int) -> int:
    """Return the column that blanks lead to from the column `before`; tab stops are four columns apart."""
    for char in blank:
        before += TAB - before % TAB if char == "\t" else 1
    return before


def emit_text(machine: Machine, length: int) -> None:
    """Emit text, and note whether it contains the first visible character."""
    if length > 0:
        past, reader = machine.text_state, machine.reader
        if past.text_seen and not past.at_message_start:
            reader.take(length)
        else:
            hidden = reader.emitter.hidden
            if reader.take(length)[hidden:].strip() and not machine.frames.reasoning:
                past.note_visible_text()
        if past.place is START:
            past.place = INSIDE


def scanner_of(machine: Machine) -> Scanner:
    """Return the scanner for text at the current position."""
    frames, past, scanners = machine.frames, machine.text_state, machine.tables.scanners
    if frames.reasoning:
        return scanners.get(closers=True)
    if not frames.wrappers and not past.at_message_start:
        if not past.text_seen:
            return scanners.before_text
        if scanners.after_text is None:
            scanners.after_text = scanners.get()
        return scanners.after_text
    return scanners.get(first=not past.text_seen, fresh=past.at_message_start, closers=bool(frames.wrappers))
