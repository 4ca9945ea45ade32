"""The endpoints for stored and background responses: `GET`, `DELETE`, `cancel`, and the responses' input items.

Their paths are below the Responses path. A client can find only its own responses, so it cannot read or delete a
response created with another key: the id of another client's response is treated as unknown.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
from anyio.abc import TaskGroup
from attrs import evolve

from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.types import Receive, Scope, Send, route_path, send_json
from streamtool.core.errors import MethodError, RequestError
from streamtool.prompting.transcripts import transcript_key
from streamtool.protocols import responses
from streamtool.protocols.responses.background import (
    UNFINISHED,
    cancel_key,
    events_key,
    failed_response,
    journal_key,
)
from streamtool.protocols.responses.stored import StoredResponse
from streamtool.responses_api.background import (
    POLL_SECONDS,
    Background,
    EventReader,
    LogReader,
    StoreReader,
    send_events,
)
from streamtool.responses_api.journal import HOSTED, forget_journal, read_lease, stored_pieces
from streamtool.settings import Settings
from streamtool.store.replies import ClientStoreView, Store, client_store_of

_METHODS = {"": ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}
"""Allowed methods, by the part of the path after the id."""
_CHECKS: Final = 20
"""Maximum number of checks for whether another process has ended a response that was cancelled in this process."""

TakeOver = Callable[[ClientStoreView, str], Awaitable[Callable[[], Coroutine[Any, Any, None]] | None]]
"""A function that claims a response whose process has stopped, and returns a function that continues it; or returns
None if the response cannot be continued, or another process has claimed it.
"""


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

    async def serve(
        self, store: Store, made: Background, scope: Scope, receive: Receive, send: Send, *, take_over: TakeOver
    ) -> None:
        """Answer a client's request. Raises MethodError, NotFoundError, RequestError or StoreError.

        If the client asks for a response whose process has stopped, this call continues the response.
        """
        path, method = route_path(scope), scope["method"]
        place = self._split_path(path)
        if place is None or method not in _METHODS[place[1]]:
            raise MethodError(f"{path} accepts {' and '.join(self.allowed_methods(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        memory, (id, part) = client_store_of(store, scope["headers"]), place
        if part == "cancel":
            await self._cancel(made, memory, id)
        elif method == "GET" and not part:
            tasks = anyio.create_task_group()
            take = partial(_take_over, tasks, take_over, memory, id)
            if asked.get("stream") == "true":
                reader = await _open_reader(made, memory, id, asked, take)
                async with tasks:
                    await send_events(reader, receive, send, self._keepalive)
                return
            response, stopped = await off_loop(partial(_read, memory, id))
            if stopped:
                async with tasks:
                    await take()
                    response, _ = await off_loop(partial(_read, memory, id))
                    await send_json(send, response.write())
                return
            await send_json(send, response.write())
            return
        await send_json(send, await off_loop(partial(_answer, memory, method, id, part, asked)))

    async def _cancel(self, made: Background, memory: ClientStoreView, id: str) -> None:
        """End a response. It may be created by another process, which notices the cancellation within a few seconds."""
        response, stopped = await off_loop(partial(_read, memory, id))
        if not response.background:
            raise RequestError("Only a background response can be cancelled; to end this one, close the connection.")
        own = made.find(memory, id)
        if own is not None:
            await own.cancel()
            return
        if stopped:  # from now on, no process continues it
            await off_loop(partial(forget_journal, memory, id))
        if response.status in UNFINISHED:
            memory.remember(cancel_key(id), b"1")
        for _ in range(_CHECKS):
            if (await off_loop(partial(_read, memory, id)))[0].status not in UNFINISHED:
                break
            await anyio.sleep(POLL_SECONDS / 4)

    def _split_path(self, path: str) -> tuple[str, str] | None:
        """Return the id and the part of the path after it, or None if the path does not match."""
        for before in self._paths:
            if path.startswith(before) and path not in self._others:
                id, _, rest = path.removeprefix(before).partition("/")
                return (id, rest) if id and rest in _METHODS else None
        return None


async def _take_over(tasks: TaskGroup, take_over: TakeOver, memory: ClientStoreView, id: str) -> bool:
    """Continue a response whose process has stopped, as one of the tasks. Return whether this process or another one
    continues it.
    """
    with anyio.CancelScope(shield=True):  # a claim is made only once: a timer of the reader must not end it
        run = await take_over(memory, id)
    if run is not None:
        tasks.start_soon(run)
        return True
    for _ in range(_CHECKS):
        if await off_loop(partial(memory.demand, journal_key(id))) is None:
            return False
        if not (await off_loop(partial(_read, memory, id)))[1]:
            return True
        await anyio.sleep(POLL_SECONDS / 4)
    return False


async def _open_reader(
    made: Background,
    memory: ClientStoreView,
    id: str,
    asked: dict[str, str],
    take_over: Callable[[], Awaitable[bool]],
) -> EventReader:
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
    return StoreReader(memory, id, count, take_over) if own is None else LogReader(own.log, count)


def _read(memory: ClientStoreView, id: str) -> tuple[StoredResponse, bool]:
    """Return the response in its current state, and whether the process that was creating it has stopped. Its status is
    then `failed`.
    """
    response = responses.read_stored(id, memory.demand)
    if response.status in UNFINISHED and (lease := read_lease(memory, id)).until <= time.time():
        response = responses.read_stored(id, memory.demand)  # it may have just ended
        if response.status in UNFINISHED:
            return evolve(response, head=failed_response(response.head, hosted=lease.generation == HOSTED)), True
    return response, False


def _answer(memory: ClientStoreView, method: str, id: str, part: str, asked: dict[str, str]) -> bytes:
    response, _ = _read(memory, id)
    if part == "input_items":
        return responses.write_input_items(response, asked)
    if method != "DELETE":
        return response.write()
    if response.status in UNFINISHED:
        raise RequestError("The response is still in progress: cancel it first.", code="response_not_complete")
    pieces, _ = stored_pieces(memory, id) or (0, True)
    forget_journal(memory, id)
    events = (events_key(id), *(events_key(id, piece) for piece in range(pieces)))
    for name in (*response.keys, *(transcript_key(call) for call in response.calls), *events):
        memory.forget(name)
    return responses.write_deleted(id)
