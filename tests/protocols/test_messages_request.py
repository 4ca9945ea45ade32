"""Reading a Messages client's request."""

import json

import pytest

from streamtool.core.conversation import (
    HOSTED,
    MediaPart,
    Options,
    OutputFormat,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import RequestError, TooLargeError
from streamtool.protocols.messages import read_count, read_request, read_unread
from streamtool.settings import LimitSettings

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
ASKED = [USER, {"role": "assistant", "content": [USE]}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def body(**fields):
    whole = {"model": "m", "max_tokens": 100, "messages": [USER]} | fields
    return json.dumps({key: value for key, value in whole.items() if value is not ...}).encode()


def read(limits=None, **fields):
    return read_request(body(**fields), limits or LimitSettings())


def rejected(param, limits=None, **fields):
    with pytest.raises(RequestError) as caught:
        read(limits, **fields)
    assert caught.value.param == param, caught.value.message
    return caught.value


def messages(*items, **fields):
    return read(messages=list(items), **fields).messages


def says(*blocks):
    return messages({"role": "user", "content": list(blocks)})[0].content


def results(*blocks):
    return messages(*ASKED, {"role": "user", "content": list(blocks)})[-1].results


class TestMessages:
    def test_roles(self):
        found = messages(USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}, USER)
        assert [(message.role, message.text) for message in found] == [
            ("user", "hi"), ("assistant", "a"), ("system", "s"), ("user", "hi"),
        ]  # fmt: skip
        assert found[0].raw == (USER,)

    @pytest.mark.parametrize(
        ("system", "parts"),
        [
            ("be brief", (TextPart("be brief"),)),
            (
                [{"type": "text", "text": "a", **EPHEMERAL}, {"type": "text", "text": "b"}],
                (TextPart("a"), TextPart("b")),
            ),
        ],
    )
    def test_system_is_the_first_message(self, system, parts):
        first, second = messages(USER, system=system)
        assert (first.role, first.content, first.raw) == ("system", parts, ({"system": system},))
        assert second.role == "user"

    @pytest.mark.parametrize("system", [None, "", [], [{"type": "text", "text": ""}], ...])
    def test_system_may_be_empty(self, system):
        assert len(messages(USER, system=system)) == 1

    def test_a_message_keeps_its_raw_form(self):
        message = {
            "role": "system", "content": [{"type": "text", "text": "s", **EPHEMERAL}], "output_config": {"effort": "low"},
        }  # fmt: skip
        assert messages(USER, message)[1].raw == (message,)

    def test_texts_and_images(self):
        by_url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
        by_id = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
        assert says({"type": "text", "text": "a", **EPHEMERAL}, IMAGE, by_url, by_id, "b") == (
            TextPart("a"),
            MediaPart("image", IMAGE, "image/png", "aGk="),
            MediaPart("image", by_url, url="https://x/y.png"),
            MediaPart("image", by_id),
            TextPart("b"),
        )

    def test_documents(self):
        pdf = {
            "type": "document", "title": "t.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
        }  # fmt: skip
        linked = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}
        text = {
            "type": "document",
            "title": "t",
            "context": "c",
            "source": {"type": "text", "media_type": "text/plain", "data": "words"},
        }
        parts = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}, IMAGE]}}
        assert says(pdf, linked, text, parts) == (
            MediaPart("file", pdf, "application/pdf", "aGk=", name="t.pdf"),
            MediaPart("file", linked, url="https://x/y.pdf"),
            TextPart("t\nc\n\nwords"),
            TextPart("x"),
            MediaPart("image", IMAGE, "image/png", "aGk="),
        )

    def test_search_results_and_tool_references_are_text(self):
        found = {
            "type": "search_result",
            "title": "T",
            "source": "https://x",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        }
        assert says(found, {"type": "tool_reference", "tool_name": "f"}) == (
            TextPart("T\nhttps://x\n\na\nb"),
            TextPart("[tool `f`]"),
        )

    def test_unknown_blocks_are_kept(self):
        odd = {"type": "hologram", "data": 1}
        assert says(odd) == (MediaPart("hologram", odd),)

    def test_a_single_block_outside_a_list(self):
        assert messages({"role": "user", "content": {"type": "text", "text": "a"}})[0].content == (TextPart("a"),)

    @pytest.mark.parametrize(
        ("param", "items"),
        [
            ("messages", []),
            ("messages", "hi"),
            ("messages[0]", ["hi"]),
            ("messages[0].role", [{"role": "tool", "content": "x"}]),
            ("messages[0].content", [{"role": "user", "content": 5}]),
            ("messages[0].content", [{"role": "user"}]),
            ("messages[0].content[1].type", [{"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]),
            ("messages[0].content[0].text", [{"role": "user", "content": [{"type": "text"}]}]),
            ("messages[0].content[0].type", [{"role": "user", "content": [USE]}]),
            ("messages[0].content[0].type", [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]),
            ("messages[0].content[0].id", [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]),
            ("messages[0].content[0].input", [{"role": "assistant", "content": [{**USE, "input": [1]}]}]),
            ("messages[0].content[0].tool_use_id", [{"role": "user", "content": [{"type": "tool_result"}]}]),
            ("messages[0].content[0].is_error", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "is_error": "no"}]}]),
            ("messages", ASKED),
        ],
    )  # fmt: skip
    def test_invalid_values_are_rejected_with_their_place(self, param, items):
        rejected(param, messages=items)

    def test_an_unanswered_call_is_named(self):
        assert rejected("messages", messages=ASKED).message.startswith(
            "The call `toolu_1` to `get_weather` has no result"
        )

    def test_an_unpaired_surrogate_is_replaced(self):
        data = body().replace(b'"hi"', rb'"a\ud83d"')
        assert read_request(data, LimitSettings()).messages[0].content == (TextPart("a\ufffd"),)


class TestCalls:
    def test_a_call_and_text(self):
        assistant = {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]}
        message = messages(USER, assistant, {"role": "user", "content": "never mind"})[1]
        assert message.content == (TextPart("Let me see."),)
        assert message.calls == (ToolCall("toolu_1", "get_weather", '{"city":"Paris"}'),)
        assert message.raw == (assistant,)

    @pytest.mark.parametrize(
        ("given", "arguments"),
        [({}, "{}"), (None, "{}"), (..., "{}"), ("", "{}"), ('{"a": 1}', '{"a": 1}'), ({"a": 1.0}, '{"a":1.0}')],
    )
    def test_shapes_of_input(self, given, arguments):
        use = {key: value for key, value in {**USE, "input": given}.items() if value is not ...}
        message = messages(USER, {"role": "assistant", "content": [use]}, USER)[1]
        assert message.calls[0].arguments == arguments

    @pytest.mark.parametrize(
        ("content", "parts"),
        [
            ("sunny", (TextPart("sunny"),)),
            ("", ()),
            (None, ()),
            (..., ()),
            ([], ()),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], (TextPart("a"), TextPart("b"))),
            ([IMAGE], (MediaPart("image", IMAGE, "image/png", "aGk="),)),
            ([{"type": "document", "source": {"type": "text", "data": "d"}}], (TextPart("d"),)),
            ([{"type": "tool_reference", "tool_name": "f"}], (TextPart("[tool `f`]"),)),
            ([{"type": "search_result", "title": "T", "source": "s", "content": []}], (TextPart("T\ns"),)),
        ],
    )
    def test_shapes_of_a_result(self, content, parts):
        block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **EPHEMERAL}
        block = {key: value for key, value in block.items() if value is not ...}
        assert results(block) == (ToolResult("toolu_1", parts, name="get_weather"),)

    @pytest.mark.parametrize(("given", "error"), [(True, True), (False, False), (None, False)])
    def test_a_result_may_be_an_error(self, given, error):
        [result] = results({"type": "tool_result", "tool_use_id": "toolu_1", "content": "x", "is_error": given})
        assert result.error is error

    def test_results_and_text_in_one_message(self):
        given = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}, {"type": "text", "text": "go on"}]
        message = messages(*ASKED, {"role": "user", "content": given})[-1]
        assert message.results == (ToolResult("toolu_1", (TextPart("x"),), name="get_weather"),)
        assert message.content == (TextPart("go on"),)


SIGNED = {"type": "thinking", "thinking": "hm", "signature": "EqoB"}
OURS = {"type": "thinking", "thinking": "well", "signature": "streamtool"}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}
SAID = {"type": "text", "text": "a"}


class TestReasoning:
    def read(self, *blocks):
        return messages(USER, {"role": "assistant", "content": list(blocks), "x": 1}, USER)[1]

    def test_signed_reasoning_stays_in_the_raw_message(self):
        message = self.read(SIGNED, REDACTED, SAID)
        assert message.reasoning == "hm"
        assert message.content == (TextPart("a"),)
        assert message.raw == ({"role": "assistant", "content": [SIGNED, REDACTED, SAID], "x": 1},)

    def test_reasoning_with_our_own_signature_is_read_and_removed(self):
        message = self.read(OURS, SAID)
        assert message.reasoning == "well"
        assert message.raw == ({"role": "assistant", "content": [SAID], "x": 1},)

    def test_a_message_emptied_by_the_removal_has_no_raw_form(self):
        message = self.read(OURS)
        assert (message.reasoning, message.raw) == ("well", ())

    def test_blank_text_is_removed_because_the_origin_rejects_it(self):
        assert self.read({"type": "text", "text": "\n\n"}, SAID).raw[0]["content"] == [SAID]


class TestTools:
    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"type": None},
            {"type": "custom"},
            EPHEMERAL,
            {"eager_input_streaming": True, "allowed_callers": ["direct"]},
        ],
    )
    def test_a_tool(self, more):
        assert read(tools=[WEATHER | more]).tools == (Tool("get_weather", "Weather of a city", SCHEMA),)

    def test_a_minimal_tool(self):
        assert read(tools=[{"name": "f"}, {"name": "g", "description": None, "strict": True}]).tools == (
            Tool("f"),
            Tool("g", strict=True),
        )

    def test_tools_that_only_the_origin_runs_are_left_out(self):
        tools = [
            {"type": "web_search_20250305", "name": "web_search"},
            WEATHER,
            {"type": "mcp_toolset", "mcp_server_name": "x"},
        ]
        asked = read(tools=tools)
        assert [tool.name for tool in asked.tools] == ["get_weather"]
        assert asked.dropped == (f"{HOSTED}web_search_20250305", f"{HOSTED}mcp_toolset")

    @pytest.mark.parametrize(
        ("kind", "name", "required", "some"),
        [
            ("bash_20250124", "bash", None, {"command", "restart"}),
            (
                "text_editor_20250124",
                "str_replace_editor",
                ["command", "path"],
                {"command", "path", "new_str", "old_str"},
            ),
            ("text_editor_20250728", "str_replace_based_edit_tool", ["command", "path"], {"insert_text", "view_range"}),
            ("memory_20250818", "memory", ["command"], {"old_path", "new_path", "file_text"}),
            ("computer_20241022", "computer", ["action"], {"coordinate", "text"}),
            ("computer_20251124", "computer", ["action"], {"scroll_amount", "duration"}),
        ],
    )
    def test_tools_that_the_client_runs_get_the_schema_of_their_type(self, kind, name, required, some):
        for given in ({"type": kind, "name": name}, {"type": kind}):
            [tool] = read(tools=[given]).tools
            assert tool.name == name
            assert tool.description
            assert tool.parameters["type"] == "object"
            assert tool.parameters.get("required") == required
            assert some <= tool.parameters["properties"].keys()

    def test_only_the_older_editor_can_undo(self):
        older, newer = (
            read(tools=[{"type": kind}]).tools[0].parameters["properties"]["command"]["enum"]
            for kind in ("text_editor_20250124", "text_editor_20250429")
        )
        assert older == ["view", "create", "str_replace", "insert", "undo_edit"]
        assert newer == ["view", "create", "str_replace", "insert"]

    @pytest.mark.parametrize(
        ("more", "zooms"), [({}, False), ({"enable_zoom": False}, False), ({"enable_zoom": True}, True)]
    )
    def test_zoom_is_offered_if_the_client_enables_it(self, more, zooms):
        [tool] = read(tools=[{"type": "computer_20251124", **more}]).tools
        assert ("zoom" in tool.parameters["properties"]["action"]["enum"]) is zooms
        assert ("region" in tool.parameters["properties"]) is zooms

    def test_the_description_gives_the_editors_character_limit(self):
        [tool] = read(tools=[{"type": "text_editor_20250728", "max_characters": 500}]).tools
        assert "At most 500 characters" in tool.description

    def test_the_description_gives_the_size_of_the_screen(self):
        [tool] = read(tools=[{"type": "computer_20250124", "display_width_px": 800, "display_height_px": 600}]).tools
        assert "800 x 600" in tool.description

    @pytest.mark.parametrize(
        ("param", "tools"),
        [
            ("tools", {}),
            ("tools[0]", ["f"]),
            ("tools[0].name", [{"input_schema": {}}]),
            ("tools[0].name", [{"name": "a b"}]),
            ("tools[0].input_schema", [{"name": "f", "input_schema": "x"}]),
            ("tools[0].type", [{"name": "f", "type": 5}]),
            ("tools[1]", [WEATHER, {"name": "get_weather"}]),
        ],
    )
    def test_an_invalid_tool_is_rejected_with_its_place(self, param, tools):
        rejected(param, tools=tools)

    def test_limits(self):
        with pytest.raises(TooLargeError):
            read(LimitSettings(tools=1), tools=[{"name": "f"}, {"name": "g"}])
        with pytest.raises(TooLargeError):
            read(LimitSettings(schema=20), tools=[WEATHER])

    def test_a_duplicate_tool_is_merged(self):
        assert len(read(tools=[WEATHER, WEATHER]).tools) == 1


class TestToolChoice:
    @pytest.mark.parametrize(
        ("given", "choice"),
        [
            (None, ToolChoice()),
            ({"type": "auto"}, ToolChoice()),
            ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
            ({"type": "any"}, ToolChoice("required")),
            ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", parallel=False)),
            ({"type": "tool", "name": "get_weather"}, ToolChoice("required", ("get_weather",))),
            ({"type": "none"}, ToolChoice("none")),
            ("any", ToolChoice("required")),
        ],
    )
    def test_choices(self, given, choice):
        assert read(tools=[WEATHER], tool_choice=given).choice == choice

    @pytest.mark.parametrize(
        ("param", "given"),
        [
            ("tool_choice", {"type": "tool", "name": "other"}),
            ("tool_choice.name", {"type": "tool"}),
            ("tool_choice", {"type": "some"}),
            ("tool_choice", {}),
            ("tool_choice", 5),
            ("tool_choice.disable_parallel_tool_use", {"type": "auto", "disable_parallel_tool_use": 1}),
        ],
    )
    def test_an_invalid_tool_choice_is_rejected(self, param, given):
        rejected(param, tools=[WEATHER], tool_choice=given)

    def test_a_required_call_needs_a_tool(self):
        rejected("tool_choice", tool_choice={"type": "any"})
        assert read(tool_choice={"type": "auto"}).choice == ToolChoice()

    def test_a_choice_of_a_tool_that_was_left_out(self):
        hosted = {"type": "web_search_20250305", "name": "web_search"}
        named = read(tools=[hosted, WEATHER], tool_choice={"type": "tool", "name": "web_search"})
        assert named.choice == ToolChoice()
        assert named.dropped == (f"{HOSTED}web_search_20250305", "tool_choice of a tool that was left out")
        assert read(tools=[hosted], tool_choice={"type": "any"}).choice == ToolChoice()


class TestOptions:
    def test_single_values(self):
        asked = read(
            stream=True, temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["END", ""],
            metadata={"user_id": "u"}, output_config={"effort": "medium"},
        )  # fmt: skip
        assert asked.stream is True
        assert asked.options == Options(
            stop=("END",),
            max_tokens=100,
            effort="medium",
            user="u",
            sampling={"temperature": 0.5, "top_p": 0.9, "top_k": 40},
        )
        assert (asked.protocol, asked.model, asked.options.n) == ("messages", "m", 1)

    @pytest.mark.parametrize(
        ("fields", "effort"),
        [
            ({}, None),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
            ({"thinking": {"type": "enabled", "budget_tokens": 10000}}, "medium"),
            ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
            ({"thinking": {"type": "adaptive", "display": "omitted"}}, None),
            ({"thinking": {"type": "disabled"}}, None),
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}}, "xhigh"),
            ({"output_config": {"effort": None}}, None),
        ],
    )
    def test_effort(self, fields, effort):
        assert read(**fields).options.effort == effort

    def test_the_output_format(self):
        form = {"type": "json_schema", "schema": SCHEMA}
        assert read(output_config={"format": form}).options.output == OutputFormat(SCHEMA)
        assert read(output_format=form).options.output == OutputFormat(SCHEMA)
        assert read(output_config={"format": None}).options.output is None

    def test_max_tokens_is_required(self):
        error = rejected("max_tokens", max_tokens=...)
        assert error.status == 400
        rejected("max_tokens", max_tokens="many")

    @pytest.mark.parametrize(
        ("param", "fields"),
        [
            ("model", {"model": 5}),
            ("stream", {"stream": "yes"}),
            ("temperature", {"temperature": "hot"}),
            ("stop_sequences", {"stop_sequences": [1]}),
            ("system", {"system": 5}),
            ("system[0].text", {"system": [{"type": "text"}]}),
        ],
    )
    def test_invalid_values_are_rejected_with_their_place(self, param, fields):
        rejected(param, **fields)

    def test_a_body_that_is_not_an_object(self):
        with pytest.raises(RequestError):
            read_request(b"[]", LimitSettings())


class TestCount:
    def test_max_tokens_is_optional(self):
        asked = read_count(body(max_tokens=..., tools=[WEATHER]), LimitSettings())
        assert asked.options.max_tokens is None
        assert [tool.name for tool in asked.tools] == ["get_weather"]

    def test_unanswered_calls_are_allowed(self):
        assert read_count(body(messages=ASKED), LimitSettings()).messages[1].calls


class TestUnread:
    @pytest.mark.parametrize(
        "fields", [{"messages": 5}, {"max_tokens": ...}, {"tools": [], "tool_choice": {"type": "auto"}}]
    )
    def test_an_unreadable_request_without_tools_passes(self, fields):
        data = body(stream=True, **fields)
        asked = read_unread(data, LimitSettings())
        assert (asked.protocol, asked.model, asked.messages, asked.stream) == ("messages", "m", (), True)
        assert asked.raw == json.loads(data)

    @pytest.mark.parametrize(
        "fields", [{"tools": [WEATHER]}, {"tool_choice": {"type": "any"}}, {"messages": ASKED}, {"tool_choice": 5}]
    )
    def test_an_unreadable_request_with_tools_does_not_pass(self, fields):
        assert read_unread(body(**fields), LimitSettings()) is None


def test_a_request_of_claude_code():
    reminder = [
        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
        {"type": "text", "text": "do it", **EPHEMERAL},
    ]
    asked = read(
        system=[{"type": "text", "text": "head"}, {"type": "text", "text": "who", **EPHEMERAL}, {"type": "text", "text": "rules", **EPHEMERAL}],
        messages=[
            {"role": "user", "content": reminder},
            {"role": "system", "content": "tools changed", "output_config": {"effort": "high"}},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "EqoB"}, USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "18", **EPHEMERAL}]},
            {"role": "system", "content": [{"type": "text", "text": "note"}]},
        ],
        tools=[WEATHER | {"input_schema": SCHEMA | {"$schema": "http://json-schema.org/draft-07/schema#"}}, {"name": "Later", "input_schema": {"type": "object"}, "defer_loading": True}],
        thinking={"type": "adaptive", "display": "omitted"}, context_management={"edits": []}, output_config={"effort": "high"},
        max_tokens=128000, stream=True, metadata={"user_id": "{}"}, diagnostics={},
    )  # fmt: skip
    assert [message.role for message in asked.messages] == ["system", "user", "system", "assistant", "user", "system"]
    assert asked.messages[4].results[0].name == "get_weather"
    assert [tool.name for tool in asked.tools] == ["get_weather"]
    assert asked.dropped == ()
