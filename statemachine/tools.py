"""The tools that are offered: their names, and the JSON Schemas of their parameters.

`tools_of` takes them as they are at hand: as clients of the known protocols write them, as an MCP server lists them, or
as Python functions.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Tools = Mapping[str, Any] | Iterable[Any] | None
"""What a parser takes: schemas by name; or names, tools of a protocol, functions, in any mixture; None: any name."""

SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
"""Where the schema of the parameters stands: OpenAI, Anthropic, MCP, Gemini."""
KINDS: Mapping[object, str] = {
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
"""The JSON types of plain types of Python."""


def tools_of(tools: Tools) -> Mapping[str, Any] | None:
    """JSON Schema of the parameters by tool name; None stays None: any name is a tool.

    Args:
        tools: a mapping from names to schemas, as it stands; or an iterable of names, of tools as OpenAI (Chat or
            Responses), Anthropic or MCP write them (objects with `name` and `inputSchema` too), and of functions.

    Raises:
        TypeError: something else is among them.

    """
    if tools is None:
        return None
    if isinstance(tools, Mapping):
        written = {key for key in ("type", "function", "name") if isinstance(tools.get(key), str)}
        if not written:
            return tools
        raise TypeError("tools is one tool: give a list of tools, or a mapping from names to schemas")
    if isinstance(tools, str):
        raise TypeError(f"tools is the text {tools!r}: give a list of names")
    return dict(map(tool_of, tools))


def tool_of(tool: object) -> tuple[str, Any]:
    """The name of a tool and the schema of its parameters.

    Raises:
        TypeError: it is no tool.

    """
    if isinstance(tool, str):
        return tool, None
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        found = inner if isinstance(inner, Mapping) else tool
        if isinstance(name := found.get("name"), str):
            return name, next((found[key] for key in SCHEMAS if found.get(key) is not None), None)
    elif isinstance(name := getattr(tool, "name", None), str):
        return name, next((schema for key in SCHEMAS if (schema := getattr(tool, key, None)) is not None), None)
    elif callable(tool) and isinstance(name := getattr(tool, "__name__", None), str):
        return name, signature(tool)
    raise TypeError(
        f"{tool!r} is no tool: give a name, a function, or a tool as OpenAI, Anthropic or MCP write it (a `name`, and "
        f"a schema in one of {', '.join(SCHEMAS)})"
    )


def signature(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's parameters; what is not a plain type may be anything."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError, SyntaxError):  # what is named does not exist at run time
        hints = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    extra = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = True
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            properties[name] = schema(hints.get(name))
            if parameter.default is parameter.empty:
                required.append(name)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if not extra:
        found["additionalProperties"] = False
    return found


def schema(hint: object) -> dict[str, Any]:
    """The JSON Schema of a type; {} if it is not a plain one."""
    if hint is None:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return schema(arguments[0])
    if origin in (typing.Union, types.UnionType):
        ways = [schema(argument) for argument in arguments]
        return {"anyOf": ways} if all(ways) else {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    kind = KINDS.get(origin if origin is not None else hint)
    if kind is None:
        return {}
    if kind == "array" and arguments and (items := schema(arguments[0])):
        return {"type": "array", "items": items}
    return {"type": kind}


class Toolset:
    """The offered tools, as the parser asks for them."""

    __slots__ = ("_folded", "_schemas")

    def __init__(self, schemas: Mapping[str, Any] | None) -> None:
        self._schemas = schemas
        self._folded: dict[str, str | None] | None = None

    @property
    def any(self) -> bool:
        """Every name is a tool."""
        return self._schemas is None

    @property
    def sole(self) -> str:
        """The only tool that is offered; "" if there are several, or any name is one."""
        return next(iter(self._schemas)) if self._schemas is not None and len(self._schemas) == 1 else ""

    def __contains__(self, name: str) -> bool:
        return self._schemas is not None and name in self._schemas

    def schema(self, name: str | None) -> object:
        """The JSON Schema of a tool's parameters; None if it has none."""
        return None if self._schemas is None or name is None else self._schemas.get(name)

    def offered(self, name: str) -> str | None:
        """The offered tool that a name means: itself, else the only one equal without `functions.` and case."""
        schemas = self._schemas
        if not name:
            return None
        if schemas is None or name in schemas:
            return name
        if self._folded is None:
            self._folded = {}
            for tool in schemas:
                fold = tool.lower()
                self._folded[fold] = None if fold in self._folded else tool
        plain = name.removeprefix("functions.")
        return plain if plain in schemas else self._folded.get(plain.lower())
