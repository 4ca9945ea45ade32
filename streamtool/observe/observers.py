"""Observers of exchanges: the log, metrics, spans, a recording, and the caller's own `on_exchange`.

A driver has one `Observers` object, created from its settings. The driver begins a `Watch` for each exchange, and ends
it when the exchange ends, whatever the reason. An observer that fails never affects the reply, and disabled observers
have no cost. An observer with a `began` method is also called when an exchange begins.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from attrs import define, evolve

import statemachine
from streamtool.asgi.off_loop import off_loop
from streamtool.core.clients import ClientNames
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.reply import ReplyEvent
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import RecordedExchange
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import ExchangeListener, FedText, ObservedParser, ParserOptions
from streamtool.exchange.record import NearCall, Record
from streamtool.exchange.response_headers import VERDICT_HEADER
from streamtool.observe import debug, logs
from streamtool.observe.printable import printable
from streamtool.observe.verdicts import verdict
from streamtool.protocols.interfaces import Headers
from streamtool.settings import Settings
from streamtool.store.outage import Operation

if TYPE_CHECKING:
    from streamtool.observe.metrics import Metrics
    from streamtool.observe.otel import OpenTelemetry
    from streamtool.observe.recordings import Recorder, Recording
    from streamtool.observe.ring import InspectedExchange, Ring
    from streamtool.observe.span_messages import SpanMessages

OnExchange = Callable[[Record], object]

_log = logging.getLogger("streamtool")
_HEADER = 1000
"""Maximum number of characters of the header with the verdict."""


class Observers:
    """All observers that the settings enable. Raises SettingsError if one of them is not installed or cannot write its
    files.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.contents = settings.contents
        self.verdict_header = settings.verdict_header
        self.debug = settings.debug
        self.clients = ClientNames(settings.client_keys)
        self.metrics = _metrics() if settings.metrics else None
        self.spans = _spans() if settings.otel else None
        self.ring = _ring(settings) if settings.inspect else None
        self.new_exchange: Callable[..., Exchange] = (
            Exchange if self.ring is None else partial(RecordedExchange, time=monotonic)
        )
        """Creates an exchange; the inspector needs its inputs."""
        self.recorder = None if settings.recordings is None else _recorder(settings, settings.recordings, clock)

    def watch(
        self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]], on_exchange: OnExchange | None
    ) -> "Watch":
        """Return a watch on an exchange that begins now. `headers` are the headers of its request. The inspector shows
        the exchange only if `new_exchange` has created it.
        """
        return Watch(self, exchange, headers, on_exchange)

    def rejected(
        self, protocol: str, error: StreamtoolError, headers: Iterable[tuple[bytes, bytes]] = (), *, path: str = ""
    ) -> None:
        """Report a request that was rejected before it became an exchange. Its headers identify the client."""
        client = self.clients.of(headers)
        logs.log_rejected(protocol, error, client=client, path=path, contents=self.contents)
        if self.metrics is not None:
            self.metrics.rejected(error, client)

    def store_failed(self, operation: Operation) -> None:
        """Report a failed store operation."""
        if self.metrics is not None:
            self.metrics.store_failed(operation)


# each observer is imported only if it is enabled: two of them require an extra, and the others are rarely used


def _metrics() -> "Metrics":
    from streamtool.observe.metrics import Metrics  # noqa: PLC0415

    return Metrics()


def _spans() -> "OpenTelemetry":
    from streamtool.observe.otel import OpenTelemetry  # noqa: PLC0415

    return OpenTelemetry()


def _ring(settings: Settings) -> "Ring":
    from streamtool.observe.ring import Ring  # noqa: PLC0415

    return Ring(settings.inspect_size, contents=settings.contents)


def _recorder(settings: Settings, directory: str, clock: Callable[[], float]) -> "Recorder":
    from streamtool.observe.recordings import Recorder  # noqa: PLC0415

    return Recorder(directory, size=settings.recording_size, files=settings.recording_files, clock=clock)


class Watch:
    """The observation of one exchange while it runs."""

    __slots__ = (
        "_client",
        "_context",
        "_debug",
        "_ended",
        "_exchange",
        "_inspected",
        "_messages",
        "_near",
        "_observers",
        "_on_exchange",
        "_record",
        "_recording",
    )

    def __init__(
        self,
        observers: Observers,
        exchange: Exchange,
        headers: Iterable[tuple[bytes, bytes]],
        on_exchange: OnExchange | None,
    ) -> None:
        self._observers = observers
        self._exchange = exchange
        self._client = observers.clients.of(headers)
        self._on_exchange = on_exchange
        self._ended = False
        self._near: tuple[NearCall | None] | None = None
        """The result of `examine`; None if it has not been called."""
        self._record: Record | None = None
        """The record, if `examine` has needed it."""
        self._recording: Recording | None = None
        self._inspected: InspectedExchange | None = None
        self._debug: debug.DebugListener | None = None
        self._context: Any = None if observers.spans is None else observers.spans.context(headers)
        for one in (observers.metrics, on_exchange):
            began = getattr(one, "began", None)
            if began is not None:
                _call_safely(began)
        if observers.recorder is not None and not exchange.passthrough and exchange.plan.mode != "translate":
            self._recording = observers.recorder.record(exchange)
        if observers.debug and debug.enabled():
            self._debug = debug.DebugListener(exchange.request_id, exchange.conversation, contents=observers.contents)
        if observers.ring is not None and isinstance(exchange, RecordedExchange):
            self._inspected = observers.ring.begin(exchange, self._client)
        if observers.verdict_header:
            exchange.annotate(self._verdict_header)
        self._messages: SpanMessages | None = None
        if observers.spans is not None and observers.spans.contents and not exchange.passthrough:
            self._messages = observers.spans.messages(exchange)
        traces = (self._recording, self._debug, self._messages)
        if any(traces):
            told: list[ExchangeListener] = [trace for trace in traces if trace is not None]
            exchange.listener = told[0] if len(told) == 1 else _ListenerGroup(told)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Return a context manager for a request that only passes through. The watch ends when it exits."""
        error = None
        try:
            yield
        except Exception as raised:
            error = as_error(raised)
            raise
        finally:
            self.end(error)

    async def examine(self) -> None:
        """Search a reply that has been sent without a call for text that looks like one, in a worker thread. Without
        this, `end` searches it.
        """
        exchange, found = self._exchange, None
        if exchange.may_have_near_call:
            self._record = exchange.record(client=self._client)
            if self._shows(self._record):
                found = await off_loop(exchange.near_call)
        self._near = (found,)

    def end(self, error: StreamtoolError | None = None) -> int:
        """End the watch. `error` is the reason why the exchange failed, if the record does not contain it. Further
        calls have no effect.

        Return the total number of tokens that the exchange used.
        """
        observers = self._observers
        if self._ended:
            return 0
        self._ended = True
        if self._debug is not None:
            self._debug.end()
        record = self._record
        if record is None or (error is not None and record.error is None):
            record = self._exchange.record(client=self._client, error=error)
        if self._shows(record):
            near = self._exchange.near_call() if self._near is None else self._near[0]
            if near is not None:
                record = evolve(record, near=near)
        if self._recording is not None:
            self._recording.end(record)
        if self._inspected is not None:
            self._inspected.end(self._exchange, record)
        logs.log_exchange(
            record,
            contents=observers.contents,
            trace=None if self._recording is None else str(self._recording.path),
        )
        if observers.metrics is not None:
            _call_safely(observers.metrics, record)
        if observers.spans is not None:
            _call_safely(observers.spans, record, self._context, self._messages)
        if self._on_exchange is not None:
            _call_safely(self._on_exchange, record)
        spent = (record.usage, record.usage.retried)
        return sum(usage.input + usage.output for usage in spent if usage is not None)

    def _shows(self, record: Record) -> bool:
        """Return whether a verdict on this record is shown that may name text that looks like a call."""
        if record.calls or record.error is not None:
            return False
        shown = self._recording is not None or self._inspected is not None or self._on_exchange is not None
        return shown or logs.logs_exchange(record)

    def _verdict_header(self, record: Record) -> Headers:
        """Return the header that contains the verdict."""
        found = verdict(evolve(record, near=self._exchange.near_call()), contents=self._observers.contents)
        shown = printable(str(found), _HEADER).replace("…", "...")
        return ((VERDICT_HEADER, shown.encode("ascii", "backslashreplace")),)


def as_error(raised: Exception) -> StreamtoolError:
    """Return the exception as a StreamtoolError."""
    if isinstance(raised, StreamtoolError):
        return raised
    return UpstreamError("the request failed: an exception was raised")


def _call_safely(observer: Callable[..., object], *given: object) -> None:
    """Call an observer, and log any exception that it raises."""
    try:
        observer(*given)
    except Exception:  # noqa: BLE001  this is the caller's code, or a library's
        _log.exception("on_exchange failed")


@define(eq=False)
class _ListenerGroup:
    """A listener that forwards to several listeners."""

    _traces: Sequence[ExchangeListener]

    def attempt(self, request: UpstreamRequest, /) -> None:
        for trace in self._traces:
            trace.attempt(request)

    def answered(self, status: int, /) -> None:
        for trace in self._traces:
            trace.answered(status)

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:
        """Return the number from the first listener; the others count in the same way, or ignore the number."""
        first, *_ = [trace.parser(choice, options, parser) for trace in self._traces]
        return first

    def fed(self, fed: FedText, /) -> None:
        for trace in self._traces:
            trace.fed(fed)

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        for trace in self._traces:
            trace.closed(number, reason, events)

    def quoted(self, choice: int, why: str, /) -> None:
        for trace in self._traces:
            trace.quoted(choice, why)

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        for trace in self._traces:
            trace.sent(events, data, waits_for)
