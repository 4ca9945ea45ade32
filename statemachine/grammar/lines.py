"""Markers and blocks that are recognized only at the start of a line: labels, fences, indented code, block quotes."""

import re
from collections.abc import Callable, Generator, Mapping
from re import Match

from statemachine.formats.format import MessageBody
from statemachine.formats.markers import Markers
from statemachine.formats.openers import Opener
from statemachine.formats.scanner import FENCE_IN_LINE, ITEM, ITEM_BEGUN, TICK, LinePlace, Marked
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar import call, fences
from statemachine.grammar.saying import blanks, columns, emit_text, line_ends, scanner_of
from statemachine.machine.machine import INSIDE, START, Machine

CODE_INDENT = 4
TILDE = "~"
MAX_BLANKS = 16
"""Maximum number of blanks before a header that begins with its recipient."""
BEGIN_QUOTES = frozenset(">-*+0123456789")
"""First characters of lines that may contain a block quote."""
item_begins = re.compile(ITEM_BEGUN).match
indentation_begun = re.compile(r"\n([ \t]++)\Z").match
quote_in_item = re.compile(rf"(?:{ITEM})++>").match
fence_in_item = re.compile(rf"(?:{ITEM})++(?=~|{FENCE_IN_LINE})").match
recipient_text = re.compile(r"[\w.:/-]{0,128}+").match
recipient_follows = re.compile(
    r"[\w.:/-]{1,128}+(?:<?\Z|( ?<\|)| (?:<?\Z|[a-z]{1,16}+(?:<?\Z|( ?<\|)| <?\Z)))|\Z"
).match
"""Matches the rest of a recipient, and the beginning of the next token of its header (a group) or of the text."""
ITEM_PLACES = (LinePlace.ITEM, LinePlace.ITEM_MARK, LinePlace.ITEM_DIGITS, LinePlace.ITEM_MARK)
"""Places at the end of the text after `item_begins` has matched, in the order of its groups."""
INDENT_COLUMNS: Mapping[LinePlace, int] = {
    LinePlace.INDENT_1: 1,
    LinePlace.INDENT_2: 2,
    LinePlace.INDENT_3: 3,
}
"""Place after indented code → number of columns that the line is indented so far."""
REST_OF_ITEM: Mapping[LinePlace, str] = {
    LinePlace.ITEM: rf"[ \t]*+(?:{ITEM})*+",
    LinePlace.ITEM_MARK: rf"[ \t]++(?:{ITEM})*+",
    LinePlace.ITEM_DIGITS: rf"[0-9]*+[.)][ \t]++(?:{ITEM})*+",
}
"""Place in a list item → expression for the rest of its markers."""
QUOTE_FOLLOWS: Mapping[LinePlace, Callable[[str, int], Match[str] | None]] = {
    place: re.compile(rf"{rest}>").match for place, rest in REST_OF_ITEM.items()
}
"""Place in a list item → what matches the rest of its markers, and the `>` of a block quote."""
FENCE_FOLLOWS: Mapping[LinePlace, Callable[[str, int], Match[str] | None]] = {
    place: re.compile(rf"{rest}(?=[{TICK}~])").match for place, rest in REST_OF_ITEM.items()
}
"""Place in a list item → what matches the rest of its markers before a backtick or a tilde."""


def read(machine: Machine) -> Generator[None, None, bool]:
    """Read an opener at the start of a line, possibly after buffered newlines. Return whether there was one."""
    reader, line, past = machine.reader, machine.tables.line, machine.text_state
    while True:
        text, at = reader.text, reader.at
        run = line_ends(text, at)
        newlines = run.end() - at if run else 0
        begin = at + newlines
        char = text[begin : begin + 1]
        if char and not newlines and not past.text_seen and past.at_message_start and not machine.frames.reasoning:
            opener, blank = yield from continued_header(machine)
            if opener is None and reader.text is text and machine.tables.unprefixed:
                opener, blank = yield from unprefixed_header(machine)
            if opener is not None:
                machine.open_candidate()
                reader.take(blank)
                machine.next_grammar = call.read(machine, opener, len(opener.literal))
                return True
            if reader.text is not text:
                continue
        if not char or (char == "\r" and begin + 1 == len(text) and not reader.ended):
            if newlines:
                return False
            yield from reader.more()
        elif char in " \t":
            end = blanks(text, begin).end()  # type: ignore[union-attr]  # * always matches
            if newlines:  # nothing else was on the line before
                past.indent = 0
            if past.indent is not None:
                past.indent = columns(text[begin:end], past.indent)
            reader.take(end - at)
        else:
            # The order matters: indented code contains nothing else, a label or a fence takes precedence over a block
            # quote, and only a line with none of these is ordinary text.
            indented = not newlines and past.indent is not None and past.indent >= CODE_INDENT
            if indented and char not in "\r\n" and code_may_be_indented(machine):
                past.place, past.indent = LinePlace.INDENTED, None
                return False
            found = line.match(text, begin)
            if found is None:
                if begins_item(machine, newlines):
                    return False
                if char != ">" or (yield from open_quote(machine, newlines)):
                    past.place = INSIDE if past.place is START else past.place
                    past.indent = None
                    return False
            elif found.lastindex is None or fences.is_too_short(machine, newlines):
                yield from reader.more()
            else:
                past.indent = None
                value, length = line.values[found.lastindex - 1], found.end() - reader.at
                if value is TextFinding.FENCE:
                    if char == TILDE:
                        return (yield from fences.open_tilde_fence(machine, newlines))
                    plain = fences.open_plain_fence(machine, newlines)
                    return plain or (yield from fences.read_opener(machine, newlines))
                machine.open_candidate()
                if newlines:
                    reader.take(newlines)
                machine.next_grammar = call.read(machine, value, length - newlines)
                return True


def unprefixed_header(machine: Machine) -> Generator[None, None, tuple[Opener | None, int]]:
    """Return the opener of a header that consists of an offered tool, or a recipient of text, and the length of the
    blanks before it; see `continued_header`.
    """
    reader, tables = machine.reader, machine.tables
    while True:
        begin = blanks(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
        end = recipient_text(reader.text, begin).end()  # type: ignore[union-attr]  # * always matches
        name = reader.text[begin:end]
        waits = end == len(reader.text) and machine.tools.begins_name(name)
        for opener, calls, spoken in tables.unprefixed:
            body = opener.continuation[1].body if opener.continuation else None
            texts = body.text if isinstance(body, MessageBody) else ()
            if end == len(reader.text):
                waits = waits or any(text.startswith(name) for text in texts)
                continue
            known = spoken if name in texts else calls if name in machine.tools else None
            found = known.match(reader.text, end) if known else None
            if found is not None and found.lastindex is not None:
                return opener, begin - reader.at
            waits = waits or found is not None
        if not waits or reader.ended or begin - reader.at > MAX_BLANKS:
            return None, 0
        yield


def continued_header(machine: Machine) -> Generator[None, None, tuple[Opener | None, int]]:
    """Return the opener of a header that begins with its recipient, because the prompt ends with the message's opener,
    and the length of the blanks before it. The opener is None if no such header begins here.
    """
    reader = machine.reader
    while True:
        after = blanks(reader.text, reader.at)
        begin = after.end() if after else reader.at
        found = machine.tables.continued.match(reader.text, begin)
        if found is None and begin < len(reader.text):
            return None, 0
        if found is not None and found.lastindex is not None:
            rest = recipient_follows(reader.text, found.end())
            if rest is None:
                return None, 0
            if rest.lastindex is not None:
                return machine.tables.continued.values[found.lastindex - 1], begin - reader.at
        if reader.ended or begin - reader.at > MAX_BLANKS:
            return None, 0
        yield


def code_may_be_indented(machine: Machine) -> bool:
    """Return whether an indented line may be code here: text precedes it, and nothing is open around it."""
    past = machine.text_state
    return past.text_seen and not past.at_message_start and scanner_of(machine).blocks


def begins_indentation(machine: Machine) -> bool:
    """Read a newline and blanks up to the end of the text, after indented code, or note the blanks that have been read.
    Return whether there are any.
    """
    reader, past = machine.reader, machine.text_state
    if past.place in INDENT_COLUMNS:
        past.place, past.indent = START, INDENT_COLUMNS[past.place]
        return True
    found = indentation_begun(reader.text, reader.at)
    if found is not None:
        emit_text(machine, found.end() - reader.at)
        past.place, past.indent = START, columns(found[1], 0)
    return found is not None


def follows_blank_line(machine: Machine, newlines: int, begin: int) -> bool:
    """Note whether the line of the blanks before `begin`, after newlines, follows a blank line. Return whether so."""
    reader = machine.reader
    start = reader.at + newlines
    if begin == start or reader.text.count("\n", reader.at, start) < 2:
        return False
    machine.text_state.indent = columns(reader.text[start:begin], 0)
    return True


def begins_quote(machine: Machine, begin: int, markers: Markers[Marked] | None) -> bool:
    """Return whether the character at `begin`, the first one of its line, may begin a block quote: a `>`, or the marker
    of a list item that is followed by one.

    This is possible if block quotes count here and none of the markers begins at that position.
    """
    text = machine.reader.text
    if text[begin] not in BEGIN_QUOTES or not scanner_of(machine).blocks:
        return False
    if markers is not None and markers.match(text, begin) is not None:
        return False
    if text[begin] == ">":
        return True
    # Newlines before a label are markup, so they wait while a label may begin with the marker of a list item.
    if machine.tables.line.match(text, begin) is not None:
        return False
    return any(match(text, begin) for match in (item_begins, quote_in_item, fence_in_item))


def begins_item(machine: Machine, newlines: int) -> bool:
    """Read a list item that begins here, after newlines, if a block quote or a fence begins in it or may begin with the
    next piece. Return whether it was read.
    """
    reader, past = machine.reader, machine.text_state
    begin = reader.at + newlines
    if reader.text[begin] not in BEGIN_QUOTES or not scanner_of(machine).blocks:
        return False
    if quote_in_item(reader.text, begin):
        past.place = LinePlace.QUOTE
    elif found := fence_in_item(reader.text, begin):
        emit_text(machine, found.end() - reader.at)
        past.place = LinePlace.ITEM
    # Newlines before an opener are markup, so they wait while an opener may begin with the marker of a list item.
    elif scanner_of(machine).at.match(reader.text, begin) is None and (found := item_begins(reader.text, begin)):
        emit_text(machine, len(reader.text) - reader.at)
        past.place = ITEM_PLACES[(found.lastindex or 1) - 1]
    else:
        return False
    past.indent = None
    return True


def quote_follows(place: LinePlace, text: str, at: int) -> bool:
    """Return whether a block quote begins at `at`, in a line that has only markers of list items before it."""
    follows = QUOTE_FOLLOWS.get(place)
    return follows is not None and follows(text, at) is not None


def read_item(machine: Machine, place: LinePlace) -> bool:
    """Read the rest of the markers of a list item if a backtick or a tilde follows them. Return whether one does."""
    reader = machine.reader
    follows = FENCE_FOLLOWS.get(place)
    found = follows(reader.text, reader.at) if follows is not None else None
    if found is None:
        return False
    emit_text(machine, found.end() - reader.at)
    return True


def open_quote(machine: Machine, newlines: int) -> Generator[None, None, bool]:
    """Read a `>` that is the first character of its line, after newlines, as a block quote unless it begins a marker.

    Return False if more text was needed, so that the line has to be examined again.
    """
    reader, scanner = machine.reader, scanner_of(machine)
    found = scanner.at.match(reader.text, reader.at + newlines)
    if found is not None and found.lastindex is None:
        yield from reader.more()
        return False
    if found is None and scanner.blocks:
        emit_text(machine, newlines)
        machine.text_state.place = LinePlace.QUOTE
    return True
