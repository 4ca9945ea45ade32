"""Generate `docs/reference/reports.md`: publicly reported model behavior, from the cases that show it.

The cases are in `tests/formats/reports_*.md`, one file per theme. Two paragraphs below a heading appear on the page:
`Seen:` (threads as `owner/project#number`) and `Not done:` (what the outcome lacks, and why).

The last table of the page is made from `tools/server_habits.toml`: habits that the parser never sees, and their tests.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from conformance.cases import FOLDER, Case, read_cases

HABITS = Path(__file__).resolve().parent / "server_habits.toml"
THREAD = re.compile(r"([\w.-]+/([\w.-]+))#(\d+)")
BEFORE = """\
<!-- made from `tests/formats/reports_*.md` and `tools/server_habits.toml` by `tools/reports_page.py`; a test keeps it
current -->

# Habits of real models

These $COUNT$ habits of models and servers were reported in public. Each row is a conformance case: the test suite
parses its text whole and in pieces, and requires the result shown here each time.
$UNDONE$ rows explain what the parser does not do, and why. The [last table](#servers-and-clients) has no cases.

- *seen* links to public threads, where there are any. The texts of the cases are our own, with other names and values.
- *result* lists, in order, what the parser makes of the text. A name stands for a call; an incomplete call is never
  reported as complete. *unchanged*: everything remains text. The parser options that a row needs are in parentheses;
  the other rows use the default options, with all formats that are not opt-in.

To report a habit, record exactly what the model wrote, and the expected result, in the form of the
[conformance cases](../../conformance/README.md). [formats.md](formats.md) explains the decisions.
"""
AFTER = """\
## Servers and clients

The parser never sees these habits. Rows: [`server_habits.toml`](../../tools/server_habits.toml).

| habit | seen | result | tests |
|---|---|---|---|
"""


@frozen
class Report:
    """A row of the page: a case, the threads that report it, and the limits of the result."""

    case: Case
    seen: str
    undone: str


@frozen
class Theme:
    """A section of the page: the head of a file, and its rows."""

    file: Path
    title: str
    about: str
    reports: list[Report]


@frozen
class Habit:
    """A row of the last table: a habit of servers or clients, the threads that report it, the result and its tests."""

    habit: str
    seen: str
    result: str
    tests: tuple[str, ...]
    """As `file::name` or `file::class::name`."""


def page() -> str:
    """Return the content of `docs/reference/reports.md`."""
    found = list(themes())
    reports = [report for theme in found for report in theme.reports]
    undone = sum(1 for report in reports if report.undone)
    before = BEFORE.replace("$COUNT$", str(len(reports))).replace("$UNDONE$", str(undone))
    return "\n".join([before, *map(section, found), AFTER + "".join(map(habit_row, habits()))])


def habits() -> list[Habit]:
    """Return the rows of the last table."""
    found = tomllib.loads(HABITS.read_text("utf-8"))["habits"]
    return [Habit(**row | {"tests": tuple(row["tests"])}) for row in found]


def themes() -> Iterator[Theme]:
    """Yield the theme of each file. Raises ValueError if a case does not state where it was seen."""
    for path in sorted(FOLDER.glob("reports_*.md")):
        written = path.read_text("utf-8")
        title, _, about = written.partition("\n## ")[0].removeprefix("# ").partition("\n")
        yield Theme(path, title, about.strip(), [report(case) for case in read_cases(path.stem, written)])


def report(case: Case) -> Report:
    """Return the report of a case. Raises ValueError if the case does not state where it was seen."""
    paragraphs = (paragraph.partition(":") for paragraph in re.split(r"\n{2,}", case.note))
    said = {label: one_line(text) for label, _, text in paragraphs}
    if not said.get("Seen"):
        raise ValueError(f'{case.id}: the paragraph "Seen:" is missing')
    return Report(case, said["Seen"].removesuffix("."), said.get("Not done", ""))


def section(theme: Theme) -> str:
    """Return the section for a theme."""
    header = "| habit | seen | result |\n|---|---|---|\n"
    where = f"[`{theme.file.name}`](../../tests/formats/{theme.file.name})"
    return f"## {theme.title}\n\n{theme.about}\nCases: {where}.\n\n{header}{''.join(map(row, theme.reports))}"


def row(found: Report) -> str:
    """Return the row for a report."""
    undone = f"<br>{found.undone[:1].upper()}{found.undone[1:]}" if found.undone else ""
    return table_row(found.case.title, linked(found.seen), outcome(found.case) + undone)


def habit_row(found: Habit) -> str:
    """Return the row for a habit of servers or clients."""
    return table_row(found.habit, linked(found.seen), found.result, "<br>".join(map(code, found.tests)))


def table_row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def linked(seen: str) -> str:
    """Return a list of threads as links."""
    return THREAD.sub(r"[\2#\3](https://github.com/\1/issues/\3)", seen)


def outcome(case: Case) -> str:
    """Describe what the text of a case becomes."""
    listed = "; ".join(described(event, case.text) for event in case.events)
    options = [*case.options, *(["reason"] if case.reason else [])]
    return listed + (f" ({', '.join(map(code, options))})" if options else "")


def described(event: dict[str, Any], written: str) -> str:
    """Describe an event in a case; `written` is the model's complete text."""
    match event:
        case {"type": "text", "text": text}:
            return "unchanged" if text == written else "text"
        case {"type": "discard", "reason": reason}:
            return f"rest discarded: {reason}"
        case {"type": "call", "name": name, "complete": complete, "repairs": repairs}:
            repaired = f", repaired: {', '.join(map(code, repairs))}" if repairs else ""
            return f"{'' if complete else 'incomplete '}{code(name)}{repaired}"
        case _:
            return str(event["type"])


def code(word: str) -> str:
    """Return a word as code."""
    return f"`{word}`"


def one_line(paragraph: str) -> str:
    """Return a paragraph without its newlines."""
    return " ".join(paragraph.split())
