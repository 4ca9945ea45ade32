"""Who is connected, and for how long a connection may take to say what it wants.

What only the socket shows is bounded here, for both servers: connections in all and for each address, the bytes of a
request's header and the time in which it has to arrive, a connection on which nothing happens. What ASGI shows (bodies,
open requests) is bounded behind it, by `streamtool.http`. No connection has a timer: one look at all of them, every now
and then, finds those that are late.
"""

import json
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from time import monotonic
from typing import Final, Protocol

from streamtool.errors import HeaderTooLargeError, RequestError, RequestTimeout, StreamtoolError, UnavailableError
from streamtool.settings import LimitSettings

LINGER: Final = 2.0
"""Seconds in which a client can take an answer before its connection is cut."""
_SLACK: Final = 5.0
"""Seconds that a late body is given beyond its time, in which the client is told."""
PING: Final = 20.0
"""Seconds between two pings of a websocket, and for its client to answer one. Proxies close what is idle for longer."""
_PERIOD: Final = 1.0
"""Seconds between two looks, unless some time is shorter."""


class Phase(Enum):
    """What a connection is waited for to do."""

    HEADER = "header"
    """To send a whole header."""
    BODY = "body"
    """To send the rest of a body."""
    QUIET = "quiet"
    """Nothing: its request is served."""
    IDLE = "idle"
    """To send another request."""
    WEBSOCKET = "websocket"
    """To show that somebody is there."""
    CLOSING = "closing"
    """To take the last answer."""


class TimedConnection(Protocol):
    """A connection of either server."""

    phase: Phase
    since: float
    """The phase began, by `monotonic`."""

    def expire(self) -> None:
        """The phase has lasted too long."""


class Connections:
    """How many there are, and how long each phase may last."""

    __slots__ = ("_addresses", "_count", "_limits", "_looked", "_times", "period")

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._count = 0
        self._addresses = Counter[str]()
        self._times = {
            Phase.HEADER: limits.header_seconds,
            Phase.BODY: limits.body_seconds + _SLACK,
            Phase.IDLE: limits.keep_alive_seconds,
            Phase.WEBSOCKET: PING,
            Phase.CLOSING: LINGER,
        }
        self._looked = 0.0
        self.period = min(_PERIOD, *(seconds / 4 for seconds in self._times.values()))
        """Seconds between two looks."""

    def enter(self, address: str) -> None:
        """Count a connection from this address. Raises UnavailableError when there are too many."""
        limits = self._limits
        if limits.connections and self._count >= limits.connections:
            raise UnavailableError(
                f"the server has {limits.connections} connections (limits.connections); try again later",
                code="overloaded",
            )
        bound = limits.connections_per_address
        if bound and self._addresses[address] >= bound:
            raise UnavailableError(
                f"{bound} connections come from your address (limits.connections_per_address); try again later",
                code="overloaded",
            )
        self._count += 1
        self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """One that had entered is over."""
        self._count -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def look(self, connections: Iterable[TimedConnection]) -> None:
        """End those that are late, if it is time for a look."""
        now = monotonic()
        if now - self._looked < self.period:
            return
        self._looked = now
        for connection in list(connections):
            seconds = self._times.get(connection.phase)
            if seconds is not None and now - connection.since > seconds:
                connection.expire()

    def late(self) -> RequestTimeout:
        """The error of a header that does not end."""
        return RequestTimeout(
            f"the header did not arrive within {self._limits.header_seconds:g} seconds (limits.header_seconds)",
            code="request_timeout",
        )

    def too_large(self) -> HeaderTooLargeError:
        """The error of a header beyond the limit."""
        return HeaderTooLargeError(
            f"the header is larger than {self._limits.header_bytes} bytes (limits.header_bytes)",
            code="header_too_large",
        )


def not_http() -> RequestError:
    """The error of what cannot be read."""
    return RequestError("this is no valid request of HTTP/1.1", code="invalid_http")


def answer(error: StreamtoolError) -> bytes:
    """A whole response, behind which the connection is closed. Clients of all protocols can read its body."""
    fields = {"type": error.kind, "message": error.message, "param": None, "code": error.code}
    body = json.dumps({"type": "error", "error": fields}, separators=(",", ":")).encode()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode(),
        *(name + b": " + value for name, value in error.headers),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", body])
