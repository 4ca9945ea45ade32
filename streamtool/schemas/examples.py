"""Example arguments made from a tool's schema, so that every example in the tool prompt uses real tools.

They are deterministic and small: they contain only the required parameters (or the first one if none is required), each
with a value from the schema (`examples`, `default`, `const`, `enum`) or, failing that, the simplest value of the type.
"""

import json
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from statemachine import Call
from statemachine.schema import SchemaWalker
from streamtool.core.conversation import Tool
from streamtool.schemas.parameters import Schema

CUSTOM: Schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters that represent the raw text of a custom tool."""

_DEPTH = 3
_LENGTH = 200  # maximum length of a value from the schema that is used in an example
_VALUES = 1000  # maximum number of values in one example
_EXAMINED = 64  # maximum number of values from the schema to examine


def schema_of(tool: Tool) -> Schema | None:
    """Return the schema that the model sees; a custom tool takes its raw text as `input`."""
    return CUSTOM if tool.custom else tool.parameters


def example_call(tool: Tool, *, other: bool = False) -> Call:
    """Return a valid call to this tool; `other` selects different values where the schema allows several."""
    root = schema_of(tool) or {}
    return Call(tool.name, json.dumps(_Example(root, other=other).object(root, 0), ensure_ascii=False))


class _Example:
    """The arguments of one example, and the number of values in them so far."""

    __slots__ = ("_chosen", "_left", "_other", "_walker")

    def __init__(self, root: Schema, *, other: bool) -> None:
        self._walker = SchemaWalker(root, _VALUES)
        self._other = other
        self._left = _VALUES
        self._chosen: dict[tuple[int, int], list[Any]] = {}  # keyed by the identity of the schema's own objects

    def object(self, schema: Schema, depth: int) -> dict[str, Any]:
        """Return the required members. If none is required at the top level, return the first one."""
        found, required = self._walker.merged(schema), self._walker.required(schema)
        members = found.get("properties")
        known = members if isinstance(members, Mapping) else {}
        key = id(members), id(required)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = [name for name in known if name in required]
        chosen = chosen or list(islice(known, 1 if depth == 0 else 0))
        return {str(name): self._value(known[name], str(name), depth + 1) for name in chosen[: max(self._left, 0)]}

    def _value(self, schema: Any, name: str, depth: int) -> Any:
        self._left -= 1
        schema = self._walker.resolve(schema)
        named = _schema_value(schema, other=self._other)
        if named is not None:
            return named
        for key in ("anyOf", "oneOf", "allOf"):
            options = schema.get(key)
            if isinstance(options, list | tuple) and options and depth < _DEPTH:
                return self._value(options[0], name, depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list | tuple):
            kind = next((k for k in kind if k != "null"), "null")
        if kind is None and isinstance(schema.get("properties"), Mapping):
            kind = "object"
        match kind:
            case "integer" | "number":
                low = schema.get("minimum")
                return low if isinstance(low, int) and low > 1 else 1 + self._other
            case "boolean":
                return not self._other
            case "null":
                return None
            case "array":
                return [self._value(schema.get("items"), name, depth + 1)] if depth < _DEPTH else []
            case "object":
                return self.object(schema, depth) if depth < _DEPTH else {}
            case _:
                return f"{'another' if self._other else 'some'} {name}"


def _schema_value(schema: Schema, *, other: bool) -> Any:
    """Return a short value from the schema, or None; `other` prefers the last values over the first ones."""
    lists = [[schema[key]] for key in ("const", "default") if key in schema]
    lists += [schema[key] for key in ("enum", "examples") if isinstance(schema.get(key), list | tuple)]
    values = chain.from_iterable(map(reversed, reversed(lists)) if other else lists)
    return next((value for value in islice(values, _EXAMINED) if value is not None and _is_short(value)), None)


def _is_short(value: Any) -> bool:
    sized = isinstance(value, str | list | tuple | Mapping)
    return not (sized and len(value) > _LENGTH) and len(json.dumps(value, default=str)) <= _LENGTH
