"""Deltas for authors of servers, checked with the SDK's own types and accumulator."""

import json

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from support.engine_cases import in_pieces
from support.sweeps import each

from conformance.cases import FOLDER, all_cases
from statemachine import Parser
from streamtool.adapters import openai_deltas

CASES = [case for case in all_cases(FOLDER) if not case.options and case.reason is None]


def completed(pieces, tools, **options):
    """Return what the SDK accumulates from the chunks."""
    state = ChatCompletionStreamState()
    deltas = openai_deltas(Parser(tools, **options))

    def take(delta, finish=None):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))

    take({"role": "assistant", "content": ""})
    for piece in pieces:
        for delta in deltas.feed(piece):
            take(delta)
    for delta in deltas.close():
        take(delta)
    take({}, deltas.finish_reason)
    return state.current_completion_snapshot.choices[0], deltas


@each("case", CASES[::2], ids=lambda case: case.id)
def test_the_sdk_accumulates_the_events_of_the_case(case):
    choice, deltas = completed(in_pieces(case.text, case.id, (1, 3, 8, 21, 34)), case.tools)
    calls = [event for event in case.events if event["type"] == "call"]
    assert (choice.message.content or "") == "".join(e["text"] for e in case.events if e["type"] == "text")
    found = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert [name for name, _ in found] == [call["name"] for call in calls]
    for (_, arguments), call in zip(found, calls, strict=True):
        assert arguments == call["arguments"] or json.loads(arguments) == json.loads(call["arguments"])
    complete = all(call["complete"] for call in calls)
    assert choice.finish_reason == (("tool_calls" if calls else "stop") if complete else "length")
    assert [call.id for call in choice.message.tool_calls or ()] == deltas.ids
    for i, call in enumerate(calls):
        assert (deltas.ids[i] == call["id"]) == (call["id"] is not None and call["id"] not in deltas.ids[:i])


def test_a_call_is_reported_while_it_is_written():
    deltas = openai_deltas(Parser(["ping"]), new_id=lambda: "call_1")
    assert deltas.feed('<tool_call>{"name": "ping", "arguments": {"a": "b') == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "ping", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": "b'}}]},
    ]
    assert deltas.feed("c") == [{"tool_calls": [{"index": 0, "function": {"arguments": "c"}}]}]
    assert deltas.close("length") == [] and deltas.finish_reason == "length"


def test_the_field_for_reasoning_can_be_chosen_or_omitted():
    text = "<think>hm</think>ok"
    assert openai_deltas(Parser(["ping"])).feed(text) == [{"reasoning_content": "hm"}, {"content": "ok"}]
    assert openai_deltas(Parser(["ping"]), reasoning="reasoning").feed(text)[0] == {"reasoning": "hm"}
    assert openai_deltas(Parser(["ping"]), reasoning=None).feed(text) == [{"content": "ok"}]
