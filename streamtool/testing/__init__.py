"""Test helpers for streamtool and for software built on it.

A scripted upstream, and an ASGI caller that sees a reply while it is being sent.
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
    "chunk",
    "event",
    "status",
    "stream_asgi",
    "text",
]
