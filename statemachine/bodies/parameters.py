"""Marked keys and raw values, typed by the tool's JSON Schema: XML, key–value and their kin.

A raw value may hold anything, its own closer included, so a marker inside of it counts only when what follows can
follow it (rule "Raw values" of `docs/design.md`):

* the value's closer, when a key opener, the call's closer or the end of the text follows;
* a key opener, when it names a parameter of the schema that was not yet given (no schema: at a line start);
* the call's closer, when an outer closer, a sibling opener or the end follows.

A value that must be a string flows from its first character. One that may be something else is held while it may still
be JSON of a type that the schema allows; at the first other character it is a string and flows.
"""

import json
import re
from collections.abc import Generator
from enum import Enum
from functools import lru_cache

from attrs import frozen

from statemachine import json_text, schema
from statemachine.format import Format, Head, Parameters
from statemachine.json_number import number
from statemachine.json_text import space
from statemachine.machine import Machine
from statemachine.markers import Markers, flowing_run
from statemachine.notes import WORDS, Notes
from statemachine.reader import Ended, Grammar, Mismatch, Run, Sink, quote

KEY_HOLD = 300
BLANKS = 256

attribute = re.compile(
    r"[ \t\r\n]*+([\w.:-]{1,64})[ \t]*+=[ \t]*+"
    r"(?:\"([^\"<>]{0,256})\"|'([^'<>]{0,256})'|([^\s\"'<>=/]{1,256}))"
)
quoted = re.compile(r"[\"']?([^\s\"'<>]{1,256})[\"']?[ \t]*+\Z")
tag_text = re.compile(rf"[^<>\r\n]{{0,{KEY_HOLD}}}+").match


class Mark(Enum):
    """What a marker inside of a call is."""

    KEY = "a key opener"
    VALUE_END = "the value's closer"
    CALL_END = "the call's closer"
    OPEN = "the opener of a wrapper around parameters"
    CLOSE = "the closer of a wrapper around parameters"


@frozen
class Tables:
    """What a declaration compiles into."""

    between: Markers[Mark]
    """Between values."""
    inside: Markers[Mark]
    """Inside a raw value."""
    run: Run
    """The text of a raw value."""


def unescaped(text: str) -> str:
    """The text that stands escaped in a JSON string."""
    return str(json.loads(f'"{text}"'))


def typed_text(text: str, types: frozenset[str]) -> str:
    """The JSON of a whole raw value: itself if it is JSON of an allowed type, else a string."""
    plain = text.strip()
    plain = WORDS.get(plain, plain)
    try:
        value = json.loads(plain)
    except ValueError:
        value = text
    if isinstance(value, str) or not types.intersection(schema.kinds(value)):
        return f'"{quote(text)}"'
    return plain


@lru_cache(maxsize=128)
def tables(body: Parameters, close: str) -> Tables:
    """The markers of a declaration."""
    ends = [(body.key, Mark.KEY), (body.close, Mark.VALUE_END)]
    if close:
        ends.append((close, Mark.CALL_END))
    around = [(text, mark) for pair in body.wrappers for text, mark in zip(pair, (Mark.OPEN, Mark.CLOSE), strict=True)]
    leads = ("", "\n", "\r\n") if body.trim else ("",)
    inside = Markers([(lead + text, mark) for text, mark in ends for lead in leads])
    run = flowing_run(Markers(ends), convert=quote, trim=body.trim)
    return Tables(Markers(ends + around), inside, run)


def read(machine: Machine, form: Format, body: Parameters) -> Grammar:
    """The parameters, to the call's closer (not consumed), or to where another span begins."""
    table = tables(body, form.close)
    reader = Reading(machine, form, body, table)
    while True:
        yield from machine.blank()
        mark, length = yield from look(machine, table.between, 0)
        if mark is Mark.KEY:
            machine.take(length)
            if machine.candidate.known and not machine.candidate.committed:
                machine.commit()
            yield from reader.parameter()
        elif mark is Mark.CALL_END:
            reader.end()
            return
        elif mark is not None:
            machine.take(length)
        elif (machine.candidate.committed or machine.wrapping or machine.candidate.wrappers) and (
            yield from machine.sibling(0)
        ):
            machine.candidate.notes.mend("missing_closer")
            reader.end()
            return
        else:
            raise Mismatch


def look(machine: Machine, markers: Markers[Mark], offset: int) -> Generator[None, None, tuple[Mark | None, int]]:
    """The marker `offset` characters from here and where it ends, counted from here too; (None, 0) if there is none."""
    while True:
        found = markers.match(machine.text, machine.at + offset)
        if found is not None and found.lastindex:
            return markers.values[found.lastindex - 1], found.end() - machine.at
        if found is None and machine.at + offset < len(machine.text):
            return None, 0
        if machine.ended:
            return None, 0
        yield


class Reading:
    """One call whose arguments are parameters."""

    __slots__ = ("body", "form", "given", "machine", "names", "schema", "table")

    def __init__(self, machine: Machine, form: Format, body: Parameters, table: Tables) -> None:
        self.machine = machine
        self.form = form
        self.body = body
        self.table = table
        self.given: set[str] = machine.candidate.given
        tools = machine.tools
        self.schema: object = tools.get(machine.candidate.name or "") if tools is not None else None
        self.names = schema.properties(self.schema)

    # ---- the object

    def end(self) -> None:
        """All parameters have been read."""
        machine = self.machine
        if not machine.candidate.begun:
            machine.begin()
            machine.out("{")
        machine.out("}")
        machine.candidate.notes.stack.clear()
        machine.candidate.whole = True

    def open_key(self, key: str) -> frozenset[str]:
        """The key goes out; the types that its value may have."""
        machine = self.machine
        candidate = machine.candidate
        if key in self.given:
            candidate.notes.mend("repeated_key")
        first = not candidate.begun
        machine.begin()
        candidate.notes.stack[:] = ["}"]
        candidate.open_value = True
        machine.out(("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self.given.add(key)
        return schema.types(self.schema, key) if candidate.known else schema.STRING

    def parameter(self) -> Grammar:
        """One key and its value, the opener consumed."""
        key = yield from self.key()
        types = self.open_key(key)
        if self.body.trim:
            yield from self.line_end()
        if types == schema.STRING:
            self.machine.out('"')
            yield from self.text()
        else:
            yield from self.typed(types)
        self.machine.candidate.open_value = False

    def key(self) -> Generator[None, None, str]:
        """The key, and the end of its tag."""
        machine = self.machine
        while True:
            found = tag_text(machine.text, machine.at)
            end = found.end() if found else machine.at
            if end < len(machine.text):
                break
            yield from machine.more()
        if machine.text[end] != ">":
            raise Mismatch
        name = key_name(machine.text[machine.at : end], self.body.head)
        if not name:
            raise Mismatch
        machine.take(end + 1 - machine.at)
        return name

    def line_end(self) -> Grammar:
        """The line end after the opener is markup."""
        machine = self.machine
        char = yield from machine.peek()
        if char == "\r":
            while len(machine.text) - machine.at < 2:
                yield from machine.more()
            if machine.text[machine.at + 1] == "\n":
                machine.take(2)
        elif char == "\n":
            machine.take(1)

    # ---- values

    def text(self) -> Grammar:
        """A string, its opening quote written: flows to its end."""
        machine = self.machine
        while True:
            yield from machine.flow(self.table.run)
            if machine.at >= len(machine.text):
                yield from machine.more()
                continue
            if (yield from self.stops()):
                break
            machine.out(quote(machine.take(1, "argument")))
        machine.out('"')
        yield from self.close()

    def close(self) -> Grammar:
        """The closer of a value, when it is there."""
        machine = self.machine
        mark, length = yield from look(machine, self.table.inside, 0)
        if mark is Mark.VALUE_END:
            machine.take(length)
        else:
            machine.candidate.notes.mend("missing_closer")

    def stops(self) -> Generator[None, None, bool]:
        """True if the marker that begins here ends the open value."""
        machine = self.machine
        mark, length = yield from look(machine, self.table.inside, 0)
        if mark is Mark.VALUE_END:
            return (yield from self.may_follow(length))
        if mark is Mark.KEY:
            at_line_start = machine.text[machine.at] in "\r\n"
            return (yield from self.new_key(length, at_line_start=at_line_start))
        if mark is Mark.CALL_END:
            return (yield from machine.sibling(length))
        if machine.ended:
            yield from machine.more()
        return False

    def may_follow(self, offset: int) -> Generator[None, None, bool]:
        """True if what stands `offset` characters from here may follow a value's closer."""
        machine = self.machine
        offset = yield from self.blanks(offset)
        if offset < 0:
            return False
        mark, end = yield from look(machine, self.table.between, offset)
        if mark is Mark.KEY:
            return (yield from self.new_key(end, at_line_start=True))
        if mark is not None:
            return mark is not Mark.VALUE_END
        return (machine.ended and machine.at + offset >= len(machine.text)) or (yield from machine.sibling(offset))

    def blanks(self, offset: int) -> Generator[None, None, int]:
        """The offset of the first character that is not white space; −1 if that is too far away."""
        machine = self.machine
        while True:
            found = space(machine.text, machine.at + offset)
            end = (found.end() if found else 0) - machine.at
            if end - offset > BLANKS:
                return -1
            if machine.at + end < len(machine.text) or machine.ended:
                return end
            yield

    def new_key(self, offset: int, *, at_line_start: bool) -> Generator[None, None, bool]:
        """True if the key `offset` characters from here is a parameter that was not given yet."""
        machine = self.machine
        while True:
            found = tag_text(machine.text, machine.at + offset)
            end = found.end() if found else 0
            if end < len(machine.text):
                break
            if machine.ended:
                return False
            yield
        name = key_name(machine.text[machine.at + offset : end], self.body.head) if machine.text[end] == ">" else ""
        if not name or name in self.given:
            return False
        return name in self.names if self.names else at_line_start

    def typed(self, types: frozenset[str]) -> Grammar:
        """A value that need not be a string: JSON if it is JSON of an allowed type, whole; else a string."""
        machine = self.machine
        candidate = machine.candidate
        if "string" not in types and (yield from self.container(types)):
            return
        captured: list[str] = []
        sink = machine.sink
        target = machine.target
        machine.sink, machine.target, candidate.lead = Sink.HOLD, captured, 0
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
        machine.target = target
        value = "".join(captured)
        raw = "".join(piece for piece, _ in machine.raw)
        machine.raw = [(raw, "argument")]
        machine.release(sink)
        machine.out(value.strip() if is_json else '"' + quote(raw))
        if ended:
            candidate.open_value = not is_json
            raise Ended
        yield from self.close() if is_json else self.text()

    def container(self, types: frozenset[str]) -> Generator[None, None, bool]:
        """An object or array of a parameter that cannot be a string: it streams."""
        machine = self.machine
        yield from machine.blank()
        kind = {"{": "object", "[": "array"}.get(machine.text[machine.at])
        if kind not in types:
            return False
        notes = machine.candidate.notes
        machine.candidate.open_value = False
        yield from json_text.value(machine, notes)
        offset = yield from self.blanks(0)
        if offset > 0:
            machine.take(offset)
        yield from machine.peek()
        yield from self.close()
        return True

    def json(self, types: frozenset[str], strict: Notes, captured: list[str]) -> Grammar:
        """One JSON value of an allowed type, and then the end of the value; anything else is a mismatch."""
        machine = self.machine
        yield from machine.blank()
        char = machine.text[machine.at]
        strict.cut = True
        if char in "{[" and ("object" if char == "{" else "array") in types:
            yield from json_text.value(machine, strict)
        elif char in "-0123456789" and types & {"number", "integer"}:
            yield from number(machine, strict)
            strict.cut = False
            if "string" in types and "number" not in types and set(".eE") & set("".join(captured)):
                raise Mismatch
        elif char in "tfTFnN":
            word = yield from json_text.bare_word(machine)
            kind = {"true": "boolean", "false": "boolean", "null": "null"}.get(WORDS.get(word, ""))
            if kind not in types:
                raise Mismatch
            yield from json_text.literal(machine, Notes(machine.candidate.notes.repairs))
            strict.cut = False
        else:
            raise Mismatch
        mark = None
        offset = yield from self.blanks(0)
        if offset < 0:
            raise Mismatch
        if machine.ended and machine.at + offset >= len(machine.text):
            machine.take(offset)
            return
        mark, _ = yield from look(machine, self.table.between, offset)
        if mark is None:
            raise Mismatch
        lead = offset - self.line_end_before(offset)
        if lead > 0:
            machine.take(lead)
        if not (yield from self.stops()):
            raise Mismatch

    def line_end_before(self, offset: int) -> int:
        """Length of the line end that ends `offset` characters from here, when it is markup."""
        before = self.machine.text[self.machine.at : self.machine.at + offset]
        if not self.body.trim or not before.endswith("\n"):
            return 0
        return 2 if before.endswith("\r\n") else 1


class Strict(Notes):
    """Notes of a value that may also be a string: what would have to be mended is one."""

    def mend(self, name: str) -> None:  # noqa: ARG002  (the signature is the base's)
        """Never."""
        raise Mismatch


def key_name(tag: str, head: Head) -> str:
    """The key in the rest of a tag: `name="k"` or `k`; "" if there is none."""
    if head.attribute:
        for found in attribute.finditer(tag):
            if found[1] == head.attribute:
                return found[2] or found[3] or found[4] or ""
        return ""
    found_plain = quoted.match(tag.strip())
    return found_plain[1] if found_plain else ""
