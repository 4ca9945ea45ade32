"""Litestar: the middleware in the app's own list, and around the app."""

import json
from collections.abc import Callable
from typing import Any

import litestar
import pytest
from litestar.middleware import DefineMiddleware
from support.dialects import PATHS, Ask, read, write

from streamtool import ToolMiddleware
from streamtool.testing import stream_asgi

both = pytest.mark.anyio
CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
ASK = Ask((("user", "Ping."),), (("ping", "Pings.", {"type": "object", "properties": {}}),), stream=False)


def listed(*middleware: Any) -> Any:
    @litestar.post("/v1/chat/completions", status_code=200)
    async def answer(request: litestar.Request[Any, Any, Any]) -> dict[str, Any]:
        data = await request.json()
        told = "tools" in data or "# Tools" not in json.dumps(data["messages"])
        message = {"role": "assistant", "content": "What tools?" if told else f"I ping. {CALL}"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    return litestar.Litestar([answer], middleware=middleware, logging_config=None)


WAYS: dict[str, Callable[[], Any]] = {
    "the class in the list": lambda: listed(ToolMiddleware),
    "with settings in the list": lambda: listed(DefineMiddleware(ToolMiddleware, format="tool_call")),
    "around the app": lambda: ToolMiddleware(listed(), app_protocol="chat"),
}


async def asked(app: Any, client: str) -> tuple[int, bytes]:
    async with stream_asgi(app, PATHS[client], body=json.dumps(write(client, ASK)).encode()) as reply:
        data = await reply.body()
    return reply.status, data


@both
@pytest.mark.parametrize("way", WAYS)
async def test_the_apps_own_paths_support_tools(way: str):
    status, data = await asked(WAYS[way](), "chat")
    assert status == 200
    assert read("chat", data, stream=False).parts == ("I ping. ", ("ping", "{}"))


@both
@pytest.mark.parametrize("way", WAYS)
async def test_paths_of_other_protocols_exist_only_around_the_app(way: str):
    status, _ = await asked(WAYS[way](), "messages")
    assert status == (200 if way == "around the app" else 404)
