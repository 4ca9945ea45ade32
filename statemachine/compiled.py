"""What a set of formats compiles into: the markers of the text, and what may follow each. Made once, shared by parsers.

Openers form a tree of `Lead`s: `<tool_call>` may be followed by JSON (an envelope), by a name (a head), or, since it is
also the wrapper of another format, by that format's opener. Everything that starts with the same literal is told apart
by what follows, so no format has to know the others.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from re import Match

from attrs import frozen

from statemachine.format import ONLY_CALLS_KEYS, Anchor, Envelope, Format, Shape
from statemachine.format import Span as ReasoningSpan
from statemachine.formats import FORMATS, REASONING
from statemachine.markers import END, Markers
from statemachine.reader import Run

TICK = "`"
LEAD = 64
"""Line ends before an opener that are held as markup; older ones of a longer run are text."""


class Role(Enum):
    """What a key of an envelope holds."""

    NAME = "name"
    ARGUMENTS = "arguments"
    ID = "id"
    TYPE = "type"
    NEST = "nest"
    CALLS = "calls"
    THOUGHT = "thought"
    FINAL = "final"


@frozen
class Key:
    """A key of an envelope: what it holds, and the format whose key it is. `nests`: an object here holds the call."""

    role: Role
    format: Format
    nests: bool = False
    decisive: bool = False
    """Only calls have this key: an object with nothing else is a call without arguments."""


Keys = Mapping[str, Key]


def keys_of(formats: Iterable[Format]) -> dict[str, Key]:
    """The keys by which the envelopes of these formats are read; the first format to name a key has it."""
    found: dict[str, Key] = {}
    for form in formats:
        for shape in form.shapes:
            body = shape.body
            if not isinstance(body, Envelope):
                continue
            if body.thought:
                found.setdefault(body.thought, Key(Role.THOUGHT, form))
            if body.final:
                found.setdefault(body.final[0], Key(Role.FINAL, form))
            if body.calls:
                found.setdefault(body.calls, Key(Role.CALLS, form))
            for name in body.name:
                found.setdefault(name, Key(Role.NAME, form, name in body.nest, name in ONLY_CALLS_KEYS))
            for name in body.nest:
                found.setdefault(name, Key(Role.NEST, form, nests=True))
            for name in body.arguments:
                found.setdefault(name, Key(Role.ARGUMENTS, form))
            for name in body.id:
                found.setdefault(name, Key(Role.ID, form))
            found.setdefault("type", Key(Role.TYPE, form))
    return found


class Lead:
    """What may follow an opener."""

    __slots__ = ("_children", "blank", "children", "close", "head", "keys", "line", "literal")

    def __init__(self, literal: str) -> None:
        self.literal = literal
        self.keys: Keys | None = None
        """How an envelope that follows is read."""
        self.head: tuple[Format, Shape] | None = None
        """The format whose name follows."""
        self.close = ""
        """As a wrapper: its closer."""
        self.line = False
        """Only blanks may stand between the opener and a name."""
        self.blank = False
        """Blanks may stand there."""
        self._children: dict[str, Lead] = {}
        self.children: Markers[Lead] | None = None
        """As a wrapper: the openers that may follow."""

    def __repr__(self) -> str:
        return f"Lead({self.literal!r})"


def plain_object(keys: Keys) -> tuple[str, str]:
    """The beginning of an object that is no call: up to a key that no call has, behind at most three short members that
    name, number or type it; and such a beginning that is not finished.
    """
    names = "|".join(map(re.escape, keys))
    small = (Role.NAME, Role.ID, Role.TYPE)
    passed = "|".join(re.escape(name) for name, key in keys.items() if key.role in small and not key.decisive)
    space, text, word = r"[ \t\r\n]{0,64}+", r"[^\"\\\\]{0,64}+", r"[\w.+-]{1,32}+"
    open_brace = rf"\{{{space}"
    member = rf'"(?:{passed})"{space}:{space}(?:"{text}"|{word}){space},{space}'
    members = rf"{open_brace}(?:{member}){{0,3}}+"
    value = rf'"{text}(?:\Z|"{space}\Z)|{word}{space}\Z'
    begun = rf'{members}(?:\Z|"(?:{text}\Z|(?:{passed})"{space}(?:\Z|:{space}(?:\Z|{value}))))'
    return rf'{members}"(?!(?:{names})")[^"\\]*+"', begun


class Found(Enum):
    """What the text markers stand for besides openers."""

    BARE = "an object without a marker"
    TICK = "a backtick"
    FENCE = "a code fence"


Marked = Lead | ReasoningSpan | Found | str  # a str is the closer of a wrapper


@frozen
class Scanner:
    """How text is read: the runs flow to the next place where something may begin, `at` says what begins there."""

    inside: Run
    """Inside of a line."""
    start: Run
    """At the start of a line."""
    code: Run
    """Inside of inline code."""
    at: Markers[Marked]
    keys: Keys
    """How an object without a marker is read here."""
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


def text_runs(at: Markers[Marked], openers: Markers[Marked], line: Markers[Marked], keys: Keys) -> tuple[Run, Run, Run]:
    """Three runs of text in which nothing begins: inside of a line, at its start (only blanks came in it), inline code.

    Whole inline code on one line is passed over, and so is a small object that is no call by one of its first keys, to
    its end or to where it stops being JSON. Line ends at the end of a piece wait for what follows them; blanks after
    them do not, the run changes instead.
    """
    first: dict[str, str] = {}
    for atom, child in at.root.next.items():
        if atom != TICK:
            first[atom] = f"{atom}(?!{child.expression(complete='')})"
    blanks = r"[ \t]{0,64}+"
    opens = f"{openers.expression(complete='')}|{blanks}{line.expression(complete='')}|{blanks}{END}"
    special = "".join([*first, TICK, r"\r\n"])
    plain = f"[^{special}]*+"
    begins = "|".join(
        [
            *first.values(),
            *([plain_object(keys)[0] + JSON_FLAT + r"(?:\}|(?=[^}\]{\[\"]))"] if keys else []),
            rf"{TICK}[^{TICK}\r\n]*+{TICK}",
            rf"(?<!\n){LINES}++(?!{opens}|\r\Z)",
            r"\r(?!\n|\Z)",
        ],
    )
    safe = f"{plain}(?:(?:{begins}){plain})*+"
    held = rf"{LINES}{{1,{LEAD // 2}}}+"
    waits = rf"{held}(?:\r?\Z|{openers.begun()}|{line.begun()})|\r\Z|{openers.begun()}"
    changes = rf"(?<!\n){LINES}++[ \t]++()\Z|{TICK}[^{TICK}\r\n]*+()\Z"
    inside = Run(rf"{safe}(?:({waits})|{changes})?+", search=re.compile(f"[{special}]").search)
    at_start = rf"(?=[^ \t])(?!{line.expression(complete='')})(?![{special}]){safe}"
    start = Run(rf"[ \t]*+(?:({line.begun()})|{at_start}())?+")
    code = Run(rf"[^{TICK}\r\n]*+(?:(?!)()|{TICK}{safe}()\Z)?+", search=re.compile(rf"[{TICK}\r\n]").search)
    inside.others = {2: start, 3: code}
    start.others = code.others = {2: inside}
    return inside, start, code


class Compiled:
    """The tables of one set of formats."""

    __slots__ = (
        "_scanners",
        "bare",
        "bare_reply",
        "begun_fence",
        "fence_infos",
        "fenced",
        "first",
        "formats",
        "leads",
        "line",
        "opening",
        "plain_fence",
        "usual",
    )

    def __init__(self, names: tuple[str, ...]) -> None:
        self.formats = tuple(FORMATS[name] for name in names)
        self.leads: dict[str, Lead] = {}
        for form in self.formats:
            for opener in form.openers:
                lead = self._lead(opener)
                lead.line = form.anchor is Anchor.LINE
                lead.blank = opener.endswith("{_}")
                for shape in form.shapes:
                    if isinstance(shape.body, Envelope):
                        lead.keys = lead.keys or keys_of([form])
                    else:
                        lead.head = lead.head or (form, shape)
                for wrapper, close in form.wrappers:
                    outer = self._lead(wrapper)
                    outer.close = close
                    outer._children[opener] = lead  # noqa: SLF001  (the tree is built here and nowhere else)
        for lead in self.leads.values():
            if lead._children:  # noqa: SLF001
                lead.children = Markers(lead._children.items())  # noqa: SLF001
        bare = [form for form in self.formats if not form.openers and not form.fence]
        calls = [
            form for form in self.formats if any(isinstance(s.body, Envelope) and s.body.calls for s in form.shapes)
        ]
        reply = [form for form in bare if form.anchor is Anchor.REPLY]
        self.bare: Keys = keys_of([form for form in bare if form not in reply] + calls) if bare else {}
        self.bare_reply: Keys = keys_of(reply + [form for form in bare if form not in reply] + calls) if bare else {}
        fences = [form for form in self.formats if form.fence]
        self.fenced: Keys = keys_of([*reply, *fences, *(calls if fences else [])])
        self.fence_infos = frozenset(info for form in fences for info in form.fence)
        lines: list[tuple[str, Marked]] = [
            (text.removesuffix("{_}"), lead) for text, lead in self.leads.items() if lead.line
        ]
        if fences:
            lines.append(("```", Found.FENCE))
        self.line: Markers[Marked] = Markers(lines, any_case=True)
        everywhere = self._everywhere()
        self.opening: Markers[Marked] = Markers(everywhere)
        """Every opener that may stand anywhere."""
        opens = rf"[{{\[]|{self.line.expression(complete='')}|{self.opening.expression(complete='')}" if lines else ""
        head = rf"`{{3,{TICKS}}}+(?!`)[^`\r\n]{{0,{INFO}}}"
        self.plain_fence = re.compile(rf"(?=(`+)){head}\r?\n[ \t\r\n]{{0,64}}+(?!\Z|{opens})").match
        """A fence, up to a first thing in it that is no call."""
        self.begun_fence = re.compile(rf"`{{1,{TICKS}}}+\Z|{head}(?:\r?\Z|\r?\n[ \t\r\n]{{0,64}}+\Z)").match
        self._scanners: dict[tuple[bool, frozenset[str]], Scanner] = {}
        self.first = self.scanner(first=True, closers=frozenset())
        """How text is read while reasoning may open."""
        self.usual = self.scanner(first=False, closers=frozenset())
        """How text is read after that, with no wrapper open."""

    def _lead(self, opener: str) -> Lead:
        if opener not in self.leads:
            self.leads[opener] = Lead(opener)
        return self.leads[opener]

    def _everywhere(self) -> list[tuple[str, Marked]]:
        markers: list[tuple[str, Marked]] = [(text, lead) for text, lead in self.leads.items() if not lead.line]
        if self.bare_reply:
            markers.append(("{{*}{quote}", Found.BARE))
            names = [name for name, key in self.bare_reply.items() if key.role is not Role.TYPE]
            markers += [(f"{{{{*}}{name}{{*}}:", Found.BARE) for name in names]
        return markers

    def scanner(self, *, first: bool, closers: frozenset[str]) -> Scanner:
        """The scanner for text: `first` while reasoning may open, with the closers of wrappers that are open."""
        known = self._scanners.get((first, closers))
        if known is None:
            markers = self._everywhere()
            if first:
                markers += [(span.open, span) for span in REASONING]
            taken = {marker for marker, _ in markers}
            markers += [(close, close) for close in sorted(closers) if close not in taken]
            openers: Markers[Marked] = Markers(markers)
            at: Markers[Marked] = Markers([*markers, (TICK, Found.TICK)])
            keys = self.bare_reply if first else self.bare
            runs = text_runs(at, openers, self.line, keys)
            plain, begun = map(re.compile, plain_object(keys) if keys else ("(?!)", "(?!)"))
            known = Scanner(*runs, at, keys, plain.match, begun.match)
            self._scanners[first, closers] = known
        return known


@lru_cache(maxsize=64)
def compiled(names: tuple[str, ...]) -> Compiled:
    """The tables of these formats, made once."""
    return Compiled(names)
