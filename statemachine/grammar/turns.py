"""The end of the model's turn, if the model continues with turns that it makes up.

If the token that ends a turn is not one of the model's special tokens, the server does not stop there: the model writes
the token as text, and then further turns. Directly before the beginning of another turn, the token ends the reply. A
reply that has already contained the beginning of a turn may be about turns, so all of it is text.
"""

import re
from collections.abc import Generator

from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.formats.table import OWN_TURNS, SPOKEN_TURNS, TURNS
from statemachine.grammar.saying import emit_text
from statemachine.machine.machine import Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink
from statemachine.stream.runs import Run

REST = Run(r".*+")
IN_ROLE = re.compile(r"\w{0,24}+\Z")
"""Matches the text after a known role if that may continue with more letters, as in `tool_response`."""
NO_ROLE = re.compile(r"""["'`’”]|\w{25}|\w++[^\w\r\n<]""")
"""Matches the text after a known role that is quoted, or that is the beginning of another word of a sentence."""
OF_OTHERS = (*TURNS, *SPOKEN_TURNS)
ALL_TURNS = (*OF_OTHERS, *OWN_TURNS)


def has_replied(machine: Machine) -> bool:
    """Return whether the model has written text or a call."""
    return machine.text_state.text_seen or machine.reader.emitter.index >= 0


def begins_after(machine: Machine, close: str, end: int) -> Generator[None, None, bool | None]:
    """Return whether another turn begins after this special token, which is `end` characters long. Return None if more
    text was needed; the token must then be examined again.
    """
    reader, past = machine.reader, machine.text_state
    stops = machine.tables.closers.stops.values
    if past.turn_shown or close not in stops or not past.shown_closers.isdisjoint(stops):
        return False
    found = match_whitespace(reader.text, reader.at + end)
    begin = found.end() if found else reader.at + end
    replied = has_replied(machine)
    if begin - reader.at - end > MAX_NEWLINES:
        return False
    known = ALL_TURNS if replied else OF_OTHERS
    rest = reader.text[begin:]
    begun = any(turn.startswith(rest) for turn in known)
    turn = next(filter(rest.startswith, known), None)
    if turn is not None:
        follows = rest[len(turn) :]
        if not turn[-1].isalpha():
            return True
        if not IN_ROLE.match(follows):
            return NO_ROLE.match(follows) is None
        if reader.ended:
            return not follows
        begun = True
    # Tokens such as `<|user|>` both end a turn and begin the next one, which then has a text.
    if close in TURNS and replied and past.at_message_start and rest and not begun:
        stop = machine.tables.closers.stops.match(reader.text, begin)
        if stop is None or reader.ended:
            return stop is None
        begun = not stop.lastindex
    if begun and not reader.ended:
        yield from reader.more()
        return None
    return False


def read(machine: Machine, newlines: int) -> bool:
    """Read the beginning of a turn, after newlines. Return whether it ends the reply: it directly follows the end of a
    message or section. Anywhere else, it is text.
    """
    past = machine.text_state
    if past.at_message_start and has_replied(machine) and not past.turn_shown:
        end_turn(machine, "", newlines, newlines)
        return True
    past.turn_shown = past.turn_shown or past.text_seen
    emit_text(machine, newlines + 1)
    return False


def end_turn(machine: Machine, close: str, newlines: int, end: int) -> None:
    """End the model's turn with this token, whose end is `end` characters from here. A token that also begins the next
    turn is part of that turn.
    """
    reader = machine.reader
    emit_text(machine, newlines)
    reader.sink = Sink.SYNTAX
    if close not in TURNS:
        reader.take(end - newlines)
    machine.frames.apply(Input.TURN)


def discard_rest(machine: Machine) -> Grammar:
    """Discard everything up to the end of the text."""
    reader = machine.reader
    reader.sink = Sink.DISCARD
    reader.emitter.set_discard_reason("invented_turn")
    while True:
        yield from reader.flow(REST)
        yield from reader.more()
