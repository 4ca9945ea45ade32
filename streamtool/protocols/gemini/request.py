"""Reads the body of a request to Gemini's `generateContent` into a `Conversation`; also that of a count of its tokens.

The model, and whether the reply is streamed, stand in the path (`addresses`); a body may name the model too. Keys are
in camel case or in snake case, as clients write them. Calls and results may lack ids; a result names its function, and
answers the first open call of it (`pairing`). The parts of a turn are in `parts`, schemas of types in `schemas`.
Source: the reference of the Gemini API and the request types of google-genai 3.4.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from attrs import evolve

from streamtool.conversation import (
    HOSTED,
    HOSTED_CHOICE,
    Conversation,
    Message,
    Options,
    OutputFormat,
    Tool,
    ToolChoice,
)
from streamtool.errors import TooLargeError
from streamtool.protocols.fields import (
    Fields,
    body_fields,
    integer,
    list_of,
    number,
    object_at,
    refused,
    shown,
    strings,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.gemini.parts import camel, read_contents, read_system
from streamtool.protocols.gemini.request_fields import REQUEST_FIELDS
from streamtool.protocols.gemini.schemas import json_schema
from streamtool.settings import LimitSettings
from streamtool.turns import unanswered

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(name for name, what in REQUEST_FIELDS.items() if "left out" not in what)
"""The fields of the body that are understood, or mean nothing elsewhere; others are lost on the way to another
protocol."""
_MODELS: Final = "models/"
_LOW: Final = 4096  # tokens of thoughts: up to here the effort is low
_MEDIUM: Final = 16384
_MOST_CANDIDATES: Final = 128


def read_request(body: bytes, limits: LimitSettings, *, model: str = "", stream: bool = False) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
    conversation = _conversation(camel(body_fields(body, limits)), limits, len(body), model=model, stream=stream)
    for call in unanswered(conversation.messages):
        sentence = f"The call of {shown(call.name)} has no result: answer it with a `functionResponse` part."
        raise refused("contents", sentence)
    return conversation


def read_count(body: bytes, limits: LimitSettings, *, model: str = "") -> Conversation:
    """The conversation whose tokens are to be counted; its calls may lack their results. Raises as `read_request`."""
    raw = camel(body_fields(body, limits))
    given = raw.get("generateContentRequest")
    raw = raw if given is None else camel(object_at(given, "generateContentRequest"))
    return _conversation(raw, limits, len(body), model=model, stream=False)


def read_unread(body: bytes, limits: LimitSettings, *, model: str = "", stream: bool = False) -> Conversation | None:
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means.
    """
    raw = camel(body_fields(body, limits))
    if raw.get("tools"):
        return None
    for content in _contents(raw.get("contents")):
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and not {"functionCall", "functionResponse"}.isdisjoint(camel(part)):
                return None
    return Conversation("gemini", _model(raw, model), (), stream=stream, raw=raw)


def _model(raw: Fields, model: str) -> str:
    given = model or raw.get("model")
    return given.removeprefix(_MODELS) if isinstance(given, str) else ""


def _conversation(raw: Fields, limits: LimitSettings, size: int, *, model: str, stream: bool) -> Conversation:
    name = _model(raw, model)
    if not name:
        raise refused("model", "Name the model in the path: /v1beta/models/{model}:generateContent.")
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
    """The turns; a single one may come without its list, and a text without its turn."""
    if isinstance(value, str):
        return [{"parts": [{"text": value}]}]
    return [value] if isinstance(value, dict) else value if isinstance(value, list) else ()


def _messages(value: Json) -> Iterator[Message]:
    contents = _contents(value)
    if not contents:
        raise refused("contents", "Give at least one turn in a list.")
    turns = [camel(object_at(item, f"contents[{position}]")) for position, item in enumerate(contents)]
    return read_contents(turns)


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The functions, and what was left out: a tool that only the origin can run."""
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    for position, item in enumerate(list_of(raw, "tools")):
        place = f"tools[{position}]"
        group = camel(object_at(item, place))
        dropped += (f"{HOSTED}{kind}" for kind in group if kind != "functionDeclarations")
        for number_, declared in enumerate(list_of(group, "functionDeclarations", place)):
            inside = f"{place}.functionDeclarations[{number_}]"
            tool = _tool(camel(object_at(declared, inside)), inside, limits, size)
            if tools.setdefault(tool.name, tool) != tool:
                raise refused(inside, f"Two different tools are named {shown(tool.name)}.")
    if len(tools) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param="tools", code="too_many_tools"
        )
    return tuple(tools.values()), tuple(dropped)


def _tool(fields: Fields, place: str, limits: LimitSettings, size: int) -> Tool:
    parameters = tool_schema(fields, "parametersJsonSchema", place, limits, size)
    if parameters is None:
        given = tool_schema(fields, "parameters", place, limits, size)
        parameters = None if given is None else json_schema(given)
    return Tool(tool_name(fields, place, limits), words(fields, "description", place), parameters)


def _with_choice(conversation: Conversation, value: Json) -> Conversation:
    """`conversation` with its `ToolChoice`; the choice is checked against its tools."""
    place = "toolConfig.functionCallingConfig"
    config = camel(object_at(value, "toolConfig")).get("functionCallingConfig") if value is not None else None
    given = camel(object_at(config, place)) if config is not None else {}
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
            raise refused(f"{place}.mode", f"{shown(mode)} is no mode: AUTO, ANY, NONE or VALIDATED.")
    if not conversation.tools and not conversation.has_tool_history:
        if choice.mode == "required":
            if not conversation.dropped:
                raise refused(f"{place}.mode", "`ANY` asks for a call, but the request offers no function.")
            conversation = evolve(conversation, dropped=(*conversation.dropped, HOSTED_CHOICE))
        choice = ToolChoice()
    missing = [name for name in choice.names if name not in conversation.known_names]
    if missing:
        sentence = f"{shown(missing[0])} is not among the functions."
        raise refused(f"{place}.allowedFunctionNames", sentence)
    return evolve(conversation, choice=choice)


# --- how the reply is to be made --------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    place = "generationConfig"
    value = raw.get(place)
    given: Fields = {} if value is None else camel(object_at(value, place))
    effort, thinking = _thinking(given.get("thinkingConfig"))
    candidates = integer(given, "candidateCount", place) or 1
    if candidates > _MOST_CANDIDATES:
        raise refused(f"{place}.candidateCount", f"At most {_MOST_CANDIDATES} candidates are made at once.")
    top_k = number(given, "topK", place)
    return Options(
        n=candidates,
        stop=strings(given, "stopSequences", place),
        max_tokens=integer(given, "maxOutputTokens", place),
        temperature=number(given, "temperature", place),
        top_p=number(given, "topP", place),
        top_k=None if top_k is None else int(top_k),
        seed=integer(given, "seed", place, least=-(2**63)),
        presence_penalty=number(given, "presencePenalty", place),
        frequency_penalty=number(given, "frequencyPenalty", place),
        effort=effort,
        thinking=thinking,
        output=_output(given),
    )


def _thinking(value: Json) -> tuple[str | None, bool | None]:
    """The effort that a level or a budget for thoughts amounts to, and whether there are to be any."""
    config = camel(value) if isinstance(value, dict) else {}
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
        return OutputFormat(whole)
    return OutputFormat(json_schema(given)) if isinstance(given, dict) else OutputFormat()
