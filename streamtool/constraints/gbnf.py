r"""Portable JSON Schema as rules of a grammar in GBNF, the language of llama.cpp.

    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    ⇒  "{" ws "\"x\":" ws integer ws "}"

Members stand in the order of the schema; those that are not required may be left out. Beside named members there are no
others. What an object, an array or a string may hold is kept to as far as a grammar can say it, which is not a
`pattern`, a `format` or a range.

A schema comes from the caller: depth, nodes and the size of all rules are bounded, and `GrammarTooLargeError` says that
it is beyond them.

Source: the guide to GBNF in llama.cpp's `grammars/README.md`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from statemachine.schema import SchemaWalker, kinds
from streamtool.schema import Schema

DEPTH: Final = 48
"""Levels of a schema."""
NODES: Final = 2000
"""Schemas, references once, in all tools together."""
SIZE: Final = 200_000
"""Characters of a grammar."""
_REPEATED: Final = 100
"""The largest count that is kept to: the servers write repetitions out."""

_PLAIN: Final[Mapping[str, str]] = {
    "ws": r'( " " | "\n" [ \t]{0,20} )?',
    "hex": "[0-9a-fA-F]",
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" ( [0-9a-cA-CefEF] hex{3} | [dD] [0-7] hex{2} ) )',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "number": 'integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": r'"[" ws ( value ( "," ws value )* )? ws "]"',
    "object": r'"{" ws ( string ":" ws value ( "," ws string ":" ws value )* )? ws "}"',
    "value": "object | array | string | number | boolean | null",
    "key": "[a-zA-Z_] [a-zA-Z0-9_]{0,63}",
}
"""The rules of JSON itself, and of the name of a parameter."""
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "char": ("hex",),
    "string": ("char",),
    "number": ("integer",),
    "array": ("ws", "value"),
    "object": ("ws", "string", "value"),
    "value": ("object", "array", "string", "number", "boolean", "null"),
}
EMPTY: Final = '""'
"""Nothing."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


class GrammarTooLargeError(Exception):
    """The schema does not fit into a grammar."""


def literal(text: str) -> str:
    """A text that stands in the reply as it is."""
    escaped = text.translate(_ESCAPES)
    return '"' + "".join(f"\\x{ord(char):02X}" if char < " " or char == "\x7f" else char for char in escaped) + '"'


def joined(ways: Iterable[str]) -> str:
    """One of these; each once."""
    return " | ".join(dict.fromkeys(ways))


class GbnfRules:
    """The rules of one grammar, each under a name of its own."""

    __slots__ = ("_left", "_made", "_size")

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._size = 0
        self._left = NODES

    def add(self, body: str, name: str = "") -> str:
        """The name of the rule; one that is given is the rule's own."""
        name = name or f"r{len(self._made)}"
        self._size += len(body) - len(self._made.get(name, ""))
        if self._size > SIZE:
            raise GrammarTooLargeError
        self._made[name] = body
        return name

    def name(self) -> str:
        """A name for a rule that is added later."""
        return self.add("")

    def plain(self, name: str) -> str:
        """The name of a rule of JSON itself, which is there from now on."""
        if name not in self._made:
            self.add(_PLAIN[name], name)
            for other in _NEEDS.get(name, ()):
                self.plain(other)
        return name

    def visit(self) -> None:
        """One more schema is read."""
        self._left -= 1
        if self._left < 0:
            raise GrammarTooLargeError

    def text(self) -> str:
        """The grammar; one of the rules is `root`."""
        made = {"root": "", **self._made}
        return "".join(f"{name} ::= {body}\n" for name, body in made.items())


class Converter:
    """Makes the rules of one tool's schema, which is a portable one."""

    __slots__ = ("_known", "_rules", "_walker")

    def __init__(self, rules: GbnfRules, root: Schema) -> None:
        self._rules = rules
        self._walker = SchemaWalker(root, NODES)
        self._known: dict[str, str] = {}

    def value(self, schema: Schema, depth: int = 0) -> str:
        """A value that the schema describes, as an element of a rule: a name, or a group."""
        self._rules.visit()
        if depth > DEPTH:
            raise GrammarTooLargeError
        reference = schema.get("$ref")
        if reference is None:
            return self._found(schema, depth)
        name = self._known.get(reference)
        if name is None:
            name = self._known[reference] = self._rules.name()
            self._rules.add(self._found(self.resolved(schema), depth), name)
        return name

    def resolved(self, schema: Schema) -> Schema:
        """The schema, its reference followed."""
        return self._walker.resolve(schema)

    def types(self, schema: Schema) -> frozenset[str]:
        """The JSON types that the schema allows."""
        return self._walker.types(schema)

    def narrowed(self, schema: Schema, kind: str) -> Schema:
        """The schema, as far as it speaks of values of one type."""
        found = self.resolved(schema)
        if "enum" in found:
            return {"enum": [value for value in found["enum"] if kind in kinds(value)]}
        if "anyOf" in found:
            return {"anyOf": [self.narrowed(one, kind) for one in found["anyOf"] if kind in self.types(one)]}
        return {**found, "type": kind}

    def _found(self, schema: Schema, depth: int) -> str:
        if "enum" in schema:
            ways = [literal(json.dumps(value, ensure_ascii=False)) for value in schema["enum"]]
        elif "anyOf" in schema:
            ways = [self.value(option, depth + 1) for option in schema["anyOf"]]
        else:
            names = schema.get("type", "value")
            ways = [self._kind(kind, schema, depth) for kind in ([names] if isinstance(names, str) else names)]
        return f"( {joined(ways)} )" if len(ways) > 1 or "enum" in schema else ways[0]

    def _kind(self, kind: str, schema: Schema, depth: int) -> str:
        match kind:
            case "object":
                return self._rules.add(self._object(schema, depth))
            case "array":
                return self._rules.add(self._array(schema, depth))
            case "string":
                return self._string(schema)
        return self._rules.plain(kind)

    def _string(self, schema: Schema) -> str:
        least, most = _count(schema, "minLength"), _count(schema, "maxLength")
        if not least and most is None:
            return self._rules.plain("string")
        char = self._rules.plain("char")  # a rule, since servers multiply a repetition by the one around it
        return self._rules.add(rf'"\"" {char}{_times(least or 0, most)} "\""')

    def _array(self, schema: Schema, depth: int) -> str:
        ws = self._rules.plain("ws")
        if "prefixItems" in schema:
            items = f' "," {ws} '.join(self.value(item, depth + 1) for item in schema["prefixItems"])
            return f'"[" {ws} {items} {ws} "]"'
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most == 0:
            return f'"[" {ws} "]"'
        item = self.value(schema.get("items", {}), depth + 1)
        rest = _times(max(least - 1, 0), None if most is None else most - 1)
        items = f'{item} ( "," {ws} {item} ){rest}'
        return f'"[" {ws} {items if least else f"( {items} )?"} {ws} "]"'

    def _object(self, schema: Schema, depth: int) -> str:
        ws = self._rules.plain("ws")
        properties, required = schema.get("properties"), frozenset(schema.get("required", ()))
        if not properties:
            return self._map(schema, depth)
        members = [
            (f"{literal(json.dumps(str(key), ensure_ascii=False) + ':')} {ws} {self.value(value, depth + 1)}", key)
            for key, value in properties.items()
        ]
        # the first member that is written stands alone, every later one behind a comma; `rest` is what may follow it
        ways: list[str] = []
        rest = ""
        for member, key in reversed(members):
            if key in required:
                ways = []
            ways.append(f"{member} {rest}".rstrip())
            follows = f'"," {ws} {member}' if key in required else f'( "," {ws} {member} )?'
            rest = self._rules.add(f"{follows} {rest}".rstrip())
        inside = joined(reversed(ways))
        optional = "" if required else "?"
        return f'"{{" {ws} ( {inside} ){optional} {ws} "}}"'

    def _map(self, schema: Schema, depth: int) -> str:
        """An object without named members."""
        ws = self._rules.plain("ws")
        others = schema.get("additionalProperties", True)
        if others is False:
            return f'"{{" {ws} "}}"'
        if others is True:
            return self._rules.plain("object")
        member = f'{self._rules.plain("string")} ":" {ws} {self.value(others, depth + 1)}'
        return f'"{{" {ws} ( {member} ( "," {ws} {member} )* )? {ws} "}}"'


def _count(schema: Schema, key: str) -> int | None:
    """A count that the schema names, if it is small enough to be kept to."""
    value: int | None = schema.get(key)
    return value if value is not None and value <= _REPEATED else None


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{max(least, most)}}}"


def until(rules: GbnfRules, ends: Mapping[str, str], *, line: bool = False, never: Iterable[str] = ()) -> str:
    """The rule of free text in which none of `ends` stands but at its end, where what `ends` says follows it.

    It may end anywhere too if one of `ends` is "". With `line`, the ends begin at line starts, of which the first
    character is one. What is `never` stands nowhere. An automaton over all of them: each state is what has been read of
    some of them.
    """
    words: dict[str, str | None] = {word: None for word in never if word}
    words |= {("\n" + word if line else word): then for word, then in ends.items() if word}
    automaton = _automaton(tuple(words))
    states = {read: rules.name() for read in automaton}
    for read, name in states.items():
        ways = [ends[""]] if "" in ends else []
        known = {char: words[to] if to in words else states[to] for char, to in automaton[read].items()}
        ways += [f"{literal(char)} {then}".rstrip() for char, then in known.items() if then not in (states[""], None)]
        ways += [f"{_none_of([char for char, then in known.items() if then != states['']])} {states['']}"]
        rules.add(joined(ways), name)
    return states["\n"] if line and "\n" in states else states[""]


@lru_cache(maxsize=64)
def _automaton(words: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Where each character of the words leads from each state: to a word, or to what has been read of some of them."""
    states = dict.fromkeys(["", *(word[:length] for word in words for length in range(1, len(word)))])
    chars = dict.fromkeys("".join(words))
    return {read: {char: _next(read + char, states, words) for char in chars} for read in states}


def _next(text: str, states: Mapping[str, None], words: tuple[str, ...]) -> str:
    """Where reading goes on behind this text: at the longest end of it that is a word, or else a state."""
    tails = [text[start:] for start in range(len(text) + 1)]
    return next((tail for tail in tails if tail in words), None) or next(tail for tail in tails if tail in states)


def _none_of(chars: Sequence[str]) -> str:
    """Any other character. Escapes stand last: some servers read more than two digits behind `\\x`."""
    escaped = [rf"\x{ord(char):02X}" if char in '[]^-\\"' or char < " " else char for char in chars]
    return f"[^{''.join(sorted(escaped, key=len))}]"
