"""What users and tools have said in which a call may stand, and whether a call stands there word for word.

Where white space, quotes, escapes and the marks of block quotes differ, it is the same text all the same: in a result
that is JSON all of them do.
"""

import re
from collections.abc import Iterable, Iterator
from html import unescape
from typing import Final

from streamtool.conversation import Conversation, TextPart
from streamtool.policy.rules import AnyName

LONGEST: Final = 4 * 1024 * 1024
"""Characters of a conversation that are looked at, the latest ones."""
_LOOKS: Final = 20_000
"""Places at which a name is looked for, and one more for each eight characters."""
_MANY: Final = 64
"""Tools above which their names are looked for among the words of a text, and not one after the other."""
_BEFORE: Final = frozenset("\"'=>:@[|.(</{}▁,;\n`n“”‘’")
"""What stands before a name in call syntax, blanks apart; `n` is what is left of an escaped line end."""
_AFTER: Final = r"(?=\s*\\*(?:[\"'“”‘’>{(\[<|:=/`}&]|\\n)|\s*\n|\s*\Z)"
_WORD: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])?")
_CUT: Final = re.compile(r"(?<!\\)\\++(?:u[0-9a-fA-F]{0,3}+)?+\Z")
_ENDLESS: Final = re.compile(r"&#[0-9]{1000,}+")
"""A number of more digits than `int` takes; no character has it."""
_PASSED_OVER: Final = re.compile("[\\s\"'`>“”‘’\ud800-\udfff\U00010000-\U0010ffff]+")
"""What does not count in a comparison. Characters beyond the basic plane may stand as two escapes."""


class QuotationSources:
    """The texts of a conversation in which a call of one of these tools may stand; without names, of any tool."""

    __slots__ = ("_names", "_plain", "_texts")

    def __init__(self, texts: Iterable[str], names: Iterable[str]) -> None:
        self._texts = tuple(texts)
        self._names = {name.lower() for name in names}
        self._plain: str | None = None

    def named(self, text: str) -> bool:
        """Whether a tool's name may stand in the text, in capitals or not."""
        return not self._names or bool(_standing(self._names, text.lower()))

    @property
    def plain(self) -> str:
        """All of them, as they are compared; made when a call is first looked for."""
        if self._plain is None:
            read = (*self._texts, *(unescape(_ENDLESS.sub("", text)) for text in self._texts if "&" in text))
            self._plain, self._texts = "\0".join(map(_plain, read)), ()
        return self._plain


def quotation_sources(conversation: Conversation, names: Iterable[str]) -> QuotationSources | None:
    """What the conversation's users and tools have said in which a call of one of these tools may stand; None: nothing.

    Linear in the length of the conversation, at most `LONGEST` characters of it.
    """
    wanted = {name.removeprefix("functions.") for name in names}
    found = [text for text in _said(conversation) if _names_one(text, wanted)]
    return QuotationSources(found, () if isinstance(names, AnyName) else wanted) if found else None


def _said(conversation: Conversation) -> Iterator[str]:
    """The texts of users and tools, the latest first."""
    room = LONGEST
    for message in reversed(conversation.messages):
        if message.role != "user":
            continue
        for part in (*message.content, *(part for result in message.results for part in result.content)):
            if isinstance(part, TextPart) and room > 0:
                yield part.text[:room]
                room -= len(part.text)


def _names_one(text: str, names: set[str]) -> bool:
    """Whether a tool's name stands in the text where call syntax has it; it may, where that takes long to find out."""
    names = _standing(names, text)
    if not names:
        return False
    lengths = sorted(set(map(len, names)))
    ends = "".join(map(re.escape, {name[-1] for name in names}))
    left = _LOOKS + len(text) // 8
    for found in re.finditer(f"[{ends}]{_AFTER}", text):
        end = found.end()
        left -= len(lengths)
        if left < 0:
            return True
        for start in (end - length for length in lengths if length <= end):
            if text[start:end] in names and _begins_call(text, start):
                return True
    return False


def _standing(names: set[str], text: str) -> set[str]:
    """The names that stand in the text."""
    if len(names) > _MANY:
        words = set(_WORD.findall(text))
        names = {name for name in names if any(word in words for word in _WORD.findall(name)[:1])}
    return {name for name in names if name in text}


def _begins_call(text: str, start: int) -> bool:
    """Whether a name that begins here stands behind what call syntax has before it."""
    before = text[max(0, start - 64) : start].rstrip(" \t\\")
    return not before or before[-1] in _BEFORE


def _plain(text: str) -> str:
    """The text without what does not count when texts are compared."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", text)
    return _PASSED_OVER.sub("", text)


class Passage:
    """Where the text of a call stands in what was said, as far as it is known."""

    __slots__ = ("_at", "_cut", "_length", "_said")

    def __init__(self, said: str) -> None:
        self._said = said
        self._at = 0
        self._length = 0
        self._cut = ""

    def follow(self, text: str) -> bool:
        """Whether the call, with this as its next piece, still stands somewhere."""
        text = self._cut + text
        cut = _CUT.search(text)
        self._cut = "" if cut is None else "\\" + cut[0].lstrip("\\")
        more = _plain(text if cut is None else text[: cut.start()])
        end = self._at + self._length
        if not self._length or not self._said.startswith(more, end):
            self._at = self._said.find(self._said[self._at : end] + more, self._at)
        self._length += len(more)
        return self._at >= 0
