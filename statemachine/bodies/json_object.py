"""Arguments as one plain JSON object, after a header that contains the name."""

from json.encoder import encode_basestring

from statemachine.endings import CallSurroundings, ends_call
from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json import typed as json_typed
from statemachine.machine.machine import Machine
from statemachine.schema import only_string_parameter
from statemachine.stream.buffer import Grammar, Mismatch


def read(machine: Machine) -> Grammar:
    """Read the arguments through the end of the object. If the call's closer or another call follows immediately, emit
    `{}`.
    """
    reader = machine.reader
    yield from machine.skip_whitespace()
    if reader.text[reader.at] not in "{\"'" and (yield from ends_call(machine, 0, own=True)):
        machine.begin_arguments()
        reader.emit_arguments("{}")
        machine.candidate.arguments.complete = True
        return
    yield from arguments(machine, as_string=False)


def begin_typing(machine: Machine) -> None:
    """Let the schema of the tool, if it is known, determine the types of the arguments."""
    arguments = machine.candidate.arguments
    if machine.candidate.offered and not arguments.typed:
        arguments.typed = True
        arguments.parameters = arguments.parameters or set()
        typed = arguments.json.typed = json_typed.typing_of(machine.tools.schema(machine.candidate.name))
        if typed is not None:
            typed.given = arguments.parameters


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
    if leave_open:
        state.leave_open = not machine.tools.accepts_any and (not candidate.offered or state.typed is not None)
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
        yield from json_text.value(reader, state)
    elif char in "nN" and (yield from json_text.bare_word(reader)) in ("null", "None"):
        machine.begin_arguments()
        state.add_repair("null_arguments")
        reader.take(4, "repair")
        json_text.empty_object(reader, state)
    else:
        raise Mismatch
    candidate.arguments.complete = True


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
