"""Pieces of a reply pass from the upstream's connection to the client's without coroutines."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from streamtool.asgi.pieces import taker_of
from streamtool.core.errors import UnavailableError, UpstreamError
from streamtool.middleware import ToolMiddleware
from streamtool.settings import UpstreamSettings
from streamtool.testing import DONE, chunk
from streamtool.upstream.app import HttpUpstream

PATH = "/v1/chat/completions"
WORDS = [f"word {n}, " for n in range(20)]
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "Hi"}]
PLAIN = {"model": "m", "stream": True, "messages": MESSAGES}


class Client:
    """A client, and the server's side of its response. Each piece lets the upstream write the next."""

    def __init__(self, **asked: Any) -> None:
        self.sent = Counter[str]()
        """Number of pieces that have arrived, by the way they were sent."""
        self.body = b""
        self.arrived = asyncio.Event()
        self.leave: Callable[[], object] | None = None
        """Called when this client disconnects."""
        self._request = [{"type": "http.request", "body": json.dumps(PLAIN | asked).encode()}]

    async def receive(self) -> Any:
        if self._request:
            return self._request.pop()
        return await asyncio.sleep(60)

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self._add("coroutine", message["body"])

    def write_now(self, piece: bytes) -> bool:
        self._add("call", piece)
        return True

    def on_disconnect(self, call: Callable[[], object] | None) -> None:
        self.leave = call

    def _add(self, way: str, piece: bytes) -> None:
        self.sent[way] += 1
        self.body += piece
        self.arrived.set()


async def reply(client: Client, app: Any = None, *, pause: float = 0.0, left: asyncio.Event | None = None) -> None:
    """Let the client receive a reply of an upstream that writes a word once the one before has arrived, and makes a
    pause before the last. `left` is set when the connection to the upstream is closed before the end.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await asyncio.sleep(0.02)  # so that the first piece arrives alone, as from a model
        for word in WORDS:
            client.arrived.clear()
            writer.write(chunk({"content": word}))
            await client.arrived.wait()
        await asyncio.sleep(pause)
        if left is not None:
            assert await reader.read(2**20) and not await reader.read(1)
            left.set()
        writer.write(chunk(finish="stop") + DONE)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HttpUpstream(UpstreamSettings(name="u", url=url)) as upstream:
            served = ToolMiddleware(upstream if app is None else app(upstream), app_protocol="chat", keepalive=0.1)
            scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b"", "headers": []}
            await asyncio.wait_for(served(scope, client.receive, client.send), 30)


def ending_at(part: bytes) -> Callable[[HttpUpstream], Any]:
    """Return a wrapper for the upstream. The request has to end when a piece that contains `part` has been taken."""

    def wrapped(upstream: HttpUpstream) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            exchange = send.__self__

            class Receiver:
                async def send(self, message: Any) -> None:
                    await send(message)

                def take_piece(self, piece: bytes) -> Any:
                    left = exchange.take_piece(piece)
                    if part in piece:
                        exchange.end(UnavailableError("the server stops"))
                    return left

            await upstream(scope, receive, Receiver().send)

        return app

    return wrapped


def text_of(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


@pytest.mark.parametrize("asked", [{"tools": [PING]}, {}], ids=["tools", "no tools"])
def test_only_the_first_and_the_last_piece_are_sent_by_a_coroutine(asked: dict[str, Any]):
    async def main() -> None:
        client = Client(**asked)
        await reply(client)
        assert text_of(client.body) == "".join(WORDS)
        assert client.sent["call"] >= len(WORDS) - 1
        assert client.sent["coroutine"] <= 3

    asyncio.run(main())


def test_a_piece_that_the_server_cannot_write_at_once_is_sent():
    class Slow(Client):
        def write_now(self, piece: bytes) -> bool:
            return bool(len(self.body) % 2) and super().write_now(piece)

    async def main() -> None:
        client = Slow(tools=[PING])
        await reply(client)
        assert text_of(client.body) == "".join(WORDS)
        assert min(client.sent.values()) > 2

    asyncio.run(main())


@pytest.mark.parametrize("early", [False, True])
def test_the_last_piece_is_sent_though_the_request_has_to_end_at_the_same_time(early: bool):
    async def main() -> None:
        client = Client(tools=[PING])
        await reply(client, ending_at(b"stop") if early else None)
        assert text_of(client.body) == "".join(WORDS)
        assert client.body.endswith(DONE)
        assert b"error" not in client.body

    asyncio.run(main())


def test_a_call_reports_the_disconnect_of_the_client():
    class Leaving(Client):
        async def receive(self) -> Any:
            message = await super().receive()
            assert message is not None  # nothing waits for a second message
            return message

        def _add(self, way: str, piece: bytes) -> None:
            super()._add(way, piece)
            if WORDS[-1].encode() in piece:
                assert self.leave is not None
                asyncio.get_running_loop().call_soon(self.leave)

    async def main() -> None:
        client, left = Leaving(tools=[PING]), asyncio.Event()
        serving = asyncio.create_task(reply(client, left=left))
        await asyncio.wait_for(left.wait(), 30)
        await serving
        assert client.leave is None
        assert text_of(client.body) == "".join(WORDS)
        assert DONE not in client.body

    asyncio.run(main())


def test_a_disconnect_ends_the_write_of_an_error_after_the_app(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamtool.server.client_connection._LAST_WRITE_SECONDS", 0.01)

    class Blocked(Client):
        async def send(self, message: Any) -> None:
            assert self.leave is not None
            asyncio.get_running_loop().call_soon(self.leave)
            await asyncio.sleep(60)  # some servers do not notice that the client has left

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise UpstreamError("gone")

    async def main() -> None:
        client = Blocked(tools=[PING])
        await asyncio.wait_for(reply(client, lambda _: app), 30)
        assert client.leave is None

    asyncio.run(main())


class Asking(Client):
    """A client whose server does not report disconnects by a call."""

    on_disconnect = None  # type: ignore[assignment]  # as if it were missing
    waiting = 0
    """Number of calls of `receive` that are waiting."""

    async def receive(self) -> Any:
        if self._request:
            return await super().receive()
        self.waiting += 1
        try:
            return await self.wait()
        finally:
            self.waiting -= 1

    async def wait(self) -> Any:
        return await asyncio.sleep(60)


def test_without_such_a_call_a_task_waits_for_the_client_until_the_reply_ends():
    async def main() -> None:
        client = Asking(tools=[PING])
        await reply(client, pause=0.5)
        assert not client.waiting
        assert text_of(client.body) == "".join(WORDS)
        assert 1 <= client.body.count(b": keep-alive") <= 5

    asyncio.run(main())


def test_an_error_of_the_server_while_a_task_waits_for_the_client_ends_the_reply():
    class Broken(Asking):
        async def wait(self) -> Any:
            while WORDS[-1].encode() not in self.body:  # noqa: ASYNC110  pieces set an event that others clear
                await asyncio.sleep(0.001)
            raise LookupError

    async def main() -> None:
        client, left = Broken(tools=[PING]), asyncio.Event()
        with pytest.raises(LookupError):
            await reply(client, left=left)
        await asyncio.wait_for(left.wait(), 30)
        assert DONE not in client.body

    asyncio.run(main())


def test_a_silence_is_broken_without_a_task_that_waits_for_the_client():
    async def main() -> None:
        client = Client(tools=[PING])
        await reply(client, pause=0.5)
        assert 1 <= client.body.count(b": keep-alive") <= 5
        assert text_of(client.body) == "".join(WORDS)
        assert client.body.endswith(DONE)
        assert client.leave is None

    asyncio.run(main())


@pytest.mark.parametrize("ways", [("call", "coroutine"), ("coroutine", "coroutine")])
def test_a_piece_taken_when_the_request_has_to_end_is_sent_before_the_error(ways: tuple[str, ...]):
    """The request has to end between the moment when a piece is taken and the one when it can be sent."""

    class Slow(Client):
        def write_now(self, piece: bytes) -> bool:
            return WORDS[5].encode() not in piece and ways[0] == "call" and super().write_now(piece)

    async def main() -> None:
        client = Slow(tools=[PING])
        with contextlib.suppress(ConnectionError):
            await reply(client, ending_at(WORDS[5].encode()))
        told, _, error = client.body.partition(b'data: {"error"')
        assert text_of(told) == "".join(WORDS[:6])
        assert b"the server stops" in error

    asyncio.run(main())


def test_a_comment_that_cannot_be_written_does_not_stop_the_reply():
    class Failing(Client):
        async def send(self, message: Any) -> None:
            if b": keep-alive" in message.get("body", b""):
                raise RuntimeError
            await super().send(message)

        def write_now(self, piece: bytes) -> bool:
            return False

    async def main() -> None:
        client = Failing(tools=[PING])
        await reply(client, pause=0.5)
        assert text_of(client.body) == "".join(WORDS)
        assert client.body.endswith(DONE)

    asyncio.run(main())


def test_an_error_after_directly_written_pieces_is_an_event_of_its_own():
    """Of a stream that passes through, a piece may end anywhere."""

    class Slow(Client):
        def write_now(self, piece: bytes) -> bool:
            return not piece.endswith(b"\n\n") and super().write_now(piece)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        take = taker_of(send)
        for piece in (chunk({"content": "a"}), chunk({"content": "b"})[:30]):
            left = take(piece)
            if left is not None:
                await left
        raise UpstreamError("gone")

    async def main() -> None:
        client = Slow()
        scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b"", "headers": []}
        await ToolMiddleware(app, app_protocol="chat")(scope, client.receive, client.send)
        assert client.sent["call"] == 1
        events = client.body.split(b"\n\n")
        assert any(event.startswith(b'data: {"error"') for event in events)

    asyncio.run(main())
