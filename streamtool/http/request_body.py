"""Reads the body of a request, within bounds of size and of time."""

import anyio

from streamtool.errors import RequestError, RequestTimeout, TooLargeError
from streamtool.http.asgi import Receive, Scope
from streamtool.settings import LimitSettings

_DIGITS = 18
"""Of a content length that is read as a number."""
_DROPPED = 2**20
"""Bytes of a body that are read in vain, to save its connection."""
_SOON = 1.0
"""Seconds in which they must have come."""


class ClientLeft(Exception):
    """The client left before its request was whole."""


async def read_body(scope: Scope, receive: Receive, limits: LimitSettings) -> bytes:
    """The whole request body. Raises TooLargeError, RequestTimeout; ClientLeft when the client leaves.

    What is still to come of a body that is refused is not read: the connection is closed behind the answer.
    """
    try:
        with anyio.move_on_after(limits.body_seconds):
            return await _read(scope, receive, limits.body)
        raise RequestTimeout(
            f"the request body did not arrive within {limits.body_seconds:g} seconds (limits.body_seconds)",
            code="request_timeout",
        )
    except RequestError as error:
        if scope.get("http_version", "1.1").startswith("1"):  # later ones forbid the header
            error.headers = (*error.headers, (b"connection", b"close"))
        raise


async def drop_body(scope: Scope, receive: Receive) -> None:
    """Read a body that nobody wants, unless it is long or slow.

    Some servers close the connection of a request that is answered before its body has come, and do not say so: the
    client's next request would fail.
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
    length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"")
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
    """The error of a body beyond the limit."""
    return TooLargeError(f"the request body is larger than {limit} bytes (limits.body)", code="request_too_large")
