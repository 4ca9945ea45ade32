"""What the machine reads of a JSON Schema: which types a value may have. Nothing else of it matters here.

`$ref` inside the schema, `anyOf`, `oneOf`, `allOf`, `enum` and `const` are followed, to a bounded depth and number;
whatever is not understood allows every type. `types` answers for a parameter; `Node` goes into members and items too,
and remembers what it was asked.
"""

from collections.abc import Iterator, Mapping
from typing import Any

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
DEPTH = 16
SAYS = ("items", "properties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf")
"""With what a schema says something of items and members."""
NODES = 1000
"""Parts of a schema that are looked at for one question; parts may refer to each other many times over."""
MEMBERS = 256
"""Members that a node remembers."""


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
        return allowed(declared[key], schema)
    extra = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    return allowed(extra, schema) if isinstance(extra, Mapping) else ANY


def allowed(schema: object, root: object, depth: int = DEPTH, left: Iterator[int] | None = None) -> frozenset[str]:
    """The JSON types that a schema allows."""
    left = iter(range(NODES)) if left is None else left
    if not isinstance(schema, Mapping) or depth == 0 or next(left, None) is None:
        return ANY
    if isinstance(ref := schema.get("$ref"), str):
        return allowed(resolve(ref, root), root, depth - 1, left)
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
            result &= {kind for value in values for kind in kinds(value)}
    for word in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(word), list) and ways:
            result &= frozenset().union(*(allowed(way, root, depth - 1, left) for way in ways))
    if isinstance(ways := schema.get("allOf"), list):
        for way in ways:
            result &= allowed(way, root, depth - 1, left)
    if declared is None and "properties" in schema:
        result &= {"object"}
    return (result | {"integer"} if "number" in result else result) or ANY


class Node:
    """What a schema says of one value.

    `types` are the JSON types that it may have; `optional` says that it may as well be left out, `deep` that the schema
    says something of members or items.
    """

    __slots__ = ("_items", "_members", "_required", "_root", "_schema", "deep", "optional", "types")

    def __init__(
        self, schema: object, root: object, *, types: frozenset[str] | None = None, optional: bool = True
    ) -> None:
        self._schema = schema
        self._root = root
        self._members: dict[str, Node | None] = {}
        self._items: tuple[Node | None] | None = None
        self._required: frozenset[str] | None = None
        self.types = allowed(schema, root) if types is None else types
        self.optional = optional
        self.deep = isinstance(schema, Mapping) and any(word in schema for word in SAYS)

    def member(self, key: str) -> "Node | None":
        """What it says of the member of an object; None: nothing."""
        if key in self._members:
            return self._members[key]
        if self._required is None:
            self._required = required(self._schema, self._root, DEPTH, iter(range(NODES)))
        found = part(self._schema, key, self._root, DEPTH, iter(range(NODES)))
        node = None if found is None else Node(found, self._root, optional=key not in self._required)
        if len(self._members) < MEMBERS:
            self._members[key] = node
        return node

    def items(self) -> "Node | None":
        """What it says of the items of an array; None: nothing."""
        if self._items is None:
            found = part(self._schema, None, self._root, DEPTH, iter(range(NODES)))
            self._items = (None if found is None else Node(found, self._root),)
        return self._items[0]


def node(schema: object) -> Node | None:
    """What the schema of a tool's parameters says of the arguments, which are an object; None: nothing."""
    if not isinstance(schema, Mapping) or not any(schema.get(word) for word in SAYS[1:]):
        return None
    return Node(schema, schema, types=ANY)


def part(schema: object, key: str | None, root: object, depth: int, left: Iterator[int]) -> object:
    """The schema of the member `key` of an object, or (None) of the items of an array; None: nothing is said of it."""
    if not isinstance(schema, Mapping) or depth == 0 or next(left, None) is None:
        return None
    if isinstance(ref := schema.get("$ref"), str):
        return part(resolve(ref, root), key, root, depth - 1, left)
    found = [own] if (own := items(schema) if key is None else declared_member(schema, key)) is not None else []
    if isinstance(ways := schema.get("allOf"), list):
        found += [inner for way in ways if (inner := part(way, key, root, depth - 1, left)) is not None]
    kind = "array" if key is None else "object"
    for word in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(word), list):
            parts = [
                part(way, key, root, depth - 1, left) for way in ways if kind in allowed(way, root, depth - 1, left)
            ]
            if parts and all(inner is not None for inner in parts):
                found.append({"anyOf": parts})
    return {"allOf": found} if len(found) > 1 else found[0] if found else None


def declared_member(schema: Mapping[str, Any], key: str) -> object:
    """The schema that this schema itself gives a member; None if it gives none."""
    declared = properties(schema)
    if key in declared:
        return declared[key]
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) and "patternProperties" not in schema else None


def items(schema: Mapping[str, Any]) -> object:
    """The schema that this schema itself gives all items; None if it gives none."""
    found = schema.get("items")
    return found if isinstance(found, Mapping) and "prefixItems" not in schema else None


def required(schema: object, root: object, depth: int, left: Iterator[int]) -> frozenset[str]:
    """The members that an object must have."""
    if not isinstance(schema, Mapping) or depth == 0 or next(left, None) is None:
        return frozenset()
    if isinstance(ref := schema.get("$ref"), str):
        return required(resolve(ref, root), root, depth - 1, left)
    names, ways = schema.get("required"), schema.get("allOf")
    found = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset[str]()
    return found.union(*(required(way, root, depth - 1, left) for way in (ways if isinstance(ways, list) else ())))


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


def resolve(ref: str, root: object) -> object:
    """What a `$ref` inside the schema points at; None if nothing is there."""
    if not ref.startswith("#"):
        return None
    found = root
    for step in ref[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
