"""Reads the tools that a request offers, as `tools` or as the older `functions`, and which of them may be called.

Tools that only the origin can run (`web_search`) are left out and recorded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from streamtool.conversation import HOSTED, HOSTED_CHOICE, Conversation, Tool, ToolChoice
from streamtool.errors import TooLargeError
from streamtool.protocols.fields import (
    Fields,
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

Json = Any  # a decoded JSON value


def read_tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], bool, list[str]]:
    """The tools, whether they came as `functions`, and what was left out."""
    given, functions = list_of(raw, "tools"), list_of(raw, "functions")
    if given and functions:
        raise refused("functions", "Give `tools` or the older `functions`, not both.")
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    key = "functions" if functions else "tools"
    if len(given or functions) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param=key, code="too_many_tools"
        )
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
            raise refused(f"{place}.type", "A tool says what it is in `type`: function or custom.")
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    return tuple(tools.values()), bool(functions), dropped


def _function(fields: Fields, place: str, limits: LimitSettings, size: int) -> Tool:
    return Tool(
        tool_name(fields, place, limits),
        words(fields, "description", place),
        tool_schema(fields, "parameters", place, limits, size),
        strict=flag(fields, "strict", place),
    )


# --- which calls are allowed ------------------------------------------------------------------------------------------


def with_choice(conversation: Conversation, raw: Fields, *, hosted: bool) -> Conversation:
    """`conversation` with its `ToolChoice`; the choice is checked against its tools."""
    key, other = ("function_call", "tool_choice") if conversation.legacy_functions else ("tool_choice", "function_call")
    value = raw.get(key)
    if value is None and raw.get(other) is not None and not conversation.tools:
        key, value = other, raw[other]
    choice, unknown = _choice(value, key)
    dropped = conversation.dropped
    if unknown:
        if not hosted:
            raise refused(key, f"{shown(value)} is no tool choice: none, auto, required, or the tool by name.")
        dropped = (*dropped, HOSTED_CHOICE)
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required" or choice.names:
            if not hosted:
                raise refused(key, f"`{key}` asks for a tool, but the request offers none.")
            dropped = (*dropped, HOSTED_CHOICE)
        choice = ToolChoice()
    elif choice.names:
        missing = [name for name in choice.names if name not in conversation.known_names]
        if missing:
            raise refused(key, f"`{key}` names {shown(missing[0])}, which is not among the tools.")
    parallel = flag(raw, "parallel_tool_calls", default=True) and not conversation.legacy_functions
    return evolve(conversation, choice=evolve(choice, parallel=parallel), dropped=dropped)


def _choice(value: Json, key: str) -> tuple[ToolChoice, bool]:
    """What `tool_choice` or `function_call` says, and whether it is of a kind that only the origin knows."""
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
                f"{key}.allowed_tools", "Allowed tools are a `mode` (auto or required) and a list of `tools`."
            )
        case {"type": "function" | "custom"}:
            named = _named(value)
            if named is None:
                raise refused(f"{key}.{value['type']}.name", "Name the tool that must be called.")
            return ToolChoice("required", (named,)), False
        case {"type": str()}:
            return ToolChoice(), True
        case _:
            raise refused(key, f"{shown(value)} is no tool choice: none, auto, required, or the tool by name.")


def _allowed(mode: Any, tools: Sequence[Json]) -> tuple[ToolChoice, bool]:
    names: list[str] = []
    for i, item in enumerate(tools):
        place = f"tool_choice.allowed_tools.tools[{i}]"
        fields = object_at(item, place)
        if fields.get("type", "function") not in ("function", "custom"):
            continue  # a hosted tool, which was left out of the tools as well
        allowed = _named(fields)
        if allowed is None:
            raise refused(place, "Name the tool that is allowed.")
        names.append(allowed)
    if not names:
        return ToolChoice("none"), False
    return ToolChoice(mode, tuple(dict.fromkeys(names))), False


def _named(fields: Fields) -> str | None:
    """The name in `{"type": T, T: {"name": …}}`, or in the flat form of the Responses protocol."""
    nested = fields.get(fields.get("type", "function"))
    name = nested.get("name") if isinstance(nested, Mapping) else fields.get("name")
    return name if isinstance(name, str) and name else None
