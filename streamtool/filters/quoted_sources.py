"""Text from users and tools that may be the source of a quoted call, and the search for a call in it.

Comparisons ignore whitespace, quotes, escapes, block quote markers and invisible characters, since all of these may
change when text is encoded in a JSON result, displayed or copied. They read the sources as they are, and with character
references resolved once and twice.

File tools put something before each line: a number, a file name, a sign for a change or a comment. A model usually
omits it. So wherever a line of a source begins, a comparison may skip a prefix of that line, provided that the prefixes
of all lines of one call have the same shape, which is the same punctuation between words and numbers, or end in the
same column. It may also skip the same punctuation at the end of each line. The parts of messages and results are read
as one text, so a call may also begin in one and end in another.
"""

import hashlib
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache, partial
from html import entities, unescape
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

from streamtool.core.bounded_cache import LruCache
from streamtool.core.conversation import Conversation, TextPart
from streamtool.core.invisible import CLASS as INVISIBLE_CLASS
from streamtool.core.invisible import INVISIBLE
from streamtool.forcing.rules import AnyName
from streamtool.protocols.shared import wire


def _without(separators: bytes, text: str) -> str:
    """Return a text in lower case, without these ASCII characters."""
    encoded = text.lower().encode("utf-8", "surrogatepass")  # `str.translate` is slow unless all of a text is ASCII
    return encoded.translate(None, separators).decode("utf-8", "surrogatepass")


LONGEST: Final = 4 * 1024 * 1024
"""Maximum number of characters of a conversation to search, beginning with the latest message."""
_MAX_LOOKUPS: Final = 20_000
"""Maximum number of positions to search for names in all texts of a request, in addition to one for every eight
characters. Also the maximum number of steps in comparisons that skip prefixes.
"""
_HIT: Final = 16
"""Number of positions that a name counts as, since the text around it has to be examined too."""
_MANY: Final = 64
"""Number of tools above which each word of a text is looked up among their names, instead of searching for each
name.
"""
_SHORT: Final = 512
"""Maximum length, in characters, of a text that is searched for names each time. A digest of it would take as long."""
_long_texts = LruCache[bool](4096)
"""Whether a long text may contain a call to one of these tools, by the digest of their names and the text."""
_KNOWN_TOOLS: Final = 64
"""Number of lists of tools whose names are cached in the forms that are compared."""
_BEFORE: Final = frozenset("\"'=>:@[]|.()</{}▁,;\n`n“”‘’„‟‚‛«»‹›″′＂＇→+-#*%!│┃~")
"""Characters that precede a name in call syntax, or that end the prefix of a line, apart from blanks and numbers. An
escaped newline leaves the `n`.
"""
_NUMBERED: Final = re.compile(r"(?:\A|[\n\\n])[ \t]*(?:\w?\d+|rem|dnl)[ \t\\t]+\Z", re.IGNORECASE)
"""Matches a line number, or a word that begins a comment, before a name."""
_AFTER: Final = (
    r"(?=\s*\\*(?:[\"'“”‘’„‟‚‛«»‹›″′＂＇>{(\[<|:=/`}&]|\\n|--|\*[/)]|[-#%]\}|│)"
    r"|\s*(?:(?:\^[Mm])?[^\w\s]{1,4}\s*)?(?:[\n\r\v\f\x85\u2028\u2029]|\Z))"
)
_WORD: Final = re.compile(r"\w+")
_SPELLED: Final = tuple(partial(_without, separators) for separators in (b" \t_-", b" \t_-.:/"))
"""Functions that remove from a text what spellings of a name differ in, as `statemachine.names` ignores it. Colons,
periods and slashes also precede names in call syntax, so they are removed only in the second form.
"""
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|[nrt])?")
_ESCAPED: Final = {"n": "\n", "t": "\t"}
"""Escapes that a line prefix may contain, and what they denote."""
_CUT: Final = re.compile(r"(?<!\\)\\++(?:u[0-9a-fA-F]{0,3}+|x[0-9a-fA-F]?+)?+\Z")
_ENDLESS: Final = re.compile(r"&#[0-9]{1000,}+")
"""Matches character references with more digits than `int` accepts; they cannot denote a character."""
_COLORS: Final = re.compile("\x1b(?:\\[[0-?]*+[ -/]*+[@-~]|\\][^\x07\x1b]*+(?:\x07|\x1b\\\\?))")
"""Matches control sequences of terminals, which some tools use for colors and links."""
_CONTROLS: Final = tuple(char for char in map(chr, range(128)) if INVISIBLE.match(char))
"""The invisible characters of ASCII."""
_HIDDEN: Final = re.compile(f"[\0-\b\x0e-\x1b\x7f-\U0010ffff](?<=[{INVISIBLE_CLASS}])")
"""Matches invisible characters; faster than `INVISIBLE` in text that is mostly ASCII."""
_NO_COMPARISON: Final = f"\"'`>“”‘’„‟‚‛«»‹›″′＂＇\ud800-\udfff\U00010000-\U0010ffff{INVISIBLE_CLASS}"
"""Characters that comparisons ignore, apart from whitespace. They include those beyond the basic plane, which may be
written as two escapes.
"""
_BLANKS: Final = "".join(char for char in map(chr, range(0x3001)) if char.isspace() and char != "\n")
_IGNORED: Final = re.compile(f"[{_BLANKS}{_NO_COMPARISON}]+")
"""Matches what comparisons ignore, apart from line breaks."""
_IGNORED_ASCII: Final = {code: None for code in range(128) if _IGNORED.match(chr(code))}
"""A translation that removes it from ASCII text."""

_CODES: Final = re.compile(r"\\u([0-9a-fA-F]{4})").findall
_HIDDEN_CODES: Final = (
    r"00(?:0[9ad]|1b|[2-7][0-9a-f]|ad)|034f|06[01d][0-9a-f]|070f|08[9e][0-9a-f]|115f|1160|17b[45]|180[b-f]|200[b-f]"
    r"|202[a-e]|206[0-9a-f]|2192|250[0-3]|2800|3164|fe0[0-9a-f]|feff|ffa0|fff[0-9ab]|db[48][0-9a-f]"
)
_HIDDEN_CODE: Final = re.compile(_HIDDEN_CODES, re.IGNORECASE)
_HIDDEN_ESCAPE: Final = re.compile(rf"(?<!\\)\\++u({_HIDDEN_CODES}|d[c-f][0-9a-f]{{2}})", re.IGNORECASE)
"""Matches escapes of characters that a name consists of, that are invisible in it, or that end the prefix of a line."""
_BYTE_ESCAPE: Final = re.compile(r"(?<!\\)\\++x([0-9a-fA-F]{2})")
_NAME_ESCAPE: Final = re.compile(r"(?<!\\)\\++(?=[_.-])")
"""Matches escapes of the punctuation in names, as converters to Markdown write them."""
_HIDDEN_NAMES: Final = sorted(
    name
    for name, char in entities.html5.items()
    if name.endswith(";") and (not INVISIBLE.sub("", char) or re.fullmatch("[\\w./-]+", char, re.ASCII))
)
_HIDDEN_REFERENCE: Final = re.compile(f"&(?:amp;)*+(?:#|{'|'.join(_HIDDEN_NAMES)})")
"""Matches the beginning of a character reference that may denote a part of a name, or something invisible in it."""

_BREAK: Final = re.compile(r"<(?:br|/p|/div|/li|/tr|/pre)\b[^<>]*+>")
_TAG: Final = re.compile(
    r"<(?=[a-z/])/?(?:a|b|br|code|div|em|font|i|kbd|li|mark|ol|p|pre|s|samp|small|span|strong|sub|sup|table|tbody|td|th"
    r"|thead|tr|tt|u|ul|var|wbr)\b[^<>]*+>"
)
"""Matches the HTML tags that display and color code on a page."""
_MAX_DEPTH: Final = 16
"""Maximum number of fields around a string in JSON."""
_MIN_JSON: Final = 40
"""Minimum number of characters of a JSON text that could contain the lines of a call."""
_NEAR: Final = 16 * 1024
"""Number of characters to read on either side of a text that may contain a call."""

_LONGEST_PREFIX: Final = 160
"""Maximum number of characters of a line's prefix."""
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_COMMENT: Final = re.compile(r"<(?:[!%\s]|[\w@+~.-]{1,32}>\s)|\{[#%!{-]")
"""Matches the beginning of a comment, or of another prefix, that contains what begins a value or a tag."""
_LONGEST_SUFFIX: Final = 4
_SUFFIX: Final = re.compile(r"(?:[^\w\s{}\[\]()<>]{1,4}|-{2,}\}{1,2}|\*[/)]|[-#]\}|\]{2}|\^M\$)\Z")
"""Matches the end of a comment, of a table row or of a line with a marked end, in the form in which it is compared."""
_PART_SUFFIX: Final = re.compile(r"[\]})]+\Z")
"""Matches what closes the encoding of a part."""
_ANCHOR: Final = re.compile(f"(?![{_BLANKS}\n{_NO_COMPARISON}])(?:[\\[{{(]|[^\\w\\s]{{0,2}}\\w*)")
"""Matches the beginning of a call within which no line ends."""
_MAX_PLACES: Final = 64
"""Number of places in one passage of the sources where a call may continue, above which all of it counts as found."""

_Shape = tuple[str, ...]


class _Skipped(NamedTuple):
    """The common properties of the prefixes and suffixes that were skipped on the lines of a call."""

    shape: _Shape | None = None
    """The shape of the prefixes; None if no prefix was skipped so far, or if their shapes differ."""
    least: int = 0
    """The first column in which all lines may continue after their prefixes."""
    most: int = sys.maxsize
    """The last such column. If it is less than `least`, the columns differ."""
    suffix: str | None = None
    """The suffix of the lines; None if no line has ended so far."""

    def with_prefix(self, other: "_Skipped") -> "_Skipped | None":
        """Return what these prefixes and another one have in common, or None if that is nothing."""
        if other is _ANY:
            return self
        least, most = max(self.least, other.least), min(self.most, other.most)
        shape = other.shape if other.shape == self.shape or self[:3] == _ANY[:3] else None
        return None if shape is None and least > most else _Skipped(shape, least, most, self.suffix)

    def with_suffix(self, suffix: str) -> "_Skipped | None":
        """Return the same with this suffix, or None if the suffixes differ."""
        if self.suffix is None:
            return _Skipped(self.shape, self.least, self.most, suffix)
        return self if self.suffix == suffix else None


_ANY: Final = _Skipped()
"""The prefix of a part, which fits all others."""
_Position = tuple[int, _Skipped, bool]
"""A position in the comparable text, what has been skipped so far, and whether it is the beginning of a line whose
prefix may still be skipped.
"""


class QuotationSources:
    """The text in a conversation that may be the source of a quoted call to one of these tools or, if `names` is empty,
    to any tool.
    """

    __slots__ = ("_names", "_readings", "_texts", "requested", "steps")

    def __init__(self, texts: Iterable[str], names: Iterable[str], requested: "QuotationSources | None" = None) -> None:
        self._texts = tuple(texts)
        self.requested = requested
        """The text from users alone, if repeated calls that no user has written are to be reported."""
        self._names = {_SPELLED[-1](name) for name in names}
        self._readings: tuple[_Reading, ...] | None = None
        self.steps = _MAX_LOOKUPS + sum(map(len, self._texts)) // 8
        """Number of steps left for comparisons that skip prefixes."""

    def contain(self, call: str, name: str) -> bool:
        """Return whether the text of this call, to the tool with this name, occurs."""
        return bool(self._texts or self._readings) and Passage(self, name).extend(call)

    def may_name_tool(self, text: str) -> bool:
        """Return whether a tool's name may occur in the text, ignoring case and separators."""
        if not self._names:
            return True
        spelled = _SPELLED[-1](text)
        return any(name in spelled for name in self._names)

    @property
    def readings(self) -> "tuple[_Reading, ...]":
        """The ways to read the sources; computed when a call is first looked up."""
        if self._readings is None:
            self._readings, self._texts = tuple(_readings(self._texts)), ()
        return self._readings

    @property
    def comparable(self) -> str:
        """All source text in the form in which it is compared, without references resolved."""
        return self.readings[0].flat


def quotation_sources(
    conversation: Conversation, names: Iterable[str], *, reporting: bool = False
) -> QuotationSources | None:
    """Return the text from users and tools that may be the source of a quoted call to one of these tools, or None if
    nothing qualifies. If `reporting` is true, repeated calls that no user has written are to be reported; descriptions
    of tools are then sources too.

    Takes time linear in the length of the conversation, and searches at most `LONGEST` characters of it.
    """
    wanted, spelled = _forms(tuple(names))
    texts = [*_source_texts(conversation)]
    texts.reverse()
    if reporting:
        texts = [*_descriptions(conversation), *texts]
    kept = _near_calls(texts, wanted, spelled)
    if not kept:
        return None
    known = () if isinstance(names, AnyName) else wanted
    requested = None
    if reporting:
        users = [*_source_texts(conversation, results=False)]
        users.reverse()
        requested = QuotationSources(_near_calls(users, wanted, spelled), known)
    return QuotationSources(kept, known, requested)


def _descriptions(conversation: Conversation) -> Iterator[str]:
    """Yield the descriptions of the tools and of their parameters."""
    for tool in conversation.tools:
        yield tool.description
        if tool.parameters is not None:
            yield wire.encode(tool.parameters).decode()


def _source_texts(conversation: Conversation, *, results: bool = True) -> Iterator[str]:
    """Yield the text from users and tools, or from users alone, the latest part first."""
    room = LONGEST
    for message in reversed(conversation.messages):
        if message.role != "user":
            continue
        parts = message.content
        if results and message.results:
            parts = (*chain.from_iterable([result.content for result in message.results]), *parts)
        for part in reversed(parts):
            if isinstance(part, TextPart) and room > 0:
                yield part.text[-room:]
                room -= len(part.text)


@lru_cache(_KNOWN_TOOLS)
def _forms(names: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names in lower case, and in the form in which all spellings of a name are equal."""
    lower = frozenset(name.removeprefix("functions.").lower() for name in names)
    return lower, tuple(sorted(map(_SPELLED[-1], lower)))


def _near_calls(texts: list[str], names: AbstractSet[str], spelled: Sequence[str]) -> list[str]:
    """Return the texts that may contain a call, and their neighbors, where such a call may begin or end. `names` and
    `spelled` are the two forms of the names.
    """
    reach = max(map(len, names), default=0) + 8
    longest = max(map(len, texts), default=0)
    ends = texts
    if longest > _SHORT:
        ends = [text if len(text) <= _SHORT else f"{text[:reach]}\n{text[-reach:]}" for text in texts]
    # A name may begin in one text and end in the next. Inside long texts, names are searched below.
    occurs = len(names) > _MANY or _occurs(spelled, "".join(ends))
    if not occurs and longest <= _SHORT:
        return []
    search = _NameSearch(names, spelled, _MAX_LOOKUPS + sum(map(len, texts)) // 8)
    found = {at for at, text in enumerate(texts) if len(text) > _SHORT and search.long_may_contain_call(text)}
    if not (occurs or found):  # the common case
        return []
    short = [at for at, text in enumerate(texts) if len(text) <= _SHORT]
    found.update(at for at in short if search.may_contain_call(_revealed(texts[at])))
    seams = [f"{before[-reach:]}{after[:reach]}" for before, after in pairwise(texts)] if names else []
    if seams and search.may_contain_call(_revealed("\n".join(seams))):  # a name may end in the next part
        found.update(at for at, seam in enumerate(seams) if search.may_contain_call(_revealed(seam)))
    kept = _up_to_near(texts, found) | {
        len(texts) - 1 - at for at in _up_to_near(texts[::-1], {len(texts) - 1 - at for at in found})
    }
    return [texts[at] for at in sorted(kept)]


def _occurs(spelled: Iterable[str], text: str) -> bool:
    """Return whether one of the names, in the form in which all spellings are equal, occurs in the text."""
    whole = _SPELLED[-1](_revealed(text))
    return any(name in whole for name in spelled)


def _up_to_near(texts: list[str], found: set[int]) -> set[int]:
    """Return the indices in `found`, and those of the texts that begin within `_NEAR` characters after one of them."""
    kept, room = set[int](), 0
    for at, text in enumerate(texts):
        if at in found:
            room = _NEAR
        elif room > 0:
            room -= len(text) + 1
        else:
            continue
        kept.add(at)
    return kept


def _revealed(text: str) -> str:
    """Return the text in lower case, since the parser ignores the case of names, and without the invisible characters,
    escapes and character references that may hide a name.
    """
    if "\\u" in text and any(_HIDDEN_CODE.match(code) for code in set(_CODES(text))):
        text = _HIDDEN_ESCAPE.sub(lambda found: "" if found[1][0] in "dD" else chr(int(found[1], 16)), text)
    if "\\x" in text:
        text = _BYTE_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    if "\\" in text:
        text = _NAME_ESCAPE.sub("", text)
    if "&" in text and _HIDDEN_REFERENCE.search(text):
        text = _resolved(_resolved(text))
    if "\x1b" in text:
        text = _COLORS.sub("", text)
    if not text.isascii():
        return _HIDDEN.sub("", text).lower()
    return (INVISIBLE.sub("", text) if any(char in text for char in _CONTROLS) else text).lower()


def _resolved(text: str) -> str:
    """Return the text with character references resolved once."""
    return unescape(_ENDLESS.sub("", text))


class _NameSearch:
    """A search for tool names, which are in lower case, where they could occur in call syntax. All texts of a request
    share its positions; when none are left, any text may contain a call.
    """

    __slots__ = ("_begun", "_by_word", "_forms", "_left", "_names", "_spelled")

    def __init__(self, names: AbstractSet[str], forms: Sequence[str], left: int) -> None:
        self._names = names
        self._forms = forms
        """The names in the form in which all spellings of a name are equal."""
        self._by_word: dict[str, list[str]] | None = None
        self._spelled: list[tuple[Callable[[str], str], set[str]]] = []
        """Forms of texts, and the names in each form; made when a text is first searched."""
        self._left = left
        self._begun: Any = None
        """The beginning of each digest."""

    def long_may_contain_call(self, text: str) -> bool:
        """Return `may_contain_call` for a long text. The result is cached, because each request repeats the texts of
        the conversation so far, and a digest takes a small part of the time of the search.
        """
        if self._begun is None:
            self._begun = hashlib.sha256(repr(sorted(self._names)).encode())
        whole = self._begun.copy()
        whole.update(text.encode("utf-8", "surrogatepass"))
        digest = whole.digest()
        known = _long_texts.get(digest)
        if known is None:
            many = len(self._names) > _MANY
            known = (many or _occurs(self._forms, text)) and self.may_contain_call(_revealed(text))
            if self._left >= 0:  # otherwise, the text has not been searched to its end
                _long_texts.put(digest, known, 0)
        return known

    def may_contain_call(self, text: str) -> bool:
        """Return whether a tool's name, or another spelling of it, occurs in the text where a name could occur in call
        syntax.
        """
        if not self._spelled:
            self._spelled = [(spelled, {*map(spelled, self._names)}) for spelled in _SPELLED]
            self._by_word = _by_first_word(self._names) if len(self._names) > _MANY else None
        exact = self._names if self._by_word is None else _names_in(self._by_word, text)
        return self._may_contain(text, exact) or any(
            self._may_contain(spelled(text), names) for spelled, names in self._spelled
        )

    def _may_contain(self, text: str, names: AbstractSet[str]) -> bool:
        """Return whether one of these names occurs in the text where a name could occur in call syntax."""
        names = {name for name in names if name and name in text}
        if not names:
            return False
        lengths = sorted(set(map(len, names)))
        ends = "".join(map(re.escape, {name[-1] for name in names}))
        for found in re.finditer(f"[{ends}]{_AFTER}", text):
            end = found.end()
            self._left -= len(lengths)
            if self._left < 0:
                return True
            for start in (end - length for length in lengths if length <= end):
                if text[start:end] in names:
                    self._left -= _HIT
                    if _begins_call(text, start) or _begins_expression(text, start, end):
                        return True
        return False


def _by_first_word(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names by their first words."""
    found: dict[str, list[str]] = {}
    for name in names:
        for word in _WORD.findall(name)[:1]:
            found.setdefault(word, []).append(name)
    return found


def _names_in(by_word: Mapping[str, Sequence[str]], text: str) -> set[str]:
    """Return the names that occur in the text."""
    words = by_word.keys() & _WORD.findall(text)
    return {name for word in words for name in by_word[word] if name in text}


def _begins_call(text: str, start: int) -> bool:
    """Return whether the text before a name that begins at `start` could be call syntax."""
    around = text[max(0, start - 64) : start]
    before = around.rstrip(f"{_BLANKS}\\")
    if not before or before[-1] in _BEFORE or _NUMBERED.search(around) is not None:
        return True
    return len(f".{around[len(before) :]}.".splitlines()) > 1


def _begins_expression(text: str, start: int, end: int) -> bool:
    """Return whether the name at these positions is a word that a parenthesis follows directly."""
    return text.startswith("(", end) and not (text[start - 1].isalnum() or text[start - 1] == "_")


def _readings(texts: tuple[str, ...]) -> "Iterator[_Reading]":
    """Yield the sources as they are, with the strings of JSON as lines, as a page displays them, and with character
    references resolved once and twice.
    """
    parts = [_plain(text) for text in texts]
    yield _Reading(parts)
    lists = [_lines_in_json(text) for text in texts]
    if any(lists):
        yield _Reading([_plain(lines) if lines else part for lines, part in zip(lists, parts, strict=True)])
    if any("<" in part and _TAG.search(part) for part in parts):
        yield _Reading([_plain(_resolved(_TAG.sub("", _BREAK.sub("\n", part)))) for part in parts])
    for _ in range(2):
        if not any("&" in part for part in parts):
            return
        resolved = [_plain(_resolved(part)) if "&" in part else part for part in parts]
        if resolved == parts:
            return
        parts = resolved
        yield _Reading(parts)


def _lines_in_json(text: str, depth: int = 0) -> str:
    """Return the strings in a JSON text, or in lines of JSON, if any field has several: each field's strings together,
    as lines. Return "" for other text. `depth` is the number of fields around the text.
    """
    fields: dict[tuple[str, ...], list[str]] = {}
    for document in _documents(text):
        _collect_strings(document, (), depth, fields)
    if all(len(strings) == 1 for strings in fields.values()):
        return ""
    return "\n".join(chain.from_iterable(fields.values()))


def _documents(text: str) -> list[object]:
    """Return the values in a text that is JSON, or has JSON in each line; none if it is something else."""
    text = text.strip()
    if len(text) < _MIN_JSON or text[0] not in "{[":
        return []
    for array in (f"[{text}]", f"[{','.join(filter(str.strip, text.splitlines()))}]"):
        with suppress(ValueError, RecursionError):
            found: list[object] = json.loads(array)
            return found
    return []


def _collect_strings(
    value: object, path: tuple[str, ...], depth: int, fields: dict[tuple[str, ...], list[str]]
) -> None:
    """Add the strings in a value to the lists in `fields`. A string that contains such JSON counts as its lines."""
    if depth + len(path) > _MAX_DEPTH:
        return
    match value:
        case str():
            lines = _lines_in_json(value, depth + len(path) + 1) if len(value) >= _MIN_JSON else ""
            fields.setdefault(path, []).extend(lines.split("\n") if lines else (value,))
        case list():
            for item in value:
                _collect_strings(item, path, depth, fields)
        case dict():
            for key, item in value.items():
                _collect_strings(item, (*path, key), depth, fields)
        case _:
            pass


def _plain(text: str) -> str:
    """Return the text with escapes decoded and without control sequences."""
    for _ in range(2):  # an escape may denote a backslash
        if "\\" not in text:
            break
        text = _ESCAPE.sub(_decoded, text)
    return _COLORS.sub("", text) if "\x1b" in text else text


def _decoded(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(escape[0][-1], "")


def _comparable(text: str) -> str:
    """Return the text without the characters that comparisons ignore."""
    return _comparable_lines(_plain(text)).replace("\n", "")


def _comparable_lines(text: str) -> str:
    """Return the lines of a text without the characters that comparisons ignore."""
    return text.translate(_IGNORED_ASCII) if text.isascii() else _IGNORED.sub("", text)


class _Reading:
    """One way to read the sources. Positions are those in `flat`."""

    __slots__ = ("_breaks", "_compared", "_firsts", "_lines", "_prefixes", "flat", "parts")

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts = ["\n".join(f"{part}.".splitlines())[:-1] for part in parts]
        """The texts, with every line break as a newline."""
        self._compared = [_comparable_lines(part) for part in parts]
        self.flat = "".join(self._compared).replace("\n", "")
        """The text in the form in which it is compared."""
        self._lines: list[str] = []
        """The lines, while the positions where they begin are known."""
        self._breaks: list[int] = []
        """The positions where lines begin, in order."""
        self._firsts: set[int] = set()
        """The positions where parts begin."""
        self._prefixes: dict[int, list[tuple[int, _Skipped]]] = {}

    def starts(self, anchor: str, name: str, reach: int) -> Iterator[int]:
        """Yield each position where this call opening occurs and the call's name follows within `reach` characters."""
        flat = self.flat
        if not name or flat.count(anchor) <= flat.count(name):
            at = flat.find(anchor)
            while at >= 0:
                yield at
                at = flat.find(anchor, at + 1)
            return
        at, last = flat.find(name), -1
        while at >= 0:
            start = flat.find(anchor, max(at - reach, last + 1), at + len(name) + len(anchor))
            while start >= 0:
                last = start
                yield start
                start = flat.find(anchor, start + 1, at + len(name) + len(anchor))
            at = flat.find(name, at + 1)

    def advance(self, places: Iterable[_Position], text: str, sources: QuotationSources) -> set[_Position]:
        """Return the places that are reached from `places` by comparing this text, skipping prefixes of lines."""
        if not self._breaks:
            self._split()
        flat, breaks = self.flat, self._breaks
        reached: set[_Position] = set()
        known: set[tuple[_Position, int]] = set()
        waiting = [(place, 0) for place in places]
        while waiting and sources.steps > 0:
            step = waiting.pop()
            if step in known:
                continue
            known.add(step)
            sources.steps -= 1
            (at, skipped, begins), done = step
            line = bisect_right(breaks, at)
            end = breaks[line] if line < len(breaks) else len(flat)
            if begins:
                for length, prefix in self._prefixes_at(at):
                    if (common := skipped.with_prefix(prefix)) is not None:
                        waiting.append(((at + length, common, at + length == end < len(flat)), done))
                continue
            left = len(text) - done
            if flat.startswith(text[done : done + end - at], at):
                if left < end - at:
                    reached.add((at + left, skipped, False))
                    continue
                common = skipped if end in self._firsts else skipped.with_suffix("")
                if left == end - at:
                    reached.add((end, skipped if common is None else common, common is not None and end < len(flat)))
                elif common is not None and end < len(flat):
                    waiting.append(((end, common, True), done + end - at))
            if end == len(flat):
                continue
            for start in _suffixes(flat, max(at, end - _LONGEST_SUFFIX), end, part=end in self._firsts):
                length = start - at
                common = skipped if end in self._firsts else skipped.with_suffix(flat[start:end])
                if common is not None and left >= length and flat.startswith(text[done : done + length], at):
                    waiting.append(((end, common, True), done + length))
        return reached

    def _split(self) -> None:
        """Find the lines, and where they and the parts begin."""
        at = 0
        for part, compared in zip(self.parts, self._compared, strict=True):
            self._firsts.add(at)
            lines = compared.split("\n")
            self._lines += part.split("\n")
            self._breaks += accumulate(map(len, lines[:-1]), initial=at)
            at = self._breaks[-1] + len(lines[-1])

    def _prefixes_at(self, at: int) -> list[tuple[int, _Skipped]]:
        """Return the prefixes of the line that begins here: their lengths when compared, and their properties."""
        found = self._prefixes.get(at)
        if found is None:
            line = self._lines[bisect_right(self._breaks, at) - 1][:_LONGEST_PREFIX]
            prefixes = chain(_prefixes(line), _encodings(line) if at in self._firsts else ())
            found = self._prefixes[at] = [*dict.fromkeys(prefixes)]
        return found


def _prefixes(line: str) -> Iterator[tuple[int, _Skipped]]:
    """Yield the prefixes that may be skipped on this line: their lengths when compared, their shapes, and the columns
    in which the line may continue.

    No prefix contains what begins a value or a tag. The signs of changes, and what differs between matches and their
    context, are not part of the shape.
    """
    length = 0
    shape: _Shape = ()
    yield length, _Skipped(shape, 0, _next_column(line, 0))
    for token in _TOKEN.finditer(line):
        word = token[0]
        if word in '"{}<' and not _COMMENT.match(line, token.start()):
            return
        is_word = word[0].isalnum() or word[0] == "_"
        if word not in "+-:>`'":
            kind = "0" if word.isdigit() else "w" if is_word else word
            if shape[-1:] != (kind,) or is_word:
                shape = (*shape, kind)
        length += len(_comparable_lines(word))
        if not is_word or line[token.end() : token.end() + 1].isspace():  # a word is not the prefix of a sign
            yield length, _Skipped(shape, token.end(), _next_column(line, token.end()))


def _next_column(line: str, start: int) -> int:
    """Return the column of the next character that is not a blank, or `sys.maxsize` if only blanks follow."""
    rest = line[start:].lstrip()
    return len(line) - len(rest) if rest else sys.maxsize


def _encodings(line: str) -> Iterator[tuple[int, _Skipped]]:
    """Yield the prefixes of a part that may be skipped: none, since a part may begin within a line, and the beginning
    of an encoding, since the encoded content may start right after it.
    """
    length = 0
    yield length, _ANY
    for token in _TOKEN.finditer(line):
        length += len(_comparable_lines(token[0]))
        if token[0] in "\"'>([{":
            yield length, _ANY


def _suffixes(flat: str, begin: int, end: int, *, part: bool) -> Iterator[int]:
    """Yield where the suffixes of a line that ends at `end` may begin, not before `begin`; `part` means that the part
    ends there too.
    """
    for ending in (_SUFFIX, _PART_SUFFIX) if part else (_SUFFIX,):
        found = ending.search(flat, begin, end)
        if found is not None:
            yield from range(found.start(), end)


class Passage:
    """A passage in the sources that matches a call's text, as far as the call has been read. `name` is the name of the
    call's tool.
    """

    __slots__ = ("_anchor", "_cut", "_found", "_name", "_pieces", "_skipping", "_sources")

    def __init__(self, sources: QuotationSources, name: str = "") -> None:
        self._sources = sources
        self._name = _comparable_lines(name)
        self._anchor = ""
        """The beginning of the call, within which no line ends."""
        self._cut = ""
        self._pieces: list[str] = []
        """The call's text so far, in the form in which it is compared."""
        self._found = [_Verbatim(reading.flat) for reading in sources.readings]
        self._skipping: list[_Skipping] | None = None
        """Comparisons that skip prefixes of lines; they begin when no verbatim one is left."""

    def extend(self, text: str) -> bool:
        """Add the next piece of the call. Return whether the call still occurs in the sources."""
        if not self._anchor and (anchor := _ANCHOR.search(_plain(text))) is not None:
            self._anchor = _comparable_lines(anchor[0])
        text = self._cut + text
        cut = _CUT.search(text)
        self._cut = "" if cut is None else "\\" + cut[0].lstrip("\\")
        more = _comparable(text if cut is None else text[: cut.start()])
        self._pieces.append(more)
        if self._skipping is None:
            self._found = [found for found in self._found if found.extend(more)]
            if self._found:
                return True
            whole = "".join(self._pieces)
            name = self._name if self._name in whole else ""
            reach = len(whole) + 8 * _LONGEST_PREFIX
            self._skipping = [
                _Skipping(reading, self._sources, whole, reading.starts(self._anchor, name, reach))
                for reading in (self._sources.readings if self._anchor else ())
            ]
        else:
            for found in self._skipping:
                found.extend(more, self._pieces)
        self._skipping = [found for found in self._skipping if found.matches]
        return bool(self._skipping)


class _Verbatim:
    """A passage that contains all of a call's text verbatim."""

    __slots__ = ("_at", "_length", "_said")

    def __init__(self, said: str) -> None:
        self._said = said
        self._at = 0
        self._length = 0

    def extend(self, more: str) -> bool:
        """Add the next piece. Return whether the text still occurs."""
        end = self._at + self._length
        if not self._length or not self._said.startswith(more, end):
            self._at = self._said.find(self._said[self._at : end] + more, self._at)
        self._length += len(more)
        return self._at >= 0


class _Skipping:
    """A passage that contains a call's text if prefixes of lines are skipped.

    If the sources allow for too many passages, the text counts as found: no real conversation does that.
    """

    __slots__ = ("_excess", "_places", "_reading", "_sources", "_starts")

    def __init__(self, reading: _Reading, sources: QuotationSources, text: str, starts: Iterator[int]) -> None:
        self._reading = reading
        self._sources = sources
        self._starts = starts
        """The positions where the text may begin, apart from those that have been compared."""
        self._places: set[_Position] = set()
        self._excess = False
        """Whether the sources allow for too many passages."""
        self._find(text)

    @property
    def matches(self) -> bool:
        """Whether the call's text still occurs."""
        return bool(self._places) or self._excess

    def extend(self, more: str, pieces: list[str]) -> None:
        """Add the next piece; `pieces` are all pieces so far."""
        if not self._excess:
            self._advance(self._places, more)
            if not self.matches:
                self._find("".join(pieces))

    def _find(self, text: str) -> None:
        """Find the next passage that contains the text."""
        for start in self._starts:
            self._advance({(start, _ANY, False)}, text)
            if self.matches:
                return

    def _advance(self, places: Iterable[_Position], text: str) -> None:
        self._places = self._reading.advance(places, text, self._sources)
        self._excess = self._sources.steps <= 0 or len(self._places) > _MAX_PLACES
