"""Writing a Messages reply for the client: streamed, whole, and after failures."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accumulated import accumulate
from support.validators import UNREPAIRABLE

from streamtool.core.conversation import Conversation, Tool
from streamtool.core.errors import (
    AuthenticationError,
    NotFoundError,
    RequestError,
    StreamtoolError,
    TooLargeError,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
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
from streamtool.protocols.messages import (
    CALL_ID,
    COMPLETE_HEADERS,
    KEEPALIVE,
    NAME,
    REPLY_ID,
    REQUEST_ID,
    STREAM_HEADERS,
    ReplyReader,
    ReplyWriter,
    write_complete,
    write_count,
    write_error,
)

STOP = [ReplyFinish(0, Reason.STOP), ReplyEnd()]
CONVERSATION = Conversation("messages", "m", (), tools=(Tool("f"), Tool("g")))
KINDS = {
    "text_delta": "text",
    "input_json_delta": "tool_use",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}


def writer(**fields):
    return ReplyWriter(CONVERSATION, id="msg_1", created=7, model="m", **fields)


def payloads(data: bytes):
    """Return the events; each must be one `event:` line and one `data:` line with the same type."""
    found = []
    assert data.endswith(b"\n\n")
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        fields = json.loads(line.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        found.append(fields)
    return found


def checked(data: bytes):
    """Return the blocks, the stop fields and the usage of a whole stream, which is checked as strictly as any client
    does.
    """
    start, *rest, ended, stop = payloads(data)
    assert start["type"] == "message_start"
    assert start["message"].keys() == {
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "usage",
    }
    assert ended["type"] == "message_delta"
    assert stop == {"type": "message_stop"}
    blocks = []
    is_open = False
    for fields in rest:
        match fields["type"]:
            case "content_block_start":
                assert not is_open
                assert fields["index"] == len(blocks)
                is_open = True
                blocks.append(fields["content_block"] | {"pieces": [], "signatures": []})
                assert not any(fields["content_block"].get(key) for key in ("text", "thinking", "signature", "input"))
            case "content_block_delta":
                assert is_open
                assert fields["index"] == len(blocks) - 1
                delta = dict(fields["delta"])
                assert KINDS[delta["type"]] == blocks[-1]["type"]
                assert not blocks[-1]["signatures"]
                where = "signatures" if delta.pop("type") == "signature_delta" else "pieces"
                blocks[-1][where] += delta.values()
            case "content_block_stop":
                assert is_open
                assert fields["index"] == len(blocks) - 1
                is_open = False
                assert blocks[-1]["type"] != "text" or "".join(blocks[-1]["pieces"])
                assert len(blocks[-1]["signatures"]) == (blocks[-1]["type"] == "thinking")
            case "ping":
                pass
            case other:
                raise AssertionError(other)
    assert not is_open
    calls = any(block["type"] == "tool_use" for block in blocks)
    reason, sequence = ended["delta"]["stop_reason"], ended["delta"]["stop_sequence"]
    assert calls or reason != "tool_use"
    assert not calls or reason not in ("end_turn", "stop_sequence")
    assert (sequence is not None) == (reason == "stop_sequence")
    return [block_value(block) for block in blocks], reason, ended["usage"]


def block_value(block):
    text = "".join(block["pieces"])
    match block["type"]:
        case "text":
            return text
        case "thinking":
            return ("thinking", text, *block["signatures"])
        case "tool_use":
            return (block["id"], block["name"], text)


def written(*events):
    return checked(writer().feed(events))


def call(index=0, arguments="{}", *, id="toolu_1", name="f", complete=True):
    pieces = [ReplyArgumentsDelta(0, index, piece) for piece in arguments]
    return [ReplyCallStart(0, index, id, name), *pieces, ReplyCallEnd(0, index, complete)]


class TestText:
    def test_a_plain_reply_verbatim(self):
        usage = UsageReport(Usage(input=25, output=4, cached=5))
        expected = (
            'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m",'
            '"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"cache_creation_input_tokens":0,'
            '"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
            'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
            'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hé\\n\\"😀"}}\n\n'
            'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
            'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
            '"usage":{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":5,"output_tokens":4}}\n\n'
            'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        )
        events = [ReplyStart(), ReplyTextDelta(0, 'hé\n"😀'), ReplyFinish(0, Reason.STOP), usage, ReplyEnd()]
        assert writer().feed(events).decode() == expected
        machine = writer()
        assert b"".join(machine.feed([event]) for event in events).decode() == expected

    def test_message_start_is_sent_with_the_start(self):
        machine = writer()
        assert [found["type"] for found in payloads(machine.feed([ReplyStart()]))] == ["message_start"]
        assert [found["type"] for found in payloads(machine.feed([ReplyTextDelta(0, "a")]))] == [
            "content_block_start",
            "content_block_delta",
        ]
        assert [found["type"] for found in payloads(machine.feed([ReplyTextDelta(0, "b")]))] == ["content_block_delta"]

    def test_the_start_provides_id_and_model(self):
        message = payloads(writer().feed([ReplyStart("up", 9, "other")]))[0]["message"]
        assert (message["id"], message["model"]) == ("up", "other")

    def test_a_second_start_is_ignored(self):
        assert written(
            ReplyStart("a", 1, "x"), ReplyTextDelta(0, "a"), ReplyStart("b", 2, "y"), ReplyTextDelta(0, "b"), *STOP
        )[0] == ["ab"]

    def test_an_empty_reply_has_no_blocks(self):
        assert written(ReplyStart(), ReplyTextDelta(0, ""), ReplyReasoningDelta(0, ""), *STOP) == (
            [],
            "end_turn",
            {"output_tokens": 0},
        )

    def test_a_reply_without_a_start(self):
        assert written(ReplyTextDelta(0, "a"), *STOP)[0] == ["a"]

    def test_unpaired_surrogates_are_replaced(self):
        assert written(ReplyTextDelta(0, "a"), ReplyTextDelta(0, "\ud83d"), *STOP)[0] == ["a\ufffd"]


class TestForwarding:
    RAW = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"\\u0061"}  }\n\n'

    @pytest.mark.parametrize(
        ("index", "forwards", "forwarded"), [(0, True, True), (0, False, False), (1, True, False), (10, True, False)]
    )
    def test_an_event_of_the_open_block_is_forwarded_verbatim(self, index, forwards, forwarded):
        machine = writer(forwards=forwards)
        machine.feed([ReplyStart(), ReplyTextDelta(0, "x")])
        data = machine.feed([ReplyTextDelta(0, "a", self.RAW % index)])
        assert (data == self.RAW % index) is forwarded
        assert payloads(data)[0] == {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "a"},
        }

    def test_the_first_text_opens_its_block(self):
        data = writer(forwards=True).feed([ReplyStart(), ReplyTextDelta(0, "a", self.RAW % 0), *STOP])
        assert checked(data)[0] == ["a"]

    def test_an_event_of_another_protocol_is_rewritten(self):
        machine = writer(forwards=True)
        machine.feed([ReplyStart(), ReplyTextDelta(0, "x")])
        assert b"data: {}" not in machine.feed([ReplyTextDelta(0, "a", b"data: {}\n\n")])


class TestCalls:
    def test_a_call_verbatim(self):
        machine = writer()
        machine.feed([ReplyStart()])
        assert machine.feed([ReplyCallStart(0, 0, "toolu_1", "f")]) == (
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
            b'"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}\n\n'
        )
        assert machine.feed([ReplyArgumentsDelta(0, 0, '{"a":1}')]) == (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
            b'"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":1}"}}\n\n'
        )
        assert machine.feed([ReplyCallEnd(0, 0)]) == (
            b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        )

    def test_text_and_calls(self):
        found = written(
            ReplyStart(), ReplyTextDelta(0, "a"), *call(0, '{"a":1}'), *call(1, id="toolu_2", name="g"), *STOP
        )
        assert found[:2] == (["a", ("toolu_1", "f", '{"a":1}'), ("toolu_2", "g", "{}")], "tool_use")

    @pytest.mark.parametrize(("given", "arguments"), [("", "{}"), (" \n", " \n{}")])
    def test_a_call_without_arguments_has_an_empty_object(self, given, arguments):
        assert written(*call(0, given), *STOP)[0] == [("toolu_1", "f", arguments)]

    @pytest.mark.parametrize("arguments", ['{"a', ""])
    @pytest.mark.parametrize(("reason", "word"), [(Reason.STOP, "tool_use"), (Reason.LENGTH, "max_tokens")])
    def test_the_arguments_of_an_incomplete_call_cannot_be_repaired(self, arguments, reason, word):
        end = [ReplyFinish(0, reason), ReplyEnd()]
        expected = ([("toolu_1", "f", arguments + UNREPAIRABLE)], word)
        assert written(*call(0, arguments, complete=False), *end)[:2] == expected

    @pytest.mark.parametrize("after", [[ReplyTextDelta(0, "b")], call(1), [ReplyReasoningDelta(0, "hm")], []])
    def test_a_call_without_an_end_is_truncated(self, after):
        blocks, reason, _ = written(ReplyStart(), *call()[:2], *after, *STOP)
        assert blocks[0] == ("toolu_1", "f", "{" + UNREPAIRABLE)
        assert reason == "tool_use"

    def test_text_after_a_call_is_a_separate_block(self):
        assert written(*call(), ReplyTextDelta(0, "\n"), ReplyTextDelta(0, "so"), ReplyTextDelta(0, " on"), *STOP)[
            :2
        ] == (
            [("toolu_1", "f", "{}"), "\nso on"],
            "tool_use",
        )

    def test_trailing_whitespace_after_a_call_is_dropped(self):
        space = [ReplyTextDelta(0, "\n"), ReplyTextDelta(0, " ")]
        assert written(*call(), *space, *call(1, id="toolu_2"), *space, *STOP)[0] == [
            ("toolu_1", "f", "{}"),
            ("toolu_2", "f", "{}"),
        ]

    def test_buffered_whitespace_is_bounded(self):
        assert written(*call(), ReplyTextDelta(0, " " * 5000), ReplyTextDelta(0, " "), *STOP)[0][1] == " " * 5001

    def test_events_without_an_open_call_are_ignored(self):
        assert written(*call(), ReplyArgumentsDelta(0, 0, "x"), ReplyCallEnd(0, 0), *STOP)[0] == [
            ("toolu_1", "f", "{}")
        ]


class TestReasoning:
    def test_the_signature_of_the_upstream(self):
        found = written(
            ReplyStart(),
            ReplyReasoningDelta(0, "h"),
            ReplyReasoningDelta(0, "m"),
            ReplyReasoningDelta(0, "", "EqoB"),
            ReplyTextDelta(0, "a"),
            *STOP,
        )
        assert found[0] == [("thinking", "hm", "EqoB"), "a"]

    def test_unsigned_reasoning_gets_our_own_signature(self):
        assert written(ReplyReasoningDelta(0, "hm"), ReplyTextDelta(0, "a"), *STOP)[0] == [
            ("thinking", "hm", "streamtool"),
            "a",
        ]
        assert written(ReplyReasoningDelta(0, "hm"), *call(), *STOP)[0] == [
            ("thinking", "hm", "streamtool"),
            ("toolu_1", "f", "{}"),
        ]
        assert written(ReplyReasoningDelta(0, "hm"), *STOP)[0] == [("thinking", "hm", "streamtool")]

    def test_separately_signed_reasoning_gives_separate_blocks(self):
        assert written(ReplyReasoningDelta(0, "a", "x"), ReplyReasoningDelta(0, "b", "y"), *STOP)[0] == [
            ("thinking", "a", "x"), ("thinking", "b", "y"),
        ]  # fmt: skip

    def test_hidden_reasoning_keeps_its_signature(self):
        assert written(ReplyReasoningDelta(0, "", "EqoB"), ReplyTextDelta(0, "a"), *STOP)[0] == [
            ("thinking", "", "EqoB"),
            "a",
        ]

    def test_reasoning_between_texts(self):
        assert written(ReplyTextDelta(0, "a"), ReplyReasoningDelta(0, "hm"), ReplyTextDelta(0, "b"), *STOP)[0] == [
            "a", ("thinking", "hm", "streamtool"), "b",
        ]  # fmt: skip


class TestEnd:
    @pytest.mark.parametrize(
        ("reason", "calls", "word"),
        [
            (Reason.STOP, False, "end_turn"),
            (Reason.STOP, True, "tool_use"),
            (Reason.LENGTH, False, "max_tokens"),
            (Reason.LENGTH, True, "max_tokens"),
            (Reason.FILTER, False, "refusal"),
            (Reason.FILTER, True, "refusal"),
            (Reason.PAUSE, False, "pause_turn"),
            (Reason.PAUSE, True, "tool_use"),
            (Reason.STOP_SEQUENCE, False, "end_turn"),
            (Reason.STOP_SEQUENCE, True, "tool_use"),
        ],
    )
    def test_reasons(self, reason, calls, word):
        events = [ReplyStart(), ReplyTextDelta(0, "a"), *(call() if calls else ()), ReplyFinish(0, reason), ReplyEnd()]
        assert written(*events)[1] == word
        assert json.loads(whole(events))["stop_reason"] == word

    def test_a_stop_sequence(self):
        data = writer().feed(
            [ReplyStart(), ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP_SEQUENCE, "END"), ReplyEnd()]
        )
        assert checked(data)[1] == "stop_sequence"
        assert payloads(data)[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}

    def test_the_block_is_closed_immediately_and_the_end_waits_for_the_usage(self):
        machine = writer()
        machine.feed([ReplyStart(), ReplyTextDelta(0, "a")])
        assert [found["type"] for found in payloads(machine.feed([ReplyFinish(0, Reason.STOP)]))] == [
            "content_block_stop"
        ]
        assert machine.feed([UsageReport(Usage(1, 2))]) == b""
        assert [found["type"] for found in payloads(machine.feed([ReplyEnd()]))] == ["message_delta", "message_stop"]

    def test_nothing_follows_the_end(self):
        machine = writer()
        machine.feed([ReplyStart(), *STOP])
        late = [
            ReplyStart(),
            ReplyTextDelta(0, "a"),
            ReplyReasoningDelta(0, "b"),
            *call(),
            *STOP,
            ReplyFailure(UpstreamError("x")),
        ]
        assert machine.feed(late) == b""

    def test_events_between_the_finish_and_the_end_are_ignored(self):
        late = [ReplyTextDelta(0, "b"), ReplyReasoningDelta(0, "b", "x"), *call(), ReplyFinish(0, Reason.LENGTH)]
        assert written(ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), *late, ReplyEnd())[:2] == (
            ["a"],
            "end_turn",
        )

    def test_a_failure_ends_the_stream_as_an_error(self):
        machine = writer()
        machine.feed([ReplyStart(), ReplyTextDelta(0, "a")])
        error = UpstreamRefused("busy", status=529, kind="overloaded_error")
        assert machine.feed([ReplyFailure(error), ReplyTextDelta(0, "b")]) == (
            b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
        )

    def test_an_end_without_a_reason_is_a_failure(self):
        [*_, last] = payloads(writer().feed([ReplyStart(), ReplyTextDelta(0, "a"), ReplyEnd()]))
        assert last["error"]["type"] == "api_error"


class TestKeepalive:
    def test_a_comment_before_the_reply_and_a_ping_in_it(self):
        machine = writer()
        assert machine.keepalive() == KEEPALIVE == b": keep-alive\n\n"
        machine.feed([ReplyStart()])
        assert machine.keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'
        machine.feed([ReplyTextDelta(0, "a")])
        assert machine.keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'
        machine.feed(STOP)
        assert machine.keepalive() == KEEPALIVE


def whole(events):
    return write_complete(CONVERSATION, accumulate(events), id="msg_1", created=7, model="m")


class TestWhole:
    def test_a_whole_reply_verbatim(self):
        events = [
            ReplyStart(), ReplyReasoningDelta(0, "hm"), ReplyTextDelta(0, "a"), *call(0, '{"a": 1.0}'), ReplyTextDelta(0, "\n"),
            ReplyFinish(0, Reason.STOP), UsageReport(Usage(25, 4, 5)), ReplyEnd(),
        ]  # fmt: skip
        assert whole(events).decode() == (
            '{"id":"msg_1","type":"message","role":"assistant","model":"m","content":['
            '{"type":"thinking","thinking":"hm","signature":"streamtool"},{"type":"text","text":"a"},'
            '{"type":"tool_use","id":"toolu_1","name":"f","input":{"a": 1.0}}],'
            '"stop_reason":"tool_use","stop_sequence":null,'
            '"usage":{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":5,"output_tokens":4}}'
        )

    def test_an_empty_reply(self):
        body = json.loads(whole([ReplyStart("up", 1, "other"), *STOP]))
        assert (body["id"], body["model"], body["content"], body["stop_reason"]) == ("up", "other", [], "end_turn")

    @pytest.mark.parametrize(
        ("arguments", "complete", "value"),
        [
            ("", True, {}),
            ('{"n":123456789012345678901234567890}', True, {"n": 123456789012345678901234567890}),
            ('{"a":"\ud83d"}', True, {"a": "\ufffd"}),
            ("[1]", True, {"arguments": "[1]"}),
            ("{no", True, {"arguments": "{no"}),
            ('{"a":1', False, None),
        ],
    )
    def test_input_is_always_an_object_and_never_invented(self, arguments, complete, value):
        events = [
            ReplyCallStart(0, 0, "toolu_1", "f"),
            ReplyArgumentsDelta(0, 0, arguments),
            ReplyCallEnd(0, 0, complete),
            *STOP,
        ]
        body = json.loads(whole(events))
        assert [block["input"] for block in body["content"]] == ([value] if complete else [])

    def test_an_incomplete_reply_is_an_error(self):
        error = UpstreamError("broken")
        with pytest.raises(UpstreamError) as caught:
            whole([ReplyStart(), ReplyFailure(error)])
        assert caught.value is error
        for events in ([ReplyStart(), ReplyTextDelta(0, "a"), ReplyEnd()], []):
            with pytest.raises(UpstreamError) as caught:
                whole(events)
            assert caught.value.code == "upstream_closed"


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (RequestError("x"), "invalid_request_error"),
            (AuthenticationError("x"), "authentication_error"),
            (UpstreamRefused("x", status=402), "billing_error"),
            (UpstreamRefused("x", status=403), "permission_error"),
            (NotFoundError("x"), "not_found_error"),
            (UpstreamRefused("x", status=409), "conflict_error"),
            (TooLargeError("x"), "request_too_large"),
            (UpstreamRefused("x", status=422), "invalid_request_error"),
            (UpstreamRefused("x", status=429, kind="rate_limit_exceeded"), "rate_limit_error"),
            (StreamtoolError("x"), "api_error"),
            (UpstreamError("x"), "api_error"),
            (UpstreamRefused("x", status=503), "overloaded_error"),
            (UpstreamTimeout("x"), "timeout_error"),
            (UpstreamRefused("x", status=529), "overloaded_error"),
        ],
    )
    def test_error_types(self, error, kind):
        assert json.loads(write_error(error)) == {"type": "error", "error": {"type": kind, "message": "x"}}

    def test_the_message_names_the_place(self):
        error = RequestError("A non-empty list of messages is required.", param="messages")
        assert json.loads(write_error(error, "req_1")) == {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "messages: A non-empty list of messages is required.",
            },
            "request_id": "req_1",
        }

    def test_a_count(self):
        assert write_count(12) == b'{"input_tokens":12}'

    def test_constants(self):
        assert (NAME, REPLY_ID, CALL_ID, REQUEST_ID) == ("messages", "msg_", "toolu_", b"request-id")
        assert dict(STREAM_HEADERS)[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert dict(COMPLETE_HEADERS) == {b"content-type": b"application/json"}


PIECE = st.one_of(
    st.sampled_from(["a", "b\n", " ", "\n", "é😀", ""]).map(lambda text: [ReplyTextDelta(0, text)]),
    st.sampled_from(["hm", ""]).map(lambda text: [ReplyReasoningDelta(0, text)]),
    st.tuples(st.sampled_from(["", "{}", '{"a": 1}', '{"a'])).map(lambda one: ("call", *one)),
)


@given(st.lists(PIECE, max_size=8), st.sampled_from(list(Reason)))
def test_a_stream_equals_the_whole_reply_and_is_read_back(pieces, reason):
    events = [ReplyStart()]
    for number, piece in enumerate(pieces):
        if isinstance(piece, tuple):
            events += call(number, piece[1], id=f"toolu_{number}", complete=piece[1] != '{"a')
        else:
            events += piece
    events += [ReplyFinish(0, reason), ReplyEnd()]
    data = writer().feed(events)
    blocks, word, _ = checked(data)
    body = json.loads(whole(events))
    if not any(block[-1].endswith(UNREPAIRABLE) for block in blocks):
        assert body["stop_reason"] == word
    assert [block["type"] for block in body["content"]] == [
        "text" if isinstance(block, str) else "thinking" if block[0] == "thinking" else "tool_use"
        for block in blocks
        if not block[-1].endswith(UNREPAIRABLE)
    ]
    assert [block["text"] for block in body["content"] if block["type"] == "text"] == [
        block for block in blocks if isinstance(block, str)
    ]
    reader = ReplyReader()
    again = accumulate([found for byte in data for found in reader.feed(bytes([byte]))] + reader.close())
    assert again.ended
    assert again.choices[0].text == "".join(block for block in blocks if isinstance(block, str))
    assert [(one.id, one.complete) for one in again.choices[0].calls] == [
        (one.id, one.complete) for one in accumulate(events).choices[0].calls
    ]
