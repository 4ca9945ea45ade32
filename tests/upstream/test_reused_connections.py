"""A request does not fail because the upstream closes a connection that it promised to keep alive."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from support.servers import DEADLINE, listener

from streamtool import SyncToolTransport, ToolTransport
from streamtool.agent import Agent
from streamtool.core.errors import UpstreamError
from streamtool.probe import probe
from streamtool.settings import UpstreamSettings
from streamtool.testing import stream_asgi
from streamtool.upstream.app import HttpUpstream

pytestmark = pytest.mark.anyio
both_packages = pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'


def says(text: str) -> bytes:
    """Return a response."""
    message = {"role": "assistant", "content": text}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
HALF = ANSWER[:-1]


class Forgetful:
    """A server that answers the first request of each connection, reads the next one and closes the connection."""

    def __init__(self) -> None:
        self.answers = [ANSWER]
        """Responses to the first request of each connection, the last one repeating. ANSWER keeps the connection."""
        self.second = b""
        """Response to later requests of a connection before it closes: "" or an incomplete response."""
        self.together = threading.Barrier(1)
        """Barrier for first requests that are answered at the same time."""
        self.closes = False
        """Whether it closes the connection right after its response."""
        self.closed = threading.Semaphore(0)
        self.requests: list[tuple[int, bytes]] = []
        """Number of the connection and body, for each request."""
        self._listener = listener()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections += 1
                first = self.answers[min(self._connections, len(self.answers)) - 1]
                answers = (first,) if self.closes or not first.endswith(b"}") else (first, self.second)
                threading.Thread(target=self._serve, args=(connection, self._connections, answers), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int, answers: tuple[bytes, ...]) -> None:
        with connection, suppress(OSError, threading.BrokenBarrierError):
            for answer in answers:
                body = self._request(connection)
                if body is None:
                    return
                self.requests.append((number, body))
                if answer is answers[0]:
                    self.together.wait(DEADLINE)
                connection.sendall(answer)
        self.closed.release()

    def _request(self, connection: socket.socket) -> bytes | None:
        """Return the body of a request, if one arrives; for a request without a body, its path."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += (piece := connection.recv(65536))
            if not piece:
                return None
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        while len(body) < int((lengths or [b"0"])[0]):
            body += connection.recv(65536)
        return body if lengths else head.split()[1]


@pytest.fixture
def server() -> Iterator[Forgetful]:
    server = Forgetful()
    yield server
    server.close()


async def ask(upstream: HttpUpstream, body: bytes) -> tuple[int, bytes]:
    async with stream_asgi(upstream, path="/v1/chat/completions", body=body) as reply:
        return await reply.head(), b"".join([piece async for piece in reply])


def asked(number: int, *, tools: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Question {number}"}]
    return {"model": "m", "messages": messages, "tools": [TOOL]} if tools else {"model": "m", "messages": messages}


def numbers(server: Forgetful) -> list[tuple[int, int]]:
    """Return which question was asked on which connection."""
    bodies = [(number, json.loads(body)) for number, body in server.requests]
    return [(number, int(body["messages"][-1]["content"].split()[-1])) for number, body in bodies]


async def test_a_request_that_fails_on_a_reused_connection_is_sent_once_more(server: Forgetful) -> None:
    async with HttpUpstream(UpstreamSettings("up", f"{server.url}/v1")) as upstream:
        for number in range(3):
            assert await ask(upstream, b'{"n": %d}' % number) == (200, b"{}")
    assert server.requests == [
        (1, b'{"n": 0}'),
        *((1, b'{"n": 1}'), (2, b'{"n": 1}')),
        *((2, b'{"n": 2}'), (3, b'{"n": 2}')),
    ]


async def test_it_is_sent_once_more_on_a_new_connection_despite_idle_ones(server: Forgetful) -> None:
    server.together = threading.Barrier(3)
    async with HttpUpstream(UpstreamSettings("up", f"{server.url}/v1")) as upstream:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, upstream, b"{}")
        server.together = threading.Barrier(1)
        assert await ask(upstream, b'{"n": 4}') == (200, b"{}")
    assert [body for _, body in server.requests] == [b"{}", b"{}", b"{}", b'{"n": 4}', b'{"n": 4}']
    assert server.requests[-1][0] == 4


async def test_a_closed_connection_is_not_reused(server: Forgetful) -> None:
    server.closes = True
    async with HttpUpstream(UpstreamSettings("up", f"{server.url}/v1")) as upstream:
        for number in range(3):
            assert await ask(upstream, b'{"n": %d}' % number) == (200, b"{}")
            assert await anyio.to_thread.run_sync(server.closed.acquire, True, DEADLINE)
    assert server.requests == [(number + 1, b'{"n": %d}' % number) for number in range(3)]


async def test_a_request_is_not_repeated_once_its_response_has_begun(server: Forgetful) -> None:
    server.second = HALF
    async with HttpUpstream(UpstreamSettings("up", f"{server.url}/v1")) as upstream:
        assert await ask(upstream, b'{"n": 0}') == (200, b"{}")
        with pytest.raises(ExceptionGroup) as raised:
            await ask(upstream, b'{"n": 1}')
    assert raised.group_contains(UpstreamError, match="broke")
    assert server.requests == [(1, b'{"n": 0}'), (1, b'{"n": 1}')]


async def test_a_failure_of_a_new_connection_is_an_error(server: Forgetful) -> None:
    server.answers = [b""]
    async with HttpUpstream(UpstreamSettings("up", f"{server.url}/v1")) as upstream:
        with pytest.raises(ExceptionGroup) as raised:
            await ask(upstream, b'{"n": 0}')
    assert raised.group_contains(UpstreamError, match="broke")
    assert server.requests == [(1, b'{"n": 0}')]


async def test_a_network_without_connection_details_is_asked_once(server: Forgetful) -> None:
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("it broke", request=request)

    async with HttpUpstream(UpstreamSettings("up", server.url), transport=httpx.MockTransport(breaks)) as upstream:
        with pytest.raises(ExceptionGroup) as raised:
            await ask(upstream, b"{}")
    assert raised.group_contains(UpstreamError, match="broke")
    assert server.requests == []


@both_packages
@pytest.mark.parametrize("tools", [True, False], ids=["tools", "none"])
async def test_the_transport_sends_once_more(server: Forgetful, package: Any, tools: bool) -> None:
    server.answers = [says("Well.")]
    async with package.AsyncClient(transport=ToolTransport(), base_url=server.url) as client:
        for number in range(3):
            reply = await client.post("/v1/chat/completions", json=asked(number, tools=tools))
            assert reply.json()["choices"][0]["message"]["content"] == "Well."
    assert numbers(server) == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2)]


@both_packages
def test_the_synchronous_transport_sends_once_more(server: Forgetful, package: Any) -> None:
    server.answers = [says("Well.")]
    with package.Client(transport=SyncToolTransport(), base_url=server.url) as client:
        for number in range(3):
            reply = client.post("/v1/chat/completions", json=asked(number, tools=False))
            assert reply.json()["choices"][0]["message"]["content"] == "Well."
    assert numbers(server) == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2)]


async def test_the_trace_extension_receives_each_step_of_each_try(server: Forgetful) -> None:
    steps: list[str] = []

    async def trace(step: str, info: Any) -> None:
        steps.append(step)

    server.answers = [says("Well.")]
    async with httpx.AsyncClient(transport=ToolTransport(), base_url=server.url) as client:
        for number in range(2):
            body = asked(number, tools=False)
            await client.post("/v1/chat/completions", json=body, extensions={"trace": trace})
    assert steps.count("http11.send_request_headers.started") == 3
    assert steps.count("connection.connect_tcp.complete") == 2
    assert steps.count("http11.receive_response_body.complete") == 2


async def test_turns_of_an_agent_are_sent_once_more(server: Forgetful) -> None:
    def ping() -> str:
        """Pings."""
        return "pong"

    server.answers = [says(PING), says(PING), says("It answers.")]
    assert (await Agent(server.url, [ping], chat_template="none").ask("Ping.")) == "It answers."
    assert [number for number, _ in server.requests] == [1, 1, 2, 2, 3]


async def test_requests_of_the_probe_are_sent_once_more(server: Forgetful) -> None:
    server.answers = [says("Well.")]
    findings = await probe(UpstreamSettings("up", server.url, protocol="chat"), "m")
    words = [findings.stream.word, findings.tools.word, findings.system.word, findings.stop.word]
    assert "failed" not in [*words, *(taught.word for taught in findings.formats)]
    assert len(server.requests) == 2 * findings.requests - 1
