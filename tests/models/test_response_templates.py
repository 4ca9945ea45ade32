"""Response templates: read like transformers' reference, whole and in pieces, or rejected with the construct's name.

`tools/response_templates.py` records what the reference makes of the same replies.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.response_templates import (
    CALLS,
    NAMED,
    NOT_READ_BACK,
    REPLIES,
    TEMPLATES,
    TEXT,
    THOUGHTS,
    TOOLS,
    Reply,
    messages,
    template,
    written,
)
from support.statemachine_fold import cuts, pieces
from support.sweeps import each

from statemachine import (
    ArgumentsDelta,
    Call,
    CallEnd,
    CallStart,
    Event,
    Parser,
    ReasoningDelta,
    TextDelta,
    parse,
    write,
)
from statemachine.formats import DEFAULT, FORMATS, FormatError, find_format, rivals_of
from streamtool.forcing.call_frames import frame
from streamtool.models.response_templates import Described, read

RECORDED = json.loads(Path(__file__).with_name("response_templates.json").read_text(encoding="utf-8"))
REASONING = ("reasoning_content", "reasoning", "thinking")
SPLITS = 1
"""Number of splits of each reply; with `-m long`, every split is tested."""
HARMLESS = {"late_id"}
"""Repairs that change neither names nor arguments."""

Outcome = tuple[str, str, list[tuple[str, Any]]]
"""Text and reasoning, without whitespace around them, and calls."""


@cache
def described(name: str) -> Described:
    """Return the format of a template. It is read on first use, because only one worker needs it."""
    return read(TEMPLATES[name])


def outcome(parts: list[str], known: Described, *, opened: bool = True, others: Sequence[str] = ()) -> Outcome:
    """Return what the parser makes of a reply in these pieces, if it also reads the formats `others`. `opened` is
    whether the prompt opens the reasoning, if the template allows that.
    """
    opener = known.opener_on_request if opened else ""
    parser = Parser(TOOLS, formats=[*others, known.format], prefix=opener)
    events = [event for part in parts for event in parser.feed(part)]
    return folded([*events, *parser.close("stop")])


def folded(events: list[Event]) -> Outcome:
    text, reasoning = "", ""
    calls: list[list[str]] = []
    for event in events:
        match event:
            case TextDelta(text=piece):
                text += piece
            case ReasoningDelta(text=piece):
                reasoning += piece
            case CallStart(name=name):
                calls.append([name, ""])
            case ArgumentsDelta(text=piece):
                calls[-1][1] += piece
            case CallEnd(complete=complete, repairs=repairs):
                assert complete
                assert HARMLESS.issuperset(repairs)
    return text.strip(), reasoning.strip(), [(name, json.loads(arguments)) for name, arguments in calls]


def expected(message: Mapping[str, Any]) -> Outcome:
    """Return the same parts of a message of the reference."""
    reasoning = next((message[key] for key in REASONING if key in message), "")
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], function["arguments"]) for function in functions]
    return message.get("content", "").strip(), reasoning.strip(), calls


def recorded(reply: Reply) -> Outcome:
    """Return what the reference makes of a reply."""
    found = [one for one in RECORDED["replies"] if (one["template"], one["title"]) == (reply.template, reply.title)]
    return expected(found[0]["message"])


def test_every_template_has_replies():
    assert {reply.template for reply in REPLIES} == set(TEMPLATES)
    assert [(one["template"], one["title"]) for one in RECORDED["replies"]] == [(r.template, r.title) for r in REPLIES]


@each("reply", REPLIES, lambda reply: f"{reply.template}: {reply.title}")
def test_a_reply_is_read_like_the_reference_at_each_split(reply: Reply):
    known, wanted = described(reply.template), recorded(reply)
    for size in (0, 1):
        assert outcome(pieces(reply.text, size), known) == wanted, f"in pieces of {size}"
    places = random.Random(reply.text).sample(range(1, len(reply.text)), SPLITS)
    for place in places:
        assert outcome(cuts(reply.text, [place]), known) == wanted, f"cut at {place}"


@pytest.mark.long
@each("reply", REPLIES, lambda reply: f"{reply.template}: {reply.title}")
def test_a_reply_is_read_like_the_reference_at_every_split(reply: Reply):
    known, wanted = described(reply.template), recorded(reply)
    for place in range(1, len(reply.text)):
        assert outcome(cuts(reply.text, [place]), known) == wanted, f"cut at {place}"


def check_with_other_formats(name: str) -> None:
    known = described(name)
    rivals = rivals_of(find_format(known.format))
    others = [row for row in DEFAULT if row not in rivals]
    for reply in (reply for reply in REPLIES if reply.template == name):
        for size in (0, 1):
            found = outcome(pieces(reply.text, size), known, others=others)
            assert found == recorded(reply), f"{reply.title}, in pieces of {size}"


def test_replies_are_read_alike_with_all_other_formats():
    check_with_other_formats("name_after_marker")  # `[MUSE]` and `[STEP]` could begin a list


@pytest.mark.long
@each("name", TEMPLATES)
def test_replies_of_each_template_are_read_alike_with_all_other_formats(name: str):
    check_with_other_formats(name)


@each("name", TEMPLATES)
def test_calls_are_written_as_the_template_describes_them(name: str):
    text = written(name)
    calls = [(call.name, json.loads(call.arguments)) for call in CALLS]
    assert outcome([text], described(name), opened=False) == ("", "", calls)
    if name not in NOT_READ_BACK:
        assert expected(RECORDED["written"][name]) == ("", "", calls)


@each("name", TEMPLATES)
def test_the_text_around_forced_arguments_is_that_of_the_template(name: str):
    around = frame(described(name).format, "find_bird")
    given = {"json": '{"count": 2}', "parameters": "", "keywords": "", "free": ""}[around.inside]
    wanted = [("find_bird", json.loads(given or "{}"))]
    assert outcome([around.begin, given, around.end], described(name), opened=False) == ("", "", wanted)
    assert around.begin.startswith(around.trigger)


@pytest.mark.engines
def test_the_recorded_messages_are_those_of_the_reference():
    pytest.importorskip("transformers.utils.chat_parsing", exc_type=ImportError)
    found = [messages(reply.text, TEMPLATES[reply.template]) for reply in REPLIES]
    assert found == [one["message"] for one in RECORDED["replies"]]
    again = {name: messages(written(name), TEMPLATES[name]) for name in TEMPLATES if name not in NOT_READ_BACK}
    assert again == RECORDED["written"]


@each("name", ["json_in_tags", "json_with_paths", "delimited_strings", "channels", "list_of_actions", "call_list"])
def test_arguments_are_streamed(name: str):
    """Arguments are sent as they are written, whereas the reference parses them once the call is closed."""
    text = written(name)
    end = text.index("coot") + 4
    parser = Parser(TOOLS, formats=[described(name).format])
    parts = [event.text for event in parser.feed(text[:end]) if isinstance(event, ArgumentsDelta)]
    assert "".join(parts).endswith("coot")


def test_reasoning_is_read_even_without_tools():
    known = described("delimited_strings")
    parser = Parser({}, formats=[known.format])
    text = "<|lane>muse\nhm<lane|>Two coots."
    assert folded([*parser.feed(text), *parser.close()]) == ("Two coots.", "hm", [])


def test_a_format_has_the_name_of_its_template():
    one, other = described("json_in_tags").format, described("channels").format
    assert one != other
    assert one.startswith("response_template_")
    assert read({**TEMPLATES["json_in_tags"]}).format == one
    assert one not in FORMATS
    assert find_format(one).name == one


JSON_CALL = {"type": "function", "function": "{content}"}
TAGGED = {"open": "<act>", "close": "</act>", "content": "json", "transform": JSON_CALL}

# --- how calls are written ---------------------------------------------------------------------------------------------


def headed(opener: str, close: str = "</act>") -> dict[str, Any]:
    """Return a template of JSON after this opener, which contains the name."""
    return template({"open_pattern": opener, "close": close, "content": "json", "transform": NAMED})


def tagged(opener: str, close: str) -> dict[str, Any]:
    """Return a template of JSON objects between these literals."""
    return template({"open": opener, "close": close, "content": "json", "transform": JSON_CALL})


OBJECT = '{"name": "find_bird", "arguments": {"count": 2}}'
SPELLINGS: Mapping[str, tuple[Any, str, str]] = {
    "only whitespace after the name": (headed(r"<act>(?P<name>\w+)\s*"), '<act>find_bird{"count": 2}</act>', ""),
    "a line break after the name": (headed(r"<act>(?P<name>\w+)\n"), '<act>find_bird\n{"count": 2}</act>', ""),
    "a blank after the name": (headed(r"<act>(?P<name>\w+) with "), '<act>find_bird with {"count": 2}</act>', ""),
    "a label on the next line": (
        headed("<act>(?P<name>\\w+)\nWITH: "),
        '<act>find_bird\nWITH: {"count": 2}</act>',
        "",
    ),
    "an opener of two lines": (
        headed("<act>\n<do>(?P<name>\\w+):"),
        '<act>\n<do>find_bird:{"count": 2}</act>',
        "",
    ),
    "an opener that begins with a letter": (headed(r"DO (?P<name>\w+): ", ";;"), 'DO find_bird: {"count": 2};;', "\n"),
    "an object after such an opener": (tagged("DO: ", "\n"), f"DO: {OBJECT}", "\n"),
    "a closer that begins with a blank": (tagged("<act>", " </act>"), f"<act>{OBJECT}</act>", ""),
    "a code fence": (tagged("```act\n", "\n```"), f"```act\n{OBJECT}\n```", "\n"),
}


@each("name", SPELLINGS)
def test_calls_are_read_as_they_are_written(name: str):
    description, one, between = SPELLINGS[name]
    known = read(description)
    text = write([Call("find_bird", '{"count": 2}')] * 2, known.format)
    assert text == f"{one}{between}{one}"
    wanted = ("", "", [("find_bird", {"count": 2})] * 2)
    for parts in ([text], list(text), pieces(text, 3)):
        assert outcome(parts, known) == wanted
    around = frame(known.format, "find_bird")
    assert around.begin + '{"count": 2}' + around.end == one.removesuffix("\n```") + "\n```" * one.endswith("```")
    assert outcome(["An ", one[:4], " and ", one[:4], "s."], known, opened=False)[2] == []


def test_an_opener_that_begins_with_a_letter_is_text_within_a_line():
    known = read(headed(r"DO (?P<name>\w+): ", ";;"))
    text = 'Write DO find_bird: {"count": 2};; to call it.'
    assert outcome(list(text), known) == (text, "", [])


def test_sections_follow_one_another_if_all_text_is_in_sections():
    said, thought = {"open": "<say>", "close": "</say>"}, {"open": "<muse>", "close": "</muse>"}
    known = read(template(TAGGED, content=said, thinking=thought))
    call = '<act>{"name": "list_nests", "arguments": {}}</act>'
    text = f"<say>Two coots.</say><muse>hm</muse>\n{call}\n<say>And one.</say>"
    for parts in ([text], list(text), pieces(text, 3)):
        assert outcome(parts, known) == ("Two coots.And one.", "hm", [("list_nests", {})])
    assert outcome(["Use <say> here, and <muse> there."], known)[:2] == ("Use <say> here, and <muse> there.", "")


def test_a_call_ends_reasoning_if_the_template_says_so():
    thought = {"open": "<muse>", "close_pattern": r"</muse>\s*|(?=<act>)"}
    assert read(template(TAGGED, thinking=thought)).calls_end_reasoning
    assert not read(template(TAGGED, thinking=THOUGHTS)).calls_end_reasoning


# --- templates of known models ---------------------------------------------------------------------------------------

KNOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "JSON in tags": (
        "tool_call",
        template(
            {"open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "content": "json", "transform": JSON_CALL},
            reasoning_content={"open": "<think>", "close": "</think>"},
            content={"close_pattern": r"<\|im_end\|>\s*"},
        ),
    ),
    "marked parameters": (
        "qwen3_coder",
        template(
            {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                },
                "transform": NAMED,
            },
            content={"close": "<|im_end|>"},
        ),
    ),
    "keys and values": (
        "glm45",
        template(
            {
                "open_pattern": r"<tool_call>(?P<name>\S+)\n?",
                "close": "</tool_call>",
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
                },
                "transform": NAMED,
            },
            content={"close": "<|user|>"},
        ),
    ),
    "channels": (
        "harmony",
        template(
            {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "content": "json",
                "transform": NAMED,
            },
            start="<|start|>assistant",
            thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            content={"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"]},
        ),
    ),
    "delimited strings": (
        "gemma4",
        template(
            {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": NAMED,
            },
            reasoning_content={"open": "<|channel>thought\n", "close": "<channel|>"},
            content={"close": ["<turn|>", "<|tool_response>", "<eos>"]},
        ),
    ),
    "list of actions": (
        "cohere",
        template(
            {
                "open": "<|START_ACTION|>",
                "close": "<|END_ACTION|>",
                "content": "json",
                "transform_each": True,
                "transform": {"function": {"name": "{tool_name}", "arguments": "{parameters}"}},
            },
            thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
            content={"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
        ),
    ),
    "numbered names in a section": (
        "kimi_k2",
        template(
            {
                "open_pattern": r"(?:<\|tool_calls_section_begin\|>)?\s*<\|tool_call_begin\|>"
                r"(?P<id>functions\.(?P<name>[\w.-]+):\d+)<\|tool_call_argument_begin\|>",
                "close_pattern": r"<\|tool_call_end\|>(?:<\|tool_calls_section_end\|>)?",
                "content": "json",
                "transform": NAMED,
            },
            content={"close": "<|im_end|>"},
        ),
    ),
    "typed attributes in a section": (
        "deepseek_v32",
        template(
            {
                "open_pattern": r'(?:<｜DSML｜function_calls>\s*)?<｜DSML｜invoke name="(?P<name>[^"]+)">',
                "close_pattern": r"</｜DSML｜invoke>\s*(?:</｜DSML｜function_calls>)?",
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r'<｜DSML｜parameter name="(?P<key>[^"]+)" string="(?:true|false)">'
                    r"(?P<value>.*?)</｜DSML｜parameter>",
                },
                "transform": NAMED,
            },
            content={"close": "<｜end▁of▁sentence｜>"},
        ),
    ),
    "blocks with authors": (
        "inkling",
        template(
            {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_invoke_tool_json\|>",
                "close": "<|end_message|>",
                "content": "json",
                "transform": {"function": {"name": "{content.name}", "arguments": "{content.args}"}},
            },
            thinking={
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_thinking\|>",
                "close": "<|end_message|>",
            },
            content={"open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_text\|>", "close": "<|end_message|>"},
        ),
    ),
}


@each("name", KNOWN)
def test_a_known_format_is_recognized(name: str):
    row, description = KNOWN[name]
    assert read(description).format == row


def test_a_known_format_keeps_the_end_of_the_turn_that_only_the_template_has():
    _, known = KNOWN["JSON in tags"]
    fields = {**known["fields"], "content": {"close": "<|my_end|>"}}
    form = find_format(read({**known, "fields": fields}).format)
    assert (form.variants, form.openers) == (FORMATS["tool_call"].variants, FORMATS["tool_call"].openers)
    text = '<tool_call>\n{"name": "list_nests", "arguments": {}}\n</tool_call><|my_end|>'
    assert parse(text, TOOLS, formats=[form])[0] == ""


# --- templates that are not supported --------------------------------------------------------------------------------

HEADED = {"open_pattern": r"<act (?P<name>\w+)>", "close": "</act>", "content": "json", "transform": NAMED}


def marked(**arguments: Any) -> dict[str, Any]:
    """Return a template of marked parameters with these arguments of the content parser."""
    return template({**HEADED, "content": "xml-inline", "content_args": arguments})


PAIR = r"<(?P<key>\w+)>(?P<value>.*?)</>"
REJECTED: Mapping[str, tuple[Any, str]] = {
    "not a table": (["fields"], "a response template is an object with 'fields'"),
    "another version": ({**template(TAGGED), "version": 2}, "version 2 of response templates is not supported"),
    "an unknown key": ({**template(TAGGED), "field": {}}, "unknown key 'field'"),
    "no fields": ({"fields": {}}, "'fields' must be an object with at least one field"),
    "no calls": ({"fields": {"content": TEXT}}, "the template has no field 'tool_calls'"),
    "a field that replies do not have": (template(TAGGED, plan=THOUGHTS), "field 'plan': a reply has no such part"),
    "an unknown key of a field": (template({**TAGGED, "begin": "x"}), "field 'tool_calls': unknown key 'begin'"),
    "text that is parsed": (template(TAGGED, content={"content": "json"}), "cannot be parsed as 'json'"),
    "two fields without openers": (template(TAGGED, content={}, thinking={}), "not content and thinking"),
    "no closer": (template(TAGGED, thinking={"open": "<muse>"}), "a field with an opener needs a closer"),
    "an invalid pattern": (template({**HEADED, "open_pattern": "<act ("}), "open_pattern: the pattern '<act (' is"),
    "deep groups": (template({**HEADED, "open_pattern": "(?:" * 2000 + "a" + ")" * 2000}), "nested too deeply"),
    "a long pattern": (template({**HEADED, "open_pattern": "a" * 9000}), "the pattern is longer than 8192 characters"),
    "many spellings": (template({**HEADED, "open_pattern": "(?:a|b)" * 9}), "more than 64 spellings"),
    "a lookbehind": (template({**HEADED, "open_pattern": r"(?<=x)<(?P<name>\w+)>"}), "'(?<=' in the pattern"),
    "a back-reference": (template({**HEADED, "open_pattern": r"<(?P<name>\w+) \1>"}), r"\1 in the pattern"),
    "a repeated part": (template({**HEADED, "open_pattern": r"(?:<a><b>)+(?P<name>\w+)>"}), "the repetition '+'"),
    "a name at the beginning": (headed(r"(?P<name>\w+)!!"), "no literal precedes the name"),
    "a marker that opens and closes": (tagged("@@", "@@"), "the marker '@@' both opens and closes a call"),
    "a code fence before a name": (headed(r"```act\n(?P<name>\w+)\n"), "the code fence '```act"),
    "a code fence inside tags": (tagged("```act\n", "</act>"), "the code fence '```act"),
    "reasoning that ends before text": (
        template(TAGGED, thinking={"open": "<muse>", "close_pattern": "</muse>|(?=<say>)"}),
        "the condition '(?=<say>)' as a closer is not supported",
    ),
    "a letter after the name": (
        template({**HEADED, "open_pattern": r"<act (?P<name>\w+)WITH>"}),
        "'WITH>' directly after a name may be a part of it",
    ),
    "free text in a marker": (
        template({**HEADED, "open_pattern": r"<act .*? (?P<name>\w+)>"}),
        "text that is not fixed",
    ),
    "a name in the closer": (
        template({**TAGGED, "close_pattern": r"</act:(?P<name>\w+)>", "close": None, "transform": NAMED}),
        "the name is the group 'name' of close_pattern, so it is unknown until the call ends",
    ),
    "a name that is missing": (
        template({**TAGGED, "transform": NAMED}),
        "the group 'name', which contains the name, is",
    ),
    "a fixed name": (
        template({**TAGGED, "transform": {"function": {"name": "f", "arguments": "{content}"}}}),
        "'transform' must contain a placeholder, such as {name}, instead of 'f'",
    ),
    "arguments that are put together": (
        template({**TAGGED, "transform": {"function": {"name": "{content.a}", "arguments": {"b": "{content.b}"}}}}),
        "'transform' must contain a placeholder",
    ),
    "arguments elsewhere": (
        template({**TAGGED, "transform": {"function": {"name": "{content.a.b}", "arguments": "{content.c}"}}}),
        "the name and the arguments must be members of the same object",
    ),
    "a part of JSON after a name": (
        template({**HEADED, "transform": {"function": {"name": "{name}", "arguments": "{content.with}"}}}),
        "the arguments must be '{content}'",
    ),
    "lines of keys": (template({**HEADED, "content": "kv-lines"}), "arguments that are parsed as 'kv-lines'"),
    "delimiters that differ": (
        template({**HEADED, "content_args": {"string_delims": [["<<", ">>"]]}}),
        "'string_delims' with several or with different delimiters",
    ),
    "delimiters that are not pairs": (
        template({**HEADED, "content_args": {"string_delims": ["~"]}}),
        "'string_delims' must be a list of pairs",
    ),
    "delimiters in an envelope": (
        template({**TAGGED, "content_args": {"string_delims": [["~", "~"]]}}),
        "'string_delims' is supported only if the name is a group",
    ),
    "no tag pattern": (marked(), "'xml-inline' needs a tag_pattern"),
    "a tag without a value": (marked(tag_pattern=r"<(?P<key>\w+)>"), "must contain the groups 'key' and 'value'"),
    "a value without a closer": (marked(tag_pattern=r"<(?P<key>\w+)>(?P<value>.*)"), "must have literals"),
    "typed values": (marked(tag_pattern=PAIR, value_parser={"name": "int"}), "value_parser 'int' is not supported"),
    "values in quotes": (marked(tag_pattern=PAIR, value_parser={"name": "json"}), "needs 'allow_non_json'"),
}


@each("name", REJECTED)
def test_a_construct_that_is_not_supported_is_named(name: str):
    description, reason = REJECTED[name]
    with pytest.raises(FormatError) as raised:
        read(description)
    assert reason in str(raised.value)
