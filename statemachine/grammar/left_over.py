"""Call closers without an opener, at the end of a reply."""

from statemachine.grammar.saying import emit_text
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink

MAX_LEFT_OVER = 256
"""Maximum number of characters to buffer because they may be left-over closers."""


def may_be_left_over(machine: Machine, close: str) -> bool:
    """Return whether this closer of a call, a wrapper or a value closes nothing here."""
    known = machine.tables.closers
    return (close in known.calls or close in known.values) and close not in machine.frames.wrappers


def read_left_over(machine: Machine, close: str, newlines: int, end: int) -> Grammar:
    """Read call closers that have no opener. They are markup at the end of a reply, and text anywhere else.

    They are buffered, along with the whitespace between them, until something else arrives. Even at the end, they are
    text if the reply has shown call markup, because it may be about such markup; if all of them close values; or if
    there is only one and it neither begins a line nor follows a call, since a sentence may end with it.
    """
    reader, known = machine.reader, machine.tables.closers
    follows_call = machine.candidate.committed and not machine.text_state.text_seen
    closes_call, several = close in known.calls, newlines > 0 or follows_call
    while not machine.text_state.call_markup_shown:
        found = match_whitespace(reader.text, reader.at + end)
        begin = (found.end() if found else 0) - reader.at
        if begin > MAX_LEFT_OVER:
            machine.text_state.call_markup_shown = True
            break
        closer = machine.tables.left_over.match(reader.text, reader.at + begin)
        over = reader.at + begin >= len(reader.text)
        if closer is not None and closer.lastindex:
            end, several = closer.end() - reader.at, True
            closes_call = closes_call or machine.tables.left_over.values[closer.lastindex - 1] in known.calls
        elif reader.ended and over and closes_call and several:
            reader.sink = Sink.SYNTAX
            reader.take(begin)
            return
        elif reader.ended or (closer is None and not over):
            break
        else:
            yield
    emit_text(machine, end)
