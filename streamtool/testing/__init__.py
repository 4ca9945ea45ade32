"""For testing what is built on streamtool, and streamtool itself.

A scripted upstream, a caller that sees a reply while it is made, and the validator of what a client receives.
"""

from streamtool.testing.asgi import StreamedReply, stream_asgi
from streamtool.testing.upstream import (
    DONE,
    Die,
    Hang,
    Hold,
    Pause,
    Recorded,
    Script,
    ScriptedUpstream,
    chunk,
    event,
    status,
    text,
)
from streamtool.testing.validate import (
    Violation,
    assert_valid,
    validate_chat_error,
    validate_chat_stream,
    validate_chat_whole,
    validate_messages_error,
    validate_messages_stream,
    validate_messages_whole,
    validate_responses_error,
    validate_responses_stream,
    validate_responses_whole,
)

__all__ = [
    "DONE",
    "Die",
    "Hang",
    "Hold",
    "Pause",
    "Recorded",
    "Script",
    "ScriptedUpstream",
    "StreamedReply",
    "Violation",
    "assert_valid",
    "chunk",
    "event",
    "status",
    "stream_asgi",
    "text",
    "validate_chat_error",
    "validate_chat_stream",
    "validate_chat_whole",
    "validate_messages_error",
    "validate_messages_stream",
    "validate_messages_whole",
    "validate_responses_error",
    "validate_responses_stream",
    "validate_responses_whole",
]
