"""Public parser: model text in, events out. Each event is returned by the call to `feed` that completes it.

A `Parser` connects the components and runs them. The grammar (`grammar/`) reads from a `Reader` and records open
constructs in `Frames`; the `Machine` holds both. `feed` enters the grammar only where a decision is needed. Between
decisions a run is armed, and each piece costs one regular expression match and one event.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

from attrs import evolve

from statemachine import bodies
from statemachine.call import Call
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.formats.compile import openers_of_all, resolve_formats, tables_of
from statemachine.formats.format import Format
from statemachine.formats.table import DEFAULT, FORMATS
from statemachine.grammar import reply
from statemachine.machine.machine import Limits, Machine, MachineOptions
from statemachine.machine.states import CALLS, State
from statemachine.machine.waiting import waits_for
from statemachine.stream.buffer import EndOfText
from statemachine.stream.emitter import Emitter, Ledger, Sink, Span
from statemachine.stream.flow import Flow
from statemachine.stream.reader import MAX_GROWTH, Reader
from statemachine.stream.runs import json_escape
from statemachine.tools import Tools, Toolset, tools_of

LIMITS = Limits()
options_of = lru_cache(maxsize=64)(MachineOptions)
"""Returns the options; parsers with the same options share them."""
create = object.__new__
"""Creates an event without calling `__init__`. CPython calls the `__init__` of a slotted class through C, which would
be the most expensive step of a feed.
"""
HIDDEN_IN_PREFIX = (TextDelta, ReasoningDelta, Discarded)
"""Events that are suppressed while the prefix is read."""


class Parser:
    """Parser for calls in text that arrives in pieces. Use one parser per reply.

    Args:
        tools: a mapping from tool names to the JSON Schemas of their parameters; or an iterable of names, functions,
            and tools as clients send them (see `tools_of`). If it is None, any name is a tool; if it is empty (`{}`,
            `[]`), nothing is a call.
        formats: names from `formats.FORMATS` and `Format` objects, or None for all formats that are enabled by default.
        prefix: text that the reply already contains when the model starts; it is read, but not emitted.
        unknown: how to treat a call to a tool that is not offered: "text" or "discard".
        malformed: how to treat text that begins with a call's marker but cannot be read as a call: "text" or "discard",
            which discards it through its closer or, without one, to the end of the line.
        in_fences: "calls" to look for calls anywhere in code fences; "text" to look only at the beginning of a fence.
        calls_in_reasoning: whether to look for calls inside reasoning; or the names of the formats whose markers count
            there.
        names: which names that are not exactly those of a tool are repaired if only one tool fits: "spelling" for
            differences in case, separators and namespace prefixes; "edit" to also allow one letter to differ.
        flattened: "nest" to nest arguments that are written outside the object that they belong to; "keep" to leave
            them where they are.
        limits: maximum lengths, in characters, and maximum nesting depth.
        ledger: whether to record how every character was classified (see the `ledger` property), which is slower.

    Raises:
        ValueError: a format or an option's value is unknown.
        TypeError: one of the tools is not a tool.
    """

    __slots__ = ("_grammar", "_machine", "_reader")

    def __init__(
        self,
        tools: Tools = None,
        *,
        formats: Iterable[str | Format] | None = None,
        prefix: str = "",
        unknown: str = "text",
        malformed: str = "text",
        in_fences: str = "text",
        calls_in_reasoning: bool | Iterable[str] = False,
        names: str = "spelling",
        flattened: str = "nest",
        limits: Limits | None = None,
        ledger: bool = False,
    ) -> None:
        options = options_of(
            unknown=Sink.DISCARD if is_second_of("unknown", unknown, "text", "discard") else Sink.TEXT,
            discard_malformed=is_second_of("malformed", malformed, "text", "discard"),
            fence_calls=is_second_of("in_fences", in_fences, "text", "calls"),
            calls_in_reasoning=bool(calls_in_reasoning),
            openers_in_reasoning=None if isinstance(calls_in_reasoning, bool) else openers_of_all(calls_in_reasoning),
            nest=not is_second_of("flattened", flattened, "nest", "keep"),
        )
        edits = is_second_of("names", names, "spelling", "edit")
        schemas = tools_of(tools)
        active, others = (DEFAULT, ()) if formats is None else resolve_formats(formats)
        unread: tuple[Format, ...] = ()
        if schemas is not None and not schemas:
            unread, active, others = others, (), ()  # nothing can be a call
        by_tool = formats is not None and any(form.by_tool for form in (*map(FORMATS.__getitem__, active), *others))
        tables = tables_of(active, tuple(schemas) if schemas and by_tool else (), others, unread)
        self._reader = Reader(Emitter(Ledger() if ledger else None))
        self._machine = Machine(self._reader, tables, Toolset(schemas, edits=edits), options, limits or LIMITS)
        self._grammar = reply.read(self._machine)
        next(self._grammar)
        if prefix:
            self._read_prefix(prefix)

    def _read_prefix(self, prefix: str) -> None:
        """Read the text that the reply already contains, without emitting it. A call that begins in this text is
        emitted by the next `feed`.
        """
        reader = self._reader
        reader.emitter.hide(len(prefix))
        begun = [event for event in self._advance(prefix) if not isinstance(event, HIDDEN_IN_PREFIX)]
        for event in begun:
            reader.emitter.emit(event)
        if begun:
            reader.disarm()

    def feed(self, text: str) -> list[Event]:
        """Return the events for this piece of the reply, or [] if the whole piece has to wait. Model text never makes
        this method raise an exception.
        """
        # Most pieces are inside a long stretch of text or inside a string. There are therefore three levels, and each
        # is entered only if the level before it cannot decide:
        #
        #     1. `scan` finds nothing in the piece: all of it flows unchanged. One search, one event.
        #     2. `run.fullmatch` accepts the piece: still no grammar, but the piece may need conversion, its end may
        #        have to wait, and the text may have continued in another run.
        #     3. `_advance`: the grammar resumes where it armed the run, with all unread text.
        #
        # Levels 1 and 2 may skip the grammar because a run is armed only while nothing else decides (`Reader.arm`): the
        # grammar is suspended in `flow`, the emitter is empty, and there is neither a ledger nor a hidden prefix. Then
        # a piece that flows *is* the event, `at` is 0, and `reader.text` holds nothing but the waiting text. `scan` is
        # unset in three cases: no run is armed; text is waiting, which can change the meaning of the piece; or the run
        # has no `search`, because all of its text has to be decoded.
        reader = self._reader
        if not text:
            return reader.emitter.collect()
        scan, delta = reader.scan, reader.delta
        if scan is None or (found := scan(text)) is not None:
            run = reader.run
            if run is None:
                return self._advance(text)
            # The text that waited is now part of the piece. Below, either all of it is consumed, or the unconsumed end
            # is put back and `scan` is unset again.
            if reader.text:
                text = reader.text + text
                reader.text = ""
                reader.scan = run.search
            # Near the limit, `Reader.flow_to_limit` has to count each character as it is converted. Conversion
            # lengthens text by less than a factor of MAX_GROWTH, so a piece that passes this test fits, except for text
            # that waited in a decoder.
            if delta is None and reader.remaining <= MAX_GROWTH * len(text):
                return self._advance(text)
            # If a group of `scan` matched, the piece needs conversion and flows completely. Any other match only means
            # that something may begin here, and the run's pattern has to accept the piece to its end. What `fullmatch`
            # accepts is what `match` would accept in `Reader.flow`, so the events do not depend on the level.
            if delta is not None or scan is None or found.lastindex is None:  # type: ignore[union-attr]  # scan matched
                found = run.fullmatch(text)
                if found is None:
                    return self._advance(text)
                group = found.lastindex
                # Group 1: the text stays in this run. Any other group: it continues in another run, which the grammar
                # will find in `last_run`. In either case, the text from the group onward has to wait.
                if group is not None:
                    if group != 1:
                        reader.run = other = run.next_runs[group]
                        reader.scan = other.search
                    cut = found.start(group)
                    if cut < len(text):
                        reader.text = text[cut:]
                        reader.scan = None
                        if not cut:
                            return []
                        text = text[:cut]
            if delta is None and (convert := run.convert) is not None:
                text = encode_basestring(text)[1:-1] if convert is json_escape else convert(text)
                if not text:
                    return []
        if delta is not None:
            event = create(delta)
            event.text = text
            return [event]
        room = reader.remaining - len(text)
        # A piece at level 1 may be too long, but it has not been converted yet, so the grammar can take the part that
        # fits. A decoded piece (no `scan`) cannot be decoded twice: it is emitted, and the next piece reaches the limit
        # above.
        if room < 0 and scan is not None:
            return self._advance(text)
        reader.remaining = room
        arguments = create(ArgumentsDelta)
        arguments.index = reader.emitter.index
        arguments.text = text
        return [arguments]

    def close(self, reason: str | None = None) -> list[Event]:
        """Return the last events. A `reason` of None or "stop" means that the model stopped on its own; any other
        reason means that it was cut off.
        """
        if self._machine.frames.state is State.CLOSED:
            return []
        self._reader.ended = True
        self._machine.stopped = reason in (None, "stop")
        events = self._advance("")
        if self.state is not State.CLOSED:  # a bug in the grammar: it waits for text that will never arrive
            with suppress(StopIteration, EndOfText):
                self._grammar.throw(EndOfText)
            events += self._reader.emitter.collect()
        return events

    def _advance(self, text: str) -> list[Event]:
        """Let the grammar read the unread text."""
        reader = self._reader  # append, disarm and compact, inlined
        reader.text = reader.text[reader.at :] + text if reader.text else text
        reader.at = 0
        reader.last_run = reader.run
        reader.scan = reader.run = None
        # A new piece is progress, even if it is the same object as the previous one, as single-character strings often
        # are.
        reader.idle_count = 0
        next(self._grammar, None)
        if reader.at:
            reader.text = reader.text[reader.at :]
            reader.at = 0
        return reader.emitter.collect()

    @property
    def state(self) -> State:
        """State of the parser, which determines what the next character can be."""
        return self._machine.frames.state

    @property
    def flow(self) -> Flow:
        """The state in which text flows through the parser.

        If `scan` is not None and returns None for a piece of text, `feed` would return the piece unchanged: as one
        event of the type `delta`, or, if that is None, as one ArgumentsDelta. A caller may then omit the call of
        `feed`. In the case of arguments, `remaining` must not be less than the length of the piece, and has to be
        reduced by it.
        """
        return self._reader

    @property
    def in_call(self) -> bool:
        """Whether the text is inside a call or its markup, or may be."""
        reader = self._reader
        return self._machine.frames.state in CALLS or bool(reader.text[reader.at :].strip())

    @property
    def in_reasoning(self) -> bool:
        """Whether the text is inside reasoning."""
        return bool(self._machine.frames.reasoning)

    @property
    def waits_for(self) -> str:
        """Human-readable reason why text is buffered, or "" if nothing is buffered. It is meant for debugging, and its
        wording may change.
        """
        return waits_for(self._machine)

    @property
    def held(self) -> int:
        """Number of characters that have arrived but have not yet been classified as text, syntax or arguments."""
        reader = self._reader
        return len(reader.text) - reader.at + reader.buffered.length

    @property
    def ledger(self) -> list[Span]:
        """Consecutive spans that cover all text classified so far; empty unless the ledger was requested."""
        ledger = self._reader.emitter.ledger
        return [] if ledger is None else ledger.spans()


def is_second_of(option: str, value: str, no: str, yes: str) -> bool:
    """Return whether an option has the second of its two allowed values.

    Raises:
        ValueError: the option has neither of them.
    """
    if value not in (no, yes):
        raise ValueError(f"{option} must be {no!r} or {yes!r}, not {value!r}")
    return value == yes


def precompile(formats: Iterable[str | Format] | None = None) -> None:
    """Compile the tables of these formats in advance, which takes a few tenths of a second, so that no reply has to
    wait for the compilation.
    """
    bodies.load()
    names, others = (DEFAULT, ()) if formats is None else resolve_formats(formats)
    tables_of(names, (), others, ()).precompile()


def parse(text: str, tools: Tools = None, **options: Any) -> tuple[str, list[Call]]:
    """Parse a complete reply and return its visible text and its calls. Accepts the options of `Parser`.

    A call that was cut off or became unreadable is included, with `complete` set to False.
    """
    parser = Parser(tools, **options)
    visible: list[str] = []
    calls: list[Call] = []
    arguments: list[str] = []
    for event in [*parser.feed(text), *parser.close()]:
        match event:
            case TextDelta(text=piece):
                visible.append(piece)
            case CallStart(name=name, id=call_id):
                calls.append(Call(name, "", call_id))
                arguments.clear()
            case ArgumentsDelta(text=piece):
                arguments.append(piece)
            case CallEnd(complete=complete, repairs=repairs):
                calls[-1] = evolve(calls[-1], arguments="".join(arguments), complete=complete, repairs=repairs)
            case _:
                pass
    return "".join(visible), calls
