"""The inputs of an exchange, from which another exchange can repeat it.

An exchange does no I/O, and its ids and the time are given to it. An exchange that receives the same request and the
same inputs is therefore in the same state, and has produced the same events. Two features use this: the inspector
repeats an exchange with a listener, but only if someone views it, and another process repeats a background response
before it continues it (`responses_api.journal`).

Recording costs two appends per delta. The results of services whose answers may change later are recorded as well: the
plan, the stored values that the request refers to, each request to the upstream, how an attempt continues the reply,
and the ids. So the repetition needs none of these services, and stores nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, Final
from weakref import WeakMethod

from attrs import define, evolve, field, frozen

from streamtool import prompting
from streamtool.core.conversation import Tool
from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import ReplyFinish, Usage
from streamtool.exchange.broken_calls import BrokenCall
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import NO_SERVICES, ClientStore, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received, receive
from streamtool.exchange.record import PromptCut
from streamtool.exchange.resumption import Resumptions
from streamtool.prompting import ToolSearch
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.settings import Settings

INPUT_OVERHEAD: Final = 100
"""Approximate number of bytes of memory that an input requires in addition to its data."""
OTHER_OVERHEAD: Final = 1_000
"""The same for a request, and for an input that is not data."""
_ENCODING: Final = b"content-encoding"
_REPLY_HEADERS: Final = frozenset((_ENCODING, b"x-request-id", b"request-id"))
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
        case StreamtoolError():
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
    read_time: Callable[[], float]
    entries: list[ExchangeInput | float] = field(factory=list, init=False)
    """Each input, and the time after it: an input is complete when its time is known. One list takes less time than
    two. A driver may add pieces itself (`open_entries`), and then counts many of them at once.
    """
    requests: list[SentRequest] = field(factory=list, init=False)
    answers: list[bool | PromptCut | Resumptions | None] = field(factory=list, init=False)
    """The decisions that depended on services, in the order in which they were made."""
    attempts: int = field(default=0, init=False)
    """Number of attempts so far."""
    journaled: int | None = field(default=None, init=False)
    """Number of inputs that the journal has received, or None without a journal."""
    stopped: bool = field(default=False, init=False)
    """Whether nothing is kept any longer."""
    size: int = field(init=False)
    """Approximate size in bytes, including the request; without pieces that have been added to `entries` directly, but
    not counted yet.
    """
    _kept: bool = field(default=False, init=False)
    """Whether inputs are kept after the journal has received them."""
    _on_growth: "WeakMethod[Callable[[], object]] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.size = self.origin.size

    def __len__(self) -> int:
        """Return the number of complete inputs."""
        return len(self.entries) // 2

    @property
    def is_open(self) -> bool:
        """Whether inputs are still kept, at least until the journal has received them."""
        return not self.stopped or self.journaled is not None

    @property
    def open_entries(self) -> list[ExchangeInput | float] | None:
        """The list of entries, if a driver may add pieces itself; None if the log is closed."""
        entries = self.entries  # first, because a thread with a view may close the log
        return entries if self.is_open else None

    def since(self, start: int, end: int) -> Iterator[tuple[ExchangeInput, float]]:
        """Return the inputs between these numbers, with their times."""
        entries: Any = self.entries
        return zip(entries[2 * start : 2 * end : 2], entries[2 * start + 1 : 2 * end : 2], strict=False)

    @property
    def inputs(self) -> list[ExchangeInput]:
        """All inputs."""
        return [one for one, _ in self.since(0, len(self))]

    def watch(self, on_growth: Callable[[], object]) -> None:
        """Keep all inputs from now on, also those that the journal has received. `on_growth` is a method that is called
        when the log has grown. The log does not keep its object alive: that object usually keeps the log.
        """
        self._kept = True
        self._on_growth = WeakMethod(on_growth)

    def add(self, one: ExchangeInput, size: int) -> None:
        """Add an input with this number of bytes of data, unless the log is closed."""
        if self.is_open:
            self.entries.append(one)
            self.entries.append(self.read_time())
            self.count(size + (INPUT_OVERHEAD if type(one) is bytes else OTHER_OVERHEAD))

    def count(self, size: int) -> None:
        """Add to the log's size, and report that the log has grown."""
        self.size += size
        on_growth = None if self._on_growth is None else self._on_growth()
        if on_growth is not None:
            on_growth()

    def add_answer(self, answer: bool | PromptCut | Resumptions | None, size: int = 0) -> None:
        """Keep a decision that depended on services."""
        if not self.stopped:
            self.answers.append(answer)
            self.size += size

    def add_request(self, request: SentRequest) -> None:
        """Keep a request to the upstream."""
        if not self.stopped:
            self.requests.append(request)
            self.size += OTHER_OVERHEAD + len(request.request.body)

    def next_for_journal(self) -> list[ExchangeInput]:
        """Return the inputs since the last call. They are discarded, unless `watch` has been called."""
        count = len(self)
        new = [one for one, _ in self.since(self.journaled or 0, count)]
        self.journaled = count
        if not self._kept:
            self._forget(count)
        return new

    def stop(self) -> None:
        """Free memory by discarding the inputs and those that follow, except those that the journal has yet to
        receive.
        """
        self.stopped, self._kept, self._on_growth = True, False, None
        self.ids.clear()
        self._forget(len(self) if self.journaled is None else self.journaled)
        if self.journaled is None:
            self.entries.clear()  # the driver may add to this list until it counts its pieces
            self.entries = []

    def _forget(self, count: int) -> None:
        del self.entries[: 2 * count]
        self.requests.clear()
        self.answers.clear()
        if self.journaled is not None:
            self.journaled -= count


class RecordedExchange(Exchange):
    """An exchange that records its inputs. `time` is read after each input. A driver may call `Exchange.feed` instead
    of `feed`, and add the piece to the log itself.
    """

    __slots__ = ("log",)

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
                phrases=services.phrases,
            ),
            now,
            received.client,
            body,
            tuple([pair for pair in received.headers if pair[0] == _ENCODING]),
            demanded,
            received.conversation.tools,
            _without_stores(self.plan),
        )
        self.log = InputLog(origin, ids, time)

    def request(self) -> UpstreamRequest:
        made = super().request()
        if not self.passthrough:
            self.log.attempts += 1
            self._record_input(InputStep.REQUEST)
        return made

    def make_ready(self) -> None:
        super().make_ready()
        if isinstance(self.ready, UpstreamRequest):
            self._record_input(InputStep.MAKE_READY)

    def _attempt(self) -> UpstreamRequest:
        made, resuming = super()._attempt(), self._resuming
        kept = evolve(made, headers=(), conversation=None)
        plan = _without_stores(self.plan)
        self.log.add_request(SentRequest(kept, plan, self._searches, resuming.additions, resuming.limit))
        return made

    def _upstream_continues(self) -> bool:
        found = super()._upstream_continues()
        self.log.add_answer(found)
        return found

    def _prompt_cut(self, usage: Usage) -> PromptCut | None:
        found = super()._prompt_cut(usage)
        self.log.add_answer(found)
        return found

    def _request_resumption(
        self, cause: StreamtoolError | ReplyFinish, told: Usage | None, call: BrokenCall | None
    ) -> None:
        super()._request_resumption(cause, told, call)
        pending = self._resuming.pending
        assert pending is not None  # noqa: S101  it has been requested
        if isinstance(pending.cause, StreamtoolError):
            pending = evolve(pending, cause=_without_traceback(pending.cause))
        self.log.add_answer(evolve(self._resuming, pending=pending), len(pending.text))

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        given = tuple(headers)
        out = super().respond(status, given)
        if self.log.journaled is None:
            given = tuple([pair for pair in given if pair[0].lower() in _REPLY_HEADERS])
        return self._record_input(
            UpstreamHead(status, given), out, sum(len(name) + len(value) for name, value in given)
        )

    def feed(self, data: bytes, long: bool = False) -> bytes:
        out = super().feed(data, long)
        return self._record_input(LongData(data) if long else data, out, len(data))

    def close(self) -> bytes:
        return self._record_input(InputStep.CLOSE, super().close())

    def fail(self, error: StreamtoolError) -> bytes:
        return self._record_input(_without_traceback(error), super().fail(error))

    def announce(self) -> bytes:
        return self._record_input(InputStep.ANNOUNCE, super().announce())

    def prepare(self) -> bytes:
        return self._record_input(InputStep.PREPARE, super().prepare())

    def keepalive(self) -> bytes:
        return self._record_input(InputStep.KEEPALIVE, super().keepalive())

    def _record_input(self, one: ExchangeInput, out: bytes = b"", size: int = 0) -> bytes:
        """Record an input that has led to this data for the client, and return the data."""
        self.log.add(one, size)
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


def _without_stores(plan: Plan) -> Plan:
    """Return the plan without the stores for signatures and transcripts."""
    stores = plan.signatures is not None or plan.transcripts is not None
    return evolve(plan, signatures=None, transcripts=None) if stores else plan


def _without_traceback(error: StreamtoolError) -> StreamtoolError:
    """Return a copy of the error without its traceback and its causes, whose frames contain the client's headers."""
    copied = type(error).__new__(type(error), *error.args)  # its constructor may have other parameters
    copied.__dict__.update(error.__dict__)
    return copied


class RepeatedExchange(Exchange):
    """An exchange that repeats a recorded one. It follows the recorded plans, makes no requests, and stores nothing."""

    __slots__ = ("_answers", "_ids", "_log")

    def __init__(self, log: InputLog, *, clock: Callable[[], float], listener: ExchangeListener) -> None:
        origin = log.origin
        self._log = log
        self._ids = 0
        """Number of ids so far."""
        self._answers = 0
        """Number of recorded decisions so far."""
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

    def _next_answer(self) -> Any:
        self._answers += 1
        return self._log.answers[self._answers - 1]

    def _upstream_continues(self) -> bool:
        return bool(self._next_answer())

    def _prompt_cut(self, usage: Usage) -> PromptCut | None:  # noqa: ARG002
        return self._next_answer()  # type: ignore[no-any-return]

    def _request_resumption(
        self,
        cause: StreamtoolError | ReplyFinish,  # noqa: ARG002
        told: Usage | None,  # noqa: ARG002
        call: BrokenCall | None,  # noqa: ARG002
    ) -> None:
        self._resuming = evolve(self._next_answer())
