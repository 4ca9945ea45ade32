"""Finding literals in text that arrives in pieces: search, and what must be held back.

Theory of operation. A set of markers is one trie. What stands at a place in the text is asked of it in two steps: a
regular expression of all markers finds a whole one (a group says which), and where there is none, a walk through the
trie finds out whether the text ends on the way to one, and has to be held back.

Where text flows, both questions are one, in an expression in which every node may also be the end of the text:

    <tool_call> and <think>   ⇒   <(?:t(?:o(?:o(?:…|\\Z)|\\Z)|h(?:…|\\Z)|\\Z)|\\Z)

It takes eight times as long to compile, so it is made of few characters wherever that is enough.

No marker of a set may begin with another one: the answer would depend on how the text is cut. `Markers` refuses such a
set when it is made.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from re import Match
from typing import Generic, TypeVar

from statemachine.runs import Run

T = TypeVar("T")

NAMESPACE = (r"[A-Za-z_]", r"[\w.-]{0,31}+", ":")
PIECES = {
    "{_}": r"[ \t]{0,16}+",
    "{ }": r"[ \t\r\n]",
    "{*}": r"[ \t\r\n]{0,64}+",
    "{:}": r"(?::[\w.-]{0,31}+)?+",
    "{word}": r"[ \t\r\n]{0,64}+[\w.:/-]{0,128}+[ \t\r\n]{0,64}+",
    "{|}": "[|｜‖]{1,2}+",
    "{a}": r"(?=[A-Za-z_])",
    "{quote}": "[\"'\u201c\u201d\u2018\u2019]",
}
END = r"\Z"
NEVER = "(?!)"
one_char = re.compile(r"\\?(.)|\[([^\]]+)\](?:\{1,2\}\+)?", re.DOTALL).fullmatch
"""What begins with one character of a set, without which it cannot stand: a literal, or one or two of a class."""


def atoms(marker: str, *, any_case: bool = False) -> Iterator[tuple[str, ...]]:
    """Each way to spell a marker (see `format.py`), as regular expressions of one character each."""
    head, found, tail = marker.partition("{ns}")
    if found:
        plain = tuple(one for way in atoms(head + tail, any_case=any_case) for one in way)
        cut = sum(1 for way in atoms(head, any_case=any_case) for _ in way)
        yield plain
        yield (*plain[:cut], *NAMESPACE, *plain[cut:])
        return
    spelled: list[str] = []
    for part in re.split(r"(\{(?:[_ *:|a]|word|quote)\})", marker):
        if part in PIECES:
            spelled.append(PIECES[part])
        else:
            for char in part:
                fold = any_case and char.lower() != char.upper()
                spelled.append(f"[{char.lower()}{char.upper()}]" if fold else re.escape(char))
    yield tuple(spelled)


def literals(atom: str) -> str:
    """The characters that an atom stands for; "" if it is more than one of some characters."""
    found = re.fullmatch(r"\\?(.)|\[(\w+)\]", atom, re.DOTALL)
    return "" if found is None else found[1] or found[2]


def head(atom: str) -> str:
    """The characters with which an atom begins, as they stand in a class; "" if it may be empty."""
    found = one_char(atom)
    return "" if found is None else found[2] or re.escape(found[1])


rest = re.compile(r".*\Z", re.DOTALL).match
"""All that is left of a text."""


class MarkerNode:
    """A place in the trie: where to go from here, and the group that says that a marker ends here."""

    __slots__ = ("_literals", "_ways", "group", "next")

    def __init__(self) -> None:
        self.next: dict[str, MarkerNode] = {}
        self.group = 0
        self._literals: dict[str, MarkerNode] = {}
        """Where characters lead."""
        self._ways: Sequence[Callable[[str, int], tuple[MarkerNode, int] | None]] | None = None
        """What to try, one after the other, if not only characters lead on; None: not asked yet."""

    def whole(self) -> str:
        """What may follow."""
        ways = [atom + child.whole() for atom, child in self.next.items()]
        if self.group:
            ways.append("()")
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def begun(self, text: str, at: int) -> bool | None:
        """What goes on at `at` as from here: a marker that the text cuts (True), a whole one (False), or none."""
        node, end = self, len(text)
        while at < end and not node.group:
            ways = node._divided() if node._ways is None else node._ways
            for way in ways:
                led = way(text, at)
                if led is not None and (begun := led[0].begun(text, led[1])) is not None:
                    return begun
            further = None if ways else node._literals.get(text[at])
            if further is None:
                return None
            node = further
            at += 1
        return not node.group

    def mixed(self) -> bool:
        """More than one way on may take the same text, here or further on."""
        patterns = any(not literals(atom) for atom in self.next)
        return (patterns and len(self.next) > 1) or any(child.mixed() for child in self.next.values())

    def _divided(self) -> Sequence[Callable[[str, int], tuple["MarkerNode", int] | None]]:
        ways = []
        for characters, group in groupby(self.next.items(), lambda way: bool(literals(way[0]))):
            if characters:
                led = {char: child for atom, child in group for char in literals(atom)}
                self._literals.update(led)
                ways.append(partial(_by_character, led))
            else:
                ways += [partial(_by_pattern, re.compile(atom).match, child) for atom, child in group]
        self._ways = () if len(self._literals) and len(ways) == 1 else ways
        return self._ways

    def expression(self, *, complete: str = "()") -> str:
        """What may follow, or the end of the text; `complete` stands where a marker ends."""
        ways = [atom + child.expression(complete=complete) for atom, child in self.next.items()]
        ways.append(complete if self.group else END)
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def beginning(self, characters: int, *, complete: str = "", cut: str = "") -> str:
        """The same of so many characters more; `cut` stands behind the last."""
        if characters <= 0:
            return cut
        ways = [
            atom + child.beginning(characters - bool(one_char(atom)), complete=complete, cut=cut)
            for atom, child in self.next.items()
        ]
        ways.append(complete if self.group else END)
        return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"

    def only(self, atom: str) -> "MarkerNode | None":
        """Where this character leads, if it is a literal that no other way on accepts; else None."""
        char = atom.removeprefix("\\")
        alone = len(char) == 1 and not any(re.match(other, char) for other in self.next if other != atom)
        return self.next.get(atom) if alone else None

    def misses(self, special: str, depth: int) -> str:
        """An expression of up to `depth` characters, none of them special, with which no marker goes on here."""
        heads = [head(atom) for atom in self.next]
        if self.group or not all(heads):
            return NEVER
        ways = [f"[^{''.join(heads)}{special}]"]
        for atom in self.next if depth > 1 else ():
            child = self.only(atom)
            if child is not None and atom not in special:
                ways.append(atom + child.misses(special, depth - 1))
        return alternatives(way for way in ways if not way.endswith(NEVER))


def _by_character(led: Mapping[str, MarkerNode], text: str, at: int) -> tuple[MarkerNode, int] | None:
    node = led.get(text[at])
    return None if node is None else (node, at + 1)


def _by_pattern(
    match: Callable[[str, int], Match[str] | None], node: MarkerNode, text: str, at: int
) -> tuple[MarkerNode, int] | None:
    found = match(text, at)
    return None if found is None else (node, found.end())


class Markers(Generic[T]):
    """A set of markers, each with the value that it stands for.

    Raises:
        ValueError: two markers are equal, or one begins with another.

    """

    __slots__ = ("_mixed", "_whole", "root", "values")

    def __init__(self, markers: Iterable[tuple[str, T]], *, any_case: bool = False) -> None:
        self.root = MarkerNode()
        self.values: list[T] = []
        order: list[MarkerNode] = []
        for marker, value in markers:
            for way in atoms(marker, any_case=any_case):
                node = self.root
                for atom in way:
                    if node.group:
                        raise ValueError(f"the marker {marker!r} begins with another marker of its set")
                    node = node.next.setdefault(atom, MarkerNode())
                if node.group or node.next:
                    raise ValueError(f"the marker {marker!r} stands in its set already, or another one begins with it")
                node.group = 1
                order.append(node)
                self.values.append(value)
        # groups are numbered in the order of the finished expression, values follow them
        by_node = dict(zip(map(id, order), self.values, strict=True))
        self.values = [by_node[id(node)] for node in ends(self.root)]
        self._whole: Callable[[str, int], Match[str] | None] = self._first_match
        self._mixed = False
        """A text that cuts one marker may be another, which comes later."""

    def match(self, text: str, at: int) -> Match[str] | None:
        """What stands at `at`: a marker (the group that matched says which), or the beginning of one (none matched)."""
        found = self._whole(text, at)
        if (found is None or self._mixed) and at < len(text) and self.root.begun(text, at):
            return rest(text, at)
        return found

    def _first_match(self, text: str, at: int) -> Match[str] | None:
        """Many sets are only parts of a larger expression, so this one is compiled when it is asked for."""
        self._mixed = self.root.mixed()
        self._whole = re.compile(self.root.whole() if self.root.next else NEVER).match
        return self._whole(text, at)

    def expression(self, complete: str = "()") -> str:
        """The regular expression of a whole marker or of one begun at the end of the text."""
        return alternatives(atom + child.expression(complete=complete) for atom, child in self.root.next.items())

    def begun(self) -> str:
        """The regular expression of a marker begun, and not finished, at the end of the text."""
        return alternatives(atom + child.expression(complete=NEVER) for atom, child in self.root.next.items())

    def beginning(self, characters: int) -> str:
        """The regular expression of what has the first characters of a marker in common: no marker stands elsewhere."""
        return self.root.beginning(characters)

    def short(self, characters: int) -> str:
        """The regular expression of a marker begun, with at most so many characters, at the end of the text."""
        return self.root.beginning(characters, complete=NEVER, cut=END)


def alternatives(ways: Iterable[str]) -> str:
    """The regular expression of one of these; of nothing if there are none."""
    return f"(?:{'|'.join(ways) or '(?!)'})"


def ends(node: MarkerNode) -> Iterator[MarkerNode]:
    """The nodes at which markers end, in the order in which `Node.expression` numbers their groups."""
    for child in node.next.values():
        yield from ends(child)
    if node.group:
        yield node


def flowing(markers: Markers[T]) -> str:
    """A regular expression of text in which no marker begins, then in group 1 what must wait at the end of the text."""
    plain = f"[^{''.join(markers.root.next)}]*+"
    begins = "|".join(f"{atom}(?!{child.expression(complete='')})" for atom, child in markers.root.next.items())
    return f"{plain}(?:(?:{begins}){plain})*+({markers.begun()})?+"


def trimmed(markers: Markers[T]) -> str:
    """As `flowing`, but one line end directly before a marker, or at the end of the text, does not flow.

    The text is taken whole and given back by that line end: to stop at each of them would be three times as slow.
    """
    plain = f"[^{''.join(markers.root.next)}]*"
    begins = "|".join(f"{atom}(?!{child.expression(complete='')})" for atom, child in markers.root.next.items())
    marker = markers.expression(complete="")
    whole = rf"(?:(?<![\r\n])|(?<=\n)(?!\Z|{marker})|(?<=\r)(?!\Z|\n|{marker}))"
    return rf"{plain}(?:(?:{begins}){plain})*{whole}(\r?\n(?:{markers.begun()}|\Z)|\r\Z|{markers.begun()})?+"


def flowing_run(markers: Markers[T], *, convert: Callable[[str], str] | None = None, trim: bool = False) -> Run:
    """The run of text in which no marker begins. What is to be converted, and nothing else, is found at once too."""
    first, line_end = "".join(markers.root.next), r"\r\n" if trim else ""
    search = f"[{first}{line_end}]"
    if convert is not None:
        over = r"(?<![\r\n])()\Z" if trim else r"()\Z"
        search = rf"[{first}\"\\\x00-\x1f](?:(?<![{first}])[^{first}]*+{over})?+"
    return Run(trimmed(markers) if trim else flowing(markers), convert=convert, search=re.compile(search).search)


@lru_cache(maxsize=256)
def closers_of(closers: tuple[str, ...]) -> Markers[str]:
    """Closers as markers; of two fences the longer one: a set in which one begins with the other has no answer."""
    different = dict.fromkeys(closers)
    longest = [close for close in different if not any(o != close and o.startswith(close) for o in different)]
    return Markers([(close, close) for close in longest])


@lru_cache(maxsize=256)
def run_to(closers: tuple[str, ...]) -> Run:
    """Text up to one of the closers."""
    return flowing_run(closers_of(closers))


def spelled(marker: str) -> str:
    """A marker as it is written: without namespace, a blank where one may stand at its end, nothing elsewhere."""
    text = re.sub(r"\{(?:ns|word|[ *:a])\}", "", marker.replace("{|}", "｜"))
    return text.removesuffix("{_}").replace("{_}", "") + (" " if text.endswith("{_}") else "")
