"""Tells a call from a quotation: call syntax that a user, or a tool, has written, and that the model only repeats.

In code and in a block quote the parser knows that call syntax is text. In the middle of a sentence it looks like a
call. But a quotation has a source: the same words stand in a user's message or in a result of this conversation. So a
call whose own text, markup and arguments, stands there word for word is text, and reaches the client as it was written.
Where white space, quotes, escapes and the marks of block quotes differ, it is the same text all the same: in a result
that is JSON all of them do. What the model has written in earlier turns is no source.

Few requests have such texts at all, so the rest pays for one search in what users and tools have said
(`quotation_sources`). In a request that has some, the text of the reply is fed to the parser in short pieces: the
parser says by its events, and by what it holds, which characters were markup, and between two pieces nothing can begin
or end. A call goes on streaming at the first character in which it differs from every source; only one that has not
differed yet waits, within the limit of what may be held.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from html import unescape
from typing import Final, Protocol

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from streamtool.conversation import Conversation, TextPart
from streamtool.policy.null_parser import TextParser

LONGEST: Final = 4 * 1024 * 1024
"""Characters of a conversation that are looked at, the latest ones."""
_MANY: Final = 64
"""Tools above which their names are looked for among the words of a text, and not one after the other."""
_BEFORE: Final = frozenset("\"'=>:@[|.(</{}▁,;\n`n“”‘’")
"""What stands before a name in call syntax, blanks apart; `n` is what is left of an escaped line end."""
_AFTER: Final = r"(?=\s*\\*(?:[\"'“”‘’>{(\[<|:=/`}&]|\\n)|\s*\n|\s*\Z)"
_WORD: Final = re.compile(r"\w+")
_PIECE: Final = re.compile(r"[\w ,.]+|.", re.DOTALL)
"""Pieces of a reply inside of which nothing begins or ends."""
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])?")
_CUT: Final = re.compile(r"(?<!\\)\\++(?:u[0-9a-fA-F]{0,3}+)?+\Z")
_ENDLESS: Final = re.compile(r"&#[0-9]{1000,}+")
"""A number of more digits than `int` takes; no character has it."""
_PASSED_OVER: Final = re.compile("[\\s\"'`>“”‘’\ud800-\udfff\U00010000-\U0010ffff]+")
"""What does not count in a comparison. Characters beyond the basic plane may stand as two escapes."""
_LEAD: Final = re.compile(r"[\s,;]*(?:`{3,}[^\n`]*\n\s*(?![\w.]+\())?")
"""What stands before a call and is not its own: a separator, the fence around it."""


class QuotationSources:
    """The texts of a conversation in which a call may stand."""

    __slots__ = ("_plain", "_texts", "found")

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(texts)
        self._plain: str | None = None
        self.found = 0
        """Calls that turned out to be quotations."""

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
    return QuotationSources(found) if found else None


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
    """Whether a tool's name stands in the text where call syntax has it."""
    if len(names) > _MANY:
        words = set(_WORD.findall(text))
        names = {name for name in names if any(word in words for word in _WORD.findall(name)[:1])}
    for name in names:
        if name in text:
            for found in re.finditer(re.escape(name) + _AFTER, text):
                before = text[max(0, found.start() - 64) : found.start()].rstrip(" \t\\")
                if not before or before[-1] in _BEFORE:
                    return True
    return False


def _plain(text: str) -> str:
    """The text without what does not count when texts are compared."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", text)
    return _PASSED_OVER.sub("", text)


class _Place:
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


class HoldingParser(TextParser, Protocol):
    """A parser that tells how many characters are not decided yet, and whether it reads reasoning."""

    @property
    def held(self) -> int: ...
    @property
    def in_reasoning(self) -> bool: ...


class _Consumed:
    """The text of a reply that the parser has read and does not hold any more."""

    __slots__ = ("_buffer", "_size")

    def __init__(self) -> None:
        self._buffer: list[str] = []
        """What the parser holds, and perhaps more before it."""
        self._size = 0

    def feed(self, piece: str, held: int) -> str:
        """What is consumed with this piece, after which so many characters are held; "" while a candidate is held."""
        self._buffer.append(piece)
        self._size += len(piece)
        if not held and len(self._buffer) == 1:
            self._buffer.clear()
            self._size = 0
            return piece
        if held >= self._size:
            return ""
        text = "".join(self._buffer)
        consumed = text[: len(text) - held]
        self._buffer[:] = [text[len(text) - held :]] if held else []
        self._size = held
        return consumed


class _WaitingCall:
    """A call that may be a quotation: its events, its text, and where that text stands in what was said."""

    __slots__ = ("_place", "_source", "events", "size")

    def __init__(self, said: str) -> None:
        self._place = _Place(said)
        self._source: list[str] = []
        self.events: list[Event] = []
        self.size = 0
        """Characters of its text."""

    @property
    def source(self) -> str:
        """Its text."""
        return "".join(self._source)

    def begin(self, event: CallStart, source: str) -> bool:
        """It has committed with this text. Like `goes_on`."""
        self.events.append(event)
        self._source.append(source)
        self.size = len(source)
        lead = _LEAD.match(source)
        return self._place.follow(source[lead.end() if lead else 0 :])

    def goes_on(self, source: str) -> bool:
        """Whether it still stands word for word in what was said, with this text behind it."""
        self._source.append(source)
        self.size += len(source)
        return self._place.follow(source)


class _Mode(Enum):
    """What becomes of the parser's events."""

    PASS = "they go on as they are"  # noqa: S105  no password
    WAIT = "a call waits, since it may be a quotation"
    QUOTE = "a quotation has ended; what the parser takes for its closers is text"


class QuotationFilter:
    """A parser that takes a call which stands in `sources` for the text that it is. `limit` bounds what waits.

    `begun`: the reply begins inside of a call, which is not the model's idea and no quotation. `counts`: quotations are
    counted in `sources`.
    """

    __slots__ = ("_begun", "_call", "_consumed", "_counts", "_in_reasoning", "_limit", "_mode", "_parser", "_sources")

    def __init__(
        self,
        parser: HoldingParser,
        sources: QuotationSources,
        *,
        limit: int,
        begun: bool = False,
        counts: bool = True,
    ) -> None:
        self._begun = begun
        self._parser = parser
        self._sources = sources
        self._limit = limit
        self._counts = counts
        self._mode = _Mode.PASS
        self._consumed = _Consumed()
        self._call = _WaitingCall("")
        """The call that waits, or the last one that did."""
        self._in_reasoning = False
        """The call stands in reasoning."""

    def feed(self, text: str, /) -> list[Event]:
        """The events that this piece of the reply brings."""
        out: list[Event] = []
        feed = self._parser.feed
        for piece in _PIECE.findall(text):
            events = feed(piece)
            self._take(piece, events, out)
        if all(type(event) is TextDelta for event in out) and "".join(event.text for event in out) == text:  # type: ignore[union-attr]  # all have one
            return [TextDelta(text)] if text else []
        return _joined(out)

    def close(self, reason: str | None = None, /) -> list[Event]:
        """The last events."""
        out: list[Event] = []
        self._take("", self._parser.close(reason), out)
        return _joined(out)

    def _take(self, piece: str, events: list[Event], out: list[Event]) -> None:
        """What the parser said to a piece."""
        consumed = self._consumed.feed(piece, self._parser.held)
        if self._mode is _Mode.PASS and not any(type(event) is CallStart for event in events):
            self._begun = self._begun and not events
            out += events
            return
        for i, event in enumerate(events):
            match event:
                case CallStart():
                    self._begins(event, consumed, out)
                    consumed = ""
                case CallEnd() if self._mode is _Mode.WAIT:
                    behind = sum(
                        len(later.text) for later in events[i + 1 :] if isinstance(later, TextDelta | ReasoningDelta)
                    )
                    self._ends(event, consumed[: len(consumed) - behind], out)
                    consumed = consumed[len(consumed) - behind :]
                case _ if self._mode is _Mode.WAIT:
                    self._call.events.append(event)
                case TextDelta(text=text) | ReasoningDelta(text=text) if self._mode is _Mode.QUOTE:
                    self._say(consumed.removesuffix(text), out)
                    out.append(event)
                    consumed = ""
                    self._mode = _Mode.PASS
                case Discarded() if self._mode is _Mode.QUOTE:
                    pass
                case TextDelta(text=text):
                    self._begun = False
                    out.append(event)
                    consumed = consumed.removeprefix(text)
                case _:
                    self._mode = _Mode.PASS
                    out.append(event)
        if self._mode is _Mode.WAIT:
            self._goes_on(consumed, out)
        elif self._mode is _Mode.QUOTE:
            self._say(consumed, out)

    def _begins(self, event: CallStart, source: str, out: list[Event]) -> None:
        """A call has committed; its text so far is `source`."""
        if self._begun:
            self._begun = False
            self._mode = _Mode.PASS
            out.append(event)
            return
        self._mode = _Mode.WAIT
        self._in_reasoning = self._parser.in_reasoning
        self._call = _WaitingCall(self._sources.plain)
        if not self._call.begin(event, source):
            self._deliver(out)

    def _goes_on(self, source: str, out: list[Event]) -> None:
        """More of the call that waits."""
        if source and (not self._call.goes_on(source) or self._call.size > self._limit):
            self._deliver(out)

    def _ends(self, event: CallEnd, source: str, out: list[Event]) -> None:
        """The call that waits is over: it is a quotation, or it goes out."""
        self._call.events.append(event)
        if self._call.goes_on(source):
            self._sources.found += self._counts
            self._say(self._call.source, out)
            self._mode = _Mode.QUOTE
        else:
            self._deliver(out)

    def _say(self, text: str, out: list[Event]) -> None:
        """A quotation, or what follows it: text, or reasoning if it stands there. What begins or ends it is markup."""
        if self._mode is _Mode.QUOTE and self._in_reasoning != self._parser.in_reasoning:
            self._mode = _Mode.PASS
        elif text:
            out.append(ReasoningDelta(text) if self._in_reasoning else TextDelta(text))

    def _deliver(self, out: list[Event]) -> None:
        """The call is a call."""
        out += self._call.events
        self._mode = _Mode.PASS


def _joined(events: list[Event]) -> list[Event]:
    """The same events, neighbours of one kind as one."""
    joined: list[Event] = []
    for event in events:
        before = joined[-1] if joined else None
        match before, event:
            case TextDelta(text=text), TextDelta(text=more):
                joined[-1] = TextDelta(text + more)
            case ReasoningDelta(text=text), ReasoningDelta(text=more):
                joined[-1] = ReasoningDelta(text + more)
            case ArgumentsDelta(index=index, text=text), ArgumentsDelta(text=more):
                joined[-1] = ArgumentsDelta(index, text + more)
            case Discarded(text=text, reason=reason), Discarded(text=more, reason=same) if reason == same:
                joined[-1] = Discarded(text + more, reason)
            case _:
                joined.append(event)
    return joined
