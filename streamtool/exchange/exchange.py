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
from collections.abc import Callable, Iterable

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange.encoding import Inflate
from streamtool.exchange.error_response import ErrorResponse
from streamtool.exchange.interfaces import Capabilities, Memory, Record, ResponseHead, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener
from streamtool.exchange.parsing import Parsing
from streamtool.exchange.record_builder import RecordBuilder, no_time
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response import ClientResponse, lower
from streamtool.policy import CallIds, Cause, Gate, cause, correction, rules_for
from streamtool.policy.refusals import Phrases
from streamtool.protocols.interfaces import ClientProtocol, UpstreamReader
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
)
from streamtool.settings import ModelSettings, Settings


class Exchange:
    """A client's request and its reply. Raises RequestError (before anything was sent) when it cannot be honoured."""

    __slots__ = (
        "_account", "_again", "_attempts", "_clock", "_failed", "_gates", "_ids", "_inflate", "_parsing", "_reader",
        "_refusal", "_request", "_response", "_rules", "_settings", "conversation", "cut", "done", "model", "retry",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        wire: ClientProtocol,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        new_id: Callable[[str], str],
        now: int,
        clock: Callable[[], float] | None = None,
        memory: Memory | None = None,
        capabilities: Capabilities | None = None,
        phrases: Phrases | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock or no_time
        self._account = RecordBuilder(self._clock)
        asked = self._request = ClientRequest(settings, wire, body, headers, memory=memory, capabilities=capabilities)
        self.conversation: Conversation = asked.conversation
        self.model: ModelSettings = asked.model
        self._response = ClientResponse(wire, asked, new_id=new_id, now=now, clock=self._clock, memory=memory)
        self._rules = rules_for(self.conversation, settings, native=asked.native, phrases=phrases)
        self._parsing = Parsing(settings, asked, self._rules)
        self._ids = CallIds(
            lambda: new_id(wire.CALL_ID), (call.id for message in self.conversation.messages for call in message.calls)
        )
        self._gates: dict[int, Gate] = {}
        self._reader: UpstreamReader = asked.upstream.ReplyReader(n=self.conversation.n)
        self._attempts = 0
        self._again: tuple[Cause, str] | None = None
        """Why another attempt follows, and what the model is told of it."""
        self._inflate: Inflate | None = None
        self._refusal: ErrorResponse | None = None
        self._failed = False
        self.done = False
        self.cut = False
        self.retry = False

    # --- the request -------------------------------------------------------------------------------------------------

    @property
    def passthrough(self) -> bool:
        """Nothing to do here. The shell passes request and reply on as they are."""
        return self._request.passthrough

    @property
    def head(self) -> ResponseHead | None:
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
    def listener(self) -> ExchangeListener | None:
        """Who is told what is parsed; set it before the first `request`."""
        return self._parsing.listener

    @listener.setter
    def listener(self, listener: ExchangeListener | None) -> None:
        self._parsing.listener = listener

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
        if self.listener is not None:
            self.listener.attempt(attempt)
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
        self._refusal = None

    # --- the reply, as the shell reports it --------------------------------------------------------------------------

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The upstream has answered with this status. Returns what the client is to receive now (an error)."""
        named = lower(headers)
        self._response.keep(named)
        if self.listener is not None:
            self.listener.answered(status)
        encoding = dict(named).get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if not 200 <= status < 300:
            self._refusal = ErrorResponse(status)
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
        if self._inflate is None:
            return self._feed(data)
        out = b""
        try:
            for piece in self._inflate.pieces(data):
                out += self._feed(piece)
                if self._settled():
                    break
        except zlib.error:
            out += self.fail(UpstreamError("the upstream's compressed reply cannot be decoded"))
        return out

    def _feed(self, data: bytes) -> bytes:
        if self._refusal is not None:
            return self.close() if self._refusal.feed(data) else b""
        return self._take(self._reader.feed(data))

    def close(self) -> bytes:
        """The upstream's body is over. Returns what the client is to receive at the end."""
        if self._settled():
            return b""
        if self._refusal is not None:
            error = self._refusal.error(self._request.upstream)
            return b"" if self._falls_back(self._refusal.status, error) else self._take([ReplyFailure(error)])
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
            return self._take([ReplyFailure(error)])
        if self._refusal is not None:
            return self._take([ReplyFailure(self._refusal.error(self._request.upstream))])
        # what the upstream had said may be the whole reply, though its connection did not end as it should
        events = self._reader.close() or [ReplyFailure(error)]
        if type(events[-1]) is ReplyFailure:
            events[-1] = ReplyFailure(error)
        return self._take(events)

    def keepalive(self) -> bytes:
        """Nothing came for a while. Returns a comment for the client; the status no longer waits."""
        return b"" if self.done else self._response.silence()

    def record(self) -> Record:
        """What happened; complete once the exchange is done."""
        gates = list(self._gates.values())
        return self._account.record(self._request, self._response, gates, quoted=self._parsing.quoted, done=self.done)

    def _settled(self) -> bool:
        """This attempt has nothing more to say."""
        return self.done or self.retry

    # --- events ------------------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[ReplyEvent]) -> bytes:
        """The upstream's events, through the gates; bytes for the client."""
        out: list[ReplyEvent] = []
        gates = self._gates
        for event in events:
            if type(event) is ReplyTextDelta:
                gate = gates.get(event.choice)
                if gate is None:
                    gate = self._gate(event.choice)
                if self._attempts > 1:
                    event = ReplyTextDelta(event.choice, event.text)  # noqa: PLW2901  its bytes bear its own id
                gate.feed(event, out)
                if gate.over:
                    self._over(gate, out)
            else:
                self._other(event, out)
            if self._settled():
                break
        return self._send(out)

    def _other(self, event: ReplyEvent, out: list[ReplyEvent]) -> None:
        match event:
            case ReplyStart():
                if not self._response.started:
                    self._response.name(event)
                    if not self._rules.forced:
                        out.append(self._response.begin())
            case ReplyFinish():
                gate = self._gate(event.choice)
                if not gate.finished:
                    self._finish(gate, event, out)
            case UsageReport(usage=usage):
                self._account.told = usage
            case ReplyEnd():
                self._end(out)
            case ReplyFailure(error=error):
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
                lambda: self._parsing.parser(self._rules, choice, again=self._may_retry()),
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
            self._account.reason = self._account.reason or Reason.STOP
            self._finished(gate, ReplyFinish(gate.choice, Reason.STOP), out)
        if len(self._gates) >= self.conversation.n and all(each.finished for each in self._gates.values()):
            self.cut = True
            self._end(out)

    def _finish(self, gate: Gate, event: ReplyFinish, out: list[ReplyEvent]) -> None:
        self._account.reason = event.reason
        gate.close(event.reason, out)
        found = cause(gate, self._rules, event.reason)
        if found is not None and self._may_retry():
            self._again = found
            return
        if found is not None:
            self._account.unmet = self._response.unmet = self._account.unmet or found[0]
        gate.finished = True
        self._finished(gate, event, out)

    def _finished(self, gate: Gate, event: ReplyFinish, out: list[ReplyEvent]) -> None:
        gate.release(out)
        lacks: Cause | None = gate.lacks
        if gate.stopped is not None and self._rules.forced and not gate.calls:
            lacks = "required call missing"
        self._account.unmet = self._response.unmet = self._account.unmet or lacks
        if gate.fault is not None and self._rules.invalid == "error":
            self._fail(
                UpstreamError(
                    f"the arguments of a call do not fit: {gate.fault.message}", code="invalid_arguments"
                ).quoting(),
                out,
            )
            return
        if gate.stopped is not None:
            event = ReplyFinish(event.choice, Reason.STOP_SEQUENCE, gate.stopped)
        if gate.incomplete and event.reason is not Reason.FILTER:
            if self._rules.truncated == "error":
                self._fail(UpstreamError("the reply ended inside a call", code="truncated_call"), out)
                return
            event = ReplyFinish(event.choice, Reason.LENGTH)
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
                    self._finish(gate, ReplyFinish(gate.choice, Reason.STOP), out)
        if self._failed:
            return
        written = sum(gate.length for gate in self._gates.values())
        stopped = self.cut or self._again is not None
        self._account.count(sent=self._request.size, written=written, stopped=stopped)
        if self._again is not None:
            self._account.again(*self._again)
            self.retry = True
            return
        gate, usage = self._gates[0], self._account.usage
        if gate.called and self._ids.made(gate.called[0]) and not gate.incomplete:
            self._parsing.keep(gate.wrote, gate.called, self._rules)
        if usage != Usage() or self.conversation.include_usage or self._response.whole:
            out.append(UsageReport(usage))
        out.append(ReplyEnd())
        self.done = True

    def _fail(self, error: StreamtoolError, out: list[ReplyEvent]) -> None:
        if self._failed or self.done:
            return
        for gate in self._gates.values():
            if not gate.finished:
                gate.close(None, out)
        self._account.error = error
        self._failed = True
        self._again = None
        self.done = self.cut = True
        out.append(ReplyFailure(error))

    def _send(self, out: list[ReplyEvent]) -> bytes:
        data = self._response.send(out, done=self.done, error=self._account.error) if out else b""
        if self.listener is not None and out:
            self.listener.sent(out)
        return data

    def _falls_back(self, status: int, error: StreamtoolError) -> bool:
        """Whether the upstream turned out to know no tools, or no such forcing; the next attempt does without."""
        if self._response.head is not None or self._attempts >= self._settings.limits.attempts:
            return False
        unable = self._request.falls_back(status, error.message)
        if unable is None:
            return False
        if unable == "tools unsupported":
            self._rules = rules_for(self.conversation, self._settings, phrases=self._rules.phrases)
        self._gates.clear()
        self._account.again(unable, "")
        self.retry = True
        return True
