"""How text is searched for what may begin in it, and for what may close there."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import Match

from attrs import frozen

from statemachine.formats.format import Anchor, Format, MessageBody, Parameters, Section
from statemachine.formats.markers import END, NAMESPACE, NEVER, Markers, head
from statemachine.formats.openers import Keys, Opener, Role, envelope_of
from statemachine.formats.unmarked import FENCE_BEGUN, Found, Unmarked
from statemachine.runs import Run

TICK = "`"
NEAR = 6
"""Characters after which a run stops before what begins like a marker; whether it is one is asked there."""
MAX_NEWLINES = 64
"""Line ends before an opener that are held as markup; older ones of a longer run are text."""
Marked = Opener | Section | Found | str  # a str is the closer of a wrapper


def plain_object(keys: Keys) -> tuple[str, str, str]:
    """The beginning of an object that is no call: up to a key that no call has, behind at most three short members that
    name, number or type it; an object with nothing but such members; and what may become one of them.
    """
    if not keys:
        return NEVER, NEVER, NEVER
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
    objects: "ObjectRuns"
    """In an object that is no call."""
    at: Markers[Marked]
    keys: Mapping[str, Keys]
    """How an object or array without a marker is read here, by its first character."""
    plain: Callable[[str, int], Match[str] | None]
    """The beginning of an object that is no call."""
    begun: Callable[[str, int], Match[str] | None]
    """What may become such a beginning."""

    def runs(self) -> list[Run]:
        """All the runs that lead into one another."""
        objects = self.objects
        runs = [self.inside, self.start, self.code, objects.head, objects.members, objects.string]
        return runs if self.quote is None else [*runs, self.quote]


optional = re.compile(r"\{(?:ns|word|[*_:])\}").sub
"""What need not stand in a marker."""
LINES = r"(?:\r?\n)"
JSON_CHARS = r"[\s,:0-9eE+\-.truefalsn]++"
JSON_STRING = r'"(?:[^"\\]++|\\.)*+"'
JSON_FLAT = (
    rf"(?:{JSON_CHARS}|{JSON_STRING}|\{{(?:{JSON_CHARS}|{JSON_STRING})*+\}}|\[(?:{JSON_CHARS}|{JSON_STRING})*+\])*+"
)
"""JSON between two braces of an object: what it holds, containers that hold no container included."""
JSON_ENDS = r"(?:\}|(?=[^}\]{\[\"]))"
"""The brace that ends an object, or what is no JSON."""
JSON_OPEN = r'"(?:[^"\\]++|\\.)*+'
"""A string whose end has not come."""
HELD = rf"{LINES}{{1,{MAX_NEWLINES // 2}}}+"
"""Line ends that may stand before an opener."""


@frozen
class ObjectRuns:
    """Three runs of text for a plain object that arrives in pieces, as long as it holds no container in a container."""

    head: Run
    """While what has come may be the beginning of one, line ends before it included."""
    members: Run
    """Between its braces."""
    string: Run
    """In one of its strings."""

    @classmethod
    def of(cls, keys: Keys, plain: str) -> "ObjectRuns":
        """The runs; `plain` is text behind an object in which nothing begins. Where they end is `connect`ed later."""
        beginning, small, begun = plain_object(keys)
        waits = rf"(?:{HELD})?+{begun}"
        over = rf"{plain}(?:()\Z|({HELD}\r?\Z|\r\Z)|({waits}))"
        goes_on = rf"{beginning}{JSON_FLAT}(?:()\Z|{JSON_OPEN}()\Z)"
        return cls(
            Run(rf"({waits})|(?:{HELD})?+(?:(?:{small}|{beginning}{JSON_FLAT}{JSON_ENDS}){over}|{goes_on})"),
            Run(
                rf"{JSON_FLAT}(?:(?!)()|{JSON_ENDS}{over}|{JSON_OPEN}()\Z)?+",
                search=re.compile(r"[^\s,:0-9eE+\-.truefalsn]").search,
            ),
            Run(
                rf'(?:[^"\\]++|\\.)*+(?:(\\\Z)|"{JSON_FLAT}(?:{JSON_ENDS}{over}|()\Z|{JSON_OPEN}()\Z))?+',
                search=re.compile(r'["\\]').search,
            ),
        )

    def connect(self, inside: Run) -> None:
        """Says with which run each of them goes on: `inside` of a line, once the object is over."""
        over = {2: inside, 3: inside, 4: self.head}
        self.head.others = over | {5: self.members, 6: self.string}
        self.members.others = over | {5: self.string}
        self.string.others = over | {5: self.members, 6: self.string}


def text_runs(
    at: Markers[Marked], openers: Markers[Marked], line: Markers[Marked], keys: Keys, *, quotes: bool
) -> tuple[Run, Run, Run, Run | None, ObjectRuns]:
    """The runs of text in which nothing begins: inside of a line, at its start (only blanks came in it), inline code, a
    line of a block quote, if there are any (`quotes`), and objects.

    Whole inline code on one line is passed over, and so is a whole line of a block quote, and a small object that is
    no call by one of its first keys, to its end or to where it stops being JSON. Line ends at the end of a piece wait
    for what follows them; blanks after them do not, the run changes instead.
    """
    first: dict[str, str] = {}
    for atom, child in at.root.next.items():
        if atom != TICK:
            first[atom] = f"{atom}(?!{child.beginning(NEAR - 1)})"
    beginning, small, begun = plain_object(keys)
    objects = rf"{small}|{beginning}{JSON_FLAT}{JSON_ENDS}"
    label, blanks = line.expression(complete=""), r"[ \t]*+"
    lines = rf"(?<!\n){LINES}++"
    goes_on = rf"{lines}(?!{blanks}(?:{'>|' if quotes else ''}{label}|{END})|\r\Z)"
    quoted = rf"{lines}{blanks}{first.get('>', '>')}[^\r\n]*+" if quotes else NEVER
    special = "".join([*first, TICK, r"\r\n"])
    plain = f"[^{special}]*+"
    begins = "|".join(
        [
            other_tag(at, special),
            f"{goes_on}(?![{''.join(first)}])",
            f"(?:{goes_on})?+(?:{'|'.join(first.values())}|{objects})",
            rf"{TICK}[^{TICK}\r\n]*+{TICK}",
            rf"{quoted}(?!\Z)",
            r"\r(?!\n|\Z)",
        ],
    )
    safe = f"{plain}(?:(?:{begins}){plain})*+"
    fence = FENCE_BEGUN if quotes and Found.FENCE in line.values else NEVER
    waits = rf"{HELD}(?:\r?\Z|{fence}|{line.begun()})|\r\Z|(?:{HELD})?+{openers.short(NEAR)}"
    changes = rf"{lines}[ \t]++(\Z|{line.begun()})|{TICK}[^{TICK}\r\n]*+()\Z|((?:{HELD})?+{begun})|{quoted}()\Z"
    # most often nothing waits: the end of the text stands before all other ways
    inside = Run(rf"{safe}(?:\Z|({waits})|{changes})?+", search=re.compile(f"[{special}]").search)
    tag = first.get("<", NEVER)
    at_start = rf"(?=[^ \t{'>' if quotes else ''}])(?!{label})(?:(?![{special}])|{tag}|{objects}){plain}"
    start = Run(rf"[ \t]*+(?:({line.begun()})|{at_start}()|({begun}))?+")
    code = Run(rf"[^{TICK}\r\n]*+(?:(?!)()|{TICK}{plain}()\Z)?+", search=re.compile(rf"[{TICK}\r\n]").search)
    in_object = ObjectRuns.of(keys, plain)
    in_object.connect(inside)
    inside.others = {2: start, 3: code, 4: in_object.head}
    start.others = {2: inside, 3: in_object.head}
    code.others = {2: inside}
    quote = None
    if quotes:
        ends = rf"({HELD}\r?\Z|\r\Z)|{goes_on}(?![{''.join(first)}]){plain}()\Z|{quoted}()\Z"
        quote = Run(rf"[^\r\n]*+(?:(?!)()|{ends})?+", search=re.compile(r"[\r\n]").search)
        inside.others[5] = quote
        quote.others = {2: inside, 3: inside, 4: quote}
    return inside, start, code, quote, in_object


def other_tag(at: Markers[Marked], special: str) -> str:
    """What begins a tag that is no marker (`</p`, `<p>`): the most frequent thing that begins like one."""
    tag = at.root.next.get("<")
    if tag is None:
        return NEVER
    name = tag.only("/")
    closing = f"</{name.misses(special, 2)}" if name is not None else NEVER
    heads = [head(atom) for atom in tag.next if atom != NAMESPACE[0]]
    if not all(heads) or NAMESPACE[0] not in tag.next:
        return closing
    return rf"{closing}|<(?![{''.join(heads)}]){NAMESPACE[0]}{NAMESPACE[1]}[^\w.:\-{special}]"


@frozen
class Closers:
    """What may close something in text."""

    every: tuple[str, ...]
    """Of wrappers, messages and spans: they count while something is open."""
    lone: frozenset[str]
    """Of reasoning: one that stands first in a reply closes what the prompt has opened."""
    strays: frozenset[str]
    """Special tokens, of spans, messages and turns: they count always."""
    thoughts: frozenset[str]
    """Special tokens that close reasoning and nothing else."""
    empty: frozenset[str]
    """Reasoning between special tokens that holds nothing: at the end of a reply it is as good as such a closer."""
    implied: Mapping[str, tuple[str, ...]]
    """Closer of reasoning between special tokens -> openers of its format's text, which end it as well."""
    calls: frozenset[str]
    """Of calls and the wrappers around them: tags that may be left over at the end of a reply."""
    values: frozenset[str]
    """Of values, which may be left over before such a tag."""

    @classmethod
    def of(cls, formats: Sequence[Format], sections: Sequence[Section]) -> "Closers":
        """Those of a set of formats, and of the sections."""
        every: dict[str, None] = {}
        ends_of_messages: set[str] = set()
        for form in formats:
            every.update((close, None) for _, close in form.wrappers)
            for variant in form.variants:
                if isinstance(variant.body, MessageBody):
                    every.update((end, None) for end in variant.body.ends)
                    ends_of_messages.update(variant.body.ends)
        every.update((section.close, None) for section in sections)
        stops = frozenset(stop for form in formats for stop in form.stops)
        every.update((stop, None) for stop in sorted(stops))
        lone = frozenset(section.close for section in sections if not section.text)
        special = [section for section in sections if section.anchor is Anchor.ANYWHERE]
        empty = frozenset(f"{section.open}{{*}}{section.close}" for section in special if not section.text)
        implied: dict[str, tuple[str, ...]] = {}
        for form in formats:
            texts = tuple(section.open for section in form.sections if section.text and section in special)
            implied |= {section.close: texts for section in form.sections if not section.text and section in special}
        strays = frozenset(section.close for section in special) | stops | empty
        others = {section.close for section in special if section.text} | stops.union(ends_of_messages)
        thoughts = frozenset(section.close for section in special if not section.text) - others
        return cls(tuple(every), lone, strays, thoughts, empty, implied, *left_over(formats))


def left_over(formats: Sequence[Format]) -> tuple[frozenset[str], frozenset[str]]:
    """The tags that close calls and the wrappers around them, and those that close values; without a namespace."""
    calls: set[str] = set()
    values: set[str] = set()
    for form in formats:
        calls.add(form.close)
        calls.update(close for _, close in form.wrappers if not envelope_of(form).by_keys)
        for variant in form.variants:
            if isinstance(variant.body, Parameters):
                values.update((variant.body.close, *(close for _, close in variant.body.other_keys)))
    found = [{close.replace("{ns}", "") for close in closers if is_tag(close)} for closers in (calls, values)]
    return frozenset(found[0]), frozenset(found[1])


def is_tag(close: str) -> bool:
    """True for one tag that closes something, and that is the same for every call."""
    return close.startswith("</") and close.endswith(">") and not re.search(r"\{(?:tool|key|\*)\}", close)


def tags_of(closers: Iterable[str]) -> list[str]:
    """What may open what these tags close in an answer about them."""
    words = (word[2:-1] for word in sorted(closers))
    return [tag for word in words for tag in (f"<{word}>", f"<{word}{{ }}")]


def apart(found: Iterable[str], others: Iterable[str]) -> list[str]:
    """Those of the markers that neither begin one of the others nor begin with one."""
    known = {optional("", other) for other in others}
    return [
        marker
        for marker, plain in ((marker, optional("", marker)) for marker in found)
        if not any(plain.startswith(other) or other.startswith(plain) for other in known)
    ]


class Scanners:
    """How text is read, wherever it stands: a scanner for each situation, made when it is first needed."""

    __slots__ = ("_closers", "_line", "_made", "_openers", "_sections", "_unmarked", "first", "usual")

    def __init__(
        self,
        openers: Sequence[tuple[str, Marked]],
        line: Markers[Marked],
        sections: Sequence[Section],
        closers: Closers,
        unmarked: Unmarked,
    ) -> None:
        self._openers = openers
        self._line = line
        self._sections = sections
        self._closers = closers
        self._unmarked = unmarked
        self._made: dict[tuple[bool, bool, bool], Scanner] = {}
        self.first = self.get(first=True, fresh=True)
        """While reasoning may open."""
        self.usual = self.get()
        """After that, with no wrapper open."""

    def get(self, *, first: bool = False, fresh: bool = False, closers: bool = False) -> Scanner:
        """The scanner for text: `first` while reasoning may open, `fresh` while spans of special tokens may; with
        `closers` while something is open.
        """
        known = self._made.get((first, fresh, closers))
        if known is None:
            made = self._make(first=first, fresh=fresh, closers=closers)
            known = self._made.setdefault((first, fresh, closers), made)  # another thread may have been faster
        return known

    def _make(self, *, first: bool, fresh: bool, closers: bool) -> Scanner:
        markers = list(self._openers)
        if fresh:
            markers += [(section.open, section) for section in self._sections if section.anchor is Anchor.ANYWHERE]
        if first:
            markers += [(section.open, section) for section in self._sections if section.anchor is Anchor.REPLY]
            if self._unmarked.expressions:
                markers.append(("[{*}{a}", Found.LIST))
        else:
            markers += [(section.open, section) for section in self._sections if section.alone]
        taken = {marker for marker, _ in markers}
        known = self._closers
        alone = frozenset(section.close for section in self._sections if section.alone)
        ends = frozenset(known.every) if closers else known.strays | (known.lone if first else alone)
        ends = ends - known.empty if fresh else ends | known.empty
        ends = ends.union(*known.implied.values()) if closers else ends
        markers += [(close, close) for close in sorted(ends) if close not in taken]
        left_over = apart(sorted(known.calls | known.values), (marker for marker, _ in markers))
        markers += [(close, close) for close in left_over]
        tags = apart(tags_of(known.calls), [marker for marker, _ in markers])
        markers += [(tag, Found.TAG) for tag in tags]
        openers: Markers[Marked] = Markers(markers)
        at: Markers[Marked] = Markers([*markers, (TICK, Found.TICK)])
        keys = self._unmarked.reply if first else self._unmarked.anywhere
        runs = text_runs(at, openers, self._line, keys.get("{", {}), quotes=not closers)
        plain, small, begun = plain_object(keys.get("{", {}))
        return Scanner(*runs, at, keys, re.compile(f"{small}|{plain}").match, re.compile(begun).match)
