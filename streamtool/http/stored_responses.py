"""Serves the responses that the store remembers: `GET`, `DELETE`, the items of their input, and what `cancel` says.

They stand below the path at which Responses are served. A client finds its own ones only, so nobody reads or deletes
what another key's owner was told; somebody else's id is as unknown as one that never was.
"""

from functools import partial
from urllib.parse import parse_qsl

from streamtool.errors import MethodError, RequestError
from streamtool.http.asgi import Scope, route_path
from streamtool.http.off_loop import off_loop
from streamtool.prompting.transcripts import key
from streamtool.protocols import responses
from streamtool.settings import Settings
from streamtool.state.replies import Shelf, Store, shelf

_METHODS = {"": ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}
"""By what stands behind the id in the path."""


class StoredResponses:
    """The paths below those of `settings` at which Responses are served."""

    __slots__ = ("_paths",)

    def __init__(self, settings: Settings) -> None:
        self._paths = tuple(path + "/" for path, protocol in settings.paths.items() if protocol == responses.NAME)

    def protocol(self, path: str) -> str | None:
        """The protocol of the path if it is that of a response, or of something of it."""
        return None if self._place(path) is None else responses.NAME

    def allowed(self, path: str) -> tuple[str, ...]:
        """The methods that a path takes which is served."""
        place = self._place(path)
        return () if place is None else _METHODS[place[1]]

    async def answer(self, store: Store, scope: Scope) -> bytes:
        """The JSON body for a client. Raises MethodError, NotFoundError, RequestError, StoreError."""
        path, method = route_path(scope), scope["method"]
        place = self._place(path)
        if place is None or method not in _METHODS[place[1]]:
            raise MethodError(f"{path} takes {' and '.join(self.allowed(path))}, not {method}")
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        answer = partial(_answer, shelf(store, scope["headers"]), method, *place, asked)
        return await off_loop(answer)

    def _place(self, path: str) -> tuple[str, str] | None:
        """The id and what stands behind it."""
        for before in self._paths:
            if path.startswith(before):
                id, _, rest = path.removeprefix(before).partition("/")
                return (id, rest) if id and rest in _METHODS else None
        return None


def _answer(memory: Shelf, method: str, id: str, part: str, asked: dict[str, str]) -> bytes:
    response = responses.read_stored(id, memory.demand)
    if part == "input_items":
        return responses.write_input_items(response, asked)
    if part == "cancel":
        raise RequestError("Only a response that is made in the background can be cancelled: close the connection.")
    if method == "DELETE":
        for name in (*response.keys, *(key(call) for call in response.calls)):
            memory.forget(name)
        return responses.write_deleted(id)
    if asked.get("stream") == "true":
        raise RequestError("Only a response that is made in the background can be streamed again.", param="stream")
    return response.write()
