"""Offered tools: their names and the JSON Schemas of their parameters.

`tools_of` accepts tools in any common form: as sent by clients of the known protocols, as listed by an MCP server, or
as Python functions.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from statemachine.names import NAMESPACES, differs_in_one, spelling_of, without_namespace

Tools = Mapping[str, Any] | Iterable[Any] | None
"""Tools as accepted by a parser: a mapping from names to schemas; a mixed iterable of names, protocol-style tools and
functions; or None, which accepts any name.
"""

SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
"""Keys that may contain a tool's parameter schema: OpenAI, Anthropic, MCP, Gemini."""
JSON_TYPES: Mapping[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    types.NoneType: "null",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    dict: "object",
}
"""Python type → JSON type."""


def tools_of(tools: Tools) -> Mapping[str, Any] | None:
    """Return the JSON Schema of each tool's parameters, by tool name. None is returned unchanged; it means that every
    name is a tool.

    Args:
        tools: a mapping from names to schemas, returned unchanged; or an iterable whose items are names, functions,
            tools in the format of OpenAI (Chat or Responses), Anthropic or MCP, or objects with `name` and
            `inputSchema`.

    Raises:
        TypeError: an item is something else.
    """
    if tools is None:
        return None
    if isinstance(tools, Mapping):
        written = {key for key in ("type", "function", "name") if isinstance(tools.get(key), str)}
        if not written:
            return tools
        raise TypeError("tools is a single tool: pass a list of tools, or a mapping from names to schemas")
    if isinstance(tools, str):
        raise TypeError(f"tools is the string {tools!r}: pass a list of names")
    return dict(map(tool_of, tools))


def tool_of(tool: object) -> tuple[str, Any]:
    """Return the name of a tool and the schema of its parameters.

    Raises:
        TypeError: the argument is not a tool.
    """
    if isinstance(tool, str):
        return tool, None
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        found = inner if isinstance(inner, Mapping) else tool
        if isinstance(name := found.get("name"), str):
            return name, next((found[key] for key in SCHEMA_KEYS if found.get(key) is not None), None)
    elif isinstance(name := getattr(tool, "name", None), str):
        return name, next(
            (schema_of_hint for key in SCHEMA_KEYS if (schema_of_hint := getattr(tool, key, None)) is not None), None
        )
    elif callable(tool) and isinstance(name := getattr(tool, "__name__", None), str):
        return name, schema_of_function(tool)
    raise TypeError(
        f"{tool!r} is not a tool: pass a name, a function, or a tool in OpenAI, Anthropic or MCP format (a `name`, "
        f"and a schema under one of {', '.join(SCHEMA_KEYS)})"
    )


def schema_of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function's parameters; a parameter whose annotation is not a plain type accepts any
    value.
    """
    try:
        hints = typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError, SyntaxError):  # an annotation that does not exist at run time
        hints = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    extra = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            properties[name] = schema_of_hint(hints.get(name))
            if parameter.default is parameter.empty:
                required.append(name)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if not extra:
        found["additionalProperties"] = False
    return found


def schema_of_hint(hint: object) -> dict[str, Any]:
    """Return the JSON Schema of a plain type, or {} for any other type."""
    if hint is None:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return schema_of_hint(arguments[0])
    if origin in (typing.Union, types.UnionType):
        ways = [schema_of_hint(argument) for argument in arguments]
        return {"anyOf": ways} if all(ways) else {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    kind = JSON_TYPES.get(origin if origin is not None else hint)
    if kind is None:
        return {}
    if kind == "array" and arguments and (items := schema_of_hint(arguments[0])):
        return {"type": "array", "items": items}
    return {"type": kind}


MIN_NAMESPACE = 3
"""Minimum number of characters after a blank that may begin a namespace; fewer are more likely a word (`to`)."""


class Toolset:
    """Offered tools, with the lookups that the parser needs."""

    __slots__ = ("_edits", "_schemas", "_spellings")

    def __init__(self, schemas: Mapping[str, Any] | None, *, edits: bool = False) -> None:
        self._schemas = schemas
        self._edits = edits
        """Whether a name may differ from that of an offered tool in one character."""
        self._spellings: dict[str, list[str]] | None = None

    @property
    def accepts_any(self) -> bool:
        """Whether every name is accepted as a tool."""
        return self._schemas is None

    @property
    def only_tool(self) -> str:
        """Name of the only offered tool; "" if several are offered, or if every name is accepted."""
        return next(iter(self._schemas)) if self._schemas is not None and len(self._schemas) == 1 else ""

    def __contains__(self, name: str) -> bool:
        return self._schemas is not None and name in self._schemas

    def begins_name(self, text: str) -> bool:
        """Return whether the name of an offered tool begins with this text."""
        return self._schemas is not None and any(name.startswith(text) for name in self._schemas)

    def may_become_name(self, text: str, *, after_blank: bool) -> bool:
        """Return whether this text may be the beginning of a name that refers to an offered tool."""
        begun = spelling_of(without_namespace(text))
        spaces = NAMESPACES if not after_blank or len(text) >= MIN_NAMESPACE else ()
        if (
            self._schemas is None
            or not begun
            or any(space.startswith(text.casefold().rstrip(".:/")) for space in spaces)
        ):
            return True
        return any(known.startswith(begun) or begun.startswith(known) for known in map(spelling_of, self._schemas))

    def schema(self, name: str | None) -> object:
        """Return the JSON Schema of a tool's parameters, or None if the tool has none."""
        return None if self._schemas is None or name is None else self._schemas.get(name)

    def resolve(self, name: str, *, edits: bool = True) -> str | None:
        """Return the offered tool that a name refers to: the tool with this name or, if it is not offered, the only
        tool whose name is nearly the same (`names.py`). `edits` means that one character may differ if the toolset
        permits it.
        """
        schemas = self._schemas
        if not name:
            return None
        if schemas is None or name in schemas:
            return name
        plain = without_namespace(name)
        near = self.near(name) | self.near(plain)
        if not near and edits and self._edits:
            near = {tool for tool in schemas if differs_in_one(plain, tool)}
        return near.pop() if len(near) == 1 else None

    def near(self, name: str) -> set[str]:
        """Return the offered tools whose names differ from this one only in case and separators."""
        if self._spellings is None:
            self._spellings = {}
            for tool in self._schemas or ():
                self._spellings.setdefault(spelling_of(tool), []).append(tool)
        spelling = spelling_of(name)
        return set(self._spellings.get(spelling, ())) if spelling else set()
