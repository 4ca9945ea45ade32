"""Reading a Chat Completions client's request, and writing it to an upstream."""

import json

import pytest
from attrs import evolve

from streamtool.core.conversation import MediaPart, Message, Options, TextPart, Tool, ToolCall, ToolChoice, ToolResult
from streamtool.core.errors import RequestError, TooLargeError
from streamtool.protocols.chat import read_request, write_request
from streamtool.settings import LimitSettings, ModelSettings

USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
HISTORY = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def read(limits=None, **fields):
    body = {"model": "m", "messages": [USER]} | fields
    return read_request(json.dumps(body).encode(), limits or LimitSettings())


def rejected(param, limits=None, **fields):
    with pytest.raises(RequestError) as caught:
        read(limits, **fields)
    assert caught.value.param == param, caught.value.message
    return caught.value


def messages(*items):
    return read(messages=list(items)).messages


class TestMessages:
    def test_roles(self):
        found = messages(
            {"role": "developer", "content": "d"},
            {"role": "system", "content": "s"},
            USER,
            {"role": "assistant", "content": "a"},
        )
        assert [(message.role, message.text) for message in found] == [
            ("system", "d"),
            ("system", "s"),
            ("user", "hi"),
            ("assistant", "a"),
        ]
        assert found[2].raw == (USER,)

    def test_content_parts(self):
        image = {"type": "image_url", "image_url": {"url": "data:"}, "prompt_cache_breakpoint": {}}
        audio = {"type": "input_audio", "input_audio": {}}
        odd = {"type": "hologram"}
        [message] = messages({"role": "user", "content": [{"type": "text", "text": "a"}, image, audio, odd]})
        assert message.content == (
            TextPart("a"),
            MediaPart("image", image, url="data:"),
            MediaPart("audio", audio),
            MediaPart("hologram", odd),
        )

    @pytest.mark.parametrize("content", [None, "", []])
    def test_an_assistant_message_may_be_empty(self, content):
        assert messages({"role": "assistant", "content": content}, USER)[0].content == ()

    def test_an_assistant_message_without_content(self):
        found = messages(*HISTORY[:1], {"role": "assistant", "tool_calls": [CALL]}, RESULT)[1]
        assert found.calls == (ToolCall("call_1", "get_weather", '{"city":"Paris"}'),)

    def test_refusals_are_text(self):
        found = messages(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": None, "refusal": "never"},
            USER,
        )
        assert [message.text for message in found] == ["no", "never", "hi"]

    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
    def test_reasoning_is_read_back(self, key):
        assert messages({"role": "assistant", "content": "a", key: "hm"}, USER)[0].reasoning == "hm"

    def test_adjacent_results_are_one_message(self):
        other = CALL | {"id": "call_2", "function": {"name": "get_time", "arguments": ""}}
        second = {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]}
        found = messages(USER, {"role": "assistant", "tool_calls": [CALL, other]}, second, RESULT, USER)
        assert found[1].calls[1] == ToolCall("call_2", "get_time", "{}")
        assert found[2] == Message(
            "user",
            results=(
                ToolResult("call_2", (TextPart("noon"),), name="get_time"),
                ToolResult("call_1", (TextPart("sunny"),), name="get_weather"),
            ),
            raw=(second, RESULT),
        )
        assert len(found) == 4

    def test_legacy_functions_pair_by_name(self):
        call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}}
        result = {"role": "function", "name": "f", "content": None}
        found = messages(USER, call, result)
        assert found[1].calls == (ToolCall("f", "f", '{"a":1}'),)
        assert found[2].results == (ToolResult("f", (), name="f"),)

    def test_custom_calls(self):
        call = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
        found = messages({"role": "assistant", "tool_calls": [call]}, RESULT | {"tool_call_id": "c"})
        assert found[0].calls == (ToolCall("c", "sh", "ls", custom=True),)

    def test_arguments_of_other_models_are_unchanged(self):
        broken = CALL | {"function": {"name": "f", "arguments": '{"a'}}
        whole = CALL | {"id": "2", "function": {"name": "f", "arguments": {"a": 1}}}
        found = messages({"role": "assistant", "tool_calls": [broken, whole]}, USER)
        assert [call.arguments for call in found[0].calls] == ['{"a', '{"a":1}']

    def test_orphaned_results_and_interrupted_calls_are_allowed(self):
        found = messages(RESULT, *HISTORY, USER)
        assert found[0].results == (ToolResult("call_1", (TextPart("sunny"),)),)

    @pytest.mark.parametrize("tail", [[], [RESULT | {"tool_call_id": "other"}]])
    def test_an_unanswered_call_at_the_end_is_named(self, tail):
        error = rejected("messages", messages=[*HISTORY, *tail])
        assert "call_1" in error.message

    def test_one_of_two_calls_unanswered_at_the_end(self):
        other = CALL | {"id": "call_2"}
        error = rejected("messages", messages=[USER, {"role": "assistant", "tool_calls": [CALL, other]}, RESULT])
        assert "call_2" in error.message

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ({"role": "robot", "content": ""}, "messages[1].role"),
            ({"content": ""}, "messages[1].role"),
            ({"role": ["user"], "content": ""}, "messages[1].role"),
            ("hi", "messages[1]"),
            ({"role": "user"}, "messages[1].content"),
            ({"role": "user", "content": 5}, "messages[1].content"),
            ({"role": "user", "content": [{"text": "a"}]}, "messages[1].content[0].type"),
            ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
            ({"role": "user", "content": [USER, 5]}, "messages[1].content[0].type"),
            ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
            ({"role": "function", "content": "x"}, "messages[1].name"),
            ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
            ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].id"),
            ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[1].tool_calls[0].function"),
            (
                {"role": "assistant", "tool_calls": [CALL, {"id": "x", "function": {"arguments": ""}}]},
                "messages[1].tool_calls[1].function.name",
            ),
            (
                {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": 5}}]},
                "messages[1].tool_calls[0].function.arguments",
            ),
            ({"role": "assistant", "tool_calls": [{"id": "x", "type": "magic"}]}, "messages[1].tool_calls[0].type"),
            ({"role": "assistant", "function_call": "f"}, "messages[1].function_call"),
        ],
    )
    def test_errors_name_the_place(self, message, param):
        rejected(param, messages=[USER, message])

    @pytest.mark.parametrize("value", [None, [], "hi", {}])
    def test_at_least_one_message_is_needed(self, value):
        rejected("messages", messages=value)


class TestTools:
    def test_functions(self):
        found = read(tools=[WEATHER, TIME | {"function": {"name": "get_time", "strict": True}}])
        assert found.tools == (
            Tool("get_weather", "Weather of a city", WEATHER["function"]["parameters"]),
            Tool("get_time", strict=True),
        )

    def test_custom_tools(self):
        custom = {"name": "patch", "description": "d", "format": {"type": "grammar"}}
        assert read(tools=[{"type": "custom", "custom": custom}]).tools == (Tool("patch", "d", custom=True),)

    def test_hosted_tools_are_left_out_and_recorded(self):
        found = read(tools=[{"type": "web_search"}, TIME])
        assert [tool.name for tool in found.tools] == ["get_time"]
        assert found.dropped == ("tool of type web_search",)

    def test_a_choice_of_a_hosted_tool_is_left_out_too(self):
        found = read(tools=[{"type": "web_search"}, TIME], tool_choice={"type": "web_search"})
        assert found.choice == ToolChoice()
        assert len(found.dropped) == 2

    def test_legacy_functions(self):
        found = read(functions=[WEATHER["function"]], function_call={"name": "get_weather"}, n=2)
        assert found.legacy_functions
        assert found.tools[0].name == "get_weather"
        assert found.choice == ToolChoice("required", ("get_weather",), parallel=False)
        assert found.options.n == 2

    def test_a_duplicate_tool_is_merged_and_a_conflicting_one_rejected(self):
        assert len(read(tools=[TIME, TIME]).tools) == 1
        rejected("tools[1]", tools=[TIME, {"type": "function", "function": {"name": "get_time", "strict": True}}])

    @pytest.mark.parametrize("value", [None, []])
    def test_no_tools(self, value):
        assert read(tools=value).tools == ()

    @pytest.mark.parametrize(
        ("tool", "param"),
        [
            (5, "tools[0]"),
            ({}, "tools[0].type"),
            ({"type": "function"}, "tools[0].function"),
            ({"type": "function", "function": {}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": "a b"}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": 'a"b'}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": "x" * 257}}, "tools[0].function.name"),
            ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
            ({"type": "function", "function": {"name": "f", "description": 5}}, "tools[0].function.description"),
            ({"type": "function", "function": {"name": "f", "strict": 5}}, "tools[0].function.strict"),
            ({"type": "custom"}, "tools[0].custom"),
        ],
    )
    def test_errors_name_the_place(self, tool, param):
        rejected(param, tools=[tool])

    def test_tools_and_functions_exclude_each_other(self):
        rejected("functions", tools=[TIME], functions=[{"name": "f"}])

    @pytest.mark.parametrize("name", ["a.b", "mcp__x-y", "ns/tool", "größe"])
    def test_names_outside_the_origins_alphabet(self, name):
        assert read(tools=[{"type": "function", "function": {"name": name}}]).tools[0].name == name


class TestToolChoice:
    @pytest.mark.parametrize(
        ("value", "choice"),
        [
            (None, ToolChoice()),
            ("auto", ToolChoice()),
            ("none", ToolChoice("none")),
            ("required", ToolChoice("required")),
            ({"type": "function", "function": {"name": "get_time"}}, ToolChoice("required", ("get_time",))),
            ({"type": "function", "name": "get_time"}, ToolChoice("required", ("get_time",))),
            (
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}},
                ToolChoice("auto", ("get_time",)),
            ),
            (
                {"type": "allowed_tools", "mode": "required", "tools": [WEATHER, TIME, {"type": "web_search"}]},
                ToolChoice("required", ("get_weather", "get_time")),
            ),
        ],
    )
    def test_tool_choice_values(self, value, choice):
        assert read(tools=[WEATHER, TIME], tool_choice=value).choice == choice

    def test_a_custom_tool_by_name(self):
        tool = {"type": "custom", "custom": {"name": "sh"}}
        assert read(tools=[tool], tool_choice=tool).choice == ToolChoice("required", ("sh",))

    def test_parallel_calls_disabled(self):
        assert read(tools=[TIME], parallel_tool_calls=False).choice == ToolChoice(parallel=False)
        assert read(tools=[TIME], parallel_tool_calls=None).choice == ToolChoice()

    @pytest.mark.parametrize(
        ("value", "param"),
        [
            ("sometimes", "tool_choice"),
            (5, "tool_choice"),
            ({}, "tool_choice"),
            ({"type": "web_search"}, "tool_choice"),
            ({"type": "function"}, "tool_choice.function.name"),
            ({"type": "function", "function": {"name": "nope"}}, "tool_choice"),
            ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
            (
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}},
                "tool_choice.allowed_tools.tools[0]",
            ),
            (
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "nope"}]}},
                "tool_choice",
            ),
        ],
    )
    def test_errors_name_the_place(self, value, param):
        rejected(param, tools=[WEATHER, TIME], tool_choice=value)

    @pytest.mark.parametrize("value", ["auto", "none"])
    def test_auto_and_none_without_tools(self, value):
        assert read(tool_choice=value).choice == ToolChoice()

    @pytest.mark.parametrize("value", ["required", {"type": "function", "function": {"name": "get_time"}}])
    def test_a_required_call_without_tools_is_rejected(self, value):
        rejected("tool_choice", tool_choice=value)
        rejected("function_call", function_call={"name": "get_time"})

    def test_tools_may_be_inferred_from_the_history(self):
        asked = {"messages": [*HISTORY, RESULT]}
        assert read(**asked, tool_choice="required").choice.mode == "required"
        named = {"type": "function", "function": {"name": "get_weather"}}
        assert read(**asked, tool_choice=named).choice.names == ("get_weather",)
        assert read(**asked, tool_choice="none").choice.mode == "none"
        rejected("tool_choice", **asked, tool_choice={"type": "function", "function": {"name": "get_time"}})


class TestFields:
    def test_other_fields(self):
        found = read(
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            n=3,
            stop=["a", "b"],
            temperature=0.5,
            made_up={"x": 1},
        )
        assert (found.protocol, found.model, found.stream, found.options.n) == ("chat", "m", True, 3)
        assert found.include_usage
        assert found.options.stop == ("a", "b")
        assert found.raw["made_up"] == {"x": 1}

    def test_defaults_and_nulls(self):
        found = read(stream=None, stream_options=None, n=None, stop=None, parallel_tool_calls=None, tool_choice=None)
        assert (found.stream, found.options.n, found.include_usage, found.options.stop) == (False, 1, False, ())

    def test_include_usage_applies_only_to_streams(self):
        assert not read(stream=False, stream_options={"include_usage": True}).include_usage

    def test_one_stop_string(self):
        assert read(stop="END").options.stop == ("END",)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model", None),
            ("model", ""),
            ("model", 5),
            ("stream", "yes"),
            ("stream_options", []),
            ("n", 0),
            ("n", 129),
            ("n", True),
            ("n", "2"),
            ("stop", 5),
            ("stop", ["a", 5]),
            ("tools", {}),
            ("parallel_tool_calls", "no"),
        ],
    )
    def test_errors_name_the_place(self, field, value):
        rejected(field, **{field: value})

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"a":NaN', b"null", b"[" * 100_000])
    def test_a_body_that_is_not_an_object(self, body):
        with pytest.raises(RequestError) as caught:
            read_request(body, LimitSettings())
        assert caught.value.status == 400

    def test_a_lone_surrogate_becomes_a_replacement_character(self):
        body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud83d b \\ud83d\\ude00"}]}'
        assert read_request(body, LimitSettings()).messages[0].text == "a\ufffd b 😀"


class TestLimits:
    def test_body_limit(self):
        with pytest.raises(TooLargeError) as caught:
            read(LimitSettings(body=10))
        assert caught.value.status == 413

    def test_tool_limit(self):
        error = rejected("tools", LimitSettings(tools=1), tools=[TIME, WEATHER])
        assert error.status == 413

    def test_schema_limit(self):
        error = rejected("tools[1].function.parameters", LimitSettings(schema=20), tools=[TIME, WEATHER])
        assert error.status == 413

    def test_depth_limit(self):
        assert read(LimitSettings(depth=5), x=[[[[]]]]).model == "m"
        with pytest.raises(RequestError):
            read(LimitSettings(depth=5), x=[[[[[]]]]])


class TestUpstream:
    def written(self, conversation, **options):
        model = ModelSettings(options.pop("model", "up"))
        return json.loads(write_request(conversation, model, **({"stream": True} | options)))

    def test_unchanged_fields_are_passed_on_verbatim(self):
        odd = {"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}}], "name": "bob"}
        fields = {"messages": [odd, *HISTORY, RESULT], "temperature": 0.1, "made_up": [1], "max_completion_tokens": 5}
        body = self.written(read(**fields, stop="x", n=2, stream=True, stream_options={"include_obfuscation": False}))
        assert body == fields | {
            "model": "up",
            "stop": ["x"],
            "n": 2,
            "stream": True,
            "stream_options": {"include_obfuscation": False},
        }

    def test_tools_that_became_text_leave_no_trace(self):
        asked = read(tools=[TIME], tool_choice="required", parallel_tool_calls=False)
        body = self.written(evolve(asked, tools=()), stream=False)
        assert body == {"model": "up", "messages": [USER], "stream": False}
        legacy = read(functions=[TIME["function"]], function_call="auto")
        assert self.written(evolve(legacy, tools=()), stream=False) == body

    def test_native_tools_are_passed_on_verbatim(self):
        custom = {"type": "custom", "custom": {"name": "sh", "format": {"type": "text"}}}
        tools = [WEATHER, custom, {"type": "function", "function": {"name": "x", "made_up": 1}}]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [custom, WEATHER]}}
        body = self.written(read(tools=tools, tool_choice=choice, parallel_tool_calls=False))
        assert body["tools"] == tools
        assert body["tool_choice"]["allowed_tools"]["tools"] == [
            {"type": "custom", "custom": {"name": "sh"}},
            {"type": "function", "function": {"name": "get_weather"}},
        ]
        assert body["parallel_tool_calls"] is False

    @pytest.mark.parametrize("choice", ["none", "required", {"type": "function", "function": {"name": "get_time"}}])
    def test_a_tool_choice_is_written_as_it_was_read(self, choice):
        assert self.written(read(tools=[TIME], tool_choice=choice))["tool_choice"] == choice

    def test_native_legacy_functions(self):
        asked = {"functions": [TIME["function"]], "function_call": {"name": "get_time"}}
        body = self.written(read(**asked))
        assert {key: body.get(key) for key in asked} == asked
        assert "tool_choice" not in body

    def test_a_whole_reply_read_as_a_stream_requests_usage(self):
        wanted = evolve(read(stream=False), include_usage=True)
        assert self.written(wanted)["stream_options"] == {"include_usage": True}
        assert "stream_options" not in self.written(wanted, stream=False)
        assert "stream_options" not in self.written(read(stream=True))
        assert "stream_options" not in self.written(read(stream=False), stream=False)

    def test_constructed_messages(self):
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        made = (
            Message("system", (TextPart("a"), TextPart("b"))),
            Message("user", (TextPart("look"), MediaPart("image", image))),
            Message(
                "assistant", (TextPart("so"),), calls=(ToolCall("c", "f", ""), ToolCall("d", "g", "ls", custom=True))
            ),
            Message(
                "user",
                (TextPart("on"),),
                results=(ToolResult("c", (TextPart("r"), MediaPart("image", image))), ToolResult("d", ())),
            ),
            Message("assistant", calls=(ToolCall("e", "f", "{}"),), reasoning="hm"),
            Message("assistant"),
        )
        body = self.written(evolve(read(), messages=made))
        assert body["messages"] == [
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
            {
                "role": "assistant",
                "content": "so",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "d", "type": "custom", "custom": {"name": "g", "input": "ls"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "r\n[image]"},
            {"role": "tool", "tool_call_id": "d", "content": ""},
            {"role": "user", "content": "on"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "e", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "assistant", "content": ""},
        ]

    def test_constructed_tools(self):
        tools = (Tool("f", "d", {"type": "object"}, strict=True), Tool("g", custom=True), Tool("h"))
        body = self.written(
            evolve(read(), protocol="messages", tools=tools, raw={"system": "s"}, options=Options(max_tokens=5))
        )
        assert body["tools"] == [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            },
            {"type": "custom", "custom": {"name": "g"}},
            {"type": "function", "function": {"name": "h"}},
        ]
        assert body["max_tokens"] == 5
        assert "system" not in body
