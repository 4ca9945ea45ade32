"""`streamtool parse --negatives`: find text in ordinary files that the parser mistakes for calls.

Each file is parsed as one reply. The parser should emit the entire file as text or reasoning; calls, discards and
losses are findings. The parser's ledger accounts for every character, and markup that belongs to no call is a loss.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from statemachine import CallStart, Discarded, Event, Parser, ReasoningDelta, TextDelta
from streamtool.cli.common import Screen, quoted, read_formats, read_tools
from streamtool.cli.plausible_tools import plausible_tools
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import json_line

LARGE = 4 * 1024 * 1024
"""Maximum size of a file in bytes."""
MANY = 200_000
"""Maximum number of files to read."""
BEGINNING = 8192
"""Number of bytes at the beginning of a file that are searched for NUL, which marks the file as binary."""
EXCERPT = 80
"""Maximum number of characters to show of a finding."""
SHOWN = frozenset({"text", "reasoning", "discard"})
"""Kinds of ledger spans that are emitted as events."""


@frozen
class Negative:
    """A part of a file that the parser took for something other than text."""

    kind: str
    """`call`, `discard` or `loss`."""
    name: str = ""
    """Tool name, if the finding is a call."""
    format: str = ""
    file: str = field(kw_only=True)
    line: int = field(kw_only=True)
    excerpt: str = field(kw_only=True)


@frozen
class CheckTotals:
    """Numbers of files and bytes read, of files skipped, and of findings."""

    counts: Counter[str] = field(factory=Counter)
    """Counts by kind: files, bytes, skipped files, findings."""

    def rate(self) -> float:
        """Return the number of calls and losses per MB of text."""
        read = self.counts["bytes"] / 1e6
        return (self.counts["call"] + self.counts["loss"]) / read if read else 0.0


def run(folder: str, tools: str | None, formats: str | None, *, as_json: bool) -> None:
    """Print the findings in all files in a folder and its subfolders, then the totals. Raises SettingsError for invalid
    input.
    """
    offered = plausible_tools() if tools is None else read_tools(tools)
    names = None if formats is None else read_formats(formats)
    if not Path(folder).is_dir():
        raise SettingsError(f"{folder} is not a readable folder", param=folder)
    screen, passed = Screen(), CheckTotals()
    for path in files(folder, passed.counts):
        text = text_of(path, passed.counts)
        if text is None:
            continue
        for finding in findings(path, text, Parser(offered, formats=names, ledger=True)):
            passed.counts[finding.kind] += 1
            show(finding, screen, as_json=as_json)
    print_totals(passed, screen, as_json=as_json)


# ---- reading


def files(folder: str, counts: Counter[str]) -> Iterator[str]:
    """Yield the regular files in a folder and its subfolders, sorted by name. Do not follow links."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118  creating a Path per file takes longer than the walk
            if counts["seen"] >= MANY:
                counts["passed over"] += 1
            elif os.path.islink(path) or not os.path.isfile(path):  # noqa: PTH113, PTH114
                counts["links and devices"] += 1
            else:
                counts["seen"] += 1
                yield path


def text_of(path: str, counts: Counter[str]) -> str | None:
    """Return the text of a file, with invalid UTF-8 replaced, or None if it is binary, too large or unreadable."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(LARGE + 1)
    except OSError:
        counts["unreadable"] += 1
        return None
    if b"\0" in data[:BEGINNING]:
        counts["binary"] += 1
        return None
    if len(data) > LARGE:
        counts["large"] += 1
        return None
    counts["files"] += 1
    counts["bytes"] += len(data)
    return data.decode("utf-8", "replace")


# ---- findings


def findings(path: str, text: str, parser: Parser) -> Iterator[Negative]:
    """Yield the calls, discards and losses in one file's text, in order."""
    events = [*parser.feed(text), *parser.close()]
    calls = calls_of(events)
    shown, before = 0, ""
    for begin, end, kind in stretches((span.kind, span.start, span.end) for span in parser.ledger):
        if kind == "discard":
            yield Negative(kind, **locate(path, text, begin, end))
        elif kind == "markup" and shown in calls:
            for call in calls[shown]:
                yield Negative("call", call.name, call.format, **locate(path, text, begin, end))
        elif kind == "markup" and before != "discard" and text[begin:end].strip():  # after a discard it closes the call
            yield Negative("loss", **locate(path, text, begin, end))
        shown, before = shown + (end - begin if kind in SHOWN else 0), kind


def calls_of(events: Iterable[Event]) -> Mapping[int, list[CallStart]]:
    """Group the calls by the number of characters emitted or discarded before each of them."""
    shown = 0
    found: dict[int, list[CallStart]] = {}
    for event in events:
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text) | Discarded(text=text):
                shown += len(text)
            case CallStart():
                found.setdefault(shown, []).append(event)
            case _:
                pass
    return found


def stretches(spans: Iterable[tuple[str, int, int]]) -> Iterator[tuple[int, int, str]]:
    """Partition the text into stretches and yield the start, end and kind of each.

    A span that was emitted is a stretch of the span's kind. A run of other spans is one stretch of the kind "markup".
    """
    begin = end = 0
    for kind, start, stop in spans:
        if kind in SHOWN:
            if end > begin:
                yield begin, end, "markup"
            yield start, stop, kind
            begin = stop
        end = stop
    if end > begin:
        yield begin, end, "markup"


def locate(path: str, text: str, begin: int, end: int) -> dict[str, Any]:
    """Return the location and the beginning of a stretch. The line is the stretch's first non-blank line."""
    part = text[begin:end]
    begin += len(part) - len(part.lstrip())
    excerpt = text[begin : min(end, begin + EXCERPT)]
    return {"file": path, "line": text.count("\n", 0, begin) + 1, "excerpt": excerpt}


# ---- output


def show(found: Negative, screen: Screen, *, as_json: bool) -> None:
    """Print a finding on one line."""
    if as_json:
        emit({"type": "finding", **asdict(found)})
        return
    told = ", ".join(part for part in (found.name, found.format) if part)
    style = "bold green" if found.kind == "call" else "red"
    screen.line(
        f"{found.file}:{found.line}: ", (found.kind, style), f": {told}{', ' if told else ''}", quoted(found.excerpt)
    )


def print_totals(passed: CheckTotals, screen: Screen, *, as_json: bool) -> None:
    """Print the amount read and the number of findings of each kind."""
    counts = passed.counts
    over = {word: counts[word] for word in ("binary", "large", "unreadable", "links and devices", "passed over")}
    found = {f"{word}s": counts[word] for word in ("call", "discard")} | {"losses": counts["loss"]}
    size, rate = counts["bytes"] / 1e6, round(passed.rate(), 4)
    if as_json:
        skipped = {word.replace(" ", "_"): count for word, count in over.items()}
        emit(
            {
                "type": "sums",
                "files": counts["files"],
                "mb": round(size, 3),
                "skipped": skipped,
                **found,
                "per_mb": rate,
            }
        )
        return
    screen.line(
        f"files {counts['files']}, {size:.1f} MB; not read: ", ", ".join(f"{word} {n}" for word, n in over.items())
    )
    screen.line(", ".join(f"{word} {count}" for word, count in found.items()), f"; {rate} calls and losses per MB")


def emit(record: Mapping[str, Any]) -> None:
    """Print a record as a line of JSON."""
    sys.stdout.write(json_line(record) + "\n")
    sys.stdout.flush()
