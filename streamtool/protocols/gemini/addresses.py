"""Reads the path of a request: it names the model, and says what is asked of it and how the reply is streamed.

`…/models/{model}:streamGenerateContent?alt=sse` gives an event stream, without `alt=sse` a JSON array whose elements
come one by one; `…:generateContent` gives a whole reply. The names that depend on it are bound here (`at`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from attrs import frozen

from streamtool.protocols.gemini.request import read_count, read_request, read_unread
from streamtool.protocols.gemini.upstream import request_path
from streamtool.protocols.gemini.writer import ArrayWriter
from streamtool.protocols.stream import COMPLETE_HEADERS
from streamtool.settings import ModelSettings

_ARRAY: Final[Mapping[str, Any]] = {
    "ReplyWriter": ArrayWriter,
    "STREAM_HEADERS": (*COMPLETE_HEADERS, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")),
    "BREAK": b"",
}
"""What is different where the reply is an array; a blank line may stand between its elements, too."""


@frozen
class _Address:
    """Where a client sent its request: `{before}/models/{model}:{verb}?{query}`."""

    before: str
    model: str
    verb: str
    query: str

    @property
    def streams(self) -> bool:
        """The reply is to come in pieces."""
        return self.verb == "streamGenerateContent"

    @property
    def array(self) -> bool:
        """As elements of an array."""
        return self.streams and "alt=sse" not in self.query.split("&")

    def path(self, model: ModelSettings, *, stream: bool) -> str:
        """Where the request goes: where the client sent it, if the reply is to come as the client asked for it."""
        if stream is not self.streams:
            return request_path(model, stream=stream)
        written = f"{self.before}/models/{quote(model.name, safe='')}:{self.verb}"
        return f"{written}?{self.query}" if self.query else written


def at(target: str) -> Mapping[str, Any]:
    """The names of this package that mean something else at the path that a client asked for."""
    path, _, query = target.partition("?")
    before, _, rest = path.partition("/models/")
    model, _, verb = rest.rpartition(":")
    address = _Address(before, model, verb, query)
    return {
        "read_request": partial(read_request, model=model, stream=address.streams),
        "read_unread": partial(read_unread, model=model, stream=address.streams),
        "read_count": partial(read_count, model=model),
        "request_path": address.path,
        **(_ARRAY if address.array else {}),
    }
