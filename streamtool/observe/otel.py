"""An OpenTelemetry span for each exchange (`otel = true`, extra `otel`), by the conventions for generative AI.

A span is made when its exchange is over, with the times of the exchange, and goes to whatever tracer provider the
process has configured. Its parent is the span in whose context the exchange began (a server's instrumentation makes
one), else the one that the request's `traceparent` names. Names of attributes are those of the semantic conventions
around version 1.41, where they still were in development; what they have no name for stands under `streamtool.`.
Contents are never recorded.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from streamtool.errors import SettingsError
from streamtool.exchange import Record
from streamtool.observe.logs import fields, plain
from streamtool.protocols.registry import PROTOCOLS

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError as missing:
    raise SettingsError(
        'otel: opentelemetry-api is missing; install the extra "otel": pip install "streamtool[otel]"',
        param="otel",
        code="missing_extra",
    ) from missing

_REASONS: Final = {"stop_sequence": "stop", "filter": "content_filter"}
_REQUEST: Final = frozenset(
    ("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
)
_OWN: Final = (
    *("request_id", "outcome", "protocol", "upstream_protocol", "upstream", "model", "mode", "contract", "history"),
    *("turn", "format", "forced", "tools", "calls", "repairs", "refused", "incomplete", "unmet", "held"),
    *("first_call", "client"),
)
"""Fields of the log record that stand in a span as they are."""
_NANO = 1_000_000_000

Value = str | bool | int | float | list[str]


class OpenTelemetry:
    """Makes a span of each record. `provider` None: the one that the process has configured."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("streamtool", tracer_provider=provider)

    def context(self, headers: Iterable[tuple[bytes, bytes]]) -> contexts.Context:
        """The context of an exchange that begins now; the headers of its request may name its parent."""
        current = contexts.get_current()
        if trace.get_current_span(current).get_span_context().is_valid:
            return current
        carrier = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        return propagate.extract(carrier, context=current)

    def __call__(self, record: Record, context: contexts.Context | None = None) -> None:
        """The exchange is over."""
        end = time.time_ns()
        start = end - int(record.seconds * _NANO)
        span = self._tracer.start_span(
            f"chat {plain(record.upstream_model)}",
            context=context,
            kind=trace.SpanKind.CLIENT,
            attributes=dict(_attributes(record)),
            start_time=start,
        )
        for attempt in fields(record)["attempts"]:
            about = {f"streamtool.{name}": attempt[name] for name in ("reason", "detail") if attempt[name]}
            span.add_event("streamtool.attempt.repeated", about, timestamp=start + int(attempt["seconds"] * _NANO))
        if record.error is not None:
            span.set_status(trace.StatusCode.ERROR, fields(record)["error"]["message"])
        span.end(end_time=end)


def _attributes(record: Record) -> Iterator[tuple[str, Value]]:
    known = fields(record)
    yield "gen_ai.operation.name", "chat"
    yield "gen_ai.provider.name", PROTOCOLS[record.upstream_protocol].provider or record.upstream_protocol
    yield "gen_ai.request.model", known["upstream_model"]
    if record.server is not None:
        host, _, port = record.server.rpartition(":")
        yield "server.address", host
        yield "server.port", int(port)
    if record.stream:
        yield "gen_ai.request.stream", True
        if record.first_byte is not None:
            yield "gen_ai.response.time_to_first_chunk", record.first_byte
    if record.choices != 1:
        yield "gen_ai.request.choice.count", record.choices
    for name, number in record.options:
        if name in _REQUEST:
            yield f"gen_ai.request.{name}", number
    if record.served_model is not None:
        yield "gen_ai.response.model", known["served_model"]
    if record.reason is not None:
        said = record.reason.value
        called = record.calls and said == "stop"
        yield "gen_ai.response.finish_reasons", ["tool_calls" if called else _REASONS.get(said, said)]
    usage = record.usage
    if usage.input or usage.output:
        yield "gen_ai.usage.input_tokens", usage.input
        yield "gen_ai.usage.output_tokens", usage.output
        yield "streamtool.usage.estimated", usage.estimated
    if usage.retried is not None:
        yield "streamtool.usage.retried_input_tokens", usage.retried.input
        yield "streamtool.usage.retried_output_tokens", usage.retried.output
    if usage.cached:
        yield "gen_ai.usage.cache_read.input_tokens", usage.cached
    if usage.reasoning:
        yield "gen_ai.usage.reasoning.output_tokens", usage.reasoning
    if record.error is not None:
        error = known["error"]
        yield "error.type", error["code"] or error["kind"] or str(error["status"])
    if record.status is not None:
        yield "streamtool.status", record.status
    for name in _OWN:
        if known[name] not in (None, ""):
            yield f"streamtool.{name}", known[name]
    if record.formats:
        yield "streamtool.formats", list(record.formats)
    for reason, count in known["discarded"].items():
        yield f"streamtool.discarded.{reason.replace(' ', '_')}", count
