"""A tool's parameters in the subset of JSON Schema that every engine accepts and enforces.

    {"properties": {"a": {"type": "string", "nullable": true}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    ⇒  {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "additionalProperties": false}

Engines reject a schema that contains an unknown keyword (llguidance, OpenAI), or ignore all keywords alongside a known
one (xgrammar, alongside `anyOf`). A constraint therefore uses few keywords, and each part is of a single kind: a
reference, alternatives (`anyOf`), values (`enum`), or types with the keywords for these types. All other keywords are
merged (`allOf`, alternatives alongside `properties`), rewritten (`const`, `oneOf`, `nullable`, tuples) or omitted. As a
result, a constraint may allow more than the schema does, but engines always accept it. Objects with named members may
not have any others, unless the schema allows them.

References point to `$defs`, and none of them leads back to itself without an object or array in between: a reference
that would do so is replaced by a schema that allows any value. A schema comes from the caller, so its depth and the
number of its parts are bounded; a schema with too many parts is replaced by one that allows any object.

Sources: the checks that vLLM and SGLang make before they call xgrammar (`has_xgrammar_unsupported_json_features`), the
JSON Schema documentation of llguidance and llama.cpp, and `tests/forcing/test_constraints_engines.py`, which runs the
engines.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from statemachine.schema import ANY, SchemaWalker, json_types_of
from streamtool.core.conversation import Tool
from streamtool.core.json_value import Json
from streamtool.schemas.parameters import Schema, literal

OBJECT: Final[Mapping[str, Json]] = {"type": "object"}
CUSTOM: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The arguments of a tool that takes raw text."""
NOTHING: Final[Mapping[str, Json]] = {"type": "object", "properties": {}, "additionalProperties": False}
MAX_DEPTH: Final = 48
"""Maximum depth of a schema; deeper parts allow any value."""
MAX_NODES: Final = 2000
"""Maximum number of parts in a schema; a reference counts once."""
_VALUES: Final = 32
"""Number of `enum` values that count as one part."""
_MAX_COUNT: Final = 1000
"""Largest count that a constraint contains, since engines expand repetitions."""
_LARGEST: Final = 2**53
_MAX_PATTERN: Final = 500
"""Maximum length of a pattern."""
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "$defs", "definitions"}
)
"""Keywords that assert nothing; a reference alongside them is treated as a plain reference."""
_PARTS: Final = frozenset(("anyOf", "oneOf", "allOf"))
_FORMATS: Final = frozenset(("date", "time", "date-time", "uuid"))
"""Formats that every engine supports."""
_ODD_PATTERN: Final = re.compile(
    r"\(\?(?!:)|\\[^dwsDWSnrtfv\W]|[*+?}][*+?]|\{[^}]*\d{4}|[^\x20-\x7e]|^.(?:[^\\\[]|\\.|\[(?:[^\\\]]|\\.)*\])*?[$^]."
)
"""Matches syntax that at least one engine does not support: lookaround and named groups, escapes that exist only in one
dialect, lazy quantifiers, large counts, inner anchors.
"""


def arguments_schema(tool: Tool, *, flat: bool = False) -> Mapping[str, Json]:
    """Return the portable JSON Schema of a tool's arguments, which is an object regardless of the client's schema.

    `flat` merges alternatives into one object that contains the members of all alternatives, and that requires only the
    members that every alternative requires.
    """
    definitions: dict[str, Json] = {}
    schema = arguments_part(tool, definitions, flat=flat)
    return {**schema, "$defs": definitions} if definitions else schema


def arguments_part(tool: Tool, definitions: dict[str, Json], *, flat: bool = False) -> Mapping[str, Json]:
    """Return the schema of a tool's arguments as part of a larger schema, and add the schemas it references to the
    larger schema's `definitions`.
    """
    if tool.custom:
        return CUSTOM
    if tool.parameters is None:
        return NOTHING
    if tool.parameters.get("type", "object") != "object":
        return OBJECT
    portable = _PortableSchema({"type": "object", **tool.parameters}, len(definitions), flat=flat)
    try:
        schema = portable.arguments()
    except _TooLargeError:
        return OBJECT
    definitions |= portable.definitions
    return schema


def without_schema(tool: Tool) -> Tool:
    """Return the tool with its schema removed, so that any object is accepted as its arguments."""
    return tool if tool.custom or tool.parameters is None else evolve(tool, parameters=OBJECT)


class _TooLargeError(Exception):
    """The schema has too many parts."""


class _PortableSchema:
    """A converter from one schema to its portable form."""

    __slots__ = ("_at", "_begins", "_flat", "_known", "_left", "_root", "_taken", "_walker", "definitions")

    def __init__(self, root: Schema, taken: int, *, flat: bool) -> None:
        self._root = root
        self._walker = SchemaWalker(root, MAX_NODES)
        self._left = MAX_NODES
        self._flat = flat
        self._taken = taken
        self._known: dict[str, str] = {}
        self._at: str | None = None
        """The reference whose target is being read, as long as no object or array has been entered since."""
        self._begins: dict[str, set[str]] = {}
        """For each reference, the references that its target consists of or contains as an alternative."""
        self.definitions: dict[str, Json] = {}

    def arguments(self) -> Mapping[str, Json]:
        """Return the portable schema of the arguments; if the tool's schema does not describe an object, allow any
        object.
        """
        return self._part(self._root, 0) if self._walker.types(self._root) == {"object"} else OBJECT

    def _value(self, schema: Any, depth: int) -> dict[str, Json]:
        """Return the portable schema for a value; {} allows any value."""
        self._count_parts(1)
        if depth > MAX_DEPTH or not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and schema.keys() <= _ANNOTATIONS | {"$ref"}:
            return self._reference(reference, depth)
        return self._part(schema, depth)

    def _count_parts(self, parts: int) -> None:
        """Count parts that are read or written."""
        self._left -= parts
        if self._left < 0 or self._walker.exhausted:
            raise _TooLargeError

    def _reference(self, reference: str, depth: int) -> dict[str, Json]:
        # `a: {"$ref": b}` with `b: {"$ref": a}`, or with `b` as one of the alternatives in `a`, is left-recursive: a
        # grammar made from it never consumes anything. `_begins` is the graph of these immediate references. A
        # reference that would close a cycle in it is replaced by a schema for any value. Below an object or an array,
        # recursion is harmless, so `_part` clears `_at` there.
        if self._at is not None:
            if self._reaches(reference, self._at):
                return {}
            self._begins.setdefault(self._at, set()).add(reference)
        key = self._known.get(reference)
        if key is None:
            # The key is registered before the target is rewritten, so that recursion finds it and terminates.
            key = self._known[reference] = f"part_{self._taken + len(self._known)}"
            before, self._at = self._at, reference
            self.definitions[key] = self._part({"$ref": reference}, depth)
            self._at = before
        return {"$ref": f"#/$defs/{key}"}

    def _reaches(self, start: str, end: str) -> bool:
        """Return whether the target of the first reference leads to the second one without an object or array in
        between.
        """
        seen = {start}
        waiting = [start]
        while waiting:
            reference = waiting.pop()
            if reference == end:
                return True
            new = self._begins.get(reference, set()) - seen
            seen |= new
            waiting += new
        return False

    def _part(self, schema: Schema, depth: int) -> dict[str, Json]:
        found = self._walker.merged(schema)
        types = self._walker.types(schema)
        # Only one kind of part is created, the most specific one that applies. Values are exact, so `enum` precedes all
        # other keywords. Alternatives are used only without `properties`: an engine would ignore one of the two, so
        # `_object` merges the members of all alternatives instead.
        values = [found["const"]] if "const" in found else found.get("enum")
        listed = values if isinstance(values, list | tuple) else ()
        self._count_parts(len(listed) // _VALUES)
        if fitting := [value for value in listed if types.intersection(json_types_of(value))]:
            return {**_typed(types), "enum": fitting}
        if _alternatives_of(found) and not (found.get("properties") or (self._flat and not depth)):
            ways = self._alternatives(found, types, depth)
            # Alternatives that are all enums become one enum, which every engine enforces. An alternative that allows
            # any value makes the others pointless, so the plain type is used instead.
            if ways and all("enum" in way for way in ways):
                return {**_typed(types), "enum": [value for way in ways for value in way["enum"]]}
            if ways and {} not in ways:
                return ways[0] if len(ways) == 1 else {"anyOf": ways}
        # `items` without `type` allows any value that is not an array. That is almost never intended, and a model needs
        # the hint.
        if types == ANY and ("items" in found or "prefixItems" in found):
            types = frozenset(("array",))
        made = _typed(types)
        before, self._at = self._at, None
        for kind in _names(types) if made else ():
            made |= self._kind(kind, found, depth)
        self._at = before
        return made

    def _kind(self, kind: str, schema: Schema, depth: int) -> dict[str, Json]:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return _string(schema)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
        return {}

    def _alternatives(self, schema: Schema, types: frozenset[str], depth: int) -> list[dict[str, Json]]:
        """Return the alternatives, each merged with the keywords alongside `anyOf` or `oneOf`."""
        beside = {key: value for key, value in schema.items() if key not in _ANNOTATIONS | _PARTS}
        ways: dict[str, dict[str, Json]] = {}
        for option in _alternatives_of(schema):
            own = self._walker.types(option)
            if not own & types:
                continue
            alone = beside.keys() <= {"type", "nullable"} and own <= types
            way = self._value(option if alone else {**beside, "allOf": [option]}, depth + 1)
            # Nested alternatives are flattened and duplicates are removed: references and `allOf` produce many of both.
            for one in way.get("anyOf", [way]):
                ways.setdefault(literal(one), one)
        return list(ways.values())

    def _object(self, schema: Schema, depth: int) -> dict[str, Json]:
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        members, required = self._members(schema, closed=others is False)
        made: dict[str, Json] = {}
        properties = {key: self._value(value, depth + 1) for key, value in members.items() if value is not False}
        undeclared = sorted(required - members.keys())
        self._count_parts(len(undeclared))
        properties |= {key: {} for key in undeclared}
        if properties or isinstance(schema.get("properties"), Mapping) or others is False:
            made["properties"] = properties
        if required:
            made["required"] = [key for key in properties if key in required]
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping) and patterns:
            shapes = [*patterns.values(), *([others] if isinstance(others, Mapping) else [])]
            others = {} if others is True else {"anyOf": shapes}
        if isinstance(others, Mapping):
            made["additionalProperties"] = self._value(others, depth + 1) or True
        elif "properties" in made:
            made["additionalProperties"] = others is True
        return made

    def _members(self, schema: Schema, *, closed: bool) -> tuple[Mapping[str, Any], frozenset[str]]:
        """Return an object's members, including the ones in its alternatives, and the names of the required members."""
        declared = schema.get("properties")
        own: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
        required = self._walker.required(schema)
        options = [option for option in _alternatives_of(schema) if "object" in self._walker.types(option)]
        more: dict[str, list[Any]] = {}
        for option in options:
            members = self._walker.merged(option).get("properties")
            for key, value in members.items() if isinstance(members, Mapping) and not closed else ():
                if key not in own and value is not False:
                    more.setdefault(key, []).append(value)
        if options:
            required |= frozenset.intersection(*map(self._walker.required, options))
        extra = {key: values[0] if len(values) == 1 else {"anyOf": values} for key, values in more.items()}
        return {**own, **extra}, required

    def _array(self, schema: Schema, depth: int) -> dict[str, Json]:
        items = schema.get("items")
        first = schema.get("prefixItems", items)
        most = _count(schema, "maxItems")
        if isinstance(first, list | tuple) and first:
            parts = [self._value(item, depth + 1) for item in first[:most]]
            counts = {"minItems": len(parts), "maxItems": len(parts)}
            if all(part == parts[0] for part in parts):
                return {**({"items": parts[0]} if parts else {}), **counts}
            return {"prefixItems": parts, "items": False, **counts}
        if items is False:
            return {"maxItems": 0}
        made = {"items": self._value(items, depth + 1)} if isinstance(items, Mapping) else {}
        return {**made, **_counts(schema, "minItems", "maxItems")}


def _alternatives_of(schema: Schema) -> Sequence[Any]:
    """Return the alternatives of a schema."""
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list | tuple) and options:
            return options
    return ()


def _typed(types: frozenset[str]) -> dict[str, Json]:
    """Return the `type` keyword, or {} if every type is allowed."""
    if types == ANY:
        return {}
    names = _names(types)
    return {"type": names[0] if len(names) == 1 else names}


def _names(types: frozenset[str]) -> list[str]:
    return [name for name in _TYPES if name in types and not (name == "integer" and "number" in types)]


def _string(schema: Schema) -> dict[str, Json]:
    """Return a pattern, a format or lengths, but not several of these: xgrammar does not enforce lengths alongside the
    other two.
    """
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str) and (portable := _pattern(pattern)):
        return {"pattern": portable}
    if isinstance(form, str) and form in _FORMATS:
        return {"format": form}
    return _counts(schema, "minLength", "maxLength")


def _pattern(pattern: str) -> str:
    """Return the pattern anchored at both ends, since engines disagree about unanchored ones, or "" if it is not
    portable.
    """
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[begins : len(pattern) - ends]
    if len(pattern) > _MAX_PATTERN or _ODD_PATTERN.search(body):
        return ""
    try:
        re.compile(body)
    except (re.error, OverflowError, RecursionError):
        return ""
    body = f"({body})" if "|" in body else body
    return f"^{'' if begins else '.*'}{body}{'' if ends else '.*'}$"


def _number(schema: Schema, *, whole: bool) -> dict[str, Json]:
    """Return the keywords for the range of a number; the bounds of an integer are inclusive."""
    made: dict[str, float] = {}
    low = max(_bounds(schema, "minimum", "exclusiveMinimum"), default=None)
    high = min(_bounds(schema, "maximum", "exclusiveMaximum"), key=lambda bound: (bound[0], not bound[1]), default=None)
    if low is not None:
        value, strict = low
        if whole:
            value, strict = math.floor(value) + 1 if strict else math.ceil(value), False
        made["exclusiveMinimum" if strict else "minimum"] = value
    if high is not None:
        value, strict = high
        if whole:
            value, strict = math.ceil(value) - 1 if strict else math.floor(value), False
        made["exclusiveMaximum" if strict else "maximum"] = value
    least, *most = made.values() or (0,)
    return made if all(least <= value for value in most) else {}


def _bounds(schema: Schema, at: str, beyond: str) -> Iterator[tuple[float, bool]]:
    """Yield the bounds that two keywords set, and whether each is exclusive, which draft 4 indicates by a boolean."""
    for key in (at, beyond):
        value = schema.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
            yield value, key == beyond or schema.get(beyond) is True


def _counts(schema: Schema, least: str, most: str) -> dict[str, Json]:
    """Return the two counts as far as they are small enough to be enforced. If they contradict each other, omit the
    second one.
    """
    low, high = _count(schema, least), _count(schema, most)
    if low is not None and high is not None and low > high:
        high = None
    return {key: value for key, value in ((least, low), (most, high)) if value is not None}


def _count(schema: Schema, key: str) -> int | None:
    value = schema.get(key)
    proper = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    return value if proper else None
