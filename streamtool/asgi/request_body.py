"""Functions that read request bodies, with limits on size and time."""

import anyio

from streamtool.asgi.pieces import body_of
from streamtool.asgi.types import ATTENDED, Receive, Scope
from streamtool.core.errors import RequestError, RequestTimeout, TooLargeError
from streamtool.settings import LimitSettings

_DIGITS = 18
"""Maximum number of digits in a content length that is converted to a number."""
_DROPPED = 2**20
"""Maximum number of bytes of an unused body that are read to keep the connection usable."""
_SOON = 1.0
"""Maximum number of seconds to wait for an unused body."""


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


async def read_body(scope: Scope, receive: Receive, limits: LimitSettings) -> bytes:
    """Return the complete request body. Raises TooLargeError or RequestTimeout, or ClientLeft if the client
    disconnects.

    The body of a request that an exchange makes is already complete, so no time limit applies to it. A rejected body is
    not read any further: the connection is closed after the response.
    """
    arrived = arrived_body(scope, receive, limits)
    if arrived is not None:
        return arrived
    try:
        if ATTENDED in scope:
            return await _read(scope, receive, limits.body)
        with anyio.move_on_after(limits.body_seconds):
            return await _read(scope, receive, limits.body)
        raise RequestTimeout(
            f"the request body did not arrive within {limits.body_seconds:g} seconds (limits.body_seconds)",
            code="request_timeout",
        )
    except RequestError as error:
        _close_after(error, scope)
        raise


def arrived_body(scope: Scope, receive: Receive, limits: LimitSettings) -> bytes | None:
    """Return the complete request body if it has arrived, or None if `read_body` has to wait for it. Raises
    TooLargeError.
    """
    body = body_of(receive)
    if body is not None and len(body) > limits.body:
        error = too_large(limits.body)
        _close_after(error, scope)
        raise error
    return body


def _close_after(error: RequestError, scope: Scope) -> None:
    """Close the connection after the response with this error."""
    if scope.get("http_version", "1.1").startswith("1"):  # HTTP/2 and later do not allow the header
        error.headers = (*error.headers, (b"connection", b"close"))


async def drop_body(scope: Scope, receive: Receive) -> None:
    """Read and discard a body, unless it is long or slow to arrive.

    Some servers silently close a connection if they respond before the request body has arrived, which makes the
    client's next request fail.
    """
    names = {name.lower(): value for name, value in scope["headers"]}
    if b"expect" in names or not (b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"):
        return
    left = _DROPPED
    with anyio.move_on_after(_SOON):
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    length = b""
    for name, value in scope["headers"]:
        if name.lower() == b"content-length":
            length = value
            break
    if length.isdigit() and (len(length) > _DIGITS or int(length) > limit):
        raise too_large(limit)
    pieces = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def too_large(limit: int) -> TooLargeError:
    """Return the error for a body that exceeds the limit."""
    return TooLargeError(f"the request body is larger than {limit} bytes (limits.body)", code="request_too_large")
