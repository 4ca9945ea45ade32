"""Cost of one request: Python calls until the first byte is sent to the upstream, and CPU time compared with a bare
proxy. Linux only.

    python benchmarks/request.py [--calls | --cpu] [--list] [--rounds R] [--requests N]

The request has 20 tools and 13 messages and uses Chat Completions; the reply consists of three deltas.

Calls are counted in this process, from the ASGI `receive` that returns the body to the first write to the upstream
connection, in all threads; resuming a coroutine or a generator does not count as a call. The second column is for a
request with one tool and one message. `--list` prints the functions that were called. CPU time is measured for a
`streamtool serve` process and for a process that copies bytes (`peers.py`, httpx under uvicorn), both in front of the
same upstream. The two take turns in each round, and each request opens a new connection; the result is the median of
the rounds' ratios.
"""

import argparse
import asyncio
import dis
import gc
import inspect
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from attrs import field, frozen
from common import CLIENTS, Row, Table, median
from paced import Proxied
from paced import proxy as serving
from proxy import ProbeResult, started

from statemachine import precompile
from streamtool.proxy import Proxy
from streamtool.refusals import default_phrases
from streamtool.settings import Settings
from streamtool.upstream import http1 as asyncio_network

TOOLS: Final = 20
TURNS: Final = 5
"""Calls with their results, between a system message, a task and a question: 13 messages."""
MODEL: Final = "text-2-2"
"""Model name that requests a word and two deltas, 2 ms apart, from the upstream (`proxy.upstream`)."""
RATIO: Final = 1.6
CALLS: Final = 350, 200
"""Maximum number of calls to our own functions: with 20 tools and 13 messages, and with one of each."""
WARM: Final = 50
"""Number of requests before measuring."""
_ROOT: Final = str(Path(__file__).parent.parent)
_OURS: Final = (f"{_ROOT}/streamtool/", f"{_ROOT}/statemachine/")
_RESUMABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RESUME: Final = dis.opmap["RESUME"]
"""The opcode whose argument is 0 at the beginning of a function. Source: the documentation of `dis`."""
_ABOUT: Final = "Does something useful with a file, and reports the result in one line of text."
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file, relative to the project."},
        "content": {"type": "string"},
        "mode": {"type": "string", "enum": ["create", "append", "replace"]},
        "line": {"type": "integer"},
    },
    "required": ["path"],
}


def asked(model: str = MODEL, *, tools: int = TOOLS, turns: int = TURNS) -> bytes:
    """Return the body of a request with this many tools and turns; without turns, it has one message."""
    functions = [{"name": f"tool_{n}", "description": _ABOUT, "parameters": _SCHEMA} for n in range(tools)]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent that edits files. " * 10},
        {"role": "user", "content": "Read the files of this project, and correct the spelling in each of them."},
    ]
    for n in range(turns):
        function = {"name": f"tool_{n}", "arguments": json.dumps({"path": f"src/{n}.py", "line": n})}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "I read the next file.", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": f"print('This is file {n}.')\n" * 8})
    messages = [*messages, {"role": "user", "content": "Go on."}] if turns else messages[1:]
    offered = [{"type": "function", "function": function} for function in functions]
    return json.dumps({"model": model, "stream": True, "messages": messages, "tools": offered}).encode()


# --- calls


@frozen
class Counted:
    """Calls to Python functions by file, line and name."""

    calls: Counter[tuple[str, int, str]] = field(factory=Counter)

    def ours(self) -> dict[tuple[str, int, str], int]:
        """The calls to functions in streamtool and statemachine."""
        return {where: count for where, count in self.calls.items() if where[0].startswith(_OURS)}


class Profiler:
    """Counts the calls that begin between `start` and `stop`, in the installing thread and in all threads started
    later.
    """

    def __init__(self) -> None:
        self._counted: Counted | None = None
        self.written: Callable[[], object] = self.stop
        """Called when the upstream connection is written to."""

    def start(self) -> None:
        """Count from now on."""
        self._counted = Counted()

    def stop(self) -> Counted | None:
        """Return the calls since `start`, or None if counting had already stopped."""
        counted, self._counted = self._counted, None
        return counted

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Receive an interpreter event."""
        counted = self._counted
        if counted is not None and event == "call" and begins(frame):
            code = frame.f_code
            counted.calls[code.co_filename, code.co_firstlineno, code.co_qualname] += 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Receive events for the duration of the block."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def begins(frame: FrameType) -> bool:
    """Return whether the frame begins, rather than resumes after a `yield` or `await`."""
    code = frame.f_code
    if not code.co_flags & _RESUMABLE:
        return True
    at = frame.f_lasti
    return code.co_code[at] == _RESUME and code.co_code[at + 1] & 3 == 0


class _Written:
    """An event loop transport that reports its first write."""

    def __init__(self, transport: Any, profiler: Profiler) -> None:
        self._transport = transport
        self._profiler = profiler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._profiler.written()
        self._transport.write(data)


@contextmanager
def _writes_reported(profiler: Profiler) -> Iterator[None]:
    """Report the writes to connections that are opened inside the block."""
    connection: Any = asyncio_network._Connection
    made = connection.connection_made
    connection.connection_made = lambda self, transport: made(self, _Written(transport, profiler))
    try:
        yield
    finally:
        connection.connection_made = made


async def _ask(app: Any, body: bytes, profiler: Profiler) -> Counted:
    """Return the calls of one request, up to the first byte sent to the upstream."""
    path = CLIENTS["chat"]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1:8700"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"authorization", b"Bearer sk-0123456789abcdef0123456789abcdef"),
            (b"user-agent", b"OpenAI/Python 2.0"),
            (b"accept", b"application/json"),
        ],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8700),
    }
    found: list[Counted] = []
    pending = [body]
    whole = asyncio.Event()

    def written() -> None:
        counted = profiler.stop()
        if counted is not None:
            found.append(counted)

    async def receive() -> dict[str, Any]:
        if pending:
            profiler.start()
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await whole.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message

    profiler.written = written
    await app(scope, receive, send)
    for kept in list(app._apps["u"]._network._fast._open):  # each request opens its own
        kept.close()
    await asyncio.sleep(0.01)
    [counted] = found
    return counted


async def _counted(url: str, body: bytes) -> list[Counted]:
    profiler = Profiler()
    precompile()  # otherwise, a thread does this during the first requests
    default_phrases()
    with _writes_reported(profiler), profiler.installed():
        app = Proxy(Settings(upstreams={"u": {"url": url}}))  # type: ignore[dict-item]
        async with app.running():
            return [await _ask(app, body, profiler) for _ in range(8)]


def counted(body: bytes) -> Counted:
    """Return the calls of one request in a server that has already served it; they are the same in each run."""
    gc.disable()
    with started("upstream") as source:
        found = asyncio.run(_counted(source.url, body))
    gc.enable()
    return min(found, key=lambda one: sum(one.ours().values()))


def calls(large: Counted, small: Counted) -> Table:
    """Return the table of calls."""

    def row(name: str, *found: Mapping[tuple[str, int, str], int], most: tuple[int, ...] = ()) -> Row:
        totals = [sum(one.values()) for one in found]
        cells = [f"{total} in {len({where[0] for where in one})}" for total, one in zip(totals, found, strict=True)]
        met = all(total < limit for total, limit in zip(totals, most, strict=True)) if most else None
        return Row((name, *cells), ", ".join(f"< {limit}" for limit in most), met)

    rows = [
        row("streamtool, statemachine", large.ours(), small.ours(), most=CALLS),
        row("all", large.calls, small.calls),
    ]
    columns = ("calls in files", f"{TOOLS} tools, 13 messages", "1 tool, 1 message")
    return Table("Calls from the body to the first byte sent to the upstream", columns, rows)


def listed(counted: Counted) -> None:
    """Print our functions, sorted by the number of calls to them."""
    for (file, line, name), count in sorted(counted.ours().items(), key=lambda one: -one[1]):
        print(f"{count:5} {file.removeprefix(_ROOT + '/')}:{line} {name}")


# --- CPU time


@frozen
class Round:
    """CPU seconds per request, for each proxy."""

    bare: float
    ours: float


async def _rounds(url: str, rounds: int, requests: int, name: str = "streamtool") -> list[Round]:
    port, body = int(url.rpartition(":")[2]), asked()
    async with serving("httpx", port) as bare, serving(name, port) as ours:

        def spent(served: Proxied, count: int) -> float:
            before = served.cpu()
            for _ in range(count):
                ProbeResult.of(served.port, CLIENTS["chat"], body)
            return (served.cpu() - before) / count

        for served in (bare, ours):
            spent(served, WARM)
        return [Round(spent(bare, requests), spent(ours, requests)) for _ in range(rounds)]


def cpu(rounds: int, requests: int) -> Table:
    """Return the table of CPU times."""
    with started("upstream") as source:
        found = asyncio.run(_rounds(source.url, rounds, requests))
    ratios = [one.ours / one.bare for one in found]
    ratio = median(ratios)
    rows = [
        Row(("bare httpx proxy", f"{1000 * median(one.bare for one in found):.2f}", "", "")),
        Row(
            (
                "streamtool",
                f"{1000 * median(one.ours for one in found):.2f}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f} – {max(ratios):.2f}",
            ),
            f"≤ {RATIO}",
            ratio <= RATIO,
        ),
    ]
    columns = ("", "CPU ms", "× bare", "of the rounds")
    return Table(f"CPU per request, {TOOLS} tools, {len(asked()):,} bytes", columns, rows)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Cost of one request.")
    parser.add_argument("--calls", action="store_true", help="count calls only")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time only")
    parser.add_argument("--list", action="store_true", help="print which functions were called")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=100, help="number of requests to each proxy in a round")
    given = parser.parse_args()
    missed = 0
    if not given.cpu:
        found = counted(asked())
        missed += calls(found, counted(asked(tools=1, turns=0))).show()
        if given.list:
            listed(found)
    if not given.calls:
        missed += cpu(given.rounds, given.requests).show()
    return missed


if __name__ == "__main__":
    sys.exit(main())
