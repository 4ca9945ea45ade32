"""Reading a Responses client's request, and storing its reply for the next one."""

import base64
import json

import pytest

from streamtool.core.conversation import (
    HOSTED,
    HOSTED_CHOICE,
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
from streamtool.core.errors import RequestError, TooLargeError
from streamtool.protocols.responses import REQUEST_FIELDS, read_request, read_unread, store_entries
from streamtool.settings import LimitSettings

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME = {"type": "function", "name": "get_time"}
FILES = {
    "type": "namespace",
    "name": "files",
    "description": "Files of the project.",
    "tools": [{"type": "function", "name": "read", "description": "Reads one."}, {"type": "custom", "name": "patch"}],
}
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Paris"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def read(limits=None, recall=None, **fields):
    body = json.dumps({"model": "m", "input": "hi"} | fields).encode()
    return read_request(body, limits or LimitSettings(), *([recall] if recall else []))


def rejected(param, limits=None, recall=None, **fields):
    with pytest.raises(RequestError) as caught:
        read(limits, recall, **fields)
    assert caught.value.param == param, caught.value.message
    return caught.value


def messages(*items):
    return read(input=list(items)).messages


def parts(*content):
    return messages({"role": "user", "content": list(content)})[0].content


class TestMessages:
    def test_a_string_is_a_user_message(self):
        item = {"type": "message", "role": "user", "content": "hi"}
        assert read(input="hi").messages == (Message("user", (TextPart("hi"),), raw=(item,)),)

    def test_an_incomplete_output_is_partial(self):
        found = messages(USER, CALL, {**RESULT, "status": "incomplete"})
        assert found[-1].results == (ToolResult("call_1", (TextPart("sunny"),), name="get_weather", partial=True),)
        assert not messages(USER, CALL, {**RESULT, "status": "completed"})[-1].results[0].partial

    def test_roles(self):
        found = messages(
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "system", "content": "s"},
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

    def test_instructions_come_first(self):
        first, second = read(instructions="be brief").messages
        assert first == Message("system", (TextPart("be brief"),))
        assert second.role == "user"

    def test_text_in_all_its_shapes(self):
        found = messages(
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}, "c"]},
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "d", "annotations": []},
                    {"type": "refusal", "refusal": "no"},
                ],
            },
        )
        assert [message.content for message in found] == [
            (TextPart("a"), TextPart("b"), TextPart("c")),
            (TextPart("d"), TextPart("no")),
        ]

    @pytest.mark.parametrize("content", [None, "", []])
    def test_an_assistant_message_may_be_empty(self, content):
        assert messages({"role": "assistant", "content": content}, USER)[0].content == ()

    def test_images(self):
        inside = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
        outside = {"type": "input_image", "image_url": "https://example.com/a.png"}
        stored = {"type": "input_image", "file_id": "file_1"}
        assert parts(inside, outside, stored) == (
            MediaPart("image", inside, "image/png", "AAAA"),
            MediaPart("image", outside, url="https://example.com/a.png"),
            MediaPart("image", stored),
        )

    def test_audio(self):
        sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}
        assert parts(sound) == (MediaPart("audio", sound, "audio/mp3", "AAAA"),)

    def test_files(self):
        inside = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
        bare = {"type": "input_file", "filename": "a.PDF", "file_data": "AAAA"}
        outside = {"type": "input_file", "file_url": "https://example.com/a.pdf"}
        assert parts(inside, bare, outside) == (
            MediaPart("file", inside, "application/pdf", "AAAA", name="a.pdf"),
            MediaPart("file", bare, "application/pdf", "AAAA", name="a.PDF"),
            MediaPart("file", outside, url="https://example.com/a.pdf"),
        )

    def test_a_text_file_becomes_text(self):
        data = "data:text/plain;base64," + base64.b64encode("Grüße".encode()).decode()
        assert parts({"type": "input_file", "filename": "a.txt", "file_data": data}) == (TextPart("a.txt:\nGrüße"),)

    @pytest.mark.parametrize("data", ["/w==", "A"])
    def test_an_invalid_text_file_stays_a_file(self, data):
        part = {"type": "input_file", "file_data": "data:text/plain;base64," + data}
        assert parts(part) == (MediaPart("file", part, "text/plain", data),)

    def test_parts_of_an_unknown_type_are_kept(self):
        assert parts({"type": "hologram"}) == (MediaPart("hologram", {"type": "hologram"}),)

    @pytest.mark.parametrize(
        ("param", "value"),
        [
            ("input", None),
            ("input", []),
            ("input", 7),
            ("input[0]", ["hi"]),
            ("input[0].type", [{}]),
            ("input[0].type", [{"type": 7}]),
            ("input[0].role", [{"role": "king", "content": "x"}]),
            ("input[0].content", [{"role": "user"}]),
            ("input[0].content", [{"role": "user", "content": 7}]),
            ("input[0].content[0]", [{"role": "user", "content": [7]}]),
            ("input[0].content[0].type", [{"role": "user", "content": [{}]}]),
            ("input[0].content[0].text", [{"role": "user", "content": [{"type": "input_text"}]}]),
            ("input[0].call_id", [{"type": "function_call", "name": "f"}]),
            ("input[0].name", [{"type": "function_call", "call_id": "c"}]),
            ("input[0].arguments", [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}]),
            ("input[0].call_id", [{"type": "function_call_output", "output": ""}]),
            ("input[0].output", [{"type": "function_call_output", "call_id": "c", "output": 7}]),
            ("input[0].tools", [{"type": "additional_tools", "tools": 7}]),
            ("input[0].id", [{"type": "item_reference"}]),
            ("input", [{"type": "web_search_call", "id": "ws_1"}]),
        ],
    )
    def test_invalid_values_are_rejected_with_their_place(self, param, value):
        rejected(param, input=value)

    @pytest.mark.parametrize(
        ("param", "fields"),
        [
            ("model", {"model": ""}),
            ("instructions", {"instructions": ["x"]}),
            ("stream", {"stream": "yes"}),
            ("temperature", {"temperature": "warm"}),
            ("max_output_tokens", {"max_output_tokens": -1}),
            ("reasoning", {"reasoning": "high"}),
            ("text", {"text": "json"}),
            ("text.format", {"text": {"format": "json"}}),
            ("conversation", {"conversation": "conv_1"}),
            ("conversation", {"conversation": 5}),
            ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ],
    )
    def test_unsupported_values_are_rejected_with_their_place(self, param, fields):
        rejected(param, **fields)

    def test_disabled_features_are_ignored(self):
        assert read(background=False, conversation=None, prompt=None).messages


class TestCallsAndResults:
    def test_a_call_and_its_result(self):
        _, asked, told = messages(USER, CALL, RESULT)
        assert asked == Message(
            "assistant", calls=(ToolCall("call_1", "get_weather", '{"city":"Paris"}'),), raw=(CALL,)
        )
        assert told == Message(
            "user", results=(ToolResult("call_1", (TextPart("sunny"),), name="get_weather"),), raw=(RESULT,)
        )

    def test_items_of_one_turn_become_one_message(self):
        thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
        said = {"role": "assistant", "content": "Let me see."}
        second = CALL | {"call_id": "call_2", "id": "fc_2"}
        answer = RESULT | {"call_id": "call_2"}
        found = messages(USER, thought, said, CALL, second, answer, RESULT, {"role": "assistant", "content": "Sunny."})
        assert [message.role for message in found] == ["user", "assistant", "user", "assistant"]
        assert (found[1].reasoning, found[1].text) == ("hm", "Let me see.")
        assert [call.id for call in found[1].calls] == ["call_1", "call_2"]
        assert found[1].raw == (thought, said, CALL, second)
        assert [result.id for result in found[2].results] == ["call_2", "call_1"]
        assert found[3].text == "Sunny."

    def test_a_custom_tool_takes_raw_text(self):
        call = {"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": 'ls "x"'}
        answer = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "x"}
        found = messages(USER, call, answer)
        assert found[1].calls == (ToolCall("call_1", "sh", 'ls "x"', custom=True),)
        assert found[2].results == (ToolResult("call_1", (TextPart("x"),), name="sh"),)

    def test_a_call_in_a_namespace_has_a_qualified_name(self):
        found = messages(USER, CALL | {"namespace": "files", "name": "read"}, RESULT)
        assert found[1].calls[0].name == "files.read"

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [("", "{}"), (None, "{}"), (" ", "{}"), ({"a": 1}, '{"a":1}'), ("{not json", "{not json")],
    )
    def test_unusual_arguments(self, arguments, text):
        assert messages(CALL | {"arguments": arguments}, RESULT)[0].calls[0].arguments == text

    def test_a_result_of_parts(self):
        image = {"type": "input_image", "image_url": "https://example.com/a.png"}
        output = [{"type": "input_text", "text": "see"}, image]
        found = messages(CALL, RESULT | {"output": output})
        assert found[1].results[0].content == (
            TextPart("see"),
            MediaPart("image", image, url="https://example.com/a.png"),
        )

    def test_an_empty_result(self):
        assert messages(CALL, RESULT | {"output": None})[1].results[0].content == ()

    def test_a_result_without_its_call_is_read(self):
        assert messages(USER, RESULT)[1].results == (ToolResult("call_1", (TextPart("sunny"),)),)

    @pytest.mark.parametrize("missing", [{}, {"call_id": None}, {"call_id": ""}])
    @pytest.mark.parametrize(
        ("call", "output"),
        [
            (CALL, RESULT),
            (CALL, RESULT | {"name": "weather"}),
            (CALL | {"namespace": "sky"}, RESULT | {"name": "get_weather"}),
            (CALL, RESULT | {"id": "fco_1"}),
            (
                {"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": "ls"},
                {"type": "custom_tool_call_output", "output": "x"},
            ),
            (
                {"type": "local_shell_call", "call_id": "call_1", "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "output": "x"},
            ),
            (
                {"type": "apply_patch_call", "call_id": "call_1", "operation": {"type": "delete_file", "path": "a"}},
                {"type": "apply_patch_call_output", "status": "completed", "output": "x"},
            ),
        ],
    )
    def test_an_output_without_a_call_id_belongs_to_the_only_call_that_waits(self, call, output, missing):
        output = {key: value for key, value in output.items() if key != "call_id"} | missing
        earlier = (CALL | {"call_id": "call_0"}, RESULT | {"call_id": "call_0"})
        found = messages(*earlier, call, output)
        assert found[-1].results[0].id == "call_1"
        assert found[-1].raw[0]["call_id"] == "call_1"  # an upstream of the same protocol needs it, too

    def test_an_output_without_a_call_id_is_rejected_if_several_calls_wait(self):
        nameless = {key: value for key, value in RESULT.items() if key != "call_id"}
        other = CALL | {"call_id": "call_2", "name": "other"}
        rejected("input[2].call_id", input=[CALL, other, nameless])
        rejected("input[2].call_id", input=[CALL, CALL | {"call_id": "call_2"}, nameless | {"name": "get_weather"}])
        rejected("input[2].call_id", input=[CALL, RESULT, nameless])
        assert messages(CALL, other, nameless | {"name": "other"}, RESULT)[1].results[0].id == "call_2"

    def test_an_unanswered_call_is_rejected(self):
        error = rejected("input", input=[USER, CALL, CALL | {"call_id": "call_2"}, RESULT])
        assert "No tool output found for function call `call_2`" in error.message

    def test_an_interrupted_call_is_read(self):
        assert len(messages(USER, CALL, USER)) == 3


class TestReasoning:
    def test_the_full_text_takes_precedence_over_its_summary(self):
        thought = {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "long"}, {"type": "reasoning_text", "text": "er"}],
        }
        assert messages(thought, {"role": "assistant", "content": "a"}, USER)[0].reasoning == "long\n\ner"

    def test_reasoning_alone_makes_a_message(self):
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None}
        assert messages(USER, thought, USER)[1] == Message("assistant", reasoning="hm", raw=(thought,))

    def test_encrypted_reasoning_makes_no_message(self):
        sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
        assert [message.role for message in messages(USER, sealed, USER)] == ["user", "user"]
        assert messages(USER, sealed, CALL, RESULT)[1].raw == (sealed, CALL)


class TestItemsOfTheOrigin:
    def test_items_of_the_origin_are_left_out_and_recorded(self):
        found = read(
            input=[
                USER,
                {"type": "web_search_call", "id": "ws_1"},
                {"type": "web_search_call", "id": "ws_2"},
                {"type": "compaction", "encrypted_content": "x"},
                {"role": "assistant", "content": "a"},
            ]
        )
        assert [message.role for message in found.messages] == ["user", "assistant"]
        assert found.dropped == ("input item of type web_search_call", "input item of type compaction")

    def test_items_of_the_origin_do_not_split_the_surrounding_message(self):
        search = {"type": "tool_search_call", "arguments": {}}
        found = messages(USER, {"role": "assistant", "content": "a"}, search, CALL, RESULT)
        assert found[1].text == "a"
        assert found[1].calls


class TestTools:
    def test_functions(self):
        assert read(tools=[WEATHER, TIME | {"parameters": None, "strict": True}]).tools == (
            Tool("get_weather", "Weather of a city", WEATHER["parameters"]),
            Tool("get_time", strict=True),
        )

    def test_a_custom_tool(self):
        assert read(tools=[{"type": "custom", "name": "sh", "description": "Runs."}]).tools == (
            Tool("sh", "Runs.", custom=True),
        )

    @pytest.mark.parametrize(
        ("format_", "about"),
        [
            ({"type": "text"}, "Edits."),
            (
                {"type": "grammar", "syntax": "lark", "definition": "start: x"},
                "Edits.\nThe input must match this lark grammar:\nstart: x",
            ),
            (
                {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}},
                "Edits.\nThe input must match this regular expression:\na+",
            ),
        ],
    )
    def test_the_format_of_a_custom_tools_input_is_in_its_description(self, format_, about):
        tool = {"type": "custom", "name": "edit", "description": "Edits.", "format": format_}
        assert read(tools=[tool]).tools[0].description == about

    def test_a_namespace(self):
        assert read(tools=[FILES]).tools == (
            Tool("files.read", "Files of the project.\nReads one.", namespace="files"),
            Tool("files.patch", "Files of the project.", custom=True, namespace="files"),
        )

    def test_tools_that_only_the_origin_runs_are_left_out(self):
        found = read(tools=[{"type": "web_search"}, TIME, {"type": "mcp", "server_label": "x"}, {"type": "web_search"}])
        assert [tool.name for tool in found.tools] == ["get_time"]
        assert found.dropped == (f"{HOSTED}web_search", f"{HOSTED}mcp")

    def test_tools_in_the_input_are_added(self):
        further = {"type": "additional_tools", "role": "developer", "tools": [TIME, FILES, {"type": "tool_search"}]}
        found = read(tools=[WEATHER], input=[further, USER])
        assert [tool.name for tool in found.tools] == ["get_weather", "get_time", "files.read", "files.patch"]
        assert found.dropped == (f"{HOSTED}tool_search",)
        assert [message.role for message in found.messages] == ["user"]

    def test_tools_in_the_input_may_replace_earlier_ones(self):
        again = {"type": "additional_tools", "tools": [TIME | {"description": "new"}]}
        found = read(tools=[], input=[{"type": "additional_tools", "tools": [TIME]}, USER, again])
        assert found.tools == (Tool("get_time", "new"),)

    @pytest.mark.parametrize(
        ("param", "tools"),
        [
            ("tools", {}),
            ("tools[0]", ["f"]),
            ("tools[0].type", [{}]),
            ("tools[0].name", [{"type": "function"}]),
            ("tools[0].name", [{"type": "function", "name": "a b"}]),
            ("tools[0].parameters", [TIME | {"parameters": []}]),
            ("tools[1]", [TIME, TIME | {"description": "other"}]),
            ("tools[0].tools[0].name", [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]),
            ("tools[0].name", [{"type": "namespace", "tools": []}]),
        ],
    )
    def test_invalid_values_are_rejected_with_their_place(self, param, tools):
        rejected(param, tools=tools)

    def test_a_duplicate_tool_is_merged(self):
        assert len(read(tools=[TIME, TIME]).tools) == 1

    def test_limits(self):
        error = rejected("tools[1]", LimitSettings(tools=1), tools=[WEATHER, TIME])
        assert isinstance(error, TooLargeError)
        rejected("tools[0].tools[1]", LimitSettings(tools=1), tools=[FILES])
        rejected("tools[0].parameters", LimitSettings(schema=20), tools=[WEATHER])
        rejected("tools[0].tools[1].name", LimitSettings(name=10), tools=[FILES])


class TestToolChoice:
    @pytest.mark.parametrize(
        ("value", "choice"),
        [
            (None, ToolChoice()),
            ("auto", ToolChoice()),
            ("none", ToolChoice("none")),
            ("required", ToolChoice("required")),
            ({"type": "function", "name": "get_time"}, ToolChoice("required", ("get_time",))),
            ({"type": "function", "name": "files.read"}, ToolChoice("required", ("files.read",))),
            ({"type": "function", "name": "read"}, ToolChoice("required", ("files.read",))),
            ({"type": "custom", "name": "patch", "namespace": "files"}, ToolChoice("required", ("files.patch",))),
            ({"type": "namespace", "name": "files"}, ToolChoice("required", ("files.read", "files.patch"))),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]},
                ToolChoice("auto", ("get_time",)),
            ),
            (
                {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "namespace", "name": "files"}, {"type": "image_generation"}],
                },
                ToolChoice("required", ("files.read", "files.patch")),
            ),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]},
                ToolChoice("none"),
            ),
        ],
    )
    def test_tool_choice_values(self, value, choice):
        assert read(tools=[TIME, FILES], tool_choice=value).choice == choice

    def test_one_call_at_most(self):
        assert read(tools=[TIME], parallel_tool_calls=False).choice == ToolChoice(parallel=False)

    def test_a_name_in_several_namespaces_means_all_of_them(self):
        more = FILES | {"name": "web"}
        found = read(tools=[FILES, more], tool_choice={"type": "function", "name": "read"})
        assert found.choice.names == ("files.read", "web.read")

    @pytest.mark.parametrize(
        ("param", "value"),
        [
            ("tool_choice", 7),
            ("tool_choice", "sometimes"),
            ("tool_choice", {"type": "web_search"}),
            ("tool_choice", {"type": "function", "name": "nope"}),
            ("tool_choice.name", {"type": "function"}),
            ("tool_choice", {"type": "allowed_tools", "tools": []}),
            ("tool_choice.tools[0]", {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "nope"}]}),
        ],
    )
    def test_unsupported_values_are_rejected_with_their_place(self, param, value):
        rejected(param, tools=[TIME], tool_choice=value)

    def test_a_required_call_without_tools_is_rejected(self):
        rejected("tool_choice", tool_choice="required")
        rejected("tool_choice", tool_choice={"type": "function", "name": "f"})

    def test_a_choice_of_a_tool_that_was_left_out(self):
        found = read(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
        assert found.choice == ToolChoice()
        assert found.dropped == (f"{HOSTED}web_search", HOSTED_CHOICE)

    def test_tools_in_the_history_may_be_chosen(self):
        found = read(input=[USER, CALL, RESULT], tool_choice={"type": "function", "name": "get_weather"})
        assert found.choice.names == ("get_weather",)


class TestOptions:
    def test_given_options(self):
        found = read(
            stream=True,
            max_output_tokens=5,
            temperature=0.5,
            top_p=1,
            reasoning={"effort": "low", "summary": "auto"},
            safety_identifier="u",
        )
        assert found.stream is True
        assert found.options == Options(max_tokens=5, effort="low", user="u", sampling={"temperature": 0.5, "top_p": 1})

    def test_omitted_options(self):
        assert read(reasoning=None, text=None, temperature=None).options == Options()

    @pytest.mark.parametrize(
        ("format_", "output"),
        [
            ({"type": "text"}, None),
            ({"type": "json_object"}, OutputFormat()),
            (
                {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
                OutputFormat({"type": "object"}, "n", strict=True),
            ),
            ({"type": "grammar", "syntax": "lark"}, None),
        ],
    )
    def test_the_output_format(self, format_, output):
        assert read(text={"format": format_, "verbosity": "low"}).options.output == output

    def test_supported_fields(self):
        found = read(text={"verbosity": "low"}, include=[], service_tier="auto", truncation="auto")
        dropped = REQUEST_FIELDS.dropped(found, "chat", prompted=False)
        assert dropped == ["include", "service_tier", "truncation"]


class TestStore:
    OUTPUT = (
        {"id": "rs_a_0", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"id": "msg_a_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"id": "fc_a_2", "call_id": "call_1", **CALL},
    )

    def response(self):
        return json.dumps({"id": "resp_a", "object": "response", "output": list(self.OUTPUT)}).encode()

    def kept(self, **fields):
        return dict(store_entries(read(**fields), self.response()))

    def test_the_response_and_each_of_its_items_are_stored(self):
        kept = {key: json.loads(value) for key, value in self.kept(input=[USER]).items()}
        assert kept == {
            "resp_a": {"input": [USER], "output": list(self.OUTPUT)},
            "head resp_a": {"id": "resp_a", "object": "response"},
            "rs_a_0": self.OUTPUT[0],
            "msg_a_1": self.OUTPUT[1],
            "fc_a_2": self.OUTPUT[2],
        }

    def test_a_string_is_stored_as_an_item(self):
        whole = json.loads(self.kept(input="hi")["resp_a"])
        assert whole["input"] == [{"type": "message", "role": "user", "content": "hi"}]

    def test_a_conversation_continues(self):
        kept = self.kept(input="what is the weather?", instructions="be brief")
        found = read(recall=kept.get, previous_response_id="resp_a", input=[RESULT])
        assert [message.role for message in found.messages] == ["user", "assistant", "user"]
        assert found.messages[1].reasoning == "hm"
        assert found.messages[1].calls[0].id == "call_1"
        assert found.messages[2].results[0].name == "get_weather"
        assert found.raw["previous_response_id"] == "resp_a"

        # the next reply stores all of it again
        whole = json.loads(dict(store_entries(found, self.response()))["resp_a"])
        assert whole["input"] == [
            {"type": "message", "role": "user", "content": "what is the weather?"},
            *self.OUTPUT,
            RESULT,
        ]

    def test_the_new_input_may_be_missing(self):
        output = [{"id": "msg_a_0", "type": "message", "role": "assistant", "content": "ok"}]
        value = json.dumps({"input": [USER], "output": output}).encode()
        found = read(recall={"resp_a": value}.get, previous_response_id="resp_a", input=None)
        assert [message.role for message in found.messages] == ["user", "assistant"]

    @pytest.mark.parametrize("value", [None, b"{", b"[]", b'{"input":[]}'])
    def test_an_unknown_response_is_rejected(self, value):
        error = rejected("previous_response_id", recall=lambda _: value, previous_response_id="resp_x")
        assert (error.status, error.code) == (400, "previous_response_not_found")

    def test_without_a_store_every_response_is_unknown(self):
        rejected("previous_response_id", previous_response_id="resp_x")

    def test_a_reference_is_replaced_by_its_item(self):
        kept = self.kept()
        items = [
            USER,
            {"type": "item_reference", "id": "msg_a_1"},
            {"id": "fc_a_2"},  # the type is optional
            RESULT,
        ]
        found = read(recall=kept.get, input=items)
        assert found.messages[1].text == "ok"
        assert found.messages[1].raw == (self.OUTPUT[1], self.OUTPUT[2])
        assert found.raw["input"] == [USER, self.OUTPUT[1], self.OUTPUT[2], RESULT]
        assert found.dropped == ()

    def test_an_unknown_message_is_left_out(self):
        items = [USER, {"type": "item_reference", "id": "rs_x"}, {"type": "item_reference", "id": "msg_x"}, USER]
        found = read(input=items)
        assert [message.role for message in found.messages] == ["user", "user"]
        assert found.dropped == ("reference to an unknown item",)
        assert found.raw["input"] == [USER, USER]

    @pytest.mark.parametrize("identity", ["fc_x", "ctc_x"])
    def test_an_unknown_call_is_rejected(self, identity):
        error = rejected("input[1].id", input=[USER, {"type": "item_reference", "id": identity}])
        assert error.message == f"Item with id '{identity}' not found."

    def test_recalled_items_count_towards_the_body_limit(self):
        value = json.dumps({"role": "user", "content": "x" * 100}).encode()
        items = [{"type": "item_reference", "id": "msg_1"}] * 100
        assert len(read(recall=lambda _: value, input=items).messages) == 100
        error = rejected("input[43]", LimitSettings(body=10_000), lambda _: value, input=items)
        assert isinstance(error, TooLargeError)

    def test_a_body_without_references_is_kept_verbatim(self):
        assert read(input="hi", custom_field=1).raw == {"model": "m", "input": "hi", "custom_field": 1}


class TestUnread:
    def unread(self, **fields):
        return read_unread(json.dumps({"model": "m"} | fields).encode(), LimitSettings())

    def test_an_unreadable_request_without_tools_passes(self):
        found = self.unread(input=[{"role": "king", "content": 1}], stream=True)
        assert (found.protocol, found.model, found.messages, found.stream) == ("responses", "m", (), True)

    @pytest.mark.parametrize(
        "fields",
        [
            {"tools": [TIME]},
            {"tool_choice": "required"},
            {"input": [CALL]},
            {"input": [{"type": 7}]},
            {"input": [{"type": "additional_tools", "tools": []}]},
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            {"input": [{"id": "msg_1"}]},
            {"previous_response_id": "resp_1"},
            {"conversation": "conv_1"},
            {"background": True},
            {"prompt": {"id": "pmpt_1"}},
        ],
    )
    def test_an_unreadable_request_that_may_involve_tools_does_not_pass(self, fields):
        assert self.unread(**fields) is None
