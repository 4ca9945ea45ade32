"""What is read to its closer, whatever stands in it: reasoning, and messages that are text and nothing else."""

from statemachine.buffer import Grammar, space
from statemachine.emitter import Sink
from statemachine.formats.markers import closers_of, run_to
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.grammar import closers
from statemachine.grammar.saying import say
from statemachine.machine import Machine
from statemachine.reader import Reader
from statemachine.states import Input


def read(machine: Machine) -> Grammar:
    """Reasoning, to its closer."""
    reader = machine.reader
    closing = machine.frames.reasoning
    yield from empty(reader, closing)
    reader.sink = Sink.REASONING
    while True:
        yield from reader.flow(run_to(closing))
        close, length = closer_at(reader, closing)
        if close:
            closers.in_text(machine, close, 0, length)
            return
        yield from reader.more()


def empty(reader: Reader, closing: tuple[str, ...]) -> Grammar:
    """Reasoning that holds nothing but white space leaves nothing behind: the white space waits for what follows it."""
    while True:
        found = space(reader.text, reader.at)
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


def message(machine: Machine) -> Grammar:
    """A message that is text and nothing else, to its end, or to the opener of the next one (its last closer)."""
    reader, past, frame = machine.reader, machine.past, machine.frames.top
    reader.sink = frame.sink
    opener = frame.closers[-1]
    ends = (*frame.closers, "\n" + opener, "\r\n" + opener)
    run = run_to(ends)
    while True:
        if past.text_seen and not past.at_message_start:
            yield from reader.flow(run)
        elif found := run.match(reader.text, reader.at):  # it matters whether something visible has come
            say(machine, (found.start(1) if found.lastindex else found.end()) - reader.at)
        close, length = closer_at(reader, ends)
        if close:
            break
        yield from reader.more()
    past.at_message_start = True
    reader.sink = Sink.SYNTAX
    reader.take(length - len(opener) if close.endswith(opener) else length)
    machine.frames.go(Input.END)


def closer_at(reader: Reader, closing: tuple[str, ...]) -> tuple[str, int]:
    """The closer that stands here, whole, and its length; ("", 0) if none does."""
    markers = closers_of(closing)
    found = markers.match(reader.text, reader.at)
    if found is None or not found.lastindex:
        return "", 0
    return markers.values[found.lastindex - 1], found.end() - reader.at
