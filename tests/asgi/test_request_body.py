"""Reading the body of a request: one that has arrived is taken without waiting."""

import asyncio
from typing import Any

import pytest

from streamtool.asgi.request_body import read_body
from streamtool.cli.servers.uvicorn import _Response
from streamtool.core.errors import TooLargeError
from streamtool.settings import LimitSettings

SCOPE: Any = {"type": "http", "headers": []}


class Flow:
    def __init__(self) -> None:
        self.resumed = 0

    def resume_reading(self) -> None:
        self.resumed += 1


class Received(_Response):
    """The part of a request that a server has received."""

    def __init__(self, body: bytes, *, more_body: bool = False) -> None:
        self.body, self.more_body = bytearray(body), more_body
        self.disconnected = self.response_complete = self.waiting_for_100_continue = False
        self.flow = Flow()  # type: ignore[assignment]
        self.message_event = asyncio.Event()
        self.message_event.set()


def read(received: Received, **limits: Any) -> bytes:
    return asyncio.run(read_body(SCOPE, received.receive, LimitSettings(**limits)))


def test_a_body_that_has_arrived_is_taken_and_receive_then_waits_for_the_disconnect():
    received = Received(b'{"model": "m"}')
    assert read(received) == b'{"model": "m"}'
    assert (received.body, received.message_event.is_set(), received.flow.resumed) == (b"", False, 1)


def test_a_body_that_has_arrived_but_is_too_large_is_rejected():
    with pytest.raises(TooLargeError) as raised:
        read(Received(b"x" * 11), body=10)
    assert raised.value.headers == ((b"connection", b"close"),)
    assert read(Received(b"x" * 10), body=10) == b"x" * 10


def test_a_body_of_which_more_is_expected_is_not_taken():
    assert Received(b"{", more_body=True).take_body() is None


def test_a_body_is_not_taken_from_a_client_that_has_disconnected_or_that_waits_for_permission_to_send_it():
    for name in ("disconnected", "response_complete", "waiting_for_100_continue"):
        received = Received(b"{}")
        setattr(received, name, True)
        assert received.take_body() is None, name
        assert received.body == b"{}"
