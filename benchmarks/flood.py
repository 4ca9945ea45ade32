"""Measures the cost of a delta when hundreds arrive in one read: CPU time of streamtool and of the proxies in
`paced.py`.

    python benchmarks/flood.py [--rounds R] [--json FILE] [NAME...]

Streams of 5,000 deltas run one after the other, as fast as the proxy accepts them. Prints medians. Linux only.
"""

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path

import uvloop
from common import CHAT_END, CLIENTS, Row, Table, deltas, median, opening, request
from paced import proxy

NAMES = ("httpx", "aiohttp", "streamtool", "streamtool/arguments", "litellm")
COUNT = 5_000
"""Deltas per stream."""
STREAMS = 4
"""Streams per round."""
TOOLS = 50
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ASK = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_LAST = b"0\r\n\r\n"


def reply(kind: str) -> bytes:
    """Return the upstream's whole response."""
    events = [*opening("chat", kind), *deltas("chat", kind, COUNT), CHAT_END, b"data: [DONE]\n\n"]
    return _HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + _LAST


REPLIES = {kind: reply(kind) for kind in ("text", "arguments")}


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with a complete stream."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            if b"/chat/" in head:
                writer.write(REPLIES["arguments" if b'"arguments"' in body[:200] else "text"])
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def ask(port: int, kind: str) -> None:
    """Read one stream to the end."""
    body = request("chat", TOOLS, kind)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_ASK % (CLIENTS["chat"].encode(), len(body)) + body)
    tail = b""
    while not tail.endswith(_LAST):
        piece = await reader.read(1 << 16)
        if not piece:
            raise ConnectionError(f"the reply was cut off after {tail[-200:]!r}")
        tail = (tail + piece)[-200:]
    writer.close()


async def measured(names: list[str], rounds: int) -> dict[str, float]:
    """Return the CPU time per delta for each name, in µs."""
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    source = server.sockets[0].getsockname()[1]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            peer, _, kind = name.partition("/")
            async with proxy(peer, source) as served:
                await ask(served.port, kind or "text")
                before = served.cpu()
                for _ in range(STREAMS):
                    await ask(served.port, kind or "text")
                found[name].append((served.cpu() - before) / (STREAMS * COUNT) * 1e6)
    server.close()
    return {name: median(runs) for name, runs in found.items()}


def main() -> int:
    arguments = argparse.ArgumentParser(description="Floods through proxies.")
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found = uvloop.run(measured(given.names or list(NAMES), given.rounds))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    bare = found.get("httpx", 0.0)
    rows = [
        Row(
            (name, f"{cost:.1f}", f"{cost / bare:.2f}" if bare else ""),
            "≤ 1.0 × httpx" if name == "streamtool" and bare else "",
            cost <= bare if name == "streamtool" and bare else None,
        )
        for name, cost in found.items()
    ]
    return Table("A flood: 5,000 deltas at full speed", ("proxy", "CPU µs per delta", "× httpx"), rows).show()


if __name__ == "__main__":
    sys.exit(main())
