"""Writer for complete replies, errors and token counts, with helpers shared by complete and streamed replies."""

from collections.abc import Sequence
from typing import Final

import msgspec

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import Choice, Reason, Reply, ReplyCall, ReplyPart, ReplyReasoning, ReplyText, Usage
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import drop_blank_text

EMPTY: Final = {"text": ""}
"""Last part of a streamed candidate, and the only part of an empty one, because the SDKs' chat sessions drop a reply
without parts.
"""
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def finish_reason(reason: Reason, *, cut: bool, limited: bool) -> str:
    """Return the finish reason of a candidate; complete calls do not affect it. `cut` means that an incomplete call was
    dropped, `limited` that the client has limited the tokens. Gemini CLI tries again after a malformed call, but not
    after a limit.
    """
    if reason is Reason.FILTER:
        return "SAFETY"
    if cut and not (limited and reason is Reason.LENGTH):
        return "MALFORMED_FUNCTION_CALL"
    return "MAX_TOKENS" if reason is Reason.LENGTH else "STOP"


def usage_fields(usage: Usage) -> dict[str, Json]:
    """Return the token usage as an object; unknown counts are 0. In this protocol, candidate tokens exclude
    thoughts.
    """
    told = {"cachedContentTokenCount": usage.cached, "thoughtsTokenCount": usage.reasoning}
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
        **{key: count for key, count in told.items() if count},
        **wire.own_counts(usage),
    }


def call_part(id: str | None, name: str, arguments: str, signature: str | None) -> dict[str, Json]:
    """Return the part for a complete call."""
    call = {"id": id, "name": name, "args": msgspec.Raw(wire.object_of(arguments))}
    return {"functionCall": call} if signature is None else {"functionCall": call, "thoughtSignature": signature}


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:  # noqa: ARG001  this protocol has no creation time
    """Return the JSON body of a complete reply; the reply's own id and model override the arguments.

    Raises the same errors as `Reply.whole`, because an incomplete reply cannot be written as a complete one.
    """
    choices = reply.whole(conversation.options.n)
    body = {
        "candidates": [_candidate(choice) for choice in choices],
        "usageMetadata": usage_fields(reply.usage or Usage()),
        "modelVersion": reply.model or model,
        "responseId": reply.id or id,
    }
    return wire.encode(body)


def _candidate(choice: Choice) -> dict[str, Json]:
    reason = finish_reason(choice.reason or Reason.STOP, cut=False, limited=True)
    content = {"parts": _parts(choice.parts) or [EMPTY], "role": "model"}
    return {"content": content, "finishReason": reason, "index": choice.index}


def _parts(parts: Sequence[ReplyPart]) -> list[Json]:
    written: list[Json] = []
    for part in drop_blank_text(parts):
        match part:
            case ReplyText(text):
                written.append({"text": text})
            case ReplyReasoning(text) if text:
                written.append({"text": text, "thought": True})
            case ReplyCall() if part.complete:
                written.append(call_part(part.id, part.name, part.arguments, part.signature))
            case _:
                pass
    return written


def error_fields(error: StreamtoolError) -> dict[str, Json]:
    """Return the error object in this protocol's format, which has no field for `error.param`; the message includes the
    parameter instead.
    """
    named = error.param and error.status < 500 and error.param not in error.message
    message = f"{error.param}: {error.message}" if named else error.message
    known = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": error.status, "message": message, "status": known}}


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  sent in a header
    """Return the JSON body of an error; its HTTP status is `error.status`, and the request id is sent in a header."""
    return wire.encode(error_fields(error))


def write_count(tokens: int) -> bytes:
    """Return the JSON body of a token count."""
    return wire.encode({"totalTokens": tokens})
