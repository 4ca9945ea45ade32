"""Writer for Chat Completions request bodies to an upstream.

Input from a client of this protocol is forwarded unless it was modified: messages that have `raw` are written verbatim,
as are unknown body fields. Tools are written only if the conversation still has them; once they have been moved into
the prompt, no tool-related field is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from streamtool.core.conversation import (
    Conversation,
    Forcing,
    MediaPart,
    Message,
    OutputFormat,
    Part,
    TextPart,
    ToolCall,
    ToolChoice,
)
from streamtool.core.json_value import Json
from streamtool.protocols.chat.signature import add_signature
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""Headers to send with every request."""
KEY_HEADER: Final = b"authorization"
"""Header that carries the API key."""
MODELS_PATH: Final = "/v1/models"

_OURS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "stop", "response_format"}
    | {"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
)
"""Body fields built from the conversation; all others are forwarded."""
_OPTIONS: Final = writing("chat")
_TEXT_PART: Final = {"type", "text"}
_EFFORTS: Final = {"none": "minimal", "xhigh": "high"}
"""Substitutes for the reasoning efforts that this protocol lacks."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  the path is constant
    """Return the request path."""
    return "/v1/chat/completions"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """Return the JSON body of the request for the next reply."""
    raw, options = conversation.raw, conversation.options
    same = conversation.protocol == "chat"
    if same and not conversation.messages:  # the request could not be parsed
        return wire.encode_request({**raw, "model": model.name})
    body: dict[str, Json] = {"model": model.name}
    wired: list[Mapping[str, Json]] = []
    for message in conversation.messages:
        if same and message.raw:
            wired += message.raw
        elif (
            len(message.content) == 1
            and type(part := message.content[0]) is TextPart
            and not (message.calls or message.results or message.reasoning)
        ):  # plain text, like nearly all messages in a prompt
            wired.append({"role": message.role, "content": part.text})
        else:
            wired += _message(message, same=same)
    if not conversation.tools:
        wired = [_with_string(item) if type(item.get("content")) is list else item for item in wired]
    body["messages"] = wired
    if same:
        body.update((key, value) for key, value in raw.items() if key not in _OURS)
        most = options.max_tokens
        if most is not None:
            limits = {"max_tokens", "max_completion_tokens"} & body.keys()
            body.update((key, min(body[key] or most, most)) for key in limits)
        if options.stop:
            body["stop"] = list(options.stop)
    else:
        body.update(wire.write_options(options, _OPTIONS))
        if options.effort is not None:
            body["reasoning_effort"] = _EFFORTS.get(options.effort, options.effort)
    if model.fields:
        body = {**model.fields, **body}
    if options.output is not None:
        body["response_format"] = raw["response_format"] if same else _output(options.output)
    if conversation.forcing is not None:
        body.update(_forcing(conversation.forcing))
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
    """Return the messages in this protocol's request format."""
    return [wired for message in messages for wired in _message(message, same=True)]


def _output(output: OutputFormat) -> Json:
    if output.schema is None:
        return {"type": "json_object"}
    schema = {"name": output.name, "schema": output.schema, "strict": output.strict}
    return {"type": "json_schema", "json_schema": schema}


def _forcing(forcing: Forcing) -> dict[str, Json]:
    """Return the fields that force a call.

    Sources: vLLM's documentation of extra chat parameters; llama.cpp's server, which ignores a grammar's triggers in
    chat requests.
    """
    if forcing.way == "prefill":
        fields: dict[str, Json] = {"add_generation_prompt": False, "continue_final_message": True}
        return {**fields, **wire.constraint(forcing)}
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
    """Return the value of `tool_choice`, or None for the default."""
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
    """Yield the wire messages for one message: verbatim if it was read from this protocol (`same`), and built from its
    parts if not.
    """
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
    """Return the message with text-only content joined into one string, as many chat templates require."""
    parts = wired.get("content")
    if not isinstance(parts, list) or any(not isinstance(part, dict) or part.keys() != _TEXT_PART for part in parts):
        return wired
    return {**wired, "content": "\n".join(str(part["text"]) for part in parts)}


def _call(call: ToolCall) -> dict[str, Json]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return add_signature({"id": call.id, "type": "function", "function": function}, call.signature)


def _joined(parts: Sequence[Part]) -> str:
    """Return content as text, with a placeholder for each part that is not text."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)


def _parts(parts: Sequence[Part], *, same: bool) -> Json:
    """Return content as one string, or as a list of parts if some parts are not text."""
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
