"""Prints what users wait for, compared with its targets, in one table. Linux only.

    python benchmarks/reaches.py [--before REVISION] [--json FILE] [ROW...]

Every row uses the functions of the other benchmarks in this folder, and most rows are ratios to something that is
measured in the same process at the same time. With `--before`, the same code measures an earlier revision, which is
checked out into a temporary folder; the two revisions take turns, and the medians of the rounds are printed. A dash
means that the code does not run on that revision. Another Python is measured by starting the command with it.

`bound` is what the necessary work alone costs in Python, measured in the same run: a proxy that does nothing else
(`peers.with_necessary`), one search and one event for text, one search and the escaping for a value, importing the
parser's modules and compiling the regular expressions of an opener for a new process, the smallest program with typer
for a command, and a task that attends to the client and the model's text for an open stream. `--list` prints the names
of the rows.
"""

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

if TYPE_CHECKING:
    from streamtool.bench import Workload

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
sys.path.append(str(ROOT))  # for a Python without streamtool
STREAMS: Final = 80
"""Number of whole replies at a time."""
FIRST: Final = 60, 120
"""Numbers of streams at the start of the search for the most, for the bare proxy and for streamtool."""
TURNS: Final = 40
"""Number of times that requests are sent at once, to measure their first bytes."""
AT_ONCE: Final = 4
WARM: Final = 5
"""Number of these times that are not measured."""
PAUSE: Final = 0.02
"""Seconds between these times, in which a proxy finishes its work."""
SIZE: Final = 16_000
"""Characters of a text for the parser."""
LIMIT: Final = 300.0
"""Maximum seconds of a measurement."""


@frozen
class Value:
    """A measured value, and the least value that is possible in Python, if it was measured."""

    value: float
    bound: float | None = None


# --- measurements: each returns values by row


def whole_replies(kind: str) -> Callable[[], dict[str, Value]]:
    def measure() -> dict[str, Value]:
        import uvloop
        from paced import whole

        with of_revision():
            [[bare, ours]] = uvloop.run(whole([f"httpx/{kind}", f"streamtool/{kind}"], STREAMS, 1))
        [[again, least]] = uvloop.run(whole([f"httpx/{kind}", f"necessary/{kind}"], STREAMS, 1))
        return {kind: Value(ours / bare, least / again)}

    return measure


def requests() -> dict[str, Value]:
    import request
    from common import median
    from proxy import started

    with started("upstream") as source:
        with of_revision():
            rounds = asyncio.run(request._rounds(source.url, 5, 60))
        least = asyncio.run(request._rounds(source.url, 5, 60, "necessary"))
    return {"request": Value(*(median(one.ours / one.bare for one in found) for found in (rounds, least)))}


def first_bytes() -> dict[str, Value]:
    """Measure the time to the first byte in ms, for four simultaneous requests on an idle machine."""
    import request
    from common import CLIENTS, median
    from paced import Proxied, proxy
    from proxy import ProbeResult, started

    body = request.asked()

    async def measure(port: int, name: str) -> float:
        async with proxy("httpx", port) as bare, proxy(name, port) as ours:
            found: dict[Proxied, list[float]] = {bare: [], ours: []}
            with ThreadPoolExecutor(AT_ONCE) as threads:
                for turn, (served, times) in itertools.product(range(WARM + TURNS), found.items()):
                    heard = [threads.submit(ProbeResult.of, served.port, CLIENTS["chat"], body) for _ in range(AT_ONCE)]
                    firsts = [one.result().first * 1e3 for one in heard]
                    if turn >= WARM:
                        times.extend(firsts)
                    time.sleep(PAUSE)  # noqa: ASYNC251  nothing else runs on this loop
        return median(found[ours]) - median(found[bare])

    with started("upstream") as source:
        port = int(source.url.rpartition(":")[2])
        with of_revision():
            value = asyncio.run(measure(port, "streamtool"))
        return {"first": Value(value, asyncio.run(measure(port, "necessary")))}


def first_requests() -> dict[str, Value]:
    """Measure the first two requests of a ready process, compared with its hundredth."""
    import start
    from common import median
    from proxy import started

    with started("upstream") as source, of_revision():
        times = start.first_bytes(source.url)
    last = median(times[-start.LAST :])
    return {"first-request": Value(times[0] / last), "second-request": Value(times[1] / last)}


def new_tools() -> dict[str, Value]:
    from common import CLIENTS, taking_turns
    from exchange import until_called

    times = taking_turns(5, *(until_called(client, 50, known=False) for client in CLIENTS))
    return {"tools": Value(max(times) * 1e3)}


def middleware_memory() -> dict[str, Value]:
    from common import CLIENTS, KINDS
    from exchange import held, warm

    with suppress(ImportError):
        warm()
    bare = held("chat", "text", 50, wrapped=False)
    sizes = [held(client, kind, 50, wrapped=True) - bare for kind, client in itertools.product(KINDS, CLIENTS)]
    bound = held("chat", "arguments", 50, wrapped=False, necessary=True) - bare
    return {"memory": Value(max(sizes) / 1024, bound / 1024)}


def at_once(work: "Workload") -> float:
    """Return the time per character of the necessary work for the whole text."""
    from streamtool import bench

    assert work.bound is not None
    bound, given = work.bound, [work.text]

    def run() -> float:
        start = time.perf_counter()
        bound(given)
        return time.perf_counter() - start

    return bench.shortest_time(run) / len(work.text)


def parser() -> dict[str, Value]:
    from statemachine import FORMATS, OPT_IN
    from statemachine.formats import Expression, Parameters
    from streamtool import bench

    u = min(bench.unit() for _ in range(5))
    values: dict[str, list[Value]] = {"records": [], "marked": [], "json": []}
    for work in bench.workloads(SIZE):
        form = FORMATS.get(work.name)
        body = form and form.variants[0].body
        if work.name == "JSON records":
            values["records"].append(Value(bench.per_delta(work) / u, (bench.bound_of(work) or 0) / u))
        if body is None or work.name in OPT_IN or isinstance(body, Expression) or work.bound is bench.string_bound:
            continue
        marked = isinstance(body, Parameters)
        if marked:  # a tag with the parameter's own name has to be examined
            work = evolve(work, text=work.text.replace("<text>", "<word>"))  # noqa: PLW2901
        bound = at_once(work) / u if marked else None
        values["marked" if marked else "json"].append(Value(1 / bench.characters_per_second(work) / u, bound))
    return {name: max(found, key=lambda one: one.value) for name, found in values.items()}


def start_up() -> dict[str, Value]:
    import start
    from common import taking_turns

    python = [sys.executable, "-c"]
    with of_revision():
        bound = start.cold_bound()
    commands = {
        "httpx": [*python, "import httpx"],
        "cold": [*python, start.COLD],
        "cold, bound": [*python, bound],
        "parse": [sys.executable, "-m", "streamtool", "parse", "-"],
        "help": [sys.executable, "-m", "streamtool", "--help"],
        "parse, bound": [*python, start.TYPER.format(bound), "-"],
        "help, bound": [*python, start.TYPER.format(""), "--help"],
    }
    with of_revision():
        for command in commands.values():
            start.spent(command)  # modules are compiled once
        times = taking_turns(5, *(lambda command=command: start.spent(command) for command in commands.values()))
    found = dict(zip(commands, (one / times[0] for one in times), strict=True))
    return {name: Value(found[name], found.get(f"{name}, bound")) for name in ("cold", "parse", "help")}


def streams_per_core() -> dict[str, Value]:
    import uvloop
    from paced import most

    with of_revision():
        bare, ours = (
            uvloop.run(most(name, first, quarter=True))[0]
            for name, first in zip(("httpx", "streamtool"), FIRST, strict=True)
        )
    return {"streams": Value(ours / bare)}


def inspector() -> dict[str, Value]:
    import uvloop
    from common import median
    from paced import BESIDE, beside

    with of_revision():
        rounds = uvloop.run(beside(BESIDE, 100, 4.0, 2))
    return {"inspector": Value(median(inspected.cost / plain.cost for plain, inspected in rounds))}


MEASUREMENTS: Final[Mapping[str, tuple[Callable[[], dict[str, Value]], bool, int]]] = {
    "text": (whole_replies("text"), True, 3),
    "arguments": (whole_replies("arguments"), True, 3),
    "request": (requests, True, 9),
    "first": (first_bytes, True, 3),
    "first requests": (first_requests, True, 9),
    "tools": (new_tools, False, 3),
    "parser": (parser, False, 3),
    "start-up": (start_up, True, 2),
    "memory": (middleware_memory, False, 1),
    "streams": (streams_per_core, True, 1),
    "inspector": (inspector, True, 3),
}
"""Function of each measurement, whether it runs the current revision's code (and that of the other revision in
processes that it starts), and the number of rounds."""


@frozen
class Reach:
    """A row of the table: a value, and its target."""

    name: str
    what: str
    limit: float
    unit: str
    measurement: str
    digits: int = 2
    least: bool = False
    """Whether the target is a minimum."""

    def met(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit

    @property
    def target(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.limit:g} {self.unit}"

    def shown(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.{self.digits}f} {self.unit}"


BARE: Final = "× bare"
HTTPX: Final = "× import httpx"
REACHES: Final = (
    Reach("text", f"CPU per delta, {STREAMS} replies of 150 deltas in text, requests included", 0.45, BARE, "text"),
    Reach("arguments", "the same with deltas of arguments", 0.5, BARE, "arguments"),
    Reach("request", "CPU per request: 20 tools, 13 messages, 3 deltas", 1.25, BARE, "request"),
    Reach("first", "added first byte, median, four of these requests at a time", 2.0, "ms", "first"),
    Reach(
        "first-request", "first request of a ready process, Claude Code's of 54 KB", 2, "× hundredth", "first requests"
    ),
    Reach("second-request", "second request", 2, "× hundredth", "first requests"),
    Reach("tools", "request with 50 new tools until the app is called", 1.5, "ms", "tools"),
    Reach("records", "JSON records in small deltas", 12, "u", "parser", 1),
    Reach("marked", "marked parameters, a whole value at once, per character", 0.06, "u", "parser", 3),
    Reach("json", "JSON arguments, a whole value at once, per character", 0.1, "u", "parser", 3),
    Reach("cold", "new process: import, make a parser, read an opener", 1.0, HTTPX, "start-up"),
    Reach("parse", "`streamtool parse` of one line", 2.2, HTTPX, "start-up"),
    Reach("help", "`streamtool --help`", 1.2, HTTPX, "start-up"),
    Reach("memory", "open stream in the middleware, 50 tools", 32, "KB", "memory", 0),
    Reach("streams", "streams per core with p99 ≤ 10 ms", 2.5, BARE, "streams", least=True),
    Reach("inspector", "delta with the inspector on, nobody looking", 1.06, "× off", "inspector", 3),
)


# --- revisions


@contextmanager
def of_revision() -> Iterator[None]:
    """Start processes with the revision's code inside the block."""
    root = os.environ.get(_ROOT, str(ROOT))
    before, folder = os.environ.get("PYTHONPATH"), Path.cwd()
    os.environ["PYTHONPATH"] = root
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(folder)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


_ROOT: Final = "REACHES_ROOT"
"""Environment variable with the folder of the revision."""


@contextmanager
def checked_out(revision: str | None) -> Iterator[Sequence[Path]]:
    """Yield the folders of the revisions to measure: the earlier one, if any, and the current one."""
    if revision is None:
        yield (ROOT,)
        return
    git = ("git", "-C", str(ROOT), "worktree")
    with TemporaryDirectory() as folder:
        other = Path(folder, "before")
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), revision], check=True)
        try:
            yield other, ROOT
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)


def measured(measurement: str, root: Path, compiled: Path) -> dict[str, Value]:
    """Return the values of one round, or nothing if the code does not run on this revision."""
    _, current, _ = MEASUREMENTS[measurement]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "PYTHONPATH": str(ROOT if current else root),
        _ROOT: str(root),
        "PYTHONPYCACHEPREFIX": str(compiled),
    }
    command = [sys.executable, __file__, "--measure", measurement]
    try:
        done = subprocess.run(
            command, env=environment, cwd=root, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        if root == ROOT:
            print(done.stderr, file=sys.stderr)
        return {}
    return {name: Value(*value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def measure_here(measurement: str) -> None:
    """Print the values of one round as JSON."""
    # The benchmark of the parser is part of the package, but it must be the same for both revisions.
    spec = importlib.util.spec_from_file_location("streamtool.bench", ROOT / "streamtool" / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function, _, _ = MEASUREMENTS[measurement]
    print(json.dumps({name: (one.value, one.bound) for name, one in function().items()}))


def compared(names: Sequence[str], revision: str | None) -> Iterator[tuple[Reach, Sequence[Value | None]]]:
    """Yield each row with its values for each revision."""
    from common import median

    rows = [reach for reach in REACHES if not names or reach.name in names]
    with checked_out(revision) as roots, TemporaryDirectory() as compiled:
        for measurement, (_, _, rounds) in MEASUREMENTS.items():
            wanted = [reach for reach in rows if reach.measurement == measurement]
            if not wanted:
                continue
            found: list[list[dict[str, Value]]] = [[] for _ in roots]
            for _, (root, runs) in itertools.product(range(rounds), list(zip(roots, found, strict=True))):
                runs.append(measured(measurement, root, Path(compiled)))
            for reach in wanted:
                values: list[Value | None] = []
                for runs in found:
                    known = [run[reach.name] for run in runs if reach.name in run]
                    bounds = [one.bound for one in known if one.bound is not None]
                    bound = median(bounds) if bounds else None
                    values.append(Value(median(one.value for one in known), bound) if known else None)
                yield reach, values


def main() -> int:
    arguments = argparse.ArgumentParser(description="What users wait for, compared with its targets.")
    arguments.add_argument("names", nargs="*", metavar="ROW")
    arguments.add_argument("--before", metavar="REVISION", help="measure this revision, too")
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the values to this file")
    arguments.add_argument("--list", action="store_true", help="print the names of the rows")
    arguments.add_argument("--measure", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        measure_here(given.measure)
        return 0
    known = [reach.name for reach in REACHES]
    if given.list or not set(given.names) <= set(known):
        print("\n".join(known))
        return 0 if given.list else 2
    from common import Row, Table

    rows: list[Row] = []
    written: dict[str, object] = {}
    for reach, values in compared(given.names, given.before):
        now = values[-1]
        before = values[0] if len(values) > 1 else None
        bound = now and now.bound
        cells = (reach.what, *(reach.shown(one and one.value) for one in (before, now)))
        met = None if now is None else reach.met(now.value)
        impossible = bound is not None and not reach.met(bound)
        note = "bound above the target" if impossible and not met else ""
        rows.append(Row((*cells, reach.shown(bound) if bound is not None else "", note), reach.target, met))
        written[reach.name] = {
            "before": before and before.value,
            "now": now and now.value,
            "bound": bound,
            "target": reach.target,
            "met": met,
        }
    title = f"Python {platform.python_version()}" + (f", before: {given.before}" if given.before else "")
    missed = Table(title, ("", "before", "now", "bound", ""), rows).show()
    if given.json:
        text = json.dumps({"python": platform.python_version(), "before": given.before, "rows": written}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return missed


if __name__ == "__main__":
    sys.exit(main())
