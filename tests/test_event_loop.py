"""One request does not stop the others: what is long is done off the event loop, whatever it is.

Hostile requests by seed (`benchmarks/hostile.py`) go through the middleware on a running loop. A watchdog takes turns
with everything else on it, and measures the CPU time that its thread spends between two of its own turns: nobody else
would have had a turn either. A machine that is busy makes no difference to that time. Measured as a ratio: the same
request at one size and at eight times that size. What grew with the size would take eight times as long.
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
from dialects import CLIENTS, PATHS, Ask, read, said, write
from servers import hypercorn_server, uvicorn_server

from streamtool.http.middleware import ToolMiddleware
from streamtool.http.off_loop import LARGE
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, stream_asgi

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import hostile

SIZE = 2 * LARGE
TIMES = 8
ALLOWED = 4
FLOOR = 0.004
"""Seconds; what is shorter is not compared, since the collector of garbage alone may take as long."""
SEEDS = 1
"""Of each kind and protocol."""


class Watchdog:
    """Takes turns; `longest` are the seconds of CPU time that passed between two of them."""

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


async def longest(client: str, seed: int, size: int) -> float:
    """The longest turn of the exchange of this seed; of two, since what is made once is not the request's."""
    found = []
    for about in ("One.", "Two."):
        given, app = hostile.served(client, hostile.hostile(seed, size), about)
        async with watched() as dog, stream_asgi(app, PATHS[client], body=given) as reply:
            await reply.body()
        found.append(dog.longest)
    return min(found)


@pytest.mark.anyio
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", range(len(hostile.KINDS)), ids=hostile.KINDS)
async def test_no_turn_grows_with_a_hostile_request(kind: int, client: str):
    for seed in range(kind, SEEDS * len(hostile.KINDS), len(hostile.KINDS)):
        short = await longest(client, seed, SIZE)
        assert await longest(client, seed, TIMES * SIZE) < ALLOWED * max(short, FLOOR), seed


@pytest.mark.anyio
@pytest.mark.parametrize(("words", "threads"), [("word ", False), ("word " * 20_000, True)], ids=["short", "a bomb"])
async def test_a_compressed_reply_goes_to_threads_only_if_it_grows(
    words: str, threads: bool, monkeypatch: pytest.MonkeyPatch
):
    calls: list[Any] = []

    async def counted(call: Any) -> Any:
        calls.append(call)
        return call()

    monkeypatch.setattr("streamtool.http.client_connection.off_loop", counted)
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
    "a long history": (15_000, "Done."),
    "8,000 calls in one delta": (1, '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' * 8000),
}
"""Pairs of messages in the request, and what the model says at once."""
MEANWHILE = 5
"""Answers that others get at least while such a request is served; if the loop stood still, there would be one."""


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
