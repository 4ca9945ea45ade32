"""Reader: consumes text, buffers or routes it, and emits arguments.

Consuming a character and emitting one are separate operations:

* `take(n)` consumes. Consumed text is raw text, and the *sink* decides where it goes: it is buffered (HOLD, for a
  candidate that may still be rejected), dropped (SYNTAX), emitted as text or reasoning, or discarded.
* `emit_arguments(s)` emits arguments: to a list (the name is not known yet), to the client, or nowhere (the tool is
  unknown).
* `take_arguments(n)` does both with the same characters, which must already be strict JSON.

`flow` reads a run: text flows until the run's pattern stops. Between two pieces the run is *armed*: `scan`, `run` and
`delta` are all that `Parser.feed` needs to continue the run without the grammar.
"""

import re
from collections.abc import Callable
from re import Match
from sys import maxsize
from typing import Protocol

from statemachine.events import ReasoningDelta, TextDelta
from statemachine.stream.buffer import Buffer, Grammar, Mismatch, Overflow
from statemachine.stream.emitter import EVENT_OF_SINK, Emitter, Sink
from statemachine.stream.runs import Run, json_escape

SYNTAX, HOLD = Sink.SYNTAX, Sink.HOLD
UNLIMITED = maxsize
NOISE = "noise"
"""Kind of buffered text that is discarded if the text around it turns out to be markup."""
MAX_GROWTH = 8
"""Conversion makes arguments longer by less than this factor."""
match_unit = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL).match


class Target(Protocol):
    """Destination of arguments other than the client: a list, or any other object with an `append` method."""

    def append(self, piece: str, /) -> None:
        """Accept a piece of strict JSON."""


class BufferedPieces:
    """Text that is buffered until it is known whether it is markup."""

    __slots__ = ("length", "limit", "pieces")

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []
        """Each piece with its kind, which is recorded in the ledger if the piece turns out to be markup."""
        self.length = 0
        self.limit = UNLIMITED

    def add(self, piece: str, kind: str) -> None:
        """Add a piece."""
        self.pieces.append((piece, kind))
        self.length += len(piece)

    def text(self, start: int = 0) -> str:
        """Return the buffered text, beginning with piece number `start`."""
        return "".join(piece for piece, _ in self.pieces[start:])

    def clear(self) -> list[tuple[str, str]]:
        """Return the pieces and empty the buffer."""
        held = self.pieces
        self.pieces = []
        self.length = 0
        return held


class Reader(Buffer):
    """Buffer that also routes the text read from it."""

    __slots__ = ("buffered", "delta", "emitter", "idle_count", "last_run", "remaining", "run", "scan", "sink", "target")

    def __init__(self, emitter: Emitter | None = None) -> None:
        super().__init__()
        self.emitter = emitter or Emitter()
        self.buffered = BufferedPieces()
        self.sink = Sink.TEXT
        self.target: Target | bool = False
        """Destination of arguments: a list, the client (True) or nowhere (False)."""
        self.idle_count = 0
        """Number of times in a row that the grammar has continued without reading a character."""
        self.remaining = 0
        """Number of characters that may still be added to this call's arguments."""
        self.scan: Callable[[str], Match[str] | None] | None = None
        """Finds anything in a piece that the armed run cannot pass through unexamined; None if every piece has to be
        examined.
        """
        self.run: Run | None = None
        """Armed run, if any."""
        self.last_run: Run | None = None
        """Run that was active when `flow` stopped."""
        self.delta: type[TextDelta | ReasoningDelta] | None = TextDelta
        """Event class for a piece that flows; None for arguments."""

    # ---- consuming

    def take(self, length: int, kind: str = "syntax") -> str:
        """Consume characters as raw text, route them to the sink, and return them.

        Raises:
            Overflow: the buffer is full; the characters that still fit have been consumed.
        """
        start = self.at
        self.at = end = start + length
        piece = self.text[start:end]
        sink = self.sink
        if sink is SYNTAX:
            if not self.emitter.events_only:
                self.emitter.route(sink, piece, kind)
        elif sink is HOLD:
            hold = self.buffered
            if hold.length + length > hold.limit:
                self.at = start
                self.take_and_overflow(kind)
            hold.pieces.append((piece, kind))
            hold.length += length
        elif self.emitter.events_only:
            self.emitter.put(sink, piece)
        else:
            self.emitter.route(sink, piece, kind)
        return piece

    def take_and_overflow(self, kind: str) -> None:
        """Buffer the characters that still fit.

        Raises:
            Overflow: always.
        """
        room = self.buffered.limit - self.buffered.length
        if room > 0:
            self.take(room, kind)
        raise Overflow

    def release(self, sink: Sink) -> None:
        """Route the buffered text, and all text consumed from now on, to a sink (SYNTAX if the buffered text was
        markup).
        """
        self.sink = sink
        hold = self.buffered
        hold.limit = UNLIMITED
        if hold.pieces:
            for piece, kind in hold.clear():
                self.emitter.route(Sink.DISCARD if kind == NOISE and sink is SYNTAX else sink, piece, kind)

    def take_arguments(self, length: int) -> str:
        """Consume characters that are already valid as arguments, and emit them.

        Raises:
            Mismatch: the arguments would exceed their limit.
        """
        if self.target is True and length > self.remaining:
            self.flow_to_limit(self.at + length, None)
        piece = self.take(length, "argument" if self.target is not False else "syntax")
        self.emit_arguments(piece)
        return piece

    # ---- emitting

    def emit_arguments(self, piece: str) -> None:
        """Emit a piece of the arguments to the target.

        Raises:
            Mismatch: the arguments would exceed their limit.
        """
        if self.target is True:
            if len(piece) > self.remaining:
                raise Mismatch
            self.remaining -= len(piece)
            self.emitter.put(SYNTAX, piece)
        elif piece and not isinstance(self.target, bool):
            self.target.append(piece)

    # ---- runs

    def flow(self, run: Run) -> Grammar:
        """Let text flow until the run's pattern stops: as raw text and, after conversion, as arguments.

        Stop before the first character that the pattern does not accept or, at the end of the available text, before
        the part that has to wait. `last_run` is then the run that was active at the stop.
        """
        while True:
            # `Parser.feed` does the same for a complete piece while the run is armed. Both follow one protocol: text up
            # to the group flows, text from the group onward waits, and a group n ≥ 2 means that the text continues in
            # `others[n]`.
            found = run.match(self.text, self.at)
            if found is None:
                break
            group = found.lastindex
            stop = found.end() if group is None else found.start(group)
            if self.target is True and self.remaining <= MAX_GROWTH * (stop - self.at):
                self.flow_to_limit(stop, run.convert)
            elif stop > self.at:
                if run.convert is None:
                    self.take_arguments(stop - self.at)
                else:
                    kind = "argument" if self.target is not False else "syntax"
                    self.emit_arguments(run.convert(self.take(stop - self.at, kind)))
            if group is not None and group > 1:
                run = run.next_runs[group]
            # Before the end of the text, the pattern stops only where something begins. The caller determines what it
            # is; if no more text will arrive, there is nothing to wait for either.
            if found.end() < len(self.text) or self.ended:
                break
            self.arm(run, waiting=stop < len(self.text))
            del found  # a match refers to the text
            yield
            # `feed` may have continued with another run in the meantime.
            run = self.last_run or run
        self.last_run = run

    def flow_to_limit(self, stop: int, convert: Callable[[str], str] | None) -> None:
        """Let text flow one character or escape at a time, because the arguments are near their limit.

        Raises:
            Mismatch: at the first character or escape that does not fit.
        """
        length = stop - self.at
        while length > 0:
            # An escape is one unit, because half of it would not be strict JSON; text that has yet to be escaped
            # contains no such units.
            found: Match[str] | None = (
                match_unit(self.text, self.at, self.at + length) if convert is not json_escape else None
            )
            size = len(found[0]) if found else 1
            piece = self.text[self.at : self.at + size]
            if convert is not None:
                piece = convert(piece)
            if len(piece) > self.remaining:
                raise Mismatch
            self.take(size, "argument")
            self.emit_arguments(piece)
            length -= size

    def arm(self, run: Run, *, waiting: bool) -> None:
        """Arm the run for `Parser.feed`, if the run alone determines what happens to the text."""
        # `feed` makes one event from a piece. The text must therefore have a single destination (arguments whose raw
        # text is syntax, or raw text without arguments), and no ledger may be active. Where nothing is emitted as
        # arguments, `feed` skips the conversion. This is correct only for `json_escape`: any other conversion may keep
        # state between pieces (such as a decoder of nested JSON) and has to see all of the text.
        if not self.emitter.events_only:
            return
        if self.target is True and self.sink is SYNTAX:
            self.delta = None
        elif self.target is False and self.sink in EVENT_OF_SINK and run.convert in (None, json_escape):
            self.delta = EVENT_OF_SINK[self.sink]
        else:
            return
        self.run = run
        self.scan = None if waiting else run.search

    def disarm(self) -> None:
        """Return control to the grammar; `last_run` identifies the run that was active."""
        self.last_run = self.run
        self.scan = self.run = None
