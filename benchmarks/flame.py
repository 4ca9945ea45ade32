"""Draws where the time of a real `streamtool serve` process goes. Linux only.

    python benchmarks/flame.py request|delta [--seconds S] [--output FILE]

Many requests with 20 tools and 13 messages (`request`), or many streams at the pace of real models (`delta`), pass
through the proxy while py-spy takes samples of it. The picture is a flame graph: each bar is a function, its width is
the share of the samples in it and in the functions that it called, which are drawn below it. Functions of libraries are
drawn as one bar for each library. The table gives the share of each room, without the rooms that it called.
"""

import argparse
import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import request
import uvloop
from attrs import define, field
from common import CLIENTS, Row, Table
from load import Streams, Upstream
from paced import Proxied, proxy
from proxy import ProbeResult, started

ROOT: Final = Path(__file__).parent.parent
sys.path.append(str(ROOT))
from tools.svg import WIDE, label, mono, number, picture  # noqa: E402

RATE: Final = 500
"""Samples per second."""
SECONDS: Final = 10.0
STREAMS: Final = 100
TOOLS: Final = 20
LEAST: Final = 0.004
"""Minimum share of a bar that is drawn."""
WIDTH: Final = 950
EDGE: Final = 20
HEIGHT: Final = 19
TOP: Final = 84
LOOP: Final = "event loop and sockets"
KINDS: Final = {
    "statemachine": ("call", "parser"),
    "pure": ("text", "protocols, prompting, filters, exchange"),
    "drivers": ("hold", "drivers: server, middleware, upstream, log"),
    "libraries": ("quiet", "libraries and Python"),
}
"""Kind of a room → its colour, and the words in the legend."""
DRIVERS: Final = frozenset(("asgi", "cli", "middleware", "observe", "proxy", "server", "store", "upstream"))
_FRAME: Final = re.compile(r"(.*) \((.*?)(?::\d+)?\)$")


# --- samples


def sampled(process: int, seconds: float) -> Mapping[tuple[str, ...], int]:
    """Return the stacks of a process and how often each was found. Frames look like `function (file:line)`."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "stacks")
        given = ("--format", "raw", "--function", "--full-filenames", "--rate", str(RATE), "--output", str(out))
        program = str(Path(sys.executable).with_name("py-spy"))
        command = [program, "record", "--pid", str(process), "--duration", str(round(seconds)), *given]
        subprocess.run(command, check=True, capture_output=True)
        found: Counter[tuple[str, ...]] = Counter()
        for line in out.read_text(encoding="utf-8").splitlines():
            stack, _, count = line.rpartition(" ")
            found[tuple(stack.split(";"))] += int(count)
    return found


async def of_requests(seconds: float) -> Mapping[tuple[str, ...], int]:
    """Return the samples of a proxy that serves one request after the other."""
    body = request.asked()

    async def load(served: Proxied, sampling: Callable[[], Awaitable[Mapping[tuple[str, ...], int]]]) -> Samples:
        for _ in range(request.WARM):
            await asyncio.to_thread(ProbeResult.of, served.port, CLIENTS["chat"], body)
        task = asyncio.ensure_future(sampling())
        while not task.done():
            await asyncio.to_thread(ProbeResult.of, served.port, CLIENTS["chat"], body)
        return await task

    with started("upstream") as source:
        async with proxy("streamtool", int(source.url.rpartition(":")[2])) as served:
            return await load(served, lambda: asyncio.to_thread(sampled, served.processes[0], seconds))


async def of_deltas(seconds: float) -> Mapping[tuple[str, ...], int]:
    """Return the samples of a proxy whose streams are all open."""
    upstream = Upstream()
    source = await upstream.serve()
    async with proxy("streamtool", source) as served, Streams(upstream, served.port, "text", TOOLS) as streams:
        await streams.open(STREAMS)
        await asyncio.sleep(2)
        found = await asyncio.to_thread(sampled, served.processes[0], seconds)
        await streams.finish()
    upstream.close()
    return found


Samples = Mapping[tuple[str, ...], int]


# --- rooms


def room_of(file: str) -> str:
    """Return the room of a file: a package or module of streamtool or statemachine, or the name of a library."""
    for package in ("statemachine", "streamtool"):
        inside = file.removeprefix(f"{ROOT}/{package}/")
        if inside != file:
            first = inside.partition("/")[0].removesuffix(".py")
            return package if package == "statemachine" else f"streamtool.{first}"
    library = file.rpartition("site-packages/")[2] if "site-packages/" in file else file.rpartition("/lib/python3")[2]
    parts = library.split("/")
    return parts[0] if "site-packages/" in file else "Python" if len(parts) < 3 else parts[1]


def kind_of(room: str) -> str:
    if room == "statemachine":
        return room
    package, _, name = room.partition(".")
    return "libraries" if package != "streamtool" else "drivers" if name in DRIVERS else "pure"


def frames(stack: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the room and the label of each frame below the event loop. Adjacent frames of a library are one frame."""
    inside = list(stack)
    for at, frame in enumerate(stack):
        if frame.startswith("Runner.run ") or "asyncio/runners.py" in frame:
            inside = list(stack[at + 1 :])
    before = ""
    for frame in inside:
        found = _FRAME.match(frame)
        name, file = (found[1], found[2]) if found else (frame, "")
        room = room_of(file)
        if kind_of(room) == "libraries":
            if room != before:
                yield room, room
        else:
            yield room, name.replace(".<locals>", "")
        before = room


@define
class Bar:
    """A function with the functions that it called."""

    room: str
    name: str
    count: int = 0
    below: dict[tuple[str, str], "Bar"] = field(factory=dict)

    def add(self, path: Sequence[tuple[str, str]], count: int) -> None:
        self.count += count
        if path:
            room, name = path[0]
            self.below.setdefault(path[0], Bar(room, name)).add(path[1:], count)

    @property
    def own(self) -> int:
        """Samples in this function itself."""
        return self.count - sum(bar.count for bar in self.below.values())


def tree(samples: Samples) -> Bar:
    root = Bar(LOOP, LOOP)
    for stack, count in samples.items():
        if any("asyncio/runners.py" in frame for frame in stack):  # other threads wait for work
            root.add(list(frames(stack)), count)
    return root


def shares(bar: Bar, found: Counter[str] | None = None) -> Counter[str]:
    """Return the number of samples in each room itself."""
    found = Counter() if found is None else found
    found[bar.room] += bar.own
    for below in bar.below.values():
        shares(below, found)
    return found


# --- the picture


def drawn(root: Bar, title: str) -> str:
    parts: list[str] = []
    scale = (WIDTH - 2 * EDGE) / root.count
    depth = 0

    def draw(bar: Bar, x: float, level: int) -> None:
        nonlocal depth
        depth = max(depth, level)
        width = bar.count * scale
        y = TOP + level * HEIGHT
        colour, _ = KINDS[kind_of(bar.room)]
        share = f"{bar.count / root.count:.1%}"
        text = bar.name if kind_of(bar.room) == "libraries" else f"{bar.room.partition('.')[2] or bar.room}: {bar.name}"
        place = f'x="{number(x)}" y="{y}" width="{number(max(width - 0.6, 0.3))}" height="{HEIGHT - 1}"'
        parts.append(
            f"<g><title>{_escaped(f'{text}, {share}')}</title>"
            f'<rect {place} fill="var(--{colour})" fill-opacity="0.45"/>'
            + _fitting(x + 3, y + 13, text, width - 6)
            + "</g>"
        )
        for below in sorted(bar.below.values(), key=lambda one: -one.count):
            if below.count >= LEAST * root.count:
                draw(below, x, level + 1)
            x += below.count * scale

    draw(root, EDGE, 0)
    head = [label(EDGE, 28, title, "title")]
    x = float(EDGE)
    for colour, words in KINDS.values():
        head.append(f'<rect x="{number(x)}" y="48" width="12" height="12" fill="var(--{colour})" fill-opacity="0.45"/>')
        head.append(label(x + 17, 59, words, "small faint"))
        x += 17 + 6.2 * len(words) + 22
    height = TOP + (depth + 1) * HEIGHT + EDGE
    description = "Each bar is a function; its width is its share of the CPU time. The bars below it are its callees."
    return picture(WIDTH, height, title, description, [*head, *parts], ".mono{font-size:11px}")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _fitting(x: float, y: float, text: str, width: float) -> str:
    """Return as much of the text as fits into the width, or nothing if that is too little."""
    wide = WIDE * 0.82
    most = int(width / wide)
    if most < 4:
        return ""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return mono(x, y, shown, "ink", wide)


def table(root: Bar, title: str) -> Table:
    found = shares(root)
    rows = [Row((room, f"{count / root.count:.1%}")) for room, count in found.most_common() if count > 0]
    return Table(f"{title}: {root.count} samples", ("room", "CPU"), rows)


WHAT: Final[Mapping[str, tuple[str, Callable[[float], Awaitable[Samples]]]]] = {
    "request": ("A request with 20 tools and 13 messages, and its reply of three deltas", of_requests),
    "delta": ("A delta of text, at the pace of real models", of_deltas),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description="Where the time of a request or a delta goes.")
    arguments.add_argument("what", choices=list(WHAT))
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--output", type=Path, help="default: docs/pictures/flame-WHAT.svg")
    given = arguments.parse_args()
    title, run = WHAT[given.what]
    samples: Samples = uvloop.run(run(given.seconds))  # type: ignore[arg-type]  # an async function
    root = tree(samples)
    table(root, title).show()
    output = given.output or ROOT / "docs" / "pictures" / f"flame-{given.what}.svg"
    output.write_text(drawn(root, title), encoding="utf-8")
    print(f"\n{output}")


if __name__ == "__main__":
    main()
