"""Reads the body of a Messages request into a `Conversation`; also that of a request to count its tokens.

The reading is as tolerant as real agents need: `cache_control` and all keys that nobody here knows are passed over.
Source: the API reference and the request types of anthropic-python 2.12.
"""

from typing import Any, Final

from streamtool.conversation import Conversation, Message, Options, OutputFormat
from streamtool.protocols.fields import (
    Fields,
    body_fields,
    flag,
    integer,
    model_name,
    number,
    refused,
    shown,
    strings,
)
from streamtool.protocols.messages.complete import NO_THREADS
from streamtool.protocols.messages.content import read_messages, read_system
from streamtool.protocols.messages.request_fields import REQUEST_FIELDS
from streamtool.protocols.messages.tools import kind_of, read_tools, with_choice
from streamtool.settings import LimitSettings
from streamtool.turns import unanswered

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(name for name, what in REQUEST_FIELDS.items() if "left out" not in what)
"""The fields of the body that are understood; the others mean nothing to an upstream of another protocol."""
_EFFORTS: Final = {"max": "xhigh"}
_LOW: Final = 4096  # tokens of thinking: up to here the effort is low
_MEDIUM: Final = 16384


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
    raw = body_fields(body, limits)
    if raw.get("thread") is not None:  # SDKs send everything once more when they hear this
        sentence = "Conversations are not kept here: send all messages and no `thread`."
        raise refused("thread", sentence, code=NO_THREADS)
    conversation = _conversation(raw, limits, len(body))
    if conversation.options.max_tokens is None:
        raise refused("max_tokens", "Say in `max_tokens` how long the reply may become.")
    _no_open_calls(conversation.messages)
    return conversation


def read_count(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation whose tokens are to be counted: `max_tokens` may be missing, and calls may lack their results.

    Raises as `read_request` does.
    """
    return _conversation(body_fields(body, limits), limits, len(body))


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means.
    """
    raw = body_fields(body, limits)
    choice = raw.get("tool_choice")
    if raw.get("tools") not in (None, []) or (choice is not None and kind_of(choice) not in ("auto", "none")):
        return None
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result"):
                return None
    model = raw.get("model")
    name = model if isinstance(model, str) else ""
    return Conversation("messages", name, (), stream=raw.get("stream") is True, raw=raw)


def _conversation(raw: Fields, limits: LimitSettings, size: int) -> Conversation:
    offer = read_tools(raw, limits, size)
    conversation = Conversation(
        protocol="messages",
        model=model_name(raw),
        messages=(*read_system(raw.get("system")), *read_messages(raw.get("messages"))),
        tools=offer.tools,
        stream=flag(raw, "stream"),
        options=_options(raw),
        dropped=offer.dropped,
        raw=raw,
    )
    return with_choice(conversation, raw.get("tool_choice"))


def _no_open_calls(messages: tuple[Message, ...]) -> None:
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    for call in unanswered(messages):
        raise refused(
            "messages",
            f"The call {shown(call.id)} of {shown(call.name)} has no result: answer it with a `tool_result` in a user "
            f"message before asking for the next reply.",
        )


# --- how the reply is to be made --------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    metadata = raw.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return Options(
        stop=strings(raw, "stop_sequences"),
        max_tokens=integer(raw, "max_tokens"),
        temperature=number(raw, "temperature"),
        top_p=number(raw, "top_p"),
        top_k=integer(raw, "top_k"),
        effort=_effort(raw),
        user=user if isinstance(user, str) else None,
        output=_output(raw),
    )


def _effort(raw: Fields) -> str | None:
    """The effort that was asked for by name, else what a budget for thinking amounts to."""
    match raw.get("output_config"):
        case {"effort": str(effort)}:
            return _EFFORTS.get(effort, effort)
    match raw.get("thinking"):
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return "low" if budget <= _LOW else "medium" if budget <= _MEDIUM else "high"
    return None


def _output(raw: Fields) -> OutputFormat | None:
    config = raw.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    match raw.get("output_format") if form is None else form:
        case {"type": "json_schema", "schema": dict(schema)}:
            return OutputFormat(schema)
    return None
