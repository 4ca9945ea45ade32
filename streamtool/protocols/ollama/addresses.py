"""Differences at `/api/generate`, where a request contains a prompt and a reply contains no message."""

from collections.abc import Mapping
from typing import Any

from streamtool.protocols.ollama.complete import write_generated
from streamtool.protocols.ollama.request import read_generate
from streamtool.protocols.ollama.writer import GenerateWriter


def at(target: str) -> Mapping[str, Any]:
    """Return the attributes of this package that have different values for this request target, by name."""
    if not target.partition("?")[0].endswith("/generate"):
        return {}
    return {"read_request": read_generate, "ReplyWriter": GenerateWriter, "write_complete": write_generated}
