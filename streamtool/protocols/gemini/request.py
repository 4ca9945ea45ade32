"""Reader for the request bodies of Gemini's `generateContent` and `countTokens`.

The path names the model and selects streaming (`addresses`); the body may name the model too. Keys may be in camel case
or snake case. Calls and results may lack ids; a result without an id answers the oldest unanswered call to the function
that it names (`pairing`). The parts of a turn are read by `parts`, and schemas by `schemas`. Sources: the reference of
the Gemini API and the request types of google-genai 3.4.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve

from streamtool.core.conversation import (
    HOSTED,
    HOSTED_CHOICE,
    Conversation,
    Message,
    Options,
    OutputFormat,
    Tool,
    ToolChoice,
)
from streamtool.core.json_value import Fields, Json
from streamtool.core.turns import unanswered_calls
from streamtool.protocols.gemini.parts import camel_case_keys, read_contents, read_system
from streamtool.protocols.gemini.schemas import json_schema, with_lower_types
from streamtool.protocols.options import reading
from streamtool.protocols.shared.fields import (
    body_fields,
    check_spelling,
    check_tool_count,
    list_of,
    object_at,
    read_options,
    refused,
    shown,
    strings,
    tool_name,
    tool_schema,
    words,
)
from streamtool.settings import LimitSettings

_OPTIONS: Final = reading("gemini")
_CONFIG: Final = "generationConfig"
_MODELS: Final = "models/"
_LOW: Final = 4096  # maximum number of thought tokens for a low effort
_MEDIUM: Final = 16384


def read_request(body: bytes, limits: LimitSettings, *, model: str = "", stream: bool = False) -> Conversation:
    """Return the conversation in `body`. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.
    """
    conversation = _conversation(
        camel_case_keys(body_fields(body, limits)), limits, len(body), model=model, stream=stream
    )
    for call in unanswered_calls(conversation.messages):
        sentence = f"The call to {shown(call.name)} has no result: add a `functionResponse` part for it."
        raise refused("contents", sentence)
    return conversation


def read_count(body: bytes, limits: LimitSettings, *, model: str = "") -> Conversation:
    """Return the conversation whose tokens are to be counted. Its calls may be unanswered. Raises the same errors as
    `read_request`.
    """
    raw = camel_case_keys(body_fields(body, limits))
    given = raw.get("generateContentRequest")
    raw = raw if given is None else camel_case_keys(object_at(given, "generateContentRequest"))
    return _conversation(raw, limits, len(body), model=model, stream=False)


def read_unread(body: bytes, limits: LimitSettings, *, model: str = "", stream: bool = False) -> Conversation | None:
    """Return a conversation without messages for a body that `read_request` rejects, or None if the body involves
    tools.

    A request without tools is forwarded verbatim, because the upstream may understand it.
    """
    raw = camel_case_keys(body_fields(body, limits))
    if raw.get("tools"):
        return None
    for content in _contents(raw.get("contents")):
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and not {"functionCall", "functionResponse"}.isdisjoint(camel_case_keys(part)):
                return None
    return Conversation("gemini", _model(raw, model), (), stream=stream, raw=raw)


def _model(raw: Fields, model: str) -> str:
    given = model or raw.get("model")
    return given.removeprefix(_MODELS) if isinstance(given, str) else ""


def _conversation(raw: Fields, limits: LimitSettings, size: int, *, model: str, stream: bool) -> Conversation:
    name = _model(raw, model)
    if not name:
        raise refused("model", "Name the model in the path: /v1beta/models/{model}:generateContent.")
    if raw.get(_CONFIG) is not None:
        raw = {**raw, _CONFIG: camel_case_keys(object_at(raw[_CONFIG], _CONFIG))}
    tools, dropped = _tools(raw, limits, size)
    conversation = Conversation(
        protocol="gemini",
        model=name,
        messages=(*read_system(raw.get("systemInstruction")), *_messages(raw.get("contents"))),
        tools=tools,
        stream=stream,
        options=_options(raw),
        dropped=dropped,
        raw=raw,
    )
    return _with_choice(conversation, raw.get("toolConfig"))


def _contents(value: Json) -> Sequence[Json]:
    """Return the turns. A single turn does not have to be in a list, and text does not have to be in a turn."""
    if isinstance(value, str):
        return [{"parts": [{"text": value}]}]
    return [value] if isinstance(value, dict) else value if isinstance(value, list) else ()


def _messages(value: Json) -> Iterator[Message]:
    contents = _contents(value)
    if not contents:
        raise refused("contents", "A non-empty list of turns is required.")
    turns = [camel_case_keys(object_at(item, f"contents[{position}]")) for position, item in enumerate(contents)]
    return read_contents(turns)


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Return the functions, and notes about the tools that were dropped because only the origin can run them."""
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for position, item in enumerate(list_of(raw, "tools")):
        place = f"tools[{position}]"
        group = camel_case_keys(object_at(item, place))
        dropped += (f"{HOSTED}{kind}" for kind in group if kind != "functionDeclarations")
        for number_, declared in enumerate(list_of(group, "functionDeclarations", place)):
            inside = f"{place}.functionDeclarations[{number_}]"
            tool = _tool(camel_case_keys(object_at(declared, inside)), inside, limits, size)
            if tools.setdefault(tool.name, tool) != tool:
                raise refused(inside, f"Two different tools are named {shown(tool.name)}.")
    check_tool_count(len(tools), limits, "tools")
    check_spelling(tools, "tools")
    return tuple(tools.values()), tuple(dropped)


def _tool(fields: Fields, place: str, limits: LimitSettings, size: int) -> Tool:
    parameters = tool_schema(fields, "parametersJsonSchema", place, limits, size)
    if parameters is None:
        given = tool_schema(fields, "parameters", place, limits, size)
        parameters = None if given is None else json_schema(given)
    elif parameters.get("type") == "OBJECT":
        parameters = with_lower_types(parameters)
    return Tool(tool_name(fields, place, limits), words(fields, "description", place), parameters)


def _with_choice(conversation: Conversation, value: Json) -> Conversation:
    """Return `conversation` with its `ToolChoice` set, after checking that it names only functions in the request."""
    place = "toolConfig.functionCallingConfig"
    config = camel_case_keys(object_at(value, "toolConfig")).get("functionCallingConfig") if value is not None else None
    given = camel_case_keys(object_at(config, place)) if config is not None else {}
    mode, names = given.get("mode"), strings(given, "allowedFunctionNames", place)
    match mode.upper() if isinstance(mode, str) else mode:
        case None | "MODE_UNSPECIFIED" | "AUTO":
            choice = ToolChoice()
        case "VALIDATED":
            choice = ToolChoice(names=names)
        case "ANY":
            choice = ToolChoice("required", names)
        case "NONE":
            choice = ToolChoice("none")
        case _:
            raise refused(f"{place}.mode", f"{shown(mode)} is not a valid mode: use AUTO, ANY, NONE or VALIDATED.")
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required":
            if not conversation.dropped:
                raise refused(f"{place}.mode", "`ANY` requires a call, but the request has no functions.")
            conversation = evolve(conversation, dropped=(*conversation.dropped, HOSTED_CHOICE))
        choice = ToolChoice()
    missing = [name for name in choice.names if name not in conversation.known_names]
    if missing:
        sentence = f"{shown(missing[0])} is not among the functions."
        raise refused(f"{place}.allowedFunctionNames", sentence)
    return evolve(conversation, choice=choice)


# --- options of the reply ---------------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    given: Fields = raw.get(_CONFIG) or {}
    effort, thinking = _thinking(given.get("thinkingConfig"))
    return Options(
        **read_options(given, _OPTIONS, _CONFIG),
        effort=effort,
        thinking=thinking,
        output=_output(given),
    )


def _thinking(value: Json) -> tuple[str | None, bool | None]:
    """Return the effort that corresponds to a thinking level or budget, and whether thinking is enabled."""
    config = camel_case_keys(value) if isinstance(value, dict) else {}
    match config:
        case {"thinkingLevel": str(level)} if level.upper() in ("MINIMAL", "LOW", "MEDIUM", "HIGH"):
            return level.lower(), None
        case {"thinkingBudget": 0}:
            return "none", False
        case {"thinkingBudget": int(budget)} if budget > 0:
            return "low" if budget <= _LOW else "medium" if budget <= _MEDIUM else "high", True
    return None, None


def _output(config: Fields) -> OutputFormat | None:
    kind = config.get("responseMimeType")
    if kind in (None, "", "text/plain"):
        return None
    if kind != "application/json":
        return OutputFormat(foreign=True)
    whole, given = config.get("responseJsonSchema"), config.get("responseSchema")
    if isinstance(whole, dict):
        return OutputFormat(with_lower_types(whole))
    return OutputFormat(json_schema(given)) if isinstance(given, dict) else OutputFormat()
