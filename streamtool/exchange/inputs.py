"""The inputs of an exchange, from which another exchange can repeat it.

An exchange does no I/O, and its ids and the time are given to it. An exchange that receives the same request and the
same inputs is therefore in the same state, and has produced the same events. Two features use this: the inspector
repeats an exchange with a listener, but only if someone views it, and another process repeats a background response
before it continues it (`responses_api.journal`).

Recording costs an append per delta. The results of services whose answers may change later are recorded as well: the
plan, the stored values that the request refers to, each request to the upstream, and the ids. So the repetition needs
none of these services, and stores nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final

from attrs import define, evolve, field, frozen

from streamtool import prompting
from streamtool.core.conversation import Tool
from streamtool.core.errors import StreamtoolError
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import NO_SERVICES, ClientStore, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received, receive
from streamtool.prompting import ToolSearch
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.settings import Settings

INPUT_OVERHEAD: Final = 100
"""Approximate number of bytes of memory that an input requires in addition to its data."""
OTHER_OVERHEAD: Final = 1_000
"""The same for a request, and for an input that is not data."""
_REPORTED: Final = 16 * 1024
"""Growth of a log, in bytes, between two reports."""
_ENCODING: Final = b"content-encoding"
_USED: Final = frozenset((_ENCODING, b"x-request-id", b"request-id"))
"""The upstream's headers that the reply depends on. A journal also needs the others, but without one, none is kept."""


class InputStep(Enum):
    """An input without data: a call of the exchange's method with this name."""

    MAKE_READY = auto()
    REQUEST = auto()
    CLOSE = auto()
    ANNOUNCE = auto()
    PREPARE = auto()
    KEEPALIVE = auto()


@frozen
class UpstreamHead:
    """The status and headers of the upstream's response."""

    status: int
    headers: Headers


@frozen
class LongData:
    """Data whose long deltas are split."""

    data: bytes = field(repr=False)


ExchangeInput = bytes | LongData | UpstreamHead | InputStep | StreamtoolError
"""An input: data, the response's head, a step, or the error that cut the reply off."""


def repeat(exchange: Exchange, inputs: Iterable[ExchangeInput]) -> bytes:
    """Process the inputs of another exchange, and return the resulting data for the client."""
    return b"".join([_process(exchange, one) for one in inputs])


def _process(exchange: Exchange, one: ExchangeInput) -> bytes:
    match one:
        case bytes():
            return exchange.feed(one)
        case LongData(data=data):
            return exchange.feed(data, long=True)
        case UpstreamHead(status=status, headers=headers):
            return exchange.respond(status, headers)
        case InputStep.MAKE_READY:
            exchange.make_ready()
            return b""
        case InputStep.REQUEST:
            exchange.request()
            return b""
        case InputStep.CLOSE:
            return exchange.close()
        case InputStep.ANNOUNCE:
            return exchange.announce()
        case InputStep.PREPARE:
            return exchange.prepare()
        case InputStep.KEEPALIVE:
            return exchange.keepalive()
        case _:
            return exchange.fail(one)


@frozen
class Origin:
    """The beginning of an exchange. The request is kept as bytes, which need less memory than the conversation."""

    settings: Settings
    protocol: ClientProtocol
    services: Services
    created: int
    client: str
    body: bytes = field(repr=False)
    encoding: Headers
    """The request's header with the encoding of the body, if there is one. Other headers may contain keys."""
    demanded: dict[str, bytes | None] | None = field(repr=False)
    """The stored values that the request refers to, by id; None without a store."""
    tools: tuple[Tool, ...] = field(repr=False)
    plan: Plan

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        demanded = () if self.demanded is None else self.demanded.values()
        return OTHER_OVERHEAD + len(self.body) + sum([len(value) for value in demanded if value is not None])

    def received(self) -> Received:
        """Return the request, read once more."""
        found = receive(
            self.settings,
            self.protocol,
            self.body,
            self.encoding,
            client=self.client,
            memory=None if self.demanded is None else _RepeatedStore(self.demanded),
        )
        asked = prompting.stabilize(found.conversation) if self.plan.stabilized else found.conversation
        if asked.tools != self.tools:  # those of an earlier request
            asked = evolve(asked, tools=self.tools)
        return Received((), b"", self.client, asked, found.plain)


@frozen
class SentRequest:
    """A request to the upstream, and what the exchange knew when it was made."""

    request: UpstreamRequest
    plan: Plan
    searches: tuple[ToolSearch, ...]
    additions: tuple[str | None, str | None] | None
    limit: int | None


@define(eq=False)
class InputLog:
    """The inputs of one exchange, as far as they have been processed."""

    origin: Origin
    ids: list[str]
    size: int = field(init=False)
    """Approximate size in bytes, including the request."""
    inputs: list[ExchangeInput] = field(factory=list, init=False)
    times: list[float] = field(factory=list, init=False)
    """The time after each input. An input is complete when its time is known."""
    requests: list[SentRequest] = field(factory=list, init=False)
    sent: int = field(default=0, init=False)
    """Size in bytes of the data for the client. The repetition's must be the same."""
    put: Callable[[ExchangeInput], object] = field(init=False)
    stamp: Callable[[float], object] = field(init=False)
    reported: int = field(default=0, init=False)
    """The log reports its growth when it exceeds this size."""
    _on_growth: Callable[[], object] | None = field(default=None, init=False)
    taken: int | None = field(default=None, init=False)
    """Number of inputs that the journal has taken, or None without a journal."""

    def __attrs_post_init__(self) -> None:
        self.size = self.origin.size
        self.put, self.stamp = self.inputs.append, self.times.append

    def watch(self, on_growth: Callable[[], object]) -> None:
        """Keep all inputs from now on. `on_growth` is called when the log has grown."""
        self._on_growth = on_growth

    def report(self) -> None:
        """Report that the log has grown."""
        self.reported = self.size + _REPORTED
        if self._on_growth is not None:
            self._on_growth()

    def take(self) -> list[ExchangeInput]:
        """Return the inputs since the last call. Unless the log is watched, they are not kept."""
        count = len(self.times)
        taken = self.inputs[self.taken : count]
        self.taken = count
        if self._on_growth is None:
            self._forget(count)
        return taken

    def stop(self) -> None:
        """Free memory by discarding the inputs and those that follow, except those that the journal has yet to take."""
        self._on_growth = None
        self.requests.clear()
        if self.taken is None:
            self.put = self.stamp = _ignore
        self._forget(len(self.times) if self.taken is None else self.taken)

    def _forget(self, count: int) -> None:
        del self.inputs[:count], self.times[:count]
        self.requests.clear()
        if self.taken is not None:
            self.taken -= count


class RecordedExchange(Exchange):
    """An exchange that records its inputs. `time` is read after each input."""

    __slots__ = ("_time", "log")

    def __init__(
        self,
        settings: Settings,
        client: ClientProtocol,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        new_id: Callable[[str], str],
        now: int,
        time: Callable[[], float],
        clock: Callable[[], float] | None = None,
        services: Services = NO_SERVICES,
        identity: str | None = None,
    ) -> None:
        demanded, ids = None, list[str]()
        if services.store is not None:
            demanded = dict[str, bytes | None]()
            services = services.for_client(_RecordedStore(services.store, demanded))

        def recorded_id(prefix: str) -> str:
            ids.append(new_id(prefix))
            return ids[-1]

        super().__init__(
            settings,
            client,
            body,
            headers,
            new_id=recorded_id,
            now=now,
            clock=clock,
            services=services,
            identity=identity,
        )
        received = self.received
        origin = Origin(
            settings,
            client,
            Services(
                capabilities=None if services.capabilities is None else _NO_CAPABILITIES,
                tokenizers=services.tokenizers,
                phrases=services.phrases,
            ),
            now,
            received.client,
            body,
            tuple([pair for pair in received.headers if pair[0] == _ENCODING]),
            demanded,
            received.conversation.tools,
            _without_signatures(self.plan),
        )
        self._time = time
        self.log = InputLog(origin, ids)

    def request(self) -> UpstreamRequest:
        made = super().request()
        if not self.passthrough:
            self._record_input(InputStep.REQUEST, b"")
        return made

    def make_ready(self) -> None:
        super().make_ready()
        if isinstance(self.ready, UpstreamRequest):
            self._record_input(InputStep.MAKE_READY, b"")

    def _attempt(self) -> UpstreamRequest:
        made, resuming = super()._attempt(), self._resuming
        kept = evolve(made, headers=(), conversation=None)
        plan = _without_signatures(self.plan)
        self.log.requests.append(SentRequest(kept, plan, self._searches, resuming.additions, resuming.limit))
        self.log.size += len(made.body)
        return made

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        given = tuple(headers)
        out = super().respond(status, given)
        if self.log.taken is None:
            given = tuple([pair for pair in given if pair[0].lower() in _USED])
        return self._record_input(
            UpstreamHead(status, given), out, sum(len(name) + len(value) for name, value in given)
        )

    def feed(self, data: bytes, *, long: bool = False) -> bytes:
        out = Exchange.feed(self, data, long=long)
        log = self.log
        log.put(LongData(data) if long else data)
        log.stamp(self._time())
        log.sent += len(out)
        log.size = size = log.size + len(data) + INPUT_OVERHEAD
        if size > log.reported:
            log.report()
        return out

    def close(self) -> bytes:
        return self._record_input(InputStep.CLOSE, super().close())

    def fail(self, error: StreamtoolError) -> bytes:
        return self._record_input(error, super().fail(error))

    def announce(self) -> bytes:
        return self._record_input(InputStep.ANNOUNCE, super().announce())

    def prepare(self) -> bytes:
        return self._record_input(InputStep.PREPARE, super().prepare())

    def keepalive(self) -> bytes:
        return self._record_input(InputStep.KEEPALIVE, super().keepalive())

    def _record_input(self, one: ExchangeInput, out: bytes, size: int = 0) -> bytes:
        """Record an input that has led to this data for the client, and return the data."""
        log = self.log
        log.put(one)
        log.stamp(self._time())
        log.sent += len(out)
        log.size += size + OTHER_OVERHEAD
        log.report()
        return out


@define(eq=False)
class _RecordedStore:
    """A client's store that records the values that a request refers to."""

    _store: ClientStore
    _demanded: dict[str, bytes | None]

    @property
    def unstored(self) -> ClientStore | None:
        return self._store.unstored

    def recall(self, id: str, /) -> bytes | None:
        return self._store.recall(id)

    def demand(self, id: str, /) -> bytes | None:
        found = self._demanded[id] = self._store.demand(id)
        return found

    def remember(self, id: str, value: bytes, /) -> None:
        self._store.remember(id, value)


@frozen
class _RepeatedStore:
    """A store that contains only the values that a request refers to."""

    _demanded: Mapping[str, bytes | None]
    unstored: None = None

    def recall(self, id: str, /) -> bytes | None:
        return self._demanded.get(id)

    def demand(self, id: str, /) -> bytes | None:
        return self._demanded.get(id)

    def remember(self, id: str, value: bytes, /) -> None:
        """Do nothing."""


class _NoCapabilities:
    """Capabilities that are never asked for: the plans have been recorded."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:  # noqa: ARG002
        return False

    lacks_locally = lacks

    def learn(self, client: str, upstream: str | None, model: str, ability: str, /) -> None:
        """Do nothing."""

    forget = learn


_NO_CAPABILITIES: Final = _NoCapabilities()


def _without_signatures(plan: Plan) -> Plan:
    """Return the plan without the store for signatures."""
    return plan if plan.signatures is None else evolve(plan, signatures=None)


def _ignore(_: object) -> None:
    """Discard an input, or its time."""


class RepeatedExchange(Exchange):
    """An exchange that repeats a recorded one. It follows the recorded plans, makes no requests, and stores nothing."""

    __slots__ = ("_ids", "_log")

    def __init__(self, log: InputLog, *, clock: Callable[[], float], listener: ExchangeListener) -> None:
        origin = log.origin
        self._log = log
        self._ids = 0
        """Number of ids so far."""
        super().__init__(
            origin.settings,
            origin.protocol,
            b"",
            (),
            new_id=self._next_id,
            now=origin.created,
            clock=clock,
            services=origin.services,
            begun=(origin.received(), origin.plan),
        )
        self.listener = listener

    def _next_id(self, _: str) -> str:
        self._ids += 1
        return self._log.ids[self._ids - 1]

    def _attempt(self) -> UpstreamRequest:
        sent = self._log.requests[self._response.headers.attempts]
        self._follow(sent.plan)
        self._searches = sent.searches
        self._response.sent = len(sent.request.body)
        self._resuming.additions, self._resuming.limit = sent.additions, sent.limit
        return sent.request
