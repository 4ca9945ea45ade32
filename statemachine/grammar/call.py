"""A call, from its opener to the end of its body: a chain of openers, then the body."""

import re
from collections.abc import Generator
from functools import lru_cache

from statemachine import bodies
from statemachine.bodies import envelope
from statemachine.endings import ends_line, read_empty_block
from statemachine.formats.format import Expression, Format, MessageBody, Parameters, Variant
from statemachine.formats.markers import Markers
from statemachine.formats.openers import Continuation, Opener
from statemachine.formats.scanner import Marked
from statemachine.formats.unmarked import TextFinding
from statemachine.grammar.noise import marker_after_noise, take_noise
from statemachine.grammar.saying import scanner_of
from statemachine.machine.machine import Machine
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch, match_whitespace

fence_line = re.compile(
    r"`{1,2}\Z|```(?!`)[\w+-]{0,16}+[ \t]{0,16}+(?:\Z|\r?\Z|\r?\n()|(?=[{\[<])())",
).match
"""Matches the beginning of a fence around the content of a marker, up to that content; without a group if the text ends
before it.
"""
call_begins = re.compile(
    r"[A-Za-z_][\w.-]{0,255}+[ \t]{0,16}+(?:\Z|\([ \t\r\n]{0,64}+"
    r"(?:\Z|[)\"'{\[0-9+-]()|[A-Za-z_]\w{0,127}+[ \t]{0,16}+(?:\Z|=(?:\Z|(?!=)()))))"
).match
"""Matches a call expression up to the first character of its arguments or to their first keyword, or a shorter part of
it at the end of the text, in which case no group matches.
"""


call_in_brackets = re.compile(
    r"(?:\Z|\)[ \t\r\n]{0,64}+(?:\Z|,[ \t\r\n]{0,64}+(?:\Z|(?=[A-Za-z_][\w.-]{0,255}+(?:\(()|\Z)))))"
).match
"""Matches the bracket after the arguments of a call, and a comma before another call, which has a group."""


def read(machine: Machine, value: Marked, length: int) -> Grammar:
    """Read a call whose opener begins here and has this length."""
    reader, candidate = machine.reader, machine.candidate
    if machine.frames.reasoning and not counts_in_reasoning(machine, value):
        reader.take(1)
        raise Mismatch
    if value is TextFinding.BARE:
        machine.set_marked(False)
        machine.next_grammar = envelope.read(machine, scanner_of(machine).keys[reader.text[reader.at]])
    elif value is TextFinding.LIST and machine.tables.unmarked.expressions:
        machine.set_marked(False)
        candidate.bare = True
        machine.next_grammar = read_expression(machine, machine.tables.unmarked.expressions)
    elif isinstance(value, Opener):
        opener, text, start = yield from read_openers(machine, value, length)
        machine.next_grammar = read_body(machine, opener, text, start)
    else:
        raise Mismatch


def counts_in_reasoning(machine: Machine, value: Marked) -> bool:
    """Return whether a call that begins with this marker counts although it is inside reasoning."""
    openers = machine.options.openers_in_reasoning
    return openers is None or (isinstance(value, Opener) and value.literal in openers)


def read_openers(machine: Machine, opener: Opener, length: int) -> Generator[None, None, tuple[Opener, str, int]]:
    """Read a chain of openers. Return the last opener, its text, and the number of pieces buffered up to the end of
    that opener.
    """
    reader, wrappers = machine.reader, machine.tables.wrappers
    # Inside an open wrapper the same literal may mean something else (`Opener.inner`), and wrappers can be nested: the
    # innermost wrapper that knows the opener decides.
    for close in machine.frames.wrappers:
        opener = wrappers[close].inner(opener) if close in wrappers else opener
    repeated = False
    while True:
        text = reader.take(length)
        start = len(reader.buffered.pieces)
        if opener.doubled:
            machine.candidate.arguments.json.add_repair("repeated_opener")
        # The header of a message may itself begin with whitespace, so none is skipped before it.
        header = opener.continuation is not None and isinstance(opener.continuation[1].body, MessageBody)
        closed = opener.tool is not None and text.endswith("/>")
        if not (header or closed):
            yield from machine.skip_whitespace()
            if opener.keys or opener.children is not None:
                yield from skip_fence(machine, repaired=not opener.fenced)
        inner, length = (yield from match_child(machine, opener.children)) if opener.children is not None else (None, 0)
        if inner is None and opener.only_calls and reader.text[reader.at] not in "{[":
            inner, length = yield from child_after_noise(machine, opener)
        # Text may consist of the openers that are recognized at the start of a line, so it is buffered for two of them.
        once = inner is not None or header or opener.tool is not None or (repeated and opener.line)
        if not once and (length := (yield from repeated_opener(machine, opener))):
            machine.candidate.arguments.json.add_repair("repeated_opener")
            repeated = True
            continue
        if inner is None:
            return opener, text, start
        machine.candidate.wrappers.append(opener.close)
        opener = inner


def child_after_noise(machine: Machine, wrapper: Opener) -> Generator[None, None, tuple[Opener | None, int]]:
    """Skip noise before the first call in a wrapper, and return the opener of the call and its length."""
    noise, marker, length = yield from marker_after_noise(machine)
    if marker is None and machine.reader.ended and noise == len(machine.reader.text) - machine.reader.at:
        raise EndOfText
    if marker == wrapper.close:
        take_noise(machine, noise)
    if not isinstance(marker, Opener) or marker is wrapper or not wrapper.contains(marker):
        return None, 0
    take_noise(machine, noise)
    return wrapper.inner(marker), length


def repeated_opener(machine: Machine, opener: Opener) -> Generator[None, None, int]:
    """Return the length of the same opener if it follows again, or 0."""
    reader, marker = machine.reader, only_marker(opener.literal, any_case=opener.line)
    while reader.at < len(reader.text) or not reader.ended:
        found = marker.match(reader.text, reader.at)
        if found is None:
            return 0
        if found.lastindex:
            return found.end() - reader.at
        yield
    return 0


@lru_cache(maxsize=256)
def only_marker(literal: str, *, any_case: bool) -> Markers[bool]:
    """Return a set with a single marker."""
    return Markers([(literal, True)], any_case=any_case)


def skip_fence(machine: Machine, *, repaired: bool) -> Grammar:
    """Skip the beginning of a code fence between an opener and the content of its call. `repaired` means that the
    format has no fence there.
    """
    reader = machine.reader
    while (found := fence_line(reader.text, reader.at)) is not None:
        if found.lastindex:
            machine.candidate.fenced_body = True
            if repaired:
                machine.candidate.arguments.json.add_repair("fenced_body")
            reader.take(found.end() - reader.at)
            yield from machine.skip_whitespace()
            return
        yield from reader.more()


def read_body(machine: Machine, opener: Opener, text: str, start: int) -> Grammar:
    """Read the body that follows the last opener."""
    reader = machine.reader
    # The order of these tests is the rule for markers that several formats share. An empty block is tested first, since
    # it has no content. An opener that names its tool is unambiguous. An expression or a header is recognized by not
    # being JSON (`body_opens`), JSON is recognized by its first character, and only the remaining text can be a name.
    if (yield from read_empty_block(machine, tuple(opener.closes), in_line=opener.only_calls)):
        return
    if opener.tool is not None:
        form, variant, tool = opener.tool
        machine.next_grammar = read_tool_tag(machine, form, variant, tool, closed=text.endswith("/>"))
    elif opener.continuation is not None and (yield from body_opens(machine, opener)):
        form, variant = opener.continuation
        if isinstance(variant.body, MessageBody):
            machine.next_grammar = bodies.message.read(machine, form, variant.body, text)
        else:
            machine.next_grammar = read_expression(machine, opener.continuation)
    elif opener.keys and reader.text[reader.at] in "{[":
        if opener.close:
            machine.candidate.wrappers.append(opener.close)
        if opener.by_keys:
            machine.set_marked(False)
        machine.next_grammar = envelope.read(machine, opener.keys[reader.text[reader.at]])
    elif opener.ends is None or (opener.line and not directly_follows(opener, reader.buffered.text(start))):
        raise Mismatch
    else:
        yield from bodies.name.read(machine, opener, start - 1)
        machine.end_body()
        while length := (yield from next_in_brackets(machine, opener)):
            reader.take(length)
            machine.open_next_element(marked=True)
            yield from bodies.name.read(machine, opener, 0)
            machine.end_body()


def next_in_brackets(machine: Machine, opener: Opener) -> Generator[None, None, int]:
    """Return the length of the bracket and the comma before another call in the same markers, or 0 if none follows."""
    reader = machine.reader
    if opener.ends is None or "(" not in (end for _, _, end in opener.ends.values):
        return 0
    while (found := call_in_brackets(reader.text, reader.at)) is not None and not found.lastindex:
        if reader.ended:
            return 0
        yield
    return found.end() - reader.at if found else 0


def directly_follows(opener: Opener, space_between: str) -> bool:
    """Return whether an opener is followed by its content immediately or, where blanks are allowed, after nothing but
    blanks.
    """
    return not space_between or (opener.blank and "\n" not in space_between)


def match_child(machine: Machine, children: Markers[Opener]) -> Generator[None, None, tuple[Opener | None, int]]:
    """Return the opener that follows a wrapper's opener, and its length."""
    reader = machine.reader
    while True:
        found = children.match(reader.text, reader.at)
        if found is None:
            return None, 0
        if found.lastindex:
            return children.values[found.lastindex - 1], found.end() - reader.at
        yield from reader.more()


def read_tool_tag(machine: Machine, form: Format, variant: Variant, tool: str, *, closed: bool) -> Grammar:
    """Read a call whose opener names its tool. `closed` means that its tag closes itself."""
    if isinstance(variant.body, Expression):
        machine.set_marked(False)
        machine.candidate.bare = True
        machine.set_name(tool)
        yield from bodies.expression.read_named(machine, form, variant.body)
        return
    if not isinstance(variant.body, Parameters):
        raise Mismatch
    # Prose may mention such a tag. Only one that is alone on its line is taken to be a call.
    if closed and not (machine.text_state.opens_line and (yield from ends_line(machine, 0))):
        raise Mismatch
    machine.candidate.format = form
    machine.set_name(tool)
    if closed:
        machine.candidate.self_closed = True
        bodies.name.no_arguments(machine)
    else:
        yield from bodies.parameters.read(machine, form, variant.body)
    machine.end_body()


def body_opens(machine: Machine, opener: Opener) -> Generator[None, None, bool]:
    """Return whether an expression or a header, rather than JSON or a name alone, follows here."""
    reader = machine.reader
    if opener.ends is not None and reader.text[reader.at] not in "{[":
        while (found := call_begins(reader.text, reader.at)) and not found.lastindex:
            yield from reader.more()
        return found is not None
    # `[` begins an array of envelopes as well as a list of expressions. The first character inside it decides.
    if not opener.keys or reader.text[reader.at] not in "{[":
        return True
    while True:
        found = match_whitespace(reader.text, reader.at + 1)
        if found is not None and found.end() < len(reader.text):
            return reader.text[reader.at] == "[" and reader.text[found.end()] not in "{["
        yield from reader.more()


def read_expression(machine: Machine, opening: Continuation) -> Grammar:
    """Read call expressions."""
    form, variant = opening
    if not isinstance(variant.body, Expression):
        raise Mismatch
    machine.candidate.format = form
    return bodies.expression.read(machine, form, variant.body)
