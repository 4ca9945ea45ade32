"""The cost of validating against a schema, determined in advance, because schemas come from callers and may be hostile.

Theory of operation. A few lines of `anyOf` and `$ref` can require more work than there is time for (each level that
refers to the next one twice doubles the work), or more levels than a thread's stack can hold, which would crash the
process. The schema is therefore converted to a graph first. Its nodes are the subschemas that checking can reach. An
edge leads either to a subschema that is checked *at the same value* (`allOf`, `anyOf`, `$ref`, …) or to one for a
*child* (`properties`, `items`, …). The graph yields

* the **height**, the longest path along edges of the first kind; a cycle of such edges is meaningless and is rejected;
* the **load**, the number of times that one value may be examined, given the depth of the document: once for the node
  itself, plus the loads along its edges at the same value and along the edges from its parent. Only one of the
  `properties` applies to a child, so together they count once.

The load times the number of values bounds the work. `measure_cost` rejects schemas whose cost cannot be bounded: those
with external references (nothing is ever fetched), with nested base URIs (`$id`), or with too many nodes or patterns.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from attrs import define

from statemachine.schema import MISSING, follow, properties
from streamtool.core.json_value import Json

NODES: Final = 20_000
"""Maximum number of subschemas that checking may reach."""
HEIGHT: Final = 48
"""Maximum number of nested subschemas at the same value."""
PATTERNS: Final = 200
NAMES_IN_ALTERNATIVES: Final = 100_000
"""Maximum number of `properties` and `required` names in all alternatives together. A schema that several alternatives
refer to counts once for each: jsonschema-rs reads its names each time, 100,000 of them in 15 to 30 ms.
"""
DEEPEST: Final = 128
"""Maximum number of levels in a document that is checked."""
STACK: Final = 4_000
"""Maximum number of stack levels: the height times the depth of the document."""
STEPS: Final = 300_000
"""Maximum number of nodes times levels of the document, for a recursive schema."""
LEVELS: Final = 12
"""Maximum depth that loads are computed for in advance; if the load still grows there, it depends on the depth."""
UNBOUNDED_LOAD: Final = 10**9

_SAME = ("allOf", "anyOf", "oneOf")
_SAME_ONE = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DIALECT = re.compile(r"https?://json-schema\.org/(?:draft-0[467]|draft/(?:2019-09|2020-12))/schema#?\Z")
_IGNORED = ("format", "contentEncoding", "contentMediaType", "contentSchema")
"""Keywords that are never asserted."""


class Unbounded(Exception):
    """The cost of checking against the schema exceeds the limits, or cannot be bounded."""


_Numbers = tuple[int, ...]  # so that the garbage collector need not track these


@define(eq=False)
class _Node:
    """One subschema."""

    weight: int = 1
    names: int = 0
    """Number of names in `properties` and `required`."""
    same: _Numbers = ()
    """The nodes that are checked at the same value."""
    merged: _Numbers = ()
    """Those of them that always apply: `allOf` and references."""
    groups: tuple[tuple[_Numbers, _Numbers], ...] = ()
    """A pair for the members and a pair for the items. Each pair consists of mutually exclusive nodes, and nodes that
    may all apply to the same child.
    """
    evaluated_twice: bool = False
    """Whether the nodes at the same value are examined again, to determine which members or items they have not
    evaluated.
    """


class SchemaCost:
    """The cost of checking against one schema."""

    __slots__ = ("_converged", "_levels", "_loads", "_nodes", "_order", "alternatives", "height", "patterns")

    def __init__(self, nodes: list[_Node], *, alternatives: bool, patterns: int) -> None:
        self._nodes = nodes
        self._order, self.height = _topological_order(nodes)
        self._loads = [0] * len(nodes)
        self._levels: list[int] = []
        self._converged = False
        self.alternatives = alternatives
        """Whether the schema contains alternatives; errors are reported separately for each alternative."""
        self.patterns = patterns
        """The number of patterns in the schema."""

    def names(self) -> list[int]:
        """Return the number of names of each node, including those of the nodes that always apply with it."""
        names = [0] * len(self._nodes)
        for at in self._order:
            node = self._nodes[at]
            names[at] = min(UNBOUNDED_LOAD, node.names + sum(names[other] for other in node.merged))
        return names

    @property
    def flat(self) -> int | None:
        """The load for a document of any depth, or None if the load depends on the depth."""
        self.load(LEVELS)
        return self._levels[-1] if self._converged else None

    def load(self, depth: int) -> int:
        """Return the number of times that a value in a document of this depth may be examined. `UNBOUNDED_LOAD` or more
        means that the limits are exceeded.
        """
        while not self._converged and len(self._levels) <= depth:
            if len(self._nodes) * len(self._levels) > STEPS:
                return UNBOUNDED_LOAD
            self._deepen()
        return self._levels[min(depth, len(self._levels) - 1)]

    def _deepen(self) -> None:
        """Compute the loads for one more level."""
        before, nodes = self._loads, self._nodes
        now = [0] * len(nodes)
        for at in self._order:
            node = nodes[at]
            below = 0
            for one, many in node.groups:
                kind = max((before[child] for child in one), default=0) + sum(before[child] for child in many)
                below = max(below, kind)
            same = sum(now[other] for other in node.same)
            now[at] = min(UNBOUNDED_LOAD, node.weight + below + same * (1 + node.evaluated_twice))
        self._converged = now == before
        self._loads = now
        self._levels.append(now[0])
        if self._converged:  # no longer needed, and a validator is cached for a long time
            self._nodes, self._order, self._loads = [], [], []


def measure_cost(schema: Json) -> SchemaCost:
    """Return the cost of checking against the schema. Raises Unbounded if the cost cannot be bounded.

    The schema is modified in place: `nullable` (OpenAPI) becomes a type, and keywords that are never asserted are
    removed.
    """
    if isinstance(schema, dict):
        dialect = schema.get("$schema")
        if not isinstance(dialect, str) or not _DIALECT.match(dialect):
            schema.pop("$schema", None)
    return _Graph(schema).cost()


class _Graph:
    """A converter from one schema to nodes."""

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
        self._ways: list[int] = []
        """The nodes that are alternatives of another one, once for each."""

    def cost(self) -> SchemaCost:
        """Read the entire schema and return its cost."""
        self._node(self._root)
        later: list[tuple[int, str]] = []
        while self._waiting:
            while self._waiting:
                later += self._read(*self._waiting.pop())
            # Anchors may be defined after they are referenced.
            for at, reference in later:
                target = (self._node(self._target(reference)),)
                self._nodes[at].same += target
                self._nodes[at].merged += target
            later.clear()
        found = SchemaCost(self._nodes, alternatives=self._alternatives, patterns=self._patterns)
        names = found.names()
        if sum(names[way] for way in self._ways) > NAMES_IN_ALTERNATIVES:
            raise Unbounded
        return found

    def _node(self, schema: Json) -> int:
        """Return the node number of a subschema."""
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
        """Read the edges of a node, except for its references. Yield each reference with the node's number."""
        if at and (isinstance(schema.get("$id"), str) or (self._old and isinstance(schema.get("id"), str))):
            raise Unbounded
        node = self._nodes[at]
        _normalize(schema)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(word), str):
                self._anchors[name] = schema
        for word in _SAME:
            if isinstance(ways := schema.get(word), list):
                node.same += (found := self._all(ways))
                if word == "allOf":
                    node.merged = found
                else:
                    self._ways += found
        self._alternatives = self._alternatives or "anyOf" in schema or "oneOf" in schema
        required = schema.get("required")
        node.names = len(properties(schema)) + (len(required) if isinstance(required, list) else 0)
        node.same += self._given(schema, *_SAME_ONE)
        for word in _MAPS:
            # The older `dependencies` may contain lists of names as well.
            node.same += self._all(way for way in _values(schema, word) if not isinstance(way, list))
        node.groups = (self._members(schema), self._items(schema))
        node.evaluated_twice = "unevaluatedProperties" in schema or "unevaluatedItems" in schema
        for word in _DEFINITIONS:
            self._all(_values(schema, word))  # unused definitions are compiled, too
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
        """Return the target of a reference, which must be inside this schema."""
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
    """Return the extra cost of comparisons: one for each name that may be missing, and one for each container among the
    `enum` values.
    """
    options = schema.get("enum")
    names = [schema.get("required"), *_values(schema, "dependentRequired"), *_values(schema, "dependencies")]
    weight = sum(len(missing) for missing in names if isinstance(missing, list))
    return weight + (sum(isinstance(one, dict | list) for one in options) if isinstance(options, list) else 0)


def _normalize(schema: dict[str, Json]) -> None:
    for word in _IGNORED:
        schema.pop(word, None)
    kind = schema.get("type")
    if schema.get("nullable") is True and kind is not None:
        kinds = list(kind) if isinstance(kind, list) else [kind]
        schema["type"] = kinds if "null" in kinds else [*kinds, "null"]


def _topological_order(nodes: list[_Node]) -> tuple[list[int], int]:
    """Return the nodes in an order in which each follows the nodes that it needs at the same value, and return the
    height.

    Raises Unbounded if they form a cycle or exceed the maximum height.
    """
    order: list[int] = []
    heights = [0] * len(nodes)  # 0: not seen, -1: on the current path
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
