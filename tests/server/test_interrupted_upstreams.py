"""Upstreams that die in the middle of a reply, over sockets: another attempt continues it, elsewhere if possible."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from support.continuing import Continuing, Fault, protocol_of
from support.dialects import Ask, read, write
from support.servers import DEADLINE, Served, http_stream, listener, read_request, uvicorn_server, wait_for
from support.validators import assert_valid, validate_chat_stream

from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Recorded

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
ARGUMENTS = {"path": "/src/main.py", "content": "print(3.14159)  # größer\n" * 4}
CALL = f'<tool_call>{{"name": "write_file", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}</tool_call>'
TEXT = "I will write the file now. "
WHOLE = TEXT + CALL
ASK = Ask((("user", "Write the file."),), (("write_file", "Writes a file.", SCHEMA),))
PLACES = (TEXT.index("write") + 3, len(TEXT) + 20, WHOLE.index("14159"), len(WHOLE) - 4)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that makes `close` reset the connection."""


class DyingServer:
    """A server on a loopback port that replies like an upstream of the tests, and closes its connections as the faults
    demand: with RST (`reset`), or with FIN but without the end of the body.
    """

    def __init__(self, upstream: Continuing) -> None:
        self.upstream = upstream
        self._sock = listener()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._run, name="dying server")
        self._thread.start()

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(DEADLINE)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(DEADLINE)
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        request = read_request(connection)
        if request is None:
            return
        head, body = request
        if b"completions" not in head.partition(b"\r\n")[0]:  # a question about the server
            known = head.startswith(b"GET /props ") and self.upstream.kind == "llama.cpp"
            answer = b'{"default_generation_settings": {"n_ctx": 8192}}' if known else b"{}"
            connection.sendall(ANSWER % (len(answer), answer))
            return
        fault = self.upstream.faults[0] if self.upstream.faults else None
        script = self.upstream.reply(Recorded("", {}, body, {}))
        sent = http_stream(b"".join(step for step in script.steps if isinstance(step, bytes)))
        connection.sendall(sent if fault is not None else sent + b"0\r\n\r\n")
        if fault is not None and fault.how == "reset":
            wait_for(lambda: _is_read(connection), "the proxy has read the reply")  # a reset would discard it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def _is_read(connection: socket.socket) -> bool:
    """Return whether the other end of a connection, in this process, has read everything that was sent."""
    ends = [f"{one[1]:04X}" for one in (connection.getpeername(), connection.getsockname())]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [row for row in rows if [end.partition(":")[2] for end in row[1:3]] == ends]
    sent = [row for row in rows if [end.partition(":")[2] for end in row[1:3]] == ends[::-1]]
    return all(row[4].endswith(":00000000") for row in mine) and all(row[4].startswith("00000000:") for row in sent)


def proxy_to(*servers: DyingServer, **given: Any) -> Proxy:
    kind = servers[0].upstream.kind
    names = [f"u{number}" for number in range(len(servers))]
    upstreams: dict[str, Any] = {
        name: {"url": server.url, "protocol": protocol_of(kind)} for name, server in zip(names, servers, strict=True)
    }
    upstreams["u0"] |= {"fallbacks": names[1:], "circuit": {"failures": 1}}
    return Proxy(Settings(upstreams=upstreams, **given))


@pytest.fixture
def open_servers() -> Iterator[list[DyingServer]]:
    servers: list[DyingServer] = []
    yield servers
    for server in servers:
        server.close()


def serving(servers: list[DyingServer], *upstreams: Continuing) -> list[DyingServer]:
    servers += map(DyingServer, upstreams)
    return servers


def ask_chat(server: Served) -> None:
    request = write("chat", ASK)
    response = httpx.post(f"{server.url}/v1/chat/completions", json=request, trust_env=False)
    assert_valid(validate_chat_stream(response.content, request, headers=dict(response.headers)))
    got = read("chat", response.content, stream=True)
    assert (got.error, got.reason) == (None, "calls")
    assert got.parts == (TEXT, ("write_file", json.dumps(ARGUMENTS, ensure_ascii=False)))


def ask_openai(server: Served) -> None:
    with (
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False)
        ) as client,
        client.chat.completions.stream(
            **{key: value for key, value in write("chat", ASK).items() if key != "stream"}
        ) as events,
    ):
        message = events.get_final_completion().choices[0].message
    assert message.content == TEXT
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS


def ask_responses(server: Served) -> None:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False)
    ) as client:
        asked = {key: value for key, value in write("responses", ASK).items() if key != "stream"}
        with client.responses.stream(**asked) as events:
            reply = events.get_final_response()
    assert reply.status == "completed"
    assert reply.output_text == TEXT
    assert json.loads(reply.output[-1].arguments) == ARGUMENTS


def ask_anthropic(server: Served) -> None:
    with anthropic.Anthropic(
        base_url=server.url, api_key="x", max_retries=0, http_client=httpx2.Client(trust_env=False)
    ) as client:
        asked = {key: value for key, value in write("messages", ASK).items() if key != "stream"}
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [block.text for block in message.content if block.type == "text"] == [TEXT]
    assert [block.input for block in message.content if block.type == "tool_use"] == [ARGUMENTS]


@pytest.mark.parametrize("how", ["reset", "fin"])
@pytest.mark.parametrize("ask", [ask_chat, ask_openai, ask_responses, ask_anthropic])
def test_a_reply_survives_the_death_of_its_connection(open_servers, ask, how):
    upstream = Continuing("completions", WHOLE)
    with uvicorn_server(proxy_to(*serving(open_servers, upstream))) as server:
        for at in PLACES:
            upstream.faults.append(Fault(at, how))
            ask(server)
    assert len(upstream.beginnings) == 2 * len(PLACES)


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("kind", ["completions", "llama.cpp"])
@pytest.mark.parametrize("how", ["reset", "fin", "error"])
def test_another_upstream_continues_the_reply(open_servers, kind, how):
    dying = Continuing(kind, WHOLE, *(Fault(at, how) for at in PLACES))
    healthy = Continuing(kind, WHOLE)
    with uvicorn_server(proxy_to(*serving(open_servers, dying, healthy))) as server:
        ask_chat(server)
        assert (len(dying.beginnings), len(healthy.beginnings)) == (1, 1)
        assert WHOLE.startswith(healthy.beginnings[0])
        ask_chat(server)  # the circuit of the first one is open
        assert (len(dying.beginnings), len(healthy.beginnings)) == (1, 2)
