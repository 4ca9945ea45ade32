"""Text that arrives in pieces: take, hold, pass, flow; and the generator that reads it.

Theory of operation. A grammar is a generator over a `Reader`; a bare `yield` in it means "I need more text". The reader
keeps only what nobody has consumed yet: `text` from `at` on. Offsets do not survive a `yield`, since the text is cut to
what is left whenever a piece arrives.

Consuming a character and emitting one are two things:

* `take(n)` consumes. What is consumed is raw text, and the *sink* says where raw text goes: it is held (HOLD, a
  candidate that may still be rejected), is syntax and goes nowhere (SYNTAX), is text or reasoning, or is discarded.
* `out(s)` emits arguments: to a list (name not known yet), to the client, or nowhere (an unknown call).
* `keep(n)` does both with the same characters: JSON that is already strict.

A *run* is how most text is read: "until this pattern stops, what arrives flows". While a run is set, `feed` is one
regular expression and one event; the generator is not touched. The pattern's group 1, if it matched, is what must wait
at the end of the text (half an escape, the beginning of a closer).

`feed` has two fast ways, for plain text (`scan`) and for a run. Everything else is `advance`: the generator.
"""

import re
from collections.abc import Callable, Generator
from enum import IntEnum
from json.encoder import encode_basestring
from typing import Protocol

from attrs import frozen

from statemachine.events import ArgumentsDelta, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.runs import Run, quote

Grammar = Generator[None, None, None]


class Ended(Exception):
    """The text is over; raised where a grammar asks for more of it and caught in one place."""


class Mismatch(Exception):
    """What comes cannot be read here; caught in one place, which knows what that means in the state."""


class Target(Protocol):
    """Where arguments go instead of to the client: a list, or whatever appends."""

    def append(self, piece: str, /) -> None:
        """Takes a piece of strict JSON."""


class Sink(IntEnum):
    """Where raw text goes."""

    SYNTAX = 0
    HOLD = 1
    TEXT = 2
    REASONING = 3
    DISCARD = 4


@frozen
class Span:
    """A stretch of the reply and what it was: `kind` is text, reasoning, syntax, argument, repair or discard."""

    kind: str
    start: int
    end: int


FAR = 8
"""Arguments grow by less than this factor when they are converted."""
unit = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL).match

SUNK = {Sink.TEXT: "text", Sink.REASONING: "reasoning", Sink.DISCARD: "discard"}
DELTA: dict[Sink, Callable[[str], Event]] = {
    Sink.TEXT: TextDelta,
    Sink.REASONING: ReasoningDelta,
}


class Reader:
    """The buffer, the sinks and the drive of a grammar. `Parser` is a reader with the grammar of calls."""

    __slots__ = (
        "_events",
        "_grammar",
        "_open_sink",
        "_open_text",
        "_spans",
        "at",
        "delta",
        "ended",
        "index",
        "muted",
        "ran",
        "raw",
        "raw_length",
        "reason",
        "room",
        "run",
        "scan",
        "sink",
        "target",
        "text",
    )

    def __init__(self, *, ledger: bool) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.reason = ""
        """Why what goes to DISCARD is discarded."""
        self.sink = Sink.TEXT
        self.target: Target | bool = False
        """Where arguments go: a list, the client (True) or nowhere (False)."""
        self.index = 0
        """Number of the call that is being read."""
        self.raw: list[tuple[str, str]] = []
        """Held pieces, each with what it is for the ledger."""
        self.raw_length = 0
        self.muted = 0
        """Characters still to come that belong to the prefix and are not emitted."""
        self.room = 0
        """Characters that the arguments of this call may still have."""
        self.scan: Callable[[str], object] | None = None
        self.delta: Callable[[str], Event] | None = TextDelta
        """The event of a piece that flows; None: arguments."""
        self.run: Run | None = None
        self.ran: Run | None = None
        self._events: list[Event] = []
        self._open_sink: Sink | None = None
        self._open_text: list[str] = []
        self._spans: list[tuple[str, int]] | None = [] if ledger else None
        self._grammar: Grammar = self.grammar()
        next(self._grammar)

    def grammar(self) -> Grammar:
        """The grammar; ends only when `ended` is set."""
        raise NotImplementedError

    # ---- driving

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of the reply brings; [] if all of it has to wait. Never raises on model text."""
        scan = self.scan
        if scan is not None and scan(text) is None:
            delta = self.delta
            if delta is not None:
                return [delta(text)] if text else []
            if len(text) <= self.room:
                self.room -= len(text)
                return [ArgumentsDelta(self.index, text)] if text else []
            self.run = None
        run = self.run
        if run is not None:
            if self.text:
                text = self.text + text
                self.text = ""
                self.scan = run.search
            found = run.whole(text)
            delta = self.delta
            if found is not None and (delta is not None or self.room > FAR * len(text)):
                group = found.lastindex
                if group is not None:
                    if group == 1:
                        cut = found.start(1)
                        self.text = text[cut:]
                        self.scan = None
                        if not cut:
                            return []
                        text = text[:cut]
                    else:
                        self.run = run.others[group]
                        self.scan = self.run.search
                if delta is not None:
                    return [delta(text)] if text else []
                convert = run.convert
                if convert is not None:
                    text = encode_basestring(text)[1:-1] if convert is quote else convert(text)
                self.room -= len(text)
                return [ArgumentsDelta(self.index, text)] if text else []
        self.text = self.text[self.at :] + text if self.text else text
        self.at = 0
        return self._advance()

    def _advance(self) -> list[Event]:
        """Runs the grammar over what is there."""
        self.ran = self.run
        self.scan = self.run = None
        next(self._grammar, None)
        if self.at:
            self.text = self.text[self.at :]
            self.at = 0
        return self._collect()

    def _collect(self) -> list[Event]:
        if self._open_text:
            self._flush()
        events = self._events
        if events:
            self._events = []
            return events
        return []

    def more(self) -> Grammar:
        """Waits for more text.

        Raises:
            Ended: there is no more.

        """
        if self.ended:
            raise Ended
        yield

    def peek(self) -> Generator[None, None, str]:
        """The next character, not consumed."""
        while self.at >= len(self.text):
            yield from self.more()
        return self.text[self.at]

    # ---- consuming

    def take(self, length: int, kind: str = "syntax") -> str:
        """Consumes characters as raw text, into the sink; gives them back."""
        start = self.at
        self.at = end = start + length
        piece = self.text[start:end]
        sink = self.sink
        if sink is Sink.TEXT and not self.muted and self._spans is None:
            self.put(sink, piece)
        elif sink is Sink.SYNTAX:
            if self._spans is not None:
                self.record(kind, length)
            elif self.muted:
                self.muted = max(0, self.muted - length)
        elif sink is Sink.HOLD:
            self.raw.append((piece, kind))
            self.raw_length += length
        else:
            self.show(piece)
        return piece

    def keep(self, length: int) -> str:
        """Consumes characters that are arguments as they stand, and emits them.

        Raises:
            Mismatch: the arguments would exceed their limit.

        """
        if self.target is True and length > self.room:
            self.fill(self.at + length, None)
        piece = self.take(length, "argument" if self.target is not False else "syntax")
        self.out(piece)
        return piece

    def flow(self, run: Run) -> Grammar:
        """Until the run's pattern stops, what arrives flows: as raw text and, converted, as arguments.

        Stops before the character that the pattern does not accept; at the end of the text, before what had to wait.
        `ran` is the run that was going on at the stop.
        """
        while True:
            found = run.match(self.text, self.at)
            if found is None:
                break
            group = found.lastindex
            stop = found.start(1) if group == 1 else found.end()
            if self.target is True and self.room <= FAR * (stop - self.at):
                self.fill(stop, run.convert)
            elif stop > self.at:
                if run.convert is None:
                    self.keep(stop - self.at)
                else:
                    kind = "argument" if self.target is not False else "syntax"
                    self.out(run.convert(self.take(stop - self.at, kind)))
            if group is not None and group > 1:
                run = run.others[group]
            if found.end() < len(self.text) or self.ended:
                break
            self.arm(run, waiting=group == 1)
            yield
            run = self.ran or run
        self.ran = run

    def fill(self, stop: int, convert: Callable[[str], str] | None) -> None:
        """The arguments are near their limit: what still fits, one character or escape after the other.

        Raises:
            Mismatch: at the first that does not fit.

        """
        length = stop - self.at
        while length > 0:
            found = unit(self.text, self.at, self.at + length) if convert is not quote else None
            size = len(found[0]) if found else 1
            piece = self.text[self.at : self.at + size]
            if convert is not None:
                piece = convert(piece)
            if len(piece) > self.room:
                raise Mismatch
            self.take(size, "argument")
            self.out(piece)
            length -= size

    def arm(self, run: Run, *, waiting: bool) -> None:
        """Lets `feed` go on with the run by itself, if nothing but the run has to be known for that."""
        if self.muted or self._spans is not None:
            return
        if self.target is True and self.sink is Sink.SYNTAX:
            self.delta = None
            self.run = run
            self.scan = None if waiting else run.search
        elif self.target is False and self.sink in DELTA and run.convert in (None, quote):
            self.delta = DELTA[self.sink]
            self.run = run
            self.scan = None if waiting else run.search

    # ---- emitting

    def out(self, piece: str) -> None:
        """Emits a piece of arguments to the target.

        Raises:
            Mismatch: the arguments would exceed their limit.

        """
        if self.target is True:
            if len(piece) > self.room:
                raise Mismatch
            self.room -= len(piece)
            self.emit_arguments(piece)
        elif piece and not isinstance(self.target, bool):
            self.target.append(piece)

    def emit_arguments(self, piece: str) -> None:
        """Emits a piece of arguments to the client."""
        self.put(Sink.SYNTAX, piece)

    def show(self, piece: str, sink: Sink | None = None) -> None:
        """Emits raw text to its sink (text, reasoning, discard); what belongs to the prefix is left out."""
        sink = self.sink if sink is None else sink
        if self._spans is not None:
            self.record(SUNK.get(sink, "syntax"), len(piece))
        if self.muted:
            hidden = min(self.muted, len(piece))
            self.muted -= hidden
            piece = piece[hidden:]
        if sink not in (Sink.SYNTAX, Sink.HOLD):
            self.put(sink, piece)

    def because(self, reason: str) -> None:
        """What is discarded from here on is discarded for this reason."""
        if reason != self.reason:
            self._flush()
            self.reason = reason

    def emit(self, event: Event) -> None:
        """Emits an event that is not a piece of text."""
        self._flush()
        self._events.append(event)

    def put(self, sink: Sink, piece: str) -> None:
        """Emits a piece; those of one feed that follow each other in the same sink leave as one event."""
        if not piece:
            return
        if sink is not self._open_sink:
            self._flush()
            self._open_sink = sink
        self._open_text.append(piece)

    def _flush(self) -> None:
        if self._open_text:
            text = "".join(self._open_text) if len(self._open_text) > 1 else self._open_text[0]
            self._open_text.clear()
            match self._open_sink:
                case Sink.TEXT:
                    self._events.append(TextDelta(text))
                case Sink.REASONING:
                    self._events.append(ReasoningDelta(text))
                case Sink.DISCARD:
                    self._events.append(Discarded(text, self.reason))
                case _:
                    self._events.append(ArgumentsDelta(self.index, text))
        self._open_sink = None

    # ---- holding

    def release(self, sink: Sink) -> None:
        """What is held goes to a sink (SYNTAX: it was markup), and what is consumed from now on goes there too."""
        held, self.raw, self.raw_length = self.raw, [], 0
        self.sink = sink
        for piece, kind in held:
            if sink is not Sink.SYNTAX:
                self.show(piece)
            elif self._spans is not None:
                self.record(kind, len(piece))
            elif self.muted:
                self.muted = max(0, self.muted - len(piece))

    @property
    def held(self) -> int:
        """Characters that have arrived and are not yet known to be text, syntax or arguments."""
        return len(self.text) - self.at + self.raw_length

    # ---- the ledger

    def record(self, kind: str, length: int) -> None:
        """JsonState in the ledger that the next characters of the reply are of a kind."""
        if self.muted:
            hidden = min(self.muted, length)
            if kind in ("syntax", "argument", "repair"):
                self.muted -= hidden
            length -= hidden
        if length and self._spans is not None:
            if self._spans and self._spans[-1][0] == kind:
                self._spans[-1] = (kind, self._spans[-1][1] + length)
            else:
                self._spans.append((kind, length))

    @property
    def ledger(self) -> list[Span]:
        """The spans that tile what was fed and is decided; empty unless asked for."""
        spans: list[Span] = []
        start = 0
        for kind, length in self._spans or ():
            spans.append(Span(kind, start, start + length))
            start += length
        return spans
