"""OpenTelemetry spans for exchanges (`otel = true`, `otel` extra), following the conventions for generative AI.

A span is created when its exchange has ended, with the exchange's start and end times, and is sent to the tracer
provider that the process has configured. Its parent is the span in whose context the exchange began (usually created by
the server's instrumentation) or, failing that, the span named by the request's `traceparent`. Attribute names follow
the semantic conventions of version 1.45, in which they are still in development. Attributes that the conventions
do not define begin with `streamtool.`. Contents are recorded only if the conventions' own variable asks for them
(`span_messages`). An agent's run has a span, too, with its exchanges and the tools that it executes as children.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.core.reply import Usage
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.record import Record
from streamtool.observe.logs import fields
from streamtool.observe.printable import printable
from streamtool.observe.span_messages import SpanMessages, records_contents
from streamtool.protocols.options import SPANS
from streamtool.protocols.table import PROTOCOLS

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError as missing:
    raise SettingsError(
        'otel: opentelemetry-api is missing; install the extra "otel": pip install "streamtool[otel]"',
        param="otel",
        code="missing_extra",
    ) from missing

AGENT: Final = "streamtool"
"""The name of our agent in spans."""
_REASONS: Final = {"stop_sequence": "stop", "filter": "content_filter"}
_OWN: Final = (
    "request_id",
    "outcome",
    "protocol",
    "upstream_protocol",
    "upstream",
    "model",
    "mode",
    "tool_prompt",
    "history",
    "turn",
    "format",
    "forced",
    "tools",
    "calls",
    "repairs",
    "refused",
    "incomplete",
    "unmet",
    "held",
    "first_call",
    "client",
    "engine",
)
"""Fields of the log record that are copied into a span unchanged."""
_NANO = 1_000_000_000

AttributeValue = str | bool | int | float | list[str]


class OpenTelemetry:
    """A tracer that creates a span for each record. If `provider` is None, the process's configured provider is
    used.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("streamtool", tracer_provider=provider)
        self.contents: bool = records_contents()

    def context(self, headers: Iterable[tuple[bytes, bytes]]) -> contexts.Context:
        """Return the context for an exchange that begins now. `headers` are the headers of its request, which may name
        the parent span.
        """
        current = contexts.get_current()
        if trace.get_current_span(current).get_span_context().is_valid:
            return current
        carrier = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        return propagate.extract(carrier, context=current)

    def messages(self, exchange: Exchange) -> SpanMessages:
        """Return a listener that collects the messages of an exchange."""
        return SpanMessages(exchange)

    def __call__(
        self, record: Record, context: contexts.Context | None = None, messages: SpanMessages | None = None
    ) -> None:
        """Create the span for an exchange that has ended, with its messages if there are any."""
        end = time.time_ns()
        start = end - int(record.seconds * _NANO)
        span = self._tracer.start_span(
            f"chat {printable(record.upstream_model)}",
            context=context,
            kind=trace.SpanKind.CLIENT,
            attributes={**dict(_attributes(record)), **dict(messages.attributes() if messages is not None else ())},
            start_time=start,
        )
        for attempt in fields(record)["attempts"]:
            about = {f"streamtool.{name}": attempt[name] for name in ("reason", "detail") if attempt[name]}
            span.add_event("streamtool.attempt.repeated", about, timestamp=start + int(attempt["seconds"] * _NANO))
        for one in fields(record)["resumed"]:
            about = {f"streamtool.{name}": one[name] for name in ("cause", "character", "place")}
            span.add_event("streamtool.attempt.resumed", about, timestamp=start + int(one["seconds"] * _NANO))
        if record.error is not None:
            span.set_status(trace.StatusCode.ERROR, fields(record)["error"]["message"])
        span.end(end_time=end)


class AgentSpans:
    """Spans for the runs of an agent, and for the tools that it executes."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("streamtool", tracer_provider=provider)
        self._contents = records_contents()

    @contextmanager
    def run(self, model: str, protocol: str) -> Iterator[Callable[[Usage], None]]:
        """Return a context manager for one run, which yields a function that notes the run's token usage."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": AGENT,
            "gen_ai.provider.name": PROTOCOLS[protocol].provider or protocol,
            "gen_ai.request.model": printable(model),
        }
        with self._tracer.start_as_current_span(
            f"invoke_agent {AGENT}", kind=trace.SpanKind.INTERNAL, attributes=attributes, record_exception=False
        ) as span:

            def used(usage: Usage) -> None:
                span.set_attributes(
                    {"gen_ai.usage.input_tokens": usage.input, "gen_ai.usage.output_tokens": usage.output}
                )

            yield used

    @contextmanager
    def tool(
        self, name: str, id: str, arguments: Mapping[str, Json], description: str
    ) -> Iterator[Callable[[str, bool], None]]:
        """Return a context manager for one execution of a tool. It yields a function that notes the text of its result,
        and whether the tool failed.
        """
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": printable(name),
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": printable(id),
        }
        if self._contents:
            attributes["gen_ai.tool.description"] = description
            attributes["gen_ai.tool.call.arguments"] = json.dumps(arguments, ensure_ascii=False)
        with self._tracer.start_as_current_span(
            f"execute_tool {printable(name)}",
            kind=trace.SpanKind.INTERNAL,
            attributes=attributes,
            record_exception=False,
        ) as span:

            def returned(text: str, failed: bool) -> None:
                if self._contents:
                    span.set_attribute("gen_ai.tool.call.result", text)
                if failed:
                    span.set_attribute("error.type", "tool_error")
                    span.set_status(trace.StatusCode.ERROR)

            yield returned


def _attributes(record: Record) -> Iterator[tuple[str, AttributeValue]]:
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
        yield SPANS["n"], record.choices
    for name, number in record.options:
        if name in SPANS:
            yield SPANS[name], number
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
