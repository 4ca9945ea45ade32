r"""Portable JSON Schema as the rules of a grammar in GBNF, the grammar notation of llama.cpp.

    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    ⇒  "{" ws "\"x\":" ws integer ws "}"

Members are written in the order of the schema; optional members may be omitted. An object with named members may not
have any others. Limits on objects, arrays and strings are enforced as far as a grammar can express them; `pattern`,
`format` and numeric ranges cannot be expressed.

A schema comes from the caller, so its depth, the number of its nodes and the total size of the rules are bounded. A
schema that exceeds a bound raises `GrammarTooLargeError`.

Source: the GBNF guide in llama.cpp's `grammars/README.md`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from statemachine.schema import SchemaWalker, json_types_of
from streamtool.schemas.parameters import Schema

MAX_DEPTH: Final = 48
"""Maximum depth of a schema."""
MAX_NODES: Final = 2000
"""Maximum number of schemas in all tools together; each reference counts once."""
MAX_SIZE: Final = 200_000
"""Maximum length of a grammar."""
_MAX_COUNT: Final = 100
"""Largest count that is enforced, since servers expand repetitions."""

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
"""Rules for JSON itself, and for the name of a parameter."""
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "char": ("hex",),
    "string": ("char",),
    "number": ("integer",),
    "array": ("ws", "value"),
    "object": ("ws", "string", "value"),
    "value": ("object", "array", "string", "number", "boolean", "null"),
}
EMPTY: Final = '""'
"""A grammar element that matches the empty string."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


class GrammarTooLargeError(Exception):
    """The schema does not fit into a grammar."""


def literal(text: str) -> str:
    """Return a grammar element that matches exactly this text."""
    escaped = text.translate(_ESCAPES)
    return '"' + "".join(f"\\x{ord(char):02X}" if char < " " or char == "\x7f" else char for char in escaped) + '"'


def alternation(ways: Iterable[str]) -> str:
    """Return the alternation of these elements, without duplicates."""
    return " | ".join(dict.fromkeys(ways))


class GbnfRules:
    """The rules of one grammar, each with a unique name."""

    __slots__ = ("_left", "_made", "_size", "texts")

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._size = 0
        self._left = MAX_NODES
        self.texts: dict[tuple[str, str], str] = {}
        """Rules for text that all tools share: the end of the text and what it must not contain → name."""

    def add(self, body: str, name: str = "") -> str:
        """Add a rule and return its name. A rule with the same name is replaced; if no name is given, one is
        generated.
        """
        name = name or f"r{len(self._made)}"
        self._size += len(body) - len(self._made.get(name, ""))
        if self._size > MAX_SIZE:
            raise GrammarTooLargeError
        self._made[name] = body
        return name

    def reserve(self) -> str:
        """Reserve a name for a rule that is added later."""
        return self.add("")

    def json_rule(self, name: str) -> str:
        """Return the name of one of the rules for JSON itself, after adding it and the rules that it needs."""
        if name not in self._made:
            self.add(_PLAIN[name], name)
            for other in _NEEDS.get(name, ()):
                self.json_rule(other)
        return name

    def count_schema(self) -> None:
        """Count one more schema. Raises GrammarTooLargeError if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise GrammarTooLargeError

    def text(self) -> str:
        """Return the text of the grammar; one of the rules must be `root`."""
        made = {"root": "", **self._made}
        return "".join(f"{name} ::= {body}\n" for name, body in made.items())


class SchemaConverter:
    """A converter from one tool's portable schema to rules."""

    __slots__ = ("_known", "_rules", "_walker")

    def __init__(self, rules: GbnfRules, root: Schema) -> None:
        self._rules = rules
        self._walker = SchemaWalker(root, MAX_NODES)
        self._known: dict[str, str] = {}

    def value(self, schema: Schema, depth: int = 0) -> str:
        """Return a grammar element, a name or a group, that matches the values that the schema allows."""
        self._rules.count_schema()
        if depth > MAX_DEPTH:
            raise GrammarTooLargeError
        reference = schema.get("$ref")
        if reference is None:
            return self._element(schema, depth)
        name = self._known.get(reference)
        # The name is reserved before the target is converted, so that a schema that contains itself becomes a recursive
        # rule.
        if name is None:
            name = self._known[reference] = self._rules.reserve()
            self._rules.add(self._element(self.resolve(schema), depth), name)
        return name

    def resolve(self, schema: Schema) -> Schema:
        """Return the schema with its reference resolved."""
        return self._walker.resolve(schema)

    def types(self, schema: Schema) -> frozenset[str]:
        """Return the JSON types that the schema allows."""
        return self._walker.types(schema)

    def narrow(self, schema: Schema, kind: str) -> Schema:
        """Return the part of the schema that applies to values of the type `kind`."""
        found = self.resolve(schema)
        if "enum" in found:
            return {"enum": [value for value in found["enum"] if kind in json_types_of(value)]}
        if "anyOf" in found:
            return {"anyOf": [self.narrow(one, kind) for one in found["anyOf"] if kind in self.types(one)]}
        return {**found, "type": kind}

    def _element(self, schema: Schema, depth: int) -> str:
        if "enum" in schema:
            ways = [literal(json.dumps(value, ensure_ascii=False)) for value in schema["enum"]]
        elif "anyOf" in schema:
            ways = [self.value(option, depth + 1) for option in schema["anyOf"]]
        else:
            names = schema.get("type", "value")
            ways = [self._kind(kind, schema, depth) for kind in ([names] if isinstance(names, str) else names)]
        return f"( {alternation(ways)} )" if len(ways) > 1 or "enum" in schema else ways[0]

    def _kind(self, kind: str, schema: Schema, depth: int) -> str:
        match kind:
            case "object":
                return self._rules.add(self._object(schema, depth))
            case "array":
                return self._rules.add(self._array(schema, depth))
            case "string":
                return self._string(schema)
        return self._rules.json_rule(kind)

    def _string(self, schema: Schema) -> str:
        least, most = _count(schema, "minLength"), _count(schema, "maxLength")
        if not least and most is None:
            return self._rules.json_rule("string")
        char = self._rules.json_rule("char")  # a separate rule, since servers multiply nested repetitions
        return self._rules.add(rf'"\"" {char}{_repetition(least or 0, most)} "\""')

    def _array(self, schema: Schema, depth: int) -> str:
        ws = self._rules.json_rule("ws")
        if "prefixItems" in schema:
            items = f' "," {ws} '.join(self.value(item, depth + 1) for item in schema["prefixItems"])
            return f'"[" {ws} {items} {ws} "]"'
        least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most == 0:
            return f'"[" {ws} "]"'
        item = self.value(schema.get("items", {}), depth + 1)
        rest = _repetition(max(least - 1, 0), None if most is None else most - 1)
        items = f'{item} ( "," {ws} {item} ){rest}'
        return f'"[" {ws} {items if least else f"( {items} )?"} {ws} "]"'

    def _object(self, schema: Schema, depth: int) -> str:
        ws = self._rules.json_rule("ws")
        properties, required = schema.get("properties"), frozenset(schema.get("required", ()))
        if not properties:
            return self._map(schema, depth)
        members = [
            (f"{literal(json.dumps(str(key), ensure_ascii=False) + ':')} {ws} {self.value(value, depth + 1)}", key)
            for key, value in properties.items()
        ]
        inside = in_order(self._rules, [(member, key in required) for member, key in members], f'"," {ws}')
        return f'"{{" {ws} {inside} {ws} "}}"'

    def _map(self, schema: Schema, depth: int) -> str:
        """Return a rule for an object without named members."""
        ws = self._rules.json_rule("ws")
        others = schema.get("additionalProperties", True)
        if others is False:
            return f'"{{" {ws} "}}"'
        if others is True:
            return self._rules.json_rule("object")
        member = f'{self._rules.json_rule("string")} ":" {ws} {self.value(others, depth + 1)}'
        return f'"{{" {ws} ( {member} ( "," {ws} {member} )* )? {ws} "}}"'


def schema_grammar(schema: Schema) -> str | None:
    """Return the grammar of the values that a portable schema allows, or None if it is too large."""
    rules = GbnfRules()
    try:
        rules.add(SchemaConverter(rules, schema).value(schema), "root")
    except GrammarTooLargeError:
        return None
    return rules.text()


def _count(schema: Schema, key: str) -> int | None:
    """Return a count from the schema, or None if it is missing or too large to be enforced."""
    value: int | None = schema.get(key)
    return value if value is not None and value <= _MAX_COUNT else None


def _repetition(least: int, most: int | None) -> str:
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{max(least, most)}}}"


def in_order(rules: GbnfRules, members: Sequence[tuple[str, bool]], comma: str) -> str:
    """Return a grammar element for members in this order. Each is an element and whether it is required; the others may
    be omitted.
    """
    # Commas depend on which members are written. The rules are built from the last member to the first:
    #
    #     start(i) = member(i) rest(i+1)              ; member i is the first one written
    #     rest(i)  = comma member(i) rest(i+1)        ; required member
    #     rest(i)  = [ comma member(i) ] rest(i+1)    ; optional member
    #
    # `ways` collects the starts. A required member removes the later ones, since no later member can then be the
    # first. The number of rules is linear, although the number of subsets of optional members is exponential.
    ways: list[str] = []
    rest = ""
    for member, required in reversed(members):
        if required:
            ways = []
        ways.append(f"{member} {rest}".rstrip())
        follows = f"{comma} {member}" if required else f"( {comma} {member} )?"
        rest = rules.add(f"{follows} {rest}".rstrip())
    optional = "" if any(required for _, required in members) else "?"
    return f"( {alternation(reversed(ways))} ){optional}"


def text_until(rules: GbnfRules, ends: Mapping[str, str], *, line: bool = False, never: Iterable[str] = ()) -> str:
    """Add rules for free text that contains none of the strings in `ends` except at its end. Return the first rule's
    name.

    `ends` maps each string to the grammar element that follows it. If "" is one of the strings, the text may stop
    anywhere. If `line` is true, the strings are recognized only at the start of a line, and the text itself begins at
    the start of a line. The strings in `never` must not occur at all.
    """
    # GBNF has no negation, so the rules form an automaton. A state is the beginning of a word that has just been read:
    #
    #     state = [ ends[""] ] / char ends[word] / char other-state / any-other-char start
    #
    # Characters that lead back to the start are left to the last alternative. A character that completes a word in
    # `never` has no alternative and is excluded from the last one, so the word is rejected.
    words: dict[str, str | None] = {word: None for word in never if word}
    words |= {("\n" + word if line else word): then for word, then in ends.items() if word}
    automaton = _automaton(tuple(words))
    states = {read: rules.reserve() for read in automaton}
    for read, name in states.items():
        ways = [ends[""]] if "" in ends else []
        known = {char: words[to] if to in words else states[to] for char, to in automaton[read].items()}
        ways += [f"{literal(char)} {then}".rstrip() for char, then in known.items() if then not in (states[""], None)]
        ways += [f"{_negated_class([char for char, then in known.items() if then != states['']])} {states['']}"]
        rules.add(alternation(ways), name)
    return states["\n"] if line and "\n" in states else states[""]


@lru_cache(maxsize=64)
def _automaton(words: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Return each state's transitions, by character: to a completed word or to another state.

    This is an Aho-Corasick automaton with all transitions spelled out, because a grammar cannot follow failure links.
    """
    states = dict.fromkeys(["", *(word[:length] for word in words for length in range(1, len(word)))])
    chars = dict.fromkeys("".join(words))
    return {read: {char: _next(read + char, states, words) for char in chars} for read in states}


def _next(text: str, states: Mapping[str, None], words: tuple[str, ...]) -> str:
    """Return the longest suffix of the text that is a word or, failing that, the longest that is a state."""
    # Words take precedence: a word that ends inside a longer one must count, because the text may not contain it.
    tails = [text[start:] for start in range(len(text) + 1)]
    return next((tail for tail in tails if tail in words), None) or next(tail for tail in tails if tail in states)


def _negated_class(chars: Sequence[str]) -> str:
    r"""Return a character class that matches any other character. Escapes are last, because some servers read more than
    two digits after `\x`.
    """
    escaped = [rf"\x{ord(char):02X}" if char in '[]^-\\"' or char < " " else char for char in chars]
    return f"[^{''.join(sorted(escaped, key=len))}]"
