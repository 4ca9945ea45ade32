"""The text of an attempt that continues the visible text of a rejected one."""

import json
import re

import pytest
from support.dialects import ALL_CLIENTS, Ask, path, read, said, write
from support.sweeps import each

from streamtool.middleware import ToolMiddleware
from streamtool.testing import ScriptedUpstream, stream_asgi

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ASK = Ask((("user", "hi"),), (("patch", "Patches a file.", SCHEMA),))
CALL = '<tool_call>{"name": "patch", "arguments": {"path": "a"}}</tool_call>'
UNKNOWN = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'

both = pytest.mark.anyio


async def talked(client: str, *replies: str, stop: str = "", stream: bool = True) -> tuple[str, ScriptedUpstream]:
    upstream = ScriptedUpstream(*(said("chat", reply) for reply in replies))
    body = write(client, Ask(ASK.turns, ASK.tools, stream=stream))
    if stop:
        body["stop"] = stop
    app = ToolMiddleware(upstream, app_protocol="chat", unknown_tools="retry")
    async with stream_asgi(app, path(client, stream=stream), body=json.dumps(body).encode()) as reply:
        found = read(client, await reply.body(), stream=stream)
    assert len(upstream.requests) == len(replies)
    assert found.reason == "calls"
    return "".join(part for part in found.parts if isinstance(part, str)), upstream


@both
@each("client", ALL_CLIENTS)
async def test_the_texts_of_two_attempts_are_paragraphs(client: str):
    for stream in (True, False):
        text, _ = await talked(client, f"I will patch it.{UNKNOWN}", f"Then in a file: {CALL}", stream=stream)
        assert text.rstrip() == "I will patch it.\n\nThen in a file:"


@both
async def test_whitespace_that_the_model_has_written_separates_the_texts():
    for first, second, expected in (
        (f"Look.{UNKNOWN}", f"Then:{CALL}", "Look.\n\nThen:"),
        (f"Look.{UNKNOWN}", f"\nThen:{CALL}", "Look.\nThen:"),
        (f"Look.{UNKNOWN}", f" Then:{CALL}", "Look. Then:"),
        (f"Look.{UNKNOWN}", CALL, "Look."),
        (UNKNOWN, f"Then:{CALL}", "Then:"),
        (f"看。{UNKNOWN}", f"然后：{CALL}", "看。\n\n然后："),
    ):
        text, _ = await talked("chat", first, second)
        assert text == expected, (first, second)


@both
async def test_a_third_attempt_and_its_prompt():
    text, upstream = await talked("chat", f"One.{UNKNOWN}", f"Two.{UNKNOWN}", f"Three.{CALL}")
    assert text == "One.\n\nTwo.\n\nThree."
    assistant = next(m for m in reversed(upstream.requests[2].json["messages"]) if m["role"] == "assistant")
    assert assistant["content"].startswith("One.")
    assert "\n\nTwo." in assistant["content"]


@both
async def test_text_that_waits_for_a_stop_sequence_is_separated_too():
    text, _ = await talked("chat", f"Look.{UNKNOWN}", f"Then:{CALL}", stop=".END")
    assert text == "Look.\n\nThen:"


@both
@each("client", ["chat", "messages", "responses"])
async def test_the_reasoning_of_two_attempts_is_two_paragraphs(client: str):
    for first, second, expected in (("One.", "Two.", "One.\n\nTwo."), ("One.\n", "Two.", "One.\nTwo.")):
        upstream = ScriptedUpstream(
            said("chat", f"<think>{first}</think>{UNKNOWN}"), said("chat", f"<think>{second}</think>{CALL}")
        )
        app = ToolMiddleware(upstream, app_protocol="chat", unknown_tools="retry")
        body = json.dumps(write(client, ASK)).encode()
        async with stream_asgi(app, path(client), body=body) as reply:
            data = (await reply.body()).decode()
        pieces = re.findall(r'"(?:reasoning_content|thinking|delta)": ?("(?:[^"\\]|\\.)*")', data)
        told = "".join(map(json.loads, pieces))
        assert expected in told, (client, told)
