"""Measures deltas that arrive one by one, as from a real model: CPU, delay and memory of streamtool and bare proxies.

    python benchmarks/paced.py [--streams N] [--seconds S] [--rounds R] [--json FILE] [NAME...]
    python benchmarks/paced.py --most [--first N] [--quarters] [--json FILE] [NAME...]
    python benchmarks/paced.py --beside [--streams N] [--seconds S] [--rounds R]
    python benchmarks/paced.py --whole [--streams N] [--rounds R]

Many streams of 25 deltas per second go through each proxy in turn, several times, so that all proxies are measured
under the same load; medians are printed. `--most` starts with N (default: 200) streams and adds more until the slowest
1 % of the deltas are more than 10 ms late; with `--quarters`, each proxy process gets a quarter of a core, which leaves
enough for the upstream and the clients. `--beside` is for small differences: streamtool with and without the inspector
serve the same number of streams simultaneously, so that disturbances affect both, and the ratio in each round is what
matters. `--whole` also compares two proxies simultaneously, but measures whole replies of 150 deltas, with their
requests. A name is a proxy in `peers.py` or `litellm`, with `/arguments` for call deltas; streamtool also accepts `*2`
for two workers, or `+inspect` for running with the inspector on. Needs aiohttp, httpx-aiohttp and pyreqwest. Linux
only.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from attrs import frozen
from common import Row, Table, median
from load import PERIOD, Heard, Streams, Upstream

NAMES = ("direct", "pump", "aiohttp", "httpx-aiohttp", "pyreqwest", "httpx", "streamtool", "streamtool/arguments")
INSPECTED = "streamtool+inspect"
"""streamtool with the inspector on and no viewer."""
BESIDE = ("streamtool", INSPECTED)
WHOLE = ("httpx", "streamtool")
REPLY = 150
"""Number of deltas in a whole reply."""
WHOLE_TOOLS = 20
"""Number of tools in the request for a whole reply."""
MOST = ("direct", "httpx", "streamtool", "streamtool*2")
TOOLS = 50
BEST = 1.4
"""Maximum cost of a text delta, relative to the best bare proxy."""
ASKED = 100
"""Minimum number of streams for the targets to apply."""
HALF = 0.5
"""Maximum cost of a text delta, relative to the httpx proxy."""
CALLS = 1.15
"""Maximum cost of an argument delta, relative to a text delta."""
LATE = 5.0
"""Maximum delay that the proxy may add to 99 % of the deltas, in ms."""
LOOKS = 1.06
"""Maximum cost of a delta with the inspector on and no viewer, relative to one without the inspector."""
TOO_LATE = 10.0
"""Maximum delay of 99 % of the deltas in the search for the most streams, in ms."""
MORE = 20
"""Number of streams opened to measure memory."""
GROWTH = 0.08
"""Fraction of the streams that is added in each step of the search for the most streams."""
FIRST = 200
"""Number of streams at the start of the search."""
SETTLED = 0.5
"""Seconds between opening streams and measuring, in the search."""
SLICE = 1_000
"""Maximum time that a process limited to a quarter of a core may run in every 4,000 µs, in µs."""
WARM = 2.0
"""Seconds between opening streams and measuring, if all streams are opened together."""
STARTED = 30.0
"""Maximum seconds until a process starts to serve."""
_PEERS = Path(__file__).parent / "peers.py"
_UNBOUNDED = {
    f"STREAMTOOL_LIMITS__{name}": "0"
    for name in ("EXCHANGES", "EXCHANGES_PER_CLIENT", "CONNECTIONS", "CONNECTIONS_PER_ADDRESS")
} | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOG": "ERROR"}
"""Environment variables for the processes: the benchmark measures streams, not limits and keys."""
_BARE = ("aiohttp", "httpx-aiohttp", "pyreqwest", "httpx")


@frozen
class Proxied:
    """A running proxy or, for `direct`, the upstream itself."""

    port: int
    processes: tuple[int, ...] = ()

    def cpu(self) -> float:
        """Return the CPU seconds used by all processes of the proxy so far."""
        return sum(time.clock_gettime(~process << 3 | 2) for process in self.processes)

    def resident(self) -> int:
        """Return the resident memory of the proxy in bytes."""
        found = 0
        for process in self.processes:
            status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
            found += int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
        return found


@asynccontextmanager
async def proxy(name: str, upstream: int, tool: Sequence[str] = ()) -> AsyncIterator[Proxied]:
    """Run the proxy `name` in separate processes, with an upstream on this port. `tool` is a command that runs it."""
    if name == "direct":
        yield Proxied(upstream)
        return
    url = f"http://127.0.0.1:{upstream}"
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as sock, TemporaryDirectory() as folder:
        port = sock.getsockname()[1]
        command = _command(name, url, port, Path(folder))
        if command is not None:
            sock.close()
        else:
            command = [str(_PEERS), name, str(sock.fileno()), url]
        process = subprocess.Popen(  # noqa: ASYNC220  it takes negligible time
            [*tool, sys.executable, *command],
            pass_fds=[sock.fileno()] if sock.fileno() >= 0 else [],
            env={**os.environ, **_UNBOUNDED},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await asyncio.to_thread(_wait, port)  # the upstream is on this loop
            yield Proxied(port, (process.pid, *_children(process.pid)))
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _command(name: str, url: str, port: int, folder: Path) -> list[str] | None:
    """Return the command for a proxy that opens the port itself, or None for a proxy in `peers.py`, which is given the
    socket.
    """
    ours, _, workers = name.partition("*")
    if ours in ("streamtool", INSPECTED):
        return [
            *("-m", "streamtool", "serve", "--upstream", url, "--port", str(port)),
            *(["--workers", workers] if workers else []),
            *(["--inspect", "--contents"] if ours == INSPECTED else []),
        ]
    if name == "litellm":
        models = [
            {"model_name": kind, "litellm_params": {"model": f"openai/{kind}", "api_base": f"{url}/v1", "api_key": "x"}}
            for kind in ("text", "arguments")
        ]
        (folder / "litellm.yaml").write_text(json.dumps({"model_list": models}), encoding="utf-8")
        program = Path(sys.executable).with_name("litellm")
        return [str(program), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    return None


def _wait(port: int) -> None:
    """Wait until a server answers on the port; a 404 is enough."""
    end = time.monotonic() + STARTED
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=STARTED) as sock:
                sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                if sock.recv(1):
                    time.sleep(SETTLED)
                    return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"no server listens on port {port}")


@contextmanager
def quarters(processes: Sequence[int]) -> Iterator[None]:
    """Limit each process to a quarter of a core inside the block, with a control group for each. Needs root."""
    first = Path("/sys/fs/cgroup/cpu")
    made: list[Path] = []
    try:
        for process in processes:
            group = (first if first.exists() else first.parent) / f"paced-{process}"
            group.mkdir()
            made.append(group)
            if first.exists():
                (group / "cpu.cfs_period_us").write_text(str(4 * SLICE))
                (group / "cpu.cfs_quota_us").write_text(str(SLICE))
            else:
                (group / "cpu.max").write_text(f"{SLICE} {4 * SLICE}")
            (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for group in made:
            (group.parent / "cgroup.procs").write_text(group.name.partition("-")[2])
            group.rmdir()


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()]


@frozen
class Measured:
    """Results for one proxy in one round."""

    cost: float
    """CPU time per delta, in µs."""
    middle: float
    """Median delay in ms."""
    late: float
    """Delay that is not exceeded by 99 % of the deltas, in ms."""
    memory: float
    """Memory per stream in the proxy, in KB."""
    lost: int
    """Number of deltas that were sent but did not arrive."""


async def measured(
    upstream: Upstream,
    source: int,
    name: str,
    count: int,
    seconds: float,
    *,
    ready: Callable[[], Awaitable[object]] | None = None,
) -> Measured:
    """Measure one proxy. `ready` is awaited when all streams are open, and again before they are closed."""
    peer, _, kind = name.partition("/")
    async with proxy(peer, source) as served, Streams(upstream, served.port, kind or "text", TOOLS) as streams:
        await streams.open(MORE)
        before = served.resident()
        await streams.open(count - MORE)
        memory = (served.resident() - before) / (count - MORE) / 1024
        if ready is not None:
            await ready()
        await asyncio.sleep(WARM)
        heard = await streams.measure(seconds, served.cpu)
        if ready is not None:
            await ready()
        lost = await streams.finish()
    return Measured(heard.cost, heard.lag(0.5), heard.lag(0.99), memory, lost)


async def compared(names: list[str], count: int, seconds: float, rounds: int) -> dict[str, Measured]:
    """Return the medians for each proxy."""
    upstream = Upstream()
    source = await upstream.serve()
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(await measured(upstream, source, name, count, seconds))
    upstream.close()
    return {name: _median(runs) for name, runs in found.items()}


async def beside(names: Sequence[str], count: int, seconds: float, rounds: int) -> list[list[Measured]]:
    """Measure all proxies simultaneously in each round, and return the results by round."""
    upstreams = [Upstream() for _ in names]
    sources = [await upstream.serve() for upstream in upstreams]
    found = []
    for _ in range(rounds):
        ready = asyncio.Barrier(len(names))
        runs = (
            measured(upstream, source, name, count, seconds, ready=ready.wait)
            for upstream, source, name in zip(upstreams, sources, names, strict=True)
        )
        found.append(list(await asyncio.gather(*runs)))
    for upstream in upstreams:
        upstream.close()
    return found


async def whole(names: Sequence[str], count: int, rounds: int) -> list[list[float]]:
    """Return the CPU time per delta in µs for each proxy, by round. The proxies serve `count` whole replies
    simultaneously, each over a new connection; reading the requests is included.
    """

    async def once(name: str, opened: asyncio.Barrier) -> float:
        peer, _, kind = name.partition("/")
        upstream = Upstream()
        source = await upstream.serve()
        async with proxy(peer, source) as served:
            for replies in (MORE, count):  # the first ones create everything that exists only once
                async with Streams(upstream, served.port, kind or "text", WHOLE_TOOLS) as streams:
                    await opened.wait()
                    before = served.cpu()
                    await streams.open(replies)
                    enough = (REPLY if replies == count else 1) * replies
                    while upstream.sent < enough:  # noqa: ASYNC110  the upstream counts, and signals nothing
                        await asyncio.sleep(PERIOD)
                    sent = upstream.sent
                    lost = await streams.finish()
                    spent = served.cpu() - before
        upstream.close()
        if lost:
            raise RuntimeError(f"{name} lost {lost} deltas")
        return spent / sent * 1e6

    found = []
    for _ in range(rounds):
        opened = asyncio.Barrier(len(names))
        found.append(list(await asyncio.gather(*(once(name, opened) for name in names))))
    return found


def _median(runs: list[Measured]) -> Measured:
    def middle(of: Callable[[Measured], float]) -> float:
        return median(map(of, runs))

    return Measured(
        middle(lambda run: run.cost),
        middle(lambda run: run.middle),
        middle(lambda run: run.late),
        middle(lambda run: run.memory),
        sum(run.lost for run in runs),
    )


def table(found: dict[str, Measured], count: int) -> Table:
    """Return the table of results, with the targets for streamtool."""
    direct, httpx = found["direct"], found["httpx"]
    best = min(found[name].cost for name in _BARE if name in found)
    rows: list[Row] = []
    for name, run in found.items():
        cells = (
            name,
            f"{run.cost:.0f}" if run.cost else "",
            f"{run.cost / httpx.cost:.2f}" if run.cost else "",
            f"{run.cost / best:.2f}" if run.cost else "",
            f"{run.middle - direct.middle:.2f}" if run is not direct else f"({run.middle:.2f})",
            f"{run.late - direct.late:.2f}" if run is not direct else f"({run.late:.2f})",
            f"{run.memory:.0f}" if run.cost else "",
            str(run.lost),
        )
        target, ok = "", None
        if name == "streamtool" and count >= ASKED:
            target = f"≤ {HALF} × httpx, ≤ {BEST} × best, p99 ≤ {LATE:.0f} ms"
            ok = run.cost <= HALF * httpx.cost and run.cost <= BEST * best and run.late - direct.late <= LATE
        elif name == "streamtool/arguments" and count >= ASKED:
            target, ok = f"≤ {CALLS} × text", run.cost <= CALLS * found["streamtool"].cost
        rows.append(Row(cells, target, ok and not run.lost))
    columns = (
        "proxy",
        "CPU µs per delta",
        "× httpx",
        "× best bare",
        "p50 added, ms",
        "p99 added, ms",
        "KB/stream",
        "lost",
    )
    return Table(f"{count} streams of 25 deltas per second", columns, rows)


def table_of_whole(names: Sequence[str], found: Sequence[Sequence[float]], count: int) -> Table:
    """Return the table that compares the cost of whole replies with that of the first proxy."""
    rows = []
    for at, name in enumerate(names):
        ratios = sorted(costs[at] / costs[0] for costs in found)
        cells = (name, f"{median(costs[at] for costs in found):.1f}", f"{median(ratios):.2f}")
        rows.append(Row((*cells, f"{ratios[0]:.2f} to {ratios[-1]:.2f}")))
    columns = ("proxy", "CPU µs per delta", "× the first", "of the rounds")
    return Table(f"{count} replies of {REPLY} deltas, requests included", columns, rows)


def table_of_beside(names: Sequence[str], found: Sequence[Sequence[Measured]], count: int) -> Table:
    """Return the table that compares each proxy with the first one."""
    rows: list[Row] = []
    for name, *runs in zip(names, *found, strict=True):
        ratios = sorted(run.cost / first.cost for run, (first, *_) in zip(runs, found, strict=True))
        lost = sum(run.lost for run in runs)
        ratio, quarter = median(ratios), len(ratios) // 4
        cells = (
            name,
            f"{median(run.cost for run in runs):.1f}",
            f"{ratio:.3f}",
            f"{ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}",
            str(lost),
        )
        target, ok = (f"≤ {LOOKS}", ratio <= LOOKS) if name == INSPECTED else ("", None)
        rows.append(Row(cells, target, ok and not lost))
    columns = ("proxy", "CPU µs per delta", "× the first", "half of the rounds", "lost")
    return Table(f"{count} streams each at once, {len(found)} rounds", columns, rows)


async def most(name: str, first: int = FIRST, *, quarter: bool = False) -> tuple[int, Heard | None]:
    """Return the largest number of streams that still received 99 % of the deltas in time, and the measurements."""
    upstream = Upstream()
    source = await upstream.serve()
    best: tuple[int, Heard | None] = 0, None
    async with proxy(name, source) as served, Streams(upstream, served.port, "text", TOOLS) as streams:
        bounds = ExitStack()
        bounds.enter_context(quarters(served.processes if quarter else ()))
        count = late = 0
        while late < 2:  # a single round may be disturbed
            more = round(count * GROWTH) or first
            await streams.open(more)
            count += more
            await asyncio.sleep(SETTLED)
            heard = await streams.measure(1.5, served.cpu)
            late = late + 1 if heard.lag(0.99) > TOO_LATE else 0
            if not late:
                best = count, heard
        bounds.close()
        if await streams.finish():
            raise RuntimeError("deltas were lost")
    upstream.close()
    return best


def table_of_most(found: dict[str, tuple[int, Heard | None]]) -> Table:
    rows: list[Row] = []
    for name, (count, heard) in found.items():
        target, ok = "", None
        if name == "streamtool" and "httpx" in found:
            target, ok = "≥ 2 × httpx", count >= 2 * found["httpx"][0]
        elif name == "streamtool*2" and "streamtool" in found:
            target, ok = "≥ 1.8 × one", count >= 1.8 * found["streamtool"][0]
        said = ("", "", "")
        if heard is not None:
            said = (f"{heard.pace:.0f}", f"{heard.spent / heard.seconds:.2f}", f"{heard.lag(0.99):.1f}")
        rows.append(Row((name, str(count), *said), target, ok))
    columns = ("proxy", "streams", "deltas/s", "cores", "p99, ms")
    return Table(f"The most streams with p99 ≤ {TOO_LATE:.0f} ms", columns, rows)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Paced streams through proxies.")
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--streams", type=int, default=100)
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--most", action="store_true")
    arguments.add_argument("--beside", action="store_true")
    arguments.add_argument("--whole", action="store_true")
    arguments.add_argument("--first", type=int, default=FIRST)
    arguments.add_argument("--quarters", action="store_true")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    said: dict[str, Any]
    if given.beside:
        rounds = uvloop.run(beside(BESIDE, given.streams, given.seconds, given.rounds))
        said = {name: {"cost": [run.cost for run in runs]} for name, *runs in zip(BESIDE, *rounds, strict=True)}
        shown = table_of_beside(BESIDE, rounds, given.streams)
    elif given.whole:
        names = given.names or list(WHOLE)
        costs = uvloop.run(whole(names, given.streams, given.rounds))
        said = {name: {"cost": list(each)} for name, *each in zip(names, *costs, strict=True)}
        shown = table_of_whole(names, costs, given.streams)
    elif given.most:
        found = {name: uvloop.run(most(name, given.first, quarter=given.quarters)) for name in given.names or MOST}
        said = {name: {"streams": count} for name, (count, _) in found.items()}
        shown = table_of_most(found)
    else:
        names = given.names or list(NAMES)
        runs = uvloop.run(compared(names, given.streams, given.seconds, given.rounds))
        said = {name: {"cost": run.cost, "late": run.late, "memory": run.memory} for name, run in runs.items()}
        shown = table(runs, given.streams)
    if given.json:
        given.json.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    return shown.show()


if __name__ == "__main__":
    sys.exit(main())
