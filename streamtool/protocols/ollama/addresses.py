"""Says what is different at `/api/generate`: the request has a prompt, and the reply no message."""

from collections.abc import Mapping
from typing import Any

from streamtool.protocols.ollama.complete import write_generated
from streamtool.protocols.ollama.request import read_generate
from streamtool.protocols.ollama.writer import GenerateWriter


def at(target: str) -> Mapping[str, Any]:
    """The names of this package that mean something else at the path that a client asked for."""
    if not target.partition("?")[0].endswith("/generate"):
        return {}
    return {"read_request": read_generate, "ReplyWriter": GenerateWriter, "write_complete": write_generated}
