"""Response templates in the shapes that models ship, in our own wording, and replies that a model might write.

`tests/models/response_templates.json` contains what transformers' reference makes of each reply.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from statemachine import Call, write
from streamtool.models.response_templates import read

CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def template(calls: Mapping[str, Any], /, *, start: str = "<|bot|>", **fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template with these fields. Calls may be repeated."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": start,
        "fields": {"tool_calls": {"repeats": True, **calls}, **fields},
    }


THOUGHTS = {"open": "<muse>", "close_pattern": r"</muse>\s*"}
TEXT = {"close_pattern": r"\s*(?:<\|halt\|>|<\|over\|>)"}

TEMPLATES: Mapping[str, Mapping[str, Any]] = {
    "json_in_tags": template(
        {"open_pattern": r"\s*<act>", "close": "</act>", "content": "json", "transform": CALL},
        reasoning_content=THOUGHTS,
        content=TEXT,
    ),
    "json_with_paths": template(
        {
            "open": "<|perform|>",
            "close": ["<|performed|>", "<|stop|>"],
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{content.op}", "arguments": "{content.with}"}},
        },
        content=TEXT,
    ),
    "nested_json": template({"open": "<wrap>", "close": "</wrap>", "content": "json"}, content=TEXT),
    "marked_parameters": template(
        {
            "open_pattern": r"<job>\s*<op=(?P<name>[^>\n]+)>",
            "close_pattern": r"</op>\s*</job>\s*",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<with=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</with>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": NAMED,
        },
        thinking=THOUGHTS,
        content=TEXT,
    ),
    "attributes": template(
        {
            "open_pattern": r'<x:run name="(?P<name>[^"]+)">\n?',
            "close": "</x:run>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<x:set name="(?P<key>[^"]+)" text="(?:true|false)">(?P<value>.*?)</x:set>',
            },
            "transform": NAMED,
        },
        content=TEXT,
    ),
    "keys_and_values": template(
        {
            "open_pattern": r"<go>(?P<name>\S+)\n?",
            "close_pattern": r"</go>\s*",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<key>(?P<key>[^<]+)</key>\s*\n<val>(?P<value>.*?)</val>"},
            "transform": NAMED,
        },
        reasoning={"open": "<muse>", "close": "</muse>"},
        content={"close_pattern": r"<\|halt\|>\s*|$"},
    ),
    "delimited_strings": template(
        {
            "open_pattern": r"<\|do>do:(?P<name>\w+)",
            "close": "<do|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<|~|>", "<|~|>"]]},
            "transform": NAMED,
        },
        reasoning_content={"open": "<|lane>muse\n", "close": "<lane|>"},
        content={"close": ["<halt|>", "<|answer>"]},
    ),
    "channels": template(
        {
            "open_pattern": r"<\|lane\|>notes for=tools\.(?P<name>\w+).*?<\|body\|>",
            "close": "<|run|>",
            "content": "json",
            "transform": NAMED,
        },
        start="<|turn|>bot",
        thinking={"open": "<|lane|>private<|body|>", "close": "<|fin|>"},
        content={"open": "<|lane|>public<|body|>", "close_pattern": r"<\|fin\|>|<\|back\|>"},
    ),
    "channel_after_name": template(
        {
            "open_pattern": r"for=tools\.(?P<name>\S+?)<\|lane\|>notes\s+json<\|body\|>",
            "close_pattern": r"<\|run\|>\s*",
            "content": "json",
            "transform": NAMED,
        },
        start="<|turn|>bot",
        thinking={"open": "<|lane|>private<|body|>", "close_pattern": r"<\|fin\|>\s*"},
        content={"open": "<|lane|>public<|body|>", "close_pattern": r"<\|back\|>\s*"},
    ),
    "channels_in_brackets": template(
        {
            "open_pattern": r"\[lane\]notes @fn:(?P<name>\w+).*?\[body\]",
            "close": "[run]",
            "content": "json",
            "transform": NAMED,
        },
        start="[turn]bot",
        thinking={"open": "[lane]private[body]", "close": "[fin]"},
        content={"open": "[lane]public[body]", "close": "[fin]"},
    ),
    "tags_with_bars": template(
        {
            "open_pattern": r'<\|do tool="(?P<name>[^"]+)" n="\d+"\|>',
            "close": "<|/do|>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<\|set key="(?P<key>[^"]+)" type="\w+"\|>(?P<value>.*?)<\|/set\|>',
            },
            "transform": NAMED,
        },
        content=TEXT,
    ),
    "list_of_actions": template(
        {
            "repeats": False,
            "open": "<|BEGIN_STEPS|>",
            "close": "<|END_STEPS|>",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{step}", "arguments": "{inputs}"}},
        },
        thinking={"open": "<|BEGIN_MUSE|>", "close": "<|END_MUSE|>"},
        content={"open": "<|BEGIN_SAY|>", "close": "<|END_SAY|>"},
    ),
    "list_after_marker": template(
        {
            "repeats": False,
            "open": "[STEPS]",
            "close_pattern": r"</z>|$",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "id": "{id}", "function": {"name": "{name}", "arguments": "{arguments}"}},
        },
        content={"close": "</z>"},
    ),
    "name_after_marker": template(
        {
            "open_pattern": r"\[STEP\](?P<name>[^\[]+)\[WITH\]",
            "close_pattern": r"(?=\[STEP\])|</z>",
            "content": "json",
            "transform": NAMED,
        },
        thinking={"open": "[MUSE]", "close": "[/MUSE]"},
        content={"close": "</z>"},
    ),
    "numbered_names": template(
        {
            "open_pattern": r"(?:<\|steps\|>)?<\|step\|>fn\.(?P<name>[\w-]+):\d+<\|with\|>",
            "close_pattern": r"<\|/step\|>(?:<\|/steps\|>)?",
            "content": "json",
            "transform": NAMED,
        },
        content=TEXT,
    ),
    "call_list": template(
        {
            "repeats": False,
            "open": "<|calls>",
            "close": "<calls|>",
            "content": "python-call-list",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        },
        content=TEXT,
    ),
    "call_list_by_tags": template(
        {
            "open_pattern": r"(?:<\|calls>\[|,\s*)(?P<name>\w+)\(",
            "close_pattern": r"\)(?:\]<calls\|>)?\s*",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"(?P<key>\w+)=(?P<value>'[^']*'|\[(?:[^\[\]'\"]|'[^']*')*\]|[^,)]*)",
                "value_parser": {"name": "json", "args": {"string_delims": [["'", "'"]], "allow_non_json": True}},
            },
            "transform": NAMED,
        },
        content=TEXT,
    ),
    "spelled_json": template(
        {
            "open_pattern": r'\{"use":\s*"(?P<name>[^"]+)",\s*"values":\s*',
            "close_pattern": r"\}<\|halt\|>\s*",
            "content": "json",
            "transform": NAMED,
        },
        content={"close_pattern": r"<\|halt\|>\s*"},
    ),
    "other_brackets": template(
        {
            "open_pattern": r"«do»(?P<name>\w+)«with»",
            "close": "«/do»",
            "content": "json",
            "transform": NAMED,
        },
        thinking={"open": "«muse»", "close": "«/muse»"},
        content=TEXT,
    ),
    "keys_in_other_brackets": template(
        {
            "open_pattern": r"@@do@@(?P<name>\w+)\s*",
            "close": "@@done@@",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"\[k\](?P<key>\w+)\[/k\]\s*\[v\](?P<value>.*?)\[/v\]"},
            "transform": NAMED,
        },
        content=TEXT,
    ),
    "blocks_with_authors": template(
        {
            "open_pattern": r"(?:<\|mail\|>)?[^<]*<\|type_step\|>",
            "close": "<|sent|>",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.with}"}},
        },
        thinking={
            "open_pattern": r"(?:<\|mail\|>)?[^<]*<\|type_muse\|>",
            "close": "<|sent|>",
            "repeats": True,
            "join": "",
            "content_args": {"strip": False},
        },
        content={
            "open_pattern": r"(?:<\|mail\|>)?[^<]*<\|type_say\|>",
            "close": "<|sent|>",
            "repeats": True,
            "join": "",
            "content_args": {"strip": False},
        },
    ),
    "opened_in_prompt": template(
        {"open": "<act>", "close": "</act>", "content": "json", "transform": CALL},
        thinking={"open_pattern": r"(?:^|<muse>\s*)", "close": "</muse>"},
        content={"open": "<say>\n", "close_pattern": r"\n?</say>"},
    ),
    "opened_if_closed": template(
        {"open": "<act>", "close": "</act>", "content": "json", "transform": CALL},
        thinking={"open_pattern": r"(?=[\s\S]*?</muse>)", "close_pattern": r"</muse>\s*"},
        content=TEXT,
    ),
}

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "find_bird": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "ringed": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "string"}},
        },
    },
    "list_nests": {"type": "object", "properties": {}},
}


@frozen
class Reply:
    """A reply of a model with a template."""

    template: str
    title: str
    text: str


BIRD = '{"name": "coot, \\"bald\\"", "count": 2, "ringed": true, "places": ["reed", "pond"]}'
REPLIES: tuple[Reply, ...] = (
    Reply("json_in_tags", "text", "Two coots live in the reed.<|halt|>"),
    Reply("json_in_tags", "one call", f'<act>\n{{"name": "find_bird", "arguments": {BIRD}}}\n</act>'),
    Reply(
        "json_in_tags",
        "reasoning, text and calls",
        f'<muse>\nWhich <act>?\n</muse>\n\nI look.\n<act>{{"name": "find_bird", "arguments": {BIRD}}}</act>\n'
        '<act>{"name": "list_nests", "arguments": {}}</act><|halt|>',
    ),
    Reply("json_in_tags", "a value with markup", '<act>{"name": "find_bird", "arguments": {"name": "<b>x</b>"}}</act>'),
    Reply(
        "json_with_paths", "one call", f'I look.<|perform|>{{"op": "find_bird", "with": {BIRD}}}<|performed|><|over|>'
    ),
    Reply(
        "json_with_paths",
        "two calls",
        '<|perform|>{"op": "list_nests", "with": {}}<|stop|><|perform|>{"op": "find_bird", "with": {"count": 3}}<|stop|>',
    ),
    Reply(
        "nested_json",
        "one call",
        f'<wrap>{{"type": "function", "function": {{"name": "find_bird", "arguments": {BIRD}}}}}</wrap>',
    ),
    Reply(
        "marked_parameters",
        "one call",
        "<muse>\nThe coot.\n</muse>\n\n<job>\n<op=find_bird>\n<with=name>\ncoot <i>\n</with>\n<with=count>\n2\n</with>\n"
        '<with=places>\n["reed", "pond"]\n</with>\n<with=ringed>\ntrue\n</with>\n</op>\n</job>',
    ),
    Reply(
        "marked_parameters",
        "text and two calls",
        "I look.\n\n<job>\n<op=list_nests>\n</op>\n</job>\n<job>\n<op=find_bird>\n<with=name>\na\nb\n</with>\n</op>\n</job><|halt|>",
    ),
    Reply(
        "attributes",
        "one call",
        'I look.\n<x:run name="find_bird">\n<x:set name="name" text="true">coot & co</x:set>\n'
        '<x:set name="count" text="false">2</x:set>\n<x:set name="places" text="false">["reed"]</x:set>\n</x:run>',
    ),
    Reply("attributes", "no arguments", '<x:run name="list_nests">\n</x:run><|over|>'),
    Reply(
        "keys_and_values",
        "one call",
        "<muse>hm</muse><go>find_bird\n<key>name</key>\n<val>the coot</val>\n<key>count</key>\n<val>2</val>\n"
        '<key>places</key>\n<val>["reed"]</val>\n</go>',
    ),
    Reply(
        "keys_and_values",
        "two calls",
        "Both.\n<go>list_nests\n</go>\n<go>find_bird\n<key>name</key>\n<val>x</val>\n</go>",
    ),
    Reply(
        "delimited_strings",
        "one call",
        '<|lane>muse\nhm<lane|><|do>do:find_bird{name:<|~|>coot, "bald"<|~|>,count:2,ringed:true,places:[<|~|>reed<|~|>]}<do|><|answer>',
    ),
    Reply(
        "delimited_strings",
        "text and two calls",
        "I look.<|do>do:list_nests{}<do|><|do>do:find_bird{count:3}<do|><halt|>",
    ),
    Reply(
        "channels",
        "reasoning and a call",
        f"<|lane|>private<|body|>The coot.<|fin|><|turn|>bot<|lane|>notes for=tools.find_bird <|as|>json<|body|>{BIRD}<|run|>",
    ),
    Reply(
        "channels", "an answer", "<|lane|>private<|body|>hm<|fin|><|turn|>bot<|lane|>public<|body|>Two coots.<|back|>"
    ),
    Reply(
        "channels",
        "two calls",
        '<|lane|>notes for=tools.list_nests<|body|>{}<|run|><|turn|>bot<|lane|>notes for=tools.find_bird<|body|>{"count": 3}<|run|>',
    ),
    Reply(
        "channel_after_name",
        "reasoning and a call",
        f"<|lane|>private<|body|>The coot.<|fin|><|turn|>bot for=tools.find_bird<|lane|>notes json<|body|>{BIRD}<|run|>",
    ),
    Reply("channel_after_name", "an answer", "<|lane|>public<|body|>Two coots.<|back|>"),
    Reply(
        "channels_in_brackets",
        "reasoning and a call",
        "[lane]private[body]A [coot].[fin][turn]bot[lane]notes @fn:find_bird [as]json[body]" + BIRD + "[run]",
    ),
    Reply(
        "tags_with_bars",
        "two calls",
        'I look.<|do tool="find_bird" n="0"|><|set key="name" type="string"|>a | b<|/set|>'
        '<|set key="count" type="integer"|>2<|/set|><|/do|><|do tool="list_nests" n="1"|><|/do|>',
    ),
    Reply(
        "list_of_actions",
        "reasoning and two calls",
        f'<|BEGIN_MUSE|>hm<|END_MUSE|><|BEGIN_STEPS|>[\n  {{"id": "0", "step": "find_bird", "inputs": {BIRD}}},\n'
        '  {"id": "1", "step": "list_nests", "inputs": {}}\n]<|END_STEPS|>',
    ),
    Reply("list_of_actions", "an answer", "<|BEGIN_MUSE|>hm<|END_MUSE|><|BEGIN_SAY|>Two coots.<|END_SAY|>"),
    Reply(
        "list_after_marker",
        "text and two calls",
        f'I look.[STEPS][{{"name": "find_bird", "arguments": {BIRD}, "id": "ab1"}}, '
        '{"name": "list_nests", "arguments": {}, "id": "ab2"}]</z>',
    ),
    Reply("list_after_marker", "no closer", '[STEPS] [{"name": "list_nests", "arguments": {}, "id": "ab2"}]'),
    Reply(
        "name_after_marker",
        "two calls",
        f"[MUSE]hm[/MUSE]I look.[STEP]find_bird[WITH]{BIRD}[STEP]list_nests[WITH]{{}}</z>",
    ),
    Reply(
        "numbered_names",
        "two calls",
        f"I look.<|steps|><|step|>fn.find_bird:0<|with|>{BIRD}<|/step|><|step|>fn.list_nests:1<|with|>{{}}<|/step|><|/steps|>",
    ),
    Reply(
        "call_list",
        "text and two calls",
        "I look.<|calls>[find_bird(name='coot', count=2, ringed=True, places=['reed', 'a, b']), list_nests()]<calls|><|over|>",
    ),
    Reply(
        "call_list_by_tags",
        "two calls",
        "<|calls>[find_bird(name='coot, bald', count=2, places=['reed']), list_nests()]<calls|>",
    ),
    Reply("spelled_json", "one call", f'{{"use": "find_bird", "values": {BIRD}}}<|halt|>'),
    Reply("spelled_json", "text", "Two coots.<|halt|>"),
    Reply("other_brackets", "two calls", f"«muse»hm«/muse»«do»find_bird«with»{BIRD}«/do»«do»list_nests«with»{{}}«/do»"),
    Reply(
        "keys_in_other_brackets",
        "two calls",
        "I look.@@do@@list_nests@@done@@@@do@@find_bird[k]name[/k][v]a [b] @c[/v][k]count[/k][v]2[/v]@@done@@",
    ),
    Reply(
        "blocks_with_authors",
        "reasoning, text and a call",
        "<|type_muse|>hm<|sent|><|mail|><|type_say|>I look.<|sent|>"
        f'<|mail|>find_bird<|type_step|>{{"name": "find_bird", "with": {BIRD}}}<|sent|>',
    ),
    Reply(
        "opened_in_prompt",
        "reasoning and a call",
        f'The coot.\n</muse>\n\n<act>\n{{"name": "find_bird", "arguments": {BIRD}}}\n</act>',
    ),
    Reply("opened_in_prompt", "an answer", "hm\n</muse>\n\n<say>\nTwo coots.\n</say>"),
    Reply("opened_if_closed", "reasoning and text", "The coot.\n</muse>\nTwo coots.<|halt|>"),
    Reply(
        "opened_if_closed",
        "reasoning and a call",
        f'hm</muse>\n<act>{{"name": "find_bird", "arguments": {BIRD}}}</act><|over|>',
    ),
)


def messages(reply: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers' reference makes of a reply. Requires transformers."""
    from transformers.utils.chat_parsing import parse_response

    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()]
    return dict(parse_response(reply, dict(template), prefix="", tools=tools))


NOT_READ_BACK: Mapping[str, str] = {
    "tags_with_bars": "the template requires a number, which is not written",
    "list_after_marker": "the template requires ids, which prompts do not contain",
    "call_list_by_tags": "the template reads only strings in single quotes",
    "spelled_json": "the template requires the end of the turn after the call",
}
"""Templates whose reference does not read the calls that we write → the reason."""

CALLS = (Call("find_bird", '{"name": "coot & co", "count": 2, "places": ["reed", "pond"]}'), Call("list_nests", "{}"))


def written(template: str) -> str:
    """Return calls as text in the format of a template."""
    return write(CALLS, read(TEMPLATES[template]).format)
