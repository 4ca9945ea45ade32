"""Writing requests to Ollama, and reading its replies at every split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtool.core import sse
from streamtool.core.conversation import (
    Conversation,
    MediaPart,
    Message,
    Options,
    OutputFormat,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import RequestError, UpstreamError, UpstreamRefused
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
from streamtool.protocols import ollama
from streamtool.protocols.ollama import ReplyReader, write_request
from streamtool.settings import ModelSettings

MODEL = ModelSettings("llama3:8b")
HI = Message("user", (TextPart("hi"),))


class TestRequest:
    def write(self, *messages, model=MODEL, stream=True, **more):
        return json.loads(write_request(Conversation("chat", "asked", messages or (HI,), **more), model, stream=stream))

    def test_the_request_path(self):
        assert ollama.request_path(MODEL, stream=True) == "/api/chat"
        assert ollama.MODELS_PATH == "/api/tags"

    def test_a_minimal_request(self):
        assert self.write() == {
            "model": "llama3:8b",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
        }

    def test_a_whole_reply_is_requested_explicitly(self):
        assert self.write(stream=False)["stream"] is False

    def test_roles_and_reasoning(self):
        found = self.write(
            Message("system", (TextPart("be brief"), TextPart("be kind"))),
            HI,
            Message("assistant", (TextPart("hello"),), reasoning="hm"),
        )
        assert found["messages"] == [
            {"role": "system", "content": "be brief\nbe kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "thinking": "hm"},
        ]

    def test_images_are_separate_from_the_text_and_other_media_are_named(self):
        parts = (
            TextPart("look"),
            MediaPart("image", {}, "image/png", "AAAA"),
            MediaPart("image", {}, url="https://x/y.png"),
            MediaPart("audio", {}, "audio/wav", "BBBB"),
        )
        assert self.write(Message("user", parts))["messages"] == [
            {"role": "user", "content": "look\n[image]\n[audio]", "images": ["AAAA"]}
        ]

    def test_options(self):
        options = Options(
            stop=("END",),
            max_tokens=5,
            user="u",
            sampling={
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 3,
                "seed": 7,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.2,
            },
        )
        model = ModelSettings("m", context=8192)
        assert self.write(options=options, model=model)["options"] == {
            "num_ctx": 8192,
            "num_predict": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "seed": 7,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "stop": ["END"],
        }

    @pytest.mark.parametrize(
        ("name", "effort", "think"),
        [
            ("qwen3", "none", False),
            ("qwen3", "low", True),
            ("qwen3", "xhigh", True),
            ("gpt-oss:20b", "minimal", "low"),
            ("gpt-oss:20b", "high", "high"),
            ("gpt-oss:20b", "none", False),
        ],
    )
    def test_effort(self, name, effort, think):
        found = self.write(options=Options(effort=effort), model=ModelSettings(name))
        assert found["think"] == think

    def test_the_output_format(self):
        assert self.write(options=Options(output=OutputFormat()))["format"] == "json"
        schema = {"type": "object"}
        assert self.write(options=Options(output=OutputFormat(schema)))["format"] == schema

    def test_calls_and_results(self):
        found = self.write(
            HI,
            Message(
                "assistant", calls=(ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", ""), ToolCall("c3", "h", "{"))
            ),
            Message(
                "user",
                (TextPart("and?"),),
                results=(
                    ToolResult("c1", (TextPart("one"),)),
                    ToolResult("c2", (TextPart("no"),), error=True, name="gg"),
                ),
            ),
        )
        assert found["messages"][1:] == [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}},
                    {"id": "c2", "function": {"name": "g", "arguments": {}}},
                    {"id": "c3", "function": {"name": "h", "arguments": {"arguments": "{"}}},
                ],
            },
            {"role": "tool", "tool_name": "f", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_name": "gg", "tool_call_id": "c2", "content": "no"},
            {"role": "user", "content": "and?"},
        ]

    def test_results_alone_give_no_empty_message(self):
        found = self.write(
            HI, Message("assistant", calls=(ToolCall("c", "f", "{}"),)), Message("user", results=(ToolResult("c", ()),))
        )
        assert found["messages"][2:] == [{"role": "tool", "tool_name": "f", "tool_call_id": "c", "content": ""}]

    def test_tools(self):
        tools = (Tool("f", "does f", {"type": "object"}), Tool("g", custom=True), Tool("h"))
        assert self.write(tools=tools)["tools"] == [
            {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}}},
            {
                "type": "function",
                "function": {
                    "name": "g",
                    "description": "",
                    "parameters": {
                        "type": "object",
                        "properties": {"input": {"type": "string"}},
                        "required": ["input"],
                    },
                },
            },
            {
                "type": "function",
                "function": {"name": "h", "description": "", "parameters": {"type": "object", "properties": {}}},
            },
        ]

    def test_a_tool_choice_leaves_tools_out(self):
        tools = (Tool("f"), Tool("g"))
        found = self.write(tools=tools, choice=ToolChoice("required", ("g",)))
        assert [tool["function"]["name"] for tool in found["tools"]] == ["g"]
        assert "tools" not in self.write(tools=tools, choice=ToolChoice("none"))

    def test_fields_of_the_clients_protocol_are_dropped(self):
        message = Message("user", (TextPart("hi"),), raw=({"role": "user", "content": "hi", "name": "bob"},))
        found = self.write(message, raw={"model": "asked", "logit_bias": {}})
        assert found == {"model": "llama3:8b", "messages": [{"role": "user", "content": "hi"}], "stream": True}

    def test_several_choices_are_rejected(self):
        with pytest.raises(RequestError) as caught:
            self.write(options=Options(n=2))
        assert caught.value.param == "n"

    def test_an_unreadable_request_is_rejected(self):
        with pytest.raises(RequestError) as caught:
            write_request(Conversation("chat", "m", ()), MODEL, stream=True)
        assert caught.value.param == "messages"


def test_the_names_of_the_models():
    body = b'{"models":[{"name":"a:8b","model":"a:8b"},{"model":"b"},{},5]}'
    assert ollama.read_models(body) == ["a:8b", "b"]
    for bad in (b"[]", b"{}", b"<html>"):
        with pytest.raises(ValueError):
            ollama.read_models(bad)


# --- the reply -------------------------------------------------------------------------------------------------------


def line(message=None, done=False, **more) -> bytes:
    value = {"model": "m", "created_at": "2025-01-01T00:00:00Z", "done": done} | more
    if message is not None:
        value["message"] = {"role": "assistant"} | message
    return json.dumps(value).encode() + b"\n"


def text(content) -> bytes:
    return line({"content": content})


def call(name="f", arguments=None, **more) -> bytes:
    function = {"name": name, "arguments": {} if arguments is None else arguments}
    return line({"content": "", "tool_calls": [{"function": function} | more]})


START = ReplyStart(None, None, "m")
DONE = line({"content": ""}, True, done_reason="stop", prompt_eval_count=7, eval_count=3, total_duration=5)
STOP = [ReplyFinish(0, Reason.STOP), UsageReport(Usage(7, 3)), ReplyEnd()]


def read(*chunks: bytes):
    reader = ReplyReader()
    return [found for data in chunks for found in reader.feed(data)] + reader.close()


def failure(*chunks: bytes):
    last = read(*chunks)[-1]
    assert isinstance(last, ReplyFailure), last
    return last.error


def single(data: bytes):
    return read(*(data[i : i + 1] for i in range(len(data))))


class TestText:
    def test_a_plain_reply(self):
        assert read(text("Hel"), text("lo"), DONE) == [START, ReplyTextDelta(0, "Hel"), ReplyTextDelta(0, "lo"), *STOP]

    def test_pieces_are_emitted_immediately(self):
        reader = ReplyReader()
        assert reader.feed(text("a")) == [START, ReplyTextDelta(0, "a")]
        assert reader.feed(text("b") + text("c")[:9]) == [ReplyTextDelta(0, "b")]
        assert reader.feed(text("c")[9:] + text("d")) == [ReplyTextDelta(0, "c"), ReplyTextDelta(0, "d")]
        assert reader.feed(DONE) == STOP
        assert reader.ended
        assert reader.usage == Usage(7, 3)
        assert reader.feed(text("e")) == []
        assert reader.close() == []

    def test_reasoning(self):
        found = read(line({"content": "", "thinking": "hm"}), line({"thinking": "so", "content": "a"}), DONE)
        assert found == [
            START,
            ReplyReasoningDelta(0, "hm"),
            ReplyReasoningDelta(0, "so"),
            ReplyTextDelta(0, "a"),
            *STOP,
        ]

    def test_text_on_the_last_line(self):
        assert read(line({"content": "all"}, True, done_reason="stop")) == [
            START,
            ReplyTextDelta(0, "all"),
            ReplyFinish(0, Reason.STOP),
            ReplyEnd(),
        ]

    def test_split_surrogate_pairs(self):
        data = text("a\ud83d"), text("\ude00b"), text("\ud83d"), DONE
        assert read(*data)[1:4] == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "😀b"), ReplyTextDelta(0, "\ufffd")]

    def test_bytes_that_are_not_utf8(self):
        assert read(text("hi").replace(b"hi", b"h\xffi"), DONE)[1] == ReplyTextDelta(0, "h\ufffdi")

    @pytest.mark.parametrize("message", [{}, {"content": None}, {"content": 5}, {"content": "", "tool_calls": None}])
    def test_empty_messages(self, message):
        assert read(line(message), DONE) == [START, *STOP]


class TestCalls:
    def test_a_call_arrives_complete_and_the_reason_is_a_stop(self):
        found = read(call("get_weather", {"city": "Paris", "n": 1.5}), DONE)
        assert found == [
            START,
            ReplyCallStart(0, 0, None, "get_weather"),
            ReplyArgumentsDelta(0, 0, '{"city":"Paris","n":1.5}'),
            ReplyCallEnd(0, 0),
            *STOP,
        ]

    def test_several_calls(self):
        both = line({"content": "x", "tool_calls": [{"id": "c1", "function": {"name": "f"}}, {"function": {}}, 5]})
        assert read(both, call("g", '{"a":1}'), DONE)[1:-3] == [
            ReplyTextDelta(0, "x"),
            ReplyCallStart(0, 0, "c1", "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, None, "g"),
            ReplyArgumentsDelta(0, 1, '{"a":1}'),
            ReplyCallEnd(0, 1),
        ]


class TestEnd:
    @pytest.mark.parametrize(
        ("word", "reason"),
        [
            ("stop", Reason.STOP),
            ("length", Reason.LENGTH),
            ("load", Reason.STOP),
            ("unload", Reason.STOP),
            (None, Reason.STOP),
            (5, Reason.STOP),
        ],
    )
    def test_reasons(self, word, reason):
        assert read(text("a"), line({"content": ""}, True, done_reason=word))[-2:] == [
            ReplyFinish(0, reason),
            ReplyEnd(),
        ]

    def test_a_cached_prompt_has_no_count(self):
        assert read(line({"content": "a"}, True, eval_count=3))[-2:] == [UsageReport(Usage(0, 3)), ReplyEnd()]

    def test_a_last_line_without_its_newline(self):
        assert read(text("a"), DONE.rstrip()) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_a_last_line_without_a_message(self):
        assert read(line(None, True)) == [START, ReplyFinish(0, Reason.STOP), ReplyEnd()]

    @pytest.mark.parametrize("data", [b"", b" \n", text("a"), text("a") + DONE[:20], DONE[:20], b"\xef\xbb"])
    def test_a_truncated_stream_is_a_failure(self, data):
        assert failure(data).code == "upstream_closed"
        assert single(data)[-1].error.code == "upstream_closed"


class TestErrors:
    def test_an_error_after_the_reply_has_begun(self):
        error = failure(text("a"), b'{"error":"an error was encountered while running the model"}\n', DONE)
        assert type(error) is UpstreamError
        assert error.message == "an error was encountered while running the model"

    def test_an_error_is_emitted_immediately(self):
        reader = ReplyReader()
        [found] = reader.feed(b'{"error":"no"}\n')
        assert isinstance(found, ReplyFailure)

    @pytest.mark.parametrize(
        "body",
        [
            b'{"error":"boom"}',
            b'{"error":{"message":"boom"}}\n',
            b'{\n  "error": "boom"\n}\n',
            b'[{"error":"boom"}]',
            b'{"detail":"boom"}',
            b'{\n"message": "boom"\n}',
            b'data: {"error":"boom"}\n\n',
            b'event: error\ndata: {"message":"boom"}\n\n',
            b"event: error\ndata: boom\n\n",
        ],
    )
    def test_an_error_as_a_whole_body(self, body):
        assert failure(body).message == "boom"
        assert single(body)[-1].error.message == "boom"

    def test_a_web_page(self):
        page = b"\n<!DOCTYPE html><html><title>502 Bad Gateway</title></html>"
        assert "502 Bad Gateway" in failure(page).message
        assert "502 Bad Gateway" in single(page)[-1].error.message

    def test_plain_text(self):
        assert "404 page not found" in failure(b"404 page not found").message

    def test_a_damaged_line_is_a_failure(self):
        assert failure(text("a"), b'{"message":{"content":"a}\n', DONE).code == "upstream_unreadable"

    def test_text_between_the_lines_is_ignored(self):
        assert read(text("a"), b"\n", b"ping\r\n", DONE) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_the_error_of_a_rejected_request(self):
        error = ollama.read_error(404, b'{"error":"model \\"x\\" not found"}')
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.message) == (404, 'model "x" not found')

    def test_the_buffer_is_bounded(self, monkeypatch):
        monkeypatch.setattr(sse, "MAX_BUFFERED", 100)
        assert failure(b'{"message":"', *[b"x" * 30] * 4).code == "reply_too_large"
        assert failure(b"{\n", *[b'"x":"y",\n' * 3] * 6).code == "reply_too_large"


class TestOtherShapes:
    WHOLE = json.loads(line({"content": "hi"}, True, done_reason="length", eval_count=1))
    EVENTS = (START, ReplyTextDelta(0, "hi"), ReplyFinish(0, Reason.LENGTH), UsageReport(Usage(0, 1)), ReplyEnd())

    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("before", [b"", b"\n", b"\xef\xbb\xbf"])
    def test_a_single_document(self, indent, before):
        body = before + json.dumps(self.WHOLE, indent=indent).encode()
        assert read(body) == list(self.EVENTS)
        assert single(body) == list(self.EVENTS)

    def test_a_document_without_done(self):
        body = json.dumps({"model": "m", "message": {"content": "hi"}}, indent=1).encode()
        assert read(body) == [START, ReplyTextDelta(0, "hi"), ReplyFinish(0, Reason.STOP), ReplyEnd()]

    def test_a_truncated_document(self):
        assert failure(json.dumps(self.WHOLE, indent=1).encode()[:-5]).code == "upstream_closed"

    def test_an_event_stream(self):
        body = b": hello\n\n" + b"".join(b"data: " + each + b"\n" for each in (text("a"), call(), DONE))
        expected = [
            START,
            ReplyTextDelta(0, "a"),
            ReplyCallStart(0, 0, None, "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            *STOP,
        ]
        assert read(body) == expected
        assert single(body) == expected

    def test_the_end_marker_of_an_event_stream(self):
        body = b"data: " + text("a") + b"\ndata: [DONE]\n\n"
        assert read(body) == [START, ReplyTextDelta(0, "a"), ReplyFinish(0, Reason.STOP), ReplyEnd()]

    def test_lines_may_end_in_crlf(self):
        assert read(text("a").replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")) == [
            START,
            ReplyTextDelta(0, "a"),
            *STOP,
        ]


words = st.text(max_size=6) | st.sampled_from(["\ud83d", "\ude00", "x\ud83d", '"', "\n", "€", "\u2028"])
lines = st.one_of(
    words.map(text),
    words.map(lambda word: line({"thinking": word})),
    words.map(lambda word: call("f", {"a": word})),
    st.sampled_from([b"\n", b"\r\n", b"ping\n", b"5\n", b'{"x":\n', b'{"error":"no"}\n', b"{}\n", b"[]\n", DONE]),
)


def shown(event):
    """Return the event, or the code of a failure, since its message may quote everything received so far."""
    return event.error.code if isinstance(event, ReplyFailure) else event


@given(st.lists(lines, max_size=8), st.lists(st.integers(0, 1500), max_size=8))
def test_any_split_gives_the_same_reply(items, cuts):
    data = b"".join(items)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = read(data)
    for found in (read(*(data[borders[i] : borders[i + 1]] for i in range(len(borders) - 1))), single(data)):
        assert [shown(event) for event in found] == [shown(event) for event in whole]
    for found in whole:
        if isinstance(found, ReplyTextDelta | ReplyReasoningDelta | ReplyArgumentsDelta):
            found.text.encode()


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b'{"' + data))
def test_nothing_raises(data):
    found = read(data)
    assert isinstance(found[-1], ReplyFailure | ReplyEnd)
    assert single(data)[-1].__class__ is found[-1].__class__


def test_a_line_in_a_thousand_pieces_is_joined_once():
    body = text("x" * 100_000)
    reader = ReplyReader()
    for at in range(0, len(body) - 1, 100):
        reader.feed(body[at : at + 100] if at + 100 < len(body) else body[at:-1])
    assert len(reader._lines._pieces) > 1000
    assert reader.feed(b"\n") == [START, ReplyTextDelta(0, "x" * 100_000)]
    assert reader._lines._held == 0
