"""The last part of an exchange: what the client receives for the events that passed, as bytes of its protocol.

A stream begins with the first events; before that its status is withheld (`head` is None), so that an error can still
have a status of its own. A reply that is not streamed is made from the same events: nothing leaves before the end.
"""

from collections.abc import Callable
from typing import cast

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import ResponseHead
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response_headers import ResponseHeaders
from streamtool.prompting.window import BYTES_PER_TOKEN
from streamtool.protocols.interfaces import ClientProtocol, ClientWriter
from streamtool.reply import ReplyAccumulator, ReplyEvent, ReplyStart
from streamtool.state.signatures import remember


class ReplyIdentity:
    """Id, time and model of one reply, in all of its attempts. What the upstream does not tell is made here."""

    __slots__ = ("_new_id", "_now", "_start", "made", "served_model")

    def __init__(self, new_id: Callable[[], str], now: int) -> None:
        self._new_id = new_id
        self._now = now
        self._start = ReplyStart()
        self.made = False
        """It is known, and does not change any more."""
        self.served_model: str | None = None
        """The model's name as the upstream told it."""

    def take(self, start: ReplyStart) -> None:
        """What the upstream tells, before the identity is made."""
        self.served_model = start.model
        self._start = start

    def start(self, request: ClientRequest) -> ReplyStart:
        """The reply's own beginning."""
        if not self.made:
            told = self._start
            self._start = ReplyStart(
                (told.id if request.same else None) or self._new_id(),
                told.created or self._now,
                told.model or request.conversation.model,
                told.input or request.sent // BYTES_PER_TOKEN,
            )
            self.made = True
        return self._start


class ClientResponse:
    """One reply on its way to the client."""

    __slots__ = (
        "_clock", "_fold", "_memory", "_protocol", "_request", "_writer", "began", "head", "headers", "identity",
    )  # fmt: skip

    def __init__(
        self,
        protocol: ClientProtocol,
        request: ClientRequest,
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float],
    ) -> None:
        self._protocol = protocol
        self._request = request
        self._clock = clock
        self._memory = None if protocol.memories is None else request.memory
        self._fold = None if request.conversation.stream else ReplyAccumulator()
        self._writer: ClientWriter | None = None
        self.identity = ReplyIdentity(lambda: new_id(protocol.REPLY_ID), now)
        self.headers = ResponseHeaders(protocol, request, new_id("req_"))
        self.head: ResponseHead | None = None
        """What to send first; None while the status is withheld."""
        self.began: float | None = None
        """When the first of it left."""

    @property
    def complete(self) -> bool:
        """The reply leaves in one piece."""
        return self._fold is not None

    def begin(self) -> ReplyStart:
        """The reply's own beginning, an event for the client."""
        return self.identity.start(self._request)

    def send(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """What the client receives for these events; `done`: the last ones; `error`: why they failed, if they did."""
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
        self.head = self.head or self.headers.stream()
        return self._protocol.KEEPALIVE if self._writer is None else self._writer.keepalive()

    def _first(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """The beginning of a stream, a complete reply, or an error with its own status."""
        made = self.identity.made
        nothing = len(out) == 1 + made and (not made or type(out[0]) is ReplyStart)
        if error is not None and self.head is None:
            own_status = nothing and error.code not in self._protocol.STREAMED_ERRORS
            if own_status or self._fold is not None:
                return self._failure(error)
        if not made:
            out.insert(0, self.begin())
        if self._fold is not None:
            self._fold.feed(out)
            return self._complete(self._fold) if done else b""
        self.head = self.head or self.headers.stream()
        start = self.begin()
        self.began = self._clock()
        self._writer = self._protocol.ReplyWriter(
            self._request.conversation,
            id=start.id,
            created=start.created,
            model=start.model,
            forwards=self._request.same,
        )
        return self._writer.feed(out)

    def _complete(self, fold: ReplyAccumulator) -> bytes:
        start = self.begin()
        self.began = self._clock()
        body = self._protocol.write_complete(
            self._request.conversation,
            fold.close(),
            id=cast(str, start.id),
            created=cast(int, start.created),
            model=cast(str, start.model),
        )
        self.head = self.headers.complete(body)
        self._remember(body)
        return body

    def _remember(self, response: bytes | None) -> None:
        memories = self._protocol.memories
        if self._memory is not None and memories is not None and response is not None:
            for id, value in memories(self._request.conversation, response):
                self._memory.remember(id, value)

    def _failure(self, error: StreamtoolError) -> bytes:
        body = self._protocol.write_error(error, self.headers.request_id)
        self.head = self.headers.failure(error, body)
        return body
