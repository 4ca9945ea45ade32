"""Spans against the published conventions: names of attributes, the agent's spans, messages by opt-in, bytes on the
wire.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as published
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.inspected import CALL, request
from support.servers import uvicorn_server

from streamtool.agent import Agent
from streamtool.middleware import ToolMiddleware
from streamtool.observe.otel import OpenTelemetry
from streamtool.observe.span_messages import VARIABLE
from streamtool.testing import ScriptedUpstream, stream_asgi, text

both = pytest.mark.anyio
DEPRECATED = frozenset(
    (
        "gen_ai.system",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
    )
)
"""Names that the package still contains, but that the conventions no longer use."""
NAMES = frozenset(
    value for name, value in vars(published).items() if name.startswith("GEN_AI_") and isinstance(value, str)
)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Yield the exporter of the process's tracer provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter


def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("unknown city")
    return f"Rain in {city}."


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    found = dict(span.attributes or {})
    wrong = [name for name in found if name.startswith("gen_ai.") and name not in NAMES - DEPRECATED]
    assert not wrong, "every name is one of the published conventions"
    return found


async def run_agent(city: str) -> None:
    call = CALL.replace("get_weather", "weather").replace("Paris", city)
    agent = Agent(ScriptedUpstream(text(call), text("It rains.")), [weather], otel=True, format="tool_call")
    assert await agent.ask("Is it raining?") == "It rains."


@both
@pytest.mark.parametrize("contents", [False, True])
async def test_the_spans_of_an_agent(exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, contents: bool):
    monkeypatch.setenv(VARIABLE, "SPAN_ONLY" if contents else "false")
    await run_agent("Paris")
    spans = {span.name.split()[0]: span for span in exported.get_finished_spans()}
    assert [span.name for span in exported.get_finished_spans()] == [
        "chat default",
        "execute_tool weather",
        "chat default",
        "invoke_agent streamtool",
    ]
    root = spans["invoke_agent"]
    assert root.parent is None
    for span in exported.get_finished_spans()[:-1]:
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
    agent, tool, chat = (attributes(spans[name]) for name in ("invoke_agent", "execute_tool", "chat"))
    assert (agent["gen_ai.operation.name"], agent["gen_ai.agent.name"]) == ("invoke_agent", "streamtool")
    assert agent["gen_ai.usage.input_tokens"] > 0
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"], tool["gen_ai.tool.type"]) == (
        "execute_tool",
        "weather",
        "function",
    )
    assert ("gen_ai.tool.call.arguments" in tool, "gen_ai.input.messages" in chat) == (contents, contents)
    if contents:
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"city": "Paris"}
        assert tool["gen_ai.tool.call.result"] == "Rain in Paris."
        told = json.loads(chat["gen_ai.input.messages"])
        assert [message["role"] for message in told] == ["user", "assistant", "tool"]
        assert told[1]["parts"][0]["arguments"] == {"city": "Paris"}
        assert told[1]["parts"][0]["id"] == tool["gen_ai.tool.call.id"] == told[2]["parts"][0]["id"]
        assert json.loads(chat["gen_ai.output.messages"]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}
        ]
        assert json.loads(chat["gen_ai.tool.definitions"])[0]["name"] == "weather"


@both
async def test_a_tool_that_fails_has_an_error(exported: InMemorySpanExporter):
    await run_agent("Atlantis")
    (tool,) = [span for span in exported.get_finished_spans() if span.name.startswith("execute_tool")]
    assert tool.status.status_code is trace.StatusCode.ERROR
    assert attributes(tool)["error.type"] == "tool_error"


@pytest.mark.parametrize("contents", [False, True])
def test_a_collector_receives_the_spans(monkeypatch: pytest.MonkeyPatch, contents: bool):
    """OpenTelemetry's own exporter sends them, and the published messages read the bytes."""
    received: list[bytes] = []

    async def collector(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            received.append((await receive())["body"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    if contents:
        monkeypatch.setenv(VARIABLE, "true")
    provider = TracerProvider()
    app = ToolMiddleware(ScriptedUpstream(text(f"Let me look. {CALL}")), otel=True)

    async def main() -> None:
        async with stream_asgi(app, body=request()) as reply:
            await reply.body()
            await reply.finished.wait()

    with uvicorn_server(collector) as served:
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{served.url}/v1/traces")))
        app.observers.spans = OpenTelemetry(provider)
        anyio.run(main)
    told = ExportTraceServiceRequest()
    told.ParseFromString(received[0])
    (span,) = told.resource_spans[0].scope_spans[0].spans
    known = {pair.key: pair.value for pair in span.attributes}
    assert span.name == "chat m"
    assert known["gen_ai.operation.name"].string_value == "chat"
    if contents:
        (message,) = json.loads(known["gen_ai.output.messages"].string_value)
        assert [part["type"] for part in message["parts"]] == ["text", "tool_call"]
    else:
        assert "gen_ai.output.messages" not in known
