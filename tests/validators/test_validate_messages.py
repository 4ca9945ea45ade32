"""Each rule of Messages is reported when a good reply violates it, and only then.

Violations are written in a line: `M5` is a MUST, `M5?` a SHOULD.
"""

import copy
import json
from itertools import chain

import pytest
from support.sweeps import each
from support.validators import assert_valid, validate_messages_error, validate_messages_stream, validate_messages_whole

TOOLS = [{"name": "f", "input_schema": {"type": "object"}}, {"name": "g", "type": "custom"}]
ASKED = {"tools": TOOLS, "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
HEADERS = {"content-type": "text/event-stream; charset=utf-8"}


def message():
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 1, "cache_read_input_tokens": 0},
    }


def begin(index, kind, **fields):
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index, kind, **fields):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(index):
    return {"type": "content_block_stop", "index": index}


def text(index, *pieces):
    return [begin(index, "text", text=""), *(piece(index, "text_delta", text=each) for each in pieces), end(index)]


def call(index, identity, name, *pieces):
    return [
        begin(index, "tool_use", id=identity, name=name, input={}),
        *(piece(index, "input_json_delta", partial_json=each) for each in pieces),
        end(index),
    ]


def thinking(index, *pieces):
    return [
        begin(index, "thinking", thinking="", signature=""),
        *(piece(index, "thinking_delta", thinking=each) for each in pieces),
        piece(index, "signature_delta", signature="c2ln"),
        end(index),
    ]


def finish(reason, sequence=None, **usage):
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 15, **usage}},
        {"type": "message_stop"},
    ]


PING = {"type": "ping"}
BREAK = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def reply(*blocks, reason="end_turn", sequence=None):
    return [{"type": "message_start", "message": message()}, *chain.from_iterable(blocks), *finish(reason, sequence)]


def stream(events):
    return b"".join(
        f"event: {item['type']}\ndata: {json.dumps(item, ensure_ascii=False)}\n\n".encode() for item in events
    )


def shown(problems):
    found = {problem.rule + "?" * (problem.severity == "SHOULD") for problem in problems}
    return " ".join(sorted(found, key=lambda rule: (rule.rstrip("?0123456789"), len(rule.rstrip("?")), rule)))


def fired(events, request=ASKED, headers=HEADERS):
    data = events if isinstance(events, bytes) else stream(events)
    return shown(validate_messages_stream(data, request, headers=headers))


START, PONG, THINK, THOUGHT, SIGNATURE, THINK_END, TEXT, DELTA, TEXT_END = range(9)
CALL, PIECE, REST, CALL_END, CALL2, PIECE2, CALL2_END, LAST, STOP = range(9, 18)
GOOD = reply(
    [PING],
    thinking(0, "Hm."),
    text(1, "Let me"),
    call(2, "toolu_A", "f", '{"a"', ":1}"),
    call(3, "toolu_B", "g", "{}"),
    reason="tool_use",
)


def changed(*edits, request=ASKED):
    """Return the violations after editing the good stream: (position, function on the event), (position, None) to omit
    it, or (position, events) to insert them before it.
    """
    events = [[item] for item in copy.deepcopy(GOOD)]
    for position, edit in edits:
        if edit is None:
            events[position] = events[position][:-1]
        elif isinstance(edit, list):
            events[position] = copy.deepcopy(edit) + events[position]
        else:
            edit(events[position][-1])
    return fired(list(chain.from_iterable(events)), request)


CALLED = [call(0, "toolu_A", "f", "{}")]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(GOOD, id="all"),
        pytest.param(reply(), id="empty"),
        pytest.param(reply(text(0, "Hello", " there")), id="text"),
        pytest.param(reply(text(0, "Hello"), reason="max_tokens"), id="cut text"),
        pytest.param(reply(text(0, "Hello"), reason="stop_sequence", sequence="END"), id="stop sequence"),
        pytest.param(reply(*CALLED, reason="tool_use"), id="one call"),
        pytest.param(reply(call(0, "toolu_A", "f", "", '{"a":', "1}"), reason="tool_use"), id="an empty first piece"),
        pytest.param(reply(text(0, "a"), thinking(1, "b"), text(2, "c")), id="reasoning between"),
        pytest.param(reply([begin(0, "redacted_thinking", data="xyz"), end(0)], text(1, "a")), id="redacted"),
        pytest.param(reply(call(0, "toolu_A", "f", '{"a'), reason="max_tokens"), id="cut call"),
        pytest.param(reply(call(0, "toolu_A", "f"), reason="refusal"), id="cut before arguments"),
        pytest.param(
            reply([begin(0, "thinking", thinking="", signature=""), end(0)], reason="max_tokens"), id="cut reasoning"
        ),
        *(pytest.param([*GOOD[:count], BREAK], id=f"error after {count}") for count in range(len(GOOD))),
    ],
)
def test_a_good_stream_has_no_problem(events):
    assert_valid(validate_messages_stream(stream(events), ASKED, headers=HEADERS), strict=True)
    assert validate_messages_stream(b": hello\n\n" + stream(events)) == []


DATA = stream(GOOD)


@pytest.mark.parametrize(
    ("expected", "data"),
    [
        ("F1", DATA.replace(b"Let me", b"Let \xff")),
        ("F2", b"\xef\xbb\xbf" + DATA),
        ("F3?", DATA.replace(b"\n", b"\r\n")),
        ("F4", DATA[:-1]),
        ("F5?", DATA.replace(b'"message": {', b'\ndata: "message": {')),
        ("F6 M2 M3 M9", b""),
        ("F6 M1", DATA.replace(b'data: {"type": "ping"}\n', b"")),
        ("F7?", DATA.replace(b'event: ping\ndata: {"type": "ping"}', b'data: {"type": "ping"}\nevent: ping')),
        ("F8?", DATA.replace(b"data: ", b"data:", 1)),
        ("F9", b"foo: bar\n" + DATA),
        ("F10", DATA.replace(b"Let me", b"Let \\ud83d")),
        ("M1", DATA.replace(b"event: ping\n", b"")),
        ("M1", DATA.replace(b"event: ping\n", b"event: pong\n")),
        ("M1", DATA.replace(b'{"type": "ping"}', b'{"type": "ping", "x": NaN}')),
        ("M1", DATA.replace(b'data: {"type": "ping"}', b"data: []")),
        ("M2", DATA + b"data: [DONE]\n\n"),
    ],
)
def test_framing_and_names(expected, data):
    assert fired(data) == expected


def test_f11_the_content_type():
    assert fired(GOOD, headers={"content-type": "application/json"}) == "F11"


def usage(item):
    return (item.get("message") or item)["usage"]


@each(
    ("expected", "edits"),
    [
        ("M1", [(DELTA, [{"type": "tick"}])]),
        ("M2", [(STOP, None)]),
        ("M2", [(LAST, [GOOD[STOP]])]),
        ("M3 M3?", [(START, None)]),
        ("M3", [(PONG, [GOOD[START]])]),
        ("M3?", [(START, [PING])]),
        ("M4", [(START, lambda item: item.pop("message"))]),
        ("M4", [(START, lambda item: item["message"].pop("id"))]),
        ("M4", [(START, lambda item: item["message"].update(type="reply"))]),
        ("M4", [(START, lambda item: item["message"].update(role="user"))]),
        ("M4", [(START, lambda item: item["message"].pop("model"))]),
        ("M4", [(START, lambda item: item["message"].update(content=None))]),
        ("M4", [(START, lambda item: item["message"].update(content=[{"type": "text", "text": ""}]))]),
        ("M4", [(START, lambda item: item["message"].pop("stop_reason"))]),
        ("M4", [(START, lambda item: item["message"].update(stop_sequence=""))]),
        ("M4", [(START, lambda item: item["message"].pop("usage"))]),
        ("M4", [(START, lambda item: usage(item).pop("input_tokens"))]),
        ("M4", [(START, lambda item: usage(item).update(output_tokens=None))]),
        ("M4", [(START, lambda item: usage(item).update(cache_read_input_tokens="0"))]),
        ("M5", [(TEXT, lambda item: item.update(index=2))]),
        ("M5", [(TEXT, lambda item: item.pop("index"))]),
        ("M5", [(TEXT, lambda item: item.pop("content_block"))]),
        ("M5", [(TEXT, lambda item: item["content_block"].update(type="image"))]),
        ("M5", [(TEXT, lambda item: item["content_block"].pop("text"))]),
        ("M5", [(THINK, lambda item: item["content_block"].pop("signature"))]),
        ("M5 M16", [(CALL, lambda item: item["content_block"].update(name=""))]),
        ("M5?", [(TEXT, lambda item: item["content_block"].update(text="So: "))]),
        ("M6", [(CALL_END, None)]),
        ("M6 M14", [(DELTA, lambda item: item.update(index=0))]),
        ("M6", [(DELTA, lambda item: item["delta"].update(type="input_json_delta", partial_json="x")), (DELTA, [GOOD[DELTA]])]),
        ("M6", [(DELTA, [piece(1, "text_delta", text=None)])]),
        ("M6", [(DELTA, [{"type": "content_block_delta", "index": 1}])]),
        ("M6", [(TEXT, [GOOD[DELTA]])]),
        ("M6", [(TEXT, [end(0)])]),
        ("M6 M9", [(CALL2_END, None)]),
        ("M7", [(CALL, lambda item: item["content_block"].update(input={"a": 1}))]),
        ("M7", [(CALL, lambda item: item["content_block"].update(input=""))]),
        ("M8", [(REST, None)]),
        ("M8", [(PIECE2, lambda item: item["delta"].update(partial_json="[]"))]),
        ("M8", [(REST, lambda item: item["delta"].update(partial_json=":'x")), (LAST, lambda item: item["delta"].update(stop_reason="max_tokens"))]),
        ("M8?", [(PIECE2, None)]),
        ("M9", [(LAST, None)]),
        ("M9", [(LAST, lambda item: item.pop("delta"))]),
        ("M9", [(LAST, lambda item: item["delta"].update(stop_reason="stop"))]),
        ("M9", [(LAST, lambda item: item["delta"].pop("stop_sequence"))]),
        ("M9", [(LAST, lambda item: item.pop("usage"))]),
        ("M9", [(LAST, lambda item: usage(item).pop("output_tokens"))]),
        ("M9", [(LAST, lambda item: usage(item).update(input_tokens="20"))]),
        ("M9", [(STOP, call(4, "toolu_C", "f", "{}"))]),
        ("M9?", [(LAST, lambda item: usage(item).update(output_tokens=0))]),
        ("M9?", [(STOP, [GOOD[LAST]])]),
        ("M10", [(LAST, lambda item: item["delta"].update(stop_reason="end_turn"))]),
        ("M10", [(LAST, lambda item: item["delta"].update(stop_reason="stop_sequence", stop_sequence="x"))]),
        ("M10", [(LAST, lambda item: item["delta"].update(stop_sequence=""))]),
        ("M10", [(position, None) for position in range(CALL, LAST)]),
        ("M11", [(CALL, lambda item: item["content_block"].pop("id"))]),
        ("M11", [(CALL, lambda item: item["content_block"].update(id="toolu.A"))]),
        ("M11", [(CALL, lambda item: item["content_block"].update(id="toolu_B"))]),
        ("M11", [(CALL, lambda item: item["content_block"].update(id="toolu_" + "x" * 40))]),
        ("M11?", [(CALL, lambda item: item["content_block"].update(id="call_A"))]),
        ("M12", [(THINK_END, [GOOD[SIGNATURE]])]),
        ("M12", [(THINK_END, [GOOD[THOUGHT]])]),
        ("M12?", [(SIGNATURE, None)]),
        ("M13", [(DELTA, [BREAK])]),
        ("M14", [(DELTA, None)]),
        ("M14", [(DELTA, lambda item: item["delta"].update(text=""))]),
        ("M15?", [(LAST, text(4, "more"))]),
        ("M5 X1", [(CALL, lambda item: item["content_block"].update(name=["f"]))]),
    ],
)  # fmt: skip
def test_a_violation_in_a_stream_is_reported(expected, edits):
    assert changed(*edits) == expected


class TestErrors:
    def test_nothing_may_follow_an_error(self):
        for follower in (PING, GOOD[STOP], GOOD[DELTA]):
            assert "M13" in fired([*GOOD[: DELTA + 1], BREAK, follower])

    @pytest.mark.parametrize(
        "error", ["boom", None, {}, {"type": "api_error"}, {"message": "m"}, {"type": "api_error", "message": ""}]
    )
    def test_the_shape_of_an_error(self, error):
        body = {"type": "error", "error": error}
        assert fired([GOOD[0], body]) == "M13"
        assert shown(validate_messages_error(json.dumps(body).encode())) == "E1"

    def test_error_bodies(self):
        assert validate_messages_error(json.dumps(BREAK | {"request_id": "req_1"}).encode()) == []
        assert shown(validate_messages_error(b"<html>")) == "E1"
        assert shown(validate_messages_error(b"[]")) == "E1 E2"
        assert shown(validate_messages_error(json.dumps({"error": BREAK["error"]}).encode())) == "E2"
        assert shown(validate_messages_error(json.dumps(BREAK | {"request_id": 5}).encode())) == "E2"
        odd = {"type": "error", "error": {"type": "server_error", "message": "m"}}
        assert shown(validate_messages_error(json.dumps(odd).encode())) == "E2?"


HISTORY = [{"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_0", "name": name} for name in "fg"]}]


class TestRequest:
    @pytest.mark.parametrize(
        "more",
        [
            {"tools": TOOLS[:1]},
            {"tools": None},
            {"tools": [TOOLS[0], {"type": "web_search_20250305", "name": "g"}]},
            {"tool_choice": {"type": "none"}},
            {"tool_choice": {"type": "tool", "name": "f"}},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ],
    )
    def test_m16_disallowed_calls(self, more):
        assert changed(request=ASKED | more) == "M16"

    @pytest.mark.parametrize("demand", [{"type": "any"}, {"type": "tool", "name": "f"}])
    def test_m16_a_missing_call(self, demand):
        assert fired(reply(text(0, "No.")), ASKED | {"tool_choice": demand}) == "M16"
        assert fired(reply(text(0, "No."), reason="max_tokens"), ASKED | {"tool_choice": demand}) == ""

    @pytest.mark.parametrize(
        "more",
        [
            {"tool_choice": {"type": "auto"}},
            {"tool_choice": {"type": "any"}},
            {"tools": [TOOLS[0], {"type": "bash_20250124", "name": "g"}]},
            {"tools": None, "messages": HISTORY},
        ],
    )
    def test_allowed_calls(self, more):
        assert changed(request=ASKED | more) == ""

    def test_m11_an_id_of_the_history(self):
        assert fired(reply(call(0, "toolu_0", "f", "{}"), reason="tool_use"), ASKED | {"messages": HISTORY}) == "M11"


WHOLE = message() | {
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "Let me"},
        {"type": "tool_use", "id": "toolu_A", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_B", "name": "g", "input": {}},
    ],
    "stop_reason": "tool_use",
}


def whole_fired(edit=None, request=ASKED, headers=None):
    body = copy.deepcopy(WHOLE)
    if edit:
        edit(body)
    return shown(validate_messages_whole(json.dumps(body).encode(), request, headers=headers))


def test_a_good_complete_reply_has_no_problem():
    assert whole_fired(headers={"content-type": "application/json"}) == ""
    assert whole_fired(lambda body: body.update(content=[], stop_reason="end_turn")) == ""


@pytest.mark.parametrize(
    ("expected", "edit"),
    [
        ("MW1", lambda body: body.pop("id")),
        ("MW1", lambda body: body.update(type="error")),
        ("MW1", lambda body: body.update(role="user")),
        ("MW1", lambda body: body.update(model=None)),
        ("M10 MW1", lambda body: body.update(content="Let me")),
        ("MW1", lambda body: body.pop("usage")),
        ("MW1", lambda body: body["usage"].pop("output_tokens")),
        ("MW1", lambda body: body.pop("stop_sequence")),
        ("MW1", lambda body: body.update(stop_reason="stop")),
        ("MW2", lambda body: body["content"][0].pop("signature")),
        ("MW2", lambda body: body["content"][1].update(type="image")),
        ("MW2", lambda body: body["content"][1].update(text=None)),
        ("MW2", lambda body: body["content"][2].update(input='{"a":1}')),
        ("M10", lambda body: body.update(stop_reason="end_turn")),
        ("M10", lambda body: body.update(stop_sequence="x")),
        ("M11", lambda body: body["content"][2].pop("id")),
        ("M11", lambda body: body["content"][2].update(id="toolu_B")),
        ("M11?", lambda body: body["content"][2].update(id="call_A")),
        ("M14", lambda body: body["content"][1].update(text="")),
        ("M15?", lambda body: body["content"].append({"type": "text", "text": "more"})),
        ("M16", lambda body: body["content"][2].update(name="nope")),
        ("MW2 X1", lambda body: body["content"][2].update(name={})),
        ("F10", lambda body: body["content"][1].update(text="\ud83d")),
        ("M10 MW1", lambda body: body.update(content=5)),
    ],
)
def test_a_violation_in_a_complete_reply_is_reported(expected, edit):
    assert whole_fired(edit) == expected


def test_a_reply_that_is_not_a_json_object():
    assert shown(validate_messages_whole(b"<html>")) == "MW1"
    assert shown(validate_messages_whole(b"[]")) == "MW1"
    assert whole_fired(headers={"content-type": "text/plain"}) == "F11"
