"""Exchanges, counted for Prometheus: `ToolMiddleware(app, on_exchange=Metrics())`, or `metrics = true` in the settings.

Needs the extra `metrics`. Every label is one of a few words that are known here: protocols, modes, outcomes, causes,
formats, repairs, status codes, and the names that the settings give to upstreams and to client keys. Names of models
and tools are none of them, since clients choose those.
"""

import os
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from streamtool.errors import SettingsError, StreamtoolError
from streamtool.exchange import Record

try:
    import prometheus_client
    from prometheus_client import multiprocess
except ImportError as missing:
    raise SettingsError(
        'metrics: prometheus-client is missing; install the extra "metrics": pip install "streamtool[metrics]"',
        param="metrics",
        code="missing_extra",
    ) from missing

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several processes count together; prometheus-client reads it."""
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_CHARACTERS: Final = (0, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_ALL: "WeakKeyDictionary[prometheus_client.CollectorRegistry, Mapping[str, Any]]" = WeakKeyDictionary()
"""The instruments of each registry: a name can be registered once."""

_COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "exchanges": ("Exchanges.", ("protocol", "upstream_protocol", "mode", "outcome", "client")),
    "attempts": ("Attempts that were not accepted and repeated.", ("reason",)),
    "calls": ("Calls that were found; native: the upstream's own.", ("format",)),
    "repairs": ("Exchanges in which arguments had to be mended so.", ("repair",)),
    "discarded_characters": ("Characters that were neither shown nor part of a call.", ("reason",)),
    "quotations": ("Calls that were quotations, and text.", ("reason",)),
    "unmet": ("Replies that still lacked something after the last attempt.", ("reason",)),
    "errors": ("Errors that clients were answered with.", ("status", "client")),
    "upstream_failures": ("Requests that failed at an upstream, where another could be asked.", ("upstream",)),
    "store_failures": ("Reads and writes of the store's file that failed.", ("operation",)),
    "tokens": ("Tokens, as far as they are known, and else estimated.", ("direction", "attempt", "client")),
}
_HISTOGRAMS: Final = {
    "first_byte_seconds": ("From the request to the first byte of the reply.", _SECONDS),
    "first_call_seconds": ("From the request to the beginning of the first call.", _SECONDS),
    "exchange_seconds": ("From the request to the end.", _SECONDS),
    "held_characters": ("Characters held back before they were known to be visible, at most.", _CHARACTERS),
}


class Metrics:
    """Counts exchanges in `registry` (None: the registry that prometheus-client has by default).

    An `on_exchange`: call it with a record. `began` is called when an exchange begins, `refused` for a request that
    never became one.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry | None = None) -> None:
        self.registry = prometheus_client.REGISTRY if registry is None else registry
        if self.registry not in _ALL:
            _ALL[self.registry] = _instruments(self.registry)
        self._all = _ALL[self.registry]

    def began(self) -> None:
        """An exchange has begun."""
        self._all["in_flight"].inc()

    def refused(self, error: StreamtoolError, client: str = "") -> None:
        """A request of this client was refused before anything came of it."""
        self._all["errors"].labels(error.status, client).inc()

    def store_failed(self, operation: str) -> None:
        """The file of the store could not be used (`read`, `write`)."""
        self._all["store_failures"].labels(operation).inc()

    def upstream_failed(self, name: str) -> None:
        """A request has failed at an upstream."""
        self._all["upstream_failures"].labels(name).inc()

    def upstream_is(self, name: str, state: str) -> None:
        """The state of an upstream has changed."""
        self._all["upstream_up"].labels(name).set(state == "ok")

    def __call__(self, record: Record) -> None:
        """An exchange is over."""
        found = self._all
        found["in_flight"].dec()
        found["exchanges"].labels(
            record.protocol, record.upstream_protocol, record.mode, record.outcome, record.client
        ).inc()
        for reason in record.attempts:
            found["attempts"].labels(reason).inc()
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
        if record.contract:
            found["held_characters"].observe(record.held)

    def page(self) -> tuple[str, bytes]:
        """The content type and the text of everything in the registry; of all workers, if there are several."""
        registry = self.registry
        if SHARED in os.environ:
            registry = prometheus_client.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(registry)


def over(process: int) -> None:
    """A process that counted together with others has ended."""
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
        "Exchanges that have begun and not ended.",
        registry=registry,
        multiprocess_mode="livesum",
    )
    made["upstream_up"] = prometheus_client.Gauge(
        "streamtool_upstream_up",
        "Whether requests are sent to an upstream that has fallbacks, is one, or has a health path; 0: not now.",
        ("upstream",),
        registry=registry,
        multiprocess_mode="livemin",
    )
    return made
