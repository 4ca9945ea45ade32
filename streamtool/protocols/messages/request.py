"""Reader for Messages request bodies, including requests to count tokens.

The reader is tolerant: `cache_control` and all unknown keys are ignored. Sources: the API reference and the request
types of anthropic-python 2.12.
"""

from typing import Final

from streamtool.core.conversation import Conversation, Message, Options, OutputFormat
from streamtool.core.json_value import Fields
from streamtool.core.turns import unanswered_calls
from streamtool.protocols.messages.complete import NO_THREADS
from streamtool.protocols.messages.content import read_messages, read_system
from streamtool.protocols.messages.tools import kind_of, read_tools, with_choice
from streamtool.protocols.options import reading
from streamtool.protocols.shared.fields import body_fields, flag, model_name, read_options, refused, shown
from streamtool.settings import LimitSettings

_OPTIONS: Final = reading("messages")
_EFFORTS: Final = {"max": "xhigh"}
_LOW: Final = 4096  # maximum number of thinking tokens for a low effort
_MEDIUM: Final = 16384


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """Return the conversation in `body`. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.
    """
    raw = body_fields(body, limits)
    if raw.get("thread") is not None:  # SDKs react to this error by resending the entire conversation
        sentence = "Conversations are not stored here: send all messages, without `thread`."
        raise refused("thread", sentence, code=NO_THREADS)
    conversation = _conversation(raw, limits, len(body))
    if conversation.options.max_tokens is None:
        raise refused("max_tokens", "`max_tokens` is required: set the maximum length of the reply.")
    _no_open_calls(conversation.messages)
    return conversation


def read_count(body: bytes, limits: LimitSettings) -> Conversation:
    """Return the conversation whose tokens are to be counted. `max_tokens` may be missing, and calls may be unanswered.

    Raises the same errors as `read_request`.
    """
    return _conversation(body_fields(body, limits), limits, len(body))


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """Return a conversation without messages for a body that `read_request` rejects, or None if the body involves
    tools.

    A request without tools is forwarded verbatim, because the upstream may understand it.
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
    """Reject a conversation that ends with unanswered calls, because the model needs their results to reply."""
    for call in unanswered_calls(messages):
        raise refused(
            "messages",
            f"The call {shown(call.id)} to {shown(call.name)} has no result: add a `tool_result` for it in a user "
            f"message before requesting the next reply.",
        )


# --- options of the reply ---------------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    return Options(**read_options(raw, _OPTIONS), effort=_effort(raw), output=_output(raw))


def _effort(raw: Fields) -> str | None:
    """Return the requested effort, or the effort that corresponds to a thinking budget."""
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
