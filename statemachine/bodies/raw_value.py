"""Raw values: where a value ends, and which type it has.

A raw value may contain anything, even its own closer, so a marker inside it is recognized only if it is consistent with
the text after it ("Raw values" in `docs/parser.md`):

* the value's closer is recognized if a key opener, the call's closer or the end of the text follows;
* a key opener is recognized if it names a parameter of the schema that has not been given yet or, without a schema, if
  it is at the start of a line;
* the call's closer is recognized if an outer closer, a sibling opener or the end of the text follows.

Markup that is part of the value's text is tracked on a separate stack (`shown.py`): while an opener that is not
recognized waits for its closer, no marker that may belong to it is recognized. A complete call, or a page about calls,
therefore passes through verbatim.

A value that must be a string streams from its first character. A value that may have another type is buffered while it
may still be JSON of a type that the schema allows; once a character rules this out, the value is streamed as a string.
"""

import re
from collections.abc import Generator, Sequence

from statemachine import schema
from statemachine.bodies.levels import Level, Slot
from statemachine.bodies.parameter_markers import (
    Marker,
    Tables,
    closing_key_at,
    declared_value_run,
    find_tag,
    key_at,
    marker_at,
)
from statemachine.bodies.shown import MarkupKind, ShownMarkup
from statemachine.endings import ends_call, follower_end
from statemachine.json import text as json_text
from statemachine.json.numbers import number
from statemachine.json.state import WORDS, JsonState
from statemachine.json.typed import Typed
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.emitter import Sink
from statemachine.stream.runs import json_escape

QUOTES = frozenset("\"'`")
ENDS_OF_QUOTES = ('"', "'", "`", "*", "”", "’", "»", "…")
"""Characters directly after an opener that show that it is quoted or emphasized."""
ZERO_WIDTH_SPACE = "\u200b"
mention = re.compile(r" |[,.;:!?)\]](?:[\s<]|(\Z))").match
"""Matches the text after a key that is only mentioned in a sentence."""


class RawValue:
    """Value of a key whose opener has been read."""

    __slots__ = (
        "between",
        "doubtful",
        "inside",
        "key",
        "levels",
        "machine",
        "run",
        "shown",
        "slot",
        "table",
        "trimmed",
    )

    def __init__(self, machine: Machine, table: Tables, levels: Sequence[Level], slot: Slot, *, trimmed: bool) -> None:
        inside = table.trimmed if trimmed else table.plain
        self.machine = machine
        self.table = table
        self.levels = levels
        """The call and the values around this one, outermost first."""
        self.slot = slot
        self.key = slot.key
        self.trimmed = trimmed
        """Whether the line break before the closer is markup."""
        self.shown = ShownMarkup()
        self.doubtful = False
        """Whether a key opener was taken to be mentioned that may be a parameter after a missing closer."""
        # In a value, the keys of another format are text, unless its own key is one of them.
        self.between = table.outline if levels[0].foreign else table.between
        self.inside = inside.markers
        self.run = inside.run
        names = levels[-1].names
        # If closers repeat their keys, a declared value can stop only at its own closer, so HTML or XML tags inside it
        # cost nothing. An undeclared key has no such run, because compiling one for each key that a model invents would
        # be unbounded.
        if table.keyed and slot.key in names:
            self.run = declared_value_run(table, slot.key, names, trimmed=trimmed)

    def read(self) -> Grammar:
        """Read the value through its closer."""
        types = self.slot.types
        if types == schema.STRING:
            self.machine.reader.emit_arguments('"')
            yield from self.text()
        elif "string" in types or not (yield from self.container(types)):
            yield from self.typed(types)
        self.machine.candidate.arguments.open_value = False

    # ---- the end of the value

    def text(self) -> Grammar:
        """Stream a string to its end; its opening quote has already been emitted."""
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
            if mark is Marker.ESCAPE:
                text = yield from self.escaped_marker()
            else:
                text = reader.take((yield from self.show(mark, end)), "argument")
            reader.emit_arguments(json_escape(text))
        reader.emit_arguments('"')
        yield from self.close()

    def escaped_marker(self) -> Generator[None, None, str]:
        """Consume an escaped marker here, and return it without its zero-width space, or return "" if none is here."""
        mark, end = yield from self.marker(0)
        if mark is not Marker.ESCAPE:
            return ""
        self.machine.candidate.arguments.json.add_repair("escaped_marker")
        return self.machine.reader.take(end, "argument").replace(ZERO_WIDTH_SPACE, "")

    def close(self) -> Grammar:
        """Consume the closer of the value, if present, and decide whether the value is sound."""
        machine = self.machine
        reader, shown = machine.reader, self.shown
        length = yield from self.closer(0)
        if length:
            # A value with its closer is doubtful only if a shown key is still open (the closer may have been that
            # key's), or if the value contains a stray closer and the previous value had none (the stray closer may have
            # been that value's). A value without its closer is doubtful after any shown markup: the missing closer may
            # have been treated as shown. The call is then reported as incomplete, because executing a truncated call is
            # worse than executing none.
            reader.take(length)
            sound = not (shown.open_key or (shown.stray and self.levels[-1].end_implied))
        else:
            machine.candidate.arguments.json.add_repair("missing_closer")
            sound = not (shown.keys or shown.complete or shown.stray)
        self.levels[-1].end_implied = not length
        if not sound or self.doubtful:
            self.levels[0].sound = False
            machine.candidate.arguments.json.add_repair("shown_markup")

    def closer(self, offset: int) -> Generator[None, None, int]:
        """Return the offset of the end of the value's closer at `offset`, or 0 if something else is there."""
        mark, end = yield from marker_at(self.machine, self.inside, offset, self.key)
        if mark is not None and self.table.keyed:
            key, end = yield from closing_key_at(self.machine, self.table, offset)
            return end if key == self.key else 0
        return end if mark is Marker.VALUE_END else 0

    def marker(self, offset: int) -> Generator[None, None, tuple[Marker | None, int]]:
        """Return the marker at `offset` that may be recognized in the value, and the offset of its end."""
        return marker_at(self.machine, self.inside, offset, self.key)

    def ends(self, mark: Marker | None, end: int, offset: int) -> Generator[None, None, bool]:
        """Return whether this marker, from `offset` to `end`, ends the open value.

        end-of-value = closer ( key-opener / call-closer / outer / END )
                     / key-opener               ; closer missing: the key is declared and not given yet
                     / call-closer ( outer / END ) ; closer missing
        outer        = closer of an enclosing element / opener of a sibling
        """
        machine = self.machine
        reader = machine.reader
        if mark is Marker.KEY:
            if self.is_in_line(offset):
                return False
            level = self.levels[-1]
            # Without a schema, the start of a line is the only evidence that distinguishes a key from text about keys.
            # If closers repeat their keys, a tag at the start of a line is more likely to be HTML.
            closed = not (self.table.keyed or level.names) and reader.text[reader.at + offset] in "\r\n"
            if self.shown.blocks or (yield from self.is_mention(offset, end)):
                return False
            return level.accepts_key((yield from key_at(machine, self.table, end)), closed=closed)
        if self.table.keyed and mark is not None:
            key, after = yield from closing_key_at(machine, self.table, offset)
            # The closer of an outer level also ends this value (whose own closer is then missing) if the text after
            # that closer is consistent with the outer level.
            around = self.levels_after_closer(key)
            if around:
                # The top of the stack is a shown key, so this closer belongs to that key. The exception is a closer
                # that is directly followed by the end of the call: then the shown opener was only mentioned, and
                # waiting for a second closer would swallow the end of the call.
                if key == self.key and self.shown.closes_shown_key:
                    return (yield from self.ends_call(after))
                return (yield from self.may_follow(after, around))
        elif mark is Marker.VALUE_END:
            if self.shown.closes_shown_key:
                return (yield from self.ends_call(end)) or (yield from self.ends_after_mention(end))
            return (yield from self.may_follow(end, self.levels))
        if mark is Marker.CALL_END:
            # Inside a shown call, the call's closer closes the shown call. Both readings are possible; the balanced one
            # wins.
            return not self.shown.calls and (yield from self.may_end(end))
        # The text has ended inside a possible marker.
        if reader.ended and mark is None:
            yield from reader.more()
        return False

    def is_in_line(self, offset: int) -> bool:
        """Return whether the key opener at `offset` is text, because keys are lines and it does not begin one."""
        return self.table.line_keys and self.machine.reader.text[self.machine.reader.at + offset] not in "\r\n"

    def ends_call(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the end of the call follows directly, and no shown call could end there."""
        if self.shown.calls:
            return False
        offset = yield from self.machine.reader.whitespace_end(offset)
        mark, end = (yield from marker_at(self.machine, self.between, offset)) if offset >= 0 else (None, 0)
        return mark is Marker.CALL_END and (yield from self.may_end(end))

    def ends_after_mention(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the value closer that ends at `offset` ends the value, because the last shown key is only
        mentioned: the next parameter must follow, or the closers of the call and then the end of the reply or, unless a
        shown call is open, of the line.
        """
        machine = self.machine
        reader = machine.reader
        if self.shown.stack[-1] is not MarkupKind.MENTION:
            return False
        begin = yield from reader.whitespace_end(offset)
        mark, end = (yield from marker_at(machine, self.between, begin)) if begin >= 0 else (None, 0)
        if mark is Marker.KEY and not self.shown.calls:
            level = self.levels[-1]
            line = not self.trimmed or "\n" in reader.text[reader.at + offset : reader.at + begin]
            key = yield from key_at(machine, self.table, end)
            return level.accepts_key(key, closed=line and not level.names)
        while mark is Marker.CALL_END and end >= 0:
            if reader.ended and reader.at + end >= len(reader.text):
                return True
            after = yield from follower_end(machine, end)
            if after < 0 and not self.shown.calls:
                return reader.text[reader.at + end] in "\r\n"
            end = after
        return False

    def is_mention(self, offset: int, end: int) -> Generator[None, None, bool]:
        """Return whether the key opener from `offset` to `end` is only mentioned in a sentence: after the mention of a
        call, or if values begin on their own lines, in the middle of a line. Without such evidence, the call is
        incomplete.
        """
        reader, mentioned = self.machine.reader, self.shown.call_mentioned
        known = mentioned or self.trimmed
        if reader.text[reader.at + offset] in "\r\n" or not (known or not self.table.keyed):
            return False
        tag = yield from find_tag(self.machine, self.table, end)
        if tag is None or not (known or self.levels[-1].accepts_key(tag.key, closed=False)):
            return False
        follows = yield from self.mention_follows(tag.end)
        if not follows and reader.text[reader.at + tag.end : reader.at + tag.end + 1] not in ENDS_OF_QUOTES:
            return False
        # Elsewhere, the value of a parameter may begin like that, and the closer of this value may be missing.
        self.doubtful = self.doubtful or not known
        return True

    def mention_follows(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the text at `offset`, after a key, continues a sentence."""
        reader = self.machine.reader
        while True:
            found = mention(reader.text, reader.at + offset)
            if found is not None and (found[1] is None or reader.ended):
                return True
            if found is None and (reader.at + offset < len(reader.text) or reader.ended):
                return False
            yield

    def may_end(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the call may have ended at `offset`, judging by the text after it.

        Something that can only follow a call must be there, without a value closer after it: a value closer would show
        that the call's closer was part of the value.
        """
        end = yield from follower_end(self.machine, offset)
        if end < 0:
            return False
        end = yield from self.machine.reader.whitespace_end(end)
        mark, _ = (yield from marker_at(self.machine, self.between, end)) if end >= 0 else (None, 0)
        return mark is not Marker.VALUE_END

    def show(self, mark: Marker | None, end: int) -> Generator[None, None, int]:
        """Return the length of the marker here, which is part of the value's text, and record what the marker opens or
        closes.
        """
        machine = self.machine
        if mark is None:
            return 1
        if mark is Marker.CALL:
            yield from self.show_call(end)
        elif mark is Marker.KEY:
            if not self.is_in_line(0):
                yield from self.show_key(end)
        elif mark is Marker.SHOWN_KEY:
            if self.shown.calls:
                self.shown.open(MarkupKind.KEY)
            self.shown.foreign_key = True
        elif mark in (Marker.CALL_END, Marker.OTHER_CALL_END):
            if self.shown.calls:
                self.shown.close_call()
        elif mark is Marker.OTHER_VALUE_END:
            if self.shown.closes_shown_key:
                self.shown.close_key()
        else:
            named = (yield from closing_key_at(machine, self.table, 0))[0] if self.table.keyed else ""
            if named == self.key or (mark is Marker.VALUE_END and not self.table.keyed):
                self.shown.close_key()
        return end

    def show_call(self, offset: int) -> Grammar:
        """Record the opener of a shown call, unless the text after its name shows that it is only mentioned, or its tag
        closes itself.
        """
        reader = self.machine.reader
        in_tag = reader.text[reader.at + offset - 1] != ">"
        continues = self.table.call_tag if in_tag else self.table.call_name
        while (found := continues(reader.text, reader.at + offset)) and found[1] is not None and not reader.ended:
            yield
        if found is not None and found[2] is not None:
            self.shown.open(MarkupKind.CALL)
        else:
            self.shown.call_mentioned = True

    def show_key(self, offset: int) -> Grammar:
        """Record a shown key opener, unless a quote follows it, which means that the text only mentions the opener."""
        reader = self.machine.reader
        tag = yield from find_tag(self.machine, self.table, offset)
        if tag is None or (self.table.keyed and tag.key != self.key):
            return
        # The character after the key distinguishes `<parameter=x>` used as markup from the same text in quotes or in a
        # sentence.
        while reader.at + tag.end >= len(reader.text) and not reader.ended:
            yield
        follows = reader.text[reader.at + tag.end : reader.at + tag.end + 1]
        if follows not in QUOTES:
            mentioned = follows in ENDS_OF_QUOTES or (yield from self.mention_follows(tag.end))
            self.shown.open(MarkupKind.MENTION if mentioned else MarkupKind.KEY)

    def levels_after_closer(self, key: str) -> Sequence[Level]:
        """Return the levels that remain open after the closer of a key, or an empty sequence if the closer closes
        nothing that is open.
        """
        if key == self.key:
            return self.levels
        depth = next((depth for depth in range(len(self.levels) - 1, 0, -1) if self.levels[depth].key == key), 0)
        return self.levels[:depth]

    def may_follow(self, offset: int, levels: Sequence[Level]) -> Generator[None, None, bool]:
        """Return whether the text at `offset` may follow a value's closer on these levels."""
        machine = self.machine
        reader = machine.reader
        before = offset
        offset = yield from machine.reader.whitespace_end(offset)
        if offset < 0:
            return False
        if reader.text.startswith(">", reader.at + offset):
            offset = yield from machine.reader.whitespace_end(offset + 1)
        mark, end = yield from marker_at(machine, self.between, offset, self.key)
        if mark is None and (yield from self.foreign_key_follows(offset)):
            return True
        if mark is Marker.KEY:
            follows = levels[-1].accepts_key((yield from key_at(machine, self.table, end)), closed=True)
        elif mark is Marker.VALUE_END and not self.table.keyed:
            return (yield from self.may_follow(end, levels))
        elif mark is Marker.VALUE_END:
            key, _ = yield from closing_key_at(machine, self.table, offset)
            follows = any(level.key == key for level in levels[1:])
        elif mark in (Marker.OTHER_VALUE_END, Marker.OTHER_CALL_END):
            return False
        elif mark is not None:
            return True
        else:
            at = reader.at + offset  # the end of the text, possibly in the middle of a marker
            cut = self.between.match(reader.text, at)
            follows = reader.ended and (at >= len(reader.text) or cut is not None)
        # a supposed key opener, or a closer that repeats its key, may be a marker of an enclosing element
        may_be_outer = mark is None or self.table.keyed
        begin = before if self.table.line_keys else offset  # a label is recognized only after a line break
        return follows or (may_be_outer and (yield from ends_call(machine, begin)))

    def foreign_key_follows(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the key opener of another format at `offset`, after a closer, opens a parameter that is
        declared and has not been given yet. The value must not have shown such an opener before.
        """
        if not self.table.body.foreign_keys or self.shown.foreign_key or self.shown.calls or len(self.levels) > 1:
            return False
        mark, end = yield from marker_at(self.machine, self.table.outline, offset)
        if mark is not Marker.KEY:
            return False
        return self.levels[0].accepts_key((yield from key_at(self.machine, self.table, end)), closed=False)

    # ---- the type of the value

    def typed(self, types: frozenset[str]) -> Grammar:
        """Read a value that need not be a string: as JSON if all of it is JSON of an allowed type, and as a string if
        it is not.
        """
        machine = self.machine
        reader = machine.reader
        candidate = machine.candidate
        # The value is read once for both outcomes: the reader's buffer collects its raw text, and `captured` its strict
        # JSON. Nothing is emitted before one of them is chosen. `preamble` is 0 because nothing before the value is
        # buffered.
        captured: list[str] = []
        sink, target = reader.sink, reader.target
        reader.sink, reader.target, candidate.preamble = Sink.HOLD, captured, 0
        is_json = True
        ended = False
        strict = StrictState(depth=machine.limits.depth)
        try:
            yield from self.json(types, strict, captured)
        except Mismatch:
            is_json = False
        except EndOfText:
            ended = True
            # If the text ends here, the value is JSON only if it is complete, because a prefix could still become JSON
            # or a string.
            is_json = bool(captured) and not strict.cut and not strict.stack
        reader.target = target
        value = "".join(captured)
        raw = reader.buffered.text()
        if not is_json and not ended:
            raw = self.give_back(raw)
        reader.buffered.pieces = [(raw, "argument")]
        reader.release(sink)
        reader.emit_arguments(value.strip() if is_json else '"' + json_escape(raw))
        if ended:
            candidate.arguments.open_value = not is_json
            raise EndOfText
        yield from self.close() if is_json else self.text()

    def give_back(self, raw: str) -> str:
        """Return the buffered text without its final line break, which is given back to the reader if it may belong to
        the closer.
        """
        length = line_break_length(raw) if self.trimmed else 0
        if length:
            self.machine.reader.give_back(raw[-length:])
        return raw[: len(raw) - length]

    def container(self, types: frozenset[str]) -> Generator[None, None, bool]:
        """Stream an object or array for a parameter that cannot be a string, with its values typed by the schema.

        Return False, without consuming anything, if the value is not such a container.
        """
        machine = self.machine
        reader = machine.reader
        offset = yield from machine.reader.whitespace_end(0)
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
        state.escaped_marker = self.escaped_marker if self.table.body.escapes else None
        yield from json_text.value(reader, state)
        state.typed = state.escaped_marker = None
        offset = yield from machine.reader.whitespace_end(0)
        if offset > 0:
            reader.take(offset)
        yield from reader.peek()
        yield from self.close()
        return True

    def json(self, types: frozenset[str], strict: JsonState, captured: list[str]) -> Grammar:
        """Read one JSON value of an allowed type, then the end of the value.

        Raises:
            Mismatch: the value is anything else.
        """
        machine = self.machine
        reader = machine.reader
        strict.cut = True
        char = yield from self.first_json_character()
        if char in "{[" and ("object" if char == "{" else "array") in types:
            yield from json_text.value(reader, strict)
        elif char in "-0123456789" and types & {"number", "integer"}:
            yield from number(reader, strict)
            # `1e5`, as spelled, cannot be an integer, but it can be a string (a hash, an id).
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
        offset = yield from machine.reader.whitespace_end(0)
        if offset < 0:
            raise Mismatch
        if reader.ended and reader.at + offset >= len(reader.text):
            reader.take(offset)
            return
        before = reader.text[reader.at : reader.at + offset]
        lead = offset - (line_break_length(before) if self.trimmed else 0)
        try:
            mark, end = yield from self.marker(lead)
            ends = yield from self.ends(mark, end, lead)
        except EndOfText:
            ends = False
        if not ends:
            raise Mismatch
        if lead > 0:
            reader.take(lead)

    def first_json_character(self) -> Generator[None, None, str]:
        """Return the first character of the JSON, after consuming the whitespace before it."""
        machine = self.machine
        reader = machine.reader
        offset = yield from machine.reader.whitespace_end(0)
        if reader.at + offset >= len(reader.text):
            yield from reader.more()
        if offset < 0 or (char := reader.text[reader.at + offset]) not in "{[-0123456789tfTFnN":
            raise Mismatch
        reader.take(offset)
        return char


class StrictState(JsonState):
    """State of a JSON value that may also be a string: if the JSON needs a repair, the value is a string."""

    def add_repair(self, name: str) -> None:  # noqa: ARG002  (signature of the base class)
        """Reject the value as JSON."""
        raise Mismatch


def line_break_length(text: str) -> int:
    """Return the length of the line break at the end of the text."""
    return 2 if text.endswith("\r\n") else 1 if text.endswith("\n") else 0
