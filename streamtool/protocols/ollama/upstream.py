"""Writer for the request bodies of Ollama's `/api/chat`.

A message has one string of text, a separate list of images, and calls whose arguments are objects. Images must be
base64; other media become placeholders in the text. A result is a message with the role `tool` that names the tool. The
protocol has no tool choice: for `none`, no tools are sent, and for a choice among named tools, only those tools are
sent.

Input from a client of this protocol is forwarded unless it was modified: a message with `raw` is written verbatim, and
so are unknown body fields and options.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streamtool.core.conversation import (
    CUSTOM_TOOL_SCHEMA,
    Conversation,
    MediaPart,
    Message,
    Part,
    TextPart,
    Tool,
    ToolChoice,
)
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""Headers to send with every request."""
KEY_HEADER: Final = b"authorization"
"""Header that carries the API key. Ollama itself requires no key, but a server in front of Ollama may."""
MODELS_PATH: Final = "/api/tags"

_LEVELS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
"""gpt-oss reasoning levels, by effort. All other models support only on and off, and reject a level."""
_OURS: Final = frozenset({"model", "messages", "tools", "stream", "format", "options"})
"""Body fields built from the conversation; all others are forwarded."""
_OPTIONS: Final = writing("ollama")


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  the path is constant
    """Return the request path."""
    return "/api/chat"


def read_models(body: bytes) -> list[str]:
    """Return the names in the model list. Raises ValueError if the body is not a model list."""
    match wire.decode_tolerant(body):
        case {"models": [*items]}:
            names = [item.get("name") or item.get("model") for item in items if isinstance(item, dict)]
            return [name for name in names if isinstance(name, str)]
    raise ValueError("not a list of models")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """Return the JSON body of the request for the next reply."""
    raw = conversation.raw if conversation.protocol == "ollama" else {}
    if raw and not (conversation.messages and "messages" in raw):  # could not be parsed, or is not a chat request
        return wire.encode_request({**raw, "model": model.name})
    if not conversation.messages:
        raise RequestError("A request to Ollama must contain at least one message.", param="messages")
    if conversation.options.n > 1:
        raise RequestError("Ollama returns one reply per request: set `n` to 1.", param="n")
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
    """Return the tools that may be called, verbatim if the client sent them in this protocol."""
    sent = {item["function"]["name"]: item for item in raw.get("tools") or ()}
    choice = conversation.choice
    return [sent.get(tool.name) or _tool(tool) for tool in conversation.tools if _chosen(tool.name, choice)]


def _options(conversation: Conversation, model: ModelSettings) -> dict[str, Json]:
    given = conversation.raw.get("options") if conversation.protocol == "ollama" else None
    fields = {key: value for key, value in (given or {}).items() if key != "stop" and value is not None}
    if model.context:
        fields["num_ctx"] = model.context
    fields.update(wire.write_options(conversation.options, _OPTIONS))
    return fields


def _wired(message: Message, names: Mapping[str, str], *, same: bool) -> Iterator[Mapping[str, Json]]:
    """Yield the wire messages for one message: verbatim if it was read from this protocol (`same`), and built from its
    parts if not.
    """
    yield from message.raw if same and message.raw else _message(message, names)


def _message(message: Message, names: Mapping[str, str]) -> Iterator[dict[str, Json]]:
    """Yield the wire messages for one message; `names` maps call ids to tool names."""
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
            {"id": call.id, "function": {"name": call.name, "arguments": wire.arguments_of(call)}}
            for call in message.calls
        ]
    yield fields


def _content(parts: Sequence[Part]) -> dict[str, Json]:
    """Return the fields for the text and the images in the parts."""
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


def _tool(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description}
    function["parameters"] = (
        CUSTOM_TOOL_SCHEMA if tool.custom else tool.parameters or {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": function}


def _chosen(name: str, choice: ToolChoice) -> bool:
    return choice.mode != "none" and (not choice.names or name in choice.names)
