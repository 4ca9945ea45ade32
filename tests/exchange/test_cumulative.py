"""Streams in which each delta repeats all text so far, and ordinary streams that look similar at first."""

import json
from itertools import accumulate
from typing import Any
from unittest.mock import ANY

import pytest
from support.dialects import ALL_CLIENTS, SAYS, UPSTREAMS, Ask, path, read, write
from support.sweeps import each

from streamtool.core.reply import ReplyTextDelta
from streamtool.exchange.upstream_response import UpstreamResponse
from streamtool.middleware import ToolMiddleware
from streamtool.protocols.registry import UPSTREAMS as UPSTREAM_PROTOCOLS
from streamtool.testing import Script, ScriptedUpstream, chunk, stream_asgi

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ASK = Ask((("user", "hi"),), (("weather", "Reports the weather.", SCHEMA),))
TEXT = 'I will look at it now.\n<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'

both = pytest.mark.anyio


async def got(script: Script, client: str = "chat", upstream: str = "chat") -> Any:
    app = ToolMiddleware(ScriptedUpstream(script), app_protocol=upstream)  # type: ignore[arg-type]
    async with stream_asgi(app, path(client), body=json.dumps(write(client, ASK)).encode()) as reply:
        return read(client, await reply.body(), stream=True)


def script(upstream: str, pieces: list[str]) -> Script:
    kind = "application/x-ndjson" if upstream == "ollama" else "text/event-stream"
    return Script(tuple(SAYS[upstream](pieces, "stop")), content_type=kind)


@both
@each(
    "case",
    [*((client, "chat", 5) for client in ALL_CLIENTS), *(("chat", up, 5) for up in UPSTREAMS), ("chat", "chat", 1)],
)
async def test_a_cumulative_stream_becomes_deltas(case: tuple[str, str, int]):
    client, upstream, size = case
    pieces = [TEXT[:end] for end in range(size, len(TEXT) + size, size)]
    found = await got(script(upstream, pieces), client, upstream)
    texts = "".join(part for part in found.parts if isinstance(part, str))
    calls = [(part[0], json.loads(part[1])) for part in found.parts if isinstance(part, tuple)]
    assert (texts.strip(), calls, found.reason) == ("I will look at it now.", [("weather", {"city": "Oslo"})], "calls")


@both
async def test_cumulative_streams_that_repeat_text_or_are_short():
    for pieces in (
        ["Hello", "Hello there,", "Hello there, friend"],
        ["The", "The answer", "The answer", "The answer is", "The answer is 42.", "The answer is 42."],
        list(accumulate(["Once ", "more. ", "Now: ", "once ", "more. ", "more. ", "more. "])),
    ):
        assert (await got(script("chat", pieces))).parts == (pieces[-1],)


@both
async def test_ordinary_streams_keep_every_repetition():
    for pieces in (
        ["ha", "haha"],
        ["ha", "ha", "haha", "hahahaha", "!"],
        list(accumulate(["ha"] * 30)),
        ["I", "I'm", " here"],
        ["A line.\n", "A line.\nA line.\n", "A line.\nA line.\nA line.\nA line.\n"],
        ["1", "\n1 2", "\n1 2 3", "\n1 2 3 4", "\n1 2 3 4 5", "\n1 2 3 4 5 6"],
        ["A", "AB", "ABC", "x", "AB", "ABC", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"],
        ["\n", "\n\nHello", " there"],
        ["one", "one two"],
    ):
        assert (await got(script("chat", pieces))).parts == ("".join(pieces),)


@both
async def test_reasoning_that_is_cumulative():
    thoughts = ["Let", "Let me", "Let me think", "Let me think about", "Let me think about it."]
    steps = [chunk({"reasoning_content": one}) for one in thoughts] + [
        chunk({"content": "Yes."}),
        chunk({}, finish="stop"),
    ]
    app = ToolMiddleware(ScriptedUpstream(Script(tuple(steps))))
    async with stream_asgi(app, body=json.dumps(write("chat", ASK)).encode()) as reply:
        data = (await reply.body()).decode()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in data.split("\n") if '"delta"' in line]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thoughts[-1]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."


def test_an_ordinary_stream_is_not_delayed_and_read_directly_after_its_second_delta():
    response = UpstreamResponse(UPSTREAM_PROTOCOLS["chat"], 1, ())
    wrapped = type(response.reader)
    for piece in ("So", " it", " is."):
        assert response.reader.feed(chunk({"content": piece}))[-1] == ReplyTextDelta(0, piece, raw=ANY)
    assert type(response.reader) is not wrapped


def test_a_repetition_is_delayed_by_one_delta():
    response = UpstreamResponse(UPSTREAM_PROTOCOLS["chat"], 1, ())
    shown = [response.reader.feed(chunk({"content": piece}))[-1:] for piece in ("ha", "haha", "!")]
    assert [[event.text for event in events] for events in shown] == [["ha"], [], ["!"]]  # type: ignore[union-attr]
