"""Words in a call: a name or a flag, up to the first character that cannot be part of it."""

import re
from collections.abc import Callable, Generator

from statemachine.formats.openers import name_text
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import Mismatch

Pattern = Callable[..., re.Match[str] | None]


def word(machine: Machine, pattern: Pattern = name_text) -> Generator[None, None, str]:
    """Consume and return a name, up to the first character that cannot be part of it.

    Raises:
        Mismatch: no name begins here, or the name is too long.
    """
    reader = machine.reader
    while True:
        found = pattern(reader.text, reader.at)
        end = found.end() if found else reader.at
        if end - reader.at > machine.limits.name:
            raise Mismatch
        if end < len(reader.text):
            break
        yield from reader.more()
    if end == reader.at:
        raise Mismatch
    return reader.take(end - reader.at)
