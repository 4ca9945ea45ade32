"""Values whose strings need no quotes, because they are between markers (Gemma) or follow flags. Emits strict JSON.

Anything other than a number or a word of JSON or Python is read as a string, up to the end of the value (repair
`bare_word`).
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from re import Match

from statemachine.formats.format import Expression
from statemachine.formats.markers import Markers, text_run
from statemachine.json.literals import (
    BRACKETS,
    KINDS,
    MAX_KEY,
    PYTHON,
    WORD_KINDS,
    LiteralOpening,
    Python,
    full_match,
    python_begins,
    string,
    word,
)
from statemachine.json.numbers import number
from statemachine.json.state import WORDS, JsonState
from statemachine.stream.buffer import Grammar
from statemachine.stream.reader import Reader
from statemachine.stream.runs import json_escape

bare_text = re.compile(r"[\w/~.*$%&!?+\\#-](?:[^:,<>{}()\[\]\"\r\n]++|:(?:[/\\]|\Z))*+").match
"""Matches unquoted text up to the end of its value; a colon is accepted only as part of a URL or a drive path."""
flag_text = re.compile(r"[\w/~.*$%@&!?+\\#-](?:[^\s,{}\[\]]++|[ \t]++(?!--))*+").match
"""Matches unquoted text after a flag, up to the next flag, a separator or the end of the line."""
NUMBER = (
    r"[+-]?+[\d_.]{64}()|[+-]?+\.?+\Z|"
    r"(?:[+-](?:[A-Za-z]{0,8}+\Z|Infinity|NaN|inf|nan)|[+-]?+0[xXoObB][\da-fA-F_]{0,64}+|"
    r"[+-]?+(?=\.?\d)[\d_]*+\.?+[\d_]*+(?:[eE][+-]?+\d{0,64}+)?+)"
)
number_text = re.compile(NUMBER + r"[ \t]{0,16}+(?:\Z|()[,{}()\[\]<>\r\n])").match
"""Matches a number with the delimiter after it, or a prefix that is too long to be anything else."""
flag_number = re.compile(NUMBER + r"(?:\Z|()[\s,}\]])").match
"""Matches a number after a flag, with the delimiter after it."""
marked_key = re.compile(r"[^:=,<>{}\[\]\"'\r\n]++").match


class Bare(Python):
    """Dialect whose strings need no quotes: anything but a literal is a string up to the end of the value."""

    __slots__ = ()

    brackets = BRACKETS
    trailing_comma = False
    comments = False
    sets = False
    key_repair = ""
    text = bare_text
    number = number_text

    def kind(self, reader: Reader) -> Generator[None, None, str]:
        """Return the JSON type of the value that begins here."""
        if reader.text[reader.at] in self.brackets:
            return KINDS[reader.text[reader.at]]
        if (yield from self.begins(reader)):
            return "string"
        if (yield from is_number(reader, self.number)):
            return "number"
        text = yield from full_match(reader, self.text, MAX_KEY)
        return WORD_KINDS.get(WORDS.get(text.rstrip(), ""), "string")

    def scalar(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a string, a number or a word; anything else is read as a string without quotes."""
        found = yield from self.begins(reader)
        if found is not None:
            yield from string(reader, state, found)
        elif (yield from is_number(reader, self.number)):
            yield from number(reader, state)
        else:
            yield from word(reader, state, self.text, MAX_KEY)


class MarkedBare(Bare):
    """Dialect whose strings are enclosed between two identical markers, without escapes, and whose keys are bare."""

    __slots__ = ("marker", "marks")

    bare_key = marked_key
    equals = True

    def __init__(self, marker: str) -> None:
        self.marker = marker
        run = text_run(Markers([(marker, marker)]), convert=json_escape)
        self.marks = LiteralOpening(len(marker), marker, run, raw=True)

    def begins(self, reader: Reader) -> Generator[None, None, LiteralOpening | None]:
        """Return how to read the string that begins here, or None if none begins here."""
        while True:
            text = reader.text[reader.at : reader.at + len(self.marker)]
            if text == self.marker:
                return self.marks
            if not self.marker.startswith(text):
                return (yield from python_begins(reader, "plain_quotes"))
            yield from reader.more()


class Flags(Bare):
    """Dialect for values that follow flags."""

    __slots__ = ()

    text = flag_text
    number = flag_number


FLAGS = Flags()


@lru_cache(maxsize=32)
def dialect_of(body: Expression) -> Python:
    """Return the dialect of an expression's values."""
    if body.flag:
        return FLAGS
    return MarkedBare(body.quote) if body.quote else PYTHON


def is_number(reader: Reader, pattern: Callable[[str, int], Match[str] | None]) -> Generator[None, None, bool]:
    """Return whether a number begins here, rather than text that only looks like one."""
    while reader.text[reader.at] in "+-.0123456789":
        found = pattern(reader.text, reader.at)
        if found is None or found.lastindex or reader.ended:
            return found is not None
        yield from reader.more()
    return False
