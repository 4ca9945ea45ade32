"""The one walker of JSON Schema: references followed, `allOf` laid in, within bounds, each part read once.

A schema comes from the caller, so nothing about it is trusted: it may refer to itself, be nested without end, or name
the same part a million times. A `SchemaWalker` belongs to one schema and remembers what it has read; depth and the
number of parts are bounded, what cannot be read allows everything, and nothing raises.

The parser asks which types a value may have (`types`, `Node`); the prompt, the grammars, the messages about arguments
and their cost read the parts themselves (`resolve`, `merged`, `required`, `follow`).

Read as JSON Schema 2020-12 means them: `type` (one or several), `enum`, `const`, `properties`, `required`,
`additionalProperties`, `items`, `prefixItems`, `anyOf`, `oneOf`, `allOf`, local `$ref`; and `nullable` of OpenAPI.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
DEPTH = 16
"""Parts inside of parts, and references in a row, that are followed for one question."""
TYPES_DEPTH = 64
"""The same, for the types of a part: what was found is remembered, so a deep schema costs no more than a flat one."""
SAYS = ("items", "properties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf")
"""With what a schema says something of items and members."""
TYPED = 10_000
"""Parts whose types are read, in all."""
NODES = 1000
"""Parts that are read for one question about a member, and of which copies are made in all."""
MEMBERS = 256
"""Members that a node remembers."""
MISSING: Final = object()
"""Nothing stands where a reference leads."""
_NOTHING: Final[Mapping[str, Any]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()


def follow(reference: str, root: object) -> object:
    """What a local reference (`#`, `#/$defs/x`) leads to; `MISSING` if nothing is there."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return MISSING
    found = root
    for step in reference[2:].split("/"):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) < 8 and int(name) < len(found):
            found = found[int(name)]
        else:
            return MISSING
    return found


class SchemaWalker:
    """Walks one schema. `exhausted` says that there was more to read than it may read."""

    __slots__ = ("_left", "_merged", "_open", "_required", "_resolved", "_types", "root")

    def __init__(self, root: object, nodes: int = NODES) -> None:
        self.root = root
        self._left = nodes
        # by the identity of a part, which is kept beside what was found, so that no other part can take its place
        self._resolved: dict[int, tuple[object, Mapping[str, Any]]] = {}
        self._merged: dict[int, tuple[object, Mapping[str, Any]]] = {}
        self._required: dict[int, tuple[object, frozenset[str]]] = {}
        self._types: dict[int, tuple[object, frozenset[str]]] = {}
        self._open: set[int] = set()  # parts whose types are being read

    @property
    def exhausted(self) -> bool:
        """There was more to read than may be read."""
        return self._left < 0

    def _visit(self, size: int = 0) -> bool:
        """Whether one part more may be read; a large one, of which a copy is made, counts as several."""
        self._left -= 1 + size // 32
        return self._left >= 0

    # ---- the parts themselves

    def resolve(self, schema: object) -> Mapping[str, Any]:
        """The part that a chain of references leads to, what stands beside them laid over it; {} for anything else."""
        if not isinstance(schema, Mapping):
            return _NOTHING
        if not isinstance(schema.get("$ref"), str):
            return schema
        known = self._resolved.get(id(schema))
        if known is None:
            known = self._resolved[id(schema)] = schema, self._chain(schema)
        return known[1]

    def _chain(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            target = follow(reference, self.root)
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            if not isinstance(target, Mapping):
                return beside
            if not beside:
                schema = target
            elif self._visit(len(target)):
                schema = {**target, **beside}
            else:
                return beside
        return _NOTHING

    def merged(self, schema: object) -> Mapping[str, Any]:
        """The part, its reference followed, the parts of `allOf` laid into it; what stands first counts."""
        found = self.resolve(schema)
        parts = found.get("allOf")
        if not isinstance(parts, list | tuple):
            return found
        known = self._merged.get(id(found))
        if known is None:
            known = self._merged[id(found)] = found, self._laid(found, parts)
        return known[1]

    def _laid(self, schema: Mapping[str, Any], parts: Sequence[object]) -> Mapping[str, Any]:
        merged: dict[str, Any] = {}
        members: list[Mapping[str, Any]] = []
        names: dict[Any, None] = {}
        for part in ({key: value for key, value in schema.items() if key != "allOf"}, *parts):
            one = self.resolve(part)
            size = len(one)
            for key, value in one.items():
                if key == "properties" and isinstance(value, Mapping):
                    members.append(value)
                    size += len(value)
                elif key == "required" and isinstance(value, list | tuple):
                    names |= dict.fromkeys(name for name in value if isinstance(name, str))
                    size += len(value)
                merged.setdefault(key, value)
            if not self._visit(size):
                break
        if len(members) > 1:
            merged["properties"] = {key: value for layer in reversed(members) for key, value in layer.items()}
        if names:
            merged["required"] = list(names)
        return merged

    def required(self, schema: object) -> frozenset[str]:
        """The members that an object must have."""
        names = self.merged(schema).get("required")
        if not isinstance(names, list | tuple):
            return _NO_NAMES
        known = self._required.get(id(names))
        if known is None:
            known = self._required[id(names)] = names, frozenset(name for name in names if isinstance(name, str))
        return known[1]

    # ---- types

    def types(self, schema: object, depth: int = TYPES_DEPTH) -> frozenset[str]:
        """The JSON types that a part allows; what is not understood allows every type."""
        if not isinstance(schema, Mapping) or depth == 0:
            return ANY
        known = self._types.get(id(schema))
        if known is not None:
            return known[1]
        if id(schema) in self._open or len(self._types) >= TYPED:
            return ANY
        self._open.add(id(schema))
        found = self._allowed(schema, depth)
        self._open.discard(id(schema))
        self._types[id(schema)] = schema, found
        return found

    def _allowed(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        if isinstance(reference := schema.get("$ref"), str):
            return self.types(follow(reference, self.root), depth - 1)
        result = ANY
        declared = schema.get("type")
        if isinstance(declared, str):
            result &= {declared}
        elif isinstance(declared, list):
            result &= {name for name in declared if isinstance(name, str)}
        if schema.get("nullable") is True:  # OpenAPI
            result |= {"null"}
        for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if isinstance(values, list) and values:
                one_of_each = {type(value): value for value in values}
                result &= {kind for value in one_of_each.values() for kind in kinds(value)}
        for word in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(word), list) and ways:
                result &= frozenset().union(*(self.types(way, depth - 1) for way in ways))
        if isinstance(ways := schema.get("allOf"), list):
            for way in ways:
                result &= self.types(way, depth - 1)
        if declared is None and "properties" in schema:
            result &= {"object"}
        return (result | {"integer"} if "number" in result else result) or ANY

    # ---- members and items, whatever alternatives say of them

    def part(self, schema: object, key: str | None) -> object:
        """The part for the member `key` of an object, or (None) for the items of an array; None: nothing is said."""
        return self._part(schema, key, DEPTH, iter(range(NODES)))

    def _part(self, schema: object, key: str | None, depth: int, left: Iterator[int]) -> object:
        if not isinstance(schema, Mapping) or depth == 0 or next(left, None) is None:
            return None
        if isinstance(reference := schema.get("$ref"), str):
            return self._part(follow(reference, self.root), key, depth - 1, left)
        own = _items(schema) if key is None else _member(schema, key)
        found = [] if own is None else [own]
        if isinstance(ways := schema.get("allOf"), list):
            found += [inner for way in ways if (inner := self._part(way, key, depth - 1, left)) is not None]
        for word in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(word), list) and (parts := self._alternatives(ways, key, depth, left)):
                found.append({"anyOf": parts})
        return {"allOf": found} if len(found) > 1 else found[0] if found else None

    def _alternatives(self, ways: list[Any], key: str | None, depth: int, left: Iterator[int]) -> list[object]:
        """What alternatives say, each of them; [] if one that may hold says nothing, since it allows everything."""
        kind = "array" if key is None else "object"
        parts: list[object] = []
        for way in ways:
            if kind in self.types(way):
                inner = self._part(way, key, depth - 1, left)
                if inner is None:
                    return []
                parts.append(inner)
            elif next(left, None) is None:
                return []
        return parts


def properties(schema: object) -> Mapping[str, Any]:
    """The declared parameters of a tool; {} if none are declared."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def sole_string(schema: object) -> str | None:
    """The name of the only parameter of a tool, if it is a string."""
    declared = properties(schema)
    if len(declared) == 1:
        [name] = declared
        return name if types(schema, name) == STRING else None
    return None


def types(schema: object, key: str) -> frozenset[str]:
    """The JSON types that the parameter `key` of a tool with this schema may have."""
    declared = properties(schema)
    if key in declared:
        return SchemaWalker(schema).types(declared[key])
    extra = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    return SchemaWalker(schema).types(extra) if isinstance(extra, Mapping) else ANY


class Node:
    """What a schema says of one value.

    `types` are the JSON types that it may have; `optional` says that it may as well be left out, `deep` that the schema
    says something of members or items.
    """

    __slots__ = ("_items", "_members", "_schema", "_walker", "deep", "optional", "types")

    def __init__(
        self, schema: object, walker: SchemaWalker, *, types: frozenset[str] | None = None, optional: bool = True
    ) -> None:
        self._schema = schema
        self._walker = walker
        self._members: dict[str, Node | None] = {}
        self._items: tuple[Node | None] | None = None
        self.types = walker.types(schema) if types is None else types
        self.optional = optional
        self.deep = isinstance(schema, Mapping) and any(word in schema for word in SAYS)

    def member(self, key: str) -> "Node | None":
        """What it says of the member of an object; None: nothing."""
        if key in self._members:
            return self._members[key]
        found = self._walker.part(self._schema, key)
        node = None
        if found is not None:
            node = Node(found, self._walker, optional=key not in self._walker.required(self._schema))
        if len(self._members) < MEMBERS:
            self._members[key] = node
        return node

    def items(self) -> "Node | None":
        """What it says of the items of an array; None: nothing."""
        if self._items is None:
            found = self._walker.part(self._schema, None)
            self._items = (None if found is None else Node(found, self._walker),)
        return self._items[0]


def node(schema: object) -> Node | None:
    """What the schema of a tool's parameters says of the arguments, which are an object; None: nothing."""
    if not isinstance(schema, Mapping) or not any(schema.get(word) for word in SAYS[1:]):
        return None
    return arguments(schema)


def arguments(schema: object) -> Node:
    """The node of a tool's arguments, whatever its schema says of them."""
    return Node(schema, SchemaWalker(schema), types=ANY)


def _member(schema: Mapping[str, Any], key: str) -> object:
    """The part that this schema itself has for a member; None if it has none."""
    declared = properties(schema)
    if key in declared:
        return declared[key]
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) and "patternProperties" not in schema else None


def _items(schema: Mapping[str, Any]) -> object:
    """The part that this schema itself has for all items; None if it has none."""
    found = schema.get("items")
    return found if isinstance(found, Mapping) and "prefixItems" not in schema else None


def kinds(value: object) -> tuple[str, ...]:
    """The JSON types of a Python value."""
    match value:
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number",)
        case str():
            return ("string",)
        case None:
            return ("null",)
        case list():
            return ("array",)
        case _:
            return ("object",)
