"""Benchmark of the parser, in µs per delta and, because machines differ, in units of the smallest useful loop.

    u         the cost per delta of one method call that runs one compiled character-class search and finds no match
    delta     a piece of four characters, as a model emits them
    MB/s      speed with one large delta: the whole text in one `feed`
    growth    the cost per delta at 1 MB of text divided by the cost at 1 KB (the minima of interleaved runs)

Every figure is the minimum of several runs in the same process. `bound` is the cost of the minimum set of operations
that a workload requires, measured in the same run; no parser in Python can be faster.
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
"""Creates an event without calling its constructor, as `Parser.feed` does."""
TOOLS: Mapping[str, Any] = {
    f"tool_{number}": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "count": {"type": "integer"}},
    }
    for number in range(200)
}
PROSE = "The parser reads what a model writes as it arrives, and nothing of it waits for longer than it must. "
MARKDOWN = """## What changed

The reader now keeps *only* what is still unread; see `reader.py` for how `take` and `keep` differ.

- a run flows until its pattern stops, and then the grammar is asked again
- what may still be a marker waits, **nothing else** does
- see [the design](docs/design.md) for the rules, and the table below

| file | purpose |
|------|---------|
| states | the table |

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
    """Text of one kind, as a model writes it. `before` and `after` surround the part that is measured."""

    name: str
    text: str
    before: str = ""
    after: str = ""
    target: float = 12.0
    """Target cost per delta, in u."""
    large: float = 50.0
    """Target speed with one large delta, in MB/s."""
    bound: Callable[[list[str]], None] | None = None
    """Runs the minimum set of operations that the workload requires."""
    formats: tuple[str, ...] | None = None
    """Formats to listen for, or None for the default formats."""


def repeat(text: str, length: int) -> str:
    """Repeat the text until it has at least this length."""
    return text * (length // len(text) + 1)


def pieces(text: str) -> list[str]:
    """Split the text into deltas."""
    return [text[at : at + DELTA] for at in range(0, len(text), DELTA)]


def shortest_time(run: Callable[[], float], runs: int = RUNS) -> float:
    """Return the shortest time of several runs, in seconds."""
    return min(run() for _ in range(runs))


class Smallest:
    """The smallest useful loop, which defines one u."""

    __slots__ = ("search",)

    def __init__(self) -> None:
        self.search = re.compile(r"[<{\[@`\n]").search

    def feed(self, text: str) -> bool:
        """Return whether the text contains any of the characters."""
        return self.search(text) is not None


def unit() -> float:
    """Return one u, in seconds."""
    deltas = pieces(repeat(PROSE, 40_000))
    feed = Smallest().feed

    def run() -> float:
        start = time.perf_counter()
        for delta in deltas:
            feed(delta)
        return time.perf_counter() - start

    return shortest_time(run) / len(deltas)


def per_delta(work: Workload, text: str | None = None, runs: int = RUNS) -> float:
    """Return the time per delta of a workload, in seconds."""
    deltas = pieces(work.text if text is None else text)

    def run() -> float:
        feed = start_parser(work).feed
        start = time.perf_counter()
        for delta in deltas:
            feed(delta)
        return time.perf_counter() - start

    return shortest_time(run, runs) / len(deltas)


def characters_per_second(work: Workload) -> float:
    """Return the number of characters per second when the whole text is one delta."""

    def run() -> float:
        parser = start_parser(work)
        start = time.perf_counter()
        parser.feed(work.text)
        return time.perf_counter() - start

    return len(work.text) / shortest_time(run)


def start_parser(work: Workload) -> Parser:
    """Return a parser with all default formats and 200 tools, in the middle of a reply."""
    parser = Parser(TOOLS, formats=(*DEFAULT, work.name) if work.name in OPT_IN else work.formats)
    parser.feed("Well, ")
    parser.feed(work.before)
    return parser


def growth(work: Workload, unit_text: str) -> float:
    """Return the cost per delta at 1 MB divided by the cost at 1 KB."""
    small, large = repeat(unit_text, 1_000), repeat(unit_text, 1_000_000)
    # Alternate many runs of the small text with one run of the large text, so that both are measured under the same
    # load.
    return min(per_delta(work, large, 1) / per_delta(work, small, 200) for _ in range(3))


def string_bound(deltas: list[str]) -> None:
    """Do the minimum work for arguments inside a JSON string: per delta, two scans, at most one decoding and one
    event.
    """
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
    """Do the minimum work for a raw value: one scan and one event per delta, plus escaping where necessary."""
    scan = re.compile(r"[<\"\\\x00-\x1f]").search
    for delta in deltas:
        text = delta if scan(delta) is None else encode_basestring(delta)[1:-1]
        event = new(ArgumentsDelta)
        event.index, event.text = 0, text
        _ = [event]


def text_bound(deltas: list[str]) -> None:
    """Do the minimum work for text: one scan and one event per delta."""
    scan = re.compile(r"[<{\[@`\n]").search
    for delta in deltas:
        scan(delta)
        event = new(TextDelta)
        event.text = delta
        _ = [event]


def workloads(size: int) -> Iterator[Workload]:
    """Yield all workloads; each is about `size` characters long."""
    yield Workload("prose, one format", repeat(PROSE, size), target=3, large=300, formats=("tool_call",))
    for name, text, target, large in (
        ("prose", PROSE, 3, 300),
        ("markdown", MARKDOWN, 6, 50),
        ("block quotes", QUOTES, 6, 50),
        ("code", CODE, 12, 50),
        ("HTML", HTML, 12, 50),
        ("LaTeX", LATEX, 12, 50),
    ):
        yield Workload(name, repeat(text, size), target=target, large=large, bound=text_bound)
    answer = json.dumps({"report": [ANSWER] * (size // 150)}, indent=2)
    yield Workload("JSON answer", answer, bound=text_bound)
    records = [{"id": number, "name": f"Row {number}", "size": number * 7, "ok": True} for number in range(size // 60)]
    yield Workload("JSON records", "\n".join(map(json.dumps, records)), bound=text_bound)
    value = repeat(CODE, size)
    for name in FORMATS:
        frame = write([Call("tool_1", json.dumps({"text": "VALUE"}))], name)
        before, _, after = frame.partition("VALUE")
        match FORMATS[name].variants[0].body:
            case Envelope(as_string=True):
                yield Workload(name, json_escape(json_escape(value)), "\n" + before, after, 15, 45, string_bound)
            case Parameters():
                yield Workload(name, value, "\n" + before, after, 7, 300, quote_bound)
            case Expression(quote=quote):
                yield Workload(name, value if quote else json_escape(value), "\n" + before, after, 9, 45)
            case _ if name != "action_object":
                yield Workload(name, json_escape(value), "\n" + before, after, 7, 130)


def json_escape(text: str) -> str:
    """Return the text as it would be written in a JSON string."""
    return encode_basestring(text)[1:-1]


def memory() -> tuple[int, int]:
    """Return the size in bytes of an idle parser and of a parser inside a call. Compiled tables are excluded, because
    parsers share them.
    """
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
    """Return the time per delta of a workload's minimum work, in seconds, or None if no minimum is defined."""
    if work.bound is None:
        return None
    deltas = pieces(work.text)
    bound = work.bound

    def run() -> float:
        start = time.perf_counter()
        bound(deltas)
        return time.perf_counter() - start

    return shortest_time(run) / len(deltas)


def main(file: str | None = None, *, size: int = 16_000) -> int:
    """Print the table or, if `file` is given, only the figures for its text."""
    one = min(unit() for _ in range(5))
    print(f"Python {sys.version.split()[0]} · u = {one * 1e6:.3f} µs · deltas of {DELTA} characters · 200 tools\n")
    print(f"{'workload':18} {'µs/delta':>9} {'u':>6} {'reach':>6} {'bound':>6}  {'MB/s':>6} {'reach':>6}  growth")
    if file is not None:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123  (a path or a descriptor)
            works = [Workload(file[-18:], opened.read())]
    else:
        works = list(workloads(size))
    grown = {
        "prose": PROSE,
        "tool_call": json_escape(CODE),
        "openai_fragment": json_escape(json_escape(CODE)),
        "qwen3_coder": CODE,
    }
    for work in works:
        one = min(one, unit())
        cost = per_delta(work)
        bound = bound_of(work)
        line = f"{work.name:18} {cost * 1e6:9.3f} {cost / one:6.1f} {work.target:6.0f} "
        line += f"{bound / one:6.1f}" if bound is not None else " " * 6
        line += f"  {characters_per_second(work) / 1e6:6.0f} {work.large:6.0f}"
        if work.name in grown:
            line += f"  {growth(work, grown[work.name]):.2f}"
        print(line)
    idle, inside_call = memory()
    print(f"\nmemory per parser: {idle / 1024:.1f} KB in text, {inside_call / 1024:.1f} KB inside a call")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
