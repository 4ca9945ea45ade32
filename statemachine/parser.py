"""The facade: model text in, events out, in the `feed` that brought it.

A `Parser` puts the parts together and lets them work. The grammar (`grammar/`) reads from a `Reader` and says by the
`Frames` what is open; both are in the `Machine`. `feed` enters the grammar only where something is to be decided. In
between a run is armed, and a piece costs one regular expression and one event.
"""

from collections.abc import Iterable
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any

from attrs import evolve

from statemachine.buffer import Ended
from statemachine.call import Call
from statemachine.emitter import Emitter, Ledger, Sink, Span
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.formats.compile import chosen, compiled
from statemachine.formats.format import Format
from statemachine.formats.table import DEFAULT, FORMATS
from statemachine.grammar import reply
from statemachine.machine import Limits, Machine, MachineOptions
from statemachine.reader import FAR, Reader
from statemachine.runs import quote
from statemachine.states import State
from statemachine.tools import Tools, Toolset, tools_of
from statemachine.waiting import waits_for

LIMITS = Limits()
new = object.__new__
"""Makes an event without `__init__`: CPython enters that of a slotted class through C, the dearest step of a feed."""
OUTSIDE = (TextDelta, ReasoningDelta, Discarded)
"""What is not emitted of a prefix."""


class Parser:
    """Reads calls out of text that arrives in pieces. One parser per reply.

    Args:
        tools: JSON Schema of the parameters by tool name; or names, tools as clients write them, functions
            (`tools_of`). None: any name is a tool. None at all (`{}`, `[]`): nothing is a call.
        formats: names out of `formats.FORMATS`, and formats of your own; None: all that are on by default.
        prefix: what the reply already contains when the model starts: read, its text not emitted.
        unknown: where a call of a tool that is not offered goes, "text" or "discard".
        malformed: where something goes that begins like a call, behind a marker, and cannot be read as one: "text" or
            "discard", which takes it to its closer, or the end of the line where it has none.
        in_fences: "calls" to look for calls inside of code fences too; "text" only at their beginning.
        calls_in_reasoning: look for calls inside of reasoning.
        limits: bounds in characters.
        ledger: keep account of every character (`ledger`); slower.

    Raises:
        ValueError: an unknown format or option.
        TypeError: something among the tools is none.

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
        calls_in_reasoning: bool = False,
        limits: Limits | None = None,
        ledger: bool = False,
    ) -> None:
        options = MachineOptions(
            unknown=Sink.DISCARD if one_of("unknown", unknown, "text", "discard") else Sink.TEXT,
            discard_malformed=one_of("malformed", malformed, "text", "discard"),
            fence_calls=one_of("in_fences", in_fences, "text", "calls"),
            calls_in_reasoning=calls_in_reasoning,
        )
        schemas = tools_of(tools)
        names, others = (DEFAULT, ()) if formats is None else chosen(formats)
        if schemas is not None and not schemas:
            names = others = ()  # nothing can be a call
        by_tool = formats is not None and any(form.by_tool for form in (*map(FORMATS.__getitem__, names), *others))
        tables = compiled(names, tuple(schemas) if schemas and by_tool else (), others)
        self._reader = Reader(Emitter(Ledger() if ledger else None))
        self._machine = Machine(self._reader, tables, Toolset(schemas), options, limits or LIMITS)
        self._grammar = reply.read(self._machine)
        next(self._grammar)
        if prefix:
            self._read_prefix(prefix)

    def _read_prefix(self, prefix: str) -> None:
        """Reads what the reply already contains. Its text is not emitted; a call that begins in it is, with `feed`."""
        reader = self._reader
        reader.emitter.hide(len(prefix))
        begun = [event for event in self._advance(prefix) if not isinstance(event, OUTSIDE)]
        for event in begun:
            reader.emitter.emit(event)
        if begun:
            reader.disarm()

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of the reply brings; [] if all of it has to wait. Never raises on model text."""
        reader = self._reader
        if not text:
            return reader.emitter.collect()
        scan, delta = reader.scan, reader.delta
        if scan is None or (found := scan(text)) is not None:
            run = reader.run
            if run is None:
                return self._advance(text)
            if reader.text:
                text = reader.text + text
                reader.text = ""
                reader.scan = run.search
            if delta is None and reader.room <= FAR * len(text):
                return self._advance(text)
            if delta is not None or scan is None or found.lastindex is None:  # type: ignore[union-attr]  # one was found
                found = run.whole(text)
                if found is None:
                    return self._advance(text)
                group = found.lastindex
                if group is not None:
                    if group != 1:
                        reader.run = other = run.others[group]
                        reader.scan = other.search
                    cut = found.start(group)
                    if cut < len(text):
                        reader.text = text[cut:]
                        reader.scan = None
                        if not cut:
                            return []
                        text = text[:cut]
            if delta is None and (convert := run.convert) is not None:
                text = encode_basestring(text)[1:-1] if convert is quote else convert(text)
                if not text:
                    return []
        if delta is not None:
            event = new(delta)
            event.text = text
            return [event]
        room = reader.room - len(text)
        if room < 0 and scan is not None:  # without a scan it is decoded, and brings what had waited
            return self._advance(text)
        reader.room = room
        arguments = new(ArgumentsDelta)
        arguments.index = reader.emitter.index
        arguments.text = text
        return [arguments]

    def close(self, reason: str | None = None) -> list[Event]:
        """The last events. `reason` None or "stop": the model stopped by itself; anything else: it was cut short."""
        if self._machine.frames.state is State.CLOSED:
            return []
        self._reader.ended = True
        self._machine.stopped = reason in (None, "stop")
        events = self._advance("")
        if self.state is not State.CLOSED:  # a mistake in the grammar, which waits for what never comes
            with suppress(StopIteration, Ended):
                self._grammar.throw(Ended)
            events += self._reader.emitter.collect()
        return events

    def _advance(self, text: str) -> list[Event]:
        """Lets the grammar read what has not been read."""
        reader = self._reader  # append, disarm and compact, without the calls
        reader.text = reader.text[reader.at :] + text if reader.text else text
        reader.at = 0
        reader.ran = reader.run
        reader.scan = reader.run = None
        reader.idle = 0  # the same text may come again, as the same object if it is one character
        next(self._grammar, None)
        if reader.at:
            reader.text = reader.text[reader.at :]
            reader.at = 0
        return reader.emitter.collect()

    @property
    def state(self) -> State:
        """What the next character may turn out to be."""
        return self._machine.frames.state

    @property
    def in_reasoning(self) -> bool:
        """The text around is reasoning."""
        return bool(self._machine.frames.reasoning)

    @property
    def waits_for(self) -> str:
        """Why it holds what it holds, in words; "" if it holds nothing. For people; what it says may change."""
        return waits_for(self._machine)

    @property
    def held(self) -> int:
        """Characters that have arrived and are not yet known to be text, syntax or arguments."""
        reader = self._reader
        return len(reader.text) - reader.at + reader.hold.length

    @property
    def ledger(self) -> list[Span]:
        """The spans that tile what was fed and is decided; empty unless asked for."""
        ledger = self._reader.emitter.ledger
        return [] if ledger is None else ledger.spans()


def one_of(option: str, value: str, no: str, yes: str) -> bool:
    """True if an option has the second of its two values.

    Raises:
        ValueError: it has neither.

    """
    if value not in (no, yes):
        raise ValueError(f"{option} must be {no!r} or {yes!r}, not {value!r}")
    return value == yes


def parse(text: str, tools: Tools = None, **options: Any) -> tuple[str, list[Call]]:
    """The visible text of a whole reply and its calls. Options as of `Parser`.

    A call that was cut, or could not be read to its end, is among them: its `complete` is False.
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
