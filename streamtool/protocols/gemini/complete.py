"""Writes a whole reply, errors and counts; and what a whole reply and a streamed one must agree on."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.stream import spoken
from streamtool.reply import Choice, Reason, Reply, ReplyCall, ReplyPart, ReplyReasoning, ReplyText, Usage

Json = Any  # a JSON value

EMPTY: Final = {"text": ""}
"""The part of a candidate that says nothing more; chats of SDKs forget a reply without parts."""
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


def finish_reason(reason: Reason, *, cut: bool) -> str:
    """The word for why a candidate ended; calls are a plain stop. `cut`: a call is incomplete, and not shown."""
    if reason is Reason.FILTER:
        return "SAFETY"
    if reason is Reason.LENGTH:
        return "MAX_TOKENS"
    return "MALFORMED_FUNCTION_CALL" if cut else "STOP"


def usage_fields(usage: Usage) -> dict[str, Json]:
    """The token counts as an object; what is unknown is 0. Here thoughts are not among the candidates' tokens."""
    told = {"cachedContentTokenCount": usage.cached, "thoughtsTokenCount": usage.reasoning}
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
        **{key: count for key, count in told.items() if count},
        **wire.own_counts(usage),
    }


def call_part(id: str | None, name: str, arguments: str, signature: str | None) -> dict[str, Json]:
    """A whole call."""
    call = {"id": id, "name": name, "args": msgspec.Raw(wire.object_of(arguments))}
    return {"functionCall": call} if signature is None else {"functionCall": call, "thoughtSignature": signature}


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:  # noqa: ARG001  this protocol does not tell the time
    """The JSON body of a reply that is not streamed; the reply's own id and model win over those given.

    Raises what `Reply.whole` raises: a reply that is not whole is answered with an error.
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
    cut = any(not call.complete for call in choice.calls)
    reason = finish_reason(choice.reason or Reason.STOP, cut=cut)
    content = {"parts": _parts(choice.parts) or [EMPTY], "role": "model"}
    return {"content": content, "finishReason": reason, "index": choice.index}


def _parts(parts: Sequence[ReplyPart]) -> list[Json]:
    written: list[Json] = []
    for part in spoken(parts):
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
    """The error object of this protocol. It has no field for the place that an error names: the sentence tells it."""
    named = error.param and error.status < 500 and error.param not in error.message
    message = f"{error.param}: {error.message}" if named else error.message
    known = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": error.status, "message": message, "status": known}}


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  stands in a header
    """The JSON body of an error; its HTTP status is `error.status`, and the request's id travels in a header."""
    return wire.encode(error_fields(error))


def write_count(tokens: int) -> bytes:
    """The JSON body that tells how many tokens a conversation has."""
    return wire.encode({"totalTokens": tokens})
