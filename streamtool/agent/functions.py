"""Python functions as tools: the schema comes from the signature, annotations and docstring.

msgspec handles the types in both directions. A function's parameters become a struct that provides the tool's schema
and into which arguments are converted, so that the function receives a dataclass, an enum or a date. The part of the
docstring before its sections describes the tool; `Args:`, `:param name:` and `Annotated[str, "description"]` describe
parameters. A parameter with a default is optional.

A coroutine function runs in the event loop, any other function in a worker thread. A thread cannot be stopped: when the
call times out or the run is cancelled, the thread is abandoned and exits when the function returns. A long-running
function should call `anyio.from_thread.check_cancelled()` from time to time.
"""

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import anyio
import anyio.to_thread
import msgspec

from streamtool.agent.tools import OnProgress, ToolOutput
from streamtool.core.conversation import Part, TextPart
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json, JsonObject
from streamtool.protocols.shared import wire

_SECTIONS = re.compile(
    r"^(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes):?\s*$|^:\w+"
)
_ARGUMENTS = re.compile(r"(?:Args|Arguments|Parameters):?\s*$")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":param(?:\s+[^:]*?)?\s+(\w+):\s*(.*)")


THREAD_PREFIX = "tool "
"""Prefix for the names of threads that run functions."""


class FunctionTool:
    """A Python function as a tool.

    `name` and `description` override the function's own, and `timeout` overrides the agent's. `eager` means that calls
    may start while the model is still writing its reply, even if the reply is then rejected: the function has no side
    effects. Raises SettingsError if the parameters cannot be described by a JSON Schema.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        eager: bool = False,
    ) -> None:
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        if self.name == "<lambda>":
            raise SettingsError("a lambda has no usable name; give it one with tool(function, name=…)")
        told, parameters = _parse_docstring(inspect.getdoc(function) or "")
        self.description: str = told if description is None else description
        self.timeout = timeout
        self.eager = eager
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SettingsError(f"the tool {self.name} is a generator; a tool must return a complete result")
        self._function = function
        self._async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  an object whose __call__ is a coroutine function
        )
        self._positional: list[str] = []
        self._struct = self._arguments(parameters)
        self.parameters: JsonObject = self._schema()

    def _arguments(self, described: Mapping[str, str]) -> Any:
        """Return a struct type for the arguments. `described` maps parameters to their descriptions."""
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError):
            hints = getattr(self._function, "__annotations__", {})
        if not hints and hasattr(self._function, "__call__"):  # noqa: B004  an object with annotations on its __call__
            hints = getattr(self._function.__call__, "__annotations__", {})
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        self._defaults: dict[str, Any] = {}
        for one in inspect.signature(self._function).parameters.values():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                raise SettingsError(f"the tool {self.name} takes *{one.name}, which no schema can describe")
            if one.kind is one.POSITIONAL_ONLY:
                self._positional.append(one.name)
            kind = _with_description(hints.get(one.name, Any), described.get(one.name))
            if one.default is one.empty:
                fields.append((one.name, kind))
            else:
                self._defaults[one.name] = one.default
                fields.append((one.name, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007  its operands are values
        return msgspec.defstruct("arguments", fields, kw_only=True, forbid_unknown_fields=True)

    def _schema(self) -> JsonObject:
        try:
            (_,), parts = msgspec.json.schema_components(
                [self._struct], ref_template="#/$defs/{name}", schema_hook=_foreign_schema
            )
        except TypeError as error:
            raise SettingsError(f"the parameters of the tool {self.name} have no JSON Schema: {error}") from None
        schema: JsonObject = parts.pop("arguments")
        schema.pop("title", None)
        for name, default in self._defaults.items():
            try:
                plain = msgspec.to_builtins(default)
            except (TypeError, ValueError):
                continue
            schema["properties"][name].setdefault("default", plain)
        return schema | ({"$defs": parts} if parts else {})

    async def call(self, arguments: Mapping[str, Json], progressed: OnProgress) -> ToolOutput:  # noqa: ARG002  no progress
        """Run the function. Raises whatever the function raises, and ValueError for arguments that cannot be
        converted.
        """
        try:
            struct = msgspec.convert(dict(arguments), self._struct, dec_hook=_validate_foreign)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        given = {name: getattr(struct, name) for name in self._struct.__struct_fields__}
        named = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        first = [named.pop(name) for name in self._positional if name in named]
        call = partial(self._function, *first, **named)
        if self._async:
            value = await call()
        else:
            value = await anyio.to_thread.run_sync(
                _call_in_named_thread,
                f"{THREAD_PREFIX}{self.name}",
                call,
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )  # a separate limiter, so that waiting for a thread does not use up the call's time
            if inspect.isawaitable(value):  # a lambda or a partial that wraps a coroutine function
                value = await value
        return ToolOutput(_content(value))


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    eager: bool = False,
) -> FunctionTool:
    """Turn a function into a tool, optionally with a different name, description or timeout. `eager` means that calls
    may start while the model is still writing its reply.
    """
    return FunctionTool(function, name=name, description=description, timeout=timeout, eager=eager)


def _call_in_named_thread(name: str, call: Callable[[], Any]) -> Any:
    """Call a function in a thread with a descriptive name, so that a debugger shows which tools are still running."""
    thread = threading.current_thread()
    before, thread.name = thread.name, name
    try:
        return call()
    finally:
        thread.name = before


def _content(value: Json) -> tuple[Part, ...]:
    """Return a function's result as content: a string unchanged, anything else as JSON."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            value = value.decode()
    if isinstance(value, str):
        return (TextPart(wire.repaired(value)),)
    try:
        return (TextPart(msgspec.json.encode(value, enc_hook=_to_plain).decode()),)
    except (TypeError, ValueError, RecursionError):
        return (TextPart(str(value)),)


def _to_plain(value: Any) -> Json:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


def _foreign_schema(kind: type) -> JsonObject:
    """Return the schema of a class that provides its own, as pydantic models do."""
    make = getattr(kind, "model_json_schema", None)
    if make is None:
        raise NotImplementedError
    schema: JsonObject = make()
    return schema


def _validate_foreign(kind: type, value: Json) -> Any:
    make = getattr(kind, "model_validate", None)
    if make is None:
        raise NotImplementedError
    return make(value)


# --- descriptions ----------------------------------------------------------------------------------------------------


def _with_description(kind: Any, text: str | None) -> Any:
    """Return the annotation with a description that msgspec recognizes."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        words = next((note for note in notes if isinstance(note, str)), text)
        kept = tuple(note for note in notes if isinstance(note, msgspec.Meta))
        for note in kept:
            inner = Annotated[inner, note]
            words = None if note.description else words
        return Annotated[inner, msgspec.Meta(description=words)] if words else inner
    return Annotated[kind, msgspec.Meta(description=text)] if text else kind


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description of the function and the descriptions of its parameters."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if _SECTIONS.match(line)), len(lines))
    found: dict[str, str] = {}
    name, inside = "", False
    for line in lines[first:]:
        field = _FIELD.match(line)
        if field is not None:
            name, inside = field[1], False
            found[name] = field[2]
        elif _SECTIONS.match(line):
            name, inside = "", bool(_ARGUMENTS.match(line))
        elif inside or name:
            entry = _ENTRY.match(line.strip()) if inside and _indent(line) <= _indent_of_first(lines, first) else None
            if entry is not None:
                name = entry[1]
                found[name] = entry[2]
            elif name and line.strip():
                found[name] = f"{found[name]} {line.strip()}".strip()
    return "\n".join(lines[:first]).strip(), found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indent_of_first(lines: list[str], first: int) -> int:
    """Return the indentation of the entries in a section."""
    return next((_indent(line) for line in lines[first:] if line[:1].isspace() and line.strip()), 0)
