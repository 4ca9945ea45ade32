"""Reader for Chat Completions request bodies.

The reader accepts the oddities that real agents send (null content, empty arguments, a result without its call, unknown
keys). For anything that cannot be honored, it raises a `RequestError` whose `param` names the invalid field. Sources:
the OpenAI API reference and the request types of openai-python 3.52.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from streamtool.core.conversation import (
    Conversation,
    MediaPart,
    Message,
    Options,
    OutputFormat,
    Part,
    TextPart,
    ToolCall,
    ToolResult,
)
from streamtool.core.json_value import Fields, Json
from streamtool.models.generation_prompt import THINKS
from streamtool.protocols.chat.signature import signature_of
from streamtool.protocols.chat.tools import read_tools, with_choice
from streamtool.protocols.options import reading
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import (
    body_fields,
    flag,
    list_of,
    media,
    model_name,
    object_at,
    read_options,
    refused,
    shown,
    string,
)
from streamtool.settings import LimitSettings

_OPTIONS: Final = reading("chat")
_MEDIA: Final = {"image_url": "image", "input_audio": "audio", "file": "file"}


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """Return the conversation in `body`. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.
    """
    raw = body_fields(body, limits)
    model = model_name(raw)
    messages = read_messages(raw.get("messages"))
    stream = flag(raw, "stream")
    options = raw.get("stream_options")
    if options is not None:
        options = object_at(options, "stream_options")
    tools, legacy, dropped = read_tools(raw, limits, len(body))
    conversation = Conversation(
        protocol="chat",
        model=model,
        messages=messages,
        tools=tools,
        stream=stream,
        include_usage=bool(stream and options and options.get("include_usage")),
        legacy_functions=legacy,
        options=_options(raw),
        dropped=tuple(dropped),
        raw=raw,
    )
    _no_open_calls(messages)
    return with_choice(conversation, raw, hosted=bool(dropped))


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """Return a conversation without messages for a body that `read_request` rejects, or None if the body involves
    tools.

    A request without tools is forwarded verbatim, because the upstream may understand it.
    """
    raw = body_fields(body, limits)
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


# --- messages ---------------------------------------------------------------------------------------------------------


def read_messages(value: Json) -> tuple[Message, ...]:
    """Return the messages of a request. Adjacent results become one message, whose `raw` contains all of them."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "A non-empty list of messages is required.")
    messages: list[Message] = []
    names: dict[str, str] = {}  # names of the calls seen so far, by id
    results: list[tuple[ToolResult, Fields]] = []  # adjacent results
    for position, item in enumerate(value):
        place = f"messages[{position}]"
        fields: Fields = item if type(item) is dict else object_at(item, place)
        match fields.get("role"):
            case "system" | "developer" | "user" as role:
                text = fields.get("content")
                content = (TextPart(text),) if type(text) is str and text else _content(fields, place)
                message = Message("user" if role == "user" else "system", content, raw=(fields,))
            case "assistant":
                message = _assistant(fields, place)
                for call in message.calls:
                    names[call.id] = call.name
            case "tool" | "function" as role:
                result = _result(fields, place, names, legacy=role == "function")
                results.append((result, fields))
                continue
            case role:
                known = "developer, system, user, assistant, tool or function"
                raise refused(f"{place}.role", f"A message's role must be {known}, not {shown(role)}.")
        if results:
            messages.append(_results_message(results))
            results.clear()
        messages.append(message)
    return (*messages, _results_message(results)) if results else tuple(messages)


def _results_message(results: Sequence[tuple[ToolResult, Fields]]) -> Message:
    """Return one message that contains the results."""
    if len(results) == 1:
        [(result, fields)] = results
        return Message("user", results=(result,), raw=(fields,))
    made, raw = zip(*results, strict=True)
    return Message("user", results=made, raw=raw)


def _assistant(fields: Fields, place: str) -> Message:
    text = fields.get("content")
    content = (TextPart(text),) if type(text) is str and text else _content(fields, place, optional=True)
    refusal = fields.get("refusal")
    if isinstance(refusal, str) and refusal:
        content = (*content, TextPart(refusal))
    calls: list[ToolCall] = []
    given = fields.get("tool_calls")
    if given is not None:
        for i, item in enumerate(given if type(given) is list else list_of(fields, "tool_calls", place)):
            calls.append(_plain_call(item) or _call(item, f"{place}.tool_calls[{i}]"))
    legacy = fields.get("function_call")
    if legacy is not None:
        function = object_at(legacy, f"{place}.function_call")
        name = string(function, "name", f"{place}.function_call")
        calls.append(ToolCall(name, name, _arguments(function, "arguments", f"{place}.function_call")))
    reasoning = fields.get("reasoning_content") or fields.get("reasoning")
    return Message(
        "assistant",
        content,
        calls=tuple(calls),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        raw=(fields,),
    )


def _plain_call(item: Json) -> ToolCall | None:
    """Return the call if it has the usual form, as nearly all calls do, or None if `_call` must examine it.

    A `match` of the same form executes ten times as many instructions.
    """
    if type(item) is dict and len(item) == 3 and item.get("type") == "function":
        identity, function = item.get("id"), item.get("function")
        if type(identity) is str and identity and type(function) is dict:
            name, arguments = function.get("name"), function.get("arguments")
            if type(name) is str and name and type(arguments) is str:
                return ToolCall(identity, name, arguments if arguments.strip() else "{}")
    return None


def _call(item: Json, place: str) -> ToolCall:
    fields = object_at(item, place)
    identity = string(fields, "id", place)
    kind = fields.get("type") or ("custom" if "custom" in fields else "function")
    if kind == "custom":
        custom = object_at(fields.get("custom"), f"{place}.custom")
        text = custom.get("input", "")
        if not isinstance(text, str):
            raise refused(f"{place}.custom.input", "A custom tool's input must be a string.")
        return ToolCall(identity, string(custom, "name", f"{place}.custom"), text, custom=True)
    if kind != "function":
        raise refused(f"{place}.type", f"A call's type must be function or custom, not {shown(kind)}.")
    function = object_at(fields.get("function"), f"{place}.function")
    name = string(function, "name", f"{place}.function")
    arguments = _arguments(function, "arguments", f"{place}.function")
    return ToolCall(identity, name, arguments, signature=signature_of(fields))


def _arguments(fields: Fields, key: str, place: str) -> str:
    value = fields.get(key)
    if isinstance(value, Mapping):  # some agents send the object itself
        return wire.encode(value).decode()
    if value is None:
        return "{}"
    if not isinstance(value, str):
        raise refused(f"{place}.{key}", "Arguments must be a string containing a JSON object.")
    return value if value.strip() else "{}"


def _result(fields: Fields, place: str, names: Mapping[str, str], *, legacy: bool) -> ToolResult:
    text = fields.get("content")
    content = (TextPart(text),) if type(text) is str and text else _content(fields, place, optional=True)
    if legacy:
        name = string(fields, "name", place)
        return ToolResult(name, content, name=name)
    identity = fields.get("tool_call_id")
    if type(identity) is not str or not identity:
        identity = string(fields, "tool_call_id", place)
    given = fields.get("name")
    return ToolResult(
        identity, content, name=names.get(identity) or (given if isinstance(given, str) and given else None)
    )


def _content(fields: Fields, place: str, *, optional: bool = False) -> tuple[Part, ...]:
    value = fields.get("content")
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    if value is None and optional:
        return ()
    if not isinstance(value, list):
        raise refused(f"{place}.content", "A message's content must be a string or a list of parts.")
    return tuple(_part(item, f"{place}.content[{i}]") for i, item in enumerate(value))


def _part(value: Json, place: str) -> Part:
    if isinstance(value, str):  # invalid at the origin, but unambiguous
        return TextPart(value)
    fields = object_at(value, place)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "A part must have a `type`: text, image_url, input_audio or file.")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return TextPart(string(fields, "refusal" if kind == "refusal" else "text", place, empty=True))
    return _media(fields, kind)


def _media(fields: Fields, kind: str) -> MediaPart:
    """Return the media part, with all the data that is required to write it in another protocol."""
    inner = fields.get(kind)
    match kind, inner:
        case "image_url", {"url": str(url)} | str(url):
            return media("image", fields, url)
        case "input_audio", {"data": str(data), "format": str(format_)}:
            return MediaPart("audio", fields, f"audio/{format_}", data)
        case "file", {"file_data": str(data), **rest}:
            name = rest.get("filename")
            name = name if isinstance(name, str) else ""
            if not data.startswith(("data:", "http:", "https:")):
                return MediaPart("file", fields, data=data, name=name)
            return media("file", fields, data, name)
    return MediaPart(_MEDIA.get(kind, kind), fields)


def _no_open_calls(messages: Sequence[Message]) -> None:
    """Reject a conversation that ends with unanswered calls, because the model needs their results to reply."""
    results = Counter[str]()
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if not results[call.id]:
                    raise refused(
                        "messages",
                        f"The call {shown(call.id)} to {shown(call.name)} has no result: add a message "
                        f"with the role `tool` before requesting the next reply.",
                    )
                results[call.id] -= 1
            return
        if not message.results or message.content:
            return
        results.update(result.id for result in message.results)


# --- single values ----------------------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    effort = raw.get("reasoning_effort")
    return Options(
        **read_options(raw, _OPTIONS),
        effort=effort if isinstance(effort, str) else None,
        thinking=_thinking(raw.get("chat_template_kwargs")),
        output=_output(raw),
    )


def _thinking(variables: Json) -> bool | None:
    """Return whether the chat template's variables enable reasoning, or None if the request sets none of these
    variables.

    vLLM, SGLang and llama.cpp accept template variables. The names read here are the ones used by Qwen, GLM and
    DeepSeek.
    """
    if not isinstance(variables, dict):
        return None
    said = [variables[name] for name in THINKS if isinstance(variables.get(name), bool)]
    return said[0] if said else None


def _output(raw: Fields) -> OutputFormat | None:
    match raw.get("response_format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return OutputFormat()
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **rest}}:
            return OutputFormat(schema, str(rest.get("name") or "answer"), strict=rest.get("strict") is True)
        case {"type": "json_schema", "json_schema": {}}:
            return OutputFormat()
        case {"type": str()}:
            return OutputFormat(foreign=True)
        case _:
            raise refused(
                "response_format",
                "`response_format` must be an object whose `type` is text, json_object or json_schema.",
            )
