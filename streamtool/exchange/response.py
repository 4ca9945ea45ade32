"""The last stage of an exchange, which turns the events that passed the filters into bytes in the client's protocol.

A stream begins with the first events. Until then, the status is withheld and `head` remains None, so that an error can
still have its own status. A reply that is not streamed is built from the same events: nothing is sent before the end.
"""

from collections.abc import Callable
from typing import cast

from attrs import define, field

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import ReplyAccumulator, ReplyEvent, ReplyStart
from streamtool.exchange.interfaces import ResponseHead
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received
from streamtool.exchange.response_headers import ResponseHeaders
from streamtool.exchange.signatures import store_signatures
from streamtool.prompting.window import BYTES_PER_TOKEN
from streamtool.protocols.interfaces import ClientProtocol, ClientWriter


@define(eq=False)
class ReplyIdentity:
    """The id, creation time and model of one reply. They are the same across all attempts, and are generated if not
    reported.
    """

    _new_id: Callable[[str], str]
    _prefix: str
    _now: int
    _start: ReplyStart = field(factory=ReplyStart, init=False)
    made: bool = field(default=False, init=False)
    """Whether the identity has been fixed and can no longer change."""
    served_model: str | None = field(default=None, init=False)
    """The model name that the upstream reported."""

    def take(self, start: ReplyStart) -> None:
        """Adopt the values that the upstream reports. Call this before the identity is fixed."""
        self.served_model = start.model
        self._start = start

    def start(self, asked: Conversation, *, same: bool, sent: int) -> ReplyStart:
        """Return the start event of the reply."""
        if not self.made:
            told = self._start
            self._start = ReplyStart(
                (told.id if same else None) or self._new_id(self._prefix),
                told.created or self._now,
                told.model or asked.model,
                told.input or sent // BYTES_PER_TOKEN,
            )
            self.made = True
        return self._start


class ClientResponse:
    """The response to the client, while it is being produced."""

    __slots__ = (
        "_accumulator",
        "_clock",
        "_excerpt",
        "_protocol",
        "_received",
        "_store",
        "_writer",
        "began",
        "head",
        "headers",
        "identity",
        "middle_writer",
        "observed",
        "plan",
        "sent",
    )

    def __init__(
        self,
        protocol: ClientProtocol,
        received: Received,
        plan: Plan,
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float],
        excerpt: Callable[[int], Excerpt],
    ) -> None:
        """`excerpt` returns a new excerpt of the text that the model has written in a choice."""
        self._protocol = protocol
        self._excerpt = excerpt
        self._received = received
        self.plan = plan
        self.sent = 0
        """Size in bytes of the last request to the upstream."""
        self._clock = clock
        self._store = None if protocol.store_entries is None else received.memory
        self._accumulator = None if received.conversation.stream else ReplyAccumulator()
        self._writer: ClientWriter | None = None
        self.middle_writer: ClientWriter | None = None
        """The writer once the stream has begun; None if there is more to do for an event than writing it."""
        self.observed = False
        """Whether a listener has to be informed of each event."""
        self.identity = ReplyIdentity(new_id, protocol.REPLY_ID, now)
        self.headers = ResponseHeaders(protocol, plan, new_id("req_"))
        self.head: ResponseHead | None = None
        """The status and headers to send first; None while the status is withheld."""
        self.began: float | None = None
        """Time when the first data of the reply was ready to be sent."""

    @property
    def complete(self) -> bool:
        """Whether the reply is sent in one piece."""
        return self._accumulator is not None

    def begin(self) -> ReplyStart:
        """Return the start event of the reply, for the client."""
        return self.identity.start(self._received.conversation, same=self.plan.same, sent=self.sent)

    def send(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """Return the bytes for these events. `done` means that they are the last ones. `error` is the reason why the
        reply failed, if it did.
        """
        if self.plan.signatures is not None:
            store_signatures(out, self.plan.signatures)
        data = self._first_bytes(out, done=done, error=error) if self._writer is None else self._writer.feed(out)
        if done and self._store is not None and self._writer is not None:
            self._remember(self._writer.response)
        return data

    def stop_forwarding(self) -> None:
        """Stop forwarding the upstream's events, because those of another attempt follow."""
        if self._writer is not None:
            self._writer.stop_forwarding()

    def keepalive(self) -> bytes:
        """Return a keep-alive comment. From now on, the status is no longer withheld."""
        if self._accumulator is not None:
            return b""
        self.head = self.head or self.headers.stream()
        return self._protocol.KEEPALIVE if self._writer is None else self._writer.keepalive()

    def _first_bytes(self, out: list[ReplyEvent], *, done: bool, error: StreamtoolError | None) -> bytes:
        """Return the beginning of a stream, a complete reply, or an error with its own status."""
        made = self.identity.made
        nothing = len(out) == 1 + made and (not made or type(out[0]) is ReplyStart)
        if error is not None and self.head is None:
            own_status = nothing and error.code not in self._protocol.STREAMED_ERRORS
            if own_status or self._accumulator is not None:
                return self._failure(error)
        if not made:
            out.insert(0, self.begin())
        if self._accumulator is not None:
            self._accumulator.feed(out)
            return self._complete(self._accumulator) if done else b""
        self.head = self.head or self.headers.stream()
        start = self.begin()
        self.began = self._clock()
        self._writer = self._protocol.ReplyWriter(
            self._received.conversation,
            id=start.id,
            created=start.created,
            model=start.model,
            forwards=self.plan.same and self.headers.attempts == 1,
        )
        self._writer.excerpt = self._excerpt
        if self.plan.signatures is None and not self.observed and self._writer.WRITES_ALONE:
            self.middle_writer = self._writer
        return self._writer.feed(out)

    def _complete(self, fold: ReplyAccumulator) -> bytes:
        start = self.begin()
        self.began = self._clock()
        try:
            body = self._protocol.write_complete(
                self._received.conversation,
                fold.close(),
                id=cast(str, start.id),
                created=cast(int, start.created),
                model=cast(str, start.model),
            )
        except UpstreamError as error:  # the protocol cannot express the reply
            return self._failure(error)
        self.head = self.headers.complete(body)
        self._remember(body)
        return body

    def _remember(self, response: bytes | None) -> None:
        entries = self._protocol.store_entries
        if self._store is not None and entries is not None and response is not None:
            for id, value in entries(self._received.conversation, response):
                self._store.remember(id, value)

    def _failure(self, error: StreamtoolError) -> bytes:
        body = self._protocol.write_error(error, self.headers.request_id)
        self.head = self.headers.failure(error, body)
        return body
