"""ASGI helpers: types, and calls to an app that collect its complete response, for requests outside an exchange."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

import anyio
from attrs import field, frozen

from streamtool.core.errors import UpstreamError

ASGIMessage = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ATTENDED = "streamtool.attended"
"""Scope key which indicates that the caller cancels the app when the client disconnects, so that the app need not watch
for that.
"""
OUTER_ROOT = "streamtool.root_path"
"""Scope key for the root path that an app expects, if the middleware has extended it."""
MAX_RESPONSE = 8 * 1024 * 1024
"""Maximum size of a response, in bytes."""
SCOPE: Mapping[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "scheme": "http",
    "root_path": "",
    "headers": [],
    "client": None,
    "server": None,
}
"""The scope of a request that does not originate from a client."""


@frozen
class AppResponse:
    """An app's complete response."""

    status: int
    body: bytes = field(repr=False)


async def never_disconnects() -> Any:
    """Wait forever. This is the `receive` of a request that does not originate from a client."""
    await anyio.sleep_forever()


class ClientWatch:
    """The client of a response that is abandoned if the client disconnects.

    Some servers report a disconnect while they send the last message, before they close the connection. A cancelled
    `send` would then leave the connection open, so disconnects are ignored from the last message on.
    """

    __slots__ = ("_receive", "_send", "_waiting")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._waiting = anyio.CancelScope()

    async def cancel_on_disconnect(self, scope: anyio.CancelScope) -> None:
        """Cancel the scope when the client disconnects before the last message."""
        with self._waiting:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

    async def send(self, message: ASGIMessage) -> None:
        """Send a message to the client. Messages that are not the last one may also be sent directly."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._waiting.cancel()
        await self._send(message)


async def ask(
    app: ASGIApp,
    scope: Mapping[str, Any],
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]],
    receive: Receive,
    on_piece: Callable[[bytes], object] | None = None,
) -> AppResponse:
    """Send one request to the app and return its complete response. `scope` and `receive` belong to the client's
    request.

    `on_piece` is called with each piece of the body as it arrives. Raises UpstreamError if the app does not respond or
    sends more than `MAX_RESPONSE` bytes.
    """
    path, _, query = path.partition("?")
    inner = {**scope, "method": method, "headers": list(headers), "query_string": query.encode()}
    inner["raw_path"] = (scope.get("root_path", "").rstrip("/") + path).encode()
    inner["path"] = unquote(inner["raw_path"].decode())
    inner.pop("extensions", None)
    sent = False
    status = 0
    pieces: list[bytes] = []
    size = 0
    whole = False

    async def take() -> ASGIMessage:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    async def put(message: ASGIMessage) -> None:
        nonlocal status, size, whole
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            piece = message.get("body", b"")
            size += len(piece)
            if size > MAX_RESPONSE:
                raise UpstreamError(f"the upstream's response to {method} {path} exceeds {MAX_RESPONSE} bytes")
            pieces.append(piece)
            if on_piece is not None:
                on_piece(piece)
            whole = not message.get("more_body", False)

    await app(inner, take, put)
    if not whole:
        raise UpstreamError(f"the upstream did not respond to {method} {path}")
    return AppResponse(status, b"".join(pieces))


def target(scope: Scope) -> str:
    """Return the requested path relative to the root path, including the query."""
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{route_path(scope)}?{query}" if query else route_path(scope)


def route_path(scope: Scope) -> str:
    """Return the path relative to the root path, whether or not the server includes the root path in `path`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        return path[len(root) :]
    return path


def encoded_path(scope: Scope) -> str:
    """Return the path relative to the root path, percent-encoded as the client sent it."""
    raw = scope.get("raw_path") or b""
    root = scope.get("root_path", "").rstrip("/")
    encoded = raw.decode("latin-1").partition("?")[0]
    if not encoded or unquote(encoded) != scope["path"]:  # the path has been rewritten
        return quote(route_path(scope))
    return encoded[len(root) :] if root and encoded.startswith(root + "/") else encoded


def below(scope: Scope, prefix: str) -> Scope:
    """Return the scope with the path, relative to the root path, below `prefix`."""
    root = scope.get("root_path", "").rstrip("/")
    raw = (root + prefix + encoded_path(scope)).encode("latin-1")
    return {**scope, "path": root + prefix + route_path(scope), "raw_path": raw}


def with_root(scope: Scope, prefix: str) -> Scope:
    """Return the scope with `prefix`, the beginning of the path, as a part of the root path."""
    root = scope.get("root_path", "").rstrip("/")
    raw = (root + encoded_path(scope)).encode("latin-1")
    path = root + route_path(scope)
    return {**scope, "path": path, "raw_path": raw, "root_path": root + prefix, OUTER_ROOT: scope.get("root_path", "")}


def with_key_in_header(scope: Scope, name: str) -> Scope:
    """Return the scope with the key moved from the query parameter `name` to the `x-goog-api-key` header.

    Keys are read from headers only, and this header is never logged.
    """
    query: bytes = scope.get("query_string", b"")
    begin = f"{name}=".encode()
    if not name or begin not in query:
        return scope
    fields = query.split(b"&")
    keys = [unquote_to_bytes(field[len(begin) :]) for field in fields if field.startswith(begin)]
    rest = b"&".join(field for field in fields if not field.startswith(begin))
    return {**scope, "query_string": rest, "headers": [*scope["headers"], *((b"x-goog-api-key", key) for key in keys)]}


async def send_json(send: Send, body: bytes, *, status: int = 200, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a JSON response."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
