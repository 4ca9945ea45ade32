"""Writes a reply that is not streamed, and errors.

A whole reply is the last object of the stream that would have been: the same writer makes both, so they agree.
"""

from collections.abc import Iterator

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.responses.writer import ReplyWriter
from streamtool.reply import (
    Choice,
    Reason,
    Reply,
    ReplyArgumentsDelta,
    ReplyCall,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFinish,
    ReplyReasoning,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyText,
    ReplyTextDelta,
    Usage,
    UsageReport,
)


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:
    """The JSON body of a reply that is not streamed; the reply's own id, time and model win over those given.

    Raises what `Reply.whole` raises: a reply that is not whole is answered with an error.
    """
    choice = reply.whole()[0]
    writer = ReplyWriter(conversation, id=id, created=created, model=model)
    writer.feed([ReplyStart(reply.id, reply.created, reply.model)])
    for event in _events(choice):
        writer.feed((event,))
    writer.feed([UsageReport(reply.usage or Usage()), ReplyEnd()])
    if writer.response is None:
        raise UpstreamError("The upstream's reply is too large.", code="reply_too_large")
    return writer.response


def _events(choice: Choice) -> Iterator[ReplyEvent]:
    for index, part in enumerate(choice.parts):
        match part:
            case ReplyText(text):
                yield ReplyTextDelta(0, text)
            case ReplyReasoning(text):
                yield ReplyReasoningDelta(0, text)
            case ReplyCall():
                yield ReplyCallStart(0, index, part.id, part.name, part.signature)
                yield ReplyArgumentsDelta(0, index, part.arguments)
                yield ReplyCallEnd(0, index, part.complete)
    yield ReplyFinish(0, choice.reason or Reason.STOP, choice.stop_sequence)


def write_count(tokens: int) -> bytes:
    """The JSON body that tells how many tokens a conversation has."""
    return wire.encode({"object": "response.input_tokens", "input_tokens": tokens})


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001 — stands in a header
    """The JSON body of an error; its HTTP status is `error.status`, and the request's id travels in a header."""
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return wire.encode({"error": fields})
