"""Search for everything that may open or close in text."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import Match

from attrs import frozen

from statemachine.formats.format import Anchor, Format, MessageBody, Parameters, Section
from statemachine.formats.markers import END, NAMESPACE, NEVER, Markers, first_characters
from statemachine.formats.openers import KeyRole, Keys, Opener, envelope_of
from statemachine.formats.unmarked import FENCE_BEGUN, TextFinding, Unmarked
from statemachine.stream.runs import Run

TICK = "`"
COMPARED = 6
"""Number of characters of a possible marker that a run compares before it stops. The grammar then decides whether it is
a marker.
"""
MAX_NEWLINES = 64
"""Maximum number of newlines before an opener to buffer as markup; if there are more, the earlier ones are text."""
Marked = Opener | Section | TextFinding | str  # a str is a closer


def plain_object(keys: Keys) -> tuple[str, str, str]:
    """Return three expressions for objects that are not calls.

    The first matches the beginning of such an object: at most three short members (name, id or type), then a key that
    no call has. The second matches an object that consists of such short members alone. The third matches text that may
    still become either.
    """
    if not keys:
        return NEVER, NEVER, NEVER
    names = "|".join(map(re.escape, keys))
    small = (KeyRole.NAME, KeyRole.ID, KeyRole.TYPE)
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
    """Tables for reading text: the runs extend to the next position where something may begin, and `at` identifies what
    begins there.
    """

    inside: Run
    """Run within a line."""
    start: Run
    """Run at the start of a line."""
    code: Run
    """Run inside inline code."""
    quote: Run | None
    """Run within a line of a block quote; None if block quotes do not count."""
    objects: "ObjectRuns"
    """Runs inside an object that is not a call."""
    at: Markers[Marked]
    keys: Mapping[str, Keys]
    """First character of an object or array without a marker → how it is read."""
    plain: Callable[[str, int], Match[str] | None]
    """Matches the beginning of an object that is not a call."""
    begun: Callable[[str, int], Match[str] | None]
    """Matches text that may still become the beginning of such an object."""

    def runs(self) -> list[Run]:
        """Return all runs, which lead into one another."""
        objects = self.objects
        runs = [self.inside, self.start, self.code, objects.head, objects.members, objects.string]
        return runs if self.quote is None else [*runs, self.quote]


strip_optional = re.compile(r"\{(?:ns|word|[*_:])\}").sub
"""Removes the optional pieces of a marker."""
LINES = r"(?:\r?\n)"
JSON_CHARS = r"[\s,:0-9eE+\-.truefalsn]++"
JSON_STRING = r'"(?:[^"\\]++|\\.)*+"'
JSON_FLAT = (
    rf"(?:{JSON_CHARS}|{JSON_STRING}|\{{(?:{JSON_CHARS}|{JSON_STRING})*+\}}|\[(?:{JSON_CHARS}|{JSON_STRING})*+\])*+"
)
"""JSON inside the braces of an object: its content, including containers that contain no further container."""
JSON_ENDS = r"(?:\}|(?=[^}\]{\[\"]))"
"""Brace that ends an object, or a character that cannot occur in JSON here."""
JSON_OPEN = r'"(?:[^"\\]++|\\.)*+'
"""String that has not ended yet."""
HELD_NEWLINES = rf"{LINES}{{1,{MAX_NEWLINES // 2}}}+"
"""Newlines that may precede an opener."""


@frozen
class ObjectRuns:
    """Runs of text for an object that is not a call and arrives in pieces, as long as none of its containers contains
    another.
    """

    head: Run
    """Run while the text so far may be the beginning of such an object, including the newlines before it."""
    members: Run
    """Run between the object's braces."""
    string: Run
    """Run inside one of the object's strings."""

    @classmethod
    def of(cls, keys: Keys, plain: str) -> "ObjectRuns":
        """Return the runs; `plain` matches the text after an object if nothing begins in that text. `connect` later
        sets the runs that follow them.
        """
        # The text of group 1 waits, as in every run. Groups 2 to 4 are the same in all three runs, which `connect`
        # relies on: after the end of the object, the text is plain (2), ends with newlines that wait (3), or may begin
        # the next object (4). The groups after these identify the run, inside the object, in which the text ends.
        # Deeper nesting has to be counted, which a regular expression cannot do: there the run stops, and
        # `grammar/objects.py` continues.
        beginning, small, begun = plain_object(keys)
        waits = rf"(?:{HELD_NEWLINES})?+{begun}"
        over = rf"{plain}(?:()\Z|({HELD_NEWLINES}\r?\Z|\r\Z)|({waits}))"
        goes_on = rf"{beginning}{JSON_FLAT}(?:()\Z|{JSON_OPEN}()\Z)"
        return cls(
            Run(rf"({waits})|(?:{HELD_NEWLINES})?+(?:(?:{small}|{beginning}{JSON_FLAT}{JSON_ENDS}){over}|{goes_on})"),
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
        """Set the runs that may follow each of these runs; `inside` is the run within a line, used once the object has
        ended.
        """
        over = {2: inside, 3: inside, 4: self.head}
        self.head.next_runs = over | {5: self.members, 6: self.string}
        self.members.next_runs = over | {5: self.string}
        self.string.next_runs = over | {5: self.members, 6: self.string}


def text_runs(
    at: Markers[Marked], openers: Markers[Marked], line: Markers[Marked], keys: Keys, *, quotes: bool
) -> tuple[Run, Run, Run, Run | None, ObjectRuns]:
    """Return the runs for text in which nothing begins: within a line, at its start (after blanks only), inside inline
    code, in a line of a block quote (None without `quotes`), and in objects.

    Three things are skipped completely: inline code that ends on its line; a line of a block quote; and a small object
    whose first keys show that it is not a call (through its end, or up to the point where it stops being JSON).
    Newlines at the end of a piece wait for the text after them; blanks after those newlines do not wait: the run
    changes instead.
    """
    # The result must not depend on how the reply is cut into pieces, so a run may let text flow only if no later
    # character can change the meaning of that text. That makes the run within a line an expression for this grammar
    # (`end` is the end of the text):
    #
    #     inside  = safe, [ end | waits | changes ] ;
    #     safe    = plain, { begins, plain } ;
    #     plain   = characters that nothing begins with ;
    #     begins  = a character that something may begin with, and enough text to show that nothing does:
    #               another tag, newlines without a label or a quote, a near miss of a marker, an object that is
    #               not a call, inline code or a quote up to its end ;
    #     waits   = ( newlines | newlines, begun fence or label | [ newlines ], begun marker ), end ;    (* group 1 *)
    #     changes = ( newlines, blanks | inline code | [ newlines ], begun object | block quote ), end ; (* 2 to 5 *)
    #
    # If none of the three follows `safe`, something begins here, and the grammar decides (`grammar/text.py`). A change
    # of run needs no buffer: the text flows, and the next piece is read by another run. Quantifiers are possessive
    # (`++`, `*+`) throughout. Nothing is tried twice, so a piece takes linear time, whatever a model writes.
    first: dict[str, str] = {}
    # Only the first COMPARED characters of a marker are compared. Expressions for complete markers would account for
    # most of the time it takes to create a parser, and text that matches this far nearly always is a marker.
    for atom, child in at.root.next.items():
        if atom != TICK:
            first[atom] = f"{atom}(?!{child.beginning(COMPARED - 1)})"
    beginning, small, begun = plain_object(keys)
    objects = rf"{small}|{beginning}{JSON_FLAT}{JSON_ENDS}"
    label, blanks = line.expression(complete=""), r"[ \t]*+"
    lines = rf"(?<!\n){LINES}++"
    # Newlines flow if the text after them cannot begin a marker at the start of a line. They are matched as a unit: the
    # lookbehind keeps the expression from starting in the middle of a run of newlines, where the remaining ones would
    # look like a shorter run.
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
    fence = FENCE_BEGUN if quotes and TextFinding.FENCE in line.values else NEVER
    begun_line, begun_near = line.begun_expression(), openers.begun_expression_within(COMPARED)
    waits = rf"{HELD_NEWLINES}(?:\r?\Z|{fence}|{begun_line})|\r\Z|(?:{HELD_NEWLINES})?+{begun_near}"
    changes = rf"{lines}[ \t]++(\Z|{begun_line})|{TICK}[^{TICK}\r\n]*+()\Z|((?:{HELD_NEWLINES})?+{begun})|{quoted}()\Z"
    # Usually, nothing waits, so the end of the text is the first alternative.
    inside = Run(rf"{safe}(?:\Z|({waits})|{changes})?+", search=re.compile(f"[{special}]").search)
    tag = first.get("<", NEVER)
    # At the start of a line, blanks flow, and text that is neither a label nor the beginning of a marker changes the
    # run to `inside` (2). Everything else stops the run, and `grammar/lines.py` decides.
    at_start = rf"(?=[^ \t{'>' if quotes else ''}])(?!{label})(?:(?![{special}])|{tag}|{objects}){plain}"
    start = Run(rf"[ \t]*+(?:({line.begun_expression()})|{at_start}()|({begun}))?+")
    code = Run(rf"[^{TICK}\r\n]*+(?:(?!)()|{TICK}{plain}()\Z)?+", search=re.compile(rf"[{TICK}\r\n]").search)
    in_object = ObjectRuns.of(keys, plain)
    in_object.connect(inside)
    inside.next_runs = {2: start, 3: code, 4: in_object.head}
    start.next_runs = {2: inside, 3: in_object.head}
    code.next_runs = {2: inside}
    quote = None
    if quotes:
        ends = rf"({HELD_NEWLINES}\r?\Z|\r\Z)|{goes_on}(?![{''.join(first)}]){plain}()\Z|{quoted}()\Z"
        quote = Run(rf"[^\r\n]*+(?:(?!)()|{ends})?+", search=re.compile(r"[\r\n]").search)
        inside.next_runs[5] = quote
        quote.next_runs = {2: inside, 3: inside, 4: quote}
    return inside, start, code, quote, in_object


def other_tag(at: Markers[Marked], special: str) -> str:
    """Return an expression for the beginning of a tag that is not a marker (`</p`, `<p>`). Such tags are the most
    frequent near misses.
    """
    tag = at.root.next.get("<")
    if tag is None:
        return NEVER
    name = tag.sole_child("/")
    closing = f"</{name.near_misses(special, 2)}" if name is not None else NEVER
    heads = [first_characters(atom) for atom in tag.next if atom != NAMESPACE[0]]
    if not all(heads) or NAMESPACE[0] not in tag.next:
        return closing
    return rf"{closing}|<(?![{''.join(heads)}]){NAMESPACE[0]}{NAMESPACE[1]}[^\w.:\-{special}]"


@frozen
class Closers:
    """Closers that may occur in text."""

    every: tuple[str, ...]
    """Closers of wrappers, messages and sections; they count while something is open."""
    reasoning: frozenset[str]
    """Closers of reasoning; one at the very beginning of a reply closes the reasoning that the prompt opened."""
    special: frozenset[str]
    """Special tokens that close sections, messages and turns; they always count."""
    only_reasoning: frozenset[str]
    """Special tokens that close reasoning and nothing else."""
    empty: frozenset[str]
    """Markers of empty reasoning between special tokens; at the end of a reply, they are markup like other special
    tokens.
    """
    implied: Mapping[str, tuple[str, ...]]
    """Closer of reasoning between special tokens → openers of the same format's text, which end that reasoning too."""
    calls: frozenset[str]
    """Closers of calls and of the wrappers around them: tags that may be left over at the end of a reply."""
    values: frozenset[str]
    """Closers of values, which may be left over before such a tag."""

    @classmethod
    def of(cls, formats: Sequence[Format], sections: Sequence[Section]) -> "Closers":
        """Return the closers of these formats and sections."""
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
        calls, values = left_over(formats)
        return cls(
            every=tuple(every),
            reasoning=lone,
            special=strays,
            only_reasoning=thoughts,
            empty=empty,
            implied=implied,
            calls=calls,
            values=values,
        )


def left_over(formats: Sequence[Format]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tags that close calls and the wrappers around them, and the tags that close values, both without a
    namespace.
    """
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
    """Return whether a closer is a single closing tag that is the same for every call."""
    return close.startswith("</") and close.endswith(">") and not re.search(r"\{(?:tool|key|\*)\}", close)


def tags_of(closers: Iterable[str]) -> list[str]:
    """Return the opening tags that correspond to these closing tags and may appear in a reply about them."""
    words = (word[2:-1] for word in sorted(closers))
    return [tag for word in words for tag in (f"<{word}>", f"<{word}{{ }}")]


def without_prefixes(found: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the markers that neither begin with one of the others nor are a prefix of one."""
    known = {strip_optional("", other) for other in others}
    return [
        marker
        for marker, plain in ((marker, strip_optional("", marker)) for marker in found)
        if not any(plain.startswith(other) or other.startswith(plain) for other in known)
    ]


class Scanners:
    """Scanners for all situations, each created on first use."""

    __slots__ = ("_closers", "_line", "_made", "_openers", "_sections", "_unmarked", "after_text", "before_text")

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
        self.before_text = self.get(first=True, fresh=True)
        """Scanner to use while reasoning may open."""
        self.after_text = self.get()
        """Scanner to use after that, as long as no wrapper is open."""

    def get(self, *, first: bool = False, fresh: bool = False, closers: bool = False) -> Scanner:
        """Return the scanner for text.

        With `first`, reasoning may open; with `fresh`, sections of special tokens may open; with `closers`, something
        is open that may be closed.
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
                markers.append(("[{*}{a}", TextFinding.LIST))
        else:
            markers += [(section.open, section) for section in self._sections if section.alone]
        taken = {marker for marker, _ in markers}
        known = self._closers
        alone = frozenset(section.close for section in self._sections if section.alone)
        ends = frozenset(known.every) if closers else known.special | (known.reasoning if first else alone)
        ends = ends - known.empty if fresh else ends | known.empty
        ends = ends.union(*known.implied.values()) if closers else ends
        markers += [(close, close) for close in sorted(ends) if close not in taken]
        left_over = without_prefixes(sorted(known.calls | known.values), (marker for marker, _ in markers))
        markers += [(close, close) for close in left_over]
        tags = without_prefixes(tags_of(known.calls), [marker for marker, _ in markers])
        markers += [(tag, TextFinding.TAG) for tag in tags]
        openers: Markers[Marked] = Markers(markers)
        at: Markers[Marked] = Markers([*markers, (TICK, TextFinding.TICK)])
        keys = self._unmarked.reply if first else self._unmarked.anywhere
        object_keys = keys.get("{", {})
        inside, start, code, quote, objects = text_runs(at, openers, self._line, object_keys, quotes=not closers)
        plain, small, begun = plain_object(object_keys)
        return Scanner(
            inside=inside,
            start=start,
            code=code,
            quote=quote,
            objects=objects,
            at=at,
            keys=keys,
            plain=re.compile(f"{small}|{plain}").match,
            begun=re.compile(begun).match,
        )
