"""Writer for complete replies and errors.

A complete reply is the response object in the last event of the equivalent stream. The same writer produces both, so
they always agree.
"""

from collections.abc import Iterator

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import (
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
from streamtool.protocols.responses.writer import ReplyWriter
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import too_large_error


def write_complete(conversation: Conversation, reply: Reply, *, id: str, created: int, model: str) -> bytes:
    """Return the JSON body of a complete reply; the reply's own id, time and model override the arguments.

    Raises the same errors as `Reply.whole`, because an incomplete reply cannot be written as a complete one.
    """
    choice = reply.whole()[0]
    writer = ReplyWriter(conversation, id=id, created=created, model=model)
    writer.feed([ReplyStart(reply.id, reply.created, reply.model)])
    for event in _events(choice):
        writer.feed((event,))
    writer.feed([UsageReport(reply.usage or Usage()), ReplyEnd()])
    if writer.response is None:
        raise writer.failure or too_large_error()
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
    """Return the JSON body of a token count."""
    return wire.encode({"object": "response.input_tokens", "input_tokens": tokens})


def write_error(error: StreamtoolError, request_id: str | None = None) -> bytes:  # noqa: ARG001  sent in a header
    """Return the JSON body of an error; its HTTP status is `error.status`, and the request id is sent in a header."""
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return wire.encode({"error": fields})
