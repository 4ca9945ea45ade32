"""Reads the body of a Messages request into a `Conversation`; also that of a request to count its tokens.

The reading is as tolerant as real agents need: `cache_control`, `defer_loading`, `input_examples` and all keys that
nobody here knows are passed over. Tools that only the origin can run are left out and recorded in `dropped`; those that
a type names and the client runs (`bash_20250124`) get their schema from `typed_tools`.
Source: the API reference and the request types of anthropic-python 2.12.
"""

from typing import Any, Final

from attrs import evolve

from streamtool.conversation import HOSTED, Conversation, Message, Options, OutputFormat, Tool, ToolChoice
from streamtool.errors import TooLargeError
from streamtool.protocols.fields import (
    Fields,
    body_fields,
    flag,
    integer,
    list_of,
    model_name,
    number,
    object_at,
    refused,
    shown,
    strings,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.messages.complete import NO_THREADS
from streamtool.protocols.messages.content import read_messages, read_system
from streamtool.protocols.messages.typed_tools import tools_of
from streamtool.settings import LimitSettings
from streamtool.turns import unanswered

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(
    {"model", "messages", "system", "max_tokens", "stream", "stop_sequences", "metadata"}
    | {"tools", "tool_choice", "thinking", "output_config", "output_format", "temperature", "top_p", "top_k"}
)
"""The fields of the body that are understood; the others mean nothing to an upstream of another protocol."""
_EFFORTS: Final = {"max": "xhigh"}
_LOW: Final = 4096  # tokens of thinking: up to here the effort is low
_MEDIUM: Final = 16384


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
    raw = body_fields(body, limits)
    if raw.get("thread") is not None:  # SDKs send everything once more when they hear this
        sentence = "Conversations are not kept here: send all messages and no `thread`."
        raise refused("thread", sentence, code=NO_THREADS)
    conversation = _conversation(raw, limits, len(body))
    if conversation.options.max_tokens is None:
        raise refused("max_tokens", "Say in `max_tokens` how long the reply may become.")
    _no_open_calls(conversation.messages)
    return conversation


def read_count(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation whose tokens are to be counted: `max_tokens` may be missing, and calls may lack their results.

    Raises as `read_request` does.
    """
    return _conversation(body_fields(body, limits), limits, len(body))


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means.
    """
    raw = body_fields(body, limits)
    choice = raw.get("tool_choice")
    if raw.get("tools") not in (None, []) or (choice is not None and _kind(choice) not in ("auto", "none")):
        return None
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result"):
                return None
    model = raw.get("model")
    name = model if isinstance(model, str) else ""
    return Conversation("messages", name, (), stream=raw.get("stream") is True, raw=raw)


def _conversation(raw: Fields, limits: LimitSettings, size: int) -> Conversation:
    tools, dropped = _tools(raw, limits, size)
    conversation = Conversation(
        protocol="messages",
        model=model_name(raw),
        messages=(*read_system(raw.get("system")), *read_messages(raw.get("messages"))),
        tools=tools,
        stream=flag(raw, "stream"),
        options=_options(raw),
        dropped=dropped,
        raw=raw,
    )
    return _with_choice(conversation, raw.get("tool_choice"))


def _no_open_calls(messages: tuple[Message, ...]) -> None:
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    for call in unanswered(messages):
        raise refused(
            "messages",
            f"The call {shown(call.id)} of {shown(call.name)} has no result: answer it with a `tool_result` in a user "
            f"message before asking for the next reply.",
        )


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The tools, and what was left out."""
    given = list_of(raw, "tools")
    if len(given) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param="tools", code="too_many_tools"
        )
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for position, item in enumerate(given):
        place = f"tools[{position}]"
        fields = object_at(item, place)
        offered = _offered(fields, place, limits, size)
        if not offered:
            dropped.append(f"{HOSTED}{fields['type']}")
        for tool in offered:
            if tools.setdefault(tool.name, tool) != tool:
                raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    return tuple(tools.values()), tuple(dropped)


def _offered(fields: Fields, place: str, limits: LimitSettings, size: int) -> tuple[Tool, ...]:
    """The tool as the model gets it; a toolset is several, and what only the origin can run is none."""
    kind = fields.get("type")
    if kind is None or kind == "custom":
        tool = Tool(
            tool_name(fields, place, limits),
            words(fields, "description", place),
            tool_schema(fields, "input_schema", place, limits, size),
            strict=flag(fields, "strict", place),
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


def _with_choice(conversation: Conversation, value: Json) -> Conversation:
    """`conversation` with its `ToolChoice`; the choice is checked against its tools."""
    choice = _choice(value)
    hosted = any(note.startswith(HOSTED) for note in conversation.dropped)
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required" and not hosted:
            raise refused("tool_choice", "`tool_choice` asks for a tool, but the request offers none.")
        choice = evolve(choice, mode="auto", names=())
    names = tuple(meant for name in choice.names for meant in _meant(name, conversation))
    missing = [name for name in names if name not in conversation.known_names]
    if missing and not hosted:
        raise refused("tool_choice", f"`tool_choice` names {shown(missing[0])}, which is not among the tools.")
    if missing:
        dropped = (*conversation.dropped, "tool_choice of a tool that was left out")
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
    match _kind(value):
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


def _kind(choice: Json) -> Json:
    return choice.get("type", "") if isinstance(choice, dict) else choice


# --- how the reply is to be made --------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    metadata = raw.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return Options(
        stop=strings(raw, "stop_sequences"),
        max_tokens=integer(raw, "max_tokens"),
        temperature=number(raw, "temperature"),
        top_p=number(raw, "top_p"),
        top_k=integer(raw, "top_k"),
        effort=_effort(raw),
        user=user if isinstance(user, str) else None,
        output=_output(raw),
    )


def _effort(raw: Fields) -> str | None:
    """The effort that was asked for by name, else what a budget for thinking amounts to."""
    match raw.get("output_config"):
        case {"effort": str(effort)}:
            return _EFFORTS.get(effort, effort)
    match raw.get("thinking"):
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return "low" if budget <= _LOW else "medium" if budget <= _MEDIUM else "high"
    return None


def _output(raw: Fields) -> OutputFormat | None:
    config = raw.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    match raw.get("output_format") if form is None else form:
        case {"type": "json_schema", "schema": dict(schema)}:
            return OutputFormat(schema)
    return None
