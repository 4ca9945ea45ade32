"""Arguments as one plain JSON object, after a header that contains the name."""

import re
from collections.abc import Generator
from functools import lru_cache
from json.encoder import encode_basestring

from statemachine.endings import CallSurroundings, ends_call, ends_line, has_closer, stop_follows
from statemachine.formats.markers import Markers, text_run
from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json import typed as json_typed
from statemachine.json.nesting import Nesting
from statemachine.machine.candidate import NO_PARAMETERS
from statemachine.machine.machine import Machine
from statemachine.schema import only_string_parameter, properties
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.runs import Run, json_escape

first_key = re.compile(
    r"\{[ \t\r\n]{0,64}+(?:\Z|(\})|\"(?:([^\"\\\x00-\x1f]{0,256})\"|[^\"\\\x00-\x1f]{0,256}+\Z)"
    r"|'(?:([^'\\\x00-\x1f]{0,256})'|[^'\\\x00-\x1f]{0,256}+\Z)"
    r"|([A-Za-z_$][\w$-]{0,255}+)[ \t\r\n]{0,64}+(?:()\Z|:)|\Z)"
).match
"""Matches an opening brace and the first key, which is one of the groups 2 to 4; group 1 matches an empty object."""


def read(machine: Machine, default: str = "") -> Grammar:
    """Read the arguments through the end of the object, or text that is the value of the tool's only parameter; if its
    parameters are unknown, of the one called `default`. If the call's closer or another call follows immediately, or
    if the reply ends in a format without a closer, emit `{}`.
    """
    reader = machine.reader
    try:
        yield from machine.skip_whitespace()
    except EndOfText:
        if not machine.stopped or has_closer(machine.candidate):
            raise
    if reader.at >= len(reader.text) or (
        reader.text[reader.at] not in "{\"'"
        and (
            (yield from ends_call(machine, 0, own=True))
            or (not has_closer(machine.candidate) and (yield from stop_follows(machine)))
        )
    ):
        machine.begin_arguments()
        reader.emit_arguments("{}")
        machine.candidate.arguments.complete = True
        return
    name = only_parameter(machine, default) if default else ""
    if name and reader.text[reader.at] == "{" and (yield from is_object(machine)):
        name = ""
    if name:
        yield from text_argument(machine, name)
    else:
        yield from arguments(machine, as_string=False)


def only_parameter(machine: Machine, default: str) -> str:
    """Return the name of the tool's only parameter, if it can be a string; `default` if the parameters are unknown."""
    schema = machine.tools.schema(machine.candidate.name)
    return (only_string_parameter(schema) or "") if properties(schema) else default


def is_object(machine: Machine) -> Generator[None, None, bool]:
    """Return whether the brace here opens an object of arguments, not a group of commands: nothing or a quoted key
    follows, or a bare key and its colon. If the tool has parameters, a bare key is that of one of them.
    """
    reader = machine.reader
    end = yield from reader.whitespace_end(1)
    if end >= 0 and reader.text[reader.at + end : reader.at + end + 1] in ("'", '"'):
        return True
    key = yield from first_key_at(machine, 0)
    if not key:
        return key is not None
    known = properties(machine.tools.schema(machine.candidate.name))
    return not known or key in known


@lru_cache(maxsize=32)
def text_of_call(close: str) -> tuple[Markers[bool], Run]:
    """Return the markers that may end the text in a call with this closer, and the run for that text."""
    markers = Markers([(lead + close, True) for lead in ("", "\n", "\r\n")])
    return markers, text_run(Markers([(close, True)]), convert=json_escape, trim=True)


def text_argument(machine: Machine, name: str) -> Grammar:
    """Read the text up to the call's closer as a string. A closer that does not end its line is part of the text."""
    reader, form = machine.reader, machine.candidate.format
    if form is None:
        raise Mismatch
    markers, run = text_of_call(form.close)
    arguments = machine.candidate.arguments
    machine.begin_arguments()
    arguments.open_value = True
    reader.emit_arguments(f'{{{encode_basestring(name)}: "')
    while True:
        yield from reader.flow(run)
        if reader.at >= len(reader.text):
            yield from reader.more()
            continue
        found = markers.match(reader.text, reader.at)
        if found is not None and not found.lastindex:
            yield from reader.more()
        elif found is not None and (yield from ends_line(machine, found.end() - reader.at)):
            break
        else:
            reader.emit_arguments(json_escape(reader.take(1, "argument")))
    reader.take(reader.text.index(form.close, reader.at) - reader.at)
    reader.emit_arguments('"}')
    arguments.open_value, arguments.complete = False, True


def begin_typing(machine: Machine) -> None:
    """Let the schema of the tool, if it is known, determine the types of the arguments."""
    arguments = machine.candidate.arguments
    if machine.candidate.offered and not arguments.typed:
        arguments.typed = True
        if arguments.parameters is NO_PARAMETERS:
            arguments.parameters = set()
        typed = arguments.json.typed = json_typed.typing_of(machine.tools.schema(machine.candidate.name))
        if typed is not None:
            typed.given = arguments.parameters
            if machine.options.nest and typed.root.may_have_homes:
                typed.nesting = Nesting(typed.root, typed.given)


def arguments(machine: Machine, *, as_string: bool, leave_open: bool = False) -> Grammar:
    """Read a JSON object, or a string that contains one, and commit the call where it begins.

    `as_string` means that the format prescribes a string, so that reading one is not a repair; `leave_open`, that
    further arguments may follow the object. Values that contradict the tool's schema are repaired, provided that the
    name is already known.
    """
    reader = machine.reader
    candidate = machine.candidate
    char = yield from reader.peek()
    state = candidate.arguments.json
    schema = machine.tools.schema(candidate.name) if candidate.offered else None
    begin_typing(machine)
    state.around = CallSurroundings(machine)
    if isinstance(state.typed, json_typed.Typed):
        state.typed.restart()
    state.leave_open = int(leave_open)
    if char in json_text.QUOTES:
        only = only_string_parameter(schema)
        try:
            yield from json_nested.check_holds_object(reader)
        except Mismatch:
            if only is None:
                raise
            yield from sole_argument(machine, only)
        else:
            machine.begin_arguments()
            yield from json_nested.encoded_object(reader, state, "" if as_string else "string_arguments")
    elif char == "{":
        machine.begin_arguments()
        try:
            yield from json_text.value(reader, state)
        except (EndOfText, Mismatch):
            if state.typed is not None:
                state.typed.end_object(reader, state, cut=state.cut)
            raise
    elif char in "nN" and (yield from json_text.bare_word(reader)) in ("null", "None"):
        machine.begin_arguments()
        state.add_repair("null_arguments")
        reader.take(4, "repair")
        json_text.empty_object(reader, state)
    else:
        raise Mismatch
    candidate.arguments.complete = True


def emit_object(machine: Machine, text: str) -> None:
    """Emit an object that has already been consumed as the arguments; further arguments may follow.

    Raises:
        Mismatch: the text is not one object.
    """
    state = machine.candidate.arguments.json
    begin_typing(machine)
    machine.begin_arguments()
    if isinstance(state.typed, json_typed.Typed):
        state.typed.restart()
    state.around, state.leave_open = None, 1
    inner = json_nested.Nested(state, json_text.value)
    machine.reader.emit_arguments(inner.push(text) + inner.finish())
    if not inner.readable():
        raise Mismatch


def sole_argument(machine: Machine, name: str) -> Grammar:
    """Read a string given in place of the arguments as the value of the tool's only parameter, which is called
    `name`.
    """
    reader = machine.reader
    state = machine.candidate.arguments.json
    state.typed = None
    state.add_repair("bare_arguments")
    machine.begin_arguments()
    reader.emit_arguments(f"{{{encode_basestring(name)}: ")
    yield from json_text.value(reader, state)
    reader.emit_arguments("}")


def first_key_at(machine: Machine, offset: int) -> Generator[None, None, str | None]:
    """Return the first key of the object at `offset`, "" if the object is empty, or None if the key is not plain or too
    long.
    """
    reader = machine.reader
    while True:
        found = first_key(reader.text, reader.at + offset)
        if found is None or found[1]:
            return found and ""
        if found.lastindex and found[5] is None:
            return found[found.lastindex]
        if reader.ended:
            return None
        yield
