"""Text from users and tools that may be the source of a quoted call, and the search for a call in it.

Comparisons ignore whitespace, quotes, escapes and block quote markers, since all of these may change when text is
encoded in a JSON result.
"""

import re
from collections.abc import Iterable, Iterator
from html import unescape
from typing import Final

from streamtool.core.conversation import Conversation, TextPart
from streamtool.forcing.rules import AnyName

LONGEST: Final = 4 * 1024 * 1024
"""Maximum number of characters of a conversation to search, beginning with the latest message."""
_MAX_LOOKUPS: Final = 20_000
"""Maximum number of positions to search for names, in addition to one for every eight characters of the text."""
_MANY: Final = 64
"""Number of tools above which each word of a text is looked up among their names, instead of searching for each
name.
"""
_BEFORE: Final = frozenset("\"'=>:@[|.(</{}▁,;\n`n“”‘’")
"""Characters that precede a name in call syntax, apart from blanks. An escaped newline leaves the `n`."""
_AFTER: Final = r"(?=\s*\\*(?:[\"'“”‘’>{(\[<|:=/`}&]|\\n)|\s*\n|\s*\Z)"
_WORD: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])?")
_CUT: Final = re.compile(r"(?<!\\)\\++(?:u[0-9a-fA-F]{0,3}+)?+\Z")
_ENDLESS: Final = re.compile(r"&#[0-9]{1000,}+")
"""Matches character references with more digits than `int` accepts; they cannot denote a character."""
_IGNORED: Final = re.compile("[\\s\"'`>“”‘’\ud800-\udfff\U00010000-\U0010ffff]+")
"""Matches characters that comparisons ignore, including those beyond the basic plane, which may be written as two
escapes.
"""


class QuotationSources:
    """The text in a conversation that may be the source of a quoted call to one of these tools or, if `names` is empty,
    to any tool.
    """

    __slots__ = ("_names", "_plain", "_texts")

    def __init__(self, texts: Iterable[str], names: Iterable[str]) -> None:
        self._texts = tuple(texts)
        self._names = {name.lower() for name in names}
        self._plain: str | None = None

    def may_name_tool(self, text: str) -> bool:
        """Return whether a tool's name may occur in the text, ignoring case."""
        return not self._names or bool(_names_in(self._names, text.lower()))

    @property
    def comparable(self) -> str:
        """All source text in the form in which it is compared; computed when a call is first looked up."""
        if self._plain is None:
            read = (*self._texts, *(unescape(_ENDLESS.sub("", text)) for text in self._texts if "&" in text))
            self._plain, self._texts = "\0".join(map(_comparable, read)), ()
        return self._plain


def quotation_sources(conversation: Conversation, names: Iterable[str]) -> QuotationSources | None:
    """Return the text from users and tools that may be the source of a quoted call to one of these tools, or None if
    nothing qualifies.

    Takes time linear in the length of the conversation, and searches at most `LONGEST` characters of it.
    """
    wanted = {name.removeprefix("functions.") for name in names}
    found = [text for text in _source_texts(conversation) if _may_contain_call(text, wanted)]
    return QuotationSources(found, () if isinstance(names, AnyName) else wanted) if found else None


def _source_texts(conversation: Conversation) -> Iterator[str]:
    """Yield the text from users and tools, the latest message first."""
    room = LONGEST
    for message in reversed(conversation.messages):
        if message.role != "user":
            continue
        parts = message.content
        for result in message.results:
            parts += result.content
        for part in parts:
            if isinstance(part, TextPart) and room > 0:
                yield part.text[:room]
                room -= len(part.text)


def _may_contain_call(text: str, names: set[str]) -> bool:
    """Return whether a tool's name occurs in the text where a name could occur in call syntax.

    Also return True if the search would take too long.
    """
    names = {name for name in names if name in text} if len(names) <= _MANY else _names_in(names, text)
    if not names:
        return False
    lengths = sorted(set(map(len, names)))
    ends = "".join(map(re.escape, {name[-1] for name in names}))
    left = _MAX_LOOKUPS + len(text) // 8
    for found in re.finditer(f"[{ends}]{_AFTER}", text):
        end = found.end()
        left -= len(lengths)
        if left < 0:
            return True
        for start in (end - length for length in lengths if length <= end):
            if text[start:end] in names and _begins_call(text, start):
                return True
    return False


def _names_in(names: set[str], text: str) -> set[str]:
    """Return the names that occur in the text."""
    if len(names) > _MANY:
        words = set(_WORD.findall(text))
        names = {name for name in names if any(word in words for word in _WORD.findall(name)[:1])}
    return {name for name in names if name in text}


def _begins_call(text: str, start: int) -> bool:
    """Return whether the text before a name that begins at `start` could be call syntax."""
    before = text[max(0, start - 64) : start].rstrip(" \t\\")
    return not before or before[-1] in _BEFORE


def _comparable(text: str) -> str:
    """Return the text without the characters that comparisons ignore."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", text)
    return _IGNORED.sub("", text)


class Passage:
    """A passage in the sources that matches a call's text, as far as the call has been read."""

    __slots__ = ("_at", "_cut", "_length", "_said")

    def __init__(self, said: str) -> None:
        self._said = said
        self._at = 0
        self._length = 0
        self._cut = ""

    def extend(self, text: str) -> bool:
        """Add the next piece of the call. Return whether the call still occurs in the sources."""
        text = self._cut + text
        cut = _CUT.search(text)
        self._cut = "" if cut is None else "\\" + cut[0].lstrip("\\")
        more = _comparable(text if cut is None else text[: cut.start()])
        end = self._at + self._length
        if not self._length or not self._said.startswith(more, end):
            self._at = self._said.find(self._said[self._at : end] + more, self._at)
        self._length += len(more)
        return self._at >= 0
