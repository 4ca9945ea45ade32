"""Writer for Messages request bodies to an upstream.

Input from a client of this protocol is forwarded unless it was modified: messages that have `raw` are written verbatim,
as are unknown body fields. Everything else is converted to the form that the origin requires: leading system text
becomes `system`, later system text becomes user messages, the first message is a user message, adjacent messages with
the same role are merged, results precede text, and no text is blank.

Tools are written only if the conversation still has them; once they have been moved into the prompt, no tool-related
field is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import define, field

from streamtool.core.conversation import Conversation, Message, Part, Tool, ToolCall, ToolChoice, ToolResult
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json, JsonObject
from streamtool.protocols.messages.parts import Block, blocks_of
from streamtool.protocols.messages.tools import tool_names
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final = ((b"anthropic-version", b"2023-06-01"),)
"""Headers to send with every request."""
KEY_HEADER: Final = b"x-api-key"
"""Header that carries the API key."""
MODELS_PATH: Final = "/v1/models"

_OURS: Final = frozenset(
    {"model", "messages", "system", "stream", "stop_sequences", "output_config", "output_format"}
    | {"tools", "tool_choice"}
)
"""Body fields built from the conversation; all others are forwarded."""
_COUNTED: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"}
    | {"context_management", "mcp_servers"}
)
"""Fields that a token-counting request may contain; the origin rejects all others."""
_OPTIONS: Final = writing("messages")
_CHANGED: Final = ("max_tokens", "stop_sequences")
"""Option fields that are rewritten even if the client sent them in this protocol."""
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_BEGIN: Final = {"role": "user", "content": "(The conversation begins here.)"}
"""First message of a conversation that would otherwise not begin with a user message."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  the path is constant
    """Return the request path."""
    return "/v1/messages"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """Return the JSON body of the request for the next reply."""
    if conversation.options.n > 1:
        raise RequestError("This upstream returns one reply per request: set `n` to 1.", param="n")
    raw = conversation.raw
    if conversation.protocol == "messages" and not conversation.messages:  # the request could not be parsed
        return wire.encode_request({**raw, "model": model.name})
    body = _body(conversation, model)
    body["stream"] = stream
    return wire.encode_request(body)


def count_path(model: ModelSettings) -> str:  # noqa: ARG001  the path is constant
    """Return the path of token-counting requests."""
    return "/v1/messages/count_tokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """Return the JSON body of a request to count the conversation's tokens."""
    if conversation.protocol == "messages" and not conversation.messages:
        return wire.encode_request({**conversation.raw, "model": model.name})
    body = _body(conversation, model)
    return wire.encode_request({key: value for key, value in body.items() if key in _COUNTED})


def read_count_reply(body: bytes) -> int | None:
    """Return the number of tokens, or None if the upstream did not report it."""
    return wire.count_in(body, "input_tokens")


def _body(conversation: Conversation, model: ModelSettings) -> JsonObject:
    raw = conversation.raw
    same = conversation.protocol == "messages"
    body: JsonObject = {"model": model.name}
    options = conversation.options
    if same:
        body.update((key, value) for key, value in raw.items() if key not in _OURS)
        written = wire.write_options(options, _OPTIONS)
        body.update((key, written[key]) for key in _CHANGED if key in written)
    else:
        body.update(wire.write_options(options, _OPTIONS))
    system, body["messages"] = _messages(conversation.messages, same=same)
    if system:
        body["system"] = system
    config = _output_config(conversation, same=same)
    if config:
        body["output_config"] = config
    if conversation.tools:
        body.update(_tools(conversation, same=same))
    return body


# --- options ----------------------------------------------------------------------------------------------------------


def _output_config(conversation: Conversation, *, same: bool) -> JsonObject:
    output, effort = conversation.options.output, conversation.options.effort
    config: JsonObject = {}
    if same:
        sent = conversation.raw.get("output_config")
        fields = sent if isinstance(sent, Mapping) else {}
        config.update((key, value) for key, value in fields.items() if key != "format")
    elif effort in _EFFORTS:
        config["effort"] = _EFFORTS[effort]
    if output is not None and output.schema is not None:
        config["format"] = {"type": "json_schema", "schema": output.schema}
    if conversation.forcing is not None and conversation.forcing.way == "schema":
        config["format"] = {"type": "json_schema", "schema": conversation.forcing.value}
    return config


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(conversation: Conversation, *, same: bool) -> JsonObject:
    sent: dict[str, Json] = {}
    later: list[Json] = []  # deferred tools, which the upstream searches itself
    if same:
        for item in conversation.raw.get("tools") or ():
            sent.update((name, item) for name in tool_names(item) if name not in sent)
            later += [item] if item.get("defer_loading") is True else []
    choice = conversation.choice
    named = choice.mode == "required" and len(choice.names) == 1
    offered = [tool for tool in conversation.tools if named or not choice.names or tool.name in choice.names]
    written = [*(sent.get(tool.name) or _tool(tool) for tool in offered), *later]
    fields: JsonObject = {"tools": list({id(item): item for item in written}.values())}  # one entry per toolset
    own = {tool.name: tool.name[len(tool.namespace) + 1 :] for tool in offered if tool.namespace and tool.name in sent}
    wanted = _choice(choice, own)
    if wanted is not None:
        fields["tool_choice"] = wanted
    return fields


def _tool(tool: Tool) -> JsonObject:
    """Return the entry for a tool. A tool with free-form input becomes one that takes an object with a single field."""
    fields: JsonObject = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    schema = {"properties": {"input": {"type": "string"}}, "required": ["input"]} if tool.custom else tool.parameters
    fields["input_schema"] = {"type": "object", **(schema or {"properties": {}})}
    if tool.examples:
        fields["input_examples"] = list(tool.examples)
    return fields


def _choice(choice: ToolChoice, own: Mapping[str, str]) -> Json:
    """Return the value of `tool_choice`, or None for the default.

    `own` maps our names for toolset members to the members' names within the toolset, because the upstream receives the
    toolsets and does not know our names.
    """
    if choice.mode == "none":
        return {"type": "none"}
    one = {} if choice.parallel else {"disable_parallel_tool_use": True}
    if choice.mode == "auto":
        return {"type": "auto", **one} if one else None
    if len(choice.names) == 1:
        return {"type": "tool", "name": own.get(choice.names[0], choice.names[0]), **one}
    return {"type": "any", **one}


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(messages: Sequence[Message], *, same: bool) -> tuple[Json, list[JsonObject]]:
    """Return the value of `system`, which is None if the system text is empty, and the messages."""
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system, rest = _system(messages[:leading], same=same)
    written = _Alternating()
    for message in (*rest, *messages[leading:]):
        if same and message.raw:
            for fields in message.raw:
                written.add(dict(fields), own=True)
        else:
            role = "user" if message.role == "system" else message.role
            written.add({"role": role, "content": _blocks(message, same=same)}, own=False)
    return system, written.close()


def _system(messages: Sequence[Message], *, same: bool) -> tuple[Json, Sequence[Message]]:
    """Return the value of `system`, and the leading system messages that keep their positions.

    Some clients send system messages among the others. These keep their positions unless an earlier one was modified.
    """
    if not messages:
        return None, ()
    if same and all(message.raw for message in messages):
        first = messages[0].raw[0]
        return (first["system"], messages[1:]) if first.keys() == {"system"} else (None, messages)
    blocks: list[Block] = []
    for message in messages:
        value = message.raw[0].get("system", message.raw[0].get("content")) if same and message.raw else None
        blocks += _as_blocks(value) if value is not None else blocks_of(message.content, same=same, text_only=True)
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return blocks[0]["text"], ()
    return blocks, ()


@define(eq=False)
class _Alternating:
    """Sequence of messages that merges adjacent messages with the same role, unless both are verbatim (`own`)."""

    _all: list[JsonObject] = field(factory=list, init=False)
    _made: list[JsonObject | None] = field(factory=list, init=False)  # like `_all`, with None for verbatim messages

    def add(self, fields: JsonObject, *, own: bool) -> None:
        """Append the next message or merge it with the previous one. An empty message is dropped."""
        if not own and not fields["content"]:
            return
        last = self._all[-1] if self._all else None
        if last is not None and last["role"] == fields["role"] and not (own and self._made[-1] is None):
            blocks = [*_as_blocks(last["content"]), *_as_blocks(fields["content"])]
            if fields["role"] == "user":  # results must be first
                blocks.sort(key=lambda block: block.get("type") != "tool_result")
            self._all[-1] = self._made[-1] = {**last, "content": blocks}
            return
        if last is None and not own and fields["role"] != "user":
            self._keep(dict(_BEGIN), own=True)
        self._keep(fields, own=own)

    def close(self) -> list[JsonObject]:
        """Return all messages, without trailing whitespace if the last message is the beginning of the reply."""
        if not self._all:
            self._keep(dict(_BEGIN), own=True)
        last = self._made[-1]
        if last is not None and last["role"] == "assistant" and last["content"][-1].get("type") == "text":
            *before, block = last["content"]
            last["content"] = [*before, {**block, "text": block["text"].rstrip()}]
        for fields in self._made:
            if fields is not None:
                fields["content"] = _collapse_text(fields["content"])
        return self._all

    def _keep(self, fields: JsonObject, *, own: bool) -> None:
        self._all.append(fields)
        self._made.append(None if own else fields)


def _as_blocks(content: Json) -> list[Block]:
    """Return the content as blocks, whether the client sent blocks or a string."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return list(content) if isinstance(content, list) else []


def _collapse_text(content: Json) -> Json:
    """Return the content, or the text as a string if the content is a single block of plain text."""
    match content:
        case [{"type": "text", "text": str(text), **more}] if not more:
            return text
    return content


def _blocks(message: Message, *, same: bool) -> list[Block]:
    """Return the blocks of a message that was created or modified here, or that was read from another protocol."""
    said = blocks_of(message.content, same=same, text_only=message.role != "user")
    return [
        *(_result(result, same=same) for result in message.results),
        *said,
        *(_call(call) for call in message.calls),
    ]


def _call(call: ToolCall) -> Block:
    value: Json = {"input": call.arguments} if call.custom else _object(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value}


def _object(arguments: str) -> Json:
    """Return the arguments as an object. Any other value becomes the `arguments` field of a new object."""
    if not arguments.strip():
        return {}
    try:
        value = wire.decode_tolerant(wire.repaired(arguments).encode())
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _result(result: ToolResult, *, same: bool) -> Block:
    block: JsonObject = {"type": "tool_result", "tool_use_id": result.id}
    content = _content(result.content, same=same)
    if content:
        block["content"] = content
    if result.error:
        block["is_error"] = True
    return block


def _content(parts: Iterable[Part], *, same: bool) -> Json:
    blocks = blocks_of(parts, same=same)
    if all(block.keys() == {"type", "text"} for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks
