"""Serves the responses that the store remembers, and those that are made in the background: `GET`, `DELETE`, `cancel`,
the items of their input.

They stand below the path at which Responses are served. A client finds its own ones only, so nobody reads or deletes
what another key's owner was told; somebody else's id is as unknown as one that never was.
"""

from functools import partial
from typing import Final
from urllib.parse import parse_qsl

import anyio
from attrs import evolve

from streamtool.errors import MethodError, RequestError
from streamtool.http.asgi import Receive, Scope, Send, json_answer, route_path
from streamtool.http.background import (
    BEAT,
    Background,
    EventReader,
    LogReader,
    StoreReader,
    is_at_work,
    send_events,
    told,
)
from streamtool.http.off_loop import off_loop
from streamtool.prompting.transcripts import key
from streamtool.protocols import responses
from streamtool.protocols.responses.background import UNFINISHED, cancel_key, events_key, lost
from streamtool.protocols.responses.stored import StoredResponse
from streamtool.settings import Settings
from streamtool.state.replies import Shelf, Store, shelf

_METHODS = {"": ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}
"""By what stands behind the id in the path."""
_LOOKS: Final = 20
"""How often in a quarter of a beat it is looked whether another process has ended what was cancelled here."""


class StoredResponses:
    """The paths below those of `settings` at which Responses are served."""

    __slots__ = ("_keepalive", "_others", "_paths")

    def __init__(self, settings: Settings) -> None:
        self._keepalive = settings.keepalive
        self._others = frozenset(settings.paths)
        self._paths = tuple(path + "/" for path, protocol in settings.paths.items() if protocol == responses.NAME)

    def protocol(self, path: str) -> str | None:
        """The protocol of the path if it is that of a response, or of something of it."""
        return None if self._place(path) is None else responses.NAME

    def allowed(self, path: str) -> tuple[str, ...]:
        """The methods that a path takes which is served."""
        place = self._place(path)
        return () if place is None else _METHODS[place[1]]

    async def serve(self, store: Store, made: Background, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client. Raises MethodError, NotFoundError, RequestError, StoreError."""
        path, method = route_path(scope), scope["method"]
        place = self._place(path)
        if place is None or method not in _METHODS[place[1]]:
            raise MethodError(f"{path} takes {' and '.join(self.allowed(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        memory, (id, part) = shelf(store, scope["headers"]), place
        if part == "cancel":
            await self._cancel(made, memory, id)
        elif method == "GET" and not part and asked.get("stream") == "true":
            await send_events(await _reader(made, memory, id, asked), receive, send, self._keepalive)
            return
        await json_answer(send, await off_loop(partial(_answer, memory, method, id, part, asked)))

    async def _cancel(self, made: Background, memory: Shelf, id: str) -> None:
        """End a response, here or at another process, which hears of it within a moment."""
        response = await off_loop(partial(_current, memory, id))
        if not response.background:
            raise RequestError("Only a response that is made in the background can be cancelled: close the connection.")
        own = made.find(memory, id)
        if own is not None:
            await own.cancel()
            return
        if response.status in UNFINISHED:
            memory.remember(cancel_key(id), b"1")
        for _ in range(_LOOKS):
            if (await off_loop(partial(_current, memory, id))).status not in UNFINISHED:
                break
            await anyio.sleep(BEAT / 4)

    def _place(self, path: str) -> tuple[str, str] | None:
        """The id and what stands behind it."""
        for before in self._paths:
            if path.startswith(before) and path not in self._others:
                id, _, rest = path.removeprefix(before).partition("/")
                return (id, rest) if id and rest in _METHODS else None
        return None


async def _reader(made: Background, memory: Shelf, id: str, asked: dict[str, str]) -> EventReader:
    """Reads the events of a response that the client asks for. Raises NotFoundError, RequestError, StoreError."""
    after = asked.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal():
        raise RequestError("`starting_after` is the sequence number of an event.", param="starting_after")
    response = await off_loop(partial(responses.read_stored, id, memory.demand))
    if not response.background:
        raise RequestError("Only a response that is made in the background can be streamed again.", param="stream")
    if await off_loop(partial(told, memory, id)) is None:
        raise RequestError(
            "The response can be streamed again only if it was created with `stream`: leave `stream` out.",
            param="stream",
        )
    count = max(int(after[:18]) + 1, 0)
    own = made.find(memory, id)
    return StoreReader(memory, id, count) if own is None else LogReader(own.log, count)


def _current(memory: Shelf, id: str) -> StoredResponse:
    """The response as it stands; failed if whoever made it has stopped."""
    response = responses.read_stored(id, memory.demand)
    if response.status in UNFINISHED and not is_at_work(memory, id):
        response = responses.read_stored(id, memory.demand)  # it may just have ended
        if response.status in UNFINISHED:
            return evolve(response, head=lost(response.head))
    return response


def _answer(memory: Shelf, method: str, id: str, part: str, asked: dict[str, str]) -> bytes:
    response = _current(memory, id)
    if part == "input_items":
        return responses.write_input_items(response, asked)
    if method != "DELETE":
        return response.write()
    if response.status in UNFINISHED:
        raise RequestError("The response is still being made: cancel it first.", code="response_not_complete")
    pieces, _ = told(memory, id) or (0, True)
    events = (events_key(id), *(events_key(id, piece) for piece in range(pieces)))
    for name in (*response.keys, *(key(call) for call in response.calls), *events):
        memory.forget(name)
    return responses.write_deleted(id)
