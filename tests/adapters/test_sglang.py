"""SGLang's own `FunctionCallParser` and `ReasoningParser`, with our detectors in their tables."""

import json

import pytest

pytest.importorskip("sglang.srt.function_call.function_call_parser", exc_type=ImportError)
pytestmark = pytest.mark.engines

from sglang.srt import plugins  # noqa: E402
from sglang.srt.entrypoints.openai.protocol import Tool  # noqa: E402
from sglang.srt.function_call.function_call_parser import FunctionCallParser  # noqa: E402
from sglang.srt.parser.reasoning_parser import ReasoningParser  # noqa: E402
from support.engine_cases import CASES, Outcome, alone, openai_tools, pieces_of  # noqa: E402

import streamtool.adapters.sglang  # noqa: E402, F401

CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": "b"}}\n</tool_call>'


def tools_of(case):
    return [Tool(**tool) for tool in openai_tools(case)]


def streamed(case, *, reasoning):
    """Return the output of SGLang's server: reasoning is split off, then the tool call parser reads the remaining text."""
    parser = FunctionCallParser(tools_of(case), "streamtool")
    thinker = ReasoningParser("streamtool") if reasoning else None
    text, thought, calls = "", "", []
    for last, piece in [*((False, piece) for piece in pieces_of(case)), (True, "")]:
        if thinker is not None:
            thoughts, normal = thinker.parse_stream_chunk(piece)
            if last:
                ended = thinker.parse_stream_end()
                thoughts, normal = thoughts + ended[0], normal + ended[1]
            thought, piece = thought + thoughts, normal  # noqa: PLW2901
        visible, items = parser.parse_stream_chunk(piece)
        if last:
            ended = parser.parse_stream_end()
            visible, items = visible + ended[0], [*items, *ended[1]]
        text += visible
        for item in items:
            if item.name:
                assert item.tool_index == len(calls)
                calls.append((item.name, ""))
            name, arguments = calls[item.tool_index]
            calls[item.tool_index] = (name, arguments + item.parameters)
    assert [entry["arguments"] for entry in parser.detector.prev_tool_call_arr] == [args for _, args in calls]
    assert parser.detector.streamed_args_for_tool == [args for _, args in calls]
    return Outcome(text, calls, thought)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_streamed_reply_equals_the_result_of_the_parser(case, reasoning):
    expected = alone(case)
    found = streamed(case, reasoning=reasoning)
    assert (found.text, found.calls) == (expected.text, expected.calls)
    if reasoning:
        assert expected.reasoning.startswith(found.reasoning)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_complete_reply_equals_the_result_of_the_parser(case):
    expected = alone(case)
    parser = FunctionCallParser(tools_of(case), "streamtool")
    text, items = parser.parse_non_stream(case.text)
    assert (text, [(item.name, item.parameters) for item in items]) == (expected.text, expected.calls)


def test_the_plugin_entry_point_registers_the_detectors(monkeypatch):
    monkeypatch.delitem(FunctionCallParser.ToolCallParserEnum, "streamtool")
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    plugins.load_plugins()
    assert "streamtool" in FunctionCallParser.ToolCallParserEnum
    assert "streamtool" in ReasoningParser.DetectorMap


def test_buffered_text_is_emitted_at_the_end():
    parser = FunctionCallParser([Tool(type="function", function={"name": "ping"})], "streamtool")
    assert parser.parse_stream_chunk("1 <too") == ("1 ", [])
    assert parser.parse_stream_end() == ("<too", [])


def test_a_demanded_call_is_constrained_to_a_readable_form():
    tool = Tool(type="function", function={"name": "ping", "parameters": {"type": "object"}})
    parser = FunctionCallParser([tool], "streamtool")
    kind, tag = parser.get_structure_constraint("required")
    (form,) = tag.structures
    assert (kind, form.begin.startswith(tag.triggers[0])) == ("structural_tag", True)
    _, (call,) = parser.parse_non_stream(f'{form.begin}{{"a": "b"}}{form.end}')
    assert (call.name, json.loads(call.parameters)) == ("ping", {"a": "b"})


def test_reasoning_opened_in_the_prompt():
    thinker = ReasoningParser("streamtool", force_reasoning=True)
    assert thinker.parse_non_stream(f"hm\n</think>\n\n{CALL}") == ("hm\n", f"\n\n{CALL}")
