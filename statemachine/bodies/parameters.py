"""Marked keys and raw values, typed by the tool's JSON Schema: XML, key–value and their kin.

This is the outline: keys, the spans around them, the end of the call. Values are read in `raw_value.py` and
`elements.py`; what a declaration compiles into is in `marks.py`.
"""

import json

from statemachine import schema
from statemachine.bodies import json_object
from statemachine.bodies.elements import holds_all, key, opens_key, skip, slot_of, value
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import Marker, Tables, closing, cut_off, look, tables
from statemachine.buffer import Ended, Grammar, Mismatch
from statemachine.formats.format import Format, Parameters
from statemachine.grammar.closers import sibling
from statemachine.json.state import WORDS
from statemachine.machine import Machine
from statemachine.runs import quote

__all__ = ["Reading", "read", "tables", "typed_text", "unescaped"]


def unescaped(text: str) -> str:
    """The text that stands escaped in a JSON string."""
    return str(json.loads(f'"{text}"'))


def typed_text(text: str, types: frozenset[str]) -> str:
    """The JSON of a whole raw value: itself if it is JSON of an allowed type, else a string."""
    plain = text.strip()
    plain = WORDS.get(plain, plain)
    try:
        found = json.loads(plain)
    except ValueError:
        found = text
    if isinstance(found, str) or not types.intersection(schema.kinds(found)):
        return f'"{quote(text)}"'
    return plain


def read(machine: Machine, form: Format, body: Parameters) -> Grammar:
    """The parameters, to the call's closer (not consumed), or to where another span begins."""
    reader = machine.reader
    table = tables(body, form.openers, form.close)
    reading = Reading(machine, table)
    candidate = machine.candidate
    wrapped = False
    while True:
        yield from machine.blank()
        if reader.text[reader.at] == "{" and not candidate.arguments.begun:
            yield from json_object.arguments(machine, as_string=False)
            if wrapped:
                yield from skip(machine, table, Marker.CLOSE)
            return
        mark, length = yield from look(machine, table.between, 0)
        if mark is Marker.KEY and (yield from opens_key(machine, table, reading.level, length)):
            reader.take(length)
            if candidate.known and not candidate.committed and not table.keyed:
                machine.commit()
            if (yield from holds_all(machine, table, reading.level)):
                yield from json_object.arguments(machine, as_string=False)
                yield from skip(machine, table, Marker.VALUE_END)
                return
            yield from reading.parameter()
        elif mark is Marker.CALL_END:
            reading.end()
            return
        elif mark in (Marker.OPEN, Marker.CLOSE):
            reader.take(length)
            wrapped = mark is Marker.OPEN
        elif mark is Marker.VALUE_END and not table.keyed:
            reading.surplus(length)
        elif table.keyed and (closed := (yield from closing(machine, table, 0)))[0] in reading.level.given:
            reading.surplus(closed[1])
        elif reader.text[reader.at] == ">" and reading.level.given:
            reading.surplus(1)
        elif cut_off(machine, table.inner):
            raise Ended
        elif around(machine) and (yield from sibling(machine, 0)):
            candidate.arguments.json.mend("missing_closer")
            reading.end()
            return
        else:
            raise Mismatch


def around(machine: Machine) -> bool:
    """True if there is something whose end may imply the end of the call."""
    candidate = machine.candidate
    return candidate.committed or bool(machine.frames.wrappers or candidate.wrappers)


class Reading:
    """One call whose arguments are parameters."""

    __slots__ = ("level", "levels", "machine", "table")

    def __init__(self, machine: Machine, table: Tables) -> None:
        self.machine = machine
        self.table = table
        parameters = machine.tools.schema(machine.candidate.name)
        names = tuple(schema.properties(parameters))
        node = schema.arguments(parameters)
        arguments = machine.candidate.arguments
        given = arguments.given = arguments.given or set()
        self.level = Level(node, names, given)
        self.levels = [self.level]

    def end(self) -> None:
        """All parameters have been read."""
        machine = self.machine
        reader = machine.reader
        if not machine.candidate.arguments.begun:
            machine.begin()
            reader.out("{")
        reader.out("}")
        machine.candidate.arguments.json.stack.clear()
        machine.candidate.arguments.complete = self.level.sound

    def surplus(self, length: int) -> None:
        """A closer, or a bracket behind one, that closes nothing."""
        self.machine.reader.take(length)
        self.machine.candidate.arguments.json.mend("surplus_closer")

    def open_key(self, name: str) -> frozenset[str]:
        """The key goes out; the types that its value may have."""
        machine = self.machine
        reader = machine.reader
        candidate = machine.candidate
        if name in self.level.given:
            candidate.arguments.json.mend("repeated_key")
        elif candidate.known and self.level.undeclared(name):
            candidate.arguments.json.mend("undeclared_key")
        first = not candidate.arguments.begun
        machine.begin()
        candidate.arguments.json.stack[:] = ["}"]
        candidate.arguments.open_value = True
        reader.out(("{" if first else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
        self.level.given.add(name)
        node = self.level.member(name)
        return schema.STRING if not candidate.known else node.types if node is not None else schema.ANY

    def parameter(self) -> Grammar:
        """One key and its value, the opener consumed."""
        machine = self.machine
        tag = yield from key(machine, self.table)
        types = self.open_key(tag.key)
        known = machine.candidate.known
        slot = slot_of(self.level.member(tag.key), tag) if known else Slot(tag.key, types, None)
        yield from value(machine, self.table, self.levels, slot)
