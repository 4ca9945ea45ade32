"""Values in attributes of tags: `city="Oslo"` in the tag of a call, `value="Oslo"` in the tag of a parameter."""

import re
from collections.abc import Generator

from statemachine import schema
from statemachine.bodies.parameter_markers import TYPES, VALUE_ATTRIBUTE, Tables, Tag, attribute_of
from statemachine.bodies.scalars import ENTITIES, raw_value_json, unescape_entities, unescape_json
from statemachine.formats.markers import Markers
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.runs import Run, json_escape

double = Run(r'[^"&]*+', convert=json_escape)
single = Run(r"[^'&]*+", convert=json_escape)
entities = Markers(ENTITIES.items())
name_alone = re.compile(r"[ \t]*+[\w.:-]{1,64}=\"[^\"<>]{0,256}\"[ \t]*+[>/]").match
"""Matches a tag that contains no attribute except its name."""
head = re.compile(r"[ \t]*+(?:\Z|([\w.:-]{1,64}+)[ \t]*+(?:\Z|=[ \t]*+(?:\Z|()(?=[^ \t]))))").match
"""Matches an attribute up to its value, or a prefix of it, in which case group 2 does not match."""
attribute_text = re.compile(
    r"\"[^\"<>\r\n]{0,256}+(?:\Z|\"())|'[^'<>\r\n]{0,256}+(?:\Z|'())|[^\s\"'<>=/]{1,256}+(?:\Z|())"
).match
"""Matches the short value of an attribute, or a prefix of it, in which case no group matches."""


def value_attribute(machine: Machine, table: Tables) -> Generator[None, None, Tag | None]:
    """Return the tag of the key here if its next attribute, after the key's name, is its value in quotes; its end is
    the offset of the opening quote. Return None, without consuming anything, for any other tag.
    """
    reader, rule = machine.reader, table.body.key_rule
    if not rule.attribute or name_alone(reader.text, reader.at):
        return None
    offset, key = 0, ""
    while True:
        found = head(reader.text, reader.at + offset)
        if found is None or (found[2] is None and reader.ended):
            return None
        if found[2] is None:
            yield
            continue
        begin, key = found.end() - reader.at, found[1]
        if key == VALUE_ATTRIBUTE:
            break
        text = attribute_text(reader.text, reader.at + begin)
        while text is not None and not text.lastindex and not reader.ended:
            yield
            text = attribute_text(reader.text, reader.at + begin)
        if text is None or not text.lastindex:
            return None
        offset = text.end() - reader.at
    before = reader.text[reader.at : reader.at + offset]
    name = attribute_of(before, rule.attribute)
    if not name or reader.text[reader.at + begin] not in "\"'":
        return None
    kind = attribute_of(before, table.body.type_attribute) if table.body.type_attribute else ""
    return Tag(name, TYPES.get(kind.strip().lower(), schema.ANY), begin)


def read_quoted(machine: Machine, types: frozenset[str]) -> Grammar:
    """Read a value in quotes: a string is streamed, and any other value is read in one piece."""
    reader = machine.reader
    quote = reader.take(1)
    if types == schema.STRING:
        reader.emit_arguments('"')
        while (yield from reader.peek()) != quote:
            yield from read_piece(machine, quote)
        reader.take(1)
        reader.emit_arguments('"')
        return
    target = reader.target
    captured: list[str] = []
    counted = length = 0
    reader.target = captured
    try:
        while (yield from reader.peek()) != quote:
            yield from read_piece(machine, quote)
            length += sum(map(len, captured[counted:]))
            counted = len(captured)
            if length > machine.limits.held:
                raise Mismatch
    finally:
        reader.target = target
    reader.take(1)
    reader.emit_arguments(raw_value_json(unescape_json("".join(captured)), types))


def read_tag_end(machine: Machine, table: Tables) -> Grammar:
    """Consume the end of a tag after its last attribute.

    Raises:
        Mismatch: something else follows.
    """
    reader = machine.reader
    yield from machine.skip_whitespace()
    if reader.text[reader.at] == "/":
        reader.take(1)
        yield from machine.skip_whitespace()
    while (found := table.ends.match(reader.text, reader.at)) is not None and not found.lastindex:
        yield from reader.more()
    if found is None:
        raise Mismatch
    reader.take(found.end() - reader.at)


def read_piece(machine: Machine, quote: str) -> Grammar:
    """Read the value of an attribute up to its closing quote or an entity, or read one entity."""
    reader = machine.reader
    if reader.text[reader.at] != "&":
        yield from reader.flow(double if quote == '"' else single)
        return
    while (found := entities.match(reader.text, reader.at)) is not None and not found.lastindex and not reader.ended:
        yield
    whole = found is not None and found.lastindex is not None
    length = found.end() - reader.at if found is not None and whole else 1
    reader.emit_arguments(json_escape(unescape_entities(reader.take(length, "argument"))))
