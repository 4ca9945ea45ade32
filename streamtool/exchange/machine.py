"""One client request and its reply, attempts included: bytes in, bytes out, no I/O.

    body ─▶ read_request ─▶ Conversation ─▶ project ─▶ write_request ─▶ request()       … the shell sends it …
    respond(), feed(), close() ─▶ ReplyReader ─▶ one Gate per choice (parser, rules) ─▶ ReplyWriter ─▶ bytes

Reading the request and writing the reply is the client's protocol, the rest is the upstream's; which one that is, the
settings of the model say. A request without anything to do with tools passes untouched if both are the same, and is
translated like any other, without a parser, if they are not.

The shell (middleware, transport) does what the exchange says: it sends `request()`, tells `respond` the status, feeds
what arrives, calls `close` at the end or `fail` when there is none, and passes each result on to the client in one
write. Meanwhile it watches four attributes:

- `head`: None while the status is withheld, then what to send first. It is withheld until there is something to show,
  so that an upstream's refusal, or an error as the first event, becomes a real status; `keepalive()` ends the wait.
- `done`: the reply is over and everything has been handed out.
- `cut`: it is over although the upstream has more to say: stop the upstream now.
- `retry`: this attempt was not accepted: stop the upstream, send `request()` again.

A reply that is not streamed is the fold of the same events: the upstream is asked to stream all the same, nothing is
handed out before the end, and a failure is a status. Ids and the time come from outside.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable

import statemachine
from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.exchange.encoding import Inflate
from streamtool.exchange.request import Request
from streamtool.exchange.response import Response, lower
from streamtool.exchange.shapes import Abilities, ClientWire, Head, Memory, Reader, Record, UpstreamRequest, numbers
from streamtool.exchange.toolsets import remember
from streamtool.exchange.traced import ParserOptions, Trace, Traced
from streamtool.policy import (
    Cause,
    Gate,
    HoldingParser,
    Ids,
    Plain,
    Prefilled,
    TextParser,
    Wary,
    cause,
    correction,
    goes_on,
    quotable,
    rules_for,
)
from streamtool.policy.refusals import Phrases
from streamtool.prompting import key, words
from streamtool.reply import End, Failure, Finish, Reason, ReplyEvent, Start, TextDelta, Usage, UsageReport
from streamtool.settings import ModelSettings, Settings
from streamtool.turns import turn


def _no_time() -> float:
    """The clock of an exchange that was given none."""
    return 0.0


ERROR_BODY = 64 * 1024
"""Bytes of an upstream's error body that are looked at."""
_TOKEN = 4
"""Characters of a token, where its count has to be estimated."""


class Exchange:
    """A client's request and its reply. Raises RequestError (before anything was sent) when it cannot be honoured."""

    __slots__ = (
        "_again", "_attempts", "_began", "_causes", "_clock", "_details", "_error", "_estimated", "_failed", "_gates",
        "_ids", "_inflate", "_quotable", "_reader", "_reason", "_refusal", "_refused", "_request", "_response",
        "_retried", "_rules", "_settings", "_unmet", "_usage", "_usage_now", "conversation", "cut", "done", "model",
        "retry", "trace",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        wire: ClientWire,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float] | None = None,
        memory: Memory | None = None,
        abilities: Abilities | None = None,
        phrases: Phrases | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or _no_time
        self._began = self._clock()
        asked = self._request = Request(settings, wire, body, headers, memory=memory, abilities=abilities)
        self.conversation: Conversation = asked.conversation
        self.model: ModelSettings = asked.model
        self._response = Response(wire, asked, new_id=new_id, now=now, clock=self._clock, memory=memory)
        self._rules = rules_for(self.conversation, settings, native=asked.native, phrases=phrases)
        self._quotable = (
            quotable(self.conversation, self._rules.callable) if asked.reads and settings.quoted == "text" else None
        )
        self._ids = Ids(
            lambda: new_id(wire.CALL_ID), (call.id for message in self.conversation.messages for call in message.calls)
        )
        self._gates: dict[int, Gate] = {}
        self._reader: Reader = asked.upstream.ReplyReader(n=self.conversation.n)
        self._attempts = 0
        self._causes: list[Cause] = []
        self._details: list[str] = []
        self._retried: list[float] = []
        self._again: tuple[Cause, str] | None = None
        """Why another attempt follows, and what the model is told of it."""
        self._inflate: Inflate | None = None
        self._refused: int | None = None
        self._refusal = b""
        self._usage = Usage()
        self._usage_now: Usage | None = None
        self._estimated = False
        self._unmet: Cause | None = None
        self._reason: Reason | None = None
        self._error: StreamtoolError | None = None
        self._failed = False
        self.done = False
        self.cut = False
        self.retry = False
        self.trace: Trace | None = None
        """Who is told what is parsed; set it before the first `request`."""

    # --- the request -------------------------------------------------------------------------------------------------

    @property
    def passthrough(self) -> bool:
        """Nothing to do here. The shell passes request and reply on as they are."""
        return self._request.passthrough

    @property
    def head(self) -> Head | None:
        """What to send first; None while the status is withheld."""
        return self._response.head

    @property
    def mode(self) -> str:
        """How it is served; the word of the log record."""
        return self._request.mode

    @property
    def upstream_protocol(self) -> str:
        """What the upstream speaks."""
        return self._request.upstream.NAME

    @property
    def request_id(self) -> str:
        """What the header with the request's id says, unless the upstream's reply brings its own."""
        return self._response.request_id

    def request(self) -> UpstreamRequest:
        """The next attempt. Raises RequestError when the contract does not fit."""
        if self.passthrough:
            return self._request.untouched()
        again = self._again
        attempt = self._request.attempt(
            self._attempts + 1,
            correction=None if again is None else correction(*again, self.conversation, self._attempts),
            continued=self._gates[0].wrote if again is not None and self._gates[0].visible else None,
        )
        self._next_attempt()
        if self.trace is not None:
            self.trace.attempt(attempt)
        return attempt

    def _next_attempt(self) -> None:
        self._attempts += 1
        self._response.attempts = self._attempts
        if self._attempts > 1:
            self._reader = self._request.upstream.ReplyReader(n=self.conversation.n)
            for gate in self._gates.values():
                gate.restart(again=self._may_retry())
        self._again = None
        self.retry = False
        self._inflate = None
        self._refused = None
        self._refusal = b""

    def _parser(self, choice: int | None = None) -> TextParser:
        """The parser of this choice; None: of text that has been read before, of which nobody is told."""
        if not self._request.reads:
            return self._traced(choice, None)
        held_to = self._request.forcing
        if held_to is not None and held_to.way == "prefill":
            return Prefilled(held_to, lambda prefix: self._text_parser(choice, prefix))
        return self._text_parser(choice)

    def _text_parser(self, choice: int | None, prefix: str = "") -> TextParser:
        settings, limits = self._settings, self._settings.limits
        options = ParserOptions(
            self._rules.callable,
            formats=self._request.listens,
            prefix=prefix,
            unknown="discard" if self._rules.unknown in ("drop", "retry") else "text",
            malformed="discard" if self._leaves_out() else "text",
            in_fences=settings.in_fences,
            calls_in_reasoning=self.model.calls_in_reasoning,
            limits=statemachine.Limits(
                held=limits.held, arguments=limits.arguments, depth=limits.depth, name=limits.name
            ),
        )
        parser = self._traced(choice, options)
        return (
            parser
            if self._quotable is None
            else Wary(parser, self._quotable, limit=limits.held, counts=choice is not None)
        )

    def _traced(self, choice: int | None, options: ParserOptions | None) -> HoldingParser:
        if self.trace is not None and choice is not None:
            return Traced(self.trace, choice, options)
        return Plain() if options is None else options.parser()

    def _leaves_out(self) -> bool:
        """What was meant as a call and cannot be read is no text of this attempt."""
        wanted = self._rules.malformed
        return wanted == "drop" or (wanted == "retry" and self._may_retry())

    # --- the reply, as the shell reports it --------------------------------------------------------------------------

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The upstream has answered with this status. Returns what the client is to receive now (an error)."""
        named = lower(headers)
        self._response.keep(named)
        if self.trace is not None:
            self.trace.answered(status)
        encoding = dict(named).get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if not 200 <= status < 300:
            self._refused = status
        if encoding not in ("", "identity"):
            if encoding not in ("gzip", "x-gzip", "deflate"):
                return self.fail(
                    UpstreamError(
                        f"the upstream answered with content-encoding {encoding}, though identity was asked for"
                    )
                )
            self._inflate = Inflate(encoding)
        return b""

    def feed(self, data: bytes) -> bytes:
        """More of the upstream's body has arrived. Returns what the client is to receive now."""
        if self.done or self.retry or not data:
            return b""
        if self._inflate is not None:
            try:
                data = self._inflate.feed(data)
            except zlib.error:
                return self.fail(UpstreamError("the upstream's compressed reply cannot be decoded"))
        if self._refused is not None:
            self._refusal += data[: ERROR_BODY - len(self._refusal)]
            return self.close() if len(self._refusal) == ERROR_BODY else b""
        return self._take(self._reader.feed(data))

    def close(self) -> bytes:
        """The upstream's body is over. Returns what the client is to receive at the end."""
        if self._settled():
            return b""
        if self._refused is not None:
            error = self._refusal_error(self._refused)
            return b"" if self._falls_back(self._refused, error) else self._take([Failure(error)])
        out = self._take(self._reader.close())
        if not self._settled():
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
            return self._take([Failure(error)])
        if self._refused is not None:
            return self._take([Failure(self._refusal_error(self._refused))])
        # what the upstream had said may be the whole reply, though its connection did not end as it should
        events = self._reader.close() or [Failure(error)]
        if type(events[-1]) is Failure:
            events[-1] = Failure(error)
        return self._take(events)

    def keepalive(self) -> bytes:
        """Nothing came for a while. Returns a comment for the client; the status no longer waits."""
        return b"" if self.done else self._response.silence()

    def record(self) -> Record:
        """What happened; complete once the exchange is done."""
        gates = list(self._gates.values())
        asked, upstream, head = self.conversation, self.model.upstream, self._response.head
        found = Counter[str]()
        for gate in gates:
            found.update(gate.formats)
        return Record(
            request_id=self._response.request_id,
            protocol=self.conversation.protocol,
            upstream_protocol=self.upstream_protocol,
            model=self.conversation.model,
            upstream_model=self.model.name,
            stream=self.conversation.stream,
            mode=self._request.mode,
            format=self.model.format,
            tools=len(self.conversation.tools),
            attempts=tuple(self._causes),
            details=tuple(self._details),
            unmet=self._unmet,
            calls=sum(gate.calls for gate in gates),
            formats=tuple(found),
            repairs=tuple(dict.fromkeys(name for gate in gates for name in gate.repairs)),
            discarded=tuple(pair for gate in gates for pair in gate.discarded.items()),
            refused=sum(gate.refused for gate in gates),
            quoted=0 if self._quotable is None else self._quotable.found,
            incomplete=any(gate.incomplete for gate in gates),
            reason=self._reason,
            usage=self._usage,
            usage_estimated=self._estimated,
            held=max((gate.held_most for gate in gates), default=0),
            contract=self._request.emulates,
            history=self.conversation.has_tool_history,
            turn=turn(self.conversation.messages).value,
            seconds=self._clock() - self._began,
            first_byte=self._since(self._response.began),
            first_call=self._since(min((gate.called_at for gate in gates if gate.called_at is not None), default=None)),
            dropped=self._request.dropped,
            error=self._error,
            forced=self._request.forced,
            found=tuple(found.items()),
            retried=tuple(self._retried),
            upstream=None if upstream is None else upstream.name,
            server=None if upstream is None else upstream.server,
            served_model=self._response.served_model,
            choices=asked.n,
            options=numbers(asked.options),
            status=None if head is None else head.status,
            passed=self.passthrough,
            done=self.done,
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._began

    def _settled(self) -> bool:
        """This attempt has nothing more to say."""
        return self.done or self.retry

    # --- events ------------------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[ReplyEvent]) -> bytes:
        """The upstream's events, through the gates; bytes for the client."""
        out: list[ReplyEvent] = []
        gates = self._gates
        for event in events:
            if type(event) is TextDelta:
                gate = gates.get(event.choice)
                if gate is None:
                    gate = self._gate(event.choice)
                if self._attempts > 1:
                    event = TextDelta(event.choice, event.text)  # noqa: PLW2901  its bytes bear its own id
                gate.feed(event, out)
                if gate.over:
                    self._over(gate, out)
            else:
                self._other(event, out)
            if self.done:
                break
        return self._send(out)

    def _other(self, event: ReplyEvent, out: list[ReplyEvent]) -> None:
        match event:
            case Start():
                if not self._response.started:
                    self._response.name(event)
                    if not self._rules.forced:
                        out.append(self._response.begin())
            case Finish():
                gate = self._gate(event.choice)
                if not gate.finished:
                    self._finish(gate, event, out)
            case UsageReport(usage=usage):
                self._usage_now = usage
            case End():
                self._end(out)
            case Failure(error=error):
                self._fail(error, out)
            case _:
                gate = self._gate(event.choice)
                gate.feed(event, out)
                if gate.over:
                    self._over(gate, out)

    def _gate(self, choice: int) -> Gate:
        gate = self._gates.get(choice)
        if gate is None:
            gate = self._gates[choice] = Gate(
                self._rules,
                choice,
                self._ids,
                lambda: self._parser(choice),
                clock=self._clock,
                again=self._may_retry(),
            )
        return gate

    def _over(self, gate: Gate, out: list[ReplyEvent]) -> None:
        """The rules end this choice here; when all have ended, the upstream is not needed any more."""
        if gate.denied is not None:
            self._again = gate.denied, gate.detail
            self._end(out)
            return
        if not gate.finished:
            gate.finished = True
            self._reason = self._reason or Reason.STOP
            self._finished(gate, Finish(gate.choice, Reason.STOP), out)
        if len(self._gates) >= self.conversation.n and all(each.finished for each in self._gates.values()):
            self.cut = True
            self._end(out)

    def _finish(self, gate: Gate, event: Finish, out: list[ReplyEvent]) -> None:
        self._reason = event.reason
        gate.close(event.reason, out)
        found = cause(gate, self._rules, event.reason)
        if found is not None and self._may_retry():
            self._again = found
            return
        if found is not None:
            self._unmet = self._response.unmet = self._unmet or found[0]
        gate.finished = True
        self._finished(gate, event, out)

    def _finished(self, gate: Gate, event: Finish, out: list[ReplyEvent]) -> None:
        gate.release(out)
        if gate.fault is not None and self._rules.invalid == "error":
            self._fail(
                UpstreamError(
                    f"the arguments of a call do not fit: {gate.fault.message}", code="invalid_arguments"
                ).quoting(),
                out,
            )
            return
        if gate.stopped is not None:
            event = Finish(event.choice, Reason.STOP_SEQUENCE, gate.stopped)
        if gate.incomplete and event.reason is not Reason.FILTER:
            if self._rules.truncated == "error":
                self._fail(UpstreamError("the reply ended inside a call", code="truncated_call"), out)
                return
            event = Finish(event.choice, Reason.LENGTH)
        out.append(event)

    def _may_retry(self) -> bool:
        settings = self._settings
        return (
            not self._rules.native
            and self.conversation.n == 1
            and self._attempts < min(1 + settings.retries, settings.limits.attempts)
        )

    def _end(self, out: list[ReplyEvent]) -> None:
        """The upstream's reply is over: another attempt, or the end of ours."""
        if self._failed:
            return
        if self._again is None:
            self._gate(0)
            for gate in self._gates.values():
                if not gate.finished and self._again is None:
                    self._finish(gate, Finish(gate.choice, Reason.STOP), out)
        if self._failed:
            return
        if self._usage_now is not None:
            self._usage += self._usage_now
        elif self.cut or self._again is not None:
            self._estimated = True
            written = sum(gate.length for gate in self._gates.values())
            self._usage += Usage(input=self._request.size // _TOKEN, output=-(-written // _TOKEN))
        self._usage_now = None
        if self._again is not None:
            self._causes.append(self._again[0])
            self._details.append(self._again[1])
            self._retried.append(self._clock() - self._began)
            self.retry = True
            return
        self._remember()
        if self._usage != Usage() or self.conversation.include_usage or self._response.whole:
            out.append(UsageReport(self._usage))
        out.append(End())
        self.done = True

    def _remember(self) -> None:
        """Keep the words of a reply with calls for the prompt of the next turn."""
        gate, memory = self._gates[0], self._request.words
        if memory is None or not gate.called or gate.incomplete:
            return
        parser, text = self._parser(), gate.wrote
        events = [*parser.feed(text), *parser.close()]
        tools = remember(self.conversation, memory)
        held_to = self._request.forcing
        if held_to is not None and held_to.way == "prefill" and goes_on(text, held_to):
            text = held_to.value + text
        kept = words(text, events, gate.called, format=self.model.format, tools=tools)
        if kept is not None:
            memory.remember(key(gate.called[0]), kept)

    def _fail(self, error: StreamtoolError, out: list[ReplyEvent]) -> None:
        if self._failed or self.done:
            return
        for gate in self._gates.values():
            if not gate.finished:
                gate.close(None, out)
        self._error = error
        self._failed = True
        self._again = None
        self.done = self.cut = True
        out.append(Failure(error))

    def _send(self, out: list[ReplyEvent]) -> bytes:
        data = self._response.send(out, done=self.done, error=self._error) if out else b""
        if self.trace is not None and out:
            self.trace.sent(out)
        return data

    def _falls_back(self, status: int, error: StreamtoolError) -> bool:
        """Whether the upstream turned out to know no tools, or no such forcing; the next attempt does without."""
        unable = None if self._response.head is not None else self._request.falls_back(status, error.message)
        if unable is None:
            return False
        if unable == "tools unsupported":
            self._rules = rules_for(self.conversation, self._settings, phrases=self._rules.phrases)
        self._gates.clear()
        self._causes.append(unable)
        self._details.append("")
        self._retried.append(self._clock() - self._began)
        self.retry = True
        return True

    def _refusal_error(self, status: int) -> StreamtoolError:
        """The error that an upstream's own status and error body amount to."""
        if not 400 <= status < 600:
            return UpstreamError(f"the upstream answered with status {status}")
        told = self._request.upstream.read_error(status, self._refusal)
        if status in _AUTH_KINDS:  # whoever holds the key decides whose fault this is; here it is the client's
            return UpstreamRefused(told.message, status=status, kind=_AUTH_KINDS[status], code=told.code).quoting()
        return told


_AUTH_KINDS = {401: "authentication_error", 403: "permission_error"}
