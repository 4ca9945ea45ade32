"""Who is told of exchanges: the log, metrics, spans, a recording, and the caller's own `on_exchange`.

A shell has one `Observers`, made of its settings, and a `Watch` on each exchange, which it ends when the exchange is
over, however it ended. Whatever an observer does, the reply is not harmed. What nobody wants costs nothing. An observer
that has a method `began` is told as well when an exchange begins.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import evolve

import statemachine
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange import (
    Exchange,
    ExchangeListener,
    Fed,
    ObservedParser,
    ParserOptions,
    Record,
    UpstreamRequest,
)
from streamtool.observe import debug, logs
from streamtool.reply import ReplyEvent
from streamtool.settings import Settings
from streamtool.state.clients import ClientNames
from streamtool.state.outage import Operation

if TYPE_CHECKING:
    from streamtool.inspector.ring import InspectedExchange, Ring
    from streamtool.observe.metrics import Metrics
    from streamtool.observe.otel import OpenTelemetry
    from streamtool.observe.recordings import Recorder, Recording

OnExchange = Callable[[Record], object]

_log = logging.getLogger("streamtool")


class Observers:
    """All whom the settings want to be told. Raises SettingsError when one is not installed, or cannot write."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.contents = settings.contents
        self.debug = settings.debug
        self.clients = ClientNames(settings.client_keys)
        self.metrics = _metrics() if settings.metrics else None
        self.spans = _spans() if settings.otel else None
        self.ring = _ring(settings) if settings.inspect else None
        self.recorder = None if settings.recordings is None else _recorder(settings, settings.recordings, clock)

    def watch(
        self, exchange: Exchange, headers: Iterable[tuple[bytes, bytes]], on_exchange: OnExchange | None
    ) -> "Watch":
        """The watch on an exchange that begins now; `headers` are its request's."""
        return Watch(self, exchange, headers, on_exchange)

    def refused(self, protocol: str, error: StreamtoolError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """A request was refused before there was an exchange; its headers tell whose it was."""
        client = self.clients.of(headers)
        logs.log_refused(protocol, error, client=client, contents=self.contents)
        if self.metrics is not None:
            self.metrics.refused(error, client)

    def store_failed(self, operation: Operation) -> None:
        """The file of the store could not be used."""
        if self.metrics is not None:
            self.metrics.store_failed(operation)


# each is imported only where it is wanted: two need an extra, and the third is rare


def _metrics() -> "Metrics":
    from streamtool.observe.metrics import Metrics  # noqa: PLC0415

    return Metrics()


def _spans() -> "OpenTelemetry":
    from streamtool.observe.otel import OpenTelemetry  # noqa: PLC0415

    return OpenTelemetry()


def _ring(settings: Settings) -> "Ring":
    from streamtool.inspector.ring import Ring  # noqa: PLC0415

    return Ring(settings.inspect_size, contents=settings.contents)


def _recorder(settings: Settings, directory: str, clock: Callable[[], float]) -> "Recorder":
    from streamtool.observe.recordings import Recorder  # noqa: PLC0415

    return Recorder(directory, size=settings.recording_size, files=settings.recording_files, clock=clock)


class Watch:
    """What is done for one exchange while it runs."""

    __slots__ = (
        "_client", "_context", "_debug", "_ended", "_exchange", "_inspected", "_observers", "_on_exchange",
        "_recording",
    )  # fmt: skip

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
        self._recording: Recording | None = None
        self._inspected: InspectedExchange | None = None
        self._debug: debug.Debug | None = None
        self._context: Any = None if observers.spans is None else observers.spans.context(headers)
        for one in (observers.metrics, on_exchange):
            began = getattr(one, "began", None)
            if began is not None:
                _harmless(began)
        if observers.recorder is not None and not exchange.passthrough and exchange.asked.mode != "translate":
            self._recording = observers.recorder.record(exchange)
        if observers.debug and debug.enabled():
            self._debug = debug.Debug(exchange.request_id, exchange.conversation, contents=observers.contents)
        if observers.ring is not None:
            self._inspected = observers.ring.begin(exchange, self._client)
        told: list[ExchangeListener] = [
            trace for trace in (self._recording, self._inspected, self._debug) if trace is not None
        ]
        if told:
            exchange.listener = told[0] if len(told) == 1 else _Several(told)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a request that just passes: the watch ends with it."""
        error = None
        try:
            yield
        except Exception as raised:
            error = as_error(raised)
            raise
        finally:
            self.end(error)

    def end(self, error: StreamtoolError | None = None) -> int:
        """The exchange is over; `error`: why, where the exchange itself does not know. Only the first time counts.

        Returns the tokens that it took in all.
        """
        observers = self._observers
        if self._ended:
            return 0
        self._ended = True
        if self._debug is not None:
            self._debug.end()
        record = evolve(self._exchange.record(), client=self._client)
        if error is not None and record.error is None:
            record = evolve(record, error=error)
        if self._recording is not None:
            self._recording.end(record)
        if self._inspected is not None:
            self._inspected.end(record)
        logs.log(
            record,
            contents=observers.contents,
            trace=None if self._recording is None else str(self._recording.path),
        )
        if observers.metrics is not None:
            _harmless(observers.metrics, record)
        if observers.spans is not None:
            _harmless(observers.spans, record, self._context)
        if self._on_exchange is not None:
            _harmless(self._on_exchange, record)
        spent = (record.usage, record.usage.retried)
        return sum(usage.input + usage.output for usage in spent if usage is not None)


def as_error(raised: Exception) -> StreamtoolError:
    """What was raised, as one of our errors."""
    if isinstance(raised, StreamtoolError):
        return raised
    return UpstreamError(f"the request failed: {type(raised).__name__}")


def _harmless(observer: Callable[..., object], *given: object) -> None:
    """Call an observer, whatever it does."""
    try:
        observer(*given)
    except Exception:  # noqa: BLE001  it is the caller's, or a library's
        _log.exception("on_exchange failed")


class _Several:
    """Several traces of one exchange."""

    __slots__ = ("_traces",)

    def __init__(self, traces: Sequence[ExchangeListener]) -> None:
        self._traces = traces

    def attempt(self, request: UpstreamRequest, /) -> None:
        for trace in self._traces:
            trace.attempt(request)

    def answered(self, status: int, /) -> None:
        for trace in self._traces:
            trace.answered(status)

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:
        """The number that the first one gives it; all of them count alike, or look at none."""
        first, *_ = [trace.parser(choice, options, parser) for trace in self._traces]
        return first

    def fed(self, fed: Fed, /) -> None:
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
