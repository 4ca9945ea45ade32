r"""Search for literals in text that arrives in pieces, and for text that must be buffered until more arrives.

Theory of operation. A set of markers is one trie. A position in the text is examined in two steps: a regular expression
for all markers finds a complete marker (a group identifies it); if it finds none, a walk through the trie determines
whether the text ends inside a marker and has to be buffered.

Where text flows, both steps are combined in one expression in which every node may also be the end of the text:

    <tool_call> and <think>   ⇒   <(?:t(?:o(?:o(?:…|\Z)|\Z)|h(?:…|\Z)|\Z)|\Z)

Such an expression takes eight times as long to compile, so it is limited to a few characters wherever these are enough.

No marker in a set may begin with another one, because the result would depend on how the text is cut. `Markers` rejects
such a set.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from re import Match
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from statemachine.names import is_spelling
from statemachine.stream.runs import Run

T = TypeVar("T")

NAMESPACE = (r"[A-Za-z_]", r"[\w.-]{0,31}+", ":")
PIECES = {
    "{_}": r"[ \t]{0,16}+",
    "{ }": r"[ \t\r\n]",
    "{*}": r"[ \t\r\n]{0,64}+",
    "{n}": r"[ \t\r\n]{0,64}+",
    "{:}": r"(?::[\w.-]{0,31}+)?+",
    "{word}": r"[ \t\r\n]{0,64}+[\w.:/-]{0,128}+[ \t\r\n]{0,64}+",
    "{|}": "[|｜‖]{1,2}+",
    # Each part is optional, so that a name that is cut off matches too.
    "{=}": r"(?:(?=[ \t=])[ \t]{0,16}+n?+a?+m?+e?+[ \t]{0,16}+(?:=[ \t]{0,16}+[\"']?+[\w.:-]{0,128}+[\"']?+)?+)?+",
    "{'}": "[\"']?+",
    "{a}": r"(?=[A-Za-z_])",
    "{k}": r"(?=[A-Za-z_-])",
    "{quote}": "[\"'\u201c\u201d\u2018\u2019]",
}
END = r"\Z"
NEVER = "(?!)"
LATIN_1 = "".join(map(chr, range(256)))
escape = lru_cache(maxsize=1024)(re.escape)
NEWLINE = escape("\n")
one_char = re.compile(r"\\?(.)|\[([^\]]+)\](?:\{1,2\}\+)?", re.DOTALL).fullmatch
"""Matches an atom that is never empty, so that it begins with one character of a set: a literal, or one or two
characters of a class.
"""


@lru_cache(maxsize=4096)
def atoms(marker: str, *, any_case: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return each spelling of a marker (see `format.py`) as regular expressions, one per character or piece."""
    head, found, tail = marker.partition("{ns}")
    if found:
        plain = tuple(one for way in atoms(head + tail, any_case=any_case) for one in way)
        cut = sum(1 for way in atoms(head, any_case=any_case) for _ in way)
        return plain, (*plain[:cut], *NAMESPACE, *plain[cut:])
    spelled: list[str] = []
    for part in re.split(r"(\{(?:[_ *:|akn'=]|word|quote)\})", marker):
        if part in PIECES:
            spelled.append(PIECES[part])
        else:
            for char in part:
                fold = any_case and char.lower() != char.upper()
                spelled.append(f"[{char.lower()}{char.upper()}]" if fold else escape(char))
    return (tuple(spelled),)


@lru_cache(maxsize=1024)
def literals(atom: str) -> str:
    """Return the characters that an atom stands for, or "" if it is not a single character."""
    found = re.fullmatch(r"\\?(.)|\[(\w+)\]", atom, re.DOTALL)
    return "" if found is None else found[1] or found[2]


@lru_cache(maxsize=1024)
def first_characters(atom: str) -> str:
    """Return the characters that an atom may begin with, in character-class syntax, or "" if the atom may be empty."""
    found = one_char(atom)
    return "" if found is None else found[2] or re.escape(found[1])


match_rest = re.compile(r".*\Z", re.DOTALL).match
"""Matches all remaining text."""


MANY: Final = 32
"""Number of markers above which the first match compiles only a part of the expression. The default formats have 338
markers: compiling all of them takes 7.7 ms, and those that begin with `<t` 2.7 ms.
"""


class MarkerNode:
    """Node of the trie: its child nodes, and whether a marker ends here."""

    __slots__ = ("_literals", "_steps", "group", "next")

    def __init__(self) -> None:
        self.next: dict[str, MarkerNode] = {}
        self.group = 0
        self._literals: Mapping[str, MarkerNode] = _NO_LITERALS
        """Character → child node; empty until first use."""
        self._steps: Sequence[Callable[[str, int], tuple[MarkerNode, int] | None]] | None = None
        """Steps to try, in order; empty if all of them are single characters, None until first use."""

    def complete_expression(self, begin: str = "") -> str:
        """Return the expression for all continuations. With `begin`, only those that begin with these characters can
        match, and the groups keep their numbers.
        """
        ways = []
        for atom, child in self.next.items():
            characters = literals(atom) if begin else ""
            if characters and begin[0] not in characters:
                ways.append(NEVER + "()" * sum(1 for _ in end_nodes(child)))
            else:
                ways.append(atom + child.complete_expression(begin[1:] if characters else ""))
        if self.group:
            ways.append("()")
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def is_begun(self, text: str, at: int) -> bool | None:
        """Return True if the text from `at` on is cut off inside a marker, False if it completes one, and None
        otherwise.
        """
        node, end = self, len(text)
        while at < end and not node.group:
            # If a pattern and a character accept the same text, the order of the markers decides, so each branch is
            # followed to its end before the next one is tried. Where all branches are single characters, at most one of
            # them applies, and the loop needs no recursion.
            ways = node._compile_steps() if node._steps is None else node._steps
            for way in ways:
                led = way(text, at)
                if led is not None and (begun := led[0].is_begun(text, led[1])) is not None:
                    return begun
            further = None if ways else node._literals.get(text[at])
            if further is None:
                return None
            node = further
            at += 1
        return not node.group

    def is_ambiguous(self) -> bool:
        """Return whether more than one branch may accept the same text, at this node or further down."""
        patterns = any(not literals(atom) for atom in self.next)
        return (patterns and len(self.next) > 1) or any(child.is_ambiguous() for child in self.next.values())

    def _compile_steps(self) -> Sequence[Callable[[str, int], tuple["MarkerNode", int] | None]]:
        ways = []
        literal: dict[str, MarkerNode] = {}
        for characters, group in groupby(self.next.items(), lambda way: bool(literals(way[0]))):
            if characters:
                led = {char: child for atom, child in group for char in literals(atom)}
                literal.update(led)
                ways.append(partial(_by_character, led))
            else:
                ways += [partial(_by_pattern, re.compile(atom).match, child) for atom, child in group]
        self._literals = literal
        self._steps = () if literal and len(ways) == 1 else ways
        return self._steps

    def expression(self, *, complete: str = "()") -> str:
        """Return the expression for all continuations, or for the end of the text; `complete` is inserted where a
        marker ends.
        """
        ways = [atom + child.expression(complete=complete) for atom, child in self.next.items()]
        ways.append(complete if self.group else END)
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def beginning(self, characters: int, *, complete: str = "", cut: str = "", without: str = "") -> str:
        """Return an expression like that of `expression`, but limited to the next `characters` characters; `cut` is
        inserted after the last of them.
        """
        if characters <= 0:
            return cut
        ways = [
            atom + child.beginning(characters - bool(one_char(atom)), complete=complete, cut=cut)
            for atom, child in self.next.items()
            if atom != without
        ]
        ways.append(complete if self.group else END)
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def sole_child(self, atom: str) -> "MarkerNode | None":
        """Return the node that this character leads to, or None if the character is not a literal or another branch
        accepts it too.
        """
        char = atom.removeprefix("\\")
        alone = len(char) == 1 and not any(re.match(other, char) for other in self.next if other != atom)
        return self.next.get(atom) if alone else None

    def near_misses(self, special: str, depth: int) -> str:
        """Return an expression for up to `depth` characters, none of them special, that do not continue any marker from
        this node.
        """
        heads = [first_characters(atom) for atom in self.next]
        if self.group or not all(heads):
            return NEVER
        ways = [f"[^{''.join(heads)}{special}]"]
        for atom in self.next if depth > 1 else ():
            child = self.sole_child(atom)
            if child is not None and atom not in special:
                ways.append(atom + child.near_misses(special, depth - 1))
        return alternatives(way for way in ways if not way.endswith(NEVER))


_NO_LITERALS: Final[Mapping[str, MarkerNode]] = MappingProxyType({})


def _by_character(led: Mapping[str, MarkerNode], text: str, at: int) -> tuple[MarkerNode, int] | None:
    node = led.get(text[at])
    return None if node is None else (node, at + 1)


def _by_pattern(
    match: Callable[[str, int], Match[str] | None], node: MarkerNode, text: str, at: int
) -> tuple[MarkerNode, int] | None:
    found = match(text, at)
    return None if found is None else (node, found.end())


class Markers(Generic[T]):
    """Set of markers, each associated with a value.

    With `shortest`, a marker that begins with another one is left out.

    Raises:
        ValueError: without `shortest`, two markers are equal, or one begins with another.
    """

    __slots__ = ("_ambiguous", "_whole", "root", "values")

    def __init__(self, markers: Iterable[tuple[str, T]], *, any_case: bool = False, shortest: bool = False) -> None:
        self.root = MarkerNode()
        by_node: dict[MarkerNode, T] = {}
        for marker, value in markers:
            for way in atoms(marker, any_case=any_case):
                node = self.root
                for atom in way:
                    if node.group:
                        break
                    child = node.next.get(atom)
                    if child is None:
                        child = node.next[atom] = MarkerNode()
                    node = child
                if not shortest and (node.group or node.next):
                    raise ValueError(f"the marker {marker!r} is in the set, or begins like another marker in it")
                if not node.group:
                    node.group = 1
                    node.next.clear()
                    by_node[node] = value
        # Groups are numbered in the order of the finished expression, so the values are sorted the same way.
        self.values: list[T] = [by_node[node] for node in end_nodes(self.root)]
        self._whole: Callable[[str, int], Match[str] | None] = self._first_match
        self._ambiguous = False
        """Whether text that is cut off inside one marker may also match a later marker."""

    def match(self, text: str, at: int) -> Match[str] | None:
        """Match a marker at `at`: complete (its group matched) or cut off by the end of the text (no group matched)."""
        # A complete marker is the common case and needs one match. In an ambiguous set that match may be wrong: its
        # text may also be the beginning of an earlier marker, so the trie has to be checked first.
        found = self._whole(text, at)
        if (found is None or self._ambiguous) and at < len(text) and self.root.is_begun(text, at):
            return match_rest(text, at)
        return found

    def compile(self) -> None:
        """Compile the expression. Without this call, that happens once text begins like a marker (among many markers,
        for the second time), because many sets are used only as parts of a larger expression.
        """
        self._ambiguous = self.root.is_ambiguous()
        self._whole = re.compile(self.root.complete_expression() if self.root.next else NEVER).match

    def _first_match(self, text: str, at: int) -> Match[str] | None:
        heads = [first_characters(atom) for atom in self.root.next]
        if all(heads):
            self._ambiguous = self.root.is_ambiguous()
            begins = re.compile(f"[{''.join(heads)}]" if heads else NEVER).match
            self._whole = partial(self._match_begun, begins, len(self.values) > MANY)
        else:
            self.compile()
        return self._whole(text, at)

    def _match_begun(
        self, begins: Callable[[str, int], Match[str] | None], part: bool, text: str, at: int
    ) -> Match[str] | None:
        """Match text that begins like a marker, and compile the expression or, if `part` is true, what can match here.
        The next match then compiles all of it.
        """
        if begins(text, at) is None:
            return None
        begin = text[at : at + 2]
        if part and len(begin) == 2:
            self._whole = partial(self._match_begun, begins, False)
            return re.compile(self.root.complete_expression(begin)).match(text, at)
        self.compile()
        return self._whole(text, at)

    def expression(self, complete: str = "()") -> str:
        """Return the expression for a marker, complete or cut off by the end of the text."""
        return alternatives(atom + child.expression(complete=complete) for atom, child in self.root.next.items())

    def begun_expression(self, first: str = "") -> str:
        """Return the expression for a marker cut off by the end of the text; if `first` is not empty, only for markers
        that may begin with one of these characters.
        """
        return alternatives(
            atom + child.expression(complete=NEVER)
            for atom, child in self.root.next.items()
            if not first or not (heads := first_characters(atom)) or any(char in heads for char in first)
        )

    def beginning(self, characters: int) -> str:
        """Return the expression for text that shares its first `characters` characters with a marker; where it does not
        match, no marker begins.
        """
        return self.root.beginning(characters)

    def begun_expression_within(self, characters: int, *, without: str = "") -> str:
        """Return the expression for a marker that is cut off by the end of the text after at most `characters`
        characters, except for markers that begin with the character `without`.
        """
        return self.root.beginning(characters, complete=NEVER, cut=END, without=without)


def alternatives(ways: Iterable[str]) -> str:
    """Return the expression for any of these alternatives; it never matches if the list is empty."""
    return f"(?:{'|'.join(ways) or '(?!)'})"


def end_nodes(root: MarkerNode) -> Iterator[MarkerNode]:
    """Yield the nodes where markers end, in the order of their groups in `MarkerNode.expression`."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.group:
            yield node
        nodes += reversed(node.next.values())


def text_expression(markers: Markers[T]) -> str:
    """Return an expression for text in which no marker begins; group 1 is text at the end that has to wait."""
    # Possessive quantifiers: a character that begins no marker never has to be given back, so matching takes linear
    # time.
    plain = f"[^{''.join(markers.root.next)}]*+"
    begins = "|".join(f"{atom}(?!{child.expression(complete='')})" for atom, child in markers.root.next.items())
    return f"{plain}(?:(?:{begins}){plain})*+({markers.begun_expression()})?+"


def trimmed_text_expression(markers: Markers[T]) -> str:
    """Return an expression like that of `text_expression`, but without one newline directly before a marker or at the
    end.
    """
    heads, marker, begun = "".join(markers.root.next), markers.expression(complete=""), markers.begun_expression()
    begins = "|".join(f"{atom}(?!{child.expression(complete='')})" for atom, child in markers.root.next.items())
    waits = rf"(\r?\n(?:{begun}|\Z)|\r\Z|{begun})?+"
    lines = markers.root.next.get(NEWLINE)
    if lines is not None and escape("\r") not in markers.root.next:
        # The text stops at each newline anyway, so no newline has to be given back.
        end = rf"(?:\Z|{marker})"
        special = rf"\r{heads}"
        plain, other = plain_text(special), rf"[^\x00-\xff{heads}][^{special}]*+"
        ways = rf"\n(?={lines.near_misses(special, 1)})|(?!\n{end})(?:{begins})|\r(?!\n?{end})|{other}"
        return f"{plain}(?:(?:{ways}){plain})*+{waits}"
    # The expression matches greedily and then gives that newline back, because stopping at each newline would be three
    # times as slow.
    whole = rf"(?:(?<![\r\n])|(?<=\n)(?!\Z|{marker})|(?<=\r)(?!\Z|\n|{marker}))"
    return rf"[^{heads}]*(?:(?:{begins})[^{heads}]*)*{whole}{waits}"


def plain_text(heads: str) -> str:
    """Return an expression for Latin-1 text without these characters. A class that lists what it accepts is faster than
    a negated one, but only up to U+00FF.
    """
    ranges = [part for part in re.split(f"[{heads}]", LATIN_1) if part]
    return f"[{''.join(f'{re.escape(part[0])}-{re.escape(part[-1])}' for part in ranges)}]*+"


def text_run(markers: Markers[T], *, convert: Callable[[str], str] | None = None, trim: bool = False) -> Run:
    """Return the run for text in which no marker begins. With `convert`, its `search` also recognizes text that merely
    needs conversion.
    """
    first, line_end = "".join(markers.root.next), r"\r\n" if trim else ""
    search = f"[{first}{line_end}]"
    if convert is not None:
        over = r"(?<![\r\n])()\Z" if trim else r"()\Z"
        search = rf"[{first}\"\\\x00-\x1f](?:(?<![{first}])[^{first}]*+{over})?+"
    return Run(
        trimmed_text_expression(markers) if trim else text_expression(markers),
        convert=convert,
        search=re.compile(search).search,
    )


named_in_closer = re.compile(r"=[ \t]*+[\"']?+([^\"'>]*+)[\"']?+>").search


def names_other(closer: str, name: str | None) -> bool:
    """Return whether a closer contains a name (`{=}`) that is not a spelling of this one."""
    if "=" not in closer:
        return False
    found = named_in_closer(closer)
    return found is not None and found[1] != name and not (name and is_spelling(found[1], name))


@lru_cache(maxsize=256)
def closers_of(closers: tuple[str, ...]) -> Markers[str]:
    """Return closers as markers. If one begins with another (as two fences may), only the longer one is included,
    because `Markers` rejects such a set.
    """
    different = dict.fromkeys(closers)
    longest = [close for close in different if not any(o != close and o.startswith(close) for o in different)]
    return Markers([(close, close) for close in longest])


@lru_cache(maxsize=256)
def run_to(closers: tuple[str, ...]) -> Run:
    """Return the run for text up to one of the closers."""
    return text_run(closers_of(closers))


def spell(marker: str) -> str:
    """Return a marker as it is written: without a namespace, and with an optional blank only at the end."""
    text = re.sub(r"\{(?:ns|word|[ *:ak'=])\}", "", marker.replace("{|}", "｜").replace("{n}", "\n"))
    return text.removesuffix("{_}").replace("{_}", "") + (" " if text.endswith("{_}") else "")
