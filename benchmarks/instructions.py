"""Guards the hot path: the instructions that a delta takes, counted by valgrind, beside those of a run before.

    python benchmarks/instructions.py [--update]

A count does not depend on how busy the machine is. It is compared as a multiple of the smallest useful loop (a search
that finds nothing), so that another build of Python changes little. `instructions.json` has the multiples by the minor
version of CPython; more than 5 % above is a failure, more than 5 % below asks for `--update`, which writes the file. A
version that the file does not have is counted, and compared with nothing.
"""

import argparse
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen
from common import CLIENTS, Row, Table, deltas, opening, request
from exchange import settings

from streamtool.bench import Smallest, Workload, pieces, started, workloads
from streamtool.exchange import Exchange
from streamtool.inspector.ring import Ring
from streamtool.protocols.registry import client_protocol

HERE = Path(__file__).parent
FIGURES = HERE / "instructions.json"
MORE = 1.05
"""How much more is too much."""
SHORT, LONG = 500, 2_000
"""Deltas of the two runs, whose difference counts: what else happens in both is not counted."""
LOOP = "the smallest loop"
PARSED = ("prose", "markdown", "code", "tool_call", "invoke", "qwen3_coder", "openai_fragment", "pythonic")
PASSED = (("chat", "text"), ("chat", "arguments"), ("messages", "text"), ("messages", "arguments"))
"""What an exchange for this client, with an upstream of Chat Completions, is fed with."""


@frozen
class Measured:
    """One thing that is counted: `prepared(n)` makes ready, and returns what handles n deltas."""

    name: str
    prepared: Callable[[int], Callable[[], None]]


def loop(count: int) -> Callable[[], None]:
    feed, given = Smallest().feed, ["abcd"] * count
    return lambda: each(feed, given)


def each(feed: Callable[..., object], given: list[str] | list[bytes]) -> None:
    for one in given:
        feed(one)


def parsed(work: Workload) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        given = pieces(work.text)[:count]
        parser = started(work)
        assert len(given) == count
        return lambda: each(parser.feed, given)

    return prepared


def passed(client: str, kind: str, *, inspected: bool = False) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        wire = client_protocol(client, CLIENTS[client])
        exchange = Exchange(settings("chat"), wire, request(client, 20), (), new_id=lambda prefix: prefix, now=1)
        if inspected:
            exchange.listener = Ring(2**30, contents=True).begin(exchange, "")
        exchange.request()
        exchange.respond(200, ())
        for data in opening("chat", kind):
            exchange.feed(data)
        given = deltas("chat", kind, count)
        return lambda: each(exchange.feed, given)

    return prepared


def all_of_it() -> Iterator[Measured]:
    yield Measured(LOOP, loop)
    for work in workloads(LONG * 5):
        if work.name in PARSED:
            yield Measured(f"parser: {work.name}", parsed(work))
    for client, kind in PASSED:
        yield Measured(f"exchange: {kind} for {client}", passed(client, kind))
    for client, kind in PASSED[:2]:
        yield Measured(f"the same, inspected: {kind} for {client}", passed(client, kind, inspected=True))


# --- inside of valgrind


def handle() -> None:
    """Run everything; valgrind writes what it has counted before and behind each run."""
    gc.disable()
    for one in all_of_it():
        one.prepared(SHORT)()  # what is compiled at the first use
        for count in (SHORT, LONG):
            run = one.prepared(count)
            _dump("before")
            run()
            _dump(f"{one.name}/{count}")


def _dump(name: str) -> None:
    command = ["callgrind_control", f"--dump={name}", str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# --- outside


def counted() -> dict[str, float]:
    """Instructions per delta of everything."""
    with TemporaryDirectory() as folder:
        out = f"--callgrind-out-file={folder}/out"
        command = ["valgrind", "--quiet", "--tool=callgrind", out, sys.executable, __file__, "--handle"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        found: dict[str, int] = {}
        for file in Path(folder).iterdir():
            text = file.read_text(encoding="utf-8", errors="replace")
            told = re.search(r"^desc: Trigger: dump (.*)$", text, re.MULTILINE)
            total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
            if told and total:
                found[told[1]] = int(total[1])
    names = [one.name for one in all_of_it()]
    return {name: (found[f"{name}/{LONG}"] - found[f"{name}/{SHORT}"]) / (LONG - SHORT) for name in names}


def table(counts: Mapping[str, float], known: Mapping[str, float]) -> Table:
    rows: list[Row] = []
    for name, count in counts.items():
        share = count / counts[LOOP]
        before = known.get(name)
        target = "" if before is None else f"≤ {MORE * before:.2f}"
        if before is not None and share < before / MORE:
            target += ", much less: --update"
        rows.append(Row((name, f"{count:.0f}", f"{share:.2f}"), target, before and share <= MORE * before))
    return Table("Instructions per delta of four characters", ("", "instructions", "× the smallest loop"), rows)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Instructions that a delta takes.")
    arguments.add_argument("--update", action="store_true")
    arguments.add_argument("--handle", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.handle:
        handle()
        return 0
    if shutil.which("valgrind") is None or platform.python_implementation() != "CPython":
        print("instructions are counted where there are valgrind and CPython")
        return 0
    counts = counted()
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    version = "{}.{}".format(*sys.version_info)
    missed = table(counts, {} if given.update else figures.get(version, {})).show()
    if given.update:
        loop = counts.pop(LOOP)
        figures[version] = {name: round(count / loop, 2) for name, count in sorted(counts.items())}
        FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return missed


if __name__ == "__main__":
    sys.exit(main())
