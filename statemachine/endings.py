"""The end of a call, and the text that may follow it."""

import re
from collections.abc import Generator

from statemachine.formats.markers import closers_of, names_other, run_to
from statemachine.formats.openers import closers_of_call
from statemachine.formats.scanner import MAX_NEWLINES
from statemachine.formats.unmarked import TextFinding
from statemachine.machine.candidate import Candidate
from statemachine.machine.machine import Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink
from statemachine.stream.runs import Run

MAX_BLANKS = 4 * MAX_NEWLINES
"""Maximum length of the whitespace before a closer, in characters."""


match_line_end = re.compile(r"[ \t]{0,16}+(?:\r?\n()|\r?\Z)").match


match_empty_list = re.compile(r"\[[ \t\r\n]{0,64}+(?:\Z|\]())").match
BROKEN_LINE = Run(r"[^\r\n]*+")


def find_closer(machine: Machine, pending: list[str]) -> Generator[None, None, tuple[int, str]]:
    """Find the next closer. Return the combined length of the closer and the whitespace before it, and the closer
    itself.

    Return (0, "") if no closer follows. At the end of the reply, an incomplete closer counts as the last one in
    `pending`.
    """
    reader = machine.reader
    markers = closers_of(tuple(pending))
    while True:
        found = match_whitespace(reader.text, reader.at)
        begin = found.end() if found else reader.at
        if begin - reader.at > MAX_BLANKS:
            return 0, ""
        if begin < len(reader.text):
            closer = markers.match(reader.text, begin)
            if closer is None:
                return 0, ""
            if closer.lastindex and names_other(closer[0], machine.candidate.name):
                return 0, ""
            if closer.lastindex:
                return closer.end() - reader.at, markers.values[closer.lastindex - 1]
            if reader.ended:
                return len(reader.text) - reader.at, pending[-1]
        if reader.ended:
            return 0, ""
        yield


def call_closes_here(machine: Machine) -> Generator[None, None, bool]:
    """Return whether the model ends the call here, that is, whether the closer of the call or of a wrapper follows.

    At the end of the reply, this is true only if the model stopped on its own.
    """
    candidate, reader = machine.candidate, machine.reader
    own = closers_of_call(candidate.format) if candidate.format and not candidate.bare else ()
    pending = [*own, *reversed(candidate.wrappers), *reversed(machine.frames.wrappers)]
    length, _ = (yield from find_closer(machine, pending)) if pending else (0, "")
    return length > 0 and (machine.stopped or not reader.ended)


def ends_call(machine: Machine, offset: int, *, own: bool = False) -> Generator[None, None, bool]:
    """Return whether the text `offset` characters from here can only follow a call; see `follower_end`."""
    return (yield from follower_end(machine, offset, own=own)) >= 0


def follower_end(machine: Machine, offset: int, *, own: bool = False) -> Generator[None, None, int]:
    """Return the end of the marker that begins `offset` characters from here and can only follow a call.

    The end is relative to the current position; it is −1 if no such marker begins there. With `own`, the call's own
    closer counts too.
    """
    # A value may contain any text, including text that looks like its closer. A quote, a brace or a closer therefore
    # ends a value only if the text after it could not continue the content:
    #
    #     after   = blanks, ( end | label | opener | closer ) ;
    #     blanks  = up to MAX_BLANKS characters of whitespace ;
    #     end     = end of the reply ;
    #     label   = opener that is recognized at the start of a line, if `blanks` contains a newline ;
    #     opener  = opener of a call or a wrapper, or of a section of special tokens ;
    #     closer  = closer of an open wrapper, of a wrapper opened with this call or known to its format,
    #               or, with `own`, of this call ;
    #
    # Bare objects and lists (`TextFinding`) are not openers here: content contains them just as often. Any other closer
    # is content. If the text ends inside `blanks` or a marker, the result is not known yet, so the function waits. At
    # the end of the reply, an incomplete marker counts as complete, except `{`, `[` and a backtick, which are more
    # often content.
    reader, tables, form = machine.reader, machine.tables, machine.candidate.format
    mine = [form.close] if own and form is not None and form.close else []
    around = [close for _, close in form.wrappers] if form is not None else []
    allowed = (*machine.frames.wrappers, *machine.candidate.wrappers, *mine, *around)
    markers = tables.siblings
    while True:
        found = match_whitespace(reader.text, reader.at + offset)
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
                if isinstance(value, str):
                    # The closer of a wrapper may also match that of another format, with any namespace.
                    close = closers_of(allowed).match(reader.text, end) if value not in allowed and allowed else None
                    follows = value in allowed or (close is not None and close.end() == marker.end())
                else:
                    follows = not isinstance(value, TextFinding)
                return marker.end() - reader.at if follows else -1
            if reader.ended:  # cut in the middle of a marker
                return len(reader.text) - reader.at if reader.text[end] not in "{[`" else -1
        yield


def stop_follows(machine: Machine, offset: int = 0) -> Generator[None, None, bool]:
    """Return whether a token that ends a turn is `offset` characters from here, after optional whitespace."""
    reader, stops = machine.reader, machine.tables.closers.stops
    while True:
        blank = match_whitespace(reader.text, reader.at + offset)
        at = blank.end() if blank else reader.at + offset
        found = stops.match(reader.text, at) if at < len(reader.text) else None
        if found is None and at < len(reader.text):
            return False
        if found is not None and found.lastindex:
            return True
        if reader.ended:
            return found is not None
        yield


class CallSurroundings:
    """Text around the arguments of the call that is being read; see `json.state.Around`."""

    __slots__ = ("_flat", "_machine")

    def __init__(self, machine: Machine, *, flat: bool = False) -> None:
        self._machine = machine
        self._flat = flat
        """Whether the arguments are members of the envelope itself."""

    @property
    def stack(self) -> list[str]:
        """Closers of the envelope."""
        stack = self._machine.candidate.envelope.json.stack
        return stack[:-1] if self._flat else stack

    def follows(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the text `offset` characters from here can only follow a call. A newline counts as such text
        if the call has no closer.
        """
        machine = self._machine
        candidate, reader = machine.candidate, machine.reader
        if not has_closer(candidate) and not candidate.wrappers and reader.text[reader.at + offset] in "\r\n":
            return True
        return (yield from ends_call(machine, offset, own=True))


def has_closer(candidate: Candidate) -> bool:
    """Return whether the call has a closer that its format always writes."""
    form = candidate.format
    return form is not None and bool(form.close) and form.closed and not candidate.bare


def read_empty_block(machine: Machine, closes: tuple[str, ...], *, in_line: bool) -> Generator[None, None, bool]:
    """Read as markup a block that is closed immediately after it is opened. Return False if its lines contain anything
    else or, with `in_line`, if text that does not adjoin the block follows it in its line.
    """
    reader, candidate = machine.reader, machine.candidate
    # Prose may mention an empty pair of tags. Only a pair that is alone on its lines is taken to be markup.
    if not closes or not (in_line or machine.text_state.opens_line) or candidate.in_fence:
        return False
    markers = closers_of(closes)
    listed = yield from empty_list(machine)
    while True:
        blank = match_whitespace(reader.text, reader.at + listed) if listed else None
        at = blank.end() if blank else reader.at + listed
        found = markers.match(reader.text, at) if at < len(reader.text) else None
        if (found is None and at < len(reader.text)) or (found is not None and found.lastindex):
            break
        if listed and reader.ended:
            break
        yield from reader.more()
    if found is None or not found.lastindex:
        cut = reader.ended and at >= len(reader.text) and machine.stopped
        if not listed or not (cut or (yield from stop_follows(machine, listed))):
            return False
        reader.take(listed)
        reader.release(Sink.SYNTAX)
        machine.end_body(alone=True)
        return True
    close, length = markers.values[found.lastindex - 1], found.end() - reader.at
    listed = at - reader.at
    while not (over := match_line_end(reader.text, reader.at + length)) or not over.lastindex:
        follows = in_line and reader.text[reader.at + length : reader.at + length + 1].isalnum()
        if over is None and not follows and not (yield from ends_call(machine, length)):
            return False
        if over is None or reader.ended:
            break
        yield
    candidate.wrappers.append(close)
    reader.take(listed)
    reader.release(Sink.SYNTAX)
    machine.end_body(alone=True)
    return True


def empty_list(machine: Machine) -> Generator[None, None, int]:
    """Return the length of an empty list, or 0 if none begins here."""
    reader = machine.reader
    while (found := match_empty_list(reader.text, reader.at)) is not None and not found.lastindex:
        if reader.ended:
            break
        yield
    if found is None or not found.lastindex:
        return 0
    return found.end() - reader.at


def ends_line(machine: Machine, offset: int) -> Generator[None, None, bool]:
    """Return whether `offset` characters from here the line ends, or text follows that can only follow a call."""
    reader = machine.reader
    while not (over := match_line_end(reader.text, reader.at + offset)) or not over.lastindex:
        if over is None:
            return (yield from ends_call(machine, offset))
        if reader.ended:
            break
        yield
    return True


def discard_broken_call(machine: Machine) -> Grammar:
    """Discard a call that cannot be read any further, through its closer or, without one, to the end of the
    line.
    """
    reader, candidate = machine.reader, machine.candidate
    reader.sink = Sink.DISCARD
    form = candidate.format
    pending = closers_of_call(form) if form and has_closer(candidate) else tuple(candidate.wrappers[-1:])
    run = run_to(pending) if pending else BROKEN_LINE
    while True:
        yield from reader.flow(run)
        if reader.at < len(reader.text):
            closer = closers_of(pending).match(reader.text, reader.at) if pending else None
            if not pending or (closer and closer.lastindex):
                break
        yield from reader.more()
    reader.sink = Sink.SYNTAX
    machine.frames.apply(Input.END)
