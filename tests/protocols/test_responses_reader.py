"""Reading an upstream's Responses reply: pieces, calls, reasoning, whole documents, and every kind of failure."""

import json
import random
from typing import Any

import pytest
from support.dialects import named, responses

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
from streamtool.protocols.responses import ReplyReader

USAGE: Any = {
    "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 14,
}  # fmt: skip
THOUGHT: Any = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
SAID: Any = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Ä 🌡"}]}
CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "ping", "arguments": '{"x":"🌡"}'}
RAW: Any = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "note", "input": "as it is"}
ITEMS = [THOUGHT, SAID, CALL, RAW]
MEANS = [
    ReplyStart("resp_1", 7, "up"),
    ReplyReasoningDelta(0, "Hm."),
    ReplyTextDelta(0, "Ä 🌡"),
    ReplyCallStart(0, 0, "call_1", "ping"),
    ReplyArgumentsDelta(0, 0, '{"x":"🌡"}'),
    ReplyCallEnd(0, 0),
    ReplyCallStart(0, 1, "call_2", "note"),
    ReplyArgumentsDelta(0, 1, "as it is"),
    ReplyCallEnd(0, 1),
    ReplyFinish(0, Reason.STOP),
    UsageReport(Usage(9, 5, cached=4, reasoning=2)),
    ReplyEnd(),
]


def response(output: list[Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 7,
        "model": "up",
        "status": status,
        "output": output,
        "usage": USAGE,
        **fields,
    }


def pieces(item: Any, place: int) -> list[Any]:
    """Return the events of an item whose text is streamed by single characters."""
    kind, at = item["type"], {"output_index": place, "item_id": item["id"]}
    begun = {**item, "summary": [], "content": [], "arguments": "", "input": ""}
    name, text = {
        "reasoning": ("reasoning_summary_text", item.get("summary", [{}])[0].get("text")),
        "message": ("output_text", item.get("content", [{}])[0].get("text")),
        "function_call": ("function_call_arguments", item.get("arguments")),
        "custom_tool_call": ("custom_tool_call_input", item.get("input")),
    }[kind]
    deltas = [{"type": f"response.{name}.delta", **at, "delta": piece} for piece in text or ""]
    return [
        {"type": "response.output_item.added", **at, "item": begun},
        *deltas,
        {"type": f"response.{name}.done", **at, "text": text, "arguments": text},
        {"type": "response.output_item.done", **at, "item": item},
    ]


def stream(*events: Any) -> bytes:
    return b"".join(
        named(event) for event in ({"type": "response.created", "response": response([], "queued")}, *events)
    )


WHOLE = {"type": "response.completed", "response": response(ITEMS)}
STREAM = stream(*(event for place, item in enumerate(ITEMS) for event in pieces(item, place)), WHOLE)


def read(*parts: bytes) -> list[Any]:
    reader = ReplyReader()
    return joined([event for part in parts for event in reader.feed(part)] + reader.close())


def joined(events: list[Any]) -> list[Any]:
    """Merge adjacent pieces of the same kind."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if (
            type(event) is type(last)
            and hasattr(event, "text")
            and getattr(event, "index", 0) == getattr(last, "index", 0)
        ):
            found[-1] = type(event)(**{name: getattr(event, name) for name in ("choice", "index") if hasattr(event, name)},
                                    text=last.text + event.text)  # fmt: skip
        else:
            found.append(event)
    return found


def test_a_stream_means_the_same_at_every_split():
    assert read(STREAM) == MEANS
    assert read(*(bytes([byte]) for byte in STREAM)) == MEANS


def test_each_piece_is_emitted_immediately():
    reader = ReplyReader()
    head, *rest = pieces(CALL, 0)
    reader.feed(stream(head))
    for piece in rest[:-2]:
        assert reader.feed(named(piece)) == [ReplyArgumentsDelta(0, 0, piece["delta"])]


@pytest.mark.parametrize(
    "data",
    [
        stream(WHOLE),
        stream(*({"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(ITEMS)), WHOLE),
        json.dumps(response(ITEMS)).encode(),
        json.dumps(response(ITEMS), indent=1).encode(),
    ],
    ids=["last event only", "items only", "document", "printed document"],
)  # fmt: skip
def test_an_item_without_deltas_is_read(data: bytes):
    assert read(data) == MEANS


def test_a_call_in_a_namespace_has_the_qualified_name():
    item = {**CALL, "namespace": "net"}
    assert read(stream({"type": "response.completed", "response": response([item])}))[1].name == "net.ping"


def test_a_typed_call_is_a_call():
    action = {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
    item = {"type": "shell_call", "id": "sh_1", "call_id": "call_3", "status": "completed", "action": action}
    found = read(stream({"type": "response.completed", "response": response([item])}))
    assert found[1] == ReplyCallStart(0, 0, "call_3", "shell")
    assert json.loads(found[2].text)["commands"] == ["ls"]


@pytest.mark.parametrize("arguments", ["", "[1]", '{"x":', 5, None])
def test_a_call_with_invalid_arguments_is_never_complete(arguments: Any):
    found = read(stream({"type": "response.completed", "response": response([{**CALL, "arguments": arguments}])}))
    assert [event.complete for event in found if type(event) is ReplyCallEnd] == [False]


def test_a_truncated_call_keeps_its_arguments_so_far():
    events = pieces(CALL, 0)[:4]
    cut = response([], "incomplete", incomplete_details={"reason": "max_output_tokens"})
    found = read(stream(*events, {"type": "response.incomplete", "response": cut}))
    assert found[1:5] == [
        ReplyCallStart(0, 0, "call_1", "ping"),
        ReplyArgumentsDelta(0, 0, '{"x'),
        ReplyCallEnd(0, 0, complete=False),
        ReplyFinish(0, Reason.LENGTH),
    ]


@pytest.mark.parametrize(
    ("events", "status", "says"),
    [
        ([{"type": "error", "message": "slow down", "code": "rate_limit_exceeded"}], None, "slow down"),
        ([{"type": "response.failed", "response": response([], "failed", error={"code": "server_error", "message": "no"})}], None, "no"),
        ([{"type": "response.cancelled", "response": response([], "cancelled")}], None, "The upstream's reply was cancelled."),
        ([], 502, "connection error: the upstream closed the connection before its reply was complete"),
    ],
    ids=["error", "failed", "cancelled", "broken off"],
)  # fmt: skip
def test_each_kind_of_truncation_is_one_failure(events: list[Any], status: int | None, says: str):
    found = read(stream(*pieces(SAID, 0), *events))
    assert [type(event) for event in found] == [ReplyStart, ReplyTextDelta, ReplyFailure]
    assert found[-1].error.message == says
    assert status in (None, found[-1].error.status)


@pytest.mark.parametrize("end", ["stop", "length", "filter", "error", "die"])
def test_nothing_raises_on_damaged_bytes(end: str):
    body = b"".join(responses(["Hel", "lo"], end))
    for place in range(0, len(body), 7):
        for damage in (b"", b"\xff", b'"', b"}", b"\n\n"):
            found = read(body[:place] + damage + body[place + 1 :])
            assert type(found[-1]) in (ReplyEnd, ReplyFailure)


def test_no_text_is_lost_while_a_call_is_open():
    """Whatever the order in which a server sends the events of several items."""
    rng = random.Random(3)
    for _ in range(200):
        waiting = [pieces(item, place) for place, item in enumerate(ITEMS)]
        mixed = []
        while any(waiting):
            mixed.append(rng.choice([item for item in waiting if item]).pop(0))
        events = read(stream(*mixed, WHOLE))
        for kind, text in ((ReplyReasoningDelta, "Hm."), (ReplyTextDelta, "Ä 🌡")):
            assert "".join(event.text for event in events if type(event) is kind) == text
        calls = [event.name for event in events if type(event) is ReplyCallStart]
        assert sorted(calls) == ["note", "ping"]
        assert all(event.complete for event in events if type(event) is ReplyCallEnd)


def test_text_that_waits_for_a_call_is_emitted_if_the_reply_is_cut():
    begun = pieces(CALL, 0)[:3]
    events = read(stream(*begun, *pieces(SAID, 1)))
    assert [type(event) for event in events[-3:]] == [ReplyCallEnd, ReplyTextDelta, ReplyFailure]
    assert events[-2].text == "Ä 🌡"


def test_an_empty_delta_does_not_replace_the_text_of_its_item():
    added, _, *_, done = pieces(SAID, 0)
    empty = {"type": "response.output_text.delta", "output_index": 0, "item_id": "msg_1", "delta": ""}
    assert ReplyTextDelta(0, "Ä 🌡") in read(
        stream(added, empty, done, {"type": "response.completed", "response": response([SAID])})
    )


def test_an_error_without_a_status_is_a_failure():
    failed = {**response([]), "error": {"message": "no"}}
    del failed["status"]
    assert isinstance(read(stream({"type": "response.failed", "response": failed}))[-1], ReplyFailure)
