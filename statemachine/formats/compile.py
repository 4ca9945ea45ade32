"""What a set of formats compiles into: the markers of the text, and what may follow each. Made once, shared by parsers.

What follows an opener is in `openers.py`; here is how text is searched for openers, and what is a call without one.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from re import Match

from attrs import evolve, frozen

from statemachine.formats.format import (
    Anchor,
    Envelope,
    Expression,
    Format,
    MessageBody,
    Section,
    Variant,
    check,
    openers_of,
)
from statemachine.formats.markers import END, Markers
from statemachine.formats.openers import Keys, Opener, Opening, Role, envelope_of, is_array, keys_of
from statemachine.formats.table import DEFAULT, FORMATS, REASONING
from statemachine.runs import Run

TICK = "`"
MAX_NEWLINES = 64
"""Line ends before an opener that are held as markup; older ones of a longer run are text."""


def plain_object(keys: Keys) -> tuple[str, str, str]:
    """The beginning of an object that is no call: up to a key that no call has, behind at most three short members that
    name, number or type it; an object with nothing but such members; and what may become one of them.
    """
    names = "|".join(map(re.escape, keys))
    small = (Role.NAME, Role.ID, Role.TYPE)
    passed = "|".join(re.escape(name) for name, key in keys.items() if key.role in small and not key.decisive)
    space, text, word = r"[ \t\r\n]{0,64}+", r"[^\"\\\\\x00-\x1f]{0,64}+", r"[\w.+-]{1,32}+"
    open_brace = rf"\{{{space}"
    member = rf'"(?:{passed})"{space}:{space}(?:"{text}"|{word}){space},{space}'
    members = rf"{open_brace}(?:{member}){{0,3}}+"
    value = rf'"{text}(?:\Z|"{space}\Z)|{word}{space}\Z'
    begun = rf'{members}(?:\Z|"(?:{text}\Z|(?:{passed})"{space}(?:\Z|:{space}(?:\Z|{value}))))'
    small_object = rf'{members}"(?:{passed})"{space}:{space}(?:"{text}"|{word}){space}\}}'
    return rf'{members}"(?!(?:{names})")[^"\\\x00-\x1f]*+"', small_object, begun


class Found(Enum):
    """What the text markers stand for besides openers."""

    BARE = "an object, or an array of objects, without a marker"
    LIST = "a list of call expressions without a marker"
    TICK = "a backtick"
    FENCE = "a code fence"


Marked = Opener | Section | Found | str  # a str is the closer of a wrapper


@frozen
class Scanner:
    """How text is read: the runs flow to the next place where something may begin, `at` says what begins there."""

    inside: Run
    """Inside of a line."""
    start: Run
    """At the start of a line."""
    code: Run
    """Inside of inline code."""
    quote: Run | None
    """Inside of a line of a block quote; None where none counts."""
    at: Markers[Marked]
    keys: Mapping[str, Keys]
    """How an object or array without a marker is read here, by its first character."""
    plain: Callable[[str, int], Match[str] | None]
    """The beginning of an object that is no call."""
    begun: Callable[[str, int], Match[str] | None]
    """What may become such a beginning."""


LINES = r"(?:\r?\n)"
TICKS = 32
"""Backticks of a fence, at most."""
INFO = 40
"""Characters of a fence's info string."""
JSON_CHARS = r"[\s,:0-9eE+\-.truefalsn]++"
JSON_STRING = r'"(?:[^"\\]++|\\.)*+"'
JSON_FLAT = (
    rf"(?:{JSON_CHARS}|{JSON_STRING}|\{{(?:{JSON_CHARS}|{JSON_STRING})*+\}}|\[(?:{JSON_CHARS}|{JSON_STRING})*+\])*+"
)
"""JSON between two braces of an object: what it holds, containers that hold no container included."""


def text_runs(
    at: Markers[Marked], openers: Markers[Marked], line: Markers[Marked], keys: Keys, *, quotes: bool
) -> tuple[Run, Run, Run, Run | None]:
    """Four runs of text in which nothing begins: inside of a line, at its start (only blanks came in it), inline code,
    and a line of a block quote, if there are any (`quotes`).

    Whole inline code on one line is passed over, and so is a whole line of a block quote, and a small object that is
    no call by one of its first keys, to its end or to where it stops being JSON. Line ends at the end of a piece wait
    for what follows them; blanks after them do not, the run changes instead.
    """
    first: dict[str, str] = {}
    for atom, child in at.root.next.items():
        if atom != TICK:
            first[atom] = f"{atom}(?!{child.expression(complete='')})"
    beginning, small, begun = plain_object(keys) if keys else ("(?!)", "(?!)", "(?!)")
    objects = rf"(?:{small}|{beginning}{JSON_FLAT}(?:\}}|(?=[^}}\]{{\[\"])))"
    blanks = r"[ \t]*+"
    opens = f"{openers.expression(complete='')}|{blanks}{line.expression(complete='')}|{blanks}{END}"
    quoted = rf"(?<!\n){LINES}++(?!{opens})[ \t]*+{first.get('>', '>')}[^\r\n]*+" if quotes else "(?!)"
    mark = r"[ \t]*+>" if quotes else "(?!)"
    special = "".join([*first, TICK, r"\r\n"])
    plain = f"[^{special}]*+"
    begins = "|".join(
        [
            *first.values(),
            objects,
            rf"{TICK}[^{TICK}\r\n]*+{TICK}",
            rf"(?<!\n){LINES}++(?:(?!{mark}|{opens}|\r\Z)|{objects})",
            rf"{quoted}(?!\Z)",
            r"\r(?!\n|\Z)",
        ],
    )
    safe = f"{plain}(?:(?:{begins}){plain})*+"
    held = rf"{LINES}{{1,{MAX_NEWLINES // 2}}}+"
    waits = rf"{held}(?:\r?\Z|{line.begun()})|\r\Z|(?:{held})?+(?:{openers.begun()}|{begun})"
    changes = rf"(?<!\n){LINES}++[ \t]++()\Z|{TICK}[^{TICK}\r\n]*+()\Z|{quoted}()\Z"
    inside = Run(rf"{safe}(?:({waits})|{changes})?+", search=re.compile(f"[{special}]").search)
    at_start = (
        rf"(?=[^ \t{'>' if quotes else ''}])(?!{line.expression(complete='')})(?:(?![{special}])|{objects}){safe}"
    )
    start = Run(rf"[ \t]*+(?:({line.begun()}|{begun})|{at_start}())?+")
    code = Run(rf"[^{TICK}\r\n]*+(?:(?!)()|{TICK}{safe}()\Z)?+", search=re.compile(rf"[{TICK}\r\n]").search)
    inside.others = {2: start, 3: code}
    start.others = code.others = {2: inside}
    if not quotes:
        return inside, start, code, None
    quote = Run(rf"[^\r\n]*+(?:(?!)()|(?!\Z){safe}()\Z)?+", search=re.compile(r"[\r\n]").search)
    inside.others[4] = quote
    quote.others = {2: inside}
    return inside, start, code, quote


class Compiled:
    """The tables of one set of formats, and of the tools that are openers themselves."""

    __slots__ = (
        "_scanners",
        "bare",
        "bare_list",
        "bare_reply",
        "begun_fence",
        "closers",
        "empty",
        "fence_expressions",
        "fence_infos",
        "fenced",
        "first",
        "formats",
        "line",
        "lone",
        "openers",
        "opening",
        "plain_fence",
        "sections",
        "siblings",
        "strays",
        "usual",
        "wrappers",
    )

    def __init__(self, formats: tuple[Format, ...], tools: tuple[str, ...]) -> None:
        self.formats = formats
        self.openers: dict[str, Opener] = {}
        self._openers(tools)
        self._unmarked()
        self.sections = tuple(
            dict.fromkeys((*REASONING, *(section for form in self.formats for section in form.sections)))
        )
        self.lone = frozenset(section.close for section in self.sections if not section.text)
        """Closers of reasoning: one that stands first in a reply closes what the prompt has opened."""
        self.strays = frozenset(section.close for section in self.sections if section.anchor is Anchor.ANYWHERE)
        """Closers that are special tokens, of spans and messages."""
        self.empty = frozenset(
            f"{section.open}{{*}}{section.close}"
            for section in self.sections
            if section.anchor is Anchor.ANYWHERE and not section.text
        )
        """Reasoning between special tokens that holds nothing: at the end of a reply it is as good as such a closer."""
        self.strays |= self.empty
        self.closers = self._closers()
        """Every closer that may count in text while something is open."""
        lines: list[tuple[str, Marked]] = [
            (text.removesuffix("{_}"), opener) for text, opener in self.openers.items() if opener.line
        ]
        if self.fenced or self.fence_expressions:
            lines.append(("```", Found.FENCE))
        self.line: Markers[Marked] = Markers(lines, any_case=True)
        everywhere = self._everywhere()
        self.opening: Markers[Marked] = Markers(everywhere)
        """Every opener that may stand anywhere."""
        own = dict.fromkeys(form.close for form in self.formats if form.close and form.close[0] != TICK)
        taken = {marker for marker, _ in everywhere}
        ends: list[tuple[str, Marked]] = [(close, close) for close in (*own, *self.closers) if "{tool}" not in close]
        everywhere += [(section.open, section) for section in self.sections if section.anchor is Anchor.ANYWHERE]
        self.siblings: Markers[Marked] = Markers(
            [*everywhere, *((m, v) for m, v in dict(ends).items() if m not in taken)]
        )
        """Every opener that may stand anywhere and every closer."""
        self._fence_starts(bool(lines))
        self._scanners: dict[tuple[bool, bool, bool], Scanner] = {}
        self.first = self.scanner(first=True, fresh=True)
        """How text is read while reasoning may open."""
        self.usual = self.scanner()
        """How text is read after that, with no wrapper open."""

    def _openers(self, tools: tuple[str, ...]) -> None:
        """Makes the tree of openers."""
        around: dict[str, Format] = {}
        for form in self.formats:
            for variant in form.variants:
                for literal in openers_of(form, variant):
                    if "{tool}" in literal:
                        self._named_openers(form, variant, literal, tools)
                        continue
                    for opener in self._places(form, literal, around):
                        opener.line = form.anchor is Anchor.LINE
                        opener.blank = literal.endswith("{_}")
                        opener.add(form, variant)
        for opener in self.openers.values():
            opener.finish(around)
            opener.inherit(self.openers)
        self.wrappers = {opener.close: opener for opener in self.openers.values() if opener.close}
        """Wrappers by their closers."""

    def _places(self, form: Format, literal: str, around: dict[str, Format]) -> list[Opener]:
        """Where an opener of a format may stand: by itself, and in each of its wrappers, which nest."""
        places: list[Opener] = []
        outer: list[Opener] = []
        for text, close in (*form.wrappers, (literal, "")):
            found = [opener.child(text) for opener in outer]
            if not text[0].isalpha() or form.anchor is Anchor.LINE:
                found.append(self.openers.setdefault(text, Opener(text)))
            if close:
                around.setdefault(text, form)
                for opener in found:
                    opener.close = close
                outer += found
            else:
                places = found
        return places

    def _named_openers(self, form: Format, variant: Variant, literal: str, tools: tuple[str, ...]) -> None:
        """An opener for each tool, in a format whose opener is the tool's name."""
        for tool in tools:
            if re.fullmatch(r"[\w.:-]+", tool):
                text = literal.replace("{tool}", tool)
                own = evolve(form, openers=(text,), close=form.close.replace("{tool}", tool))
                opener = self.openers.setdefault(text, Opener(literal))
                opener.tool = opener.tool or (own, variant, tool)

    def _unmarked(self) -> None:
        """What is a call without a marker: by its keys, in a fence, or as a list of expressions."""
        bare = [form for form in self.formats if not form.fence and not openers_of(form, form.variants[0])]
        objects = [form for form in bare if not is_array(form)]
        calls = [form for form in self.formats if envelope_of(form).calls]
        reply = [form for form in objects if form.anchor is Anchor.REPLY]
        anywhere = [form for form in objects if form not in reply]
        array = [form for form in bare if is_array(form)]
        self.bare: dict[str, Keys] = {}
        self.bare_reply: dict[str, Keys] = {}
        if objects:
            self.bare["{"] = keys_of(anywhere + calls)
            self.bare_reply["{"] = keys_of(reply + anywhere + calls)
        if array:
            self.bare["["] = self.bare_reply["["] = keys_of(array + anywhere)
        fences = [form for form in self.formats if form.fence and isinstance(form.variants[0].body, Envelope)]
        inside = [*reply, *fences, *(calls if fences else [])]
        self.fenced: dict[str, Keys] = {}
        if inside:
            self.fenced["{"] = keys_of(inside)
        if inside or array:
            self.fenced["["] = keys_of(inside + array)
        self.fence_infos = frozenset(info for form in fences for info in form.fence)
        self.fence_expressions: dict[str, Opening] = {}
        self.bare_list: Opening | None = None
        for form in self.formats:
            for variant in form.variants:
                if isinstance(variant.body, Expression):
                    for info in form.fence:
                        self.fence_expressions.setdefault(info, (form, variant))
                    if variant.body.bare:
                        self.bare_list = self.bare_list or (form, variant)

    def _closers(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for form in self.formats:
            found.update((close, None) for _, close in form.wrappers)
            for variant in form.variants:
                if isinstance(variant.body, MessageBody):
                    found.update((end, None) for end in variant.body.ends)
        found.update((section.close, None) for section in self.sections)
        return tuple(found)

    def _everywhere(self) -> list[tuple[str, Marked]]:
        markers: list[tuple[str, Marked]] = [(text, opener) for text, opener in self.openers.items() if not opener.line]
        markers.sort(key=lambda marker: "{ns}" in marker[0])  # a literal prefix comes before any prefix
        if "{" in self.bare_reply:
            markers.append(("{{*}{quote}", Found.BARE))
            names = [name for name, key in self.bare_reply["{"].items() if key.role is not Role.TYPE]
            markers += [(f"{{{{*}}{name}{{*}}:", Found.BARE) for name in names]
        if "[" in self.bare_reply:
            markers.append(("[{*}{{*}{quote}", Found.BARE))
        return markers

    def _fence_starts(self, lines: bool) -> None:
        opens = rf"[{{\[]|{self.line.expression(complete='')}|{self.opening.expression(complete='')}" if lines else ""
        head = rf"`{{3,{TICKS}}}+(?!`)[^`\r\n]{{0,{INFO}}}"
        infos = "|".join(map(re.escape, self.fence_expressions))
        other = rf"(?!`++[ \t]*+(?i:{infos})[ \t]*+(?:\r?\n|\r?\Z))" if infos else ""
        self.plain_fence = re.compile(rf"(?=(`+)){other}{head}\r?\n[ \t\r\n]{{0,64}}+(?!\Z|{opens})").match
        """A fence, up to a first thing in it that is no call."""
        self.begun_fence = re.compile(rf"`{{1,{TICKS}}}+\Z|{head}(?:\r?\Z|\r?\n[ \t\r\n]{{0,64}}+\Z)").match

    def precompile(self) -> None:
        """Compiles what is otherwise compiled when it is needed."""
        for first, fresh, closers in ((1, 1, 0), (1, 1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)):
            self.scanner(first=bool(first), fresh=bool(fresh), closers=bool(closers)).at.match("", 0)
        for markers in (self.line, self.opening, self.siblings):
            markers.match("", 0)

    def scanner(self, *, first: bool = False, fresh: bool = False, closers: bool = False) -> Scanner:
        """The scanner for text: `first` while reasoning may open, `fresh` while spans of special tokens may; with
        `closers` while something is open.
        """
        known = self._scanners.get((first, fresh, closers))
        if known is None:
            markers = self._everywhere()
            if fresh:
                markers += [(section.open, section) for section in self.sections if section.anchor is Anchor.ANYWHERE]
            if first:
                markers += [(section.open, section) for section in self.sections if section.anchor is Anchor.REPLY]
                if self.bare_list:
                    markers.append(("[{*}{a}", Found.LIST))
            taken = {marker for marker, _ in markers}
            ends = frozenset(self.closers) if closers else self.strays | self.lone if first else self.strays
            ends = ends - self.empty if fresh else ends | self.empty
            markers += [(close, close) for close in sorted(ends) if close not in taken]
            openers: Markers[Marked] = Markers(markers)
            at: Markers[Marked] = Markers([*markers, (TICK, Found.TICK)])
            keys = self.bare_reply if first else self.bare
            runs = text_runs(at, openers, self.line, keys.get("{", {}), quotes=not closers)
            plain, small, begun = plain_object(keys["{"]) if "{" in keys else ("(?!)", "(?!)", "(?!)")
            known = Scanner(*runs, at, keys, re.compile(f"{small}|{plain}").match, re.compile(begun).match)
            self._scanners[first, fresh, closers] = known
        return known


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
    """Nothing; compiles what these formats need, which takes about half a second, so that no reply waits for it."""
    names, others = (DEFAULT, ()) if formats is None else chosen(formats)
    compiled(names, (), others).precompile()
