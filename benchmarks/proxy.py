"""Measures the proxy next to a bare proxy that copies bytes with httpx; run by `path.py`. Linux only.

The upstream, the bare proxy and streamtool's proxy are processes on loopback, the two proxies under uvicorn; the client
is a socket. CPU time is that of the proxy process. The requested model determines the upstream's reply: `text-2000-0`
is 2,000 deltas of text at full speed, `text-25-stop` is 25 deltas without an end. With a pace (in ms), each delta
contains a timestamp, which the client compares with the time of arrival.
"""

import asyncio
import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import httpx
import uvicorn
from attrs import frozen
from common import (
    CHAT_END,
    CLIENTS,
    FEW,
    GROWTH,
    KINDS,
    MANY,
    Row,
    Table,
    delta,
    deltas,
    median,
    opening,
    request,
)

from streamtool.proxy import Proxy
from streamtool.settings import Settings

TOOLS = 50
PACE = 2
"""Milliseconds between two deltas."""
RATIO = 1.5
FIRST = 2.0
"""Maximum delay of the first byte, in ms."""
STOP = "stop"
"""Value that replaces the pace if the reply never ends."""
GENERATIONS = 5
"""Maximum number of times that the processes are restarted, because some remain slower than others for as long as they
run.
"""
TIMEOUT = 60.0
_STAMP = re.compile(rb"=(\d{18});")
_LONGEST = 20  # length of a timestamp

# --- the processes


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            if not body or b"/api/show" in head:  # a request for the list of models, or for a chat template
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            asked = json.loads(body)
            kind, count, pace = asked["model"].split("-")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for data in opening("chat", kind):
                await say(writer, data)
            if pace == "0":
                for data in deltas("chat", kind, int(count)):
                    await say(writer, data)
            elif pace == STOP:
                for data in deltas("chat", kind, int(count)):
                    await say(writer, data)
                    await asyncio.sleep(PACE / 1e3)
                await reader.read()
            else:
                await say_in_time(writer, int(count), int(pace) / 1e3)
            await say(writer, CHAT_END)
            await say(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def say(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def say_in_time(writer: asyncio.StreamWriter, count: int, pace: float) -> None:
    """Write deltas that contain timestamps."""
    due = time.monotonic()
    before, _, behind = delta("chat", "SENT").partition(b"SENT")
    for _ in range(count):
        await say(writer, b"%b=%018d;%b" % (before, time.monotonic_ns(), behind))
        due = max(due + pace, time.monotonic())
        await asyncio.sleep(due - time.monotonic())


def bare(url: str) -> Any:
    """Return an app that copies bytes."""
    client = httpx.AsyncClient(timeout=None, limits=httpx.Limits())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = b""
            more = True
            while more:
                message = await receive()
                body, more = body + message["body"], message["more_body"]
            async with client.stream("POST", url + scope["path"], content=body) as response:
                headers = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
                async for piece in response.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})

    return app


async def serve_upstream(sock: socket.socket) -> None:
    async with await asyncio.start_server(upstream, sock=sock) as server:
        await server.serve_forever()


def serve(name: str, descriptor: str, url: str) -> None:
    """Run one of the processes."""
    sock = socket.socket(fileno=int(descriptor))
    if name == "upstream":
        asyncio.run(serve_upstream(sock))
        return
    app = bare(url) if name == "bare" else Proxy(Settings(upstreams={"u": {"url": url}}))  # type: ignore[dict-item]
    uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", access_log=False)).run(sockets=[sock])


@frozen
class Served:
    """A process and the port that it serves."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> float:
        """Return the process's CPU time so far, in seconds."""
        return time.clock_gettime(~self.process.pid << 3 | 2)


@contextmanager
def started(name: str, url: str = "") -> Iterator[Served]:
    """Run a process that serves for the duration of the block."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        command = [sys.executable, __file__, name, str(sock.fileno()), url]
        process = subprocess.Popen(command, pass_fds=[sock.fileno()])
        port = sock.getsockname()[1]
    try:
        yield Served(process, port)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- the client


@frozen
class ProbeResult:
    """Times for one reply, measured by the client, in seconds."""

    wall: float
    first: float
    """From the request to the first byte of the body."""
    first_stamp: float
    """From the request to the first delta with a timestamp; 0 if no delta has a timestamp."""
    lags: tuple[float, ...]
    """Delay of each delta with a timestamp."""

    @classmethod
    def of(cls, port: int, path: str, body: bytes) -> Self:
        """Send a request, and read the complete reply."""
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        arrived: dict[bytes, int] = {}
        first = 0
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as sock:
            began = time.monotonic_ns()
            sock.sendall(head % (path.encode(), len(body)) + body)
            seen, tail = b"", b""
            while not tail.endswith(b"\r\n0\r\n\r\n"):
                data = sock.recv(65536)
                now = time.monotonic_ns()
                if not data:
                    raise ConnectionError("the reply was cut off")
                if not first:
                    seen += data
                    assert seen.startswith(b"HTTP/1.1 200"), seen
                    first = now if seen.partition(b"\r\n\r\n")[2] else 0
                for stamp in _STAMP.findall(tail + data):
                    arrived.setdefault(stamp, now)  # Responses sends all text twice
                tail = (tail + data)[-_LONGEST:]
        lags = tuple((then - int(stamp)) / 1e9 for stamp, then in arrived.items())
        stamped = (min(arrived.values()) - began) / 1e9 if arrived else 0
        return cls((now - began) / 1e9, (first - began) / 1e9, stamped, lags)


@frozen
class Case:
    """A measured request: the process, the client's protocol, the kind of delta."""

    name: str
    client: str
    kind: str
    served: Served

    def ask(self, count: int, pace: int = 0) -> ProbeResult:
        body = request(self.client, TOOLS, f"{self.kind}-{count}-{pace}")
        heard = ProbeResult.of(self.served.port, CLIENTS[self.client], body)
        assert len(heard.lags) == (count if pace else 0), (self, count, len(heard.lags))
        return heard

    def spent(self, count: int) -> tuple[float, float]:
        """Return CPU and wall time per delta, in seconds."""
        before = self.served.cpu()
        wall = self.ask(count).wall
        return (self.served.cpu() - before) / count, wall / count


@contextmanager
def served() -> Iterator[list[Case]]:
    """Start new processes, and yield the cases that they serve."""
    with ExitStack() as stack:
        source = stack.enter_context(started("upstream"))
        copies = stack.enter_context(started("bare", source.url))
        ours = stack.enter_context(started("proxy", source.url))
        cases = [Case("bare", "chat", kind, copies) for kind in KINDS]
        cases += [Case("proxy", client, kind, ours) for kind, client in itertools.product(KINDS, CLIENTS)]
        for case in cases:
            case.ask(100)
        yield cases


def proxies(rounds: int) -> Iterator[Table]:
    """Yield the tables of throughput and of arrival times."""
    found = []
    for _ in range(min(GENERATIONS, rounds)):
        with served() as cases:
            found.append(fast(cases, rounds))
    yield throughput(found)
    with served() as cases:
        yield late(cases, rounds)


def fast(cases: list[Case], rounds: int) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Measure each case at full speed. Return the CPU time per delta in µs, its ratio to the bare proxy's, the same two
    values for wall time, and the growth of the CPU time in long replies.
    """
    few: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    many: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    for around, case in itertools.product(range(rounds), cases):
        few[case].append(case.spent(FEW))
        if around % 3 == 0:
            many[case].append(case.spent(MANY))
    cost = {case: [min(column) * 1e6 for column in zip(*few[case], strict=True)] for case in cases}
    bares = {case.kind: cost[case] for case in cases if case.name == "bare"}
    found = {}
    for case, (cpu, wall) in cost.items():
        than_cpu, than_wall = bares[case.kind]
        growth = min(many[case])[0] * 1e6 / cpu
        found[case.name, case.kind, case.client] = (cpu, cpu / than_cpu, wall, wall / than_wall, growth)
    return found


def throughput(generations: list[dict[tuple[str, ...], tuple[float, ...]]]) -> Table:
    """Return the medians over the generations of processes; each generation contributes the minimum of its rounds."""
    rows = []
    for key in generations[0]:
        cpu, ratio, wall, slower, growth = (
            median(column) for column in zip(*(it[key] for it in generations), strict=True)
        )
        cells = (*key, f"{cpu:.1f}", f"{ratio:.2f}", f"{wall:.1f}", f"{slower:.2f}", f"{growth:.2f}")
        if key[0] == "bare":
            rows.append(Row(cells))
        else:
            rows.append(Row(cells, f"{RATIO} ×, {GROWTH}", ratio <= RATIO and growth <= GROWTH))
    columns = ("", "delta", "client", "CPU µs", "× bare", "wall µs", "× bare", f"{MANY:,} / {FEW:,}")
    return Table(f"Proxy: {FEW:,} deltas at full speed, per delta (the target is for CPU)", columns, rows)


def late(cases: list[Case], rounds: int) -> Table:
    """Measure arrival times at the pace of a fast model. The target applies to the minimum time to the first byte; the
    median also depends on the machine's load.
    """
    beginnings: dict[Case, list[ProbeResult]] = {case: [] for case in cases}
    whole: dict[Case, list[ProbeResult]] = {case: [] for case in cases}
    for _, case in itertools.product(range(10 * rounds), cases):
        beginnings[case].append(case.ask(3, 1))
    for _, case in itertools.product(range(-(-rounds // 3)), cases):
        whole[case].append(case.ask(FEW // 2, PACE))
    found: Mapping[Case, tuple[float, ...]] = {
        case: tuple(
            value * 1e3
            for value in (
                min(heard.first for heard in beginnings[case]),
                median(heard.first for heard in beginnings[case]),
                min(heard.first_stamp for heard in beginnings[case]),
                min(median(heard.lags) for heard in whole[case]),
                min(sorted(heard.lags)[-len(heard.lags) // 100] for heard in whole[case]),
            )
        )
        for case in cases
    }
    bares = {case.kind: found[case] for case in cases if case.name == "bare"}
    rows = []
    for case in cases:
        if case.name == "bare":
            rows.append(Row(("bare", case.kind, case.client, *(f"{value:.2f}" for value in found[case]))))
            continue
        added = [value - bare for value, bare in zip(found[case], bares[case.kind], strict=True)]
        cells = ("added by the proxy", case.kind, case.client, *(f"{value:+.2f}" for value in added))
        rows.append(Row(cells, f"first byte {FIRST:g}", added[0] <= FIRST))
    columns = ("", "delta", "client", "first byte", "median", "first delta", "lag, median", "lag, p99")
    title = f"Proxy: times of arrival in ms; {TOOLS} tools, {FEW // 2:,} deltas, one every {PACE} ms"
    return Table(title, columns, rows)


if __name__ == "__main__":
    serve(*sys.argv[1:])
