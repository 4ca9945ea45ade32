"""Limits on connections and on how long each may take to send its request.

This module enforces, for both servers, the limits that can only be checked at the socket: the number of connections in
total and per address, the size of a request header, the time within which it must arrive, and the time that a
connection may be idle. `streamtool.http` limits bodies and open requests. Connections do not have individual timers; a
periodic check of all connections finds the ones that have timed out.
"""

import json
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from time import monotonic
from typing import Final, Protocol

from streamtool.core.errors import HeaderTooLargeError, RequestError, RequestTimeout, StreamtoolError, UnavailableError
from streamtool.settings import LimitSettings

LINGER: Final = 2.0
"""Seconds that a client has to read an error before its connection is closed."""
_SLACK: Final = 5.0
"""Seconds between the timeout of a late body and the closing of its connection, for sending an error."""
PING: Final = 20.0
"""Seconds between two websocket pings, which is also the time limit for the client's response to each. Some
intermediaries close connections that are idle for longer.
"""
_PERIOD: Final = 1.0
"""Maximum seconds between two checks for timeouts."""


class Phase(Enum):
    """State of a connection, named after what its client is expected to do next."""

    HEADER = "header"
    """Send a complete header."""
    BODY = "body"
    """Send the remainder of a body."""
    QUIET = "quiet"
    """Nothing: its request is being served."""
    IDLE = "idle"
    """Send another request."""
    WEBSOCKET = "websocket"
    """Show that the client is alive."""
    CLOSING = "closing"
    """Read the last response."""


class TimedConnection(Protocol):
    """A connection to either server, with a timeout for its current phase."""

    phase: Phase
    since: float
    """Time when the phase started, from the `monotonic` clock."""

    def expire(self) -> None:
        """Handle a timeout of the current phase."""


class Connections:
    """Counts the open connections, and expires those that exceed the timeout of their phase."""

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
        """Seconds between two checks for timeouts."""

    def enter(self, address: str) -> None:
        """Count a connection from this address. Raises UnavailableError if there are too many connections."""
        limits = self._limits
        if limits.connections and self._count >= limits.connections:
            raise UnavailableError(
                f"the server has reached its limit of {limits.connections} connections (limits.connections); "
                "try again later",
                code="overloaded",
            )
        bound = limits.connections_per_address
        if bound and self._addresses[address] >= bound:
            raise UnavailableError(
                f"your address has reached its limit of {bound} connections (limits.connections_per_address); "
                "try again later",
                code="overloaded",
            )
        self._count += 1
        self._addresses[address] += 1

    def leave(self, address: str) -> None:
        """Stop counting a connection that has ended."""
        self._count -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def expire_late(self, connections: Iterable[TimedConnection]) -> None:
        """Expire the connections that have timed out, if a check is due."""
        now = monotonic()
        if now - self._looked < self.period:
            return
        self._looked = now
        for connection in list(connections):
            seconds = self._times.get(connection.phase)
            if seconds is not None and now - connection.since > seconds:
                connection.expire()

    def timeout_error(self) -> RequestTimeout:
        """Return the error for a header that did not arrive in time."""
        return RequestTimeout(
            f"the header did not arrive within {self._limits.header_seconds:g} seconds (limits.header_seconds)",
            code="request_timeout",
        )

    def too_large_error(self) -> HeaderTooLargeError:
        """Return the error for a header that is too large."""
        return HeaderTooLargeError(
            f"the header is larger than {self._limits.header_bytes} bytes (limits.header_bytes)",
            code="header_too_large",
        )


def invalid_request() -> RequestError:
    """Return the error for input that is not a valid request."""
    return RequestError("this is not a valid HTTP/1.1 request", code="invalid_http")


def error_response(error: StreamtoolError) -> bytes:
    """Return a complete error response that announces that the connection will be closed.

    Clients of all protocols can read its body.
    """
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
