"""A tool's parameters in the part of JSON Schema that every engine takes and honours.

    {"properties": {"a": {"type": "string", "nullable": true}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    ⇒  {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "additionalProperties": false}

Engines refuse a schema for a keyword that they do not know (llguidance, OpenAI), or pass over all that stands beside
one that they do know (xgrammar, beside `anyOf`). So a constraint is made of few keywords, each part of one kind: a
reference, alternatives (`anyOf`), values (`enum`), or types with what these types have. The rest is laid in (`allOf`,
alternatives beside `properties`), rewritten (`const`, `oneOf`, `nullable`, tuples) or left out, so a constraint may
allow more than the schema, and the form never breaks. Beside named members there are no others, unless the schema says
so.

References lead to `$defs`, and none begins with itself: where nothing stands between a reference and its own target,
any value does. A schema comes from the caller, so depth and parts are bounded; one beyond them is any object.

Sources: what vLLM and SGLang refuse before they ask xgrammar (`has_xgrammar_unsupported_json_features`), the documents
of llguidance and llama.cpp on JSON Schema, and `tests/test_constraints_engines.py`, which asks the engines.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from statemachine.schema import ANY, SchemaWalker, kinds
from streamtool.conversation import Json, Tool
from streamtool.schema import Schema, literal

OBJECT: Final[Mapping[str, Json]] = {"type": "object"}
CUSTOM: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The arguments of a tool that takes raw text."""
NOTHING: Final[Mapping[str, Json]] = {"type": "object", "properties": {}, "additionalProperties": False}
DEPTH: Final = 48
"""Levels of a schema; what is deeper is any value."""
NODES: Final = 2000
"""Parts of a schema, references once."""
_VALUES: Final = 32
"""Values of an `enum` that count as one part."""
_MOST: Final = 1000
"""The largest count that is sent: engines write repetitions out."""
_LARGEST: Final = 2**53
_LONGEST: Final = 500
"""Characters of a pattern."""
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "$defs", "definitions"}
)
"""What asserts nothing, so that a reference beside it stays one."""
_PARTS: Final = frozenset(("anyOf", "oneOf", "allOf"))
_FORMATS: Final = frozenset(("date", "time", "date-time", "uuid"))
"""Those that every engine knows."""
_ODD_PATTERN: Final = re.compile(
    r"\(\?(?!:)|\\[^dwsDWSnrtfv\W]|[*+?}][*+?]|\{[^}]*\d{4}|[^\x20-\x7e]|^.(?:[^\\\[]|\\.|\[(?:[^\\\]]|\\.)*\])*?[$^]."
)
"""What not every engine reads: groups that look around or capture by name, escapes of one dialect, lazy repetitions,
long ones, anchors inside."""


def arguments_schema(tool: Tool, *, flat: bool = False) -> Mapping[str, Json]:
    """Portable JSON Schema of a tool's arguments: an object, whatever the client wrote.

    `flat` makes one object of alternatives: all of their members, and required are those that each alternative demands.
    """
    definitions: dict[str, Json] = {}
    schema = arguments_part(tool, definitions, flat=flat)
    return {**schema, "$defs": definitions} if definitions else schema


def arguments_part(tool: Tool, definitions: dict[str, Json], *, flat: bool = False) -> Mapping[str, Json]:
    """The same as part of a larger schema, to whose `$defs` the definitions are added."""
    if tool.custom:
        return CUSTOM
    if tool.parameters is None:
        return NOTHING
    if tool.parameters.get("type", "object") != "object":
        return OBJECT
    portable = _Portable({"type": "object", **tool.parameters}, len(definitions), flat=flat)
    try:
        schema = portable.arguments()
    except _TooLargeError:
        return OBJECT
    definitions |= portable.definitions
    return schema


def plain(tool: Tool) -> Tool:
    """The tool with any object for its arguments."""
    return tool if tool.custom or tool.parameters is None else evolve(tool, parameters=OBJECT)


class _TooLargeError(Exception):
    """The schema has too many parts."""


class _Portable:
    """Rewrites one schema."""

    __slots__ = ("_at", "_begins", "_flat", "_known", "_left", "_root", "_taken", "_walker", "definitions")

    def __init__(self, root: Schema, taken: int, *, flat: bool) -> None:
        self._root = root
        self._walker = SchemaWalker(root, NODES)
        self._left = NODES
        self._flat = flat
        self._taken = taken
        self._known: dict[str, str] = {}
        self._at: str | None = None
        """The reference to whose target this place belongs, if nothing has been read since it began."""
        self._begins: dict[str, set[str]] = {}
        """References by the references that the targets begin with."""
        self.definitions: dict[str, Json] = {}

    def arguments(self) -> Mapping[str, Json]:
        """The whole of it."""
        return self._found(self._root, 0) if self._walker.types(self._root) == {"object"} else OBJECT

    def _value(self, schema: Any, depth: int) -> dict[str, Json]:
        """A value that the schema describes; {} is any value."""
        self._counted(1)
        if depth > DEPTH or not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and schema.keys() <= _ANNOTATIONS | {"$ref"}:
            return self._reference(reference, depth)
        return self._found(schema, depth)

    def _counted(self, parts: int) -> None:
        """So many parts are read, or written."""
        self._left -= parts
        if self._left < 0 or self._walker.exhausted:
            raise _TooLargeError

    def _reference(self, reference: str, depth: int) -> dict[str, Json]:
        if self._at is not None:
            if self._reaches(reference, self._at):
                return {}
            self._begins.setdefault(self._at, set()).add(reference)
        key = self._known.get(reference)
        if key is None:
            key = self._known[reference] = f"part_{self._taken + len(self._known)}"
            before, self._at = self._at, reference
            self.definitions[key] = self._found({"$ref": reference}, depth)
            self._at = before
        return {"$ref": f"#/$defs/{key}"}

    def _reaches(self, start: str, end: str) -> bool:
        """Whether the target of one reference may begin with that of another one."""
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

    def _found(self, schema: Schema, depth: int) -> dict[str, Json]:
        found = self._walker.merged(schema)
        types = self._walker.types(schema)
        values = [found["const"]] if "const" in found else found.get("enum")
        listed = values if isinstance(values, list | tuple) else ()
        self._counted(len(listed) // _VALUES)
        if fitting := [value for value in listed if types.intersection(kinds(value))]:
            return {**_typed(types), "enum": fitting}
        if _options(found) and not (found.get("properties") or (self._flat and not depth)):
            ways = self._ways(found, types, depth)
            if ways and all("enum" in way for way in ways):
                return {**_typed(types), "enum": [value for way in ways for value in way["enum"]]}
            if ways and {} not in ways:
                return ways[0] if len(ways) == 1 else {"anyOf": ways}
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

    def _ways(self, schema: Schema, types: frozenset[str], depth: int) -> list[dict[str, Json]]:
        """The alternatives, each with what stands beside them."""
        beside = {key: value for key, value in schema.items() if key not in _ANNOTATIONS | _PARTS}
        ways: dict[str, dict[str, Json]] = {}
        for option in _options(schema):
            own = self._walker.types(option)
            if not own & types:
                continue
            alone = beside.keys() <= {"type", "nullable"} and own <= types
            way = self._value(option if alone else {**beside, "allOf": [option]}, depth + 1)
            for one in way.get("anyOf", [way]):
                ways.setdefault(literal(one), one)
        return list(ways.values())

    def _object(self, schema: Schema, depth: int) -> dict[str, Json]:
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        members, required = self._members(schema, closed=others is False)
        made: dict[str, Json] = {}
        properties = {key: self._value(value, depth + 1) for key, value in members.items() if value is not False}
        undeclared = sorted(required - members.keys())
        self._counted(len(undeclared))
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
        """The members of an object, those of its alternatives included, and which it must have."""
        declared = schema.get("properties")
        own: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
        required = self._walker.required(schema)
        options = [option for option in _options(schema) if "object" in self._walker.types(option)]
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


def _options(schema: Schema) -> Sequence[Any]:
    """The alternatives of a schema."""
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list | tuple) and options:
            return options
    return ()


def _typed(types: frozenset[str]) -> dict[str, Json]:
    """The keyword `type`; {} if every type is allowed."""
    if types == ANY:
        return {}
    names = _names(types)
    return {"type": names[0] if len(names) == 1 else names}


def _names(types: frozenset[str]) -> list[str]:
    return [name for name in _TYPES if name in types and not (name == "integer" and "number" in types)]


def _string(schema: Schema) -> dict[str, Json]:
    """A pattern, a format or lengths: xgrammar does not keep to lengths beside the others."""
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str) and (portable := _pattern(pattern)):
        return {"pattern": portable}
    if isinstance(form, str) and form in _FORMATS:
        return {"format": form}
    return _counts(schema, "minLength", "maxLength")


def _pattern(pattern: str) -> str:
    """The pattern, anchored at both ends: engines differ in what they take one for that is not. "": it is not plain."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[begins : len(pattern) - ends]
    if len(pattern) > _LONGEST or _ODD_PATTERN.search(body):
        return ""
    try:
        re.compile(body)
    except (re.error, OverflowError, RecursionError):
        return ""
    body = f"({body})" if "|" in body else body
    return f"^{'' if begins else '.*'}{body}{'' if ends else '.*'}$"


def _number(schema: Schema, *, whole: bool) -> dict[str, Json]:
    """The range of a number; that of a whole one includes its bounds."""
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
    """The bounds that two keywords set, and whether they are themselves beyond; draft 4 says so with a boolean."""
    for key in (at, beyond):
        value = schema.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
            yield value, key == beyond or schema.get(beyond) is True


def _counts(schema: Schema, least: str, most: str) -> dict[str, Json]:
    """Two counts, as far as they are small enough to be sent and do not contradict each other."""
    low, high = _count(schema, least), _count(schema, most)
    if low is not None and high is not None and low > high:
        high = None
    return {key: value for key, value in ((least, low), (most, high)) if value is not None}


def _count(schema: Schema, key: str) -> int | None:
    value = schema.get(key)
    proper = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return value if proper else None
