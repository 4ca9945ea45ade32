"""The endpoints for stored and background responses: `GET`, `DELETE`, `cancel`, and the responses' input items.

Their paths are below the Responses path. A client can find only its own responses, so it cannot read or delete a
response created with another key: the id of another client's response is treated as unknown.
"""

from functools import partial
from typing import Final
from urllib.parse import parse_qsl

import anyio
from attrs import evolve

from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.types import Receive, Scope, Send, route_path, send_json
from streamtool.core.errors import MethodError, RequestError
from streamtool.prompting.transcripts import transcript_key
from streamtool.protocols import responses
from streamtool.protocols.responses.background import UNFINISHED, cancel_key, events_key, failed_response
from streamtool.protocols.responses.stored import StoredResponse
from streamtool.responses_api.background import (
    POLL_SECONDS,
    Background,
    EventReader,
    LogReader,
    StoreReader,
    is_at_work,
    send_events,
    stored_pieces,
)
from streamtool.settings import Settings
from streamtool.store.replies import ClientStoreView, Store, client_store_of

_METHODS = {"": ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}
"""Allowed methods, by the part of the path after the id."""
_CHECKS: Final = 20
"""Maximum number of checks for whether another process has ended a response that was cancelled in this process."""


class StoredResponses:
    """The paths of single responses, below the paths in `settings` that serve Responses."""

    def __init__(self, settings: Settings) -> None:
        self._keepalive = settings.keepalive
        self._others = frozenset(settings.paths)
        self._paths = tuple(path + "/" for path, protocol in settings.paths.items() if protocol == responses.NAME)

    def protocol(self, path: str) -> str | None:
        """Return the protocol if `path` is the path of a stored response, or None if it is not."""
        return None if self._split_path(path) is None else responses.NAME

    def allowed_methods(self, path: str) -> tuple[str, ...]:
        """Return the methods that `path` allows, or () if it is not served."""
        place = self._split_path(path)
        return () if place is None else _METHODS[place[1]]

    async def serve(self, store: Store, made: Background, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client's request. Raises MethodError, NotFoundError, RequestError or StoreError."""
        path, method = route_path(scope), scope["method"]
        place = self._split_path(path)
        if place is None or method not in _METHODS[place[1]]:
            raise MethodError(f"{path} accepts {' and '.join(self.allowed_methods(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        memory, (id, part) = client_store_of(store, scope["headers"]), place
        if part == "cancel":
            await self._cancel(made, memory, id)
        elif method == "GET" and not part and asked.get("stream") == "true":
            await send_events(await _open_reader(made, memory, id, asked), receive, send, self._keepalive)
            return
        await send_json(send, await off_loop(partial(_answer, memory, method, id, part, asked)))

    async def _cancel(self, made: Background, memory: ClientStoreView, id: str) -> None:
        """End a response. It may be created by another process, which notices the cancellation within a few seconds."""
        response = await off_loop(partial(_read_current, memory, id))
        if not response.background:
            raise RequestError("Only a background response can be cancelled; to end this one, close the connection.")
        own = made.find(memory, id)
        if own is not None:
            await own.cancel()
            return
        if response.status in UNFINISHED:
            memory.remember(cancel_key(id), b"1")
        for _ in range(_CHECKS):
            if (await off_loop(partial(_read_current, memory, id))).status not in UNFINISHED:
                break
            await anyio.sleep(POLL_SECONDS / 4)

    def _split_path(self, path: str) -> tuple[str, str] | None:
        """Return the id and the part of the path after it, or None if the path does not match."""
        for before in self._paths:
            if path.startswith(before) and path not in self._others:
                id, _, rest = path.removeprefix(before).partition("/")
                return (id, rest) if id and rest in _METHODS else None
        return None


async def _open_reader(made: Background, memory: ClientStoreView, id: str, asked: dict[str, str]) -> EventReader:
    """Return a reader for the events that the client requested. Raises NotFoundError, RequestError or StoreError."""
    after = asked.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal():
        raise RequestError("`starting_after` must be the sequence number of an event.", param="starting_after")
    response = await off_loop(partial(responses.read_stored, id, memory.demand))
    if not response.background:
        raise RequestError("Only a background response can be streamed again.", param="stream")
    if await off_loop(partial(stored_pieces, memory, id)) is None:
        raise RequestError(
            "The response can be streamed again only if it was created with `stream`: omit `stream`.",
            param="stream",
        )
    count = max(int(after[:18]) + 1, 0)
    own = made.find(memory, id)
    return StoreReader(memory, id, count) if own is None else LogReader(own.log, count)


def _read_current(memory: ClientStoreView, id: str) -> StoredResponse:
    """Return the response in its current state, which is `failed` if the process that was creating the response has
    stopped.
    """
    response = responses.read_stored(id, memory.demand)
    if response.status in UNFINISHED and not is_at_work(memory, id):
        response = responses.read_stored(id, memory.demand)  # it may have just ended
        if response.status in UNFINISHED:
            return evolve(response, head=failed_response(response.head))
    return response


def _answer(memory: ClientStoreView, method: str, id: str, part: str, asked: dict[str, str]) -> bytes:
    response = _read_current(memory, id)
    if part == "input_items":
        return responses.write_input_items(response, asked)
    if method != "DELETE":
        return response.write()
    if response.status in UNFINISHED:
        raise RequestError("The response is still in progress: cancel it first.", code="response_not_complete")
    pieces, _ = stored_pieces(memory, id) or (0, True)
    events = (events_key(id), *(events_key(id, piece) for piece in range(pieces)))
    for name in (*response.keys, *(transcript_key(call) for call in response.calls), *events):
        memory.forget(name)
    return responses.write_deleted(id)
