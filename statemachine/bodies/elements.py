"""Values of marked parameters: raw, quoted, or made of elements.

A value made of elements is an array if the key of its first element is the one that the format reserves for array
items, and an object otherwise. Nesting is tracked in a list of levels, not on Python's call stack. At the depth limit,
further elements are read as the text of a string.
"""

from collections.abc import Generator
from json.encoder import encode_basestring

from statemachine import schema
from statemachine.bodies.json_object import first_key_at
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import (
    Marker,
    Tables,
    Tag,
    closing_key_at,
    find_tag,
    is_cut_off,
    key_at,
    marker_at,
    tag_at,
)
from statemachine.bodies.quoted_value import Quoted
from statemachine.bodies.raw_value import RawValue
from statemachine.bodies.repeated import BufferingTarget, begin_buffering, resolve_first
from statemachine.endings import ends_call
from statemachine.formats.format import CANONICAL_KEYS, is_synonym
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch


def value(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Grammar:
    """Read the value of a key whose opener has been consumed, through the value's closer.

    `levels` are the containers around the value.
    """
    base = len(levels)
    try:
        while True:
            if (yield from begins_elements(machine, table, levels, slot)):
                levels.append(Level(slot.node, key=slot.key, array=None))
            else:
                yield from leaf(machine, table, levels, slot)
                if not (yield from element_follows(machine, table, levels, base)):
                    return
            level = levels[-1]
            tag = yield from next_key(machine, table)
            name = begin_member(machine, table.body.item, level, tag.key, slot.types)
            slot = slot_of(level.member(name), tag)
    except (EndOfText, Mismatch):
        if isinstance(machine.reader.target, BufferingTarget):
            machine.reader.target.release()
        raise


def slot_of(node: schema.Node | None, tag: Tag) -> Slot:
    """Return the slot of a value: the types that its schema allows, restricted to those of its type mark, unless that
    would leave none.
    """
    types = schema.ANY if node is None else node.types
    return Slot(tag.key, types & tag.types or types, node)


def leaf(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Grammar:
    """Read an empty container, a quoted value or a raw value."""
    if (yield from take_empty_container(machine, table, slot)):
        return
    trimmed = table.body.trim and (table.line_keys or (yield from take_line_break(machine)))
    if (yield from take_quote_opener(machine, table)):
        yield from Quoted(machine, table, levels, slot).read()
    else:
        yield from RawValue(machine, table, levels, slot, trimmed=trimmed).read()


def take_empty_container(machine: Machine, table: Tables, slot: Slot) -> Generator[None, None, bool]:
    """Consume the closer of an empty array or object parameter, and emit `[]` or `{}`. Return whether the value is
    empty.

    Without this check, such a value would be read as an empty string.
    """
    reader = machine.reader
    kinds = slot.types - {"null"}
    if not table.body.item or not kinds or not kinds <= {"array", "object"}:
        return False
    offset = yield from machine.reader.whitespace_end(0)
    name, end = (yield from closing_key_at(machine, table, offset)) if offset >= 0 else ("", 0)
    if name != slot.key:
        return False
    reader.take(end)
    reader.emit_arguments("[]" if "array" in kinds else "{}")
    machine.candidate.arguments.open_value = False
    return True


def take_line_break(machine: Machine) -> Generator[None, None, bool]:
    """Consume the line break immediately after the opener, if any, because it is markup; return whether there was
    one.
    """
    reader = machine.reader
    char = yield from reader.peek()
    if char == "\r":
        while len(reader.text) - reader.at < 2:
            yield from reader.more()
        if reader.text[reader.at + 1] == "\n":
            reader.take(2)
            return True
    elif char == "\n":
        reader.take(1)
        return True
    return False


def take_quote_opener(machine: Machine, table: Tables) -> Generator[None, None, bool]:
    """Consume an opening quote and any whitespace before it; return whether there was one."""
    reader = machine.reader
    if table.quote_open is None:
        return False
    offset = yield from machine.reader.whitespace_end(0)
    mark, end = (yield from marker_at(machine, table.quote_open, offset)) if offset >= 0 else (None, 0)
    if mark is None:
        return False
    reader.take(end)
    return True


# ---- one value that contains all arguments


def holds_all(machine: Machine, table: Tables, level: Level) -> Generator[None, None, str]:
    """Return the key here if its value is one object that contains all arguments, and consume the text before that
    object. Return "" if it is an ordinary parameter.
    """
    reader = machine.reader
    tag = yield from find_tag(machine, table, 0)
    if tag is None or not may_hold_all(machine, level, tag.key):
        return ""
    offset = yield from reader.whitespace_end(tag.end)
    if table.quote_open is not None and offset >= 0:
        mark, end = yield from marker_at(machine, table.quote_open, offset)
        offset = (yield from reader.whitespace_end(end)) if mark is not None else offset
    if offset < 0 or not (yield from is_arguments_object(machine, level, tag.key, offset)):
        return ""
    reader.take(offset)
    return tag.key


def may_hold_all(machine: Machine, level: Level, key: str) -> bool:
    """Return whether the value of this key may be the arguments object: a synonym that the schema does not declare.

    Without a schema, the key must be a canonical one, and the first.
    """
    candidate = machine.candidate
    if not (candidate.offered and is_synonym(key)):
        return False
    return level.is_undeclared(key) or not (
        level.names or candidate.arguments.begun or key.lower() not in CANONICAL_KEYS
    )


def is_arguments_object(machine: Machine, level: Level, key: str, offset: int) -> Generator[None, None, bool]:
    """Return whether the value at `offset`, of a key that may hold all arguments, is an object with arguments."""
    candidate, reader = machine.candidate, machine.reader
    offset = yield from reader.whitespace_end(offset)
    if offset < 0 or not reader.text.startswith("{", reader.at + offset):
        return False
    canonical = key.lower() in CANONICAL_KEYS
    first = yield from first_key_at(machine, offset)
    if level.names:
        return canonical or (bool(first) and level.node is not None and level.node.declares(first or ""))
    if first and not schema.takes_nothing(machine.tools.schema(candidate.name)):
        level.given.add(first)
        return True
    return first == ""


def skip_closer(machine: Machine, table: Tables, closer: Marker) -> Grammar:
    """Consume this closer if it is here; the value has already ended with its JSON object."""
    offset = yield from machine.reader.whitespace_end(0)
    mark, end = (yield from marker_at(machine, table.between, offset)) if offset >= 0 else (None, 0)
    if mark is closer:
        machine.reader.take(end)


# ---- elements


def begins_elements(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Generator[None, None, bool]:
    """Return whether the value is made of elements; if so, consume the whitespace before the first element."""
    reader = machine.reader
    if not table.body.item or not slot.types & {"object", "array"} or len(levels) >= machine.limits.depth:
        return False
    offset = yield from machine.reader.whitespace_end(0)
    mark, end = (yield from marker_at(machine, table.between, offset)) if offset >= 0 else (None, 0)
    if mark is not Marker.KEY or (yield from tag_at(machine, table, end)) is None:
        return False
    reader.take(offset)
    return True


def next_key(machine: Machine, table: Tables) -> Generator[None, None, Tag]:
    """Consume the key opener here and the key after it; return the key's tag."""
    reader = machine.reader
    _, length = yield from marker_at(machine, table.between, 0)
    reader.take(length)
    return (yield from key(machine, table))


def key(machine: Machine, table: Tables) -> Generator[None, None, Tag]:
    """Consume the key after its opener, and the marker that ends the key; return the key's tag.

    Raises:
        Mismatch: no key follows.
    """
    reader = machine.reader
    tag = yield from tag_at(machine, table, 0)
    if tag is None:
        raise Mismatch
    reader.take(tag.end)
    if tag.repair:
        machine.candidate.arguments.json.add_repair(tag.repair)
    return tag


def begin_member(machine: Machine, item: str, level: Level, name: str, types: frozenset[str]) -> str:
    """Begin a member of an object or an item of an array. Return its name, which may differ in spelling.

    For the first element of a level, `types` (the types allowed for the containing value) help to decide whether the
    level is an object or an array.
    """
    reader = machine.reader
    state = machine.candidate.arguments.json
    if level.first is not None and level.first.key == name and (level.first.buffered or level.first.listed):
        if not level.first.listed:
            resolve_first(reader, level.first, listed=True)
            state.stack.append("]")
        reader.emit_arguments(", ")
        machine.candidate.arguments.open_value = True
        return name
    end_member(machine, level)
    first = level.array is None
    if level.array is None:
        level.array = ("array" in types and name == item) or "object" not in types
        state.stack.append("]" if level.array else "}")
    separator = ("[" if level.array else "{") if first else ", "
    if level.array:
        reader.emit_arguments(separator)
    else:
        if name in level.given:
            state.add_repair("repeated_key")
        elif (near := level.near(name)) is not None:
            state.add_repair("parameter_name")
            name = near
        level.given.add(name)
        reader.emit_arguments(f"{separator}{encode_basestring(name)}: ")
        if level.member(name) is None:
            level.first = begin_buffering(reader, name)
    machine.candidate.arguments.open_value = True
    return name


def end_member(machine: Machine, level: Level) -> None:
    """End the last member of a level: release the member's buffered value and, if that value became the first item of a
    list, close the list.
    """
    first, level.first = level.first, None
    if first is not None:
        resolve_first(machine.reader, first, listed=False)
        if first.listed:
            machine.reader.emit_arguments(machine.candidate.arguments.json.stack.pop())


def element_follows(machine: Machine, table: Tables, levels: list[Level], base: int) -> Generator[None, None, bool]:
    """Return True if another element follows on one of the levels, or False once all levels above `base` are closed."""
    reader = machine.reader
    while len(levels) > base:
        yield from machine.skip_whitespace()
        mark, end = yield from marker_at(machine, table.between, 0)
        if mark is Marker.KEY and (yield from opens_key(machine, table, levels[-1], end)):
            return True
        name, end = yield from closing_key_at(machine, table, 0)
        if name and any(level.key == name for level in levels[base:]):
            while levels[-1].key != name:
                machine.candidate.arguments.json.add_repair("missing_closer")
                close_level(machine, levels)
            reader.take(end)
            close_level(machine, levels)
        elif mark is None and is_cut_off(machine, table.between):
            raise EndOfText
        elif mark is Marker.CALL_END or (yield from ends_call(machine, 0)):
            machine.candidate.arguments.json.add_repair("missing_closer")
            while len(levels) > base:
                close_level(machine, levels)
        else:
            raise Mismatch
    return False


def opens_key(machine: Machine, table: Tables, level: Level, offset: int) -> Generator[None, None, bool]:
    """Return whether the opener that ends at `offset` opens a key, rather than a call or an enclosing element."""
    reader = machine.reader
    if not table.keyed:
        return True
    name = yield from key_at(machine, table, offset)
    if not name:
        return reader.ended
    return level.accepts_key(name, closed=False) or not (yield from ends_call(machine, 0))


def close_level(machine: Machine, levels: list[Level]) -> None:
    """Close the innermost level."""
    reader = machine.reader
    end_member(machine, levels.pop())
    reader.emit_arguments(machine.candidate.arguments.json.stack.pop())
