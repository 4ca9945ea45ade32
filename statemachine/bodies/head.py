"""Where the name stands when it is not in JSON: after the opener, or in an attribute of its tag; then the body."""

import re
from collections.abc import Callable, Generator
from functools import lru_cache

from statemachine import schema
from statemachine.bodies import json_object, parameters
from statemachine.bodies.parameters import Reading, tables
from statemachine.format import Body, Format, Head, Json, Parameters, Shape
from statemachine.leads import Lead, Opening
from statemachine.machine import Machine
from statemachine.markers import Markers
from statemachine.reader import Ended, Grammar, Mismatch, Run, quote

name_text = re.compile(r"[^\s<>{}\[\]()\"'`,=|]*+").match
words_text = re.compile(r"[^\s<>{}\[\]()\"'`,=|]*+(?: [^\s<>{}\[\]()\"'`,=|]++)*+ ?").match
"""A name after an equals sign, to the end of its tag: blanks may stand in it."""
id_text = re.compile(r"[\w.:-]*+").match
attribute_name = re.compile(r"([\w.:-]{1,64})[ \t]{0,16}+=[ \t]{0,16}+[\"']?").match
attribute_begun = re.compile(r"[\w.:-]{0,64}+[ \t]{0,16}+(?:=[ \t]{0,16}+)?\Z").match
double = Run(r'[^"]*+', convert=quote)
single = Run(r"[^']*+", convert=quote)
bare_value = re.compile(r"[^\s\"'<>/]*+").match


Pattern = Callable[..., re.Match[str] | None]
PLAIN = "{name}"


@lru_cache(maxsize=128)
def ends_of(head: Head) -> Markers[str]:
    """What ends the attributes of a tag."""
    return Markers([(mark, mark) for mark in head.ends])


@lru_cache(maxsize=128)
def pattern_of(spelling: str) -> Pattern:
    """How a name is written (`Head.spelling`); what stands around it may be missing."""
    before, _, after = spelling.partition("{name}")
    after = re.escape(after).replace(r"\{index\}", r"\d+").replace(r"\{name\}", "(?P=name)")
    return re.compile(rf"(?:{re.escape(before)})?+(?P<name>.+?)(?:{after})?\Z").match


def read(machine: Machine, lead: Lead) -> Grammar:
    """The name, then the body that follows it."""
    form, shape = lead.heads[0]
    if shape.head is None or lead.ends is None:
        raise Mismatch
    machine.candidate.format = form
    if shape.head.attribute:
        closed = yield from tag(machine, shape.head, form, shape.body)
        if closed:
            return
    else:
        form, shape = yield from plain(machine, lead, lead.ends)
    match shape.body:
        case Json():
            yield from json_object.read(machine)
        case Parameters():
            yield from parameters.read(machine, form, shape.body)
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


def plain(machine: Machine, lead: Lead, ends: Markers[tuple[Format, Shape, str]]) -> Generator[None, None, Opening]:
    """A name up to one of the ends, an id before the end perhaps; says whose name it is."""
    quote = (yield from machine.peek()) in "\"'"
    if quote:
        machine.take(1)
    name = (yield from word(machine, words_text if lead.literal.endswith("=") else name_text)).rstrip(" ")
    if quote and (yield from machine.peek()) in "\"'":
        machine.take(1)
    if any(shape.head and name in shape.head.noise for _, shape in lead.heads):
        yield from machine.blank()
        if machine.text[machine.at] != "{":
            name = yield from word(machine)
    mark = len(machine.raw)
    try:
        form, shape, end, length = yield from name_end(machine, ends)
    except Ended:
        if any("\n" in piece for piece, _ in machine.raw[mark:]):
            named(machine, name)
        raise
    head = shape.head
    if head is not None and head.one_line and any("\n" in piece for piece, _ in machine.raw[mark:]):
        raise Mismatch
    machine.candidate.format = form
    key = shape.body.key if isinstance(shape.body, Parameters) else "{"
    if end not in ("{", key, form.close):
        machine.take(length)
    if head is not None and head.spelling != PLAIN:
        found = pattern_of(head.spelling)(name)
        if found and "{index}" in head.spelling:
            machine.candidate.id = name
        name = found["name"] if found else name
    named(machine, name)
    return form, shape


def name_end(
    machine: Machine, ends: Markers[tuple[Format, Shape, str]]
) -> Generator[None, None, tuple[Format, Shape, str, int]]:
    """The end of the name that stands here and its length, not consumed; an id before it is read."""
    while True:
        yield from machine.blank()
        found = ends.match(machine.text, machine.at)
        if found is None:
            raise Mismatch
        if found.lastindex:
            form, shape, end = ends.values[found.lastindex - 1]
            length = found.end() - machine.at
            if shape.head is None or end != shape.head.id:
                return form, shape, end, length
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
        if key in head.noise:
            yield from attribute_text(machine)
        elif reading is None:
            if key != head.attribute:
                raise Mismatch
            name = yield from attribute_text(machine)
            spelled = pattern_of(head.spelling)(name) if head.spelling != PLAIN else None
            named(machine, spelled["name"] if spelled else name)
            reading = Reading(machine, tables(body, form.close))
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
