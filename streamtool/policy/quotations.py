"""Tells a call from a quotation: call syntax that a user, or a tool, has written, and that the model only repeats.

In code and in a block quote the parser knows that call syntax is text. In the middle of a sentence it looks like a
call. But a quotation has a source: the same words stand in a user's message or in a result of this conversation. So a
call whose own text, markup and arguments, stands there word for word (`quoted_sources`) is text, and reaches the client
as it was written. What the model has written in earlier turns is no source.

A repeated call that stands alone is a call all the same: at a line start, with nothing but other calls behind it to the
end of the reply. A user may have written the call that they want, and frameworks repeat one that they could not read.
Only such a call waits for what follows it.

Few requests have such texts at all, so the rest pays for one search in what users and tools have said
(`quotation_sources`). In a request that has some, the text of the reply is fed to the parser in short pieces where a
call may commit: where the parser holds something, or a tool's name comes. The parser says by its events, and by what it
holds, which characters were markup, and between two pieces nothing can begin or end. A call goes on streaming at the
first character in which it differs from every source; only one that has not differed yet waits, within the limit of
what may be held.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from streamtool.policy.null_parser import TextParser
from streamtool.policy.quoted_sources import Passage, QuotationSources

_PIECE: Final = re.compile(r"[\w ,.]+|.", re.DOTALL)
"""Pieces of a reply inside of which nothing begins or ends."""
_STRETCH: Final = re.compile(r"[^\n\\&]+|\n+|[\\&]+")
"""Stretches of a line in which a name is spelled as it is."""
_MANY: Final = 256
"""Events above which neighbours are joined before there are more."""
_LEAD: Final = re.compile(r"[\s,;]*(?:`{3,}[^\n`]*\n\s*(?![\w.]+\())?")
"""What stands before a call and is not its own: a separator, the fence around it."""


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

    __slots__ = ("_passage", "_source", "events", "size", "why")

    def __init__(self, said: str, why: str = "") -> None:
        self.why = why
        """Why it is a quotation if it is repeated; "": it stands alone, so what follows decides."""
        self._passage = Passage(said)
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
        return self._passage.follow(source[lead.end() if lead else 0 :])

    def goes_on(self, source: str) -> bool:
        """Whether it still stands word for word in what was said, with this text behind it."""
        self._source.append(source)
        self.size += len(source)
        return self._passage.follow(source)


class _Mode(Enum):
    """What becomes of the parser's events."""

    PASS = "they go on as they are"  # noqa: S105  no password
    WAIT = "a call waits, since it may be a quotation"
    LAST = "repeated calls that stand alone wait: they are calls if nothing but calls follows"
    QUOTE = "a quotation has ended; what the parser takes for its closers is text"


class QuotationFilter:
    """A parser that takes a call which stands in `sources` for the text that it is. `limit` bounds what waits.

    `begun`: the reply begins inside of a call, which is not the model's idea and no quotation. `tell` is told of each
    quotation why it is one: `behind text` or `before text`, `in a fence`, `in reasoning`, `cut off`.
    """

    __slots__ = (
        *("_begun", "_call", "_consumed", "_in_reasoning", "_limit", "_line", "_mode", "_parser"),
        *("_repeated", "_said", "_sources", "_tell"),
    )

    def __init__(
        self,
        parser: HoldingParser,
        sources: QuotationSources,
        *,
        limit: int,
        begun: bool = False,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._begun = begun
        self._parser = parser
        self._sources = sources
        self._limit = limit
        self._tell = tell
        self._mode = _Mode.PASS
        self._consumed = _Consumed()
        self._call = _WaitingCall("")
        """The call that waits, or the last one that did."""
        self._in_reasoning = False
        """The call stands in reasoning."""
        self._repeated: list[_WaitingCall] = []
        """Repeated calls that stand alone, each with what followed it."""
        self._said = False
        """Text has come."""
        self._line = False
        """Some of it stands in this line."""

    @property
    def waits_for(self) -> str:
        """Why a call waits; "" if none does."""
        return "" if self._mode in (_Mode.PASS, _Mode.QUOTE) else "it may be a quotation"

    def feed(self, text: str, /) -> list[Event]:
        """The events that this piece of the reply brings."""
        out: list[Event] = []
        parser, most = self._parser, _MANY
        for stretch in _STRETCH.findall(text):
            quiet = self._mode is _Mode.PASS and not parser.held and not self._sources.named(stretch)
            for piece in (stretch,) if quiet else _PIECE.findall(stretch):
                self._take(piece, parser.feed(piece), out)
                if len(out) > most:
                    out = _joined(out)
                    most = 2 * len(out) + _MANY
        if all(type(event) is TextDelta for event in out) and "".join(event.text for event in out) == text:  # type: ignore[union-attr]  # all have one
            return [TextDelta(text)] if text else []
        return _joined(out)

    def close(self, reason: str | None = None, /) -> list[Event]:
        """The last events."""
        out: list[Event] = []
        self._take("", self._parser.close(reason), out)
        self._deliver_repeated(out)
        return _joined(out)

    def _take(self, piece: str, events: list[Event], out: list[Event]) -> None:
        """What the parser said to a piece."""
        consumed = self._consumed.feed(piece, self._parser.held)
        if self._mode is _Mode.PASS and not any(type(event) is CallStart for event in events):
            self._begun = self._begun and not events
            self._line = self._line and "\n" not in consumed  # one that the parser takes for markup ends a line too
            self._look_at(events)
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
                case TextDelta(text=text) | ReasoningDelta(text=text) if self._mode is _Mode.LAST and text.strip():
                    self._repeated[-1].goes_on(consumed.removesuffix(text))
                    self._quote_repeated(out)
                    out.append(event)
                    consumed = ""
                case TextDelta() | ReasoningDelta() if self._mode is _Mode.LAST:
                    pass
                case Discarded() if self._mode in (_Mode.QUOTE, _Mode.LAST):
                    pass
                case TextDelta(text=text):
                    self._begun = False
                    self._look_at([event])
                    out.append(event)
                    consumed = consumed.removeprefix(text)
                case _:
                    self._mode = _Mode.PASS
                    out.append(event)
        if self._mode is _Mode.WAIT:
            self._goes_on(consumed, out)
        elif self._mode is _Mode.LAST and self._in_reasoning == self._parser.in_reasoning:
            self._repeated[-1].goes_on(consumed)
        elif self._mode is _Mode.QUOTE:
            self._say(consumed, out)

    def _begins(self, event: CallStart, source: str, out: list[Event]) -> None:
        """A call has committed; its text so far is `source`."""
        if self._begun:
            self._begun = False
            self._mode = _Mode.PASS
            out.append(event)
            return
        self._in_reasoning = self._parser.in_reasoning
        self._call = _WaitingCall(self._sources.plain, self._why(source))
        self._mode = _Mode.WAIT
        if not self._call.begin(event, source):
            self._deliver(out)

    def _why(self, source: str) -> str:
        """Why a call that begins so is a quotation if it is repeated; "": it stands alone."""
        begin = source.lstrip()
        if self._in_reasoning:
            return "in reasoning"
        if self._said and begin.startswith("```"):
            return "in a fence"
        begins_line = "\n" in source[: len(source) - len(begin)] or self._mode is _Mode.LAST
        return "behind text" if self._line and not begins_line else ""

    def _goes_on(self, source: str, out: list[Event]) -> None:
        """More of the call that waits."""
        if source and (not self._call.goes_on(source) or self._call.size > self._limit):
            self._deliver(out)

    def _ends(self, event: CallEnd, source: str, out: list[Event]) -> None:
        """The call that waits is over: it is a quotation, or it goes out."""
        self._call.events.append(event)
        if not self._call.goes_on(source):
            self._deliver(out)
        elif not self._call.why and event.complete:
            self._repeated.append(self._call)
            self._mode = _Mode.LAST
            if sum(call.size for call in self._repeated) > self._limit:
                self._deliver_repeated(out)
        else:
            self._quote_repeated(out)
            self._quoted(self._call.why or "cut off")
            self._say(self._call.source, out)
            self._mode = _Mode.QUOTE

    def _say(self, text: str, out: list[Event]) -> None:
        """A quotation, or what follows it: text, or reasoning if it stands there. What begins or ends it is markup."""
        if self._mode is _Mode.QUOTE and self._in_reasoning != self._parser.in_reasoning:
            self._mode = _Mode.PASS
        elif text:
            out.append(ReasoningDelta(text) if self._in_reasoning else TextDelta(text))

    def _deliver(self, out: list[Event]) -> None:
        """The call is a call, and so are those that it follows."""
        self._deliver_repeated(out)
        out += self._call.events
        self._mode = _Mode.PASS

    def _deliver_repeated(self, out: list[Event]) -> None:
        """Nothing but calls has followed them: they are calls."""
        for call in self._repeated:
            out += call.events
        self._repeated.clear()
        self._mode = _Mode.PASS

    def _quote_repeated(self, out: list[Event]) -> None:
        """Text has followed them: they are quotations."""
        for call in self._repeated:
            self._quoted("before text")
            out.append(TextDelta(call.source))
        self._repeated.clear()
        self._mode = _Mode.PASS

    def _quoted(self, why: str) -> None:
        if self._tell is not None:
            self._tell(why)

    def _look_at(self, events: list[Event]) -> None:
        """What has been said stands before what comes."""
        for event in events:
            if type(event) is TextDelta and event.text:
                _, end, rest = event.text.rpartition("\n")
                self._line = bool(rest.strip()) or (self._line and not end)
                self._said = self._said or bool(event.text.strip())


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
