"""What the grammar works with, and the life of a call: candidate, commit, disown, end.

A candidate holds what it consumes. It *commits* when its name is offered and its body has begun: what was held turns
out to be syntax and `CallStart` goes out. It is *disowned* when its name is not offered: what was held goes out as text
(or is discarded), and the body is read to its end all the same, with that sink, so that nothing inside of it is taken
for a call. It is rejected by a `Mismatch`, which `grammar/call.py` handles in one place.
"""

from enum import Enum

from attrs import define, field, frozen

from statemachine.buffer import Grammar, space
from statemachine.candidate import NOTHING, Candidate
from statemachine.emitter import Sink
from statemachine.events import CallEnd, CallStart
from statemachine.formats.compile import Compiled
from statemachine.frames import Frames
from statemachine.reader import Reader
from statemachine.states import Input
from statemachine.tools import Toolset

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


@frozen
class MachineOptions:
    """What the caller has chosen; see `Parser`."""

    unknown: Sink
    """Where a call goes whose name is not offered."""
    discard_malformed: bool
    fence_calls: bool
    """Calls are looked for inside of code fences too."""
    calls_in_reasoning: bool


class Place(Enum):
    """Where in its line the text is."""

    START = "only blanks came since the last line end"
    INSIDE = "something else did"
    CODE = "inside of inline code"
    QUOTE = "inside of a line of a block quote"


START, INSIDE, CODE, QUOTE = Place.START, Place.INSIDE, Place.CODE, Place.QUOTE
"""They are asked for at every marker; a name is looked up faster than a member of an Enum."""


@define
class Past:
    """What matters of the text that came before."""

    place: Place = START
    text_seen: bool = False
    """Visible text came."""
    at_message_start: bool = True
    """Nothing but white space came since the reply began, or since a message or section of special tokens ended."""
    opens_line: bool = True
    """Nothing but line ends stood before the last opener in its line, or in the reply."""
    shown: set[str] = field(factory=set)
    """Closers of reasoning that are text from here on: their openers were, or one that closed nothing has come."""
    tags_shown: bool = False
    """Markup of calls was text: closers of calls are text from here on."""

    def saw(self) -> None:
        """Visible text has come."""
        self.text_seen, self.at_message_start = True, False


class Machine:
    """The parts that the grammar works with, and what a body asks for while it reads a call."""

    __slots__ = ("candidate", "frames", "limits", "options", "past", "reader", "stopped", "tables", "tools")

    def __init__(
        self, reader: Reader, tables: Compiled, tools: Toolset, options: MachineOptions, limits: Limits
    ) -> None:
        self.reader = reader
        self.frames = Frames()
        self.past = Past()
        self.tables = tables
        self.tools = tools
        self.options = options
        self.limits = limits
        self.candidate = NOTHING
        """The call that is being read, or was read last."""
        self.stopped = False
        """The model stopped by itself."""

    # ---- the text around

    def blank(self) -> Grammar:
        """White space is skipped as raw text; then a character is there."""
        reader = self.reader
        while True:
            end = space(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
            if end > reader.at:
                reader.take(end - reader.at)
            if reader.at < len(reader.text):
                return
            yield from reader.more()

    def saw(self, something: bool) -> None:
        """Visible text came, unless it belongs to the prefix or to reasoning."""
        if something and not self.reader.emitter.hidden and not self.frames.reasoning:
            self.past.saw()

    # ---- a candidate

    def open(self) -> None:
        """A candidate starts."""
        self.candidate = Candidate()
        self.past.opens_line = self.past.place is START or not self.past.text_seen
        self.frames.go(Input.OPEN, candidate=self.candidate)
        self.past.place = INSIDE
        self.hold()

    def another(self, *, marked: bool) -> None:
        """The next element of an array is a candidate of its own, in the format of the one before."""
        before = self.candidate
        self.candidate = Candidate(before.format, marked=marked, bare=before.bare, wrappers=before.wrappers)
        self.frames.go(Input.OPEN, candidate=self.candidate)
        self.hold()

    def hold(self) -> None:
        """What the candidate consumes is held."""
        reader = self.reader
        reader.sink = Sink.HOLD
        reader.target = False
        reader.hold.limit = self.hold_limit

    def mark(self, marked: bool) -> None:
        """Whether something besides its keys says that the candidate is a call: if nothing does, it may hold less."""
        self.candidate.marked = marked
        if self.reader.sink is Sink.HOLD:
            self.reader.hold.limit = self.hold_limit

    @property
    def hold_limit(self) -> int:
        """Characters that the candidate may hold; no limit is so narrow that a call's name would not fit."""
        return max(self.limits.held, BARE_HOLD) if self.candidate.marked else BARE_HOLD

    def flush_preamble(self) -> None:
        """What is held before an element of an array was markup, whatever the element is."""
        hold = self.reader.hold
        count = self.candidate.preamble
        for piece, kind in hold.pieces[:count]:
            self.reader.emitter.raw(Sink.SYNTAX, piece, kind)
            hold.length -= len(piece)
        del hold.pieces[:count]
        self.candidate.preamble = 0

    # ---- its name

    def named(self, name: str) -> None:
        """The name as the model wrote it, and the offered tool that it means."""
        candidate = self.candidate
        offered = self.tools.offered(name) if len(name) <= self.limits.name else None
        candidate.known = offered is not None
        candidate.name = name if offered is None else offered

    def disown(self) -> None:
        """The name is not offered: what is held goes out, and so does the rest of the call."""
        reader, candidate = self.reader, self.candidate
        self.frames.go(Input.DISOWN)
        candidate.arguments.early.clear()
        reader.emitter.because("unknown")
        self.flush_preamble()
        shown = self.options.unknown is Sink.TEXT
        self.past.tags_shown = self.past.tags_shown or (shown and candidate.marked)
        self.saw(shown)
        reader.release(self.frames.top.sink if shown else self.options.unknown)
        reader.target = False

    # ---- its arguments

    def begin(self) -> None:
        """The body has begun: a candidate whose name is offered commits, and arguments flow from here on."""
        candidate = self.candidate
        candidate.arguments.begun = True
        if not candidate.committed and candidate.known:
            self.commit()
        self.aim()

    def commit(self) -> None:
        """The candidate is a call: `CallStart`, and the arguments that came early."""
        candidate, reader = self.candidate, self.reader
        candidate.committed = True
        self.frames.go(Input.COMMIT)
        reader.release(Sink.SYNTAX)
        emitter = reader.emitter
        emitter.index += 1
        reader.room = self.limits.arguments
        form = candidate.format.name if candidate.format else ""
        emitter.emit(CallStart(emitter.index, candidate.name or "", candidate.id, form))
        reader.target = True
        arguments = candidate.arguments
        for piece in arguments.early:
            reader.out(piece)
        arguments.early = []

    def aim(self) -> None:
        """Arguments go where they belong now: to the client, to the queue, or nowhere."""
        candidate = self.candidate
        candidate.arguments.json.depth = candidate.envelope.json.depth = self.limits.depth
        if candidate.committed:
            self.reader.target = True
        elif candidate.name is None or candidate.known:
            self.reader.target = candidate.arguments.early
        else:
            self.reader.target = False

    # ---- its end

    def end_event(self) -> None:
        """`CallEnd`, for a call that has committed."""
        emitter, arguments = self.reader.emitter, self.candidate.arguments
        emitter.emit(CallEnd(emitter.index, arguments.complete, tuple(arguments.json.repairs)))

    def finish(self, *, alone: bool = False) -> None:
        """The call's body is over. Its closers go the way of the call; `alone`: an element, what follows is syntax."""
        candidate = self.candidate
        if candidate.committed:
            self.end_event()
        self.frames.go(Input.END)
        self.reader.target = False
        if candidate.committed or alone:
            self.reader.sink = Sink.SYNTAX

    # ---- a message that is no call

    def think(self, closers: tuple[str, ...]) -> None:
        """What is held was the opener of reasoning, up to one of these closers."""
        self.reader.release(Sink.SYNTAX)
        self.frames.go(Input.THINK, *closers)

    def say(self, ends: tuple[str, ...]) -> None:
        """What is held was the header of a message that is text and nothing else, up to one of the ends."""
        self.reader.release(Sink.SYNTAX)
        self.frames.go(Input.SAY, *ends)

    def wrap(self, ends: tuple[str, ...]) -> None:
        """What is held was the header of a message that holds a call in another format."""
        self.reader.release(Sink.SYNTAX)
        self.frames.go(Input.WRAP)
        self.frames.wrap(ends)
