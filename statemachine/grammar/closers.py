"""Closers in text, and the text after a call or a wrapper: closers, which are skipped, then newlines."""

import re
from collections.abc import Generator

from statemachine.endings import find_closer
from statemachine.formats.format import Format, Section
from statemachine.formats.markers import closers_of
from statemachine.formats.openers import Opener, closers_of_call
from statemachine.formats.scanner import MAX_NEWLINES, TICK, LinePlace
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar.left_over import may_be_left_over
from statemachine.grammar.noise import skip_noise
from statemachine.grammar.saying import emit_text, line_ends, scanner_of
from statemachine.machine.candidate import Candidate
from statemachine.machine.machine import INSIDE, START, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, match_whitespace
from statemachine.stream.emitter import Sink

FENCE = "```"
NO_OPENERS = frozenset((TextFinding.TICK, TextFinding.FENCE, TextFinding.TAG, TextFinding.STRUCK, TextFinding.TURN))
"""Findings in text that open no call."""
brackets = re.compile(r"[ \t\r\n]{0,16}+(?:\Z|(?:[}\]),][ \t\r\n]{0,16}+){1,4}+)").match

# ---- in text


def is_markup(machine: Machine, close: str, newlines: int, end: int) -> Generator[None, None, bool]:
    """Return whether this closer, a special token, is markup: something that it closes is open, the reply has ended, or
    another token that ends a turn follows it directly.

    The first closer of a section whose opener was not seen is markup too, if a newline precedes it, or if text or
    markup follows it directly. (A token that the reply only mentions is followed by a blank or by punctuation. After a
    mention, each token that ends a turn is text.) A closer that is not markup is emitted as text, unless more text is
    needed to decide.
    """
    reader, frames, past = machine.reader, machine.frames, machine.text_state
    if machine.text_state.at_message_start or close in frames.wrappers or close in frames.reasoning:
        return True
    known = machine.tables.closers
    if close in known.stops.values and not past.shown_closers.isdisjoint(known.stops.values):
        emit_text(machine, end)
        return False
    found = match_whitespace(reader.text, reader.at + end)
    begin = found.end() if found else reader.at + end
    if begin < len(reader.text) or begin - reader.at - end > MAX_NEWLINES:
        adjacent = not reader.text[reader.at + end : begin].strip("\r\n")
        stop = known.stops.match(reader.text, begin) if adjacent else None
        if stop is not None and not stop.lastindex and not reader.ended:
            yield from reader.more()
            return False
        if stop is not None:
            return True
        if close in known.only_sections - past.shown_closers and (
            newlines or may_follow_marker(reader.text[reader.at + end])
        ):
            past.shown_closers |= {close}
            past.at_message_start = True
            return True
        if close in known.stops.values:
            past.shown_closers |= {close}
        emit_text(machine, end)
    elif reader.ended:
        return True
    else:
        yield from reader.more()
    return False


def may_follow_marker(char: str) -> bool:
    """Return whether text or markup that begins with this character may directly follow a marker that is not only
    mentioned.
    """
    return char.isalnum() or char in "\r\n<[{"


def opens_after_text(machine: Machine, section: Section, end: int) -> Generator[None, None, bool | None]:
    """Return whether this opener, a special token after text, opens a section: text, markup or the section's closer
    follows it. Return None if more text was needed, so that the opener has to be examined again.
    """
    reader = machine.reader
    begin = reader.at + end
    if begin < len(reader.text) and may_follow_marker(reader.text[begin]):
        return True
    found = match_whitespace(reader.text, begin)
    after = found.end() if found else begin
    closer = closers_of((section.close,)).match(reader.text, after)
    if (closer is None and after < len(reader.text)) or after - begin > MAX_NEWLINES:
        return False
    if reader.ended or (closer is not None and closer.lastindex):
        return True
    yield
    return None


def read_in_text(machine: Machine, close: str, newlines: int, end: int) -> bool:
    """Read a closer of the surrounding reasoning or of a wrapper as markup, and any other closer as text. Return
    whether it was markup.

    A reasoning closer at the very beginning of a reply closes the reasoning that the prompt opened.
    """
    reader, frames, past, closers = machine.reader, machine.frames, machine.text_state, machine.tables.closers
    special = close in closers.special
    if close in frames.reasoning:
        emit_text(machine, newlines)
        if not any(close in openers for openers in closers.implied.values()):
            reader.sink = Sink.SYNTAX
            reader.take(end - newlines)
        else:  # an opener of text, which ends the reasoning and is read again
            special = True
        past.at_message_start = past.at_message_start or special
        past.place = LinePlace.COLON
        frames.apply(Input.END)
        return True
    wraps = close in frames.wrappers
    # Emit only the newlines and one character, because another marker may begin inside this one.
    if not wraps and not special and (past.text_seen or close not in closers.reasoning):
        emit_text(machine, newlines + 1)
        return False
    if not wraps:
        emit_text(machine, newlines)
        end -= newlines
    reader.sink = Sink.SYNTAX
    reader.take(end)
    if reader.ended and special and reader.text[reader.at :].isspace():
        reader.take(len(reader.text) - reader.at)
    reader.sink = frames.top.sink
    past.place = LinePlace.COLON if not wraps and close in closers.reasoning else INSIDE
    if wraps:
        frames.close_wrapper(close)
        past.at_message_start = past.at_message_start or special
    if wraps or close in closers.stops.values:
        frames.apply(Input.UNWRAP, close)
    return True


def is_stray(machine: Machine, close: str, newlines: int, end: int) -> Generator[None, None, bool]:
    """Return whether this is a stray reasoning closer, that is, one whose opener was in the prompt or does not exist.

    After text, a closer is stray if a newline is next to it, or if the reply ends there. Only the first such closer in
    a reply counts, and only if its opener was not shown as text, because the reply is then about such tags.
    """
    reader, frames, past = machine.reader, machine.frames, machine.text_state
    if not past.text_seen or close not in machine.tables.closers.reasoning or close in past.shown_closers:
        return False
    if close in machine.tables.closers.special or close in frames.reasoning or close in frames.wrappers:
        return False
    while reader.at + end >= len(reader.text) and not reader.ended:
        yield
    return newlines > 0 or ends_line(machine, end)


def ends_line(machine: Machine, end: int) -> bool:
    """Return whether a newline, or the end of the reply, is `end` characters from here."""
    reader = machine.reader
    return reader.at + end >= len(reader.text) or reader.text[reader.at + end] in "\r\n"


def drop_stray(machine: Machine, close: str, newlines: int, end: int) -> None:
    """Drop a closer that closes nothing; if a newline follows it, drop the newlines before it as well."""
    reader = machine.reader
    machine.text_state.shown_closers |= {close}
    if not ends_line(machine, end):
        emit_text(machine, newlines)
        end -= newlines
    reader.sink = Sink.SYNTAX
    reader.take(end)
    reader.sink = machine.frames.top.sink
    machine.text_state.place = LinePlace.COLON


# ---- after a call, or a wrapper


def read_after(machine: Machine) -> Grammar:
    """Read the text after the body of a call, or after the closer of a wrapper: closers, then newlines."""
    call = machine.frames.top.candidate
    if call is None:
        yield from read_repeated(machine, machine.frames.top.closers)
    shown = call is not None and not (yield from read_closers(machine, call))
    if call is not None and not shown and call.format is not None and (yield from begin_result(machine, call.format)):
        return
    if not shown and machine.tables.after_call.values and (yield from call_follows(machine)):
        machine.text_state.place = START
    elif not shown and not (yield from skip_noise(machine)):
        yield from read_newlines_after(machine)
    machine.frames.apply(Input.END)


def begin_result(machine: Machine, form: Format) -> Generator[None, None, bool]:
    """Begin to discard the result of a call, which the model fabricated, if its opener and anything else follow."""
    reader = machine.reader
    markers = closers_of(tuple(opener for opener, _ in form.results)) if form.results else None
    offset = (yield from reader.whitespace_end(0)) if markers is not None else -1
    if markers is None or offset < 0:
        return False
    while (found := markers.match(reader.text, reader.at + offset)) and not found.lastindex and not reader.ended:
        yield
    if found is None or not found.lastindex:
        return False
    length, close = found.end() - reader.at, form.results[found.lastindex - 1][1]
    after = yield from reader.whitespace_end(length)
    if reader.at + after >= len(reader.text):  # the opener ends the turn
        return False
    machine.open_candidate()
    machine.candidate.wrappers = [close]
    machine.candidate.format = Format("", (), results=form.results)
    reader.take(length)
    reader.emitter.set_discard_reason("invented")
    reader.release(Sink.DISCARD)
    machine.frames.apply(Input.BREAK)
    return True


def read_repeated(machine: Machine, closers: tuple[str, ...]) -> Grammar:
    """Read the closer of a wrapper as markup if it is written again."""
    reader = machine.reader
    while closers:
        length, _ = yield from find_closer(machine, [*closers])
        if not length:
            return
        reader.sink = Sink.SYNTAX
        reader.take(length)


def call_follows(machine: Machine) -> Generator[None, None, bool]:
    """Return whether an opener follows in the same line that is otherwise recognized only at the start of a line."""
    reader, markers = machine.reader, machine.tables.after_call
    while True:
        found = markers.match(reader.text, reader.at)
        begun = reader.at >= len(reader.text) or (found is not None and not found.lastindex)
        if not begun or reader.ended:
            break
        yield from reader.more()
    return found is not None and found.lastindex is not None


def read_closers(machine: Machine, call: Candidate) -> Generator[None, None, bool]:
    """Read the closers of a call in order, each any number of times. Return False if the call was shown as text, in
    which case it has each closer once.
    """
    reader, frames, past, form = machine.reader, machine.frames, machine.text_state, call.format
    shown = not call.committed and reader.sink is not Sink.SYNTAX
    # Closers are accepted in this order: the call's own, those of wrappers that its format knows but that were not
    # opened (models forget openers), and those of open wrappers, innermost first. A closer that is found removes all
    # earlier ones from the list. A call shown as text may close only what it opened
    # itself: its wrappers are text too, and must not open frames.
    own = list(closers_of_call(form)) if form and not call.self_closed else []
    if not shown:
        frames.open_wrappers(call.wrappers)
        call.wrappers = []
    around = [close for _, close in form.wrappers[::-1] if close not in frames.wrappers] if form and not shown else []
    fence = [FENCE] if call.fenced_body else []  # the fence is inside the innermost marker, or inside a wrapper
    pending = [*fence, *own, *fence, *around, *reversed(call.wrappers if shown else frames.wrappers)]
    if own and not shown:
        yield from skip_surplus_brackets(machine, tuple(own))
    while pending:
        length, close = yield from find_closer(machine, pending)
        if not length:
            break
        reader.take(length)
        if close[-1] in ">}" and not shown:
            yield from skip_second_bracket(machine, close[-1])
        if close in frames.wrappers:
            frames.close_wrapper(close)
        pending = pending[pending.index(close) + int(shown) :]  # models repeat closers
        if close[0] == TICK:  # another line of backticks opens the next fence
            pending = [one for one in pending if one != close]
    past.at_message_start = not past.text_seen or (not shown and form is not None and form.special)
    past.place = INSIDE
    reader.sink = frames.top.sink
    return not shown


def skip_surplus_brackets(machine: Machine, own: tuple[str, ...]) -> Grammar:
    """Skip surplus brackets and commas, which are markup if the call's closer (`{…}]<|call|>`) or the end of the reply
    follows.
    """
    reader = machine.reader
    markers = closers_of(own)
    while (found := brackets(reader.text, reader.at)) or (reader.at >= len(reader.text) and not reader.ended):
        if found and not found[0].strip() and reader.ended:
            return
        if found and (found.end() < len(reader.text) or reader.ended):
            closer = markers.match(reader.text, found.end())
            if closer is None and found.end() < len(reader.text):
                return
            if closer is None or closer.lastindex or reader.ended:
                reader.take(found.end() - reader.at)
                return
        yield


def skip_second_bracket(machine: Machine, bracket: str) -> Grammar:
    """Skip a surplus bracket after a closer (`</function>>`) as markup."""
    reader = machine.reader
    while reader.at >= len(reader.text):
        yield from reader.more()
    if reader.text[reader.at] == bracket:
        reader.take(1)


def read_newlines_after(machine: Machine) -> Grammar:
    """Read the newlines after a call: they are markup, except between text before the call and text after it."""
    reader, past, line = machine.reader, machine.text_state, machine.tables.line
    sink = machine.frames.top.sink
    while True:
        run = line_ends(reader.text, reader.at)
        end = run.end() if run else reader.at
        if end - reader.at > MAX_NEWLINES:  # too many newlines to wait for their end
            reader.sink = sink if past.text_seen else Sink.SYNTAX
            reader.take(end - reader.at - MAX_NEWLINES)
            continue
        # A `\r` at the end may be half of a newline. Nothing is consumed until it is known what follows, because that
        # decides whether the newlines are markup.
        if end < len(reader.text) and not (reader.text[end] == "\r" and end + 1 == len(reader.text)):
            length = end - reader.at
            found, markers = (line.match(reader.text, end) if length else None), line
            if found is None:
                markers = scanner_of(machine).at
                found = markers.match(reader.text, end)
            if found is None or found.lastindex is not None or reader.ended:
                break
        yield from reader.more()
    # Newlines between a call and another opener or closer are markup. Inline code, a fence, a tag that opens no call
    # and a left-over closer are not treated as openers or closers here, because they are text.
    value = (
        markers.values[found.lastindex - 1] if found is not None and found.lastindex is not None else TextFinding.TICK
    )
    opens = value not in NO_OPENERS
    opens = opens and not (isinstance(value, str) and may_be_left_over(machine, value))
    past.place = START if length else INSIDE
    past.after_call = length > 0 and isinstance(value, Opener)
    if length and (opens or not past.text_seen):
        reader.sink = Sink.SYNTAX
        reader.take(length)
