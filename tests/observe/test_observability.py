"""Log, metrics, spans, debug lines and headers of exchanges, and the data that they never contain."""

import json
import logging
import re
import subprocess
import sys
from typing import Any

import attrs
import httpx
import prometheus_client
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.dialects import PATHS, Ask, read, said, write
from support.native_upstreams import NO_TOOLS, native, refused
from support.scripted_replies import ANNOUNCED, BLOCKED, CALL, COMPLETE, DENIED, TOOLS, UNKNOWN
from support.servers import uvicorn_server, wait_for

from streamtool.core.errors import SettingsError, UpstreamError
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.observe.logs import JsonFormatter, TextFormatter, printable
from streamtool.observe.metrics import Metrics
from streamtool.observe.observers import Observers
from streamtool.observe.otel import OpenTelemetry
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, Settings, load
from streamtool.testing import Die, Hang, Script, ScriptedUpstream, status, stream_asgi
from streamtool.transport import SyncToolTransport, ToolTransport

PROMPT = "zebra-in-the-prompt"
KEY = "sk-live-4f9d8e7c"
HEADERS = [
    (b"content-type", b"application/json"),
    (b"authorization", f"Bearer {KEY}".encode()),
    (b"cookie", KEY.encode()),
]
SECRETS = (PROMPT, KEY, "zebra-in-the-reply", "zebra-argument")
ASK = Ask((("system", f"You are {PROMPT}."), ("user", f"Ping {PROMPT}.")), TOOLS)
AFTER = Ask((*ASK.turns, ("call", "call_1", "ping", {"x": 1}), ("result", "call_1", PROMPT)), TOOLS)
FORCED = Ask(ASK.turns, TOOLS, choice="required")
FORBIDDEN = Ask(ASK.turns, TOOLS, choice="none")
SPELLED = '<tool_call>{"name": "ping", "arguments": {"x": "zebra-argument"}}</tool_call>'

FAILURES = {
    "tools denied": (ASK, f"{DENIED} zebra-in-the-reply", CALL, Settings()),
    "environment denied": (ASK, f"{BLOCKED} zebra-in-the-reply", CALL, Settings()),
    "announced but not called": (ASK, ANNOUNCED, CALL, Settings()),
    "unknown tool": (ASK, UNKNOWN.replace("{}", '{"x": "zebra-argument"}'), CALL, Settings()),
    "schema": (ASK, SPELLED, CALL, COMPLETE),
    "empty": (AFTER, "", "zebra-in-the-reply", Settings()),
    "required call missing": (FORCED, "zebra-in-the-reply", CALL, Settings()),
    "call forbidden": (FORBIDDEN, SPELLED, "zebra-in-the-reply", Settings()),
}
"""Each failure: the request, the rejected reply, a better one, and the settings."""

both = pytest.mark.anyio
failures = pytest.mark.parametrize("cause", FAILURES)


class Seen:
    """An app observed by all observers at the same time."""

    def __init__(self, upstream: Any, settings: Settings | None = None, **options: Any) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.spans = InMemorySpanExporter()
        self.records: list[Record] = []
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self._make_span = OpenTelemetry(provider)
        self.upstream = upstream
        self.app = ToolMiddleware(upstream, settings=settings, on_exchange=self, **options)
        self.headers: dict[str, str] = {}

    def __call__(self, record: Record) -> None:
        self.records.append(record)
        self.metrics(record)
        self._make_span(record)

    def began(self) -> None:
        self.metrics.began()

    async def ask(self, client: str, ask: Ask, *, accept: tuple[int, ...] = (200,)) -> Any:
        body = json.dumps(write(client, ask)).encode()
        async with stream_asgi(self.app, PATHS[client], body=body, headers=HEADERS) as reply:
            data = await reply.body()
            await reply.finished.wait()
        assert reply.status in accept, data
        self.headers = reply.headers
        return read(client, data, stream=ask.stream) if reply.status == 200 else data

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"streamtool_{name}", labels) or 0.0

    @property
    def page(self) -> str:
        return self.metrics.page()[1].decode()

    @property
    def span(self) -> Any:
        (span,) = self.spans.get_finished_spans()
        return span


@pytest.fixture
def logged(caplog):
    """Return the log records of exchanges, each with its fields."""
    caplog.set_level(logging.DEBUG, logger="streamtool")
    return lambda: [record for record in caplog.records if record.name == "streamtool.exchange"]


def everything(caplog: Any, *seen: Seen) -> str:
    """Return all log and metrics output."""
    lines = [JsonFormatter().format(record) + str(record.__dict__) for record in caplog.records]
    spans = [span.to_json() for one in seen for span in one.spans.get_finished_spans()]
    return "\n".join([*lines, *(one.page for one in seen), *spans])


def assert_discreet(caplog: Any, *seen: Seen) -> None:
    found = everything(caplog, *seen)
    assert len(found) > 200
    for secret in SECRETS:
        assert secret not in found


# --- rejected attempts


@both
@failures
async def test_each_failure_is_reported_everywhere_without_contents(cause, logged, caplog):
    ask, bad, good, settings = FAILURES[cause]
    seen = Seen(ScriptedUpstream(said("chat", bad), said("chat", good)), settings, app_protocol="chat")
    await seen.ask("messages", ask)
    (record,) = logged()
    known = record.streamtool
    assert record.levelno == logging.INFO
    assert f"not accepted: {cause} (" in record.getMessage()
    assert [attempt["reason"] for attempt in known["attempts"]] == [cause]
    assert known["outcome"] == ("text" if cause in ("empty", "call forbidden") else "calls")
    assert (known["tool_prompt"], known["history"]) == (True, cause == "empty")
    assert (known["protocol"], known["upstream_protocol"], known["mode"]) == ("messages", "chat", "emulate")
    assert seen.count("attempts_total", reason=cause) == 1
    assert seen.count("exchanges_total", protocol="messages", upstream_protocol="chat", mode="emulate",
                      outcome=known["outcome"], client="") == 1  # fmt: skip
    (event,) = seen.span.events
    assert event.attributes["streamtool.reason"] == cause
    assert seen.span.start_time <= event.timestamp <= seen.span.end_time
    assert_discreet(caplog, seen)


@both
@failures
async def test_an_unmet_requirement_is_logged_as_a_warning(cause, logged, caplog):
    ask, bad, _, settings = FAILURES[cause]
    seen = Seen(ScriptedUpstream(said("chat", bad)), settings)
    await seen.ask("chat", ask)
    (record,) = logged()
    assert (record.streamtool["outcome"], record.streamtool["unmet"]) == ("unmet", cause)
    assert record.levelno == logging.WARNING
    assert seen.count("unmet_total", reason=cause) == 1
    assert seen.count("attempts_total", reason=cause) == 2
    assert_discreet(caplog, seen)


@both
async def test_the_phrase_of_a_refusal_is_logged_but_arguments_are_not(logged):
    for cause in ("tools denied", "schema"):
        ask, bad, good, settings = FAILURES[cause]
        seen = Seen(ScriptedUpstream(said("chat", bad), said("chat", good)), settings)
        await seen.ask("chat", ask)
        assert seen.records[0].details[0]
    refusal, fault = (record.streamtool["attempts"][0]["detail"] for record in logged())
    assert "access to" in refusal
    assert fault == ""


# --- other facts of an exchange


@both
@pytest.mark.parametrize("client", PATHS)
async def test_a_call_is_counted_and_measured(client, logged):
    seen = Seen(ScriptedUpstream(said("chat", f"So.\n{CALL}")), app_protocol="chat")
    await seen.ask(client, ASK)
    (record,) = logged()
    known = record.streamtool
    summary, _, told = record.getMessage().partition(" · ")
    assert re.fullmatch(r"m: tools 2, calls 1 \(tool_call\) \(\d\.\d\d s\)", summary)
    assert told.startswith("One call in `tool_call`, though `invoke` was taught.")
    assert known["verdict"]["kind"] == "called in another format"
    assert known["found"] == {"tool_call": 1}
    assert (known["tools"], known["calls"], known["outcome"], known["status"]) == (2, 1, "calls", 200)
    assert known["turn"] == "first decision"
    assert known["tokens"] == {
        "input": 11, "output": 7, "cached": 0, "reasoning": 0, "estimated": False, "retried": 0,
    }  # fmt: skip
    assert 0 < known["first_byte"] <= known["first_call"] <= known["seconds"]
    assert known["held"] >= 0
    assert known["error"] is None
    assert known["served_model"] == "up"
    assert seen.count("calls_total", format="tool_call") == 1
    assert seen.count("tokens_total", direction="input", attempt="last", client="") == 11
    for name in ("first_byte_seconds", "first_call_seconds", "exchange_seconds", "held_characters"):
        assert seen.count(f"{name}_count") == 1
    assert seen.count("in_flight") == 0


@both
async def test_the_log_line_lists_dropped_features_and_quotations(logged):
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    seen = Seen(ScriptedUpstream(said("chat", f"It says {call}, no more.")))
    body = write("chat", Ask((("user", f"What is {call}?"),), ASK.tools))
    hosted = [{"type": kind} for kind in ("web_search", "a", "b", "c")]
    body["tools"] += hosted
    async with stream_asgi(seen.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        await reply.body()
    line = logged()[0].getMessage()
    assert "left out or repaired: tool of type web_search, tool of type a, tool of type b, 1 more" in line
    assert "quoted: 1 behind text" in line
    assert logged()[0].streamtool["quoted"] == {"behind text": 1}
    assert seen.count("quotations_total", reason="behind text") == 1


@both
async def test_discards_and_repairs_are_counted(logged):
    odd = '<tool_call>{"name": "ping", "arguments": {x: 1,}}</tool_call>\nObservation: zebra-in-the-reply'
    seen = Seen(ScriptedUpstream(said("chat", odd)))
    await seen.ask("chat", ASK)
    known = logged()[0].streamtool
    assert known["discarded"]["invented result"] > 0
    assert known["repairs"]
    assert seen.count("discarded_characters_total", reason="invented result") == known["discarded"]["invented result"]
    assert seen.count("repairs_total", repair=known["repairs"][0]) == 1


@both
@pytest.mark.parametrize(
    ("mode", "script", "expected"),
    [
        ("rescue", [native(("read_file", "{}"), text=f"So.\n{CALL}")], ("native", [])),
        ("auto", [native(("read_file", "{}"))], ("native", [])),
        ("auto", [refused(*NO_TOOLS["ollama"]), said("chat", CALL)], ("tool_call", ["tools unsupported"])),
    ],
)
async def test_the_mode_is_recorded(mode, script, expected, logged, caplog):
    format, reasons = expected
    seen = Seen(ScriptedUpstream(*script), mode=mode)
    await seen.ask("chat", ASK)
    known = logged()[0].streamtool
    assert known["mode"] == ("emulate" if reasons else "native" if mode == "auto" else mode)
    assert [attempt["reason"] for attempt in known["attempts"]] == reasons
    assert seen.count("calls_total", format=format) == 1
    assert_discreet(caplog, seen)


@both
@pytest.mark.parametrize(
    ("ask", "options", "sentence"),
    [
        (Ask(ASK.turns), {}, "m: passed on ("),
        (ASK, {"mode": "native"}, "m: passed on, tools 2 ("),
        (Ask(ASK.turns), {"app_protocol": "ollama"}, "m: translated to ollama ("),
    ],
    ids=["passthrough", "native", "translate"],
)
async def test_exchanges_that_are_only_passed_on_are_logged(ask, options, sentence, logged, caplog):
    mode = options.get("mode", "translate" if options else "passthrough")
    seen = Seen(ScriptedUpstream(said(options.get("app_protocol", "chat"), "zebra-in-the-reply")), **options)
    await seen.ask("chat", ask)
    (record,) = logged()
    assert record.streamtool["mode"] == mode
    assert record.streamtool["outcome"] == ("text" if mode == "translate" else "passed")
    assert record.getMessage().startswith(sentence)
    assert seen.count("in_flight") == 0
    assert_discreet(caplog, seen)


@both
async def test_a_client_disconnect_is_logged(logged):
    seen = Seen(ScriptedUpstream(Script((*said("chat", "Well, so.").steps[:-3], Hang()))))
    async with stream_asgi(seen.app, PATHS["chat"], body=json.dumps(write("chat", ASK)).encode()) as reply:
        await anext(reply)
        reply.disconnect()
        await reply.finished.wait()
    (record,) = logged()
    assert record.streamtool["outcome"] == "left"
    assert "the client left" in record.getMessage()
    assert seen.span.status.status_code is StatusCode.UNSET


ELSEWHERE = {
    "usage": "tokens",
    "details": "attempts",
    "retried": "attempts",
    "formats": "found",
    "passed": "outcome",
    "done": "outcome",
}
"""Fields of the record that are logged under another name."""


@both
async def test_every_field_of_the_record_is_logged(logged):
    await Seen(ScriptedUpstream(said("chat", CALL))).ask("chat", ASK)
    names = {ELSEWHERE.get(field.name, field.name) for field in attrs.fields(Record)}
    assert {*names, "outcome", "trace", "verdict"} == set(logged()[0].streamtool)


# --- errors


@both
@pytest.mark.parametrize("tools", [TOOLS, ()], ids=["tools", "translated"])
async def test_the_text_of_an_upstream_error_reaches_only_the_client(tools, logged, caplog):
    refusal = status(429, f"Too much {PROMPT} for {KEY}")
    seen = Seen(ScriptedUpstream(refusal), app_protocol="chat")
    assert PROMPT.encode() in await seen.ask("messages", Ask(ASK.turns, tools), accept=(429,))
    (record,) = logged()
    assert record.levelno == logging.WARNING
    assert record.streamtool["outcome"] == "error"
    assert record.streamtool["error"]["status"] == 429
    assert record.streamtool["status"] == 429
    assert "failed: 429 " in record.getMessage()
    assert seen.count("errors_total", status="429", client="") == 1
    assert seen.span.status.status_code is StatusCode.ERROR
    assert_discreet(caplog, seen)


@both
async def test_the_error_of_a_record_refers_to_no_frames():
    """They contain the client's headers, and a record may be kept for long."""
    records: list[Record] = []
    cut = Script((*said("chat", "Well").steps[:-3], Die(UpstreamError("the upstream at u fell silent"))))
    app = ToolMiddleware(ScriptedUpstream(cut), app_protocol="chat", on_exchange=records.append)
    async with stream_asgi(app, body=json.dumps(write("chat", ASK)).encode()) as stream:
        await stream.body()
    error = records[0].error
    assert error is not None
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


@both
async def test_our_own_error_messages_are_logged(logged):
    cut = Script((*said("chat", "Well").steps[:-3], Die(UpstreamError("the upstream at u fell silent"))))
    seen = Seen(ScriptedUpstream(cut))
    await seen.ask("chat", ASK)
    assert logged()[0].getMessage().count("the upstream at u fell silent") == 1


@both
async def test_the_error_of_a_passed_on_exchange_is_logged(logged):
    seen = Seen(ScriptedUpstream(Script((), before=(Die(UpstreamError("the upstream at u cannot be reached")),))))
    await seen.ask("chat", Ask(ASK.turns), accept=(502,))
    (record,) = logged()
    assert "m: passed on, failed (" in record.getMessage()
    assert record.getMessage().count("the upstream at u cannot be reached") == 1
    assert seen.count("errors_total", status="502", client="") == 1


@both
async def test_an_invalid_request_is_logged_without_its_contents(logged, caplog):
    app = ToolMiddleware(ScriptedUpstream(said("chat", "x")))
    body = {**write("chat", ASK), "messages": [{"role": PROMPT, "content": KEY}]}
    async with stream_asgi(app, PATHS["chat"], body=json.dumps(body).encode(), headers=HEADERS) as reply:
        assert await reply.head() == 400
    (record,) = logged()
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "a request (chat) was rejected with 400 at messages[0].role",
    )
    assert_discreet(caplog)


@both
async def test_names_from_outside_cannot_forge_a_log_line(logged):
    seen = Seen(ScriptedUpstream(said("chat", CALL)))
    body = {**write("chat", ASK), "model": "m\nstreamtool: forged\x1b[0m " + "x" * 500}
    async with stream_asgi(seen.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        await reply.body()
        await reply.finished.wait()
    message = logged()[0].getMessage()
    assert message.startswith(r"m\nstreamtool: forged\x1b[0m xx")
    assert len(message) < 400


def test_plain_text_is_a_single_line_of_bounded_length():
    assert printable("a\tb\u2028c\ud800") == r"a\tb\u2028c\ud800"
    assert printable("é日本") == "é日本"
    assert printable("x" * 200, 10) == "xxxxxxxxx…"


# --- the transports


def network(*scripts: Script) -> httpx.MockTransport:
    left = list(scripts)

    def answer(request: httpx.Request) -> httpx.Response:
        script = left.pop(0)
        return httpx.Response(script.status, content=b"".join(step for step in script.steps if isinstance(step, bytes)))

    return httpx.MockTransport(answer)


URL = "https://up.test/v1/chat/completions"
with_and_without = pytest.mark.parametrize("tools", [TOOLS, ()], ids=["tools", "passed"])


@both
@with_and_without
async def test_the_transport_logs_like_the_middleware(tools, logged, caplog):
    async with httpx.AsyncClient(transport=ToolTransport(network(said("chat", CALL)))) as client:
        await client.post(URL, json=write("chat", Ask(ASK.turns, tools)), headers={"authorization": KEY})
    assert [record.streamtool["outcome"] for record in logged()] == ["calls" if tools else "passed"]
    assert_discreet(caplog)


@with_and_without
def test_the_sync_transport_logs_like_the_middleware(tools, logged, caplog):
    with httpx.Client(transport=SyncToolTransport(network(said("chat", CALL)))) as client:
        client.post(URL, json=write("chat", Ask(ASK.turns, tools)), headers={"authorization": KEY})
    assert [record.streamtool["outcome"] for record in logged()] == ["calls" if tools else "passed"]
    assert_discreet(caplog)


@with_and_without
def test_a_transport_that_cannot_connect_logs_the_error(tools, logged):
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(PROMPT)

    with (
        httpx.Client(transport=SyncToolTransport(httpx.MockTransport(fail))) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.post(URL, json=write("chat", Ask(ASK.turns, tools)))
    (record,) = logged()
    assert record.streamtool["outcome"] == "error"
    assert record.getMessage().count("the request failed: an exception was raised") == 1


REFUSED: dict[int, tuple[str, str, list[tuple[bytes, bytes]], bytes]] = {
    401: ("POST", "/v1/chat/completions", [], b"{}"),
    403: ("POST", "/v1/chat/completions", [(b"origin", b"https://evil.example")], b"{}"),
    404: ("POST", "/v1/nothing\nhere", [], b"{}"),
    405: ("GET", "/v1/messages", [], b""),
    413: ("POST", "/v1/chat/completions", [(b"content-length", b"999999999")], b"{}"),
    415: ("POST", "/v1/chat/completions", [(b"content-type", b"text/plain")], b"{}"),
    421: ("POST", "/v1/chat/completions", [(b"host", b"evil.example")], b"{}"),
    429: ("POST", "/v1/chat/completions", [], b"{}"),
}
"""Status of a refused request → its method, path, headers and body."""


@both
@pytest.mark.parametrize("expected", REFUSED)
async def test_a_refused_request_is_logged_with_its_path_and_the_reason(expected, caplog):
    caplog.set_level(logging.INFO, logger="streamtool.exchange")
    method, path, headers, body = REFUSED[expected]
    limits = LimitSettings(body=1000, requests_per_minute=0 if expected != 429 else 1)
    known = load(None, {}, {"client_keys": {"ann": "key-of-ann"}, "hosts": ["here.example"]})
    proxy = Proxy(attrs.evolve(known, limits=limits), apps={})
    base = {b"content-type": b"application/json", b"host": b"here.example", b"authorization": b"Bearer key-of-ann"}
    if expected == 401:
        del base[b"authorization"]
    for _ in range(2 if expected == 429 else 1):
        caplog.clear()
        async with stream_asgi(
            proxy, path, method=method, body=body, headers=[*{**base, **dict(headers)}.items()]
        ) as reply:
            await reply.body()
    assert reply.status == expected
    (record,) = (one for one in caplog.records if one.name == "streamtool.exchange")
    message = record.getMessage()
    assert f" with {expected}: " in message
    assert printable(path) in message
    assert "\n" not in message
    assert record.streamtool["verdict"]["kind"] not in ("failed", "request invalid")
    assert "key-of-ann" not in message


# --- log formats


@both
async def test_text_and_json_formatters(logged):
    seen = Seen(ScriptedUpstream(said("chat", CALL)))
    await seen.ask("chat", ASK)
    (record,) = logged()
    begin = rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d streamtool: 200 {record.streamtool['request_id']} m: tools 2, calls 1 "
    assert re.match(begin, TextFormatter().format(record))
    line = json.loads(JsonFormatter().format(record))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert (line["level"], line["logger"]) == ("INFO", "streamtool.exchange")
    assert line["streamtool"]["calls"] == 1


def test_other_loggers_keep_their_names_and_tracebacks():
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "x", 1, "out of %s", ("luck",), None)
    assert TextFormatter().format(record).endswith(" uvicorn.error: out of luck")
    record.exc_info = (ValueError, ValueError("x"), None)
    assert "ValueError: x" in json.loads(JsonFormatter().format(record))["exception"]


# --- debug lines


DEBUG = Settings(debug=True)


@both
async def test_debug_logs_each_message_as_received_and_as_sent(caplog):
    caplog.set_level(logging.DEBUG, logger="streamtool")
    seen = Seen(ScriptedUpstream(said("chat", DENIED), said("chat", CALL)), DEBUG)
    await seen.ask("chat", AFTER)
    id_, *_ = (record.getMessage().partition(": ")[0] for record in caplog.records)
    lines = [r.getMessage().removeprefix(f"{id_}: ") for r in caplog.records if r.name == "streamtool.debug"]
    assert lines[:5] == [
        "as received: m, stream, 4 messages, 2 tools: ping, read_file",
        "[0] system    | calls - | ids - | - | 28 characters",
        "[1] user      | calls - | ids - | - | 25 characters",
        "[2] assistant | calls ping | ids call_1 | - | 0 characters",
        "[3] user      | calls - | ids call_1 | result | 19 characters",
    ]
    assert [line for line in lines if not line.startswith("[")][1:] == [
        "as sent, attempt 1: m, stream, 4 messages, 0 tools",
        "the upstream answered 200",
        "as sent, attempt 2: m, stream, 4 messages, 0 tools",
        "the upstream answered 200",
    ]
    assert_discreet(caplog, seen)


@both
async def test_debug_with_contents_logs_the_prompt_and_the_reply_but_no_key(caplog):
    caplog.set_level(logging.DEBUG, logger="streamtool")
    seen = Seen(ScriptedUpstream(said("chat", DENIED), said("chat", CALL)), Settings(debug=True, contents=True))
    await seen.ask("chat", ASK)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "[1] user      | calls - | ids - | - | Ping zebra-in-the-prompt." in text
    assert f"[0] system:\nYou are {PROMPT}." in text
    assert f"the model wrote:\n{DENIED}" in text
    assert f"the model wrote:\n{CALL}" in text
    assert KEY not in everything(caplog, seen)


@both
async def test_debug_lines_are_off_by_default(caplog):
    caplog.set_level(logging.DEBUG, logger="streamtool")
    await Seen(ScriptedUpstream(said("chat", CALL))).ask("chat", ASK)
    assert not [record for record in caplog.records if record.name == "streamtool.debug"]


def test_the_environment_enables_debug():
    assert load("", {"STREAMTOOL_DEBUG": "1"}).debug
    assert load("", {"STREAMTOOL_LOG": "json"}).log == "json"
    assert not load("", {}).contents


# --- spans


@both
async def test_a_span_follows_the_semantic_conventions():
    upstreams = {"u": {"url": "https://up.test/v1"}}
    seen = Seen(
        ScriptedUpstream(said("chat", CALL)), Settings(upstreams=upstreams, models=[{"match": "m", "use": "real"}])
    )
    body = {**write("chat", ASK), "temperature": 0.5, "max_tokens": 90, "user": PROMPT, "stop": [PROMPT]}
    async with stream_asgi(seen.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        await reply.body()
        await reply.finished.wait()
    span = seen.span
    assert (span.name, span.kind) == ("chat real", SpanKind.CLIENT)
    assert 0 < span.end_time - span.start_time < 5e9
    found = dict(span.attributes)
    assert 0 < found.pop("gen_ai.response.time_to_first_chunk") < 5
    assert found.pop("streamtool.request_id").startswith("req_")
    assert found.pop("streamtool.first_call") > 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "real",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 90,
        "gen_ai.response.model": "up",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "server.address": "up.test",
        "server.port": 443,
        "streamtool.usage.estimated": False,
        "streamtool.status": 200,
        "streamtool.outcome": "calls",
        "streamtool.protocol": "chat",
        "streamtool.upstream_protocol": "chat",
        "streamtool.upstream": "u",
        "streamtool.model": "m",
        "streamtool.mode": "emulate",
        "streamtool.tool_prompt": True,
        "streamtool.history": False,
        "streamtool.turn": "first decision",
        "streamtool.format": "invoke",
        "streamtool.tools": 2,
        "streamtool.calls": 1,
        "streamtool.formats": ("tool_call",),
        "streamtool.repairs": (),
        "streamtool.refused": 0,
        "streamtool.incomplete": False,
        "streamtool.held": 0,
    }


def test_the_parent_of_a_span_is_the_current_span_or_the_one_of_the_request():
    provider = TracerProvider()
    spans = OpenTelemetry(provider)
    named = [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    from opentelemetry import trace

    def parent(context: Any) -> int:
        return trace.get_current_span(context).get_span_context().span_id

    assert parent(spans.context(named)) == 0xB7AD6B7169203331
    assert parent(spans.context([(b"traceparent", b"nonsense")])) == 0
    with provider.get_tracer("x").start_as_current_span("server") as server:
        assert parent(spans.context(named)) == server.get_span_context().span_id


@both
async def test_the_setting_creates_spans_with_the_provider_of_the_process(monkeypatch, caplog):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = ToolMiddleware(ScriptedUpstream(said("chat", CALL)), settings=Settings(otel=True))
    app.observers.spans = OpenTelemetry(provider)
    headers = [*HEADERS, (b"Traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    async with stream_asgi(app, PATHS["chat"], body=json.dumps(write("chat", ASK)).encode(), headers=headers) as reply:
        await reply.body()
        await reply.finished.wait()
    (span,) = exporter.get_finished_spans()
    assert span.parent.span_id == 0xB7AD6B7169203331


# --- metrics over the proxy


def test_the_proxy_serves_metrics_to_clients_with_a_key():
    settings = Settings(metrics=True, client_keys=(KEY,))
    body = {"model": PROMPT, "messages": [{"role": "user", "content": "Weather in Paris?"}], "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]}  # fmt: skip
    with (
        uvicorn_server(Proxy(settings)) as served,
        httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        wrong = client.get("/metrics", headers={"authorization": "Bearer wrong"})
        right = {"authorization": f"Bearer {KEY}"}
        assert client.post("/v1/chat/completions", json=body, headers=right).status_code == 200
        wait_for(lambda: "streamtool_in_flight 0.0" in client.get("/metrics", headers=right).text, "the exchange ends")
        page = client.get("/metrics", headers=right)
        assert client.post("/metrics", headers=right).status_code == 405
    assert wrong.status_code == 401
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert 'streamtool_calls_total{format="invoke"}' in page.text
    assert "process_cpu_seconds_total" in page.text or sys.platform != "linux"
    for secret in (PROMPT, KEY, "get_weather"):
        assert secret not in page.text


@both
async def test_metrics_are_off_by_default():
    async with stream_asgi(Proxy(), "/metrics", method="GET") as reply:
        assert await reply.head() == 404


def test_two_observers_share_the_counts_of_a_registry():
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry).began()
    Metrics(registry).began()
    assert registry.get_sample_value("streamtool_in_flight") == 2


@pytest.mark.parametrize(
    ("setting", "module", "extra"), [("metrics", "prometheus_client", "metrics"), ("otel", "opentelemetry", "otel")]
)
def test_a_missing_extra_is_named(setting, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"streamtool.observe.{setting}", raising=False)
    with pytest.raises(SettingsError, match=rf'pip install "streamtool\[{extra}\]"'):
        Proxy(Settings(**{setting: True}))


def test_unused_observers_are_not_imported():
    code = (
        "import sys; from streamtool import Proxy; Proxy()\n"
        "print([name for name in ('prometheus_client', 'opentelemetry', 'streamtool.observe.recordings') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_directory_that_cannot_be_created_is_a_settings_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"recordings: .*/file/traces cannot be created"):
        Observers(Settings(recordings=str(tmp_path / "file" / "traces")), lambda: 0.0)


# --- headers


@both
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_headers_report_attempts_and_format(stream):
    seen = Seen(ScriptedUpstream(said("chat", DENIED), said("chat", CALL)), format="invoke")
    await seen.ask("chat", Ask(ASK.turns, TOOLS, stream=stream))
    assert seen.headers["x-streamtool-attempts"] == ("1" if stream else "2")  # the headers of a stream were sent first
    assert seen.headers["x-streamtool-format"] == "invoke"
    assert seen.headers["x-streamtool-mode"] == "emulate"


@both
async def test_no_format_is_named_if_none_is_taught():
    seen = Seen(ScriptedUpstream(native(("ping", "{}"))), mode="rescue")
    await seen.ask("chat", ASK)
    assert "x-streamtool-format" not in seen.headers
    assert seen.headers["x-streamtool-attempts"] == "1"
