"""Tables compiled from a set of formats that are read together. They are built once and shared by all parsers.

`openers.py` contains the tree of openers, `unmarked.py` the calls without an opener, and `scanner.py` the search for
both in text.
"""

from collections.abc import Iterable
from functools import lru_cache

from attrs import evolve

from statemachine.formats.described import find_format, is_format
from statemachine.formats.format import Anchor, Format, FormatError, MessageBody, check_formats, openers_of
from statemachine.formats.markers import Markers
from statemachine.formats.openers import Opener, tree_of
from statemachine.formats.scanner import COMPARED, TICK, Closers, Marked, Scanners
from statemachine.formats.table import DEFAULT, FORMATS, REASONING
from statemachine.formats.unmarked import Fences, TextFinding, Unmarked


class FormatTables:
    """Tables for one set of formats, and for the tools whose names are openers."""

    __slots__ = (
        "after_call",
        "closers",
        "continued",
        "fences",
        "formats",
        "left_over",
        "line",
        "only_calls",
        "opening",
        "plain_fences",
        "scanners",
        "siblings",
        "special",
        "unmarked",
        "unprefixed",
        "wrappers",
    )

    def __init__(self, formats: tuple[Format, ...], tools: tuple[str, ...], unread: tuple[Format, ...] = ()) -> None:
        self.formats = formats
        # Without tools, no format is read, but a model still writes its messages, and its reasoning between its special
        # tokens.
        rivals = {name for form in unread for name in (form.name, *rivals_of(form))}
        native = formats or (*(FORMATS[name] for name in DEFAULT if name not in rivals), *unread)
        openers = tree_of(formats or messages_of(native), tools)
        self.continued: Markers[Opener] = Markers(continued_messages(native).items())
        """Beginnings of headers whose opener is in the prompt."""
        self.unprefixed = unprefixed_messages(native if formats else ())
        """Openers of headers that consist of the recipient alone, each with the text after it."""
        self.wrappers = {opener.close: opener for opener in openers.values() if opener.close}
        """Closer of a wrapper → its opener."""
        self.only_calls = frozenset(opener.close for opener in openers.values() if opener.only_calls)
        """Closers of wrappers in which other text than calls is noise."""
        self.unmarked = Unmarked.of(formats)
        self.fences = Fences.of(formats)
        spans = [
            section
            for form in native
            for section in form.sections
            if formats or not section.text or section.anchor is Anchor.ANYWHERE
        ]
        sections = tuple(dict.fromkeys((*REASONING, *spans)))
        self.closers = Closers.of(formats, sections, native)
        self.left_over: Markers[str] = Markers(
            [(close, close) for close in sorted(self.closers.calls | self.closers.values)],
        )
        lines: list[tuple[str, Marked]] = [
            (text.removesuffix("{_}"), opener) for text, opener in openers.items() if opener.line
        ]
        if formats:
            lines += [("```", TextFinding.FENCE), ("~~~", TextFinding.FENCE)]
        self.line: Markers[Marked] = Markers(lines, any_case=True)
        self.after_call: Markers[Opener] = Markers(
            [
                (f"{{_}}{text.removesuffix('{_}')}", opener)
                for text, opener in openers.items()
                if opener.line and (opener.lead or not text[0].isalpha())
            ],
            any_case=True,
        )
        """Openers of the start of a line that are recognized directly after a call too, with blanks before them."""
        everywhere: list[tuple[str, Marked]] = [
            (text, opener) for text, opener in openers.items() if not (opener.line or opener.reply)
        ]
        everywhere.sort(key=lambda marker: "{ns}" in marker[0])  # a literal prefix takes precedence over any namespace
        everywhere += self.unmarked.markers()
        self.opening: Markers[Marked] = Markers(everywhere)
        """Openers that are recognized anywhere."""
        # The same literal may be both an opener and a closer, but a set can contain it only once, so it counts as the
        # opener. A closer that contains `{tool}` is not a literal, so it cannot be searched for.
        spans_of_tokens = dict.fromkeys(section.open for section in sections if section.anchor is Anchor.ANYWHERE)
        self.special: Markers[str] = Markers(
            [(marker, marker) for marker in (*spans_of_tokens, *sorted(self.closers.special - spans_of_tokens.keys()))]
        )
        """Special tokens that open or close sections, or end a turn."""
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
        """Openers and closers that are recognized anywhere."""
        either = f"{self.line.beginning(COMPARED)}|{self.opening.beginning(COMPARED)}"
        opens = rf"[{{\[]|{either}" if lines else ""
        self.plain_fences = tuple(self.fences.plain(opens, after_text=after_text) for after_text in (False, True))
        """Fence up to the first thing in it, which is not a call: before text, and after text."""
        first = [(text, opener) for text, opener in openers.items() if opener.reply]
        self.scanners = Scanners(
            everywhere, self.line, sections, self.closers, self.unmarked, fences=self.fences, first=first
        )

    def check(self) -> None:
        """Raise ValueError if the formats cannot be distinguished."""
        self.scanners.get()

    def precompile(self) -> None:
        """Compile everything that would otherwise be compiled on demand."""
        for first, fresh, closers in ((1, 1, 0), (1, 1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)):
            scanner = self.scanners.get(first=bool(first), fresh=bool(fresh), closers=bool(closers))
            scanner.at.compile()
            for run in scanner.all_runs():
                run.compile()
        for markers in (self.line, self.opening, self.siblings):
            markers.compile()
        for run in self.plain_fences:
            run.compile()


def messages_of(formats: Iterable[Format]) -> tuple[Format, ...]:
    """Return what remains of the formats whose replies consist of messages if nothing is a call."""
    found = []
    for form in formats:
        variants = tuple(variant for variant in form.variants if isinstance(variant.body, MessageBody))
        if variants:
            found.append(evolve(form, variants=variants, wrappers=()))
    return tuple(found)


def continued_messages(formats: Iterable[Format]) -> dict[str, Opener]:
    """Return the openers for headers that begin with the recipient, because the prompt contains the actual opener."""
    found: dict[str, Opener] = {}
    for form in messages_of(formats):
        for variant in form.variants:
            if isinstance(variant.body, MessageBody) and variant.body.recipient:
                found.setdefault(variant.body.recipient, Opener(variant.body.recipient)).add(form, variant)
    return found


def unprefixed_messages(formats: Iterable[Format]) -> tuple[tuple[Opener, Markers[bool], Markers[bool]], ...]:
    """Return the openers for headers that consist of the recipient, because the prompt contains the actual opener;
    each with the text after the recipient if that is a tool, and if it is not.
    """
    found = []
    for form in messages_of(formats):
        for variant in form.variants:
            body = variant.body
            if isinstance(body, MessageBody) and not body.recipient and not body.channel:
                opener = Opener("")
                opener.add(form, variant)
                line = body.begin == "\n"
                begins = ("{_}\n", "{_}\r\n") if line else ("{*}" + body.begin,)
                calls = [f"{begin}{{*}}{{" if line else begin for begin in begins]
                found.append((opener, Markers((one, True) for one in calls), Markers((one, True) for one in begins)))
    return tuple(found)


@lru_cache(maxsize=64)
def tables_of(
    names: tuple[str, ...], tools: tuple[str, ...], others: tuple[Format, ...], unread: tuple[Format, ...]
) -> FormatTables:
    """Return the tables for the formats called `names`, for `others` (formats that are not in the table), and for the
    tools whose names are openers. Of `unread` formats, only the messages and sections are read, if no format is.

    Each set of tables is built once and shared. No argument has a default, because the cache would treat a call that
    omits it as a different one.
    """
    found = FormatTables((*(FORMATS[name] for name in names), *others), tools, unread)
    if others or tools or unread or names != DEFAULT:
        found.check()
    return found


def resolve_formats(formats: Iterable[str | Format]) -> tuple[tuple[str, ...], tuple[Format, ...]]:
    """Return the names in table order, so that their original order does not matter, and the formats that are not in
    the table.

    Raises:
        ValueError: a format is unknown or cannot be read.
    """
    given = frozenset(formats)
    others = tuple(form for form in given if isinstance(form, Format))
    for name in given.difference(others):
        if isinstance(name, str) and name not in FORMATS and is_format(name):
            others += (find_format(name),)
        elif name not in FORMATS:
            raise ValueError(f"unknown format {name!r}; the formats are {', '.join(FORMATS)}")
    names = tuple(name for name in FORMATS if name in given)
    if others:
        check_formats({**{name: FORMATS[name] for name in names}, **{form.name: form for form in others}})
    return names, tuple(sorted(others, key=lambda form: form.name))


def openers_of_all(names: Iterable[str]) -> frozenset[str]:
    """Return the openers of calls, and of the wrappers around them, in these formats.

    Raises:
        ValueError: a format is unknown.
    """
    rows, others = resolve_formats(names)
    forms = [*(FORMATS[name] for name in rows), *others]
    calls = (opener for form in forms for variant in form.variants for opener in openers_of(form, variant))
    return frozenset((*calls, *(opener for form in forms for opener, _ in form.wrappers)))


@lru_cache(maxsize=64)
def rivals_of(form: Format) -> frozenset[str]:
    """Return the rows of the table that cannot be read together with a format: calls in both begin alike, or a marker
    of one is the beginning of a marker of the other.
    """
    alike = {name for name, row in FORMATS.items() if name != form.name and begin_alike(row, form)}
    others = tuple(name for name in DEFAULT if name not in alike)
    if not are_distinct(others, form):
        alike.update(name for name in others if not are_distinct((name,), form))
    return frozenset(alike)


def begin_alike(one: Format, other: Format) -> bool:
    """Return whether calls in two formats begin alike."""
    try:
        check_formats({one.name: one, other.name: other})
    except FormatError:
        return True
    return False


def are_distinct(names: tuple[str, ...], form: Format) -> bool:
    """Return whether the markers of a format can be distinguished from those of rows of the table."""
    try:
        FormatTables((*map(FORMATS.__getitem__, names), form), ()).check()
    except ValueError:
        return False
    return True
