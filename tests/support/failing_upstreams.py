"""Upstreams that answer or fail, and settings that list them in order."""

import json
from typing import Any

import httpx
import openai
from support.dialects import chat

from streamtool.settings import load

TOOL: Any = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}

CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


def good(said: str = "good") -> Any:
    """Return an upstream that answers with a call; `asked` counts the requests."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        app.asked += 1  # type: ignore[attr-defined]
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"".join(chat([said, CALL], "stop"))})

    app.asked = 0  # type: ignore[attr-defined]
    return app


def failing(status: int, body: bytes = b'{"error":{"message":"no"}}') -> Any:
    """Return an upstream that answers with an error; `status` may be changed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        app.asked += 1  # type: ignore[attr-defined]
        head = [(b"content-type", b"application/json"), (b"retry-after", b"7")]
        await send({"type": "http.response.start", "status": app.status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    app.asked, app.status = 0, status  # type: ignore[attr-defined]
    return app


def settings(*urls: str, more: str = "") -> Any:
    names = [f"u{i}" for i in range(len(urls))]
    text = 'chat_template = "none"\nformats = ["tool_call"]\n'
    for i, (name, url) in enumerate(zip(names, urls, strict=True)):
        text += f'[upstream.{name}]\nurl = "{url}"\ntimeout = {{first_byte = 1.5, connect = 1.0}}\n'
        text += f"fallbacks = {json.dumps(names[1:])}\n{more}\n" if i == 0 else ""
    return load(text, {}, {})


def to_openai(url: str, *, stream: bool) -> tuple[str, int]:
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False)
    ) as client:
        ask: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
        if not stream:
            message = client.chat.completions.create(**ask).choices[0].message
            return message.content or "", len(message.tool_calls or ())
        text, calls = "", 0
        for chunk in client.chat.completions.create(**ask, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += sum(bool(call.function and call.function.name) for call in choice.delta.tool_calls or ())
        return text, calls
