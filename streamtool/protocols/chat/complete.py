"""Writer for complete replies and errors, with helpers shared by complete and streamed replies."""

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import Choice, Reason, Reply, ReplyCall, ReplyText, Usage
from streamtool.protocols.chat.signature import add_signature
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import drop_blank_text


def finish_reason(reason: Reason, *, calls: bool, legacy: bool) -> str:
    """Return the finish reason of a choice."""
    if reason is Reason.FILTER:
        return "content_filter"
    if reason is Reason.LENGTH:
        return "length"
    if calls:
        return "function_call" if legacy else "tool_calls"
    return "stop"


def usage_fields(usage: Usage) -> dict[str, Json]:
    """Return the token usage as an object; unknown counts are 0."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        **wire.own_counts(usage),
    }


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:
    """Return the JSON body of a complete reply; the reply's own id, time and model override the arguments.

    Raises the same errors as `Reply.whole`, because an incomplete reply cannot be written as a complete one.
    """
    choices = reply.whole(conversation.options.n)
    body = {
        "id": reply.id or id,
        "object": "chat.completion",
        "created": created if reply.created is None else reply.created,
        "model": reply.model or model,
        "choices": [_choice(conversation, choice) for choice in choices],
        "usage": usage_fields(reply.usage or Usage()),
        "system_fingerprint": None,
    }
    return wire.encode(body)


def _choice(conversation: Conversation, choice: Choice) -> dict[str, Json]:
    legacy = conversation.legacy_functions
    calls = choice.calls[:1] if legacy else choice.calls
    text = _text(choice)
    message: dict[str, Json] = {
        "role": "assistant",
        "content": text or (None if calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if calls and legacy:
        message["function_call"] = {"name": calls[0].name, "arguments": _arguments(calls[0])}
    elif calls:
        custom = {tool.name for tool in conversation.tools if tool.custom}
        message["tool_calls"] = [_call(call, custom=call.name in custom) for call in calls]
    reason = finish_reason(choice.reason or Reason.STOP, calls=bool(calls), legacy=legacy)
    return {"index": choice.index, "message": message, "logprobs": None, "finish_reason": reason}


def _call(call: ReplyCall, *, custom: bool) -> dict[str, Json]:
    if custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    function = {"name": call.name, "arguments": _arguments(call)}
    return add_signature({"id": call.id, "type": "function", "function": function}, call.signature)


def _arguments(call: ReplyCall) -> str:
    return call.arguments if call.arguments.strip() else call.arguments + "{}"


def _text(choice: Choice) -> str:
    """Return the text of a choice, except for whitespace-only text after a call."""
    return "".join(part.text for part in drop_blank_text(choice.parts) if isinstance(part, ReplyText))


def error_fields(error: StreamtoolError) -> dict[str, dict[str, Json]]:
    """Return the error object in this protocol's format."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  sent in a header
    """Return the JSON body of an error; its HTTP status is `error.status`, and the request id is sent in a header."""
    return wire.encode(error_fields(error))
