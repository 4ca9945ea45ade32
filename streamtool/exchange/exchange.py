"""One client request and its reply, attempts included: bytes in, bytes out, no I/O.

    body ─▶ read_request ─▶ Conversation ─▶ project ─▶ write_request ─▶ request()       … the shell sends it …
    respond(), feed(), close() ─▶ ReplyReader ─▶ a ChoiceFilter per choice ─▶ ReplyWriter ─▶ bytes

The client's protocol reads the request and writes the reply; the upstream's protocol does the rest. A request that has
nothing to do with tools passes untouched if both are the same, else it is translated without a parser.

The shell (middleware, transport) does what the exchange says: it sends `request()`, tells `respond` the status, feeds
what arrives, calls `close` at the end or `fail` when there is none, and passes each result on to the client in one
write; before the last one it calls `remember`. Meanwhile it watches six attributes:

- `head`: None while the status is withheld, then what to send first. It is withheld until there is something to show,
  so that an upstream's refusal, or an error as the first event, becomes a real status; `keepalive()` ends the wait.
- `done`: the reply is over and everything has been handed out.
- `lingers`: it is over but for the upstream's counts of tokens: go on for `MOMENT` seconds at most, then `close`.
- `cut`: it is over although the upstream has more to say: stop the upstream now.
- `retry`: this attempt was not accepted: stop the upstream, send `request()` again.
- `unread`: bytes of an event, or of arguments to check, that have not ended: to complete them may take long.

A reply that is not streamed is made from the same events: nothing goes out before the end, and a failure is a status.
Ids and the time come from outside.
"""

from collections.abc import Callable, Iterable

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange.choices import Choices
from streamtool.exchange.interfaces import NO_SERVICES, Record, ResponseHead, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener
from streamtool.exchange.parser_factory import ParserFactory
from streamtool.exchange.record_builder import RecordBuilder, no_time
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response import ClientResponse
from streamtool.exchange.upstream_response import UpstreamResponse, lower
from streamtool.policy import ChoiceFilter, Finding
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.reply import (
    Reason,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
    in_pieces,
)  # fmt: skip
from streamtool.settings import Settings


class Exchange:
    """A client's request and its reply. Raises RequestError (before anything was sent) when it cannot be honoured."""

    __slots__ = (
        "_choices", "_record", "_rejected", "_response", "_settings", "_upstream",
        "asked", "cut", "done", "lingers", "retry", "unread",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        client: ClientProtocol,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float] | None = None,
        services: Services = NO_SERVICES,
    ) -> None:
        clock = clock or no_time
        self._settings = settings
        self._record = RecordBuilder(clock)
        self.asked = asked = ClientRequest(settings, client, body, headers, services)
        self._response = ClientResponse(client, asked, new_id=new_id, now=now, clock=clock)
        rules = asked.rules(settings, services.phrases)
        self._choices = Choices(
            asked.conversation,
            rules,
            ParserFactory(settings, asked, rules),
            new_id=lambda: new_id(client.CALL_ID),
            clock=clock,
        )
        self._upstream = UpstreamResponse(asked.upstream, asked.conversation.options.n)
        self._rejected: Finding | None = None
        """Why another attempt follows this one."""
        self.done = self.cut = self.lingers = self.retry = False
        self.unread = 0

    # --- the request -------------------------------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation:
        """What the client asks."""
        return self.asked.conversation

    @property
    def passthrough(self) -> bool:
        """Nothing to do here. The shell passes request and reply on as they are."""
        return self.asked.passthrough

    @property
    def head(self) -> ResponseHead | None:
        """What to send first; None while the status is withheld."""
        return self._response.head

    @property
    def listener(self) -> ExchangeListener | None:
        """Who is told what is parsed; set it before the first `request`."""
        return self._choices.parsers.listener

    @listener.setter
    def listener(self, listener: ExchangeListener | None) -> None:
        self._choices.parsers.listener = listener

    @property
    def request_id(self) -> str:
        """What the header with the request's id says, unless the upstream's reply brings its own."""
        return self._response.headers.request_id

    def request(self) -> UpstreamRequest:
        """The next attempt. Raises RequestError when the contract does not fit."""
        if self.passthrough:
            return self.asked.untouched()
        rejected, correction, continued = self._rejected, None, None
        if rejected is not None:
            first = self._choices[0]
            correction = rejected.correction(self.conversation, self._attempts, native=self.asked.native)
            continued = first.written if first.state.visible else None
        attempt = self.asked.attempt(self._attempts + 1, correction=correction, continued=continued)
        if self.listener is not None:
            self.listener.attempt(attempt)
        self._next_attempt()
        return attempt

    def _next_attempt(self) -> None:
        self._response.headers.attempts += 1
        settings, alone = self._settings, self.conversation.options.n == 1
        most = 1 if not alone else min(1 + settings.retries, settings.limits.attempts)
        self._choices.may_retry = self._attempts < most
        if self._attempts > 1:
            self._upstream = UpstreamResponse(self.asked.upstream, self.conversation.options.n)
            self._choices.restart()
        self._rejected = None
        self.retry = False

    def announce(self) -> bytes:
        """The beginning of the reply before the upstream is asked, for a client that will ask for it by its id."""
        return self._send([self._response.begin()])

    def prepare(self) -> bytes:
        """The whole reply to a request that only prepares for a later one: nobody is asked, and it is empty."""
        self._choices[0].finished = self.done = True
        return self._send([self._response.begin(), ReplyFinish(0, Reason.STOP), ReplyEnd()])

    # --- the reply, as the shell reports it --------------------------------------------------------------------------

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The upstream has answered with this status. Returns what the client is to receive now (an error)."""
        named = lower(headers)
        self._response.headers.take(named)
        if self.listener is not None:
            self.listener.answered(status)
        try:
            self._upstream.begin(status, named)
        except UpstreamError as error:
            return self.fail(error)
        self.unread = self._upstream.weight
        return b""

    def feed(self, data: bytes, *, long: bool = False) -> bytes:
        """More of the upstream's body. Returns what the client is to receive now. `long`: deltas are read in pieces."""
        if self.done or self.retry or not data:
            return b""
        if self._upstream.direct:
            events = self._upstream.reader.feed(data)
            if not events:
                self.unread += len(data)
                return b""
            self.unread = self._choices.waiting if self._choices.checked else 0
            return self._take(in_pieces(events) if long else events)
        out = b""
        try:
            for piece in self._upstream.pieces(data):
                refusal = self._upstream.error
                if refusal is None:
                    out += self._take(in_pieces(self._upstream.reader.feed(piece)))
                elif refusal.feed(piece):
                    out += self.close()
                if self._settled:
                    break
        except UpstreamError as error:
            out += self.fail(error)
        self.unread = self._upstream.weight
        return out

    def close(self) -> bytes:
        """The upstream's body is over. Returns what the client is to receive at the end."""
        if self._settled:
            return b""
        events = self._upstream.close()
        error = self._upstream.error
        if error is not None and self._falls_back(error.status, events):
            return b""
        out = self._take(in_pieces(events))
        if not self._settled:
            ended: list[ReplyEvent] = []
            self._end(ended)
            out += self._send(ended)
        return out

    def fail(self, error: StreamtoolError) -> bytes:
        """There is no (more) reply, for this reason. Returns what the client is to receive at the end."""
        if self.done:
            return b""
        if self.retry:  # the next attempt could not even begin
            self.retry = False
            return self._take([ReplyFailure(error)])
        return self._take(self._upstream.fail(error))

    @property
    def written(self) -> int:
        """Characters that the upstream has written so far."""
        return self._choices.written

    def remember(self) -> None:
        """Keep how the model wrote its calls, which is parsed anew for it; before the client knows that it is done."""
        if self.done and self._record.error is None:
            self._choices.remember()

    def keepalive(self) -> bytes:
        """Nothing came for a while. Returns a comment for the client; the status no longer waits."""
        return b"" if self.done else self._response.silence()

    def record(self) -> Record:
        """What happened; complete once the exchange is done."""
        choices, quoted = list(self._choices.filters.values()), self._choices.parsers.quoted
        return self._record.record(self.asked, self._response, choices, quoted=quoted, done=self.done)

    def release(self) -> None:
        """Let go of request and reply, which nobody asks for any more: cancelled tasks hold an exchange for long."""
        self._choices.filters.clear()
        del self.asked, self._choices, self._response, self._upstream

    @property
    def _attempts(self) -> int:
        return self._response.headers.attempts

    @property
    def _settled(self) -> bool:
        """This attempt has nothing more to say."""
        return self.done or self.retry

    # --- events ------------------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[ReplyEvent]) -> bytes:
        """The upstream's events, through the choice filters; bytes for the client."""
        out: list[ReplyEvent] = []
        choices, again = self._choices.filters, self._response.headers.attempts > 1
        for event in events:
            if type(event) is ReplyTextDelta:
                choice = choices.get(event.choice)
                if choice is None:
                    choice = self._choices[event.choice]
                if again:
                    event = ReplyTextDelta(event.choice, event.text)  # noqa: PLW2901  its bytes bear its own id
                choice.feed(event, out)
                if choice.state.over:
                    self._over(choice, out)
            else:
                self._other(event, out)
            if self.done or self.retry:
                break
        return self._send(out)

    def _other(self, event: ReplyEvent, out: list[ReplyEvent]) -> None:
        match event:
            case ReplyStart():
                if not self._response.identity.made:
                    self._response.identity.take(event)
                    if not self._choices.rules.forced:
                        out.append(self._response.begin())
            case ReplyFinish():
                choice = self._choices[event.choice]
                if not choice.finished:
                    self._finish(choice, event, out)
            case UsageReport(usage=usage):
                self._record.told = usage
            case ReplyEnd():
                self._end(out)
            case ReplyFailure(error=error):
                self._fail(error, out)
            case _:
                choice = self._choices[event.choice]
                choice.feed(event, out)
                if choice.state.over:
                    self._over(choice, out)

    def _over(self, choice: ChoiceFilter, out: list[ReplyEvent]) -> None:
        """The rules end this choice here; when all have ended, the upstream is not needed but for its counts."""
        if choice.state.rejected is not None:
            self._rejected = choice.state.rejected
            self._end(out)
            return
        if not choice.finished:
            self._record.reason = self._record.reason or Reason.STOP
            self._finished(choice, ReplyFinish(choice.choice, Reason.STOP), out)
        if self._choices.finished:
            self.lingers = self._record.told is None and not choice.exceeded
            if not self.lingers:
                self.cut = True
                self._end(out)

    def _finish(self, choice: ChoiceFilter, event: ReplyFinish, out: list[ReplyEvent]) -> None:
        """The upstream has ended this choice: it is accepted, or another attempt follows."""
        self._record.reason = event.reason
        choice.close(event.reason, out)
        found = choice.failure(event.reason)
        judged = not self._choices.rules.native or choice.state.rejected is not None  # natively only what was held
        if found is not None and found.asks_again and judged and self._choices.may_retry:
            self._rejected = found
            return
        self._finished(choice, event, out, unmet=found)

    def _finished(
        self, choice: ChoiceFilter, event: ReplyFinish, out: list[ReplyEvent], *, unmet: Finding | None = None
    ) -> None:
        """The choice ends, with the reason that is true for the client."""
        choice.finished = True
        choice.release(out)
        if unmet is None or not unmet.failure.in_record:
            unmet = choice.unmet
        headers = self._response.headers
        headers.unmet = headers.unmet or (None if unmet is None else unmet.cause)
        ending = choice.ending(event)
        if isinstance(ending, StreamtoolError):
            self._fail(ending, out)
        else:
            out.append(ending)

    def _end(self, out: list[ReplyEvent]) -> None:
        """The upstream's reply is over: another attempt, or the end of ours."""
        if self._record.error is not None:
            return
        self._choices[0]  # there is at least one
        for choice in self._choices.filters.values():
            if not choice.finished and self._rejected is None:
                self._finish(choice, ReplyFinish(choice.choice, Reason.STOP), out)
        if self._record.error is not None:
            return
        self.cut = self.cut or (self.lingers and self._record.told is None)
        self.lingers = False
        self._record.count(self._upstream.reader.usage, sent=self.asked.sent, written=self._choices.written)
        if self._rejected is not None:
            self._record.reject(self._rejected)
            self.retry = True
            return
        usage = self._record.usage
        if usage != Usage() or self.conversation.include_usage or self._response.complete:
            out.append(UsageReport(usage))
        out.append(ReplyEnd())
        self.done = True

    def _fail(self, error: StreamtoolError, out: list[ReplyEvent]) -> None:
        if self._record.error is not None or self.done:
            return
        if self.lingers:
            self._end(out)
            return
        self._choices.break_off(out, begun=self.head is not None and self._rejected is None)
        self._record.error = error
        self._rejected = None
        self.done = self.cut = True
        out.append(ReplyFailure(error))

    def _send(self, out: list[ReplyEvent]) -> bytes:
        listener = self._choices.parsers.listener
        if listener is not None:
            data = self._response.send(out, done=self.done, error=self._record.error) if out else b""
            listener.sent(out, data, "" if out else self._choices.waits_for)
            return data
        return self._response.send(out, done=self.done, error=self._record.error) if out else b""

    def _falls_back(self, status: int, events: list[ReplyEvent]) -> bool:
        """Whether the upstream turned out not to support what it was asked for; the next attempt does without."""
        announced = self.conversation.background and self._attempts == 1  # and nothing else was said
        if (self._response.head and not announced) or self._attempts >= self._settings.limits.attempts:
            return False
        (failure,) = events
        assert type(failure) is ReplyFailure  # noqa: S101  the one event of an error response
        found = self.asked.falls_back(status, failure.error.message)
        if found is None:
            return False
        self._choices.renew(self.asked.rules(self._settings, self._choices.rules.refusals.phrases))
        self._record.reject(found)
        self.retry = True
        return True
