"""Calls as expressions: `f(a=1, b='x')`, alone, one after another, or in a list; `f{a:1}` in the same way.

A call commits when its name is offered and its bracket has opened; arguments flow from there on. Values are read by
`json_text.value` in the dialect of the format (`literals.py`), typed by the tool's schema (`typed.py`). What is
not legal in the language and is read all the same is named in `repairs`: `positional_argument`, `json_arguments` (one
dict in place of all arguments), `key_separator`, `repeated_key`, `missing_closer`.

Arguments may also stand behind flags, `{--a 1 --b "x"}`: nothing but blanks between a key, its value and the next flag.
"""

import json
import re
from collections.abc import Generator

from statemachine import schema
from statemachine.bodies.name import word
from statemachine.buffer import Grammar, Mismatch
from statemachine.formats.format import Expression, Format
from statemachine.grammar.closers import sibling
from statemachine.json import text as json_text
from statemachine.json import typed as json_typed
from statemachine.json.bare import dialect_of
from statemachine.json.state import JsonState
from statemachine.machine import Machine
from statemachine.runs import Run

OUTSIDE = Run(r"[^()\[\]{}\"'<]*+")
"""What stands outside of strings and brackets."""
LONG_KEY = 2048
"""Characters of the longest key, as JSON writes it."""

keyword = re.compile(r"([A-Za-z_]\w{0,255}+)([ \t\r\n]{0,64}+)([=:])(?!=)").match
keyword_begun = re.compile(r"[A-Za-z_]\w{0,255}+[ \t\r\n]{0,64}+=?+\Z").match
flag_text = re.compile(r"[\w.-]{1,255}+").match
further = re.compile(r"([ \t\r\n;]{0,256}+)[A-Za-z_][\w.-]{0,255}+\(").match
further_begun = re.compile(r"[ \t\r\n;]{0,256}+(?:[A-Za-z_][\w.-]{0,255}+)?+\Z").match


def read(machine: Machine, form: Format, body: Expression) -> Grammar:
    """The calls, each finished; to the end of the list, or of the last call."""
    reader = machine.reader
    machine.candidate.format = form
    yield from machine.blank()
    if body.array:
        yield from listed(machine, body)
        return
    yield from call(machine, body)
    known = machine.candidate.committed
    machine.finish()
    while body.brackets == "()" and (length := (yield from another(machine))) >= 0:
        reader.take(length)
        machine.another(marked=True)
        yield from call(machine, body)
        known = known or machine.candidate.committed
        machine.finish(alone=known)


def listed(machine: Machine, body: Expression) -> Grammar:
    """Calls in square brackets; each is a candidate of its own, brackets and commas are syntax after the first call."""
    reader = machine.reader
    if (yield from reader.peek()) != "[":
        raise Mismatch
    reader.take(1)
    yield from machine.blank()
    known = False
    while True:
        yield from call(machine, body)
        known = known or machine.candidate.committed
        machine.finish(alone=known)
        yield from machine.blank()
        if (yield from reader.peek()) == ",":
            reader.take(1)
            yield from machine.blank()
        elif reader.text[reader.at] != "]":
            if (yield from sibling(machine, 0, own=True)):
                return
            raise Mismatch
        if reader.text[reader.at] == "]":
            reader.take(1)
            return
        machine.another(marked=True)


def another(machine: Machine) -> Generator[None, None, int]:
    """Length of what separates the call that ended here from the next one; −1 if none follows."""
    reader = machine.reader
    while True:
        found = further(reader.text, reader.at)
        if found is not None:
            return found.end(1) - reader.at
        if reader.ended or not further_begun(reader.text, reader.at):
            return -1
        yield


def call(machine: Machine, body: Expression) -> Grammar:
    """One call, to its closing bracket."""
    reader = machine.reader
    candidate = machine.candidate
    name = yield from word(machine)
    head, _, again = name.partition(body.assign)
    name = head if head == again else name  # it is written twice: `f:f`
    if candidate.marked:
        yield from machine.blank()
    brackets = next((pair for pair in (body.brackets, body.other_brackets) if reader.text[reader.at] in pair[:1]), "")
    if not brackets:
        raise Mismatch
    machine.named(name)
    if not candidate.known:
        if not candidate.marked:
            raise Mismatch
        machine.disown()
        yield from unread(machine, body)
        return
    machine.begin()
    reader.take(1)
    yield from Arguments(machine, body, brackets[1]).read()
    candidate.arguments.complete = True


def bracketed(machine: Machine, body: Expression) -> Grammar:
    """The arguments of a call whose name has been read, in their brackets."""
    reader = machine.reader
    yield from machine.blank()
    if reader.text[reader.at] != body.brackets[0]:
        raise Mismatch
    if not machine.candidate.known:
        yield from unread(machine, body)
        return
    machine.begin()
    reader.take(1)
    yield from Arguments(machine, body, body.brackets[1]).read()
    machine.candidate.arguments.complete = True


def unread(machine: Machine, body: Expression) -> Grammar:
    """The arguments of an unknown call, whatever stands in them, from their bracket to the one that closes them."""
    reader = machine.reader
    reader.take(1)
    dialect, state, depth = dialect_of(body), JsonState(), 1
    while depth:
        yield from reader.flow(OUTSIDE)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "([{":
            reader.take(1)
            depth += 1
        elif reader.text[reader.at] in ")]}":
            reader.take(1)
            depth -= 1
        elif (yield from dialect.opening(reader)) is not None:
            yield from dialect.string(reader, state)
        else:
            reader.take(1)


class Arguments:
    """The arguments of one call."""

    __slots__ = ("body", "close", "dialect", "free", "machine", "opened", "schema", "typed")

    def __init__(self, machine: Machine, body: Expression, close: str) -> None:
        self.machine = machine
        self.body = body
        self.close = close
        """The bracket that ends them."""
        self.opened = False
        """The object has begun."""
        candidate = machine.candidate
        self.schema = machine.tools.schema(candidate.name) if candidate.known else None
        self.free = list(schema.properties(self.schema)) if close == ")" else []
        """Parameters that take positional arguments."""
        state = candidate.arguments.json
        state.dialect = self.dialect = dialect_of(body)
        if self.dialect.sets:
            self.typed: json_typed.Typed | None = json_typed.Typed(schema.arguments(self.schema), sets=True)
        else:
            self.typed = json_typed.typing(self.schema)
        state.typed = self.typed

    def read(self) -> Grammar:
        """All of them, and the closing bracket."""
        machine = self.machine
        reader = machine.reader
        state = machine.candidate.arguments.json
        state.cut = True
        yield from self.blank()
        if reader.text[reader.at] == "{" and self.close == ")" and self.in_one():
            yield from self.instead()
            return
        while reader.text[reader.at] != self.close:
            yield from self.argument()
            yield from self.blank()
            if reader.text[reader.at] == ",":
                reader.take(1)
                yield from self.blank()
            elif self.body.flag and reader.text[reader.at] == self.body.flag[0]:
                continue
            elif (yield from self.closes()):
                break
            else:
                raise Mismatch
        self.open()
        state.stack.clear()
        reader.out("}")
        self.end()

    def blank(self) -> Grammar:
        """White space and comments between arguments, which are none; then a character is there."""
        machine = self.machine
        reader = machine.reader
        target, reader.target = reader.target, False
        try:
            yield from json_text.skip(reader, machine.candidate.arguments.json)
        finally:
            reader.target = target

    def closes(self) -> Generator[None, None, bool]:
        """True if the arguments end here: at their bracket, or where only the end of the call can stand."""
        machine = self.machine
        reader = machine.reader
        char = reader.text[reader.at]
        if char == self.close:
            return True
        if (char == "]" and self.body.array) or (yield from sibling(machine, 0, own=True)):
            machine.candidate.arguments.json.mend("missing_closer")
            return True
        return False

    def end(self) -> None:
        """Consumes the closing bracket, if it is there."""
        machine = self.machine
        reader = machine.reader
        if reader.text[reader.at] == self.close:
            reader.take(1)

    def open(self) -> bool:
        """The object begins, unless it has; true if it had."""
        if self.opened:
            return True
        self.opened = True
        self.machine.candidate.arguments.json.stack.append("}")
        self.machine.reader.out("{")
        return False

    def in_one(self) -> bool:
        """True if a dict in first place stands for all arguments: the first parameter can be none."""
        return not self.free or "object" not in schema.types(self.schema, self.free[0])

    def instead(self) -> Grammar:
        """One dict that is all the arguments."""
        machine = self.machine
        reader = machine.reader
        state = machine.candidate.arguments.json
        state.mend("json_arguments")
        yield from json_text.value(reader, state)
        yield from self.blank()
        self.opened = True
        if not (yield from self.closes()):
            raise Mismatch
        self.end()

    def argument(self) -> Grammar:
        """One argument."""
        machine = self.machine
        reader = machine.reader
        arguments = machine.candidate.arguments
        state = arguments.json
        flagged = bool(self.body.flag) and reader.text[reader.at] == self.body.flag[0]
        key = yield from self.flag() if flagged else self.marked_key() if self.close == "}" else self.key()
        if key is None:
            key = self.position()
        if key in arguments.given:
            state.mend("repeated_key")
        elif key in self.free:
            self.free.remove(key)
        arguments.given = arguments.given or set()
        arguments.given.add(key)
        more = self.open()
        state.cut = True
        reader.out((", " if more else "") + json.dumps(key, ensure_ascii=False) + ": ")
        yield from self.blank()
        if flagged and (yield from self.another_flag()):
            reader.out("true")
            state.cut = False
            return
        if self.typed is not None:
            self.typed.member(key)
        yield from json_text.value(reader, state)

    def key(self) -> Generator[None, None, str | None]:
        """The key of an argument and what follows it, consumed; None for a positional argument."""
        machine = self.machine
        reader = machine.reader
        while True:
            found = keyword(reader.text, reader.at)
            if found is not None and found.end() < len(reader.text):
                break
            if found is None and not keyword_begun(reader.text, reader.at):
                return None
            yield from reader.more()
        if found[3] != self.body.assign:
            machine.candidate.arguments.json.mend("key_separator")
        reader.take(found.end() - reader.at)
        return found[1]

    def flag(self) -> Generator[None, None, str]:
        """The key of an argument behind its flag, consumed."""
        reader = self.machine.reader
        for char in self.body.flag:
            if (yield from reader.peek()) != char:
                raise Mismatch
            reader.take(1)
        return (yield from word(self.machine, flag_text))

    def another_flag(self) -> Generator[None, None, bool]:
        """True if no value follows a flag."""
        reader, flag = self.machine.reader, self.body.flag
        while flag.startswith(reader.text[reader.at : reader.at + len(flag)]):
            if reader.text.startswith(flag, reader.at):
                return True
            yield from reader.more()
        return reader.text[reader.at] in (self.close, ",")

    def marked_key(self) -> Generator[None, None, str]:
        """The key of an argument and its colon, consumed."""
        machine = self.machine
        reader = machine.reader
        key = ExpressionKey()
        target, reader.target = reader.target, key
        try:
            yield from dialect_of(self.body).key(reader, machine.candidate.arguments.json)
        finally:
            reader.target = target
        if key.length > LONG_KEY:
            raise Mismatch
        return str(json.JSONDecoder().raw_decode("".join(key.pieces))[0])

    def position(self) -> str:
        """The parameter that a positional argument is.

        Raises:
            Mismatch: there is none left.

        """
        machine = self.machine
        if not machine.candidate.known:
            return ""
        if not self.free:
            raise Mismatch
        machine.candidate.arguments.json.mend("positional_argument")
        return self.free[0]


class ExpressionKey:
    """A target for a key that is read whole; what is too long is only counted."""

    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0

    def append(self, piece: str) -> None:
        """Takes a piece."""
        self.length += len(piece)
        if self.length <= LONG_KEY:
            self.pieces.append(piece)
