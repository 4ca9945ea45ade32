"""The validators of Ollama's replies report each violated rule."""

import json
from typing import Any

import pytest
from support.validators import Violation, validate_ollama_error, validate_ollama_stream, validate_ollama_whole

REQUEST = {"tools": [{"type": "function", "function": {"name": "ping"}}]}
HEAD = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
END = {"done": True, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 2}
EMPTY = {"role": "assistant", "content": ""}
CALL = {"id": "call_1", "function": {"index": 0, "name": "ping", "arguments": {}}}


def line(message: Any = None, **more: Any) -> dict[str, Any]:
    return {**HEAD, "message": {**EMPTY, **(message or {})}, "done": False, **more}


TEXT, MADE, LAST = line({"content": "Hi."}), line({"tool_calls": [CALL]}), line(**END)


def stream(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def rules(problems: list[Violation]) -> set[str]:
    return {problem.rule for problem in problems}


def test_valid_replies_have_no_problem():
    assert validate_ollama_stream(stream(TEXT, MADE, LAST), REQUEST) == []
    assert validate_ollama_stream(stream(TEXT, {"error": "broken pipe"}), REQUEST) == []
    assert validate_ollama_whole(json.dumps({**MADE, **END}).encode(), REQUEST) == []
    assert validate_ollama_error(b'{"error":"no"}') == []


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (stream(TEXT, LAST)[:-1], "O1"),
        (stream(TEXT) + b"\n" + stream(LAST), "O2"),
        (stream(TEXT, []), "O2"),
        (stream({**TEXT, "created_at": 5}, LAST), "O3"),
        (stream({**TEXT, "message": {"role": "user", "content": "x"}}, LAST), "O3"),
        (stream(line({"tool_calls": [{"function": {"name": "ping", "arguments": "{}"}}]}), LAST), "O4"),
        (stream(line({"tool_calls": [{"function": {"name": "pong", "arguments": {}}}]}), LAST), "O4"),
        (stream(MADE, MADE, LAST), "O4"),
        (stream(TEXT), "O5"),
        (stream(LAST, TEXT), "O5"),
        (stream({"error": "x"}, LAST), "O6"),
        (stream(TEXT, {"error": {"message": "x"}}), "O6"),
        (stream(TEXT, {**LAST, "done_reason": "tool_calls"}), "O7"),
        (stream(TEXT, {**LAST, "eval_count": None}), "O7"),
    ],
)
def test_each_rule_of_a_stream(data: bytes, rule: str):
    assert rule in rules(validate_ollama_stream(data, REQUEST))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"model": None}, "OW1"),
        ({"done": False}, "OW1"),
        ({"message": None}, "OW2"),
        ({"message": {**EMPTY, "tool_calls": []}}, "OW2"),
        ({"message": {**EMPTY, "tool_calls": [CALL, CALL]}}, "OW3"),
        ({"done_reason": None}, "OW4"),
        ({"total_duration": 0.5}, "OW4"),
    ],
)
def test_each_rule_of_a_complete_reply(fields: dict[str, Any], rule: str):
    assert rule in rules(validate_ollama_whole(json.dumps({**LAST, **fields}).encode(), REQUEST))


@pytest.mark.parametrize("body", [b"no", b'{"error":""}', b'{"error":{"message":"x"}}', b'{"error":"x","done":true}'])
def test_the_shape_of_an_error(body: bytes):
    assert rules(validate_ollama_error(body)) == {"OE1"}
