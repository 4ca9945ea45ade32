"""Calls that an upstream sends twice, as text and natively, and calls that a model keeps repeating."""

import json
from typing import Any

import pytest
from support.dialects import ALL_CLIENTS, Ask, Got, path, read, said, write
from support.native_replies import gemini_reply, messages_reply, ollama_reply
from support.native_upstreams import native
from support.sweeps import each

from streamtool.middleware import ToolMiddleware
from streamtool.testing import Script, ScriptedUpstream, chunk, stream_asgi

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "object"}}}
ASK = Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA), ("pong", "Pongs.", SCHEMA)))
VALUE = {"x": 1, "y": {"a": [1, 2], "b": "c\n"}}
OTHER_ORDER = '{ "y": {"b": "c\\u000a", "a": [1,\n2]}, "x": 1 }'

both = pytest.mark.anyio
each_client = each("client", ALL_CLIENTS)


async def got(middleware: ToolMiddleware, client: str = "chat", ask: Ask = ASK) -> Got:
    body = json.dumps(write(client, ask)).encode()
    async with stream_asgi(middleware, path(client, stream=ask.stream), body=body) as reply:
        data = await reply.body()
        assert reply.status == 200, data
        return read(client, data, stream=ask.stream)


def marked(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def calls(found: Got) -> list[tuple[str, Any]]:
    return [(part[0], json.loads(part[1])) for part in found.parts if isinstance(part, tuple)]


def texts(found: Got) -> str:
    return "".join(part for part in found.parts if isinstance(part, str)).strip()


def native_first(name: str, arguments: str, text: str) -> Script:
    """Return a chat reply whose text follows the native call."""
    steps = native((name, arguments)).steps
    return Script((*steps[:-2], *(chunk({"content": piece}) for piece in text), *steps[-2:]))


SENT_TWICE = {
    "chat, text first": ("chat", native(("ping", OTHER_ORDER), text="So.\n" + marked("ping", json.dumps(VALUE)))),
    "chat, text last": ("chat", native_first("ping", json.dumps(VALUE), "\nSo.\n" + marked("ping", OTHER_ORDER))),
    "messages, text first": (
        "messages",
        messages_reply(
            {"type": "text", "text": "So.\n" + marked("ping", OTHER_ORDER)},
            {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": VALUE},
        ),
    ),
    "ollama": (
        "ollama",
        ollama_reply(
            content="So.\n" + marked("ping", OTHER_ORDER),
            tool_calls=[{"function": {"name": "ping", "arguments": VALUE}}],
        ),
    ),
    "gemini, text last": (
        "gemini",
        gemini_reply(
            {"functionCall": {"name": "ping", "args": VALUE}}, {"text": "So.\n" + marked("ping", OTHER_ORDER)}
        ),
    ),
}


@both
@each_client
@each("case", SENT_TWICE)
@each("mode", ["rescue", "auto"])
async def test_a_call_that_is_sent_as_text_and_natively_is_delivered_once(client: str, case: str, mode: str):
    upstream, script = SENT_TWICE[case]
    records: list[Any] = []
    app: Any = ToolMiddleware(
        ScriptedUpstream(script),
        mode=mode,
        app_protocol=upstream,
        on_exchange=records.append,  # type: ignore[arg-type]
    )
    found = await got(app, client)
    assert (calls(found), texts(found), found.reason) == ([("ping", VALUE)], "So.", "calls")
    assert dict(records[0].discarded)["sent twice"] > 0


@both
@each("upstream", ["chat", "messages"])
async def test_a_long_call_is_compared_as_a_whole(upstream: str):
    """The arguments of an open call are joined while they arrive; the two calls differ in their first characters."""
    first, second = ({"text": start + "äöü 😀 a long line\n" * 100} for start in "ab")
    tools = (("ping", "", {"type": "object", "properties": {"text": {"type": "string"}}}),)
    text = "\n".join(marked("ping", json.dumps(value)) for value in (first, second))
    for sent, delivered in (("ping", json.dumps(first)), [first, second]), (("ping", '{"text": "c"}'), None):
        steps = native(sent, text=text).steps
        app = ToolMiddleware(ScriptedUpstream(Script(steps)), mode="rescue", app_protocol="chat")
        found = [value for _, value in calls(await got(app, upstream, Ask(ASK.turns, tools)))]
        assert found == (delivered or [first, second, {"text": "c"}])


@both
async def test_a_call_that_is_sent_as_text_and_natively_at_the_same_time():
    """The native call begins after each character of the text, and is sent whole."""
    arguments = '{"x": 1, "y": {"a": "b c"}}'
    text = "So.\n" + marked("ping", arguments) + "\nDone."
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "ping", "arguments": arguments}}
    for cut in range(len(text) + 1):
        pieces = [chunk({"content": piece}) for piece in (text[:cut], text[cut:]) if piece]
        steps = [*pieces[: cut > 0], chunk({"tool_calls": [call]}), *pieces[cut > 0 :], chunk({}, finish="tool_calls")]
        found = await got(ToolMiddleware(ScriptedUpstream(Script(tuple(steps))), mode="rescue"))
        assert calls(found) == [("ping", json.loads(arguments))], text[:cut]
        assert "".join(texts(found).split()) == "So.Done.", text[:cut]
        assert found.reason == "calls"


@both
@each_client
async def test_copies_that_differ_in_types_are_one_call(client: str):
    tools = (("ping", "", {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}),)
    lines = "<tool_call>\n<function=ping>\n<parameter=s>\nl1\n</parameter>\n</function>\n</tool_call>"
    for sent, text in (
        (("ping", '{"x": "1"}'), marked("ping", '{"x": 1}')),
        (("ping", '{"x": 1.0}'), marked("ping", '{"x": 1}')),
        (("ping", '{"s": "l1\\n"}'), lines),
        (("functions.ping", '{"x": 1}'), marked("ping", '{"x": 1}')),
    ):
        for script in (native(sent, text=text), native_first(*sent, text)):
            app = ToolMiddleware(ScriptedUpstream(script), mode="rescue", app_protocol="chat")
            found = await got(app, client, Ask(ASK.turns, tools))
            assert [name for name, _ in calls(found)] == ["ping"], (sent, text)
    turns = [marked("ping", arguments) for arguments in ('{"s": "a"}', '{"s": "a\\n"}', '{"s": " a"}')]
    app = ToolMiddleware(ScriptedUpstream(said("chat", "\n".join(turns))), app_protocol="chat")
    assert len(calls(await got(app, client, Ask(ASK.turns, tools)))) == 2


@both
async def test_a_copy_that_is_cut_is_not_delivered():
    text = marked("ping", '{"x": 1}')
    cut_call = {"index": 0, "id": "c", "type": "function", "function": {"name": "ping", "arguments": '{"x": 1'}}
    cut = Script((chunk({"content": text}), chunk({"tool_calls": [cut_call]}), chunk({}, finish="length")))
    for script in (cut, native_first("ping", '{"x": 1}', text[:-20])):
        found = await got(ToolMiddleware(ScriptedUpstream(script), mode="rescue"))
        assert calls(found) == [("ping", {"x": 1})]


@both
async def test_long_arguments_that_arrive_in_many_pieces():
    long = json.dumps({"y": {"a": "some words, " * 400}})
    for script in (native(("ping", long), text=marked("ping", long)), native_first("ping", long, marked("ping", long))):
        found = await got(ToolMiddleware(ScriptedUpstream(script), mode="rescue"))
        assert calls(found) == [("ping", json.loads(long))]


@both
async def test_the_rest_of_a_very_long_call_comes_from_its_native_copy():
    value = {"y": {"a": "0123456789" * 120_000}}
    text = marked("ping", json.dumps(value))[:-4000]
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "ping", "arguments": json.dumps(value)}}
    pieces = (chunk({"content": text[at : at + 5000]}) for at in range(0, len(text), 5000))
    script = Script((*pieces, chunk({"tool_calls": [call]}), chunk({}, finish="tool_calls")))
    assert calls(await got(ToolMiddleware(ScriptedUpstream(script), mode="rescue"))) == [("ping", value)]


@both
async def test_calls_that_differ_or_are_sent_twice_in_the_same_way_are_delivered():
    same = ("ping", '{"x": 1}')
    for script, expected in (
        (native(("ping", '{"x": 2}'), text=marked(*same)), [1, 2]),
        (native(("ping", '{"x": 12}'), text=marked(*same)), [1, 12]),
        (native(same, same, text=""), [1, 1]),
        (native(text=marked(*same) * 2, finish="stop"), [1, 1]),
        (native(same, same, text=marked(*same)), [1, 1]),
        (native(same, same, text=marked(*same) * 2), [1, 1]),
    ):
        found = await got(ToolMiddleware(ScriptedUpstream(script), mode="rescue"))
        assert [arguments["x"] for _, arguments in calls(found)] == expected


@both
@each_client
@each("stream", [True, False])
async def test_a_reply_ends_at_the_third_equal_call_in_a_row(client: str, stream: bool):
    records: list[Any] = []
    text = "Look.\n" + "\n".join([marked("ping", '{"x": 1}')] * 12)
    upstream = ScriptedUpstream(said("chat", text, "length", size=9))
    app = ToolMiddleware(upstream, app_protocol="chat", on_exchange=records.append)
    found = await got(app, client, Ask(ASK.turns, ASK.tools, stream=stream))
    assert (calls(found), found.reason) == ([("ping", {"x": 1})] * 2, "calls")
    assert dict(records[0].discarded)["repeated call"] > 0
    assert upstream.left == 1


A, B, C, D = (("ping", '{"x": 1}'), ("pong", '{"x": 1}'), ("ping", '{"x": 3}'), ("ping", '{"x": 1, "y": {}}'))


@both
@each("way", ["text", "native"])
async def test_the_calls_that_are_delivered_of_a_repeated_sequence(way: str):
    for written, expected in (
        ((A, A), (A, A)),
        ((A, A, A), (A, A)),
        ((A, A, C, A, A, B), (A, A, C, A, A, B)),
        ((A, A, D), (A, A, D)),
        ((A, B) * 2, (A, B) * 2),
        ((A, B) * 6, (A, B) * 2),
        ((A, B, C) * 6, (A, B, C) * 2),
        ((C, A, B, A, B, A, B), (C, A, B, A, B)),
        ((A, B, A, B, C), (A, B, A, B, C)),
        ((A, B, B, A, B), (A, B, B, A, B)),
    ):
        text = "\n".join(marked(*call) for call in written)
        script = said("chat", text) if way == "text" else native(*written)
        mode: Any = "emulate" if way == "text" else "rescue"
        found = await got(ToolMiddleware(ScriptedUpstream(script), mode=mode))
        assert calls(found) == [(name, json.loads(arguments)) for name, arguments in expected], written
        assert found.reason == "calls"


@both
async def test_the_setting_for_repeated_calls():
    for limit, expected in ((0, 6), (1, 6), (2, 1), (4, 3)):
        app = ScriptedUpstream(said("chat", marked(*A) * 6))
        assert len(calls(await got(ToolMiddleware(app, repeated_calls=limit)))) == expected


@both
async def test_a_third_call_streams_as_soon_as_it_differs():
    text = marked(*A) * 2 + marked("ping", '{"x": 1, "y": {"a": "one two three"}}')
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    app = ToolMiddleware(ScriptedUpstream(Script((*(chunk({"content": one}) for one in pieces),))))
    body = json.dumps(write("chat", ASK)).encode()
    async with stream_asgi(app, body=body) as reply:
        data = (await reply.body()).decode()
    streamed = [line for line in data.split("\n") if '"index":2' in line]
    assert len(streamed) > 5


@both
@each("upstream", ["chat", "messages"])
async def test_repeated_calls_stop_an_upstream_that_never_ends(upstream: str):
    endless = ScriptedUpstream(said(upstream, marked(*A) * 500, "die"))
    found = await got(ToolMiddleware(endless, app_protocol=upstream))  # type: ignore[arg-type]
    assert (len(calls(found)), found.reason, found.error) == (2, "calls", None)
    assert endless.left == 1


THOUGHT_AND_CALLED = {
    "the same call": ("Let me.\n{a}\n</think>\n\n{a}", [A]),
    "at once": ("{a}</think>{a}", [A]),
    "two calls": ("{a}\n{b}\n</think>\n\n{a}\n{b}", [A, B]),
    "more text": ("{a}\nSo.\n</think>\n\nNow:\n{a}\n", [A]),
    "another marker": ("{a}\n[/THINK]\n{a}", [A]),
    "another call": ("{a}\n</think>\n\n{b}\n{a}", [A, B]),
    "two calls after it": ("{a}\n</think>\n\n{a}\n{a}", [A, A]),
    "both before the closer": ("{a}\n{a}\n</think>\n\nSo.", [A, A]),
    "no closer": ("{a}\nSo.\n{a}", [A, A]),
    "a mentioned closer": ("{a}\nThat was `</think>`.\n{a}", [A, A]),
    "reasoning between": ("{a}\n<think>\nAgain.\n</think>\n\n{a}", [A, A]),
    "a closer in the arguments": (marked("ping", '{"y": {"a": "</think>"}}') + "\n{a}\n{a}", [None, A, A]),
}


@both
@each_client
@each("case", THOUGHT_AND_CALLED)
async def test_a_call_before_the_closer_of_unopened_reasoning_and_again_after_it_is_one_call(client: str, case: str):
    text, expected = THOUGHT_AND_CALLED[case]
    text = text.replace("{a}", marked(*A)).replace("{b}", marked(*B))
    wanted = [call and (call[0], json.loads(call[1])) for call in expected]
    wanted = [call or ("ping", {"y": {"a": "</think>"}}) for call in wanted]
    for size, stream in ((1, True), (10_000, False)) if client == "chat" else ((7, client != "ollama"),):
        app = ToolMiddleware(ScriptedUpstream(said("chat", text, size=size)), app_protocol="chat")
        found = await got(app, client, Ask(ASK.turns, ASK.tools, stream=stream))
        assert calls(found) == wanted, size
        assert "ping" not in texts(found)


LEFT_OVER = {
    "<tool_call>": "",
    "[TOOL_CALLS]": "",
    "<|tool_calls_section_begin|>": "",
    '<tool_call>\n{"name": "pi': "",
    '<tool_call>\n{"name": "ping"': "",
    '<tool_call>\n{"name": "ping", "arguments": {"x"': "",
    "<tool_call>\n<function=ping": "",
    'Ok.\n<tool_call>\n{"name": "ping"': "Ok.",
    "Ok.\n<tool_call>": "Ok.",
    "</tool_call>": "",
    "</function>\n</tool_call>\n": "",
    "<|tool_calls_section_end|>": "",
    "[/TOOL_CALLS]": "",
    "</tool_call> ends a call.": "</tool_call> ends a call.",
    "a < b and c": "a < b and c",
    "See `<tool_call>`.": "See `<tool_call>`.",
}


@both
@each("client", ["chat", "messages", "ollama"])
@each("text", LEFT_OVER)
async def test_markup_beside_a_native_call_is_not_text(client: str, text: str):
    arguments = '{"x": 1}'
    for script in (native(("ping", arguments), text=text), native_first("ping", arguments, text)):
        app = ToolMiddleware(ScriptedUpstream(script), mode="rescue", app_protocol="chat")
        found = await got(app, client, Ask(ASK.turns, ASK.tools, stream=client != "ollama"))
        assert (calls(found), texts(found), found.reason) == ([("ping", {"x": 1})], LEFT_OVER[text], "calls")
