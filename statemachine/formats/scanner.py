"""Search for everything that may open or close in text."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from re import Match

from attrs import frozen

from statemachine.formats.format import Anchor, Format, MessageBody, Parameters, Section
from statemachine.formats.markers import END, NAMESPACE, NEVER, Markers, first_characters
from statemachine.formats.openers import KeyRole, Keys, Opener, envelope_of
from statemachine.formats.table import SHOWN_TURNS, STOPS, STRUCK
from statemachine.formats.unmarked import FENCE_BEGUN, Fences, TextFinding, Unmarked
from statemachine.stream.runs import Run

TICK = "`"
COMPARED = 4
"""Number of characters of a possible marker that a run compares before it stops. The grammar then decides whether it is
a marker.
"""
MAX_NEWLINES = 64
"""Maximum number of newlines before an opener to buffer as markup; if there are more, the earlier ones are text."""
Marked = Opener | Section | TextFinding | str  # a str is a closer


class LinePlace(Enum):
    """Position of the text within its line."""

    START = "only blanks came since the last line end"
    INSIDE = "something else did"
    ESCAPE = "after a backslash"
    OPENING = "after a backtick that opens inline code, alone or with more of them"
    CODE = "inside of inline code between single backticks"
    CLOSING = "after a backtick that ends this code, unless more of them follow"
    COLON = "after a colon or the end of reasoning, and blanks or marks of emphasis"
    ITEM_DIGITS = "inside of the number of a list item"
    ITEM_MARK = "after the marker of a list item"
    ITEM = "after the marker of a list item and a blank"
    QUOTE = "inside of a line of a block quote"
    INDENTED = "inside of indented code"
    INDENT_1 = "after one blank of a line that may be indented code"
    INDENT_2 = "after two blanks of such a line"
    INDENT_3 = "after three blanks of such a line"

    __hash__ = object.__hash__  # Enum's own `__hash__` is a Python function


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


@frozen(eq=False, repr=False)
class Scanner:
    """Tables for reading text: the runs extend to the next position where something may begin, and `at` identifies what
    begins there.
    """

    runs: Mapping[LinePlace, Run]
    """Runs by place."""
    places: Mapping[Run, LinePlace]
    """Places by run."""
    blocks: bool
    """Whether block quotes, indented code and inline code over several lines are recognized."""
    objects: "ObjectRuns"
    """Runs inside an object that is not a call."""
    at: Markers[Marked]
    keys: Mapping[str, Keys]
    """First character of an object or array without a marker → how it is read."""
    plain: Callable[[str, int], Match[str] | None]
    """Matches the beginning of an object that is not a call."""
    begun: Callable[[str, int], Match[str] | None]
    """Matches text that may still become the beginning of such an object."""
    fence_begun: Callable[[str, int], Match[str] | None]
    """Matches a fence that is too short to show whether the first thing in it is a call."""

    def all_runs(self) -> list[Run]:
        """Return all runs, which lead into one another."""
        objects = self.objects
        return [*self.runs.values(), objects.head, objects.members, objects.string]


strip_optional = re.compile(r"\{(?:ns|word|[*_:'])\}").sub
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
ITEM = r"(?:[-*+]|[0-9]++[.)])[ \t]++"
"""Marker of a list item, and the blanks after it."""
ITEM_BEGUN = rf"(?:(?:{ITEM})++()\Z|(?:{ITEM})*+(?:[-*+]()\Z|[0-9]++(?:()\Z|[.)]()\Z)))"
"""Markers of list items up to the end of the text. The groups: after a blank, after a marker, in a number, after a
marker.
"""
FENCE_IN_LINE = rf"(?:{TICK}{{3}}|{TICK}{{1,2}}\Z)"
"""Backticks that may be those of a fence, within a line."""
INDENT = r"(?: {4}| {0,3}\t)"
"""Indentation that makes a line code."""
INDENTED_CODE = Run(
    rf"[^\n]*+(?:\n(?:[ \t]*+\r?\n)*+{INDENT}[^\n]*+)*+"
    rf"(?:(\n(?:[ \t\r\n]{{0,{MAX_NEWLINES}}}[\r\n])?\Z)|\n (?:()\Z| (?:()\Z| ()\Z)))?+",
    search=re.compile(r"\n").search,
)
INDENTS = tuple(
    Run(rf"(?:(?!)()|(?: {{{4 - columns}}}| {{0,{3 - columns}}}\t)[^\n]*+()\Z| (?:()\Z| ()\Z))?+")
    for columns in (1, 2, 3)
)
"""Runs for lines after indented code, by the number of blanks that they begin with."""
INDENTED_CODE.next_runs = {2: INDENTS[0], 3: INDENTS[1], 4: INDENTS[2]}
INDENTS[0].next_runs = {2: INDENTED_CODE, 3: INDENTS[1], 4: INDENTS[2]}
INDENTS[1].next_runs = {2: INDENTED_CODE, 3: INDENTS[2]}
INDENTS[2].next_runs = {2: INDENTED_CODE}
AFTER_CODE = f"{TICK}A-Za-z0-9"
"""Characters after a backtick that make it more than the end of inline code, apart from the first characters of markers
that are recognized at the start of a line.
"""
HELD_NEWLINES = rf"{LINES}{{1,{MAX_NEWLINES // 2}}}+"
"""Newlines that may precede an opener."""


@frozen(eq=False, repr=False)
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
    at: Markers[Marked], line: Markers[Marked], keys: Keys, fence: str, *, blocks: bool
) -> tuple[dict[LinePlace, Run], ObjectRuns]:
    """Return the runs for text in which nothing begins, by place, and those for objects. `fence` matches a fence that
    is too short. Without `blocks`, only code within a line counts.

    Three things are skipped completely: inline code between single backticks that ends on its line; a line of a
    block quote; and a small object whose first keys show that it is not a call (through its end, or up to the point
    where it stops being JSON). Newlines at the end of a piece wait for the text after them; blanks after those
    newlines do not wait: the run changes instead.
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
    #               not a call, inline code or a quote up to its end, a backslash and what it escapes ;
    #     waits   = ( newlines | newlines, begun fence or label | [ newlines ], begun marker ), end ;    (* group 1 *)
    #     changes = ( newlines, list items | newlines, blanks | inline code | [ newlines ], begun object
    #               | block quote | backtick | inline code, backtick | backslash | colon ), end ;     (* 2 to 13 *)
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
    follows = f"[{AFTER_CODE}{''.join(map(first_characters, line.root.next))}]"
    # In reasoning, code that begins with a marker may continue after its line, so the grammar reads it.
    marker = "" if blocks else f"(?![{''.join(first)}])"
    opened = f"{TICK}(?!{TICK}){marker}[^{TICK}\r\n]++"
    beginning, small, begun = plain_object(keys)
    objects = rf"{small}|{beginning}{JSON_FLAT}{JSON_ENDS}"
    label, blanks = line.beginning(COMPARED), r"[ \t]*+"
    lines = rf"(?<!\n){LINES}++"
    # A blank line before an indented line may begin indented code, and list items may be followed by a quote.
    indented = r"(?=[ \t])(?:(?<=\n\n)|(?<=\n\r\n)|[ \t]++[\r\n])"
    items = rf"(?=[-*+0-9])(?:{ITEM})*+(?:[>~]|{FENCE_IN_LINE}|\Z|[-*+]\Z|[0-9]++[.)]?+\Z)"
    # Newlines flow if the text after them cannot begin a marker at the start of a line. They are matched as a unit: the
    # lookbehind keeps the expression from starting in the middle of a run of newlines, where the remaining ones would
    # look like a shorter run.
    goes_on = (
        rf"{lines}(?!{blanks}(?:{END}|>|{items}|{label})|\r\Z|{indented})"
        if blocks
        else rf"{lines}(?!{blanks}(?:{label}|{END})|\r\Z)"
    )
    not_indented = rf"{lines}(?!{indented})"
    quoted = rf"{not_indented}{blanks}(?:{ITEM})*+{first.get('>', '>')}[^\r\n]*+" if blocks else NEVER
    # A fence may open after a colon, unless a marker begins with one.
    colon = ":" if ":" not in first else "(?!):"
    marks = "".join(mark for mark in r"*_" if mark not in first and re.escape(mark) not in first)
    before_fence = rf"[{marks} \t]*+"
    special = "".join([*first, *(":" if colon == ":" else ""), TICK, r"\\", r"\r\n"])
    plain = f"[^{special}]*+"
    near = f"(?:{'|'.join(first.values())}|{objects})"
    # The expression for near misses is by far the longest, so it appears only once.
    begins = "|".join(
        [
            other_tag(at, special),
            f"(?:{goes_on}|(?=[{''.join(first)}]))(?:(?![{''.join(first)}])|{near})",
            rf"{opened}{TICK}(?!{follows}|[{''.join(first)}]|\Z)",
            rf"\\(?:[{TICK}\\]|(?![{TICK}\\]|\Z))",
            rf"{colon}(?!{before_fence}(?:\Z|{FENCE_IN_LINE}))",
            rf"{quoted}(?!\Z)",
            r"\r(?!\n|\Z)",
        ],
    )
    safe = f"{plain}(?:(?:{begins}){plain})*+"
    fence = fence if blocks and TextFinding.FENCE in line.values else NEVER
    begun_line, begun_near = line.begun_expression_within(COMPARED), at.begun_expression_within(COMPARED, without=TICK)
    waits = rf"{HELD_NEWLINES}(?:\r?\Z|{fence}|{begun_line})|\r\Z|(?:{HELD_NEWLINES})?+{begun_near}"
    blank = rf"(?<!\n){LINES}(?!{LINES})[ \t]++" if blocks else rf"{lines}[ \t]++"
    label_begun = line.begun_expression("-*+0123456789")
    item_begins = rf"(?=[\r\n][ \t\r\n]*+[-*+0-9]){not_indented}{blanks}(?!{label_begun}){ITEM_BEGUN}|"
    items_begin = item_begins if blocks else "(?!)()()()()|"
    changes = (
        rf"{items_begin}{blank}(\Z|{begun_line})|{opened}()\Z|((?:{HELD_NEWLINES})?+{begun})|{quoted}()\Z"
        rf"|{TICK}()\Z|{opened}{TICK}()\Z|\\()\Z|{colon}{before_fence}()\Z"
    )
    # Usually, nothing waits, so the end of the text is the first alternative.
    inside = Run(rf"{safe}(?:\Z|({waits})|{changes})?+", search=re.compile(f"[{special}]").search)
    tag = first.get("<", NEVER)
    # At the start of a line, blanks flow, and text that is neither a label nor the beginning of a marker changes the
    # run to `inside` (2). Everything else stops the run, and `grammar/lines.py` decides.
    no_block = rf"(?!>|{items})" if blocks else ""
    flows = rf"(?:(?![{special}])|{tag}|{objects}){plain}"
    at_start = rf"(?=[^ \t]){no_block}(?!{label}){flows}"
    start = Run(rf"[ \t]*+(?:({begun_line})|{at_start}()|({begun}){f'|{ITEM_BEGUN}' if blocks else ''})?+")
    code = Run(
        rf"[^{TICK}\r\n]*+(?:(?!)()|{TICK}(?:()\Z|(?!{follows}|[{special}]){plain}()\Z))?+",
        search=re.compile(rf"[{TICK}\r\n]").search,
    )
    in_object = ObjectRuns.of(keys, plain)
    in_object.connect(inside)
    place = LinePlace
    runs = {
        place.START: start,
        place.INSIDE: inside,
        place.ESCAPE: Run(rf"(?:(?!)()|(?!\Z)[{TICK}\\]?+{plain}()\Z)?+"),
        place.OPENING: Run(rf"(?:(?!)()|{marker}[^{TICK}\r\n]++()\Z)?+"),
        place.COLON: Run(rf"{before_fence}(?:(?!)()|()\Z|(?![{special}]|\Z){plain}()\Z)?+"),
        place.CODE: code,
        place.CLOSING: Run(rf"(?:(?!)()|(?!{follows}|[{special}]|\Z){plain}()\Z)?+"),
    }
    inside.next_runs = {6: start, 7: code, 8: in_object.head, 10: runs[place.OPENING], 11: runs[place.CLOSING]}
    inside.next_runs |= {12: runs[place.ESCAPE], 13: runs[place.COLON]}
    runs[place.COLON].next_runs = {2: runs[place.COLON], 3: inside}
    start.next_runs = {2: inside, 3: in_object.head}
    code.next_runs = {2: runs[place.CLOSING], 3: inside}
    runs[place.ESCAPE].next_runs = runs[place.CLOSING].next_runs = {2: inside}
    runs[place.OPENING].next_runs = {2: code}
    if blocks:
        ends = rf"({HELD_NEWLINES}\r?\Z|\r\Z)|{goes_on}(?![{''.join(first)}]){plain}()\Z|{quoted}()\Z"
        quote = Run(rf"[^\r\n]*+(?:(?!)()|{ends})?+", search=re.compile(r"[\r\n]").search)
        quote.next_runs = {2: inside, 3: inside, 4: quote}
        further = rf"(?:(?!)()|()\Z|{ITEM_BEGUN}|(?:{ITEM})*+(?![>~{special}]|\Z){plain}()\Z)"
        digits = Run(rf"[0-9]*+(?:(?!)()|()\Z|[.)]()\Z|[.)][ \t]++{further})?+")
        mark = Run(rf"(?:[ \t]++{further}|(?![ \t{special}]|\Z){plain}()\Z)?+")
        item = Run(rf"[ \t]*+{further}?+")
        runs |= {place.QUOTE: quote, place.INDENTED: INDENTED_CODE}
        runs |= dict(zip((place.INDENT_1, place.INDENT_2, place.INDENT_3), INDENTS, strict=True))
        runs |= {place.ITEM_DIGITS: digits, place.ITEM_MARK: mark, place.ITEM: item}
        inside.next_runs |= {2: item, 3: mark, 4: digits, 5: mark, 9: quote}
        start.next_runs |= {4: item, 5: mark, 6: digits, 7: mark}
        item.next_runs = {2: item, 3: item, 4: mark, 5: digits, 6: mark, 7: inside}
        mark.next_runs = item.next_runs | {8: inside}
        digits.next_runs = {2: digits, 3: mark} | {group + 3: run for group, run in item.next_runs.items()}
    return runs, in_object


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


@frozen(eq=False, repr=False)
class Closers:
    """Closers that may occur in text."""

    every: tuple[str, ...]
    """Closers of wrappers, messages and sections; they count while something is open."""
    reasoning: frozenset[str]
    """Closers of reasoning; one at the very beginning of a reply closes the reasoning that the prompt opened."""
    special: frozenset[str]
    """Special tokens that close sections, messages and turns; they are always recognized."""
    only_sections: frozenset[str]
    """Special tokens that close sections and nothing else."""
    stops: Markers[str]
    """Special tokens that end a turn."""
    implied: Mapping[str, tuple[str, ...]]
    """Closer of reasoning between special tokens → openers of the same format's text, which end that reasoning too;
    beginning of a message → opener of the next one, which ends a message of reasoning."""
    calls: frozenset[str]
    """Closers of calls and of the wrappers around them: tags that may be left over at the end of a reply."""
    values: frozenset[str]
    """Closers of values, which may be left over before such a tag."""

    @classmethod
    def of(cls, formats: Sequence[Format], sections: Sequence[Section], native: Sequence[Format]) -> "Closers":
        """Return the closers of these formats and sections. `native` are the formats of the models."""
        every: dict[str, None] = {}
        ends_of_messages: set[str] = set()
        for form in formats:
            every.update((close, None) for _, close in form.wrappers)
        for form in native:
            for variant in form.variants:
                if isinstance(variant.body, MessageBody):
                    every.update((end, None) for end in variant.body.ends)
                    ends_of_messages.update(variant.body.ends)
        every.update((section.close, None) for section in sections)
        stops = frozenset((*STOPS, *(stop for form in native for stop in form.stops)))
        every.update((stop, None) for stop in sorted(stops))
        lone = frozenset(section.close for section in sections if not section.text)
        special = [section for section in sections if section.anchor is Anchor.ANYWHERE]
        implied: dict[str, tuple[str, ...]] = {}
        for form in native:
            texts = tuple(section.open for section in form.sections if section.text and section in special)
            implied |= {section.close: texts for section in form.sections if not section.text and section in special}
            bodies = [variant.body for variant in form.variants]
            implied |= {body.begin: body.openers[:1] for body in bodies if isinstance(body, MessageBody)}
        strays = frozenset(section.close for section in special) | stops
        only_sections = frozenset(section.close for section in special) - stops.union(ends_of_messages)
        calls, values = left_over(formats)
        return cls(
            every=tuple(every),
            reasoning=lone,
            special=strays,
            only_sections=only_sections,
            stops=Markers([(stop, stop) for stop in sorted(stops)]),
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
    return [tag for word in words for tag in (f"<{word}>", f"<{word}{{ }}", f"<{word}=")]


def without_prefixes(found: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the markers that neither begin with one of the others nor are a prefix of one."""
    known = tuple({strip_optional("", other) for other in others})
    lines = "\0".join(("", *known))
    return [
        marker
        for marker, plain in ((marker, strip_optional("", marker)) for marker in found)
        if not plain.startswith(known) and f"\0{plain}" not in lines
    ]


class Scanners:
    """Scanners for all situations, each created on first use."""

    __slots__ = (
        "_closers",
        "_fences",
        "_first",
        "_line",
        "_made",
        "_openers",
        "_sections",
        "_unmarked",
        "after_text",
        "before_text",
    )

    def __init__(
        self,
        openers: Sequence[tuple[str, Marked]],
        line: Markers[Marked],
        sections: Sequence[Section],
        closers: Closers,
        unmarked: Unmarked,
        *,
        fences: Fences,
        first: Sequence[tuple[str, Marked]] = (),
    ) -> None:
        self._openers = openers
        self._line = line
        self._sections = sections
        self._closers = closers
        self._unmarked = unmarked
        self._fences = fences
        self._first = first
        """Openers that are recognized only before any text."""
        self._made: dict[tuple[bool, bool, bool], Scanner] = {}
        self.before_text = self.get(first=True, fresh=True)
        """Scanner to use while reasoning may open."""
        self.after_text: Scanner | None = None
        """Scanner to use after that, as long as no wrapper is open; None before its first use."""

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
        anywhere = [section for section in self._sections if section.anchor is Anchor.ANYWHERE]
        markers += [(section.open, section) for section in anywhere if fresh or not section.text]
        if first:
            markers += [(section.open, section) for section in self._sections if section.anchor is Anchor.REPLY]
            markers += self._first
            if self._unmarked.expressions:
                markers.append(("[{*}{a}", TextFinding.LIST))
        else:
            markers += [
                (section.open, section) for section in self._sections if section.alone and section not in anywhere
            ]
        taken = {marker for marker, _ in markers}
        known = self._closers
        alone = frozenset(section.close for section in self._sections if section.alone)
        ends = frozenset(known.every) if closers else known.special | (known.reasoning if first else alone)
        ends = ends.union(*known.implied.values()) if closers else ends
        markers += [(close, close) for close in sorted(ends) if close not in taken]
        markers += [(opener, TextFinding.STRUCK) for opener in STRUCK[1:] if STRUCK[0] in known.special]
        left_over = without_prefixes(sorted(known.calls | known.values), (marker for marker, _ in markers))
        markers += [(close, close) for close in left_over]
        turns = without_prefixes(SHOWN_TURNS, [marker for marker, _ in markers])
        markers += [(turn, TextFinding.TURN) for turn in turns]
        tags = without_prefixes(tags_of(known.calls | known.values), [marker for marker, _ in markers])
        markers += [(tag, TextFinding.TAG) for tag in tags]
        markers.sort(key=lambda marker: marker[0].startswith("[{*}"))  # `[muse]` takes precedence over a list
        at: Markers[Marked] = Markers([*markers, (TICK, TextFinding.TICK)])
        keys = self._unmarked.reply if first else self._unmarked.anywhere
        # An object at the beginning of a reply may be a call whose arguments are members of the object itself; only the
        # tool's schema decides. After text, the run passes over an object with a key that no call has.
        object_keys = {} if first else keys.get("{", {})
        fence = FENCE_BEGUN if first else self._fences.begun_after_text()
        runs, objects = text_runs(at, self._line, object_keys, fence, blocks=not closers)
        plain, small, begun = plain_object(object_keys)
        return Scanner(
            runs=runs,
            places={run: place for place, run in runs.items()},
            blocks=not closers,
            objects=objects,
            at=at,
            keys=keys,
            plain=re.compile(f"{small}|{plain}").match,
            begun=re.compile(begun).match,
            fence_begun=re.compile(fence).match,
        )
