"""Detection of quotations: call syntax that a user or a tool wrote, and that the model merely repeats.

Inside code and block quotes, the parser already treats call syntax as text. In the middle of a sentence, however,
quoted syntax looks like a call. But a quotation has a source: the same text occurs in a user's message or a tool result
in this conversation. So if the text of a call, markup and arguments included, occurs there verbatim (`quoted_sources`),
the call is treated as text and reaches the client as it was written. The model's own earlier turns are not sources.

A repeated call is still a call if it is isolated: at the start of a line, and followed only by other calls until the
end of the reply. A user may have written out the call they want, and frameworks repeat a call that they could not
parse. Only an isolated call has to wait for the text after it. If the sources ask for it (`requested`), its start is a
`RepeatedCallStart` unless a user wrote the call, so that an agent can refuse to execute it.

Few requests contain text from which a call may be quoted. For all others, the only cost is one search of the messages
from users and tools (`quotation_sources`). If a request contains such text, the reply is fed to the parser in short
pieces wherever a call may commit: where the parser buffers something, or a tool's name occurs. Since no markup begins
or ends within a piece, the parser's events and the amount of text that it then buffers reveal which characters were
markup. A call is buffered, up to the limit for buffered text, only while it matches a source. As soon as it differs
from every source, it is streamed again.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from streamtool.filters.null_parser import TextParser
from streamtool.filters.quoted_sources import Passage, QuotationSources

_PIECE: Final = re.compile(r"[\w ,.]+|.", re.DOTALL)
"""Matches pieces of a reply within which no markup begins or ends."""
_STRETCH: Final = re.compile(r"[^\n\\&]+|\n+|[\\&]+")
"""Matches stretches of a line without escapes, in which a name is always spelled literally."""
_MANY: Final = 256
"""Number of collected events that triggers a merge of neighbors."""
_LEAD: Final = re.compile(r"[\s,;]*(?:`{3,}[^\n`]*\n\s*(?![\w.]+\())?")
"""Matches text before a call that does not belong to it: separators, or the fence around the call."""


class RepeatedCallStart(CallStart):
    """The start of a call that repeats a result or a tool's description, but no user's message."""

    __slots__ = ()


class HoldingParser(TextParser, Protocol):
    """A parser that exposes how many characters it buffers, and whether it is inside reasoning."""

    @property
    def held(self) -> int: ...
    @property
    def in_reasoning(self) -> bool: ...


class _ConsumedText:
    """A tracker for the text of a reply that the parser has read and no longer buffers."""

    __slots__ = ("_buffer", "_size")

    def __init__(self) -> None:
        self._buffer: list[str] = []
        """Text that the parser buffers, possibly preceded by text that it has consumed."""
        self._size = 0

    def feed(self, piece: str, held: int) -> str:
        """Add a piece and return the text that the parser has now consumed. `held` is the number of characters that it
        still buffers.

        Return an empty string while all of the text is buffered.
        """
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


class _BufferedCall:
    """A call that may be a quotation: its events, its text, and where that text occurs in the sources."""

    __slots__ = ("_passage", "_source", "events", "size", "why")

    def __init__(self, passage: Passage | None = None, why: str = "") -> None:
        self.why = why
        """The reason why the call is a quotation if it occurs in the sources. Empty if the call is isolated, so that
        the text after it decides.
        """
        self._passage = passage
        self._source: list[str] = []
        self.events: list[Event] = []
        self.size = 0
        """Number of characters in the call's text."""

    @property
    def source(self) -> str:
        """The call's text so far."""
        return "".join(self._source)

    def occurs_in(self, sources: QuotationSources) -> bool:
        """Return whether the call's text so far occurs in these sources."""
        source = self.source
        lead = _LEAD.match(source)
        start = self.events[0]
        name = start.name if isinstance(start, CallStart) else ""
        return sources.contain(source[lead.end() if lead else 0 :], name)

    def mark_repeated(self) -> None:
        """Mark the call as one that no user has written."""
        start = self.events[0]
        if isinstance(start, CallStart):
            self.events[0] = RepeatedCallStart(start.index, start.name, start.id, start.format, start.in_reasoning)

    def begin(self, event: CallStart, source: str) -> bool:
        """Begin the call with this text. Return whether the text occurs in the sources."""
        self.events.append(event)
        self._source.append(source)
        self.size = len(source)
        lead = _LEAD.match(source)
        return self._passage is not None and self._passage.extend(source[lead.end() if lead else 0 :])

    def extend(self, source: str) -> bool:
        """Add to the call's text. Return whether all of it still occurs verbatim in the sources."""
        self._source.append(source)
        self.size += len(source)
        return self._passage is not None and self._passage.extend(source)


class _Mode(Enum):
    """The treatment of the parser's events."""

    PASS = "events pass through unchanged"  # noqa: S105  not a password
    WAIT = "a call is buffered, since it may be a quotation"
    LAST = "repeated calls are buffered: they are calls if only calls follow"
    QUOTE = "a quotation has ended; its closing markers are text"


class QuotationFilter:
    """A parser that turns calls quoted from `sources` back into text. It buffers at most `limit` characters of a call.

    `begun` means that the reply begins inside a call that the prompt opened, which cannot be a quotation.
    `on_quotation` is called for each quotation, with the reason why it is one: `behind text`, `before text`, `in a
    fence`, `in reasoning` or `cut off`. A `RepeatedCallStart` is reported as `repeated`.
    """

    __slots__ = (
        "_call",
        "_consumed",
        "_has_text",
        "_in_reasoning",
        "_inside_prefilled_call",
        "_limit",
        "_line_has_text",
        "_mode",
        "_on_quotation",
        "_parser",
        "_repeated",
        "_sources",
    )

    flow = None  # all text is needed to decide about the next call

    def __init__(
        self,
        parser: HoldingParser,
        sources: QuotationSources,
        *,
        limit: int,
        begun: bool = False,
        on_quotation: Callable[[str], object] | None = None,
    ) -> None:
        self._inside_prefilled_call = begun
        self._parser = parser
        self._sources = sources
        self._limit = limit
        self._on_quotation = on_quotation
        self._mode = _Mode.PASS
        self._consumed = _ConsumedText()
        self._call = _BufferedCall()
        """The call that is buffered, or the last one that was."""
        self._in_reasoning = False
        """Whether the call is inside reasoning."""
        self._repeated: list[_BufferedCall] = []
        """The isolated calls that repeat a source, each including the markup that followed it."""
        self._has_text = False
        """Whether the reply has contained text so far."""
        self._line_has_text = False
        """Whether the current line has contained text so far."""

    @property
    def in_call(self) -> bool:
        """Whether the parser is inside a call or its markup."""
        return self._parser.in_call

    @property
    def buffering_reason(self) -> str:
        """The reason why a call is buffered, or an empty string if none is."""
        return "" if self._mode in (_Mode.PASS, _Mode.QUOTE) else "it may be a quotation"

    def feed(self, text: str, /) -> list[Event]:
        """Feed a piece of the reply and return the resulting events."""
        out: list[Event] = []
        parser, most = self._parser, _MANY
        # The filter infers which characters were markup from how much the parser buffers after each piece. That is
        # exact only if no markup begins or ends within a piece, so text is split finely wherever a call may commit.
        # Elsewhere, a whole stretch is one piece, which costs almost nothing.
        for stretch in _STRETCH.findall(text):
            quiet = self._mode is _Mode.PASS and not parser.held and not self._sources.may_name_tool(stretch)
            for piece in (stretch,) if quiet else _PIECE.findall(stretch):
                self._process(piece, parser.feed(piece), out)
                # A long call fed in single-character pieces would pile up events. The growing threshold keeps the cost
                # of merging linear.
                if len(out) > most:
                    out = _merge_neighbours(out)
                    most = 2 * len(out) + _MANY
        # If nothing has changed, return the very object that was fed: ChoiceFilter.feed then forwards the original
        # bytes.
        if all(type(event) is TextDelta for event in out) and "".join(event.text for event in out) == text:  # type: ignore[union-attr]  # all have one
            return [TextDelta(text)] if text else []
        return _merge_neighbours(out)

    def close(self, reason: str | None = None, /) -> list[Event]:
        """Note the end of the reply and return the last events."""
        out: list[Event] = []
        self._process("", self._parser.close(reason), out)
        self._deliver_repeated(out)
        return _merge_neighbours(out)

    def _process(self, piece: str, events: list[Event], out: list[Event]) -> None:
        """Process the parser's events for a piece of the reply."""
        consumed = self._consumed.feed(piece, self._parser.held)
        # The common case: no call is buffered and none begins, so only the context of the next call is tracked.
        if self._mode is _Mode.PASS and not any(type(event) is CallStart for event in events):
            self._inside_prefilled_call = self._inside_prefilled_call and not events
            self._line_has_text = (
                self._line_has_text and "\n" not in consumed
            )  # even if the newline is markup to the parser
            self._track_context(events)
            out += events
            return
        for i, event in enumerate(events):
            match event:
                case CallStart():
                    self._begin_call(event, consumed, out)
                    consumed = ""
                case CallEnd() if self._mode is _Mode.WAIT:
                    # The piece that ends the call may already contain text that follows it. All characters before that
                    # text are markup and belong to the call, so the text is measured from the end.
                    behind = sum(
                        len(later.text) for later in events[i + 1 :] if isinstance(later, TextDelta | ReasoningDelta)
                    )
                    self._end_call(event, consumed[: len(consumed) - behind], out)
                    consumed = consumed[len(consumed) - behind :]
                case _ if self._mode is _Mode.WAIT:
                    self._call.events.append(event)
                # The parser took the quotation for a call, so closing markers may follow. They are part of the
                # quotation as well; it ends at the first text.
                case TextDelta(text=text) | ReasoningDelta(text=text) if self._mode is _Mode.QUOTE:
                    self._emit(consumed.removesuffix(text), out)
                    out.append(event)
                    consumed = ""
                    self._mode = _Mode.PASS
                # Text after repeated calls turns them into quotations. The markup between the last call and this text
                # is first added to that call, so that the client sees every character in order.
                case TextDelta(text=text) | ReasoningDelta(text=text) if self._mode is _Mode.LAST and text.strip():
                    self._repeated[-1].extend(consumed.removesuffix(text))
                    self._quote_repeated(out)
                    out.append(event)
                    consumed = ""
                case TextDelta() | ReasoningDelta() if self._mode is _Mode.LAST:
                    pass
                case Discarded() if self._mode in (_Mode.QUOTE, _Mode.LAST):
                    pass
                case TextDelta(text=text):
                    self._inside_prefilled_call = False
                    self._track_context([event])
                    out.append(event)
                    consumed = consumed.removeprefix(text)
                case _:
                    self._mode = _Mode.PASS
                    out.append(event)
        # All characters that the events above do not contain are markup: part of the open call, or after the last one.
        # Markup that begins or ends reasoning belongs to neither.
        if self._mode is _Mode.WAIT:
            self._extend_call(consumed, out)
        elif self._mode is _Mode.LAST and self._in_reasoning == self._parser.in_reasoning:
            self._repeated[-1].extend(consumed)
        elif self._mode is _Mode.QUOTE:
            self._emit(consumed, out)

    def _begin_call(self, event: CallStart, source: str, out: list[Event]) -> None:
        """Handle a call that has committed; `source` is its text so far."""
        if self._inside_prefilled_call:
            self._inside_prefilled_call = False
            self._mode = _Mode.PASS
            out.append(event)
            return
        self._in_reasoning = self._parser.in_reasoning
        self._call = _BufferedCall(Passage(self._sources, event.name), self._quotation_reason(source))
        self._mode = _Mode.WAIT
        if not self._call.begin(event, source):
            self._deliver(out)

    def _quotation_reason(self, source: str) -> str:
        """Return the reason to treat a call that begins like this as a quotation, should it repeat a source; return ""
        if the call is isolated.
        """
        begin = source.lstrip()
        if self._in_reasoning:
            return "in reasoning"
        if self._has_text and begin.startswith("```"):
            return "in a fence"
        begins_line = "\n" in source[: len(source) - len(begin)] or self._mode is _Mode.LAST
        return "behind text" if self._line_has_text and not begins_line else ""

    def _extend_call(self, source: str, out: list[Event]) -> None:
        """Add text to the buffered call. Deliver the call once it differs from every source or exceeds the limit."""
        if not source:
            return
        if not self._call.extend(source):
            self._deliver(out)
        elif self._call.size > self._limit:
            self._report_repeated()
            self._deliver(out)

    def _end_call(self, event: CallEnd, source: str, out: list[Event]) -> None:
        """End the buffered call: quote it, deliver it, or let the output after it decide."""
        self._call.events.append(event)
        if not self._call.extend(source):
            self._deliver(out)
        elif not self._call.why and event.complete:
            # The call is isolated and complete, so the text after it decides whether it is a call. An incomplete call
            # could not be executed anyway; if it becomes a quotation, none of its characters are lost.
            self._report_repeated()
            self._repeated.append(self._call)
            self._mode = _Mode.LAST
            if sum(call.size for call in self._repeated) > self._limit:
                self._deliver_repeated(out)
        else:
            self._quote_repeated(out)
            self._report_quotation(self._call.why or "cut off")
            self._emit(self._call.source, out)
            self._mode = _Mode.QUOTE

    def _emit(self, text: str, out: list[Event]) -> None:
        """Emit a quotation, or the markup after it, as text, or as reasoning if the quotation is inside reasoning.

        Markup that begins or ends reasoning is not emitted.
        """
        if self._mode is _Mode.QUOTE and self._in_reasoning != self._parser.in_reasoning:
            self._mode = _Mode.PASS
        elif text:
            out.append(ReasoningDelta(text) if self._in_reasoning else TextDelta(text))

    def _deliver(self, out: list[Event]) -> None:
        """Emit the buffered call as a call, after the repeated calls that precede it."""
        self._deliver_repeated(out)
        self._deliver_call(self._call, out)
        self._mode = _Mode.PASS

    def _deliver_call(self, call: _BufferedCall, out: list[Event]) -> None:
        if type(call.events[0]) is RepeatedCallStart:
            self._report_quotation("repeated")
        out += call.events

    def _deliver_repeated(self, out: list[Event]) -> None:
        """Emit the repeated calls as calls, since only calls follow them."""
        for call in self._repeated:
            self._deliver_call(call, out)
        self._repeated.clear()
        self._mode = _Mode.PASS

    def _quote_repeated(self, out: list[Event]) -> None:
        """Emit the repeated calls as quotations, since text follows them."""
        for call in self._repeated:
            self._report_quotation("before text")
            out.append(TextDelta(call.source))
        self._repeated.clear()
        self._mode = _Mode.PASS

    def _report_repeated(self) -> None:
        """Mark the call, which repeats a source, if no user has written it and such calls are reported."""
        requested = self._sources.requested
        if requested is not None and not self._call.occurs_in(requested):
            self._call.mark_repeated()

    def _report_quotation(self, why: str) -> None:
        if self._on_quotation is not None:
            self._on_quotation(why)

    def _track_context(self, events: list[Event]) -> None:
        """Track the text before the next call."""
        for event in events:
            if type(event) is TextDelta and event.text:
                _, end, rest = event.text.rpartition("\n")
                self._line_has_text = bool(rest.strip()) or (self._line_has_text and not end)
                self._has_text = self._has_text or bool(event.text.strip())


def _merge_neighbours(events: list[Event]) -> list[Event]:
    """Return the events, with neighbors of the same kind merged."""
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
