"""The notation for phrases, compiled directly into an NFA.

    i {cannot} [directly] (read|open) files .

`(a|b)` matches one of the alternatives, `[a]` is optional, `<3>` matches up to three arbitrary words (or characters, in
a language without spaces between words), `{name}` stands for a named piece, `{topic}` matches a word that names what an
offered tool does, `{offered}` requires that the preceding word does, `,` matches an optional punctuation mark,
and `.` matches a punctuation mark, a line break, or the end of the text. All other text matches itself. A match must
end at the end of a word.

A phrase is read from left to right, and each element is added where the previous one ended. That end is a `Point` with
up to three states, because the possible continuations depend on the previous element: after a word, a space must
follow; after a space, either a word or, in place of that space, a punctuation mark may follow.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from streamtool.refusals.automaton import Match, Nfa
from streamtool.refusals.characters import (
    CLAUSE,
    HYPHEN,
    INSIDE,
    LINE,
    OFFERED,
    OPEN,
    OTHER,
    OVER,
    PAUSE,
    SPACE,
    STOP,
    WHITE,
    fold_text,
)

STATES = 400_000
"""Maximum number of states; a file of phrases that requires more is rejected."""
_IN_WORD = INSIDE + OTHER
_BOUNDARY = SPACE + LINE + STOP + PAUSE + OPEN + OTHER + OVER
_SLOT = 30
"""Largest number that `<…>` accepts."""
_TOPIC_CHARACTERS = 10
"""Number of characters, in a language without spaces between words, in which a topic may end."""
_DEPTH = 40
"""Maximum nesting depth of groups and pieces."""
_letters_at = re.compile(r"[^\s()\[\]{}<>|,.]+").match
"""Matches a run of characters without special meaning."""
_brackets = re.compile(r"[()\[\]{}<>]").finditer


class NotationError(Exception):
    """A phrase cannot be read; the message states the problem and the column."""


class Point(NamedTuple):
    """The end of the part of a phrase that has been read."""

    word: int | None = None
    """The state directly after a word, or after part of one."""
    free: int | None = None
    """The state in which a new word or punctuation mark may begin."""
    before: int | None = None
    """The state directly before the space that led to `free`."""


class PhraseCompiler:
    """A compiler that adds the phrases of one language to an NFA."""

    __slots__ = ("_at", "_cache", "_depth", "_net", "_pieces", "_spaces", "_text")

    def __init__(self, net: Nfa, pieces: Mapping[str, str], *, spaces: bool) -> None:
        self._net = net
        self._pieces = {fold_text(name): fold_text(piece) for name, piece in pieces.items()}
        self._spaces = spaces
        self._cache: dict[tuple[Point, str], Point] = {}
        """For each part read at a point, the point that it led to. Phrases that begin alike share these states."""
        self._text = ""
        self._at = 0
        self._depth = 0

    def new_start(self) -> int:
        """Add a state in which phrases may begin, after optional whitespace, and return it."""
        state = self._net.add_state()
        self._net.kinds[state].append((WHITE, state))
        return state

    def add_lead(self, start: int, phrase: str) -> None:
        """Allow `phrase` to precede all phrases that begin at `start`, a state from `new_start`."""
        point = self._space(self._read(phrase, start))
        if point.free is not None:
            self._net.epsilon[point.free].append(start)

    def add_phrase(self, start: int, phrase: str, match: Match) -> None:
        """Add a phrase that begins at `start`, a state from `new_start`, and that yields `match`."""
        point = self._read(phrase, start)
        # If all parts of a phrase are optional, its end is reachable from `start` without reading a character, and it
        # would match every reply.
        if self._net.closure([start]) & {point.word, point.free, point.before}:
            raise NotationError("the phrase could be empty")
        end = self._net.add_state()
        self._net.matches[end] = match
        # "no tool" must not match in "no toolbox": after a word, a boundary character has to be read before the phrase
        # counts as matched. After a space (`free`), the boundary has already been read, and languages without spaces
        # between words have no boundaries to check.
        for state in (point.word, point.before):
            if state is not None and self._spaces:
                self._net.kinds[state].append((_BOUNDARY, end))
            elif state is not None:
                self._net.epsilon[state].append(end)
        if point.free is not None:
            self._net.epsilon[point.free].append(end)

    def _read(self, phrase: str, start: int) -> Point:
        self._text, self._at, self._depth = fold_text(phrase).strip(), 0, 0
        point = self._choice(Point(free=start))
        if self._at < len(self._text):
            raise self._error(f'"{self._text[self._at]}" has no matching opening bracket')
        return point

    def _error(self, what: str) -> NotationError:
        return NotationError(f"{what} (column {self._at + 1} of {self._text!r})")

    def _choice(self, point: Point) -> Point:
        found = [self._sequence(point)]
        while self._text.startswith("|", self._at):
            self._at += 1
            found.append(self._sequence(point))
        return found[0] if len(found) == 1 else self._union(*found)

    def _sequence(self, point: Point) -> Point:
        text, end, read_before = self._text, len(self._text), self._cache
        while self._at < end and (part := text[self._at]) not in "|)]":
            began, letters = self._at, None
            if part in "([{<":
                # First, the whole bracketed element is skipped just to obtain its text as a cache key: if the same text
                # has been read at the same point before, its result is reused. Otherwise, hundreds of phrases that
                # begin alike and contain nested pieces would exceed the limit.
                self._at = _end_of_element(text, began)
                part = text[began : self._at]
            elif letters := _letters_at(text, began):
                part, self._at = letters[0], letters.end()
            else:
                self._at += 1
            found = read_before.get((point, part))
            if found is None:
                if letters is not None:
                    found = self._spelled(point, part)
                else:
                    self._at = began
                    found = self._element(point)
                read_before[point, part] = found
                # Checked after each element, since a few pieces that refer to each other can grow the NFA
                # exponentially.
                if self._net.size > STATES:
                    raise self._error("there are too many phrases, or their pieces are too large")
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
                raise self._error(f'"{closer}" has no matching opening bracket')
            case mark:
                self._at += 1
                return self._mark(point, mark)

    def _mark(self, point: Point, char: str) -> Point:
        match char:
            case ",":
                return self._union(point, self._punctuation(point, CLAUSE))
            case ".":
                return self._punctuation(point, CLAUSE + OVER)
            case _:
                return self._space(point)

    def _spelled(self, point: Point, letters: str) -> Point:
        first, last = self._net.add_word(letters[1:])
        # Letters may continue a word or begin one, but they cannot follow `before`, where a space is yet to be read.
        for source in (point.word, point.free):
            if source is not None:
                self._net.add_edge(source, letters[0], first)
        return Point(last)

    def _group(self, point: Point, opener: str) -> Point:
        opened = self._at
        if self._depth >= _DEPTH:
            raise self._error("groups are nested too deeply")
        self._at += 1
        self._depth += 1
        found = self._choice(point)
        self._depth -= 1
        if not self._text.startswith(")" if opener == "(" else "]", self._at):
            self._at = opened
            raise self._error(f'"{opener}" is never closed')
        self._at += 1
        return found if opener == "(" else self._union(point, found)

    def _until(self, closer: str) -> str:
        end = self._text.find(closer, self._at)
        if end < 0:
            raise self._error(f'"{self._text[self._at]}" is never closed')
        inner = self._text[self._at + 1 : end]
        self._at = end + 1
        return inner

    def _piece(self, point: Point, name: str) -> Point:
        if name == "topic":
            return self._topic(point)
        if name == "offered":
            return self._offered(point)
        if name not in self._pieces:
            raise self._error(f'unknown piece "{name}"')
        # A cycle is detected by depth alone: no sensible piece nests this deeply, so names need not be tracked.
        if self._depth >= _DEPTH:
            raise self._error(f'the piece "{name}" contains itself')
        # A piece is read in place, as if its text were part of the phrase, with the same cache of parts.
        outer = self._text, self._at
        self._text, self._at = self._pieces[name].strip(), 0
        self._depth += 1
        found = self._choice(point)
        if self._at < len(self._text):
            raise self._error(f'"{self._text[self._at]}" has no matching opening bracket')
        self._depth -= 1
        self._text, self._at = outer
        return found

    def _slot(self, point: Point, size: str) -> Point:
        if not size.isdecimal() or not 0 < int(size) <= _SLOT:
            raise self._error(f'"<{size}>" is not a number of words from 1 to {_SLOT}')
        found = [point]
        for _ in range(int(size)):
            point = self._word(self._space(point) if point.word is not None else point)
            found.append(point)
        return self._union(*found)

    def _word(self, point: Point) -> Point:
        """Add one arbitrary word (a character, in a language without spaces). A full stop inside a word, as in
        `config.yaml`, does not end the word.
        """
        net = self._net
        state = net.add_state()
        for source in (point.word, point.free):
            if source is not None:
                net.kinds[source].append((_IN_WORD, state))
        if self._spaces:
            inner = net.add_state()
            net.kinds[state] += [(_IN_WORD, state), (STOP, inner)]
            net.kinds[inner].append((_IN_WORD, state))
        return Point(word=state)

    def _topic(self, point: Point) -> Point:
        """Add a word that must be a topic; in a language without spaces, characters whose last ones must be a topic."""
        if self._spaces:
            return self._offered(self._word(Point(free=point.free)))
        found = []
        for _ in range(_TOPIC_CHARACTERS):
            point = self._word(point)
            found.append(self._offered(point))
        return self._union(*found)

    def _offered(self, point: Point) -> Point:
        """Add the condition that the word that ends here is a topic."""
        source = point.before if point.word is None else point.word
        if source is None:
            raise self._error("{offered} must follow a word")
        state = self._net.add_state()
        self._net.kinds[source].append((OFFERED, state))
        return Point(word=state)

    def _space(self, point: Point) -> Point:
        """Add whitespace, which is optional in a language without spaces between words."""
        net = self._net
        state = net.add_state()
        net.kinds[state].append((WHITE, state))
        if point.word is not None:
            net.kinds[point.word].append((WHITE, state))
            if not self._spaces:
                net.epsilon[point.word].append(state)
        if point.free is not None:
            net.epsilon[point.free].append(state)
        # Keep the state before the space: if `,` or `.` follows in the phrase, it may match there, in place of the
        # space.
        return Point(free=state, before=self._join((point.word, point.before)))

    def _punctuation(self, point: Point, kinds: str) -> Point:
        """Add one or more punctuation marks, optionally after whitespace. A hyphen counts as punctuation only after a
        space.
        """
        net = self._net
        spaced, state = net.add_state(), net.add_state()
        net.kinds[spaced] += [(SPACE, spaced), (kinds + HYPHEN, state)]
        net.kinds[state].append((WHITE + CLAUSE + HYPHEN, state))
        # In "tools - sorry" the hyphen is a dash, but in "tool-based" it joins two words.
        for source in (point.word, point.free, point.before):
            if source is not None:
                net.kinds[source] += [(SPACE, spaced), (kinds, state)]
        return Point(free=state)

    def _union(self, *points: Point) -> Point:
        words, frees, befores = zip(*points, strict=True)
        return Point(self._join(words), self._join(frees), self._join(befores))

    def _join(self, states: Iterable[int | None]) -> int | None:
        # All alternatives lead to one further state; joining them in pairs would need a state for each.
        joined = dict.fromkeys(state for state in states if state is not None)
        if len(joined) < 2:
            return next(iter(joined), None)
        state = self._net.add_state()
        for one in joined:
            self._net.epsilon[one].append(state)
        return state


@lru_cache(1024)
def _end_of_element(text: str, at: int) -> int:
    """Return the position after the element whose opening bracket is at `at`, or the end of the text if it is never
    closed.
    """
    depth = 0
    for bracket in _brackets(text, at):
        depth += 1 if bracket[0] in "([{<" else -1
        if not depth:
            return bracket.end()
    return len(text)
