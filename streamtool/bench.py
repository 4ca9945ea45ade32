"""How fast the parser is: µs per delta and, since machines differ, in units of the smallest useful loop.

    u         the cost per delta of one method call with one compiled character-class search that finds nothing
    delta     a piece of four characters, as a model writes them
    MB/s      one large delta: the whole text in one `feed`
    growth    cost per delta in a text of 1 MB over that in a text of 1 KB; interleaved runs, ratio of minima

Every figure is the minimum of several runs, taken in the same process. `bound` is the cost of the operations that a
workload cannot do without, measured in the same run: a target below it cannot be reached in Python.
"""

import json
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

from attrs import frozen

from statemachine import FORMATS, OPT_IN, ArgumentsDelta, Call, Parser, TextDelta, write
from statemachine.formats import DEFAULT, Envelope, Expression, Parameters

DELTA = 4
RUNS = 9
new = object.__new__
"""Makes an event, as `Parser.feed` does."""
TOOLS: Mapping[str, Any] = {
    f"tool_{number}": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "count": {"type": "integer"}},
    }
    for number in range(200)
}
PROSE = "The parser reads what a model writes as it arrives, and nothing of it waits for longer than it must. "
MARKDOWN = """## What changed

The reader now keeps *only* what nobody has consumed; see `reader.py` for how `take` and `keep` differ.

- a run flows until its pattern stops, and then the grammar is asked again
- what may still be a marker waits, **nothing else** does
- see [the design](docs/design.md) for the rules, and the table below

| file | purpose |
|------|---------|
| states | the law |

```python
def feed(self, text):
    found = self.scan(text)
    if found is None:
        return [TextDelta(text)]
    return self.advance(text)
```

"""
CODE = '''class Buffer:
    """Keeps "what is left" of <text>."""

    def take(self, n: int) -> str:
        if n > len(self.text) or n < 0:
            raise ValueError(f"cannot take {n} of {len(self.text)}")
        piece, self.text = self.text[:n], self.text[n:]
        self.sizes["taken"] += n
        return {"piece": piece, "left": [len(self.text)]}["piece"]

'''
HTML = """<section class="card">
  <h2>Title</h2>
  <p>Some <b>bold</b> and <a href="/x?a=1&b=2">linked</a> text.</p>
</section>
"""
LATEX = r"""The mean is $\frac{1}{n}\sum_{i=1}^{n} x_{i}$, and
\begin{align}
  a &= b_{0} + \left[c\right] \\
\end{align}
"""
QUOTES = """> What waits is the beginning of a marker, and a run of line ends;
> see `reader.py` for how it is held.

It flows as soon as it is neither.

"""
ANSWER = {"title": "Report", "items": [{"label": "first", "values": [1, 2.5, 3], "ok": True, "note": "a short text"}]}


@frozen
class Workload:
    """A text as a model writes it: `before` and `after` frame what is measured."""

    name: str
    text: str
    before: str = ""
    after: str = ""
    target: float = 12.0
    """The cost per delta to reach, in u."""
    large: float = 50.0
    """The speed to reach in one large delta, in MB/s."""
    bound: Callable[[list[str]], None] | None = None
    """The operations that it cannot do without."""
    formats: tuple[str, ...] | None = None
    """What is listened for; None: the default."""


def repeated(text: str, length: int) -> str:
    """The text over and over, of at least this length."""
    return text * (length // len(text) + 1)


def pieces(text: str) -> list[str]:
    """The text in deltas."""
    return [text[at : at + DELTA] for at in range(0, len(text), DELTA)]


def fastest(run: Callable[[], float], runs: int = RUNS) -> float:
    """The least time of several runs, in seconds."""
    return min(run() for _ in range(runs))


class Smallest:
    """The smallest useful loop: what one u is."""

    __slots__ = ("search",)

    def __init__(self) -> None:
        self.search = re.compile(r"[<{\[@`\n]").search

    def feed(self, text: str) -> bool:
        """True if something stands in the text."""
        return self.search(text) is not None


def unit() -> float:
    """One u, in seconds."""
    deltas = pieces(repeated(PROSE, 40_000))
    feed = Smallest().feed

    def run() -> float:
        start = time.perf_counter()
        for delta in deltas:
            feed(delta)
        return time.perf_counter() - start

    return fastest(run) / len(deltas)


def per_delta(work: Workload, text: str | None = None, runs: int = RUNS) -> float:
    """Seconds per delta of a workload."""
    deltas = pieces(work.text if text is None else text)

    def run() -> float:
        feed = started(work).feed
        start = time.perf_counter()
        for delta in deltas:
            feed(delta)
        return time.perf_counter() - start

    return fastest(run, runs) / len(deltas)


def at_once(work: Workload) -> float:
    """Characters per second, the whole text in one delta."""

    def run() -> float:
        parser = started(work)
        start = time.perf_counter()
        parser.feed(work.text)
        return time.perf_counter() - start

    return len(work.text) / fastest(run)


def started(work: Workload) -> Parser:
    """A parser with all default formats and 200 tools, in the middle of an answer."""
    parser = Parser(TOOLS, formats=(*DEFAULT, work.name) if work.name in OPT_IN else work.formats)
    parser.feed("Well, ")
    parser.feed(work.before)
    return parser


def growth(work: Workload, unit_text: str) -> float:
    """Cost per delta at 1 MB over that at 1 KB."""
    small, large = repeated(unit_text, 1_000), repeated(unit_text, 1_000_000)
    # many runs of the small text and few of the large one, in turn: both are measured under the same load
    return min(per_delta(work, large, 1) / per_delta(work, small, 200) for _ in range(3))


def string_bound(deltas: list[str]) -> None:
    """What arguments inside of a JSON string cannot do without: two scans, one decoding, one event per delta."""
    outer = re.compile(r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+(\\\Z)?').match
    decode = json.JSONDecoder().parse_string  # type: ignore[attr-defined]  # the stubs lack the attribute
    rest = ""
    for delta in deltas:
        text = rest + delta
        found = outer(text)
        cut = found.start(1) if found and found.lastindex else len(text)
        text, rest = text[:cut], text[cut:]
        if "\\" in text:
            text = decode(text + '"', 0, False)[0]
        outer(text)
        event = new(ArgumentsDelta)
        event.index, event.text = 0, text
        _ = [event]


def quote_bound(deltas: list[str]) -> None:
    """What a raw value cannot do without: one scan and one event per delta, and the escaping of what has to be."""
    scan = re.compile(r"[<\"\\\x00-\x1f]").search
    for delta in deltas:
        text = delta if scan(delta) is None else encode_basestring(delta)[1:-1]
        event = new(ArgumentsDelta)
        event.index, event.text = 0, text
        _ = [event]


def text_bound(deltas: list[str]) -> None:
    """What text cannot do without: one scan and one event per delta."""
    scan = re.compile(r"[<{\[@`\n]").search
    for delta in deltas:
        scan(delta)
        event = new(TextDelta)
        event.text = delta
        _ = [event]


def workloads(size: int) -> Iterator[Workload]:
    """All workloads, each about `size` characters long."""
    yield Workload("prose, one format", repeated(PROSE, size), target=3, large=300, formats=("tool_call",))
    for name, text, target, large in (
        ("prose", PROSE, 3, 300),
        ("markdown", MARKDOWN, 6, 50),
        ("block quotes", QUOTES, 6, 50),
        ("code", CODE, 12, 50),
        ("HTML", HTML, 12, 50),
        ("LaTeX", LATEX, 12, 50),
    ):
        yield Workload(name, repeated(text, size), target=target, large=large, bound=text_bound)
    answer = json.dumps({"report": [ANSWER] * (size // 150)}, indent=2)
    yield Workload("JSON answer", answer, bound=text_bound)
    records = [{"id": number, "name": f"Row {number}", "size": number * 7, "ok": True} for number in range(size // 60)]
    yield Workload("JSON records", "\n".join(map(json.dumps, records)), bound=text_bound)
    value = repeated(CODE, size)
    for name in FORMATS:
        frame = write([Call("tool_1", json.dumps({"text": "VALUE"}))], name)
        before, _, after = frame.partition("VALUE")
        match FORMATS[name].variants[0].body:
            case Envelope(as_string=True):
                yield Workload(name, inside(inside(value)), "\n" + before, after, 15, 45, string_bound)
            case Parameters():
                yield Workload(name, value, "\n" + before, after, 7, 300, quote_bound)
            case Expression(quote=quote):
                yield Workload(name, value if quote else inside(value), "\n" + before, after, 9, 45)
            case _ if name != "action_object":
                yield Workload(name, inside(value), "\n" + before, after, 7, 130)


def inside(text: str) -> str:
    """The text as it stands in a JSON string."""
    return encode_basestring(text)[1:-1]


def memory() -> tuple[int, int]:
    """Bytes of an idle parser, and of one inside of a call; compiled tables, which parsers share, left out."""
    Parser(TOOLS).feed("x")
    opener = '<tool_call>{"name": "tool_1", "arguments": {"text": "'
    warm = Parser(TOOLS)
    warm.feed(opener)
    sizes = []
    for text in ("", opener):
        tracemalloc.start()
        parsers = [Parser(TOOLS) for _ in range(200)]
        for parser in parsers:
            parser.feed("Well, ")
            parser.feed(text)
        sizes.append(tracemalloc.get_traced_memory()[0] // len(parsers))
        tracemalloc.stop()
    return sizes[0], sizes[1]


def bound_of(work: Workload) -> float | None:
    """Seconds per delta of what the workload cannot do without."""
    if work.bound is None:
        return None
    deltas = pieces(work.text)
    bound = work.bound

    def run() -> float:
        start = time.perf_counter()
        bound(deltas)
        return time.perf_counter() - start

    return fastest(run) / len(deltas)


def main(file: str | None = None, *, size: int = 16_000) -> int:
    """Prints the table; with a file, only how fast its text is read."""
    one = min(unit() for _ in range(5))
    print(f"Python {sys.version.split()[0]} · u = {one * 1e6:.3f} µs · deltas of {DELTA} characters · 200 tools\n")
    print(f"{'workload':18} {'µs/delta':>9} {'u':>6} {'reach':>6} {'bound':>6}  {'MB/s':>6} {'reach':>6}  growth")
    if file is not None:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123  (a path or a descriptor)
            works = [Workload(file[-18:], opened.read())]
    else:
        works = list(workloads(size))
    grown = {"prose": PROSE, "tool_call": inside(CODE), "openai_fragment": inside(inside(CODE)), "qwen3_coder": CODE}
    for work in works:
        one = min(one, unit())
        cost = per_delta(work)
        bound = bound_of(work)
        line = f"{work.name:18} {cost * 1e6:9.3f} {cost / one:6.1f} {work.target:6.0f} "
        line += f"{bound / one:6.1f}" if bound is not None else " " * 6
        line += f"  {at_once(work) / 1e6:6.0f} {work.large:6.0f}"
        if work.name in grown:
            line += f"  {growth(work, grown[work.name]):.2f}"
        print(line)
    idle, inside_call = memory()
    print(f"\nmemory per parser: {idle / 1024:.1f} KB in text, {inside_call / 1024:.1f} KB inside of a call")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
