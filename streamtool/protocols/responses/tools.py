"""Reader for a request's tools and for its tool choice.

An entry of `tools` is a function, a custom tool with free-form input, or a namespace, which is a group of functions and
custom tools; the model knows a tool in a group as `group.tool`. Tools are listed in `tools` and in input items
(`additional_tools`); a later list may redefine a tool. A typed tool (such as `shell`) gets its schema from
`typed_tools` if the client runs it. Tools that only the origin can run (such as `web_search`) are dropped and logged.
If the client searches for tools (`tool_search`), a tool with `defer_loading` is offered once it has been found. The
origin's own tool search is not available here, so tools that it would find are offered from the beginning.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from streamtool.core.bounded_cache import SharedList
from streamtool.core.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.responses.typed_tools import tools_of
from streamtool.protocols.shared.fields import (
    check_spelling,
    check_tool_count,
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
from streamtool.settings import LimitSettings

_SEARCH: Final = "tool_search"
"""Kind of the tool that searches for deferred tools."""


@frozen
class ToolOffer:
    """Tools offered in a request, and notes about the tools that were dropped."""

    tools: tuple[Tool, ...]
    dropped: tuple[str, ...]


def read_tools(
    tools: Sequence[Json],
    further: Sequence[tuple[str, list[Json]]],
    limits: LimitSettings,
    size: int,
    *,
    known: Container[str] = (),
) -> ToolOffer:
    """Return the tools of the request: first those in `tools`, and then those in the `further` lists, which are each
    paired with their location in the request.

    `size` is the size of the body. Tools named in `known` are offered even if they are deferred. Raises RequestError
    and TooLargeError.
    """
    listed = _listed(tools, limits, size)
    if not further and listed.offer is not None:
        return listed.offer
    found, dropped = dict(listed.tools), [*listed.dropped]
    for at, more in further:
        for tool, place in _each(more, at, limits, size, dropped):
            found[tool.name] = evolve(tool, deferred=False)
            check_tool_count(len(found), limits, place)
    check_spelling(found, "tools")
    searched = any(tool.kind == _SEARCH for tool in found.values())
    offered = (tool for tool in found.values() if not (searched and tool.deferred) or tool.name in known)
    return ToolOffer(tuple(offered), tuple(dict.fromkeys(dropped)))


@frozen
class _Listed:
    """The tools in the body's `tools`, which requests with the same tools share."""

    tools: Mapping[str, Tool]
    """The tools by name."""
    dropped: Sequence[str]
    offer: ToolOffer | None
    """The offer of all tools, or None if the model may have to search for some of them."""


def _listed(given: Sequence[Json], limits: LimitSettings, size: int) -> _Listed:
    shared = given if type(given) is SharedList and size <= limits.schema else None
    key = ("responses", limits.tools, limits.name)
    known: _Listed | None = None if shared is None else shared.made.get(key)
    if known is not None:
        return known
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for tool, place in _each(given, "tools", limits, size, dropped):
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
        check_tool_count(len(tools), limits, place)
    offer = None
    if not (any(tool.deferred for tool in tools.values()) and any(tool.kind == _SEARCH for tool in tools.values())):
        check_spelling(tools, "tools")
        offer = ToolOffer(tuple(tools.values()), tuple(dict.fromkeys(dropped)))
    listed = _Listed(tools, dropped, offer)
    if shared is not None:
        shared.keep(key, listed)
    return listed


def _each(
    items: Sequence[Json], at: str, limits: LimitSettings, size: int, dropped: list[str]
) -> Iterable[tuple[Tool, str]]:
    """Yield each tool, including the tools in groups, with its location in the request."""
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
                    f"A tool's name and namespace must not exceed {limits.name} characters in total (limits.name).",
                )
            description = "\n".join(filter(None, (about, tool.description)))
            yield evolve(tool, name=name, description=description, namespace=group), inside


def _offered(fields: Fields, place: str, limits: LimitSettings, size: int, dropped: list[str]) -> tuple[Tool, ...]:
    """Return the tools to offer to the model, or () if only the origin can run the tool."""
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
        raise refused(f"{place}.type", "A tool must have a `type`: function, custom or namespace.")
    words(fields, "description", place)
    tool_schema(fields, "parameters", place, limits, size)
    found = tools_of(kind, fields)
    if not found:
        dropped.append(f"{HOSTED}{kind}")
    return found


# --- tool choice ------------------------------------------------------------------------------------------------------


_MODES: Final[Mapping[Json, ToolChoice]] = {
    None: ToolChoice(),
    "auto": ToolChoice(),
    "none": ToolChoice("none"),
    "required": ToolChoice("required"),
    "any": ToolChoice("required"),
}
"""Tool choices that name no tool."""
_COMPUTERS: Final = ("computer", "computer_use", "computer_use_preview")
"""Interchangeable types: a tool choice may use any of these types to refer to a tool that has any of these types."""


class _Names:
    """Index of tools by the names that a tool choice may use: a tool's full name, or its name within its namespace."""

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
        """Return the full names of the tools that an entry of a tool choice refers to."""
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
        """Return whether a tool of this type is offered. A tool choice refers to such a tool by its type instead of its
        name.
        """
        return isinstance(kind, str) and kind in self._typed


def with_choice(conversation: Conversation, raw: Fields, *, hosted: bool) -> Conversation:
    """Return `conversation` with its `ToolChoice` set, after checking that it names only tools in the request.

    `hosted` means that tools were dropped, so a tool choice of an unknown type may refer to a dropped tool.
    """
    value: Json = raw.get("tool_choice")
    dropped = conversation.dropped
    offers = bool(conversation.tools) or conversation.has_tool_history
    choice = None if isinstance(value, dict | list) else _MODES.get(value)
    if choice is None:
        names = _Names(conversation)
        match value:
            case {"type": "function" | "custom" | "namespace"} if offers:
                choice = ToolChoice("required", tuple(names.of(value, "tool_choice")))
            case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
                choice = _allowed(mode, tools, names) if offers else ToolChoice(mode)
            case {"type": "allowed_tools"}:
                raise refused(
                    "tool_choice", "`allowed_tools` must have a `mode` (auto or required) and a list of `tools`."
                )
            case {"type": "function" | "custom" | "namespace"}:
                choice = ToolChoice("required")
            case {"type": str(kind)} if names.typed(kind):
                choice = ToolChoice("required", tuple(names.of(value, "tool_choice")))
            case {"type": str()} if hosted:
                choice = ToolChoice()
                dropped = (*dropped, HOSTED_CHOICE)
            case _:
                raise refused(
                    "tool_choice",
                    f"{shown(value)} is not a valid tool choice: use auto, none, required or a named tool.",
                )
    if not offers:
        if choice.mode == "required":
            if not hosted:
                raise refused("tool_choice", "`tool_choice` requires a call, but the request has no tools.")
            dropped = (*dropped, HOSTED_CHOICE)
        choice = ToolChoice()
    parallel = flag(raw, "parallel_tool_calls", default=True)
    if choice.parallel is not parallel:
        choice = evolve(choice, parallel=parallel)
    if choice == conversation.choice and dropped is conversation.dropped:
        return conversation
    return evolve(conversation, choice=choice, dropped=dropped)


def _allowed(mode: Any, tools: Sequence[Json], names: _Names) -> ToolChoice:
    allowed: dict[str, None] = {}
    for i, item in enumerate(tools):
        place = f"tool_choice.tools[{i}]"
        fields = object_at(item, place)
        kind = fields.get("type", "function")
        if kind in ("function", "custom", "namespace") or names.typed(kind):  # others have been dropped
            allowed.update(dict.fromkeys(names.of(fields, place)))
    return ToolChoice(mode, tuple(allowed)) if allowed else ToolChoice("none")
