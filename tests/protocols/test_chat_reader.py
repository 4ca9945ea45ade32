"""Reading an upstream's Chat Completions reply, in every known shape."""

import json
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accumulated import accumulate
from support.sweeps import each

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
from streamtool.protocols.chat import ReplyReader, read_error

START = ReplyStart("x", 5, "m")
DONE = b"data: [DONE]\n\n"
STOP = [ReplyFinish(0, Reason.STOP), ReplyEnd()]


def event(payload) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(delta=None, reason=None, index=0, **more):
    choice = {"index": index, "delta": delta if delta is not None else {}, "logprobs": None, "finish_reason": reason}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [choice],
    } | more


def say(delta=None, reason=None, index=0, **more) -> bytes:
    return event(chunk(delta, reason, index, **more))


def text(content, **more) -> bytes:
    return say({"content": content}, **more)


ROLE = say({"role": "assistant", "content": ""})
END = say({}, "stop") + DONE


PLAIN = b'data: {"id":"x","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'


@each(
    "odd",
    [
        PLAIN % "é😀".encode(),
        PLAIN % b"a\\nb\\u00e9",
        PLAIN % b"\xc3",
        PLAIN % b"\xed\xa0\xbd",
        PLAIN % b"\x01",
        PLAIN % b"",
        PLAIN % b'a","content":"b',
        PLAIN % b'a"},"finish_reason":"stop","delta":{"content":"b',
        PLAIN % b"a" + PLAIN % b"b",
        PLAIN[: PLAIN.index(b'%b"')] + PLAIN[PLAIN.index(b'%b"') + 2 :],
        PLAIN[: PLAIN.index(b'%b"')] + PLAIN[PLAIN.index(b'%b"') + 3 :],
        (PLAIN % b"a").replace(b'"m"', b'"other"'),
        (PLAIN % b"a").replace(b"null", b'"length"'),
        (PLAIN % b"a").replace(b"\n", b"\r\n"),
        (PLAIN % b"a")[:-1],
        (PLAIN % b"a")[:30],
        say({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
        event({"error": "no"}),
        DONE,
    ],
)
@each("known", [PLAIN, PLAIN.replace(b'"content":', b'"content": ')])
def test_an_event_of_a_known_shape_is_read_without_parsing(odd, known):
    knowing, unknowing = ReplyReader(), ReplyReader()
    unknowing._shapes_learned = 1000
    for data in (ROLE, known % b"one", known % b"two", odd, known % b"three", known % b"four", DONE):
        assert str(knowing.feed(data)) == str(unknowing.feed(data))
    assert str(knowing.close()) == str(unknowing.close())
    assert knowing._before
    assert not unknowing._before


def read(*chunks: bytes, n=1):
    reader = ReplyReader(n=n)
    return [found for data in chunks for found in reader.feed(data)] + reader.close()


def failure(*chunks: bytes, n=1):
    last = read(*chunks, n=n)[-1]
    assert isinstance(last, ReplyFailure), last
    return last.error


def bare(events):
    """Return the events without the bytes that may be forwarded."""
    return [
        ReplyTextDelta(found.choice, found.text) if isinstance(found, ReplyTextDelta) else found for found in events
    ]


def call(index=0, id="c", name="f", arguments="", **more):
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}} | more


def more(arguments, index=0):
    return {"index": index, "function": {"arguments": arguments}}


class TestText:
    def test_a_plain_reply(self):
        hi = text("hi")
        assert read(ROLE, hi, END) == [START, ReplyTextDelta(0, "hi", hi), *STOP]

    def test_text_leaves_in_the_feed_that_brought_it(self):
        reader = ReplyReader()
        assert reader.feed(ROLE) == [START]
        assert bare(reader.feed(text("a") + text("b"))) == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "b")]

    @pytest.mark.parametrize(
        "delta",
        [
            {"content": "hi", "role": "assistant"},
            {"content": "hi", "role": None},
            {"content": "hi", "tool_calls": None, "reasoning_content": None, "refusal": None},
            {"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
            {"content": ["hi"]},
            {"refusal": "hi"},
        ],
    )
    def test_shapes_of_text(self, delta):
        assert "".join(found.text for found in read(ROLE, say(delta), END) if isinstance(found, ReplyTextDelta)) == "hi"

    @pytest.mark.parametrize("delta", [{}, {"content": None}, {"content": ""}, {"content": []}, {"content": 5}])
    def test_empty_contents(self, delta):
        assert read(ROLE, say(delta), END) == [START, *STOP]

    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
    def test_reasoning(self, key):
        assert read(ROLE, say({key: "hm", "content": None}), END) == [START, ReplyReasoningDelta(0, "hm"), *STOP]

    def test_reasoning_under_both_keys_counts_once(self):
        assert read(ROLE, say({"reasoning": "hm", "reasoning_content": "hm"}), END)[1:2] == [
            ReplyReasoningDelta(0, "hm")
        ]

    def test_reasoning_as_a_part(self):
        part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        assert read(ROLE, say({"content": [part]}), END)[1:2] == [ReplyReasoningDelta(0, "hm")]

    def test_an_incomplete_surrogate_pair_waits_for_its_second_half(self):
        reader = ReplyReader()
        reader.feed(ROLE)
        assert bare(reader.feed(text("a\ud83d"))) == [ReplyTextDelta(0, "a")]
        assert bare(reader.feed(text("\ude00b"))) == [ReplyTextDelta(0, "😀b")]

    def test_an_unpaired_surrogate_at_the_end_becomes_a_replacement_character(self):
        assert bare(read(ROLE, text("a\ud83d"), END)) == [
            START,
            ReplyTextDelta(0, "a"),
            ReplyTextDelta(0, "\ufffd"),
            *STOP,
        ]

    def test_an_unpaired_surrogate_in_the_middle_becomes_a_replacement_character_immediately(self):
        assert bare(read(ROLE, text("\ud83dx\ude00"), END))[1:2] == [ReplyTextDelta(0, "\ufffdx\ufffd")]

    def test_text_after_a_buffered_surrogate_is_not_forwarded_raw(self):
        found = read(ROLE, text("\ud83d"), text("x"), END)
        assert found[1] == ReplyTextDelta(0, "\ufffdx", None)

    def test_bytes_that_are_not_utf8(self):
        damaged = text("hi").replace(b"hi", b"h\xffi")
        assert read(ROLE, damaged, END)[1:2] == [ReplyTextDelta(0, "h\ufffdi")]

    def test_utf8_may_be_split_anywhere(self):
        data = ROLE + event(chunk({"content": "a"})).replace(b"a", "€😀".encode()) + END
        data = ROLE + ('data: {"choices":[{"delta":{"content":"€😀"}}]}\n\n').encode() + END
        assert bare(read(*[data[i : i + 1] for i in range(len(data))])) == [START, ReplyTextDelta(0, "€😀"), *STOP]


class TestForwarding:
    def raw(self, data, *, before=ROLE):
        return [found.raw for found in read(before, data, END) if isinstance(found, ReplyTextDelta)]

    def test_a_canonical_event_is_kept_verbatim(self):
        data = text("hi", system_fingerprint="fp", made_up=1, usage=None)
        assert self.raw(data) == [data]

    def test_a_canonical_event_in_pieces_is_kept_verbatim(self):
        data = text("hi")
        found = read(ROLE, data[:30], data[30:], END)
        assert found[1] == ReplyTextDelta(0, "hi", data)

    @pytest.mark.parametrize(
        "data",
        [
            text("hi", id="other"),
            text("hi", created=6),
            text("hi", model="other"),
            text("hi", object="chunk"),
            text("hi", error=None),
            text("hi", usage={"prompt_tokens": 1}),
            say({"content": "hi"}, "stop"),
            say({"content": "hi", "role": "assistant"}),
            say({"content": "hi", "reasoning_content": None}),
            say({"content": "hi"}).replace(b', "finish_reason": null', b""),
            text("hi").replace(b"data: ", b"data:"),
            text("hi").replace(b"\n\n", b"\r\n\r\n"),
            b": c\n" + text("hi"),
            b"event: message\n" + text("hi"),
            say(chunk()["choices"][0] | {"content": "hi"}),
        ],
    )
    def test_any_other_event_is_rewritten(self, data):
        assert self.raw(data) == [None]

    def test_a_reply_without_an_id_is_rewritten(self):
        nameless = text("hi", id="")
        assert self.raw(nameless, before=say({"role": "assistant"}, id="")) == [None]

    def test_the_first_event_is_rewritten(self):
        assert self.raw(b"", before=text("hi")) == [None]


class TestEnd:
    def test_the_end_marker_may_be_missing(self):
        assert read(ROLE, say({}, "stop")) == [START, *STOP]

    def test_the_reason_may_accompany_the_last_text(self):
        assert bare(read(ROLE, say({"content": "hi"}, "stop") + DONE)) == [START, ReplyTextDelta(0, "hi"), *STOP]

    def test_two_reasons_count_as_one(self):
        assert read(ROLE, say({}, "stop"), say({}, "stop"), DONE) == [START, *STOP]

    def test_a_specific_reason_wins_over_a_stop(self):
        assert read(ROLE, say({}, "length"), say({}, "stop"), DONE)[1] == ReplyFinish(0, Reason.LENGTH)
        assert read(ROLE, say({}, "stop"), say({}, "length"), DONE)[1] == ReplyFinish(0, Reason.LENGTH)

    def test_a_reason_on_every_chunk_loses_no_text(self):
        found = read(say({"content": "a"}, "stop"), say({"content": "b"}, "stop"))
        assert bare(found) == [START, ReplyTextDelta(0, "a"), ReplyTextDelta(0, "b"), *STOP]

    @pytest.mark.parametrize(
        ("word", "reason"),
        [
            ("stop", Reason.STOP),
            ("tool_calls", Reason.STOP),
            ("function_call", Reason.STOP),
            ("eos", Reason.STOP),
            ("length", Reason.LENGTH),
            ("max_tokens", Reason.LENGTH),
            ("content_filter", Reason.FILTER),
            ("SAFETY", Reason.FILTER),
        ],
    )
    def test_reasons(self, word, reason):
        assert read(ROLE, say({}, word), DONE)[1] == ReplyFinish(0, reason)

    def test_the_end_marker_alone_is_a_stop(self):
        assert read(ROLE, text("a"), DONE)[-2:] == STOP
        assert read(DONE) == [ReplyStart(), *STOP]

    @pytest.mark.parametrize("mark", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE] \r\n\r\n", b"data: [DONE]\n"])
    def test_spellings_of_the_end_marker(self, mark):
        assert read(ROLE, text("a"), mark)[-2:] == STOP

    @pytest.mark.parametrize("data", [b"", ROLE, ROLE + text("a"), ROLE + text("a") + b'data: {"cho', b": hello\n\n"])
    def test_a_truncated_stream_is_a_failure(self, data):
        error = failure(data)
        assert type(error) is UpstreamError
        assert error.code == "upstream_closed"

    def test_a_reason_without_its_blank_line_is_still_read(self):
        assert read(ROLE, say({}, "stop").rstrip()) == [START, *STOP]

    def test_nothing_follows_the_end(self):
        reader = ReplyReader()
        reader.feed(ROLE + END)
        assert reader.ended
        assert reader.feed(text("a")) == []
        assert reader.close() == []


class TestUsage:
    USAGE: ClassVar = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    READ = UsageReport(Usage(10, 3, 4, 2))

    def test_usage_in_a_last_chunk(self):
        last = event(chunk() | {"choices": [], "usage": self.USAGE})
        assert read(ROLE, say({}, "stop"), last, DONE) == [START, ReplyFinish(0, Reason.STOP), self.READ, ReplyEnd()]

    def test_usage_on_the_finish_chunk(self):
        assert read(ROLE, say({}, "stop", usage=self.USAGE), DONE)[1:] == [
            ReplyFinish(0, Reason.STOP),
            self.READ,
            ReplyEnd(),
        ]

    def test_the_last_usage_wins(self):
        early = self.USAGE | {"completion_tokens": 1}
        found = read(ROLE, text("a", usage=early), say({}, "stop", usage=self.USAGE), DONE)
        assert [each for each in found if isinstance(each, UsageReport)] == [self.READ]

    def test_a_finish_waits_only_for_the_next_event(self):
        reader = ReplyReader()
        reader.feed(ROLE + say({}, "stop"))
        assert reader.feed(event(chunk() | {"choices": [], "usage": self.USAGE})) == [ReplyFinish(0, Reason.STOP)]
        assert reader.usage == Usage(10, 3, 4, 2)

    @pytest.mark.parametrize("usage", [None, [], "x", {}, {"prompt_tokens": None, "completion_tokens": "3"}])
    def test_unknown_usage_is_0(self, usage):
        found = read(ROLE, say({}, "stop", usage=usage), DONE)
        assert [each.usage for each in found if isinstance(each, UsageReport)] in ([], [Usage()])


class TestOddChunks:
    def test_the_leading_chunk_of_azure(self):
        leading = event({"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []})
        assert read(leading, ROLE, END) == [START, *STOP]

    @pytest.mark.parametrize(
        "payload",
        [
            {},
            {"choices": None},
            {"choices": {}},
            {"choices": [None, 5]},
            {"choices": [{}]},
            {"choices": [{"index": 0, "delta": None}]},
            {"choices": [{"index": 0, "delta": []}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [None, {}, {"function": 5}], "function_call": 5}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": 5}, "finish_reason": 5}]},
            {"id": 5, "created": "x", "model": None, "object": 7, "usage": 5, "choices": []},
            [],
            5,
            None,
        ],
    )
    def test_unexpected_values_are_ignored(self, payload):
        assert bare(read(ROLE, event(payload), text("a"), END)) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_a_missing_index_defaults_to_the_position(self):
        data = ROLE + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + END
        assert bare(read(data)) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_comments_and_unknown_data_are_ignored(self):
        found = read(b": OPENROUTER PROCESSING\n\n", ROLE, b"data: ping\n\ndata:\n\n: x\n", text("a"), END)
        assert bare(found) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_damaged_json_is_a_failure(self):
        assert failure(ROLE, b'data: {"choices":[{"delta":{"content":"a}\n\n').code == "upstream_unreadable"

    def test_invalid_json_numbers_are_tolerated(self):
        data = b'data: {"choices":[{"delta":{"content":"a"},"score":NaN}],"x":1e999}\n\n'
        assert bare(read(ROLE, data, END))[1] == ReplyTextDelta(0, "a")

    def test_a_start_without_metadata(self):
        assert read(event({"choices": [{"delta": {"content": "a"}}]}), DONE)[0] == ReplyStart()

    def test_a_message_instead_of_a_delta(self):
        data = event({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
        assert bare(read(data)) == [ReplyStart(), ReplyTextDelta(0, "a"), *STOP]

    def test_text_of_the_legacy_protocol(self):
        data = event({"choices": [{"text": "a", "finish_reason": "stop"}]})
        assert bare(read(data)) == [ReplyStart(), ReplyTextDelta(0, "a"), *STOP]


class TestErrors:
    @pytest.mark.parametrize(
        ("payload", "message"),
        [
            ({"error": {"message": "boom", "type": "server_error", "param": None, "code": None}}, "boom"),
            ({"error": "boom"}, "boom"),
            ({"object": "error", "message": "boom", "code": 500}, "boom"),
            ({"error": {"code": 502}}, "The upstream reported an error without a message."),
            ({"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "boom"}}]}, "boom"),
        ],
    )
    @pytest.mark.parametrize("before", [b"", ROLE + text("a")])
    def test_an_error_in_a_stream(self, before, payload, message):
        assert failure(before, event(payload), END).message == message

    def test_an_error_as_a_separate_event(self):
        assert failure(ROLE, b'event: error\ndata: {"message":"boom"}\n\n').message == "boom"
        assert failure(ROLE, b"event: error\ndata: boom\n\n").message == "boom"

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            ({"message": "m", "code": 429}, 429),
            ({"message": "m", "code": "429"}, 429),
            ({"message": "m", "status": 404}, 404),
            ({"message": "m", "type": "invalid_request_error"}, 400),
            ({"message": "m", "code": "rate_limit_exceeded"}, 429),
            ({"message": "m", "code": 401}, 502),
            ({"message": "m", "code": 403}, 502),
            ({"message": "m", "code": 7}, 502),
            ({"message": "m"}, 502),
        ],
    )
    def test_the_status_of_an_error_in_a_stream(self, error, status):
        assert failure(event({"error": error})).status == status

    def test_details_of_an_error_are_kept(self):
        error = failure(event({"error": {"message": "m", "type": "t", "param": "p", "code": "c", "status": 400}}))
        assert isinstance(error, UpstreamRefused)
        assert (error.kind, error.param, error.code) == ("t", "p", "c")

    @pytest.mark.parametrize(
        "body",
        [
            b'{"error":{"message":"boom"}}',
            b'[{"error":{"message":"boom"}}]',
            b'{"detail":"boom"}',
            b'\n {"message":"boom"}',
        ],
    )
    def test_an_error_as_a_whole_body(self, body):
        assert failure(body).message == "boom"
        assert failure(*[body[i : i + 1] for i in range(len(body))]).message == "boom"

    def test_a_web_page(self):
        page = b"<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title></head></html>"
        assert "502 Bad Gateway" in failure(page[:30], page[30:]).message

    def test_plain_text(self):
        assert "Hello there" in failure(b"Hello there").message

    def test_the_error_of_a_rejected_request(self):
        error = read_error(429, b'{"error":{"message":"slow down","code":"busy"}}')
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.message, error.code) == (429, "slow down", "busy")

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"<html><title>Oops</title>", "Oops"),
            (b"plain words", "plain words"),
            (b"", "The upstream returned status 500."),
            (b'[{"error":{"message":"m"}}]', "m"),
            (b'\xef\xbb\xbf{"error":{"message":"m"}}', "m"),
            (b'{"message":null,"detail":"m"}', "m"),
            (b'{"detail":[{"loc":["body","n"],"msg":"too large"},{"msg":"too odd"}]}', "n: too large; too odd"),
            (b"{}", "The upstream reported an error without a message."),
            (b"\xff", "\ufffd"),
        ],
    )
    def test_error_bodies_of_rejected_requests(self, body, message):
        assert read_error(500, body).message == message

    def test_a_rejected_key_is_our_error(self):
        assert read_error(401, b'{"error":"no"}').status == 502


class TestWhole:
    BODY: ClassVar = {
        "id": "x",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "function", "function": {"name": "f", "arguments": ""}},
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }

    @pytest.mark.parametrize("size", [1, 7, 10_000])
    def test_a_whole_reply_instead_of_a_stream(self, size):
        body = b"\r\n " + json.dumps(self.BODY, indent=1).encode()
        assert read(*[body[i : i + size] for i in range(0, len(body), size)]) == [
            START,
            ReplyReasoningDelta(0, "hm"),
            ReplyTextDelta(0, "hi"),
            ReplyCallStart(0, 0, "a", "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "b", "f"),
            ReplyCallEnd(0, 1),
            ReplyFinish(0, Reason.STOP),
            UsageReport(Usage(1, 2)),
            ReplyEnd(),
        ]

    def test_a_reason_may_be_missing(self):
        body = {"choices": [{"message": {"content": "a"}}]}
        assert read(json.dumps(body).encode())[-2:] == STOP

    def test_a_truncated_body_is_a_failure(self):
        assert failure(json.dumps(self.BODY).encode()[:-5]).code == "upstream_closed"


class TestCalls:
    def calls(self, *chunks):
        reply = accumulate(read(*chunks))
        assert reply.failure is None
        return reply.choices[0].calls

    def test_calls_pass_as_they_arrive(self):
        reader = ReplyReader()
        reader.feed(ROLE)
        assert reader.feed(say({"tool_calls": [call()]})) == [ReplyCallStart(0, 0, "c", "f")]
        assert reader.feed(say({"tool_calls": [more('{"a')]})) == [ReplyArgumentsDelta(0, 0, '{"a')]
        assert reader.feed(say({"tool_calls": [more('":1}')]})) == [ReplyArgumentsDelta(0, 0, '":1}')]
        assert reader.feed(say({"tool_calls": [call(1, "d", "g", "{}")]})) == [
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "d", "g"),
            ReplyArgumentsDelta(0, 1, "{}"),
        ]
        assert reader.feed(say({}, "tool_calls") + DONE) == [
            ReplyCallEnd(0, 1),
            ReplyFinish(0, Reason.STOP),
            ReplyEnd(),
        ]

    def test_text_before_and_after(self):
        found = read(ROLE, text("a"), say({"tool_calls": [call(arguments="{}")]}), text("b"), END)
        assert bare(found)[1:-2] == [
            ReplyTextDelta(0, "a"),
            ReplyCallStart(0, 0, "c", "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "b"),
        ]

    def test_a_repeated_name_and_id(self):
        found = self.calls(ROLE, say({"tool_calls": [call()]}), say({"tool_calls": [call(arguments="{}")]}), END)
        assert found == (ReplyCall("c", "f", "{}"),)

    def test_a_missing_index(self):
        first, second, rest = call(id="a"), call(id="b", arguments="{}"), more("{}")
        for item in (first, second, rest):
            item.pop("index")
        found = self.calls(ROLE, *(say({"tool_calls": [item]}) for item in (first, rest, second)), END)
        assert found == (ReplyCall("a", "f", "{}"), ReplyCall("b", "f", "{}"))

    def test_all_calls_numbered_0(self):
        found = self.calls(
            ROLE,
            say({"tool_calls": [call(0, "a", "f", "{}"), call(0, "b", "g", '{"x":1}')]}),
            say({"tool_calls": [call(0, "c", "f", "{}")]}),
            END,
        )
        assert found == (ReplyCall("a", "f", "{}"), ReplyCall("b", "g", '{"x":1}'), ReplyCall("c", "f", "{}"))

    def test_interleaved_calls_are_emitted_consecutively(self):
        items = [call(0, "a"), call(1, "b", "g"), more('{"x"', 0), more('{"y"', 1), more(":1}", 0), more(":2}", 1)]
        found = read(ROLE, *(say({"tool_calls": [item]}) for item in items), END)
        assert found[1:-2] == [
            ReplyCallStart(0, 0, "a", "f"),
            ReplyArgumentsDelta(0, 0, '{"x"'),
            ReplyArgumentsDelta(0, 0, ":1}"),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "b", "g"),
            ReplyArgumentsDelta(0, 1, '{"y"'),
            ReplyArgumentsDelta(0, 1, ":2}"),
            ReplyCallEnd(0, 1),
        ]

    def test_text_inside_a_call_waits_for_its_end(self):
        found = read(ROLE, say({"tool_calls": [call(arguments="{")]}), text("b"), say({"tool_calls": [more("}")]}), END)
        assert bare(found)[1:-2] == [
            ReplyCallStart(0, 0, "c", "f"),
            ReplyArgumentsDelta(0, 0, "{"),
            ReplyArgumentsDelta(0, 0, "}"),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "b"),
        ]

    def test_arguments_before_the_name(self):
        first = {"index": 0, "id": "c", "function": {"arguments": '{"a"'}}
        named = {"index": 0, "function": {"name": "f", "arguments": ":1}"}}
        assert self.calls(ROLE, say({"tool_calls": [first]}), say({"tool_calls": [named]}), END) == (
            ReplyCall("c", "f", '{"a":1}'),
        )

    def test_arguments_as_an_object(self):
        assert self.calls(ROLE, say({"tool_calls": [call(arguments={"a": [1]})]}), END) == (
            ReplyCall("c", "f", '{"a":[1]}'),
        )

    def test_a_surrogate_pair_split_in_the_arguments(self):
        pieces = [call(arguments='{"a":"\ud83d'), more('\ude00"}')]
        assert self.calls(ROLE, *(say({"tool_calls": [item]}) for item in pieces), END) == (
            ReplyCall("c", "f", '{"a":"😀"}'),
        )

    def test_surrogate_pairs_split_in_two_calls_at_the_same_time(self):
        items = [
            call(0, "a", arguments='{"a":"\ud83d'),
            call(1, "b", "g", arguments='{"b":"\ud83d'),
            more('\ude00"}', 0),
            more('\ude01"}', 1),
        ]
        assert self.calls(ROLE, *(say({"tool_calls": [item]}) for item in items), END) == (
            ReplyCall("a", "f", '{"a":"😀"}'),
            ReplyCall("b", "g", '{"b":"😁"}'),
        )

    def test_no_arguments_at_all(self):
        assert self.calls(ROLE, say({"tool_calls": [call()]}), END) == (ReplyCall("c", "f", ""),)

    @pytest.mark.parametrize(
        ("arguments", "reason", "complete"),
        [
            ('{"a":1}', "length", True),
            ('{"a', "length", False),
            ("", "length", False),
            ('{"a', "tool_calls", False),
            ("[]", "tool_calls", False),
            ("", "tool_calls", True),
        ],
    )
    def test_truncated_calls_are_incomplete(self, arguments, reason, complete):
        [found] = self.calls(ROLE, say({"tool_calls": [call(arguments=arguments)]}), say({}, reason), DONE)
        assert found == ReplyCall("c", "f", arguments, complete=complete)

    def test_the_legacy_function_call(self):
        pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
        found = self.calls(ROLE, *(say({"function_call": item}) for item in pieces), END)
        assert found == (ReplyCall(None, "f", '{"a":1}'),)

    def test_a_custom_call(self):
        first = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sh", "input": ""}}
        rest = {"index": 0, "custom": {"input": "ls"}}
        found = self.calls(ROLE, say({"tool_calls": [first]}), say({"tool_calls": [rest]}), END)
        assert found == (ReplyCall("c", "sh", "ls"),)

    def test_a_call_without_a_name_is_ignored(self):
        assert self.calls(ROLE, say({"tool_calls": [call(name=None, arguments="{}")]}), END) == ()


class TestLimits:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr("streamtool.core.sse.MAX_BUFFERED", 100)

    def test_a_whole_body_is_limited(self):
        assert failure(b'{"choices":' + b" " * 100).code == "reply_too_large"

    def test_buffered_arguments_and_text_are_limited(self):
        pieces = [say({"tool_calls": [more("x" * 30)]}), text("y" * 30)] * 2
        assert failure(ROLE, say({"tool_calls": [call()]}), *pieces).code == "reply_too_large"

    def test_text_is_not_counted(self):
        assert read(ROLE, *[text("y" * 30)] * 10, END)[-1] == ReplyEnd()


class TestChoices:
    def test_each_choice_has_its_own_state(self):
        found = read(
            say({"role": "assistant"}, index=1),
            say({"content": "b"}, index=1),
            say({"content": "a"}, index=0),
            say({"tool_calls": [call(arguments="{}")]}, index=1),
            say({}, "stop", index=0),
            say({}, "length", index=1),
            DONE,
            n=2,
        )
        assert bare(found) == [
            START,
            ReplyTextDelta(1, "b"),
            ReplyTextDelta(0, "a"),
            ReplyCallStart(1, 0, "c", "f"),
            ReplyArgumentsDelta(1, 0, "{}"),
            ReplyFinish(0, Reason.STOP),
            ReplyCallEnd(1, 0),
            ReplyFinish(1, Reason.LENGTH),
            ReplyEnd(),
        ]

    def test_several_choices_in_one_chunk(self):
        both = chunk() | {
            "choices": [{"index": i, "delta": {"content": "ab"[i]}, "finish_reason": "stop"} for i in (0, 1)]
        }
        assert bare(read(event(both), DONE, n=2))[1:3] == [ReplyTextDelta(0, "a"), ReplyTextDelta(1, "b")]

    def test_a_missing_choice_is_a_failure(self):
        assert failure(ROLE, text("a"), END, n=2).code == "choices_missing"

    def test_an_unrequested_choice_is_ignored(self):
        both = chunk() | {
            "choices": [{"index": i, "delta": {"content": "ab"[i]}, "finish_reason": "stop"} for i in (0, 1)]
        }
        assert bare(read(event(both), DONE))[1:] == [ReplyTextDelta(0, "a"), *STOP]


words = st.text(max_size=6) | st.sampled_from(["\ud83d", "\ude00", "x\ud83d", '"', "\\", "€", "\u2028"])
deltas = st.one_of(
    words.map(lambda word: {"content": word}),
    words.map(lambda word: {"content": word, "role": "assistant"}),
    words.map(lambda word: {"reasoning_content": word}),
    st.tuples(st.integers(0, 2), words).map(lambda pair: {"tool_calls": [more(pair[1], pair[0])]}),
    st.integers(0, 2).map(lambda index: {"tool_calls": [call(index, f"c{index}")]}),
    st.sampled_from([{}, {"content": None}, {"function_call": {"name": "f", "arguments": "{}"}}]),
)


@given(
    st.lists(st.tuples(deltas, st.sampled_from([None, None, "stop", "length"])), max_size=12),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    st.booleans(),
    st.lists(st.integers(0, 3000), max_size=10),
)
def test_any_split_gives_the_same_reply(items, end, done, cuts):
    data = b"".join(say(delta, reason).replace(b"\n\n", end) for delta, reason in items)
    data += b"data: [DONE]" + end if done else b""
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = read(data)
    split = read(*(data[borders[i] : borders[i + 1]] for i in range(len(borders) - 1)))
    single = read(*(data[i : i + 1] for i in range(len(data))))
    for found in (split, single):
        assert [event for event in found if not isinstance(event, ReplyFailure)] == [
            event for event in whole if not isinstance(event, ReplyFailure)
        ]
    for found in whole:
        if isinstance(found, ReplyTextDelta | ReplyReasoningDelta | ReplyArgumentsDelta):
            found.text.encode()


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"data: {" + data))
def test_nothing_raises(data):
    found = read(data)
    assert isinstance(found[-1], ReplyFailure | ReplyEnd)
    assert read(*(data[i : i + 1] for i in range(len(data))))[-1].__class__ is found[-1].__class__


@pytest.mark.parametrize("blanks", [b"\n", b"\r\n\r\n", b"  ", b" \n"])
def test_whitespace_before_the_first_event_is_skipped(blanks):
    body = blanks + ROLE + text("Hello") + END
    for size in (1, 3, len(body)):
        reader = ReplyReader()
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        reply = accumulate([event for piece in pieces for event in reader.feed(piece)] + reader.close())
        assert reply.failure is None
        assert reply.choices[0].text == "Hello"
