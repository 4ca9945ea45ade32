"""Conversion of Gemini's schemas, whose type names are in upper case, to JSON Schema.

The schemas follow OpenAPI 3.0: `nullable` replaces the `null` type. Length limits are strings, because they are 64-bit
integers. Source: the `Schema` type of google-genai 3.4.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.core.json_value import Json
from streamtool.protocols.gemini.parts import camel_case_keys

_NO_COUNTERPART: Final = frozenset({"propertyOrdering", "example", "nullable"})
"""Keys that are dropped or converted, because JSON Schema has no key of that name."""
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_NAMED: Final = frozenset({"properties", "$defs", "defs"})
"""Keys whose values map names to schemas."""


def json_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema as JSON Schema. A schema that is already JSON Schema is unchanged."""
    fields = camel_case_keys(schema)
    written = {key: _field(key, value) for key, value in fields.items() if key not in _NO_COUNTERPART}
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
