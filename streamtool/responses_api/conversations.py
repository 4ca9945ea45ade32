"""The endpoints for stored conversations: create, read, update and delete, for conversations and for their items.

Their path (`/v1/conversations`) is a sibling of the Responses path. Like responses, conversations can be accessed only
by the client that created them.
"""

import time
from functools import partial
from urllib.parse import parse_qsl

from streamtool.asgi.answers import new_id
from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.types import Scope, Send, route_path, send_json
from streamtool.core.errors import MethodError
from streamtool.exchange.encoding import decode_body
from streamtool.protocols import responses
from streamtool.protocols.responses.conversations import StoredConversation
from streamtool.protocols.shared import wire
from streamtool.settings import Settings
from streamtool.store.replies import ClientStoreView, Store, client_store_of

_METHODS = {0: ("POST",), 1: ("GET", "POST", "DELETE"), 2: ("GET", "POST"), 3: ("GET", "DELETE")}
"""Allowed methods, by the number of path segments after the base path: none, an id, `items`, an item's id."""


class StoredConversations:
    """The conversation paths, derived from the paths in `settings` that serve Responses."""

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        served = (path for path, protocol in settings.paths.items() if protocol == responses.NAME)
        self._paths = tuple(path.rpartition("/")[0] + "/conversations" for path in served)

    def protocol(self, path: str) -> str | None:
        """Return the protocol if `path` is a conversation path, or None if it is not."""
        return None if self._segments(path) is None else responses.NAME

    def allowed_methods(self, path: str) -> tuple[str, ...]:
        """Return the methods that `path` allows, or () if it is not served."""
        names = self._segments(path)
        return () if names is None else _METHODS[len(names)]

    async def serve(self, store: Store, scope: Scope, body: bytes, send: Send) -> None:
        """Answer a client's request. Raises MethodError, NotFoundError, RequestError or StoreError."""
        path, method = route_path(scope), scope["method"]
        names = self._segments(path)
        if names is None or method not in self.allowed_methods(path):
            raise MethodError(f"{path} accepts {' and '.join(self.allowed_methods(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        memory = client_store_of(store, scope["headers"])
        given = decode_body(body, scope["headers"], self._limits.body)
        await send_json(send, await off_loop(partial(self._answer, memory, (method, *names), given, asked)))

    def _answer(self, memory: ClientStoreView, request: tuple[str, ...], body: bytes, asked: dict[str, str]) -> bytes:
        """Return the response body, as JSON. `request` is the method, followed by the path segments after the base
        path.
        """
        method, *names = request
        limits = self._limits
        if not names:
            id = new_id(responses.CONVERSATION_ID)
            return _store(memory, responses.new_conversation(id, int(time.time()), body, limits)).write()
        kept = responses.read_conversation(names[0], memory.demand)
        match method, *names[1:]:
            case ("GET",):
                return kept.write()
            case ("POST",):
                return _store(memory, responses.update_conversation(kept, body, limits)).write()
            case ("DELETE",):
                memory.forget(kept.id)
                return responses.write_conversation_deleted(kept.id)
            case ("GET", _):
                return kept.write_items(asked)
            case ("POST", _):
                known = {item["id"] for item in kept.items}
                kept = _store(memory, responses.extend_conversation(kept, body, limits))
                new = [item for item in kept.items if item["id"] not in known]
                return responses.write_list(new, kept.id, {"limit": "100", "order": "asc"})
            case ("GET", _, item):
                return wire.encode(kept.item(item))
            case (_, _, item):
                return _store(memory, kept.without(item)).write()
        raise AssertionError("`allowed_methods` has no other method")

    def _segments(self, path: str) -> tuple[str, ...] | None:
        """Return the path segments after the base path (an id, `items`, an item's id), or None if the path does not
        match.
        """
        for base in self._paths:
            if path == base:
                return ()
            if path.startswith(base + "/"):
                names = tuple(path[len(base) + 1 :].split("/"))
                fits = all(names) and len(names) in _METHODS and names[1:2] in ((), ("items",))
                return names if fits else None
        return None


def _store(memory: ClientStoreView, conversation: StoredConversation) -> StoredConversation:
    memory.remember(conversation.id, conversation.encode())
    return conversation
