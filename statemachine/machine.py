"""The life of a call: candidate, commit, disown, end. What the bodies ask of the parser is here.

A candidate holds what it consumes. It *commits* when its name is offered and its body has begun: what was held turns
out to be syntax and `CallStart` goes out. It is *disowned* when its name is not offered: what was held goes out as text
(or is discarded), and the body is read to its end all the same, with that sink, so that nothing inside of it is taken
for a call. It is rejected by a `Mismatch`, which `parser.py` catches in one place.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from attrs import frozen

from statemachine.candidate import Candidate
from statemachine.events import CallEnd, CallStart
from statemachine.formats.format import Format
from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json.state import JsonState
from statemachine.json.text import space
from statemachine.reader import Grammar, Mismatch, Reader, Sink
from statemachine.states import TRANSITIONS, Input, State

MIB = 1024 * 1024
BARE_HOLD = 1024
"""Characters that an object without a marker may hold before it commits."""


@frozen
class Limits:
    """Bounds on what a model's text may make a parser keep, in characters (depth: levels). Beyond them it is text."""

    held: int = 256 * 1024
    arguments: int = 16 * MIB
    depth: int = 128
    name: int = 256


NO_STACK: list[str] = []
"""The stack of a machine that is in no object; never changed."""
NOTHING = Candidate()
"""The candidate of a machine that has not met one; never changed."""


class Overflow(Exception):
    """A candidate without a marker holds more than it may."""


Tools = Mapping[str, Any] | Iterable[str] | None


class Machine(Reader):
    """A reader that knows states and the life of a call."""

    __slots__ = (
        "calls",
        "candidate",
        "drops",
        "folded",
        "fresh",
        "limits",
        "quoted",
        "said",
        "seen",
        "stack",
        "state",
        "thinking",
        "tools",
        "unknown_sink",
        "wrapping",
    )

    def __init__(
        self, tools: Mapping[str, Any] | None, *, unknown: str, malformed: str = "text", limits: Limits, ledger: bool
    ) -> None:
        for option, value in (("unknown", unknown), ("malformed", malformed)):
            if value not in ("text", "discard"):
                raise ValueError(f"{option} must be 'text' or 'discard', not {value!r}")
        self.state = State.TEXT
        self.limits = limits
        self.tools = tools
        self.unknown_sink = Sink.TEXT if unknown == "text" else Sink.DISCARD
        self.drops = malformed == "discard"
        self.folded: dict[str, str | None] | None = None
        self.calls = 0
        self.candidate = NOTHING
        self.wrapping: tuple[str, ...] = ()
        """Closers of the wrappers that are open, outermost first."""
        self.stack: list[str] = NO_STACK
        """Closers of an object that is no call, outermost first."""
        self.quoted = False
        """Inside one of its strings."""
        self.seen = False
        """Visible text came before."""
        self.fresh = True
        """Nothing but white space came since the reply began, or since a span between special tokens ended."""
        self.thinking: tuple[str, ...] = ()
        """What may close the reasoning around; () in text."""
        self.said: tuple[str, ...] = ()
        """What may end the message around, which is text and nothing else; () outside of one."""
        super().__init__(ledger=ledger)

    def go(self, found: Input) -> None:
        """The one way to change state."""
        self.state = TRANSITIONS[self.state][found]

    # ---- asked by the bodies

    def blank(self) -> Grammar:
        """White space is skipped as raw text; then a character is there."""
        while True:
            end = space(self.text, self.at).end()  # type: ignore[union-attr]  # * always matches
            if end > self.at:
                self.take(end - self.at)
            if self.at < len(self.text):
                return
            yield from self.more()

    def take(self, length: int, kind: str = "syntax") -> str:
        """Consumes; a candidate that would hold too much overflows, or is rejected, at the first character too many."""
        if self.sink is Sink.HOLD and self.raw_length + length > BARE_HOLD and self.state is State.CANDIDATE:
            marked = self.candidate.marked
            room = (self.limits.held if marked else BARE_HOLD) - self.raw_length
            if length > room:
                if room > 0:
                    super().take(room, kind)
                raise Mismatch if marked else Overflow
        return super().take(length, kind)

    def recognise(self, form: Format) -> None:
        """The format is known, whatever the name will be."""
        self.candidate.format = form

    def named(self, name: str) -> None:
        """The name as the model wrote it, and the offered tool that it means."""
        candidate = self.candidate
        offered = self.offered(name) if len(name) <= self.limits.name else None
        candidate.known = offered is not None
        candidate.name = name if offered is None else offered

    def offered(self, name: str) -> str | None:
        """The offered tool that a name means: itself, else the only one equal without `functions.` and case."""
        if not name:
            return None
        if self.tools is None or name in self.tools:
            return name
        if self.folded is None:
            self.folded = {}
            for tool in self.tools:
                fold = tool.lower()
                self.folded[fold] = None if fold in self.folded else tool
        plain = name.removeprefix("functions.")
        return plain if plain in self.tools else self.folded.get(plain.lower())

    def think(self, closers: tuple[str, ...]) -> None:
        """What is held was the opener of reasoning, up to one of these closers."""
        self.release(Sink.SYNTAX)
        self.thinking = closers
        self.go(Input.THINK)

    def speak(self, ends: tuple[str, ...], *, verbatim: bool) -> None:
        """What is held was the header of a message; `verbatim`: it is text and nothing else up to one of the ends."""
        self.release(Sink.SYNTAX)
        if verbatim:
            self.said = ends
        else:
            self.wrapping += tuple(close for close in ends if close not in self.wrapping)
        self.sink = self.visible
        self.go(Input.SAY)

    def disown(self) -> None:
        """The name is not offered: what is held goes out, and so does the rest of the call."""
        candidate = self.candidate
        self.go(Input.DISOWN)
        candidate.early.clear()
        self.because("unknown")
        self.settle()
        if self.unknown_sink is Sink.TEXT and not self.thinking and not self.muted:
            self.seen, self.fresh = True, False
        self.release(self.visible if self.unknown_sink is Sink.TEXT else Sink.DISCARD)
        self.target = False

    def settle(self) -> None:
        """What is held before an element of an array was markup, whatever the element is."""
        for piece, kind in self.raw[: self.candidate.lead]:
            if self._spans is not None:
                self.record(kind, len(piece))
            elif self.muted:
                self.muted = max(0, self.muted - len(piece))
            self.raw_length -= len(piece)
        del self.raw[: self.candidate.lead]
        self.candidate.lead = 0

    @property
    def visible(self) -> Sink:
        """The sink of what is not call: reasoning inside a reasoning span, else text."""
        return Sink.REASONING if self.thinking else Sink.TEXT

    def begin(self) -> None:
        """The body has begun: a candidate whose name is offered commits, and arguments flow from here on."""
        candidate = self.candidate
        candidate.begun = True
        if not candidate.committed and candidate.known:
            self.commit()
        self.aim()

    def commit(self) -> None:
        """The candidate is a call: `CallStart`, and the arguments that came early."""
        candidate = self.candidate
        candidate.committed = True
        self.go(Input.COMMIT)
        self.release(Sink.SYNTAX)
        self.index = self.calls
        self.calls += 1
        self.room = self.limits.arguments
        form = candidate.format.name if candidate.format else ""
        self.emit(CallStart(self.index, candidate.name or "", candidate.id, form))
        self.target = True
        for piece in candidate.early:
            self.out(piece)
        candidate.early = []

    def aim(self) -> None:
        """Arguments go where they belong now: to the client, to the queue, or nowhere."""
        candidate = self.candidate
        candidate.json.depth = candidate.envelope.depth = self.limits.depth
        if candidate.committed:
            self.target = True
        elif candidate.name is None or candidate.known:
            self.target = candidate.early
        else:
            self.target = False

    def sibling(self, offset: int, *, own: bool = False) -> Generator[None, None, bool]:
        """True if what follows here, `offset` characters on, can only follow a call."""
        raise NotImplementedError

    def finish(self, *, alone: bool = False) -> None:
        """The call's body is over. Its closers go the way of the call; `alone`: an element, what follows is syntax."""
        candidate = self.candidate
        if candidate.committed:
            self.emit(CallEnd(self.index, candidate.whole, tuple(candidate.json.repairs)))
        self.go(Input.END)
        self.target = False
        if candidate.committed or alone:
            self.sink = Sink.SYNTAX

    def another(self, *, marked: bool) -> None:
        """The next element of an array is a candidate of its own, in the format of the one before."""
        self.go(Input.OPEN)
        self.sink = Sink.HOLD
        self.target = False
        before = self.candidate
        self.candidate = Candidate(before.format, marked=marked, bare=before.bare, wrappers=before.wrappers)

    def say(self, sink: Sink, limit: int) -> Grammar:
        """A JSON value is said: a string decoded, any other as its JSON text; what exceeds the limit is discarded."""
        self.release(Sink.SYNTAX)
        candidate = self.candidate
        candidate.spoke = True
        state = JsonState(candidate.json.repairs, depth=self.limits.depth)
        self.target = Spoken(self, sink, limit, quoted=self.text[self.at] in json_text.QUOTES)
        yield from json_text.value(self, state)
        self.target = False


class Spoken:
    """A target for a value that is said. Takes the pieces of strict JSON that a transducer emits."""

    __slots__ = ("half", "limit", "machine", "quoted", "said", "sink")

    def __init__(self, machine: Machine, sink: Sink, limit: int, *, quoted: bool) -> None:
        self.machine = machine
        self.sink = sink
        self.limit = limit
        self.quoted = quoted
        self.half = ""
        self.said = 0

    def append(self, piece: str) -> None:
        """Says a piece."""
        if self.quoted:
            if piece == '"':
                return
            piece, self.half = json_nested.whole_escapes(self.half + piece)
            piece = json_nested.unescape(piece)
        if self.limit and self.said + len(piece) > self.limit:
            room = max(0, self.limit - self.said)
            self.machine.because("limit")
            self.machine.put(self.sink, piece[:room])
            self.machine.put(Sink.DISCARD, piece[room:])
        else:
            self.machine.put(self.sink, piece)
        self.said += len(piece)
