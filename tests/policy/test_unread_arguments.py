"""Calls that the model has ended, but whose arguments cannot be read: whether the model is asked again."""

import json
from typing import Any

import pytest
from support.dialects import ALL_CLIENTS, Ask, Got, path, read, said, write
from support.native_upstreams import native
from support.sweeps import each

from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}
ASK = Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA), ("pong", "Pongs.", SCHEMA)))
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
UNREAD = {
    "another member": '<tool_call>{"name": "ping", "where": 1}</tool_call>',
    "two members": '<tool_call>{"name": "ping", "where": "a", "when": [2]}</tool_call>',
    "after a token": '<|python_tag|>{"name": "ping", "where": 1}',
    "in a list": '[TOOL_CALLS][{"name": "ping", "where": 1}]',
    "not JSON": '<tool_call>{"name": "ping", "arguments": {"x": 1 : 2}}</tool_call>',
}

both = pytest.mark.anyio


async def asked(
    client: str, *replies: str | Script, stream: bool, size: int = 7, **settings: Any
) -> tuple[Got, Record, ScriptedUpstream]:
    """Return what the client received, the record, and the upstream."""
    scripts = [said("chat", one, size=size) if isinstance(one, str) else one for one in replies]
    upstream, records = ScriptedUpstream(*scripts), list[Record]()
    app = ToolMiddleware(upstream, app_protocol="chat", on_exchange=records.append, **settings)
    body = json.dumps(write(client, Ask(ASK.turns, ASK.tools, stream=stream))).encode()
    async with stream_asgi(app, path(client, stream=stream), body=body) as reply:
        found = read(client, await reply.body(), stream=stream)
    return found, records[0], upstream


def calls(found: Got) -> list[tuple[str, Any]]:
    return [(part[0], json.loads(part[1])) for part in found.parts if isinstance(part, tuple)]


def texts(found: Got) -> str:
    return "".join(part for part in found.parts if isinstance(part, str))


@both
@each("client", ALL_CLIENTS)
@each("kind", UNREAD)
async def test_the_model_is_asked_again_while_the_client_has_not_seen_the_call(client: str, kind: str):
    """The client has not seen it if it receives the reply at once, or if arguments are buffered."""
    for stream, settings in ((False, {}), (True, {"arguments": "complete"})):
        found, record, upstream = await asked(client, UNREAD[kind], CALL, stream=stream, **settings)
        assert (calls(found), texts(found).strip(), found.reason) == ([("ping", {"x": 1})], "", "calls")
        assert (record.attempts, record.unmet, record.incomplete) == (("malformed",), None, False)
        assert stream or "`x`, `s`" in upstream.requests[1].json["messages"][-1]["content"]


@both
@each("client", ALL_CLIENTS)
async def test_the_last_attempt_is_delivered(client: str):
    found, record, upstream = await asked(client, *[UNREAD["another member"]] * 3, stream=False)
    assert (found.reason, len(upstream.requests), record.unmet) == (None, 3, "malformed")
    assert "cannot be read" in str(found.error)


@both
async def test_a_call_that_the_client_has_begun_to_receive_stays_incomplete():
    for text, begun, stream, size in (
        (UNREAD["another member"], 1, True, 7),
        (UNREAD["another member"], 1, True, 10_000),
        (f"So.\n{CALL}{UNREAD['another member']}", 2, True, 7),
        (f"So.\n{CALL}{UNREAD['another member']}", 1, False, 7),
    ):
        found, record, upstream = await asked("chat", text, CALL, stream=stream, size=size)
        assert (len(found.parts) - text.startswith("So"), found.reason) == (begun, "calls")
        assert (record.attempts, len(upstream.requests)) == ((), 1)


@both
@each("stream", [False, True])
async def test_a_reply_that_is_cut_is_not_asked_for_again(stream: bool):
    text = '<tool_call>{"name": "ping", "arguments": {"s": "a'
    for end, reason in (("length", "length"), ("stop", "calls" if stream else None)):
        found, record, _ = await asked("chat", said("chat", text, end, size=10_000), CALL, stream=stream)
        assert (found.reason, record.attempts) == (reason, ())
        assert [name for name, _ in found.parts] == ["ping"] * stream


@both
async def test_text_before_the_call_is_continued():
    found, record, upstream = await asked("messages", f"Look.\n{UNREAD['not JSON']}", CALL, stream=False)
    assert (texts(found).strip(), calls(found), record.attempts) == ("Look.", [("ping", {"x": 1})], ("malformed",))
    assert upstream.requests[1].json["messages"][-2]["role"] == "assistant"


@both
@each("way", ["rescue", "auto"])
async def test_a_call_in_the_text_of_an_upstream_with_native_tools(way: Any):
    again = native(("ping", '{"x": 1}'))
    found, record, upstream = await asked("chat", UNREAD["another member"], again, stream=False, mode=way)
    assert (calls(found), record.attempts) == ([("ping", {"x": 1})], ("malformed",))
    assert "it was not made" in json.dumps(upstream.requests[1].json)
