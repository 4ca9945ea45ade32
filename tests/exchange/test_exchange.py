"""One request and its reply, from bytes to bytes: passing, buffering, retries, and how a reply ends."""

import gc
import gzip
import itertools
import json
import zlib
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import each
from support.validators import (
    UNREPAIRABLE,
    assert_valid,
    validate_chat_error,
    validate_chat_stream,
    validate_chat_whole,
)

from streamtool.core.errors import RequestError, TooLargeError, UpstreamError
from streamtool.core.reply import Reason, Usage
from streamtool.exchange.encoding import Inflate
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.record import Record
from streamtool.exchange.request import attempt
from streamtool.protocols import chat
from streamtool.settings import LimitSettings, ModelRule, Settings, ToolSettings
from streamtool.testing import DONE, Script, chunk, event, status, text

PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
PONG = {"type": "function", "function": {"name": "pong", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
OTHER = '<tool_call>{"name": "pong", "arguments": {}}</tool_call>'
UNKNOWN = '<tool_call>{"name": "nope", "arguments": {"x": 1}}</tool_call>'


def request(**fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [PING], **fields}
    return json.dumps({k: v for k, v in body.items() if v is not None}).encode()


def make(settings: Settings | None = None, headers: Any = (), body: bytes | None = None, **fields: Any) -> Exchange:
    numbers = itertools.count(1)
    return Exchange(
        settings or Settings(),
        chat,
        request(**fields) if body is None else body,
        headers,
        new_id=lambda prefix: f"{prefix}{next(numbers)}",
        now=1234,
    )


@define
class Outcome:
    """The result of an exchange."""

    exchange: Exchange
    out: bytes
    requests: list[Any] = field(factory=list)

    @property
    def chunks(self) -> list[Any]:
        events = [e for e in self.out.decode().split("\n\n") if e.startswith("data: {")]
        return [json.loads(e.removeprefix("data: ")) for e in events]

    @property
    def deltas(self) -> list[Any]:
        return [c["choices"][0]["delta"] for c in self.chunks if c.get("choices")]

    @property
    def text(self) -> str:
        return "".join(d.get("content") or "" for d in self.deltas)

    @property
    def calls(self) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for delta in self.deltas:
            for part in delta.get("tool_calls", ()):
                call = found.setdefault(part["index"], ["", ""])
                call[0] += part["function"].get("name", "")
                call[1] += part["function"]["arguments"]
        assert list(found) == list(range(len(found)))
        return [(name, arguments.removesuffix(UNREPAIRABLE)) for name, arguments in found.values()]

    @property
    def reasons(self) -> list[str]:
        return [
            c["choices"][0]["finish_reason"]
            for c in self.chunks
            if c.get("choices") and c["choices"][0]["finish_reason"]
        ]

    @property
    def status(self) -> int:
        assert self.exchange.head is not None
        return self.exchange.head.status

    @property
    def record(self) -> Record:
        return self.exchange.record()


def run(exchange: Exchange, *scripts: Script) -> Outcome:
    """Play one script per attempt against the exchange, as a driver would."""
    outcome = Outcome(exchange, b"")
    for script in scripts:
        outcome.requests.append(json.loads(exchange.request().body))
        outcome.out += exchange.respond(script.status, [(b"content-type", script.content_type.encode())])
        for step in script.steps:
            if exchange.done or exchange.retry:
                break
            assert isinstance(step, bytes)
            outcome.out += exchange.feed(step)
        if not (exchange.done or exchange.retry):
            outcome.out += exchange.close()
    exchange.remember()
    if exchange.done and exchange.head is not None:
        check(exchange, outcome.out, scripts_deliver=exchange._settings.unknown_tools == "deliver")
    return outcome


def check(exchange: Exchange, out: bytes, *, scripts_deliver: bool) -> None:
    """Check that the output obeys all rules of the protocol."""
    assert exchange.head is not None
    asked = None if scripts_deliver else dict(exchange.conversation.raw)
    if exchange._settings.retries == 0 or exchange.record().unmet or exchange.record().reason is Reason.LENGTH:
        asked = None if asked is None else asked | {"tool_choice": "auto"}  # the model failed to, not the exchange
    headers = {name.decode(): value.decode() for name, value in exchange.head.headers}
    if exchange.head.status != 200:
        assert_valid(validate_chat_error(out))
    elif exchange.conversation.stream:
        assert_valid(validate_chat_stream(out, asked, headers=headers))
    else:
        assert_valid(validate_chat_whole(out, asked))


# --- the request


def test_a_request_with_tools_reaches_the_upstream_without_them_and_streamed():
    exchange = make(stream=False, temperature=0.5, unheard_of={"a": 1})
    sent = exchange.request()
    body = json.loads(sent.body)
    assert "tools" not in body
    assert body["stream"] is True
    assert body["temperature"] == 0.5
    assert body["unheard_of"] == {"a": 1}
    assert "ping" in body["messages"][0]["content"]
    assert dict(sent.headers)[b"accept-encoding"] == b"identity"
    assert dict(sent.headers)[b"content-length"] == str(len(sent.body)).encode()


def test_a_request_with_neither_tools_nor_tool_history_passes():
    body = b'{"model": "m",  "messages":[{"role":"user","content":"hi"}]}'
    exchange = make(body=body, headers=[(b"Content-Type", b"application/json"), (b"accept-encoding", b"gzip")])
    assert exchange.passthrough
    assert exchange.request().body is body
    assert dict(exchange.request().headers)[b"accept-encoding"] == b"gzip"


def test_an_unreadable_request_without_tools_passes_with_only_the_model_changed():
    settings = Settings(models=(ModelRule("m", use="other"),))
    body = {"model": "m", "messages": [{"role": "critic", "content": 7}], "n": 1000, "x": [1]}
    exchange = make(settings, body=json.dumps(body).encode())
    assert exchange.passthrough
    assert json.loads(exchange.request().body) == body | {"model": "other"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x"},
        {"role": "function", "content": "x"},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "function_call": {}},
    ],
)
def test_an_unreadable_request_with_tool_history_is_rejected(message):
    with pytest.raises(RequestError):
        make(tools=None, messages=[message])


def test_tool_history_alone_keeps_the_conversation_emulated():
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "pong"},
    ]
    exchange = make(tools=None, messages=messages)
    assert not exchange.passthrough
    outcome = run(exchange, text("Again: ", CALL))
    assert outcome.calls == [("ping", '{"x": 1}')]


def test_the_model_is_mapped_and_its_upstream_named():
    routed = Settings(
        upstreams={"big": {"url": "http://127.0.0.1:1"}, "small": {"url": "http://127.0.0.1:2"}},
        models=[{"match": "claude-*", "use": "qwen", "upstream": "small"}],
    )
    mapped = make(routed, model="claude-x").request()
    assert json.loads(mapped.body)["model"] == "qwen"
    assert mapped.upstream == "small"
    assert make(routed).request().upstream == "big"
    passed = make(routed, model="claude-x", tools=None)
    assert passed.passthrough
    assert json.loads(passed.request().body)["model"] == "qwen"


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", lambda data: zlib.compress(data, wbits=-15))],
)
def test_a_compressed_request_is_decoded(encoding, encode):
    exchange = make(body=encode(request()), headers=[(b"content-encoding", encoding.encode())])
    assert exchange.conversation.tools[0].name == "ping"
    assert b"content-encoding" not in dict(exchange.request().headers)


def test_a_compressed_request_is_decoded_within_the_body_limit():
    body = gzip.compress(request(padding="x" * 100_000))
    assert len(body) < 2000
    with pytest.raises(TooLargeError):
        make(Settings(limits=LimitSettings(body=2000)), body=body, headers=[(b"content-encoding", b"gzip")])


def test_a_request_in_an_unknown_encoding_is_rejected():
    with pytest.raises(RequestError, match="br"):
        make(headers=[(b"content-encoding", b"br")])


def test_a_damaged_compressed_request_is_rejected():
    with pytest.raises(RequestError, match="gzip"):
        make(body=b"\x1f\x8b" + b"no" * 20, headers=[(b"content-encoding", b"gzip")])


# --- the reply


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_text_becomes_calls_at_every_delta_size(size):
    outcome = run(make(), text("Let me see. ", CALL, OTHER, size=size))
    assert outcome.text.rstrip() == "Let me see."
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]
    assert outcome.out.endswith(DONE)
    assert outcome.status == 200
    assert outcome.exchange.done


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_the_outcome_does_not_depend_on_the_split_of_the_bytes(size):
    outcome = run(make(), text("Wärme 🌡: ", CALL, size=3).resized(size))
    assert outcome.text.strip() == "Wärme 🌡:"
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]


def test_unchanged_text_is_forwarded_as_the_upstreams_bytes():
    script = text("Only words here.", size=4)
    exchange = make()
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(script.steps[0])
    for step in script.steps[1:5]:
        assert exchange.feed(step) == step


def test_the_events_of_one_read_leave_in_one_write():
    script = text("Only words here.", size=4)
    exchange = make()
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(script.steps[0])
    assert exchange.feed(b"".join(script.steps[1:4])) == b"".join(script.steps[1:4])


def test_the_first_argument_leaves_in_the_feed_that_brought_it():
    exchange = make()
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(chunk({"role": "assistant", "content": ""}))
    exchange.feed(chunk({"content": '<tool_call>{"name": "ping", "arguments": '}))
    assert b"arguments" in exchange.feed(chunk({"content": '{"x'}))
    assert b'"arguments":"\\": 1"' in exchange.feed(chunk({"content": '": 1'}))


def test_a_whole_reply_is_the_fold_of_the_streamed_one():
    outcome = run(
        make(stream=False), text("See: ", CALL, usage={"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12})
    )
    body = json.loads(outcome.out)
    assert outcome.status == 200
    message = body["choices"][0]["message"]
    assert message["content"].strip() == "See:"
    assert [c["function"] for c in message["tool_calls"]] == [{"name": "ping", "arguments": '{"x": 1}'}]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["total_tokens"] == 12
    assert body["id"] == "chatcmpl-upstream"
    headers = dict(outcome.exchange.head.headers)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == str(len(outcome.out)).encode()


def test_a_whole_reply_from_an_upstream_that_does_not_stream_is_read():
    whole = {
        "id": "chatcmpl-w", "object": "chat.completion", "created": 5, "model": "w",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "See: " + CALL}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }  # fmt: skip
    outcome = run(make(), Script((json.dumps(whole).encode(),), content_type="application/json"))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]


def test_ids_of_calls_are_unique_in_the_conversation():
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_2", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "pong"},
    ]
    outcome = run(make(messages=messages), text(CALL, "\n", CALL))
    ids = [d["tool_calls"][0]["id"] for d in outcome.deltas if "tool_calls" in d and "id" in d["tool_calls"][0]]
    assert len(set(ids)) == 2
    assert "call_2" not in ids


@pytest.mark.parametrize("given", [None, "", "functions.ping:0", "x" * 41, "call_old"])
def test_an_unusable_id_is_replaced(given):
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_old", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_old", "content": "pong"},
    ]
    native = {"index": 0, "id": given, "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    for stream in (True, False):
        outcome = run(
            make(messages=messages, stream=stream),
            Script((chunk({"tool_calls": [native]}), chunk({}, finish="stop"), DONE)),
        )
        assert b'"id":"call_2"' in outcome.out


def test_usage_is_reported_when_requested():
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    outcome = run(make(stream_options={"include_usage": True}), text("Words.", usage=usage))
    last = outcome.chunks[-1]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 12
    assert run(make(), text("Words.", usage=usage)).chunks[-1]["choices"] != []


def test_native_calls_of_the_upstream_pass():
    def fragment(index: int, **function: str) -> bytes:
        entry: dict[str, Any] = {"index": index, "function": function}
        if "name" in function:
            entry |= {"id": f"call_up{index}", "type": "function"}
        return chunk({"tool_calls": [entry]})

    steps = (
        chunk({"role": "assistant", "content": "First " + CALL}),
        fragment(0, name="ping", arguments=""),
        fragment(0, arguments='{"x": 2}'),
        chunk({"content": " then " + CALL}),
        chunk({}, finish="tool_calls"),
        DONE,
    )
    outcome = run(make(), Script(steps))
    assert outcome.calls == [("ping", '{"x": 1}'), ("ping", '{"x": 2}'), ("ping", '{"x": 1}')]
    assert outcome.text.split() == ["First", "then"]
    assert outcome.reasons == ["tool_calls"]


@pytest.mark.parametrize(
    ("pieces", "arguments", "readable"),
    [
        (['{"x": ', "1}"], '{"x": 1}', True),
        ([" \n"], "{}", True),
        (['{"x": 1}', '{"x": 1}'], '{"x": 1}', False),  # sent twice, so the meaning is ambiguous
        (["1}", '{"x": '], "", False),
        (['{"x": 1', "b"], '{"x": 1', False),
        (['{"x": "a'], '{"x": "a', False),
        (["true"], "", False),
        (["[1]"], "", False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_native_arguments_always_begin_with_an_object(pieces, arguments, readable, stream):
    begun = {"index": 0, "id": "call_up", "type": "function", "function": {"name": "ping", "arguments": ""}}
    said = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces]
    steps = (chunk({"tool_calls": [begun]}), *said, chunk({}, finish="tool_calls"), DONE)
    outcome = run(make(stream=stream), Script(steps))
    if stream:
        assert (outcome.calls, outcome.reasons) == ([("ping", arguments)], ["tool_calls"])
    elif not readable:
        assert (outcome.status, json.loads(outcome.out)["error"]["code"]) == (502, "malformed_call")
    else:
        [choice] = json.loads(outcome.out)["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "ping", "arguments": arguments}


def test_parallel_off_applies_to_a_native_call_after_a_truncated_one():
    whole = {"index": 0, "id": "call_up", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    steps = (chunk({"content": CALL[:45]}), chunk({"tool_calls": [whole]}), chunk({}, finish="stop"), DONE)
    outcome = run(make(parallel_tool_calls=False), Script(steps))
    assert [name for name, _ in outcome.calls] == ["ping"]
    assert outcome.reasons == ["tool_calls"]


def test_choices_are_read_independently():
    steps: list[bytes] = []
    for first, second in zip(
        text("One. ", CALL, size=9, done=False).steps,
        text("Two is longer text.", size=3, done=False, choice=1).steps,
        strict=False,
    ):
        assert isinstance(first, bytes)
        assert isinstance(second, bytes)
        steps += [first, second]
    steps += [chunk({}, finish="stop", choice=1)]
    outcome = run(make(n=2), Script((*steps, DONE)))
    parts = {0: "", 1: ""}
    for c in outcome.chunks:
        parts[c["choices"][0]["index"]] += c["choices"][0]["delta"].get("content") or ""
    assert parts[0].strip() == "One."
    assert parts[1].startswith("Two is longer")
    reasons = {
        c["choices"][0]["index"]: c["choices"][0]["finish_reason"]
        for c in outcome.chunks
        if c["choices"][0]["finish_reason"]
    }
    assert reasons == {0: "tool_calls", 1: "stop"}


def test_reasoning_is_emitted_dropped_or_shown_as_text():
    steps = (chunk({"role": "assistant", "content": ""}), chunk({"reasoning_content": "hm"}), *text("Yes.").steps[1:])
    emitted = run(make(), Script(steps))
    assert [d["reasoning_content"] for d in emitted.deltas if "reasoning_content" in d] == ["hm"]
    assert emitted.text == "Yes."
    assert run(make(Settings(reasoning="text")), Script(steps)).text == "hmYes."
    dropped = run(make(Settings(reasoning="drop")), Script(steps))
    assert b"hm" not in dropped.out
    assert dropped.record.discarded == (("reasoning", 2),)


def test_headers_of_the_upstream_are_kept_except_its_framing():
    exchange = make()
    exchange.request()
    exchange.respond(
        200,
        [(b"X-Request-Id", b"theirs"), (b"content-length", b"9"), (b"x-ratelimit-remaining", b"3"), (b"etag", b"e")],
    )
    exchange.feed(chunk({"role": "assistant", "content": ""}))
    assert exchange.head is not None
    headers = dict(exchange.head.headers)
    assert headers[b"x-request-id"] == b"theirs"
    assert headers[b"x-ratelimit-remaining"] == b"3"
    assert headers[b"x-streamtool-mode"] == b"emulate"
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in headers
    assert b"etag" not in headers


# --- calls that may pass


def test_an_unknown_tool_is_text_dropped_or_delivered():
    assert run(make(Settings(unknown_tools="text")), text("A ", UNKNOWN)).text == "A " + UNKNOWN
    dropped = run(make(Settings(unknown_tools="drop")), text("A ", UNKNOWN, " B"))
    assert "nope" not in dropped.text
    assert dropped.calls == []
    assert any(reason == "unknown" for reason, _ in dropped.record.discarded)
    delivered = run(make(Settings(unknown_tools="deliver")), text("A ", UNKNOWN))
    assert delivered.calls == [("nope", '{"x": 1}')]
    assert delivered.reasons == ["tool_calls"]


def test_names_that_are_nearly_right_are_repaired_as_set():
    other = CALL.replace("ping", "Ping").replace('"x"', '"X"')
    repaired = run(make(), text(other))
    assert (repaired.calls, repaired.record.repairs) == ([("ping", '{"x": 1}')], ("tool_name", "parameter_name"))
    typo = CALL.replace("ping", "pingg")
    assert run(make(Settings(unknown_tools="text")), text(typo)).text == typo
    assert run(make(Settings(tool_names="edit")), text(typo)).calls == [("ping", '{"x": 1}')]


def test_flattened_arguments_are_nested_as_set():
    inner = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "ping", "parameters": {"type": "object", "properties": {"addr": inner}}}
    tools = [{"type": "function", "function": tool}]
    flat = CALL.replace('"x": 1', '"city": "Oslo"')
    assert run(make(tools=tools), text(flat)).calls == [("ping", '{"addr": {"city": "Oslo"}}')]
    assert run(make(Settings(flattened="keep"), tools=tools), text(flat)).calls == [("ping", '{"city": "Oslo"}')]


def test_choice_none_discards_calls():
    outcome = run(make(tool_choice="none"), text("I will. ", CALL, " Done."))
    assert outcome.calls == []
    assert outcome.text.startswith("I will.")
    assert "tool_call" not in outcome.text
    assert outcome.reasons == ["stop"]
    assert outcome.record.refused == 1


def test_parallel_off_ends_the_reply_after_the_first_call_and_cuts_the_upstream():
    outcome = run(make(parallel_tool_calls=False), text(CALL, "\n", CALL, " more", size=6))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]
    assert outcome.out.endswith(DONE)
    assert outcome.exchange.done
    assert outcome.exchange.cut
    assert outcome.record.usage.estimated
    assert 10 < outcome.record.usage.output < 30
    assert outcome.record.usage.input > 100
    assert outcome.exchange.feed(chunk({"content": "more"})) == b""


def test_parallel_off_applies_within_one_read_too():
    outcome = run(make(parallel_tool_calls=False), text("A ", CALL, CALL, " B", size=10_000))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert "B" not in outcome.text


def test_legacy_functions_get_one_function_call():
    outcome = run(make(tools=None, functions=[PING["function"]]), text(CALL, CALL))
    assert next(d["function_call"] for d in outcome.deltas if "function_call" in d)["name"] == "ping"
    assert outcome.reasons == ["function_call"]


def test_a_narrowed_tool_choice_makes_the_other_tools_unknown():
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "ping"}}]},
    }
    outcome = run(make(Settings(unknown_tools="text"), tools=[PING, PONG], tool_choice=choice), text(OTHER, CALL))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert "pong" in outcome.text


# --- a forced call


def test_text_before_a_forced_call_is_buffered_until_the_call():
    exchange = make(tool_choice="required")
    exchange.request()
    exchange.respond(200, [])
    script = text("Let me think. ", CALL, size=100)
    assert exchange.feed(script.steps[0]) == b""
    assert exchange.feed(chunk({"content": "Let me think. "})) == b""
    assert exchange.head is None
    out = exchange.feed(chunk({"content": '<tool_call>{"name": "ping", "arguments": {'}))
    assert out.index(b"Let me think") < out.index(b"ping")
    assert exchange.head is not None


def test_a_missing_forced_call_is_retried():
    outcome = run(
        make(tool_choice="required"),
        text("I cannot do that.", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
        text("Fine: ", CALL, usage={"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}),
    )
    assert outcome.text.strip() == "Fine:"
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]
    assert outcome.record.attempts == ("required call missing",)
    assert (outcome.record.usage.output, outcome.record.usage.retried) == (20, Usage(1, 2))
    assert outcome.requests[0]["messages"][0] == outcome.requests[1]["messages"][0]
    assert "did not contain" in outcome.requests[1]["messages"][-1]["content"]
    assert all("I cannot" not in str(m["content"]) for m in outcome.requests[1]["messages"])


def test_a_truncated_call_is_retried_although_only_one_call_is_allowed():
    exchange = make(Settings(arguments="complete"), tool_choice="required", parallel_tool_calls=False)
    outcome = run(exchange, text('<tool_call>{"name": "ping", "arguments": {"x": '), text(CALL))
    assert outcome.record.attempts == ("malformed",)
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]


def test_attempts_are_bounded_and_the_last_text_is_delivered():
    script = text("I will not.")
    outcome = run(make(tool_choice="required"), script, script, script)
    assert outcome.exchange.done
    assert outcome.text == "I will not."
    assert outcome.reasons == ["stop"]
    assert len(outcome.record.attempts) == 2
    assert outcome.record.unmet == "required call missing"
    assert dict(outcome.exchange.head.headers)[b"x-streamtool-unmet"] == b"required call missing"
    wordings = [r["messages"][-1]["content"] for r in outcome.requests]
    assert len(set(wordings)) == 3
    assert run(make(Settings(retries=0), tool_choice="required"), script).text == "I will not."
    assert run(make(Settings(limits=LimitSettings(attempts=1)), tool_choice="required"), script).text == "I will not."


def test_after_visible_text_the_reply_is_continued():
    narrow = Settings(limits=LimitSettings(held=20))
    outcome = run(
        make(
            narrow,
            tool_choice={"type": "function", "function": {"name": "ping"}},
            stream_options={"include_usage": True},
        ),
        text(
            "This is a long talk about nothing.", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        ),
        text("Ok. ", CALL, usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}),
    )
    assert outcome.text.startswith("This is a long talk about nothing.")
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert [d["role"] for d in outcome.deltas if "role" in d] == ["assistant"]
    assert len({c["id"] for c in outcome.chunks}) == 1
    assert outcome.reasons == ["tool_calls"]
    assert outcome.chunks[-1]["usage"]["total_tokens"] == 2
    assert outcome.chunks[-1]["usage"]["streamtool"] == {"retried": {"input_tokens": 1, "output_tokens": 1}}
    said = outcome.requests[1]["messages"]
    assert said[-2] == {"role": "assistant", "content": "This is a long talk about nothing."}
    assert "`ping`" in said[-1]["content"]


def test_a_wrong_tool_does_not_satisfy_a_named_tool_choice():
    named = {"type": "function", "function": {"name": "ping"}}
    outcome = run(make(tools=[PING, PONG], tool_choice=named), text(OTHER), text(CALL))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert "pong" not in outcome.text


def test_a_truncated_forced_attempt_is_not_retried():
    outcome = run(make(tool_choice="required"), text("I was going to", finish="length"))
    assert outcome.exchange.done
    assert outcome.text == "I was going to"
    assert outcome.reasons == ["length"]


def test_a_forbidden_call_alone_is_retried_as_text():
    outcome = run(make(tool_choice="none"), text(CALL), text("It is 12."))
    assert outcome.text.strip() == "It is 12."
    assert outcome.calls == []
    assert outcome.record.attempts == ("call forbidden",)


# --- incomplete calls


@pytest.mark.parametrize(("finish", "reason"), [("length", "length"), ("stop", "tool_calls")])
def test_an_incomplete_call_is_delivered_so_far_and_cannot_be_read(finish, reason):
    outcome = run(make(), text('<tool_call>{"name": "ping", "arguments": {"x": "ab', finish=finish))
    assert outcome.calls == [("ping", '{"x": "ab')]
    assert outcome.out.count(json.dumps(UNREPAIRABLE).encode()) == 1
    assert outcome.reasons == [reason]
    assert outcome.record.incomplete


def test_a_reply_that_is_not_streamed_contains_no_truncated_call():
    cut = text("Go: ", CALL, '<tool_call>{"name": "ping", "arguments": {"x": "ab', finish="length")
    [choice] = json.loads(run(make(stream=False), cut).out)["choices"]
    assert choice["finish_reason"] == "length"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"x": 1}']


def test_a_call_to_a_custom_tool_that_cannot_be_read_is_an_error():
    tools = [{"type": "custom", "custom": {"name": "sh"}}]
    outcome = run(make(tools=tools), text('<tool_call>{"name": "sh", "arguments": {"input": "ls", : }}</tool_call>'))
    assert outcome.chunks[-1]["error"]["code"] == "malformed_call"
    assert outcome.reasons == []


def test_a_truncated_call_may_be_an_error():
    outcome = run(
        make(Settings(truncated="error")), text('<tool_call>{"name": "ping", "arguments": {"x": "ab', finish="length")
    )
    assert outcome.chunks[-1]["error"]["code"] == "truncated_call"
    assert outcome.reasons == []


def test_complete_arguments_are_sent_together():
    exchange = make(Settings(tools={"ping": ToolSettings(arguments="complete")}))
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(chunk({"role": "assistant", "content": ""}))
    assert exchange.feed(chunk({"content": '<tool_call>{"name": "ping", "arguments": {"x": '})) == b""
    out = exchange.feed(chunk({"content": "1}}</tool_call>"}))
    assert b"ping" in out
    assert b'{\\"x\\": 1}' in out


def test_with_complete_arguments_a_truncated_call_is_left_out():
    outcome = run(
        make(Settings(arguments="complete")),
        text("Go: ", '<tool_call>{"name": "ping", "arguments": {"x": "ab', finish="length"),
    )
    assert outcome.calls == []
    assert outcome.reasons == ["length"]
    assert outcome.text.strip() == "Go:"


def test_a_call_that_was_left_out_does_not_affect_the_next_one():
    broken = '<tool_call>{"name": "ping", "arguments": {"x": 1 : 2}}</tool_call>'
    outcome = run(make(Settings(arguments="complete")), text(broken, CALL))
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]
    assert run(make(), text(broken, CALL)).calls == [("ping", '{"x": 1 '), ("ping", '{"x": 1}')]
    assert run(make(Settings(arguments="complete")), text(CALL, broken)).reasons == ["tool_calls"]
    alone = run(make(Settings(arguments="complete", retries=0)), text(broken))
    assert alone.chunks[-1]["error"]["code"] == "malformed_call"


def test_a_choice_without_its_required_call_is_reported_whatever_the_others_do():
    steps = (chunk({"content": "No."}), chunk({"content": CALL}, choice=1))
    ends = (chunk({}, finish="stop"), chunk({}, finish="stop", choice=1), DONE)
    outcome = run(make(n=2, tool_choice="required"), Script((*steps, *ends)))
    assert outcome.record.unmet == "required call missing"


def test_a_custom_tool_gets_its_raw_text():
    custom = {"type": "custom", "custom": {"name": "patch", "description": "apply a patch"}}
    outcome = run(
        make(tools=[custom]), text('<tool_call>{"name": "patch", "arguments": {"input": "*** a\\n+b"}}</tool_call>')
    )
    parts = [d["tool_calls"][0] for d in outcome.deltas if "tool_calls" in d]
    assert parts[0]["type"] == "custom"
    assert "".join(p["custom"]["input"] for p in parts) == "*** a\n+b"


# --- failures


@pytest.mark.parametrize("code", [400, 401, 403, 404, 408, 409, 422, 429, 500, 503, 529])
def test_an_upstream_rejection_before_the_first_byte_keeps_its_status(code):
    outcome = run(make(), status(code, "not today"))
    assert outcome.status == code
    error = json.loads(outcome.out)["error"]
    assert "not today" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_redirect_is_an_upstream_error():
    outcome = run(make(), Script((b"",), status=302))
    assert outcome.status == 502


@pytest.mark.parametrize("code", [100, 199, 600, 999])
def test_an_invalid_status_is_an_upstream_error(code):
    outcome = run(make(), status(code, "odd"))
    assert outcome.status == 502
    assert f"status {code}" in json.loads(outcome.out)["error"]["message"]


def test_retry_hints_of_a_rejection_reach_the_client():
    exchange = make()
    exchange.request()
    exchange.respond(429, [(b"retry-after", b"7"), (b"content-type", b"application/json")])
    exchange.feed(b'{"error":{"message":"slow down"}}')
    exchange.close()
    assert exchange.head is not None
    assert dict(exchange.head.headers)[b"retry-after"] == b"7"


def test_an_html_error_page_is_not_shown():
    outcome = run(make(), Script((b"<html><body>nginx</body></html>",), status=502, content_type="text/html"))
    assert outcome.status == 502
    assert b"<html>" not in outcome.out


def test_an_error_as_the_first_event_sets_the_status():
    outcome = run(make(), Script((event({"error": {"message": "overloaded", "type": "server_error", "code": 503}}),)))
    assert outcome.status >= 500
    assert json.loads(outcome.out)["error"]["message"] == "overloaded"


def test_an_error_in_the_middle_is_an_error_in_the_stream():
    steps = (*text("Some words", done=False, finish=None).steps, event({"error": {"message": "boom"}}))
    outcome = run(make(), Script(steps))
    assert outcome.status == 200
    assert outcome.text == "Some words"
    assert outcome.chunks[-1]["error"]["message"] == "boom"
    assert outcome.reasons == []


@pytest.mark.parametrize("said", ["", "Some text", 'See <tool_call>{"name": "ping", "arguments": {"x": "lo'])
def test_a_truncated_upstream_reply_never_ends_cleanly(said):
    outcome = run(make(), text(said, finish=None, done=False))
    assert outcome.reasons == []
    assert outcome.exchange.record().error is not None
    assert "error" in json.loads(outcome.out) if outcome.status != 200 else "error" in outcome.chunks[-1]


def test_an_empty_response_is_a_bad_gateway():
    outcome = run(make(), Script(()))
    assert outcome.status == 502


def test_a_truncated_whole_reply_sets_the_status():
    outcome = run(make(stream=False), text("Some words", finish=None, done=False))
    assert outcome.status == 502
    assert "error" in json.loads(outcome.out)


def test_a_failure_before_anything_was_sent_sets_the_status():
    exchange = make()
    exchange.request()
    assert json.loads(exchange.fail(UpstreamError("no route")))["error"]["message"] == "no route"
    assert exchange.head is not None
    assert exchange.head.status == 502
    assert exchange.done
    assert exchange.fail(UpstreamError("again")) == b""


def test_a_connection_lost_after_the_complete_reply_is_not_an_error():
    said = text("Look: ", CALL, done=False)
    exchange = make()
    exchange.request()
    exchange.respond(200, [])
    out = b"".join(exchange.feed(step) for step in said.steps if isinstance(step, bytes))
    out += exchange.fail(UpstreamError("the connection broke"))
    assert exchange.done
    assert Outcome(exchange, out).reasons == ["tool_calls"]
    assert_valid(validate_chat_stream(out, json.loads(request())))
    assert exchange.record().error is None


def test_a_failure_between_two_attempts_is_reported():
    exchange = make(tool_choice="required")
    run(exchange, text("No."))
    assert exchange.retry
    out = exchange.fail(UpstreamError("no way on"))
    assert exchange.done
    assert json.loads(out)["error"]["message"] == "no way on"


def test_text_buffered_for_a_forced_call_is_released_when_a_started_reply_fails():
    exchange = make(tool_choice="required")
    exchange.request()
    exchange.respond(200, [])
    out = exchange.feed(chunk({"role": "assistant", "reasoning_content": "Hm."}))
    out += exchange.feed(chunk({"content": "I will look. "}))
    assert Outcome(exchange, out).text == ""
    out += exchange.fail(UpstreamError("the connection broke"))
    assert Outcome(exchange, out).text == "I will look. "
    assert Outcome(exchange, out).reasons == []
    assert_valid(validate_chat_stream(out, json.loads(request())))


def test_text_buffered_for_a_forced_call_does_not_start_the_reply():
    exchange = make(tool_choice="required")
    exchange.request()
    exchange.respond(200, [])
    assert exchange.feed(chunk({"content": "I will look. "})) == b""
    assert json.loads(exchange.fail(UpstreamError("it broke")))["error"]["message"] == "it broke"
    assert exchange.head is not None
    assert exchange.head.status == 502


def test_an_endless_error_body_is_cut():
    exchange = make()
    exchange.request()
    exchange.respond(500, [])
    for _ in range(64):
        exchange.feed(b"x" * 2048)
    assert exchange.done
    assert exchange.cut
    assert exchange.head is not None
    assert exchange.head.status == 500


def test_an_endless_page_is_cut():
    exchange = make()
    exchange.request()
    exchange.respond(200, [])
    out = exchange.feed(b"<html><title>Welcome</title>")
    for _ in range(64):
        out += exchange.feed(b"x" * 2048)
    assert exchange.done
    assert exchange.cut
    assert "a web page (Welcome)" in json.loads(out)["error"]["message"]


def test_reasoning_buffered_with_text_is_bounded_as_well():
    exchange = make(Settings(limits=LimitSettings(held=1000)), tool_choice="required")
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(chunk({"content": "I say "}))
    out = b"".join(exchange.feed(chunk({"reasoning_content": "x" * 100})) for _ in range(20))
    assert b"I say " in out


# --- the client's stop strings


STOPS = ["STOP", "}", "\n\n\n"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_never_cuts_a_call_and_is_not_sent_upstream(stream):
    outcome = run(make(stop=STOPS, stream=stream), text("See: ", CALL))
    assert "stop" not in outcome.requests[0]
    if stream:
        assert outcome.text == "See: "
        assert outcome.calls == [("ping", '{"x": 1}')]
        assert outcome.reasons == ["tool_calls"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 50])
def test_visible_text_ends_before_a_stop_string_and_the_upstream_is_cut(size):
    outcome = run(make(stop=STOPS), text("STO ST S and STOP or not } ", CALL, size=size))
    assert outcome.text == "STO ST S and "
    assert outcome.calls == []
    assert outcome.reasons == ["stop"]
    assert outcome.exchange.cut


def test_a_partial_match_of_a_stop_string_is_buffered_only_until_it_fails():
    exchange = make(stop="STOP")
    exchange.request()
    exchange.respond(200, [])
    exchange.feed(chunk({"role": "assistant", "content": ""}))
    assert b"Rain " in exchange.feed(chunk({"content": "Rain ST"}))
    assert b"STAY" in exchange.feed(chunk({"content": "AY"}))
    assert exchange.feed(chunk({"content": "S"})) == b""
    assert b'"S"' in exchange.feed(chunk({"content": CALL}))


def test_a_partial_stop_string_at_the_end_is_text():
    assert run(make(stop="STOP"), text("And STO")).text == "And STO"


def test_the_earliest_of_many_stop_strings_ends_the_text():
    many = [f"{letter}{number}" for number in range(100, 400) for letter in "abc"]
    outcome = run(make(stop=[*many, "two b170", "b170 "]), text("one b x two b170 c300", size=3))
    assert (outcome.text, outcome.reasons) == ("one b x ", ["stop"])


def test_each_choice_stops_independently():
    steps = [chunk({"content": f"{i} a#b"}, choice=i) for i in (0, 1)]
    outcome = run(make(stop="#", n=2), Script((*steps, chunk({"content": "more"}, choice=1))))
    assert outcome.text == "0 a1 a"
    assert outcome.exchange.cut
    assert outcome.exchange.done


def test_a_forced_call_takes_precedence_over_a_stop_string_before_it():
    outcome = run(make(stop="#", tool_choice="required"), text("One # two. ", CALL))
    assert outcome.text == "One "
    assert outcome.calls == [("ping", '{"x": 1}')]
    assert outcome.reasons == ["tool_calls"]


def test_a_keepalive_comment_commits_the_status():
    exchange = make()
    exchange.request()
    assert exchange.keepalive() == b": keep-alive\n\n"
    assert exchange.head is not None
    assert exchange.head.status == 200
    exchange.respond(503, [])
    out = exchange.close()
    assert b'"error"' in out


def test_a_whole_reply_never_contains_comments():
    exchange = make(stream=False)
    exchange.request()
    assert exchange.keepalive() == b""
    assert exchange.head is None


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_reply_is_decoded_as_it_arrives(encoding):
    script = text("Let me. ", CALL)
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    exchange = make()
    exchange.request()
    out = exchange.respond(200, [(b"content-encoding", encoding.encode())])
    for step in script.steps:
        assert isinstance(step, bytes)
        now = exchange.feed(packer.compress(step) + packer.flush(zlib.Z_SYNC_FLUSH))
        out += now
    assert Outcome(exchange, out).calls == [("ping", '{"x": 1}')]
    assert b"content-encoding" not in dict(exchange.head.headers)


@each("size", [1, 100, 1 << 20])
@each("wbits", [31, 15, -15], ids=["gzip", "deflate", "deflate without its header"])
@each("length", [0, 1, 256 * 1024, 3_000_000])
def test_a_compressed_piece_is_decoded_in_pieces(length: int, wbits: int, size: int):
    body = b"a" * length
    packed = zlib.compress(body, wbits=wbits)
    decoder = Inflate("gzip" if wbits == 31 else "deflate")
    found = [piece for at in range(0, len(packed), size) for piece in decoder.pieces(packed[at : at + size])]
    assert b"".join(found) == body
    assert max(map(len, found), default=0) <= 256 * 1024


def test_a_compressed_reply_is_not_decoded_after_its_end():
    """A megabyte of comments after the end of the reply is not even decoded."""
    body = b"".join(step for step in text("Hello.").steps if isinstance(step, bytes))
    exchange = make()
    exchange.request()
    out = exchange.respond(200, [(b"content-encoding", b"gzip")])
    out += exchange.feed(gzip.compress(body + b": \n" * 1_000_000)[:-20] + b"damaged")
    assert exchange.done
    assert Outcome(exchange, out).text == "Hello."


def test_a_reply_in_an_unknown_encoding_is_a_bad_gateway():
    exchange = make()
    exchange.request()
    out = exchange.respond(200, [(b"content-encoding", b"br")])
    assert exchange.head is not None
    assert exchange.head.status == 502
    assert b"br" in out


def test_a_damaged_compressed_reply_is_a_bad_gateway():
    exchange = make()
    exchange.request()
    exchange.respond(200, [(b"content-encoding", b"gzip")])
    exchange.feed(b"this is no gzip")
    assert exchange.head is not None
    assert exchange.head.status == 502


def test_the_tool_prompt_uses_the_format_of_the_rule():
    ruled = Settings(models=[ModelRule(match="m", format="tool_call")])
    assert "<tool_call>" in json.loads(make(ruled).request().body)["messages"][0]["content"]


# --- arbitrary upstreams

PIECES = (
    *(CALL, OTHER, UNKNOWN, "<tool_call>", "</tool_call>", '{"name": "ping", "arguments": {"x": ', "<think>hm</think>"),
    *("Prose. ", "Ünï 🌡 ", "\n", "\n\n", "`code <tool_call>` ", "```json\n", "```\n", "<", "{", '"', "}", "]]"),
    *(
        '<invoke name="ping"><parameter name="x">1</parameter></invoke>',
        "TOOL_CALL: ping\nARGUMENTS: {}",
        "Action: ping\n",
    ),
)
SOUP = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(
    said=SOUP,
    size=st.integers(1, 40),
    read=st.integers(1, 500),
    cut=st.none() | st.floats(0, 1),
    finish=st.sampled_from(["stop", "length", "content_filter", "tool_calls", None]),
    choice=st.sampled_from(["auto", "none", "required"]),
    parallel=st.booleans(),
    stream=st.booleans(),
    arguments=st.sampled_from(["stream", "complete"]),
)
@settings(max_examples=40, deadline=None)
def test_the_client_always_gets_a_valid_reply(  # noqa: PLR0917  named by given
    said, size, read, cut, finish, choice, parallel, stream, arguments
):
    script = text(said, size=size, finish=finish, usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
    body = b"".join(step for step in script.steps if isinstance(step, bytes))
    if cut is not None:
        body = body[: int(len(body) * cut)]
    pieces = tuple(body[i : i + read] for i in range(0, len(body), read))
    exchange = make(
        Settings(arguments=arguments),
        tools=[PING, PONG],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        stream=stream,
    )
    outcome = run(exchange, Script(pieces), Script(pieces), Script(pieces))
    assert outcome.exchange.done
    if cut is None and stream:
        assert outcome.status == 200
        assert outcome.out.endswith(DONE)


@given(said=SOUP, size=st.integers(1, 40), read=st.integers(1, 500))
@settings(max_examples=30, deadline=None)
def test_the_outcome_does_not_depend_on_the_split_of_the_reply(said, size, read):
    one = run(make(), text(said, size=10_000))
    other = run(make(), text(said, size=size).resized(read))
    assert (other.text, other.calls, other.reasons) == (one.text, one.calls, one.reasons)


def test_an_open_stream_does_not_keep_its_prompt(monkeypatch: pytest.MonkeyPatch):
    """A stream may stay open for long, and the prompt can be made again from the request."""
    requests: list[UpstreamRequest] = []

    def attempting(*args: Any, **given: Any) -> UpstreamRequest:
        requests.append(attempt(*args, **given))
        return requests[-1]

    monkeypatch.setattr("streamtool.exchange.exchange.attempt", attempting)
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": [tool], "stream": True}
    exchange = Exchange(Settings(), chat, json.dumps(body).encode(), (), new_id=lambda prefix: f"{prefix}1", now=0)
    exchange.request()
    exchange.respond(200, [(b"content-type", b"text/event-stream")])
    assert any(holder is requests[0] for holder in gc.get_referrers(requests[0].conversation))
    assert not [holder for holder in gc.get_referrers(requests[0].conversation) if isinstance(holder, Exchange)]
