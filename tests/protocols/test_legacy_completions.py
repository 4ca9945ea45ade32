"""Legacy completions of clients are passed on to the model's upstream, streamed and whole, by the official client."""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import httpx2
import openai
import pytest
from support.servers import hypercorn_server, uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import load

PIECES = ["def add(a, b):", "\n    return", " a + b"]


class Completes:
    """A server that continues texts and records its requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
            return
        asked = json.loads((await receive())["body"])
        self.asked.append((scope["path"], asked))
        if asked["prompt"] == "refuse":
            body, kind, status = [b'{"error": {"message": "no", "code": "nope"}}'], b"application/json", 400
        elif asked.get("stream"):
            body = [f"data: {json.dumps(self._said(piece))}\n\n".encode() for piece in PIECES] + [b"data: [DONE]\n\n"]
            kind, status = b"text/event-stream", 200
        else:
            body, kind, status = [json.dumps(self._said("".join(PIECES))).encode()], b"application/json", 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    def _said(self, text: str) -> Any:
        choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up", "choices": [choice]}


FILE = """
client_keys = ["one"]
[upstream.first]
url = "http://127.0.0.1:9"
protocol = "messages"
[upstream.code]
url = "URL"
protocol = "PROTOCOL"
[[model]]
match = "coder"
upstream = "code"
use = "qwen-coder"
[[model]]
match = "other-*"
upstream = "code"
"""


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def proxied(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ExitStack() as stack:

        def made(protocol: str = "chat") -> tuple[openai.OpenAI, Completes]:
            upstream = Completes()
            served = stack.enter_context(uvicorn_server(upstream))
            file = FILE.replace("URL", served.url).replace("PROTOCOL", protocol)
            proxy = stack.enter_context(request.param(Proxy(load(file))))
            http = stack.enter_context(httpx2.Client(trust_env=False))
            url = f"{proxy.url}/v1"
            return openai.OpenAI(base_url=url, api_key="one", http_client=http, max_retries=0), upstream

        yield made


@pytest.mark.parametrize("protocol", ["chat", "completions", "ollama"])
def test_a_text_is_continued_streamed_and_whole(protocol: str, proxied: Any):
    client, upstream = proxied(protocol)
    whole = client.completions.create(model="coder", prompt="def add", suffix="\n", max_tokens=9)
    assert whole.choices[0].text == "".join(PIECES)
    stream = client.completions.create(model="other-one", prompt="def add", stream=True)
    assert [chunk.choices[0].text for chunk in stream] == PIECES
    assert upstream.asked == [
        ("/v1/completions", {"model": "qwen-coder", "prompt": "def add", "suffix": "\n", "max_tokens": 9}),
        ("/v1/completions", {"model": "other-one", "prompt": "def add", "stream": True}),
    ]


def test_errors_are_reported(proxied: Any):
    client, upstream = proxied()
    with pytest.raises(openai.BadRequestError, match="no"):
        client.completions.create(model="coder", prompt="refuse")
    with pytest.raises(openai.BadRequestError, match="it speaks messages"):
        client.completions.create(model="claude", prompt="def add")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="two").completions.create(model="coder", prompt="def add")
    assert len(upstream.asked) == 1
    address = str(client.base_url) + "completions"
    headers = {"authorization": "Bearer one"}
    with httpx.Client(trust_env=False, headers=headers) as plain:
        assert plain.post(address, json={"prompt": "def add"}).status_code == 400
        assert plain.post(address, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
        assert plain.get(address).headers["allow"] == "POST"
        packed = gzip.compress(json.dumps({"model": "coder", "prompt": "def add"}).encode())
        sent = {"content-encoding": "gzip", "content-type": "application/json"}
        assert plain.post(address, content=packed, headers=sent).json()["choices"][0]["text"] == "".join(PIECES)
