"""What the machine reads of a JSON Schema: which types a parameter may have. Nothing else of it matters here.

`$ref` inside the schema, `anyOf`, `oneOf`, `allOf`, `enum` and `const` are followed, to a bounded depth; whatever is
not understood allows every type.
"""

from collections.abc import Mapping
from typing import Any

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
DEPTH = 16


def properties(schema: object) -> Mapping[str, Any]:
    """The declared parameters of a tool; {} if none are declared."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def types(schema: object, key: str) -> frozenset[str]:
    """The JSON types that the parameter `key` of a tool with this schema may have."""
    declared = properties(schema)
    if key in declared:
        return allowed(declared[key], schema)
    extra = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    return allowed(extra, schema) if isinstance(extra, Mapping) else ANY


def allowed(schema: object, root: object, depth: int = DEPTH) -> frozenset[str]:
    """The JSON types that a schema allows."""
    if not isinstance(schema, Mapping) or depth == 0:
        return ANY
    if isinstance(ref := schema.get("$ref"), str):
        return allowed(resolve(ref, root), root, depth - 1)
    result = ANY
    declared = schema.get("type")
    if isinstance(declared, str):
        result &= {declared}
    elif isinstance(declared, list):
        result &= {name for name in declared if isinstance(name, str)}
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list) and values:
            result &= {kind for value in values for kind in kinds(value)}
    for word in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(word), list) and ways:
            result &= frozenset().union(*(allowed(way, root, depth - 1) for way in ways))
    if isinstance(ways := schema.get("allOf"), list):
        for way in ways:
            result &= allowed(way, root, depth - 1)
    if declared is None and "properties" in schema:
        result &= {"object"}
    return (result | {"integer"} if "number" in result else result) or ANY


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
