"""Serves the conversations that the store keeps: made, read, changed and deleted, and so are their items.

They stand beside the path at which Responses are served (`/v1/conversations`). Like responses they are found by the
client that has made them, and by nobody else.
"""

import time
from functools import partial
from urllib.parse import parse_qsl

from streamtool.errors import MethodError
from streamtool.exchange import decode_body
from streamtool.http.answers import new_id
from streamtool.http.asgi import Scope, Send, json_answer, route_path
from streamtool.http.off_loop import off_loop
from streamtool.protocols import responses, wire
from streamtool.protocols.responses.conversations import StoredConversation
from streamtool.settings import Settings
from streamtool.state.replies import Shelf, Store, shelf

_METHODS = {0: ("POST",), 1: ("GET", "POST", "DELETE"), 2: ("GET", "POST"), 3: ("GET", "DELETE")}
"""By how many names stand behind the path: a conversation, `items`, an item."""


class StoredConversations:
    """The paths beside those of `settings` at which Responses are served."""

    __slots__ = ("_limits", "_paths")

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        served = (path for path, protocol in settings.paths.items() if protocol == responses.NAME)
        self._paths = tuple(path.rpartition("/")[0] + "/conversations" for path in served)

    def protocol(self, path: str) -> str | None:
        """The protocol of the path if it is that of conversations."""
        return None if self._names(path) is None else responses.NAME

    def allowed(self, path: str) -> tuple[str, ...]:
        """The methods that a path takes which is served."""
        names = self._names(path)
        return () if names is None else _METHODS[len(names)]

    async def serve(self, store: Store, scope: Scope, body: bytes, send: Send) -> None:
        """Answer a client. Raises MethodError, NotFoundError, RequestError, StoreError."""
        path, method = route_path(scope), scope["method"]
        names = self._names(path)
        if names is None or method not in self.allowed(path):
            raise MethodError(f"{path} takes {' and '.join(self.allowed(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        memory = shelf(store, scope["headers"])
        given = decode_body(body, scope["headers"], self._limits.body)
        await json_answer(send, await off_loop(partial(self._answer, memory, (method, *names), given, asked)))

    def _answer(self, memory: Shelf, wanted: tuple[str, ...], body: bytes, asked: dict[str, str]) -> bytes:
        """The JSON body for a client that wants this: a method, and what stands behind the path."""
        method, *names = wanted
        limits = self._limits
        if not names:
            id = new_id(responses.CONVERSATION_ID)
            return _kept(memory, responses.new_conversation(id, int(time.time()), body, limits)).write()
        kept = responses.read_conversation(names[0], memory.demand)
        match method, *names[1:]:
            case ("GET",):
                return kept.write()
            case ("POST",):
                return _kept(memory, responses.updated(kept, body, limits)).write()
            case ("DELETE",):
                memory.forget(kept.id)
                return responses.write_conversation_deleted(kept.id)
            case ("GET", _):
                return kept.write_items(asked)
            case ("POST", _):
                known = {item["id"] for item in kept.items}
                kept = _kept(memory, responses.extended(kept, body, limits))
                new = [item for item in kept.items if item["id"] not in known]
                return responses.write_list(new, kept.id, {"limit": "100", "order": "asc"})
            case ("GET", _, item):
                return wire.encode(kept.item(item))
            case (_, _, item):
                return _kept(memory, kept.without(item)).write()
        raise AssertionError("`allowed` has no other method")

    def _names(self, path: str) -> tuple[str, ...] | None:
        """What stands behind the path of conversations: an id, `items`, the id of an item."""
        for base in self._paths:
            if path == base:
                return ()
            if path.startswith(base + "/"):
                names = tuple(path[len(base) + 1 :].split("/"))
                fits = all(names) and len(names) in _METHODS and names[1:2] in ((), ("items",))
                return names if fits else None
        return None


def _kept(memory: Shelf, conversation: StoredConversation) -> StoredConversation:
    memory.remember(conversation.id, conversation.memory())
    return conversation
