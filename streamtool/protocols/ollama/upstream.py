"""Writes a `Conversation` as the body of a request to Ollama's `/api/chat`.

A message has one string of text, images beside it, and calls whose arguments are objects. Images are base64 only; what
else is no text is named in the text. A result is a message of the role `tool` that names the tool. There is no choice
of tools: `none` sends none of them, and a named choice only the named ones.

What a client of this protocol sent travels on where nobody changed it: a message with `raw` is written as it came, and
so are the fields of the body, and the options, that we do not read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import Conversation, MediaPart, Message, Part, TextPart, Tool, ToolCall, ToolChoice
from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""What every request bears."""
KEY_HEADER: Final = b"authorization"
"""The header that bears the key; Ollama itself needs none, what stands before it may."""
MODELS_PATH: Final = "/api/tags"

_LEVELS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
"""The levels of reasoning of gpt-oss; all other models know on and off only, and refuse a level."""
_OURS: Final = frozenset({"model", "messages", "tools", "stream", "format", "options"})
"""Fields that are written from the conversation."""
_CUSTOM: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The schema of a tool that takes raw text."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  other protocols name both in the path
    """Where requests go."""
    return "/api/chat"


def read_models(body: bytes) -> list[str]:
    """The names in the list of models; raises ValueError if there is none."""
    match wire.decode_tolerant(body):
        case {"models": [*items]}:
            names = [item.get("name") or item.get("model") for item in items if isinstance(item, dict)]
            return [name for name in names if isinstance(name, str)]
    raise ValueError("no list of models")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """The JSON body that asks the model of the upstream for the next reply."""
    raw = conversation.raw if conversation.protocol == "ollama" else {}
    if raw and not (conversation.messages and "messages" in raw):  # nobody here could read it, or it is no chat
        return wire.encode_request({**raw, "model": model.name})
    if not conversation.messages:
        raise RequestError("A request without messages cannot be written for Ollama.", param="messages")
    if conversation.options.n > 1:
        raise RequestError("Ollama makes one reply to a request; ask for one at a time.", param="n")
    names = {call.id: call.name for message in conversation.messages for call in message.calls}
    body: dict[str, Json] = {
        "model": model.name,
        "messages": [wired for message in conversation.messages for wired in _wired(message, names, same=bool(raw))],
        "stream": stream,
        **{key: value for key, value in raw.items() if key not in _OURS},
    }
    options = _options(conversation, model)
    if options:
        body["options"] = options
    output, effort = conversation.options.output, conversation.options.effort
    if output is not None:
        body["format"] = "json" if output.schema is None else output.schema
    if conversation.forcing is not None and conversation.forcing.way == "schema":
        body["format"] = conversation.forcing.value
    if effort is not None and "think" not in body:
        body["think"] = effort != "none" and (_LEVELS.get(effort, "medium") if "gpt-oss" in model.name else True)
    tools = _tools(conversation, raw)
    if tools:
        body["tools"] = tools
    return wire.encode_request(body)


def _tools(conversation: Conversation, raw: Mapping[str, Json]) -> list[Json]:
    """The tools that may be called, as they came or made anew."""
    sent = {item["function"]["name"]: item for item in raw.get("tools") or ()}
    choice = conversation.choice
    return [sent.get(tool.name) or _tool(tool) for tool in conversation.tools if _chosen(tool.name, choice)]


def _options(conversation: Conversation, model: ModelSettings) -> dict[str, Json]:
    options = conversation.options
    given = conversation.raw.get("options") if conversation.protocol == "ollama" else None
    fields = {
        **(given or {}),
        "stop": list(options.stop) or None,
        "num_ctx": model.context or (given or {}).get("num_ctx"),
    }
    read = {
        "num_predict": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "seed": options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    fields.update((key, value) for key, value in read.items() if value is not None)
    return {key: value for key, value in fields.items() if value is not None}


def _wired(message: Message, names: Mapping[str, str], *, same: bool) -> Iterator[Mapping[str, Json]]:
    """The wire messages of one message: what it was read from, if that was this protocol (`same`), else its own."""
    yield from message.raw if same and message.raw else _message(message, names)


def _message(message: Message, names: Mapping[str, str]) -> Iterator[dict[str, Json]]:
    """The wire messages of one message; `names` tells what the calls of the conversation were called."""
    for result in message.results:
        named = result.name or names.get(result.id, result.id)
        yield {"role": "tool", "tool_name": named, "tool_call_id": result.id, **_content(result.content)}
    if message.results and not message.content:
        return
    fields: dict[str, Json] = {"role": message.role, **_content(message.content)}
    if message.reasoning:
        fields["thinking"] = message.reasoning
    if message.calls:
        fields["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": _arguments(call)}} for call in message.calls
        ]
    yield fields


def _content(parts: Sequence[Part]) -> dict[str, Json]:
    """The text of the parts, and their images."""
    lines: list[str] = []
    images: list[str] = []
    for part in parts:
        match part:
            case TextPart():
                lines.append(part.text)
            case MediaPart(kind="image") if part.data:
                images.append(part.data)
            case MediaPart():
                lines.append(f"[{part.kind}]")
    fields: dict[str, Json] = {"content": "\n".join(lines)}
    if images:
        fields["images"] = images
    return fields


def _arguments(call: ToolCall) -> Mapping[str, Json]:
    """The call's arguments as an object, whatever stands in the history; raw text gets a field."""
    if call.custom:
        return {"input": call.arguments}
    try:
        value = wire.decode_tolerant(call.arguments.encode("utf-8", "replace")) if call.arguments.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def _tool(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description}
    function["parameters"] = _CUSTOM if tool.custom else tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _chosen(name: str, choice: ToolChoice) -> bool:
    return choice.mode != "none" and (not choice.names or name in choice.names)
