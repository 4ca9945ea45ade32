"""Writing requests to Gemini, and reading its replies in every known shape."""

import json
import time

import ijson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import each

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
from streamtool.protocols import gemini
from streamtool.protocols.gemini import ReplyReader, write_request
from streamtool.protocols.gemini.array import ArrayReader
from streamtool.settings import ModelSettings

MODEL = ModelSettings("gemini-2.5-flash")
HI = Message("user", (TextPart("hi"),))
ASKED = {"role": "user", "parts": [{"text": "hi"}]}


class TestRequest:
    def write(self, *messages, **more):
        conversation = Conversation("chat", "asked", messages or (HI,), **more)
        return json.loads(write_request(conversation, MODEL, stream=True))

    @pytest.mark.parametrize("name", ["gemini-2.5-flash", "models/gemini-2.5-flash"])
    def test_the_request_path(self, name):
        model = ModelSettings(name)
        assert (
            gemini.request_path(model, stream=True) == "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
        )
        assert gemini.request_path(model, stream=False) == "/v1beta/models/gemini-2.5-flash:generateContent"

    def test_a_name_is_quoted(self):
        path = gemini.request_path(ModelSettings("a/b?c:d é"), stream=False)
        assert path == "/v1beta/models/a%2Fb%3Fc%3Ad%20%C3%A9:generateContent"

    def test_a_minimal_request(self):
        assert self.write() == {"contents": [ASKED]}

    def test_leading_system_messages_are_the_instruction(self):
        found = self.write(Message("system", (TextPart("a"),)), Message("system", (TextPart("b"),)), HI)
        assert found == {"contents": [ASKED], "systemInstruction": {"parts": [{"text": "a"}, {"text": "b"}]}}

    def test_a_later_system_message_becomes_the_users(self):
        found = self.write(HI, Message("assistant", (TextPart("yo"),)), Message("system", (TextPart("a"),)), HI)
        assert found["contents"][1:] == [
            {"role": "model", "parts": [{"text": "yo"}]},
            {"role": "user", "parts": [{"text": "a"}, {"text": "hi"}]},
        ]

    def test_a_system_message_alone_becomes_the_users(self):
        found = self.write(Message("system", (TextPart("a"),)))
        assert found == {"contents": [{"role": "user", "parts": [{"text": "a"}]}]}

    def test_adjacent_messages_of_one_role_are_merged_and_empty_ones_left_out(self):
        found = self.write(
            HI, Message("user", (TextPart(""),)), Message("assistant"), Message("user", (TextPart("there"),))
        )
        assert found["contents"] == [{"role": "user", "parts": [{"text": "hi"}, {"text": "there"}]}]

    def test_media(self):
        parts = (
            MediaPart("image", {}, "image/png", "AAAA"),
            MediaPart("audio", {}, "audio/wav", "BBBB"),
            MediaPart("file", {}, "application/pdf", "CCCC", name="a.pdf"),
            MediaPart("image", {}, url="https://x/y.png"),
            MediaPart("file", {}, "application/pdf", url="https://x/y.pdf"),
            MediaPart("image", {}),
            MediaPart("hologram", {}, data="DDDD"),
        )
        assert self.write(Message("user", parts))["contents"][0]["parts"] == [
            {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "BBBB"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "CCCC"}},
            {"fileData": {"fileUri": "https://x/y.png"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/y.pdf"}},
            {"text": "[image]"},
            {"text": "[hologram]"},
        ]

    def test_options(self):
        options = Options(
            n=2,
            stop=("1", "2", "3", "4", "5", "6"),
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
        assert self.write(options=options)["generationConfig"] == {
            "maxOutputTokens": 5,
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 3,
            "seed": 7,
            "presencePenalty": 0.1,
            "frequencyPenalty": 0.2,
            "stopSequences": ["1", "2", "3", "4", "5"],
            "candidateCount": 2,
        }

    @pytest.mark.parametrize(
        ("effort", "config"),
        [
            ("none", {"thinkingBudget": 0}),
            ("low", {"thinkingBudget": 1024, "includeThoughts": True}),
            ("xhigh", {"thinkingBudget": 24576, "includeThoughts": True}),
        ],
    )
    def test_effort(self, effort, config):
        assert self.write(options=Options(effort=effort))["generationConfig"] == {"thinkingConfig": config}

    def test_the_output_format(self):
        json_text = {"responseMimeType": "application/json"}
        assert self.write(options=Options(output=OutputFormat()))["generationConfig"] == json_text
        schema = {"type": "object"}
        found = self.write(options=Options(output=OutputFormat(schema)))["generationConfig"]
        assert found == json_text | {"responseJsonSchema": schema}

    def test_calls_and_results(self):
        image = MediaPart("image", {}, "image/png", "AAAA")
        found = self.write(
            HI,
            Message(
                "assistant",
                (TextPart("wait"),),
                calls=(ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "ls", custom=True)),
            ),
            Message(
                "user",
                (TextPart("and?"),),
                results=(
                    ToolResult("c1", (TextPart("one"), image)),
                    ToolResult("c2", (TextPart("no"),), error=True, name="gg"),
                ),
            ),
        )
        assert found["contents"][1:] == [
            {
                "role": "model",
                "parts": [
                    {"text": "wait"},
                    {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}},
                    {"functionCall": {"id": "c2", "name": "g", "args": {"input": "ls"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "f", "response": {"output": "one"}}},
                    {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                    {"functionResponse": {"id": "c2", "name": "gg", "response": {"error": "no"}}},
                    {"text": "and?"},
                ],
            },
        ]

    @pytest.mark.parametrize(
        ("name", "unsigned"),
        [
            ("gemini-3-pro-preview", "skip_thought_signature_validator"),
            ("models/gemini-flash-latest", "skip_thought_signature_validator"),
            ("gemini-2.5-flash", None),
            ("gemma-3-27b-it", None),
        ],
    )
    def test_calls_without_a_signature_are_marked_for_models_that_require_one(self, name, unsigned):
        made = (
            Message("assistant", calls=(ToolCall("c1", "f", "{}", signature="sig"), ToolCall("c2", "f", "{}"))),
            Message("user", results=(ToolResult("c1", ()), ToolResult("c2", ()))),
            Message("assistant", calls=(ToolCall("c3", "f", "{}"), ToolCall("c4", "f", "{}"))),
        )
        body = json.loads(write_request(Conversation("chat", "asked", (HI, *made)), ModelSettings(name), stream=True))
        parts = [part for content in body["contents"] for part in content["parts"] if "functionCall" in part]
        assert [part.get("thoughtSignature") for part in parts] == ["sig", None, unsigned, None]

    @pytest.mark.parametrize(
        ("choice", "mode", "names"),
        [
            (ToolChoice(), "AUTO", ["f", "g"]),
            (ToolChoice("none"), "NONE", ["f", "g"]),
            (ToolChoice("required"), "ANY", ["f", "g"]),
            (ToolChoice("required", ("g",)), "ANY", ["g"]),
            (ToolChoice("auto", ("f",)), "AUTO", ["f"]),
        ],
    )
    def test_tools_and_choice(self, choice, mode, names):
        tools = (Tool("f", "does f", {"type": "object"}), Tool("g"))
        found = self.write(tools=tools, choice=choice)
        known = {
            "f": {"name": "f", "description": "does f", "parametersJsonSchema": {"type": "object"}},
            "g": {"name": "g", "description": ""},
        }
        assert found["tools"] == [{"functionDeclarations": [known[name] for name in names]}]
        assert found["toolConfig"] == {"functionCallingConfig": {"mode": mode}}

    def test_an_unreadable_request_is_rejected(self):
        with pytest.raises(RequestError) as caught:
            write_request(Conversation("chat", "m", ()), MODEL, stream=True)
        assert caught.value.param == "messages"


def test_the_names_of_the_models():
    assert gemini.read_models(b'{"models":[{"name":"models/a"},{"name":"b"},{}],"nextPageToken":"x"}') == ["a", "b"]
    for bad in (b"[]", b"{}", b"<html>"):
        with pytest.raises(ValueError):
            gemini.read_models(bad)


# --- the reply -------------------------------------------------------------------------------------------------------

NAMED = {"responseId": "r", "modelVersion": "m"}
START = ReplyStart("r", None, "m")
COUNTS = {
    "promptTokenCount": 10,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 2,
    "cachedContentTokenCount": 4,
    "totalTokenCount": 15,
}
USED = UsageReport(Usage(10, 5, 4, 2))


def chunk(*parts, reason=None, index=None, **more):
    candidate = {"content": {"role": "model", "parts": list(parts)}}
    if index is not None:
        candidate["index"] = index
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate]} | NAMED | more


def text(words, **more):
    return chunk({"text": words}, **more)


def stream(*chunks, end=b"\r\n\r\n") -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + end for each in chunks)


def array(*chunks) -> bytes:
    """Return the body as the server writes it without `alt=sse`."""
    return b"[" + b"\n,\r\n".join(json.dumps(each, indent=2).encode() for each in chunks) + b"\n]\n"


LAST = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": COUNTS} | NAMED
STOP = [ReplyFinish(0, Reason.STOP), USED, ReplyEnd()]


def read(*pieces: bytes, n=1):
    reader = ReplyReader(n=n)
    return [found for data in pieces for found in reader.feed(data)] + reader.close()


def single(data: bytes, n=1):
    return read(*(data[i : i + 1] for i in range(len(data))), n=n)


def failure(*pieces: bytes, n=1):
    last = read(*pieces, n=n)[-1]
    assert isinstance(last, ReplyFailure), last
    return last.error


SHAPES = pytest.mark.parametrize("shape", [stream, array, lambda *chunks: stream(*chunks, end=b"\n\n")])


@SHAPES
class TestChunks:
    def test_a_plain_reply(self, shape):
        data = shape(text("Hel"), text("lo"), LAST)
        expected = [START, ReplyTextDelta(0, "Hel"), ReplyTextDelta(0, "lo"), *STOP]
        assert read(data) == expected
        assert single(data) == expected

    def test_several_parts_and_thoughts(self, shape):
        data = shape(
            chunk({"text": "hm", "thought": True}, {"text": "a", "thoughtSignature": "x"}, {"text": "b"}, {"text": ""}),
            LAST,
        )
        assert read(data) == [
            START,
            ReplyReasoningDelta(0, "hm"),
            ReplyTextDelta(0, "a"),
            ReplyTextDelta(0, "b"),
            *STOP,
        ]

    def test_the_reason_may_accompany_the_last_text(self, shape):
        assert read(shape(text("a", reason="STOP"))) == [
            START,
            ReplyTextDelta(0, "a"),
            ReplyFinish(0, Reason.STOP),
            ReplyEnd(),
        ]

    def test_calls(self, shape):
        data = shape(
            chunk({"text": "x"}, {"functionCall": {"name": "f", "args": {"a": [1, 2.5]}}, "thoughtSignature": "s"}),
            chunk({"functionCall": {"id": "c", "name": "g"}}, {"functionCall": {"name": ""}}, {"functionCall": 5}),
            LAST,
        )
        assert read(data) == [
            START,
            ReplyTextDelta(0, "x"),
            ReplyCallStart(0, 0, None, "f", signature="s"),
            ReplyArgumentsDelta(0, 0, '{"a":[1,2.5]}'),
            ReplyCallEnd(0, 0),
            ReplyCallStart(0, 1, "c", "g"),
            ReplyArgumentsDelta(0, 1, "{}"),
            ReplyCallEnd(0, 1),
            *STOP,
        ]

    def test_snake_case(self, shape):
        data = shape(
            {
                "candidates": [
                    {
                        "content": {"parts": [{"function_call": {"name": "f", "args": {}}}]},
                        "finish_reason": "MAX_TOKENS",
                    }
                ],
                "usage_metadata": {"prompt_token_count": 1, "candidates_token_count": 2, "thoughts_token_count": 3},
                "response_id": "r",
                "model_version": "m",
            }
        )
        assert read(data) == [
            START,
            ReplyCallStart(0, 0, None, "f"),
            ReplyArgumentsDelta(0, 0, "{}"),
            ReplyCallEnd(0, 0),
            ReplyFinish(0, Reason.LENGTH),
            UsageReport(Usage(1, 5, 0, 3)),
            ReplyEnd(),
        ]

    @each(
        ("word", "reason"),
        [
            ("STOP", Reason.STOP),
            ("MAX_TOKENS", Reason.LENGTH),
            ("SAFETY", Reason.FILTER),
            ("RECITATION", Reason.FILTER),
            ("BLOCKLIST", Reason.FILTER),
            ("PROHIBITED_CONTENT", Reason.FILTER),
            ("SPII", Reason.FILTER),
            ("MALFORMED_FUNCTION_CALL", Reason.STOP),
            ("OTHER", Reason.STOP),
            ("NEW_WORD", Reason.STOP),
        ],
    )
    def test_reasons(self, shape, word, reason):
        assert read(shape(text("a"), chunk(reason=word)))[-2:] == [ReplyFinish(0, reason), ReplyEnd()]

    def test_the_last_usage_wins(self, shape):
        early = {"promptTokenCount": 10, "candidatesTokenCount": 1}
        data = shape(text("a", usageMetadata=early), LAST)
        assert [found for found in read(data) if isinstance(found, UsageReport)] == [USED]

    @pytest.mark.parametrize("key", ["promptFeedback", "prompt_feedback"])
    def test_a_blocked_prompt(self, shape, key):
        inner = {"promptFeedback": "blockReason", "prompt_feedback": "block_reason"}[key]
        data = shape({key: {inner: "SAFETY"}, "usageMetadata": {"promptTokenCount": 10}} | NAMED)
        assert read(data) == [START, ReplyFinish(0, Reason.FILTER), UsageReport(Usage(10)), ReplyEnd()]

    def test_a_missing_reason_is_a_failure(self, shape):
        assert failure(shape(text("a"))).code == "upstream_closed"

    def test_a_truncated_reply_is_a_failure(self, shape):
        data = shape(text("a"), LAST)
        cut = data[: data.index(b"STOP")]
        assert read(cut)[:2] == [START, ReplyTextDelta(0, "a")]
        assert failure(cut).code == "upstream_closed"
        assert single(cut)[-1].error.code == "upstream_closed"

    def test_several_candidates(self, shape):
        both = chunk({"text": "a"}) | {
            "candidates": [
                {"content": {"parts": [{"text": "a"}]}},
                {"content": {"parts": [{"text": "b"}]}, "index": 1, "finishReason": "MAX_TOKENS"},
            ]
        }
        data = shape(both, text("c", reason="STOP"), text("d", index=2))
        assert read(data, n=2) == [
            START,
            ReplyTextDelta(0, "a"),
            ReplyTextDelta(1, "b"),
            ReplyTextDelta(0, "c"),
            ReplyFinish(0, Reason.STOP),
            ReplyFinish(1, Reason.LENGTH),
            ReplyEnd(),
        ]
        assert failure(shape(text("c", reason="STOP")), n=2).code == "choices_missing"

    @each(
        "odd",
        [
            {},
            {"candidates": None},
            {"candidates": {}},
            {"candidates": []},
            {"candidates": [None, 5]},
            {"candidates": [{}]},
            {"candidates": [{"content": None, "finishReason": 5}]},
            {"candidates": [{"content": {"parts": {}}}]},
            {"candidates": [{"content": {"parts": [5, {}, {"text": 5}, {"executableCode": {"code": "x"}}]}}]},
            {"usageMetadata": 5, "promptFeedback": {}, "responseId": 5, "error": None},
            [],
            5,
        ],
    )
    def test_unexpected_values_are_ignored(self, shape, odd):
        assert read(shape(text("a"), odd, LAST)) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_an_error_between_the_chunks(self, shape):
        error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
        for data in (shape(text("a"), error, LAST), shape(error)):
            found = failure(data)
            assert isinstance(found, UpstreamRefused)
            assert (found.message, found.status) == ("overloaded", 503)
            assert single(data)[-1].error.message == "overloaded"

    def test_pieces_are_emitted_immediately(self, shape):
        reader = ReplyReader()
        data = shape(text("a"), text("b"), LAST)
        at = data.index(b'"b"')
        assert reader.feed(data[:at]) == [START, ReplyTextDelta(0, "a")]
        rest = data.index(b"STOP")
        assert reader.feed(data[at:rest]) == [ReplyTextDelta(0, "b")]
        assert reader.feed(data[rest:]) == []
        assert reader.usage == Usage(10, 5, 4, 2)
        assert reader.close() == STOP
        assert reader.ended


class TestStream:
    def test_split_surrogate_pairs(self):
        data = stream(text("a\ud83d"), text("\ude00b"), text("\ud83d"), LAST)
        assert read(data)[1:4] == [ReplyTextDelta(0, "a"), ReplyTextDelta(0, "😀b"), ReplyTextDelta(0, "\ufffd")]

    def test_the_end_marker_of_other_protocols(self):
        assert read(stream(text("a")) + b"data: [DONE]\n\n")[-2:] == [ReplyFinish(0, Reason.STOP), ReplyEnd()]

    ERROR = json.dumps({"error": {"code": 500, "message": "boom", "status": "INTERNAL"}}, indent=2).encode()

    @pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\r\n\r\n"])
    def test_a_bare_error_between_the_events(self, end):
        for error in (self.ERROR, self.ERROR.replace(b"\n", b"\r\n"), self.ERROR.replace(b"\n", b"")):
            data = stream(text("a")) + error + end
            assert failure(data).message == "boom"
            assert failure(stream(text("a")), error, end).message == "boom"
            assert single(data)[-1].error.message == "boom"

    def test_an_error_over_several_data_lines(self):
        data = b"".join(b"data: " + line + b"\n" for line in self.ERROR.splitlines()) + b"\n"
        assert failure(stream(text("a")) + data).message == "boom"

    @pytest.mark.parametrize("rest", [b"x{\n", b"\n{", b"\n{]}", b'\n{"a":1}', b"\n" * 10, b"{" * 2000])
    def test_other_trailing_data_is_not_an_error(self, rest):
        assert failure(stream(text("a")) + rest).code == "upstream_closed"

    def test_damaged_json_is_a_failure(self):
        assert failure(stream(text("a")), b'data: {"candidates":[}\n\n').code == "upstream_unreadable"

    def test_an_error_event_of_plain_text(self):
        assert failure(stream(text("a")), b"event: error\ndata: Internal Server Error\n\n").message == (
            "Internal Server Error"
        )

    def test_the_buffer_for_a_trailing_error_is_bounded(self):
        reader = ReplyReader()
        reader.feed(stream(text("a")))
        for _ in range(1000):
            reader.feed(b": keep-alive, keep-alive, keep-alive\n\n" * 10)
        assert sum(map(len, reader._remainder._pieces)) < 70_000


class TestArray:
    def test_a_string_in_many_pieces_is_scanned_once(self):
        words = "x" * 400_000
        data = array(text(words), LAST)
        began = time.process_time()
        pieces = [data[at : at + 20] for at in range(0, len(data), 20)]
        assert read(*pieces) == [START, ReplyTextDelta(0, words), *STOP]
        assert time.process_time() - began < 1

    def test_braces_and_brackets_in_strings_are_text(self):
        words = 'a}],{"b\\' * 1000
        data = array(text(words), LAST)
        assert read(data) == [START, ReplyTextDelta(0, words), *STOP]
        assert b"".join(e.text.encode() for e in single(data) if isinstance(e, ReplyTextDelta)) == words.encode()

    def test_endless_nesting_is_cheap(self):
        began = time.process_time()
        assert failure(b"[" * 200_000).code == "upstream_closed"
        assert failure(b"[" * 200_000 + b"]" * 200_000).code == "upstream_unreadable"
        assert time.process_time() - began < 2

    def test_unknown_elements_are_ignored(self):
        data = b'[null, 5, \n"x,]", [], {},' + array(text("a"), LAST).removeprefix(b"[")
        assert read(data) == single(data) == [START, ReplyTextDelta(0, "a"), *STOP]

    def test_invalid_json_is_a_failure(self):
        assert failure(b"[" + json.dumps(text("a")).encode() + b", oops}]").code == "upstream_unreadable"
        assert failure(b"[oops").code == "upstream_unreadable"
        assert failure(array(LAST) + b"oops").code == "upstream_unreadable"
        assert failure(array(LAST), b"oops").code == "upstream_unreadable"

    @pytest.mark.parametrize("bad", [b"\xff", b"\\ude00"])
    def test_damaged_characters_do_not_raise(self, bad):
        found = read(array(text("QQ"), LAST).replace(b"QQ", bad))
        assert isinstance(found[-1], ReplyFailure | ReplyEnd)

    def test_an_empty_array(self):
        assert failure(b"[]").code == "upstream_closed"

    def test_the_buffer_is_bounded(self, monkeypatch):
        monkeypatch.setattr(sse, "MAX_BUFFERED", 100)
        assert failure(b'[{"a":"', *[b"x" * 30] * 5).code == "reply_too_large"


class TestDocument:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_whole_reply(self, indent):
        body = json.dumps(text("hi", reason="STOP", usageMetadata=COUNTS), indent=indent).encode()
        assert read(body) == [START, ReplyTextDelta(0, "hi"), *STOP]
        assert single(b"\xef\xbb\xbf\n" + body) == [START, ReplyTextDelta(0, "hi"), *STOP]

    @pytest.mark.parametrize(
        "body",
        [
            b'{"error":{"code":400,"message":"boom","status":"INVALID_ARGUMENT"}}',
            b'{\n  "error": {\n    "message": "boom"\n  }\n}\n',
            b'[{\n  "error": {\n    "message": "boom"\n  }\n}\n]',
            b'{"detail":"boom"}',
        ],
    )
    def test_an_error_document(self, body):
        assert failure(body).message == "boom"
        assert single(body)[-1].error.message == "boom"

    def test_a_truncated_document(self):
        assert failure(b'{"candidates":[').code == "upstream_closed"

    def test_a_web_page_and_plain_text(self):
        assert "404" in failure(b"<html><title>Error 404</title></html>").message
        assert "Not Found" in failure(b"Not Found").message

    @pytest.mark.parametrize("body", [b"", b" ", b"\xef\xbb\xbf"])
    def test_an_empty_body(self, body):
        assert failure(body).code == "upstream_closed"

    def test_the_error_of_a_rejected_request(self):
        error = gemini.read_error(429, b'[{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}]')
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.message) == (429, "slow down")

    def test_a_rejected_key_is_our_error(self):
        body = {"error": {"code": 400, "message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}}
        error = gemini.read_error(400, json.dumps(body).encode())
        assert type(error) is UpstreamError
        assert (error.status, error.message) == (502, "API key not valid.")


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["]", "}", '"', "\\", "},{"])
chunks = st.one_of(
    words.map(text),
    words.map(lambda word: chunk({"text": word, "thought": True}, {"text": word})),
    words.map(lambda word: chunk({"functionCall": {"name": "f", "args": {"a": word}}})),
    st.sampled_from(
        [{}, [], 5, LAST, chunk(reason="SAFETY"), {"error": "no"}, {"promptFeedback": {"blockReason": "X"}}]
    ),
)


def shown(event):
    """Return the event, or the code of a failure, since its message may quote everything received so far."""
    return event.error.code if isinstance(event, ReplyFailure) else event


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(chunks, max_size=8),
    st.sampled_from([stream, array]),
    st.sampled_from([b"", b'{"error": "late"}', b"x}", b"data: x"]),
    st.lists(st.integers(0, 2500), max_size=8),
)
@settings(max_examples=50, deadline=None)
def test_any_split_gives_the_same_reply(items, shape, rest, cuts):
    data = (b": hello\n\n" if shape is stream else b"") + shape(*items) + rest
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = read(data)
    for found in (read(*(data[borders[i] : borders[i + 1]] for i in range(len(borders) - 1))), single(data)):
        assert [shown(event) for event in found] == [shown(event) for event in whole]


@each("cut", range(60))
def test_an_error_after_an_event_is_found_at_every_split(cut):
    data = b": hello\n\n" + stream(text("")) + b'{"error": "late"}'
    assert shown(read(data[:cut], data[cut:])[-1]) == shown(read(data)[-1])


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"[{" + data))
def test_nothing_raises(data):
    found = read(data)
    assert isinstance(found[-1], ReplyFailure | ReplyEnd)
    assert single(data)[-1].__class__ is found[-1].__class__


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.sampled_from([None, 2]),
    st.randoms(use_true_random=False),
)
def test_an_array_has_the_elements_that_another_parser_finds(values, indent, chance):
    """Compared with ijson, which is a streaming parser too."""
    written = json.dumps(values, indent=indent, ensure_ascii=chance.random() < 0.5).encode()
    machine, found = ArrayReader(), []
    at = 0
    while at < len(written):
        size = chance.choice((1, 2, 5, 30))
        found += machine.feed(written[at : at + size])
        at += size
    assert found == list(ijson.items(written, "item"))
    assert not machine.broken
