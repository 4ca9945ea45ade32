"""Guards the hot path: counts the instructions per delta with valgrind, and compares them with an earlier run.

    python benchmarks/instructions.py [--update]

The counts do not depend on the machine's load. They are compared as multiples of the smallest useful loop (a search
that finds nothing), so that another build of Python makes little difference. `instructions.json` contains the multiples
for each minor version of CPython. A count more than 5 % above the file's is a failure; for a count more than 5 % below
it, the output suggests `--update`, which writes the file. Nothing is compared for a version that the file does not
contain.

The rooms that a delta or a request passes through are also counted alone, so that each has a budget: `protocols` reads
and writes events and requests, `filters` decides what passes (the parser included), `prompting` turns tools into text.
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
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import SimpleNamespace
from typing import Any

from attrs import frozen
from common import CLIENTS, KINDS, Row, Table, deltas, opening, request
from exchange import settings
from request import asked

from streamtool.bench import Smallest, Workload, pieces, start_parser, workloads
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import RecordedExchange
from streamtool.observe.ring import Ring
from streamtool.prompting import project
from streamtool.protocols.registry import client_protocol
from streamtool.server.gate import ENTRY
from streamtool.server.served_exchange import ServedExchange

HERE = Path(__file__).parent
FIGURES = HERE / "instructions.json"
MORE = 1.05
"""Maximum ratio to the earlier count."""
SHORT, LONG = 500, 2_000
"""Deltas in two runs. Only the difference between the runs is used, so that fixed costs cancel out."""
ONE, MORE_REQUESTS = 2, 8
"""Requests in two runs."""
LOOP = "the smallest loop"
RINGS: list[Ring] = []
"""The rings of the inspected exchanges, which grow with them."""
PARSED = ("prose", "markdown", "code", "tool_call", "invoke", "qwen3_coder", "openai_fragment", "pythonic")
PASSED = (("chat", "text"), ("chat", "arguments"), ("messages", "text"), ("messages", "arguments"))
"""Clients and kinds of deltas that are fed to an exchange with a Chat Completions upstream."""


@frozen
class Measured:
    """A measured operation: `prepared(n)` returns a function that handles n deltas."""

    name: str
    prepared: Callable[[int], Callable[[], None]]
    counts: tuple[int, int] = (SHORT, LONG)


def loop(count: int) -> Callable[[], None]:
    feed, given = Smallest().feed, ["abcd"] * count
    return lambda: each(feed, given)


def each(feed: Callable[..., object], given: list[str] | list[bytes]) -> None:
    for one in given:
        feed(one)


def parsed(work: Workload) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        given = pieces(work.text)[:count]
        parser = start_parser(work)
        assert len(given) == count
        return lambda: each(parser.feed, given)

    return prepared


def begun(client: str, kind: str, *, inspected: bool = False) -> Exchange:
    """Return an exchange in the middle of its reply."""
    wire = client_protocol(client, CLIENTS[client])
    new = partial(RecordedExchange, time=monotonic) if inspected else Exchange
    exchange = new(settings("chat"), wire, request(client, 20), (), new_id=lambda prefix: prefix, now=1)
    if isinstance(exchange, RecordedExchange):
        RINGS.append(Ring(2**30, contents=True))
        RINGS[-1].begin(exchange, "")
    exchange.request()
    exchange.respond(200, ())
    for data in opening("chat", kind):
        exchange.feed(data)
    return exchange


def passed(client: str, kind: str) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        exchange = begun(client, kind)
        given = deltas("chat", kind, count)
        return lambda: each(exchange.feed, given)

    return prepared


def served(client: str, kind: str, *, inspected: bool = False) -> Callable[[int], Callable[[], None]]:
    """Pass deltas through an exchange as a server does, without the server."""

    def prepared(count: int) -> Callable[[], None]:
        exchange = begun(client, kind, inspected=inspected)
        driver: Any = SimpleNamespace(settings=settings("chat"))
        running = ServedExchange(driver, exchange, {ENTRY: None}, unused, unused, large=False)
        running._client.write_now = len
        given = deltas("chat", kind, count)
        return lambda: each(running.take_piece, given)

    return prepared


async def unused(*_: object) -> Any:
    """Receive or send nothing: a reply in its middle needs neither."""


# --- rooms


def read(kind: str) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        exchange = begun("chat", kind)
        given = deltas("chat", kind, count)
        return lambda: each(exchange._upstream.reader.feed, given)

    return prepared


def filtered(kind: str) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        exchange = begun("chat", kind)
        events = [event for data in deltas("chat", kind, count) for event in exchange._upstream.reader.feed(data)]
        feed = exchange._choices[0].feed_text

        def run() -> None:
            for event in events:
                feed(event, [])

        return run

    return prepared


def sent(client: str, kind: str) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        exchange = begun(client, kind)
        feed, given = exchange._choices[0].feed, []
        for data in deltas("chat", kind, count):
            given.append([])
            for event in exchange._upstream.reader.feed(data):
                feed(event, given[-1])
        writer = exchange._response.middle_writer
        assert writer is not None
        write = writer.text if kind == "text" else writer.arguments
        return lambda: each(write, [event for [event] in given])

    return prepared


def requested(count: int) -> Callable[[], None]:
    wire, body, given = client_protocol("chat", CLIENTS["chat"]), asked(), settings("chat")

    def run() -> None:
        for _ in range(count):
            Exchange(given, wire, body, (), new_id=lambda prefix: prefix, now=1).request()

    return run


def request_room(room: str) -> Callable[[int], Callable[[], None]]:
    def prepared(count: int) -> Callable[[], None]:
        wire, body, given = client_protocol("chat", CLIENTS["chat"]), asked(), settings("chat")
        exchange = Exchange(given, wire, body, (), new_id=lambda prefix: prefix, now=1)
        plan, conversation = exchange.plan, exchange.conversation
        projected = project(conversation, plan.model, plan.model.format)
        steps: Mapping[str, Callable[[], object]] = {
            "protocols, reading": lambda: wire.read_request(body, given.limits),
            "prompting": lambda: project(conversation, plan.model, plan.model.format),
            "protocols, writing": lambda: plan.upstream.write_request(projected, plan.model, stream=True),
        }
        step = steps[room]

        def run() -> None:
            for _ in range(count):
                step()

        return run

    return prepared


def all_of_it() -> Iterator[Measured]:
    yield Measured(LOOP, loop)
    for work in workloads(LONG * 5):
        if work.name in PARSED:
            yield Measured(f"parser: {work.name}", parsed(work))
    for client, kind in PASSED:
        yield Measured(f"exchange: {kind} for {client}", passed(client, kind))
    for client, kind in PASSED[:2]:
        yield Measured(f"served: {kind} for {client}", served(client, kind))
        yield Measured(f"served, inspected: {kind} for {client}", served(client, kind, inspected=True))
    for kind in KINDS:
        yield Measured(f"room protocols, reading: {kind}", read(kind))
        yield Measured(f"room filters, with the parser: {kind}", filtered(kind))
        for client in ("chat", "messages"):
            yield Measured(f"room protocols, writing: {kind} for {client}", sent(client, kind))
    yield Measured("request: 20 tools, 13 messages", requested, (ONE, MORE_REQUESTS))
    for room in ("protocols, reading", "prompting", "protocols, writing"):
        yield Measured(f"room {room}: request", request_room(room), (ONE, MORE_REQUESTS))


# --- inside valgrind


def handle() -> None:
    """Run everything; valgrind writes its counts before and after each run."""
    gc.disable()
    for one in all_of_it():
        one.prepared(one.counts[0])()  # compile everything that is compiled on first use
        for count in one.counts:
            run = one.prepared(count)
            _dump("before")
            run()
            _dump(f"{one.name}/{count}")


def _dump(name: str) -> None:
    command = ["callgrind_control", f"--dump={name}", str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# --- outside


def counted() -> dict[str, float]:
    """Return the number of instructions per delta for each operation."""
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
    result = {}
    for one in all_of_it():
        short, long = one.counts
        result[one.name] = (found[f"{one.name}/{long}"] - found[f"{one.name}/{short}"]) / (long - short)
    return result


def table(counts: Mapping[str, float], known: Mapping[str, float]) -> Table:
    rows: list[Row] = []
    for name, count in counts.items():
        share = count / counts[LOOP]
        before = known.get(name)
        target = "" if before is None else f"≤ {MORE * before:.2f}"
        if before is not None and share < before / MORE:
            target += ", much less: --update"
        rows.append(Row((name, f"{count:.0f}", f"{share:.2f}"), target, before and share <= MORE * before))
    return Table(
        "Instructions per delta of four characters, or per request", ("", "instructions", "× the smallest loop"), rows
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description="Instructions per delta.")
    arguments.add_argument("--update", action="store_true")
    arguments.add_argument("--handle", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.handle:
        handle()
        return 0
    if shutil.which("valgrind") is None or platform.python_implementation() != "CPython":
        print("counting instructions needs valgrind and CPython")
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
