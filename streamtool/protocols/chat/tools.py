"""Reader for a request's tools (in `tools` or the older `functions`) and for its tool choice.

Tools that only the origin can run (such as `web_search`) are dropped and logged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from streamtool.core.bounded_cache import SharedList
from streamtool.core.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared.fields import (
    check_spelling,
    check_tool_count,
    custom_description,
    flag,
    list_of,
    object_at,
    refused,
    shown,
    tool_name,
    tool_schema,
    words,
)
from streamtool.settings import LimitSettings


def read_tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], bool, list[str]]:
    """Return the tools, whether they were sent as `functions`, and notes about dropped tools."""
    offered = raw.get("tools")
    if type(offered) is not SharedList or raw.get("functions") or size > limits.schema:
        return _read_tools(raw, limits, size)
    key = ("chat", limits.tools, limits.name)
    known: tuple[tuple[Tool, ...], bool, list[str]] | None = offered.made.get(key)
    if known is None:
        known = _read_tools(raw, limits, size)
        offered.keep(key, known)
    return known


def _read_tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], bool, list[str]]:
    given, functions = list_of(raw, "tools"), list_of(raw, "functions")
    if given and functions:
        raise refused("functions", "Use either `tools` or the older `functions`, not both.")
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    key = "functions" if functions else "tools"
    check_tool_count(len(given or functions), limits, key)
    for i, item in enumerate(given or functions):
        place = f"{key}[{i}]"
        fields = object_at(item, place)
        kind = "legacy" if functions else fields.get("type") or ("function" if "function" in fields else None)
        if kind == "legacy":
            tool = _function(fields, place, limits, size)
        elif kind == "function":
            tool = _function(object_at(fields.get("function"), f"{place}.function"), f"{place}.function", limits, size)
        elif kind == "custom":
            custom, inside = object_at(fields.get("custom"), f"{place}.custom"), f"{place}.custom"
            tool = Tool(tool_name(custom, inside, limits), custom_description(custom, inside), custom=True)
        elif isinstance(kind, str):
            dropped.append(f"{HOSTED}{kind}")
            continue
        else:
            raise refused(f"{place}.type", "A tool must have a `type`: function or custom.")
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    check_spelling(tools, key)
    return tuple(tools.values()), bool(functions), dropped


def _function(fields: Fields, place: str, limits: LimitSettings, size: int) -> Tool:
    return Tool(
        tool_name(fields, place, limits),
        words(fields, "description", place),
        tool_schema(fields, "parameters", place, limits, size),
        strict=flag(fields, "strict", place),
    )


# --- tool choice ------------------------------------------------------------------------------------------------------


def with_choice(conversation: Conversation, raw: Fields, *, hosted: bool) -> Conversation:
    """Return `conversation` with its `ToolChoice` set, after checking that it names only tools in the request."""
    key, other = ("function_call", "tool_choice") if conversation.legacy_functions else ("tool_choice", "function_call")
    value = raw.get(key)
    if value is None and raw.get(other) is not None and not conversation.tools:
        key, value = other, raw[other]
    choice, unknown = _choice(value, key)
    dropped = conversation.dropped
    if unknown:
        if not hosted:
            raise refused(key, f"{shown(value)} is not a valid tool choice: use auto, none, required or a named tool.")
        dropped = (*dropped, HOSTED_CHOICE)
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required" or choice.names:
            if not hosted:
                raise refused(key, f"`{key}` requires a call, but the request has no tools.")
            dropped = (*dropped, HOSTED_CHOICE)
        choice = ToolChoice()
    elif choice.names:
        missing = [name for name in choice.names if name not in conversation.known_names]
        if missing:
            raise refused(key, f"`{key}` names {shown(missing[0])}, which is not among the tools.")
    parallel = flag(raw, "parallel_tool_calls", default=True) and not conversation.legacy_functions
    if choice.parallel is not parallel:
        choice = evolve(choice, parallel=parallel)
    if choice == conversation.choice and dropped is conversation.dropped:
        return conversation
    return evolve(conversation, choice=choice, dropped=dropped)


def _choice(value: Json, key: str) -> tuple[ToolChoice, bool]:
    """Return the tool choice in `tool_choice` or `function_call`, and whether it has a type that only the origin
    understands.
    """
    match value:
        case None | "auto":
            return ToolChoice(), False
        case "none":
            return ToolChoice("none"), False
        case "required" | "any":
            return ToolChoice("required"), False
        case {"name": str(name)} if key == "function_call":
            return ToolChoice("required", (name,)), False
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*tools]}}:
            return _allowed(mode, tools)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            return _allowed(mode, tools)
        case {"type": "allowed_tools"}:
            raise refused(
                f"{key}.allowed_tools", "`allowed_tools` must have a `mode` (auto or required) and a list of `tools`."
            )
        case {"type": "function" | "custom"}:
            named = _named(value)
            if named is None:
                raise refused(f"{key}.{value['type']}.name", "A tool choice of this type must name a tool.")
            return ToolChoice("required", (named,)), False
        case {"type": str()}:
            return ToolChoice(), True
        case _:
            raise refused(key, f"{shown(value)} is not a valid tool choice: use auto, none, required or a named tool.")


def _allowed(mode: Any, tools: Sequence[Json]) -> tuple[ToolChoice, bool]:
    names: list[str] = []
    for i, item in enumerate(tools):
        place = f"tool_choice.allowed_tools.tools[{i}]"
        fields = object_at(item, place)
        if fields.get("type", "function") not in ("function", "custom"):
            continue  # a hosted tool, which has been dropped
        allowed = _named(fields)
        if allowed is None:
            raise refused(place, "An allowed tool must have a name.")
        names.append(allowed)
    if not names:
        return ToolChoice("none"), False
    return ToolChoice(mode, tuple(dict.fromkeys(names))), False


def _named(fields: Fields) -> str | None:
    """Return the name in `{"type": T, T: {"name": …}}`, or in the flat form of the Responses protocol."""
    nested = fields.get(fields.get("type", "function"))
    name = nested.get("name") if isinstance(nested, Mapping) else fields.get("name")
    return name if isinstance(name, str) and name else None
