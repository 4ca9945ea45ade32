"""Reader for a request's tools and for its tool choice.

Tools that only the origin can run (such as `web_search_20250305`) are dropped and logged; typed tools that the client
runs (such as `bash_20250124`) get their schemas from `typed_tools`. A tool with `defer_loading` is offered once the
conversation refers to it, for example in the references returned by a client-side search tool. The origin's own tool
search is not available here, so tools that it would find are offered from the beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from streamtool.core.bounded_cache import SharedList
from streamtool.core.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.messages.typed_tools import tools_of
from streamtool.protocols.shared.fields import (
    check_spelling,
    check_tool_count,
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
from streamtool.settings import LimitSettings

_SEARCH: Final = "tool_search_tool_"
"""Prefix of the types that represent the origin's own tool search."""
_EDITS: Final = ("tool_addition", "tool_removal")
_CHANGES: Final = (*_EDITS, "tool_reference", "tool_use")
"""Types of blocks that change which tools are offered; only edits do if all tools are offered from the beginning."""


@frozen
class ToolOffer:
    """Tools offered in a request, and notes about the tools that were dropped."""

    tools: tuple[Tool, ...]
    dropped: tuple[str, ...]
    """Notes about dropped tools, for the log."""


def read_tools(raw: Fields, limits: LimitSettings, size: int) -> ToolOffer:
    """Return the tools to offer for the next reply: those in the body's `tools`, with the changes made by the messages.
    `size` is the size of the body in bytes.

    Raises RequestError and TooLargeError.
    """
    listed, messages = _listed(list_of(raw, "tools"), limits, size), raw.get("messages")
    if listed.offer is not None and next(_tool_changes(messages, _EDITS), None) is None:
        return listed.offer
    tools, dropped = dict(listed.tools), [*listed.dropped]
    known = _Known(tools, everything=listed.everything)
    for change in _tool_changes(messages, _CHANGES):
        match change:
            case {"type": "tool_addition", "tool": {"definition": Mapping() as definition}}:
                for tool, _ in _each([definition], "messages", limits, size, dropped):
                    known.define(tool)
            case {"type": "tool_addition", "tool": {"name": str(name)}}:
                known.find(name)
            case {"type": "tool_removal", "tool": {"name": str(name)}}:
                known.remove(name)
            case {"type": "tool_reference", "tool_name": str(name)} | {"type": "tool_use", "name": str(name)}:
                known.find(name)
    if isinstance(choice := raw.get("tool_choice"), Mapping):
        known.find(str(choice.get("name")))
    check_spelling(tools, "tools")
    return ToolOffer(known.offered, tuple(dict.fromkeys(dropped)))


@frozen
class _Listed:
    """The tools in the body's `tools`, which requests with the same tools share."""

    tools: Mapping[str, Tool]
    """The tools by name."""
    dropped: Sequence[str]
    everything: bool
    """Whether all tools are offered because only the origin can search for them."""
    offer: ToolOffer | None
    """The offer of all tools, or None if the model may have to search for some of them."""


def _listed(given: list[Json], limits: LimitSettings, size: int) -> _Listed:
    key = ("messages", limits.tools, limits.name)
    shared = given if type(given) is SharedList and size <= limits.schema else None
    found: _Listed | None = None if shared is None else shared.made.get(key)
    if found is not None:
        return found
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for tool, place in _each(given, "tools", limits, size, dropped):
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    everything = any(note.startswith(HOSTED + _SEARCH) for note in dropped)
    offered, offer = _Known(tools, everything=everything).offered, None
    if len(offered) == len(tools):
        check_spelling(tools, "tools")
        offer = ToolOffer(offered, tuple(dict.fromkeys(dropped)))
    found = _Listed(tools, dropped, everything, offer)
    if shared is not None:
        shared.keep(key, found)
    return found


class _Known:
    """Tools of a request, and the subset that is offered to the model."""

    __slots__ = ("_found", "_tools")

    def __init__(self, tools: dict[str, Tool], *, everything: bool) -> None:
        self._tools = tools
        self._found = {name for name, tool in tools.items() if everything or not tool.deferred} or set(tools)

    def define(self, tool: Tool) -> None:
        self._tools[tool.name] = tool
        self._found.add(tool.name)

    def find(self, name: str) -> None:
        self._found |= {tool for tool in (name, *self._members(name)) if tool in self._tools}

    def remove(self, name: str) -> None:
        self._found -= {name, *self._members(name)}

    def _members(self, toolset: str) -> Sequence[str]:
        return [tool.name for tool in self._tools.values() if tool.namespace == toolset] if toolset else ()

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Offered tools, in the order in which the request defines them."""
        return tuple(tool for name, tool in self._tools.items() if name in self._found)


def _tool_changes(messages: Json, kinds: Sequence[str]) -> Iterator[Fields]:
    """Yield the message blocks of these kinds, in order, including those in results and in summaries."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            parts: Json = [block]
            if kind == "tool_result":
                parts = block.get("content")
            elif kind == "tool_search_tool_result":
                found = block.get("content")
                parts = found.get("tool_references") if isinstance(found, dict) else None
            elif kind == "compaction":
                parts = block.get("tool_changes")
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict) and part.get("type") in kinds:
                    yield part


def _each(
    given: Sequence[Json], at: str, limits: LimitSettings, size: int, dropped: list[str]
) -> Iterator[tuple[Tool, str]]:
    """Yield each tool with its location in the request. A toolset yields several tools."""
    check_tool_count(len(given), limits, "tools")
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
                yield evolve(tool, deferred=True) if flag(fields, "defer_loading", place) else tool, place


def _offered(fields: Fields, place: str, limits: LimitSettings, size: int) -> tuple[Tool, ...]:
    """Return the tools to offer to the model: several for a toolset, or () if only the origin can run the tool."""
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
        raise refused(f"{place}.type", "A tool's type must be a string; custom tools do not need a type.")
    if "name" in fields:
        tool_name(fields, place, limits)
    return tools_of(kind, fields)


def tool_names(fields: Fields) -> tuple[str, ...]:
    """Return the names of the tools in an entry of the body's `tools`, as the model knows them."""
    kind, name = fields.get("type"), fields.get("name")
    if isinstance(kind, str) and kind != "custom":
        return tuple(tool.name for tool in tools_of(kind, fields))
    return (name,) if isinstance(name, str) else ()


# --- tool choice ------------------------------------------------------------------------------------------------------


def with_choice(conversation: Conversation, value: Json) -> Conversation:
    """Return `conversation` with its `ToolChoice` set, after checking that it names only tools in the request."""
    choice = _choice(value)
    hosted = any(note.startswith(HOSTED) for note in conversation.dropped)
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required":
            if not hosted:
                raise refused("tool_choice", "`tool_choice` requires a call, but the request has no tools.")
            conversation = evolve(conversation, dropped=(*conversation.dropped, HOSTED_CHOICE))
        choice = evolve(choice, mode="auto", names=())
    names = tuple(meant for name in choice.names for meant in _meant(name, conversation))
    missing = [name for name in names if name not in conversation.known_names]
    if missing and not hosted:
        raise refused("tool_choice", f"`tool_choice` names {shown(missing[0])}, which is not among the tools.")
    if missing:
        dropped = (*conversation.dropped, HOSTED_CHOICE)
        return evolve(conversation, choice=ToolChoice(parallel=choice.parallel), dropped=dropped)
    choice = choice if choice.names == names else evolve(choice, names=names)
    return conversation if choice == conversation.choice else evolve(conversation, choice=choice)


def _meant(name: str, conversation: Conversation) -> tuple[str, ...]:
    """Return the full names of the tools that the name in a tool choice refers to: one tool, all members of a toolset,
    or all toolset members of that name.
    """
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
                raise refused("tool_choice.name", "A tool choice of type `tool` must name a tool.")
            return ToolChoice("required", (name,), parallel=parallel)
    raise refused("tool_choice", f"{shown(value)} is not a valid tool choice: `type` must be auto, any, tool or none.")


def kind_of(choice: Json) -> Json:
    """Return the type of a tool choice. If the choice is a plain string, the string is the type."""
    return choice.get("type", "") if isinstance(choice, dict) else choice
