"""The prefix cache survives real agents: the prompt of a turn and its reply are the beginning of the next prompt.

Each agent sends what it sends at two times of the same day: the first request, and the second one with the reply and a
result.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import field, frozen
from support.agent_requests import TASK, claude_code, codex, compact, function, hermes, opencode, pi, qwen_code, schema
from support.dialects import PATHS, read, said
from support.sweeps import alternating, each

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, stream_asgi, text

both = pytest.mark.anyio
TIMES = ("10:30:12", "10:31:47")
DAY = "2026-11-27"
CODE = {TIMES[0]: "eb6c6", TIMES[1]: "1c8b4"}
Json = Any


@frozen
class Client:
    """An agent."""

    name: str
    protocol: str
    first: Callable[[str], dict[str, Json]]
    """Returns its first request at a time of day."""
    kept: Callable[[str], str]
    """Returns text that must reach the model at this time, or ""."""
    lost: str = ""
    """Text that must not reach the model."""
    last: Callable[[str], str] = field(default=lambda time: "")
    """Returns the text that it adds to its last message."""
    before_reply: Callable[[str], str] = field(default=lambda time: "")
    """Returns the text that it inserts before the last reply."""


def with_system(body: Mapping[str, Json], before: str = "", after: str = "") -> dict[str, Json]:
    """Return a Chat body whose system text has more text at its beginning and its end."""
    head, *rest = body["messages"]
    return {**body, "messages": [{**head, "content": f"{before}{head['content']}{after}"}, *rest]}


def billed(time: str) -> dict[str, Json]:
    body = dict(claude_code().body)
    line = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={CODE[time]};"
    return {**body, "system": [{"type": "text", "text": line}, *body["system"][1:]]}


def in_environment(_: str) -> dict[str, Json]:
    body = dict(codex().body)
    context = (
        f"<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n  <current_date>{DAY}</current_date>\n"
        "  <timezone>Europe/Zurich</timezone>\n</environment_context>"
    )
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": context}]}
    return {**body, "input": [*body["input"][:2], item, body["input"][-1]]}


def small(system: str, user: str = TASK) -> dict[str, Json]:
    """Return a Chat request with two tools."""
    tools = [function("read_file", "Reads.", schema("path:str")), function("light", "Switches.", schema("room:str"))]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "m", "messages": messages, "tools": tools, "stream": True}


def details(time: str) -> str:
    return f"<environment_details>\n# Current Time\n{DAY}, {time} (Europe/Zurich, UTC+1:00)\n</environment_details>"


def info(time: str) -> str:
    return f"<info-msg>\nIt is currently {DAY} {time}\nWorking directory: /work\n</info-msg>"


CLIENTS = (
    Client("Claude Code", "messages", billed, lambda _: "", lost="x-anthropic-billing-header"),
    Client("Codex", "responses", in_environment, lambda _: f"<current_date>{DAY}</current_date>"),
    Client(
        "opencode",
        "chat",
        lambda _: with_system(opencode("chat").body, after="\n<env>\n  Today's date: Fri Nov 27 2026\n</env>"),
        lambda _: "Today's date: Fri Nov 27 2026",
    ),
    Client(
        "Qwen Code",
        "chat",
        lambda _: with_system(qwen_code("chat").body, "Today's date is Friday, November 27, 2026 (formatted).\n"),
        lambda _: "Today's date is Friday, November 27, 2026",
    ),
    Client(
        "Hermes",
        "chat",
        lambda _: with_system(hermes("chat").body, after="\nConversation started: Friday, November 27, 2026 10:30 AM"),
        lambda _: "Conversation started: Friday, November 27, 2026 10:30 AM",
    ),
    Client(
        "pi 0.55",
        "chat",
        lambda time: with_system(
            {key: value for key, value in pi("chat").body.items() if key != "store"},  # `false` forbids the transcript
            after=f"\nCurrent date and time: Friday, November 27, 2026 at {time} AM GMT+1\nCurrent directory: /work",
        ),
        lambda time: f"Current date and time: Friday, November 27, 2026 at {time} AM GMT+1",
    ),
    Client(
        "goose",
        "chat",
        lambda time: small(f"You are an agent called goose.\n\nThe current date is {DAY} {time}.\n\n# Extensions"),
        lambda time: f"The current date is {DAY} {time}.",
        before_reply=info,
    ),
    Client(
        "Home Assistant",
        "chat",
        lambda time: small(f"Current time is {time}. Today's date is {DAY}.\nYou are a voice assistant."),
        lambda time: f"Current time is {time}.",
    ),
    Client(
        "OpenHands",
        "chat",
        lambda time: small(
            f"<CURRENT_DATETIME>\nThe current date and time is: {DAY}T{time}.714237\n</CURRENT_DATETIME>\nBe precise."
        ),
        lambda time: f"The current date and time is: {DAY}T{time}.714237",
    ),
    Client(
        "nanobot",
        "chat",
        lambda time: small(f"# nanobot\n\n## Current Time\n{DAY} {time[:5]} (Friday)\n\n## Workspace\n/work"),
        lambda time: f"{DAY} {time[:5]} (Friday)",
    ),
    Client(
        "Cline",
        "chat",
        lambda _: small("You are Cline.", f"<task>\n{TASK}\n</task>\n\n{details(TIMES[0])}"),
        lambda _: details(TIMES[0]),
        last=details,
    ),
)


def tool_of(client: Client) -> str:
    """Return the name of a function that the client offers."""
    for tool in client.first(TIMES[0])["tools"]:
        if tool.get("type", "function") == "function" or "input_schema" in tool:
            return str(tool.get("name") or tool["function"]["name"])
    raise AssertionError(client.name)


def second(client: Client, call_id: str, name: str, words: str) -> dict[str, Json]:
    """Return the second request: the first one at a later time, with the reply, the result, and what the client adds."""
    body = client.first(TIMES[1])
    inserted, added = client.before_reply(TIMES[1]), client.last(TIMES[1])
    match client.protocol:
        case "chat":
            calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}]
            past = [
                *([{"role": "user", "content": inserted}] if inserted else []),
                {"role": "assistant", "content": words, "tool_calls": calls},
                {"role": "tool", "tool_call_id": call_id, "content": "Done."},
                *([{"role": "user", "content": added}] if added else []),
            ]
            return {**body, "messages": [*body["messages"], *past]}
        case "messages":
            reply = [{"type": "text", "text": words}, {"type": "tool_use", "id": call_id, "name": name, "input": {}}]
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "Done."}
            past = [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
            return {**body, "messages": [*body["messages"], *past]}
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]},
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "Done."},
    ]
    return {**body, "input": [*body["input"], *items]}


async def sent_to(app: Json, protocol: str, body: Mapping[str, Json]) -> bytes:
    async with stream_asgi(app, PATHS[protocol], body=compact(dict(body)).encode()) as reply:
        data = await reply.body()
        assert reply.status == 200, data
        return data


def prompt_of(body: Json) -> str:
    """Return the prompt of a Chat request as one text, in the order in which a server reads it."""
    return "".join(f"<{message['role']}>{message['content']}" for message in body["messages"])


WORDS = "I look."


@both
@alternating
@each("roles", ["strict", "free"])
@each("client", CLIENTS, ids=lambda client: client.name)
async def test_the_second_prompt_begins_with_the_first_and_its_reply(client: Client, roles: Json):
    name = tool_of(client)
    wrote = f'{WORDS}\n<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
    upstream = ScriptedUpstream(said("chat", wrote), said("chat", "Done."))
    app = ToolMiddleware(upstream, app_protocol="chat", media=False, format="tool_call", roles=roles)
    got = read(client.protocol, await sent_to(app, client.protocol, client.first(TIMES[0])), stream=True)
    await sent_to(app, client.protocol, second(client, got.ids[0], name, WORDS))
    first, then = (prompt_of(request.json) for request in upstream.requests)
    assert then.startswith(f"{first}<assistant>{wrote}")
    for prompt, time in zip((first, then), TIMES, strict=True):
        assert client.kept(time) in prompt
        assert not client.lost or client.lost not in prompt
    assert (client.before_reply(TIMES[1]) or "Done.") in then
    assert client.last(TIMES[1]) in then


@both
@alternating
@each("client", CLIENTS, ids=lambda client: client.name)
async def test_the_text_of_a_client_may_be_kept_as_it_is(client: Client):
    upstream = ScriptedUpstream(said("chat", "Done."))
    app = ToolMiddleware(upstream, app_protocol="chat", media=False, stable_prefix=False)
    body = client.first(TIMES[0])
    await sent_to(app, client.protocol, body)
    system = upstream.requests[0].json["messages"][0]["content"]
    first = body["system"] if "system" in body else (body.get("messages") or body["input"])[0]["content"]
    given = first if isinstance(first, str) else first[0]["text"]
    assert system.startswith(given)


@both
@alternating
@each("url, kept", [("https://api.anthropic.com", True), ("http://127.0.0.1:8080", False)])
@each("tools", [True, False])
async def test_the_billing_line_reaches_only_its_vendor(url: str, kept: bool, tools: bool):
    """In native mode and in requests without tools; the rest of the request stays as it is."""
    upstream = ScriptedUpstream(said("messages", "Done."))
    settings = Settings(mode="native", upstreams={"u": {"url": url, "protocol": "messages"}})
    body = billed(TIMES[0])
    if not tools:
        del body["tools"]
    await sent_to(Proxy(settings, apps={"u": upstream}), "messages", body)
    got = upstream.requests[0].json
    assert got == (body if kept else {**body, "system": body["system"][1:]})


@both
@alternating
@each("mode", ["native", "rescue"])
async def test_moved_text_reaches_the_model_in_native_mode(mode: Json):
    upstream = ScriptedUpstream(text("Done."))
    app = ToolMiddleware(upstream, app_protocol="chat", mode=mode)
    body = small(f"Current time is {TIMES[0]}. Today's date is {DAY}.\nYou are a voice assistant.")
    await sent_to(app, "chat", body)
    got = upstream.requests[0].json
    assert got["messages"][0]["content"] == f"Today's date is {DAY}.\nYou are a voice assistant."
    assert TASK in json.dumps(got["messages"][1], ensure_ascii=False).replace("\\n", "\n")
    assert f"Current time is {TIMES[0]}." in json.dumps(got["messages"][1])
    assert got["tools"] == body["tools"]
