"""Pieces of text in, events out: where a piece goes, which pieces leave as one event, and the account of them all.

A `Sink` says where raw text goes. What one feed brings to the same sink leaves as one event. What belongs to the prefix
is counted off (`hidden`) and not emitted; a `Ledger`, if one is kept, records what every other character was.
"""

from collections.abc import Mapping
from enum import IntEnum

from attrs import frozen

from statemachine.events import ArgumentsDelta, Discarded, Event, ReasoningDelta, TextDelta


class Sink(IntEnum):
    """Where raw text goes."""

    SYNTAX = 0
    """Nowhere: it is markup."""
    HOLD = 1
    """It waits, since it may still turn out to be no call."""
    TEXT = 2
    REASONING = 3
    DISCARD = 4


SYNTAX, DISCARD = Sink.SYNTAX, Sink.DISCARD
DELTA: Mapping[Sink, type[TextDelta | ReasoningDelta]] = {Sink.TEXT: TextDelta, Sink.REASONING: ReasoningDelta}
"""The events that are nothing but a piece of text."""
KINDS = {Sink.TEXT: "text", Sink.REASONING: "reasoning", Sink.DISCARD: "discard"}
"""What the ledger calls what goes to a sink."""


@frozen
class Span:
    """A stretch of the reply and what it was: `kind` is text, reasoning, syntax, argument, repair or discard."""

    kind: str
    start: int
    end: int


class Ledger:
    """What every character of the reply was."""

    __slots__ = ("_lengths",)

    def __init__(self) -> None:
        self._lengths: list[tuple[str, int]] = []

    def record(self, kind: str, length: int) -> None:
        """The next characters of the reply are of a kind."""
        lengths = self._lengths
        if length and lengths and lengths[-1][0] == kind:
            lengths[-1] = (kind, lengths[-1][1] + length)
        elif length:
            lengths.append((kind, length))

    def spans(self) -> list[Span]:
        """The spans that tile what was recorded."""
        spans: list[Span] = []
        start = 0
        for kind, length in self._lengths:
            spans.append(Span(kind, start, start + length))
            start += length
        return spans


class Emitter:
    """The events of one reply, until `collect` hands them out."""

    __slots__ = ("_events", "_pieces", "_sink", "hidden", "index", "ledger", "plain", "reason")

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._sink = SYNTAX
        self.index = -1
        """Number of the call that is being read, or was read last."""
        self.reason = ""
        """Why what goes to DISCARD is discarded."""
        self.ledger = ledger
        self.hidden = 0
        """Characters still to come that belong to the prefix."""
        self.plain = ledger is None
        """Events are all that is asked for: no ledger is kept, and nothing is hidden."""

    def hide(self, length: int) -> None:
        """The next characters of the reply belong to the prefix."""
        self.hidden = length
        self.plain = self.ledger is None and not length

    def put(self, sink: Sink, piece: str) -> None:
        """Emits a piece (SYNTAX: of arguments)."""
        if not piece:
            return
        if sink is not self._sink:
            self.flush()
            self._sink = sink
        self._pieces.append(piece)

    def raw(self, sink: Sink, piece: str, kind: str) -> None:
        """Raw text goes to its sink, and is accounted for; `kind` is what it is when that is SYNTAX."""
        if not self.plain:
            hidden = min(self.hidden, len(piece))
            if self.ledger is not None:
                self.ledger.record(KINDS.get(sink, kind), len(piece) - hidden)
            self.hide(self.hidden - hidden)
            piece = piece[hidden:]
        if sink is not SYNTAX:
            self.put(sink, piece)

    def emit(self, event: Event) -> None:
        """Emits an event that is not a piece of text."""
        self.flush()
        self._events.append(event)

    def because(self, reason: str) -> None:
        """What is discarded from here on is discarded for this reason."""
        if reason != self.reason:
            self.flush()
            self.reason = reason

    def flush(self) -> None:
        """The pieces so far are an event."""
        pieces = self._pieces
        if pieces:
            text = "".join(pieces) if len(pieces) > 1 else pieces[0]
            pieces.clear()
            sink = self._sink
            if sink is SYNTAX:
                self._events.append(ArgumentsDelta(self.index, text))
            elif sink is DISCARD:
                self._events.append(Discarded(text, self.reason))
            else:
                self._events.append(DELTA[sink](text))

    def collect(self) -> list[Event]:
        """The events since the last time."""
        if self._pieces:
            self.flush()
        events = self._events
        if events:
            self._events = []
            return events
        return []
