"""Every client protocol over every upstream protocol: replies and requests keep their meaning.

The upstream is scripted in its own dialect, and its bytes are split at random places. The client's result passes the
validator of its protocol, streamed and whole.
"""

import json
import random
from typing import Any

import pytest
from attrs import evolve, frozen
from support.dialects import (
    ALL_CLIENTS,
    CLIENTS,
    PATHS,
    UPSTREAMS,
    USAGE,
    WITH_CHOICE,
    Ask,
    Got,
    path,
    read,
    refusal,
    said,
    write,
)
from support.protocol_validators import VALIDATORS
from support.sweeps import alternating, each
from support.validators import (
    assert_valid,
)

from streamtool.middleware import ToolMiddleware
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

WHOLE_CALLS = ("ollama", "gemini")
"""Protocols whose calls are complete or not shown."""

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}, "required": ["x"]}
TOOLS = (("ping", "Pings.", SCHEMA), ("tool_call", "Odd but legal.", SCHEMA))
ASK = Ask((("system", "Be short."), ("user", "hi")), TOOLS)
PING = '<tool_call>{"name": "ping", "arguments": {"x": 1, "s": "ä <b>\\"🌡\\" </tool_call>"}}</tool_call>'
ODD = '<tool_call>{"name": "tool_call", "arguments": {"x": 22}}</tool_call>'
LINES = "a\x85b\u2028c\u2029d"
PING_LINES = f'<tool_call>{{"name": "ping", "arguments": {{"x": 1, "s": "{LINES}"}}}}</tool_call>'
PINGED_LINES = ("ping", {"x": 1, "s": LINES})
PINGED = ("ping", {"x": 1, "s": 'ä <b>"🌡" </tool_call>'})


@frozen
class Case:
    """The upstream's reply and the client's expected view of it."""

    text: str
    parts: tuple[Any, ...]
    reason: str | None
    end: str = "stop"


CASES = {
    "text": Case("Good day, <b>you</b> {there} 🌡.", ("Good day, <b>you</b> {there} 🌡.",), "stop"),
    "line separators": Case(f"{LINES} and{LINES}\n{PING_LINES}", (f"{LINES} and{LINES}", PINGED_LINES), "calls"),
    "one call": Case(PING, (PINGED,), "calls"),
    "two calls": Case(f"Let me see.\n{PING}\n{ODD}\n", ("Let me see.", PINGED, ("tool_call", {"x": 22})), "calls"),
    "text between": Case(
        f"First.\n{PING}\nThen.\n{ODD}", ("First.", PINGED, "\nThen.", ("tool_call", {"x": 22})), "calls"
    ),
    "truncated": Case(f"So.\n{PING[:70]}", ("So.", ("ping", None)), "length", "length"),
    "cut text": Case("So it goes", ("So it goes",), "length", "length"),
    "refused": Case("I will", ("I will",), "filter", "filter"),
    "error": Case("Well, so", ("Well, so",), None, "error"),
    "broken off": Case("Well, so", ("Well, so",), None, "die"),
}

both = pytest.mark.anyio
clients = each("client", ALL_CLIENTS)
upstreams = each("upstream", UPSTREAMS)
streamed = each("stream", [True, False], ids=["streamed", "whole"])


def scattered(script: Script, seed: str) -> Script:
    """Return the same bytes, split at random places."""
    chance = random.Random(seed)
    body = b"".join(step for step in script.steps if isinstance(step, bytes))
    pieces = []
    while body:
        size = chance.choice((1, 2, 3, 7, 19, 60, 400))
        pieces.append(body[:size])
        body = body[size:]
    return evolve(script, steps=tuple(pieces))


async def answer(client: str, upstream: str, script: Script, ask: Ask) -> tuple[int, bytes, ScriptedUpstream]:
    """Return the status and the body that the client gets, which its protocol's validator accepts."""
    app = ScriptedUpstream(script)
    body = write(client, ask)
    middleware = ToolMiddleware(app, app_protocol=upstream)  # type: ignore[arg-type]
    async with stream_asgi(middleware, path(client, stream=ask.stream), body=json.dumps(body).encode()) as reply:
        data = await reply.body()
        assert data.decode().splitlines() == data.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
        stream, whole, error = VALIDATORS[client]
        if reply.status != 200:
            assert_valid(error(data))
        elif ask.stream:
            assert_valid(stream(data, body, headers=reply.headers))
        else:
            assert_valid(whole(data, body))
        return reply.status, data, app


def decoded(got: Got) -> tuple[Any, ...]:
    """Return the parts with decoded arguments; None for those of truncated calls."""
    parts: list[Any] = []
    for part in got.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        try:
            parts.append((part[0], json.loads(part[1]) if got.reason == "calls" else None))
        except ValueError:
            parts.append((part[0], None))
    return tuple(parts)


def flat(client: str, parts: tuple[Any, ...], *, stream: bool) -> tuple[Any, ...]:
    """Return the parts that a protocol can express.

    Chat Completions has a single place for text, before the calls, and so has a whole reply of Ollama. Some protocols
    do not show truncated calls.
    """
    if client in WHOLE_CALLS:
        parts = tuple(part for part in parts if isinstance(part, str) or part[1] is not None)
    if not (client == "chat" or (client == "ollama" and not stream)):
        return parts
    text = "".join(part for part in parts if isinstance(part, str))
    return (*((text,) if text else ()), *(part for part in parts if not isinstance(part, str)))


@both
@clients
@upstreams
@streamed
@each("name", CASES)
@alternating
async def test_a_reply_means_the_same_in_all_protocols(client: str, upstream: str, name: str, stream: bool):
    case = CASES[name]
    if upstream == "ollama" and case.end == "filter":
        case = evolve(case, end="stop", reason="stop")  # it has no reason for a filter
    if client == "ollama" and case.reason == "filter":
        case = evolve(case, reason="stop")
    script = scattered(said(upstream, case.text, case.end), f"{client} {upstream} {name} {stream}")
    status, body, _ = await answer(client, upstream, script, evolve(ASK, stream=stream))
    if name == "truncated" and not stream:
        case = evolve(case, parts=case.parts[:1])
    elif name == "truncated" and client == "responses":
        case = evolve(case, reason=None)  # the limit is not the client's
    if case.reason is None and not stream:
        assert status >= 500
        assert read(client, body, stream=False).error
        return
    got = read(client, body, stream=stream)
    assert status == 200
    wanted = flat(client, case.parts, stream=stream)
    assert decoded(got) == wanted
    assert got.reason == case.reason
    assert len(set(got.ids)) == len(got.ids) == sum(isinstance(part, tuple) for part in wanted)
    if case.reason is None:
        assert got.error
    else:
        assert got.usage == USAGE


@both
@clients
@upstreams
@streamed
@alternating
async def test_an_error_keeps_its_status_and_message(client: str, upstream: str, stream: bool):
    status, body, _ = await answer(client, upstream, refusal(upstream), evolve(ASK, stream=stream))
    assert status == 429
    assert "slow down" in str(json.loads(body)["error"])


@both
@pytest.mark.parametrize("client", ["chat", "gemini"])
@pytest.mark.parametrize("upstream", ["chat", "gemini", "completions"])
@streamed
async def test_several_choices(client: str, upstream: str, stream: bool):
    script = scattered(said(upstream, f"Let me see.\n{PING}", n=3), f"{upstream} n")
    status, body, _ = await answer(client, upstream, script, evolve(ASK, stream=stream, n=3))
    assert status == 200
    for choice in range(3):
        got = read(client, body, stream=stream, choice=choice)
        assert (decoded(got), got.reason) == (("Let me see.", PINGED), "calls")


@both
@pytest.mark.parametrize("upstream", ["messages", "responses", "ollama"])
async def test_several_choices_are_rejected_for_an_upstream_with_one(upstream: str):
    status, body, app = await answer("chat", upstream, said(upstream, "x"), evolve(ASK, n=2))
    assert status == 400
    assert json.loads(body)["error"]["param"] == "n"
    assert app.requests == []


@both
@each(
    ("client", "upstream"),
    [(client, upstream) for client in ALL_CLIENTS for upstream in UPSTREAMS if client != upstream],
)
@streamed
@alternating
async def test_without_tools_the_text_is_unchanged(client: str, upstream: str, stream: bool):
    """The text is not parsed. (Between equal protocols all bytes pass unchanged.)"""
    script = scattered(said(upstream, f"Look:\n{PING}\n"), f"{client} {upstream} plain")
    status, body, _ = await answer(client, upstream, script, Ask((("user", "hi"),), stream=stream))
    got = read(client, body, stream=stream)
    assert (status, got.parts, got.reason, got.usage) == (200, (f"Look:\n{PING}\n",), "stop", USAGE)


def prompt(body: Any) -> list[tuple[str, str]]:
    """Return roles and texts of the prompt, with adjacent messages of one role merged."""
    if "prompt" in body:
        turns = [turn.partition("\n")[::2] for turn in body["prompt"].replace("<|im_end|>", "").split("<|im_start|>")]
        said = [(role, text.removesuffix("\n")) for role, text in turns]
    elif "contents" in body:
        whole = [{"role": "system", **body.get("systemInstruction", {"parts": []})}, *body["contents"]]
        said = [(turn["role"], "\n\n".join(part["text"] for part in turn["parts"])) for turn in whole]
    else:
        turns = body["input"] if "input" in body else body["messages"]
        whole = [{"role": "system", "content": body.get("system", "")}, *turns]
        said = []
        for turn in whole:
            content = turn["content"]
            texts = [content] if isinstance(content, str) else [part["text"] for part in content]
            said.append((turn["role"], "\n\n".join(texts)))
    joined: list[tuple[str, str]] = []
    for role, text in said:
        if not text:
            continue
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined


HISTORY = Ask(
    (
        ("system", "Be short."),
        ("user", "Ping twice."),
        ("assistant", "Now."),
        ("call", "call_1", "ping", {"x": 1, "s": "ä"}),
        ("call", "call_2", "ping", {"x": 2}),
        ("result", "call_1", "pong 1"),
        ("result", "call_2", "pong 2"),
        ("user", "And again."),
    ),
    TOOLS,
)


@both
@upstreams
@pytest.mark.parametrize("again", [HISTORY, evolve(HISTORY, tools=())], ids=["tools", "tools in history only"])
async def test_a_conversation_gives_the_same_prompt_in_all_protocols(upstream: str, again: Ask):
    """The prompt does not depend on the client's protocol. (Messages uses one message where others split.)"""
    sent = []
    for client in ALL_CLIENTS:
        _, _, app = await answer(client, upstream, said(upstream, "Done."), again)
        body = app.requests[0].json
        sent.append(prompt(body))
        text = json.dumps(body, ensure_ascii=False)
        assert text.count("pong 1") == text.count("pong 2") == 1
        assert text.count("Be short.") == 1
    assert all(found == sent[0] for found in sent)


@both
@each("client", WITH_CHOICE)
@upstreams
@each("choice", ["none", "required", "ping"])
@alternating
async def test_a_tool_choice_is_enforced(client: str, upstream: str, choice: str):
    """A forbidden call does not pass; a missing one is retried."""
    scripts = [
        said(upstream, ODD if choice == "none" else "No."),
        said(upstream, "Fine." if choice == "none" else PING),
    ]
    app = ScriptedUpstream(*scripts)
    body = write(client, evolve(ASK, choice=choice))
    middleware = ToolMiddleware(app, app_protocol=upstream)  # type: ignore[arg-type]
    async with stream_asgi(middleware, PATHS[client], body=json.dumps(body).encode()) as reply:
        data = await reply.body()
    assert_valid(VALIDATORS[client][0](data, body, headers=reply.headers))
    got = read(client, data, stream=True)
    assert decoded(got) == (("Fine.",) if choice == "none" else (PINGED,))
    assert len(app.requests) == 2


NATIVE = {
    "ollama": {"message": {"tool_calls": [{"function": {"name": "ping", "arguments": "odd"}}]}, "done": True},
    "gemini": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "ping", "args": [1]}}]},
                               "finishReason": "STOP"}]},
    "chat": {"choices": [{"index": 0, "message": {"tool_calls": [{"id": "c", "function": {"name": "ping",
                                                                                        "arguments": 5}}]},
                          "finish_reason": "tool_calls"}]},
    "messages": {"type": "message", "content": [{"type": "tool_use", "id": "t", "name": "ping", "input": "\ud83d"}],
                 "stop_reason": "tool_use"},
    "responses": {"id": "resp_up", "status": "completed", "output": [{"type": "function_call", "call_id": "c",
                                                                      "name": "ping", "arguments": 5}]},
}  # fmt: skip


@both
@clients
@streamed
@each("upstream", NATIVE)
@alternating
async def test_a_native_call_with_invalid_arguments_is_never_complete(client: str, upstream: str, stream: bool):
    script = Script((json.dumps(NATIVE[upstream]).encode(),))
    status, body, _ = await answer(client, upstream, script, evolve(ASK, stream=stream))
    got = read(client, body, stream=stream)
    if not stream:
        assert (status, got.parts) == (502, ())
        assert "cannot be read" in got.error
        return
    wanted = ([], "length") if client in WHOLE_CALLS else (["ping"], "calls")
    assert (status, [part[0] for part in got.parts], got.reason) == (200, *wanted)


@both
@each("client", CLIENTS)
@upstreams
@alternating
async def test_calls_one_at_a_time(client: str, upstream: str):
    script = said(upstream, f"{PING}\n{ODD}")
    status, body, app = await answer(client, upstream, script, evolve(ASK, parallel=False))
    got = read(client, body, stream=True)
    assert (status, decoded(got), got.reason) == (200, (PINGED,), "calls")
    assert app.left == 1  # the upstream was cut off
