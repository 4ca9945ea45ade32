"""Reader for request paths, which specify the model, the method and the kind of stream.

`…/models/{model}:streamGenerateContent?alt=sse` returns an event stream; without `alt=sse` it returns a JSON array that
is sent element by element. `…:generateContent` returns a complete reply. `at` returns the attributes of the package
whose values depend on the path.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from attrs import frozen

from streamtool.protocols.gemini.request import read_count, read_request, read_unread
from streamtool.protocols.gemini.upstream import request_path
from streamtool.protocols.gemini.writer import ArrayWriter
from streamtool.protocols.shared.stream import COMPLETE_HEADERS
from streamtool.settings import ModelSettings

_ARRAY: Final[Mapping[str, Any]] = {
    "ReplyWriter": ArrayWriter,
    "STREAM_HEADERS": (*COMPLETE_HEADERS, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")),
    "BREAK": b"",
}
"""Attributes that differ if the reply is an array. The keep-alive, a blank line, is valid in an array too."""


@frozen
class _Address:
    """Target of a client request: `{before}/models/{model}:{verb}?{query}`."""

    before: str
    model: str
    verb: str
    query: str

    @property
    def streams(self) -> bool:
        """Whether the reply is streamed."""
        return self.verb == "streamGenerateContent"

    @property
    def array(self) -> bool:
        """Whether the stream is an array."""
        return self.streams and "alt=sse" not in self.query.split("&")

    def path(self, model: ModelSettings, *, stream: bool) -> str:
        """Return the path of the upstream request. It is the client's own path if the client's and the upstream's
        replies are both streamed or both complete.
        """
        if stream is not self.streams:
            return request_path(model, stream=stream)
        written = f"{self.before}/models/{quote(model.name, safe='')}:{self.verb}"
        return f"{written}?{self.query}" if self.query else written


def at(target: str) -> Mapping[str, Any]:
    """Return the attributes of this package that have different values for this request target, by name."""
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
