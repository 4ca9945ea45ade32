"""Writes a `Conversation` as the body of a Chat Completions request to an upstream.

What the client sent travels on where nobody changed it: a message with `raw` is written as it came, and so are the
fields of the body that we do not read, if the client spoke this protocol. Tools are written only if the conversation
still has them; a conversation whose tools became text has none, and then no field that has to do with tools is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import (
    Conversation,
    Forcing,
    MediaPart,
    Message,
    Options,
    OutputFormat,
    Part,
    TextPart,
    ToolCall,
    ToolChoice,
)
from streamtool.protocols import wire
from streamtool.protocols.chat.signature import signed
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""What every request bears."""
KEY_HEADER: Final = b"authorization"
"""The header that bears the key."""
MODELS_PATH: Final = "/v1/models"

_OURS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "stop", "response_format"}
    | {"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
)
"""Fields that are written from the conversation."""
_TEXT_PART: Final = {"type", "text"}
_EFFORTS: Final = {"none": "minimal", "xhigh": "high"}
"""Words of other protocols for the effort of reasoning."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  other protocols name both in the path
    """Where requests go."""
    return "/v1/chat/completions"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """The JSON body that asks the model of the upstream for the next reply."""
    raw, options = conversation.raw, conversation.options
    same = conversation.protocol == "chat"
    if same and not conversation.messages:  # a request that nobody here could read
        return wire.encode_request({**raw, "model": model.name})
    body: dict[str, Json] = {"model": model.name}
    wired = [wired for message in conversation.messages for wired in _message(message, same=same)]
    body["messages"] = wired if conversation.tools else list(map(_with_string, wired))
    if same:
        body.update((key, value) for key, value in raw.items() if key not in _OURS)
        most = options.max_tokens
        if most is not None:
            limits = {"max_tokens", "max_completion_tokens"} & body.keys()
            body.update((key, min(body[key] or most, most)) for key in limits)
    else:
        body.update(_options(options))
    if options.output is not None:
        body["response_format"] = raw["response_format"] if same else _output(options.output)
    if conversation.forcing is not None:
        body.update(_forcing(conversation.forcing))
    if options.n > 1:
        body["n"] = options.n
    if options.stop:
        body["stop"] = list(options.stop)
    body["stream"] = stream
    if stream:
        given = raw.get("stream_options") if same else None
        stream_options = dict(given) if isinstance(given, Mapping) else {}
        if conversation.include_usage:
            stream_options["include_usage"] = True
        if stream_options:
            body["stream_options"] = stream_options
    if conversation.tools:
        body.update(_tools(conversation))
    return wire.encode_request(body)


def write_messages(messages: Iterable[Message]) -> list[Mapping[str, Json]]:
    """The messages as those of a request."""
    return [wired for message in messages for wired in _message(message, same=True)]


def _options(options: Options) -> dict[str, Json]:
    fields = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "user": options.user,
        "reasoning_effort": options.effort and _EFFORTS.get(options.effort, options.effort),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _output(output: OutputFormat) -> Json:
    if output.schema is None:
        return {"type": "json_object"}
    schema = {"name": output.name, "schema": output.schema, "strict": output.strict}
    return {"type": "json_schema", "json_schema": schema}


def _forcing(forcing: Forcing) -> dict[str, Json]:
    """What holds the model to a call.

    Sources: vLLM's documentation of chat extra parameters, the server of llama.cpp (which reads the triggers of a
    grammar in other requests only).
    """
    if forcing.way == "prefill":
        return {"add_generation_prompt": False, "continue_final_message": True}
    return wire.constraint(forcing)


def _tools(conversation: Conversation) -> dict[str, Json]:
    key = "functions" if conversation.legacy_functions else "tools"
    sent: dict[str, Json] = {}
    if conversation.protocol == "chat":
        for item in conversation.raw.get(key) or ():
            inner = item if key == "functions" else item.get(item.get("type", "function"))
            if isinstance(inner, Mapping):
                sent.setdefault(inner.get("name", ""), item)
    written: list[Json] = []
    for tool in conversation.tools:
        if tool.name in sent:
            written.append(sent[tool.name])
            continue
        inner = {"name": tool.name}
        if tool.description:
            inner["description"] = tool.description
        if tool.custom and key == "tools":
            written.append({"type": "custom", "custom": inner})
            continue
        if tool.parameters is not None:
            inner["parameters"] = tool.parameters
        if tool.strict:
            inner["strict"] = True
        written.append(inner if key == "functions" else {"type": "function", "function": inner})
    fields: dict[str, Json] = {key: written}
    choice = _choice(conversation.choice, {tool.name for tool in conversation.tools if tool.custom})
    if key == "functions":
        if choice is not None:
            name = conversation.choice.names[:1]
            fields["function_call"] = {"name": name[0]} if name else choice
        return fields
    if choice is not None:
        fields["tool_choice"] = choice
    if not conversation.choice.parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _choice(choice: ToolChoice, custom: set[str]) -> Json:
    """The value of `tool_choice`; None where it would only say the default."""
    if not choice.names:
        return None if choice.mode == "auto" else choice.mode
    named = [
        {"type": kind, kind: {"name": name}}
        for name in choice.names
        for kind in ("custom" if name in custom else "function",)
    ]
    if choice.mode == "none":
        return "none"
    if choice.mode == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": named}}


def _message(message: Message, *, same: bool) -> Iterator[Mapping[str, Json]]:
    """The wire messages of one message: what it was read from, if that was this protocol (`same`), else its own."""
    if same and message.raw:
        yield from message.raw
        return
    for result in message.results:
        yield {"role": "tool", "tool_call_id": result.id, "content": _joined(result.content)}
    if message.role == "assistant":
        fields: dict[str, Json] = {"role": "assistant", "content": _joined(message.content) or None}
        if not message.calls:
            fields["content"] = _joined(message.content)
        if message.reasoning and same:
            fields["reasoning_content"] = message.reasoning
        if message.calls:
            fields["tool_calls"] = [_call(call) for call in message.calls]
        yield fields
    elif message.content or not message.results:
        content = _joined(message.content) if message.role == "system" else _parts(message.content, same=same)
        yield {"role": message.role, "content": content}


def _with_string(wired: Mapping[str, Json]) -> Mapping[str, Json]:
    """The same message, its content one string if it was a list of nothing but text: many chat templates want that."""
    parts = wired.get("content")
    if not isinstance(parts, list) or any(not isinstance(part, dict) or part.keys() != _TEXT_PART for part in parts):
        return wired
    return {**wired, "content": "\n".join(str(part["text"]) for part in parts)}


def _call(call: ToolCall) -> dict[str, Json]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return signed({"id": call.id, "type": "function", "function": function}, call.signature)


def _joined(parts: Sequence[Part]) -> str:
    """Content where only text is legal; what is not text is named."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)


def _parts(parts: Sequence[Part], *, same: bool) -> Json:
    """Content as one string, or as a list of parts if some are not text."""
    written = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else _media(part, same=same) for part in parts
    ]
    if all(part["type"] == "text" for part in written):
        return "\n".join(part["text"] for part in written)
    return written


def _media(part: MediaPart, *, same: bool) -> Mapping[str, Json]:
    if same:
        return part.raw
    match part.kind:
        case "image" if part.url or part.data:
            return {"type": "image_url", "image_url": {"url": part.url or f"data:{part.type};base64,{part.data}"}}
        case "audio" if part.data:
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.type.partition("/")[2]}}
        case "file" if part.data:
            file = {"filename": part.name or "file", "file_data": f"data:{part.type};base64,{part.data}"}
            return {"type": "file", "file": file}
    return {"type": "text", "text": f"[{part.kind}]"}
