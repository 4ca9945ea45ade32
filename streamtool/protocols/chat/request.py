"""Reads the body of a Chat Completions request into a `Conversation`.

The reading is as tolerant as real agents need and as strict as honesty needs: what is merely odd (null content, empty
arguments, a result without its call, unknown keys) is taken, what cannot be honoured is a `RequestError` whose `param`
names the place. Tools that only the origin can run (`web_search`) are left out and recorded in `dropped`.
Source: the OpenAI API reference and the request types of openai-python 3.52.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from streamtool.conversation import Call, Conversation, Media, Message, Part, Result, Text, Tool, ToolChoice
from streamtool.errors import RequestError, TooLargeError
from streamtool.protocols import wire
from streamtool.settings import Limits

Json = Any  # a decoded JSON value
Fields = Mapping[str, Json]

_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f\"'`<>{}\[\]()\\]+")
"""A tool's name. The origin takes `[A-Za-z0-9_-]{1,64}`; tools of MCP servers have dots and slashes as well."""

_MEDIA: Final = {"image_url": "image", "input_audio": "audio", "file": "file"}
_MOST_CHOICES: Final = 128
_CONTAINERS: Final = (dict, list)


def read_request(body: bytes, limits: Limits) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
    if len(body) > limits.body:
        raise TooLargeError(f"The request body is larger than {limits.body} bytes.", code="request_too_large")
    raw = _fields(body, limits)
    model = raw.get("model")
    if not isinstance(model, str) or not model:
        raise _refused("model", "Name the model to use as a string.")
    messages = read_messages(raw.get("messages"))
    stream = _flag(raw, "stream", default=False)
    options = raw.get("stream_options")
    if options is not None:
        options = _object(options, "stream_options")
    tools, legacy, dropped = _tools(raw, limits, len(body))
    conversation = Conversation(
        protocol="chat",
        model=model,
        messages=messages,
        tools=tools,
        stream=stream,
        n=_count(raw),
        include_usage=bool(stream and options and options.get("include_usage")),
        legacy_functions=legacy,
        stop=_stop(raw),
        dropped=tuple(dropped),
        raw=raw,
    )
    _no_open_calls(messages)
    return _with_choice(conversation, raw, hosted=bool(dropped))


def read_unread(body: bytes, limits: Limits) -> Conversation | None:
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means.
    """
    raw = _fields(body, limits)
    if any(raw.get(key) not in (None, []) for key in ("tools", "functions")):
        return None
    if any(raw.get(key) not in (None, "auto", "none") for key in ("tool_choice", "function_call")):
        return None
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (
            message.get("role") in ("tool", "function") or not {"tool_calls", "function_call"}.isdisjoint(message)
        ):
            return None
    model = raw.get("model")
    return Conversation("chat", model if isinstance(model, str) else "", (), stream=raw.get("stream") is True, raw=raw)


def _fields(body: bytes, limits: Limits) -> Fields:
    return _object(_decoded(body, limits), None, "The request body must be a JSON object.")


def _decoded(body: bytes, limits: Limits) -> Json:
    too_deep = f"The request body is not JSON, or is nested more than {limits.depth} deep."
    try:
        value = wire.decode(body)
    except wire.UNREADABLE:
        try:
            value = wire.mended(wire.decode_tolerant(body))
        except (ValueError, RecursionError):
            raise RequestError(too_deep, code="invalid_json") from None
    if _deeper(value, limits.depth):
        raise RequestError(too_deep, code="invalid_json")
    return value


def _deeper(value: Json, depth: int) -> bool:
    """Whether `value` is nested more than `depth` deep; level by level, so that no recursion is needed."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth):
        if not level:
            return False
        children = (item for node in level for item in (node.values() if isinstance(node, dict) else node))
        level = [item for item in children if isinstance(item, _CONTAINERS)]
    return bool(level)


# --- messages ---------------------------------------------------------------------------------------------------------


def read_messages(value: Json) -> tuple[Message, ...]:
    """The messages of a request. Neighbouring results become one message, whose `raw` holds all of them."""
    if not isinstance(value, list) or not value:
        raise _refused("messages", "Give at least one message in a list.")
    messages: list[Message] = []
    names: dict[str, str] = {}  # of the calls seen so far, by id
    for position, item in enumerate(value):
        place = f"messages[{position}]"
        fields = _object(item, place)
        match fields.get("role"):
            case "system" | "developer":
                message = Message("system", _content(fields, place), raw=(fields,))
            case "user":
                message = Message("user", _content(fields, place), raw=(fields,))
            case "assistant":
                message = _assistant(fields, place)
                names.update((call.id, call.name) for call in message.calls)
            case "tool" | "function" as role:
                result = _result(fields, place, names, legacy=role == "function")
                last = messages[-1] if messages else None
                if last is not None and last.results:
                    messages[-1] = Message("user", results=(*last.results, result), raw=(*last.raw, fields))
                    continue
                message = Message("user", results=(result,), raw=(fields,))
            case role:
                known = "developer, system, user, assistant, tool or function"
                raise _refused(f"{place}.role", f"A message's role is {known}, not {_shown(role)}.")
        messages.append(message)
    return tuple(messages)


def _assistant(fields: Fields, place: str) -> Message:
    content = _content(fields, place, optional=True)
    refusal = fields.get("refusal")
    if isinstance(refusal, str) and refusal:
        content = (*content, Text(refusal))
    calls = [
        _call(_object(item, f"{place}.tool_calls[{number}]"), f"{place}.tool_calls[{number}]")
        for number, item in enumerate(_list(fields, "tool_calls", place))
    ]
    legacy = fields.get("function_call")
    if legacy is not None:
        function = _object(legacy, f"{place}.function_call")
        name = _string(function, "name", f"{place}.function_call")
        calls.append(Call(name, name, _arguments(function, "arguments", f"{place}.function_call")))
    reasoning = fields.get("reasoning_content") or fields.get("reasoning")
    return Message(
        "assistant",
        content,
        calls=tuple(calls),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        raw=(fields,),
    )


def _call(fields: Fields, place: str) -> Call:
    identity = _string(fields, "id", place)
    kind = fields.get("type") or ("custom" if "custom" in fields else "function")
    if kind == "custom":
        custom = _object(fields.get("custom"), f"{place}.custom")
        text = custom.get("input", "")
        if not isinstance(text, str):
            raise _refused(f"{place}.custom.input", "The input of a custom tool is a string.")
        return Call(identity, _string(custom, "name", f"{place}.custom"), text, custom=True)
    if kind != "function":
        raise _refused(f"{place}.type", f"A call's type is function or custom, not {_shown(kind)}.")
    function = _object(fields.get("function"), f"{place}.function")
    name = _string(function, "name", f"{place}.function")
    return Call(identity, name, _arguments(function, "arguments", f"{place}.function"))


def _arguments(fields: Fields, key: str, place: str) -> str:
    value = fields.get(key)
    if isinstance(value, Mapping):  # some agents send the object itself
        return wire.encode(value).decode()
    if value is None:
        return "{}"
    if not isinstance(value, str):
        raise _refused(f"{place}.{key}", "Arguments are a string that holds a JSON object.")
    return value if value.strip() else "{}"


def _result(fields: Fields, place: str, names: Mapping[str, str], *, legacy: bool) -> Result:
    content = _content(fields, place, optional=True)
    if legacy:
        name = _string(fields, "name", place)
        return Result(name, content, name=name)
    identity = _string(fields, "tool_call_id", place)
    given = fields.get("name")
    return Result(identity, content, name=names.get(identity) or (given if isinstance(given, str) and given else None))


def _content(fields: Fields, place: str, *, optional: bool = False) -> tuple[Part, ...]:
    value = fields.get("content")
    if isinstance(value, str):
        return (Text(value),) if value else ()
    if value is None and optional:
        return ()
    if not isinstance(value, list):
        raise _refused(f"{place}.content", "A message's content is a string or a list of parts.")
    return tuple(_part(item, f"{place}.content[{number}]") for number, item in enumerate(value))


def _part(value: Json, place: str) -> Part:
    if isinstance(value, str):  # not legal at the origin, but its meaning is plain
        return Text(value)
    fields = _object(value, place)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _refused(f"{place}.type", "A part says what it is in `type`: text, image_url, input_audio or file.")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return Text(_string(fields, "refusal" if kind == "refusal" else "text", place, empty=True))
    return Media(_MEDIA.get(kind, kind), fields)


def _no_open_calls(messages: Sequence[Message]) -> None:
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    results: list[str] = []
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if call.id not in results:
                    raise _refused(
                        "messages",
                        f"The call {_shown(call.id)} of {_shown(call.name)} has no result: answer it with a message "
                        f"of role `tool` before asking for the next reply.",
                    )
                results.remove(call.id)
            return
        if not message.results or message.content:
            return
        results.extend(result.id for result in message.results)


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: Limits, size: int) -> tuple[tuple[Tool, ...], bool, list[str]]:
    """The tools, whether they came as `functions`, and what was left out."""
    given, functions = _list(raw, "tools"), _list(raw, "functions")
    if given and functions:
        raise _refused("functions", "Give `tools` or the older `functions`, not both.")
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    key = "functions" if functions else "tools"
    if len(given or functions) > limits.tools:
        raise TooLargeError(f"More than {limits.tools} tools in one request.", param=key, code="too_many_tools")
    for number, item in enumerate(given or functions):
        place = f"{key}[{number}]"
        fields = _object(item, place)
        kind = "legacy" if functions else fields.get("type") or ("function" if "function" in fields else None)
        if kind == "legacy":
            tool = _function(fields, place, limits, size)
        elif kind == "function":
            tool = _function(_object(fields.get("function"), f"{place}.function"), f"{place}.function", limits, size)
        elif kind == "custom":
            custom, inside = _object(fields.get("custom"), f"{place}.custom"), f"{place}.custom"
            tool = Tool(_tool_name(custom, inside, limits), _words(custom, "description", inside), custom=True)
        elif isinstance(kind, str):
            dropped.append(f"tool of type {kind}")
            continue
        else:
            raise _refused(f"{place}.type", "A tool says what it is in `type`: function or custom.")
        if tools.setdefault(tool.name, tool) != tool:
            raise _refused(place, f"Two different tools are named {_shown(tool.name)}.")
    return tuple(tools.values()), bool(functions), dropped


def _function(fields: Fields, place: str, limits: Limits, size: int) -> Tool:
    parameters = fields.get("parameters")
    if parameters is not None:
        parameters = _object(parameters, f"{place}.parameters", "Parameters are a JSON Schema, which is an object.")
        # a schema is never much larger than the body that it came in
        if size > limits.schema and len(wire.encode(parameters)) > limits.schema:
            sentence = f"The schema is larger than {limits.schema} bytes."
            raise TooLargeError(sentence, param=f"{place}.parameters", code="schema_too_large")
    return Tool(
        _tool_name(fields, place, limits),
        _words(fields, "description", place),
        parameters,
        strict=_flag(fields, "strict", place=place, default=False),
    )


def _tool_name(fields: Fields, place: str, limits: Limits) -> str:
    name = _string(fields, "name", place)
    if len(name) > limits.name:
        raise _refused(f"{place}.name", f"A tool's name has at most {limits.name} characters.")
    if not _NAME.fullmatch(name):
        raise _refused(f"{place}.name", f"A tool's name has no spaces, quotes or brackets: {_shown(name)}.")
    return name


# --- which calls are allowed ------------------------------------------------------------------------------------------


def _with_choice(conversation: Conversation, raw: Fields, *, hosted: bool) -> Conversation:
    """`conversation` with its `ToolChoice`; the choice is checked against its tools."""
    key, other = ("function_call", "tool_choice") if conversation.legacy_functions else ("tool_choice", "function_call")
    value = raw.get(key)
    if value is None and raw.get(other) is not None and not conversation.tools:
        key, value = other, raw[other]
    choice, unknown = _choice(value, key)
    dropped = conversation.dropped
    if unknown:
        if not hosted:
            raise _refused(key, f"{_shown(value)} is no tool choice: none, auto, required, or the tool by name.")
        dropped = (*dropped, f"{key} of a tool that was left out")
    if not conversation.tools and not conversation.has_tool_history:
        if not hosted and (choice.mode == "required" or choice.names):
            raise _refused(key, f"`{key}` asks for a tool, but the request offers none.")
        choice = ToolChoice()
    elif choice.names:
        missing = [name for name in choice.names if name not in conversation.known_names]
        if missing:
            raise _refused(key, f"`{key}` names {_shown(missing[0])}, which is not among the tools.")
    parallel = _flag(raw, "parallel_tool_calls", default=True) and not conversation.legacy_functions
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
            raise _refused(
                f"{key}.allowed_tools", "Allowed tools are a `mode` (auto or required) and a list of `tools`."
            )
        case {"type": "function" | "custom"}:
            named = _named(value)
            if named is None:
                raise _refused(f"{key}.{value['type']}.name", "Name the tool that must be called.")
            return ToolChoice("required", (named,)), False
        case {"type": str()}:
            return ToolChoice(), True
        case _:
            raise _refused(key, f"{_shown(value)} is no tool choice: none, auto, required, or the tool by name.")


def _allowed(mode: Any, tools: Sequence[Json]) -> tuple[ToolChoice, bool]:
    names: list[str] = []
    for number, item in enumerate(tools):
        place = f"tool_choice.allowed_tools.tools[{number}]"
        fields = _object(item, place)
        if fields.get("type", "function") not in ("function", "custom"):
            continue  # a hosted tool, which was left out of the tools as well
        allowed = _named(fields)
        if allowed is None:
            raise _refused(place, "Name the tool that is allowed.")
        names.append(allowed)
    if not names:
        return ToolChoice("none"), False
    return ToolChoice(mode, tuple(dict.fromkeys(names))), False


def _named(fields: Fields) -> str | None:
    """The name in `{"type": T, T: {"name": …}}`, or in the flat form of the Responses protocol."""
    nested = fields.get(fields.get("type", "function"))
    name = nested.get("name") if isinstance(nested, Mapping) else fields.get("name")
    return name if isinstance(name, str) and name else None


# --- single values ----------------------------------------------------------------------------------------------------


def _count(raw: Fields) -> int:
    value = raw.get("n")
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_CHOICES:
        raise _refused("n", f"`n` is a number from 1 to {_MOST_CHOICES}.")
    return value


def _stop(raw: Fields) -> tuple[str, ...]:
    value = raw.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _refused("stop", "`stop` is a string or a list of strings.")
    return tuple(item for item in value if item)


def _object(value: Json, place: str | None, sentence: str = "This must be a JSON object.") -> Fields:
    if not isinstance(value, dict):
        raise _refused(place, sentence)
    return value


def _list(fields: Fields, key: str, place: str = "") -> list[Json]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _refused(f"{place}.{key}" if place else key, f"`{key}` is a list.")
    return value


def _string(fields: Fields, key: str, place: str, *, empty: bool = False) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise _refused(f"{place}.{key}", f"`{key}` must be a string{'' if empty else ' that is not empty'}.")
    return value


def _words(fields: Fields, key: str, place: str) -> str:
    return _string(fields, key, place, empty=True) if fields.get(key) is not None else ""


def _flag(fields: Fields, key: str, *, default: bool, place: str = "") -> bool:
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _refused(f"{place}.{key}" if place else key, f"`{key}` is true or false.")
    return value


def _refused(place: str | None, sentence: str) -> RequestError:
    return RequestError(sentence, param=place)


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else wire.encode(value).decode()
    return f"`{text[:80]}`"
