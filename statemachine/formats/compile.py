"""What a set of formats compiles into, to be read all at once. Made once, shared by parsers.

What follows an opener is in `openers.py`, what is a call without one in `unmarked.py`; how text is searched for both is
in `scanner.py`.
"""

from collections.abc import Iterable
from functools import lru_cache

from statemachine.formats.format import Anchor, Format, check
from statemachine.formats.markers import Markers
from statemachine.formats.openers import tree_of
from statemachine.formats.scanner import TICK, Closers, Marked, Scanners
from statemachine.formats.table import DEFAULT, FORMATS, REASONING
from statemachine.formats.unmarked import Fences, Found, Unmarked


class Compiled:
    """The tables of one set of formats, and of the tools that are openers themselves."""

    __slots__ = (
        "closers",
        "fences",
        "formats",
        "left_over",
        "line",
        "opening",
        "plain_fence",
        "scanners",
        "siblings",
        "unmarked",
        "wrappers",
    )

    def __init__(self, formats: tuple[Format, ...], tools: tuple[str, ...]) -> None:
        self.formats = formats
        openers = tree_of(formats, tools)
        self.wrappers = {opener.close: opener for opener in openers.values() if opener.close}
        """Wrappers by their closers."""
        self.unmarked = Unmarked.of(formats)
        self.fences = Fences.of(formats)
        sections = tuple(dict.fromkeys((*REASONING, *(section for form in formats for section in form.sections))))
        self.closers = Closers.of(formats, sections)
        self.left_over: Markers[str] = Markers(
            [(close, close) for close in sorted(self.closers.calls | self.closers.values)],
        )
        lines: list[tuple[str, Marked]] = [
            (text.removesuffix("{_}"), opener) for text, opener in openers.items() if opener.line
        ]
        if self.fences:
            lines.append(("```", Found.FENCE))
        self.line: Markers[Marked] = Markers(lines, any_case=True)
        everywhere: list[tuple[str, Marked]] = [(text, opener) for text, opener in openers.items() if not opener.line]
        everywhere.sort(key=lambda marker: "{ns}" in marker[0])  # a literal prefix comes before any prefix
        everywhere += self.unmarked.markers()
        self.opening: Markers[Marked] = Markers(everywhere)
        """Every opener that may stand anywhere."""
        own = dict.fromkeys(form.close for form in formats if form.close and form.close[0] != TICK)
        ends = dict.fromkeys(close for close in (*own, *self.closers.every) if "{tool}" not in close)
        taken = {marker for marker, _ in everywhere}
        self.siblings: Markers[Marked] = Markers(
            [
                *everywhere,
                *((section.open, section) for section in sections if section.anchor is Anchor.ANYWHERE),
                *((close, close) for close in ends if close not in taken),
            ],
        )
        """Every opener that may stand anywhere and every closer."""
        either = f"{self.line.expression(complete='')}|{self.opening.expression(complete='')}"
        self.plain_fence = self.fences.plain(rf"[{{\[]|{either}" if lines else "")
        """A fence, up to a first thing in it that is no call."""
        self.scanners = Scanners(everywhere, self.line, sections, self.closers, self.unmarked)

    def precompile(self) -> None:
        """Compiles what is otherwise compiled when it is needed."""
        for first, fresh, closers in ((1, 1, 0), (1, 1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)):
            scanner = self.scanners.get(first=bool(first), fresh=bool(fresh), closers=bool(closers))
            scanner.at.match("", 0)
            for run in scanner.runs():
                run.compile()
        for markers in (self.line, self.opening, self.siblings):
            markers.match("", 0)
        self.plain_fence.compile()


@lru_cache(maxsize=64)
def compiled(names: tuple[str, ...], tools: tuple[str, ...] = (), others: tuple[Format, ...] = ()) -> Compiled:
    """The tables of these formats, of others that are not in the table, and of the tools that are openers themselves.

    Made once, and shared.
    """
    return Compiled((*(FORMATS[name] for name in names), *others), tools)


def chosen(formats: Iterable[str | Format]) -> tuple[tuple[str, ...], tuple[Format, ...]]:
    """The names in the order of the table, so that the order given does not matter, and the formats that are not in it.

    Raises:
        ValueError: there is no such format, or one cannot be read.

    """
    given = frozenset(formats)
    others = tuple(form for form in given if isinstance(form, Format))
    for name in given.difference(others):
        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}; the formats are {', '.join(FORMATS)}")
    names = tuple(name for name in FORMATS if name in given)
    if others:
        check({**{name: FORMATS[name] for name in names}, **{form.name: form for form in others}})
    return names, tuple(sorted(others, key=lambda form: form.name))


def precompile(formats: Iterable[str | Format] | None = None) -> None:
    """Nothing; compiles what these formats need, which takes some tenths of a second, so that no reply waits for it."""
    names, others = (DEFAULT, ()) if formats is None else chosen(formats)
    compiled(names, (), others).precompile()
