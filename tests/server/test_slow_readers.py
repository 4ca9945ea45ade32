"""Backpressure: data that a client has not read waits in the upstream, not in the proxy.

Over real sockets, under uvicorn and under hypercorn with trio.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.servers import DEADLINE, Served, hypercorn_server, listener, uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import Settings

MOST = 32 * 1024 * 1024
"""Upper bound of the bytes that the sockets, the servers and the proxy buffer."""
STILL = 0.5
"""Seconds without a byte until the upstream counts as blocked."""
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
BEGINS = {
    "text": "Words. ",
    "arguments": '<tool_call>{"name": "ping", "arguments": {"x": "',
    "passed on": "Words. ",
}


class EndlessUpstream:
    """An upstream that repeats one delta for as long as it is read; `sent` counts the bytes so far."""

    def __init__(self) -> None:
        self._sock = listener()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.begins = ""
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="endless upstream")
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._sock.accept()
                with connection, contextlib.suppress(OSError):
                    self._say(connection)

    def _say(self, connection: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += connection.recv(65536)
        if asked.startswith(b"GET"):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + event(self.begins))
        words = event("word " * 200) * 16
        while True:
            connection.sendall(words)
            self.sent += len(words)

    def stands_still(self) -> int:
        """Wait until nothing more is read, and return the number of bytes sent."""
        while True:
            before = self.sent
            time.sleep(STILL)
            if self.sent == before:
                return before
            assert before < MOST, "the upstream is not blocked"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(DEADLINE)


def event(said: str) -> bytes:
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": None}
    return (
        b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )


@pytest.fixture(scope="module")
def upstream() -> Iterator[EndlessUpstream]:
    upstream = EndlessUpstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module", params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn-trio"])
def server(request: pytest.FixtureRequest, upstream: EndlessUpstream) -> Iterator[Served]:
    with request.param(Proxy(Settings(upstreams={"u": {"url": upstream.url}}, limits={"repetition": 0}))) as server:
        yield server


@pytest.mark.parametrize("kind", BEGINS)
def test_a_client_that_does_not_read_blocks_the_upstream(server: Served, upstream: EndlessUpstream, kind: str):
    upstream.begins, upstream.sent = BEGINS[kind], 0
    tools = [] if kind == "passed on" else [PING]
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": tools}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as client:
        client.sendall(head.encode() + body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        taken = upstream.stands_still()
        while upstream.sent == taken:  # once the client reads, the upstream continues
            assert client.recv(65536)
