"""JSON that carries name and arguments: an object, an array of objects, or one object nested in another.

The keys say what is what (`compiled.Keys`); their order does not matter. Arguments that come before the name wait for
it. An envelope without a marker of its own is a call only by its keys, and commits late (`design.md`).
"""

from collections.abc import Generator

from statemachine import json_text
from statemachine.bodies.json_object import arguments
from statemachine.candidate import Candidate
from statemachine.compiled import Key, Keys, Role
from statemachine.format import Envelope, Format
from statemachine.machine import Machine
from statemachine.notes import Notes
from statemachine.reader import Grammar, Mismatch, Sink
from statemachine.states import State

NESTING = 4
THOUGHT = 200


class NoCall(Exception):
    """The object is no call: it is text to its closing brace."""


def read(machine: Machine, keys: Keys) -> Grammar:
    """One envelope, or an array of them; returns at the end of the last one."""
    yield from machine.blank()
    if (yield from machine.peek()) == "[":
        yield from array(machine, keys)
    else:
        yield from element(machine, keys)
        if machine.state is not State.AFTER:
            machine.finish()


def array(machine: Machine, keys: Keys) -> Grammar:
    """Calls in an array; each element is a candidate of its own, brackets and commas are syntax."""
    machine.take(1)
    machine.candidate.lead = len(machine.raw)
    yield from machine.blank()
    marked = machine.candidate.marked
    first = True
    while True:
        char = yield from machine.peek()
        if char == "]" and not first:
            machine.take(1)
            return
        if not first:
            if char != ",":
                raise Mismatch
            machine.take(1)
            yield from machine.blank()
            if (yield from machine.peek()) == "]":
                continue
            machine.another(marked=marked)
        yield from element(machine, keys)
        machine.finish(alone=True)
        first = False
        yield from machine.blank()


def element(machine: Machine, keys: Keys) -> Grammar:
    """One envelope object, to its closing brace."""
    candidate = machine.candidate
    if (yield from machine.peek()) != "{":
        raise Mismatch
    yield from members(machine, keys)
    if candidate.name is None:
        if candidate.spoke or machine.state is not State.CANDIDATE:
            return
        raise NoCall
    if not candidate.known:
        if machine.state is State.CANDIDATE:
            if not candidate.decisive:
                raise NoCall
            machine.disown()
        return
    if not candidate.begun:
        if not (candidate.marked or candidate.decisive):
            raise NoCall
        machine.begin()
        machine.out("{}")
        candidate.whole = True


def members(machine: Machine, keys: Keys) -> Grammar:
    """The members of an envelope object, to its closing brace."""
    candidate = machine.candidate
    candidate.outer.stack.append("}")
    machine.take(1)
    while (name := (yield from next_key(machine, candidate))) is not None:
        found = keys.get(name)
        if found is None and not candidate.marked and not candidate.committed:
            if candidate.outer.repairs:
                raise Mismatch
            raise NoCall
        yield from colon(machine)
        yield from member(machine, keys, found, name)


def next_key(machine: Machine, candidate: Candidate) -> Generator[None, None, str | None]:
    """The key of the next member, consumed; None at the end of the object, its brace consumed or found missing."""
    while True:
        yield from blank(machine)
        char = machine.text[machine.at]
        if char == "}":
            candidate.outer.stack.pop()
            machine.take(1)
            return None
        if candidate.whole and (char == "]" or (char in "<[`" and (yield from machine.sibling(0, own=True)))):
            candidate.notes.mend("missing_closer")
            candidate.outer.stack.pop()
            return None
        if char != ",":
            return (yield from key(machine))
        machine.take(1)


def colon(machine: Machine) -> Grammar:
    """The colon after a key; then the value is there."""
    yield from blank(machine)
    if machine.text[machine.at] != ":":
        raise Mismatch
    machine.take(1)
    yield from blank(machine)


def key(machine: Machine) -> Generator[None, None, str]:
    """A key of the envelope, decoded, consumed."""
    notes = machine.candidate.outer
    if machine.text[machine.at] in json_text.QUOTES:
        return (yield from json_text.read_string(machine, notes))
    name = yield from json_text.bare_word(machine)
    notes.mend("unquoted_key")
    machine.take(len(name))
    return name


def blank(machine: Machine) -> Grammar:
    """White space and comments around the members; then a character is there."""
    machine.target = False
    yield from json_text.skip(machine, machine.candidate.outer)


def member(machine: Machine, keys: Keys, found: Key | None, name: str) -> Grammar:
    """The value of one key."""
    candidate = machine.candidate
    char = machine.text[machine.at]
    role = found.role if found else None
    if found is None:
        yield from ignored(machine)
    elif found.nests and char == "{":
        yield from nested(machine, keys, found)
    elif role is Role.NAME and char in json_text.QUOTES:
        text = yield from json_text.read_string(machine, candidate.outer)
        candidate.decisive = candidate.decisive or found.decisive
        named(machine, text, found.format, name)
    elif role is Role.ARGUMENTS:
        yield from arguments_member(machine, found, name)
    elif role is Role.CALLS and char == "[" and candidate.name is None:
        machine.recognise(found.format)
        candidate.marked = True
        yield from array(machine, keys)
    elif role is Role.THOUGHT and char == '"' and candidate.whole and machine.state is State.CALL:
        machine.finish()
        yield from spoken(machine, found.format, Sink.REASONING, THOUGHT)
    elif role in (Role.THOUGHT, Role.FINAL) and (candidate.name is not None or candidate.nested):
        yield from ignored(machine)
    elif role is Role.THOUGHT and char == '"':
        yield from spoken(machine, found.format, Sink.REASONING, THOUGHT)
    elif role is Role.FINAL and char == "{":
        yield from final(machine, found.format)
    elif role is Role.ID:
        yield from identified(machine)
    elif role is Role.TYPE or candidate.marked or candidate.committed:
        yield from ignored(machine)
    else:
        raise NoCall


def named(machine: Machine, text: str, form: Format, key_name: str) -> None:
    """The name is known: early arguments can go, a marked envelope commits."""
    candidate = machine.candidate
    if candidate.name is not None:
        return
    if candidate.format is None:
        candidate.format = form
    body = envelope_of(candidate.format)
    if key_name not in ("name", body.name[0]):
        candidate.notes.mend("name_key")
    machine.named(text)
    if not candidate.known and (candidate.marked or candidate.begun):
        machine.disown()
    if candidate.known and (candidate.marked or candidate.begun):
        machine.commit()
        machine.target = False


def nested(machine: Machine, keys: Keys, found: Key) -> Grammar:
    """A call nested under a key."""
    candidate = machine.candidate
    if candidate.format is None:
        candidate.format = found.format
    candidate.nested += 1
    candidate.decisive = True
    if candidate.nested > NESTING:
        raise Mismatch
    if not envelope_of(candidate.format).written_nest:
        candidate.notes.mend("nested_call")
    yield from members(machine, keys)


def arguments_member(machine: Machine, found: Key, key_name: str) -> Grammar:
    """The arguments; they are queued while the name is not known."""
    candidate = machine.candidate
    if candidate.begun:
        raise Mismatch
    if candidate.format is None:
        candidate.format = found.format
    body = envelope_of(candidate.format)
    if key_name not in ("arguments", body.arguments[0]):
        candidate.notes.mend("arguments_key")
    candidate.decisive = True
    if candidate.name is not None and not candidate.known and machine.state is State.CANDIDATE:
        machine.disown()
    machine.aim()
    yield from arguments(machine, as_string=body.as_string)
    machine.target = False


def identified(machine: Machine) -> Grammar:
    """The call's id: a string or a number. After the call has started it is too late, and recorded."""
    candidate = machine.candidate
    if machine.text[machine.at] in json_text.QUOTES:
        text = yield from json_text.read_string(machine, candidate.outer)
    else:
        captured: list[str] = []
        machine.target = captured
        yield from json_text.value(machine, Notes(candidate.outer.repairs, depth=candidate.outer.depth))
        machine.target = False
        text = "".join(captured)
    if candidate.committed:
        candidate.notes.mend("late_id")
    elif text not in ("", "null"):
        candidate.id = text


def ignored(machine: Machine) -> Grammar:
    """A value that says nothing about the call."""
    machine.target = False
    notes = machine.candidate.outer
    yield from json_text.value(machine, notes)


def envelope_of(form: Format) -> Envelope:
    """The envelope of a format."""
    return next(shape.body for shape in form.shapes if isinstance(shape.body, Envelope))


def final(machine: Machine, form: Format) -> Grammar:
    """The strict protocol's final answer: its content is text, a string decoded as it streams, else its JSON text."""
    candidate = machine.candidate
    machine.recognise(form)
    candidate.marked = True
    candidate.outer.stack.append("}")
    machine.take(1)
    while (name := (yield from next_key(machine, candidate))) is not None:
        yield from colon(machine)
        if name == envelope_of(form).final[1]:
            yield from spoken(machine, form, Sink.TEXT, 0)
        else:
            yield from ignored(machine)


def spoken(machine: Machine, form: Format, sink: Sink, limit: int) -> Grammar:
    """A value that is said: a string decoded as it streams, any other value as its JSON text."""
    machine.recognise(form)
    machine.candidate.marked = True
    yield from machine.say(sink, limit)
