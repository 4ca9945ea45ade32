"""The writes of uvicorn to the connection of a client."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn

from streamtool.asgi.pieces import WriteNow, writer_of
from streamtool.cli.servers.uvicorn import _State, _UvicornConnection
from streamtool.settings import LimitSettings

HEADER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Transport(asyncio.Transport):
    """A transport that collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def write_eof(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


def written(
    respond: Callable[[Send, Transport], Awaitable[None]],
    *headers: str,
    method: str = "POST",
    then: Callable[[_UvicornConnection], object] | None = None,
) -> list[bytes]:
    """Return what is written for one request to an app that responds in this way. `then` is called in the same
    iteration of the event loop as the app.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await respond(send, transport)

    async def run() -> None:
        config = uvicorn.Config(app, log_config=None, access_log=False)
        config.load()
        connection = _UvicornConnection(config, _State(LimitSettings()), {})
        connection.connection_made(transport)
        request = "\r\n".join((f"{method} / HTTP/1.1", "host: x", "content-length: 0", *headers, "", ""))
        connection.data_received(request.encode())
        if then is not None:
            asyncio.get_running_loop().call_soon(then, connection)
        await asyncio.gather(*connection.tasks)
        await asyncio.sleep(0)
        connection.connection_lost(None)

    transport = Transport()
    asyncio.run(run())
    return transport.written


async def whole(send: Send, _: Transport) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


def test_the_header_and_the_first_piece_are_one_write():
    assert written(whole) == [HEADER + b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"]


def test_the_header_does_not_wait_for_a_later_piece():
    async def late(send: Send, transport: Transport) -> None:
        await send(START)
        assert transport.written == []
        await asyncio.sleep(0)
        assert transport.written == [HEADER]
        await send({"type": "http.response.body", "body": b"b"})

    assert written(late) == [HEADER, b"1\r\nb\r\n0\r\n\r\n"]


def test_an_interim_response_is_written_at_once():
    assert written(whole, "expect: 100-continue")[0] == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_the_header_of_an_incomplete_response_is_written_before_the_connection_is_closed():
    async def failing(send: Send, _: Transport) -> None:
        await send(START)

    assert written(failing) == [HEADER]


@pytest.mark.parametrize("then", [_UvicornConnection.shutdown, lambda one: one.data_received(b"\0\r\n\r\n")])
def test_a_header_is_written_before_anything_else_happens_to_the_connection(then: Callable[[Any], object]):
    async def headed(send: Send, _: Transport) -> None:
        await send(START)
        await send({"type": "http.response.body"})

    first, *_ = written(headed, method="HEAD", then=then)
    assert first == HEADER.replace(b"transfer-encoding: chunked\r\n", b"")


def test_nothing_is_written_to_a_connection_that_has_been_closed():
    async def closed(send: Send, transport: Transport) -> None:
        await send(START)
        transport.close()
        await asyncio.sleep(0)

    assert written(closed) == []


def test_a_piece_is_written_at_once_if_the_connection_has_room():
    async def pieces(send: Send, _: Transport) -> None:
        write_now, response = cast(WriteNow, writer_of(send)), cast(Any, send).__self__
        assert not write_now(b"too early")
        await send(START)
        assert write_now(b"a")
        assert not write_now(b"")  # would end the body
        response.flow.pause_writing()
        assert not write_now(b"too much")
        response.flow.resume_writing()
        assert write_now(b"b")
        await send({"type": "http.response.body"})
        assert not write_now(b"too late")

    assert written(pieces) == [HEADER + b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"]


def test_a_piece_is_not_written_to_a_lost_connection():
    async def pieces(send: Send, _: Transport) -> None:
        await send(START)
        await asyncio.sleep(0)
        cast(Any, send).__self__.disconnected = True
        assert not cast(WriteNow, writer_of(send))(b"a")

    assert written(pieces) == [HEADER]


def test_a_piece_of_a_known_length_is_not_written_as_a_chunk():
    async def pieces(send: Send, _: Transport) -> None:
        await send({**START, "headers": [(b"content-length", b"1")]})
        assert not cast(WriteNow, writer_of(send))(b"a")
        await send({"type": "http.response.body", "body": b"a"})

    assert written(pieces)[-1].endswith(b"\r\n\r\na")


def test_a_wrapper_around_send_is_not_bypassed():
    async def pieces(send: Send, _: Transport) -> None:
        async def wrapper(message: dict[str, Any]) -> None:
            await send(message)

        assert writer_of(wrapper) is None
        await whole(wrapper, _)

    assert written(pieces) == written(whole)


def test_reading_goes_on_after_a_large_request_so_that_a_disconnect_is_noticed():
    async def large(send: Send, _: Transport) -> None:
        response = cast(Any, send).__self__
        response.flow.pause_reading()  # as uvicorn does for a large body
        response.on_disconnect(lambda: left.append(None))
        assert not response.flow.read_paused
        response.on_disconnect(None)
        await whole(send, _)

    left: list[None] = []
    assert written(large) == written(whole)
