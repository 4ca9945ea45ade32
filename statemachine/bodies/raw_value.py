"""One raw value: where it ends, and what it is.

A raw value may hold anything, its own closer included, so a marker inside of it counts only when what follows can
follow it (rule "Raw values" of `docs/design.md`):

* the value's closer, when a key opener, the call's closer or the end of the text follows;
* a key opener, when it names a parameter of the schema that was not yet given (no schema: at a line start);
* the call's closer, when an outer closer, a sibling opener or the end follows.

What the value shows of such markup lies on a stack of its own (`shown.py`): while an opener that does not count waits
for its closer, no marker counts that may belong to it. So a whole call, or a page about calls, comes out as it stands.

A value that must be a string flows from its first character. One that may be something else is held while it may still
be JSON of a type that the schema allows; at the first other character it is a string and flows.
"""

from collections.abc import Generator, Sequence

from statemachine import schema
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import (
    Marker,
    Tables,
    closing,
    is_key,
    look,
    own_run,
    tag_if_any,
)
from statemachine.bodies.shown import Kind, Shown
from statemachine.buffer import Ended, Grammar, Mismatch
from statemachine.emitter import Sink
from statemachine.grammar.closers import after_sibling, sibling
from statemachine.json import text as json_text
from statemachine.json.numbers import number
from statemachine.json.state import WORDS, JsonState
from statemachine.json.typed import Typed
from statemachine.machine import Machine
from statemachine.runs import quote

QUOTES = frozenset("\"'`")


class RawValue:
    """The value of a key, whose opener has been read."""

    __slots__ = ("inside", "key", "levels", "machine", "run", "shown", "slot", "table", "trimmed")

    def __init__(self, machine: Machine, table: Tables, levels: Sequence[Level], slot: Slot, *, trimmed: bool) -> None:
        inside = table.trimmed if trimmed else table.plain
        self.machine = machine
        self.table = table
        self.levels = levels
        """The call, and the values around this one, outermost first."""
        self.slot = slot
        self.key = slot.key
        self.trimmed = trimmed
        """The line end before the closer is markup."""
        self.shown = Shown()
        self.inside = inside.markers
        self.run = inside.run
        names = levels[-1].names
        if table.keyed and slot.key in names:
            self.run = own_run(table, slot.key, names, trimmed=trimmed)

    def read(self) -> Grammar:
        """The value, to its closer."""
        types = self.slot.types
        if types == schema.STRING:
            self.machine.reader.out('"')
            yield from self.text()
        elif "string" in types or not (yield from self.container(types)):
            yield from self.typed(types)
        self.machine.candidate.arguments.open_value = False

    # ---- where it ends

    def text(self) -> Grammar:
        """A string, its opening quote written: flows to its end."""
        machine = self.machine
        reader = machine.reader
        while True:
            yield from reader.flow(self.run)
            if reader.at >= len(reader.text):
                yield from reader.more()
                continue
            mark, end = yield from self.marker(0)
            if (yield from self.ends(mark, end, 0)):
                break
            reader.out(quote(reader.take((yield from self.show(mark, end)), "argument")))
        reader.out('"')
        yield from self.close()

    def close(self) -> Grammar:
        """The closer of the value, when it is there."""
        machine = self.machine
        reader, shown = machine.reader, self.shown
        length = yield from self.closer(0)
        if length:
            reader.take(length)
            sound = not (shown.open_key or (shown.stray and self.levels[-1].implied))
        else:
            machine.candidate.arguments.json.mend("missing_closer")
            sound = not (shown.keys or shown.whole or shown.stray)
        self.levels[-1].implied = not length
        if not sound:
            self.levels[0].sound = False
            machine.candidate.arguments.json.mend("shown_markup")

    def closer(self, offset: int) -> Generator[None, None, int]:
        """Where the closer of the value that stands `offset` characters from here ends; 0 if none stands there."""
        mark, end = yield from look(self.machine, self.inside, offset)
        if mark is not None and self.table.keyed:
            key, end = yield from closing(self.machine, self.table, offset)
            return end if key == self.key else 0
        return end if mark is Marker.VALUE_END else 0

    def marker(self, offset: int) -> Generator[None, None, tuple[Marker | None, int]]:
        """The marker that may count in the value, `offset` characters from here, and where it ends."""
        return look(self.machine, self.inside, offset)

    def ends(self, mark: Marker | None, end: int, offset: int) -> Generator[None, None, bool]:
        """True if this marker, from `offset` to `end` characters from here, ends the open value."""
        machine = self.machine
        reader = machine.reader
        if mark is Marker.KEY:
            level = self.levels[-1]
            closed = not (self.table.keyed or level.names) and reader.text[reader.at + offset] in "\r\n"
            if self.shown.blocks:
                return False
            return level.takes((yield from is_key(machine, self.table, end)), closed=closed)
        if self.table.keyed and mark is not None:
            key, after = yield from closing(machine, self.table, offset)
            around = self.around(key)
            if around:
                if key == self.key and self.shown.balances:
                    return (yield from self.ends_call(after))
                return (yield from self.may_follow(after, around))
        elif mark is Marker.VALUE_END:
            if self.shown.balances:
                return (yield from self.ends_call(end))
            return (yield from self.may_follow(end, self.levels))
        if mark is Marker.CALL_END:
            return not self.shown.calls and (yield from self.may_end(end))
        if reader.ended and mark is None:
            yield from reader.more()
        return False

    def ends_call(self, offset: int) -> Generator[None, None, bool]:
        """True if the call's end follows directly, and no call that the value shows could end there."""
        if self.shown.calls:
            return False
        offset = yield from self.machine.reader.past_blanks(offset)
        mark, end = (yield from look(self.machine, self.table.between, offset)) if offset >= 0 else (None, 0)
        return mark is Marker.CALL_END and (yield from self.may_end(end))

    def may_end(self, offset: int) -> Generator[None, None, bool]:
        """True if the call may have ended `offset` characters from here: no closer of a value stands behind."""
        end = yield from after_sibling(self.machine, offset)
        if end < 0:
            return False
        end = yield from self.machine.reader.past_blanks(end)
        mark, _ = (yield from look(self.machine, self.table.between, end)) if end >= 0 else (None, 0)
        return mark is not Marker.VALUE_END

    def show(self, mark: Marker | None, end: int) -> Generator[None, None, int]:
        """Length of the marker that stands here, which is text of the value; what it shows is remembered."""
        machine = self.machine
        if mark is None:
            return 1
        if mark is Marker.CALL:
            self.shown.open(Kind.CALL)
        elif mark is Marker.KEY:
            yield from self.show_key(end)
        elif mark is Marker.CALL_END and self.shown.calls:
            self.shown.close_call()
        else:
            named = (yield from closing(machine, self.table, 0))[0] if self.table.keyed else ""
            if named == self.key or (mark is Marker.VALUE_END and not self.table.keyed):
                self.shown.close_key()
        return end

    def show_key(self, offset: int) -> Grammar:
        """A key's opener; between quotes it is a word."""
        reader = self.machine.reader
        tag = yield from tag_if_any(self.machine, self.table, offset)
        if tag is None or (self.table.keyed and tag.key != self.key):
            return
        while reader.at + tag.end >= len(reader.text) and not reader.ended:
            yield
        follows = reader.text[reader.at + tag.end : reader.at + tag.end + 1]
        if follows not in QUOTES:
            self.shown.open(Kind.MENTION if follows == " " else Kind.KEY)

    def around(self, key: str) -> Sequence[Level]:
        """The levels that stay open where the closer of a key stands; none if it closes nothing that is open."""
        if key == self.key:
            return self.levels
        depth = next((depth for depth in range(len(self.levels) - 1, 0, -1) if self.levels[depth].key == key), 0)
        return self.levels[:depth]

    def may_follow(self, offset: int, levels: Sequence[Level]) -> Generator[None, None, bool]:
        """True if what stands `offset` characters from here may follow a value's closer on these levels."""
        machine = self.machine
        reader = machine.reader
        offset = yield from machine.reader.past_blanks(offset)
        if offset < 0:
            return False
        if reader.text.startswith(">", reader.at + offset):
            offset = yield from machine.reader.past_blanks(offset + 1)
        mark, end = yield from look(machine, self.table.between, offset)
        if mark is Marker.KEY:
            follows = levels[-1].takes((yield from is_key(machine, self.table, end)), closed=True)
        elif mark is Marker.VALUE_END and not self.table.keyed:
            return (yield from self.may_follow(end, levels))
        elif mark is Marker.VALUE_END:
            key, _ = yield from closing(machine, self.table, offset)
            follows = any(level.key == key for level in levels[1:])
        elif mark is not None:
            return True
        else:
            begin = reader.at + offset  # the end, or what is cut in the middle of a marker
            cut = self.table.between.match(reader.text, begin)
            follows = reader.ended and (begin >= len(reader.text) or cut is not None)
        # what begins like a key or a closer that repeats its key may be a marker of what stands around
        may_be_outer = mark is None or self.table.keyed
        return follows or (may_be_outer and (yield from sibling(machine, offset)))

    # ---- what it is

    def typed(self, types: frozenset[str]) -> Grammar:
        """A value that need not be a string: JSON if it is JSON of an allowed type, whole; else a string."""
        machine = self.machine
        reader = machine.reader
        candidate = machine.candidate
        captured: list[str] = []
        sink, target = reader.sink, reader.target
        reader.sink, reader.target, candidate.preamble = Sink.HOLD, captured, 0
        is_json = True
        ended = False
        strict = Strict(depth=machine.limits.depth)
        try:
            yield from self.json(types, strict, captured)
        except Mismatch:
            is_json = False
        except Ended:
            ended = True
            is_json = bool(captured) and not strict.cut and not strict.stack
        reader.target = target
        value = "".join(captured)
        raw = reader.hold.text()
        if not is_json and not ended:
            raw = self.give_back(raw)
        reader.hold.pieces = [(raw, "argument")]
        reader.release(sink)
        reader.out(value.strip() if is_json else '"' + quote(raw))
        if ended:
            candidate.arguments.open_value = not is_json
            raise Ended
        yield from self.close() if is_json else self.text()

    def give_back(self, raw: str) -> str:
        """What was held, without the line end that may be the one before the closer: that one is looked at again."""
        length = line_end_length(raw) if self.trimmed else 0
        if length:
            self.machine.reader.give_back(raw[-length:])
        return raw[: len(raw) - length]

    def container(self, types: frozenset[str]) -> Generator[None, None, bool]:
        """An object or array of a parameter that cannot be a string: it streams, its values typed by the schema."""
        machine = self.machine
        reader = machine.reader
        offset = yield from machine.reader.past_blanks(0)
        if reader.at + offset >= len(reader.text):
            return False
        kind = {"{": "object", "[": "array"}.get(reader.text[reader.at + offset]) if offset >= 0 else None
        if kind not in types:
            return False
        reader.take(offset)
        state = machine.candidate.arguments.json
        machine.candidate.arguments.open_value = False
        node = self.slot.node
        state.typed = Typed(node) if node is not None and node.deep else None
        yield from json_text.value(reader, state)
        state.typed = None
        offset = yield from machine.reader.past_blanks(0)
        if offset > 0:
            reader.take(offset)
        yield from reader.peek()
        yield from self.close()
        return True

    def json(self, types: frozenset[str], strict: JsonState, captured: list[str]) -> Grammar:
        """One JSON value of an allowed type, and then the end of the value; anything else is a mismatch."""
        machine = self.machine
        reader = machine.reader
        strict.cut = True
        char = yield from self.first()
        if char in "{[" and ("object" if char == "{" else "array") in types:
            yield from json_text.value(reader, strict)
        elif char in "-0123456789" and types & {"number", "integer"}:
            yield from number(reader, strict)
            if "string" in types and "number" not in types and set(".eE") & set("".join(captured)):
                raise Mismatch
        elif char in "tfTFnN":
            word = yield from json_text.bare_word(reader)
            kind = {"true": "boolean", "false": "boolean", "null": "null"}.get(WORDS.get(word, ""))
            if kind not in types:
                raise Mismatch
            yield from json_text.literal(reader, JsonState(machine.candidate.arguments.json.repairs))
        else:
            raise Mismatch
        strict.cut = False
        offset = yield from machine.reader.past_blanks(0)
        if offset < 0:
            raise Mismatch
        if reader.ended and reader.at + offset >= len(reader.text):
            reader.take(offset)
            return
        before = reader.text[reader.at : reader.at + offset]
        lead = offset - (line_end_length(before) if self.trimmed else 0)
        try:
            mark, end = yield from self.marker(lead)
            ends = yield from self.ends(mark, end, lead)
        except Ended:
            ends = False
        if not ends:
            raise Mismatch
        if lead > 0:
            reader.take(lead)

    def first(self) -> Generator[None, None, str]:
        """The first character of JSON, white space before it consumed."""
        machine = self.machine
        reader = machine.reader
        offset = yield from machine.reader.past_blanks(0)
        if reader.at + offset >= len(reader.text):
            yield from reader.more()
        if offset < 0 or (char := reader.text[reader.at + offset]) not in "{[-0123456789tfTFnN":
            raise Mismatch
        reader.take(offset)
        return char


class Strict(JsonState):
    """JsonState of a value that may also be a string: what would have to be mended is one."""

    def mend(self, name: str) -> None:  # noqa: ARG002  (the signature is the base's)
        """Never."""
        raise Mismatch


def line_end_length(text: str) -> int:
    """Length of the line end at the end of a text."""
    return 2 if text.endswith("\r\n") else 1 if text.endswith("\n") else 0
