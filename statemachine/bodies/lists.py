"""Lists that marked keys write without JSON: a parameter that is written several times, or that consists of `<item>`
elements.

Theory of operation. The schema must want an array, and no string. The closer of such an array is withheld until the
next parameter, which may continue it. The value of the first parameter may also be a single item: it is buffered, up to
a limit, and emitted as a list only if the parameter is repeated (`repeated.py`).

    list  = value *( key value )            ; each with the same key: a JSON array, items, or a single item
    items = "<item>" text "</item>" *( "<item>" text "</item>" )
"""

from collections.abc import Callable, Generator

from statemachine import schema
from statemachine.bodies.levels import Slot
from statemachine.bodies.parameter_markers import Tables, marker_at, take_value_closer
from statemachine.bodies.repeated import BufferingTarget, PossibleFirstItem, begin_buffering
from statemachine.bodies.scalars import raw_value_json, unescape_json
from statemachine.formats.markers import Markers, text_run
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.runs import json_escape

ARRAY_BEGINS = ('"', "'", "“", "`", "]")
"""Characters after the bracket of an array of strings."""
ITEM, ITEM_END = "<item>", "</item>"
item_text = text_run(Markers([(ITEM_END, True)]), convert=json_escape)
ReadValue = Callable[[Slot], Grammar]


def wants_list(node: schema.Node | None) -> bool:
    """Return whether a value must be an array."""
    return node is not None and "array" in node.types and not node.types & {"string", "object"}


class ListReader:
    """Reader for the list in the last parameter, as long as the next parameter may continue it."""

    __slots__ = ("_empty", "_first", "key", "machine", "sound", "table")

    def __init__(self, machine: Machine, table: Tables) -> None:
        self.machine = machine
        self.table = table
        self.key: str | None = None
        """Key of the list, or None if none is open."""
        self._first: PossibleFirstItem | None = None
        """Value that may be the first item."""
        self._empty = True
        self.sound = True
        """False if an item could not be read."""

    def read(self, slot: Slot, read_value: ReadValue) -> Grammar:
        """Read a value that must be an array: the first one of its parameter or, if the list is open, the next one."""
        machine = self.machine
        state = machine.candidate.arguments.json
        further = self.key == slot.key
        kind = yield from self.kind(slot)
        if kind is None:
            if further:
                raise Mismatch
            yield from read_value(slot)
            return
        self.key = slot.key
        if further:
            state.add_repair("repeated_list")
        if further and self._first is not None:
            self.list_first(slot)
        if kind == "[":
            if further:
                state.stack.pop()
                state.resumed = "" if self._empty else ", "
            yield from self.array(slot, read_value)
        elif kind == "<":
            if not further:
                machine.reader.emit_arguments("[")
                state.stack.append("]")
            yield from self.items(slot)
        elif further:
            machine.reader.emit_arguments("" if self._empty else ", ")
            self._empty = False
            machine.candidate.arguments.open_value = True
            yield from read_value(item_slot(slot))
        else:
            self._first = begin_buffering(machine.reader, slot.key)
            yield from read_value(Slot(slot.key, schema.STRING, None) if kind else slot)

    def kind(self, slot: Slot) -> Generator[None, None, str | None]:
        """Return `[` if a JSON array follows, `<` if items do, `"` for a string in brackets, "" for any other value or
        an array that is an item, or None for the format's own elements, which cannot be continued.
        """
        reader = self.machine.reader
        offset = yield from self.content()
        if offset < 0:
            return ""
        if self.table.body.item:
            mark, _ = yield from marker_at(self.machine, self.table.between, offset)
            if mark is not None:
                return None
        while ITEM.startswith(reader.text[reader.at + offset :]) and not reader.ended:
            yield
        if reader.text.startswith("[", reader.at + offset):
            inner = yield from reader.whitespace_end(offset + 1)
            if item_slot(slot).types == schema.STRING and reader.text[reader.at + inner :][:1] not in ARRAY_BEGINS:
                return '"'
            nested = "array" in (types := item_slot(slot).types) and types != schema.ANY
            return "" if nested and not reader.text.startswith("[", reader.at + inner) else "["
        return "<" if reader.text.startswith(ITEM, reader.at + offset) else ""

    def content(self) -> Generator[None, None, int]:
        """Return the offset of the value's content, after whitespace and a quote's opener, or −1 if there is too much
        whitespace.
        """
        reader, opener = self.machine.reader, self.table.quote_open
        offset = yield from reader.whitespace_end(0)
        mark, end = (yield from marker_at(self.machine, opener, offset)) if opener and offset >= 0 else (None, 0)
        return (yield from reader.whitespace_end(end)) if mark is not None else offset

    def array(self, slot: Slot, read_value: ReadValue) -> Grammar:
        """Read a JSON array, and leave it open."""
        reader = self.machine.reader
        state = self.machine.candidate.arguments.json
        end = yield from reader.whitespace_end((yield from self.content()) + 1)
        self._empty = self._empty and reader.text.startswith("]", reader.at + end)
        state.leave_open = len(state.stack) + 1
        try:
            yield from read_value(slot)
        finally:
            state.leave_open = 0
            if state.withheld:
                state.withheld = False
                state.stack.append("]")
        if state.stack[-1] != "]":
            raise Mismatch

    def items(self, slot: Slot) -> Grammar:
        """Read `<item>` elements, and the closer of the value."""
        machine = self.machine
        reader, arguments = machine.reader, machine.candidate.arguments
        arguments.json.add_repair("item_list")
        types = item_slot(slot).types
        reader.take((yield from self.content()))
        while True:
            yield from machine.skip_whitespace()
            while ITEM.startswith(reader.text[reader.at :]) and not reader.ended:
                yield
            if not reader.text.startswith(ITEM, reader.at):
                break
            reader.take(len(ITEM))
            reader.emit_arguments("" if self._empty else ", ")
            self._empty = False
            arguments.open_value = True
            yield from self.item(types)
            arguments.open_value = False
        if not (yield from take_value_closer(machine, self.table, slot.key)):
            if (yield from marker_at(machine, self.table.plain.markers, 0))[0] is None:
                raise Mismatch
            arguments.json.add_repair("missing_closer")

    def item(self, types: frozenset[str]) -> Grammar:
        """Read the text of an item through its closer: a string streams, any other value is read in one piece."""
        reader = self.machine.reader
        target, captured, counted, length = reader.target, list[str](), 0, 0
        streams = types == schema.STRING
        if streams:
            reader.emit_arguments('"')
        else:
            reader.target = captured
        while True:
            yield from reader.flow(item_text)
            if reader.text.startswith(ITEM_END, reader.at):
                break
            yield from reader.more()
            length += sum(map(len, captured[counted:]))
            counted = len(captured)
            if length > self.machine.limits.held:
                raise Mismatch
        reader.take(len(ITEM_END))
        reader.target = target
        text = "".join(captured)
        # Elements in an item that cannot be a string belong to an object, which cannot be read.
        self.sound = self.sound and (streams or "string" in types or not text.lstrip().startswith("<"))
        reader.emit_arguments('"' if streams else json_of_item(text, types))

    def list_first(self, slot: Slot) -> None:
        """Emit the buffered value as the first item of a list."""
        reader = self.machine.reader
        waiting, first, self._first = reader.target, self._first, None
        if first is None or not first.buffered or not isinstance(waiting, BufferingTarget):
            raise Mismatch
        written = "".join(waiting.pieces)
        if written.startswith('"'):
            written = json_of_item(written[1:-1], item_slot(slot).types)
        waiting.pieces = [f"[{written}"]
        waiting.release()
        self.machine.candidate.arguments.json.stack.append("]")
        self._empty = False

    def continues(self, key: str) -> bool:
        """Return whether a parameter with this key continues the open list."""
        return self.key == key and (self._first is None or self._first.buffered)

    def release(self) -> None:
        """Emit what is buffered, because the call ends here, incomplete."""
        if isinstance(self.machine.reader.target, BufferingTarget):
            self.machine.reader.target.release()

    def end(self) -> None:
        """End the open list, if any; a single value that was buffered is emitted unchanged."""
        reader = self.machine.reader
        key, first = self.key, self._first
        self.key, self._first, self._empty = None, None, True
        if key is None:
            return
        if first is None:
            self.machine.candidate.arguments.json.stack.pop()
            reader.emit_arguments("]")
        else:
            self.release()


def item_slot(slot: Slot) -> Slot:
    """Return the slot of an item of a list."""
    node = slot.node.items() if slot.node is not None else None
    return Slot(slot.key, schema.ANY if node is None else node.types, node)


def json_of_item(escaped: str, types: frozenset[str]) -> str:
    """Return the JSON of an item, given its text as the content of a JSON string."""
    return raw_value_json(unescape_json(escaped), types)
