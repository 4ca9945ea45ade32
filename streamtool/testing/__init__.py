"""Test helpers for streamtool and for software built on it: a scripted upstream, and a caller for ASGI apps."""

from streamtool.testing.asgi import StreamedReply, stream_asgi
from streamtool.testing.formats import check_format
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
    "check_format",
    "chunk",
    "event",
    "status",
    "stream_asgi",
    "text",
]
