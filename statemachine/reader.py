"""What a grammar reads from and writes to: text is taken, held or passed on, arguments go out, runs flow.

Consuming a character and emitting one are two things:

* `take(n)` consumes. What is consumed is raw text, and the *sink* says where raw text goes: it is held (HOLD, a
  candidate that may still be rejected), is syntax and goes nowhere (SYNTAX), is text or reasoning, or is discarded.
* `out(s)` emits arguments: to a list (name not known yet), to the client, or nowhere (an unknown call).
* `keep(n)` does both with the same characters: JSON that is already strict.

`flow` reads a run: until its pattern stops, what arrives flows. Between two pieces the run is *armed*: `scan`, `run`
and `delta` are all that `Parser.feed` needs to go on with it, and the grammar is not touched.
"""

import re
from collections.abc import Callable
from re import Match
from sys import maxsize
from typing import Protocol

from statemachine.buffer import Buffer, Grammar, Mismatch, Overflow
from statemachine.emitter import DELTA, Emitter, Sink
from statemachine.events import ReasoningDelta, TextDelta
from statemachine.runs import Run, quote

SYNTAX, HOLD = Sink.SYNTAX, Sink.HOLD
UNLIMITED = maxsize
FAR = 8
"""Arguments grow by less than this factor when they are converted."""
unit = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL).match


class Target(Protocol):
    """Where arguments go instead of to the client: a list, or whatever appends."""

    def append(self, piece: str, /) -> None:
        """Takes a piece of strict JSON."""


class HeldPieces:
    """What waits until it is known whether it is markup."""

    __slots__ = ("length", "limit", "pieces")

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []
        """Each with what it is for the ledger, should it be markup."""
        self.length = 0
        self.limit = UNLIMITED

    def add(self, piece: str, kind: str) -> None:
        """A piece more."""
        self.pieces.append((piece, kind))
        self.length += len(piece)

    def text(self, start: int = 0) -> str:
        """What is held, from a piece on."""
        return "".join(piece for piece, _ in self.pieces[start:])

    def clear(self) -> list[tuple[str, str]]:
        """The pieces; nothing is held any more."""
        held = self.pieces
        self.pieces = []
        self.length = 0
        return held


class Reader(Buffer):
    """A buffer that knows where what is read of it goes."""

    __slots__ = ("delta", "emitter", "hold", "idle", "ran", "room", "run", "scan", "sink", "target")

    def __init__(self, emitter: Emitter | None = None) -> None:
        super().__init__()
        self.emitter = emitter or Emitter()
        self.hold = HeldPieces()
        self.sink = Sink.TEXT
        self.target: Target | bool = False
        """Where arguments go: a list, the client (True) or nowhere (False)."""
        self.idle = 0
        """How often the grammar has gone on without reading a character of what came last."""
        self.room = 0
        """Characters that the arguments of this call may still have."""
        self.scan: Callable[[str], Match[str] | None] | None = None
        """Finds what the armed run cannot pass by without a closer look; None: every piece needs one."""
        self.run: Run | None = None
        """The armed run."""
        self.ran: Run | None = None
        """The run that was going on when `flow` stopped."""
        self.delta: type[TextDelta | ReasoningDelta] | None = TextDelta
        """The event of a piece that flows; None: arguments."""

    # ---- consuming

    def take(self, length: int, kind: str = "syntax") -> str:
        """Consumes characters as raw text, into the sink; gives them back.

        Raises:
            Overflow: at the first character that may not be held any more.

        """
        start = self.at
        self.at = end = start + length
        piece = self.text[start:end]
        sink = self.sink
        if sink is SYNTAX:
            if not self.emitter.plain:
                self.emitter.raw(sink, piece, kind)
        elif sink is HOLD:
            hold = self.hold
            if hold.length + length > hold.limit:
                self.at = start
                self.overflow(kind)
            hold.pieces.append((piece, kind))
            hold.length += length
        elif self.emitter.plain:
            self.emitter.put(sink, piece)
        else:
            self.emitter.raw(sink, piece, kind)
        return piece

    def overflow(self, kind: str) -> None:
        """Holds what may still be held.

        Raises:
            Overflow: always.

        """
        room = self.hold.limit - self.hold.length
        if room > 0:
            self.take(room, kind)
        raise Overflow

    def release(self, sink: Sink) -> None:
        """What is held goes to a sink (SYNTAX: it was markup), and what is consumed from now on goes there too."""
        self.sink = sink
        hold = self.hold
        hold.limit = UNLIMITED
        if hold.pieces:
            for piece, kind in hold.clear():
                self.emitter.raw(sink, piece, kind)

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
            self.emitter.put(SYNTAX, piece)
        elif piece and not isinstance(self.target, bool):
            self.target.append(piece)

    # ---- runs

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
            stop = found.end() if group is None else found.start(group)
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
            self.arm(run, waiting=stop < len(self.text))
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
            found: Match[str] | None = unit(self.text, self.at, self.at + length) if convert is not quote else None
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
        """Lets `Parser.feed` go on with the run by itself, if nothing but the run has to be known for that."""
        if not self.emitter.plain:
            return
        if self.target is True and self.sink is SYNTAX:
            self.delta = None
        elif self.target is False and self.sink in DELTA and run.convert in (None, quote):
            self.delta = DELTA[self.sink]
        else:
            return
        self.run = run
        self.scan = None if waiting else run.search

    def disarm(self) -> None:
        """The grammar is needed; `ran` says with which run it was ahead."""
        self.ran = self.run
        self.scan = self.run = None
