"""Calls as upstreams with native tools make them."""

import json

from streamtool.testing import Script, chunk
from streamtool.testing.upstream import DONE


def native_call(name: str, arguments: str, *, id: str = "call_native1", **more: object) -> Script:
    """A reply of Chat Completions that makes one call."""
    call = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}, **more}
    half = len(arguments) // 2
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in (arguments[:half], arguments[half:])]
    deltas = [{"role": "assistant", "content": None, "tool_calls": [call]}, *({"tool_calls": [p]} for p in pieces)]
    return Script((*map(chunk, deltas), chunk({}, finish="tool_calls"), DONE))


def gemini_reply(*parts: dict[str, object]) -> Script:
    """A reply of Gemini's."""
    body = {"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    return Script((f"data: {json.dumps(body)}\r\n\r\n".encode(),))
