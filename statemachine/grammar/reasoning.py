"""Text that is read to its closer, whatever it contains: reasoning, and messages that contain nothing but text."""

from statemachine.formats.markers import closers_of, run_to
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.grammar import closers, turns
from statemachine.grammar.saying import emit_text
from statemachine.machine.machine import Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import Reader

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
"""Tokens that end the reply if another turn follows them. Those of other families end it only outside reasoning."""
TURN_BEGINS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")


def read(machine: Machine) -> Grammar:
    """Read reasoning to its closer."""
    reader = machine.reader
    closing = machine.frames.reasoning
    yield from skip_empty(reader, closing)
    reader.sink = Sink.REASONING
    ends = (*closing, *TURN_ENDS, *TURN_BEGINS)
    while True:
        yield from reader.flow(run_to(ends))
        close, length = closer_at(reader, ends)
        if close in closing:
            closers.read_in_text(machine, close, 0, length)
            return
        if not close:
            yield from reader.more()
            continue
        begins = (yield from turns.begins_after(machine, close, length)) if close in TURN_ENDS else False
        if begins:
            turns.end_turn(machine, close, 0, length)
            return
        machine.text_state.turn_shown = machine.text_state.turn_shown or close in TURN_BEGINS
        if begins is not None:
            reader.take(length)


def skip_empty(reader: Reader, closing: tuple[str, ...]) -> Grammar:
    """Skip reasoning that consists only of whitespace: buffer the whitespace until more text follows, and drop it if
    that text is the closer.
    """
    while True:
        found = match_whitespace(reader.text, reader.at)
        begin = found.end() if found else reader.at
        if begin - reader.at > MAX_NEWLINES:
            return
        if begin < len(reader.text):
            closer = closers_of(closing).match(reader.text, begin)
            if closer is None:
                return
            if closer.lastindex:
                reader.sink = Sink.SYNTAX
                reader.take(begin - reader.at)
                return
        if reader.ended:
            return
        yield


def read_message(machine: Machine) -> Grammar:
    """Read a message that contains nothing but text, to its end or to the opener of the next message (its last
    closer).
    """
    reader, past, frame = machine.reader, machine.text_state, machine.frames.top
    reader.sink = frame.sink
    opener = frame.closers[-1]
    ends = (*frame.closers, "\n" + opener, "\r\n" + opener)
    run = run_to(ends)
    while True:
        if past.text_seen and not past.at_message_start:
            yield from reader.flow(run)
        elif found := run.match(reader.text, reader.at):  # `emit_text` notes the first visible text
            emit_text(machine, (found.start(1) if found.lastindex else found.end()) - reader.at)
        close, length = closer_at(reader, ends)
        if close:
            break
        yield from reader.more()
    past.at_message_start = True
    reader.sink = Sink.SYNTAX
    reader.take(length - len(opener) if close.endswith(opener) else length)
    machine.frames.apply(Input.END)


def closer_at(reader: Reader, closing: tuple[str, ...]) -> tuple[str, int]:
    """Return the complete closer that begins here, and its length, or ("", 0) if none begins here."""
    markers = closers_of(closing)
    found = markers.match(reader.text, reader.at)
    if found is None or not found.lastindex:
        return "", 0
    return markers.values[found.lastindex - 1], found.end() - reader.at
