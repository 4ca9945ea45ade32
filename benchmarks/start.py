"""Measures startup: `python benchmarks/start.py [--requests]`. Reports the CPU seconds of a new process, including its
children.

Each row is the minimum of several runs with compiled modules on disk. For the server, the time until the first request
is answered is measured; compilation after that is shown separately. The last table, which is the only one with
`--requests`, contains the first requests of new processes: medians over the processes, for a request of Claude Code
with 12 tools and 54 KB.
"""

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import CLIENTS, Row, Table, median
from proxy import ProbeResult, started

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.agent_requests import claude_code

RUNS = 5
COLD = "import statemachine; statemachine.Parser({'f': {}}).feed('<tool_call>{')"
"""A program that makes a parser and reads an opener."""
LATER = 2.0
"""Seconds between the first response and the last measurement; by then, a server has compiled everything."""
READY = 1.4
"""Maximum seconds until a proxy answers its first request. Before that, it compiles everything that replies need."""
TIMEOUT = 30.0
ENDED = {
    "import and Parser(tools)": ([sys.executable, "-c", "import streamtool; streamtool.Parser({'f': {}})"], 0.15),
    "import, Parser(tools), an opener": ([sys.executable, "-c", COLD], None),
    "streamtool --help": ([sys.executable, "-m", "streamtool", "--help"], 0.15),
    "streamtool parse, one line": ([sys.executable, "-m", "streamtool", "parse", "-"], 0.35),
    "streamtool demo, to its end": ([sys.executable, "-m", "streamtool", "demo", "--delay", "0"], None),
}
"""Commands that run to completion, and their targets in CPU seconds."""
TYPER = """
import gc
gc.disable()
import typer
app = typer.Typer(rich_markup_mode=None)
@app.command()
def parse(file: str) -> None:
    exec({0!r})
app()
"""
"""The smallest program with a command line of the same library, without garbage collection; its command runs the
inserted code.
"""
_COMPILED = f"""
import json, re._compiler as compiler
found, original = [], compiler.compile
def compile(pattern, flags=0):
    found.append((pattern, int(flags)))
    return original(pattern, flags)
import statemachine, statemachine.parser
compiler.compile = compile
{COLD}
print(json.dumps(found))
"""
"""Prints the regular expressions that are compiled after the import."""
BOUNDS = {
    "python, nothing": "",
    "import httpx": "import httpx",
    "import typer, rich and click": "import typer, rich.console, click",
    "import openai (demo --client openai)": "import openai",
    "import prompt_toolkit (run)": "import prompt_toolkit",
}
"""Costs that are not streamtool's: Python itself, the libraries for the command line, the demo's official client."""
PLACES = {"first": 0, "second": 1, "third": 2, "tenth": 9}
REQUESTS = 100
LAST = 11
"""Number of requests at the end whose median counts as the hundredth, since single requests differ by much."""
TIMES = 2.0
"""Maximum ratio of the first request to the hundredth."""
FIRST = 1.1
"""Maximum seconds until a new user sees something."""


def cold_bound() -> str:
    """Return the code that only imports the parser's modules and compiles the regular expressions that the first opener
    needs.
    """
    done = subprocess.run([sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=True)
    found = [tuple(one) for one in json.loads(done.stdout)]
    return f"import re, statemachine.parser\nfor one in {found!r}:\n    re.compile(*one)"


def spent(command: list[str]) -> float:
    """Return the CPU seconds of a command that exits on its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = b'@ping {"n": 1}\n'
    subprocess.run(command, input=line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_delta() -> float:
    """Return the seconds until the demo shows its model's first delta; the model writes a delta every 0.06 s."""
    command = [sys.executable, "-m", "streamtool", "demo"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.lstrip()[:1].isdigit():
                break
        seconds = time.perf_counter() - began
        process.terminate()
    return seconds


@contextmanager
def running(*options: str) -> Iterator[tuple[int, int, float]]:
    """Run a proxy with these options. Yield its process, its port, and the seconds until it was ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamtool", "serve", "--port", str(port), *options]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not is_ready(port):
                if time.perf_counter() - began > TIMEOUT:
                    raise TimeoutError("the proxy is not ready")
                time.sleep(0.002)
            yield process.pid, port, time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGINT)


def served(server: str) -> tuple[float, float, float]:
    """Return the seconds until a proxy answers its first request, its CPU seconds at that time, and its CPU seconds
    when everything has been compiled.
    """
    with running("--server", server) as (process, _, answered):
        at_answer = cpu(process)
        time.sleep(LATER)
        return answered, at_answer, cpu(process)


def first_bytes(upstream: str) -> list[float]:
    """Return the milliseconds to the first byte of each of the first requests to a new proxy."""
    body = claude_code(2, model="text-2-2").data
    with running("--upstream", upstream) as (_, port, _):
        return [1e3 * ProbeResult.of(port, CLIENTS["messages"], body).first for _ in range(REQUESTS)]


def first_requests() -> Table:
    """Return the table of the first requests."""
    with started("upstream") as source:
        found = [first_bytes(source.url) for _ in range(RUNS)]
    last = median(median(one[-LAST:]) for one in found)
    rows = []
    for name, place in PLACES.items():
        milliseconds = median(one[place] for one in found)
        times = milliseconds / last
        target = f"≤ {TIMES:g} ×" if place == 0 else ""
        rows.append(Row((name, f"{milliseconds:.1f}", f"{times:.1f}"), target, times <= TIMES if target else None))
    rows.append(Row(("hundredth", f"{last:.1f}", "1.0")))
    return Table("First requests of a process", ("", "first byte, ms", "× hundredth"), rows)


def is_ready(port: int) -> bool:
    """Return whether the proxy is ready."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
            sock.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            return sock.recv(100).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description="Cost of a start.")
    arguments.add_argument("--requests", action="store_true", help="measure the first requests only")
    if arguments.parse_args().requests:
        first_requests().show()
        return
    rows = []
    for name, (command, reach) in ENDED.items():
        seconds = min(spent(command) for _ in range(RUNS))
        target = "" if reach is None else f"<= {reach:.2f}"
        rows.append(Row((name, f"{seconds:.2f}"), target, None if reach is None else seconds <= reach))
    Table("Start-up", ("command", "CPU, s"), rows).show()
    rows = []
    for name, code in BOUNDS.items():
        runs = [spent([sys.executable, "-c", code]) for _ in range(RUNS)]
        rows.append(Row((name, f"{min(runs):.2f}")))
    Table("Parts that are not streamtool's", ("", "CPU, s"), rows).show()
    first = min(first_delta() for _ in range(RUNS))
    row = Row(("first delta of its model", f"{first:.2f}"), f"<= {FIRST:.2f}", first <= FIRST)
    Table("streamtool demo", ("", "seconds"), [row]).show()
    rows = []
    for server in ("uvicorn", "hypercorn"):
        answers_after, at_answer, later = min(served(server) for _ in range(RUNS))
        cells = (server, f"{answers_after:.2f}", f"{at_answer:.2f}", f"{later:.2f}")
        rows.append(Row(cells, f"<= {READY:.2f}", answers_after <= READY))
    columns = ("server", "answers after, s", "CPU until then, s", "CPU when everything is compiled, s")
    Table("streamtool serve", columns, rows).show()
    first_requests().show()


if __name__ == "__main__":
    main()
