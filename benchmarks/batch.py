"""Benchmark for files of records: `python benchmarks/batch.py [MB]` creates a file (1,000 MB by default) and parses it
with one process and with two.

It prints the rate and the maximum memory of any process, kills a run in the middle and resumes it, and reports whether
all runs produced equal results. The replies are prose, Markdown and code; every other reply contains a call, and all
formats occur.
"""

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen
from common import Row, Table

from statemachine import FORMATS, Call, write
from streamtool.bench import CODE, MARKDOWN, PROSE, repeat

RATE = 10.0
"""Minimum MB per second per core."""
MEMORY = 300
"""Maximum memory of a process, in MB."""
VARIANTS = 500
"""Number of distinct replies."""


def replies() -> Iterator[str]:
    """Yield replies, half of them with a call, from 100 bytes to a few KB long."""
    names = list(FORMATS)
    for number in range(VARIANTS):
        text = repeat((PROSE, MARKDOWN, CODE)[number % 3], 100 + number * 7)
        if number % 2:
            call = Call("write_file", json.dumps({"path": "a.txt", "content": text[: number * 3]}))
            text += "\n" + write([call], names[number % len(names)])
        yield text


def made(file: Path, size: int) -> None:
    """Create a file of `size` MB."""
    lines = [
        json.dumps({"id": number, "out": {"text": text}}).encode() + b"\n" for number, text in enumerate(replies())
    ]
    block = b"".join(lines)
    with file.open("wb") as out:
        for _ in range(size * 1_000_000 // len(block) + 1):
            out.write(block)


@frozen
class Done:
    """Result of one run."""

    seconds: float
    memory: float
    """Maximum memory of any process, in MB."""
    result: str


def parsed(file: Path, output: Path, jobs: int, *more: str) -> Done:
    command = [sys.executable, "-m", "streamtool", "parse", str(file), "--field", "out.text", "--output", str(output)]
    began = time.perf_counter()
    subprocess.run([*command, "--jobs", str(jobs), *more], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    with output.open("rb") as result:
        return Done(seconds, memory, hashlib.file_digest(result, "sha256").hexdigest())


def killed(file: Path, output: Path, after: float) -> None:
    """Start a run and kill it after `after` seconds."""
    command = [sys.executable, "-m", "streamtool", "parse", str(file), "--field", "out.text", "--output", str(output)]
    with subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.DEVNULL) as process:
        time.sleep(after)
        os.kill(process.pid, signal.SIGKILL)


def main() -> int:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with TemporaryDirectory() as folder:
        file, output = Path(folder, "records.jsonl"), Path(folder, "out.jsonl")
        made(file, size)
        megabytes = file.stat().st_size / 1e6
        one = parsed(file, output, 1)
        output.unlink()
        two = parsed(file, output, 2)
        output.unlink()
        killed(file, output, two.seconds / 2)
        resumed = parsed(file, output, 2, "--resume")
    rows = []
    for name, done, cores in (("1 process", one, 1), ("2 processes", two, 2), ("2, resumed after kill", resumed, 0)):
        rate = megabytes / done.seconds / (cores or 1)
        same = done.result == one.result
        cells = (
            name,
            f"{done.seconds:.0f}",
            f"{rate:.0f}" if cores else "",
            f"{done.memory:.0f}",
            "yes" if same else "NO",
        )
        ok = same and done.memory <= MEMORY and (rate >= RATE or not cores)
        rows.append(Row(cells, f"≥ {RATE:.0f} MB/s, ≤ {MEMORY} MB, same", ok))
    columns = ("", "seconds", "MB/s for each core", "most memory, MB", "same result")
    return Table(f"{megabytes:,.0f} MB of records", columns, rows).show()


if __name__ == "__main__":
    sys.exit(main())
