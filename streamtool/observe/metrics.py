"""Prometheus metrics for exchanges: `ToolMiddleware(app, on_exchange=Metrics())`, or `metrics = true` in the settings.

Requires the `metrics` extra. Every label has only a few possible values: protocols, modes, outcomes, causes, formats,
repairs, status codes, and the names of upstreams and client keys in the settings. Names of models and tools are never
labels, since clients choose them.
"""

import os
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from streamtool.core.errors import SettingsError, StreamtoolError
from streamtool.exchange.record import Record

try:
    import prometheus_client
    from prometheus_client import multiprocess
except ImportError as missing:
    raise SettingsError(
        'metrics: prometheus-client is missing; install the extra "metrics": pip install "streamtool[metrics]"',
        param="metrics",
        code="missing_extra",
    ) from missing

MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable for the directory in which several processes pool their counts; prometheus-client reads
it.
"""
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_CHARACTERS: Final = (0, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_ALL: "WeakKeyDictionary[prometheus_client.CollectorRegistry, Mapping[str, Any]]" = WeakKeyDictionary()
"""The instruments in each registry. They are shared, since a name can be registered only once."""

_COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "exchanges": ("Exchanges.", ("protocol", "upstream_protocol", "mode", "outcome", "client")),
    "attempts": ("Attempts that were rejected and repeated.", ("reason",)),
    "resumed": ("Interrupted replies that another attempt continued.", ("cause",)),
    "calls": ("Calls found; format=native if the upstream itself made them.", ("format",)),
    "repairs": ("Exchanges in which arguments were repaired, by kind of repair.", ("repair",)),
    "discarded_characters": ("Characters that were neither shown nor part of a call.", ("reason",)),
    "quotations": ("Calls that were treated as quoted text.", ("reason",)),
    "unmet": ("Replies that were delivered despite a failure of the last attempt.", ("reason",)),
    "errors": ("Error responses to clients.", ("status", "client")),
    "upstream_failures": ("Failed requests to upstreams that have an alternative.", ("upstream",)),
    "store_failures": ("Failed reads and writes of the store.", ("operation",)),
    "tokens": ("Tokens used; estimated if the upstream does not report them.", ("direction", "attempt", "client")),
}
_HISTOGRAMS: Final = {
    "first_byte_seconds": ("Seconds from the request to the first byte of the reply.", _SECONDS),
    "first_call_seconds": ("Seconds from the request to the beginning of the first call.", _SECONDS),
    "exchange_seconds": ("Seconds from the request to the end.", _SECONDS),
    "held_characters": ("Largest number of characters buffered before they were known to be visible.", _CHARACTERS),
}


class Metrics:
    """Metrics for exchanges, in `registry` or, if it is None, in the default registry of prometheus-client.

    Use it as `on_exchange`: it is called with each record. `began` is called when an exchange begins, and `rejected`
    for a request that was rejected before it became one.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry | None = None) -> None:
        self.registry: prometheus_client.CollectorRegistry = (
            prometheus_client.REGISTRY if registry is None else registry
        )
        if self.registry not in _ALL:
            _ALL[self.registry] = _instruments(self.registry)
        self._all = _ALL[self.registry]

    def began(self) -> None:
        """Count the start of an exchange."""
        self._all["in_flight"].inc()

    def rejected(self, error: StreamtoolError, client: str = "") -> None:
        """Count a request from this client that was rejected before it became an exchange."""
        self._all["errors"].labels(error.status, client).inc()

    def store_failed(self, operation: str) -> None:
        """Count a failed store operation (`read`, `write`)."""
        self._all["store_failures"].labels(operation).inc()

    def upstream_failed(self, name: str) -> None:
        """Count a failed request to an upstream."""
        self._all["upstream_failures"].labels(name).inc()

    def upstream_is(self, name: str, state: str) -> None:
        """Set the state of an upstream."""
        self._all["upstream_up"].labels(name).set(state == "ok")

    def __call__(self, record: Record) -> None:
        """Count an exchange that has ended."""
        found = self._all
        found["in_flight"].dec()
        found["exchanges"].labels(
            record.protocol, record.upstream_protocol, record.mode, record.outcome, record.client
        ).inc()
        for reason in record.attempts:
            found["attempts"].labels(reason).inc()
        for one in record.resumed:
            found["resumed"].labels(one.cause).inc()
        for name, count in record.found:
            found["calls"].labels(name).inc(count)
        own = record.calls - sum(count for _, count in record.found)
        if own > 0:
            found["calls"].labels("native").inc(own)
        for repair in record.repairs:
            found["repairs"].labels(repair).inc()
        for reason, count in record.discarded:
            found["discarded_characters"].labels(reason).inc(count)
        for why, count in record.quoted:
            found["quotations"].labels(why).inc(count)
        if record.unmet is not None:
            found["unmet"].labels(record.unmet).inc()
        if record.error is not None:
            found["errors"].labels(record.error.status, record.client).inc()
        for attempt, usage in (("last", record.usage), ("retried", record.usage.retried)):
            if usage is not None:
                found["tokens"].labels("input", attempt, record.client).inc(usage.input)
                found["tokens"].labels("output", attempt, record.client).inc(usage.output)
        found["exchange_seconds"].observe(record.seconds)
        if record.first_byte is not None:
            found["first_byte_seconds"].observe(record.first_byte)
        if record.first_call is not None:
            found["first_call_seconds"].observe(record.first_call)
        if record.tool_prompt:
            found["held_characters"].observe(record.held)

    def page(self) -> tuple[str, bytes]:
        """Return the content type and the text of all metrics in the registry, including those of other workers."""
        registry = self.registry
        if MULTIPROCESS_VARIABLE in os.environ:
            registry = prometheus_client.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(registry)


def forget_process(process: int) -> None:
    """Remove a process that pooled its counts with others and has exited."""
    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]


def _instruments(registry: prometheus_client.CollectorRegistry) -> Mapping[str, Any]:
    made: dict[str, Any] = {
        name: prometheus_client.Counter(f"streamtool_{name}", about, labels, registry=registry)
        for name, (about, labels) in _COUNTERS.items()
    }
    for name, (about, buckets) in _HISTOGRAMS.items():
        made[name] = prometheus_client.Histogram(f"streamtool_{name}", about, registry=registry, buckets=buckets)
    made["in_flight"] = prometheus_client.Gauge(
        "streamtool_in_flight",
        "Exchanges that have begun and have not ended.",
        registry=registry,
        multiprocess_mode="livesum",
    )
    made["upstream_up"] = prometheus_client.Gauge(
        "streamtool_upstream_up",
        "Whether an upstream currently receives requests (1 or 0), if it has or is a fallback, or has a health path.",
        ("upstream",),
        registry=registry,
        multiprocess_mode="livemin",
    )
    return made
