r"""Regular expressions of response templates, as sequences of pieces from which markers can be made.

A pattern such as `<call>\s*<name=(?P<name>\w+)>` is a marker, a hole and another marker. The parser searches for
markers in text that arrives in pieces, so only patterns of this kind can be used: literals, optional and alternative
parts, whitespace, and groups and classes that stand for any text up to the next literal. Any other construct raises
PatternError, which names it. Text is not compared with a class: `\w+` stands for any name.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from attrs import frozen

from statemachine.formats import FormatError

MAX_WAYS = 64
"""Maximum number of spellings of a pattern."""
MAX_PATTERN = 8192
"""Maximum length of a pattern, in characters."""

T = TypeVar("T")


class PatternError(FormatError):
    """The pattern contains a construct that is not a sequence of markers."""


@frozen
class Space:
    """Whitespace."""

    required: bool = False
    written: str = ""
    """Line break or blanks that are written there."""


@frozen
class Anything:
    """Text that is not fixed."""

    word: bool = False
    """Whether it consists only of letters, digits and underscores."""


@frozen
class Hole:
    """Group whose text is used, such as the name of a call."""

    name: str


@frozen
class Edge:
    """Beginning or end of the reply, or a condition on the text that follows: neither is part of a marker."""

    text: str


PatternPiece = str | Space | Anything | Hole | Edge
Way = tuple[PatternPiece, ...]
"""One spelling of a pattern."""

LINE_ENDS = frozenset(("\n", "\r", "\t", "\r\n"))
WHITESPACE = frozenset(" \t\r\n\f\v")
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
CLASSES = "wWdDSs"
TAG_ENDS = (">", "]", "{*}")
quantifier = re.compile(r"(?:([*+?])|\{(\d*)(,?)(\d*)\})[?+]?").match
named_group = re.compile(r"\?P?<([A-Za-z_]\w*)>").match
bracketed = re.compile(r"\[\^?\]?(?:\\.|[^\\\]])*\]", re.DOTALL).match
category = re.compile(r"(\\[^pP])|\\[pP](?:\{\^?[\w=]+\}|[A-Z])").sub
placeholder = re.compile(r"\{(?:[:_ *|akn']|ns|key|tool|word|quote|name|index)\}").search


def ways_of(pattern: str) -> list[Way]:
    """Return the spellings of a pattern.

    Raises:
        PatternError: the pattern is invalid, or contains a construct that is not supported.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"the pattern is longer than {MAX_PATTERN} characters")
    try:
        re.compile(words(pattern), re.DOTALL)
        ways = _Reader(words(pattern)).alternatives()
    except re.error as error:
        raise PatternError(f"the pattern {pattern!r} is invalid: {error}") from None
    except RecursionError:
        raise PatternError("the pattern is nested too deeply") from None
    return unique(joined(piece for part in way for piece in spaced(part)) for way in ways)


def words(pattern: str) -> str:
    r"""Return the pattern with `\w` instead of each Unicode category, such as `\p{L}`: text is not compared with it."""
    return category(lambda found: found[1] or r"\w", pattern)


def spaced(piece: PatternPiece) -> Iterator[PatternPiece]:
    """Yield the piece; a literal is split at its line breaks, which match any whitespace."""
    if not isinstance(piece, str):
        yield piece
        return
    for part in re.split(r"([ \t\r]*\n\s*)", piece):
        if part:
            yield Space(required=True, written="\n") if "\n" in part else part


def literal(text: str) -> Way:
    """Return the spelling of a literal."""
    return tuple(spaced(text))


def unique(found: Iterable[T]) -> list[T]:
    """Return the items without repetitions, in order."""
    return list(dict.fromkeys(found))


def joined(way: Iterable[PatternPiece]) -> Way:
    """Join adjacent literals, and adjacent whitespace."""
    out: list[PatternPiece] = []
    for piece in way:
        last = out[-1] if out else None
        if isinstance(piece, str) and isinstance(last, str):
            out[-1] = last + piece
        elif isinstance(piece, Space) and isinstance(last, Space):
            out[-1] = Space(piece.required or last.required, last.written or piece.written)
        elif isinstance(piece, Anything) and isinstance(last, Anything):
            out[-1] = Anything(piece.word and last.word)
        else:
            out.append(piece)
    return tuple(out)


def trimmed(way: Way) -> Way:
    """Return the spelling without whitespace and conditions at its ends. A blank at the end of a literal is kept."""
    kept = list(way)
    for end in (0, -1):
        while kept and isinstance(kept[end], Space | Edge):
            del kept[end]
    first = kept[0] if kept else None
    if isinstance(first, str) and first[:1] in WHITESPACE:
        text = first.lstrip()
        return trimmed((*([text] if text else []), *kept[1:]))
    return tuple(kept)


def marker(way: Way, *, lines: bool = False) -> str:
    """Return a spelling as a marker (`statemachine/formats/format.py`), without whitespace at its ends. With `lines`,
    its line breaks are written.

    Raises:
        PatternError: the spelling contains text that is not fixed.
    """
    out: list[str] = []
    for piece in trimmed(way):
        match piece:
            case str():
                if placeholder(piece):
                    raise PatternError(f"the marker {piece!r} contains braces that have a meaning in markers")
                out.append(piece)
            case Space(written=written):
                out.append("{n}" if lines and written else "{*}")
            case Anything(word=True):
                out.append("{word}")
            case Anything() if out and out[-1].endswith(TAG_ENDS):  # between two tags, such as an author's name
                out.append("{word}")
            case Anything():
                raise PatternError("text that is not fixed in the middle of a marker is not supported")
            case Edge(text=text):
                raise PatternError(f"{text!r} in the middle of a marker is not supported")
            case Hole(name=name):
                raise PatternError(f"the group {name!r} is not expected here")
    text = "".join(out)
    return re.sub(r"(?:\{[*n]\})?\{word\}(?:\{[*n]\})?", "{word}", text)  # `{word}` includes the whitespace around it


def spelled(piece: PatternPiece) -> str:
    """Return how a piece of a header is written; the only group is the name."""
    match piece:
        case str():
            return piece
        case Space():
            return " "
        case Hole():
            return "{name}"
        case _:
            return ""


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self) -> list[Way]:
        """Read up to the end of the group or of the pattern."""
        ways = self.sequence()
        while self.pattern.startswith("|", self.at):
            self.at += 1
            ways += self.sequence()
            self.check_number(ways)
        return ways

    def check_number(self, ways: list[Way]) -> None:
        """Reject a pattern with too many spellings."""
        if len(ways) > MAX_WAYS:
            raise PatternError(f"the pattern {self.pattern!r} has more than {MAX_WAYS} spellings")

    def sequence(self) -> list[Way]:
        """Read the parts of one alternative."""
        ways: list[Way] = [()]
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            part = self.quantified(self.part())
            ways = unique(joined((*one, *other)) for one, other in itertools.product(ways, part))
            self.check_number(ways)
        return ways

    def part(self) -> list[Way]:
        """Read a character, a class or a group."""
        char = self.pattern[self.at]
        if char == "(":
            return self.group()
        if char == "[":
            found = bracketed(self.pattern, self.at)
            if found is None:
                raise PatternError(f"the class at {self.pattern[self.at :]!r} is not supported")
            self.at = found.end()
            return [(class_of(found[0]),)]
        self.at += 1
        if char == "\\":
            return self.escape()
        if char == ".":
            return [(Anything(),)]
        if char in "^$":
            return [(Edge(char),)]
        if char in "*+?":
            raise PatternError(f"the pattern {self.pattern!r} is not supported at {char!r}")
        return [(char,)]

    def escape(self) -> list[Way]:
        """Read the rest of an escape."""
        char = self.pattern[self.at]
        self.at += 1
        if char in CLASSES:
            return [(Space(required=True) if char == "s" else Anything(char in "wd"),)]
        if char in "AZ":
            return [(Edge(f"\\{char}"),)]
        if char in ESCAPED:
            return [(ESCAPED[char],)]
        if char in "xuU":
            digits = {"x": 2, "u": 4, "U": 8}[char]
            code = self.pattern[self.at : self.at + digits]
            self.at += digits
            return [(chr(int(code, 16)),)]
        if char.isalnum():
            raise PatternError(f"\\{char} in the pattern {self.pattern!r} is not supported")
        return [(char,)]

    def group(self) -> list[Way]:
        """Read a group."""
        start = self.at
        self.at += 1
        name = ""
        found = named_group(self.pattern, self.at)
        if found is not None:
            name, self.at = found[1], found.end()
        elif self.pattern.startswith(("?:", "?="), self.at):
            self.at += 2
        elif self.pattern.startswith("?", self.at):
            raise PatternError(f"{self.pattern[start : start + 4]!r} in the pattern {self.pattern!r} is not supported")
        ahead = self.pattern.startswith("(?=", start)
        begin = self.at
        if name or ahead:
            self.skip()
        if name and any(named_group(self.pattern, i) for i in range(begin, self.at)):
            name, self.at = "", begin  # the groups inside it are of interest
        ways = [] if name or ahead else self.alternatives()
        self.at += 1
        if ahead:
            return [(Edge(self.pattern[start : self.at]),)]
        return [(Hole(name),)] if name else ways

    def skip(self) -> None:
        """Skip the text of a group up to its closing parenthesis, because the parser itself finds the end of a name."""
        depth = 1
        while depth:
            found = bracketed(self.pattern, self.at)
            char = self.pattern[self.at]
            depth += (char == "(") - (char == ")")
            self.at = self.at if not depth else found.end() if found else self.at + 1 + (char == "\\")

    def quantified(self, part: list[Way]) -> list[Way]:
        """Read a quantifier, if any, and return the spellings of the repeated part."""
        found = quantifier(self.pattern, self.at)
        if found is None:
            return part
        self.at = found.end()
        low, high = limits_of(found)
        if low == high == 1:
            return part
        pieces = {piece for way in part for piece in way}
        if all(isinstance(piece, Space) or piece in LINE_ENDS for piece in pieces):
            return [(Space(required=low > 0),)]
        if high == 1:
            return unique([*part, ()])
        if pieces == {" "}:
            return [(Space(required=low > 0),)]
        if all(len(way) == 1 for way in part) and any(isinstance(piece, Anything) for piece in pieces):
            return [(Anything(),)]  # `(?:.|\n)*`
        if len(part) == 1 and len(part[0]) == 2 and isinstance(part[0][0], Edge) and isinstance(part[0][1], Anything):
            return [(Anything(),)]  # `(?:(?=[^<]).)*`
        raise PatternError(f"the repetition {found[0]!r} in the pattern {self.pattern!r} is not supported")


def limits_of(found: re.Match[str]) -> tuple[int, int | None]:
    """Return the lowest and the highest number of repetitions; None means that the number is unlimited."""
    if found[1]:
        return int(found[1] == "+"), 1 if found[1] == "?" else None
    low = int(found[2] or 0)
    return low, int(found[4]) if found[4] else None if found[3] else low


def class_of(text: str) -> PatternPiece:
    """Return what a class in square brackets stands for: whitespace, one character, or any text."""
    inside = text[1:-1]
    if inside.startswith("^"):
        return Anything()
    plain = re.sub(r"\\[ntrfv]", lambda found: ESCAPED[found[0][1]], inside).replace("\\s", " ")
    if set(plain) <= WHITESPACE:
        return Space(required=True)
    single = re.fullmatch(r"\\?([^\\\w])", plain)
    return single[1] if single else Anything(re.fullmatch(r"(?:\w-\w|\\[wd]|[\w.:/-])+", plain) is not None)
