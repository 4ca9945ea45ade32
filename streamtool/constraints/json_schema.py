"""A call as one JSON object: the JSON Schema of a whole reply that is a call and nothing else.

The keys are those of the format that is taught, as far as it writes a call as one object; else `name` and `arguments`.
Several tools are alternatives, each with its own arguments. A tool's schema that refers to itself moves to `$defs`,
since the root is another one now.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from statemachine import FORMATS
from statemachine.formats import Envelope
from streamtool.conversation import Json, Tool

OBJECT: Final[Mapping[str, Json]] = {"type": "object"}
CUSTOM: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The arguments of a tool that takes raw text."""
NOTHING: Final[Mapping[str, Json]] = {"type": "object", "properties": {}, "additionalProperties": False}
_DEPTH: Final = 64
"""Levels of a schema that are read; a deeper one is any object."""


def arguments_schema(tool: Tool) -> Mapping[str, Json]:
    """JSON Schema of a tool's arguments, an object whatever the client wrote."""
    if tool.custom:
        return CUSTOM
    if tool.parameters is None:
        return NOTHING
    if tool.parameters.get("type", "object") != "object":
        return OBJECT
    return {"type": "object", **{key: value for key, value in tool.parameters.items() if key not in ("$schema", "$id")}}


def call_schema(tools: Sequence[Tool], format: str) -> dict[str, Json]:
    """JSON Schema of a call of one of the tools, as a bare object."""
    definitions: dict[str, Json] = {}
    ways = [_call(tool, i, format, definitions) for i, tool in enumerate(tools)]
    schema = ways[0] if len(ways) == 1 else {"anyOf": ways}
    return {**schema, "$defs": definitions} if definitions else schema


def _envelope(format: str) -> Envelope:
    """The keys under which a call stands in its object."""
    body = FORMATS[format].variants[0].body
    plain = isinstance(body, Envelope) and not (body.keyed or body.calls)
    return body if plain and isinstance(body, Envelope) else Envelope()


def _call(tool: Tool, index: int, format: str, definitions: dict[str, Json]) -> dict[str, Json]:
    envelope = _envelope(format)
    name, arguments = envelope.name[0], envelope.arguments[0]
    schema: Json = arguments_schema(tool)
    if "$ref" in str(schema):
        key = f"tool_{index}"
        moved = _moved(schema, f"#/$defs/{key}", 0)
        definitions[key] = OBJECT if moved is None else moved
        schema = {"$ref": f"#/$defs/{key}"}
    call = _object({name: {"type": "string", "enum": [tool.name]}, arguments: schema})
    if not envelope.written_nest:
        return call
    members = {envelope.thought: {"type": "string"}} if envelope.thought else {}
    return _object({**members, envelope.written_nest: call})


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _moved(schema: Any, root: str, depth: int) -> Json:
    """The schema, its references to its own root led to the new place; None if it is too deep."""
    if depth > _DEPTH:
        return None
    if isinstance(schema, list | tuple):
        items = [_moved(item, root, depth + 1) for item in schema]
        return None if any(new is None and old is not None for new, old in zip(items, schema, strict=True)) else items
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = root + value[1:]
            continue
        moved[key] = _moved(value, root, depth + 1)
        if moved[key] is None and value is not None:
            return None
    return moved
