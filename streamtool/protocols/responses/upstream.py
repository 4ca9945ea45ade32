"""Writes a `Conversation` as the body of a Responses request to an upstream.

What the client sent travels on where nobody changed it: a message with `raw` is written as the items that it was read
from, and so are the fields of the body that we do not read, if the client spoke this protocol. What an earlier response
held stands among the items already, so its id does not travel. Tools are written only if the conversation still has
them; one whose tools became text has none, and then no field that has to do with tools is written.
Source: `types/responses/response_create_params.py` of openai-python 3.54.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import (
    Conversation,
    MediaPart,
    Message,
    Options,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value
Fields = Mapping[str, Json]

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""What every request bears."""
KEY_HEADER: Final = b"authorization"
"""The header that bears the key."""
MODELS_PATH: Final = "/v1/models"

_OURS: Final = frozenset(
    {"model", "input", "instructions", "stream", "background", "previous_response_id", "conversation"}
    | {"max_output_tokens", "text"}
    | {"tools", "tool_choice", "parallel_tool_calls"}
)
"""Fields that are written from the conversation."""
_COUNTED: Final = frozenset(
    {"model", "input", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls", "truncation"}
)
"""Fields of a request for a count."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  other protocols name both in the path
    """Where requests go."""
    return "/v1/responses"


def count_path(model: ModelSettings) -> str:  # noqa: ARG001  other protocols name it in the path
    """Where tokens are counted."""
    return "/v1/responses/input_tokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """The JSON body that asks how many tokens the conversation has."""
    body = _body(conversation, model)
    return wire.encode_request({key: value for key, value in body.items() if key in _COUNTED})


def read_count_reply(body: bytes) -> int | None:
    """The number of tokens; None if the upstream did not tell it."""
    return wire.count_in(body, "input_tokens")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """The JSON body that asks the model of the upstream for the next reply."""
    if conversation.options.n > 1:
        raise RequestError("This upstream gives one reply at a time; ask for them one at a time.", param="n")
    if conversation.protocol == "responses" and not conversation.messages:  # a request that nobody here could read
        return wire.encode_request({**conversation.raw, "model": model.name})
    return wire.encode_request({**_body(conversation, model), "stream": stream})


def _body(conversation: Conversation, model: ModelSettings) -> dict[str, Json]:
    raw, same = conversation.raw, conversation.protocol == "responses"
    custom = {call.id for message in conversation.messages for call in message.calls if call.custom}
    body: dict[str, Json] = {
        "model": model.name,
        "input": [item for message in conversation.messages for item in _items(message, custom, same=same)],
    }
    if same:
        body.update((key, value) for key, value in raw.items() if key not in _OURS)
        if conversation.options.max_tokens is not None:
            body["max_output_tokens"] = conversation.options.max_tokens
    else:
        body.update(_options(conversation.options), store=False)
    text = _text(conversation, same=same)
    if text:
        body["text"] = text
    if conversation.tools:
        body.update(_tools(conversation, same=same))
    return body


def _options(options: Options) -> dict[str, Json]:
    fields = {
        "max_output_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "reasoning": options.effort and {"effort": options.effort},
        "user": options.user,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _text(conversation: Conversation, *, same: bool) -> dict[str, Json]:
    """The value of `text`: the format of the answer, and what else the client said of it."""
    sent = conversation.raw.get("text") if same else None
    fields = {key: value for key, value in sent.items() if key != "format"} if isinstance(sent, Mapping) else {}
    output, forcing = conversation.options.output, conversation.forcing
    if output is not None:
        schema = {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": output.strict}
        fields["format"] = {"type": "json_object"} if output.schema is None else schema
    if forcing is not None and forcing.way == "schema":
        fields["format"] = {"type": "json_schema", "name": "call", "schema": forcing.value}
    return fields


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(conversation: Conversation, *, same: bool) -> dict[str, Json]:
    sent: dict[str, Json] = {}
    for item in (conversation.raw.get("tools") or ()) if same else ():
        sent.update((name, item) for name in _names(item) if name not in sent)
    written = [sent.get(tool.name) or _tool(tool) for tool in conversation.tools]
    fields: dict[str, Json] = {"tools": list({id(item): item for item in written}.values())}  # a namespace is one
    choice = _choice(conversation.choice, {tool.name for tool in conversation.tools if tool.custom})
    if choice is not None:
        fields["tool_choice"] = choice
    if not conversation.choice.parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _names(item: Fields) -> Iterator[str]:
    """How the model knows the tools that this one entry stands for."""
    if item.get("type") == "namespace":
        for inner in item.get("tools") or ():
            yield f"{item.get('name')}.{inner.get('name')}"
    else:
        yield str(item.get("name") or item.get("type"))


def _tool(tool: Tool) -> dict[str, Json]:
    named = {"name": tool.name, **({"description": tool.description} if tool.description else {})}
    if tool.custom:
        return {"type": "custom", **named}
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", **named, "parameters": schema, "strict": tool.strict}


def _choice(choice: ToolChoice, custom: set[str]) -> Json:
    """The value of `tool_choice`; None where it would only say the default."""
    if not choice.names or choice.mode == "none":
        return None if choice.mode == "auto" else choice.mode
    named = [{"type": "custom" if name in custom else "function", "name": name} for name in choice.names]
    if choice.mode == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": named}


# --- items ------------------------------------------------------------------------------------------------------------


def _items(message: Message, custom: set[str], *, same: bool) -> Iterator[Fields]:
    """The items of one message: what it was read from, if that was this protocol (`same`), else its own."""
    if same and message.raw:
        yield from message.raw
        return
    for result in message.results:
        kind = "custom_tool_call_output" if result.id in custom else "function_call_output"
        yield {"type": kind, "call_id": result.id, "output": _content(result.content, same=same)}
    if message.content:
        content = _content(message.content, same=same) if message.role == "user" else _words(message.content)
        yield {"type": "message", "role": message.role, "content": content}
    for call in message.calls:
        yield _call(call)


def _call(call: ToolCall) -> Fields:
    if call.custom:
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    arguments = call.arguments or "{}"
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _words(parts: Sequence[Part]) -> str:
    """Content where only text is legal; what is not text is named."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)


def _content(parts: Sequence[Part], *, same: bool) -> Json:
    """Content as one string, or as a list of parts if some are not text."""
    if all(isinstance(part, TextPart) for part in parts):
        return _words(parts)
    return [
        {"type": "input_text", "text": part.text} if isinstance(part, TextPart) else _media(part, same=same)
        for part in parts
    ]


def _media(part: MediaPart, *, same: bool) -> Fields:
    if same:
        return part.raw
    url = part.url or f"data:{part.type};base64,{part.data}"
    match part.kind:
        case "image" if part.url or part.data:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case "file" if part.data:
            return {"type": "input_file", "filename": part.name or "file", "file_data": url}
        case "file" if part.url:
            return {"type": "input_file", "file_url": part.url}
    return {"type": "input_text", "text": f"[{part.kind}]"}
