"""Measures the prompt as a part of the latency: seconds to the first token of coding agents' requests.

    python benchmarks/first_token.py URL [AGENT...]

URL is a llama.cpp server with one slot, a window of 32,768 tokens and a chat template that lists tools, such as
`tools.jinja` (`llama-server --jinja --chat-template-file`). Requests of the sizes and shapes of the agents'
own (`tests/support/agent_requests.py`) pass through two proxies: one with the defaults, where the tools become text,
and one with `mode = "native"`, where llama.cpp's chat template writes them. Each reply is one token long, so the
seconds are those until the model has read the prompt. *Cold* is the first request after an unrelated prompt, *second*
the next turn of the same conversation, after three calls and their results; *read* are its tokens that were not in the
server's prefix cache. Linux only.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import uvloop
from attrs import frozen
from common import CLIENTS, Row, Table, request
from paced import proxy

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.agent_requests import AgentRequest, claude_code, codex, opencode
from support.dialects import PATHS

AGENTS: Final[dict[str, Callable[[int], AgentRequest]]] = {
    "Claude Code": claude_code,
    "Codex": codex,
    "opencode": lambda turn: opencode("chat", turn),
}
MODES: Final = ("emulate", "native")
LENGTHS: Final = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}
UNRELATED: Final = "Nothing of this is in the next prompt. " * 20
PATIENCE: Final = 600.0
_TIMINGS = re.compile(rb'"timings":(\{[^}]*\})')
_GENERATES = re.compile(rb"POST \S*/(?:chat/completions|completions?|messages|responses) ")


@frozen
class Read:
    """The prompt of one request, as the server has read it."""

    tokens: int
    read: int
    """Number of tokens that were not in the prefix cache."""
    seconds: float
    """Seconds until the reply of one token was complete."""


class Watched:
    """A port that copies all bytes to the server and back, and notes what the server reports for each prompt."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self.found: list[tuple[float, dict[str, Any]]] = []
        """Time and timings of each reply."""
        self.asked = 0
        """Number of requests for a reply."""

    async def serve(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(
            self._copy(reader, far_writer, self._note_request), self._copy(far_reader, writer, self._note_reply)
        )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes, bytes], None]
    ) -> None:
        before = b""
        try:
            while data := await reader.read(65536):
                note(before, data)
                before = (before + data)[-2048:]
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def _note_request(self, _: bytes, data: bytes) -> None:
        self.asked += _GENERATES.match(data) is not None

    def _note_reply(self, before: bytes, data: bytes) -> None:
        for found in _TIMINGS.finditer(before + data):
            if found.end() > len(before):
                self.found.append((time.monotonic(), json.loads(found[1])))


async def _asked(port: int, path: str, body: bytes, headers: dict[str, str], query: str) -> bytes:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        url = f"http://127.0.0.1:{port}{path}{query}"
        response = await client.post(url, content=body, headers={**headers, "content-type": "application/json"})
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
        return response.content


async def measured(watched: Watched, port: int, asked: AgentRequest) -> Read:
    """Send a request through the proxy, and return how the server has read its prompt."""
    body = json.dumps({**asked.body, LENGTHS[asked.protocol]: 1}).encode()
    watched.found.clear()
    watched.asked = 0
    began = time.monotonic()
    query = f"?{asked.query.decode()}" if asked.query else ""
    said = await _asked(port, PATHS[asked.protocol], body, {}, query)
    if not watched.found:
        raise RuntimeError(f"the server has reported no timings; the reply: {said[-500:]!r}")
    ended, timings = watched.found[0]  # of the first attempt
    cached = timings.get("cache_n", 0)
    return Read(timings["prompt_n"] + cached, timings["prompt_n"], ended - began)


async def _forget(url: str) -> None:
    """Replace the prompt in the server's cache."""
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        asked = {"prompt": UNRELATED, "n_predict": 1, "cache_prompt": False}
        (await client.post(f"{url}/completion", json=asked)).raise_for_status()


async def compared(url: str, agents: list[str]) -> list[Row]:
    rows = []
    watched = Watched(url)
    source = await watched.serve()
    for mode in MODES:
        async with proxy("streamtool", source, ("env", f"STREAMTOOL_MODE={mode}")) as served:
            first = json.dumps({**json.loads(request("chat", 1)), "max_tokens": 1}).encode()
            await _asked(served.port, CLIENTS["chat"], first, {}, "")  # the proxy asks the server for its template once
            for agent in agents:
                await _forget(url)
                try:
                    cold, second = [await measured(watched, served.port, AGENTS[agent](turn)) for turn in (1, 2)]
                except RuntimeError as error:
                    print(f"{agent}, {mode}: {error}", file=sys.stderr)
                    rows.append(Row((agent, mode, "rejected", "", "", "", "")))
                    continue
                print(f"{agent}, {mode}: {cold}, {second}", file=sys.stderr)
                cells = (agent, mode, f"{cold.tokens:,}", f"{cold.seconds:.1f}")
                rows.append(Row((*cells, f"{second.tokens:,}", f"{second.read:,}", f"{second.seconds:.1f}")))
    return sorted(rows, key=lambda row: agents.index(row.cells[0]))


def main() -> int:
    arguments = argparse.ArgumentParser(description="Seconds to the first token of agents' requests.")
    arguments.add_argument("url")
    arguments.add_argument("agents", nargs="*")
    given = arguments.parse_args()
    rows = uvloop.run(compared(given.url.rstrip("/"), given.agents or list(AGENTS)))
    columns = ("agent", "mode", "tokens", "cold, s", "second: tokens", "read", "s")
    return Table("Prompts of agents' requests", columns, rows).show()


if __name__ == "__main__":
    sys.exit(main())
