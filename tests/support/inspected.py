"""Exchanges for the inspector, made with the middleware around scripted upstreams."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from streamtool.inspector import views
from streamtool.middleware import ToolMiddleware
from streamtool.testing import ScriptedUpstream, stream_asgi, text

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def request(*messages: tuple[str, str], **fields: Any) -> bytes:
    asked = messages or (("user", "What is the weather in Paris?"),)
    body = {"model": "m", "stream": True, "tools": TOOLS, "messages": [{"role": r, "content": c} for r, c in asked]}
    return json.dumps({**body, **fields}).encode()


def model(*replies: str | Sequence[str]) -> ScriptedUpstream:
    """Return an upstream that gives these replies in order."""
    return ScriptedUpstream(*(text(one, size=4) if isinstance(one, str) else text(*one) for one in replies))


async def ask(app: Any, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    given = [(b"content-type", b"application/json"), *headers]
    async with stream_asgi(app, body=body or request(), headers=given) as reply:
        data = await reply.body()
        await reply.finished.wait()
    return data


def inspected(upstream: Any, **options: Any) -> ToolMiddleware:
    return ToolMiddleware(upstream, **{"inspect": True, "contents": True, **options})


def timeline(app: ToolMiddleware, id: str = "1") -> Any:
    return views.timeline(app.observers.ring, id, {})


def held(reply: Any) -> Iterator[tuple[str, str]]:
    """Return the text that was buffered, and the reasons."""
    for start, end, _, came, left, why in reply["segments"]:
        if left != came:
            yield reply["text"][start:end], why
