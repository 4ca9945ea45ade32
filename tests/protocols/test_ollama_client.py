"""Reading requests of Ollama clients, and passing them to an upstream of the same protocol."""

import json
from typing import Any

import pytest

from streamtool.core.conversation import Message, OutputFormat, TextPart, ToolCall, ToolResult
from streamtool.core.errors import RequestError
from streamtool.exchange.exchange import Exchange
from streamtool.protocols import ollama
from streamtool.protocols.registry import client_protocol
from streamtool.settings import LimitSettings, Settings

LIMITS = LimitSettings()
PNG = "iVBORw0KGgo="
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


def read(**fields: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return ollama.read_request(json.dumps(body).encode(), LIMITS)


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"x": 1}}, **more}


def test_a_reply_is_streamed_by_default():
    assert read().stream
    assert not read(stream=False).stream


def test_results_without_ids_answer_the_first_open_call_of_their_tool():
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b"), call("a", id="call_2")]},
        {"role": "tool", "tool_name": "b", "content": "of b"},
        {"role": "tool", "tool_name": "a", "content": "first of a"},
        {"role": "tool", "content": "what is left"},
    ]
    found = read(messages=messages).messages
    assert found[1].calls == tuple(
        ToolCall(id, name, '{"x":1}') for id, name in (("call_1", "a"), ("call_3", "b"), ("call_2", "a"))
    )
    assert found[2].results == (
        ToolResult("call_3", (TextPart("of b"),), name="b"),
        ToolResult("call_1", (TextPart("first of a"),), name="a"),
        ToolResult("call_2", (TextPart("what is left"),), name="a"),
    )
    assert found[2].raw == tuple(messages[2:])


def test_options():
    options = {"temperature": 0.5, "num_predict": 9, "stop": ["END"], "seed": 3, "top_k": 4, "num_ctx": 8192}
    found = read(options=options, think="low", format={"type": "object"}).options
    assert found.sampling == {"temperature": 0.5, "seed": 3, "top_k": 4}
    assert (found.max_tokens, found.stop) == (9, ("END",))
    assert (found.effort, found.thinking, found.output) == ("low", None, OutputFormat({"type": "object"}))
    assert (read(think=False).options.effort, read(think=False).options.thinking) == ("none", False)
    assert read(format="json").options.output == OutputFormat()
    assert read(options={"num_predict": -1}).options.max_tokens is None


def test_images_are_read_next_to_the_text():
    (message,) = read(messages=[{"role": "user", "content": "what?", "images": [PNG]}]).messages
    assert message.content[0] == TextPart("what?")
    assert (message.content[1].kind, message.content[1].type, message.content[1].data) == ("image", "image/png", PNG)


def test_a_prompt_is_a_user_message():
    protocol = client_protocol("ollama", "/api/generate")
    found = protocol.read_request(b'{"model": "m", "prompt": "hi", "system": "Be short."}', LIMITS)
    assert found.messages == (Message("system", (TextPart("Be short."),)), Message("user", (TextPart("hi"),)))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "images": [1]}]}, "messages[0].images"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": [call("a")]}]}, "messages"),
        ({"tools": [TOOL, {**TOOL, "function": {"name": "ping"}}]}, "tools[1]"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"format": 3}, "format"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_invalid_values_are_rejected_with_their_place(fields: dict[str, Any], param: str):
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert ollama.write_error(caught.value).startswith(b'{"error":"')


def exchange(body: dict[str, Any], path: str = "/api/chat", **options: Any) -> Exchange:
    settings = Settings(app_protocol="ollama", **options)
    wire = client_protocol("ollama", path)
    return Exchange(settings, wire, json.dumps(body).encode(), (), new_id=lambda prefix: f"{prefix}1", now=86400 * 59)


def test_unchanged_fields_are_passed_on_to_an_ollama_upstream():
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi", "odd": 1},
            {"role": "assistant", "content": "yes", "odd": 2},
            {"role": "user", "content": "go"},
        ],
        "tools": [TOOL],
        "keep_alive": "5m",
        "options": {"num_ctx": 4096, "mirostat": 1, "stop": ["END"]},
    }
    sent = json.loads(exchange(body).request().body)
    assert sent["messages"][2] == {"role": "assistant", "content": "yes", "odd": 2}
    assert (sent["keep_alive"], sent["options"]) == ("5m", {"num_ctx": 4096, "mirostat": 1})
    assert "tools" not in sent
    native = json.loads(exchange(body, mode="native").request().body)
    assert (native["tools"], native["messages"][0]) == ([TOOL], {"role": "user", "content": "hi", "odd": 1})


def test_a_request_without_tools_is_unchanged_except_for_the_model():
    body = {"model": "m", "prompt": "hi", "raw": True}
    passed = exchange(body, "/api/generate")
    assert passed.passthrough
    assert passed.request().body == json.dumps(body).encode()
    renamed = exchange(body, "/api/generate", models=[{"match": "m", "use": "other"}]).request()
    assert (renamed.path, json.loads(renamed.body)) == (None, {**body, "model": "other"})


def test_text_is_sent_immediately_and_a_call_when_it_is_complete():
    """Also checks the reply's time: 1 March 1970 is day 60 of its year, counted from 1."""
    running = exchange({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]})
    running.request()
    running.respond(200, ())
    out = [
        running.feed(json.dumps({"message": {"role": "assistant", "content": piece}, "done": False}).encode() + b"\n")
        for piece in ("So.", '\n<tool_call>{"name": "ping", "arguments": {"x":\n', "1}}</tool_call>")
    ]
    assert [json.loads(line)["message"]["content"] for line in out[:1]] == ["So."]
    assert json.loads(out[0])["created_at"] == "1970-03-01T00:00:00Z"
    assert out[1] == b""
    (made,) = json.loads(out[2])["message"]["tool_calls"]
    assert made["function"] == {"index": 0, "name": "ping", "arguments": {"x": 1}}


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "1970-01-01T00:00:00Z"), (951782400, "2000-02-29T00:00:00Z"), (1796083199, "2026-11-30T23:59:59Z")],
)
def test_times_are_written_as_dates(seconds: int, written: str):
    from streamtool.protocols.ollama.complete import head_fields

    assert head_fields("m", seconds)["created_at"] == written
