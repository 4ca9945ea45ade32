"""Reading requests of Gemini clients, passing them to an upstream of the same protocol, and arrays."""

import json
from typing import Any

import pytest
from support.validators import assert_valid, validate_gemini_stream

from streamtool.core.conversation import OutputFormat, TextPart, ToolCall, ToolChoice, ToolResult
from streamtool.core.errors import RequestError, UpstreamError
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyFailure,
    ReplyFinish,
    ReplyStart,
    ReplyTextDelta,
)
from streamtool.exchange.exchange import Exchange
from streamtool.protocols import gemini
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.table import PATHS, at_path
from streamtool.settings import LimitSettings, Settings

LIMITS = LimitSettings()
PATH = "/v1beta/models/m:streamGenerateContent"
ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
DECLARED = {"name": "ping", "parametersJsonSchema": {"type": "object", "properties": {}}}
TOOLS = [{"functionDeclarations": [DECLARED]}]


def read(**fields: Any) -> Any:
    return gemini.read_request(json.dumps({**ASKED, **fields}).encode(), LIMITS, model="m")


def test_the_path_gives_the_model_and_whether_the_reply_is_streamed():
    for path, model, stream in (
        ("/v1beta/models/m:generateContent", "m", False),
        ("/v1/models/org/m:latest:streamGenerateContent?alt=sse", "org/m:latest", True),
    ):
        found = client_protocol("gemini", path).read_request(json.dumps(ASKED).encode(), LIMITS)
        assert (found.model, found.stream) == (model, stream)


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/:generateContent",
        "/v1beta/models/../m:generateContent",
        "/v1beta/models/a//b:generateContent",
        "/v1beta/models/m:embedContent",
        "/v1beta/models/m:generateContent/",
        "/x/v1beta/models/m:generateContent",
    ],
)
def test_an_ambiguous_path_is_not_served(path: str):
    assert at_path(PATHS, path) is None
    assert at_path(PATHS, "/v1beta/models/org/m:generateContent") == "gemini"


def test_uppercase_types_become_json_schema():
    parameters = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True, "enum": ["a", "b"]},
            "many": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2"},
            "either": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        },
        "required": ["type"],
        "propertyOrdering": ["type", "many"],
    }
    (tool,) = read(tools=[{"function_declarations": [{"name": "f", "parameters": parameters}]}]).tools
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["a", "b", None]},
            "many": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
            "either": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        },
        "required": ["type"],
    }


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, ToolChoice()),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["ping"]}, ToolChoice(names=("ping",))),
        ({"mode": "ANY"}, ToolChoice("required")),
        ({"mode": "any", "allowed_function_names": ["ping"]}, ToolChoice("required", ("ping",))),
        ({"mode": "NONE"}, ToolChoice("none")),
    ],
)
def test_the_mode_is_a_tool_choice(config: dict[str, Any], choice: ToolChoice):
    assert read(tools=TOOLS, toolConfig={"functionCallingConfig": config}).choice == choice


def test_history_with_and_without_ids():
    def made(x: int, **more: Any) -> dict[str, Any]:
        return {"functionCall": {"name": "ping", "args": {"x": x}, **more}}

    def result(response: Any, **more: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": "ping", "response": response, **more}}

    contents = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"text": "Let "}]},
        {"role": "model", "parts": [{"text": "me."}, {"text": "hm", "thought": True}]},
        {"role": "model", "parts": [{**made(1), "thoughtSignature": "sig"}, made(2, id="own"), {"text": ""}]},
        {"role": "function", "parts": [result({"output": "one"}), result({"error": "two"}, id="own")]},
        {"parts": [{"text": "And?"}, {"inline_data": {"mime_type": "image/png", "data": "iVBO"}}]},
    ]
    found = read(contents=contents).messages
    assert (found[1].content, found[1].reasoning) == ((TextPart("Let me."),), "hm")
    assert found[1].calls == (
        ToolCall("call_1", "ping", '{"x":1}', signature="sig"),
        ToolCall("own", "ping", '{"x":2}'),
    )
    assert found[2].results == (
        ToolResult("call_1", (TextPart("one"),), name="ping"),
        ToolResult("own", (TextPart("two"),), error=True, name="ping"),
    )
    assert (found[3].content[1].kind, found[3].content[1].type) == ("image", "image/png")


def test_options_and_system_instruction():
    config = {
        "temperature": 0.5, "topP": 0.9, "topK": 40.0, "max_output_tokens": 9, "stopSequences": ["END"], "seed": 1,
        "candidateCount": 2, "responseMimeType": "application/json", "responseSchema": {"type": "STRING"},
        "thinkingConfig": {"thinkingBudget": 0},
    }  # fmt: skip
    found = read(generation_config=config, system_instruction={"parts": [{"text": "Be short."}]})
    assert found.messages[0].content == (TextPart("Be short."),)
    options = found.options
    assert options.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 1}
    assert (options.stop, options.max_tokens, options.n) == (("END",), 9, 2)
    assert (options.effort, options.thinking) == ("none", False)
    assert options.output == OutputFormat({"type": "string"})
    assert read(generationConfig={"thinkingConfig": {"thinkingLevel": "HIGH"}}).options.effort == "high"


CAPITALS = {
    "type": "OBJECT",
    "properties": {
        "type": {"type": "STRING", "enum": ["STRING", "OBJECT"], "nullable": True},
        "list": {"type": ["ARRAY", "NULL"], "items": {"$ref": "#/$defs/item"}, "maxItems": "3"},
        "either": {"oneOf": [{"type": "INTEGER"}, {"allOf": [{"type": "NUMBER"}, {"not": {"type": "BOOLEAN"}}]}]},
    },
    "$defs": {"item": {"type": "OBJECT", "patternProperties": {"^x": {"type": "STRING"}}}},
}
LOWERED = {
    "type": "object",
    "properties": {
        "type": {"type": ["string", "null"], "enum": ["STRING", "OBJECT", None]},
        "list": {"type": ["array", "null"], "items": {"$ref": "#/$defs/item"}, "maxItems": 3},
        "either": {"oneOf": [{"type": "integer"}, {"allOf": [{"type": "number"}, {"not": {"type": "boolean"}}]}]},
    },
    "$defs": {"item": {"type": "object", "patternProperties": {"^x": {"type": "string"}}}},
}


@pytest.mark.parametrize("key", ["responseJsonSchema", "response_json_schema", "responseSchema"])
def test_an_output_schema_with_types_in_capitals_is_lowered(key: str):
    config = {"responseMimeType": "application/json", key: CAPITALS}
    assert read(generationConfig=config).options.output == OutputFormat(LOWERED)


def test_json_schema_is_unchanged():
    schema = {"type": "object", "properties": {"a": {"type": "string", "example": "x", "nullable": True}}}
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    assert read(generationConfig=config).options.output == OutputFormat(schema)


@pytest.mark.parametrize("key", ["parametersJsonSchema", "parameters"])
def test_parameters_with_types_in_capitals_are_lowered(key: str):
    tools = [{"functionDeclarations": [{"name": "f", key: CAPITALS}]}]
    assert read(tools=tools).tools[0].parameters == LOWERED


def test_tools_that_only_the_origin_runs_are_left_out():
    found = read(tools=[*TOOLS, {"googleSearch": {}}])
    assert [tool.name for tool in found.tools] == ["ping"]
    assert found.dropped == ("tool of type googleSearch",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "robot", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"role": "user", "parts": [{"text": 3}]}]}, "contents[0].parts[0].text"),
        ({"contents": [{"parts": [{"functionCall": {}}]}]}, "contents[0].parts[0].functionCall"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]}, "contents"),
        ({"tools": [{"functionDeclarations": [{"name": "a b"}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
        (
            {"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        ({"generationConfig": {"topP": "much"}}, "generationConfig.topP"),
    ],
)
def test_invalid_values_are_rejected_with_their_place(fields: dict[str, Any], param: str):
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert json.loads(gemini.write_error(caught.value))["error"]["status"] == "INVALID_ARGUMENT"


# --- towards an upstream


def exchange(body: dict[str, Any], path: str = PATH, upstream: str = "gemini", **options: Any) -> Exchange:
    settings = Settings(app_protocol=upstream, **options)
    wire = client_protocol("gemini", path)
    return Exchange(settings, wire, json.dumps(body).encode(), (), new_id=lambda prefix: f"{prefix}1", now=1)


def test_unchanged_fields_are_passed_on_to_a_gemini_upstream():
    body = {
        "contents": [*ASKED["contents"], {"role": "model", "parts": [{"text": "yes"}], "odd": 1}, *ASKED["contents"]],
        "tools": TOOLS,
        "safetySettings": [{"category": "X"}],
        "generationConfig": {"stopSequences": ["END"], "temperature": 1, "odd": 2},
    }
    request = exchange(body, "/v1/models/m:generateContent").request()
    sent = json.loads(request.body)
    assert request.path == "/v1beta/models/m:streamGenerateContent?alt=sse"
    assert sent["contents"][1] == {"role": "model", "parts": [{"text": "yes"}], "odd": 1}
    assert sent["safetySettings"] == [{"category": "X"}]
    assert sent["generationConfig"] == {"temperature": 1, "odd": 2}
    assert "tools" not in sent
    assert json.loads(exchange(body, mode="native").request().body)["tools"] == TOOLS


def test_a_request_without_tools_is_unchanged_except_for_the_model():
    passed = exchange(ASKED)
    assert passed.passthrough
    assert passed.request().body == json.dumps(ASKED).encode()
    assert passed.request().path is None
    renamed = exchange(ASKED, f"{PATH}?x=1", models=[{"match": "m", "use": "other/one"}]).request()
    assert renamed.path == "/v1beta/models/other%2Fone:streamGenerateContent?x=1"
    assert json.loads(renamed.body)["contents"] == ASKED["contents"]


# --- arrays

CHUNK = '{"choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}'


def piece(text: str) -> bytes:
    return f"data: {CHUNK % json.dumps(text)}\n\n".encode()


@pytest.mark.parametrize(("end", "error"), [("stop", False), (None, True)])
def test_the_elements_of_an_array_are_sent_one_by_one(end: str | None, error: bool):
    running = exchange({**ASKED, "tools": TOOLS}, upstream="chat")
    running.request()
    running.respond(200, ())
    out = [running.feed(piece(text)) for text in ("Sunny ", "day.", '\n<tool_call>{"name": "ping", "argu')]
    assert out[0].startswith(b'[{"candidates":[{"content":{"parts":[{"text":"Sunny "}]')
    assert out[1].startswith(b',\n{"candidates":[{"content":{"parts":[{"text":"day."}]')
    assert out[2] == b""
    out.append(running.feed(piece('ments": {}}</tool_call>')))
    assert running.keepalive() == b"\n"
    if end is not None:
        out.append(
            running.feed(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        )
    out.append(running.close())
    data = b"".join(out)
    assert_valid(validate_gemini_stream(data, {**ASKED, "tools": TOOLS}, headers=running.head.headers))
    elements = json.loads(data)
    assert elements[2]["candidates"][0]["content"]["parts"][0]["functionCall"]["name"] == "ping"
    assert ("error" in elements[-1]) is error


@pytest.mark.parametrize(("limit", "reason"), [({"maxOutputTokens": 9}, "MAX_TOKENS"), ({}, "MALFORMED_FUNCTION_CALL")])
def test_a_truncated_call_is_not_shown(limit: Any, reason: str):
    """Gemini CLI tries again after a malformed call, but not after a limit. Only the client's own limit is one."""
    asked = {**ASKED, "tools": TOOLS, "generationConfig": limit}
    running = exchange(asked, "/v1/models/m:streamGenerateContent?alt=sse", "chat")
    running.request()
    running.respond(200, ())
    data = running.feed(piece('So. <tool_call>{"name": "ping", "arguments": {"x": '))
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    data += running.feed(f"data: {end}\n\ndata: [DONE]\n\n".encode()) + running.close()
    candidates = [json.loads(line[6:])["candidates"][0] for line in data.decode().splitlines() if line]
    assert [one["content"]["parts"] for one in candidates] == [[{"text": "So. "}], [{"text": ""}]]
    assert candidates[-1]["finishReason"] == reason


def test_a_reply_that_is_not_streamed_contains_no_truncated_call():
    running = exchange({**ASKED, "tools": TOOLS}, "/v1/models/m:generateContent", "chat")
    running.request()
    running.respond(200, ())
    running.feed(piece('So. <tool_call>{"name": "ping", "arguments": {"x": '))
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    reply = json.loads(running.feed(f"data: {end}\n\ndata: [DONE]\n\n".encode()) + running.close())
    (candidate,) = reply["candidates"]
    assert (candidate["finishReason"], candidate["content"]["parts"]) == ("MAX_TOKENS", [{"text": "So. "}])


def test_an_error_in_a_stream_of_events_is_bare():
    """Older JavaScript SDKs ignore an error in an event, and newer ones a complete event without data."""
    writer = gemini.ReplyWriter(read(), id="r", created=1, model="m")
    writer.feed([ReplyStart(), ReplyTextDelta(0, "So.")])
    data = writer.feed([ReplyFailure(UpstreamError("gone"))])
    assert json.loads(data)["error"]["message"] == "gone"
    assert data.endswith(b"}\n")


def test_a_broken_call_in_the_middle_of_a_reply_is_malformed():
    events = [
        ReplyCallStart(0, 0, "c", "ping"),
        ReplyArgumentsDelta(0, 0, '{"x": '),
        ReplyCallEnd(0, 0, complete=False),
    ]
    over = [ReplyTextDelta(0, "Oh."), ReplyFinish(0, Reason.STOP), ReplyEnd()]
    data = gemini.ReplyWriter(read(), id="r", created=1, model="m").feed([*events, *over])
    assert_valid(validate_gemini_stream(data))
    chunks = [json.loads(line[6:]) for line in data.decode().split("\n") if line]
    assert [chunk["candidates"][0]["content"]["parts"][0] for chunk in chunks] == [{"text": "Oh."}, {"text": ""}]
    assert chunks[-1]["candidates"][0]["finishReason"] == "MALFORMED_FUNCTION_CALL"
