"""Routing of raw text to events, merging of pieces, and the ledger of every character.

A `Sink` is the destination of raw text. Consecutive text that one feed sends to the same sink is merged into one event.
Text of the prefix is counted (`hidden`) but not emitted. A `Ledger`, if there is one, records how every other character
was classified.
"""

from collections.abc import Mapping
from enum import IntEnum

from attrs import define, field, frozen

from statemachine.events import ArgumentsDelta, Discarded, Event, ReasoningDelta, TextDelta


class Sink(IntEnum):
    """Destination of raw text."""

    SYNTAX = 0
    """Dropped, because the text is markup."""
    HOLD = 1
    """Buffered, because the text may still turn out not to be part of a call."""
    TEXT = 2
    REASONING = 3
    DISCARD = 4


SYNTAX, DISCARD = Sink.SYNTAX, Sink.DISCARD
EVENT_OF_SINK: Mapping[Sink, type[TextDelta | ReasoningDelta]] = {Sink.TEXT: TextDelta, Sink.REASONING: ReasoningDelta}
"""Sinks whose events contain nothing but a piece of text."""
KIND_OF_SINK = {Sink.TEXT: "text", Sink.REASONING: "reasoning", Sink.DISCARD: "discard"}
"""Sink → name in the ledger."""


@frozen
class Span:
    """A stretch of the reply. `kind` is text, reasoning, syntax, argument, repair or discard."""

    kind: str
    start: int
    end: int


@define(eq=False, repr=False)
class Ledger:
    """Record of how every character of the reply was classified."""

    _lengths: list[tuple[str, int]] = field(factory=list, init=False)

    def record(self, kind: str, length: int) -> None:
        """Record the kind of the next characters of the reply."""
        lengths = self._lengths
        if length and lengths and lengths[-1][0] == kind:
            lengths[-1] = (kind, lengths[-1][1] + length)
        elif length:
            lengths.append((kind, length))

    def spans(self) -> list[Span]:
        """Return the spans, which together cover everything recorded."""
        spans: list[Span] = []
        start = 0
        for kind, length in self._lengths:
            spans.append(Span(kind, start, start + length))
            start += length
        return spans


class Emitter:
    """Events of one reply, buffered until `collect` is called."""

    __slots__ = ("_events", "_pieces", "_sink", "discard_reason", "events_only", "hidden", "index", "ledger")

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._sink = SYNTAX
        self.index = -1
        """Number of the call that is being read or, between calls, of the last one read."""
        self.discard_reason = ""
        """Reason why text is being discarded."""
        self.ledger = ledger
        self.hidden = 0
        """Number of characters of the prefix that have not arrived yet."""
        self.events_only = ledger is None
        """Whether only events are needed, because the reply has no ledger and nothing is left to hide."""

    def hide(self, length: int) -> None:
        """Hide the next characters of the reply, because they belong to the prefix."""
        self.hidden = length
        self.events_only = self.ledger is None and not length

    def put(self, sink: Sink, piece: str) -> None:
        """Emit a piece of text or, with SYNTAX, a piece of the arguments."""
        if not piece:
            return
        if sink is not self._sink:
            self.flush()
            self._sink = sink
        self._pieces.append(piece)

    def route(self, sink: Sink, piece: str, kind: str) -> None:
        """Route raw text to its sink and record it in the ledger; `kind` is the kind to record if the sink is
        SYNTAX.
        """
        if not self.events_only:
            hidden = min(self.hidden, len(piece))
            if self.ledger is not None:
                self.ledger.record(KIND_OF_SINK.get(sink, kind), len(piece) - hidden)
            self.hide(self.hidden - hidden)
            piece = piece[hidden:]
        if sink is not SYNTAX:
            self.put(sink, piece)

    def emit(self, event: Event) -> None:
        """Emit an event that is not a piece of text."""
        self.flush()
        self._events.append(event)

    def set_discard_reason(self, reason: str) -> None:
        """Set the reason reported for text that is discarded from here on."""
        if reason != self.discard_reason:
            self.flush()
            self.discard_reason = reason

    def flush(self) -> None:
        """Merge the pieces collected so far into one event."""
        pieces = self._pieces
        if pieces:
            text = "".join(pieces) if len(pieces) > 1 else pieces[0]
            pieces.clear()
            sink = self._sink
            if sink is SYNTAX:
                self._events.append(ArgumentsDelta(self.index, text))
            elif sink is DISCARD:
                self._events.append(Discarded(text, self.discard_reason))
            else:
                self._events.append(EVENT_OF_SINK[sink](text))

    def collect(self) -> list[Event]:
        """Return the events since the previous call."""
        if self._pieces:
            self.flush()
        events = self._events
        if events:
            self._events = []
            return events
        return []
