"""Closers of calls that nobody saw open, at the end of a reply."""

from statemachine.buffer import Grammar, space
from statemachine.emitter import Sink
from statemachine.grammar.saying import say
from statemachine.machine import Machine

MAX_LEFT_OVER = 256
"""Characters of closers that are held because they may be left over."""


def may_be_left_over(machine: Machine, close: str) -> bool:
    """True for the closer of a call, or of what stands around or in one, that closes nothing here."""
    known = machine.tables.closers
    return (close in known.calls or close in known.values) and close not in machine.frames.wrappers


def left_over(machine: Machine, close: str, newlines: int, end: int) -> Grammar:
    """Closers of calls that nobody saw open: markup at the end of a reply, else text.

    They are held, with the white space between them, while nothing else has come. Where the reply has shown markup of
    calls it may be about it, and they are text; so are closers of values alone, and one alone that begins no line: a
    sentence may end with it.
    """
    reader, known = machine.reader, machine.tables.closers
    closes_call, several = close in known.calls, newlines > 0
    while not machine.past.tags_shown:
        found = space(reader.text, reader.at + end)
        begin = (found.end() if found else 0) - reader.at
        if begin > MAX_LEFT_OVER:
            machine.past.tags_shown = True
            break
        closer = machine.tables.left_over.match(reader.text, reader.at + begin)
        over = reader.at + begin >= len(reader.text)
        if closer is not None and closer.lastindex:
            end, several = closer.end() - reader.at, True
            closes_call = closes_call or machine.tables.left_over.values[closer.lastindex - 1] in known.calls
        elif reader.ended and over and closes_call and several:
            reader.sink = Sink.SYNTAX
            reader.take(begin)
            return
        elif reader.ended or (closer is None and not over):
            break
        else:
            yield
    say(machine, end)
