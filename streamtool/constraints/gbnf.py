r"""JSON Schema as rules of a grammar in GBNF, the language of llama.cpp.

    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    ⇒  "{" ws "\"x\":" ws integer ws "}"

Members stand in the order of the schema; those that are not required may be left out. Beside named members there are no
others. What an object, an array or a string may hold is kept to as far as a grammar can say it; what is not known is
any JSON value: so a sentence may break a `pattern`, and never the form.

A schema comes from the caller, so nothing about it is trusted: depth, nodes and the size of all rules are bounded. A
schema beyond them is any object (`GrammarTooLargeError` says so to whoever converts).

Source: the guide to GBNF in llama.cpp's `grammars/README.md`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from statemachine.schema import SchemaWalker
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
}
"""The rules of JSON itself."""
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
    """Makes the rules of one tool's schema."""

    __slots__ = ("_at_once", "_known", "_rules", "_walker")

    def __init__(self, rules: GbnfRules, root: Schema) -> None:
        self._rules = rules
        self._walker = SchemaWalker(root, NODES)
        self._known: dict[str, str] = {}
        self._at_once: tuple[str, ...] = ()
        """The references that led here without anything to read in between: a rule never begins with itself."""

    def arguments(self) -> str:
        """The rule of an object that the schema describes."""
        whole = self.merged(self._walker.root)
        return self._rules.add(self._object(whole, 0))

    def merged(self, schema: Any) -> Schema:
        """The schema, its reference followed, the parts of `allOf` laid into it."""
        found = self._walker.merged(schema)
        if self._walker.exhausted:
            raise GrammarTooLargeError
        return found

    def value(self, schema: Any, depth: int) -> str:
        """A value that the schema describes, as an element of a rule: a name, or a group."""
        self._rules.visit()
        if depth > DEPTH:
            raise GrammarTooLargeError
        if not isinstance(schema, Mapping) or not schema or schema.get("$ref") in self._at_once:
            return self._rules.plain("value")
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self._found(self.merged(schema), depth)
        name = self._known.get(reference)
        if name is None:
            name = self._known[reference] = self._rules.name()
            before, self._at_once = self._at_once, (*self._at_once, reference)
            self._rules.add(self._found(self.merged(schema), depth), name)
            self._at_once = before
        return name

    def _found(self, schema: Schema, depth: int) -> str:
        ways = [self._rules.plain("null")] if schema.get("nullable") is True else []
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list | tuple) and values:
            ways += [literal(json.dumps(value, ensure_ascii=False)) for value in values]
            return f"( {joined(ways)} )"
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list | tuple) and options and "properties" not in schema:
            ways += [self.value(option, depth + 1) for option in options]
            return f"( {joined(ways)} )"
        kinds = schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else "value"
        ways += [
            self._kind(str(kind), schema, depth) for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])
        ]
        return f"( {joined(ways)} )" if len(ways) > 1 else ways[0]

    def _kind(self, kind: str, schema: Schema, depth: int) -> str:
        match kind:
            case "object" | "array":
                before, self._at_once = self._at_once, ()
                body = self._object(schema, depth) if kind == "object" else self._array(schema, depth)
                self._at_once = before
                return self._rules.add(body)
            case "string":
                return self._string(schema)
            case "integer" | "number" | "boolean" | "null":
                return self._rules.plain(kind)
        return self._rules.plain("value")

    def _string(self, schema: Schema) -> str:
        least, most = _count(schema, "minLength"), _count(schema, "maxLength")
        if not least and most is None:
            return self._rules.plain("string")
        char = self._rules.plain("char")
        return rf'( "\"" {char}{_times(least or 0, most)} "\"" )'

    def _array(self, schema: Schema, depth: int) -> str:
        ws = self._rules.plain("ws")
        first = schema.get("prefixItems")
        if isinstance(first, list | tuple) and first:
            items = f' "," {ws} '.join(self.value(item, depth + 1) for item in first)
            return f'"[" {ws} {items} {ws} "]"'
        item = self.value(schema.get("items"), depth + 1)
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most == 0:
            return f'"[" {ws} "]"'
        rest = _times(max(least - 1, 0), None if most is None else most - 1)
        items = f'{item} ( "," {ws} {item} ){rest}'
        return f'"[" {ws} {items if least else f"( {items} )?"} {ws} "]"'

    def _object(self, schema: Schema, depth: int) -> str:
        ws = self._rules.plain("ws")
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return self._map(schema, depth)
        required = self._walker.required(schema)
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
        optional = "" if any(key in required for _, key in members) else "?"
        return f'"{{" {ws} ( {inside} ){optional} {ws} "}}"'

    def _map(self, schema: Schema, depth: int) -> str:
        """An object without named members."""
        ws = self._rules.plain("ws")
        others = schema.get("additionalProperties")
        if others is False or (others is None and isinstance(schema.get("properties"), Mapping)):
            return f'"{{" {ws} "}}"'
        if not isinstance(others, Mapping):
            return self._rules.plain("object")
        member = f'{self._rules.plain("string")} ":" {ws} {self.value(others, depth + 1)}'
        return f'"{{" {ws} ( {member} ( "," {ws} {member} )* )? {ws} "}}"'


def _count(schema: Schema, key: str) -> int | None:
    """A count that the schema names, if it is small enough to be kept to."""
    value = schema.get(key)
    proper = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _REPEATED
    return value if proper else None


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{max(least, most)}}}"


def until(rules: GbnfRules, ends: Mapping[str, str], *, line: bool = False) -> str:
    """The rule of free text in which none of `ends` stands but at its end, where what `ends` says follows it.

    It may end anywhere too if one of `ends` is "". With `line`, the ends begin at line starts, of which the first
    character is one. An automaton over all ends: each state is what has been read of some of them.
    """
    words = {("\n" + word if line else word): then for word, then in ends.items() if word}
    states = {"": rules.name()}
    for word in words:
        for length in range(1, len(word)):
            if word[:length] not in states:
                states[word[:length]] = rules.name()
    for read, name in states.items():
        ways = [ends[""]] if "" in ends else []
        known = dict.fromkeys(char for word in words for char in word)
        known = {char: _next(read + char, states, words) for char in known}
        ways += [f"{literal(char)} {target}".rstrip() for char, target in known.items() if target != states[""]]
        ways += [f"{_none_of([char for char, target in known.items() if target != states['']])} {states['']}"]
        rules.add(joined(ways), name)
    return states["\n"] if line and "\n" in states else states[""]


def _next(text: str, states: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Where reading goes on behind this text: with what follows an end, or in a state."""
    tails = [text[start:] for start in range(len(text) + 1)]
    return (
        next((words[tail] for tail in tails if tail in words), None)
        or states[next(tail for tail in tails if tail in states)]
    )


def _none_of(chars: Sequence[str]) -> str:
    escaped = "".join(rf"\x{ord(char):02X}" if char in '[]^-\\"' or char < " " else char for char in chars)
    return f"[^{escaped}]"
