"""Example arguments, made from a tool's schema: what the tool prompt shows, so that every example is about real tools.

Deterministic and small: the required parameters only (the first one when none is required), a value that the schema
itself names where there is one (`examples`, `default`, `const`, `enum`), else the plainest value of the type.
"""

import json
from collections.abc import Mapping
from typing import Any

from statemachine import Call
from statemachine.schema import SchemaWalker
from streamtool.conversation import Tool
from streamtool.schema import Schema, parameters

CUSTOM: Schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters that stand for the raw text of a custom tool."""

_DEPTH = 3
_LENGTH = 200  # characters of a value that the schema names and that is still fit for an example


def schema_of(tool: Tool) -> Schema | None:
    """The schema that the model is shown; a custom tool takes its raw text as `input`."""
    return CUSTOM if tool.custom else tool.parameters


def example_call(tool: Tool, *, other: bool = False) -> Call:
    """A valid call of this tool; `other` gives different values where the schema leaves a choice."""
    root = schema_of(tool) or {}
    return Call(tool.name, json.dumps(_object(root, SchemaWalker(root), 0, other=other), ensure_ascii=False))


def _object(schema: Schema, walker: SchemaWalker, depth: int, *, other: bool) -> dict[str, Any]:
    root: Any = walker.root
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    known = parameters({**shared, **schema})
    chosen = [p for p in known if p.required] or known[: 1 if depth == 0 else 0]
    return {p.name: _value(p.schema, walker, p.name, depth + 1, other=other) for p in chosen}


def _value(schema: Any, walker: SchemaWalker, name: str, depth: int, *, other: bool) -> Any:
    schema = walker.resolve(schema)
    named = _named(schema, other=other)
    if named is not None:
        return named
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list | tuple) and options and depth < _DEPTH:
            return _value(options[0], walker, name, depth + 1, other=other)
    kind = schema.get("type")
    if isinstance(kind, list | tuple):
        kind = next((k for k in kind if k != "null"), "null")
    if kind is None and isinstance(schema.get("properties"), Mapping):
        kind = "object"
    match kind:
        case "integer" | "number":
            low = schema.get("minimum")
            return low if isinstance(low, int) and low > 1 else 1 + other
        case "boolean":
            return not other
        case "null":
            return None
        case "array":
            return [_value(schema.get("items"), walker, name, depth + 1, other=other)] if depth < _DEPTH else []
        case "object":
            return _object(schema, walker, depth, other=other) if depth < _DEPTH else {}
        case _:
            return f"{'another' if other else 'some'} {name}"


def _named(schema: Schema, *, other: bool) -> Any:
    """A value that the schema names, None when it names none that is short."""
    values: list[Any] = [schema[key] for key in ("const", "default") if key in schema]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list | tuple):
            values.extend(schema[key])
    fit = [value for value in values if value is not None and len(json.dumps(value, default=str)) <= _LENGTH]
    return fit[-1 if other else 0] if fit else None
