"""Reads the body of a Chat Completions request into a `Conversation`.

The reading is as tolerant as real agents need and as strict as honesty needs: what is merely odd (null content, empty
arguments, a result without its call, unknown keys) is taken, what cannot be honoured is a `RequestError` whose `param`
names the place.
Source: the OpenAI API reference and the request types of openai-python 3.52.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import (
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
from streamtool.generation_prompt import THINKS
from streamtool.protocols import wire
from streamtool.protocols.chat.request_fields import REQUEST_FIELDS
from streamtool.protocols.chat.signature import signature_of
from streamtool.protocols.chat.tools import read_tools, with_choice
from streamtool.protocols.fields import (
    Fields,
    body_fields,
    flag,
    integer,
    list_of,
    media,
    model_name,
    number,
    object_at,
    refused,
    shown,
    string,
    strings,
)
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(name for name, what in REQUEST_FIELDS.items() if "left out" not in what)
"""The fields of the body that are understood; the others mean nothing to an upstream of another protocol."""
_MEDIA: Final = {"image_url": "image", "input_audio": "audio", "file": "file"}
_MOST_CHOICES: Final = 128


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
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
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means.
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
    """The messages of a request. Neighbouring results become one message, whose `raw` holds all of them."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "Give at least one message in a list.")
    messages: list[Message] = []
    names: dict[str, str] = {}  # of the calls seen so far, by id
    results: list[tuple[ToolResult, Fields]] = []  # that stand together
    for position, item in enumerate(value):
        place = f"messages[{position}]"
        fields = object_at(item, place)
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
                results.append((result, fields))
                continue
            case role:
                known = "developer, system, user, assistant, tool or function"
                raise refused(f"{place}.role", f"A message's role is {known}, not {shown(role)}.")
        messages += _gathered(results)
        results.clear()
        messages.append(message)
    return (*messages, *_gathered(results))


def _gathered(results: Sequence[tuple[ToolResult, Fields]]) -> list[Message]:
    """The results as one message; [] for none."""
    return (
        [Message("user", results=tuple(one for one, _ in results), raw=tuple(f for _, f in results))] if results else []
    )


def _assistant(fields: Fields, place: str) -> Message:
    content = _content(fields, place, optional=True)
    refusal = fields.get("refusal")
    if isinstance(refusal, str) and refusal:
        content = (*content, TextPart(refusal))
    calls = [
        _call(object_at(item, f"{place}.tool_calls[{i}]"), f"{place}.tool_calls[{i}]")
        for i, item in enumerate(list_of(fields, "tool_calls", place))
    ]
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


def _call(fields: Fields, place: str) -> ToolCall:
    identity = string(fields, "id", place)
    kind = fields.get("type") or ("custom" if "custom" in fields else "function")
    if kind == "custom":
        custom = object_at(fields.get("custom"), f"{place}.custom")
        text = custom.get("input", "")
        if not isinstance(text, str):
            raise refused(f"{place}.custom.input", "The input of a custom tool is a string.")
        return ToolCall(identity, string(custom, "name", f"{place}.custom"), text, custom=True)
    if kind != "function":
        raise refused(f"{place}.type", f"A call's type is function or custom, not {shown(kind)}.")
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
        raise refused(f"{place}.{key}", "Arguments are a string that holds a JSON object.")
    return value if value.strip() else "{}"


def _result(fields: Fields, place: str, names: Mapping[str, str], *, legacy: bool) -> ToolResult:
    content = _content(fields, place, optional=True)
    if legacy:
        name = string(fields, "name", place)
        return ToolResult(name, content, name=name)
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
        raise refused(f"{place}.content", "A message's content is a string or a list of parts.")
    return tuple(_part(item, f"{place}.content[{i}]") for i, item in enumerate(value))


def _part(value: Json, place: str) -> Part:
    if isinstance(value, str):  # not legal at the origin, but its meaning is plain
        return TextPart(value)
    fields = object_at(value, place)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "A part says what it is in `type`: text, image_url, input_audio or file.")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return TextPart(string(fields, "refusal" if kind == "refusal" else "text", place, empty=True))
    return _media(fields, kind)


def _media(fields: Fields, kind: str) -> MediaPart:
    """The part, with what another protocol needs to write it."""
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
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    results = Counter[str]()
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if not results[call.id]:
                    raise refused(
                        "messages",
                        f"The call {shown(call.id)} of {shown(call.name)} has no result: answer it with a message "
                        f"of role `tool` before asking for the next reply.",
                    )
                results[call.id] -= 1
            return
        if not message.results or message.content:
            return
        results.update(result.id for result in message.results)


# --- single values ----------------------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    most = integer(raw, "max_completion_tokens")
    effort, user = (raw.get(key) for key in ("reasoning_effort", "user"))
    return Options(
        n=_count(raw),
        stop=strings(raw, "stop"),
        max_tokens=integer(raw, "max_tokens") if most is None else most,
        temperature=number(raw, "temperature"),
        top_p=number(raw, "top_p"),
        top_k=integer(raw, "top_k"),
        seed=integer(raw, "seed", least=-(2**63)),
        presence_penalty=number(raw, "presence_penalty"),
        frequency_penalty=number(raw, "frequency_penalty"),
        effort=effort if isinstance(effort, str) else None,
        thinking=_thinking(raw.get("chat_template_kwargs")),
        user=user if isinstance(user, str) else None,
        output=_output(raw),
    )


def _thinking(variables: Json) -> bool | None:
    """What the variables for the chat template say of reasoning, in the words of Qwen, GLM and DeepSeek.

    vLLM, SGLang and llama.cpp take them.
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
                "response_format", "`response_format` is an object with a `type`: text, json_object or json_schema."
            )


def _count(raw: Fields) -> int:
    value = raw.get("n")
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_CHOICES:
        raise refused("n", f"`n` is a number from 1 to {_MOST_CHOICES}.")
    return value
