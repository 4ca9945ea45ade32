"""Arguments as one JSON object, as it stands, after a head that told the name."""

from json.encoder import encode_basestring

from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json import typed as json_typed
from statemachine.machine import Machine
from statemachine.reader import Grammar, Mismatch
from statemachine.schema import sole_string


def read(machine: Machine) -> Grammar:
    """The arguments, to the end of the object; none, if the call's closer or another call follows at once."""
    yield from machine.blank()
    if machine.text[machine.at] not in "{\"'" and (yield from machine.sibling(0, own=True)):
        machine.begin()
        machine.out("{}")
        machine.candidate.whole = True
        return
    yield from arguments(machine, as_string=False)


def arguments(machine: Machine, *, as_string: bool) -> Grammar:
    """A JSON object, or a string that holds one (`as_string`: as the format writes it); commits as it begins.

    Types that contradict the tool's schema are mended, unless the name is still to come.
    """
    candidate = machine.candidate
    char = yield from machine.peek()
    state = candidate.json
    schema = machine.tools.get(candidate.name or "") if candidate.known and machine.tools is not None else None
    state.typed = json_typed.typing(schema)
    if char in json_text.QUOTES:
        only = sole_string(schema)
        try:
            yield from json_nested.holds_object(machine)
        except Mismatch:
            if only is None:
                raise
            yield from bare(machine, only)
        else:
            machine.begin()
            yield from json_nested.doubled(machine, state, "" if as_string else "string_arguments")
    elif char == "{":
        machine.begin()
        yield from json_text.value(machine, state)
    elif char in "nN" and (yield from json_text.bare_word(machine)) in ("null", "None"):
        machine.begin()
        state.mend("null_arguments")
        machine.take(4, "repair")
        machine.out("{}")
    else:
        raise Mismatch
    candidate.whole = True


def bare(machine: Machine, name: str) -> Grammar:
    """A string in the place of the arguments of a tool that takes nothing but one string: it is that parameter."""
    state = machine.candidate.json
    state.typed = None
    state.mend("bare_arguments")
    machine.begin()
    machine.out(f"{{{encode_basestring(name)}: ")
    yield from json_text.value(machine, state)
    machine.out("}")
