"""What checking against a schema may cost, known before it is checked: a schema is the caller's, and may be hostile.

Theory of operation. A few lines of `anyOf` and `$ref` can ask for more work than there is time (each level that refers
twice to the next one doubles it), or for more levels than a thread has stack, which would end the process. So the
schema is read as a graph first. Its nodes are the subschemas that checking can reach. An edge leads either to a
subschema that is checked *at the same value* (`allOf`, `anyOf`, `$ref` …) or to one for a *child* (`properties`,
`items` …). From that follow

* the **height**, the longest way along edges of the first kind; a cycle of them means nothing, and is declined;
* the **load**, how often one value can be looked at, given the depth of the document: a value is looked at once by
  the node, and as often as the edges at the same place and those from its parent say. Of `properties` only one holds
  for a child, so they count once.

The load times the number of values bounds the work. `prepare` declines what cannot be bounded: references that lead out
of the schema (nothing is ever fetched), bases of their own inside of it (`$id`), too many nodes or patterns.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from attrs import define

from statemachine.schema import MISSING, follow

Json = Any  # a decoded JSON value

NODES: Final = 20_000
"""Subschemas that checking may reach."""
HEIGHT: Final = 48
"""Subschemas in a row at the same value."""
PATTERNS: Final = 200
DEEPEST: Final = 128
"""Levels of a document that is checked."""
STACK: Final = 4_000
"""The height times the depth of a document: levels of the stack."""
STEPS: Final = 300_000
"""Nodes times levels of a document, of a schema that refers to itself."""
LEVELS: Final = 12
"""Levels after which a schema is taken for one that refers to itself."""
MOST: Final = 10**9

_SAME = ("allOf", "anyOf", "oneOf")
_SAME_ONE = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DIALECT = re.compile(r"https?://json-schema\.org/(?:draft-0[467]|draft/(?:2019-09|2020-12))/schema#?\Z")
_IGNORED = ("format", "contentEncoding", "contentMediaType", "contentSchema")
"""What is never asserted."""


class Unbounded(Exception):
    """The schema cannot be checked against within bounds."""


_Numbers = tuple[int, ...]  # the collector of garbage has nothing to do with them


@define(eq=False)
class _Node:
    """One subschema."""

    weight: int = 1
    same: _Numbers = ()
    """Nodes for the same value."""
    groups: tuple[tuple[_Numbers, _Numbers], ...] = ()
    """Nodes for members and for items of it: those of which one holds for a child, and those that all may hold."""
    again: bool = False
    """What is said for the same value is looked at once more, for what it has seen."""


class SchemaCost:
    """What checking against one schema may cost."""

    __slots__ = ("_levels", "_loads", "_nodes", "_order", "_settled", "alternatives", "height", "patterns")

    def __init__(self, nodes: list[_Node], *, alternatives: bool, patterns: int) -> None:
        self._nodes = nodes
        self._order, self.height = _ordered(nodes)
        self._loads = [0] * len(nodes)
        self._levels: list[int] = []
        self._settled = False
        self.alternatives = alternatives
        """It has alternatives, whose errors are told for each of them."""
        self.patterns = patterns
        """Patterns in it."""

    @property
    def flat(self) -> int | None:
        """The load for a document of any depth; None if it depends on the depth."""
        self.load(LEVELS)
        return self._levels[-1] if self._settled else None

    def load(self, depth: int) -> int:
        """How often one value may be looked at, in a document with so many levels; at least `MOST` for too often."""
        while not self._settled and len(self._levels) <= depth:
            if len(self._nodes) * len(self._levels) > STEPS:
                return MOST
            self._deepen()
        return self._levels[min(depth, len(self._levels) - 1)]

    def _deepen(self) -> None:
        """Works out the loads for one level more."""
        before, nodes = self._loads, self._nodes
        now = [0] * len(nodes)
        for at in self._order:
            node = nodes[at]
            below = 0
            for one, many in node.groups:
                kind = max((before[child] for child in one), default=0) + sum(before[child] for child in many)
                below = max(below, kind)
            same = sum(now[other] for other in node.same)
            now[at] = min(MOST, node.weight + below + same * (1 + node.again))
        self._settled = now == before
        self._loads = now
        self._levels.append(now[0])
        if self._settled:  # nothing will be asked of them any more, and a validator is kept for long
            self._nodes, self._order, self._loads = [], [], []


def prepare(schema: Json) -> SchemaCost:
    """What checking against the schema costs.

    The schema is changed in place: `nullable` (OpenAPI) becomes a type, what is never asserted is taken out.

    Raises:
        Unbounded: the schema cannot be checked against.

    """
    if isinstance(schema, dict):
        dialect = schema.get("$schema")
        if not isinstance(dialect, str) or not _DIALECT.match(dialect):
            schema.pop("$schema", None)
    return _Graph(schema).bounds()


class _Graph:
    """Reads one schema into nodes."""

    __slots__ = ("_alternatives", "_anchors", "_identity", "_ids", "_nodes", "_old", "_patterns", "_root", "_waiting")

    def __init__(self, root: Json) -> None:
        self._root = root
        self._old = isinstance(root, dict) and "draft-04" in str(root.get("$schema"))
        self._identity = root.get("id" if self._old else "$id") if isinstance(root, dict) else None
        self._nodes: list[_Node] = []
        self._ids: dict[int, int] = {}
        self._anchors: dict[str, Json] = {}
        self._waiting: list[tuple[Json, int]] = []
        self._patterns = 0
        self._alternatives = False

    def bounds(self) -> SchemaCost:
        """The whole of it."""
        self._node(self._root)
        later: list[tuple[int, str]] = []
        while self._waiting:
            while self._waiting:
                later += self._read(*self._waiting.pop())
            # Anchors may stand behind what refers to them.
            for at, reference in later:
                self._nodes[at].same += (self._node(self._target(reference)),)
            later.clear()
        return SchemaCost(self._nodes, alternatives=self._alternatives, patterns=self._patterns)

    def _node(self, schema: Json) -> int:
        """The number of a subschema's node."""
        if not isinstance(schema, dict | bool):
            raise Unbounded
        at = self._ids.get(id(schema)) if isinstance(schema, dict) else None
        if at is None:
            at = len(self._nodes)
            if at >= NODES:
                raise Unbounded
            self._nodes.append(_Node())
            if isinstance(schema, dict):
                self._ids[id(schema)] = at
                self._waiting.append((schema, at))
        return at

    def _all(self, schemas: Iterable[Json]) -> _Numbers:
        return tuple(map(self._node, schemas))

    def _read(self, schema: dict[str, Json], at: int) -> Iterator[tuple[int, str]]:
        """Reads the edges of a node, but those of references, which are yielded."""
        if at and (isinstance(schema.get("$id"), str) or (self._old and isinstance(schema.get("id"), str))):
            raise Unbounded
        node = self._nodes[at]
        _clean(schema)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(word), str):
                self._anchors[name] = schema
        for word in _SAME:
            if isinstance(ways := schema.get(word), list):
                node.same += self._all(ways)
        self._alternatives = self._alternatives or "anyOf" in schema or "oneOf" in schema
        node.same += self._given(schema, *_SAME_ONE)
        for word in _MAPS:
            # The older `dependencies` may hold lists of names as well.
            node.same += self._all(way for way in _values(schema, word) if not isinstance(way, list))
        node.groups = (self._members(schema), self._items(schema))
        node.again = "unevaluatedProperties" in schema or "unevaluatedItems" in schema
        for word in _DEFINITIONS:
            self._all(_values(schema, word))  # what nobody refers to is compiled all the same
        node.weight += _weight(schema)
        self._patterns += ("pattern" in schema) + len(_values(schema, "patternProperties"))
        if self._patterns > PATTERNS:
            raise Unbounded
        return ((at, schema[word]) for word in _REFERENCES if isinstance(schema.get(word), str))

    def _members(self, schema: dict[str, Json]) -> tuple[_Numbers, _Numbers]:
        one = self._all(_values(schema, "properties")) + self._given(schema, "additionalProperties")
        many = self._all(_values(schema, "patternProperties"))
        return one, many + self._given(schema, "unevaluatedProperties", "propertyNames")

    def _items(self, schema: dict[str, Json]) -> tuple[_Numbers, _Numbers]:
        one: _Numbers = ()
        for word in ("prefixItems", "items"):
            found = schema.get(word)
            one += self._all(found if isinstance(found, list) else [] if found is None else [found])
        return one + self._given(schema, "additionalItems"), self._given(schema, "contains", "unevaluatedItems")

    def _given(self, schema: dict[str, Json], *words: str) -> _Numbers:
        return self._all(schema[word] for word in words if word in schema)

    def _target(self, reference: str) -> Json:
        """What a reference leads to, inside of this schema."""
        place, sign, fragment = reference.partition("#")
        if place and place != str(self._identity).rstrip("#"):
            raise Unbounded
        if not sign or not fragment:
            return self._root
        if not fragment.startswith("/"):
            return self._anchors.get(unquote(fragment))
        found = follow(f"#{fragment}", self._root)
        if found is MISSING:
            raise Unbounded
        return found


def _values(schema: dict[str, Json], word: str) -> list[Json]:
    found = schema.get(word)
    return list(found.values()) if isinstance(found, Mapping) else []


def _weight(schema: dict[str, Json]) -> int:
    """What comparing costs besides: each name that may be missing, each value that is not plain."""
    options = schema.get("enum")
    names = [schema.get("required"), *_values(schema, "dependentRequired"), *_values(schema, "dependencies")]
    weight = sum(len(missing) for missing in names if isinstance(missing, list))
    return weight + (sum(isinstance(one, dict | list) for one in options) if isinstance(options, list) else 0)


def _clean(schema: dict[str, Json]) -> None:
    for word in _IGNORED:
        schema.pop(word, None)
    kind = schema.get("type")
    if schema.get("nullable") is True and kind is not None:
        kinds = list(kind) if isinstance(kind, list) else [kind]
        schema["type"] = kinds if "null" in kinds else [*kinds, "null"]


def _ordered(nodes: list[_Node]) -> tuple[list[int], int]:
    """The nodes, each after those at the same value that it needs; and the height.

    Raises:
        Unbounded: they form a cycle, or are too high.

    """
    order: list[int] = []
    heights = [0] * len(nodes)  # 0: not seen, -1: on the way
    for start in range(len(nodes)):
        if heights[start]:
            continue
        heights[start] = -1
        path = [(start, iter(nodes[start].same))]
        while path:
            at, rest = path[-1]
            after = next((other for other in rest if heights[other] <= 0), None)
            if after is None:
                path.pop()
                heights[at] = 1 + max((heights[other] for other in nodes[at].same), default=0)
                order.append(at)
            elif heights[after] or len(path) > HEIGHT:
                raise Unbounded
            else:
                heights[after] = -1
                path.append((after, iter(nodes[after].same)))
    height = max(heights)
    if height > HEIGHT:
        raise Unbounded
    return order, height
