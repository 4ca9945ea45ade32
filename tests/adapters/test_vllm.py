"""vLLM's own composition of parsers, including ours: its `ParserManager`, `DelegatingParser` and request classes."""

import sys
from pathlib import Path

import pytest
from attrs import evolve

pytest.importorskip("vllm", exc_type=ImportError)
pytestmark = pytest.mark.engines

from support.engine_cases import CASES, Outcome, alone, openai_tools, pieces_of  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.chat_completion.stream_processor import ChatStreamProcessor  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.parser import ParserManager  # noqa: E402
from vllm.reasoning import ReasoningParserManager  # noqa: E402
from vllm.tool_parsers import ToolParserManager  # noqa: E402

FILE = Path(__file__).parents[2] / "streamtool" / "adapters" / "vllm_plugin.py"
END = 1
"""The token that ends a text."""


class Tokens:
    """A tokenizer with a token for each character."""

    eos_token_id = END
    all_special_ids = (END,)

    def get_vocab(self):
        return {}

    def decode(self, ids, **_):
        return "".join(map(chr, ids))

    def encode(self, text):
        return list(map(ord, text))


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Load the plugin as `--tool-parser-plugin FILE` does."""
    ToolParserManager.import_tool_parser(str(FILE))
    ReasoningParserManager.import_reasoning_parser(str(FILE))


def parser_class(*, reasoning):
    name = "streamtool"
    return ParserManager.get_parser(name, name if reasoning else None, enable_auto_tools=True, tokenizer=Tokens())


def request_of(case, **fields):
    tools = openai_tools(case) or None
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools, **fields)


def streamed(case, *, reasoning, prompt="", ends=True, seed=0, **fields):
    """Return what vLLM's server sends: the outcome and the finish reason."""
    request, parsers = request_of(case, **fields), parser_class(reasoning=reasoning)
    parser = parsers(Tokens(), request.tools)
    request = parser.adjust_request(request)
    processor = ChatStreamProcessor(request, parser, enable_auto_tools=True, parser_cls=parsers)
    steps = [(piece, Tokens().encode(piece), None) for piece in pieces_of(case, seed)]
    steps.append(("", [END], "stop") if ends else ("", [], "length"))
    text, thought, calls, ids, reason = "", "", [], [], None
    for piece, tokens, finish in steps:
        delta, reason = processor.step(piece, tokens, finish, Tokens().encode(prompt))
        for call in delta.tool_calls if delta else ():
            if call.id is not None:
                assert call.index == len(calls)
                calls.append((call.function.name, ""))
                ids.append(call.id)
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + (call.function.arguments or ""))
        text += (delta.content or "") if delta else ""
        thought += (delta.reasoning or "") if delta else ""
    if fields.get("tool_choice") != "none":
        assert [call["arguments"] for call in parser.tool_parser.prev_tool_call_arr] == [args for _, args in calls]
        assert parser.tool_parser.streamed_args_for_tool == [args for _, args in calls]
    assert len(set(ids)) == len(ids)
    return Outcome(text, calls, thought), reason


def whole(case, *, reasoning):
    request = request_of(case)
    parser = parser_class(reasoning=reasoning)(Tokens(), request.tools)
    thought, text, calls = parser.parse(case.text, request, enable_auto_tools=True)
    return Outcome(text or "", [(call.name, call.arguments) for call in calls or ()], thought or "")


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_streamed_reply_equals_the_result_of_the_parser(case, reasoning):
    expected = alone(case)
    found, reason = streamed(case, reasoning=reasoning)
    assert found == expected
    assert reason == ("tool_calls" if expected.calls else "stop")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_complete_reply_equals_the_result_of_the_parser(case):
    expected = alone(case)
    found = whole(case, reasoning=False)
    assert found.calls == expected.calls
    assert found.text == ("" if expected.calls and not expected.text.strip() else expected.text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_reasoning_parser_removes_reasoning_from_a_complete_reply(case):
    expected = alone(case)
    found = whole(case, reasoning=True)
    assert found.calls == expected.calls
    assert found.text == ("" if expected.calls and not expected.text.strip() else expected.text)
    assert expected.reasoning.startswith(found.reasoning)  # a complete reply has no field for reasoning after a call


WEATHER = next(case for case in CASES if case.format == "tool_call")


def reply(text, tools=("ping",)):
    return evolve(WEATHER, text=text, tools=list(tools))


CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": "b"}}\n</tool_call>'


def test_buffered_text_is_emitted_at_the_end():
    assert streamed(reply("1 < 2 and <tool_c"), reasoning=False) == (Outcome("1 < 2 and <tool_c", []), "stop")
    assert streamed(reply("1 <too"), reasoning=True, ends=False) == (Outcome("1 <too", []), "length")


def test_a_truncated_call_has_finish_reason_length():
    found, reason = streamed(reply(CALL[:-15]), reasoning=False, ends=False)
    assert (found.calls, reason) == ([("ping", '{"a": "b"')], "length")


def test_without_the_hook_the_last_token_ends_the_text(monkeypatch):
    monkeypatch.delattr(ToolParserManager.get_tool_parser("streamtool"), "finish_streaming")
    case = reply("1 <too")
    request = request_of(case)
    parser = ToolParserManager.get_tool_parser("streamtool")(Tokens(), request.tools)
    assert parser.extract_tool_calls_streaming("", "1 <too", "1 <too", [], [], [9], request).content == "1 "
    assert parser.extract_tool_calls_streaming("", "1 <too", "", [], [], [END], request).content == "<too"


def test_reasoning_opened_in_the_prompt():
    found, _ = streamed(reply(f"hm\n</think>\n\n{CALL}"), reasoning=True, prompt="<|im_start|>assistant\n<think>\n")
    assert found == Outcome("", [("ping", '{"a": "b"}')], "hm\n")


def test_reasoning_closed_in_the_prompt():
    found, _ = streamed(reply("Hi"), reasoning=True, prompt="<think>\n\n</think>\n\n")
    assert found == Outcome("Hi", [])


def test_tool_choice_none_and_requests_without_tools():
    assert streamed(reply(f"Hi\n{CALL}"), reasoning=False, tool_choice="none")[0] == Outcome("Hi", [])
    assert streamed(reply(f"Hi\n{CALL}", tools=()), reasoning=False)[0] == Outcome(f"Hi\n{CALL}", [])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "ping"}}])
def test_a_demanded_call_is_read_in_the_format_of_the_model(choice):
    assert streamed(reply(CALL), reasoning=False, tool_choice=choice)[0].calls == [("ping", '{"a": "b"}')]


@pytest.mark.parametrize("reasoning", [False, True])
def test_special_tokens_are_kept_in_the_text(reasoning):
    case = reply("")
    request = request_of(case)
    assert (
        parser_class(reasoning=reasoning)(Tokens(), request.tools).adjust_request(request).skip_special_tokens is False
    )


def test_responses_requests_support_tools_too():
    tool = {"type": "function", "name": "ping", "parameters": {"type": "object"}, "strict": False}
    request = ResponsesRequest(model="m", input="hi", tools=[tool])
    parser = parser_class(reasoning=True)(Tokens(), request.tools)
    request = parser.adjust_request(request)
    _, text, calls = parser.parse(CALL, request, enable_auto_tools=True)
    assert (text, [(call.name, call.arguments) for call in calls]) == (None, [("ping", '{"a": "b"}')])


def test_loading_the_plugin_by_path_does_not_affect_the_package():
    assert sys.modules["vllm"].__path__
    assert ToolParserManager.get_tool_parser("streamtool").__module__ == "vllm_plugin"
