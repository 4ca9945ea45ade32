"""The first half of an exchange: what the client asks, and how each attempt asks the upstream.

    body ─▶ read_request (the client's protocol) ─▶ Conversation ─▶ project ─▶ write_request (the upstream's)

Which protocol the upstream speaks, the settings of the model say. A request without anything to do with tools passes
untouched if that is the client's own protocol, and is translated if it is not.
"""

from collections.abc import Iterable

from attrs import evolve

from streamtool import prompting
from streamtool.conversation import HOSTED, Conversation
from streamtool.errors import RequestError
from streamtool.exchange.encoding import decode_body
from streamtool.exchange.shapes import ClientWire, Headers, Memory, UpstreamRequest, UpstreamWire
from streamtool.exchange.wires import upstream_of
from streamtool.protocols.wire import with_key
from streamtool.settings import ModelSettings, Settings

_DROPPED = frozenset(
    (b"content-length", b"content-encoding", b"transfer-encoding", b"accept-encoding", b"expect", b"content-type")
)
_OF_PROTOCOLS = (b"anthropic-", b"openai-", b"x-stainless-")
"""Beginnings of headers that mean nothing to another protocol."""


class Request:
    """A client's request. Raises RequestError when it cannot be honoured."""

    __slots__ = ("_body", "_headers", "_settings", "conversation", "dropped", "model", "same", "size", "upstream")

    def __init__(
        self,
        settings: Settings,
        client: ClientWire,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        memory: Memory | None,
    ) -> None:
        self._settings = settings
        self._body = body
        self._headers = tuple((name.lower(), value) for name, value in headers)
        self.conversation: Conversation = self._read(client, memory)
        self.model: ModelSettings = settings.for_model(self.conversation.model)
        self.upstream: UpstreamWire = upstream_of(client.NAME, self.model.speaks)
        self.same = self.upstream.NAME == client.NAME
        """Client and upstream speak the same protocol."""
        self.dropped = self.conversation.dropped
        """What could not be honoured, as far as it is known."""
        if not self.same:
            strange = sorted(self.conversation.raw.keys() - client.FIELDS)
            self.dropped += tuple(f"field {name}" for name in strange)
        output = self.conversation.options.output
        if output is not None and output.foreign and not self.passthrough:
            self.dropped += ("form of the answer",)
        self.size = 0
        """Bytes of the last attempt."""
        hosted = [note for note in self.dropped if note.startswith(HOSTED)]
        if hosted and settings.hosted_tools == "refuse":
            raise RequestError(f"a {hosted[0]} can only be run by its own origin: leave it out", param="tools")

    def _read(self, client: ClientWire, memory: Memory | None) -> Conversation:
        """The conversation; one without messages if it cannot be read and need not be, since it may pass as it came."""
        settings = self._settings
        body = decode_body(self._body, self._headers, settings.limits.body)
        try:
            if memory is not None:
                return client.read_request(body, settings.limits, memory.recall)
            return client.read_request(body, settings.limits)
        except RequestError:
            unread = client.read_unread(body, settings.limits)
            if unread is None or upstream_of(client.NAME, settings.for_model(unread.model).speaks).NAME != client.NAME:
                raise
            return unread

    @property
    def plain(self) -> bool:
        """The request has nothing to do with tools."""
        asked = self.conversation
        return not (asked.tools or asked.dropped or asked.has_tool_history)

    @property
    def passthrough(self) -> bool:
        """There is nothing to do: request and reply pass as they are."""
        return self.same and self.plain

    @property
    def mode(self) -> str:
        """How it is served; the word of the log record."""
        if self.plain:
            return "passthrough" if self.same else "translate"
        return self.model.mode

    def untouched(self) -> UpstreamRequest:
        """The request as it came, but for the model's name."""
        if self.model.name == self.conversation.model:
            return UpstreamRequest(None, self._headers, self._body, self._upstream_name, 1)
        body = self.upstream.write_request(self.conversation, self.model, stream=self.conversation.stream)
        return UpstreamRequest(None, self._headers_for(body), body, self._upstream_name, 1)

    def attempt(self, number: int, *, correction: str | None, continued: str | None) -> UpstreamRequest:
        """The request of an attempt, its tools as text. Raises RequestError when the contract does not fit."""
        asked = evolve(self.conversation, stop=())  # only we know which text is visible
        output = asked.options.output
        if output is not None and output.foreign and not self.same:
            asked = evolve(asked, options=evolve(asked.options, output=None))
        projected = prompting.project(asked, self.model, self.model.format, correction=correction, continued=continued)
        if number == 1:
            self.dropped += projected.dropped[len(asked.dropped) :]
        body = self.upstream.write_request(projected, self.model, stream=True)
        self.size = len(body)
        path = None if self.same else self.upstream.request_path(self.model, stream=True)
        return UpstreamRequest(path, self._headers_for(body), body, self._upstream_name, number)

    @property
    def _upstream_name(self) -> str | None:
        return self.model.upstream.name if self.model.upstream else None

    def _headers_for(self, body: bytes) -> Headers:
        kept = [(name, value) for name, value in self._headers if name not in _DROPPED]
        if not self.same:
            kept = [(name, value) for name, value in kept if not name.startswith(_OF_PROTOCOLS)]
            kept = with_key(kept, self.upstream.KEY_HEADER)
        given = {name for name, _ in kept}
        return (
            *kept,
            *(pair for pair in self.upstream.HEADERS if pair[0] not in given),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"accept-encoding", b"identity"),
        )
