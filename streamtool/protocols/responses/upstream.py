"""Writer for Responses request bodies to an upstream.

Input from a client of this protocol is forwarded unless it was modified: for a message that has `raw`, the original
items are written verbatim, as are unknown body fields. The id of an earlier response is not forwarded, because that
response's items are already in the input. Tools are written only if the conversation still has them; once they have
been moved into the prompt, no tool-related field is written. Source: `types/responses/response_create_params.py` of
openai-python 3.54.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streamtool.core.conversation import Conversation, MediaPart, Message, Part, TextPart, Tool, ToolCall, ToolChoice
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""Headers to send with every request."""
KEY_HEADER: Final = b"authorization"
"""Header that carries the API key."""
MODELS_PATH: Final = "/v1/models"

_OURS: Final = frozenset(
    {"model", "input", "instructions", "stream", "background", "previous_response_id", "conversation"}
    | {"max_output_tokens", "text"}
    | {"tools", "tool_choice", "parallel_tool_calls"}
)
"""Body fields built from the conversation; all others are forwarded."""
_OPTIONS: Final = writing("responses")
_COUNTED: Final = frozenset(
    {"model", "input", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls", "truncation"}
)
"""Fields that a token-counting request may contain."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  the path is constant
    """Return the request path."""
    return "/v1/responses"


def count_path(model: ModelSettings) -> str:  # noqa: ARG001  the path is constant
    """Return the path of token-counting requests."""
    return "/v1/responses/input_tokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """Return the JSON body of a request to count the conversation's tokens."""
    body = _body(conversation, model)
    return wire.encode_request({key: value for key, value in body.items() if key in _COUNTED})


def read_count_reply(body: bytes) -> int | None:
    """Return the number of tokens, or None if the upstream did not report it."""
    return wire.count_in(body, "input_tokens")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """Return the JSON body of the request for the next reply."""
    if conversation.options.n > 1:
        raise RequestError("This upstream returns one reply per request: set `n` to 1.", param="n")
    if conversation.protocol == "responses" and not conversation.messages:  # the request could not be parsed
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
        body.update(wire.write_options(conversation.options, _OPTIONS), store=False)
        if conversation.options.effort is not None:
            body["reasoning"] = {"effort": conversation.options.effort}
    text = _text(conversation, same=same)
    if text:
        body["text"] = text
    if conversation.tools:
        body.update(_tools(conversation, same=same))
    return body


def _text(conversation: Conversation, *, same: bool) -> dict[str, Json]:
    """Return the value of `text`: the format of the reply, and the client's other settings under the same key."""
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
    fields: dict[str, Json] = {"tools": list({id(item): item for item in written}.values())}  # one entry per namespace
    choice = _choice(conversation.choice, {tool.name for tool in conversation.tools if tool.custom})
    if choice is not None:
        fields["tool_choice"] = choice
    if not conversation.choice.parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _names(item: Fields) -> Iterator[str]:
    """Yield the names of the tools in this entry, as the model knows them."""
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
    """Return the value of `tool_choice`, or None for the default."""
    if not choice.names or choice.mode == "none":
        return None if choice.mode == "auto" else choice.mode
    named = [{"type": "custom" if name in custom else "function", "name": name} for name in choice.names]
    if choice.mode == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": named}


# --- items ------------------------------------------------------------------------------------------------------------


def _items(message: Message, custom: set[str], *, same: bool) -> Iterator[Fields]:
    """Yield the items for one message: verbatim if it was read from this protocol (`same`), and built from its parts if
    not.
    """
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
    """Return content as text, with a placeholder for each part that is not text."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)


def _content(parts: Sequence[Part], *, same: bool) -> Json:
    """Return content as one string, or as a list of parts if some parts are not text."""
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
