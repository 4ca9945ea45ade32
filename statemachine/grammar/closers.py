"""What closes: a call and the wrappers around it, what implies the end of a call, and what is skipped after one."""

import re
from collections.abc import Generator

from statemachine.buffer import Grammar, space
from statemachine.candidate import Candidate
from statemachine.emitter import Sink
from statemachine.formats.markers import closers_of, run_to
from statemachine.formats.openers import closers_of_call
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.formats.unmarked import Found
from statemachine.grammar.left_over import may_be_left_over
from statemachine.grammar.saying import line_ends, say, scanner_of
from statemachine.machine import INSIDE, START, Machine
from statemachine.runs import Run
from statemachine.states import Input

MAX_BLANKS = 4 * MAX_NEWLINES
"""Characters of white space that are looked over to see whether a closer follows."""
line_over = re.compile(r"[ \t]{0,16}+(?:\r?\n()|\r?\Z)").match
brackets = re.compile(r"[}\])]{1,4}+[ \t\r\n]{0,16}+").match
BROKEN_LINE = Run(r"[^\r\n]*+")

# ---- in text


def ends_something(machine: Machine, close: str, newlines: int, end: int) -> Generator[None, None, bool]:
    """True if the closer of a special section that stands here is markup: something is open, or the reply is over.

    The first one of reasoning that nobody saw open is too, if a line end stands on one side of it or what follows it
    directly: behind a token that is spoken of stands a blank or a mark of punctuation.
    """
    reader, frames, past = machine.reader, machine.frames, machine.past
    if machine.past.at_message_start or close in frames.wrappers or close in frames.reasoning:
        return True
    rest = reader.text[reader.at + end :]
    if rest.strip():
        if close in machine.tables.closers.thoughts - past.shown and (newlines or follows(rest[0])):
            past.shown.add(close)
            past.at_message_start = True
            return True
        say(machine, end)
    elif reader.ended:
        return True
    else:
        yield from reader.more()
    return False


def follows(char: str) -> bool:
    """True if text or markup that begins so may follow the end of reasoning at once."""
    return char.isalnum() or char in "\r\n<[{"


def in_text(machine: Machine, close: str, newlines: int, end: int) -> bool:
    """The closer of the reasoning or of a wrapper around; else text. True if the state says what is next.

    A closer of reasoning that stands first in a reply closes what the prompt has opened.
    """
    reader, frames, past, closers = machine.reader, machine.frames, machine.past, machine.tables.closers
    special = close in closers.strays
    if close in frames.reasoning:
        say(machine, newlines)
        if close == frames.reasoning[0]:
            reader.sink = Sink.SYNTAX
            reader.take(end - newlines)
        else:  # text opens, and so the reasoning is over
            special = True
        past.at_message_start = past.at_message_start or special
        frames.go(Input.END)
        return True
    wraps = close in frames.wrappers
    if not wraps and not special and (past.text_seen or close not in closers.lone):
        say(machine, newlines + 1)
        return False
    if not wraps:
        say(machine, newlines)
        end -= newlines
    reader.sink = Sink.SYNTAX
    reader.take(end)
    reader.sink = frames.top.sink
    past.place = INSIDE
    if wraps:
        frames.unwrap(close)
        past.at_message_start = past.at_message_start or special
        frames.go(Input.UNWRAP)
    return True


def closes_nothing(machine: Machine, close: str, newlines: int, end: int) -> Generator[None, None, bool]:
    """True if the closer of reasoning that stands here closes what nobody saw open: the prompt's, or none.

    Behind text it does if a line end stands on one side of it, or the reply ends there; but only the first one in a
    reply, and none whose opener was text: then the reply is about such tags.
    """
    reader, frames, past = machine.reader, machine.frames, machine.past
    if not past.text_seen or close not in machine.tables.closers.lone or close in past.shown:
        return False
    if close in machine.tables.closers.strays or close in frames.reasoning or close in frames.wrappers:
        return False
    while reader.at + end >= len(reader.text) and not reader.ended:
        yield
    return newlines > 0 or ends_line(machine, end)


def ends_line(machine: Machine, end: int) -> bool:
    """True if a line end, or the end of the reply, stands `end` characters from here."""
    reader = machine.reader
    return reader.at + end >= len(reader.text) or reader.text[reader.at + end] in "\r\n"


def drop(machine: Machine, close: str, newlines: int, end: int) -> None:
    """A closer that closes nothing is markup, and so are the line ends before it if others follow."""
    reader = machine.reader
    machine.past.shown.add(close)
    if not ends_line(machine, end):
        say(machine, newlines)
        end -= newlines
    reader.sink = Sink.SYNTAX
    reader.take(end)
    reader.sink = machine.frames.top.sink


# ---- after a call, or a wrapper


def after(machine: Machine) -> Grammar:
    """What follows the body of a call, or the closer of a wrapper: closers, then line ends."""
    call = machine.frames.top.candidate
    if call is None or (yield from after_call(machine, call)):
        yield from line_ends_after(machine)
    machine.frames.go(Input.END)


def after_call(machine: Machine, call: Candidate) -> Generator[None, None, bool]:
    """The closers of a call, each at most once and in order; false if the call was shown as text."""
    reader, frames, past, form = machine.reader, machine.frames, machine.past, call.format
    shown = not call.committed and reader.sink is not Sink.SYNTAX
    own = list(closers_of_call(form)) if form and not call.self_closed else []
    if not shown:
        frames.wrap(call.wrappers)
        call.wrappers = []
    around = [close for _, close in form.wrappers[::-1] if close not in frames.wrappers] if form and not shown else []
    pending = [*own, *around, *reversed(call.wrappers if shown else frames.wrappers)]
    if own and not shown:
        yield from surplus(machine, tuple(own))
    while pending:
        length, close = yield from next_closer(machine, pending)
        if not length:
            break
        reader.take(length)
        if close[-1] in ">}" and not shown:
            yield from second_bracket(machine, close[-1])
        if close in frames.wrappers:
            frames.unwrap(close)
        pending = pending[pending.index(close) + 1 :]
    past.at_message_start = not past.text_seen or (not shown and form is not None and form.special)
    past.place = INSIDE
    reader.sink = frames.top.sink
    return not shown


def surplus(machine: Machine, own: tuple[str, ...]) -> Grammar:
    """Brackets too many are markup where the call's closer follows (`{…}]<|call|>`), or the end of the reply."""
    reader = machine.reader
    markers = closers_of(own)
    while (found := brackets(reader.text, reader.at)) or (reader.at >= len(reader.text) and not reader.ended):
        if found and (found.end() < len(reader.text) or reader.ended):
            closer = markers.match(reader.text, found.end())
            if closer is None and found.end() < len(reader.text):
                return
            if closer is None or closer.lastindex or reader.ended:
                reader.take(found.end() - reader.at)
                return
        yield


def second_bracket(machine: Machine, bracket: str) -> Grammar:
    """A bracket too many behind a closer (`</function>>`) is markup."""
    reader = machine.reader
    while reader.at >= len(reader.text):
        yield from reader.more()
    if reader.text[reader.at] == bracket:
        reader.take(1)


def line_ends_after(machine: Machine) -> Grammar:
    """Line ends after a call are markup, but given back when text follows and text came before."""
    reader, past, line = machine.reader, machine.past, machine.tables.line
    sink = machine.frames.top.sink
    while True:
        run = line_ends(reader.text, reader.at)
        end = run.end() if run else reader.at
        if end - reader.at > MAX_NEWLINES:  # a run that does not end
            reader.sink = sink if past.text_seen else Sink.SYNTAX
            reader.take(end - reader.at - MAX_NEWLINES)
            continue
        if end < len(reader.text) and not (reader.text[end] == "\r" and end + 1 == len(reader.text)):
            length = end - reader.at
            found, markers = (line.match(reader.text, end) if length else None), line
            if found is None:
                markers = scanner_of(machine).at
                found = markers.match(reader.text, end)
            if found is None or found.lastindex is not None or reader.ended:
                break
        yield from reader.more()
    value = markers.values[found.lastindex - 1] if found is not None and found.lastindex is not None else Found.TICK
    opens = value is not Found.TICK and value is not Found.FENCE and value is not Found.TAG
    opens = opens and not (isinstance(value, str) and may_be_left_over(machine, value))
    past.place = START if length else INSIDE
    if length and (opens or not past.text_seen):
        reader.sink = Sink.SYNTAX
        reader.take(length)


def next_closer(machine: Machine, pending: list[str]) -> Generator[None, None, tuple[int, str]]:
    """Length up to the end of the next closer, white space before it included; (0, "") if none comes."""
    reader = machine.reader
    markers = closers_of(tuple(pending))
    while True:
        found = space(reader.text, reader.at)
        begin = found.end() if found else reader.at
        if begin - reader.at > MAX_BLANKS:
            return 0, ""
        if begin < len(reader.text):
            closer = markers.match(reader.text, begin)
            if closer is None:
                return 0, ""
            if closer.lastindex:
                return closer.end() - reader.at, markers.values[closer.lastindex - 1]
            if reader.ended:
                return len(reader.text) - reader.at, pending[-1]
        if reader.ended:
            return 0, ""
        yield


# ---- before the end of a call


def closes(machine: Machine) -> Generator[None, None, bool]:
    """True if the model ends the call here: its closer follows, or that of a wrapper."""
    candidate, reader = machine.candidate, machine.reader
    own = closers_of_call(candidate.format) if candidate.format and not candidate.bare else ()
    pending = [*own, *reversed(candidate.wrappers), *reversed(machine.frames.wrappers)]
    length, _ = (yield from next_closer(machine, pending)) if pending else (0, "")
    return length > 0 and (machine.stopped or not reader.ended)


def sibling(machine: Machine, offset: int, *, own: bool = False) -> Generator[None, None, bool]:
    """True if what follows here, `offset` characters on, can only follow a call (`after_sibling`)."""
    return (yield from after_sibling(machine, offset, own=own)) >= 0


def after_sibling(machine: Machine, offset: int, *, own: bool = False) -> Generator[None, None, int]:
    """Where the marker ends that follows here, `offset` characters on, and can only follow a call; −1 if none does.

    That is, after white space, a closer of something around, an opener or the end; `own`: the call's own closer counts
    too.
    """
    reader, tables, form = machine.reader, machine.tables, machine.candidate.format
    mine = [form.close] if own and form is not None and form.close else []
    around = [close for _, close in form.wrappers] if form is not None else []
    allowed = (*machine.frames.wrappers, *machine.candidate.wrappers, *mine, *around)
    markers = tables.siblings
    while True:
        found = space(reader.text, reader.at + offset)
        end = found.end() if found else 0
        if end >= len(reader.text):
            if reader.ended:
                return len(reader.text) - reader.at
        elif end - reader.at - offset > MAX_BLANKS:
            return -1
        else:
            at_line_start = "\n" in reader.text[reader.at + offset : end]
            marker = tables.line.match(reader.text, end) if at_line_start else None
            if marker is not None and marker.lastindex:
                return marker.end() - reader.at
            marker = marker or markers.match(reader.text, end)
            if marker is None:
                return -1
            if marker.lastindex:
                value = markers.values[marker.lastindex - 1]
                follows = value in allowed if isinstance(value, str) else not isinstance(value, Found)
                return marker.end() - reader.at if follows else -1
            if reader.ended:  # cut in the middle of a marker
                return len(reader.text) - reader.at if reader.text[end] not in "{[`" else -1
        yield


class AroundCall:
    """What stands around the arguments of the call that is being read; see `json.state.Around`."""

    __slots__ = ("_machine",)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def stack(self) -> list[str]:
        """Closers of the envelope."""
        return self._machine.candidate.envelope.json.stack

    def follows(self, offset: int) -> Generator[None, None, bool]:
        """True if what can only follow a call stands here, `offset` characters on: a line end, if nothing closes it."""
        machine = self._machine
        candidate, reader = machine.candidate, machine.reader
        if not closed(candidate) and not candidate.wrappers and reader.text[reader.at + offset] in "\r\n":
            return True
        return (yield from sibling(machine, offset, own=True))


def closed(candidate: Candidate) -> bool:
    """True if the call has a closer of its own that its format always writes."""
    form = candidate.format
    return form is not None and bool(form.close) and form.closed and not candidate.bare


# ---- a block without a call


def empty(machine: Machine, closes: tuple[str, ...]) -> Generator[None, None, bool]:
    """True if a block that has just opened closes here, and nothing else stands in its lines: it was markup."""
    reader, candidate = machine.reader, machine.candidate
    if not closes or not machine.past.opens_line or candidate.in_fence:
        return False
    markers = closers_of(closes)
    while reader.at >= len(reader.text) or ((found := markers.match(reader.text, reader.at)) and not found.lastindex):
        yield from reader.more()
    if found is None or not found.lastindex:
        return False
    close, length = markers.values[found.lastindex - 1], found.end() - reader.at
    while not (over := line_over(reader.text, reader.at + length)) or not over.lastindex:
        if over is None and not (yield from sibling(machine, length)):
            return False
        if over is None or reader.ended:
            break
        yield
    candidate.wrappers.append(close)
    reader.release(Sink.SYNTAX)
    machine.finish(alone=True)
    return True


# ---- a call that cannot be read


def broken(machine: Machine) -> Grammar:
    """A call that cannot be read any further: discarded to its closer, else to the end of the line."""
    reader, candidate = machine.reader, machine.candidate
    reader.sink = Sink.DISCARD
    form = candidate.format
    pending = closers_of_call(form) if form and closed(candidate) else tuple(candidate.wrappers[-1:])
    run = run_to(pending) if pending else BROKEN_LINE
    while True:
        yield from reader.flow(run)
        if reader.at < len(reader.text):
            closer = closers_of(pending).match(reader.text, reader.at) if pending else None
            if not pending or (closer and closer.lastindex):
                break
        yield from reader.more()
    reader.sink = Sink.SYNTAX
    machine.frames.go(Input.END)
