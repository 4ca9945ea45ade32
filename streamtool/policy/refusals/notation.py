"""The notation of phrases, read straight into a net.

    i {cannot} [directly] (read|open) files .

`(a|b)` is one of them, `[a]` may be missing, `<3>` is up to three arbitrary words (characters, in a language that does
not put spaces between words), `{name}` is a piece with a name, `,` may be a punctuation mark or nothing, `.` must be
one, a line end, or the end of the text. Everything else is itself. A phrase ends where a word ends.

A phrase is read from left to right and grows the net at its end, which is a `Point`: up to three states, because what
may come next depends on whether a word has just ended (a space must come), or a space has (a word may come, but also
a punctuation mark that stands where the space did).
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from streamtool.policy.refusals.automaton import Match, Net
from streamtool.policy.refusals.characters import (
    CLAUSE,
    HYPHEN,
    INSIDE,
    LINE,
    OPEN,
    OTHER,
    OVER,
    PAUSE,
    SPACE,
    STOP,
    WHITE,
    folded,
)

STATES = 400_000
"""A file of phrases that needs more states than this is refused."""
_IN_WORD = INSIDE + OTHER
_BOUNDARY = SPACE + LINE + STOP + PAUSE + OPEN + OTHER + OVER
_SLOT = 30
"""The largest slot."""
_DEPTH = 40
"""How deep groups and pieces may nest."""
_letters_at = re.compile(r"[^\s()\[\]{}<>|,.]+").match
"""Characters that are nothing but themselves."""
_brackets = re.compile(r"[()\[\]{}<>]").finditer


class NotationError(Exception):
    """A phrase that cannot be read; the message says what and at which column."""


class Point(NamedTuple):
    """Where a phrase has come to."""

    word: int | None = None
    """Directly after a word, or after a part of one."""
    free: int | None = None
    """Something may begin here."""
    before: int | None = None
    """Directly before the space that led to `free`."""


class NotationWriter:
    """Adds the phrases of one language to a net."""

    __slots__ = ("_at", "_depth", "_net", "_pieces", "_read_before", "_spaces", "_text")

    def __init__(self, net: Net, pieces: Mapping[str, str], *, spaces: bool) -> None:
        self._net = net
        self._pieces = {folded(name): folded(piece) for name, piece in pieces.items()}
        self._spaces = spaces
        self._read_before: dict[tuple[Point, str], Point] = {}
        """What has been read at a point, and where it led: phrases that begin alike share their beginning."""
        self._text = ""
        self._at = 0
        self._depth = 0

    def start(self) -> int:
        """A new state in which phrases may begin, after any white space."""
        state = self._net.state()
        self._net.kinds[state].append((WHITE, state))
        return state

    def lead(self, start: int, phrase: str) -> None:
        """Whatever begins in `start` may begin behind `phrase` too."""
        point = self._space(self._read(phrase, start))
        if point.free is not None:
            self._net.free[point.free].append(start)

    def phrase(self, start: int, phrase: str, match: Match) -> None:
        """`phrase`, from `start` on, is a match."""
        point = self._read(phrase, start)
        if self._net.closure([start]) & {point.word, point.free, point.before}:
            raise NotationError("the phrase may be empty")
        end = self._net.state()
        self._net.matches[end] = match
        for state in (point.word, point.before):
            if state is not None and self._spaces:
                self._net.kinds[state].append((_BOUNDARY, end))
            elif state is not None:
                self._net.free[state].append(end)
        if point.free is not None:
            self._net.free[point.free].append(end)

    def _read(self, phrase: str, start: int) -> Point:
        self._text, self._at, self._depth = folded(phrase).strip(), 0, 0
        point = self._choice(Point(free=start))
        if self._at < len(self._text):
            raise self._wrong(f'"{self._text[self._at]}" closes nothing')
        return point

    def _wrong(self, what: str) -> NotationError:
        return NotationError(f"{what} (column {self._at + 1} of {self._text!r})")

    def _choice(self, point: Point) -> Point:
        found = self._sequence(point)
        while self._text.startswith("|", self._at):
            self._at += 1
            found = self._either(found, self._sequence(point))
        return found

    def _sequence(self, point: Point) -> Point:
        text, end, read_before = self._text, len(self._text), self._read_before
        while self._at < end and (part := text[self._at]) not in "|)]":
            began = self._at
            if part in "([{<":
                self._at = _closed(text, began)
                part = text[began : self._at]
            elif letters := _letters_at(text, began):
                part, self._at = letters[0], letters.end()
            else:
                self._at += 1
            found = read_before.get((point, part))
            if found is None:
                self._at = began
                found = read_before[point, part] = self._element(point)
                if self._net.size > STATES:
                    raise self._wrong("the phrases are too many, or their pieces too large")
            point = found
        return point

    def _element(self, point: Point) -> Point:
        match self._text[self._at]:
            case "(" | "[" as opener:
                return self._group(point, opener)
            case "{":
                return self._piece(point, self._until("}"))
            case "<":
                return self._slot(point, self._until(">"))
            case ("}" | ">") as closer:
                raise self._wrong(f'"{closer}" closes nothing')
            case _ if letters := _letters_at(self._text, self._at):
                self._at = letters.end()
                return self._spelled(point, letters[0])
            case mark:
                self._at += 1
                return self._mark(point, mark)

    def _mark(self, point: Point, char: str) -> Point:
        match char:
            case ",":
                return self._either(point, self._punctuation(point, CLAUSE))
            case ".":
                return self._punctuation(point, CLAUSE + OVER)
            case _:
                return self._space(point)

    def _spelled(self, point: Point, letters: str) -> Point:
        first, last = self._net.spelled(letters[1:])
        for source in (point.word, point.free):
            if source is not None:
                self._net.char(source, letters[0], first)
        return Point(last)

    def _group(self, point: Point, opener: str) -> Point:
        opened = self._at
        if self._depth >= _DEPTH:
            raise self._wrong("groups nest too deep")
        self._at += 1
        self._depth += 1
        found = self._choice(point)
        self._depth -= 1
        if not self._text.startswith(")" if opener == "(" else "]", self._at):
            self._at = opened
            raise self._wrong(f'"{opener}" is never closed')
        self._at += 1
        return found if opener == "(" else self._either(point, found)

    def _until(self, closer: str) -> str:
        end = self._text.find(closer, self._at)
        if end < 0:
            raise self._wrong(f'"{self._text[self._at]}" is never closed')
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _piece(self, point: Point, name: str) -> Point:
        if name not in self._pieces:
            raise self._wrong(f'there is no piece "{name}"')
        if self._depth >= _DEPTH:
            raise self._wrong(f'the piece "{name}" contains itself')
        outer = self._text, self._at
        self._text, self._at = self._pieces[name].strip(), 0
        self._depth += 1
        found = self._choice(point)
        if self._at < len(self._text):
            raise self._wrong(f'"{self._text[self._at]}" closes nothing')
        self._depth -= 1
        self._text, self._at = outer
        return found

    def _slot(self, point: Point, size: str) -> Point:
        if not size.isdecimal() or not 0 < int(size) <= _SLOT:
            raise self._wrong(f'"<{size}>" is no number of words from 1 to {_SLOT}')
        found = point
        for _ in range(int(size)):
            point = self._word(self._space(point) if point.word is not None else point)
            found = self._either(found, point)
        return found

    def _word(self, point: Point) -> Point:
        """One arbitrary word, or character. A point inside of a word does not end it: `config.yaml`."""
        net = self._net
        state = net.state()
        for source in (point.word, point.free):
            if source is not None:
                net.kinds[source].append((_IN_WORD, state))
        if self._spaces:
            inner = net.state()
            net.kinds[state] += [(_IN_WORD, state), (STOP, inner)]
            net.kinds[inner].append((_IN_WORD, state))
        return Point(word=state)

    def _space(self, point: Point) -> Point:
        """White space; in a language without spaces it may be missing."""
        net = self._net
        state = net.state()
        net.kinds[state].append((WHITE, state))
        if point.word is not None:
            net.kinds[point.word].append((WHITE, state))
            if not self._spaces:
                net.free[point.word].append(state)
        if point.free is not None:
            net.free[point.free].append(state)
        return Point(free=state, before=self._join(point.word, point.before))

    def _punctuation(self, point: Point, kinds: str) -> Point:
        """A punctuation mark or more, perhaps after white space; a hyphen is one only there."""
        net = self._net
        spaced, state = net.state(), net.state()
        net.kinds[spaced] += [(SPACE, spaced), (kinds + HYPHEN, state)]
        net.kinds[state].append((WHITE + CLAUSE + HYPHEN, state))
        for source in (point.word, point.free, point.before):
            if source is not None:
                net.kinds[source] += [(SPACE, spaced), (kinds, state)]
        return Point(free=state)

    def _either(self, one: Point, other: Point) -> Point:
        return Point(
            self._join(one.word, other.word), self._join(one.free, other.free), self._join(one.before, other.before)
        )

    def _join(self, one: int | None, other: int | None) -> int | None:
        if one is None or other is None or one == other:
            return other if one is None else one
        state = self._net.state()
        self._net.free[one].append(state)
        self._net.free[other].append(state)
        return state


@lru_cache(1024)
def _closed(text: str, at: int) -> int:
    """Where the element that opens at `at` ends: behind what closes it, or with the text."""
    depth = 0
    for bracket in _brackets(text, at):
        depth += 1 if bracket[0] in "([{<" else -1
        if not depth:
            return bracket.end()
    return len(text)
