"""Faults in a call's arguments, described so that a model can correct them.

Only the most specific violation is reported. Missing and unknown properties of an object are reported together, since
they often result from a single mistake. The part of the schema that was violated is included, shortened if necessary.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Final

from attrs import field, frozen

from statemachine.schema import SchemaWalker
from streamtool.core.json_value import Json
from streamtool.schemas.coercion import Place
from streamtool.schemas.parameters import literal
from streamtool.schemas.violations import SchemaViolation, most_specific, sort_key

SCHEMA: Final = 1_500
"""Maximum length of the part of the schema, in characters."""
ARGUMENTS: Final = 2_000
"""Maximum length of the model's own arguments, in characters."""
PLACE: Final = 200
VALUE: Final = 80
"""Maximum length of a value or a name, in characters."""
NAMES: Final = 8
OPTIONS: Final = 20
"""Maximum number of options to list."""
KNOWN: Final = 200
"""Maximum number of names to search for a similar one."""

_plain = re.compile(r"[\w$-]+\Z").match
_LIMITS: Mapping[str, str] = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} properties",
    "maxProperties": "must have at most {} properties",
    "pattern": "must match the pattern {}",
    "contains": "must have an item of this form: {}",
    "propertyNames": "has a property whose name is not of this form: {}",
    "not": "must not be of this form: {}",
    "uniqueItems": "must not have the same item twice",
    "additionalItems": "has too many items",
    "unevaluatedItems": "has items that are not allowed",
    "falseSchema": "is not allowed",
}
_KINDS: Mapping[str, str] = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
}
_LEFT_OUT = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "examples"})
_ANNOTATIONS = frozenset({"title", "description", "default"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})


class Missing(Enum):
    """Marker for an absent value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@frozen
class InvalidArguments:
    """A fault in the arguments of one call."""

    place: str
    """The path of the value in the arguments (`options.depth`, `items[2]`); empty for the top-level value."""
    message: str
    """A sentence that describes the fault."""
    schema: Json = field(factory=dict)
    """The part of the tool's schema that was violated, shortened."""
    value: Json = field(default=MISSING, repr=False)
    """The value at this path, or `MISSING`."""
    arguments: str = field(default="", repr=False)
    """The model's own arguments, shortened."""

    @property
    def sentence(self) -> str:
        """The text of the correction for the model."""
        text = f"The arguments of the call do not match the tool's schema. {self.message}"
        if self.schema not in ({}, True):
            text += f" That part of the schema is: {json.dumps(self.schema, ensure_ascii=False, separators=(',', ':'))}"
        return f"{text}\nThe arguments were: {self.arguments}"


# ---- faults


def select_fault(problems: list[SchemaViolation], schema: Json, arguments: str, value: Json) -> InvalidArguments | None:
    """Return the fault to report, or None if no violation is certain."""
    found = [leaf for one in problems if one.certain for leaf in most_specific(one)]
    if not found:
        return None
    one = min(found, key=sort_key)
    related = [other for other in found if other.names and other.place == one.place] if one.names else [one]
    node = failed_part(schema, one)
    here = value_at(value, one.place)
    message = _about_names(one.place, related, schema) if one.names else _message(one, node, here)
    if one.keyword == "required":
        node = _missing_part(node, [name for other in related if other.keyword == "required" for name in other.names])
    return InvalidArguments(format_place(one.place), message, shrink(node, schema), here, shorten(arguments, ARGUMENTS))


def unknown_fault(schema: Json, arguments: str, value: Json) -> InvalidArguments:
    """Return the fault for arguments that are known to be invalid although no violation is known."""
    return InvalidArguments("", "They do not validate.", shrink(schema, schema), value, shorten(arguments, ARGUMENTS))


def decoding_fault(arguments: str) -> InvalidArguments | None:
    """Return the fault for arguments that could not be decoded, or None if they are a JSON object nevertheless."""
    try:
        value = json.loads(arguments, parse_int=str, parse_float=str, parse_constant=_reject_constant)
    except RecursionError:
        return None
    except ValueError as error:
        return InvalidArguments("", f"They are not valid JSON: {error}.", arguments=shorten(arguments, ARGUMENTS))
    return None if isinstance(value, dict) else not_object_fault(arguments, value)


def not_object_fault(arguments: str, value: Json) -> InvalidArguments:
    """Return the fault for arguments that are JSON but not an object."""
    message = f"They must be one JSON object, not {_describe(value)}."
    return InvalidArguments("", message, {"type": "object"}, value, shorten(arguments, ARGUMENTS))


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is no number")


def value_at(value: Json, place: Place) -> Json:
    """Return the value at a path, or `MISSING`."""
    for step in place:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def failed_part(schema: Json, one: SchemaViolation) -> Json:
    """Return the part of the schema that was violated."""
    last = len(one.path) - {"falseSchema": 0, "propertyNames": 2}.get(one.keyword, 1)
    found = value_at(schema, one.path[: max(0, last)])
    return {} if found is MISSING else found


# ---- wording


def _message(one: SchemaViolation, node: Json, value: Json) -> str:
    limit = node.get(one.keyword) if isinstance(node, Mapping) else None
    subject = _subject(one.place)
    if one.branches or one.keyword in ("anyOf", "oneOf"):
        return f"{subject} {_alternatives(one, value)}."
    if one.keyword == "type":
        return f"{subject} must be {_join_words(_names_of(one.types), 'or')}, not {_describe(value)}."
    if one.keyword == "enum" and isinstance(limit, list):
        return f"{subject} must be one of {_values(limit)}, not {_describe(value)}."
    if one.keyword == "const":
        return f"{subject} must be {_bounded(limit)}, not {_describe(value)}."
    if one.keyword in _LIMITS:
        return f"{subject} {_LIMITS[one.keyword].format(_bounded(limit))}."
    return f"{subject} does not satisfy `{one.keyword}`."


def _alternatives(one: SchemaViolation, value: Json) -> str:
    if not one.branches:
        return "fits more than one of the alternatives, and must fit exactly one"
    types = frozenset[str]()
    for inner in (inner for branch in one.branches for inner in branch):
        if inner.place != one.place or inner.keyword != "type":
            return "fits none of the alternatives"
        types |= inner.types
    return f"must be {_join_words(_names_of(types), 'or')}, not {_describe(value)}"


def _about_names(place: Place, problems: list[SchemaViolation], schema: Json) -> str:
    """Return a sentence about the missing and the unknown properties of one object."""
    missing = [name for one in problems if one.keyword == "required" for name in one.names]
    clauses = []
    if missing:
        word = "property" if len(set(missing)) == 1 else "properties"
        clauses.append(f"lacks the required {word} {_join_words(_quote(missing), 'and')}")
    for one in problems:
        if one.keyword != "required":
            node = failed_part(schema, one)
            known = list(node.get("properties") or ())[:KNOWN] if isinstance(node, Mapping) else []
            clauses.append(f"must not have {_join_words(_quote(one.names), 'or')}{_nearest(one.names, known)}")
    return f"{_subject(place)} {'; it '.join(clauses)}."


def _nearest(names: Iterable[str], known: list[str]) -> str:
    lower = {name.lower(): name for name in known}
    near: dict[str, None] = {}
    for name in list(names)[:NAMES]:
        for found in difflib.get_close_matches(name[:VALUE].lower(), lower, n=1):
            near[lower[found]] = None
    if near:
        return f" (its nearest is {_join_words(_quote(near), 'or')})"
    return f" (it may have {_join_words(_quote(known, OPTIONS), 'and')})" if known else ""


def _missing_part(node: Json, names: list[str]) -> Json:
    """Return the part of the schema that describes the missing properties."""
    known = node.get("properties") if isinstance(node, Mapping) else None
    if not isinstance(known, Mapping):
        return node
    return {"type": "object", "properties": {name: known[name] for name in names if name in known}, "required": names}


def format_place(place: Place) -> str:
    """Return the path as shown in messages: `options.depth`, `items[2]["a b"]`."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _plain(step[:PLACE]):
            text += f".{step[:PLACE]}" if text else step[:PLACE]
        else:
            text += f"[{literal(step[:PLACE])}]"
    return shorten(text, PLACE)


def _subject(place: Place) -> str:
    return f"`{format_place(place)}`" if place else "The object"


def _names_of(types: frozenset[str]) -> list[str]:
    wanted = types - {"integer"} if "number" in types else types
    return [words for name, words in _KINDS.items() if name in wanted]


def _describe(value: Json) -> str:
    match value:
        case Missing():
            return "missing"
        case str():
            return f"the string {_bounded(value)}"
        case bool() | None:
            return literal(value)
        case int() | float():
            return f"the number {_bounded(value)}"
        case list():
            return "an array"
        case _:
            return "an object"


def _bounded(value: Json) -> str:
    """Return the value as JSON, shortened."""
    if isinstance(value, str):
        return literal(shorten(value, VALUE))
    return shorten(literal(shrink(value, value) if isinstance(value, dict) else value), 4 * VALUE)


def _values(options: list[Json]) -> str:
    texts = [_bounded(option) for option in options[:OPTIONS]]
    return ", ".join([*texts, "…"] if len(options) > OPTIONS else texts)


def _quote(names: Iterable[str], most: int = NAMES) -> list[str]:
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return [literal(shorten(name, VALUE)) for name in names[:most]] + more


def _join_words(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def shorten(text: str, most: int) -> str:
    """Return the text or, if it is longer than `most`, its beginning and end with a mark in between."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]} … {text[-end:]}"


# ---- a part of a schema


def shrink(node: Json, root: Json) -> Json:
    """Return the schema, shortened until its JSON is small: annotations are removed first, then the deepest levels."""
    for depth in (4, 3, 2, 1, 0):
        for notes in (True, False):
            found = _Shrink(root, notes=notes).schema(node, depth)
            if len(literal(found)) <= SCHEMA:
                return found
    return {}


class _Shrink:
    """A converter that creates one shortened copy of a schema."""

    def __init__(self, root: Json, *, notes: bool) -> None:
        self._walker = SchemaWalker(root)
        self._notes = notes
        self._left = SCHEMA // 2  # each part adds more than two characters

    def schema(self, node: Json, depth: int) -> Json:
        """Return the subschema, with at most this many levels below it."""
        self._left -= 1
        if not isinstance(node, Mapping) or self._left < 0:
            return node if isinstance(node, bool) else {}
        if "$ref" in node:
            node = self._walker.resolve(node) or node
        words = self._some(node).items()
        return {key: inner for key, value in words if (inner := self._word(key, value, depth)) is not MISSING}

    def _some(self, found: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return as many of the entries as the limit still allows."""
        most = max(self._left, 0)
        self._left -= len(found)
        return found if len(found) <= most else dict(islice(found.items(), most))

    def _word(self, key: str, value: Json, depth: int) -> Json:
        """Return the value of a keyword, shortened, or `MISSING` if it is omitted."""
        if key in _LEFT_OUT or (key in _ANNOTATIONS and not self._notes) or self._left < 0:
            return MISSING
        if key in _MAPS and isinstance(value, Mapping):
            parts = self._some(value).items() if depth else ()
            return {name: self.schema(inner, depth - 1) for name, inner in parts} if depth else MISSING
        if isinstance(value, Mapping):
            return self.schema(value, depth - 1) if depth else MISSING
        if isinstance(value, list):
            some = value[: 4 * OPTIONS]
            if not depth and any(isinstance(inner, Mapping) for inner in some):
                return MISSING
            cut = [self.schema(x, depth - 1) if isinstance(x, Mapping) else x for x in some]
            return [*cut, "…"] if len(value) > len(cut) else cut
        return shorten(value, 4 * VALUE) if isinstance(value, str) else value
