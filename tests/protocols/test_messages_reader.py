"""Reading an upstream's Messages reply, in every known shape."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accumulated import accumulate

from streamtool.core import sse
from streamtool.core.errors import UpstreamError, UpstreamRefused
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCall,
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
from streamtool.protocols.messages import ReplyReader

START = ReplyStart("msg_1", None, "m", 20)
USAGE = UsageReport(Usage(input=20, output=15))


def event(payload) -> bytes:
    return f"event: {payload['type']}\ndata: {json.dumps(payload, separators=(',', ':'))}\n\n".encode()


def start(**usage) -> bytes:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 20, "output_tokens": 1} | usage,
    }  # fmt: skip
    return event({"type": "message_start", "message": message})


def opened(block, index=0) -> bytes:
    return event({"type": "content_block_start", "index": index, "content_block": block})


def delta(fields, index=0) -> bytes:
    return event({"type": "content_block_delta", "index": index, "delta": fields})


def closed(index=0) -> bytes:
    return event({"type": "content_block_stop", "index": index})


def text(content, index=0) -> bytes:
    return delta({"type": "text_delta", "text": content}, index)


def thought(content, index=0) -> bytes:
    return delta({"type": "thinking_delta", "thinking": content}, index)


def signed(signature, index=0) -> bytes:
    return delta({"type": "signature_delta", "signature": signature}, index)


def call(index=0, id="toolu_1", name="f", **more) -> bytes:
    return opened({"type": "tool_use", "id": id, "name": name, "input": {}} | more, index)


def more(arguments, index=0) -> bytes:
    return delta({"type": "input_json_delta", "partial_json": arguments}, index)


def reason(word, **usage) -> bytes:
    fields = {"stop_reason": word, "stop_sequence": None}
    return event({"type": "message_delta", "delta": fields, "usage": {"output_tokens": 15} | usage})


HEAD = start()
TEXT = opened({"type": "text", "text": ""})
PING = event({"type": "ping"})
DONE = event({"type": "message_stop"})
STOP = reason("end_turn") + DONE
ENDED = [ReplyFinish(0, Reason.STOP), USAGE, ReplyEnd()]


def bare(events):
    """Return the events without the bytes that may be forwarded."""
    return [
        ReplyTextDelta(found.choice, found.text) if isinstance(found, ReplyTextDelta) else found for found in events
    ]


def read(*chunks: bytes):
    reader = ReplyReader()
    return bare([found for data in chunks for found in reader.feed(data)] + reader.close())


def content(*chunks: bytes, end=STOP):
    """Return the events between the start and the finish."""
    [first, *found] = read(HEAD, *chunks, end)
    assert first == START
    assert isinstance(found[-1], ReplyEnd), found
    return found[:-3]


def failure(*chunks: bytes):
    last = read(*chunks)[-1]
    assert isinstance(last, ReplyFailure), last
    return last.error


class TestText:
    def test_a_plain_reply(self):
        assert read(HEAD, TEXT, PING, text("hi"), text(" there"), closed(), STOP) == [
            START, ReplyTextDelta(0, "hi"), ReplyTextDelta(0, " there"), *ENDED,
        ]  # fmt: skip

    def test_text_leaves_in_the_feed_that_brought_it(self):
        reader = ReplyReader()
        assert reader.feed(HEAD) == [START]
        assert reader.feed(TEXT) == []
        assert reader.feed(text("a")) == [ReplyTextDelta(0, "a", text("a"))]
        assert bare(reader.feed(text("b") + text("c"))) == [ReplyTextDelta(0, "b"), ReplyTextDelta(0, "c")]

    def test_a_block_may_begin_with_text(self):
        assert content(opened({"type": "text", "text": "h"}), text("i"), closed()) == [
            ReplyTextDelta(0, "h"),
            ReplyTextDelta(0, "i"),
        ]

    def test_text_without_the_start_of_a_block_or_a_message(self):
        assert read(text("hi"), STOP)[:2] == [ReplyStart(), ReplyTextDelta(0, "hi")]

    def test_events_without_names_and_types(self):
        assert content(text("a").replace(b"event: content_block_delta\n", b""), closed()) == [ReplyTextDelta(0, "a")]
        assert content(text("a").replace(b'"type":"content_block_delta",', b""), closed()) == [ReplyTextDelta(0, "a")]

    def test_a_second_message_start_is_ignored(self):
        assert content(TEXT, HEAD, text("a"), closed()) == [ReplyTextDelta(0, "a")]

    @pytest.mark.parametrize(
        "odd",
        [
            PING,
            b": comment\n\n",
            event({"type": "novelty", "index": 0}),
            b"data: 5\n\n",
            b"event: novelty\ndata: words\n\n",
            delta({"type": "citations_delta", "citation": {}}),
            delta(None),
            delta({"type": "text_delta"}),
            delta({"type": "text_delta", "text": None}),
            event({"type": "content_block_delta", "index": None, "delta": {}}),
            opened(None, 1),
            opened({"type": "redacted_thinking", "data": "xyz"}, 1) + closed(1),
            opened({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, 1) + more("{}", 1) + closed(1),
            event({"type": "message_delta", "delta": None, "usage": None}),
        ],
    )  # fmt: skip
    def test_other_events_are_ignored(self, odd):
        assert content(TEXT, odd, text("a"), closed()) == [ReplyTextDelta(0, "a")]

    def test_split_surrogate_pairs(self):
        first, second = text("a\ud83d"), text("\ude00b")
        assert content(TEXT, first, second, closed()) == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "😀b")]
        assert content(TEXT, first, text("b"), closed()) == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "\ufffdb")]
        assert content(TEXT, first, closed()) == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "\ufffd")]


class TestForwarding:
    def forwarded(self, data, *before):
        reader = ReplyReader()
        reader.feed(HEAD + TEXT + b"".join(before))
        return [found.raw for found in reader.feed(data) if isinstance(found, ReplyTextDelta)]

    def test_a_text_event_is_forwarded(self):
        for content_ in ("a", "é😀", 'a\n"b'):
            assert self.forwarded(text(content_)) == [text(content_)]

    def test_an_event_with_another_spelling_is_forwarded(self):
        odd = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}      }\n\n'
        assert self.forwarded(odd) == [odd]
        assert self.forwarded(text("a") + text("b")) == [text("a"), text("b")]

    @pytest.mark.parametrize(
        "odd",
        [
            text("a").replace(b'"index":0', b'"index":0,"x":1'),
            delta({"type": "text_delta", "text": "a", "x": 1}),
            text("a").replace(b"event: content_block_delta\n", b""),
            text("a").replace(b"\n", b"\r\n"),
            opened({"type": "text", "text": "a"}),
        ],
    )
    def test_any_other_event_is_not_forwarded(self, odd):
        assert self.forwarded(odd) == [None]

    def test_text_after_an_incomplete_surrogate_pair_is_not_forwarded(self):
        assert self.forwarded(text("\ude00"), text("\ud83d")) == [None]

    @pytest.mark.parametrize(
        "odd",
        [
            text(""),
            text("a\\"),
            text("a").replace(b'"a"', b'"a","text":"b"'),
            text("a").replace(b'"a"', b'"\xff"'),
            text("a").replace(b'"a"', b'"\x01"'),
            text("a").replace(b'"a"', b'"a\xc3"'),
            text("a", 1),
            text("a") + text("b"),
            text("a")[:-1],
            text("a")[:40],
        ],
    )
    def test_an_event_of_the_usual_shape_is_read_without_parsing(self, odd):
        short, long = ReplyReader(), ReplyReader()
        for data in (HEAD, TEXT, text("x"), odd, text("y"), closed(), STOP):
            found = bare(short.feed(data))
            long._blocks.prefix = None
            assert str(found) == str(bare(long.feed(data)))
        assert str(short.close()) == str(long.close())


class TestReasoning:
    def test_reasoning_and_its_signature(self):
        assert content(
            opened({"type": "thinking", "thinking": "", "signature": ""}), thought("h"), thought("m"), signed("EqoB"), closed(),
            opened({"type": "text", "text": ""}, 1), text("a", 1), closed(1),
        ) == [
            ReplyReasoningDelta(0, "h"), ReplyReasoningDelta(0, "m"), ReplyReasoningDelta(0, "", "EqoB"), ReplyTextDelta(0, "a"),
        ]  # fmt: skip

    def test_hidden_reasoning_still_has_a_signature(self):
        block = opened({"type": "thinking", "thinking": "", "signature": ""})
        assert content(block, signed("EqoB"), closed()) == [ReplyReasoningDelta(0, "", "EqoB")]

    def test_reasoning_without_a_signature(self):
        block = opened({"type": "thinking", "thinking": "h"})
        assert content(block, thought("m"), closed()) == [ReplyReasoningDelta(0, "h"), ReplyReasoningDelta(0, "m")]

    def test_an_unpaired_surrogate_precedes_the_signature(self):
        block = opened({"type": "thinking", "thinking": ""})
        assert content(block, thought("\ud83d"), signed("x"), closed()) == [
            ReplyReasoningDelta(0, "\ufffd"),
            ReplyReasoningDelta(0, "", "x"),
        ]


class TestCalls:
    def test_a_call(self):
        assert content(call(), more(""), more('{"a":'), more(" 1}"), closed(), end=reason("tool_use") + DONE) == [
            ReplyCallStart(0, 0, "toolu_1", "f"),
            ReplyArgumentsDelta(0, 0, '{"a":'),
            ReplyArgumentsDelta(0, 0, " 1}"),
            ReplyCallEnd(0, 0),
        ]

    def test_pieces_leave_in_the_feed_that_brought_them(self):
        reader = ReplyReader()
        reader.feed(HEAD)
        assert reader.feed(call()) == [ReplyCallStart(0, 0, "toolu_1", "f")]
        assert reader.feed(more('{"a"')) == [ReplyArgumentsDelta(0, 0, '{"a"')]
        assert reader.feed(more(":1}")) == [ReplyArgumentsDelta(0, 0, ":1}")]
        assert reader.feed(closed()) == [ReplyCallEnd(0, 0)]

    def test_text_and_two_calls(self):
        assert content(
            TEXT, text("a"), closed(), call(1), more("{}", 1), closed(1), call(2, "toolu_2", "g"), more("{}", 2), closed(2)
        ) == [
            ReplyTextDelta(0, "a"),
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, "{}"), ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "toolu_2", "g"), ReplyArgumentsDelta(0, 1, "{}"), ReplyCallEnd(0, 1),
        ]  # fmt: skip

    def test_a_call_without_arguments(self):
        assert content(call(), closed()) == [ReplyCallStart(0, 0, "toolu_1", "f"), ReplyCallEnd(0, 0)]
        assert content(call(), closed(), call(1, "toolu_2"), closed(1)) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyCallEnd(0, 0), ReplyCallStart(0, 1, "toolu_2", "f"), ReplyCallEnd(0, 1),
        ]  # fmt: skip

    def test_a_call_truncated_before_its_arguments(self):
        assert content(call(), closed(), end=reason("max_tokens") + DONE)[-1] == ReplyCallEnd(0, 0, complete=False)

    def test_a_call_truncated_in_its_arguments(self):
        assert content(call(), more('{"a":'), closed(), end=reason("max_tokens") + DONE) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, '{"a":'), ReplyCallEnd(0, 0, complete=False),
        ]  # fmt: skip

    def test_the_input_may_be_in_the_block_start(self):
        assert content(call(input={"a": 1}), closed()) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, '{"a":1}'), ReplyCallEnd(0, 0),
        ]  # fmt: skip
        assert content(call(input={"a": 1}), more('{"a":2}'), closed())[1:] == [
            ReplyArgumentsDelta(0, 0, '{"a":2}'),
            ReplyCallEnd(0, 0),
        ]

    def test_a_surrogate_pair_split_in_a_string_input(self):
        said = content(opened({"type": "tool_use", "id": "t", "name": "f", "input": "\ud83d"}), closed())
        assert said == [
            ReplyCallStart(0, 0, "t", "f"),
            ReplyArgumentsDelta(0, 0, "\ufffd"),
            ReplyCallEnd(0, 0, complete=False),
        ]

    def test_a_block_without_an_end(self):
        assert content(call(), more("{}"), call(1, "toolu_2"), more("{}", 1)) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, "{}"), ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "toolu_2", "f"), ReplyArgumentsDelta(0, 1, "{}"), ReplyCallEnd(0, 1),
        ]  # fmt: skip

    def test_overlapping_blocks(self):
        assert content(
            call(), call(1, "toolu_2", "g"), call(2, "toolu_3", "h"), more('{"b"', 1), more('{"a"'), text("t", 3), more(":2}", 1),
            more(":1}"), closed(1), closed(), closed(2),
        ) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, '{"a"'), ReplyArgumentsDelta(0, 0, ":1}"), ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "toolu_2", "g"), ReplyArgumentsDelta(0, 1, '{"b"'), ReplyArgumentsDelta(0, 1, ":2}"), ReplyCallEnd(0, 1),
            ReplyCallStart(0, 2, "toolu_3", "h"), ReplyCallEnd(0, 2),
            ReplyTextDelta(0, "t"),
        ]  # fmt: skip

    def test_very_many_overlapping_blocks(self):
        starts = b"".join(call(i, f"toolu_{i}") for i in range(5000))
        ends = b"".join(more("{}", i) + closed(i) for i in reversed(range(5000)))
        reply = accumulate(read(HEAD, starts, ends, STOP))
        assert [found.complete for found in reply.choices[0].calls] == [True] * 5000

    def test_a_block_that_changes_its_type(self):
        assert content(call(), more("{"), text("a"), closed()) == [
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, "{"), ReplyCallEnd(0, 0, complete=False), ReplyTextDelta(0, "a"),
        ]  # fmt: skip

    def test_a_call_without_a_name_is_ignored(self):
        assert content(call(name=None), more("{}"), closed()) == []

    def test_an_unpaired_surrogate_in_arguments(self):
        assert content(call(), more('{"a":"\ud83d'), more('\ude00"}'), closed())[1:] == [
            ReplyArgumentsDelta(0, 0, '{"a":"'), ReplyArgumentsDelta(0, 0, '😀"}'), ReplyCallEnd(0, 0),
        ]  # fmt: skip


class TestEnd:
    @pytest.mark.parametrize(
        ("word", "found"),
        [
            ("end_turn", Reason.STOP),
            ("tool_use", Reason.STOP),
            ("max_tokens", Reason.LENGTH),
            ("model_context_window_exceeded", Reason.LENGTH),
            ("refusal", Reason.FILTER),
            ("pause_turn", Reason.PAUSE),
            ("novelty", Reason.STOP),
        ],
    )
    def test_reasons(self, word, found):
        assert ReplyFinish(0, found) in read(HEAD, reason(word), DONE)

    def test_a_stop_sequence(self):
        ended = event(
            {"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}, "usage": {}}
        )
        assert ReplyFinish(0, Reason.STOP_SEQUENCE, "END") in read(HEAD, ended, DONE)

    def test_the_reason_is_sufficient(self):
        assert read(HEAD, TEXT, text("a"), closed(), reason("end_turn"))[-1] == ReplyEnd()

    def test_the_end_marker_is_sufficient(self):
        assert ReplyFinish(0, Reason.STOP) in read(HEAD, DONE)
        assert ReplyFinish(0, Reason.STOP) in read(HEAD, b"data: [DONE]\n\n")

    def test_the_last_event_may_lack_its_blank_line(self):
        assert read(HEAD, STOP[:-2])[-1] == ReplyEnd()

    def test_nothing_follows_the_end(self):
        reader = ReplyReader()
        assert reader.feed(HEAD + TEXT + STOP)[-1] == ReplyEnd()
        assert reader.ended
        assert reader.feed(text("a")) == reader.close() == []

    def test_usage(self):
        reader = ReplyReader()
        reader.feed(start(cache_read_input_tokens=5, cache_creation_input_tokens=3))
        assert reader.usage == Usage(input=28, output=1, cached=5)
        reader.feed(reason("end_turn", input_tokens=0, output_tokens_details={"thinking_tokens": 4}))
        assert reader.usage == Usage(input=28, output=15, cached=5, reasoning=4)
        reader.feed(reason("end_turn", input_tokens=22, output_tokens=16))
        assert reader.usage == Usage(input=30, output=16, cached=5)

    def test_without_usage(self):
        assert read(event({"type": "message_start", "message": {}}), DONE) == [
            ReplyStart(),
            ReplyFinish(0, Reason.STOP),
            ReplyEnd(),
        ]


class TestFailure:
    def test_a_truncated_reply(self):
        for chunks in ((HEAD,), (HEAD, TEXT, text("a")), (HEAD, call(), more("{")), (b"",), (PING,)):
            assert failure(*chunks).code == "upstream_closed"

    def test_an_error_event(self):
        error = failure(HEAD, event({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}))
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.message) == (503, "busy")

    def test_an_error_of_another_shape(self):
        assert failure(b'data: {"error":{"message":"no"}}\n\n').message == "no"
        assert failure(b"event: error\ndata: no\n\n").message == "no"

    def test_an_error_instead_of_a_stream(self):
        error = failure(b'{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}')
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.message) == (400, "bad")

    def test_a_web_page(self):
        assert failure(b"<html><title>Sign in</title>").code == "upstream_unreadable"

    def test_damaged_json(self):
        assert failure(HEAD, b'event: content_block_delta\ndata: {"type":\n\n').code == "upstream_unreadable"

    def test_nothing_follows_a_failure(self):
        reader = ReplyReader()
        found = reader.feed(HEAD + TEXT + event({"type": "error", "error": {}}) + text("a"))
        assert [type(one) for one in found] == [ReplyStart, ReplyFailure]
        assert reader.feed(text("b")) == reader.close() == []

    def test_the_buffer_is_bounded(self, monkeypatch):
        monkeypatch.setattr(sse, "MAX_BUFFERED", 1000)
        reader = ReplyReader()
        found = reader.feed(
            HEAD + call() + call(1, "toolu_2") + b"".join(more("x" * 50, i % 2) for i in range(100)) + closed()
        )
        assert found[-1] == ReplyFailure(found[-1].error)
        assert found[-1].error.code == "reply_too_large"
        assert sum(isinstance(one, ReplyFailure) for one in found) == 1


class TestWhole:
    BODY = json.dumps(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "EqoB"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}},
                {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            ],
            "stop_reason": "tool_use", "stop_sequence": None,
            "usage": {"input_tokens": 20, "output_tokens": 15},
        }
    ).encode()  # fmt: skip

    def test_a_whole_reply_instead_of_a_stream(self):
        expected = [
            START,
            ReplyReasoningDelta(0, "hm"),
            ReplyReasoningDelta(0, "", "EqoB"),
            ReplyTextDelta(0, "a"),
            ReplyCallStart(0, 0, "toolu_1", "f"), ReplyArgumentsDelta(0, 0, '{"a":[1]}'), ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "toolu_2", "g"), ReplyCallEnd(0, 1),
            *ENDED,
        ]  # fmt: skip
        assert read(self.BODY) == expected
        assert read(*[bytes([byte]) for byte in self.BODY]) == expected

    def test_a_truncated_whole_reply(self):
        assert failure(self.BODY[:-5]).code == "upstream_closed"


STREAM = (
    HEAD + PING + opened({"type": "thinking", "thinking": "", "signature": ""}) + thought("hmé") + signed("Eq") + closed()
    + opened({"type": "text", "text": ""}, 1) + text("a\ud83d", 1) + text("\ude00 b", 1) + text("c", 1) + closed(1)
    + call(2) + more('{"a":"\ud83d', 2) + more('\ude00"}', 2) + closed(2) + call(3, "toolu_2", "g") + closed(3)
    + reason("tool_use") + DONE
)  # fmt: skip


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=30))
def test_the_outcome_does_not_depend_on_the_split(cuts):
    places = [0, *sorted(set(cuts)), len(STREAM)]
    found = read(*(STREAM[a:b] for a, b in pairwise(places)))
    assert accumulate(found) == accumulate(read(STREAM))
    assert accumulate(found).choices[0].calls == (
        ReplyCall("toolu_1", "f", '{"a":"😀"}'),
        ReplyCall("toolu_2", "g", ""),
    )
    assert accumulate(found).choices[0].text == "a😀 bc"


@given(
    st.lists(
        st.sampled_from(
            [
                HEAD,
                TEXT,
                text("a"),
                call(),
                call(1),
                more("{"),
                more("}", 1),
                closed(),
                closed(1),
                thought("h"),
                signed("x"),
                reason("end_turn"),
                b"{",
                b"data: ",
                b"\n\n",
                b"[DONE]",
                b'"',
                b"\\",
            ]
        ),
        max_size=25,
    )
)
def test_no_upstream_data_raises(pieces):
    found = read(*pieces)
    assert isinstance(found[-1], ReplyEnd | ReplyFailure)
    assert sum(isinstance(one, ReplyEnd | ReplyFailure) for one in found) == 1
    open_call = None
    for one in found:
        match one:
            case ReplyCallStart(index=index):
                assert open_call is None
                open_call = index
            case ReplyArgumentsDelta(index=index):
                assert open_call == index
            case ReplyCallEnd(index=index):
                assert open_call == index
                open_call = None
            case ReplyTextDelta() | ReplyReasoningDelta() | ReplyFinish():
                assert open_call is None


def test_a_failure_is_an_upstream_error():
    assert isinstance(failure(HEAD), UpstreamError)
