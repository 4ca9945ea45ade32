"""llama.cpp's server is recognized, and its window is the one of a slot."""

import json
from typing import Any

import pytest
from support.engine import Engine

from streamtool import Proxy, Settings
from streamtool.testing import stream_asgi

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("asking")]
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.anyio
async def test_the_server_is_recognized_and_its_window_applies(llama: Engine):
    records: list[Any] = []
    app = Proxy(Settings(upstreams={"u": {"url": llama.url}}), on_exchange=records.append)

    async def ask(prompt: str) -> Any:
        body = {"model": "noise", "max_tokens": 2, "messages": [{"role": "user", "content": prompt}], "tools": [TOOL]}
        async with stream_asgi(app, "/v1/chat/completions", body=json.dumps(body).encode()) as reply:
            return json.loads(await reply.body())

    async with app.running():
        assert app.engines["u"].startswith("llama.cpp ")
        assert app.engines["u"].endswith(f" at {llama.url}: chat, window 32768 (/props), calls forced by schema")
        assert "choices" in await ask("one two three " * 200)
        refused = await ask("word " * 40_000)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert "> 32768 maximum" in refused["error"]["message"]
    assert records[0].engine.startswith("llama.cpp ")
    assert records[0].prompt_cut is None
