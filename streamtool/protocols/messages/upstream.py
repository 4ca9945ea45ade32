"""Writes a `Conversation` as the body of a Messages request to an upstream.

What the client sent travels on where nobody changed it: a message with `raw` is written as it came, and so are the
fields of the body that we do not read, if the client spoke this protocol. What comes from elsewhere is brought into the
shape that the origin demands: system text before everything else, later system text as the user's, the user first, no
neighbours of one role, results before text, nothing blank.

Tools are written only if the conversation still has them; a conversation whose tools became text has none, and then no
field that has to do with tools is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import Conversation, Message, Options, Part, Tool, ToolCall, ToolChoice, ToolResult
from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.protocols.messages.parts import Block, blocks_of
from streamtool.protocols.messages.tools import tool_names
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value
Body = dict[str, Json]

HEADERS: Final = ((b"anthropic-version", b"2023-06-01"),)
"""What every request bears."""
KEY_HEADER: Final = b"x-api-key"
"""The header that bears the key."""
MODELS_PATH: Final = "/v1/models"
MAX_TOKENS: Final = 8192
"""How long a reply may become when the client's protocol does not say it, while this one demands it."""

_OURS: Final = frozenset(
    {"model", "messages", "system", "stream", "stop_sequences", "output_config", "output_format"}
    | {"tools", "tool_choice"}
)
"""Fields that are written from the conversation."""
_COUNTED: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"}
    | {"context_management", "mcp_servers"}
)
"""Fields that a request to count tokens may have; the origin refuses all others."""
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_BEGIN: Final = {"role": "user", "content": "(The conversation begins here.)"}
"""Stands first where no user has spoken."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  other protocols name both in the path
    """Where requests go."""
    return "/v1/messages"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """The JSON body that asks the model of the upstream for the next reply."""
    if conversation.options.n > 1:
        raise RequestError("This upstream gives one reply at a time; ask for them one at a time.", param="n")
    raw = conversation.raw
    if conversation.protocol == "messages" and not conversation.messages:  # a request that nobody here could read
        return wire.encode_request({**raw, "model": model.name})
    body = _body(conversation, model)
    stop = [text for text in conversation.options.stop if text.strip()]  # the origin refuses blank ones
    if stop:
        body["stop_sequences"] = stop
    body["stream"] = stream
    return wire.encode_request(body)


def count_path(model: ModelSettings) -> str:  # noqa: ARG001  other protocols name it in the path
    """Where tokens are counted."""
    return "/v1/messages/count_tokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """The JSON body that asks how many tokens the conversation has."""
    if conversation.protocol == "messages" and not conversation.messages:
        return wire.encode_request({**conversation.raw, "model": model.name})
    body = _body(conversation, model)
    return wire.encode_request({key: value for key, value in body.items() if key in _COUNTED})


def read_count_reply(body: bytes) -> int | None:
    """The number of tokens; None if the upstream did not tell it."""
    return wire.count_in(body, "input_tokens")


def _body(conversation: Conversation, model: ModelSettings) -> Body:
    raw = conversation.raw
    same = conversation.protocol == "messages"
    body: Body = {"model": model.name}
    options = conversation.options
    if same:
        body.update((key, value) for key, value in raw.items() if key not in _OURS)
        body["max_tokens"] = options.max_tokens or MAX_TOKENS
    else:
        body.update(_options(options))
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


def _options(options: Options) -> Body:
    """Options of another protocol. Of temperature and top_p newer models take one only: temperature wins."""
    heat = options.temperature
    fields = {
        "max_tokens": options.max_tokens or MAX_TOKENS,
        "temperature": None if heat is None else min(max(heat, 0), 1),
        "top_p": options.top_p if heat is None else None,
        "top_k": options.top_k,
        "metadata": {"user_id": options.user} if options.user else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _output_config(conversation: Conversation, *, same: bool) -> Body:
    output, effort = conversation.options.output, conversation.options.effort
    config: Body = {}
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


def _tools(conversation: Conversation, *, same: bool) -> Body:
    sent: dict[str, Json] = {}
    later: list[Json] = []  # the upstream finds them by itself
    if same:
        for item in conversation.raw.get("tools") or ():
            sent.update((name, item) for name in tool_names(item) if name not in sent)
            later += [item] if item.get("defer_loading") is True else []
    choice = conversation.choice
    named = choice.mode == "required" and len(choice.names) == 1
    offered = [tool for tool in conversation.tools if named or not choice.names or tool.name in choice.names]
    written = [*(sent.get(tool.name) or _tool(tool) for tool in offered), *later]
    fields: Body = {"tools": list({id(item): item for item in written}.values())}  # a toolset is one
    own = {tool.name: tool.name[len(tool.namespace) + 1 :] for tool in offered if tool.namespace and tool.name in sent}
    wanted = _choice(choice, own)
    if wanted is not None:
        fields["tool_choice"] = wanted
    return fields


def _tool(tool: Tool) -> Body:
    """The tool; one that takes raw text gets it in a field."""
    fields: Body = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    schema = {"properties": {"input": {"type": "string"}}, "required": ["input"]} if tool.custom else tool.parameters
    fields["input_schema"] = {"type": "object", **(schema or {"properties": {}})}
    if tool.examples:
        fields["input_examples"] = list(tool.examples)
    return fields


def _choice(choice: ToolChoice, own: Mapping[str, str]) -> Json:
    """The value of `tool_choice`; None where it would only say the default.

    `own`: how the members of toolsets are named there; the upstream is sent their toolsets, not our names.
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


def _messages(messages: Sequence[Message], *, same: bool) -> tuple[Json, list[Body]]:
    """The value of `system` (None without one), and the messages."""
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
    """The value of `system`, and those of the leading system messages that stay where they were.

    Some clients write a system message among the others; it stays there if nobody changed anything before it.
    """
    if not messages:
        return None, ()
    if same and all(message.raw for message in messages):
        first = messages[0].raw[0]
        return (first["system"], messages[1:]) if first.keys() == {"system"} else (None, messages)
    blocks: list[Block] = []
    for message in messages:
        value = message.raw[0].get("system", message.raw[0].get("content")) if same and message.raw else None
        blocks += _listed(value) if value is not None else blocks_of(message.content, same=same, words=True)
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return blocks[0]["text"], ()
    return blocks, ()


class _Alternating:
    """Takes messages and joins neighbours of one role, unless both are as the client wrote them (`own`)."""

    __slots__ = ("_all", "_made")

    def __init__(self) -> None:
        self._all: list[Body] = []
        self._made: list[Body | None] = []  # the same messages, None for those that stay as they came

    def add(self, fields: Body, *, own: bool) -> None:
        """Take the next message; one that says nothing is left out."""
        if not own and not fields["content"]:
            return
        last = self._all[-1] if self._all else None
        if last is not None and last["role"] == fields["role"] and not (own and self._made[-1] is None):
            blocks = [*_listed(last["content"]), *_listed(fields["content"])]
            if fields["role"] == "user":  # results come first
                blocks.sort(key=lambda block: block.get("type") != "tool_result")
            self._all[-1] = self._made[-1] = {**last, "content": blocks}
            return
        if last is None and not own and fields["role"] != "user":
            self._keep(dict(_BEGIN), own=True)
        self._keep(fields, own=own)

    def close(self) -> list[Body]:
        """All messages. The last one, if it is the beginning of the reply, does not end in white space."""
        if not self._all:
            self._keep(dict(_BEGIN), own=True)
        last = self._made[-1]
        if last is not None and last["role"] == "assistant" and last["content"][-1].get("type") == "text":
            *before, block = last["content"]
            last["content"] = [*before, {**block, "text": block["text"].rstrip()}]
        for fields in self._made:
            if fields is not None:
                fields["content"] = _shortened(fields["content"])
        return self._all

    def _keep(self, fields: Body, *, own: bool) -> None:
        self._all.append(fields)
        self._made.append(None if own else fields)


def _listed(content: Json) -> list[Block]:
    """Content as blocks, whatever the client wrote."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return list(content) if isinstance(content, list) else []


def _shortened(content: Json) -> Json:
    """One block of nothing but text as a string."""
    match content:
        case [{"type": "text", "text": str(text), **more}] if not more:
            return text
    return content


def _blocks(message: Message, *, same: bool) -> list[Block]:
    """The blocks of a message that was made or changed here, or came in another protocol."""
    said = blocks_of(message.content, same=same, words=message.role != "user")
    return [
        *(_result(result, same=same) for result in message.results),
        *said,
        *(_call(call) for call in message.calls),
    ]


def _call(call: ToolCall) -> Block:
    value: Json = {"input": call.arguments} if call.custom else _object(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value}


def _object(arguments: str) -> Json:
    """The arguments as an object, whatever stands in the history."""
    if not arguments.strip():
        return {}
    try:
        value = wire.decode_tolerant(wire.repaired(arguments).encode())
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _result(result: ToolResult, *, same: bool) -> Block:
    block: Body = {"type": "tool_result", "tool_use_id": result.id}
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
