"""`parse_response` of a tokenizer: a minimal one, and one of transformers where it is installed."""

import json

import pytest
from support.engine_cases import CASES, Outcome, alone, openai_tools
from support.response_templates import TEMPLATES
from support.sweeps import each

from streamtool.adapters.transformers import install

CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": "b"}}\n</tool_call>'
PING = [{"type": "function", "function": {"name": "ping", "arguments": {"a": "b"}}}]


class Letters:
    """A tokenizer with a token for each character."""

    def decode(self, ids):
        return [self.decode(each) for each in ids] if ids and isinstance(ids[0], list) else "".join(map(chr, ids))


@pytest.fixture
def tokenizer():
    made = Letters()
    install(made)
    return made


@each("case", CASES, ids=lambda case: case.id)
def test_a_reply_equals_the_result_of_the_parser(tokenizer, case):
    found = tokenizer.parse_response(case.text, prefix="", tools=openai_tools(case))
    calls = [call["function"] for call in found.get("tool_calls", ())]
    written = [
        (call["name"], args if isinstance(args := call["arguments"], str) else json.dumps(args)) for call in calls
    ]
    expected = alone(case)
    assert Outcome(found.get("content", ""), [], found.get("thinking", "")) == Outcome(
        expected.text, [], expected.reasoning
    )
    for (name, arguments), (same, whole) in zip(written, expected.calls, strict=True):
        assert name == same
        assert arguments == whole or json.loads(arguments) == json.loads(whole)


def test_tokens_and_batches(tokenizer):
    ids = list(map(ord, CALL))
    assert tokenizer.parse_response(ids, prefix=[]) == {"role": "assistant", "tool_calls": PING}
    assert tokenizer.parse_response([CALL, "Hi"], prefix="") == [
        {"role": "assistant", "tool_calls": PING}, {"role": "assistant", "content": "Hi"}
    ]  # fmt: skip
    assert tokenizer.parse_response([ids, ids], prefix="")[1]["tool_calls"] == PING


def test_reasoning_opened_in_the_prompt(tokenizer):
    found = tokenizer.parse_response("hm</think>Hi", prefix="<|im_start|>assistant\n<think>\n")
    assert found == {"role": "assistant", "thinking": "hm", "content": "Hi"}


def test_the_response_template_of_the_tokenizer_is_read():
    made = Letters()
    made.response_template = TEMPLATES["delimited_strings"]
    install(made)
    own = "<|lane>muse\nhm<lane|><|do>do:ping{a:<|~|>b<|~|>}<do|>"
    assert made.parse_response(own, prefix="") == {"role": "assistant", "thinking": "\nhm", "tool_calls": PING}
    assert made.parse_response(CALL, prefix="") == {"role": "assistant", "tool_calls": PING}


def test_a_truncated_call_keeps_the_text_of_its_arguments(tokenizer):
    found = tokenizer.parse_response(CALL[:-20], prefix="", tools=["ping"])
    assert found["tool_calls"][0]["function"] == {"name": "ping", "arguments": '{"a"'}


@pytest.mark.engines
def test_a_tokenizer_of_transformers():
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError)
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=model)
    with pytest.raises(AttributeError):
        made.parse_response(CALL, prefix="")
    install(made)
    assert made.parse_response(CALL, prefix="") == {"role": "assistant", "tool_calls": PING}
    assert made.response_template is not None
