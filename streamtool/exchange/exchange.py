"""One client request and its reply, including all attempts: bytes in, bytes out, no I/O.

    body ─▶ read_request ─▶ Conversation ─▶ project ─▶ write_request ─▶ request()      … the driver sends it …
    respond(), feed(), close() ─▶ ReplyReader ─▶ a ChoiceFilter per choice ─▶ ReplyWriter ─▶ bytes

The client's protocol reads the request and writes the reply; the upstream's protocol writes the upstream request and
reads its response. A request that does not involve tools passes through untouched if both protocols are the same;
otherwise it is translated without a parser.

The driver (middleware, transport) performs the I/O for the exchange: it sends `request()`, reports the status to
`respond`, feeds the data that arrives, and calls `close` at the end, or `fail` if the reply was cut off. It passes each
result to the client in a single write, and calls `remember` before the last one. Meanwhile it watches six attributes:

- `head`: None while the status is withheld, then the status and headers to send first. The status is withheld until
  there is output for the client, so that an error response from the upstream, or an error as its first event, becomes
  the status of the response; `keepalive()` ends the wait.
- `done`: the reply has ended, and all of it has been returned.
- `lingers`: the reply is finished except for the upstream's trailing usage report. Continue for at most `MOMENT`
  seconds, then call `close`.
- `cut`: the reply is finished although the upstream has more to send. Stop the upstream now.
- `retry`: this attempt was rejected, or has to be continued. Stop the upstream and send `request()` again. `died`: the
  upstream has failed in the middle of its reply.
- `misdirected`: the upstream does not seem to serve the path of the request.
- `unread`: the number of buffered bytes, from an incomplete event or from arguments to check, that may take long to
  process.

A reply that is not streamed is built from the same events: nothing is sent before the end, and a failure determines the
status. The driver supplies ids and the time.
"""

from collections.abc import Callable, Iterable

from attrs import evolve

from streamtool.core.conversation import Conversation
from streamtool.core.errors import RequestError, StreamtoolError, UpstreamError
from streamtool.core.reply import (
    NO_USAGE,
    Reason,
    ReplyArgumentsDelta,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
    split_long_text,
)
from streamtool.exchange.broken_calls import BrokenCall
from streamtool.exchange.choices import Choices
from streamtool.exchange.error_response import attribute, is_misdirected
from streamtool.exchange.interfaces import NO_SERVICES, ResponseHead, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener
from streamtool.exchange.near_calls import find_near_call, may_find_near_call
from streamtool.exchange.parser_factory import ParserFactory
from streamtool.exchange.plan import Known, Plan, Refusal, first_plan, known_of, next_plan
from streamtool.exchange.received import Received, receive
from streamtool.exchange.record import NearCall, PromptCut, Record
from streamtool.exchange.record_builder import RecordBuilder, zero_clock
from streamtool.exchange.request import attempt, unchanged, with_forcing
from streamtool.exchange.response import ClientResponse
from streamtool.exchange.resumption import CONTRADICTED, Resumptions, continues, may_be_continued
from streamtool.exchange.tool_sets import MANY, warn_of_many_tools
from streamtool.exchange.truncation import prompt_cut
from streamtool.exchange.upstream_response import UpstreamResponse, lower_names, too_large
from streamtool.filters import ChoiceFilter, ContinuedCall
from streamtool.forcing import Rules, rules_for
from streamtool.policy import EMPTY, TOOL_SEARCH, Effect, Finding
from streamtool.prompting import Selection, ToolSearch, selects_tools
from streamtool.prompting.one_object import is_one_object
from streamtool.prompting.selection import MAX_SEARCHES
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.refusals import Phrases
from streamtool.settings import Settings


class Exchange:
    """A client's request and its reply. The constructor raises RequestError if the request cannot be served."""

    __slots__ = (
        "_capabilities",
        "_choices",
        "_decoded",
        "_record",
        "_rejected",
        "_response",
        "_resuming",
        "_searches",
        "_settings",
        "_tokenizers",
        "_upstream",
        "conversation",
        "cut",
        "died",
        "done",
        "lingers",
        "misdirected",
        "passthrough",
        "plan",
        "ready",
        "received",
        "retry",
        "unread",
    )

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
        identity: str | None = None,
        begun: tuple[Received, Plan] | None = None,
    ) -> None:
        """Read the request and plan how to serve it, unless both are given in `begun`."""
        clock = clock or zero_clock
        self._record = RecordBuilder(clock)
        received, plan = begun or first_plan(
            receive(settings, client, body, headers, client=identity, memory=services.store),
            settings,
            client,
            capabilities=services.capabilities,
            templates=services.templates,
        )
        self._settings = settings
        self._tokenizers = services.tokenizers
        self.received, self.plan = received, plan
        self.conversation: Conversation = received.conversation
        """The client's request, read into a conversation."""
        self.passthrough = plan.passthrough
        """Whether the driver passes the request and the reply through, without feeding the reply to the exchange."""
        self._capabilities = services.capabilities
        rules = self._rules(services.phrases)
        self._choices = Choices(
            received.conversation,
            rules,
            ParserFactory(settings, received, plan, rules),
            new_id=new_id,
            prefix=client.CALL_ID,
            clock=clock,
        )
        self._response = ClientResponse(
            client, received, plan, new_id=new_id, now=now, clock=clock, excerpt=self._choices.excerpt
        )
        self._upstream = UpstreamResponse(plan.upstream, received.conversation.options.n, rules.callable.keys())
        self._decoded = 0
        """Size in bytes of the bodies that had to be decoded, over all attempts."""
        self._rejected: Finding | None = None
        """The failure that causes another attempt after this one, or None."""
        self._resuming = Resumptions()
        self._searches: tuple[ToolSearch, ...] = ()
        """The model's searches for tools."""
        self.ready: UpstreamRequest | StreamtoolError | None = None
        """The first request, made ahead of time, or the error that prevents it. None before it is made and after it is
        taken.
        """
        self.done = self.cut = self.lingers = self.retry = self.died = self.misdirected = False
        self.unread = 0

    # --- the request -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> ResponseHead | None:
        """The status and headers to send first; None while the status is withheld."""
        return self._response.head

    @property
    def listener(self) -> ExchangeListener | None:
        """The listener that observes this exchange, if any; set it before the first `request`."""
        return self._choices.parsers.listener

    @listener.setter
    def listener(self, listener: ExchangeListener | None) -> None:
        self._choices.parsers.listener = listener
        self._response.observed = listener is not None

    def annotate(self, notes: Callable[[Record], Headers]) -> None:
        """Add the headers that `notes` returns to a reply that is sent in one piece."""
        self._response.headers.notes = lambda: notes(self.record())

    @property
    def request_id(self) -> str:
        """The value of the request id header, unless the upstream's response contains its own id."""
        return self._response.headers.request_id

    def request(self) -> UpstreamRequest:
        """Return the request for the next attempt. Raises RequestError if the tool prompt exceeds the context."""
        if self.passthrough:
            return unchanged(self.received, self.plan)
        made, self.ready = self.ready or self._attempt(), None
        if isinstance(made, StreamtoolError):
            raise made
        if self.listener is not None:
            self.listener.attempt(made)
        # Only after the request has been built: it still reads the state of the rejected attempt.
        self._next_attempt()
        return made

    def make_ready(self) -> None:
        """Make the first request in advance of `request`, so that it can be made off the event loop."""
        if not self.passthrough:
            try:
                self.ready = self._attempt()
            except StreamtoolError as error:
                self.ready = error

    def _attempt(self) -> UpstreamRequest:
        """Make the request for the next attempt."""
        rejected, correction, continued = self._rejected, None, None
        if rejected is not None and rejected.failure is TOOL_SEARCH:
            self._search(rejected.detail)
        elif rejected is not None:
            first = self._choices[0]
            # Text that the client has already seen cannot be taken back. It becomes an assistant message of the next
            # attempt, which continues after it; an attempt without visible text is simply replaced.
            correction = rejected.correction(self.conversation, self._corrected_attempts, native=self.plan.native)
            continued = first.written if first.state.visible else None
        number, received = self._response.headers.attempts + 1, self.received
        if self._resuming.pending is None:
            self._follow(with_forcing(self.plan, received, self._lacks))
        if self.plan.emulates and (len(self.conversation.tools) > MANY or self.plan.model.context is not None):
            warning = warn_of_many_tools(self.conversation, self.plan.model, self._tokenizers)
            self._record.warning = self._record.warning or warning
        made = attempt(
            received,
            self.plan,
            number,
            tokenizers=self._tokenizers,
            correction=correction,
            continued=continued,
            searches=self._searches,
            prompt=None if self._resuming.pending is None else self._prompt(),
            resumption=self._resuming.pending,
        )
        self._response.sent = len(made.body)
        if self._resuming.pending is None:
            self._resuming.additions = correction, continued
            self._resuming.limit = None if made.conversation is None else made.conversation.options.max_tokens
        dropped = () if made.conversation is None else made.conversation.dropped[len(self.conversation.dropped) :]
        if number == 1 and dropped:
            self._follow(evolve(self.plan, dropped=self.plan.dropped + dropped))
        return made

    def _prompt(self) -> Conversation | None:
        """Return the conversation that the last request expressed, without the reply that it continues.

        It is made again, because few replies need it: a stream may stay open for long, and should not keep it.
        """
        if self._resuming.additions is None:
            return None
        correction, continued = self._resuming.additions
        return attempt(
            self.received,
            self.plan,
            self._response.headers.attempts,
            tokenizers=self._tokenizers,
            correction=correction,
            continued=continued,
            searches=self._searches,
        ).conversation

    def _search(self, query: str) -> None:
        """Search for tools, as the model did at the end of the rejected attempt."""
        first, model = self._choices[0], self.plan.model
        said = self._choices.parsers.text_before_search(first.written, self._choices.rules)
        selection = Selection(self.conversation, model, model.format)
        shown = "" if self._choices.rules.forced else said
        self._searches += (selection.find(query, said, shown, len(self._searches) + 1),)

    @property
    def _known(self) -> Known | None:
        """The findings about the model at its upstream."""
        return known_of(self.received, self.plan.model, self._capabilities)

    def _lacks(self, ability: str) -> bool:
        """Return whether the upstream is known to lack an ability."""
        known = self._known
        return known is not None and known.lacks(ability)

    def _follow(self, plan: Plan) -> None:
        """Serve the request according to this plan from now on."""
        self.plan = self._choices.parsers.plan = self._response.plan = self._response.headers.plan = plan

    def _rules(self, phrases: Phrases | None) -> Rules:
        """Return the rules for the reply under the current plan."""
        plan = self.plan
        selects = plan.emulates and plan.model.prompt.select_tools > 0  # checked first, which saves a call
        return rules_for(
            self.conversation,
            self._settings,
            native=plan.native,
            one_object=is_one_object(plan.model.format),
            phrases=phrases,
            selects=selects and selects_tools(self.conversation, plan.model),
        )

    def _next_attempt(self) -> None:
        self._response.headers.attempts += 1
        settings, alone = self._settings, self.conversation.options.n == 1
        # A retry repeats the whole request. With several choices, it would also repeat those that were accepted.
        most = 1 if not alone else min(1 + settings.retries + self._resuming.count, settings.limits.attempts)
        self._choices.may_retry = self._response.headers.attempts - len(self._searches) < most
        self._choices.insists = self._rejected is not None and not self._choices.may_retry
        self._choices.may_search = len(self._searches) < MAX_SEARCHES
        if self._response.headers.attempts > 1:
            self._response.stop_forwarding()
            self._upstream = UpstreamResponse(
                self.plan.upstream,
                self.conversation.options.n,
                self._choices.rules.callable.keys(),
                self._resuming.pending,
                self._continued,
            )
            if self._resuming.pending is None:
                self._choices.restart()
                self._resuming.restart()
            else:
                self._choices.resume()
        self._rejected = None
        self.retry = self.died = False

    @property
    def _corrected_attempts(self) -> int:
        """Number of attempts so far, without those that ended with a search for tools."""
        return self._response.headers.attempts - len(self._searches)

    def announce(self) -> bytes:
        """Return the beginning of a background reply, before a request is sent to the upstream, so that the client
        learns the id.
        """
        return self._send([self._response.begin()])

    def prepare(self) -> bytes:
        """Return an empty reply, for a request that only prepares for a later request. No request is sent to the
        upstream.
        """
        self._choices[0].finished = self.done = True
        return self._send([self._response.begin(), ReplyFinish(0, Reason.STOP), ReplyEnd()])

    # --- the reply, as the driver reports it -------------------------------------------------------------------------

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Process the upstream's status and headers. Return data for the client: an error, or nothing."""
        named = lower_names(headers)
        if self._resuming.pending is None or self.head is None:
            self._response.headers.take(named)
        if self.listener is not None:
            self.listener.answered(status)
        try:
            self._upstream.begin(status, named)
        except UpstreamError as error:
            return self._break_off(error)
        self.unread = self._upstream.weight
        return b""

    def feed(self, data: bytes, long: bool = False) -> bytes:
        """Process more of the upstream's body and return data for the client. `long` means that long deltas are
        split.
        """
        # `long` is not keyword-only: CPython is slow to call functions with such parameters.
        if self.done or self.retry or not data:
            return b""
        if not self._upstream.direct:
            return self._feed_encoded(data)
        # The common case, neither compressed nor an error: no loop over pieces and no exception handling.
        events: Iterable[ReplyEvent] = self._upstream.reader.feed(data)
        if not events:
            self.unread += len(data)
            return b""
        if long:
            events = split_long_text(events)
        choices = self._choices
        self.unread = choices.unchecked_size if choices.buffers_for_checks else 0
        # Nearly every piece of a stream contains one delta of text, from which one delta follows. Such a piece is
        # processed here, and all others are dispatched.
        filters = choices.filters
        out: list[ReplyEvent] = []
        for event in events:
            if type(event) is ReplyTextDelta and (choice := filters.get(event.choice)) is not None:
                choice.feed_text(event, out)
                if not choice.state.ended:
                    continue
                self._end_by_rules(choice, out)
            else:
                self._dispatch(event, out)
            if self._attempt_ended:
                return self._send(out)
        writer = self._response.middle_writer
        if writer is None:
            return self._send(out)
        if len(out) != 1:
            return writer.feed(out) if out else b""
        [event] = out
        if type(event) is ReplyTextDelta:
            return writer.text(event)
        if type(event) is ReplyArgumentsDelta:
            return writer.arguments(event)
        return writer.feed(out)

    def _feed_encoded(self, data: bytes) -> bytes:
        """Process more of a body that is compressed, or that describes an error."""
        out = b""
        try:
            # A compressed body can expand enormously, so it is decoded in pieces of bounded size, and nothing is
            # decoded after the attempt has ended.
            for piece in self._upstream.pieces(data):
                self._decoded += len(piece)
                if self._decoded > self._settings.limits.reply:
                    raise too_large(self._settings.limits.reply)
                refusal = self._upstream.error
                if refusal is None:
                    out += self._process(split_long_text(self._upstream.reader.feed(piece)))
                elif refusal.feed(piece):
                    out += self._close()
                if self._attempt_ended:
                    break
        except UpstreamError as error:
            out += self._break_off(error)
        self.unread = self._upstream.weight
        return out

    def close(self) -> bytes:
        """Note the end of the upstream's body and return the remaining data for the client."""
        return self._close()

    def _close(self) -> bytes:
        if self._attempt_ended:
            return b""
        events = self._upstream.close()
        # The decision to fall back requires the complete error body, so it is made before the error is turned into a
        # reply.
        error = self._upstream.error
        if error is not None:
            if self._resuming.pending is None and self._try_fallback(error.status, events):
                return b""
            failure = _error_in(events)
            self.misdirected = is_misdirected(failure, error.status)
            attribute(failure, error.status, self.plan.model.upstream, misdirected=self.misdirected)
        out = self._process(split_long_text(events))
        if not self._attempt_ended:
            ended: list[ReplyEvent] = []
            self._end(ended)
            out += self._send(ended)
        return out

    def fail(self, error: StreamtoolError) -> bytes:
        """End the reply early because of this error, and return the remaining data for the client."""
        return self._break_off(error)

    def _break_off(self, error: StreamtoolError) -> bytes:
        if self.done:
            return b""
        if self.retry:  # the next attempt could not even begin
            self.retry = False
            return self._process([ReplyFailure(error)])
        # A reply may be complete although its connection broke; UpstreamResponse.fail decides that.
        return self._process(self._upstream.fail(error))

    @property
    def avoids_upstream(self) -> bool:
        """Whether another upstream should serve the next attempt, because this one has not finished its reply, or has
        written nothing.
        """
        return self._resuming.pending is not None or (self._rejected is not None and self._rejected.failure is EMPTY)

    @property
    def written(self) -> int:
        """Number of characters that the upstream has written so far."""
        return self._choices.written

    def remember(self) -> None:
        """Parse the model's calls again and store their transcript. Call this before the client sees the end of the
        reply.
        """
        if self.done and self._record.error is None:
            self._choices.remember(self._searches)

    def keepalive(self) -> bytes:
        """Stop withholding the status after a pause, and return a comment for the client."""
        return b"" if self.done else self._response.keepalive()

    def record(self, *, client: str = "", error: StreamtoolError | None = None) -> Record:
        """Return the record of the exchange so far; it is complete once the exchange is done. `client` is the client's
        name, and `error` the reason why the driver ended the exchange, unless the exchange itself has failed.
        """
        return self._record.record(
            self.received,
            self.plan,
            self._response,
            list(self._choices.filters.values()),
            quoted=self._choices.parsers.quotation_counts,
            done=self.done,
            client=client,
            error=error,
        )

    @property
    def first_call(self) -> tuple[str, str] | None:
        """The name of the first call that the client has received, and the beginning of its arguments; or None."""
        calling = [choice for choice in self._choices.filters.values() if choice.first_call is not None]
        return min(calling, key=lambda choice: choice.first_call_at or 0.0).first_call if calling else None

    @property
    def may_have_near_call(self) -> bool:
        """Whether the reply has ended without a call, and contains text that `near_call` has to examine."""
        text = self._text_without_calls
        return text is not None and may_find_near_call(text, self._choices.rules.callable)

    def near_call(self) -> NearCall | None:
        """Return the text that looks like a call, if the reply has ended without one. This may parse the reply several
        times, so call it only after the reply has been sent.
        """
        text = self._text_without_calls
        if text is None:
            return None
        return find_near_call(text, self._choices.rules.callable, self.plan.listens, read=self.plan.reads)

    @property
    def _text_without_calls(self) -> str | None:
        """The text of a reply that has ended without the calls that it may contain, or None for other replies."""
        first = self._choices.filters.get(0)
        if first is None or not self.done or first.state.calls or not self._choices.rules.callable:
            return None
        return first.written

    def release(self) -> None:
        """Drop the request and the reply once they are no longer needed. Otherwise, they could occupy memory for a long
        time, since a cancelled task may keep the exchange alive.
        """
        self._choices.filters.clear()
        del self.received, self.plan, self.conversation, self._choices, self._response, self._upstream

    @property
    def _attempt_ended(self) -> bool:
        """Whether this attempt has ended."""
        return self.done or self.retry

    # --- events ------------------------------------------------------------------------------------------------------

    def _process(self, events: Iterable[ReplyEvent]) -> bytes:
        """Process the upstream's events through the choice filters and return bytes for the client."""
        out: list[ReplyEvent] = []
        for event in events:
            self._dispatch(event, out)
            if self.done or self.retry:
                break
        return self._send(out)

    def _dispatch(self, event: ReplyEvent, out: list[ReplyEvent]) -> None:
        match event:
            case ReplyStart():
                # The identity is fixed once: after a retry, the client's reply keeps the id and model of the first
                # attempt. With a forced call, the head remains withheld, since nothing may be shown before the call
                # anyway.
                if not self._response.identity.made:
                    self._response.identity.take(event)
                    if not self._choices.rules.forced:
                        out.append(self._response.begin())
            case ReplyFinish():
                choice = self._choices[event.choice]
                if event.reason is Reason.LENGTH and self._resuming.is_cut_short(
                    self.plan, self._upstream.reader.usage, choice
                ):
                    self._resuming.cut_short = event
                elif not choice.finished:
                    self._finish_choice(choice, event, out)
            case UsageReport(usage=usage):
                self._record.reported_usage = usage
            case ReplyEnd():
                self._end(out)
            case ReplyFailure(error=error):
                self._fail(error, out)
            case _:
                choice = self._choices[event.choice]
                choice.feed(event, out)
                # The filter only sets `ended`. The exchange reacts after each event, not at the end of the batch, so
                # that no event after the end of a choice is shown, even if all of them were received in one read.
                if choice.state.ended:
                    self._end_by_rules(choice, out)

    def _end_by_rules(self, choice: ChoiceFilter, out: list[ReplyEvent]) -> None:
        """End this choice as the rules demand. Once all choices have ended, only the upstream's usage report is
        awaited.
        """
        if choice.broken:
            if self._continue_call(choice):
                return
            choice.give_up(out)
            if not choice.state.ended:
                return
        if choice.endless:
            self._end_repetition(choice, out)
            return
        if choice.state.turn_over:
            self._end_turn(choice, out)
            return
        # A rejected attempt ends here, in the middle of the upstream's reply; `_end` then requests the next one.
        if choice.state.rejected is not None:
            self._rejected = choice.state.rejected
            self._end(out)
            return
        if not choice.finished:
            self._record.reason = self._record.reason or Reason.STOP
            self._emit_finish(choice, ReplyFinish(choice.choice, Reason.STOP), out)
        if self._choices.finished:
            # Usage arrives after the last text, so give the upstream a moment to finish, unless the model keeps writing
            # (`continues_after_end`): that could continue for minutes, so the usage is estimated instead.
            self.lingers = self._record.reported_usage is None and not choice.continues_after_end
            if not self.lingers:
                self.cut = True
                self._end(out)

    def _finish_choice(self, choice: ChoiceFilter, event: ReplyFinish, out: list[ReplyEvent]) -> None:
        """End this choice after the upstream has ended it: accept it, or request another attempt."""
        self._record.reason = event.reason
        choice.close(event.reason, out)
        if choice.broken and self._continue_call(choice):
            return
        choice.give_up(out)
        found = choice.failure(event.reason)
        # In a native reply, only text that was buffered is judged.
        judged = not self._choices.rules.native or choice.state.rejected is not None
        may_retry = self._choices.may_retry or choice.state.searched
        if found is not None and found.asks_again and judged and may_retry:
            self._rejected = found
            return
        self._emit_finish(choice, event, out, unmet=found)

    def _emit_finish(
        self, choice: ChoiceFilter, event: ReplyFinish, out: list[ReplyEvent], *, unmet: Finding | None = None
    ) -> None:
        """End the choice with the finish event for the client, which may differ from the upstream's."""
        choice.finished = True
        # Output that is still buffered belongs before the finish event.
        choice.flush(out)
        if unmet is None or not unmet.failure.in_record:
            unmet = choice.unmet
        headers = self._response.headers
        headers.unmet = headers.unmet or (None if unmet is None else unmet.cause)
        ending = choice.final_event(event)
        if isinstance(ending, StreamtoolError):
            self._fail(ending, out)
        else:
            out.append(ending)

    def _end(self, out: list[ReplyEvent]) -> None:
        """End the upstream's reply: request another attempt, or end the client's reply."""
        if self._record.error is not None:
            return
        cut_short, self._resuming.cut_short = self._resuming.cut_short, None
        if cut_short is not None:
            if self._resume(cut_short):
                return
            self._finish_choice(self._choices[0], cut_short, out)
        self._choices[0]  # creates the first choice, so that there is at least one
        # An upstream that ends its reply without a finish event has still ended its choices. But when an attempt has
        # been rejected, the other choices must not emit an end.
        for choice in self._choices.filters.values():
            if not choice.finished and self._rejected is None:
                self._finish_choice(choice, ReplyFinish(choice.choice, Reason.STOP), out)
        # Finishing a choice may have failed the reply, which ends it in its own way, or have requested an attempt that
        # continues it.
        if self._record.error is not None:
            return
        if self.retry:
            return
        # If usage has not arrived by now, the upstream may still be writing: the driver has to stop it.
        self.cut = self.cut or (self.lingers and self._record.reported_usage is None)
        self.lingers = False
        if self._resuming.pending is None:
            self._record.count(self._upstream.reader.usage, sent=self._response.sent, written=self._choices.written)
        usage = self._record.usage
        cut = self._response.headers.prompt_cut = self._prompt_cut(usage)
        if cut is not None and self._settings.truncated_prompt == "error":
            self._rejected = None  # the next attempt would be cut, too
            self._fail(UpstreamError(str(cut), code="prompt_truncated"), out)
            return
        # Counted before this branch, because a rejected attempt costs tokens as well.
        if self._rejected is not None:
            self._record.reject(self._rejected)
            self.retry = True
            return
        if usage != NO_USAGE or self.conversation.include_usage or self._response.complete:
            out.append(UsageReport(usage))
        out.append(ReplyEnd())
        self.done = True

    def _prompt_cut(self, usage: Usage) -> PromptCut | None:
        """Return how much of the prompt the upstream has read, or None if it has read all of it."""
        return prompt_cut(self.plan, usage, self._prompt, sent=self._response.sent)

    def _fail(self, error: StreamtoolError, out: list[ReplyEvent]) -> None:
        # The first error counts: later ones are mostly its consequences.
        if self._record.error is not None or self.done:
            return
        # The client's reply is already complete, so a failure of the upstream no longer concerns it.
        if self.lingers:
            self._end(out)
            return
        if self._resume(error):
            return
        if self._resuming.pending is not None and isinstance(error, UpstreamError | RequestError):
            # The reply could not be continued, so it ends in the way in which it would have ended before.
            self._count_lost()
            cause = self._resuming.pending.cause
            if isinstance(cause, ReplyFinish):
                # An error that ends the choice is final: with `pending`, it would lead here again.
                pending, self._resuming.pending = self._resuming.pending, None
                self._choices[0].give_up(out)
                self._finish_choice(self._choices[0], cause, out)
                if not self._attempt_ended:
                    self._resuming.pending = pending  # the usage has been counted
                    self._end(out)
                    self._resuming.pending = None
                self.cut = self.done
                return
            error = cause
        # Text before the error is delivered. Text that waits for a forced call is released only if the stream has
        # begun; if it has not, the error can still become the status of the response.
        self._choices.break_off(out, begun=self.head is not None and self._rejected is None)
        self._record.error = error
        self._rejected = None
        self.done = self.cut = True
        out.append(ReplyFailure(error))

    def _continue_call(self, choice: ChoiceFilter) -> bool:
        """Request an attempt that continues a broken call from its last good character, and return whether one may
        follow.
        """
        cause = ReplyFinish(choice.choice, Reason.STOP)
        if not self._may_resume(cause):
            return False
        found = self._choices.find_broken_call(choice, self._resuming.call)
        if found is None:
            return False
        call, parser = found
        choice.continue_call(call.text, ContinuedCall(parser, call.ahead) if call.ahead else parser)
        return self._resume(cause, call)

    def _end_repetition(self, choice: ChoiceFilter, out: list[ReplyEvent]) -> None:
        """Stop a reply that repeats itself without end in a call. Another attempt continues it from the beginning of
        the repetitions, or it ends as if it had reached the token limit.
        """
        choice.go_on()
        cause = ReplyFinish(choice.choice, Reason.LENGTH)
        call = self._choices.find_open_call(choice)
        if call is None or not self._resume(cause, call):
            self._finish_choice(choice, cause, out)
            self._end(out)
            self.cut = True

    def _end_turn(self, choice: ChoiceFilter, out: list[ReplyEvent]) -> None:
        """End this choice as if the upstream had ended it where the model begins another turn."""
        if not choice.finished and self._rejected is None:
            self._finish_choice(choice, ReplyFinish(choice.choice, Reason.STOP), out)
        if self._rejected is not None or self._choices.finished:
            self._end(out)
            self.cut = True

    def _resume(self, cause: StreamtoolError | ReplyFinish, call: BrokenCall | None = None) -> bool:
        """Request an attempt that continues the reply, and return whether one may follow. `cause` is the way in which
        the reply ended, and `call` the call that has become unreadable.
        """
        if not self._may_resume(cause):
            return False
        told = self._upstream.reader.usage
        if self._resuming.pending is not None:
            self._count_lost()
        else:
            self._record.count(told, sent=self._response.sent, written=self._choices.written)
        self._request_resumption(cause, told, call)
        self.retry = True
        self.died = not isinstance(cause, ReplyFinish) and cause.code != CONTRADICTED
        return True

    def _request_resumption(
        self, cause: StreamtoolError | ReplyFinish, told: Usage | None, call: BrokenCall | None
    ) -> None:
        """Determine how the next attempt continues the reply. `told` is the usage that the upstream has reported."""
        tokenizer = None if self._tokenizers is None else self._tokenizers.of(self.plan.model)
        first, seconds = self._choices[0], self._record.seconds
        self._resuming.request(cause, self.plan, told, first, tokenizer=tokenizer, seconds=seconds, call=call)

    def _may_resume(self, cause: StreamtoolError | ReplyFinish) -> bool:
        """Return whether an attempt may continue the reply that ended in this way."""
        first = self._choices.filters.get(0)
        text = "" if first is None or self._rejected is not None else first.unfinished
        return not (
            not text
            or self._resuming.count >= self.plan.model.resume
            or self._corrected_attempts >= self._settings.limits.attempts
            or not (isinstance(cause, ReplyFinish) or may_be_continued(cause))
            or not self._upstream_continues()
        )

    def _upstream_continues(self) -> bool:
        """Return whether the upstream continues the beginning of a reply to its last request."""
        prompt = self._prompt()
        return prompt is not None and continues(self.plan, self.conversation, prompt)

    def _count_lost(self) -> None:
        """Count the usage of an attempt that has not continued the reply."""
        if self._upstream.error is None:
            self._record.count_lost(self._upstream.reader.usage, sent=self._response.sent)

    def _continued(self, again: int) -> None:
        """Note that the model continues the reply after `again` deltas that repeat a part of it."""
        continued = self._resuming.end(again)
        self._choices[0].continued()
        if continued is not None:
            self._record.resumed += (continued.interruption,)

    def _send(self, out: list[ReplyEvent]) -> bytes:
        data = self._response.send(out, done=self.done, error=self._record.error) if out else b""
        listener = self._choices.parsers.listener
        if listener is not None:
            listener.sent(out, data, "" if out else self._choices.buffering_reason)
        return data

    def _try_fallback(self, status: int, events: list[ReplyEvent]) -> bool:
        """Prepare an attempt without the feature that the upstream declined. Return False if nothing can be omitted."""
        announced = self.conversation.background and self._response.headers.attempts == 1
        # A fallback is possible only while the client has received nothing. Fallbacks count against `limits.attempts`,
        # but not against `retries`, since a declined feature is not the model's fault.
        if (self._response.head and not announced) or self._corrected_attempts >= self._settings.limits.attempts:
            return False
        failure = _error_in(events)
        known, doubted = self._known, self.plan.forcing.doubted
        following = next_plan(
            self.plan, Refusal(status, failure.message, self.conversation, self._response.sent), known
        )
        reason = None if following is None else following.reason
        if known is not None:
            if doubted and not (reason is not None and reason.failure.effect is Effect.WITHOUT_USAGE):
                known.forget(doubted)  # the error was not about the constraint
            if following is not None and following.learnt:
                known.learn(following.learnt)
        if following is None or reason is None:
            return False
        self._follow(following)
        self._choices.reset(self._rules(self._choices.rules.refusals.phrases))
        self._record.reject(reason)
        self.retry = True
        return True


def _error_in(events: list[ReplyEvent]) -> StreamtoolError:
    """Return the error of an error response, whose only event is its failure."""
    (failure,) = events
    assert type(failure) is ReplyFailure  # noqa: S101  no other event is made for an error response
    return failure.error
