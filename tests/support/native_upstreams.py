"""Upstreams that call natively, leak calls into their text, or do not support tools."""

import json
from typing import Any

from support.dialects import sse

from streamtool.testing import Script

LEAK = 'So.\n<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'

NO_TOOLS = {
    "ollama": (400, {"error": "registry.ollama.ai/library/phi:latest does not support tools"}),
    "llama.cpp": (
        500,
        {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}},
    ),
    "vllm": (
        400,
        {
            "object": "error",
            "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        },
    ),
    "openrouter": (404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}),
}


def native(*calls: tuple[str, str], text: str = "", finish: str = "tool_calls") -> Script:
    """Return a chat upstream that writes `text` and then calls natively."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1700000000, "model": "up"}

    def chunk(delta: Any, reason: str | None = None) -> bytes:
        return sse({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]})

    steps = [chunk({"role": "assistant", "content": ""})]
    steps += [chunk({"content": text[i : i + 4]}) for i in range(0, len(text), 4)]
    for i, (name, arguments) in enumerate(calls):
        opening = {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": ""}}
        steps.append(chunk({"tool_calls": [opening]}))
        steps += [chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]}) for piece in arguments]
    return Script((*steps, chunk({}, finish), b"data: [DONE]\n\n"))


def refused(status: int, body: Any) -> Script:
    return Script((json.dumps(body).encode(),), status, "application/json")
