"""Differences at `/api/generate`, whose requests have a prompt and whose replies have no message."""

from collections.abc import Mapping
from typing import Any

from streamtool.protocols.ollama.complete import write_generated
from streamtool.protocols.ollama.request import read_generate
from streamtool.protocols.ollama.writer import GenerateWriter


def at(target: str) -> Mapping[str, Any]:
    """Return the names of this package that have other values at this request target."""
    if not target.partition("?")[0].endswith("/generate"):
        return {}
    return {"read_request": read_generate, "ReplyWriter": GenerateWriter, "write_complete": write_generated}
