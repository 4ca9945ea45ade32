"""For testing what is built on streamtool, and streamtool itself.

A scripted upstream, a caller that sees a reply while it is made, and the validator of what a client receives.
"""

from streamtool.testing import validate
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
from streamtool.testing.validate import *  # noqa: F403  what is public there is public here

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
__all__ += validate.__all__
