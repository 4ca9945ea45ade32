"""The value of a key: raw, quoted, or made of keys and values again.

Elements in a value are the members of an object, or, if the first one has the key that the format gives to items, the
items of an array. How deep they are is a list of levels, and not a matter of Python's stack; where one of them may not
open any more, what follows is the text of a string.
"""

from collections.abc import Generator
from json.encoder import encode_basestring

from statemachine import schema
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import Marker, Tables, Tag, closing, cut_off, is_key, look, tag_at
from statemachine.bodies.quoted_value import Quoted
from statemachine.bodies.raw_value import RawValue
from statemachine.bodies.repeated import Waiting, begin, settle
from statemachine.buffer import Ended, Grammar, Mismatch
from statemachine.grammar.closers import sibling
from statemachine.machine import Machine


def value(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Grammar:
    """The value of a key whose opener has been read, to its closer; `levels` are what is around it."""
    base = len(levels)
    try:
        while True:
            if (yield from nests(machine, table, levels, slot)):
                levels.append(Level(slot.node, key=slot.key, array=None))
            else:
                yield from leaf(machine, table, levels, slot)
                if not (yield from another(machine, table, levels, base)):
                    return
            level = levels[-1]
            tag = yield from next_key(machine, table)
            open_member(machine, table.body.item, level, tag.key, slot.types)
            slot = slot_of(level.member(tag.key), tag)
    except (Ended, Mismatch):
        if isinstance(machine.reader.target, Waiting):
            machine.reader.target.release()
        raise


def slot_of(node: schema.Node | None, tag: Tag) -> Slot:
    """What a value may be: what the schema says, narrowed by its mark where the two agree."""
    types = schema.ANY if node is None else node.types
    return Slot(tag.key, types & tag.types or types, node)


def leaf(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Grammar:
    """A raw value."""
    if (yield from empty(machine, table, slot)):
        return
    trimmed = table.body.trim and (yield from line_end(machine))
    if (yield from quote_opens(machine, table)):
        yield from Quoted(machine, table, levels, slot).read()
    else:
        yield from RawValue(machine, table, levels, slot, trimmed=trimmed).read()


def empty(machine: Machine, table: Tables, slot: Slot) -> Generator[None, None, bool]:
    """True if nothing stands in an array or an object that could be made of elements: it is empty, and no string."""
    reader = machine.reader
    kinds = slot.types - {"null"}
    if not table.body.item or not kinds or not kinds <= {"array", "object"}:
        return False
    offset = yield from machine.reader.past_blanks(0)
    name, end = (yield from closing(machine, table, offset)) if offset >= 0 else ("", 0)
    if name != slot.key:
        return False
    reader.take(end)
    reader.out("[]" if "array" in kinds else "{}")
    machine.candidate.arguments.open_value = False
    return True


def line_end(machine: Machine) -> Generator[None, None, bool]:
    """True if a line end follows the opener: it is markup."""
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


def quote_opens(machine: Machine, table: Tables) -> Generator[None, None, bool]:
    """True if a quote opens here; the white space before it is dropped."""
    reader = machine.reader
    if table.quote_open is None:
        return False
    offset = yield from machine.reader.past_blanks(0)
    mark, end = (yield from look(machine, table.quote_open, offset)) if offset >= 0 else (None, 0)
    if mark is None:
        return False
    reader.take(end)
    return True


# ---- all arguments in one value


def holds_all(machine: Machine, table: Tables, level: Level) -> Generator[None, None, bool]:
    """True if the key whose opener has been read holds all arguments in one object; then the object is next."""
    reader, whole = machine.reader, table.body.whole
    if not whole or machine.candidate.arguments.begun or not level.undeclared(whole):
        return False
    tag = yield from tag_at(machine, table, 0)
    offset = (yield from machine.reader.past_blanks(tag.end)) if tag is not None and tag.key == whole else -1
    if offset < 0 or not reader.text.startswith("{", reader.at + offset):
        return False
    reader.take(offset)
    return True


def skip(machine: Machine, table: Tables, closer: Marker) -> Grammar:
    """A closer of this kind behind something that ended by itself is skipped, if it is there."""
    offset = yield from machine.reader.past_blanks(0)
    mark, end = (yield from look(machine, table.between, offset)) if offset >= 0 else (None, 0)
    if mark is closer:
        machine.reader.take(end)


# ---- elements


def nests(machine: Machine, table: Tables, levels: list[Level], slot: Slot) -> Generator[None, None, bool]:
    """True if the value that begins here is made of keys and values; the white space before them is dropped."""
    reader = machine.reader
    if not table.body.item or not slot.types & {"object", "array"} or len(levels) >= machine.limits.depth:
        return False
    offset = yield from machine.reader.past_blanks(0)
    mark, end = (yield from look(machine, table.between, offset)) if offset >= 0 else (None, 0)
    if mark is not Marker.KEY or (yield from tag_at(machine, table, end)) is None:
        return False
    reader.take(offset)
    return True


def next_key(machine: Machine, table: Tables) -> Generator[None, None, Tag]:
    """The key whose opener stands here, consumed."""
    reader = machine.reader
    _, length = yield from look(machine, table.between, 0)
    reader.take(length)
    return (yield from key(machine, table))


def key(machine: Machine, table: Tables) -> Generator[None, None, Tag]:
    """The key whose opener has been read, and what ends it, consumed.

    Raises:
        Mismatch: there is none.

    """
    reader = machine.reader
    tag = yield from tag_at(machine, table, 0)
    if tag is None:
        raise Mismatch
    reader.take(tag.end)
    if tag.repair:
        machine.candidate.arguments.json.mend(tag.repair)
    return tag


def open_member(machine: Machine, item: str, level: Level, name: str, types: frozenset[str]) -> None:
    """A member of an object or an item of an array begins; `types` are those of the value whose first one it is."""
    reader = machine.reader
    state = machine.candidate.arguments.json
    if level.first is not None and level.first.key == name and (level.first.waits or level.first.listed):
        if not level.first.listed:
            settle(reader, level.first, listed=True)
            state.stack.append("]")
        reader.out(", ")
        machine.candidate.arguments.open_value = True
        return
    end_member(machine, level)
    first = level.array is None
    if level.array is None:
        level.array = ("array" in types and name == item) or "object" not in types
        state.stack.append("]" if level.array else "}")
    separator = ("[" if level.array else "{") if first else ", "
    if level.array:
        reader.out(separator)
    else:
        if name in level.given:
            state.mend("repeated_key")
        level.given.add(name)
        reader.out(f"{separator}{encode_basestring(name)}: ")
        if level.member(name) is None:
            level.first = begin(reader, name)
    machine.candidate.arguments.open_value = True


def end_member(machine: Machine, level: Level) -> None:
    """The last member of a level is over: what waits of it goes out, and a list of it ends."""
    first, level.first = level.first, None
    if first is not None:
        settle(machine.reader, first, listed=False)
        if first.listed:
            machine.reader.out(machine.candidate.arguments.json.stack.pop())


def another(machine: Machine, table: Tables, levels: list[Level], base: int) -> Generator[None, None, bool]:
    """True if another element follows on one of the levels; false once those above `base` are closed."""
    reader = machine.reader
    while len(levels) > base:
        yield from machine.blank()
        mark, end = yield from look(machine, table.between, 0)
        if mark is Marker.KEY and (yield from opens_key(machine, table, levels[-1], end)):
            return True
        name, end = yield from closing(machine, table, 0)
        if name and any(level.key == name for level in levels[base:]):
            while levels[-1].key != name:
                machine.candidate.arguments.json.mend("missing_closer")
                close(machine, levels)
            reader.take(end)
            close(machine, levels)
        elif mark is None and cut_off(machine, table.between):
            raise Ended
        elif mark is Marker.CALL_END or (yield from sibling(machine, 0)):
            machine.candidate.arguments.json.mend("missing_closer")
            while len(levels) > base:
                close(machine, levels)
        else:
            raise Mismatch
    return False


def opens_key(machine: Machine, table: Tables, level: Level, offset: int) -> Generator[None, None, bool]:
    """True if the opener that ends `offset` characters from here opens a key, and not a call or what stands around."""
    reader = machine.reader
    if not table.keyed:
        return True
    name = yield from is_key(machine, table, offset)
    if not name:
        return reader.ended
    return level.takes(name, closed=False) or not (yield from sibling(machine, 0))


def close(machine: Machine, levels: list[Level]) -> None:
    """The innermost level ends."""
    reader = machine.reader
    end_member(machine, levels.pop())
    reader.out(machine.candidate.arguments.json.stack.pop())
