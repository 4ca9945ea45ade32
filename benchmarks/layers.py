"""Shows the layers between copying bytes and streamtool: instructions per paced delta, one layer after the other.

    python benchmarks/layers.py [NAME...] [--deltas N | --requests N]

Each proxy (`LAYERS`, or a proxy of `peers.py`) runs under valgrind with one stream of text. The upstream sends a delta
once the client has received the one before, so that each delta wakes the event loop, as at the pace of real models, and
the counts do not depend on the machine's load. The instructions of the kernel are not counted; `paced.py` measures the
CPU time of the same proxies, with the kernel's. With `--requests`, whole requests are counted instead, those of
`request.py`. Needs valgrind. Linux only.

- *pump*: copies bytes between two uvloop protocols.
- *parsing*: parses HTTP on both sides, and writes chunks.
- *client*: the reply comes from streamtool's upstream connection.
- *server*: the reply is that of an ASGI app under uvicorn.
- *upstream*: the app is streamtool's upstream, with its time limits.
- *exchange*: the bytes pass through an exchange; `instructions.py` counts its rooms.
- *streamtool*: the whole `serve` process, with the middleware.
"""

import argparse
import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop
from common import CLIENTS, Row, Table
from load import Streams, Upstream
from paced import Proxied, proxy
from proxy import ProbeResult, started
from request import asked

LAYERS: Final = ("pump", "parsing", "client", "server", "upstream", "exchange", "streamtool")
TOOLS: Final = 20
WARM: Final = 100
"""Number of deltas before the counted ones."""
PAUSE: Final = 0.001
"""Seconds between two looks at whether the client has received a delta."""


class Waiting(Upstream):
    """An upstream that writes nothing by itself."""

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._ticks = loop.call_at(due, lambda: None)


async def _steps(upstream: Upstream, streams: Streams, count: int) -> None:
    """Send deltas, each once the client has received all those before."""
    for _ in range(count):
        upstream.step()
        while streams.heard < upstream.sent:  # noqa: ASYNC110  the client counts, and signals nothing
            await asyncio.sleep(PAUSE)


async def _open(upstream: Upstream, streams: Streams) -> None:
    """Open a stream; it is open when the client has received a delta."""
    opened = asyncio.ensure_future(streams.open(1))
    while not opened.done():
        upstream.step()
        await asyncio.sleep(PAUSE)
    await opened


def _control(process: int, *given: str) -> None:
    command = ["callgrind_control", *given, str(process)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def _counting(name: str, upstream: int, folder: str) -> AsyncIterator[tuple[Proxied, int]]:
    """Run the proxy under valgrind, which writes its counts to the folder. Yield also the number of the process."""
    options = ("--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out")
    async with proxy(name, upstream, ("env", "PYTHONHASHSEED=0", "valgrind", *options)) as served:
        [process, *_] = served.processes
        yield served, process


async def of_deltas(name: str, count: int) -> float:
    """Return the number of instructions per delta in a proxy."""
    upstream = Waiting()
    source = await upstream.serve()
    with TemporaryDirectory() as folder:
        async with (
            _counting(name, source, folder) as (served, process),
            Streams(upstream, served.port, "text", TOOLS) as streams,
        ):
            await _open(upstream, streams)
            await asyncio.to_thread(_control, process, "--instr=on")
            await _steps(upstream, streams, WARM)
            await asyncio.to_thread(_control, process, "--dump=before")
            await _steps(upstream, streams, count)
            await asyncio.to_thread(_control, process, "--dump=counted")
            await asyncio.to_thread(_control, process, "--instr=off")
            upstream.finish()
        upstream.close()
        return _total(Path(folder), "counted") / count


async def of_requests(name: str, count: int) -> float:
    """Return the number of instructions per request in a proxy."""
    body = asked()
    with started("upstream") as source, TemporaryDirectory() as folder:
        async with _counting(name, int(source.url.rpartition(":")[2]), folder) as (served, process):

            def ask(times: int) -> None:
                for _ in range(times):
                    ProbeResult.of(served.port, CLIENTS["chat"], body)

            await asyncio.to_thread(_control, process, "--instr=on")
            await asyncio.to_thread(ask, WARM // 2)
            await asyncio.to_thread(_control, process, "--dump=before")
            await asyncio.to_thread(ask, count)
            await asyncio.to_thread(_control, process, "--dump=counted")
        return _total(Path(folder), "counted") / count


def _total(folder: Path, name: str) -> int:
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8", errors="replace")
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if f"desc: Trigger: dump {name}" in text and total:
            return int(total[1])
    raise RuntimeError("valgrind has written no counts")


def table(what: str, found: dict[str, float]) -> Table:
    first, before, rows = next(iter(found.values())), 0.0, []
    for name, count in found.items():
        rows.append(Row((name, f"{count:,.0f}", f"{count - before:+,.0f}", f"{count / first:.1f}")))
        before = count
    return Table(f"Instructions per {what}, without the kernel's", ("", "instructions", "more", "× the first"), rows)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Instructions per paced delta or request, layer by layer.")
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--deltas", type=int, default=1_000)
    arguments.add_argument("--requests", type=int)
    given = arguments.parse_args()
    names = given.names or LAYERS
    if given.requests:
        return table("request", {name: uvloop.run(of_requests(name, given.requests)) for name in names}).show()
    return table("delta", {name: uvloop.run(of_deltas(name, given.deltas)) for name in names}).show()


if __name__ == "__main__":
    sys.exit(main())
