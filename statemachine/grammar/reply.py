"""The whole reply: dispatch by state, failures, and the end of the text.

Exceptions interrupt reading, and each is handled in one place: `Mismatch` (a candidate is rejected, or a call is
broken), `Overflow` and `NoCall` (an object without a marker becomes text) and `EndOfText` (no more text will arrive).
"""

from collections.abc import Callable, Mapping
from typing import Any

from statemachine import endings
from statemachine.bodies.envelope import NoCall
from statemachine.formats.markers import Markers, closers_of
from statemachine.grammar import closers, fences, objects, reasoning, text, turns
from statemachine.grammar.saying import line_ends
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input, State
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch, Overflow
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import Reader

REASONING = State.REASONING
MIN_OPENER = 5
"""Minimum number of characters of an incomplete opener that are markup at the end of a reply that was cut off."""
NO_OPENER = "{`~"
"""Characters that begin objects and code, which are text when a reply is cut off."""
MAX_IDLE = 64
"""Maximum number of times in a row that the grammar may continue without reading a character."""

READERS: Mapping[State, Callable[[Machine], Grammar]] = {
    State.TEXT: text.read,
    State.REASONING: reasoning.read,
    State.FENCE: fences.read,
    State.OBJECT: objects.read,
    State.MESSAGE: reasoning.read_message,
    State.AFTER: closers.read_after,
    State.BROKEN: endings.discard_broken_call,
    State.OVER: turns.discard_rest,
}
"""State → function that reads the text in that state. Whatever reads the opener of a call also sets the grammar that
reads the call to the end of its body (`Machine.next_grammar`).
"""


def read(machine: Machine) -> Grammar:
    """Read the whole reply."""
    yield
    reader, frames = machine.reader, machine.frames
    while True:
        unread, at = reader.text, reader.at
        try:
            if machine.next_grammar is not None:
                grammar, machine.next_grammar = machine.next_grammar, None
            elif frames.state is REASONING and machine.options.calls_in_reasoning:
                grammar = text.read(machine)
            else:
                grammar = READERS[frames.state](machine)
            yield from grammar
        except Mismatch:
            yield from handle_mismatch(machine)
        except Overflow:
            handle_overflow(machine)
        except NoCall:
            if frames.state is State.CANDIDATE:
                handle_overflow(machine)
            else:
                yield from handle_mismatch(machine)
        except EndOfText:
            end_reply(machine)
            return
        reader.idle_count = reader.idle_count + 1 if reader.text is unread and reader.at == at else 0
        if reader.idle_count > MAX_IDLE:  # a bug in the grammar may cost a character, but must not hang the parser
            if reader.at < len(reader.text):
                reader.take(1)
            elif reader.ended:
                end_reply(machine)
                return
            else:
                yield


# ---- failures


def handle_mismatch(machine: Machine) -> Grammar:
    """Handle text that does not continue what was being read."""
    candidate, reader = machine.candidate, machine.reader
    reader.target = False
    if machine.frames.state is State.CALL:
        # If the model itself ends the call here, the call lacks only closing brackets: they are added, and its closers
        # are read as usual. Any other committed call cannot be taken back, since its arguments have been emitted. It is
        # therefore reported as incomplete, and its remaining text is discarded.
        arguments = candidate.arguments
        missing = None if arguments.complete else arguments.missing()
        if missing and (yield from endings.call_closes_here(machine)):
            complete_arguments(machine, missing)
            machine.end_body()
            return
        machine.emit_end()
        reader.emitter.set_discard_reason("malformed")
        reader.sink = Sink.DISCARD
        machine.note_visible_text(candidate.bare)
        machine.frames.apply(Input.BREAK)
    elif machine.frames.state is State.CANDIDATE:
        reject(machine)
    else:
        machine.frames.apply(Input.REJECT)
        reader.sink = machine.frames.top.sink


def complete_arguments(machine: Machine, missing: str) -> None:
    """Complete the arguments with the missing closers."""
    arguments = machine.candidate.arguments
    if missing:
        arguments.json.add_repair("missing_closer")
    machine.reader.emitter.put(Sink.SYNTAX, missing)
    arguments.complete = True


def reject(machine: Machine) -> None:
    """Reject the candidate: emit or discard the characters that it buffered, and continue at the current character."""
    reader = machine.reader
    if should_discard(machine):
        reader.emitter.set_discard_reason("rejected")
        reader.release(Sink.DISCARD)
        machine.frames.apply(Input.BREAK)
        return
    machine.note_visible_text(bool(reader.buffered.text().strip()))
    machine.text_state.call_markup_shown = machine.text_state.call_markup_shown or machine.candidate.marked
    # This happens before the frame is popped: newlines at the end of the buffered text may precede the next opener, so
    # they must be put back, not emitted, when `release` empties the buffer.
    unread_newlines(reader)
    pieces = reader.buffered.pieces
    line = reader.buffered.text().rpartition("\n")[2] if machine.frames.candidate_opens_fence() else None
    begins = bool(pieces) and (pieces[-1][0].endswith("\n") or (line is not None and not line.strip(" \t")))
    machine.text_state.place = START if begins else INSIDE
    machine.frames.apply(Input.REJECT)
    reader.release(machine.frames.top.sink)


def should_discard(machine: Machine) -> bool:
    """Return whether the candidate was meant to be a call, and unreadable calls are to be discarded."""
    candidate = machine.candidate
    meant = candidate.name is not None or candidate.arguments.begun or bool(candidate.envelope.json.stack)
    return machine.options.discard_malformed and meant and candidate.marked and not candidate.in_fence


def unread_newlines(reader: Reader) -> None:
    """Put back only the newlines at the end of the buffered text, because they may precede another opener."""
    hold = reader.buffered
    taken: list[str] = []
    while len(hold.pieces) > 1 and hold.pieces[-1][0].isspace():
        taken.append(hold.pieces.pop()[0])
    blank = "".join(reversed(taken))
    newlines = blank[len(blank.rstrip("\r\n")) :]
    if blank != newlines:
        hold.pieces.append((blank[: len(blank) - len(newlines)], "syntax"))
    hold.length -= len(newlines)
    reader.give_back(newlines)


def handle_overflow(machine: Machine) -> None:
    """Handle a candidate that is too long, or an object that is not a call.

    A candidate without a marker becomes text through its closing brace.
    """
    candidate, reader = machine.candidate, machine.reader
    reader.target = False
    arguments, around = candidate.arguments.json, candidate.envelope.json
    if candidate.marked or not around.stack or machine.frames.candidate_opens_fence():
        reject(machine)
        return
    # The containers of the candidate are still open: the object's frame takes over their closers, and that of the
    # string if the candidate ended inside one. The text is not scanned again: a rejected object is not searched for
    # calls.
    machine.note_visible_text(True)
    # In a string whose content is read as a value, the text that overflows has not reached the inner reader in every
    # case, so the containers inside the string do not count.
    encoded = arguments.encoded is not None
    quoted = ['"'] if encoded or arguments.quoted or around.quoted else []
    machine.frames.apply(Input.OBJECT, *around.stack, *arguments.stack[: arguments.encoded], *quoted)
    reader.release(machine.frames.top.sink)
    machine.text_state.place = INSIDE


# ---- the end


def end_reply(machine: Machine) -> None:
    """End the reply: decide what the buffered text is."""
    candidate, reader, frames = machine.candidate, machine.reader, machine.frames
    reader.target = reader.target if candidate.committed else False
    envelope = candidate.envelope
    # A known name is enough for a call if anything other than the name shows that this is a call: it is better to
    # report an incomplete call than to show its markup as text.
    named = candidate.offered and (candidate.marked or envelope.has_call_key) and not envelope.emitted_text
    cut_name = frames.state is State.CANDIDATE and named
    if cut_name:
        machine.commit()
    if frames.state is State.CALL:
        end_in_call(machine, cut_name=cut_name)
    else:
        end_in_text(machine)
    reader.text, reader.at = "", 0
    frames.apply(Input.CLOSE)


def end_in_call(machine: Machine, *, cut_name: bool) -> None:
    """End the call that is open at the end of the text."""
    arguments, reader = machine.candidate.arguments, machine.reader
    missing = None if arguments.complete else arguments.missing()
    if missing is not None and machine.stopped:
        complete_arguments(machine, missing)
    reader.emitter.set_discard_reason("malformed")
    machine.emit_end()
    rest = reader.text[reader.at :]
    if rest:
        spare = cut_name or (arguments.complete and not rest.strip())
        reader.sink = Sink.SYNTAX if spare else Sink.DISCARD
        reader.take(len(rest))


def end_in_text(machine: Machine) -> None:
    """End the text outside a call, or inside a candidate that has not been committed."""
    reader, frames = machine.reader, machine.frames
    sink = frames.top.sink
    cut_off = not machine.stopped and is_begun_marker(machine)
    spoilt = cut_off or (frames.state is State.CANDIDATE and should_discard(machine))
    if spoilt:
        reader.emitter.set_discard_reason("cut_off" if cut_off else "rejected")
    if cut_off and frames.state is State.MESSAGE:
        frames.apply(Input.END)
    if cut_off and frames.state is not State.CANDIDATE:
        machine.open_candidate()
        reader.take(len(reader.text) - reader.at)
    if frames.state is State.CANDIDATE:
        reader.release(Sink.SYNTAX if replaces_closer(machine) else Sink.DISCARD if spoilt else sink)
    if frames.state is State.AFTER:
        run = line_ends(reader.text, reader.at)
        reader.sink = Sink.SYNTAX
        reader.take((run.end() if run else reader.at) - reader.at)
    if frames.state is not State.BROKEN and not spoilt:
        reader.sink = sink
    reader.take(len(reader.text) - reader.at)


def replaces_closer(machine: Machine) -> bool:
    """Return whether the candidate is an opener after a call, without anything after it, which a model may write in
    place of the closer.
    """
    candidate, reader = machine.candidate, machine.reader
    alone = candidate.format is None and not candidate.envelope.json.stack and reader.at >= len(reader.text)
    return machine.stopped and candidate.follows_call and candidate.marked and not candidate.in_fence and alone


def may_become_call(machine: Machine) -> bool:
    """Return whether the candidate may become a call: if the unread text is its name so far, the name of an offered
    tool must begin like that, since a sentence may mention a marker.
    """
    candidate, reader = machine.candidate, machine.reader
    begun = reader.text[reader.at :]
    rules = (
        [variant.name_rule for variant in candidate.format.variants if variant.name_rule] if candidate.format else []
    )
    if not begun[:1].isalpha() or candidate.envelope.json.stack or not rules or rules[0].attribute or rules[0].id_end:
        return True
    return machine.tools.may_become_name(begun, after_blank=reader.buffered.text().endswith(" "))


def is_begun_marker(machine: Machine) -> bool:
    """Return whether the candidate is the beginning of a call with a marker, or the unread text is part of a marker."""
    candidate, reader, frames, tables = machine.candidate, machine.reader, machine.frames, machine.tables
    if frames.state is State.CANDIDATE:
        form = candidate.format
        marked = candidate.marked and (not candidate.in_fence or (form is not None and bool(form.openers)))
        return marked and may_become_call(machine)
    text = reader.text[reader.at :].lstrip("\r\n")
    if len(text) < MIN_OPENER or text[0] in NO_OPENER or text[0].isalnum():
        return False
    if frames.state is State.TEXT:
        sets: tuple[Markers[Any], ...] = (tables.opening, tables.line, tables.special)
    elif frames.state in (State.REASONING, State.MESSAGE):
        sets = (closers_of(frames.top.closers),)
    else:
        return False
    return any((found := markers.match(text, 0)) is not None and found.lastindex is None for markers in sets)
