"""Every failure in every place, for every client and server: the client's reply is that of an undisturbed upstream."""

import json
import random
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from support.continuing import COMPLETING, KINDS, Continuing, Fault, seen, talked
from support.dialects import ALL_CLIENTS, Ask, Got, write
from support.sweeps import alternating, each

from streamtool.exchange.record import Record

both = pytest.mark.anyio

WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "lines": {"type": "integer"},
        "mode": {
            "type": "object",
            "properties": {"owner": {"type": "string"}, "group": {"type": "integer"}, "all": {"type": "boolean"}},
        },
        "ratio": {"type": "number"},
    },
}
ASK = Ask((("user", "Write both files."),), (("write_file", "Writes a file.", WRITE), ("ping", "Pings.", {})))
ARGUMENTS = {
    "path": "/src/größe.py",
    "content": 'def größe(a: int) -> float:\n\treturn a * 3.14159  # "π", 円周率\n',
    "lines": 1234567,
    "mode": {"owner": "root", "group": 12, "all": False},
    "ratio": 0.25,
}
REASONING = "<think>The user wants two files, so I write them one after the other.</think>"
TEXT = "I will write both files now, starting with the first one. "
CALL = json.dumps({"name": "write_file", "arguments": ARGUMENTS}, ensure_ascii=False)
FIRST = f"<tool_call>{CALL}</tool_call>"
SECOND = f"<tool_call>{CALL.replace('src', 'lib')}</tool_call>"
WHOLE = f"{REASONING}{TEXT}{FIRST}\n{SECOND}"

BEGIN = WHOLE.index('"arguments": ') + len('"arguments": ')
END = WHOLE.index("}</tool_call>")
_MEMBER = re.compile(r'"\w+": (?=("(?:[^"\\]|\\.)*"|[^"{},]+)?)')
VALUES = [BEGIN + found.end() for found in _MEMBER.finditer(WHOLE[BEGIN:END])]
"""The places before values in the arguments."""
AFTER = [BEGIN + found.end(1) for found in _MEMBER.finditer(WHOLE[BEGIN:END]) if found[1]]
"""The places after values that are not objects."""
STRINGS = [
    BEGIN + at
    for found in _MEMBER.finditer(WHOLE[BEGIN:END])
    if (found[1] or "").startswith('"')
    for at in range(found.start(1) + 1, found.end(1))
    if WHOLE[BEGIN + at - 1] != "\\"
]
"""The places inside strings. A reply that ends inside an escape continues before the escape."""

BROKEN = {
    "broken JSON": (AFTER, ": 5, 6}}</tool_call>"),
    "a key without a value": (VALUES, "}}</tool_call>"),
    "another format": (VALUES, '<invoke name="write_file">\n<parameter name="path">b</parameter>\n</invoke>'),
    "a missing quote": (VALUES, '/src/b.py", "lines": 1}}</tool_call>'),
    "a wrong closer": (AFTER, "]}}</tool_call>"),
    "text in place of a value": (VALUES, "the one that you named}}</tool_call>"),
    "an unterminated value": (STRINGS, ""),
}
"""For each way to break a call: the places, and the text there."""
DEATHS = ("reset", "fin", "error", "stall", "length", "503")
"""The other failures. `503` is a connection that breaks, and then an error response."""
PLACES = [
    0,
    30,
    WHOLE.index("starting") + 4,
    WHOLE.index("<tool_call>") + 5,
    WHOLE.index("write_file") + 5,
    WHOLE.index(SECOND) - 1,
    WHOLE.index(SECOND),
]
"""The places outside arguments: before text, in reasoning, in text, in an opener, in a name, and between two calls."""
SERVERS = (*KINDS, COMPLETING)


def cases(count: int, seed: int) -> Iterator[tuple[str, str, str, Fault, int]]:
    """Yield cases: failure, client, upstream, fault, size of the upstream's pieces. All combinations of the first three
    occur before any of them occurs again.
    """
    chance = random.Random(seed)
    offsets = [*PLACES, *(chance.randrange(BEGIN, END) for _ in range(40))]
    combinations = list(product((*DEATHS, *BROKEN), ALL_CLIENTS, SERVERS))
    for number in range(count):
        if number % len(combinations) == 0:
            chance.shuffle(combinations)
        how, client, kind = combinations[number % len(combinations)]
        places, bad = BROKEN.get(how, (offsets, ""))
        fault = Fault(chance.choice(places), {"503": "reset"}.get(how, "broken" if how in BROKEN else how), bad)
        yield how, client, kind, fault, chance.choice((1, 4, 16, 1000))


async def talk(upstream: Continuing, client: str, *, limit: int | None) -> tuple[Got | None, Record, bytes]:
    """Return the client's view of the valid reply (None if it is an error response), the record, and the reply."""
    names = {"responses": "max_output_tokens", "ollama": "options", "gemini": "generationConfig"}
    values = {"ollama": {"num_predict": limit}, "gemini": {"maxOutputTokens": limit}}
    fields = {} if limit is None else {names.get(client, "max_tokens"): values.get(client, limit)}
    found = await talked(upstream, client, ASK, fields=fields)
    return (found.got, found.record, found.data) if found.status == 200 else (None, found.record, b"")


KNOWN: dict[str, tuple[Any, ...]] = {}
"""The replies of undisturbed upstreams, by client."""


async def check(how: str, client: str, kind: str, fault: Fault, size: int) -> bytes:
    def pieces(text: str) -> list[str]:
        return [text[i : i + size] for i in range(0, len(text), size)]

    if client not in KNOWN:
        got, _, _ = await talk(Continuing("completions", WHOLE), client, limit=None)
        assert got is not None
        assert (got.error, got.reason) == (None, "calls")
        KNOWN[client] = seen(got)
    statuses = [503] if how == "503" and fault.at else []
    upstream = Continuing(kind, WHOLE, fault, tokens=pieces, statuses=statuses)
    got, record, data = await talk(upstream, client, limit=5000 if how == "length" else None)
    if not fault.at:  # nothing has been written that could be continued
        assert len(upstream.requests) == 1
        return b""
    assert got is not None
    assert seen(got) == KNOWN[client]
    assert len(upstream.requests) == 2 + len(statuses)
    assert [one.character for one in record.resumed] == [fault.at]
    return data


@both
@each("how,client,kind,fault,size", cases(65, 1))
@alternating
async def test_the_reply_is_that_of_an_undisturbed_upstream(how, client, kind, fault, size):
    await check(how, client, kind, fault, size)


@pytest.mark.long
@pytest.mark.anyio
@each("how,client,kind,fault,size", [case for seed in range(2, 10) for case in cases(325, seed)])
async def test_official_clients_read_the_reply(how, client, kind, fault, size):
    data = await check(how, client, kind, fault, size)
    if data and client in OFFICIAL:
        OFFICIAL[client](data)


def read_chat(data: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=data, headers=EVENTS))
    with openai.OpenAI(base_url=URL, api_key="x", http_client=httpx.Client(transport=transport)) as sdk:
        asked = {key: value for key, value in write("chat", ASK).items() if key != "stream"}
        with sdk.chat.completions.stream(**asked) as events:
            message = events.get_final_completion().choices[0].message
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == CALLED


def read_responses(data: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=data, headers=EVENTS))
    with openai.OpenAI(base_url=URL, api_key="x", http_client=httpx.Client(transport=transport)) as sdk:
        asked = {key: value for key, value in write("responses", ASK).items() if key != "stream"}
        with sdk.responses.stream(**asked) as events:
            reply = events.get_final_response()
    assert reply.status == "completed"
    assert [json.loads(item.arguments) for item in reply.output if item.type == "function_call"] == CALLED


def read_messages(data: bytes) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=data, headers=EVENTS))
    with anthropic.Anthropic(base_url=URL, api_key="x", http_client=httpx2.Client(transport=transport)) as sdk:
        asked = {key: value for key, value in write("messages", ASK).items() if key != "stream"}
        with sdk.messages.stream(**asked) as events:
            message = events.get_final_message()
    assert message.stop_reason == "tool_use"
    assert [block.input for block in message.content if block.type == "tool_use"] == CALLED


URL = "http://127.0.0.1:9/v1"
EVENTS = {"content-type": "text/event-stream"}
CALLED = [ARGUMENTS, json.loads(json.dumps(ARGUMENTS).replace("src", "lib"))]
OFFICIAL = {"chat": read_chat, "responses": read_responses, "messages": read_messages}
"""The official clients. Each checks the calls that it reads."""
