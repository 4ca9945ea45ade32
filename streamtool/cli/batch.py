"""`streamtool parse --field NAME FILES…`: parse records, write a line for each, and print totals."""

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streamtool.batch.reading import ReadingOptions, Result
from streamtool.batch.run import BatchRun
from streamtool.batch.sources import STDIN, find_files
from streamtool.cli.common import print_error, read_formats, read_tools

if TYPE_CHECKING:
    from rich.progress import Progress

_NAMED = 20
"""Maximum number of invalid records to report individually."""
_GROUPS = (("calls", "calls by format"), ("repairs", "repairs"), ("discarded", "characters discarded"))


def run(
    names: list[str],
    field: str | None,
    *,
    tools: str | None,
    tools_field: str | None,
    formats: str | None,
    prefix: str,
    jobs: int | None,
    output: str | None,
    resume: bool,
) -> None:
    """Parse all records. Raises SettingsError."""
    options = ReadingOptions(
        field,
        tools_field,
        None if tools is None else read_tools(tools),
        None if formats is None else tuple(read_formats(formats)),
        prefix,
    )
    work = BatchRun(tuple(names), options, jobs or _cores(), output, resume)
    broken: list[str] = []
    with Bar(
        sum(Path(name).stat().st_size for name in find_files(names) if name != STDIN), quiet=output is None
    ) as bar:

        def told(result: Result) -> None:
            bar.advance(result.read)
            broken.extend(f"{result.file}, record {number}: {why}" for number, why in result.broken[:_NAMED])
            del broken[_NAMED:]

        counts = work.execute(told)
    for line in broken:
        print_error(line)
    if counts["broken"] > len(broken):
        print_error(f"and {counts['broken'] - len(broken)} more unreadable records")
    print_totals(counts)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def print_totals(counts: Counter[str]) -> None:
    """Print the totals to standard error, because standard output may carry the results."""

    def line(text: str) -> None:
        print(text, file=sys.stderr)

    line(
        f"{counts['records']:,} records, {counts['characters']:,} characters; {counts['with calls']:,} with calls, "
        f"{counts['broken']:,} broken"
    )
    for group, title in _GROUPS:
        found = {name.partition("/")[2]: count for name, count in counts.items() if name.startswith(f"{group}/")}
        if found:
            told = sorted(found.items(), key=lambda pair: -pair[1])
            line(f"{title}: " + ", ".join(f"{name} {count:,}" for name, count in told))
    if counts["incomplete"]:
        line(f"truncated calls: {counts['incomplete']:,}")
    if counts["looks like a call"]:
        line(f'replies with text that only looks like a call: {counts["looks like a call"]:,} ("looks_like_a_call")')


class Bar:
    """Progress bar that counts the bytes read. It is shown only on a terminal."""

    def __init__(self, size: int, *, quiet: bool) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty() and not (quiet and sys.stdout.isatty()):
            self._progress = _progress()
        if self._progress is not None:
            self._task: Any = self._progress.add_task("", total=size or None)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, read: int) -> None:
        if self._progress is not None:
            self._progress.advance(self._task, read)


def _progress() -> "Progress | None":
    try:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ModuleNotFoundError:  # the `serve` extra is not installed
        return None
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=sys.stderr))
