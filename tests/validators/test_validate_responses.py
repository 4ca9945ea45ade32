"""Each rule of Responses is reported when a good reply violates it, and only then.

Violations are written in a line: `R5` is a MUST, `R5?` a SHOULD.
"""

import copy
import json
from itertools import chain

import pytest
from support.sweeps import each
from support.validators import (
    assert_valid,
    validate_responses_error,
    validate_responses_stream,
    validate_responses_whole,
)

F = {"type": "function", "name": "f", "parameters": None}
G = {"type": "function", "name": "g", "parameters": {}}
SHELL = {"type": "custom", "name": "sh"}
ASKED = {"tools": [F, G, SHELL], "input": "hello"}
HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 15,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 35,
}


def response(status, output=(), **more):
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": "m",
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": USAGE if status in ("completed", "incomplete") else None,
        "user": None,
        "metadata": {},
    } | more


def parts(item, key, kind, texts):
    """Return the events of an item's parts, each in one or more pieces, and add the parts to the item."""
    events = []
    index = "summary_index" if kind == "summary_text" else "content_index"
    stem = "response.reasoning_summary_part" if kind == "summary_text" else "response.content_part"
    inner = f"response.reasoning_{kind}" if kind == "summary_text" else f"response.{kind}"
    own = "refusal" if kind == "refusal" else "text"
    more, logs = ({"annotations": [], "logprobs": []}, {"logprobs": []}) if kind == "output_text" else ({}, {})
    for pieces in texts:
        at = {"item_id": item["id"], index: len(item[key])}
        part = {"type": kind, own: "".join(pieces), **more}
        events += [
            {"type": f"{stem}.added", **at, "part": part | {own: ""}},
            *({"type": f"{inner}.delta", **at, "delta": each, **logs} for each in pieces),
            {"type": f"{inner}.done", **at, own: "".join(pieces), **logs},
            {"type": f"{stem}.done", **at, "part": part},
        ]
        item[key] = [*item[key], part]
    return events


def framed(item, fill, status):
    """Return the events of an item; `fill` returns those in the middle while it completes the item."""
    added = {"type": "response.output_item.added", "item": dict(item)}
    return [added, *fill(item), {"type": "response.output_item.done", "item": item | {"status": status}}]


def text(identity, *pieces, status="completed", kind="output_text"):
    item = {"id": identity, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    return framed(item, lambda item: parts(item, "content", kind, [pieces]), status)


def reasoning(identity, *summaries, content=(), status="completed"):
    item = {"id": identity, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
    return framed(
        item,
        lambda item: (
            parts(item, "summary", "summary_text", summaries) + parts(item, "content", "reasoning_text", content)
        ),
        status,
    )


def call(identity, call_id, name, *pieces, status="completed", custom=False, **more):
    kind, key, stem = (
        ("custom_tool_call", "input", "custom_tool_call_input")
        if custom
        else ("function_call", "arguments", "function_call_arguments")
    )
    item = {"id": identity, "type": kind, "status": "in_progress", key: "", "call_id": call_id, "name": name, **more}

    def fill(item):
        item[key] = "".join(pieces)
        at = {"item_id": identity}
        done = [{"type": f"response.{stem}.done", **at, key: item[key]}] if status == "completed" else []
        return [*({"type": f"response.{stem}.delta", **at, "delta": each} for each in pieces), *done]

    return framed(item, fill, status)


def begin():
    return [{"type": f"response.{step}", "response": response("in_progress")} for step in ("created", "in_progress")]


def terminal(status, items=(), **more):
    output = [events[-1]["item"] for events in items]
    return {"type": f"response.{status}", "response": response(status, output, **more)}


def placed(items):
    return [event | {"output_index": index} for index, events in enumerate(items) for event in events]


def reply(*items, status="completed", reason=None):
    more = {"incomplete_details": {"reason": reason}} if reason else {}
    events = [*begin(), *placed(items), terminal(status, items, **more)]
    return json.loads(json.dumps(events))  # a copy, so that parts are not shared and an edit changes one place


FAILED = {"error": {"code": "server_error", "message": "m"}}
BREAK = {"type": "error", "code": "server_error", "message": "m", "param": None}


def broken(count, events):
    """Return the first events of a stream, and its end if the upstream fails at that point."""
    events = events[:count]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [*events, BREAK, {"type": "response.failed", "response": response("failed", done, **FAILED)}]


def stream(events):
    numbered = [{"sequence_number": number} | item for number, item in enumerate(events)]
    return b"".join(
        f"event: {item['type']}\ndata: {json.dumps(item, ensure_ascii=False)}\n\n".encode() for item in numbered
    )


def shown(problems):
    found = {problem.rule + "?" * (problem.severity == "SHOULD") for problem in problems}
    return " ".join(sorted(found, key=lambda rule: (rule.rstrip("?0123456789"), len(rule.rstrip("?")), rule)))


def fired(events, request=ASKED, headers=HEADERS):
    data = events if isinstance(events, bytes) else stream(events)
    return shown(validate_responses_stream(data, request, headers=headers))


CREATED, STARTED, THINK, SUM, SUM_DELTA, SUM_TEXT, SUM_DONE, THOUGHT = range(8)
TEXT, PART, DELTA, TEXT_DONE, PART_DONE, TEXT_END = range(8, 14)
CALL, PIECE, REST, ARGUMENTS, CALL_END, CALL2, PIECE2, ARGUMENTS2, CALL2_END = range(14, 23)
CUSTOM, INPUT, INPUT_DONE, CUSTOM_END, LAST = range(23, 28)
GOOD = reply(
    reasoning("rs_1", ["Hm."]),
    text("msg_1", "Let me"),
    call("fc_1", "call_A", "f", '{"a"', ":1}"),
    call("fc_2", "call_B", "g", "{}"),
    call("ctc_1", "call_C", "sh", "ls {", custom=True),
)
KEEPALIVE = {"type": "keepalive"}


def changed(*edits, request=ASKED):
    """Return the violations after editing the good stream: (position, function on the event), (position, None) to omit
    it, or (position, events) to insert them before it.

    The events are numbered afterwards.
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


CUT = {"status": "incomplete", "reason": "max_output_tokens"}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(GOOD, id="all"),
        pytest.param(reply(), id="empty"),
        pytest.param(reply(text("msg_1", "Hello", " there")), id="text"),
        pytest.param(reply(text("msg_1", "I won't.", kind="refusal")), id="refusal"),
        pytest.param(reply(call("fc_1", "call_A", "f", "{}")), id="one call"),
        pytest.param(reply(call("fc_1", "call_A", "f", "{}"), text("msg_1", "So")), id="text behind a call"),
        pytest.param(
            reply(
                text("msg_1", "a"),
                call("fc_1", "call_A", "f", "{}"),
                text("msg_2", "b"),
                call("fc_2", "call_B", "g", "{}"),
            ),
            id="text between",
        ),
        pytest.param(reply(reasoning("rs_1", ["a", "b"], ["c"], content=[["d"], ["e"]])), id="reasoning"),
        pytest.param(reply(reasoning("rs_1", content=[["d"]])), id="reasoning text"),
        pytest.param(reply(call("ctc_1", "call_A", "sh", "l", "s", custom=True)), id="custom tool"),
        pytest.param(reply(text("msg_1", "Hel", status="incomplete"), **CUT), id="cut text"),
        pytest.param(reply(text("msg_1", "Hello"), status="incomplete", reason="content_filter"), id="filtered"),
        pytest.param(reply(call("fc_1", "call_A", "f", '{"a', status="incomplete"), **CUT), id="cut call"),
        pytest.param(reply(call("fc_1", "call_A", "f", status="incomplete"), **CUT), id="cut before arguments"),
        pytest.param(
            reply(call("ctc_1", "call_A", "sh", "l", status="incomplete", custom=True), **CUT), id="cut input"
        ),
        pytest.param(reply(reasoning("rs_1", ["a"], status="incomplete"), **CUT), id="cut reasoning"),
        pytest.param([*GOOD[:DELTA], KEEPALIVE, *GOOD[DELTA:]], id="keepalive"),
        pytest.param([GOOD[0], KEEPALIVE, *GOOD[1:]], id="early keepalive"),
        *(pytest.param(broken(count, GOOD), id=f"error after {count}") for count in range(1, len(GOOD))),
    ],
)
def test_a_good_stream_has_no_problem(events):
    assert_valid(validate_responses_stream(stream(events), ASKED, headers=HEADERS), strict=True)
    assert validate_responses_stream(b": hello\n\n" + stream(events)) == []


def test_an_open_item_may_be_in_a_failed_response():
    events = broken(REST, GOOD)
    events[-1]["response"]["output"].append(GOOD[CALL]["item"] | {"arguments": '{"a"', "status": "incomplete"})
    assert fired(events) == ""
    events[-1]["response"]["output"].append(GOOD[CALL2_END]["item"])
    assert fired(events) == "R9"


DATA = stream(GOOD)


@pytest.mark.parametrize(
    ("expected", "data"),
    [
        ("F1 R7", DATA.replace(b"Let me", b"Let \xff", 1)),
        ("F2", b"\xef\xbb\xbf" + DATA),
        ("F3?", DATA.replace(b"\n", b"\r\n")),
        ("F4", DATA[:-1]),
        ("F6 R3 R9", b""),
        ("F8?", DATA.replace(b"data: ", b"data:", 1)),
        ("F9", b"foo: bar\n" + DATA),
        ("F10", DATA.replace(b"Let me", b"Let \\ud83d")),
        ("R1", DATA.replace(b"event: response.created\n", b"")),
        ("R1", DATA.replace(b"event: response.created\n", b"event: message\n")),
        ("R1 R9", DATA.replace(b'"type": "response.completed"', b'"type": "response.completed", "x": NaN')),
        ("R1", DATA + b"data: []\n\n"),
        ("R1?", DATA + b"data: [DONE]\n\n"),
        ("R1 R1? R9", DATA + b"data: [DONE]\n\n" + stream([KEEPALIVE | {"sequence_number": len(GOOD)}])),
    ],
)
def test_framing_and_names(expected, data):
    assert fired(data) == expected


def test_f11_the_content_type():
    assert fired(GOOD, headers={"content-type": "application/json"}) == "F11"


def resp(item):
    return item["response"]


def it(item):
    return item["item"]


def ends(position, edit):
    """Edit the item that is done at `position`, and in the final response."""
    index = GOOD[position]["output_index"]
    return [(position, lambda item: edit(it(item))), (LAST, lambda item: edit(resp(item)["output"][index]))]


def all_of(added, done, edit):
    """Edit the item wherever it occurs."""
    return [(added, lambda item: edit(it(item))), *ends(done, edit)]


@each(
    ("expected", "edits"),
    [
        ("R2", [(DELTA, lambda item: item.update(sequence_number=3))]),
        ("R2", [(DELTA, lambda item: item.update(sequence_number=None))]),
        ("R3 R3?", [(CREATED, None)]),
        ("R3", [(CREATED, [KEEPALIVE])]),
        ("R3 R3?", [(DELTA, [GOOD[CREATED]])]),
        ("R3?", [(STARTED, None)]),
        ("R3?", [(DELTA, [GOOD[STARTED]])]),
        ("R4", [(CREATED, lambda item: item.pop("response"))]),
        ("R4", [(LAST, lambda item: resp(item).update(id="resp_2"))]),
        ("R4?", [(LAST, lambda item: resp(item).update(created_at=2))]),
        ("R4", [(CREATED, lambda item: resp(item).update(object="reply"))]),
        ("R4", [(CREATED, lambda item: resp(item).update(status="queued"))]),
        ("R4", [(LAST, lambda item: resp(item).update(status="in_progress")), (LAST, lambda item: resp(item).update(usage=USAGE))]),
        ("R4", [(STARTED, lambda item: resp(item).update(output=[{}]))]),
        *[("R4", [(CREATED, lambda item, key=key: resp(item).pop(key))]) for key in ("error", "incomplete_details", "parallel_tool_calls", "tool_choice", "tools", "output", "status")],
        *[("R4?", [(CREATED, lambda item, key=key: resp(item).pop(key))]) for key in ("usage", "text", "top_p", "metadata", "user", "store", "instructions")],
        *[("R4?", [(CREATED, lambda item, key=key: resp(item).update({key: [5]}))]) for key in ("usage", "text", "top_p", "metadata", "user", "store")],
        ("R4", [(CREATED, lambda item: resp(item).update(tool_choice={}))]),
        ("R4 R4?", [(CREATED, lambda item: resp(item).pop("model"))]),
        ("R4 R4?", [(CREATED, lambda item: resp(item).update(created_at="1"))]),
        ("R4", [(LAST, lambda item: resp(item).update(FAILED))]),
        ("R5", [(TEXT, lambda item: item.update(output_index=2))]),
        ("R5", [(TEXT, lambda item: item.pop("output_index"))]),
        ("R5", [(TEXT, lambda item: it(item).update(status="completed"))]),
        ("R5", [(CALL, lambda item: it(item).pop("status"))]),
        ("R5", [(TEXT, lambda item: it(item).update(content=[{"type": "output_text"}]))]),
        ("R5", [(TEXT, lambda item: it(item).pop("content"))]),
        ("R5", [(CALL, lambda item: it(item).update(arguments="{"))]),
        ("R5", [(CALL, lambda item: it(item).update(arguments=None))]),
        ("R5", [(THINK, lambda item: it(item).pop("summary"))]),
        ("R5", all_of(TEXT, TEXT_END, lambda item: item.update(role="user"))),
        ("R5 R14", all_of(CALL, CALL_END, lambda item: item.update(namespace=""))),
        ("R5 R14", all_of(CALL, CALL_END, lambda item: item.pop("name"))),
        ("R5", [*all_of(CALL, CALL_END, lambda item: item.update(id="fc_2")), *((each, lambda item: item.update(item_id="fc_2")) for each in (PIECE, REST, ARGUMENTS))]),
        ("R5?", [*all_of(CALL, CALL_END, lambda item: item.update(id="call_1")), *((each, lambda item: item.update(item_id="call_1")) for each in (PIECE, REST, ARGUMENTS))]),
        ("R5 R10?", all_of(CALL, CALL_END, lambda item: item.update(call_id="fc_1"))),
        ("R6", [(DELTA, lambda item: item.update(item_id="msg_2"))]),
        ("R6", [(DELTA, [GOOD[DELTA] | {"output_index": 0}])]),
        ("R6", [(TEXT, [GOOD[DELTA]])]),
        ("R6", [(TEXT, [GOOD[THOUGHT]])]),
        ("R6", [(TEXT_END, None), (LAST, lambda item: resp(item)["output"].pop(1))]),
        ("R6", ends(CALL_END, lambda item: item.update(name="g"))),
        ("R6", ends(CALL_END, lambda item: item.update(call_id="call_X"))),
        ("R6", ends(CALL_END, lambda item: item.update(id="fc_9"))),
        ("R6", ends(CALL_END, lambda item: item.update(namespace="n"))),
        ("R7", ends(CALL_END, lambda item: item.pop("status"))),
        ("R7", ends(CALL_END, lambda item: item.update(status="in_progress"))),
        ("R7", [(PART, None)]),
        ("R7", [(PART, lambda item: item.update(content_index=1))]),
        ("R7", [(PART, lambda item: item["part"].update(text="Let"))]),
        ("R7", [(PART, lambda item: item["part"].update(type="reasoning_text"))]),
        ("R7", [(PART, lambda item: item["part"].pop("annotations"))]),
        ("R7", [(PART, lambda item: item.pop("part"))]),
        ("R7", [(DELTA, None)]),
        ("R7", [(DELTA, [GOOD[DELTA] | {"delta": None}])]),
        ("R7", [(DELTA, lambda item: item.update(content_index=1))]),
        ("R7", [(DELTA, [GOOD[SUM_DELTA] | {"item_id": "msg_1", "output_index": 1}])]),
        ("R7", [(DELTA, [GOOD[PIECE] | {"item_id": "msg_1", "output_index": 1}])]),
        ("R7", [(PART_DONE, [GOOD[DELTA] | {"delta": ""}])]),
        ("R7", [(TEXT_DONE, lambda item: item.update(text="Let"))]),
        ("R7", [(TEXT_DONE, None)]),
        ("R7", [(TEXT_END, [GOOD[PART_DONE]])]),
        ("R7", [(TEXT_DONE, [GOOD[PART]])]),
        ("R7", [(PART_DONE, None)]),
        ("R7", [(PART_DONE, lambda item: item["part"].update(text="Let"))]),
        ("R7", ends(TEXT_END, lambda item: item["content"][0].update(text="Let"))),
        ("R7", ends(TEXT_END, lambda item: item.update(content=[]))),
        ("R7", ends(TEXT_END, lambda item: item.update(content=None))),
        ("R7", [(SUM, lambda item: item.update(summary_index=1))]),
        ("R7", ends(THOUGHT, lambda item: item["summary"].pop())),
        ("R7", [(ARGUMENTS, None)]),
        ("R7", [(ARGUMENTS, lambda item: item.update(arguments="{}"))]),
        ("R7", [(ARGUMENTS, [GOOD[ARGUMENTS]])]),
        ("R7", [(CALL_END, [GOOD[REST] | {"delta": ""}])]),
        ("R7", ends(CALL_END, lambda item: item.update(arguments='{"a": 1}'))),
        ("R7", [(INPUT_DONE, None)]),
        ("R7", [(INPUT_DONE, lambda item: item.update(input="ls"))]),
        ("R7 R8", [(PIECE2, None)]),
        ("R8", [(PIECE2, lambda item: item.update(delta="[]")), (ARGUMENTS2, lambda item: item.update(arguments="[]")), *ends(CALL2_END, lambda item: item.update(arguments="[]"))]),
        ("R9", [(LAST, None)]),
        ("R9", [(LAST, lambda item: resp(item)["output"].pop())]),
        ("R9", [(LAST, lambda item: resp(item)["output"].reverse())]),
        ("R9", [(LAST, lambda item: resp(item)["output"][1]["content"][0].update(text="Let"))]),
        ("R9", [(LAST, lambda item: resp(item)["output"].append({}))]),
        ("R9", [(LAST, lambda item: resp(item).update(usage=None))]),
        ("R9", [(LAST, lambda item: resp(item)["usage"].pop("total_tokens"))]),
        ("R9", [(LAST, lambda item: resp(item)["usage"].pop("input_tokens_details"))]),
        ("R9", [(LAST, lambda item: resp(item)["usage"].update(output_tokens_details={}))]),
        ("R9?", [(LAST, lambda item: resp(item)["usage"].update(total_tokens=1))]),
        ("R9", [(LAST, [GOOD[LAST]])]),
        ("R9", ends(TEXT_END, lambda item: item.update(status="incomplete"))),
        ("R10", all_of(CALL, CALL_END, lambda item: item.update(call_id="call_B"))),
        ("R10", all_of(CALL, CALL_END, lambda item: item.update(call_id="call.A"))),
        ("R10", all_of(CALL, CALL_END, lambda item: item.update(call_id="call_" + "x" * 40))),
        ("R10", all_of(CALL, CALL_END, lambda item: item.pop("call_id"))),
        ("R10?", all_of(CALL, CALL_END, lambda item: item.update(call_id="toolu_A"))),
        ("R12", [(DELTA, [{"type": "ping"}])]),
        ("R12", [(DELTA, [{"type": "response.output_text.more"}])]),
        ("R13?", [(DELTA, lambda item: item.pop("logprobs"))]),
        ("R13?", [(TEXT_DONE, lambda item: item.update(logprobs=None))]),
        ("R13?", [(PART, lambda item: item["part"].pop("logprobs"))]),
        ("R4 R9", [(LAST, lambda item: resp(item).update(output={}))]),
        ("R5 X1", all_of(CALL, CALL_END, lambda item: item.update(name=["f"]))),
    ],
)  # fmt: skip
def test_a_violation_in_a_stream_is_reported(expected, edits):
    assert changed(*edits) == expected


class TestTruncated:
    def test_a_truncated_call_has_no_done_event(self):
        items = [call("fc_1", "call_A", "f", '{"a', status="incomplete")]
        events = reply(*items, **CUT)
        early = {"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0}
        assert fired([*events[:4], early | {"arguments": '{"a'}, *events[4:]]) == "R7"

    def test_the_arguments_of_a_truncated_call_begin_an_object(self):
        assert fired(reply(call("fc_1", "call_A", "f", "{'a", status="incomplete"), **CUT)) == "R8"

    @pytest.mark.parametrize("details", [None, {}, {"reason": "length"}])
    def test_the_reason_for_incompleteness(self, details):
        events = reply(text("msg_1", "Hel", status="incomplete"), **CUT)
        events[-1]["response"]["incomplete_details"] = details
        assert fired(events) == "R9"


class TestErrors:
    @pytest.mark.parametrize("follower", [KEEPALIVE, GOOD[DELTA]])
    def test_only_the_failure_may_follow_an_error(self, follower):
        events = broken(DELTA, GOOD)
        assert fired([*events[:-1], follower, events[-1]]) == "R11"
        assert fired([*events, KEEPALIVE]) == "R9"

    def test_error_and_failure_occur_together(self):
        events = broken(DELTA, GOOD)
        assert fired(events[:-1]) == "R9?"
        assert fired([*events[:-2], events[-1]]) == "R11?"
        assert fired([GOOD[0], GOOD[1], BREAK, terminal("completed")]) == "R11"

    @pytest.mark.parametrize(
        ("expected", "error"),
        [
            ("R11", {"type": "error", "error": {"message": "m"}, "message": "m", "code": None, "param": None}),
            ("R11", {"type": "error", "code": None, "param": None}),
            ("R11", BREAK | {"code": 500}),
            ("E3?", {"type": "error", "message": "m"}),
        ],
    )
    def test_the_error_event(self, expected, error):
        events = broken(DELTA, GOOD)
        events[-2] = error
        assert fired(events) == expected

    @pytest.mark.parametrize(
        ("expected", "error"),
        [
            ("R11", None),
            ("R11", {"code": "server_error"}),
            ("R11", {"code": None, "message": "m"}),
            ("R11?", {"code": "oops", "message": "m"}),
        ],
    )
    def test_the_failed_response(self, expected, error):
        events = broken(DELTA, GOOD)
        events[-1]["response"]["error"] = error
        assert fired(events) == expected
        body = json.dumps(response("failed", error=error)).encode()
        assert shown(validate_responses_whole(body, ASKED)) == expected

    def test_error_bodies(self):
        good = {"error": {"message": "m", "type": "t", "param": None, "code": None}}
        assert validate_responses_error(json.dumps(good).encode()) == []
        assert shown(validate_responses_error(b"<html>")) == "E1"
        assert shown(validate_responses_error(json.dumps(BREAK).encode())) == "E1"
        assert shown(validate_responses_error(b'{"error": {"message": "m", "type": "t"}}')) == "E3?"


GROUP = {"type": "namespace", "name": "n", "tools": [F, SHELL]}
HISTORY = [{"type": "function_call", "call_id": "call_0", "name": name, "arguments": "{}"} for name in "fg"]
HISTORY += [{"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": ""}]
MORE = [{"role": "user", "content": "hello"}, {"type": "additional_tools", "role": "developer", "tools": [F, G]}]


def named(kind, name, **more):
    return {"tool_choice": {"type": kind, "name": name, **more}}


def subset(mode, *tools):
    return {"tool_choice": {"type": "allowed_tools", "mode": mode, "tools": list(tools)}}


class TestRequest:
    @pytest.mark.parametrize(
        "more",
        [
            {"tools": [F, G]},
            {"tools": [F, G, {"type": "function", "name": "sh"}]},
            {"tools": [F, {"type": "web_search", "name": "g"}, SHELL]},
            {"tools": [F, G, {"type": "namespace", "name": "n", "tools": [SHELL]}]},
            {"tools": None},
            {"tools": None, "input": MORE},
            {"parallel_tool_calls": False},
            {"tool_choice": "none"},
            named("function", "f"),
            named("custom", "sh"),
            subset("auto", F, G),
        ],
    )
    def test_r14_disallowed_calls(self, more):
        assert changed(request=ASKED | more) == "R14"

    @pytest.mark.parametrize("demand", [{"tool_choice": "required"}, named("function", "f"), subset("required", F)])
    def test_r14_a_missing_call(self, demand):
        assert fired(reply(text("msg_1", "No.")), ASKED | demand) == "R14"
        assert fired(reply(text("msg_1", "No.", status="incomplete"), **CUT), ASKED | demand) == ""
        assert fired(broken(DELTA, GOOD), ASKED | demand) == ""

    @pytest.mark.parametrize(
        "more",
        [
            {"tool_choice": "auto"},
            {"tool_choice": "required"},
            {"tool_choice": {"type": "web_search"}},
            subset("required", F, G, SHELL),
            {"tools": [], "input": [*MORE, {"type": "additional_tools", "tools": [SHELL]}]},
            {"tools": None, "input": HISTORY},
            {"tools": None, "previous_response_id": "resp_0"},
        ],
    )
    def test_allowed_calls(self, more):
        assert changed(request=ASKED | more) == ""

    def test_tools_of_a_namespace(self):
        asked = {"tools": [GROUP, G]}
        events = reply(call("fc_1", "call_A", "f", "{}", namespace="n"))
        assert fired(events, asked) == ""
        assert fired(events, {"input": [{"type": "additional_tools", "tools": [GROUP]}]}) == ""
        assert fired(reply(call("ctc_1", "call_A", "sh", "ls", custom=True, namespace="n")), asked) == ""
        assert fired(reply(call("fc_1", "call_A", "f", "{}")), asked) == "R14"
        assert fired(reply(call("fc_1", "call_A", "g", "{}", namespace="n")), asked) == "R14"
        assert fired(reply(call("fc_1", "call_A", "n.f", "{}")), asked) == "R14"

    def test_a_tool_choice_of_a_namespace_tool(self):
        events = reply(call("fc_1", "call_A", "f", "{}", namespace="n"))
        for choice in (named("function", "f"), named("function", "f", namespace="n"), named("namespace", "n")):
            assert fired(events, {"tools": [GROUP, G], **choice}) == ""
        for choice in (named("function", "g"), named("function", "f", namespace="k")):
            assert fired(events, {"tools": [GROUP, G], **choice}) == "R14"

    def test_r10_an_id_of_the_history(self):
        assert fired(reply(call("fc_1", "call_0", "f", "{}")), ASKED | {"input": HISTORY}) == "R10"


def whole_fired(edit=None, request=ASKED, headers=None):
    body = copy.deepcopy(GOOD[LAST]["response"])
    if edit:
        edit(body)
    return shown(validate_responses_whole(json.dumps(body).encode(), request, headers=headers))


def test_a_good_complete_reply_has_no_problem():
    assert whole_fired(headers={"content-type": "application/json"}) == ""
    for events in (
        reply(),
        reply(call("fc_1", "call_A", "f", '{"a', status="incomplete"), **CUT),
        broken(CALL, GOOD),
        reply(reasoning("rs_1", content=[["d"]]), text("msg_1", "No.", kind="refusal")),
    ):
        assert validate_responses_whole(json.dumps(events[-1]["response"]).encode(), ASKED) == []


def output(body, index):
    return body["output"][index]


@pytest.mark.parametrize(
    ("expected", "edit"),
    [
        ("RW1", lambda body: body.update(object="reply")),
        ("RW1", lambda body: body.update(id="")),
        ("RW1", lambda body: body.update(created_at=None)),
        ("RW1", lambda body: body.pop("tool_choice")),
        ("RW1", lambda body: body.pop("error")),
        ("RW1", lambda body: body.update(status="in_progress")),
        ("RW1", lambda body: body.update(status="incomplete")),
        ("RW1", lambda body: body.update(usage=None)),
        ("RW1", lambda body: body["usage"].pop("input_tokens_details")),
        ("RW1", lambda body: body.update(output=None)),
        ("RW1?", lambda body: body.pop("truncation")),
        ("RW2", lambda body: output(body, 0).pop("summary")),
        ("RW2", lambda body: output(body, 1).update(type="audio")),
        ("RW2", lambda body: output(body, 1).pop("id")),
        ("RW2", lambda body: output(body, 1).update(status="in_progress")),
        ("RW2", lambda body: output(body, 1).update(status="incomplete")),
        ("RW2", lambda body: output(body, 1)["content"][0].update(type="text")),
        ("RW2", lambda body: output(body, 1)["content"][0].update(text=None)),
        ("RW2", lambda body: output(body, 1)["content"][0].update(annotations=None)),
        ("RW2", lambda body: output(body, 2).update(arguments={})),
        ("RW2?", lambda body: output(body, 2).update(id="call_1")),
        ("R5", lambda body: output(body, 2).update(id="fc_2")),
        ("R8", lambda body: output(body, 2).update(arguments="")),
        ("R10", lambda body: output(body, 2).update(call_id="call_B")),
        ("R13?", lambda body: output(body, 1)["content"][0].pop("logprobs")),
        ("R14", lambda body: output(body, 2).update(name="nope")),
        ("F10", lambda body: output(body, 1)["content"][0].update(text="\ud83d")),
        ("RW2 X1", lambda body: output(body, 2).update(name={})),
    ],
)
def test_a_violation_in_a_complete_reply_is_reported(expected, edit):
    assert whole_fired(edit) == expected


def test_a_reply_that_is_not_a_json_object():
    assert shown(validate_responses_whole(b"<html>")) == "RW1"
    assert shown(validate_responses_whole(b"[]")) == "RW1"
    assert whole_fired(headers={"content-type": "text/plain"}) == "F11"
