"""Writing a Responses reply for the client: streamed, whole, and after failures."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accumulated import accumulate
from support.validators import UNREPAIRABLE

from streamtool.core.conversation import Conversation, Options, Tool, ToolChoice
from streamtool.core.errors import AuthenticationError, TooLargeError, UpstreamError, UpstreamRefused
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
from streamtool.protocols.responses import (
    COMPLETE_HEADERS,
    KEEPALIVE,
    STREAM_HEADERS,
    ReplyWriter,
    store_entries,
    write_complete,
    write_error,
    writer,
)

TOOLS = (
    Tool("f"),
    Tool("g"),
    Tool("sh", custom=True),
    Tool("files.read", namespace="files"),
    Tool("files.patch", namespace="files", custom=True),
)
STOP = (ReplyFinish(0, Reason.STOP), ReplyEnd())
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
STREAMED = {  # type of the delta → type of its final event, key of the complete value
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.reasoning_summary_text.delta": ("response.reasoning_summary_text.done", "text"),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done", "arguments"),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
}
PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}


def conversation(**fields):
    return Conversation("responses", "m", (), **({"tools": TOOLS, "raw": {"model": "m", "input": "hi"}} | fields))


def machine(**fields):
    return ReplyWriter(conversation(**fields), id="resp_1", created=7, model="m")


def payloads(data: bytes):
    assert data.endswith(b"\n\n")
    items = []
    for block in data.decode().split("\n\n")[:-1]:
        name, payload = block.split("\n")
        items.append(json.loads(payload.removeprefix("data: ")))
        assert name == "event: " + items[-1]["type"]
    return items


def check(data: bytes):
    """Check everything that the strictest clients enforce."""
    events = payloads(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"] == events[1]["response"]
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    items, item, pieces = [], None, []
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "error":
            continue
        assert event["output_index"] == len(items)
        if kind == "response.output_item.added":
            assert item is None or item["type"] == "custom_tool_call"
            item, pieces = event["item"], []
            assert item["status"] == "in_progress"
            assert item["id"].startswith(PREFIXES[item["type"]])
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", item["id"])
            continue
        if kind == "response.output_item.done":
            done = event["item"]
            streamed = "".join(pieces)
            same = ("id", "type", "call_id", "name", "namespace", "role")
            assert [item.get(key) for key in same] == [done.get(key) for key in same]
            match done["type"]:
                case "message":
                    part = {"type": "output_text", "text": streamed, "annotations": [], "logprobs": []}
                    assert done["content"] == [part]
                case "reasoning":
                    assert done["summary"] == [{"type": "summary_text", "text": streamed}]
                case "function_call":
                    assert done["arguments"] == streamed
                case "custom_tool_call":
                    assert done["input"] == streamed
            items.append(done)
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind in STREAMED:
            assert event["delta"]
            pieces.append(event["delta"])
        for done, key in STREAMED.values():
            if kind == done:
                assert event[key] == "".join(pieces)
    assert item is None or item["type"] == "custom_tool_call"  # an incomplete item has no `done` event
    final = events[-1]["response"]
    assert final["output"] == items
    assert len({item["id"] for item in items}) == len(items)
    assert "response." + final["status"] == events[-1]["type"]
    assert (final["id"], final["model"]) == (events[0]["response"]["id"], events[0]["response"]["model"])
    return events


def written(*events, **fields):
    return check(machine(**fields).feed(events))


def output(*events, **fields):
    return written(*events, **fields)[-1]["response"]["output"]


def call(index, name, *pieces, complete=True):
    pieces = [ReplyArgumentsDelta(0, index, piece) for piece in pieces]
    return [ReplyCallStart(0, index, f"call_{index}", name), *pieces, ReplyCallEnd(0, index, complete)]


def types(events):
    return [event["type"].removeprefix("response.") for event in events]


class TestText:
    def test_a_plain_reply_verbatim(self):
        data = machine(tools=()).feed([ReplyStart(), ReplyTextDelta(0, 'hé\n"😀'), ReplyTextDelta(0, "!"), *STOP])
        check(data)
        head = '{"id":"resp_1","object":"response","created_at":7,'
        echo = (
            '"model":"m","background":false,"conversation":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,'
            '"metadata":{},"parallel_tool_calls":true,"previous_response_id":null,"prompt_cache_key":null,'
            '"reasoning":{"effort":null,"summary":null},"safety_identifier":null,"store":true,"temperature":null,'
            '"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":null,"truncation":"disabled",'
            '"user":null}'
        )
        begun = head + '"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null,' + echo
        place = '"item_id":"msg_1_0","output_index":0,"content_index":0,'
        part = '{"type":"output_text","text":"hé\\n\\"😀!","annotations":[],"logprobs":[]}'
        done = f'{{"id":"msg_1_0","type":"message","status":"completed","role":"assistant","content":[{part}]}}'
        usage = (
            '{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":0,'
            '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}'
        )
        expected = [
            ("created", f'"response":{begun}'),
            ("in_progress", f'"response":{begun}'),
            (
                "output_item.added",
                '"output_index":0,"item":{"id":"msg_1_0","type":"message","status":"in_progress","role":"assistant","content":[]}',
            ),
            (
                "content_part.added",
                place + '"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}',
            ),
            ("output_text.delta", place + '"delta":"hé\\n\\"😀","logprobs":[]'),
            ("output_text.delta", place + '"delta":"!","logprobs":[]'),
            ("output_text.done", place + '"text":"hé\\n\\"😀!","logprobs":[]'),
            ("content_part.done", place + '"part":' + part),
            ("output_item.done", '"output_index":0,"item":' + done),
            (
                "completed",
                f'"response":{head}"status":"completed","error":null,"incomplete_details":null,"output":[{done}],"usage":{usage},{echo}',
            ),
        ]
        assert data.decode() == "".join(
            f'event: response.{name}\ndata: {{"type":"response.{name}","sequence_number":{i},{rest}}}\n\n'
            for i, (name, rest) in enumerate(expected)
        )

    def test_each_event_is_written_in_the_same_feed(self):
        reply = machine()
        assert types(payloads(reply.feed([ReplyStart()]))) == ["created", "in_progress"]
        assert types(payloads(reply.feed([ReplyTextDelta(0, "a")])))[-1] == "output_text.delta"
        [delta] = payloads(reply.feed([ReplyTextDelta(0, "b")]))
        assert delta["delta"] == "b"

    def test_the_start_provides_id_time_and_model(self):
        final = written(ReplyStart("resp_up", 9, "other"), *STOP)[-1]["response"]
        assert (final["id"], final["created_at"], final["model"]) == ("resp_up", 9, "other")

    def test_a_second_start_changes_nothing(self):
        start = ReplyStart("resp_b", 9, "other")
        events = written(ReplyStart(), ReplyTextDelta(0, "x"), start, ReplyTextDelta(0, "y"), *STOP)
        assert [item["content"][0]["text"] for item in events[-1]["response"]["output"]] == ["xy"]

    def test_item_ids_are_valid_for_any_reply_id(self):
        [item] = output(ReplyStart("chat/" + "é." + "x" * 70), ReplyTextDelta(0, "a"), *STOP)
        assert item["id"] == "msg_" + "x" * 40 + "_0"

    def test_an_empty_reply(self):
        assert output(ReplyStart(), ReplyTextDelta(0, ""), *STOP) == []

    def test_deltas_and_final_text_agree_on_split_surrogate_pairs(self):
        [item] = output(ReplyStart(), ReplyTextDelta(0, "a\ud83d"), ReplyTextDelta(0, "\ude00"), *STOP)
        assert item["content"][0]["text"] == "a\ufffd\ufffd"

    def test_other_choices_are_ignored(self):
        events = [
            ReplyTextDelta(1, "x"),
            *call(0, "f")[:1],
            ReplyArgumentsDelta(1, 0, "x"),
            ReplyCallEnd(0, 0),
            ReplyFinish(1, Reason.STOP),
        ]
        [item] = output(ReplyStart(), *events, *STOP)
        assert item["arguments"] == "{}"


class TestCalls:
    def test_a_call_verbatim(self):
        events = written(ReplyStart(), *call(0, "f", '{"a":', "1}"), *STOP)[2:-1]
        place = {"item_id": "fc_1_0", "output_index": 0}
        item = {"id": "fc_1_0", "type": "function_call", "call_id": "call_0", "name": "f"}
        done = item | {"status": "completed", "arguments": '{"a":1}'}
        assert [{key: event[key] for key in event if key != "sequence_number"} for event in events] == [
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": item | {"status": "in_progress", "arguments": ""},
            },
            {"type": "response.function_call_arguments.delta", **place, "delta": '{"a":'},
            {"type": "response.function_call_arguments.delta", **place, "delta": "1}"},
            {"type": "response.function_call_arguments.done", **place, "arguments": '{"a":1}'},
            {"type": "response.output_item.done", "output_index": 0, "item": done},
        ]

    def test_calls_are_consecutive(self):
        items = output(ReplyStart(), ReplyTextDelta(0, "a"), *call(0, "f", "{}"), *call(1, "g", '{"x":1}'), *STOP)
        assert [item["id"] for item in items] == ["msg_1_0", "fc_1_1", "fc_1_2"]
        assert [item.get("name") for item in items] == [None, "f", "g"]

    @pytest.mark.parametrize("pieces", [(), ("",), (" ", "\n")])
    def test_a_call_without_arguments_gets_an_empty_object(self, pieces):
        [item] = output(ReplyStart(), *call(0, "f", *pieces), *STOP)
        assert json.loads(item["arguments"]) == {}

    def test_a_custom_tool_gets_its_raw_text(self):
        events = written(ReplyStart(), *call(0, "sh", 'ls "x"', "\n"), *STOP)
        assert types(events)[2:-1] == [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
        ]
        assert events[-1]["response"]["output"] == [
            {
                "id": "ctc_1_0",
                "type": "custom_tool_call",
                "status": "completed",
                "input": 'ls "x"\n',
                "call_id": "call_0",
                "name": "sh",
            }
        ]

    def test_a_custom_tool_may_get_empty_text(self):
        [item] = output(ReplyStart(), *call(0, "sh"), *STOP)
        assert item["input"] == ""

    def test_a_qualified_name_is_split_into_namespace_and_name(self):
        first, second = output(ReplyStart(), *call(0, "files.read", "{}"), *call(1, "files.patch", "x"), *STOP)
        assert (first["namespace"], first["name"]) == ("files", "read")
        assert (second["type"], second["namespace"], second["name"]) == ("custom_tool_call", "files", "patch")

    def test_text_after_a_call_is_a_separate_message(self):
        items = output(
            ReplyStart(),
            ReplyTextDelta(0, "a"),
            *call(0, "f", "{}"),
            ReplyTextDelta(0, "\n"),
            ReplyTextDelta(0, "b"),
            *STOP,
        )
        assert [item["type"] for item in items] == ["message", "function_call", "message"]
        assert items[2]["content"][0]["text"] == "\nb"

    def test_trailing_whitespace_is_dropped(self):
        blank = [ReplyTextDelta(0, "\n"), ReplyTextDelta(0, " ")]
        items = output(ReplyStart(), *call(0, "f", "{}"), *blank, *call(1, "g", "{}"), *blank, *STOP)
        assert [item["type"] for item in items] == ["function_call", "function_call"]

    def test_a_call_without_an_end_is_incomplete(self):
        opened = [ReplyCallStart(0, 0, "call_0", "f"), ReplyArgumentsDelta(0, 0, '{"a')]
        for after in (call(1, "g", "{}"), [ReplyTextDelta(0, "x")], [ReplyReasoningDelta(0, "x")], []):
            final = written(ReplyStart(), *opened, *after, *STOP)[-1]["response"]
            assert (final["status"], final["output"][0]["status"]) == ("completed", "incomplete")
            assert final["output"][0]["arguments"] == '{"a' + UNREPAIRABLE

    def test_a_call_without_an_id_gets_one(self):
        [item] = output(ReplyStart(), ReplyCallStart(0, 0, None, "f"), ReplyCallEnd(0, 0), *STOP)
        assert item["call_id"] == "call_1_0"


class TestReasoning:
    def test_reasoning_is_an_item_with_a_summary(self):
        events = written(
            ReplyStart(),
            ReplyReasoningDelta(0, "h"),
            ReplyReasoningDelta(0, "m", "signed"),
            ReplyTextDelta(0, "a"),
            *STOP,
        )
        assert types(events)[2:8] == [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ]
        assert events[-1]["response"]["output"][0] == {
            "id": "rs_1_0",
            "type": "reasoning",
            "status": "completed",
            "summary": [{"type": "summary_text", "text": "hm"}],
        }

    def test_a_signature_alone_is_ignored(self):
        assert output(ReplyStart(), ReplyReasoningDelta(0, "", "signed"), *STOP) == []

    def test_reasoning_keeps_its_position(self):
        items = output(
            ReplyStart(),
            ReplyReasoningDelta(0, "a"),
            ReplyTextDelta(0, "b"),
            ReplyReasoningDelta(0, "c"),
            *call(0, "f", "{}"),
            *STOP,
        )
        assert [item["type"] for item in items] == ["reasoning", "message", "reasoning", "function_call"]


class TestTheEnd:
    def test_the_usage_is_in_the_last_event(self):
        report = UsageReport(Usage(10, 5, 4, 2))
        final = written(ReplyStart(), ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), report, ReplyEnd())[-1][
            "response"
        ]
        assert final["usage"] == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        }

    @pytest.mark.parametrize(
        ("reason", "status", "why"),
        [
            (Reason.STOP, "completed", None),
            (Reason.STOP_SEQUENCE, "completed", None),
            (Reason.PAUSE, "completed", None),
            (Reason.LENGTH, "incomplete", {"reason": "max_output_tokens"}),
            (Reason.FILTER, "incomplete", {"reason": "content_filter"}),
        ],
    )
    def test_final_status_and_reason(self, reason, status, why):
        for begun in ([ReplyTextDelta(0, "a")], [ReplyReasoningDelta(0, "a")], []):
            final = written(ReplyStart(), *begun, ReplyFinish(0, reason), ReplyEnd())[-1]["response"]
            assert (final["status"], final["incomplete_details"]) == (status, why)
            assert [item["status"] for item in final["output"]] == [status] * len(begun)

    def test_the_arguments_of_a_truncated_call_are_never_done(self):
        events = written(
            ReplyStart(), *call(0, "f", '{"a":', complete=False), ReplyFinish(0, Reason.LENGTH), ReplyEnd()
        )
        assert types(events)[2:] == [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "output_item.done",
            "error",
            "failed",
        ]
        [item] = events[-1]["response"]["output"]
        assert (item["status"], item["arguments"]) == ("incomplete", '{"a":' + UNREPAIRABLE)

    @pytest.mark.parametrize(("limit", "status"), [(None, "failed"), (9, "incomplete")])
    def test_a_limit_that_cuts_a_call_is_an_error_unless_the_client_has_set_one(self, limit, status):
        reply = machine(options=Options(max_tokens=limit))
        end = [ReplyFinish(0, Reason.LENGTH), ReplyEnd()]
        final = payloads(reply.feed([ReplyStart(), *call(0, "f", "{", complete=False), *end]))[-1]["response"]
        assert final["status"] == status
        assert final["incomplete_details"] == ({"reason": "max_output_tokens"} if limit else None)

    def test_an_incomplete_call_of_raw_text_is_never_done(self):
        events = written(ReplyStart(), *call(0, "sh", "ls", complete=False), *STOP)
        assert types(events)[2:] == ["output_item.added", "custom_tool_call_input.delta", "error", "failed"]
        assert events[-1]["response"]["output"] == []

    def test_the_response_is_available_when_the_reply_has_ended(self):
        reply = machine()
        reply.feed([ReplyStart(), ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP)])
        assert reply.response is None
        [final] = payloads(reply.feed([ReplyEnd()]))
        assert json.loads(reply.response) == final["response"]

    def test_nothing_follows_the_end(self):
        reply = machine()
        reply.feed([ReplyStart(), *STOP])
        late = [
            ReplyTextDelta(0, "x"),
            ReplyReasoningDelta(0, "x"),
            *call(0, "f"),
            *STOP,
            ReplyFailure(UpstreamError("x")),
        ]
        assert reply.feed(late) == b""

    def test_events_between_the_finish_and_the_end_are_ignored(self):
        late = [ReplyTextDelta(0, "x"), ReplyReasoningDelta(0, "x"), *call(0, "f", "{}"), ReplyFinish(0, Reason.LENGTH)]
        final = written(ReplyStart(), ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), *late, ReplyEnd())[-1][
            "response"
        ]
        assert (final["status"], len(final["output"])) == ("completed", 1)


class TestFailure:
    def test_an_error_event_and_then_a_failed_response(self):
        error = UpstreamRefused("Slow down.", status=429, kind="rate_limit_error", code="rpm")
        events = written(ReplyStart(), ReplyTextDelta(0, "a"), ReplyFailure(error))
        assert events[-2] == {
            "type": "error",
            "sequence_number": len(events) - 2,
            "code": "rpm",
            "message": "Slow down.",
            "param": None,
        }
        final = events[-1]["response"]
        assert final["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}
        assert [item["status"] for item in final["output"]] == ["incomplete"]

    def test_a_failure_before_the_start_still_begins_the_response(self):
        events = written(ReplyFailure(UpstreamError("It broke.")))
        assert types(events) == ["created", "in_progress", "error", "failed"]
        assert events[-1]["response"]["error"] == {"code": "server_error", "message": "It broke."}

    def test_a_failure_in_a_call_does_not_finish_its_arguments(self):
        events = written(ReplyStart(), *call(0, "f", '{"a":1}')[:-1], ReplyFailure(UpstreamError("It broke.")))
        assert "function_call_arguments.done" not in types(events)

    def test_codes_known_to_clients_are_passed_on(self):
        error = UpstreamRefused("Too long.", status=400, code="context_length_exceeded")
        assert written(ReplyStart(), ReplyFailure(error))[-1]["response"]["error"]["code"] == "context_length_exceeded"

    def test_an_end_without_a_reason_is_a_failure(self):
        events = written(ReplyStart(), ReplyTextDelta(0, "a"), ReplyEnd())
        assert events[-2]["code"] == "upstream_closed"

    def test_nothing_follows_a_failure_and_there_is_no_response(self):
        reply = machine()
        reply.feed([ReplyStart(), *call(0, "f")[:1], ReplyFailure(UpstreamError("x"))])
        assert reply.feed([ReplyTextDelta(0, "x"), ReplyArgumentsDelta(0, 0, "x"), ReplyCallEnd(0, 0), *STOP]) == b""
        assert reply.response is None

    def test_the_buffer_is_bounded(self, monkeypatch):
        monkeypatch.setattr(writer, "MAX_BUFFERED", 100)
        events = written(ReplyStart(), *[ReplyTextDelta(0, "x" * 20) for _ in range(10)], *STOP)
        assert types(events).count("output_text.delta") == 5
        assert events[-2]["code"] == "reply_too_large"


class TestTheEcho:
    def test_request_fields_are_repeated(self):
        raw = {
            "model": "m", "input": "hi", "instructions": "be brief", "max_output_tokens": 5, "temperature": 0.5,
            "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
            "tool_choice": "any", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "store": False,
            "metadata": {"a": "b"}, "previous_response_id": "resp_0",
        }  # fmt: skip
        response = written(ReplyStart(), *STOP, raw=raw, choice=ToolChoice(parallel=False))[0]["response"]
        assert response["tools"] == [
            {"type": "function", "description": None, "parameters": None, "strict": False, "name": "f"},
            {"type": "web_search"},
        ]
        assert response["tool_choice"] == "required"
        assert response["parallel_tool_calls"] is False
        assert response["reasoning"] == {"effort": "low", "summary": None}
        assert response["text"] == {"verbosity": "low", "format": {"type": "text"}}
        for key in ("instructions", "max_output_tokens", "temperature", "store", "metadata", "previous_response_id"):
            assert response[key] == raw[key]


EVENTS = st.lists(
    st.sampled_from(["", "a", "é", "\n", " b"]).map(lambda text: [ReplyTextDelta(0, text)])
    | st.sampled_from(["", "h", "m\n"]).map(lambda text: [ReplyReasoningDelta(0, text)])
    | st.tuples(
        st.sampled_from([tool.name for tool in TOOLS]),
        st.lists(st.sampled_from(["", "{", " ", "}"])),
        st.booleans(),
    ),
    max_size=8,
)


def stream(given_, reason):
    events = [ReplyStart("resp_1", 7, "m")]
    for index, item in enumerate(given_):
        events += item if isinstance(item, list) else call(index, item[0], *item[1], complete=item[2])
    return [*events, ReplyFinish(0, reason), UsageReport(Usage(3, 2)), ReplyEnd()]


class TestWhole:
    @given(EVENTS, st.sampled_from(Reason))
    def test_a_whole_reply_equals_the_final_response_of_the_stream(self, given_, reason):
        events = stream([item for item in given_ if isinstance(item, list) or item[2]], reason)
        reply = machine()
        check(reply.feed(events))
        assert write_complete(conversation(), accumulate(events), id="resp_2", created=8, model="n") == reply.response

    @given(EVENTS, st.sampled_from(Reason))
    def test_the_output_does_not_depend_on_the_batching_of_events(self, given_, reason):
        events = stream(given_, reason)
        one, many = machine(), machine()
        assert one.feed(events) == b"".join(many.feed([event]) for event in events)

    def test_missing_metadata_is_filled_in(self):
        reply = accumulate([ReplyTextDelta(0, "a"), *STOP])
        body = json.loads(write_complete(conversation(), reply, id="resp_2", created=8, model="n"))
        assert (body["id"], body["created_at"], body["model"], body["status"]) == ("resp_2", 8, "n", "completed")

    def test_a_failed_reply_is_an_error(self):
        error = UpstreamError("It broke.")
        with pytest.raises(UpstreamError) as caught:
            write_complete(
                conversation(), accumulate([ReplyStart(), ReplyFailure(error)]), id="resp_1", created=7, model="m"
            )
        assert caught.value is error

    @pytest.mark.parametrize("events", [[], [ReplyStart()], [ReplyTextDelta(0, "a"), ReplyEnd()]])
    def test_a_reply_without_a_reason_is_an_error(self, events):
        with pytest.raises(UpstreamError) as caught:
            write_complete(conversation(), accumulate(events), id="resp_1", created=7, model="m")
        assert caught.value.code == "upstream_closed"

    def test_a_whole_reply_can_be_stored(self):
        body = write_complete(
            conversation(), accumulate([*call(0, "f", "{}"), *STOP]), id="resp_2", created=8, model="n"
        )
        assert [identity for identity, _ in store_entries(conversation(), body)] == ["resp_2", "head resp_2", "fc_2_0"]


class TestErrors:
    def test_the_shape_of_an_error(self):
        error = TooLargeError("Too many.", param="tools", code="too_many_tools")
        assert json.loads(write_error(error, "req_1")) == {
            "error": {"message": "Too many.", "type": "request_too_large", "param": "tools", "code": "too_many_tools"}
        }
        assert json.loads(write_error(AuthenticationError("No.")))["error"]["code"] is None

    def test_constants(self):
        assert KEEPALIVE == machine().keepalive() == b": keep-alive\n\n"
        assert dict(STREAM_HEADERS)[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert dict(COMPLETE_HEADERS) == {b"content-type": b"application/json"}


class TestOfficialClient:
    """openai-python's types and accumulator applied to our output."""

    def events(self):
        return [
            ReplyStart(), ReplyReasoningDelta(0, "hm"), ReplyTextDelta(0, "Let "), ReplyTextDelta(0, "me see."), *call(0, "f", '{"a":', "1}"),
            *call(1, "sh", "ls"), *call(2, "files.read"), *STOP,
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "ending",
        [[], [ReplyFailure(UpstreamError("x"))], [ReplyFinish(0, Reason.LENGTH), ReplyEnd()]],
        ids=["whole", "failed", "cut"],
    )
    def test_each_event_matches_its_type(self, ending):
        openai = pytest.importorskip("openai")
        from pydantic import TypeAdapter

        adapter = TypeAdapter(openai.types.responses.ResponseStreamEvent)
        events = self.events()
        for event in payloads(machine().feed([*events[:-2], *ending] if ending else events)):
            adapter.validate_python(event, strict=True)

    def test_the_accumulator_reconstructs_the_reply(self):
        openai = pytest.importorskip("openai")
        from openai.lib.streaming.responses._responses import ResponseStreamState
        from pydantic import TypeAdapter

        adapter = TypeAdapter(openai.types.responses.ResponseStreamEvent)
        reply = machine()
        state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
        for event in payloads(reply.feed(self.events())):
            state.handle_event(adapter.validate_python(event))
        final = state._completed_response
        assert final.output_text == "Let me see."
        assert [item.type for item in final.output] == [
            "reasoning",
            "message",
            "function_call",
            "custom_tool_call",
            "function_call",
        ]
        assert final.to_dict(mode="json")["output"][2]["arguments"] == '{"a":1}'
