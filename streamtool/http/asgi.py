"""A whole request to an ASGI app, answered by a whole response: for what is asked beside an exchange."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import anyio
from attrs import field, frozen

from streamtool.errors import UpstreamError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ATTENDED = "streamtool.attended"
"""Key of a scope that says: whoever calls the app cancels it when the client leaves, so nobody else need look."""
LARGEST = 8 * 1024 * 1024
"""Bytes of a response that are taken."""
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
"""The scope of a request that no client has made."""


@frozen
class AppResponse:
    """What the app answered."""

    status: int
    body: bytes = field(repr=False)


async def nobody_leaves() -> Any:
    """The `receive` of a request that no client has made: nothing comes."""
    await anyio.sleep_forever()


async def cancel_when_left(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel the scope when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


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
    """The app's whole answer to one request; `scope` is that of the client's request, whose `receive` tells of its end.

    `on_piece` is called with each piece of the body as it comes.
    Raises UpstreamError when the app does not answer, or with more than `LARGEST` bytes.
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

    async def take() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    async def put(message: Message) -> None:
        nonlocal status, size, whole
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            piece = message.get("body", b"")
            size += len(piece)
            if size > LARGEST:
                raise UpstreamError(f"the upstream answered {method} {path} with more than {LARGEST} bytes")
            pieces.append(piece)
            if on_piece is not None:
                on_piece(piece)
            whole = not message.get("more_body", False)

    await app(inner, take, put)
    if not whole:
        raise UpstreamError(f"the upstream did not answer {method} {path}")
    return AppResponse(status, b"".join(pieces))


def target(scope: Scope) -> str:
    """What was asked for: the path below the root path, with its query."""
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{route_path(scope)}?{query}" if query else route_path(scope)


def route_path(scope: Scope) -> str:
    """The path below the root path, whether the server counts the root path into `path` or not."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        return path[len(root) :]
    return path


def with_key_in_header(scope: Scope, name: str) -> Scope:
    """The scope with the key that stands in its query under `name` in the header `x-goog-api-key` instead.

    There it is looked for, and from there it never comes into a log.
    """
    query: bytes = scope.get("query_string", b"")
    begin = f"{name}=".encode()
    if not name or begin not in query:
        return scope
    fields = query.split(b"&")
    keys = [unquote_to_bytes(field[len(begin) :]) for field in fields if field.startswith(begin)]
    rest = b"&".join(field for field in fields if not field.startswith(begin))
    return {**scope, "query_string": rest, "headers": [*scope["headers"], *((b"x-goog-api-key", key) for key in keys)]}


async def json_answer(send: Send, body: bytes, *, status: int = 200, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a JSON body."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
