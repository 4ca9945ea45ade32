"""Reads the tools that a request offers, and which of them may be called.

Tools that only the origin can run (`web_search_20250305`) are left out and recorded; those that a type names and the
client runs (`bash_20250124`) get their schema from `typed_tools`. A tool with `defer_loading` is offered when the
conversation refers to it: a search by a tool of the client answers with references. A search by the origin cannot be
made here, so its tools are offered from the beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from streamtool.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.errors import TooLargeError
from streamtool.protocols.fields import (
    Fields,
    examples,
    flag,
    for_code_only,
    list_of,
    object_at,
    refused,
    shown,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.messages.typed_tools import tools_of
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value

_SEARCH: Final = "tool_search_tool_"
"""How the types of the origin's own searches for tools begin."""


@frozen
class ToolOffer:
    """The tools of a request."""

    tools: tuple[Tool, ...]
    dropped: tuple[str, ...]
    """What was left out."""


def read_tools(raw: Fields, limits: LimitSettings, size: int) -> ToolOffer:
    """The tools that are offered now: those of the body, and what its messages say of them. `size`: bytes of the body.

    Raises RequestError, TooLargeError.
    """
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for tool, place in _each(list_of(raw, "tools"), "tools", limits, size, dropped):
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    known = _Known(tools, everything=any(note.startswith(HOSTED + _SEARCH) for note in dropped))
    for change in _changes(raw.get("messages")):
        match change:
            case {"type": "tool_addition", "tool": {"definition": Mapping() as definition}}:
                for tool, _ in _each([definition], "messages", limits, size, dropped):
                    known.define(tool)
            case {"type": "tool_addition", "tool": {"name": str(name)}}:
                known.find(name)
            case {"type": "tool_removal", "tool": {"name": str(name)}}:
                known.lose(name)
            case {"type": "tool_reference", "tool_name": str(name)} | {"type": "tool_use", "name": str(name)}:
                known.find(name)
    if isinstance(choice := raw.get("tool_choice"), Mapping):
        known.find(str(choice.get("name")))
    return ToolOffer(known.offered, tuple(dict.fromkeys(dropped)))


class _Known:
    """The tools of a request, and which of them the model may know."""

    __slots__ = ("_found", "_tools")

    def __init__(self, tools: dict[str, Tool], *, everything: bool) -> None:
        self._tools = tools
        self._found = {name for name, tool in tools.items() if everything or not tool.deferred} or set(tools)

    def define(self, tool: Tool) -> None:
        self._tools[tool.name] = tool
        self._found.add(tool.name)

    def find(self, name: str) -> None:
        self._found |= {tool for tool in (name, *self._members(name)) if tool in self._tools}

    def lose(self, name: str) -> None:
        self._found -= {name, *self._members(name)}

    def _members(self, toolset: str) -> Sequence[str]:
        return [tool.name for tool in self._tools.values() if tool.namespace == toolset] if toolset else ()

    @property
    def offered(self) -> tuple[Tool, ...]:
        """In the order of the request."""
        return tuple(tool for name, tool in self._tools.items() if name in self._found)


def _changes(messages: Json) -> Iterator[Json]:
    """What the messages say of tools, in their order: calls, references, and what was added or removed."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else ():
            match block:
                case {"type": "tool_result", "content": [*parts]}:
                    yield from parts
                case {"type": "tool_search_tool_result", "content": {"tool_references": [*parts]}}:
                    yield from parts
                case {"type": "compaction", "tool_changes": [*changes]}:
                    yield from changes
                case _:
                    yield block


def _each(
    given: Sequence[Json], at: str, limits: LimitSettings, size: int, dropped: list[str]
) -> Iterator[tuple[Tool, str]]:
    """Each tool with its place; a toolset is several."""
    if len(given) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param="tools", code="too_many_tools"
        )
    for position, item in enumerate(given):
        place = f"{at}[{position}]"
        fields = object_at(item, place)
        offered = _offered(fields, place, limits, size)
        if not offered:
            dropped.append(f"{HOSTED}{fields['type']}")
        for tool in offered:
            if for_code_only(fields):
                dropped.append(f"tool {tool.name}, which only code may call")
            else:
                yield evolve(tool, deferred=flag(fields, "defer_loading", place)), place


def _offered(fields: Fields, place: str, limits: LimitSettings, size: int) -> tuple[Tool, ...]:
    """The tool as the model gets it; a toolset is several, and what only the origin can run is none."""
    kind = fields.get("type")
    if kind is None or kind == "custom":
        tool = Tool(
            tool_name(fields, place, limits),
            words(fields, "description", place),
            tool_schema(fields, "input_schema", place, limits, size),
            strict=flag(fields, "strict", place),
            examples=examples(fields, "input_examples"),
        )
        return (tool,)
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "The type of a tool is a string; a tool of your own needs none.")
    if "name" in fields:
        tool_name(fields, place, limits)
    return tools_of(kind, fields)


def tool_names(fields: Fields) -> tuple[str, ...]:
    """The names under which a tool of the body was read."""
    kind, name = fields.get("type"), fields.get("name")
    if isinstance(kind, str) and kind != "custom":
        return tuple(tool.name for tool in tools_of(kind, fields))
    return (name,) if isinstance(name, str) else ()


# --- which calls are allowed ------------------------------------------------------------------------------------------


def with_choice(conversation: Conversation, value: Json) -> Conversation:
    """`conversation` with its `ToolChoice`; the choice is checked against its tools."""
    choice = _choice(value)
    hosted = any(note.startswith(HOSTED) for note in conversation.dropped)
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required":
            if not hosted:
                raise refused("tool_choice", "`tool_choice` asks for a tool, but the request offers none.")
            conversation = evolve(conversation, dropped=(*conversation.dropped, HOSTED_CHOICE))
        choice = evolve(choice, mode="auto", names=())
    names = tuple(meant for name in choice.names for meant in _meant(name, conversation))
    missing = [name for name in names if name not in conversation.known_names]
    if missing and not hosted:
        raise refused("tool_choice", f"`tool_choice` names {shown(missing[0])}, which is not among the tools.")
    if missing:
        dropped = (*conversation.dropped, HOSTED_CHOICE)
        return evolve(conversation, choice=ToolChoice(parallel=choice.parallel), dropped=dropped)
    return evolve(conversation, choice=evolve(choice, names=names))


def _meant(name: str, conversation: Conversation) -> tuple[str, ...]:
    """The tools that a choice names: one, a member of toolsets by its own name, or a toolset."""
    if name in conversation.known_names:
        return (name,)
    groups = [tool for tool in conversation.tools if tool.namespace]
    return tuple(tool.name for tool in groups if name in (tool.namespace, tool.name[len(tool.namespace) + 1 :])) or (
        name,
    )


def _choice(value: Json) -> ToolChoice:
    parallel = not (isinstance(value, dict) and flag(value, "disable_parallel_tool_use", "tool_choice"))
    match kind_of(value):
        case None | "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice("none")
        case "any":
            return ToolChoice("required", parallel=parallel)
        case "tool":
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str) or not name:
                raise refused("tool_choice.name", "Name the tool that must be called.")
            return ToolChoice("required", (name,), parallel=parallel)
    raise refused("tool_choice", f"{shown(value)} is no tool choice: its `type` is auto, any, tool or none.")


def kind_of(choice: Json) -> Json:
    """The type of a tool choice; a word is its own."""
    return choice.get("type", "") if isinstance(choice, dict) else choice
