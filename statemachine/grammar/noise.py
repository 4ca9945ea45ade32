"""Text between the markers of a wrapper that only calls belong in: before the first call, between calls, and before the
wrapper's closer.

Such text is noise. It is buffered until the next marker shows that the wrapper is still open, and is then discarded.
Without such a marker it is text, because models also forget the wrapper's closer and continue with their answer.
"""

from collections.abc import Generator

from statemachine.formats.openers import Opener
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import match_whitespace
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import NOISE

MAX_NOISE = 1024
"""Maximum number of characters to buffer because they may be noise."""


def marker_after_noise(machine: Machine) -> Generator[None, None, tuple[int, str | Opener | None, int]]:
    """Find the next opener of a call, section or wrapper, or a closer. Return its offset, what it is, and its length.

    Return None as the marker if none follows within `MAX_NOISE` characters; at the end of the reply, the offset is then
    that of the end.
    """
    reader, markers = machine.reader, machine.tables.siblings
    offset = 0
    while offset <= MAX_NOISE:
        at = reader.at + offset
        if at >= len(reader.text):
            if reader.ended:
                return offset, None, 0
            yield
            continue
        found = markers.match(reader.text, at)
        if found is not None and found.lastindex is None and not reader.ended:
            yield
            continue
        value = markers.values[found.lastindex - 1] if found is not None and found.lastindex else None
        if found is not None and isinstance(value, str | Opener):
            return offset, value, found.end() - at
        offset += 1
    return offset, None, 0


def take_noise(machine: Machine, length: int) -> None:
    """Consume noise: whitespace at its ends is markup, and the text between it is discarded."""
    reader = machine.reader
    end = reader.at + length
    blank = match_whitespace(reader.text, reader.at)
    begin = min(blank.end(), end) if blank else reader.at
    noise = reader.text[begin:end].rstrip(" \t\r\n")
    sink = reader.sink
    reader.take(begin - reader.at)
    if noise:
        reader.emitter.set_discard_reason(NOISE)
        if sink is not Sink.HOLD:
            reader.sink = Sink.DISCARD
        reader.take(len(noise), NOISE)
        reader.sink = sink
    reader.take(end - reader.at)


def skip_noise(machine: Machine) -> Generator[None, None, bool]:
    """Skip noise after a call if the next call of the open wrapper, or its closer, follows. Return whether one does."""
    reader, frames = machine.reader, machine.frames
    if not frames.wrappers or frames.wrappers[-1] not in machine.tables.only_calls:
        return False
    length, marker, _ = yield from marker_after_noise(machine)
    wrapper = machine.tables.wrappers[frames.wrappers[-1]]
    ends = marker in frames.wrappers if isinstance(marker, str) else marker is not None and wrapper.contains(marker)
    if not ends and (marker is not None or length > MAX_NOISE or machine.stopped):
        return False
    sink, reader.sink = reader.sink, Sink.SYNTAX
    take_noise(machine, length)
    reader.sink = sink
    return True
