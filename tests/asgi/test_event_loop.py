"""One request does not block the others: long work of any kind runs off the event loop.

Hostile requests by seed (`benchmarks/hostile.py`) pass through the middleware on a running loop. A watchdog alternates
with everything else on the loop and measures the CPU time that its thread spends between two consecutive turns, during
which no other task could run. That time does not depend on how busy the machine is.

Measured as a ratio: the same request at one size and at eight times that size. Anything that grew with the size would
take eight times as long.
"""

import json
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from support.dialects import CLIENTS, PATHS, Ask, read, said, write
from support.servers import hypercorn_server, uvicorn_server
from support.sweeps import alternating, each

from streamtool.asgi.off_loop import LARGE
from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, stream_asgi

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import hostile

SIZE = 2 * LARGE
TIMES = 8
ALLOWED = 4
FLOOR = 0.004
"""Seconds below which turns are not compared, since the garbage collector alone may take as long."""
SEEDS = 1
"""Seeds per kind and protocol."""


class Watchdog:
    """Alternates with other tasks; `longest` is the largest CPU time in seconds between two of its turns."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.thread_time()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.thread_time()
            self.longest = max(self.longest, now - last)
            last = time.thread_time()


@asynccontextmanager
async def watched() -> AsyncIterator[Watchdog]:
    dog = Watchdog()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dog.run)
        yield dog
        tasks.cancel_scope.cancel()


async def longest(client: str, seed: int, size: int, enough: float = 0) -> float:
    """Return the longest turn of this seed's exchange in seconds, the smaller of two runs, since one-time setup is not
    the request's cost. The second run is left out if the first one has a turn below `enough` seconds.
    """
    found: list[float] = []
    for about in ("One.", "Two."):
        if found and found[0] < enough:
            break
        given, app = hostile.served(client, hostile.hostile(seed, size), about)
        async with watched() as dog, stream_asgi(app, PATHS[client], body=given) as reply:
            await reply.body()
        found.append(dog.longest)
    return min(found)


@pytest.mark.anyio
@each("client", CLIENTS)
@each("kind", range(len(hostile.KINDS)))
@alternating
async def test_no_turn_grows_with_a_hostile_request(kind: int, client: str):
    for seed in range(kind, SEEDS * len(hostile.KINDS), len(hostile.KINDS)):
        allowed = ALLOWED * max(await longest(client, seed, SIZE), FLOOR)
        assert await longest(client, seed, TIMES * SIZE, allowed) < allowed, seed


@pytest.mark.anyio
@pytest.mark.parametrize(("words", "threads"), [("word ", False), ("word " * 20_000, True)], ids=["short", "a bomb"])
async def test_a_compressed_reply_is_decoded_in_threads_only_if_it_expands(
    words: str, threads: bool, monkeypatch: pytest.MonkeyPatch
):
    calls: list[Any] = []

    async def counted(call: Any) -> Any:
        calls.append(call)
        return call()

    monkeypatch.setattr("streamtool.server.client_connection.off_loop", counted)
    packed = zlib.compressobj(wbits=31)
    events = [step for step in said("chat", words * 50, size=len(words)).steps if isinstance(step, bytes)]
    pieces = [packed.compress(event) + packed.flush(zlib.Z_SYNC_FLUSH) for event in events] + [packed.flush()]

    async def model(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    body = json.dumps(write("chat", Ask((("user", "Go."),), (("ping", "Pings.", {"type": "object"}),)))).encode()
    async with stream_asgi(ToolMiddleware(model, app_protocol="chat"), PATHS["chat"], body=body) as reply:
        assert read("chat", await reply.body(), stream=True).parts == (words * 50,)
    assert bool(calls) is threads


# --- over sockets


LONG: dict[str, tuple[int, str]] = {
    "a long history": (6_000, "Done."),
    "3,000 calls in one delta": (1, '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' * 3000),
}
"""Pairs of messages in the request, and the model's reply, sent in one piece."""
MEANWHILE = 5
"""Minimum number of other answers while such a request is served; a blocked loop would give one."""


@pytest.mark.parametrize("serve", [uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn-trio"])
@pytest.mark.parametrize("kind", LONG)
def test_others_are_answered_meanwhile(kind: str, serve: Any):
    pairs, reply = LONG[kind]
    turns = (("user", "Hi."), ("assistant", "Hello.")) * pairs
    body = json.dumps(write("chat", Ask((*turns, ("user", "Go.")), (("ping", "Pings.", {"type": "object"}),)))).encode()
    model = ScriptedUpstream(said("chat", reply, size=len(reply)))
    settings = Settings(upstreams={"model": {"url": "http://127.0.0.1:1"}})  # type: ignore[dict-item]  # it converts
    with serve(Proxy(settings, apps={"model": model})) as served, httpx.Client(base_url=served.url) as client:
        client.get("/healthz")
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(httpx.post(served.url + PATHS["chat"], content=body, timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        meanwhile = 0
        while asking.is_alive():
            assert client.get("/healthz").status_code == 200
            meanwhile += 1
        asking.join()
    assert statuses == [200]
    assert meanwhile >= MEANWHILE
