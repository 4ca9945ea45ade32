"""Turns the schemas of Gemini's API, whose types are words in capitals, into JSON Schema.

They are the schemas of OpenAPI 3.0: `nullable` stands in the place of a type `null`, and numbers that bound a length
come as strings, since they have 64 bits.
Source: the type `Schema` of google-genai 3.4.
"""

from collections.abc import Mapping
from typing import Any, Final

from streamtool.protocols.gemini.parts import camel

Json = Any  # a decoded JSON value

_NOWHERE: Final = frozenset({"propertyOrdering", "example", "nullable"})
"""Fields without a counterpart, or with one elsewhere."""
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_NAMED: Final = frozenset({"properties", "$defs", "defs"})
"""Fields that hold a schema for each name."""


def json_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """The schema as JSON Schema. What is JSON Schema already stays as it is."""
    fields = camel(schema)
    written = {key: _field(key, value) for key, value in fields.items() if key not in _NOWHERE}
    if written.get("type") == "type_unspecified":
        del written["type"]
    if fields.get("nullable") is True and isinstance(written.get("type"), str):
        written["type"] = [written["type"], "null"]
        if isinstance(written.get("enum"), list) and None not in written["enum"]:
            written["enum"] = [*written["enum"], None]
    return written


def _field(key: str, value: Json) -> Json:
    match value:
        case str() if key == "type":
            return value.lower()
        case str() if key in _COUNTS and value.isdecimal():
            return int(value)
        case dict() if key in _NAMED:
            return {name: json_schema(item) if isinstance(item, dict) else item for name, item in value.items()}
        case dict() if key in ("items", "additionalProperties"):
            return json_schema(value)
        case list() if key == "anyOf":
            return [json_schema(item) if isinstance(item, dict) else item for item in value]
    return value
