"""What the exchange and the middleware add per delta: CPU time, chat to chat, in µs and in units of the bare loop.

    python benchmarks/exchange.py [DELTAS]

u is the smallest useful loop in this run: one method call and one search of a compiled character class per delta. The
exchange rows are bytes in, bytes out, without I/O; the middleware rows are a whole ASGI call, minus the same call
without the middleware. Each number is the least of several rounds.
"""

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from streamtool.exchange import Exchange
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import chat
from streamtool.settings import Settings
from streamtool.testing import chunk

ROUNDS = 7
PROSE = "The quick brown fox jumps over the lazy dog, and then it rests in the shade of an old tree for a while. "
FILE = "def main(path: str) -> int:\\n    with open(path) as file:\\n        return len(file.read())\\n\\n\\n"
OPENER = '<tool_call>{"name": "write_file", "arguments": {"path": "a.py", "content": "'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something useful.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
        },
    }
    for name in ["write_file", *(f"tool_{i}" for i in range(19))]
]
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": TOOLS}
).encode()
PLAIN = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()


def pieces(text: str, count: int, size: int = 4) -> list[bytes]:
    """`count` upstream events of `size` characters each, `text` over and over."""
    whole = text * (count * size // len(text) + 1)
    return [chunk({"content": whole[i * size : (i + 1) * size]}) for i in range(count)]


def fresh() -> Exchange:
    numbers = itertools.count()
    exchange = Exchange(Settings(), chat, BODY, (), new_id=lambda prefix: f"{prefix}{next(numbers)}", now=1)
    exchange.request()
    exchange.respond(200, ())
    exchange.feed(chunk({"role": "assistant", "content": ""}))
    return exchange


def least(run: Callable[[], float]) -> float:
    return min(run() for _ in range(ROUNDS))


def through_exchange(opening: Sequence[bytes], deltas: Sequence[bytes]) -> float:
    """Seconds per delta."""

    def run() -> float:
        exchange = fresh()
        for data in opening:
            exchange.feed(data)
        feed = exchange.feed
        began = time.process_time()
        for data in deltas:
            feed(data)
        return (time.process_time() - began) / len(deltas)

    return least(run)


def through_asgi(wrapped: bool, opening: Sequence[bytes], deltas: Sequence[bytes]) -> float:
    """Seconds per delta of a whole call of an ASGI app, with the middleware or without."""
    spent = 0.0

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        nonlocal spent
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for data in (chunk({"role": "assistant", "content": ""}), *opening):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        began = time.process_time()
        for data in deltas:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        spent = (time.process_time() - began) / len(deltas)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def call() -> None:
        messages = [{"type": "http.request", "body": BODY if wrapped else PLAIN, "more_body": False}]
        forever = asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await forever.wait()
            return None

        async def send(message: Any) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": chat.PATH, "headers": []}
        await (ToolMiddleware(app) if wrapped else app)(scope, receive, send)

    def run() -> float:
        asyncio.run(call())
        return spent

    return least(run)


def unit(count: int) -> float:
    search = re.compile(r"[<`{\[\n\"']").search

    class Loop:
        def feed(self, text: str) -> object:
            return search(text)

    feed = Loop().feed

    def run() -> float:
        began = time.process_time()
        for _ in range(count):
            feed("word")
        return (time.process_time() - began) / count

    return least(run)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    u = unit(100_000)
    text, arguments = pieces(PROSE, count), pieces(FILE, count)
    opening = [chunk({"content": OPENER})]
    rows = [
        ("exchange, text", through_exchange((), text), 0.0),
        ("exchange, arguments", through_exchange(opening, arguments), 0.0),
        ("middleware, text", through_asgi(True, (), text), through_asgi(False, (), text)),
        ("middleware, arguments", through_asgi(True, opening, arguments), through_asgi(False, opening, arguments)),
    ]
    print(f"u = {u * 1e6:.3f} µs, {count} deltas of 4 characters")
    print(f"{'':28}{'u':>8}{'µs/delta':>10}{'bare µs':>10}{'growth':>8}")
    for name, total, bare in rows:
        part = name.split(", ")[1]
        few = text[: count // 10] if part == "text" else arguments[: count // 10]
        head = () if part == "text" else opening
        before = through_exchange(head, few) if name.startswith("exchange") else through_asgi(True, head, few)
        added = total - bare
        print(f"{name:28}{added / u:8.0f}{added * 1e6:10.2f}{bare * 1e6:10.2f}{total / before:8.2f}")


if __name__ == "__main__":
    main()
