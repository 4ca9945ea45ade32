"""The whole reply: the state says what is next; and what happens when something cannot go on, or the text ends.

Two exceptions end what is being read, each handled once: `Mismatch` (a candidate is rejected, a call is broken; with
`Overflow` an object without a marker is text) and `Ended`.
"""

from collections.abc import Callable, Mapping

from statemachine.buffer import Ended, Grammar, Mismatch, Overflow
from statemachine.emitter import Sink
from statemachine.grammar import closers, fences, objects, reasoning, text
from statemachine.grammar.saying import line_ends
from statemachine.machine import INSIDE, START, Machine
from statemachine.reader import Reader
from statemachine.states import Input, State

REASONING = State.REASONING
PATIENCE = 64
"""How often the grammar may go on without reading a character."""

READ: Mapping[State, Callable[[Machine], Grammar]] = {
    State.TEXT: text.read,
    State.REASONING: reasoning.read,
    State.FENCE: fences.read,
    State.OBJECT: objects.read,
    State.MESSAGE: reasoning.message,
    State.AFTER: closers.after,
    State.BROKEN: closers.broken,
}
"""What reads the text of a state; a call is read to the end of its body by what read its opener."""


def read(machine: Machine) -> Grammar:
    """The whole reply."""
    yield
    reader, frames = machine.reader, machine.frames
    while True:
        unread, at = reader.text, reader.at
        try:
            if frames.state is REASONING and machine.options.calls_in_reasoning:
                yield from text.read(machine)
            else:
                yield from READ[frames.state](machine)
        except Mismatch:
            yield from mismatched(machine)
        except Overflow:
            overflowed(machine)
        except Ended:
            over(machine)
            return
        reader.idle = reader.idle + 1 if reader.text is unread and reader.at == at else 0
        if reader.idle > PATIENCE:  # a mistake in the grammar may cost a character, and never hang
            if reader.at < len(reader.text):
                reader.take(1)
            elif reader.ended:
                over(machine)
                return
            else:
                yield


# ---- what cannot go on


def mismatched(machine: Machine) -> Grammar:
    """What was being read cannot go on like this."""
    candidate, reader = machine.candidate, machine.reader
    reader.target = False
    if machine.frames.state is State.CALL:
        arguments = candidate.arguments
        missing = None if arguments.complete else arguments.missing()
        if missing and (yield from closers.closes(machine)):
            complete(machine, missing)
            machine.finish()
            return
        machine.end_event()
        reader.emitter.because("malformed")
        reader.sink = Sink.DISCARD
        machine.saw(candidate.bare)
        machine.frames.go(Input.BREAK)
    elif machine.frames.state is State.CANDIDATE:
        reject(machine)
    else:
        machine.frames.go(Input.REJECT)
        reader.sink = machine.frames.top.sink


def complete(machine: Machine, missing: str) -> None:
    """The arguments are complete with what is missing."""
    arguments = machine.candidate.arguments
    if missing:
        arguments.json.mend("missing_closer")
    machine.reader.emitter.put(Sink.SYNTAX, missing)
    arguments.complete = True


def reject(machine: Machine) -> None:
    """The candidate is no call: what it held is text, and scanning goes on at this character."""
    reader = machine.reader
    if should_discard(machine):
        reader.emitter.because("rejected")
        reader.release(Sink.DISCARD)
        machine.frames.go(Input.BREAK)
        return
    machine.saw(bool(reader.hold.text().strip()))
    machine.past.tags_shown = machine.past.tags_shown or machine.candidate.marked
    give_back(reader)
    pieces = reader.hold.pieces
    machine.past.place = START if pieces and pieces[-1][0].endswith("\n") else INSIDE
    machine.frames.go(Input.REJECT)
    reader.release(machine.frames.top.sink)


def should_discard(machine: Machine) -> bool:
    """True if the candidate was meant to be a call, and what is unreadable is discarded."""
    candidate = machine.candidate
    meant = candidate.name is not None or candidate.arguments.begun or bool(candidate.envelope.json.stack)
    return machine.options.discard_malformed and meant and candidate.marked and not candidate.in_fence


def give_back(reader: Reader) -> None:
    """Line ends that end what is held may stand before another opener: they are looked at again, and only they."""
    hold = reader.hold
    taken: list[str] = []
    while len(hold.pieces) > 1 and hold.pieces[-1][0].isspace():
        taken.append(hold.pieces.pop()[0])
    blank = "".join(reversed(taken))
    newlines = blank[len(blank.rstrip("\r\n")) :]
    if blank != newlines:
        hold.pieces.append((blank[: len(blank) - len(newlines)], "syntax"))
    hold.length -= len(newlines)
    reader.give_back(newlines)


def overflowed(machine: Machine) -> None:
    """A candidate holds too much, or is an object and no call: without a marker it is text to its closing brace."""
    candidate, reader = machine.candidate, machine.reader
    reader.target = False
    arguments, around = candidate.arguments.json, candidate.envelope.json
    if candidate.marked or not around.stack or machine.frames.fenced():
        reject(machine)
        return
    machine.saw(True)
    quoted = ['"'] if arguments.quoted or around.quoted else []
    machine.frames.go(Input.OBJECT, *around.stack, *arguments.stack, *quoted)
    reader.release(machine.frames.top.sink)
    machine.past.place = INSIDE


# ---- the end


def over(machine: Machine) -> None:
    """The text has ended: what was held is decided."""
    candidate, reader, frames = machine.candidate, machine.reader, machine.frames
    reader.target = reader.target if candidate.committed else False
    envelope = candidate.envelope
    named = candidate.known and (candidate.marked or envelope.decisive) and not envelope.spoke
    cut_name = frames.state is State.CANDIDATE and named
    if cut_name:
        machine.commit()
    if frames.state is State.CALL:
        over_in_call(machine, cut_name=cut_name)
    else:
        over_in_text(machine)
    reader.text, reader.at = "", 0
    frames.go(Input.CLOSE)


def over_in_call(machine: Machine, *, cut_name: bool) -> None:
    """The text has ended inside of a call."""
    arguments, reader = machine.candidate.arguments, machine.reader
    missing = None if arguments.complete else arguments.missing()
    if missing is not None and machine.stopped:
        complete(machine, missing)
    reader.emitter.because("malformed")
    machine.end_event()
    rest = reader.text[reader.at :]
    if rest:
        spare = cut_name or (arguments.complete and not rest.strip())
        reader.sink = Sink.SYNTAX if spare else Sink.DISCARD
        reader.take(len(rest))


def over_in_text(machine: Machine) -> None:
    """The text has ended outside of a call, or inside of one that has not committed."""
    reader, frames = machine.reader, machine.frames
    spoilt = frames.state is State.CANDIDATE and should_discard(machine)
    sink = frames.top.sink
    if spoilt:
        reader.emitter.because("rejected")
    if frames.state is State.CANDIDATE:
        reader.release(Sink.DISCARD if spoilt else sink)
    if frames.state is State.AFTER:
        run = line_ends(reader.text, reader.at)
        reader.sink = Sink.SYNTAX
        reader.take((run.end() if run else reader.at) - reader.at)
    if frames.state is not State.BROKEN and not spoilt:
        reader.sink = sink
    reader.take(len(reader.text) - reader.at)
