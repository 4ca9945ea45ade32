"""What is wrong with a call's arguments, in words that a model can act on.

Of all violations the most specific one is told. Missing and unknown properties of one object are told together, since
they are often one mistake. Along with it goes the part of the schema that failed, shortened until it is small.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final

from attrs import field, frozen

from statemachine.schema import SchemaWalker
from streamtool.schema import literal
from streamtool.validation.coercion import Place
from streamtool.validation.violations import SchemaViolation, rank, specific

Json = Any  # a decoded JSON value

SCHEMA: Final = 1_500
"""Characters of the part of a schema."""
ARGUMENTS: Final = 2_000
"""Characters of the model's own arguments."""
PLACE: Final = 200
VALUE: Final = 80
"""Characters of a value or a name."""
NAMES: Final = 8
OPTIONS: Final = 20
"""Names and options that are listed."""
KNOWN: Final = 200
"""Names among which the nearest is looked for."""

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
    "string": "a string", "number": "a number", "integer": "an integer", "boolean": "true or false", "null": "null",
    "object": "an object", "array": "an array",
}  # fmt: skip
_LEFT_OUT = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "examples"})
_TOLD = frozenset({"title", "description", "default"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})


class Missing(Enum):
    """There is no value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@frozen
class InvalidArguments:
    """What is wrong with the arguments of one call."""

    place: str
    """Where in the arguments: `options.depth`, `items[2]`; empty for the whole."""
    message: str
    """One sentence: what is wrong."""
    schema: Json = field(factory=dict)
    """The part of the tool's schema that failed, shortened."""
    value: Json = field(default=MISSING, repr=False)
    """What stands there, or `MISSING`."""
    arguments: str = field(default="", repr=False)
    """The model's own arguments, shortened."""

    @property
    def sentence(self) -> str:
        """What the model is told."""
        text = f"The arguments of the call do not match the tool's schema. {self.message}"
        if self.schema not in ({}, True):
            text += f" That part of the schema is: {json.dumps(self.schema, ensure_ascii=False, separators=(',', ':'))}"
        return f"{text}\nThe arguments were: {self.arguments}"


# ---- faults


def fault(problems: list[SchemaViolation], schema: Json, arguments: str, value: Json) -> InvalidArguments | None:
    """The fault to tell; None if none of the errors is sure."""
    found = [leaf for one in problems if one.sure for leaf in specific(one)]
    if not found:
        return None
    one = min(found, key=rank)
    related = [other for other in found if other.names and other.place == one.place] if one.names else [one]
    node = part(schema, one)
    here = at(value, one.place)
    message = _about_names(one.place, related, schema) if one.names else _message(one, node, here)
    if one.keyword == "required":
        node = _wanted(node, [name for other in related if other.keyword == "required" for name in other.names])
    return InvalidArguments(written(one.place), message, small(node, schema), here, shortened(arguments, ARGUMENTS))


def unknown(schema: Json, arguments: str, value: Json) -> InvalidArguments:
    """The fault of arguments of which it is only known that they do not validate."""
    return InvalidArguments("", "They do not validate.", small(schema, schema), value, shortened(arguments, ARGUMENTS))


def undecoded(arguments: str) -> InvalidArguments | None:
    """What is wrong with arguments that could not be decoded; None if they are a JSON object all the same."""
    try:
        value = json.loads(arguments, parse_int=str, parse_float=str, parse_constant=_no_number)
    except RecursionError:
        return None
    except ValueError as error:
        return InvalidArguments("", f"They are not valid JSON: {error}.", arguments=shortened(arguments, ARGUMENTS))
    return None if isinstance(value, dict) else no_object(arguments, value)


def no_object(arguments: str, value: Json) -> InvalidArguments:
    """The fault of arguments that are some other JSON value."""
    message = f"They must be one JSON object, not {_described(value)}."
    return InvalidArguments("", message, {"type": "object"}, value, shortened(arguments, ARGUMENTS))


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is no number")


def at(value: Json, place: Place) -> Json:
    """What stands at a place; `MISSING` if there is nothing."""
    for step in place:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def part(schema: Json, one: SchemaViolation) -> Json:
    """The part of the schema that failed."""
    last = len(one.path) - {"falseSchema": 0, "propertyNames": 2}.get(one.keyword, 1)
    found = at(schema, one.path[: max(0, last)])
    return {} if found is MISSING else found


# ---- words


def _message(one: SchemaViolation, node: Json, value: Json) -> str:
    limit = node.get(one.keyword) if isinstance(node, Mapping) else None
    subject = _subject(one.place)
    if one.branches or one.keyword in ("anyOf", "oneOf"):
        return f"{subject} {_alternatives(one, value)}."
    if one.keyword == "type":
        return f"{subject} must be {_listed(_names_of(one.types), 'or')}, not {_described(value)}."
    if one.keyword == "enum" and isinstance(limit, list):
        return f"{subject} must be one of {_values(limit)}, not {_described(value)}."
    if one.keyword == "const":
        return f"{subject} must be {_bounded(limit)}, not {_described(value)}."
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
    return f"must be {_listed(_names_of(types), 'or')}, not {_described(value)}"


def _about_names(place: Place, problems: list[SchemaViolation], schema: Json) -> str:
    """What is missing and what is unknown, in one object."""
    missing = [name for one in problems if one.keyword == "required" for name in one.names]
    clauses = []
    if missing:
        word = "property" if len(set(missing)) == 1 else "properties"
        clauses.append(f"lacks the required {word} {_listed(_quoted(missing), 'and')}")
    for one in problems:
        if one.keyword != "required":
            node = part(schema, one)
            known = list(node.get("properties") or ())[:KNOWN] if isinstance(node, Mapping) else []
            clauses.append(f"must not have {_listed(_quoted(one.names), 'or')}{_nearest(one.names, known)}")
    return f"{_subject(place)} {'; it '.join(clauses)}."


def _nearest(names: Iterable[str], known: list[str]) -> str:
    lower = {name.lower(): name for name in known}
    near: dict[str, None] = {}
    for name in list(names)[:NAMES]:
        for found in difflib.get_close_matches(name[:VALUE].lower(), lower, n=1):
            near[lower[found]] = None
    if near:
        return f" (its nearest is {_listed(_quoted(near), 'or')})"
    return f" (it may have {_listed(_quoted(known, OPTIONS), 'and')})" if known else ""


def _wanted(node: Json, names: list[str]) -> Json:
    """What the schema says of the properties that are missing."""
    known = node.get("properties") if isinstance(node, Mapping) else None
    if not isinstance(known, Mapping):
        return node
    return {"type": "object", "properties": {name: known[name] for name in names if name in known}, "required": names}


def written(place: Place) -> str:
    """The place as it is shown: `options.depth`, `items[2]["a b"]`."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _plain(step[:PLACE]):
            text += f".{step[:PLACE]}" if text else step[:PLACE]
        else:
            text += f"[{literal(step[:PLACE])}]"
    return shortened(text, PLACE)


def _subject(place: Place) -> str:
    return f"`{written(place)}`" if place else "The object"


def _names_of(types: frozenset[str]) -> list[str]:
    wanted = types - {"integer"} if "number" in types else types
    return [words for name, words in _KINDS.items() if name in wanted]


def _described(value: Json) -> str:
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
    """The value as JSON, shortened."""
    if isinstance(value, str):
        return literal(shortened(value, VALUE))
    return shortened(literal(small(value, value) if isinstance(value, dict) else value), 4 * VALUE)


def _values(options: list[Json]) -> str:
    texts = [_bounded(option) for option in options[:OPTIONS]]
    return ", ".join([*texts, "…"] if len(options) > OPTIONS else texts)


def _quoted(names: Iterable[str], most: int = NAMES) -> list[str]:
    names = list(dict.fromkeys(names))
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return [literal(shortened(name, VALUE)) for name in names[:most]] + more


def _listed(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and end with a mark between."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]} … {text[-end:]}"


# ---- a part of a schema


def small(node: Json, root: Json) -> Json:
    """The schema, shortened until its JSON is small: without its notes, then without its depths."""
    for depth in (4, 3, 2, 1, 0):
        for notes in (True, False):
            found = _Shrink(root, notes=notes).schema(node, depth)
            if len(literal(found)) <= SCHEMA:
                return found
    return {}


class _Shrink:
    """Makes one short copy of a schema."""

    __slots__ = ("_left", "_notes", "_walker")

    def __init__(self, root: Json, *, notes: bool) -> None:
        self._walker = SchemaWalker(root)
        self._notes = notes
        self._left = SCHEMA // 2  # what a part adds is longer than two characters

    def schema(self, node: Json, depth: int) -> Json:
        """The subschema with so many levels below it."""
        self._left -= 1
        if not isinstance(node, Mapping) or self._left < 0:
            return node if isinstance(node, bool) else {}
        if "$ref" in node:
            node = self._walker.resolve(node) or node
        words = self._some(node).items()
        return {key: inner for key, value in words if (inner := self._word(key, value, depth)) is not MISSING}

    def _some(self, found: Mapping[str, Json]) -> Mapping[str, Json]:
        """As many of the entries as may still be read."""
        most = max(self._left, 0)
        self._left -= len(found)
        return found if len(found) <= most else dict(islice(found.items(), most))

    def _word(self, key: str, value: Json, depth: int) -> Json:
        """What a word of a schema says; `MISSING` if it is left out."""
        if key in _LEFT_OUT or (key in _TOLD and not self._notes) or self._left < 0:
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
        return shortened(value, 4 * VALUE) if isinstance(value, str) else value
