"""Integers with more digits than Python converts, and brackets nested more deeply than Python reads."""

import pytest
from support.statemachine_fold import calls_of, outcome, pieces

DIGITS = "1" * 5000
TOOLS = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"properties": {"c": {"type": "integer"}}}}}
}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"a": N}, "name": "f"}</tool_call>', '{"a": N}'),
        ('<tool_call>{"name": "f", "stuff": {"a": N}}</tool_call>', '{"a": N}'),
        ('<tool_call>{"name": "f", "arguments": {}, "input": {"a": N}}</tool_call>', '{"a": N}'),
        ('<tool_call>{"name": "f", "arguments": {"c": N}}</tool_call>', '{"b": {"c": N}}'),
        ('<invoke name="f" a="N"></invoke>', '{"a": N}'),
    ],
)
def test_a_long_integer_is_kept(text: str, arguments: str) -> None:
    (call,) = calls_of(outcome(pieces(text.replace("N", DIGITS), 0), TOOLS))
    assert (call.arguments, call.complete) == (arguments.replace("N", DIGITS), True)


def test_deep_brackets_in_an_attribute_are_a_string() -> None:
    (call,) = calls_of(outcome([f'<invoke name="f" a="{"[" * 50_000}"></invoke>'], TOOLS))
    assert call.arguments == '{"a": "' + "[" * 50_000 + '"}'
