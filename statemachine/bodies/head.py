"""Where the name stands when it is not in JSON: after the opener, or in an attribute of its tag; then the body."""

import re
from collections.abc import Callable, Generator
from functools import lru_cache

from statemachine import schema
from statemachine.bodies import json_object, parameters
from statemachine.bodies.parameters import Reading, tables
from statemachine.format import Body, Format, Head, Json, Parameters
from statemachine.machine import Machine
from statemachine.markers import Markers
from statemachine.reader import Ended, Grammar, Mismatch, Run, quote

name_text = re.compile(r"[^\s<>{}\[\]()\"'`,=|]*+").match
id_text = re.compile(r"[\w.:-]*+").match
attribute_name = re.compile(r"([\w.:-]{1,64})[ \t]{0,16}+=[ \t]{0,16}+[\"']?").match
attribute_begun = re.compile(r"[\w.:-]{0,64}+[ \t]{0,16}+(?:=[ \t]{0,16}+)?\Z").match
double = Run(r'[^"]*+', convert=quote)
single = Run(r"[^']*+", convert=quote)
bare_value = re.compile(r"[^\s\"'<>/]*+").match


Pattern = Callable[[str, int], re.Match[str] | None]


@lru_cache(maxsize=128)
def ends_of(head: Head) -> Markers[str]:
    """What may follow the name."""
    marks = list(head.ends) + ([head.id] if head.id else [])
    return Markers([(mark, mark) for mark in marks], any_case=any("{_}" in mark for mark in marks))


def read_head(machine: Machine, head: Head, form: Format, body: Body) -> Grammar:
    """The name, then the body that follows it."""
    if head.attribute:
        closed = yield from tag(machine, head, form, body)
        if closed:
            return
    else:
        yield from plain(machine, head)
    match body:
        case Json():
            yield from json_object.read(machine)
        case Parameters():
            yield from parameters.read(machine, form, body)
        case _:
            raise Mismatch


def word(machine: Machine, pattern: Pattern = name_text) -> Generator[None, None, str]:
    """A name, to the first character that no name has; consumed."""
    while True:
        found = pattern(machine.text, machine.at)
        end = found.end() if found else machine.at
        if end - machine.at > machine.limits.name:
            raise Mismatch
        if end < len(machine.text):
            break
        yield from machine.more()
    if end == machine.at:
        raise Mismatch
    return machine.take(end - machine.at)


def plain(machine: Machine, head: Head) -> Grammar:
    """A name up to one of the ends, an id before the end perhaps."""
    ends = ends_of(head)
    quote = (yield from machine.peek()) in "\"'"
    if quote:
        machine.take(1)
    name = yield from word(machine)
    if quote and (yield from machine.peek()) in "\"'":
        machine.take(1)
    if name in head.noise:
        yield from machine.blank()
        if machine.text[machine.at] != "{":
            name = yield from word(machine)
    mark = len(machine.raw)
    try:
        end, length = yield from name_end(machine, ends, head)
    except Ended:
        if any("\n" in piece for piece, _ in machine.raw[mark:]):
            named(machine, name)
        raise
    if end != "{":
        machine.take(length)
    named(machine, name)


def name_end(machine: Machine, ends: Markers[str], head: Head) -> Generator[None, None, tuple[str, int]]:
    """The end of the name that stands here and its length, not consumed; an id before it is read."""
    while True:
        mark = len(machine.raw)
        yield from machine.blank()
        if head.one_line and any("\n" in piece for piece, _ in machine.raw[mark:]):
            raise Mismatch
        found = ends.match(machine.text, machine.at)
        if found is None:
            raise Mismatch
        if found.lastindex:
            end, length = ends.values[found.lastindex - 1], found.end() - machine.at
            if end != head.id:
                return end, length
            machine.take(length)
            yield from machine.blank()
            machine.candidate.id = yield from word(machine, id_text)
        else:
            yield from machine.more()


def named(machine: Machine, name: str) -> None:
    """The name is known; a call that is not offered is disowned at once."""
    machine.named(name)
    if not machine.candidate.known:
        machine.disown()


def tag(machine: Machine, head: Head, form: Format, body: Body) -> Generator[None, None, bool]:
    """The attributes of the opener's tag: the name, then perhaps arguments; true if the tag closed itself."""
    if not isinstance(body, Parameters):
        raise Mismatch
    ends = ends_of(head)
    reading: Reading | None = None
    while True:
        mark = len(machine.raw)
        yield from machine.blank()
        if head.one_line and any("\n" in piece for piece, _ in machine.raw[mark:]):
            raise Mismatch
        found = ends.match(machine.text, machine.at)
        if found is not None:
            if found.lastindex:
                break
            yield from machine.more()
            continue
        key = yield from attribute_key(machine)
        if reading is None:
            if key != head.attribute:
                raise Mismatch
            named(machine, (yield from attribute_text(machine)))
            reading = Reading(machine, form, body, tables(body, form.close))
        else:
            yield from argument(machine, reading, key)
    if reading is None:
        raise Mismatch
    end = ends.values[found.lastindex - 1]
    machine.take(found.end() - machine.at)
    if end.startswith("/"):
        reading.end()
        machine.candidate.self_closed = True
        return True
    return False


def attribute_key(machine: Machine) -> Generator[None, None, str]:
    """`key=` and the opening quote; only the key and the equals sign are consumed."""
    while True:
        found = attribute_name(machine.text, machine.at)
        if found and found.end() < len(machine.text):
            break
        if not found and not attribute_begun(machine.text, machine.at):
            raise Mismatch
        yield from machine.more()
    quote = found[0][-1] in "\"'"
    machine.take(found.end() - machine.at - quote)
    return found[1]


def attribute_text(machine: Machine) -> Generator[None, None, str]:
    """A short attribute, whole: the name."""
    captured: list[str] = []
    quote = machine.text[machine.at]
    if quote not in "\"'":
        return (yield from word(machine, bare_value))
    machine.take(1)
    while (char := (yield from machine.peek())) != quote:
        if len(captured) > machine.limits.name or char in "<>\r\n":
            raise Mismatch
        captured.append(machine.take(1))
    machine.take(1)
    return "".join(captured)


def argument(machine: Machine, reading: Reading, key: str) -> Grammar:
    """An attribute that is an argument: a string flows, any other value is read whole."""
    types = reading.open_key(key)
    quote = machine.text[machine.at]
    if quote not in "\"'":
        value = yield from word(machine, bare_value)
        machine.out(parameters.typed_text(value, types))
    elif types == schema.STRING:
        machine.take(1)
        machine.out('"')
        while (yield from machine.peek()) != quote:
            yield from machine.flow(double if quote == '"' else single)
        machine.take(1)
        machine.out('"')
    else:
        machine.take(1)
        target = machine.target
        captured: list[str] = []
        machine.target = captured
        while (yield from machine.peek()) != quote:
            yield from machine.flow(double if quote == '"' else single)
            if sum(map(len, captured)) > machine.limits.held:
                raise Mismatch
        machine.target = target
        machine.take(1)
        machine.out(parameters.typed_text(parameters.unescaped("".join(captured)), types))
    machine.candidate.open_value = False
