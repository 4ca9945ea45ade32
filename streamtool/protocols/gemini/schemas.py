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
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "defs", "definitions"})
"""Keys whose values map names to schemas."""
_SCHEMAS: Final = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
"""Keys whose values are schemas."""
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
"""Keys whose values are lists of schemas."""
_TYPES: Final = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL", "TYPE_UNSPECIFIED"})


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


def with_lower_types(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a schema that should be JSON Schema. If its type names are in upper case, it is converted."""
    return json_schema(schema) if _has_upper_types(schema) else schema


def _has_upper_types(value: Json) -> bool:
    if isinstance(value, Mapping):
        kinds = value.get("type")
        named = kinds if isinstance(kinds, list) else [kinds]
        return any(kind in _TYPES for kind in named if isinstance(kind, str)) or any(
            map(_has_upper_types, value.values())
        )
    return isinstance(value, list) and any(map(_has_upper_types, value))


def _field(key: str, value: Json) -> Json:
    match value:
        case str() if key == "type":
            return value.lower()
        case list() if key == "type":
            return [kind.lower() if isinstance(kind, str) else kind for kind in value]
        case str() if key in _COUNTS and value.isdecimal():
            return int(value)
        case dict() if key in _NAMED:
            return {name: json_schema(item) if isinstance(item, dict) else item for name, item in value.items()}
        case dict() if key in _SCHEMAS:
            return json_schema(value)
        case list() if key in _LISTS:
            return [json_schema(item) if isinstance(item, dict) else item for item in value]
    return value
