"""The last part of an exchange: what the client receives for the events that passed, as bytes of its protocol.

A stream begins with the first events; before that its status is withheld (`head` is None), so that an error can still
have a status of its own. A reply that is not streamed is the fold of the same events: nothing leaves before the end.
"""

from collections.abc import Callable, Iterable
from typing import cast

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import Memory, ResponseHead
from streamtool.exchange.request import ClientRequest
from streamtool.protocols.interfaces import ClientProtocol, ClientWriter, Headers
from streamtool.reply import ReplyAccumulator, ReplyEvent, ReplyStart
from streamtool.state.signatures import remember

_DROPPED = frozenset(
    (
        *(b"content-length", b"content-encoding", b"transfer-encoding", b"content-type", b"cache-control", b"etag"),
        *(b"connection", b"keep-alive", b"x-accel-buffering", b"x-request-id", b"request-id", b"trailer"),
        *(b"x-streamtool-mode", b"x-streamtool-format", b"x-streamtool-attempts", b"x-streamtool-unmet"),
    )
)
_RETRY_HINTS = frozenset((b"retry-after", b"retry-after-ms", b"x-should-retry"))


class ClientResponse:
    """One reply on its way to the client."""

    __slots__ = (
        "_clock", "_conversation", "_fold", "_kept", "_memory", "_new_id", "_now", "_request", "_same", "_start",
        "_wire", "_writer", "attempts", "began", "head", "request_id", "served_model", "started", "unmet",
    )  # fmt: skip

    def __init__(
        self,
        wire: ClientProtocol,
        request: ClientRequest,
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float],
        memory: Memory | None,
    ) -> None:
        self._wire = wire
        self._request = request
        self._conversation = conversation = request.conversation
        self._same = request.same
        self._new_id = new_id
        self._now = now
        self._clock = clock
        self.began: float | None = None
        """When the first of it left."""
        self._memory = None if wire.memories is None else memory
        self._fold = None if conversation.stream else ReplyAccumulator()
        self._writer: ClientWriter | None = None
        self._start = ReplyStart()
        self._kept: Headers = ()
        self.head: ResponseHead | None = None
        """What to send first; None while the status is withheld."""
        self.started = False
        """The reply has its name: its first event has been made."""
        self.request_id = new_id("req_")
        self.unmet: str | None = None
        """What the last attempt lacked."""
        self.attempts = 0
        self.served_model: str | None = None
        """The model's name as the upstream told it."""

    @property
    def whole(self) -> bool:
        """The reply leaves in one piece."""
        return self._fold is not None

    def keep(self, headers: Headers) -> None:
        """Take the upstream's headers (names in lower case): those of the attempt that is answered with."""
        self._kept = tuple((name, value) for name, value in headers if name not in _DROPPED)
        found = dict(headers)
        told = found.get(b"x-request-id") or found.get(b"request-id") or b""
        self.request_id = told.decode("latin-1") or self.request_id

    def name(self, start: ReplyStart) -> None:
        """Take the upstream's own Start; it counts while the reply has not begun."""
        self.served_model = start.model
        if not self.started:
            self._start = start

    def begin(self) -> ReplyStart:
        """The reply's own Start: what the upstream did not tell is made here."""
        self.started = True
        start = self._start
        self._start = ReplyStart(
            (start.id if self._same else None) or self._new_id(self._wire.REPLY_ID),
            start.created or self._now,
            start.model or self._conversation.model,
        )
        return self._start

    def send(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """What the client receives for these events; `done`: the last ones; `error`: why they failed, if they did."""
        if not out:
            return b""
        if self._request.signatures is not None:
            remember(out, self._request.signatures)
        data = self._first(out, done=done, error=error) if self._writer is None else self._writer.feed(out)
        if done and self._memory is not None and self._writer is not None:
            self._remember(self._writer.response)
        return data

    def silence(self) -> bytes:
        """What to say while nothing comes; the status no longer waits."""
        if self._fold is not None:
            return b""
        self.head = self.head or self._stream_head()
        return self._wire.KEEPALIVE if self._writer is None else self._writer.keepalive()

    def _first(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """The beginning of a stream, a whole reply, or an error with its own status."""
        nothing = len(out) == 1 + self.started and (not self.started or type(out[0]) is ReplyStart)
        if error is not None and self.head is None and (nothing or self._fold is not None):
            return self._failure(error)
        if not self.started:
            out.insert(0, self.begin())
        if self._fold is not None:
            self._fold.feed(out)
            return self._all(self._fold) if done else b""
        self.head = self.head or self._stream_head()
        start = self._start
        self.began = self._clock()
        self._writer = self._wire.ReplyWriter(
            self._conversation, id=start.id, created=start.created, model=start.model, forwards=self._same
        )
        return self._writer.feed(out)

    def _all(self, fold: ReplyAccumulator) -> bytes:
        start = self._start
        self.began = self._clock()
        body = self._wire.write_complete(
            self._conversation,
            fold.close(),
            id=cast(str, start.id),
            created=cast(int, start.created),
            model=cast(str, start.model),
        )
        self.head = ResponseHead(200, (*self._kept, *self._own(body), *self._marks()))
        self._remember(body)
        return body

    def _remember(self, response: bytes | None) -> None:
        memories = self._wire.memories
        if self._memory is not None and memories is not None and response is not None:
            for id, value in memories(self._conversation, response):
                self._memory.remember(id, value)

    def _failure(self, error: StreamtoolError) -> bytes:
        body = self._wire.write_error(error, self.request_id)
        hints = tuple(pair for pair in self._kept if pair[0] in _RETRY_HINTS)
        self.head = ResponseHead(error.status, (*hints, *self._own(body), *self._marks()))
        return body

    def _stream_head(self) -> ResponseHead:
        return ResponseHead(200, (*self._kept, *self._wire.STREAM_HEADERS, *self._marks()))

    def _own(self, body: bytes) -> Headers:
        return (*self._wire.COMPLETE_HEADERS, (b"content-length", str(len(body)).encode()))

    def _marks(self) -> Headers:
        return (
            (self._wire.REQUEST_ID, self.request_id.encode("latin-1", "replace")),
            (b"x-streamtool-mode", self._request.mode.encode()),
            *(((b"x-streamtool-format", self._request.model.format.encode()),) if self._request.emulates else ()),
            (b"x-streamtool-attempts", str(self.attempts).encode()),
            *(((b"x-streamtool-unmet", self.unmet.encode()),) if self.unmet is not None else ()),
        )


def lower(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers with their names in lower case."""
    return tuple((name.lower(), value) for name, value in headers)
