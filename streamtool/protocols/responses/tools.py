"""Reads the tools that a request offers, and which of them may be called.

Tools are flat here: functions, custom tools that take raw text, and namespaces, which are groups of both; a tool of a
group is known as `group.tool`. They stand in `tools`, and in items of the input (`additional_tools`), where a later
list may replace a tool. A tool that only a type names (`shell`) gets its schema from `typed_tools` if the client runs
it. What only the origin can run (`web_search`) is left out and recorded. Where the client searches for tools
(`tool_search`), one with `defer_loading` is offered when it was found; a search by the origin cannot be made here, so
its tools are offered from the beginning.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from streamtool.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.errors import TooLargeError
from streamtool.protocols.fields import (
    Fields,
    custom_description,
    flag,
    for_code_only,
    list_of,
    object_at,
    refused,
    shown,
    string,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.responses.typed_tools import tools_of
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value


@frozen
class ToolOffer:
    """The tools, and the notes about those that were left out."""

    tools: tuple[Tool, ...]
    dropped: tuple[str, ...]


def read_tools(
    tools: Sequence[Json],
    further: Iterable[tuple[str, list[Json]]],
    limits: LimitSettings,
    size: int,
    *,
    known: Container[str] = (),
) -> ToolOffer:
    """The tools of the request: those of `tools`, then the `further` lists, each of which comes with its place.

    `size` is that of the body; the tools that are `known` are offered, deferred or not. Raises RequestError and
    TooLargeError.
    """
    found: dict[str, Tool] = {}
    dropped: list[str] = []
    for tool, place in _each(tools, "tools", limits, size, dropped):
        if found.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
        _not_too_many(found, limits, place)
    for at, more in further:
        for tool, place in _each(more, at, limits, size, dropped):
            found[tool.name] = evolve(tool, deferred=False)
            _not_too_many(found, limits, place)
    searched = any(tool.kind == "tool_search" for tool in found.values())
    offered = (tool for tool in found.values() if not (searched and tool.deferred) or tool.name in known)
    return ToolOffer(tuple(offered), tuple(dict.fromkeys(dropped)))


def _not_too_many(found: dict[str, Tool], limits: LimitSettings, place: str) -> None:
    if len(found) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param=place, code="too_many_tools"
        )


def _each(
    items: Sequence[Json], at: str, limits: LimitSettings, size: int, dropped: list[str]
) -> Iterable[tuple[Tool, str]]:
    """Each tool with its place; those of a group as tools of their own."""
    for i, item in enumerate(items):
        place = f"{at}[{i}]"
        fields = object_at(item, place)
        if fields.get("type") == "namespace":
            yield from _group(fields, place, limits, size, dropped)
        else:
            for tool in _offered(fields, place, limits, size, dropped):
                yield tool, place


def _group(
    fields: Fields, place: str, limits: LimitSettings, size: int, dropped: list[str]
) -> Iterable[tuple[Tool, str]]:
    group = tool_name(fields, place, limits)
    about = words(fields, "description", place)
    for i, item in enumerate(list_of(fields, "tools", place)):
        inside = f"{place}.tools[{i}]"
        for tool in _offered(object_at(item, inside), inside, limits, size, dropped):
            name = f"{group}.{tool.name}"
            if len(name) > limits.name:
                raise refused(
                    f"{inside}.name",
                    f"A tool's name and that of its namespace have at most {limits.name} characters (limits.name).",
                )
            description = "\n".join(filter(None, (about, tool.description)))
            yield evolve(tool, name=name, description=description, namespace=group), inside


def _offered(fields: Fields, place: str, limits: LimitSettings, size: int, dropped: list[str]) -> tuple[Tool, ...]:
    """The tool as the model gets it; () if only the origin can run it."""
    kind = fields.get("type") or ("function" if "name" in fields else None)
    if for_code_only(fields):
        dropped.append(f"tool {words(fields, 'name', place) or kind}, which only code may call")
        return ()
    if kind == "function":
        tool = Tool(
            tool_name(fields, place, limits),
            words(fields, "description", place),
            tool_schema(fields, "parameters", place, limits, size),
            strict=flag(fields, "strict", place),
            returns=returned if isinstance(returned := fields.get("output_schema"), Mapping) else None,
            deferred=flag(fields, "defer_loading", place),
        )
        return (tool,)
    if kind == "custom":
        name, about = tool_name(fields, place, limits), custom_description(fields, place)
        return (Tool(name, about, custom=True, deferred=flag(fields, "defer_loading", place)),)
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "A tool says what it is in `type`: function, custom or namespace.")
    words(fields, "description", place)
    tool_schema(fields, "parameters", place, limits, size)
    found = tools_of(kind, fields)
    if not found:
        dropped.append(f"{HOSTED}{kind}")
    return found


# --- which calls are allowed ------------------------------------------------------------------------------------------


_COMPUTERS: Final = ("computer", "computer_use", "computer_use_preview")
"""By any of these a choice may name a tool of one of these types."""


class _Names:
    """The names by which a choice may mean a tool: its own, or that inside of its namespace."""

    __slots__ = ("_groups", "_known", "_short", "_typed")

    def __init__(self, conversation: Conversation) -> None:
        self._known = frozenset(conversation.known_names)
        self._short: dict[str, list[str]] = {}
        self._groups: dict[str, list[str]] = {}
        self._typed: dict[str, list[str]] = {}
        for tool in conversation.tools:
            for kind in _COMPUTERS if tool.kind in _COMPUTERS else filter(None, (tool.kind,)):
                self._typed.setdefault(kind, []).append(tool.name)
            if tool.namespace:
                self._short.setdefault(tool.name[len(tool.namespace) + 1 :], []).append(tool.name)
                self._groups.setdefault(tool.namespace, []).append(tool.name)

    def of(self, fields: Fields, place: str) -> Sequence[str]:
        """The tools that are meant, by their own names."""
        kind = fields.get("type")
        if isinstance(kind, str) and kind in self._typed:
            return self._typed[kind]
        name = string(fields, "name", place)
        namespace = words(fields, "namespace", place)
        full = f"{namespace}.{name}" if namespace else name
        if kind == "namespace":
            meant: Sequence[str] = self._groups.get(name, ())
        else:
            meant = (full,) if full in self._known else self._short.get(name, ())
        if not meant:
            raise refused(place, f"{shown(full)} is not among the tools.")
        return meant

    def typed(self, kind: Json) -> bool:
        """Whether a tool of this type was offered, which has no name in a choice."""
        return isinstance(kind, str) and kind in self._typed


def with_choice(conversation: Conversation, raw: Fields, *, hosted: bool) -> Conversation:
    """`conversation` with its `ToolChoice`, which is checked against its tools.

    `hosted`: tools were left out, so a choice of a kind that only the origin knows may mean one of them.
    """
    value = raw.get("tool_choice")
    dropped = conversation.dropped
    offers = bool(conversation.tools) or conversation.has_tool_history
    names = _Names(conversation)
    match value:
        case None | "auto":
            choice = ToolChoice()
        case "none":
            choice = ToolChoice("none")
        case "required" | "any":
            choice = ToolChoice("required")
        case {"type": "function" | "custom" | "namespace"} if offers:
            choice = ToolChoice("required", tuple(names.of(value, "tool_choice")))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            choice = _allowed(mode, tools, names) if offers else ToolChoice(mode)
        case {"type": "allowed_tools"}:
            raise refused("tool_choice", "Allowed tools are a `mode` (auto or required) and a list of `tools`.")
        case {"type": "function" | "custom" | "namespace"}:
            choice = ToolChoice("required")
        case {"type": str(kind)} if names.typed(kind):
            choice = ToolChoice("required", tuple(names.of(value, "tool_choice")))
        case {"type": str()} if hosted:
            choice = ToolChoice()
            dropped = (*dropped, HOSTED_CHOICE)
        case _:
            raise refused("tool_choice", f"{shown(value)} is no tool choice: none, auto, required, or a tool by name.")
    if not offers:
        if choice.mode == "required":
            if not hosted:
                raise refused("tool_choice", "`tool_choice` asks for a tool, but the request offers none.")
            dropped = (*dropped, HOSTED_CHOICE)
        choice = ToolChoice()
    parallel = flag(raw, "parallel_tool_calls", default=True)
    return evolve(conversation, choice=evolve(choice, parallel=parallel), dropped=dropped)


def _allowed(mode: Any, tools: Sequence[Json], names: _Names) -> ToolChoice:
    allowed: dict[str, None] = {}
    for i, item in enumerate(tools):
        place = f"tool_choice.tools[{i}]"
        fields = object_at(item, place)
        kind = fields.get("type", "function")
        if kind in ("function", "custom", "namespace") or names.typed(kind):  # others were left out of the tools
            allowed.update(dict.fromkeys(names.of(fields, place)))
    return ToolChoice(mode, tuple(allowed)) if allowed else ToolChoice("none")
