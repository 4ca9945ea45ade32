"""Draws the results from `compare.py`: `plots.py DIR` reads `DIR/figures.json` and writes SVG and PNG files next to
it.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

OURS = "#0b6e4f"
OTHERS = ("#c8553d", "#588b8b", "#8d6a9f", "#c9a227", "#5b6c8f", "#9c6644")
QUIET = "#9aa5b1"
PACE = 25
"""Deltas per second written by a model."""
DELTA = 4
"""Characters per delta."""
LENGTHS = (1, 4, 16, 64, 256)
"""Lengths of the arguments, in KB."""
SIZE = (7.2, 4.2)

mpl.use("svg")
mpl.rcParams.update(
    {
        "font.size": 10,
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.titlesize": 11,
        "svg.hashsalt": "streamtool",
        "figure.constrained_layout.use": True,
    }
)


def chart(title: str) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=SIZE)
    axes.set_title(title)
    return figure, axes


def growth(found: Mapping[str, Any]) -> Figure:
    """Plot the cost of a delta against the length of the call."""
    figure, axes = chart("Reading a call in deltas of four characters")
    colours = iter(OTHERS)
    for name, one in found["readers"].items():
        if "," in name or not one.get("lengths"):
            continue
        sizes = [int(size) for size in one["lengths"]]
        costs = [run["seconds"] / run["deltas"] * 1e6 for run in one["lengths"].values()]
        ours = name == "streamtool"
        axes.plot(sizes, costs, marker="o", color=OURS if ours else next(colours), linewidth=3 if ours else 1.6)
        cut = (
            "  (its own format)"
            if "harmony" in name
            else ""
            if len(sizes) == len(LENGTHS)
            else "  (longer ones: over 20 s)"
        )
        axes.annotate(
            f"{name}{cut}", (sizes[-1], costs[-1]), textcoords="offset points", xytext=(6, -12 if ours else 2),
            fontsize=9, fontweight="bold" if ours else "normal",
        )  # fmt: skip
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="arguments, KB",
        ylabel="CPU µs per delta",
        xlim=(0.9, 1200),
        ylim=(0.4, 3000),
    )
    axes.set_xticks(LENGTHS, list(map(str, LENGTHS)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()
    return figure


def bars(axes: Axes, rows: list[tuple[str, float, str]]) -> None:
    """Draw horizontal bars: name, length, label."""
    rows.reverse()  # the first bar is the lowest
    colours = [OURS if name.startswith("streamtool") else QUIET for name, _, _ in rows]
    drawn = axes.barh([name for name, _, _ in rows], [value for _, value, _ in rows], color=colours, height=0.62)
    axes.bar_label(drawn, [label for _, _, label in rows], padding=4, fontsize=9)
    axes.margins(x=0.16)
    axes.tick_params(axis="y", length=0)


def first(found: Mapping[str, Any]) -> Figure:
    """Plot the time until the first argument at a model's pace."""
    figure, axes = chart("Time to the first argument: a call of 16 KB, 25 deltas a second")
    rows = []
    for name, one in found["readers"].items():
        run = one.get("lengths", {}).get("16") or one.get("lengths", {}).get("4")
        if run:
            seconds = max(run["first"], DELTA) / DELTA / PACE
            label = f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.0f} s: at the end of the call"
            rows.append((name, seconds, label))
    rows.sort(key=lambda row: row[1])
    bars(axes, rows)
    axes.set(xscale="log", xlabel="seconds from the beginning of the arguments", xlim=(0.02, 20_000))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


def paced(found: Mapping[str, Any]) -> Figure:
    """Plot the CPU time per delta at a model's pace."""
    figure, (many, few, whole) = plt.subplots(3, 1, figsize=(7.2, 8.4), height_ratios=(7, 4, 5))
    for axes, key, title in (
        (many, "paced", "100 streams of 25 deltas a second"),
        (few, "few", "30 streams of 25 deltas a second"),
        (whole, "whole", "30 replies of 150 deltas, with their requests"),
    ):
        costs = {name: median(run["cost"]) if key == "whole" else run["cost"] for name, run in found[key].items()}
        axes.set_title(f"CPU per delta: {title}")
        bars(axes, [(name, cost, f"{cost:.0f} µs") for name, cost in costs.items() if cost])
    whole.set_xlabel("µs")
    return figure


def most(found: Mapping[str, Any]) -> Figure:
    """Plot the number of streams that a process can handle."""
    figure, axes = chart("Streams of 25 deltas a second with p99 ≤ 10 ms added, one process")
    figure.set_size_inches(7.2, 2.6)
    together = {**found["most"], **found["most_few"]}
    bars(axes, [(name, run["streams"], str(run["streams"])) for name, run in together.items() if name != "direct"])
    axes.set_xlabel("streams")
    return figure


def drawn(found: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    yield "growth", growth(found)
    yield "first-argument", first(found)
    yield "paced", paced(found)
    yield "streams-per-core", most(found)


def main(folder: str) -> int:
    data = Path(folder, "figures.json").read_bytes()
    told = f"figures.json, sha256 {sha256(data).hexdigest()}"  # a test compares it with the current figures
    for name, figure in drawn(json.loads(data)):
        figure.savefig(Path(folder, f"{name}.svg"), metadata={"Date": None, "Description": told})
        figure.savefig(Path(folder, f"{name}.png"), dpi=150, metadata={"Software": None, "Description": told})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
