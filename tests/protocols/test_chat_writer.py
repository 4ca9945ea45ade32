"""Writing a Chat Completions reply for the client: streamed, whole, and after failures."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accumulated import accumulate
from support.validators import (
    UNREPAIRABLE,
    assert_valid,
    validate_chat_error,
    validate_chat_stream,
    validate_chat_whole,
)

from streamtool.core.conversation import Conversation, Options, Tool
from streamtool.core.errors import (
    AuthenticationError,
    RequestError,
    StreamtoolError,
    TooLargeError,
    UpstreamError,
    UpstreamRefused,
)
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.protocols.chat import (
    COMPLETE_HEADERS,
    KEEPALIVE,
    STREAM_HEADERS,
    ReplyReader,
    ReplyWriter,
    write_complete,
    write_error,
)

TOOLS = (Tool("f"), Tool("g"), Tool("sh", custom=True))
ASKED = {
    "tools": [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g"}},
        {"type": "custom", "custom": {"name": "sh"}},
    ]
}
STOP = [ReplyFinish(0, Reason.STOP), ReplyEnd()]


def conversation(*, n=1, **fields):
    return Conversation("chat", "m", (), **({"tools": TOOLS, "options": Options(n=n)} | fields))


def writer(**fields):
    return ReplyWriter(conversation(**fields), id="chatcmpl-1", created=7, model="m", forwards=True)


def payloads(data: bytes):
    assert data.endswith(b"\n\n")
    items = [block.removeprefix("data: ") for block in data.decode().split("\n\n")[:-1]]
    return [item if item == "[DONE]" else json.loads(item) for item in items]


def deltas(data: bytes):
    return [item["choices"][0]["delta"] for item in payloads(data) if item != "[DONE]" and item.get("choices")]


def reason(data: bytes):
    return next(
        choice["finish_reason"]
        for item in payloads(data)
        if item != "[DONE]"
        for choice in item["choices"]
        if choice["finish_reason"]
    )


def written(*events, **fields) -> bytes:
    data = writer(**fields).feed(events)
    if isinstance(events[-1], ReplyEnd):
        request = dict(ASKED)
        if fields.get("n"):
            request["n"] = fields["n"]
        if fields.get("include_usage"):
            request["stream_options"] = {"include_usage": True}
        if fields.get("legacy_functions"):
            request = {"functions": [{"name": "f"}, {"name": "g"}]}
        assert_valid(validate_chat_stream(data, request))
    return data


class TestText:
    def test_a_plain_reply_verbatim(self):
        head = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":null,'
        expected = (
            head + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
            + head + '"choices":[{"index":0,"delta":{"content":"hé\\n\\"😀"},"logprobs":null,"finish_reason":null}]}\n\n'
            + head + '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
            + "data: [DONE]\n\n"
        )  # fmt: skip
        assert written(ReplyStart(), ReplyTextDelta(0, 'hé\n"😀'), *STOP).decode() == expected

    def test_the_role_is_sent_with_the_start(self):
        machine = writer()
        assert deltas(machine.feed([ReplyStart()])) == [{"role": "assistant", "content": ""}]
        assert deltas(machine.feed([ReplyTextDelta(0, "a")])) == [{"content": "a"}]

    def test_the_start_provides_id_time_and_model(self):
        [role, *_] = payloads(written(ReplyStart("up", 9, "other"), *STOP))
        assert (role["id"], role["created"], role["model"]) == ("up", 9, "other")

    def test_missing_metadata_is_filled_in(self):
        [role, *_] = payloads(written(ReplyStart(None, None, "other"), *STOP))
        assert (role["id"], role["created"], role["model"]) == ("chatcmpl-1", 7, "other")

    def test_a_second_start_changes_nothing(self):
        items = payloads(
            written(
                ReplyStart("a", 1, "m"), ReplyTextDelta(0, "x"), ReplyStart("b", 2, "n"), ReplyTextDelta(0, "y"), *STOP
            )
        )
        assert {item["id"] for item in items[:-1]} == {"a"}
        assert len(items) == 5

    def test_reasoning_is_written_under_one_key(self):
        assert deltas(written(ReplyReasoningDelta(0, "hm"), ReplyTextDelta(0, "a"), *STOP))[1:] == [
            {"reasoning_content": "hm"},
            {"content": "a"},
            {},
        ]

    def test_empty_pieces_are_not_sent(self):
        data = written(ReplyStart(), ReplyTextDelta(0, ""), ReplyReasoningDelta(0, ""), *STOP)
        assert len(deltas(data)) == 2

    def test_a_lone_surrogate_becomes_a_replacement_character(self):
        assert deltas(written(ReplyTextDelta(0, "a\ud83d"), *STOP))[1] == {"content": "a\ufffd"}

    def test_no_events_give_no_bytes(self):
        assert writer().feed([]) == b""


class TestForwarding:
    RAW = b'data: {"id":"up","object":"chat.completion.chunk","created":9,"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'

    def test_bytes_are_forwarded_verbatim(self):
        machine = writer()
        machine.feed([ReplyStart("up", 9, "m")])
        assert machine.feed([ReplyTextDelta(0, "hi", self.RAW), ReplyTextDelta(0, "hi", self.RAW)]) == self.RAW * 2

    def test_bytes_are_not_forwarded_before_the_role(self):
        machine = writer()
        assert deltas(machine.feed([ReplyTextDelta(0, "hi", self.RAW)])) == [
            {"role": "assistant", "content": ""},
            {"content": "hi"},
        ]

    @pytest.mark.parametrize(
        "start", [ReplyStart(), ReplyStart("up", 9), ReplyStart("up", None, "m"), ReplyStart(None, 9, "m")]
    )
    def test_bytes_are_not_forwarded_if_the_reply_has_other_metadata(self, start):
        machine = writer()
        machine.feed([start])
        assert payloads(machine.feed([ReplyTextDelta(0, "hi", self.RAW)]))[0]["id"] in ("up", "chatcmpl-1")
        assert machine.feed([ReplyTextDelta(0, "hi", self.RAW)]) != self.RAW

    def test_bytes_are_not_forwarded_on_another_attempt(self):
        machine = writer()
        machine.feed([ReplyStart("up", 9, "m"), ReplyStart("up2", 9, "m")])
        assert machine.feed([ReplyTextDelta(0, "hi", self.RAW)]) != self.RAW

    def test_bytes_are_not_forwarded_after_a_call(self):
        machine = writer()
        machine.feed([ReplyStart("up", 9, "m"), ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0)])
        assert machine.feed([ReplyTextDelta(0, "hi", self.RAW)]) != self.RAW

    def test_bytes_are_not_forwarded_after_the_end(self):
        machine = writer()
        machine.feed([ReplyStart("up", 9, "m"), *STOP])
        assert machine.feed([ReplyTextDelta(0, "hi", self.RAW)]) == b""

    def test_bytes_are_forwarded_from_the_reader_to_the_client(self):
        role = self.RAW.replace(b'"content":"hi"', b'"role":"assistant","content":""')
        finish = self.RAW.replace(b'{"content":"hi"}', b"{}").replace(b":null}]", b':"stop"}]')
        reader, machine = ReplyReader(), writer()
        data = b"".join(machine.feed(reader.feed(item)) for item in (role, self.RAW, finish, b"data: [DONE]\n\n"))
        assert self.RAW in data
        assert_valid(validate_chat_stream(data, ASKED))


class TestCalls:
    def test_fragments_verbatim(self):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyArgumentsDelta(0, 0, '{"a'),
            ReplyArgumentsDelta(0, 0, ""),
            ReplyArgumentsDelta(0, 0, '":1}'),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "call_B", "g"),
            ReplyArgumentsDelta(0, 1, "{}"),
            ReplyCallEnd(0, 1),
            *STOP,
        )
        assert deltas(data)[1:] == [
            {
                "tool_calls": [
                    {"index": 0, "id": "call_A", "type": "function", "function": {"name": "f", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]},
            {
                "tool_calls": [
                    {"index": 1, "id": "call_B", "type": "function", "function": {"name": "g", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
            {},
        ]
        assert reason(data) == "tool_calls"

    @pytest.mark.parametrize("pieces", [[], [" ", "\n"]])
    def test_a_call_without_arguments_is_an_empty_object(self, pieces):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            *(ReplyArgumentsDelta(0, 0, each) for each in pieces),
            ReplyCallEnd(0, 0),
            *STOP,
        )
        assert deltas(data)[-2]["tool_calls"] == [{"index": 0, "function": {"arguments": "{}"}}]

    @pytest.mark.parametrize("upstream", [Reason.STOP, Reason.LENGTH, Reason.FILTER])
    @pytest.mark.parametrize("end", [[ReplyCallEnd(0, 0, complete=False)], []])
    def test_the_arguments_of_an_incomplete_call_cannot_be_repaired(self, upstream, end):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyArgumentsDelta(0, 0, '{"a'),
            *end,
            ReplyFinish(0, upstream),
            ReplyEnd(),
        )
        assert deltas(data)[2:] == [
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": UNREPAIRABLE}}]},
            {},
        ]
        reasons = {Reason.FILTER: "content_filter", Reason.LENGTH: "length", Reason.STOP: "tool_calls"}
        assert reason(data) == reasons[upstream]

    def test_an_incomplete_call_to_a_custom_tool_is_unchanged(self):
        end = [ReplyCallEnd(0, 0, complete=False), ReplyFinish(0, Reason.LENGTH), ReplyEnd()]
        data = written(ReplyCallStart(0, 0, "call_A", "sh"), *end)
        assert len(deltas(data)) == 3
        assert reason(data) == "length"

    @pytest.mark.parametrize(
        ("upstream", "with_call", "without"),
        [
            (Reason.STOP, "tool_calls", "stop"),
            (Reason.STOP_SEQUENCE, "tool_calls", "stop"),
            (Reason.PAUSE, "tool_calls", "stop"),
            (Reason.LENGTH, "length", "length"),
            (Reason.FILTER, "content_filter", "content_filter"),
        ],
    )
    def test_reasons(self, upstream, with_call, without):
        end = [ReplyFinish(0, upstream), ReplyEnd()]
        assert reason(written(ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0), *end)) == with_call
        assert reason(written(ReplyTextDelta(0, "a"), *end)) == without

    def test_whitespace_after_a_call_is_dropped(self):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "\n"),
            ReplyTextDelta(0, " "),
            *STOP,
        )
        assert "content" not in deltas(data)[-2]

    def test_whitespace_between_calls_is_dropped(self):
        call = [ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0)]
        again = [ReplyCallStart(0, 1, "call_B", "f"), ReplyCallEnd(0, 1)]
        data = written(*call, ReplyTextDelta(0, "\n\n"), *again, *STOP)
        assert [delta for delta in deltas(data) if delta.get("content")] == []

    def test_whitespace_before_text_is_text(self):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "\n"),
            ReplyTextDelta(0, " Done"),
            ReplyTextDelta(0, " "),
            ReplyTextDelta(0, "now"),
            *STOP,
        )
        assert [delta["content"] for delta in deltas(data) if delta.get("content")] == ["\n Done", " ", "now"]

    def test_endless_whitespace_is_released(self):
        events = [ReplyTextDelta(0, " " * 1000) for _ in range(6)]
        data = written(ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0), *events, *STOP)
        assert sum(len(delta.get("content", "")) for delta in deltas(data)) >= 5000

    def test_a_custom_tool(self):
        data = written(ReplyCallStart(0, 0, "call_A", "sh"), ReplyArgumentsDelta(0, 0, "ls"), ReplyCallEnd(0, 0), *STOP)
        assert deltas(data)[1:3] == [
            {"tool_calls": [{"index": 0, "id": "call_A", "type": "custom", "custom": {"name": "sh", "input": ""}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "ls"}}]},
        ]

    def test_a_custom_tool_without_input(self):
        data = written(ReplyCallStart(0, 0, "call_A", "sh"), ReplyCallEnd(0, 0), *STOP)
        assert len(deltas(data)) == 3

    def test_the_legacy_function_call(self):
        data = written(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyArgumentsDelta(0, 0, '{"a":1}'),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "call_B", "g"),
            ReplyArgumentsDelta(0, 1, '{"b":1}'),
            ReplyCallEnd(0, 1),
            *STOP,
            legacy_functions=True,
        )
        assert deltas(data)[1:] == [
            {"function_call": {"name": "f", "arguments": ""}},
            {"function_call": {"arguments": '{"a":1}'}},
            {},
        ]
        assert reason(data) == "function_call"

    def test_a_legacy_call_without_arguments(self):
        data = written(ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0), *STOP, legacy_functions=True)
        assert deltas(data)[2] == {"function_call": {"arguments": "{}"}}


class TestChoices:
    def test_choices_appear_in_order_each_with_its_own_role_and_calls(self):
        data = written(
            ReplyStart(),
            ReplyCallStart(2, 0, "call_A", "f"),
            ReplyTextDelta(1, "b"),
            ReplyCallEnd(2, 0),
            ReplyFinish(2, Reason.STOP),
            ReplyCallStart(0, 0, "call_B", "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            ReplyFinish(0, Reason.STOP),
            ReplyFinish(1, Reason.LENGTH),
            ReplyEnd(),
            n=3,
        )
        seen = [(item["choices"][0]["index"], item["choices"][0]["finish_reason"]) for item in payloads(data)[:-1]]
        assert seen[:3] == [(0, None), (1, None), (2, None)]
        assert [pair for pair in seen if pair[1]] == [(2, "tool_calls"), (0, "tool_calls"), (1, "length")]
        assert deltas(data)[1] == {"role": "assistant", "content": ""}


class TestEnd:
    def test_usage_only_when_requested(self):
        report = UsageReport(Usage(3, 4, 1, 2))
        assert b"usage" not in written(ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), report, ReplyEnd())
        items = payloads(
            written(ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), report, ReplyEnd(), include_usage=True)
        )
        assert items[0]["usage"] is None
        assert items[-2]["choices"] == []
        assert items[-2]["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }

    def test_unknown_usage_is_0(self):
        assert payloads(written(*STOP, include_usage=True))[-2]["usage"]["total_tokens"] == 0

    def test_an_error_ends_the_stream(self):
        machine = writer()
        machine.feed([ReplyStart(), ReplyTextDelta(0, "a"), ReplyCallStart(0, 0, "call_A", "f")])
        data = machine.feed([ReplyFailure(UpstreamError("gone", code="c"))])
        assert payloads(data) == [{"error": {"message": "gone", "type": "server_error", "param": None, "code": "c"}}]
        assert machine.feed([ReplyArgumentsDelta(0, 0, "x"), ReplyCallEnd(0, 0), ReplyTextDelta(0, "b"), *STOP]) == b""

    def test_an_error_may_be_the_only_event(self):
        data = writer().feed([ReplyFailure(RequestError("no", param="p")), *STOP])
        assert payloads(data) == [
            {"error": {"message": "no", "type": "invalid_request_error", "param": "p", "code": None}}
        ]
        assert_valid(validate_chat_stream(data, ASKED), strict=True)

    def test_an_end_without_a_reason_is_an_error(self):
        assert b"[DONE]" not in writer().feed([ReplyTextDelta(0, "a"), ReplyEnd()])
        assert "error" in payloads(writer(n=2).feed([ReplyFinish(0, Reason.STOP), ReplyEnd()]))[-1]

    def test_headers_and_keep_alive(self):
        assert dict(STREAM_HEADERS)[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert dict(COMPLETE_HEADERS)[b"content-type"] == b"application/json"
        assert KEEPALIVE == b": keep-alive\n\n"
        data = written(ReplyTextDelta(0, "a"), *STOP)
        assert_valid(validate_chat_stream(KEEPALIVE + data, headers=STREAM_HEADERS), strict=True)


class TestWhole:
    def whole(self, *events, **fields):
        body = write_complete(conversation(**fields), accumulate(events), id="chatcmpl-1", created=7, model="m")
        request = {"functions": [{"name": "f"}]} if fields.get("legacy_functions") else ASKED
        request = request | {"n": fields.get("n", 1)}
        assert_valid(validate_chat_whole(body, request, headers=COMPLETE_HEADERS))
        return json.loads(body)

    def test_text(self):
        body = self.whole(
            ReplyStart("up", 9, "other"),
            ReplyReasoningDelta(0, "hm"),
            ReplyTextDelta(0, "a"),
            ReplyTextDelta(0, "b"),
            *STOP,
        )
        assert body == {
            "id": "up",
            "object": "chat.completion",
            "created": 9,
            "model": "other",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "ab",
                        "refusal": None,
                        "annotations": [],
                        "reasoning_content": "hm",
                    },
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "total_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "system_fingerprint": None,
        }

    def test_calls(self):
        body = self.whole(
            ReplyCallStart(0, 0, "call_A", "f"),
            ReplyArgumentsDelta(0, 0, '{"a":1}'),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "\n"),
            ReplyCallStart(0, 1, "call_B", "g"),
            ReplyCallEnd(0, 1),
            ReplyCallStart(0, 2, "call_C", "sh"),
            ReplyArgumentsDelta(0, 2, "ls"),
            ReplyCallEnd(0, 2),
            *STOP,
        )
        message = body["choices"][0]["message"]
        assert message["content"] is None
        assert message["tool_calls"] == [
            {"id": "call_A", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_B", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            {"id": "call_C", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
        ]
        assert body["choices"][0]["finish_reason"] == "tool_calls"

    def test_a_truncated_call(self):
        cut = (ReplyFinish(0, Reason.LENGTH), ReplyEnd())
        body = self.whole(ReplyCallStart(0, 0, "call_A", "f"), ReplyArgumentsDelta(0, 0, '{"a'), *cut)
        assert "tool_calls" not in body["choices"][0]["message"]
        assert body["choices"][0]["finish_reason"] == "length"

    def test_the_legacy_function_call(self):
        body = self.whole(ReplyCallStart(0, 0, "call_A", "f"), ReplyCallEnd(0, 0), *STOP, legacy_functions=True)
        assert body["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "{}"}
        assert body["choices"][0]["finish_reason"] == "function_call"

    def test_an_empty_reply_has_empty_content(self):
        assert self.whole(*STOP)["choices"][0]["message"]["content"] == ""

    def test_several_choices(self):
        body = self.whole(
            ReplyTextDelta(1, "b"),
            ReplyTextDelta(0, "a"),
            ReplyFinish(0, Reason.STOP),
            ReplyFinish(1, Reason.LENGTH),
            n=2,
        )
        assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b"]

    def test_a_failure_is_raised(self):
        with pytest.raises(UpstreamError, match="gone"):
            self.whole(ReplyTextDelta(0, "a"), ReplyFailure(UpstreamError("gone")))
        with pytest.raises(UpstreamError):
            self.whole(ReplyTextDelta(0, "a"))
        with pytest.raises(UpstreamError):
            self.whole(*STOP, n=2)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (StreamtoolError("m"), "server_error", 500),
        (RequestError("m", param="messages[2].role"), "invalid_request_error", 400),
        (AuthenticationError("m", code="invalid_api_key"), "authentication_error", 401),
        (TooLargeError("m"), "request_too_large", 413),
        (UpstreamRefused("m", status=429, kind="rate_limit_exceeded"), "rate_limit_exceeded", 429),
    ],
)
def test_errors(error, kind, status):
    body = write_error(error, "req_1")
    assert json.loads(body) == {"error": {"message": "m", "type": kind, "param": error.param, "code": error.code}}
    assert error.status == status
    assert_valid(validate_chat_error(body), strict=True)


# --- properties -------------------------------------------------------------------------------------------------------

words = st.text(max_size=5) | st.sampled_from([" ", "\n", "\ud83d", '"', "</x>", "\u2028", ""])
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=4), lambda each: st.lists(each, max_size=2), max_leaves=3
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


def cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[borders[i] : borders[i + 1]] for i in range(len(borders) - 1)]


@st.composite
def choices(draw, index: int, *, broken: bool):
    """Generate legal events of one choice, in the order that `reply` documents."""
    events = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=5)):
        if kind == "text":
            events.append(ReplyTextDelta(index, draw(words)))
        elif kind == "reasoning":
            events.append(ReplyReasoningDelta(index, draw(words)))
        else:
            arguments = draw(objects | st.just(""))
            whole = not broken or draw(st.booleans())
            if not whole:
                arguments = arguments[: draw(st.integers(0, 8))]
            events.append(ReplyCallStart(index, calls, f"call_{index}_{calls}", draw(st.sampled_from(["f", "g"]))))
            places = draw(st.lists(st.integers(0, 20), max_size=3))
            events += [ReplyArgumentsDelta(index, calls, piece) for piece in cut(arguments, places)]
            events.append(ReplyCallEnd(index, calls, complete=whole))
            calls += 1
    return [*events, ReplyFinish(index, draw(st.sampled_from(list(Reason))))]


@st.composite
def replies(draw):
    n = draw(st.integers(1, 3))
    broken = draw(st.booleans())
    queues = [draw(choices(index, broken=broken)) for index in range(n)]
    events = [
        ReplyStart(draw(st.none() | st.just("up")), draw(st.none() | st.just(3)), draw(st.none() | st.just("m2")))
    ]
    while any(queues):
        index = draw(st.sampled_from([index for index, queue in enumerate(queues) if queue]))
        events.append(queues[index].pop(0))
        # the events of a call are consecutive within their choice, but choices may interleave anywhere
    events += draw(st.lists(st.just(UsageReport(Usage(1, 2))), max_size=2))
    return n, [*events, ReplyEnd()]


@given(replies(), st.booleans(), st.lists(st.integers(0, 40), max_size=4))
def test_every_stream_is_valid_and_equals_the_whole_reply(reply, usage, cuts):
    n, events = reply
    request = ASKED | {"n": n} | ({"stream_options": {"include_usage": True}} if usage else {})
    asked = conversation(n=n, include_usage=usage)
    machine = ReplyWriter(asked, id="chatcmpl-1", created=7, model="m")
    borders = [0, *sorted(min(each, len(events)) for each in cuts), len(events)]
    data = b"".join(machine.feed(events[borders[i] : borders[i + 1]]) for i in range(len(borders) - 1))
    assert data == ReplyWriter(asked, id="chatcmpl-1", created=7, model="m").feed(events)
    problems = validate_chat_stream(data, request, headers=STREAM_HEADERS)
    assert_valid([each for each in problems if each.rule not in ("C15", "C13", "F10")], strict=True)
    assert_valid(problems)
    whole = write_complete(asked, accumulate(events), id="chatcmpl-1", created=7, model="m")
    assert_valid(validate_chat_whole(whole, request))
    again = accumulate([event for event in ReplyReader(n=n).feed(data) if not isinstance(event, UsageReport)])
    for choice, said in zip(json.loads(whole)["choices"], again.choices, strict=True):
        message = choice["message"]
        assert (message["content"] or "") == said.text
        assert message.get("reasoning_content", "") == said.reasoning
        assert [call["function"]["arguments"] for call in message.get("tool_calls", [])] == [
            call.arguments for call in said.calls if call.complete
        ]


@given(replies(), st.integers(0, 30))
def test_a_reply_that_fails_anywhere_is_a_valid_stream_ending_in_an_error(reply, place):
    n, events = reply
    events = [*events[: min(place, len(events) - 1)], ReplyFailure(UpstreamError("gone"))]
    data = writer(n=n).feed(events)
    assert_valid(validate_chat_stream(data, ASKED | {"n": n}))
    assert data.endswith(b'"code":null}}\n\n')
