"""State that the grammar works with, and the stages of a call: candidate, commit, disown, end.

A candidate buffers the text it consumes. It is *committed* when its name is that of an offered tool and its body has
begun: the buffered text turns out to be syntax, and `CallStart` is emitted. It is *disowned* when its name is not
offered: the buffered text is emitted as text (or discarded), and the body is still read to its end and sent to the same
sink, so that nothing inside it is mistaken for a call. A `Mismatch` *rejects* the candidate; `grammar/reply.py` handles
that.
"""

from attrs import define, frozen

from statemachine.events import CallEnd, CallStart
from statemachine.formats.compile import FormatTables
from statemachine.formats.scanner import LinePlace
from statemachine.machine.candidate import NO_CANDIDATE, Candidate
from statemachine.machine.frames import Frames
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import Reader
from statemachine.tools import Toolset

MIB = 1024 * 1024
START, INSIDE = LinePlace.START, LinePlace.INSIDE
"""Looked up at every marker; a global is faster than an enum member."""
NO_INFOS: set[str] = set()
"""Info strings in a reply without fenced calls. Shared, never mutated."""
MAX_BARE_BUFFER = 1024
"""Maximum number of characters to buffer of an object without a marker before it is committed."""


@frozen
class Limits:
    """Limits on the state that model text can make a parser hold, in characters, except for `depth` (in levels). Beyond
    a limit, a candidate becomes text, and a committed call ends as incomplete.
    """

    held: int = 256 * 1024
    arguments: int = 16 * MIB
    depth: int = 128
    name: int = 256


@frozen(eq=False, repr=False)
class MachineOptions:
    """Options chosen by the caller; see `Parser`."""

    unknown: Sink
    """Destination of the text of a call whose name is not offered."""
    discard_malformed: bool
    fence_calls: bool
    """Whether to look for calls anywhere inside code fences, not only at their beginning."""
    calls_in_reasoning: bool
    openers_in_reasoning: frozenset[str] | None = None
    """Openers that end reasoning that is open; None if every call in reasoning counts."""
    nest: bool = True
    """Whether arguments that are written outside the object that they belong to are nested in it."""


@define(eq=False, repr=False)
class TextState:
    """Facts about the text so far that determine how the following text is read."""

    place: LinePlace = START
    indent: int | None = None
    """Number of columns that the line is indented so far if it follows a blank line; None if it does not."""
    fence_indent: int | None = None
    """Number of columns that the first line in a fence is indented so far; None if that line has not begun."""
    text_seen: bool = False
    """Whether visible text has been emitted."""
    at_message_start: bool = True
    """Whether nothing but whitespace has arrived since the reply began, or since a message or section of special tokens
    ended.
    """
    opens_line: bool = True
    """Whether the last opener was preceded by nothing but blanks on its line, or by no visible text in the reply."""
    after_call: bool = False
    """Whether only newlines separate the next opener from the call before it."""
    wrapping_infos: set[str] = NO_INFOS
    """Info strings of fences that contained a call before any text: later fences with one of them may, too."""
    shown_closers: frozenset[str] = frozenset()
    """Reasoning closers that count as text from here on, because their opener was shown as text or an earlier closer
    closed nothing.
    """
    turn_shown: bool = False
    """Whether the beginning of a turn was shown as text, in which case the reply may be about turns."""
    call_markup_shown: bool = False
    """Whether call markup was shown as text, in which case call closers are text from here on."""

    def note_visible_text(self) -> None:
        """Note that visible text has been emitted."""
        self.text_seen, self.at_message_start = True, False


class Machine:
    """State shared by the grammar and the bodies that read a call."""

    __slots__ = (
        "candidate",
        "frames",
        "limits",
        "next_grammar",
        "options",
        "reader",
        "stopped",
        "tables",
        "text_state",
        "tools",
    )

    def __init__(
        self, reader: Reader, tables: FormatTables, tools: Toolset, options: MachineOptions, limits: Limits
    ) -> None:
        self.reader = reader
        self.frames = Frames()
        self.text_state = TextState()
        self.tables = tables
        self.tools = tools
        self.options = options
        self.limits = limits
        self.candidate = NO_CANDIDATE
        """Call that is being read or, between calls, the last one read."""
        self.next_grammar: Grammar | None = None
        """Grammar that reads on when the current one has ended; None if the state determines it. Set at the end of a
        grammar instead of a `yield from`, which would keep the frames of all grammars before it.
        """
        self.stopped = False
        """Whether the model stopped on its own, rather than being cut off."""

    # ---- the surrounding text

    def skip_whitespace(self) -> Grammar:
        """Skip whitespace as raw text, and wait for the next character."""
        reader = self.reader
        while True:
            end = match_whitespace(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
            if end > reader.at:
                reader.take(end - reader.at)
            if reader.at < len(reader.text):
                return
            yield from reader.more()

    def note_visible_text(self, something: bool) -> None:
        """Note that visible text has been emitted if `something` is True, unless the text belongs to the prefix or to
        reasoning.
        """
        if something and not self.reader.emitter.hidden and not self.frames.reasoning:
            self.text_state.note_visible_text()

    # ---- the candidate

    def open_candidate(self) -> None:
        """Open a candidate."""
        past = self.text_state
        self.candidate = Candidate(follows_call=past.after_call)
        past.opens_line, past.after_call = past.place is START or not past.text_seen or past.after_call, False
        self.frames.apply(Input.OPEN, candidate=self.candidate)
        self.text_state.place = INSIDE
        self.start_buffering()

    def open_next_element(self, *, marked: bool) -> None:
        """Open a candidate for the next element of an array, in the same format as the previous one."""
        before = self.candidate
        self.candidate = Candidate(before.format, marked=marked, bare=before.bare, wrappers=before.wrappers)
        self.candidate.fenced_body = before.fenced_body
        self.frames.apply(Input.OPEN, candidate=self.candidate)
        self.start_buffering()

    def start_buffering(self) -> None:
        """Buffer the text that the candidate consumes from here on."""
        reader = self.reader
        reader.sink = Sink.HOLD
        reader.target = False
        reader.buffered.limit = self.hold_limit

    def set_marked(self, marked: bool) -> None:
        """Set whether anything other than its keys shows that the candidate is a call. If nothing does, its buffer
        limit is lower.
        """
        self.candidate.marked = marked
        if self.reader.sink is Sink.HOLD:
            self.reader.buffered.limit = self.hold_limit

    @property
    def hold_limit(self) -> int:
        """Maximum number of characters to buffer for the candidate; always enough for the name of a call."""
        return max(self.limits.held, MAX_BARE_BUFFER) if self.candidate.marked else MAX_BARE_BUFFER

    def flush_preamble(self) -> None:
        """Emit the text buffered before an array element as markup, regardless of what the element turns out to be."""
        hold = self.reader.buffered
        count = self.candidate.preamble
        for piece, kind in hold.pieces[:count]:
            self.reader.emitter.route(Sink.SYNTAX, piece, kind)
            hold.length -= len(piece)
        del hold.pieces[:count]
        self.candidate.preamble = 0

    # ---- its name

    def set_name(self, name: str) -> None:
        """Record the name as the model wrote it, and the offered tool that it refers to. Without a marker, only case,
        separators and a namespace may differ.
        """
        candidate = self.candidate
        offered = self.tools.resolve(name, edits=candidate.marked) if len(name) <= self.limits.name else None
        candidate.offered = offered is not None
        candidate.name = name if offered is None else offered
        if candidate.offered and candidate.name != name:
            candidate.arguments.json.add_repair("tool_name")

    def disown(self) -> None:
        """Release the buffered text, because the name is not that of an offered tool; the remaining text of the call is
        sent to the same sink.
        """
        reader, candidate = self.reader, self.candidate
        self.frames.apply(Input.DISOWN)
        candidate.arguments.queued.clear()
        reader.emitter.set_discard_reason("unknown")
        self.flush_preamble()
        shown = self.options.unknown is Sink.TEXT
        self.text_state.call_markup_shown = self.text_state.call_markup_shown or (shown and candidate.marked)
        self.note_visible_text(shown)
        reader.release(self.frames.top.sink if shown else self.options.unknown)
        reader.target = False

    # ---- its arguments

    def begin_arguments(self) -> None:
        """Begin the body: commit the candidate if its name is offered, and let the arguments flow."""
        candidate = self.candidate
        # Called where the arguments begin. The order matters: `commit` releases the buffered text (opener and name) as
        # syntax before the first argument can be emitted, and `set_target` must see the result to choose the target.
        candidate.arguments.begun = True
        if not candidate.committed and candidate.offered:
            self.commit()
        self.set_target()

    def commit(self) -> None:
        """Make the candidate a call: emit `CallStart`, then the arguments that arrived before the name."""
        candidate, reader = self.candidate, self.reader
        candidate.committed = True
        if candidate.info is not None:
            if self.text_state.wrapping_infos is NO_INFOS:
                self.text_state.wrapping_infos = set()
            self.text_state.wrapping_infos.add(candidate.info)
        self.frames.apply(Input.COMMIT)
        # `release` precedes `CallStart` because the buffered pieces are syntax and precede the arguments in the ledger.
        # `index` and `remaining` belong to the new call, so they are set before the early arguments are emitted.
        reader.release(Sink.SYNTAX)
        emitter = reader.emitter
        emitter.index += 1
        reader.remaining = self.limits.arguments
        form = candidate.format.name if candidate.format else ""
        emitter.emit(CallStart(emitter.index, candidate.name or "", candidate.id, form, bool(self.frames.reasoning)))
        reader.target = True
        arguments = candidate.arguments
        for piece in arguments.queued:
            reader.emit_arguments(piece)
        arguments.queued = []

    def set_target(self) -> None:
        """Select the target of the arguments: the client, the queue of early arguments, or nowhere."""
        candidate = self.candidate
        candidate.arguments.json.depth = candidate.envelope.json.depth = self.limits.depth
        # If the candidate is neither committed nor disowned, the name may still turn out to be offered, so the
        # arguments are queued.
        if candidate.committed:
            self.reader.target = True
        elif candidate.name is None or candidate.offered:
            self.reader.target = candidate.arguments.queued
        else:
            self.reader.target = False

    # ---- its end

    def emit_end(self) -> None:
        """Emit `CallEnd` for a committed call."""
        emitter, arguments = self.reader.emitter, self.candidate.arguments
        if arguments.complete and arguments.json.withheld:
            emitter.put(Sink.SYNTAX, "}")
        complete = arguments.complete and arguments.json.lossless
        emitter.emit(CallEnd(emitter.index, complete, tuple(arguments.json.repairs)))

    def end_body(self, *, alone: bool = False) -> None:
        """End the body of a call. Its closers go to the same sink; with `alone` (for an array element), they are
        syntax.
        """
        candidate = self.candidate
        if candidate.committed:
            self.emit_end()
        self.frames.apply(Input.END)
        self.reader.target = False
        if candidate.committed or alone:
            self.reader.sink = Sink.SYNTAX

    # ---- a message that is not a call

    def begin_reasoning(self, closers: tuple[str, ...]) -> None:
        """Begin reasoning that ends with one of these closers; the buffered text was its opener."""
        self.reader.release(Sink.SYNTAX)
        self.frames.apply(Input.THINK, *closers)

    def begin_message(self, ends: tuple[str, ...]) -> None:
        """Begin a message that contains nothing but text, up to one of `ends`; the buffered text was its header."""
        self.reader.release(Sink.SYNTAX)
        self.frames.apply(Input.SAY, *ends)

    def open_message_wrapper(self, ends: tuple[str, ...]) -> None:
        """Open a message that contains a call in another format; the buffered text was its header."""
        self.reader.release(Sink.SYNTAX)
        self.frames.apply(Input.WRAP)
        self.frames.open_wrappers(ends)
