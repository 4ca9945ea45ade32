"""Every reason for rejecting an attempt, in one table: streamed and whole, in each client protocol.

A *retried* attempt is invisible: the client receives exactly what it would have received without it. A *continued*
attempt is the beginning of the same reply. Both are bounded, and after the last one the client gets the best available
reply.
"""

import itertools
import json
import re
from typing import Any

import pytest
import trio
from attrs import frozen
from support.dialects import CLIENTS, PATHS, Ask, events, read, said, write
from support.protocol_validators import VALIDATORS
from support.scripted_replies import (
    ANNOUNCED,
    ASK,
    BLOCKED,
    CALL,
    CALLED,
    DENIED,
    TOOLS,
    UNFIT,
    UNKNOWN,
    ModelClient,
    without_unknown_call,
)
from support.sweeps import alternating, each
from support.validators import assert_valid

from streamtool.middleware import ToolMiddleware
from streamtool.policy import FAILURES, ProposedCall, WholeReply
from streamtool.policy.evidence import SearchCall
from streamtool.settings import LimitSettings, Settings
from streamtool.testing import Hold, Pause, Script, ScriptedUpstream, stream_asgi

AFTER = Ask((("user", "Ping it."), ("call", "call_1", "ping", {"x": 1}), ("result", "call_1", "pong")), TOOLS)
OTHER = '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>'
MEANT = '<tool_call>{"name" = ping, 5}</tool_call>'
UNPLACED = '<tool_call>{"name": "ping", "where": 1}</tool_call>'
WAITED = '<tool_call>{"name": "ping", "arguments": {"x": 1 : 2}}</tool_call>'
THOUGHT = f"<think>I need a ping. {CALL}"
PROSE = "The answer is what it always was."
WORD = '{"word": "pong"}'
FORM = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
FORMED = Ask(ASK.turns, TOOLS, form=FORM)


@frozen
class Class:
    """A failure class, a reply that triggers it, and the expected result."""

    cause: str
    reply: str
    again: str = CALL
    """The model's reply to the retry."""
    shown: str = ""
    """Text of the first reply that the client has already seen by then; if empty, the attempt is discarded."""
    parts: tuple[Any, ...] = CALLED
    """Parts that result from `again`."""
    ask: Ask = ASK
    choice: str = "auto"
    settings: Settings | None = None
    last: tuple[Any, ...] | None = None
    """Parts that the client has if the model always gives the same reply; None: each reply, unchanged."""
    fails: bool = False
    """Whether that reply is an error, because the client cannot answer the call."""
    unmet: str | None = None
    """Unmet requirement in the record, and in the header unless it has already been sent."""

    def asked(self, stream: bool) -> Ask:
        return Ask(self.ask.turns, TOOLS, stream, self.choice, form=self.ask.form)


COMPLETE = Settings(arguments="complete")
RETRY = Settings(malformed="retry")
NARROW = Settings(limits=LimitSettings(held=16))

DROP = Settings(reasoning="drop")

RETRIES = Settings().retries
INSISTED = (("pong", {}),)
MISSING = "required call missing"

CLASSES = {
    "tools denied": Class("tools denied", DENIED, last=(DENIED,), unmet="tools denied"),
    "environment denied": Class("environment denied", BLOCKED, last=(BLOCKED,), unmet="environment denied"),
    "announced": Class("announced but not called", ANNOUNCED, shown=ANNOUNCED, unmet="announced but not called"),
    "required": Class("required call missing", PROSE, choice="required", last=(PROSE,), unmet=MISSING),
    "required, behind text": Class(
        "required call missing", PROSE, shown=PROSE, choice="required", settings=NARROW, unmet=MISSING
    ),
    "named": Class("required call missing", PROSE, choice="ping", last=(PROSE,), unmet=MISSING),
    "forbidden": Class("call forbidden", CALL, PROSE, parts=(PROSE,), choice="none", last=(), unmet="call forbidden"),
    "wrong tool": Class("wrong tool", OTHER, choice="ping", last=(OTHER,), unmet=MISSING),
    "unknown tool": Class("unknown tool", UNKNOWN, last=INSISTED, unmet="unknown tool"),
    "unknown tool, behind text": Class("unknown tool", f"So.\n{UNKNOWN}", shown="So.", unmet="unknown tool"),
    "malformed": Class("malformed", MEANT, settings=RETRY, last=(MEANT,)),
    "malformed, behind text": Class("malformed", f"So.\n{MEANT}", shown="So.", settings=RETRY),
    "malformed, waiting": Class("malformed", WAITED, settings=COMPLETE, last=(), fails=True, unmet="malformed"),
    "malformed, other members": Class("malformed", UNPLACED, settings=COMPLETE, last=(), fails=True, unmet="malformed"),
    "malformed, other members, behind text": Class(
        "malformed", f"So.\n{UNPLACED}", shown="So.", settings=COMPLETE, fails=True, unmet="malformed"
    ),
    "schema": Class("schema", UNFIT, settings=COMPLETE, last=(("ping", {"x": 0, "y": 1}),), unmet="schema"),
    "schema, behind text": Class("schema", f"So.\n{UNFIT}", shown="So.", settings=COMPLETE, unmet="schema"),
    "empty": Class("empty", "", PROSE, parts=(PROSE,), ask=AFTER, last=(), unmet="empty"),
    "answer, no JSON": Class("answer", PROSE, WORD, parts=(WORD,), ask=FORMED, last=(PROSE,), unmet="answer"),
    "answer, fenced": Class(
        "answer",
        f"```json\n{WORD}\n```",
        WORD,
        parts=(WORD,),
        ask=FORMED,
        last=(f"```json\n{WORD}\n```",),
        unmet="answer",
    ),
    "answer, another form": Class(
        "answer", '{"word": 5}', WORD, parts=(WORD,), ask=FORMED, last=('{"word": 5}',), unmet="answer"
    ),
    "only reasoning": Class("only reasoning", THOUGHT, settings=DROP, last=(), unmet="only reasoning"),
}
RETRIED = [name for name, found in CLASSES.items() if not found.shown]
CONTINUED = [name for name, found in CLASSES.items() if found.shown]

both = pytest.mark.anyio
clients = each("client", CLIENTS)
streamed = each("stream", [True, False], ids=["streamed", "whole"])
classes = each("name", CLASSES)


def test_every_corrected_failure_is_covered():
    elsewhere = (ProposedCall, WholeReply, SearchCall)  # searches: tests/exchange/test_tool_search.py
    of_exchanges = {row.cause for row in FAILURES if row.corrections and row.on not in elsewhere}
    assert {found.cause for found in CLASSES.values()} == of_exchanges


def meant(parts: tuple[Any, ...]) -> list[Any]:
    """Return texts, and calls with decoded arguments; whitespace around texts is ignored."""
    return [part.strip() if isinstance(part, str) else (part[0], loaded(part[1])) for part in parts]


def loaded(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


CHANCE = {"id", "item_id", "call_id", "response_id", "created", "created_at", "completed_at", "obfuscation"}
COUNTS = {"usage"}


def without_chance(value: Any) -> Any:
    """Return the JSON value without ids, times and usage, which differ between replies."""
    if isinstance(value, dict):
        return {key: without_chance(one) for key, one in value.items() if key not in CHANCE | COUNTS}
    return [without_chance(one) for one in value] if isinstance(value, list) else value


def payloads(data: bytes, *, stream: bool) -> Any:
    """Return the normalized payloads that the client receives, without fields that are optional in an upstream's own
    chunks.
    """
    found = without_chance(events(data) if stream else json.loads(data))
    if not stream:
        return found
    for chunk in found:
        for choice in chunk.get("choices", ()):
            choice.pop("logprobs", None)
        chunk.pop("system_fingerprint", None)
    return found


async def talked(client: str, name: str, *replies: str, stream: bool, **fields: Any) -> tuple[ModelClient, Any, bytes]:
    """Return the talk, the client's view of it, and the bytes, which are checked to be valid."""
    found = CLASSES[name]
    talk = ModelClient(*replies, settings=found.settings)
    body = {**write(client, found.asked(stream)), **fields}
    async with stream_asgi(talk.app, PATHS[client], body=json.dumps(body).encode()) as reply:
        data = await reply.body()
        talk.headers = reply.headers
    if talk.records[0].unmet is not None:
        body.pop("tool_choice", None)  # it was not obeyed, which the validator would report
    checks = VALIDATORS[client]
    if reply.status != 200:
        assert_valid(checks[2](data))
    else:
        violations = checks[0](data, body, headers=talk.headers) if stream else checks[1](data, body)
        assert_valid(without_unknown_call(violations, talk.records[0]))
    return talk, read(client, data, stream=stream), data


@both
@clients
@streamed
@each("name", RETRIED)
@alternating
async def test_a_retried_attempt_is_invisible(client: str, stream: bool, name: str):
    found = CLASSES[name]
    talk, got, data = await talked(client, name, found.reply, found.again, stream=stream)
    assert meant(got.parts) == meant(found.parts)
    assert got.reason == ("calls" if found.parts == CALLED else "stop")
    assert (talk.causes, talk.records[0].unmet) == ((found.cause,), None)
    first, second = (request.json["messages"] for request in talk.upstream.requests)
    assert second[:-1] == first[:-1]
    asked = re.split("\n\n(?:For this reply:|When you answer)", first[-1]["content"])[0]
    assert second[-1]["content"].startswith(f"{asked}\n\n")  # the correction is in the turn instructions
    assert not found.reply or found.reply not in json.dumps(second, ensure_ascii=False)
    straight, _, alone = await talked(client, name, found.again, stream=stream)
    assert straight.causes == ()
    assert payloads(data, stream=stream) == payloads(alone, stream=stream)


@both
@clients
@streamed
@each("name", CONTINUED)
@alternating
async def test_a_continued_attempt_is_the_beginning_of_the_same_reply(client: str, stream: bool, name: str):
    found = CLASSES[name]
    talk, got, data = await talked(client, name, found.reply, f"Now:\n{found.again}", stream=stream)
    assert meant(got.parts) == meant((f"{found.shown}\n\nNow:", *found.parts)) or meant(got.parts) == meant(
        (f"{found.shown}\nNow:", *found.parts)  # the model itself wrote a line break before what was rejected
    )
    assert (got.reason, talk.causes) == ("calls", (found.cause,))
    second = talk.upstream.requests[1].json["messages"]
    assert second[-2]["role"] == "assistant"
    assert second[-2]["content"].startswith(found.shown)
    if not stream:
        return
    told = events(data)
    if client == "chat":
        assert len({chunk["id"] for chunk in told}) == 1
        assert [c["delta"]["role"] for e in told for c in e["choices"] if "role" in c["delta"]] == ["assistant"]
    elif client == "messages":
        kinds = [event["type"] for event in told]
        assert kinds.count("message_start") == kinds.count("message_stop") == 1
        starts = [(e["index"], e["content_block"]["type"]) for e in told if e["type"] == "content_block_start"]
        assert starts == [(0, "text"), (1, "tool_use")]
    else:
        assert [event["type"] for event in told].count("response.created") == 1
        added = [e for e in told if e["type"] == "response.output_item.added"]
        assert [(e["output_index"], e["item"]["type"]) for e in added] == [(0, "message"), (1, "function_call")]


@both
@clients
@streamed
@classes
@alternating
async def test_attempts_are_bounded_and_the_last_reply_is_delivered(client: str, stream: bool, name: str):
    found = CLASSES[name]
    talk, got, _ = await talked(client, name, found.reply, stream=stream)
    assert talk.causes == (found.cause,) * RETRIES
    assert len(talk.upstream.requests) == RETRIES + 1
    record = talk.records[0]
    assert record.unmet == found.unmet
    if found.last is not None:
        assert meant(got.parts) == meant(found.last)
    elif stream or not found.fails:  # the visible part of each attempt, and the complete last one
        text = "".join(part for part in got.parts if isinstance(part, str))
        assert text.count(found.shown) == RETRIES + 1
        assert "".join(text.split()).startswith("".join(found.shown.split()) * RETRIES)
    calls = [part for part in got.parts if isinstance(part, tuple)]
    assert got.reason == (None if found.fails else "calls" if calls else "stop")
    assert ("cannot be read" in str(got.error)) == found.fails
    if found.unmet and not (stream and (found.shown or found.choice in ("auto", "none"))):
        assert talk.headers["x-streamtool-unmet"] == found.unmet


@both
@classes
async def test_each_correction_is_worded_differently_and_leaves_no_trace(name: str):
    found = CLASSES[name]
    talk, _, _ = await talked("chat", name, found.reply, stream=True)
    first, second, third = (request.json["messages"] for request in talk.upstream.requests)
    tails = [second[-1]["content"], third[-1]["content"]]
    asked = first[-1]["content"]
    assert len({asked, *tails}) == 3
    corrections = [tail.removeprefix(asked).strip() for tail in tails]
    assert all(len(text) > 20 for text in corrections)
    free = found.choice == "auto" and found.cause not in ("empty", "only reasoning", "answer")
    assert {"If the task is done, answer in plain text." in text for text in corrections} == {free}
    later = Ask((*found.ask.turns, ("assistant", "Well."), ("user", "And now?")), TOOLS)
    await talk.ask("chat", later)
    prompt = talk.upstream.requests[3].json["messages"]
    assert [message["role"] for message in prompt][-2:] == ["assistant", "user"]
    assert prompt[0] == first[0]
    assert not [text for text in corrections if text in json.dumps(prompt, ensure_ascii=False)]


SAMPLING = {
    "chat": {"temperature": 0.25, "top_p": 0.5, "seed": 7, "max_tokens": 99, "presence_penalty": 0.5},
    "messages": {"temperature": 0.25, "top_p": 0.5, "max_tokens": 99},
    "responses": {"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 99},
}


@both
@clients
@classes
@alternating
async def test_every_attempt_uses_the_clients_sampling_options(client: str, name: str):
    found = CLASSES[name]
    talk, _, _ = await talked(client, name, found.reply, found.again, stream=True, **SAMPLING[client])
    assert len(talk.upstream.requests) == 2
    first, second = (request.json for request in talk.upstream.requests)
    names = first.keys() - {"messages"}
    assert {key: first[key] for key in names} == {key: second[key] for key in names}
    assert (first["temperature"], first["top_p"]) == (0.25, 0.5)
    assert 99 in (first.get("max_tokens"), first.get("max_completion_tokens"))
    assert first.get("seed") == SAMPLING[client].get("seed")


@pytest.mark.trio
@clients
@classes
async def test_the_client_gets_keepalives_between_attempts(autojump_clock, client: str, name: str):
    """Each attempt takes half a minute to begin and as long to end; the client never waits longer than the keep-alive
    time.
    """
    found = CLASSES[name]

    def slow(text: str) -> Script:
        steps = said("chat", text).steps
        return Script((Pause(30), *steps[:-3], Pause(30), *steps[-3:]))

    app = ToolMiddleware(
        ScriptedUpstream(slow(found.reply), slow(found.again)), settings=found.settings, app_protocol="chat"
    )
    body = json.dumps(write(client, found.asked(stream=True))).encode()
    began = trio.current_time()
    times = [0.0]
    async with stream_asgi(app, PATHS[client], body=body) as reply:
        pieces = []
        async for piece in reply:
            times.append(trio.current_time() - began)
            pieces.append(piece)
    assert meant(read(client, b"".join(pieces), stream=True).parts)[-1:] == meant(found.parts)[-1:]
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert max(gaps) <= 10.0 * 1.25  # silence is checked four times per keep-alive time
    assert times[-1] >= 60.0


@both
async def test_markup_is_not_retried_if_no_call_is_wanted():
    talk = ModelClient(MEANT, settings=RETRY)
    got = await talk.ask("chat", Ask(ASK.turns, TOOLS, choice="none"))
    assert (got.parts, talk.causes) == ((MEANT,), ())


@both
@pytest.mark.parametrize("reply", [UNFIT, WAITED], ids=["schema", "malformed"])
async def test_a_correction_keeps_a_call_required(reply: str):
    talk = ModelClient(reply, CALL, settings=COMPLETE)
    got = await talk.ask("chat", Ask(ASK.turns, TOOLS, choice="required"))
    assert got.parts == CALLED
    assert "plain text" not in talk.last(1)


@both
@clients
@streamed
async def test_a_call_after_a_denial_is_accepted(client: str, stream: bool):
    talk = ModelClient(f"{DENIED} But:\n{CALL}", settings=Settings(retries=0))
    assert CALLED[0] in (await talk.ask(client, Ask(ASK.turns, TOOLS, stream))).parts
    assert talk.records[0].unmet is None


@both
@streamed
async def test_a_call_cut_off_by_the_clients_stop_string_is_unmet(stream: bool):
    talk, got, _ = await talked("chat", "required, behind text", PROSE, stream=stream, stop=["always"])
    assert (got.parts, talk.causes) == ((PROSE.partition("always")[0],), ())
    assert talk.records[0].unmet == MISSING


@both
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_text_before_a_call_is_not_validated_and_is_sent_with_the_call(stream: bool):
    talk = ModelClient(f"So.\n{CALL}")
    got = await talk.ask("chat", Ask(ASK.turns, TOOLS, stream, form=FORM))
    assert meant(got.parts) == meant(("So.", *CALLED))
    assert talk.causes == ()


@both
async def test_an_unvalidated_answer_streams():
    upstream = ScriptedUpstream(Script((*said("chat", PROSE, size=8).steps[:3], Hold())))
    app = ToolMiddleware(upstream, answers="pass")
    sent = json.dumps(write("chat", Ask(ASK.turns, TOOLS, form=FORM))).encode()
    async with stream_asgi(app, body=sent) as reply:
        data = b""
        while PROSE[:8].encode() not in data:
            data += await anext(reply)
