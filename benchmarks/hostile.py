"""Finds the requests that block all others for the longest time: `hostile.py [costs] N [SEED [SIZE]]` generates N from
seeds.

Each is sent through the middleware on an event loop that otherwise only checks the clock every millisecond. For each
client protocol and kind of request, the table shows the longest time without a check, the number of bytes in that
request and its reply, and the seed: `hostile.py 1 SEED` runs only that request. `steps` splits an exchange into the
request, the upstream's status, each piece of its reply, and the end. `costs` prints the cost per KB of each step.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import anyio
import anyio.lowlevel
from attrs import frozen
from common import CLIENTS, Row, Table

from streamtool.cli.garbage import Collector
from streamtool.core.errors import RequestError
from streamtool.exchange.exchange import Exchange
from streamtool.middleware import ToolMiddleware
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings
from streamtool.testing import stream_asgi

SIZE = 64 * 1024
"""Approximate maximum size of a request or reply, in bytes. A seed selects a size between a sixteenth of this and all
of it.
"""
SHORT = 4096
"""Minimum number of bytes that a step must read to be listed; for fewer bytes, the cost per KB is not meaningful."""
KINDS = ("schema", "history", "text", "reply")
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"schema": "json"},
    {"schema": "markdown"},
    {"app_forcing": "schema"},
    {"app_forcing": "guided"},
    {"app_forcing": "structural_tag"},
    {"app_forcing": "grammar"},
    {"app_forcing": "grammar", "format": "qwen3_coder"},
    {"arguments": "complete"},
    {"roles": "strict", "system_role": False},
)
CALL = '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>'
MARKUP = (
    CALL,
    CALL.replace('"f"', '"g"'),
    "<tool_call>",
    "</tool_call>",
    '<tool_call>{"name": "f", "arguments": {"a": "',
    "<function=f><parameter=a>",
    "</parameter>",
    "```json\n",
    "```",
    "`",
    "<think>",
    "</think>",
    "> ",
    "\n",
    " " * 64,
    "{",
    '{"',
    "}",
    "[",
    '"',
    "\\",
    '\\"',
    "<",
    "[TOOL_CALLS]",
    "f(",
    "I cannot use tools. ",
    "é🙂",
)


@frozen
class Hostile:
    """A hostile request and the reply to it."""

    kind: str
    tools: tuple[tuple[str, Any], ...]
    """Tool names and schemas."""
    turns: tuple[tuple[str, Any], ...]
    """("user" | "assistant", text), ("calls", their numbers) or ("results", their numbers)."""
    reply: tuple[str, ...]
    """Pieces of the upstream's text."""
    settings: dict[str, Any]
    forced: bool


def hostile(seed: int, size: int = SIZE) -> Hostile:
    """Return the request for this seed, of at most about `size` bytes."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    length = size // chance.choice((1, 2, 4, 16))
    settings, forced = chance.choice(STYLES), chance.random() < 0.5
    tools: tuple[tuple[str, Any], ...] = (("f", {"type": "object", "properties": {"a": {"type": "string"}}}),)
    turns: tuple[tuple[str, Any], ...] = (("user", "Go."),)
    reply: tuple[str, ...] = ("Done.",)
    match kind:
        case "schema":
            count = chance.choice((1, 1, 4, 32))
            tools = tuple((f"f{i}", schema(chance, length // count)) for i in range(count))
            reply = (CALL.replace('"f"', '"f0"'),)
        case "history":
            turns = history(chance, length)
        case "text":
            names = ["a" * i for i in range(1, 65)] if chance.random() < 0.5 else ["f", "tool_call", "name"]
            tools = tuple((name, {"type": "object"}) for name in names)
            turns = (("user", text(chance, length, ("a" * 65 + "(", "xa", *MARKUP))),)
            reply = (text(chance, length),)
        case _:
            whole = text(chance, length)
            pieces = chance.choice((1, 1, 7, 400))
            step = -(-len(whole) // pieces)
            reply = tuple(whole[i : i + step] for i in range(0, len(whole), step))
    return Hostile(kind, tools, turns, reply, settings, forced)


def text(chance: random.Random, length: int, words: tuple[str, ...] = MARKUP) -> str:
    """Return text that repeats a sequence of one to three words."""
    unit = "".join(chance.choices(words, k=chance.choice((1, 1, 2, 3))))
    return (unit * (length // len(unit) + 1))[:length]


def schema(chance: random.Random, length: int) -> Any:
    """Return a schema with many parts and many references to them."""
    width = max(length // chance.choice((20, 40, 80)), 1)
    names = [f"p{i}" for i in range(width)]
    targets = _parts(chance, width, names)
    part = chance.choice(targets)
    beside = chance.choice(({}, {}, {"title": "x"}, {"description": "y"}))
    reference = {"$ref": "#/$defs/d", **beside}
    ways: tuple[dict[str, Any], ...] = (
        {"properties": dict.fromkeys(names, reference), "required": names},
        {"properties": dict.fromkeys(names, reference)},
        {"allOf": [reference] * width},
        {"properties": {"x": {chance.choice(("anyOf", "oneOf", "allOf")): [reference] * width}}, "required": ["x"]},
        {"properties": {"x": {"type": "array", "prefixItems": [reference] * width}}},
        {"patternProperties": dict.fromkeys(names, reference)},
        {"additionalProperties": reference},
        {**part, "type": "object"},
    )
    return {"type": "object", **chance.choice(ways), "$defs": {"d": part, "e": chance.choice(targets)}}


def _parts(chance: random.Random, width: int, names: list[str]) -> tuple[dict[str, Any], ...]:
    deep: dict[str, Any] = {"type": "string"}
    around = chance.choice(("items", "not", "additionalProperties"))
    for level in range(min(width, 100)):
        deep = {around: deep} if level % 2 else {"properties": {"q": deep}}
    other = {"$ref": "#/$defs/e"}
    return (
        {"properties": {name: {"type": "string"} for name in names}, "required": names},
        {"properties": {"a": {}}, "required": names},
        {"allOf": [{"properties": {name: {}}} for name in names]},
        {"anyOf": [{"properties": {name: {}}, "required": [name]} for name in names]},
        {"oneOf": [{"enum": [name]} for name in names]},
        {"enum": names},
        {"const": "v" * 20 * width},
        {"default": "v" * 20 * width},
        {"description": "v " * 10 * width},
        {"pattern": "(a*)*" * width},
        {"properties": dict.fromkeys(names, other), "required": names},
        {"anyOf": [other] * width},
        {"$ref": "#/$defs/d"},
        {"type": names},
        dict.fromkeys(names, 1),
        deep,
    )


def history(chance: random.Random, length: int) -> tuple[tuple[str, Any], ...]:
    """Return calls and results in one message each or in many, in order or reversed, or many messages with the same
    role.
    """
    count = max(length // 150, 1)
    order = list(range(count))
    match chance.randrange(5):
        case 0:
            return ("user", "Go."), ("calls", order), ("results", order)
        case 1:
            return ("user", "Go."), ("calls", order), ("results", order[::-1])
        case 2:
            return ("user", "Go."), ("calls", order), ("user", "Stop.")
        case 3:
            return tuple(pair for i in order for pair in (("calls", [i]), ("results", [i])))
        case _:
            return (*((chance.choice(("user", "user", "assistant")), "Go on.") for _ in order), ("user", "Go."))


# --- on the wire


def body(client: str, asked: Hostile, about: str) -> bytes:
    """Return the request in a client's protocol, with `about` as the description of its tools."""
    sent = [message for turn in asked.turns for message in _messages(client, *turn)]
    given: dict[str, Any] = {"model": "m", "stream": True}
    match client:
        case "chat" | "ollama":  # Ollama has no tool choice
            tools: list[Any] = [
                {"type": "function", "function": {"name": name, "description": about, "parameters": it}}
                for name, it in asked.tools
            ]
            forced = {"tool_choice": "required"} if asked.forced and client == "chat" else {}
            given |= {"messages": sent, "tools": tools, **forced}
        case "gemini":
            tools = [{"name": name, "description": about, "parametersJsonSchema": it} for name, it in asked.tools]
            mode = {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}} if asked.forced else {}
            given = {"contents": sent, "tools": [{"functionDeclarations": tools}], **mode}
        case "messages":
            tools = [{"name": name, "description": about, "input_schema": it} for name, it in asked.tools]
            choice = {"tool_choice": {"type": "any"}} if asked.forced else {}
            given |= {"messages": sent, "max_tokens": 100, "tools": tools, **choice}
        case _:
            tools = [
                {"type": "function", "name": name, "description": about, "parameters": it} for name, it in asked.tools
            ]
            choice = {"tool_choice": "required"} if asked.forced else {}
            given |= {"input": sent, "store": False, "tools": tools, **choice}
    return json.dumps(given).encode()


def _messages(client: str, role: str, said: Any) -> Iterator[Any]:
    match client, role:
        case "chat", "calls":
            calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in said]
            yield {"role": "assistant", "content": None, "tool_calls": calls}
        case "chat", "results":
            yield from ({"role": "tool", "tool_call_id": f"c{i}", "content": "ok"} for i in said)
        case "ollama", "calls":
            yield {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}} for _ in said]}
        case "ollama", "results":
            yield from ({"role": "tool", "tool_name": "f", "content": "ok"} for _ in said)
        case "gemini", "calls":
            parts = [{"functionCall": {"id": f"c{i}", "name": "f", "args": {}}} for i in said]
            yield {"role": "model", "parts": parts}
        case "gemini", "results":
            answers = [{"id": f"c{i}", "name": "f", "response": {"output": "ok"}} for i in said]
            yield {"role": "user", "parts": [{"functionResponse": answer} for answer in answers]}
        case "gemini", _:
            yield {"role": "model" if role == "assistant" else "user", "parts": [{"text": said}]}
        case "messages", "calls":
            blocks = [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in said]
            yield {"role": "assistant", "content": blocks}
        case "messages", "results":
            blocks = [{"type": "tool_result", "tool_use_id": f"c{i}", "content": "ok"} for i in said]
            yield {"role": "user", "content": blocks}
        case "responses", "calls":
            yield from ({"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"} for i in said)
        case "responses", "results":
            yield from ({"type": "function_call_output", "call_id": f"c{i}", "output": "ok"} for i in said)
        case _:
            yield {"role": role, "content": said}


def steps(client: str, asked: Hostile, about: str = "Hostile.") -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the steps of the exchange in order: name, number of bytes that the step reads, and a function that performs
    it.
    """
    given = body(client, asked, about)
    numbers = iter(range(sys.maxsize))
    settings = Settings(app_protocol="chat", **asked.settings)
    made: list[Exchange] = []

    def begin() -> None:
        wire = client_protocol(client, CLIENTS[client])
        made.append(Exchange(settings, wire, given, (), new_id=lambda prefix: f"{prefix}{next(numbers)}", now=1))

    yield "read", len(given), begin
    if not made:
        return
    [exchange] = made
    yield "request", len(given), exchange.request
    yield "respond", 1, lambda: exchange.respond(200, ((b"content-type", b"text/event-stream"),))
    for piece in map(_event, asked.reply):
        yield "feed", len(piece), lambda piece=piece: exchange.feed(piece)  # type: ignore[misc]
    yield "close", sum(map(len, asked.reply)), exchange.close
    yield "remember", sum(map(len, asked.reply)), exchange.remember


def _event(said: str) -> bytes:
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": None}
    return f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n".encode()


# --- on the event loop


TICK = 0.001
"""Seconds between two checks of the clock."""


@frozen
class Block:
    """An exchange, and the longest time that it blocked the event loop."""

    seconds: float
    read: int
    """Bytes in the request and in the reply's text."""
    seed: int


class Watchdog:
    """Repeatedly checks the clock; a late check means that the loop was blocked.

    Time during which other processes used the processor is not counted: only the CPU time of this process is.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began, worked = time.perf_counter(), time.process_time()
            await anyio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            self.longest = max(self.longest, min(late, time.process_time() - worked))


class Model:
    """An app that answers each request with the most recent reply it was given."""

    def __init__(self) -> None:
        self.reply: tuple[str, ...] = ()

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        events = [*map(_event, self.reply)]
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for event in events:
            await anyio.lowlevel.checkpoint()  # like a socket reader
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


_apps: dict[str, tuple[Model, ToolMiddleware]] = {}
"""Apps by settings; each is created once, as in a server."""


def served(client: str, asked: Hostile, about: str = "Hostile.") -> tuple[bytes, ToolMiddleware]:
    """Return the body of the request, and the middleware around a model that answers with the reply."""
    key = repr(asked.settings)
    if key not in _apps:
        model = Model()
        app = ToolMiddleware(model, settings=Settings(app_protocol="chat", **asked.settings))
        _apps[key] = model, app
    model, app = _apps[key]
    model.reply = asked.reply
    return body(client, asked, about), app


async def blocked(
    client: str, seed: int, size: int = SIZE, about: str = "Hostile.", *, quiet: Callable[[], object] = lambda: None
) -> Block:
    """Run the exchange for this seed through the middleware, alone on its event loop; `quiet` is called where a server
    would collect garbage.
    """
    asked = hostile(seed, size)
    given, app = served(client, asked, about)
    app.gate.collect_if_due = quiet
    dog = Watchdog()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dog.run)
        await anyio.sleep(2 * TICK)
        async with stream_asgi(app, CLIENTS[client], body=given) as reply:
            await reply.body()
        await anyio.sleep(2 * TICK)
        tasks.cancel_scope.cancel()
    return Block(dog.longest, len(given) + sum(map(len, asked.reply)), seed)


async def corpus(count: int, first: int, size: int) -> dict[tuple[str, str], Block]:
    """Run `count` exchanges and return the longest block for each client protocol and kind of request."""
    collector = Collector()  # as `serve` does
    collector.collect_all()
    longest: dict[tuple[str, str], Block] = {}
    for seed in range(first, first + count):
        client = tuple(CLIENTS)[seed // len(KINDS) % len(CLIENTS)]
        key = client, KINDS[seed % len(KINDS)]
        found = await blocked(client, seed, size, about=client, quiet=collector.collect_if_due)
        longest[key] = max(longest.get(key, found), found, key=lambda block: block.seconds)
    return longest


# --- step by step


@frozen
class Step:
    """A step and its duration."""

    seconds: float
    name: str
    read: int
    """Number of bytes that the step reads."""
    seed: int


def timed(client: str, seed: int, size: int = SIZE, about: str = "Hostile.") -> Iterator[Step]:
    """Yield the steps of one exchange. If the request is rejected, no more steps follow."""
    for name, read, step in steps(client, hostile(seed, size), about):
        began = time.thread_time()
        try:
            step()
        except RequestError:
            return
        finally:
            yield Step(time.thread_time() - began, name, read, seed)


def costs(count: int, first: int = 0, size: int = SIZE) -> Table:
    """Return the steps with the highest cost per KB; short steps are omitted, because each step has a fixed cost."""
    found: dict[tuple[str, str], tuple[float, Step]] = {}
    for seed in range(first, first + count):
        for step in timed("chat", seed, size, about=f"Number {seed}."):
            if step.read > SHORT:
                key = KINDS[seed % len(KINDS)], step.name
                found[key] = max(
                    found.get(key, (0.0, step)), (1024 * step.seconds / step.read, step), key=itemgetter(0)
                )
    rows = [
        Row((*key, f"{1000 * cost:.2f}", f"{1000 * step.seconds:.0f}", f"{step.read / 1024:.0f}", str(step.seed)))
        for key, (cost, step) in sorted(found.items())
    ]
    return Table(f"Steps of {count} hostile requests", ("kind", "step", "ms/KB", "ms", "KB", "seed"), rows)


def blocks(count: int, first: int = 0, size: int = SIZE) -> Table:
    """Return the longest block for each client protocol and kind of request."""
    longest = anyio.run(corpus, count, first, size)
    rows = [
        Row((client, kind, f"{1000 * block.seconds:.1f}", f"{block.read / 1024:.0f}", str(block.seed)))
        for (client, kind), block in sorted(longest.items())
    ]
    columns = ("client", "kind", "ms", "KB", "seed")
    return Table(f"The longest block of the event loop in {count} hostile requests", columns, rows)


def main(*arguments: str) -> None:
    """Print the tables selected by the arguments."""
    for client in CLIENTS:  # create everything that is created only once per process
        for seed in range(-400, 0):
            list(timed(client, seed, 256))
    logging.disable()
    make = costs if arguments[0] == "costs" else blocks
    make(*map(int, arguments[make is costs :])).show()


if __name__ == "__main__":
    main(*sys.argv[1:])
