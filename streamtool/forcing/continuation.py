r"""The grammar of the text that may follow a given text, for a reply that another attempt continues.

    root ::= "[" number "]"      after the text  [1      ⇒  root ::= [0-9]{0,15} ( "." … )? … "]"

A grammar in GBNF is advanced over the text in the way in which llama.cpp's sampler does it: a set of stacks of the
elements that remain, in which each character removes the stacks that do not allow it. The alternation of the last
stacks is the grammar of the rest. Stacks and sets of stacks are unique objects, so the step for a character that a set
has met before is one lookup: a long string is as cheap as a search.

Only the notation that `forcing.gbnf` writes is read. The text and the number of stacks are bounded.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from attrs import frozen

from streamtool.forcing.gbnf import EMPTY, alternation, literal

MAX_TEXT: Final = 256 * 1024
"""Maximum number of characters to advance over."""
_MAX_STACKS: Final = 200
"""Maximum number of stacks in a set. Grammars for calls need fewer than 20, except for many tools."""
_MAX_STEPS: Final = 50_000
"""Maximum number of stacks that are expanded in all."""
_UNLIMITED: Final = -1

_TOKENS: Final = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*") | (?P<set>\[(?:[^\]\\]|\\.)*\]) | (?P<name>[\w-]+)
        | (?P<count>\{\d+(?:,\d*)?\} | [*+?]) | (?P<sign>[()|])
    )""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}


@frozen(eq=False)
class _Literal:
    """Literal text."""

    text: str


@frozen(eq=False)
class _Set:
    """One character of a set."""

    source: str
    matches: re.Pattern[str]


@frozen(eq=False)
class _Name:
    """The name of a rule."""

    name: str


@frozen(eq=False)
class _Group:
    """Alternatives, each a sequence of elements."""

    ways: tuple[tuple["_Element", ...], ...]


@frozen(eq=False)
class _Repetition:
    """An element that occurs `least` to `most` times."""

    element: "_Element"
    least: int
    most: int


_Element = _Literal | _Set | _Name | _Group | _Repetition
_Stack = tuple[_Element, "_Stack"] | tuple[()]
"""The elements that remain: the first one, and the stack of the others."""


class NoContinuationError(Exception):
    """The text does not match the grammar, or a bound is exceeded."""


def rest_grammar(grammar: str, text: str, again: str = "", then: str = "", *, begun: bool = False) -> str | None:
    """Return the grammar of the text that may follow `text`, or None if the grammar does not allow the text or if a
    bound is exceeded.

    `again` is text that the model has to write once more before that: the grammar begins with it. `then` is a grammar
    element that may follow all of it. With `begun`, return None if nothing has to follow the text.
    """
    if len(text) > MAX_TEXT:
        return None
    try:
        matcher = _Matcher(_rules(grammar))
        stacks = matcher.advance(text)
        if begun and () in stacks:
            return None
        rest = matcher.written(stacks)
    except NoContinuationError:
        return None
    begin = f"{literal(again)} " if again else ""
    return f"root ::= {begin}( {rest} ) {then}".rstrip() + "\n" + grammar.replace("root ::=", f"{_FIRST} ::=", 1)


def repeated_text_grammar(text: str) -> str:
    """Return a grammar for a reply that begins with this text, and that is free after it."""
    return f"root ::= {literal(text)} {ANY_TEXT}\n"


ANY_TEXT: Final = "( [^\\x00] )*"
"""A grammar element that matches any text."""
_FIRST: Final = "whole-reply"
"""The name of the grammar's first rule in the grammar of a rest. No rule refers to it."""


@lru_cache(maxsize=8)
def _rules(grammar: str) -> Mapping[str, _Element]:
    """Return the rules of a grammar by name."""
    rules: dict[str, _Element] = {}
    for line in grammar.splitlines():
        name, _, body = line.partition(" ::= ")
        tokens = [(found.lastgroup or "", found[found.lastgroup or 0]) for found in _TOKENS.finditer(body)]
        rules[name] = _Group(tuple(_ways(iter(tokens))))
    return rules


def _ways(tokens: Iterator[tuple[str, str]]) -> Iterator[tuple[_Element, ...]]:
    """Yield the alternatives up to the end of a group."""
    way: list[_Element] = []
    for kind, text in tokens:
        match kind:
            case "string":
                way.append(_Literal(_unescaped(text[1:-1])))
            case "set":
                way.append(_Set(text, re.compile(text, re.DOTALL)))
            case "name":
                way.append(_Name(text))
            case "count":
                least, _, most = text.strip("{}").partition(",")
                counts = {"*": (0, _UNLIMITED), "+": (1, _UNLIMITED), "?": (0, 1)}
                exact = int(least) if least.isdecimal() else 0
                upper = int(most) if most else (_UNLIMITED if "," in text else exact)
                way.append(_Repetition(way.pop(), *counts.get(text, (exact, upper))))
            case _ if text == "(":
                way.append(_Group(tuple(_ways(tokens))))
            case _ if text == "|":
                yield tuple(way)
                way = []
            case _:
                break
    yield tuple(way)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]), text)


class _Matcher:
    """A grammar, and the sets of stacks that have been met so far."""

    __slots__ = ("_left", "_next", "_repetitions", "_rules", "_sets", "_stacks", "_tails")

    def __init__(self, rules: Mapping[str, _Element]) -> None:
        self._rules = rules
        self._left = _MAX_STEPS
        self._stacks: dict[tuple[int, int], _Stack] = {}
        """The stacks, by the identities of their two parts."""
        self._tails: dict[int, _Literal] = {}
        self._repetitions: dict[tuple[int, int, int], _Repetition] = {}
        self._sets: dict[frozenset[int], tuple[_Stack, ...]] = {}
        """The sets of stacks, by the identities of the stacks."""
        self._next: dict[int, dict[str, tuple[_Stack, ...]]] = {}
        """For each set, the set that follows a character."""

    def advance(self, text: str) -> tuple[_Stack, ...]:
        """Return the stacks that remain after this text. Raises NoContinuationError if it is not allowed."""
        current = self._expanded([self._pushed(_Name("root"), ())])
        known = self._next.setdefault(id(current), {})
        for char in text:
            following = known.get(char)
            if following is None:
                following = known[char] = self._step(current, char)
            current = following
            known = self._next.setdefault(id(current), {})
        return current

    def _step(self, stacks: Sequence[_Stack], char: str) -> tuple[_Stack, ...]:
        """Return the stacks after one more character."""
        after: list[_Stack] = []
        for stack in stacks:
            if not stack:
                continue
            first, rest = stack
            if isinstance(first, _Set):
                if first.matches.match(char):
                    after.append(rest)
            elif isinstance(first, _Literal) and first.text[0] == char:
                after.append(rest if len(first.text) == 1 else self._pushed(self._tail(first), rest))
        if not after:
            raise NoContinuationError
        return self._expanded(after)

    def _expanded(self, stacks: list[_Stack]) -> tuple[_Stack, ...]:
        """Return these stacks with rules, groups and repetitions replaced by what they allow next."""
        found: dict[int, _Stack] = {}
        seen: set[int] = set()
        while stacks:
            stack = stacks.pop()
            if id(stack) in seen:
                continue
            seen.add(id(stack))
            self._left -= 1
            if self._left < 0 or len(found) > _MAX_STACKS:
                raise NoContinuationError
            if not stack:
                found[id(stack)] = stack
                continue
            first, rest = stack
            match first:
                case _Name(name):
                    stacks.append(self._pushed(self._rules[name], rest))
                case _Group(ways):
                    for way in ways:
                        below = rest
                        for element in reversed(way):
                            below = self._pushed(element, below)
                        stacks.append(below)
                case _Repetition(element, least, most):
                    if not least:
                        stacks.append(rest)
                    if most:
                        more = rest if most == 1 else self._pushed(self._fewer(first), rest)
                        stacks.append(self._pushed(element, more))
                case _Literal(""):
                    stacks.append(rest)
                case _:
                    found[id(stack)] = stack
        return self._sets.setdefault(frozenset(found), tuple(found.values()))

    def _pushed(self, element: _Element, rest: _Stack) -> _Stack:
        """Return the stack with one more element; equal stacks are the same object."""
        key = id(element), id(rest)
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = (element, rest)
        return found

    def _tail(self, element: _Literal) -> _Literal:
        """Return the text without its first character."""
        found = self._tails.get(id(element))
        if found is None:
            found = self._tails[id(element)] = _Literal(element.text[1:])
        return found

    def _fewer(self, one: _Repetition) -> _Repetition:
        """Return the repetition with one occurrence less."""
        least, most = max(0, one.least - 1), one.most if one.most == _UNLIMITED else one.most - 1
        if (least, most) == (one.least, one.most):
            return one
        key = id(one.element), least, most
        found = self._repetitions.get(key)
        if found is None:
            found = self._repetitions[key] = _Repetition(one.element, least, most)
        return found

    def written(self, stacks: Sequence[_Stack]) -> str:
        """Return the alternation of the stacks as a grammar element."""
        return alternation(_sequence(stack) for stack in stacks)


def _sequence(stack: _Stack) -> str:
    parts: list[str] = []
    while stack:
        first, stack = stack
        parts.append(_written(first))
    return " ".join(parts) or EMPTY


def _written(element: _Element) -> str:
    match element:
        case _Literal(text):
            return literal(text)
        case _Set(source, _):
            return source
        case _Name(name):
            return name
        case _Group(ways):
            return f"( {alternation(' '.join(map(_written, way)) or EMPTY for way in ways)} )"
        case _Repetition(inner, least, most):
            upper = "" if most == _UNLIMITED else str(most)
            return f"{_written(inner)}{{{least},{upper}}}"
