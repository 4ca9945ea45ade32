"""JSON Schema as the model sees it: a tool's parameters as a compact signature, as a list, or as JSON.

    f(a: string, b?: integer = 3, c: "x"|"y", d?: {e: number, f?: string[]})

A signature contains names, order, types, optional parameters (`?`), defaults and enums. `described_signature` adds the
descriptions, one parameter per line. Names that are not plain words are quoted as in JSON. The schema is walked
by `statemachine.schema`. The depth and the number of nodes in one signature are bounded, unreadable parts are shown as
`any`, and no schema causes an exception. A part is rendered once, however many references lead to it, and the amount of
repeated text is bounded in proportion to the length of the schema.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from attrs import define

from statemachine.schema import SchemaWalker

DEPTH = 4
"""Maximum depth of nesting in a signature; for deeper parts, only the type is shown."""
NODES = 4000
"""Maximum number of schema nodes that one signature reads."""
KINDS = 16
"""Maximum number of types in one part; JSON Schema defines seven."""
REPEATED = 16 * 1024
"""Number of characters that may be repeated for one tool, in addition to `REPEATS` times the length of its schema."""
REPEATS = 4
DESCRIBED = " // "
"""Text between a parameter and its description."""
DEFAULT_LENGTH = 80
"""Maximum length of a default that is shown."""

_SCALARS: Final = frozenset(("string", "integer", "number", "boolean", "null"))
_NOT_BY_NAME: Final = frozenset(("const", "enum", "anyOf", "oneOf", "nullable"))
"""Keywords that change the text of a type."""

_PLAIN = re.compile(r"[\w$.-]+\Z")
_SENTENCE = re.compile(r"(.+?[.!?。！？])(?:\s|\Z)", re.DOTALL)

Schema = Mapping[str, Any]

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


@define
class Parameter:
    """A parameter of a tool."""

    name: str
    schema: Schema
    """The parameter's schema, with references resolved at the top level."""
    type: str
    """The type as in a signature."""
    required: bool
    default: str
    """The default as JSON text; empty if it is missing or too long."""
    description: str
    """The description on one line; empty for parameters that are nested in another one."""


def literal(value: Any) -> str:
    """Return the value as JSON text on one line."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return "null"


def parameters(schema: Schema | None) -> list[Parameter]:
    """Return a tool's parameters in the order of the schema, or [] if it has none."""
    return list(_SchemaRenderer(schema or {}).parameters())


def signature(name: str, schema: Schema | None) -> str:
    """Return the tool as one line: `f(a: string, b?: integer = 3)`."""
    return f"{name}({', '.join(_entry(parameter) for parameter in parameters(schema))})"


def type_of(schema: Schema) -> str:
    """Return the type of a value, as in a signature: `{a: string, b?: integer}`."""
    return _SchemaRenderer(schema).type(schema, 1)


def described_signature(name: str, schema: Schema | None) -> str:
    """Return the tool as `signature` does or, if any parameter has a description, with one line per parameter:
    ` a: string // description`.
    """
    listed = parameters(schema)
    if not any(parameter.description for parameter in listed):
        return f"{name}({', '.join(map(_entry, listed))})"
    lines = [f" {_entry(p)}{DESCRIBED}{p.description}" if p.description else f" {_entry(p)}" for p in listed]
    return "\n".join([f"{name}(", *lines, ")"])


def parameter_list(schema: Schema | None) -> list[str]:
    """Return the parameters as a Markdown list: `- a (string) (required): description`."""
    lines = []
    for parameter in parameters(schema):
        default = f", default: {_bare(parameter.default)}" if parameter.default else ""
        need = "required" if parameter.required else f"optional{default}"
        text = f": {parameter.description}" if parameter.description else ""
        lines.append(f"- {_word(parameter.name)} ({parameter.type}) ({need}){text}")
    return lines


def schema_or_empty(schema: Schema | None) -> Schema:
    """Return the schema unchanged, or an empty object schema for a tool without one."""
    return {"type": "object", "properties": {}} if schema is None else schema


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, on one line."""
    text = text.strip().split("\n\n", 1)[0]
    found = _SENTENCE.match(text)
    return " ".join((found[1] if found else text).split())


def _default(value: Any) -> str:
    text = literal(value)
    return text if len(text) <= DEFAULT_LENGTH else ""


def _on_one_line(text: Any) -> str:
    return " ".join(str(text or "").split())


def _enumerated(values: Iterable[Any]) -> str:
    return "|".join(dict.fromkeys(map(literal, values)))


def _bare(default: str) -> str:
    """Remove the quotes from a default that is a plain word; the type next to it shows that it is a string."""
    return default[1:-1] if default[:1] == '"' and _PLAIN.match(default[1:-1]) else default


def _word(name: str) -> str:
    return name if _PLAIN.match(name) else literal(name)


def _entry(parameter: Parameter) -> str:
    default = f" = {parameter.default}" if parameter.default else ""
    return f"{_word(parameter.name)}{'' if parameter.required else '?'}: {parameter.type}{default}"


class _SchemaRenderer:
    """A renderer for one schema. It counts the nodes that it has read and the text that it has repeated."""

    __slots__ = ("_left", "_room", "_root", "_walker", "_written")

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._walker = SchemaWalker(root, NODES)
        self._left = NODES
        self._room: int | None = None
        """Number of characters that may still be repeated; None before the first repetition."""
        self._written: dict[tuple[int, int | str], tuple[object, str]] = {}
        # keyed by the identity of a value, which is stored with its text

    def parameters(self, schema: Any = None, depth: int = 0) -> Iterator[Parameter]:
        """Yield the properties of an object schema, including those of its `allOf` parts."""
        owner = self._root if schema is None else schema
        properties, required = self._walker.merged(owner).get("properties"), self._walker.required(owner)
        for name, value in properties.items() if isinstance(properties, Mapping) else ():
            found = self._walker.resolve(value)
            description = None if depth else found.get("description")
            yield Parameter(
                str(name),
                found,
                self.type(found, depth + 1),
                name in required,
                self._render_once(found["default"], "default", _default, "") if "default" in found else "",
                self._render_once(description, "description", _on_one_line, "") if description else "",
            )

    def _render_once(self, value: Any, what: int | str, write: Callable[[Any], str], short: str) -> str:
        """Return the text for a value in the schema; each value is rendered only once. If repeating the text would
        exceed the limit, return `short`.
        """
        key = id(value), what
        known = self._written.get(key)
        if known is None:
            self._written[key] = known = value, write(value)
            return known[1]
        if self._room is None:
            self._room = REPEATED + REPEATS * len(literal(self._root))
        self._room -= len(known[1])
        return known[1] if self._room >= 0 else short

    def type(self, schema: Any, depth: int = 0) -> str:
        """Return the type as in a signature."""
        self._left -= 1
        if self._left < 0 or depth > DEPTH + 1 or not (type(schema) is dict or isinstance(schema, Mapping)):
            return "any"  # the exact type is checked first, which is faster and nearly always enough
        found = self._walker.merged(schema)
        kind = found.get("type")
        if isinstance(kind, str) and kind in _SCALARS and _NOT_BY_NAME.isdisjoint(found):
            return kind  # as most parts are; a reference is longer than this, so it may be repeated
        return self._render_once(found, depth, lambda part: self._type(part, depth), "any")

    def _type(self, schema: Schema, depth: int) -> str:
        if "const" in schema:
            return self._render_once(schema["const"], "const", literal, "any")
        if isinstance(schema.get("enum"), list | tuple) and schema["enum"]:
            return self._render_once(schema["enum"], "enum", _enumerated, "any")
        names = list(dict.fromkeys(self._alternatives(schema, depth)))
        if schema.get("nullable") is True and "type" in schema and "null" not in names:
            names.append("null")
        return "|".join(names) or "any"

    def _alternatives(self, schema: Schema, depth: int) -> Iterator[str]:
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list | tuple) and options:
                yield from (self.type(option, depth + 1) for option in options)
                return
        kinds = schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else "any"
        for kind in islice(kinds, KINDS) if isinstance(kinds, list | tuple) else [kinds]:
            yield self._one(str(kind), schema, depth)

    def _one(self, kind: str, schema: Schema, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            inner = self.type(items, depth + 1) if items is not None and depth < DEPTH else "any"
            return f"({inner})[]" if "|" in inner and not inner.startswith("{") else f"{inner}[]"
        if kind == "object" and depth < DEPTH:
            entries = [_entry(p) for p in self.parameters(schema, depth)]
            rest = schema.get("additionalProperties")
            if isinstance(rest, Mapping) and rest:
                entries.append(f"[key]: {self.type(rest, depth + 1)}")
            return f"{{{', '.join(entries)}}}" if entries else "object"
        return kind if _PLAIN.match(kind) else "any"
