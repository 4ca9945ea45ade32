"""The validators of Gemini's replies report each violated rule."""

import json
from typing import Any

import pytest
from support.validators import Violation, validate_gemini_error, validate_gemini_stream, validate_gemini_whole

REQUEST = {"tools": [{"functionDeclarations": [{"name": "ping"}]}], "contents": []}
NAMED = {"modelVersion": "m", "responseId": "r"}
USAGE = {"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3}}
CALL = {"functionCall": {"id": "call_1", "name": "ping", "args": {}}}


def chunk(*parts: Any, reason: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    ended = {} if reason is None else {"finishReason": reason}
    candidate = {"content": {"parts": list(parts), "role": "model"}, **ended, "index": index}
    return {"candidates": [candidate], **NAMED, **more}


TEXT, MADE = chunk({"text": "Hi."}), chunk(CALL)
LAST = chunk({"text": ""}, reason="STOP", **USAGE)
ERROR = {"error": {"code": 500, "message": "broken pipe", "status": "INTERNAL"}}


def stream(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)


def rules(problems: list[Violation]) -> set[str]:
    return {problem.rule for problem in problems}


def test_valid_replies_have_no_problem():
    assert validate_gemini_stream(stream(TEXT, MADE, LAST), REQUEST) == []
    assert validate_gemini_stream(json.dumps([TEXT, MADE, LAST]).encode(), REQUEST) == []
    assert validate_gemini_stream(stream(TEXT, ERROR), REQUEST) == []
    assert validate_gemini_whole(json.dumps(LAST).encode(), REQUEST) == []
    assert validate_gemini_error(json.dumps(ERROR).encode()) == []


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b": keep-alive\n\n" + stream(TEXT, LAST), "G1"),
        (b"event: x\n" + stream(TEXT, LAST), "G1"),
        (b"data: [DONE]\n\n" + stream(LAST), "G1"),
        (b"[]", "G1"),
        (json.dumps([TEXT, LAST]).encode()[:-1], "G1"),
        (stream({**TEXT, "responseId": None}, LAST), "G2"),
        (stream({**TEXT, "candidates": []}, LAST), "G2"),
        (stream(chunk(), LAST), "G3"),
        (stream(chunk({}), LAST), "G3"),
        (stream(chunk({"functionCall": {"name": "ping", "args": "{}"}}), LAST), "G3"),
        (stream(chunk({"functionCall": {"name": "pong", "args": {}}}), LAST), "G3"),
        (stream(MADE, MADE, LAST), "G3"),
        (stream(TEXT), "G4"),
        (stream(LAST, TEXT), "G4"),
        (stream(TEXT, chunk({"text": ""}, reason="tool_calls", **USAGE)), "G4"),
        (stream(TEXT, LAST, chunk({"text": ""}, reason="STOP", index=1, **USAGE)), "G4"),
        (stream(ERROR, LAST), "G5"),
        (stream(TEXT, {"error": {"message": "x"}}), "G5"),
        (stream(TEXT, chunk({"text": ""}, reason="STOP")), "G6"),
    ],
)
def test_each_rule_of_a_stream(data: bytes, rule: str):
    assert rule in rules(validate_gemini_stream(data, REQUEST))


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        ({**LAST, "modelVersion": None}, "GW1"),
        ({**LAST, "error": {}}, "GW1"),
        (chunk(reason="STOP", **USAGE), "GW2"),
        (chunk(CALL, CALL, reason="STOP", **USAGE), "GW2"),
        (chunk({"text": ""}, **USAGE), "GW3"),
        (chunk({"text": ""}, reason="STOP", index=1, **USAGE), "GW4"),
        (chunk({"text": ""}, reason="STOP"), "GW5"),
        ({**LAST, "usageMetadata": {**USAGE["usageMetadata"], "totalTokenCount": 9}}, "GW5"),
    ],
)
def test_each_rule_of_a_complete_reply(reply: dict[str, Any], rule: str):
    assert rule in rules(validate_gemini_whole(json.dumps(reply).encode(), REQUEST))


@pytest.mark.parametrize("body", [b"no", b'{"error":"x"}', b'{"x":1,"error":{"code":500,"message":"x","status":"I"}}'])
def test_the_shape_of_an_error(body: bytes):
    assert rules(validate_gemini_error(body)) == {"GE1"}
