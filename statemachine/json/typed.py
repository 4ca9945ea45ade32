"""JSON that contradicts the tool's schema, repaired as it streams: `"12"` for a number, `12` for a string.

Theory of operation. `text.py` notifies a `Typed` of its position (a key was read, a container opened, an item follows)
and consults it before each value. Most values begin with a character of an allowed type: after one lookup, they are
read unchanged. The others are repaired (each of these repairs is recorded as `typed_value`):

* A string where none is allowed is buffered while its content may still be an allowed number, `true`, `false` or
  `null`. This takes a few characters: at the first one that rules all of them out, the value streams as a string. If
  the content is such a scalar, the scalar is emitted. If it begins with a bracket that is allowed here, it is decoded
  as it arrives, and the JSON inside is emitted.
* If the language has sets (`sets`), braces that contain items rather than members are read as a set, which becomes an
  array. The first element in braces is buffered until a colon, a comma or the closing brace follows.
* Any other value where only a string is allowed is emitted as a string that contains its JSON text, without delay. A
  `null` for an optional parameter is kept: models use it to mean "not given".

Everything else is kept unchanged, including `3.0` for an integer, which JSON Schema allows. Output that has been
emitted is never contradicted by later output.
"""

import re
from collections.abc import Generator
from functools import lru_cache
from json import JSONDecoder
from json.encoder import encode_basestring
from re import Match

from statemachine import schema
from statemachine.json import text as json_text
from statemachine.json.nested import Nested, split_surrogate, unescape
from statemachine.json.nesting import Nesting
from statemachine.json.state import WORDS, JsonState
from statemachine.schema import Node
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.reader import Reader
from statemachine.stream.runs import json_escape

MAX_KEY = 4096
"""Maximum length of a key to look up."""
KINDS = {
    "{": "object",
    "[": "array",
    "t": "boolean",
    "f": "boolean",
    "T": "boolean",
    "F": "boolean",
    "n": "null",
    "N": "null",
    **dict.fromkeys(json_text.QUOTES, "string"),
    **dict.fromkeys("+-.0123456789", "number"),
}
"""Types of JSON values, by their first characters."""

scalar_prefix = re.compile(
    r"[ \t\r\n]{0,16}+"
    r"(?:([{\[])|([A-Za-z]{1,5}+|(-?+(?:(?:0|[1-9][0-9]{0,39}+)(\.[0-9]{0,39}+)?+([eE][+-]?+[0-9]{0,3}+)?+)?+))"
    r"[ \t\r\n]{0,16}+)"
).match
"""Matches the beginning of a string's text: a bracket (group 1), or a scalar or a prefix of one (group 2); if it is a
number, group 3 is the number, group 4 its fraction and group 5 its exponent.
"""
MAX_FIRST = 256
"""Maximum length of a string that is examined to decide whether braces contain items."""
set_begins = re.compile(
    rf"\{{[ \t\r\n]{{0,64}}+(?:\Z|\(()|"
    rf"(?:\"(?:[^\"\\]|\\.){{0,{MAX_FIRST}}}+(?:\\?\Z|\")|'(?:[^'\\]|\\.){{0,{MAX_FIRST}}}+(?:\\?\Z|')|[\w.+-]{{1,64}}+)"
    r"[ \t\r\n]{0,64}+(?:\Z|()[,}]))",
    re.DOTALL,
).match
"""Matches braces whose first item is not a key, or a prefix of such text."""
decode = JSONDecoder().raw_decode
units = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL).findall
number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
integer = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?").fullmatch


@lru_cache(maxsize=256)
def first_characters(types: frozenset[str]) -> frozenset[str]:
    """Return the first characters of values of these types."""
    return frozenset(char for char, kind in KINDS.items() if fits(kind, types))


def fits(kind: str, types: frozenset[str]) -> bool:
    """Return whether a value of this kind may have one of these types."""
    return kind in types or (kind == "number" and "integer" in types)


def typing_of(parameters: object) -> "Typed | None":
    """Return a `Typed` for arguments described by a tool's parameter schema, or None if the schema constrains
    nothing.
    """
    found = schema.described_node(parameters)
    return None if found is None else Typed(found)


class Typed:
    """Implementation of `state.Typing`: the schema of the values in one JSON text."""

    __slots__ = ("_inner", "_levels", "_next", "_sets", "given", "nesting", "root")

    def __init__(self, root: Node, *, sets: bool = False) -> None:
        self.root = root
        self._sets = sets
        """Whether braces may contain the items of a set."""
        self._next: Node | None = root
        """Schema of the next value."""
        self._levels: list[Node | None] = []
        """Schemas of the open containers, by the number of containers around them. Those of closed ones may follow."""
        self.given: set[str] = set()
        """Names of the outermost object's members so far."""
        self.nesting: Nesting | None = None
        """Members that belong to an object in the arguments; None if they are not nested."""
        self._inner: dict[int, set[str]] | None = None
        """Names of the members so far of the open objects inside, by the number of containers around them; None before
        the first such object.
        """

    # ---- the position in the text

    def enter(self, depth: int) -> None:
        """Record that the next value is a container with `depth` containers around it."""
        levels = self._levels
        del levels[depth:]
        levels.extend(None for _ in range(depth - len(levels)))
        levels.append(self._next if self._next is not None and self._next.deep else None)
        if self._inner:
            self._inner.pop(depth, None)

    def _level(self, depth: int) -> Node | None:
        """Return the schema of the open container with `depth` containers around it, if it has one."""
        return self._levels[depth] if 0 <= depth < len(self._levels) else None

    def item(self, depth: int) -> None:
        """Record that the next value is an item of the array with `depth` containers around it."""
        around = self._level(depth)
        self._next = None if around is None else around.items()

    def member(self, name: str) -> None:
        """Record that the next value is the argument with this name."""
        self._next = self.root.member(name)
        self.given.add(name)

    def expect(self, node: Node | None) -> None:
        """Record the schema of the next value."""
        self._next = node

    def restart(self) -> None:
        """Record that the next value is the outermost object, or continues it."""
        self._next = self.root

    def key(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a member's key and its colon."""
        around = self._level(len(state.stack) - 1)
        if around is None:
            self._next = None
            yield from json_text.key(reader, state)
            return
        depth = len(state.stack) - 1
        nesting = None if depth else self.nesting
        if nesting is not None:
            nesting.pause(reader, comma=True)
        seen = KeyRecorder(reader, around, nesting)
        try:
            yield from json_text.key(reader, state)
        except (EndOfText, Mismatch):
            seen.release()
            reader.target = seen.target
            raise
        if seen.room < 0:
            self._next = None
            seen.end()
            return
        text = "".join(seen.pieces)
        name, end = decode(text)
        given = self.given if depth == 0 else self._given_inside(depth)
        self._next = around.member(name)
        near = around.near(name, given) if self._next is None else None
        if near is not None:
            state.add_repair("parameter_name")
            seen.pieces = [encode_basestring(near) + text[end:]]
            name, self._next = near, around.member(near)
        elif nesting is not None and self._next is None and (home := nesting.member(name)) is not None:
            seen.end()
            self._next = home[1]
            nesting.begin(reader, name, home[0], apart=True)
            return
        elif name in given and (wants_items(self._next) or "parameter_name" in state.repairs):
            state.lossless = state.lossless and not wants_items(self._next)
            state.add_repair("repeated_key")
        if nesting is not None:
            nesting.resume()
        seen.release()
        given.add(name)
        seen.end()

    def _given_inside(self, depth: int) -> set[str]:
        """Return the names of the members so far of an open object inside."""
        if self._inner is None:
            self._inner = {}
        return self._inner.setdefault(depth, set())

    def end_object(self, reader: Reader, state: JsonState, *, cut: bool = False) -> None:
        """Emit what has to be emitted before the closer of the outermost object, or where the arguments are `cut`."""
        if self.nesting is not None:
            self.nesting.end(reader, state, cut=cut)

    # ---- the next value

    def may_contradict(self, char: str) -> bool:
        """Return whether a value that begins with this character may contradict the schema or be a set."""
        return (self._sets and char == "{") or (
            self._next is not None and char not in first_characters(self._next.types)
        )

    def allows(self, kind: str) -> bool:
        """Return whether the next value may have this type."""
        return self._next is None or kind in self._next.types

    def names(self, depth: int, key: str) -> bool | None:
        """Return whether the object with `depth` containers around it may have this key, or None if its schema does not
        describe it.
        """
        around = self._level(depth)
        return None if around is None else around.member(key) is not None

    def read_repaired(self, reader: Reader, state: JsonState) -> Generator[None, None, bool]:
        """Read the next value and convert it to an allowed type. Return False, without consuming anything, if the value
        needs no change.
        """
        node = self._next
        dialect = state.dialect
        char = reader.text[reader.at]
        if self._sets and char == "{" and (yield from is_set(reader)):
            yield from self.set_as_array(reader, state)
            return True
        kind = KINDS.get(char, "") if dialect is None else (yield from dialect.kind(reader))
        if node is None or not kind or fits(kind, node.types):
            return False
        if kind == "string":
            return (yield from self.string_as_value(reader, state, node))
        if node.types - {"null"} != schema.STRING or (kind == "null" and node.optional):
            return False
        self._next = None
        yield from value_as_string(reader, state)
        return True

    def set_as_array(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a set as an array of its items."""
        stack = state.stack
        if len(stack) >= state.depth:
            raise Mismatch
        self.enter(len(stack))
        stack.append("]")
        reader.take(1, "repair")
        reader.emit_arguments("[")
        separator = ""
        while True:
            yield from json_text.skip(reader, state)
            if reader.text[reader.at] == "}":
                break
            state.cut = True
            reader.emit_arguments(separator)
            self.item(len(stack) - 1)
            yield from json_text.value(reader, state)
            yield from json_text.skip(reader, state)
            if reader.text[reader.at] == ",":
                separator = yield from json_text.comma_and_space(reader, state)
            elif reader.text[reader.at] != "}":
                raise Mismatch
        stack.pop()
        reader.take(1, "repair")
        reader.emit_arguments("]")

    def string_as_value(self, reader: Reader, state: JsonState, node: Node) -> Generator[None, None, bool]:
        """Read a string, where none is allowed, as the value that it contains; return False if that value is not
        allowed either.
        """
        dialect = state.dialect
        if dialect is None:
            opening: tuple[int, tuple[str, ...]] | None = (1, tuple(json_text.CLOSERS[reader.text[reader.at]]))
        else:
            opening = yield from dialect.opening(reader)
        if opening is None:
            return False
        length, closers = opening
        while True:
            found = scalar_prefix(reader.text, reader.at + length)
            if found is None:
                return False
            if found[1]:
                if ("object" if found[1] == "{" else "array") not in node.types:
                    return False
                state.add_repair("typed_value")
                yield from string_as_json(reader, state, node)
                return True
            if not may_be(found, node.types):
                return False
            rest = reader.text[found.end() : found.end() + 16]
            closer = next((closer for closer in closers if rest.startswith(closer)), "")
            if closer:
                break
            if reader.ended or (rest and not any(closer.startswith(rest) for closer in closers)):
                return False
            yield from reader.more()
        strict = scalar_json(found[2], node.types)
        if strict is None:
            return False
        state.add_repair("typed_value")
        reader.take(found.end() + len(closer) - reader.at, "repair")
        reader.emit_arguments(strict)
        return True


def wants_items(node: Node | None) -> bool:
    """Return whether a value may be an array and the schema restricts its type, so that repeated values belong
    together.
    """
    return node is not None and "array" in node.types and node.types != schema.ANY


def is_set(reader: Reader) -> Generator[None, None, bool]:
    """Return whether the braces that open here contain items rather than members."""
    while True:
        found = set_begins(reader.text, reader.at)
        if found is None or found.lastindex:
            return found is not None
        yield from reader.more()


def may_be(found: Match[str], types: frozenset[str]) -> bool:
    """Return whether the string's content so far may still become a scalar of one of these types."""
    if found[3] is not None:
        if found[3] == "":
            return True
        return "number" in types or ("integer" in types and not found[5] and not (found[4] or "").strip(".0"))
    words = [word for word, strict in WORDS.items() if kind_of(strict) in types]
    return any(word.startswith(found[2]) for word in words)


def scalar_json(text: str, types: frozenset[str]) -> str | None:
    """Return the JSON of a scalar of one of these types, with its spelling preserved, or None if the text is not such a
    scalar.
    """
    if "number" in types and number(text):
        return text
    if "integer" in types and integer(text):
        return text
    strict = WORDS.get(text, "") if len(text) <= 5 else ""
    return strict if strict and kind_of(strict) in types else None


def kind_of(strict: str) -> str:
    """Return the type of a JSON word."""
    return "null" if strict == "null" else "boolean"


def value_as_string(reader: Reader, state: JsonState) -> Grammar:
    """Read a value that is not a string as a string that contains its JSON text."""
    state.add_repair("typed_value")
    reader.emit_arguments('"')
    state.stack.append('"')
    text = StringEscaper(reader)
    yield from json_text.value(reader, state)
    text.end()
    state.stack.pop()
    reader.emit_arguments('"')


def string_as_json(reader: Reader, state: JsonState, node: Node) -> Grammar:
    """Read a string that contains JSON: decode it, repair it, and emit the JSON itself.

    Raises:
        Mismatch: its content cannot be read.
    """
    inner = Nested(JsonState(state.repairs, depth=state.depth - len(state.stack), typed=Typed(node)), json_text.value)
    text = StringDecoder(reader, inner)
    yield from json_text.string(reader, state) if state.dialect is None else state.dialect.string(reader, state)
    text.end()
    reader.emit_arguments(inner.finish())
    if not inner.readable():
        raise Mismatch


class FilterTarget:
    """Target that processes pieces and passes its output on to the previous target.

    The limit on the arguments is applied to individual characters and escapes, so that the result does not depend on
    how the text arrives. Output beyond the limit is dropped, and `end` raises Mismatch.
    """

    __slots__ = ("full", "reader", "target")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.target = reader.target
        self.full = False
        reader.target = self

    def append(self, piece: str) -> None:
        """Process a piece of strict JSON."""
        raise NotImplementedError

    def pass_on(self, piece: str) -> None:
        """Pass a piece on to the previous target."""
        reader = self.reader
        reader.target = self.target
        for part in units(piece) if self.target is True and len(piece) > reader.remaining else (piece,):
            self.full = self.full or (self.target is True and len(part) > reader.remaining)
            if not self.full:
                reader.emit_arguments(part)
        reader.target = self

    def end(self) -> None:
        """Restore the previous target.

        Raises:
            Mismatch: the arguments exceed their limit.
        """
        self.reader.target = self.target
        if self.full:
            raise Mismatch


class KeyRecorder(FilterTarget):
    """Target that records the key that passes through it. Its text is buffered as soon as it differs from a declared
    key that it may refer to, and while it may belong to another object; a key that is too long passes.
    """

    __slots__ = ("around", "nesting", "pieces", "room", "sent")

    def __init__(self, reader: Reader, around: Node, nesting: Nesting | None) -> None:
        super().__init__(reader)
        self.around = around
        self.nesting = nesting
        self.pieces: list[str] = []
        self.room = MAX_KEY
        self.sent = 0
        """Number of characters that have been passed on."""

    def append(self, piece: str) -> None:
        """Process a piece of strict JSON."""
        self.room -= len(piece)
        if self.room < 0:
            self.release()
            self.pass_on(piece)
            return
        self.pieces.append(piece)
        text = "".join(self.pieces)
        if "\\" not in text and self.streams(*text[1:].partition('"')[:2]):
            self.release()

    def streams(self, begun: str, ended: str) -> bool:
        """Return whether a key that begins like this, or is this one if it has `ended`, is emitted like this."""
        if self.nesting is not None and self.nesting.may_begin(begun):
            return False
        return self.around.near(begun, ()) is None if ended else self.around.streams_key(begun)

    def release(self) -> None:
        """Pass the buffered text on."""
        text = "".join(self.pieces)
        rest, self.sent = text[self.sent :], len(text)
        self.pass_on(rest)


class StringEscaper(FilterTarget):
    """Target that escapes the JSON passing through it as the text of a JSON string."""

    __slots__ = ()

    def append(self, piece: str) -> None:
        """Process a piece of strict JSON."""
        self.pass_on(json_escape(piece))


class StringDecoder(FilterTarget):
    """Target that decodes the JSON string passing through it, and reads the JSON inside."""

    __slots__ = ("high_surrogate", "inner")

    def __init__(self, reader: Reader, inner: Nested) -> None:
        super().__init__(reader)
        self.inner = inner
        self.high_surrogate = ""

    def append(self, piece: str) -> None:
        """Process a piece of a strict JSON string; once the JSON inside is broken, ignore all further pieces."""
        if piece == '"' or self.inner.broken:
            return
        piece, self.high_surrogate = split_surrogate(self.high_surrogate + piece)
        if piece:
            self.pass_on(self.inner.push(unescape(piece)))
