"""Bounded traversal of a JSON Schema: references are followed, `allOf` is merged, and each subschema is read once.

A schema comes from the caller and is not trusted: it may refer to itself, be nested without end, or refer to the same
subschema a million times. A `SchemaWalker` belongs to one schema and caches what it has read. The depth and the number
of subschemas are bounded, a subschema that cannot be read allows everything, and no exception is raised.

The parser needs the types that a value may have (`types`, `Node`). The prompt, the grammars and the messages about
invalid arguments read the subschemas themselves (`resolve`, `merged`, `required`, `follow`).

Supported keywords, as defined by JSON Schema 2020-12: `type` (a string or a list), `enum`, `const`, `properties`,
`required`, `additionalProperties`, `items`, `prefixItems`, `anyOf`, `oneOf`, `allOf`, local `$ref`; and OpenAPI's
`nullable`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from operator import length_hint
from typing import Any, Final, TypeVar

from statemachine.names import spelling_of

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
OBJECT = frozenset({"object"})
NUMBER = frozenset({"number", "integer"})
ONE_TYPE: Final[Mapping[str, frozenset[str]]] = {**{name: frozenset({name}) for name in ANY}, "number": NUMBER}
"""Types that a subschema allows, by the only type that it declares."""
MAX_DEPTH = 16
"""Maximum depth of nested subschemas and length of reference chains in one lookup."""
MAX_TYPES_DEPTH = 64
"""Maximum depth when reading the types of a subschema. Results are cached, so a deep schema costs no more than a flat
one.
"""
DESCRIBING_KEYWORDS = ("items", "properties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf")
"""Keywords that describe items or members."""
COMBINING_KEYWORDS = ("$ref", "allOf", "anyOf", "oneOf")
"""Keywords that refer to other subschemas for the same value."""
LIMITING_KEYWORDS = (*COMBINING_KEYWORDS, "nullable", "enum", "const")
"""Keywords that change the types that a value may have."""
MAX_TYPED_PARTS = 10_000
"""Maximum number of subschemas whose types are not obvious."""
MAX_PARTS = 1000
"""Maximum number of subschemas to read in one lookup of a member, and to copy in total."""
MAX_LOOKUP_PARTS = 5_000
"""Maximum number of subschemas to read in all lookups of members and names, not counting the first one of each, which
has been reached by references. None of 3,157 tools of agents and of BFCL needs any, and three hundred alternatives with
eleven members need 3,600.
"""
MAX_CACHED_MEMBERS = 256
"""Maximum number of members that a node caches."""
MAX_SHARED_NAMES = 64
"""Maximum number of members whose spellings are shared by all objects with the same members."""
MAX_MEMBERS_WITH_HOMES = 64
"""Maximum number of members of an object in which flattened arguments are nested; each member is looked up."""
MAX_HOME_DEPTH = 4
"""Maximum depth of the objects that are searched for a key."""
MISSING: Final = object()
"""Returned for a reference whose target does not exist."""
_NOTHING: Final[Mapping[str, Any]] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()
_NO_CACHE: Final[dict[Any, Any]] = {}
"""A cache without entries. Shared, never mutated."""

K = TypeVar("K")
T = TypeVar("T")


def follow(reference: str, root: object) -> object:
    """Return the target of a local reference (`#`, `#/$defs/x`), or `MISSING`."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return MISSING
    found = root
    for step in reference[2:].split("/"):
        name = _unescaped(step)
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) < 8 and int(name) < len(found):
            found = found[int(name)]
        else:
            return MISSING
    return found


def _unescaped(step: str) -> str:
    """Return a step of a reference without its escapes."""
    if "%" in step:
        from urllib.parse import unquote  # noqa: PLC0415  rarely needed, and takes 2 ms to import

        step = unquote(step)
    return step.replace("~1", "/").replace("~0", "~")


class SchemaWalker:
    """Walks one schema. `exhausted` becomes true when the schema contains more than the walker is allowed to read."""

    __slots__ = ("_budget", "_left", "_merged", "_names", "_parts", "_required", "_resolved", "_types", "root")

    def __init__(self, root: object, nodes: int = MAX_PARTS) -> None:
        self.root = root
        self._budget = nodes
        self._left = MAX_LOOKUP_PARTS
        # Keyed by the id of a subschema. The subschema is stored along with the result, so that its id is not reused.
        self._resolved: dict[int, tuple[object, Mapping[str, Any]]] = _NO_CACHE
        self._merged: dict[int, tuple[object, Mapping[str, Any]]] = _NO_CACHE
        self._required: dict[int, tuple[object, frozenset[str]]] = _NO_CACHE
        self._types: dict[int, tuple[object, frozenset[str]]] = _NO_CACHE
        self._parts: dict[tuple[int, str | None], tuple[object, object]] = _NO_CACHE
        self._names: dict[int, tuple[object, frozenset[str] | None]] = _NO_CACHE

    @property
    def exhausted(self) -> bool:
        """Whether the schema contained more than the walker is allowed to read."""
        return self._budget < 0

    def _visit(self, size: int = 0) -> bool:
        """Count one more subschema and return whether it may be read. A large one is copied, so it counts as
        several.
        """
        self._budget -= 1 + size // 32
        return self._budget >= 0

    # ---- the subschemas themselves

    def resolve(self, schema: object) -> Mapping[str, Any]:
        """Follow a chain of references and return the target, overlaid with the keywords next to the references. Return
        {} if the schema is not an object.
        """
        if not (type(schema) is dict or isinstance(schema, Mapping)):  # the exact type is checked faster
            return _NOTHING
        if not isinstance(schema.get("$ref"), str):
            return schema
        known = self._resolved.get(id(schema))
        if known is None:
            known = schema, self._follow_chain(schema)
            self._resolved = _added(self._resolved, id(schema), known)
        return known[1]

    def _follow_chain(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(MAX_DEPTH):
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
        """Return the subschema with its reference followed and its `allOf` merged; the first value of a keyword
        wins.
        """
        found = self.resolve(schema)
        parts = found.get("allOf")
        if not isinstance(parts, list | tuple):
            return found
        known = self._merged.get(id(found))
        if known is None:
            known = found, self._merge_all_of(found, parts)
            self._merged = _added(self._merged, id(found), known)
        return known[1]

    def _merge_all_of(self, schema: Mapping[str, Any], parts: Sequence[object]) -> Mapping[str, Any]:
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
        """Return the names of the required members of an object."""
        names = self.merged(schema).get("required")
        if not isinstance(names, list | tuple):
            return _NO_NAMES
        known = self._required.get(id(names))
        if known is None:
            known = names, frozenset(name for name in names if isinstance(name, str))
            self._required = _added(self._required, id(names), known)
        return known[1]

    # ---- types

    def types(self, schema: object, depth: int = MAX_TYPES_DEPTH) -> frozenset[str]:
        """Return the JSON types that a subschema allows; a subschema that cannot be understood allows every type."""
        if not isinstance(schema, Mapping) or depth == 0:
            return ANY
        declared = schema.get("type")
        if type(declared) is str and not any(word in schema for word in LIMITING_KEYWORDS):
            return ONE_TYPE.get(declared, ANY)  # found as fast as in the cache
        known = self._types.get(id(schema))
        if known is not None:
            return known[1]
        if len(self._types) >= MAX_TYPED_PARTS:
            return ANY
        # While the types are being read, a subschema that contains itself allows every type.
        self._types = _added(self._types, id(schema), (schema, ANY))
        found = self._allowed_types(schema, depth)
        self._types[id(schema)] = schema, found
        return found

    def _allowed_types(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
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
                result &= {kind for value in one_of_each.values() for kind in json_types_of(value)}
        for word in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(word), list) and ways:
                result &= frozenset().union(*(self.types(way, depth - 1) for way in ways))
        if isinstance(ways := schema.get("allOf"), list):
            for way in ways:
                result &= self.types(way, depth - 1)
        if declared is None and "properties" in schema:
            result &= {"object"}
        return (result | {"integer"} if "number" in result else result) or ANY

    # ---- members and items, across alternatives

    def part(self, schema: object, key: str | None) -> object:
        """Return the subschema for the member `key` of an object or, without a key, for the items of an array. Return
        None if the schema does not contain such a subschema.
        """
        schema = self._target(schema)
        known = self._parts.get((id(schema), key))
        if known is None:
            before = self._left
            known = schema, self._look_up(lambda left: self._part(schema, key, MAX_DEPTH, left))
            if self._left < before:  # a lookup in a single subschema costs as much as the cache, whose size this limits
                self._parts = _added(self._parts, (id(schema), key), known)
        return known[1]

    def _target(self, schema: object) -> object:
        """Return the end of a chain of references, without the keywords next to the references."""
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str):
                break
            schema = follow(reference, self.root)
        return schema

    def _look_up(self, look_up: Callable[[Iterator[int]], T]) -> T:
        """Return the result of a lookup, which takes one of the given numbers for each subschema that it reads."""
        numbers = range(min(MAX_PARTS, 1 + self._left))
        left = iter(numbers)
        found = look_up(left)
        self._left -= max(0, len(numbers) - length_hint(left) - 1)
        return found

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

    def names(self, schema: object) -> AbstractSet[str] | None:
        """Return the names of all members that a schema declares, in whichever alternative, or None if the members may
        have other names, too.
        """
        schema = self._target(schema)
        if isinstance(schema, Mapping) and not any(word in schema for word in COMBINING_KEYWORDS):
            return None if _allows_any_name(schema) else properties(schema).keys()
        known = self._names.get(id(schema))
        if known is None:
            known = schema, self._look_up(lambda left: self._all_names(schema, left))
            self._names = _added(self._names, id(schema), known)
        return known[1]

    def _all_names(self, schema: object, left: Iterator[int]) -> frozenset[str] | None:
        found: set[str] = set()
        return frozenset(found) if self._collect_names(schema, found, MAX_DEPTH, left) else None

    def _collect_names(self, schema: object, found: set[str], depth: int, left: Iterator[int]) -> bool:
        """Collect the names of the members that a schema declares; return False if it allows other names."""
        if not isinstance(schema, Mapping) or depth == 0 or next(left, None) is None:
            return False
        if isinstance(reference := schema.get("$ref"), str):
            return self._collect_names(follow(reference, self.root), found, depth - 1, left)
        if _allows_any_name(schema):
            return False
        found.update(properties(schema))
        ways = schema.get("allOf")
        parts = list(ways) if isinstance(ways, list) else []
        for word in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(word), list):
                parts += [way for way in ways if "object" in self.types(way)]
        return all(self._collect_names(part, found, depth - 1, left) for part in parts)

    def _alternatives(self, ways: list[Any], key: str | None, depth: int, left: Iterator[int]) -> list[object]:
        """Return the subschema found in each alternative, or [] if an alternative that may apply has none, since such
        an alternative allows everything.
        """
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


def _added(cache: dict[K, T], key: K, value: T) -> dict[K, T]:
    """Add an entry to a cache and return the cache, which is a new one if it had no entries: few schemas need any."""
    if not cache:
        return {key: value}
    cache[key] = value
    return cache


def _allows_any_name(schema: Mapping[str, Any]) -> bool:
    """Return whether this schema itself allows members that it does not name."""
    extra = schema.get("additionalProperties")
    return extra is True or isinstance(extra, Mapping) or bool(schema.get("patternProperties"))


def properties(schema: object) -> Mapping[str, Any]:
    """Return the declared parameters of a tool, by name."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def only_string_parameter(schema: object) -> str | None:
    """Return the name of a tool's only parameter, or None unless there is exactly one parameter and it is a string."""
    declared = properties(schema)
    if len(declared) == 1:
        [name] = declared
        return name if types(schema, name) == STRING else None
    return None


def types(schema: object, key: str) -> frozenset[str]:
    """Return the JSON types that the parameter `key` of a tool with this schema may have."""
    declared = properties(schema)
    if key in declared:
        return SchemaWalker(schema).types(declared[key])
    extra = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    return SchemaWalker(schema).types(extra) if isinstance(extra, Mapping) else ANY


class Node:
    """Subschema that describes one value.

    `types` are the JSON types that the value may have, `optional` states whether the value may be omitted, and `deep`
    whether the schema describes members or items.
    """

    __slots__ = ("_items", "_members", "_schema", "_spellings", "_walker", "deep", "optional", "types")

    def __init__(
        self, schema: object, walker: SchemaWalker, *, types: frozenset[str] | None = None, optional: bool = True
    ) -> None:
        self._schema = schema
        self._walker = walker
        self._items: tuple[Node | None] | None = None
        self._spellings: Mapping[str, Sequence[str]] | None = None
        self.types = walker.types(schema) if types is None else types
        self.optional = optional
        self.deep = isinstance(schema, Mapping) and any(word in schema for word in DESCRIBING_KEYWORDS)
        self._members: dict[str, Node | None] | None = {} if self.deep else None

    def member(self, key: str) -> "Node | None":
        """Return the node of an object member, or None if the schema does not describe it."""
        if self._members is None:
            return None
        if key in self._members:
            return self._members[key]
        found = self._walker.part(self._schema, key)
        node = None
        if found is not None:
            node = Node(found, self._walker, optional=key not in self._walker.required(self._schema))
        if len(self._members) < MAX_CACHED_MEMBERS:
            self._members[key] = node
        return node

    def declares(self, key: str) -> bool:
        """Return whether the schema names this object member, rather than allowing any name."""
        free = isinstance(self._schema, Mapping) and isinstance(self._schema.get("additionalProperties"), Mapping)
        return key in properties(self._schema) if free else self.member(key) is not None

    def near(self, key: str, given: Container[str]) -> str | None:
        """Return the member that an undeclared key refers to: the only one, not `given` so far, that differs from it in
        nothing but case and separators. Return None if no member does, or if any key is allowed.
        """
        near = self._known_spellings().get(spelling_of(key), ())
        return near[0] if len(near) == 1 and near[0] != key and near[0] not in given else None

    @property
    def required(self) -> frozenset[str]:
        """Names of the members that an object must have, if there is only one kind of object."""
        return self._walker.required(self._schema).union(*map(self._walker.required, self.shapes()))

    def shapes(self) -> list[Any]:
        """Return the alternatives that are objects."""
        merged = self._walker.merged(self._schema)
        ways = [way for word in ("anyOf", "oneOf") if isinstance(found := merged.get(word), list) for way in found]
        return [way for way in ways if "object" in self._walker.types(way)]

    @property
    def may_have_homes(self) -> bool:
        """Whether `homes` may find anything: it is certain to find nothing if no declared member has members itself."""
        schema = self._schema
        if not isinstance(schema, Mapping) or any(word in schema for word in COMBINING_KEYWORDS):
            return True
        members = properties(schema)
        return len(members) <= MAX_MEMBERS_WITH_HOMES and any(
            isinstance(member, Mapping) and any(word in member for word in DESCRIBING_KEYWORDS)
            for member in members.values()
        )

    def homes(self) -> Mapping[str, str]:
        """Return the keys that only one object among the declared members can contain, with that member: no other value
        can contain them at any depth, and no object allows further keys.
        """
        left = iter(range(MAX_PARTS))
        names = self._walker.names(self._schema) or ()
        if len(names) > MAX_MEMBERS_WITH_HOMES:
            return {}
        found: dict[str, str | None] = dict.fromkeys(names)
        for name in names:
            node = self.member(name)
            keys = None if node is None else node.keys_within(MAX_HOME_DEPTH, left)
            if node is None:
                continue
            if keys is None:
                return {}
            only = node.types - {"null"} == OBJECT and len(node.shapes()) <= 1
            direct, deeper = keys
            found |= {key: name if only and key not in found and node.declares(key) else None for key in direct}
            found |= dict.fromkeys(deeper)
        return {key: home for key, home in found.items() if home is not None}

    def keys_within(self, depth: int, left: Iterator[int]) -> tuple[AbstractSet[str], AbstractSet[str]] | None:
        """Return the keys of the object that a value may be, and those of all objects inside. Return None if there may
        be other keys, more than `depth` levels, or more subschemas than are `left` to read.
        """
        if depth == 0 or next(left, None) is None:
            return None
        names: AbstractSet[str] = frozenset()
        inside: list[Node | None] = [self.items()] if "array" in self.types and self.types != ANY else []
        if "object" in self.types and self.types != ANY:
            names = self._walker.names(self._schema) or frozenset()
            if not names:
                return None
            inside += map(self.member, names)
        deeper: set[str] = set()
        for node in inside:
            keys = (frozenset(), frozenset()) if node is None else node.keys_within(depth - 1, left)
            if keys is None:
                return None
            deeper.update(*keys)
        return names, deeper

    def streams_key(self, begun: str) -> bool:
        """Return whether a key that begins like this either begins like every declared one that it may refer to, or
        refers to none.
        """
        spelling = spelling_of(begun)
        return all(
            name.startswith(begun)
            for known, names in self._known_spellings().items()
            if known.startswith(spelling)
            for name in names
        )

    def _known_spellings(self) -> Mapping[str, Sequence[str]]:
        """Return the declared members by spelling, or an empty mapping if any key is allowed."""
        if self._spellings is None:
            names = tuple(self._walker.names(self._schema) or ())
            self._spellings = _shared_spellings(names) if len(names) <= MAX_SHARED_NAMES else _by_spelling(names)
        return self._spellings

    def items(self) -> "Node | None":
        """Return the node of an array's items, or None if the schema does not describe them."""
        if self._items is None:
            found = self._walker.part(self._schema, None)
            self._items = (None if found is None else Node(found, self._walker),)
        return self._items[0]


def _by_spelling(names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the names by spelling."""
    found: dict[str, list[str]] = {}
    for name in names:
        if spelling := spelling_of(name):
            found.setdefault(spelling, []).append(name)
    return found


_shared_spellings = lru_cache(maxsize=256)(_by_spelling)
"""Returns the same, which calls of the same tool share. Never changed."""


def described_node(schema: object) -> Node | None:
    """Return the node of a tool's arguments object, or None if the schema describes no arguments."""
    if not isinstance(schema, Mapping) or not any(schema.get(word) for word in DESCRIBING_KEYWORDS[1:]):
        return None
    return arguments_node(schema)


def takes_nothing(schema: object) -> bool:
    """Return whether the schema of a tool shows that the tool has no parameters."""
    described = any(isinstance(schema, Mapping) and schema.get(word) for word in DESCRIBING_KEYWORDS[1:])
    return isinstance(schema, Mapping) and bool(schema) and not described


def arguments_node(schema: object) -> Node:
    """Return the node of a tool's arguments object, whether or not the schema describes any arguments."""
    return Node(schema, SchemaWalker(schema), types=ANY)


def _member(schema: Mapping[str, Any], key: str) -> object:
    """Return the subschema that this schema itself contains for a member, if any."""
    declared = properties(schema)
    if key in declared:
        return declared[key]
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) and "patternProperties" not in schema else None


def _items(schema: Mapping[str, Any]) -> object:
    """Return the subschema that this schema itself contains for all items, if any."""
    found = schema.get("items")
    return found if isinstance(found, Mapping) and "prefixItems" not in schema else None


def json_types_of(value: object) -> tuple[str, ...]:
    """Return the JSON types of a Python value."""
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
