"""Marked keys and raw values, typed by the tool's JSON Schema: XML, key–value and similar formats.

This module reads the outline: keys, the spans around them, and the end of the call. Values are read in `raw_value.py`
and `elements.py`; declarations are compiled in `parameter_markers.py`.
"""

import json
from collections.abc import Generator
from functools import partial

from statemachine import schema
from statemachine.bodies import json_object
from statemachine.bodies.attributes import read_quoted, read_tag_end, value_attribute
from statemachine.bodies.elements import holds_all, key, opens_key, skip_closer, slot_of, value
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.lists import ListReader, ReadValue, wants_list
from statemachine.bodies.parameter_markers import (
    Marker,
    Tables,
    Tag,
    closes_here,
    closing_key_at,
    is_cut_off,
    marker_at,
    tables,
    take_value_closer,
)
from statemachine.bodies.scalars import raw_value_json
from statemachine.endings import ends_call
from statemachine.formats.format import Format, Parameters
from statemachine.formats.openers import closers_of_parameters, openers_in_values
from statemachine.json.nesting import Nesting
from statemachine.json.typed import wants_items
from statemachine.machine.candidate import NO_PARAMETERS
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch

__all__ = ["ParameterReader", "read", "tables"]


def read(machine: Machine, form: Format, body: Parameters) -> Grammar:
    """Read the parameters, up to the call's closer (not consumed) or the beginning of another span."""
    table = tables(body, openers_in_values(form), closers_of_parameters(form))
    reading = ParameterReader(machine, table)
    try:
        yield from read_parameters(machine, table, reading)
    except (EndOfText, Mismatch):
        reading.lists.release()
        if reading.nesting is not None:
            reading.nesting.end(machine.reader, machine.candidate.arguments.json, cut=True)
        raise


def read_parameters(machine: Machine, table: Tables, reading: "ParameterReader") -> Grammar:
    """Read the parameters of a call with this reader."""
    reader = machine.reader
    candidate = machine.candidate
    wrapped = False
    while True:
        if table.line_keys and (yield from label_follows(machine, table)):
            candidate.arguments.json.add_repair("missing_closer")
            reading.end()
            return
        yield from machine.skip_whitespace()
        if reader.text[reader.at] == "{" and not candidate.arguments.begun:
            yield from json_object.arguments(machine, as_string=False)
            if wrapped:
                yield from skip_closer(machine, table, Marker.CLOSE)
            return
        mark, length = yield from marker_at(machine, table.outline, 0)
        if mark is Marker.KEY and (yield from opens_key(machine, table, reading.level, length)):
            reading.level.foreign = not table.between.match(reader.text, reader.at)
            reader.take(length)
            if candidate.offered and not candidate.committed and not table.keyed:
                machine.commit()
            while table.line_keys and (yield from reader.peek()) in " \t":
                reader.take(1)
            if whole := (yield from holds_all(machine, table, reading.level)):
                yield from reading.all_arguments()
                yield from take_value_closer(machine, table, whole)
            else:
                yield from reading.parameter()
        elif mark is Marker.CALL_END:
            reading.end()
            return
        elif mark in (Marker.OPEN, Marker.CLOSE):
            reader.take(length)
            wrapped = mark is Marker.OPEN
        elif mark is Marker.VALUE_END and not table.keyed:
            reading.skip_surplus_closer(length)
        elif table.keyed and (closed := (yield from closing_key_at(machine, table, 0)))[0] in reading.level.given:
            reading.skip_surplus_closer(closed[1])
        elif reader.text[reader.at] == ">" and reading.level.given:
            reading.skip_surplus_closer(1)
        elif is_cut_off(machine, table.inner):
            raise EndOfText
        elif has_enclosing_span(machine) and (yield from ends_call(machine, 0)):
            candidate.arguments.json.add_repair("missing_closer")
            reading.end()
            return
        else:
            raise Mismatch


def label_follows(machine: Machine, table: Tables) -> Generator[None, None, bool]:
    """Return whether the label of another call begins the next line."""
    reader = machine.reader
    begin = yield from reader.whitespace_end(0)
    if begin <= 0 or reader.at + begin >= len(reader.text):
        return False
    mark, _ = yield from marker_at(machine, table.between, begin)
    return mark is None and (yield from ends_call(machine, 0))


def has_enclosing_span(machine: Machine) -> bool:
    """Return whether anything is open whose end may imply the end of the call."""
    candidate = machine.candidate
    return candidate.committed or bool(machine.frames.wrappers or candidate.wrappers)


class ParameterReader:
    """Reader for the parameters of one call."""

    __slots__ = ("level", "levels", "lists", "machine", "nesting", "table")

    def __init__(self, machine: Machine, table: Tables) -> None:
        self.machine = machine
        self.table = table
        parameters = machine.tools.schema(machine.candidate.name)
        names = tuple(schema.properties(parameters))
        node = schema.arguments_node(parameters)
        arguments = machine.candidate.arguments
        if arguments.parameters is NO_PARAMETERS:
            arguments.parameters = set()
        given = arguments.parameters
        self.level = Level(node, names, given)
        self.levels = [self.level]
        self.lists = ListReader(machine, table)
        nests = machine.options.nest and machine.candidate.offered and node.may_have_homes
        self.nesting = Nesting(node, given) if nests else None

    def end(self) -> None:
        """End the arguments; they are complete unless a value may have swallowed markup."""
        machine = self.machine
        reader = machine.reader
        self.lists.end()
        if not machine.candidate.arguments.begun:
            machine.begin_arguments()
            reader.emit_arguments("{")
        if self.nesting is not None:
            self.nesting.end(reader, machine.candidate.arguments.json)
        reader.emit_arguments("}")
        machine.candidate.arguments.json.stack.clear()
        machine.candidate.arguments.complete = self.level.sound and self.lists.sound

    def skip_surplus_closer(self, length: int) -> None:
        """Skip a closer that closes nothing, or a surplus bracket after a closer."""
        self.machine.reader.take(length)
        self.machine.candidate.arguments.json.add_repair("surplus_closer")

    def open_key(self, name: str) -> frozenset[str]:
        """Emit the key; return the types that its value may have."""
        machine = self.machine
        reader = machine.reader
        candidate = machine.candidate
        if name in self.level.given:
            candidate.arguments.json.add_repair("repeated_key")
            # If the values belong together, the first one has been emitted, so that one of them would be lost.
            self.level.sound = self.level.sound and not wants_items(self.level.member(name))
        elif candidate.offered and self.level.is_undeclared(name):
            candidate.arguments.json.add_repair("undeclared_key")
        first = not candidate.arguments.begun
        machine.begin_arguments()
        candidate.arguments.json.stack[:] = ["}"]
        candidate.arguments.open_value = True
        separator = "{" if first else ", " if self.level.given else ""
        reader.emit_arguments(separator + json.dumps(name, ensure_ascii=False) + ": ")
        self.level.given.add(name)
        node = self.level.member(name)
        return schema.STRING if not candidate.offered else node.types if node is not None else schema.ANY

    def parameter_name(self, key: str) -> str:
        """Return the parameter that a key refers to, which may be spelled differently."""
        near = self.level.near(key) if self.machine.candidate.offered else None
        if near is None:
            return key
        self.machine.candidate.arguments.json.add_repair("parameter_name")
        return near

    def all_arguments(self, text: str | None = None) -> Grammar:
        """Read an object that contains the arguments, or continues them; further parameters may follow.

        If `text` is given, the object is that text, which has already been consumed.
        """
        machine = self.machine
        candidate = machine.candidate
        state = candidate.arguments.json
        self.lists.end()
        state.add_repair("arguments_key")
        state.stack.clear()
        if candidate.arguments.begun:
            state.resumed = ", " if self.level.given else ""
        if text is None:
            yield from json_object.arguments(machine, as_string=False, leave_open=True)
        else:
            json_object.emit_object(machine, text)
        candidate.arguments.complete = state.withheld = False
        state.leave_open = 0
        state.stack[:] = ["}"]

    def parameter(self) -> Grammar:
        """Read one key and its value, after the opener has been consumed."""
        machine = self.machine
        tag = yield from value_attribute(machine, self.table)
        if tag is not None:
            machine.reader.take(tag.end)
            machine.candidate.arguments.json.add_repair("value_in_tag")
            read = self.attribute
        else:
            tag = yield from key(machine, self.table)
            alone = tag.closed or (tag.value is not None and (yield from closes_here(machine, self.table)))
            read = partial(self.written, tag.value) if alone else self.value
        if not machine.candidate.offered:
            yield from read(Slot(tag.key, self.open_key(tag.key), None))
            return
        name = self.parameter_name(tag.key)
        node = self.level.member(name)
        nested = self.nesting.member(name) if self.nesting is not None and node is None else None
        if nested is not None:
            yield from self.nested_parameter(name, tag, *nested, read)
            return
        slot = slot_of(node, tag)
        if not self.lists.continues(tag.key):
            self.lists.end()
            self.open_key(name)
        yield from self.lists.read(slot, read) if wants_list(node) else read(slot)

    def nested_parameter(self, name: str, tag: Tag, home: str, node: schema.Node | None, read: ReadValue) -> Grammar:
        """Read the value of a parameter that belongs to an object in the arguments."""
        machine = self.machine
        reader, arguments = machine.reader, machine.candidate.arguments
        self.lists.end()
        if not arguments.begun:
            machine.begin_arguments()
            reader.emit_arguments("{")
        arguments.json.stack[:] = ["}"]
        arguments.open_value = True
        if self.nesting is not None:
            self.nesting.begin(reader, name, home)
            yield from read(slot_of(node, tag))
            self.nesting.pause(reader)

    def attribute(self, slot: Slot) -> Grammar:
        """Read a value in an attribute of the parameter's tag, the rest of that tag, and its closer."""
        machine = self.machine
        yield from read_quoted(machine, slot.types)
        machine.candidate.arguments.open_value = False
        yield from read_tag_end(machine, self.table)
        yield from take_value_closer(machine, self.table, slot.key)

    def written(self, text: str | None, slot: Slot) -> Grammar:
        """Emit a value that was written in a tag that has been consumed, and consume the closer of that tag."""
        machine = self.machine
        arguments = machine.candidate.arguments
        arguments.json.add_repair("missing_closer" if text is None else "value_in_tag")
        machine.reader.emit_arguments(raw_value_json(text or "", slot.types))
        arguments.open_value = False
        yield from take_value_closer(machine, self.table, slot.key)

    def value(self, slot: Slot) -> Grammar:
        """Return the grammar that reads one value."""
        return value(self.machine, self.table, self.levels, slot)
