"""The JSON Schema of the settings file, made from the fields and readers that read it.

It describes the file before `env:NAME` is replaced, so each value that is not an arbitrary string may also be such a
reference. Some rules are left to the readers: which strings are valid, and which settings go together.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import getsource
from itertools import pairwise
from typing import Any, Final

from attrs import NOTHING, Attribute, fields

from streamtool.settings.data import Settings
from streamtool.settings.readers import key_of, reader_for, shape_of

TITLE: Final = "streamtool settings"
_REFERENCE: Final = {"type": "string", "pattern": "^env:[A-Z_][A-Z0-9_]*$"}
_STRING: Final = {"type": "string", "minLength": 1}
_NOT_IN_FILES: Final = ("calibrations",)


def settings_schema() -> dict[str, Any]:
    """Return the schema."""
    tables: dict[str, Any] = {}
    _define(Settings, tables)
    main = tables.pop(Settings.__name__)
    definitions = {"reference": {**_REFERENCE, "description": "the name of an environment variable"}, **tables}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        **main,
        "$defs": dict(sorted(definitions.items())),
    }


def _define(cls: Any, tables: dict[str, Any]) -> None:
    """Add the schema of a class, and of all classes that its fields contain."""
    if cls.__name__ in tables:
        return
    tables[cls.__name__] = found = {"type": "object", "additionalProperties": False}
    told = _descriptions(cls)
    properties: dict[str, Any] = {}
    for attribute in file_fields(cls):
        field = _field(attribute, tables)
        if attribute.name in told:
            field = {"description": told[attribute.name], **field}
        properties[key_of(attribute)] = field
    found["properties"] = properties
    required = [key_of(one) for one in file_fields(cls) if one.default is NOTHING]
    if required:
        found["required"] = required


def file_fields(cls: Any) -> Iterator["Attribute[Any]"]:
    """Yield the fields that a file can set; the name of a table is not one of them."""
    for attribute in fields(cls):
        if "read" in attribute.metadata and attribute.name not in _NOT_IN_FILES:
            yield attribute


def _field(attribute: "Attribute[Any]", tables: dict[str, Any]) -> dict[str, Any]:
    read = shape_of(reader_for(attribute))
    shown: dict[str, Any] = _resolved(read, tables)
    default = attribute.default
    if read != _STRING and not _is_table(read):
        shown = {"anyOf": [shown, {"$ref": "#/$defs/reference"}]}
    if isinstance(default, bool | int | float | str):
        shown = {**shown, "default": default}
    return shown


def _is_table(shape: Mapping[str, Any]) -> bool:
    inner = shape.get("items", shape.get("additionalProperties", shape))
    return isinstance(inner, Mapping) and "table" in inner


def _resolved(shape: Any, tables: dict[str, Any]) -> Any:
    """Return the schema with references to the tables in it, and define these tables."""
    if isinstance(shape, list):
        return [_resolved(one, tables) for one in shape]
    if not isinstance(shape, Mapping):
        return shape
    if "table" in shape:
        _define(shape["table"], tables)
        return {"$ref": f"#/$defs/{shape['table'].__name__}"}
    return {name: _resolved(one, tables) for name, one in shape.items()}


@cache
def _descriptions(cls: Any) -> Mapping[str, str]:
    """Return field → the string that follows it in the class."""
    found: dict[str, str] = {}
    tree = ast.parse(getsource(import_module(cls.__module__)))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    for node, following in pairwise(body):
        match node, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(told))):
                found[name] = " ".join(told.split())
    return found
