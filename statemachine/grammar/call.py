"""A call, from its opener to the end of its body: the openers that follow one another, then the body."""

from collections.abc import Generator

from statemachine.bodies import envelope as envelope_body
from statemachine.bodies import expression as expression_body
from statemachine.bodies import message, parameters
from statemachine.bodies import name as name_body
from statemachine.bodies.envelope import NoCall
from statemachine.buffer import Grammar, Mismatch, Overflow, space
from statemachine.formats.format import Expression, Format, MessageBody, Parameters, Variant
from statemachine.formats.markers import Markers
from statemachine.formats.openers import Keys, Opener, Opening
from statemachine.formats.scanner import Marked
from statemachine.formats.unmarked import Found
from statemachine.grammar.closers import empty
from statemachine.grammar.saying import scanner_of
from statemachine.machine import Machine
from statemachine.states import State


def read(machine: Machine, value: Marked, length: int) -> Grammar:
    """A call whose opener, of this length, stands here."""
    reader, candidate = machine.reader, machine.candidate
    if value is Found.BARE:
        machine.mark(False)
        yield from envelope(machine, scanner_of(machine).keys[reader.text[reader.at]])
    elif value is Found.LIST and machine.tables.unmarked.expressions:
        machine.mark(False)
        candidate.bare = True
        yield from expression(machine, machine.tables.unmarked.expressions)
    elif isinstance(value, Opener):
        opener, text, start = yield from openers(machine, value, length)
        yield from body(machine, opener, text, start)
    else:
        raise Mismatch


def openers(machine: Machine, opener: Opener, length: int) -> Generator[None, None, tuple[Opener, str, int]]:
    """The openers that follow one another: the last one, its text, and how many pieces are held before what follows."""
    reader, wrappers = machine.reader, machine.tables.wrappers
    for close in machine.frames.wrappers:
        opener = wrappers[close].inner(opener) if close in wrappers else opener
    while True:
        text = reader.take(length)
        start = len(reader.hold.pieces)
        if opener.open is None or not isinstance(opener.open[1].body, MessageBody):
            yield from machine.blank()
        inner, length = (yield from child(machine, opener.children)) if opener.children is not None else (None, 0)
        if inner is None:
            return opener, text, start
        machine.candidate.wrappers.append(opener.close)
        opener = inner


def body(machine: Machine, opener: Opener, text: str, start: int) -> Grammar:
    """What follows the last opener."""
    reader = machine.reader
    if (yield from empty(machine, tuple(opener.closes))):
        return
    if opener.tool is not None:
        yield from tag_of_tool(machine, *opener.tool)
    elif opener.open is not None and (yield from opens(machine, opener)):
        form, variant = opener.open
        if isinstance(variant.body, MessageBody):
            yield from message.read(machine, form, variant.body, text)
        else:
            yield from expression(machine, opener.open)
    elif opener.keys and reader.text[reader.at] in "{[":
        if opener.close:
            machine.candidate.wrappers.append(opener.close)
        if opener.by_keys:
            machine.mark(False)
        yield from envelope(machine, opener.keys[reader.text[reader.at]])
    elif opener.ends is None or (opener.line and not directly_follows(opener, reader.hold.text(start))):
        raise Mismatch
    else:
        yield from name_body.read(machine, opener)
        machine.finish()


def directly_follows(opener: Opener, space_between: str) -> bool:
    """True if nothing stands between an opener and what follows but blanks, where they may stand."""
    return not space_between or (opener.blank and "\n" not in space_between)


def child(machine: Machine, children: Markers[Opener]) -> Generator[None, None, tuple[Opener | None, int]]:
    """The opener that follows a wrapper's opener, and its length."""
    reader = machine.reader
    while True:
        found = children.match(reader.text, reader.at)
        if found is None:
            return None, 0
        if found.lastindex:
            return children.values[found.lastindex - 1], found.end() - reader.at
        yield from reader.more()


def tag_of_tool(machine: Machine, form: Format, variant: Variant, tool: str) -> Grammar:
    """A call whose opener named its tool."""
    if not isinstance(variant.body, Parameters):
        raise Mismatch
    machine.candidate.format = form
    machine.named(tool)
    yield from parameters.read(machine, form, variant.body)
    machine.finish()


def opens(machine: Machine, opener: Opener) -> Generator[None, None, bool]:
    """True if the expression or the header follows that may follow here, and not JSON."""
    reader = machine.reader
    if not opener.keys or reader.text[reader.at] not in "{[":
        return True
    while True:
        found = space(reader.text, reader.at + 1)
        if found is not None and found.end() < len(reader.text):
            return reader.text[reader.at] == "[" and reader.text[found.end()] not in "{["
        yield from reader.more()


def expression(machine: Machine, opening: Opening) -> Grammar:
    """Call expressions."""
    form, variant = opening
    if not isinstance(variant.body, Expression):
        raise Mismatch
    machine.candidate.format = form
    return expression_body.read(machine, form, variant.body)


def envelope(machine: Machine, keys: Keys) -> Grammar:
    """An envelope; one that is no call turns into text.

    Raises:
        Overflow: it is an object that is text to its closing brace.

    """
    try:
        yield from envelope_body.read(machine, keys)
    except NoCall:
        candidate = machine.candidate
        if machine.frames.state is State.CANDIDATE and not candidate.marked and candidate.envelope.json.stack:
            raise Overflow from None
        raise Mismatch from None
