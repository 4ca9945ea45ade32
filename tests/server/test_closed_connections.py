"""A client that asks for the connection to be closed sees its end as soon as the reply is complete, whatever the path.

Some servers report a disconnect to the app while it sends the last message, before they close the connection.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.servers import DEADLINE, Served, hypercorn_server, uvicorn_server
from support.sweeps import each

from streamtool import sample
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, text

REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "forwarded": ("http", "/v1/chat/completions", {"stream": True}),
    "forwarded whole": ("http", "/v1/chat/completions", {}),
    "joined into one": ("streaming", "/v1/chat/completions", {}),
    "passed through": ("http", "/v1/embeddings", {}),
    "forwarded to an app": ("app", "/v1/chat/completions", {"stream": True}),
    "in the background": ("app", "/v1/responses", {"stream": True, "background": True, "input": "Hi."}),
    "a reply": ("app", "/v1/responses", {"stream": True, "input": "Hi."}),
}
"""The upstream, the path and fields of each request."""


@pytest.fixture(scope="module", params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def served(request: pytest.FixtureRequest) -> Iterator[dict[str, Served]]:
    with uvicorn_server(sample.app) as upstream:
        http = Settings(passthrough=("/v1/embeddings",), upstreams={"u": {"url": upstream.url}})  # type: ignore[dict-item]
        with uvicorn_server(ScriptedUpstream(*[text("Hi.")] * 2)) as streaming:
            joined = Settings(upstreams={"u": {"url": streaming.url}}, chat_template="none")  # type: ignore[dict-item]
            with (
                request.param(Proxy(http)) as one,
                request.param(Proxy()) as two,
                request.param(Proxy(joined)) as three,
            ):
                yield {"http": one, "app": two, "streaming": three}


@each("name", REQUESTS)
@each("version", ["1.1", "1.0"])
def test_the_connection_is_closed_after_the_reply(served: dict[str, Served], name: str, version: str):
    upstream, path, fields = REQUESTS[name]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi."}], **fields}).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json"
    with socket.create_connection(("127.0.0.1", served[upstream].port), timeout=DEADLINE) as client:
        client.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        client.settimeout(3)  # less than the servers' time limit for idle connections
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 ")
