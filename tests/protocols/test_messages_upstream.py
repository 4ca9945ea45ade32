"""Writing a conversation to a Messages upstream."""

import json

import pytest
from attrs import evolve

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
from streamtool.protocols.messages import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    count_path,
    read_count_reply,
    read_error,
    read_models,
    read_request,
    request_path,
    write_count_request,
    write_request,
)
from streamtool.settings import LimitSettings, ModelSettings

MODEL = ModelSettings(name="real")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
GIVEN = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
USER = {"role": "user", "content": "hi"}
HI = Message("user", (TextPart("hi"),))
BEGIN = {"role": "user", "content": "(The conversation begins here.)"}


def sent(conversation, *, stream=True):
    return json.loads(write_request(conversation, MODEL, stream=stream))


def same(**fields):
    """Return a conversation read from this protocol."""
    return read_request(
        json.dumps({"model": "m", "max_tokens": 100, "messages": [USER]} | fields).encode(), LimitSettings()
    )


def other(*messages, **fields):
    """Return a conversation of another protocol."""
    return Conversation("chat", "m", messages or (HI,), **({"raw": {"seed": 5, "messages": []}} | fields))


def written(*messages, **fields):
    return sent(other(*messages, **fields))["messages"]


class TestSameProtocol:
    def test_unchanged_fields_are_passed_on_verbatim(self):
        fields = {
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", "citations": None}]},
                {"role": "user", "content": "and"},
                {"role": "system", "content": "note", "output_config": {"effort": "low"}},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "EqoB"}, USE]},
                {"role": "user", "content": [GIVEN]},
                {"role": "assistant", "content": "The weather is "},
            ],
            "tools": [WEATHER],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": []},
            "stop_sequences": ["END"],
            "temperature": 1,
        }
        assert sent(same(**fields)) == {"model": "real", "max_tokens": 100, "stream": True} | fields

    def test_a_conversation_whose_tools_became_text_has_no_tool_fields(self):
        asked = same(tools=[WEATHER], tool_choice={"type": "any"}, thinking={"type": "adaptive"})
        body = sent(evolve(asked, tools=(), choice=ToolChoice()))
        assert body == {
            "model": "real", "max_tokens": 100, "stream": True, "thinking": {"type": "adaptive"}, "messages": [USER],
        }  # fmt: skip

    def test_output_format_and_stops_are_taken_from_the_conversation(self):
        form = {"type": "json_schema", "schema": SCHEMA}
        asked = same(output_config={"format": form, "effort": "low"}, stop_sequences=["END"])
        assert sent(asked)["output_config"] == {"format": form, "effort": "low"}
        body = sent(evolve(asked, options=evolve(asked.options, output=None, stop=())))
        assert body["output_config"] == {"effort": "low"}
        assert "stop_sequences" not in body
        older = same(output_format=form)
        assert sent(older)["output_config"] == {"format": form}
        assert "output_format" not in sent(older)

    def test_a_changed_system_text_keeps_the_blocks_before_it(self):
        block = {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}
        asked = same(system=[block], messages=[{"role": "system", "content": "t"}, USER])
        first, second, user = asked.messages
        assert sent(asked)["messages"] == [{"role": "system", "content": "t"}, USER]
        changed = evolve(asked, messages=(first, evolve(second, content=(TextPart("t\n\nmore"),), raw=()), user))
        body = sent(changed)
        assert body["system"] == [block, {"type": "text", "text": "t\n\nmore"}]
        assert body["messages"] == [USER]

    def test_a_new_system_text(self):
        asked = same()
        body = sent(evolve(asked, messages=(Message("system", (TextPart("new"),)), *asked.messages)))
        assert body["system"] == "new"

    def test_a_changed_message_loses_its_reasoning_and_is_merged_with_its_neighbour(self):
        asked = same(
            messages=[
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, USE]},
                {"role": "user", "content": [GIVEN]},
                {"role": "user", "content": "go on"},
            ]
        )
        user, assistant, _, last = asked.messages
        changed = (
            user,
            evolve(assistant, content=(TextPart("<call>"),), calls=(), raw=()),
            Message("user", (TextPart("<result>"),)),
            last,
        )
        assert sent(evolve(asked, messages=changed))["messages"] == [
            USER,
            {"role": "assistant", "content": "<call>"},
            {"role": "user", "content": [{"type": "text", "text": "<result>"}, {"type": "text", "text": "go on"}]},
        ]

    def test_parts_of_this_protocol_are_written_verbatim(self):
        image = {"type": "image", "source": {"type": "file", "file_id": "f"}, "cache_control": None}
        asked = same(messages=[{"role": "user", "content": [image]}])
        [message] = asked.messages
        changed = evolve(message, content=(*message.content, TextPart("more")), raw=())
        assert sent(evolve(asked, messages=(changed,)))["messages"][0]["content"] == [
            image,
            {"type": "text", "text": "more"},
        ]

    def test_an_unreadable_request_gets_the_name_of_the_model(self):
        raw = {"model": "m", "messages": 5, "odd": True}
        assert sent(Conversation("messages", "m", (), raw=raw)) == raw | {"model": "real"}

    def test_typed_tools_keep_their_type(self):
        bash = {"type": "bash_20250124", "name": "bash"}
        assert sent(same(tools=[bash, {"type": "memory_20250818"}]))["tools"] == [bash, {"type": "memory_20250818"}]


class TestOtherProtocol:
    def test_a_request_verbatim(self):
        asked = other(Message("system", (TextPart("s"),)), HI)
        assert write_request(asked, MODEL, stream=True) == (
            b'{"model":"real","max_tokens":8192,"messages":[{"role":"user","content":"hi"}],"system":"s","stream":true}'
        )

    def test_leading_and_later_system_text(self):
        body = sent(
            other(
                Message("system", (TextPart("a"),)),
                Message("system", (TextPart("b"), TextPart(" "))),
                HI,
                Message("system", (TextPart("later"),)),
                Message("assistant", (TextPart("yes"),)),
            )
        )
        assert body["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert body["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "later"}]},
            {"role": "assistant", "content": "yes"},
        ]

    def test_the_user_always_comes_first(self):
        hello = Message("assistant", (TextPart("hello"),))
        assert written(hello, HI) == [BEGIN, {"role": "assistant", "content": "hello"}, USER]
        assert written(Message("system", (TextPart("s"),))) == [BEGIN]

    def test_blank_text_is_not_written(self):
        blank = TextPart(" \n")
        assert written(
            Message("user", (blank, TextPart("hi"))),
            Message("assistant", (blank,)),
            Message("user", ()),
            Message("user", (TextPart("there"),)),
        ) == [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}]

    def test_a_prefill_does_not_end_in_whitespace(self):
        assert written(HI, Message("assistant", (TextPart("So \n"),)))[1] == {"role": "assistant", "content": "So"}

    def test_calls_and_results(self):
        calls = (
            ToolCall("c1", "f", '{"a": 1}'),
            ToolCall("c2", "g", ""),
            ToolCall("c3", "sh", "ls", custom=True),
            ToolCall("c4", "f", "{no"),
        )
        image = MediaPart("image", {}, "image/png", "aGk=")
        results = (
            ToolResult("c1", (TextPart("one"), TextPart("two"))),
            ToolResult("c2", (), error=True),
            ToolResult("c3", (TextPart("three"), image)),
            ToolResult("c4", (TextPart(""),)),
        )
        assert written(
            HI,
            Message("assistant", (TextPart("Look:"),), calls=calls, reasoning="hm"),
            Message("user", (TextPart("well?"),), results=results),
        )[1:] == [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
                    {"type": "tool_use", "id": "c3", "name": "sh", "input": {"input": "ls"}},
                    {"type": "tool_use", "id": "c4", "name": "f", "input": {"arguments": "{no"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "one\ntwo"},
                    {"type": "tool_result", "tool_use_id": "c2", "is_error": True},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c3",
                        "content": [
                            {"type": "text", "text": "three"},
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                        ],
                    },
                    {"type": "tool_result", "tool_use_id": "c4"},
                    {"type": "text", "text": "well?"},
                ],
            },
        ]  # fmt: skip

    def test_results_are_moved_before_text(self):
        found = written(
            HI,
            Message("assistant", calls=(ToolCall("c1", "f", "{}"),)),
            Message("system", (TextPart("note"),)),
            Message("user", results=(ToolResult("c1", (TextPart("one"),)),)),
        )
        assert found[2]["content"] == [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
            {"type": "text", "text": "note"},
        ]

    @pytest.mark.parametrize(
        ("part", "block"),
        [
            (MediaPart("image", {}, "image/png", "aGk="), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}),
            (MediaPart("image", {}, url="https://x/y"), {"type": "image", "source": {"type": "url", "url": "https://x/y"}}),
            (MediaPart("file", {}, "application/pdf", "aGk=", name="t.pdf"), {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}, "title": "t.pdf"}),
            (MediaPart("file", {}, url="https://x/y.pdf"), {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}),
            (MediaPart("file", {}, "text/csv", "aGk="), {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}),
            (MediaPart("audio", {}, "audio/wav", "aGk="), "[audio]"),
            (MediaPart("image", {}, "image/tiff", "aGk="), "[image]"),
            (MediaPart("image", {"x": 1}), "[image]"),
            (MediaPart("image", {}, url="ftp://x"), "[image]"),
            (MediaPart("file", {}, "text/csv", "?"), "[file]"),
            (MediaPart("file", {}, "application/zip", "aGk="), "[file]"),
        ],
    )  # fmt: skip
    def test_media(self, part, block):
        assert written(Message("user", (part,))) == [
            {"role": "user", "content": block if isinstance(block, str) else [block]}
        ]

    def test_an_assistant_has_no_images(self):
        assert written(HI, Message("assistant", (MediaPart("image", {}, url="https://x"),)))[1]["content"] == "[image]"


class TestOptions:
    def test_options_of_another_protocol(self):
        options = Options(
            stop=("END", "\n"),
            max_tokens=50,
            effort="minimal",
            user="u",
            sampling={"temperature": 1.5, "top_p": 0.5, "top_k": 4, "seed": 7, "presence_penalty": 1},
        )
        body = sent(other(options=options), stream=False)
        assert body == {
            "model": "real",
            "max_tokens": 50,
            "temperature": 1,
            "top_k": 4,
            "metadata": {"user_id": "u"},
            "messages": [USER],
            "output_config": {"effort": "low"},
            "stop_sequences": ["END"],
            "stream": False,
        }

    @pytest.mark.parametrize(
        ("effort", "word"),
        [("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "high"), ("none", None), (None, None)],
    )
    def test_effort(self, effort, word):
        body = sent(other(options=Options(effort=effort)))
        assert body.get("output_config") == (word and {"effort": word})
        assert "thinking" not in body

    def test_top_p_without_temperature(self):
        assert sent(other(options=Options(sampling={"top_p": 0.5})))["top_p"] == 0.5

    def test_the_output_format(self):
        body = sent(other(options=Options(output=OutputFormat(SCHEMA, "answer"))))
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
        assert "output_config" not in sent(other(options=Options(output=OutputFormat())))

    def test_blank_stops_are_left_out(self):
        assert "stop_sequences" not in sent(other(options=Options(stop=("\n\n",))))

    def test_several_choices_are_rejected(self):
        with pytest.raises(RequestError) as caught:
            sent(other(options=Options(n=2)))
        assert caught.value.param == "n"


class TestTools:
    TOOLS = (Tool("f", "does f", {"properties": {}}), Tool("g"), Tool("sh", custom=True))

    def sent(self, choice=None):
        return sent(other(tools=self.TOOLS, choice=choice or ToolChoice()))

    def test_tools(self):
        body = self.sent()
        assert body["tools"] == [
            {"name": "f", "description": "does f", "input_schema": {"type": "object", "properties": {}}},
            {"name": "g", "input_schema": {"type": "object", "properties": {}}},
            {
                "name": "sh",
                "input_schema": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
            },
        ]
        assert "tool_choice" not in body

    @pytest.mark.parametrize(
        ("choice", "wanted", "names"),
        [
            (ToolChoice(), None, "f g sh"),
            (ToolChoice(parallel=False), {"type": "auto", "disable_parallel_tool_use": True}, "f g sh"),
            (ToolChoice("none"), {"type": "none"}, "f g sh"),
            (ToolChoice("required"), {"type": "any"}, "f g sh"),
            (ToolChoice("required", ("g",), parallel=False), {"type": "tool", "name": "g", "disable_parallel_tool_use": True}, "f g sh"),
            (ToolChoice("required", ("f", "g")), {"type": "any"}, "f g"),
            (ToolChoice("auto", ("g",)), None, "g"),
        ],
    )  # fmt: skip
    def test_choice(self, choice, wanted, names):
        body = self.sent(choice)
        assert body.get("tool_choice") == wanted
        assert " ".join(tool["name"] for tool in body["tools"]) == names


class TestCount:
    def test_options_that_do_not_affect_the_count_are_left_out(self):
        asked = same(
            tools=[WEATHER], stop_sequences=["END"], temperature=1, metadata={"user_id": "u"}, stream=True,
            system="s", thinking={"type": "adaptive"},
        )  # fmt: skip
        assert json.loads(write_count_request(asked, MODEL)) == {
            "model": "real", "messages": [USER], "system": "s", "tools": [WEATHER], "thinking": {"type": "adaptive"},
        }  # fmt: skip

    def test_counting_for_another_protocol(self):
        assert json.loads(write_count_request(other(options=Options(sampling={"temperature": 1})), MODEL)) == {
            "model": "real",
            "messages": [USER],
        }

    @pytest.mark.parametrize(
        ("body", "tokens"),
        [
            (b'{"input_tokens":12}', 12),
            (b'{"input_tokens":"12"}', None),
            (b"{}", None),
            (b"[]", None),
            (b"<html>", None),
            (b'{"input_tokens":true}', None),
        ],
    )
    def test_the_upstreams_count(self, body, tokens):
        assert read_count_reply(body) == tokens


class TestOther:
    def test_constants(self):
        assert HEADERS == ((b"anthropic-version", b"2023-06-01"),)
        assert KEY_HEADER == b"x-api-key"
        assert request_path(MODEL, stream=True) == "/v1/messages"
        assert (MODELS_PATH, count_path(MODEL)) == ("/v1/models", "/v1/messages/count_tokens")

    def test_models(self):
        assert read_models(b'{"data":[{"type":"model","id":"a"},{"id":5},{"id":"b"}],"has_more":false}') == ["a", "b"]
        for body in (b"{}", b"nothing"):
            with pytest.raises(ValueError):
                read_models(body)

    def test_errors(self):
        body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"},"request_id":"req_1"}'
        error = read_error(429, body)
        assert isinstance(error, UpstreamRefused)
        assert (error.status, error.kind, error.message) == (429, "rate_limit_error", "slow down")
        assert type(read_error(401, body)) is UpstreamError
