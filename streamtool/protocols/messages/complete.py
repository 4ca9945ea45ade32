"""Writer for complete replies, errors and token counts, with helpers shared by complete and streamed replies."""

from collections.abc import Mapping
from typing import Final

import msgspec

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import Choice, Reason, Reply, ReplyCall, ReplyReasoning, ReplyText, Usage
from streamtool.protocols.messages.content import SIGNATURE
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import drop_blank_text

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
NO_THREADS: Final = "thread_unsupported_request"
"""Error code that makes the SDKs resend the entire conversation."""


def stop_fields(reason: Reason, stop_sequence: str | None, *, calls: bool) -> dict[str, Json]:
    """Return the fields that report the stop reason."""
    if reason is Reason.FILTER:
        word = "refusal"
    elif reason is Reason.LENGTH:
        word = "max_tokens"
    elif calls:
        word = "tool_use"
    elif reason is Reason.STOP_SEQUENCE and stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_sequence}
    else:
        word = "pause_turn" if reason is Reason.PAUSE else "end_turn"
    return {"stop_reason": word, "stop_sequence": None}


def usage_fields(usage: Usage) -> dict[str, Json]:
    """Return the token usage as an object; unknown counts are 0. In this protocol, input tokens exclude cache reads."""
    return {
        "input_tokens": max(0, usage.input - usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        **wire.own_counts(usage),
    }


def toolsets_of(conversation: Conversation) -> dict[str, str]:
    """Return a mapping from the name of each toolset member to the name of its toolset."""
    return {tool.name: tool.namespace for tool in conversation.tools if tool.namespace}


def call_block(id: str | None, name: str, arguments: Json, toolsets: Mapping[str, str]) -> dict[str, Json]:
    """Return the block of a call; a call to a member of a toolset names both the member and the toolset."""
    toolset = toolsets.get(name)
    if toolset is None:
        return {"type": "tool_use", "id": id, "name": name, "input": arguments}
    member = name[len(toolset) + 1 :]
    caller = {"type": "direct"}
    return {"type": "tool_use", "id": id, "name": member, "input": arguments, "toolset_name": toolset, "caller": caller}


def write_complete(
    conversation: Conversation,
    reply: Reply,
    *,
    id: str,
    created: int,  # noqa: ARG001  this protocol has no creation time
    model: str,
) -> bytes:
    """Return the JSON body of a complete reply; the reply's own id and model override the arguments.

    Raises the same errors as `Reply.whole`, because an incomplete reply cannot be written as a complete one.
    """
    choice = reply.whole()[0]
    body = {
        "id": reply.id or id,
        "type": "message",
        "role": "assistant",
        "model": reply.model or model,
        "content": _content(choice, conversation),
        **stop_fields(choice.reason or Reason.STOP, choice.stop_sequence, calls=bool(choice.calls)),
        "usage": usage_fields(reply.usage or Usage()),
    }
    return wire.encode(body)


def _content(choice: Choice, conversation: Conversation) -> list[Json]:
    """Return the blocks of a reply, except for whitespace-only text after a call."""
    blocks: list[Json] = []
    groups = toolsets_of(conversation)
    for part in drop_blank_text(choice.parts):
        match part:
            case ReplyCall():
                blocks.append(call_block(part.id, part.name, _input(part), groups))
            case ReplyReasoning(text):
                blocks.append({"type": "thinking", "thinking": text, "signature": part.signature or SIGNATURE})
            case ReplyText(text):
                blocks.append({"type": "text", "text": text})
    return blocks


def _input(call: ReplyCall) -> Json:
    """Return the call's arguments."""
    return msgspec.Raw(wire.object_of(call.arguments))


def error_fields(error: StreamtoolError) -> dict[str, Json]:
    """Return the error event in this protocol's format, which has no field for `error.param`; the message includes the
    parameter instead.
    """
    message = f"{error.param}: {error.message}" if error.param and error.status < 500 else error.message
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    fields: dict[str, Json] = {"type": kind, "message": message}
    if error.code == NO_THREADS:
        fields["details"] = {"error_code": NO_THREADS, "unsupported": [error.param]}
    return {"type": "error", "error": fields}


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:
    """Return the JSON body of an error; its HTTP status is `error.status`."""
    fields = error_fields(error)
    if request_id is not None:
        fields["request_id"] = request_id
    return wire.encode(fields)


def write_count(tokens: int) -> bytes:
    """Return the JSON body of a token count."""
    return wire.encode({"input_tokens": tokens})
