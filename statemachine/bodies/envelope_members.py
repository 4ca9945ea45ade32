"""Members of an envelope that may be arguments, although they are not in its arguments object.

Theory of operation. Models flatten a call (`{"name": "f", "city": "Oslo"}`), or put its arguments under another key. A
member that the tool's schema declares is an argument, and streams as it arrives: the arguments object stays open until
the envelope ends, so the closer of an arguments object is withheld as well. All other members are buffered until the
end of the envelope, and then decided together:

* in a call without arguments, the only object among them is the arguments (`SYNONYMS` first);
* in a call without an arguments object, a member that may belong to the envelope (`id`, `type`, a second name) is an
  argument if the schema declares it;
* in a call without arguments of a tool without a schema, all of them are arguments;
* another arguments object adds its members to the arguments; if the arguments cannot be continued, or have one of these
  members already, the call is incomplete;
* any others are ignored (`ignored_member`). If the call has no arguments at all, although the tool has parameters, it
  is incomplete.
"""

from collections.abc import Generator
from json.encoder import encode_basestring

from attrs import define, field

from statemachine.bodies.json_object import begin_typing, emit_object, first_key_at
from statemachine.endings import CallSurroundings
from statemachine.formats.format import COMMENT_KEYS, is_synonym
from statemachine.formats.openers import KeyRole
from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json.nesting import pair
from statemachine.json.state import JsonState
from statemachine.json.typed import Typed, wants_items
from statemachine.json.values import load
from statemachine.machine.candidate import NO_OTHERS, NO_STRAYS, StrayMember
from statemachine.machine.machine import Machine
from statemachine.schema import Node, takes_nothing
from statemachine.stream.buffer import Grammar, Mismatch

TYPES = frozenset({"function", "function_call", "tool", "tool_call", "tool_use", "call", "action", ""})
"""Values that `type` can have in calls."""
DESCRIBING_KEYS = frozenset({"description", "title", "type", "parameters", "input_schema", "inputSchema", "strict"})
"""Keys of tool descriptions, which do not suffice to show that an object without a marker is a call."""
ENVELOPE_ROLES = frozenset({KeyRole.NAME, KeyRole.ID, KeyRole.TYPE})
"""Roles of members that describe the call, but may be arguments if they are not needed for that."""


def root_of(machine: Machine) -> Node | None:
    """Return the node of the arguments of the offered tool that is called, or None if its schema describes none."""
    if not machine.candidate.offered:
        return None
    begin_typing(machine)
    typed = machine.candidate.arguments.json.typed
    return typed.root if isinstance(typed, Typed) else None


def declares(machine: Machine, key: str) -> bool:
    """Return whether the tool that is called is offered and declares this parameter."""
    root = root_of(machine)
    return root is not None and root.declares(key)


def accepts(machine: Machine, key: str) -> bool:
    """Return whether a member with this key is an argument that can still be added."""
    arguments = machine.candidate.arguments
    growing = not arguments.begun or arguments.flat or arguments.json.withheld
    return growing and key not in arguments.parameters and declares(machine, key)


def is_evidence(machine: Machine, key: str) -> bool:
    """Return whether a member with this key may show that an object without a marker is a call."""
    return root_of(machine) is not None and (is_synonym(key) or (key not in DESCRIBING_KEYS and declares(machine, key)))


def holds_arguments(machine: Machine, key: str, *, prescribed: bool, canonical: bool) -> Generator[None, None, bool]:
    """Return whether the value here is the arguments object, or a string that contains it, of an offered tool.

    `prescribed` means that the envelope has this key for the arguments, `canonical` that it is the usual key. If the
    schema declares a parameter with the same name, the value decides.
    """
    reader = machine.reader
    root, char = root_of(machine), reader.text[reader.at]
    declared = root is not None and root.declares(key)
    if prescribed and not declared:
        return True
    if char == "{":
        if canonical:
            return True
        node = root.member(key) if root is not None and declared else None
        if node is not None and "object" not in node.types:
            return True
        if root is None:
            return not takes_nothing(machine.tools.schema(machine.candidate.name))
        inner = yield from first_key_at(machine, 0)
        return inner is not None and root.declares(inner)
    if char in json_text.QUOTES:
        node = root.member(key) if root is not None and declared else None
        if node is not None and not canonical and "string" in node.types:
            return False
        return (yield from contains_object(machine))
    return canonical and char in "nN"


def contains_object(machine: Machine) -> Generator[None, None, bool]:
    """Return whether the string here contains an object."""
    try:
        yield from json_nested.check_holds_object(machine.reader)
    except Mismatch:
        return False
    return True


# ---- members that are arguments


def flat_member(machine: Machine, key: str) -> Grammar:
    """Read a member that is an argument, and stream its value."""
    begin_member(machine, key)
    state = machine.candidate.arguments.json
    state.around = CallSurroundings(machine, flat=True)
    yield from json_text.value(machine.reader, state)
    machine.reader.target = False


def begin_member(machine: Machine, key: str) -> None:
    """Emit the key of a member that is an argument; its value follows."""
    reader = machine.reader
    arguments = machine.candidate.arguments
    state = arguments.json
    state.add_repair("flat_arguments")
    begun = arguments.begun
    begin_typing(machine)
    machine.begin_arguments()
    if not begun:
        reader.emit_arguments("{")
    typed = state.typed if isinstance(state.typed, Typed) else None
    if not arguments.flat:
        arguments.flat, arguments.complete, state.withheld = True, False, False
        if typed is not None:
            typed.restart()
            typed.enter(0)
        state.stack.append("}")
    reader.emit_arguments((", " if arguments.parameters else "") + encode_basestring(key) + ": ")
    arguments.parameters.add(key)
    if typed is not None:
        typed.member(key)


def resume_arguments(machine: Machine) -> bool:
    """Prepare to read an arguments object that continues the arguments so far. Return False if they have ended."""
    arguments = machine.candidate.arguments
    if not arguments.flat and (arguments.parameters or arguments.json.typed is None):
        return False
    return continue_arguments(machine)


def continue_arguments(machine: Machine) -> bool:
    """Prepare to read an arguments object that adds members to the arguments so far. Return False if they have
    ended.
    """
    arguments = machine.candidate.arguments
    state = arguments.json
    if arguments.flat:
        state.stack.pop()
    elif not state.withheld:
        return False
    arguments.flat = arguments.complete = state.withheld = False
    state.resumed, state.cut = ", " if arguments.parameters else "", True
    return True


def can_resume(machine: Machine) -> bool:
    """Return whether an arguments object can begin here, or continue the arguments so far."""
    arguments = machine.candidate.arguments
    empty = arguments.json.withheld and arguments.json.typed is not None and not arguments.parameters
    return not arguments.begun or arguments.flat or empty


def note_queued_arguments(machine: Machine) -> None:
    """Note the parameters in arguments that arrived before the name."""
    arguments = machine.candidate.arguments
    begin_typing(machine)
    if arguments.queued and arguments.json.typed is not None:
        arguments.parameters.update(load("".join(arguments.queued) + ("}" if arguments.json.withheld else "")))


# ---- members that are buffered


def other_arguments(machine: Machine) -> Grammar:
    """Read the value of a key for arguments in a call that has an arguments object, and keep it until the end."""
    reader, envelope = machine.reader, machine.candidate.envelope
    kept = KeptValue(machine.limits.held - envelope.buffered)
    # Until the end of the envelope, the arguments are incomplete, even if the reply ends here.
    arguments = machine.candidate.arguments
    arguments.complete, arguments.open_value = False, True
    if envelope.others is NO_OTHERS:
        envelope.others = []
    envelope.others.append("")
    reader.target = kept
    yield from json_text.value(reader, envelope.json)
    reader.target = False
    text = "".join(kept.pieces)
    envelope.others[-1] = text
    envelope.buffered += len(text)


def add_others(machine: Machine) -> bool:
    """Add the members of further arguments objects to the arguments. Return False if that is impossible."""
    arguments, added = machine.candidate.arguments, True
    arguments.open_value, arguments.complete = False, not arguments.flat
    for text in machine.candidate.envelope.others:
        found = object_in(text)
        if found is None:
            added = added and bool(text)
            arguments.json.add_repair("ignored_member")
        elif members := load(found):
            arguments.json.add_repair("arguments_key")
            fits = arguments.parameters.isdisjoint(members) and (arguments.flat or arguments.json.withheld)
            if fits and continue_arguments(machine):
                emit_object(machine, found)
                arguments.complete = True
            else:
                added = False
    return added


def object_in(text: str) -> str | None:
    """Return the JSON of an object, which may itself be in a string, or None if a value contains none."""
    value = load(text) if text else None
    if isinstance(value, str):
        try:
            value, text = load(value), value
        except ValueError:
            return None
    return text if isinstance(value, dict) else None


@define(eq=False, repr=False)
class KeptValue:
    """Target that keeps the JSON of one value, up to a limit in characters."""

    room: int
    pieces: list[str] = field(factory=list)

    def append(self, piece: str) -> None:
        """Accept a piece of strict JSON."""
        self.room -= len(piece)
        if self.room >= 0:
            self.pieces.append(piece)
        else:
            self.pieces.clear()


def stray_member(machine: Machine, key: str, role: KeyRole | None = None) -> Grammar:
    """Read a member that may turn out to be an argument at the end of the envelope, and keep it unless it cannot."""
    reader, candidate = machine.reader, machine.candidate
    arguments, envelope = candidate.arguments, candidate.envelope
    settled = role is None and arguments.begun and (arguments.json.typed is None or bool(arguments.parameters))
    settled = settled and not may_be_meant(machine, key)
    root = root_of(machine) if key in arguments.parameters else None
    if root is not None and wants_items(root.member(key)):
        arguments.json.add_repair("repeated_key")
        arguments.json.lossless = False
    kept = KeptValue(machine.limits.held - envelope.buffered)
    reader.target = False if settled else kept
    yield from json_text.value(reader, envelope.json)
    reader.target = False
    if settled:
        arguments.json.add_repair("ignored_member")
    else:
        keep_member(machine, key, "".join(kept.pieces), role)


def may_be_meant(machine: Machine, key: str) -> bool:
    """Return whether a member is an argument with another spelling, or belongs to an object in the arguments."""
    typed, arguments = machine.candidate.arguments.json.typed, machine.candidate.arguments
    if not isinstance(typed, Typed):
        return False
    near = typed.root.near(key, arguments.parameters)
    return near is not None or (typed.nesting is not None and typed.nesting.member(key) is not None)


def keep_member(machine: Machine, key: str, text: str, role: KeyRole | None) -> None:
    """Keep a member until the end of the envelope; `text` is the JSON of its value, or "" if that is too long."""
    envelope = machine.candidate.envelope
    envelope.buffered += len(key) + len(text)
    if envelope.buffered > machine.limits.held:
        key, text = "", ""
    if envelope.strays is NO_STRAYS:
        envelope.strays = {}
    envelope.strays[key] = StrayMember(text, role)


def place_declared(machine: Machine, *, roles: bool = False) -> None:
    """Add the buffered members that the tool declares to the arguments; with `roles`, also those that may belong to the
    envelope.
    """
    root = root_of(machine)
    strays = machine.candidate.envelope.strays
    for key, stray in list(strays.items()):
        if root is None or not (stray.text and accepts(machine, key)):
            continue
        node = root.member(key)
        if stray.role is None or (roles and not describes_call(machine, stray, node)):
            begin_member(machine, key)
            emit_typed(machine, stray.text, None if node is None else Typed(node))
            del strays[key]
    machine.reader.target = False


def rename_strays(machine: Machine) -> None:
    """Add the buffered members whose keys are spelled differently from those of missing arguments to the arguments."""
    root, arguments = root_of(machine), machine.candidate.arguments
    if root is None:
        return
    strays = machine.candidate.envelope.strays
    for key, stray in list(strays.items()):
        near = root.near(key, arguments.parameters) if stray.text and stray.role is None else None
        if near is not None and accepts(machine, near):
            arguments.json.add_repair("parameter_name")
            begin_member(machine, near)
            node = root.member(near)
            emit_typed(machine, stray.text, None if node is None else Typed(node))
            del strays[key]
    machine.reader.target = False


def nest_strays(machine: Machine) -> None:
    """Add the buffered members that belong to an object in the arguments as that object."""
    typed = machine.candidate.arguments.json.typed
    nesting = typed.nesting if isinstance(typed, Typed) else None
    if nesting is None or not isinstance(typed, Typed):
        return
    strays = machine.candidate.envelope.strays
    objects: dict[str, dict[str, str]] = {}
    for key, stray in strays.items():
        found = nesting.member(key) if stray.text and stray.role is None else None
        if found is not None:
            objects.setdefault(found[0], {})[key] = stray.text
    for home, members in objects.items():
        node = typed.root.member(home)
        if node is not None and nesting.has_required(home, members) and accepts(machine, home):
            machine.candidate.arguments.json.add_repair("nested_arguments")
            begin_member(machine, home)
            emit_typed(machine, "{" + ", ".join(map(pair, members, members.values())) + "}", Typed(node))
            for key in members:
                del strays[key]
    machine.reader.target = False


def describes_call(machine: Machine, stray: StrayMember, node: Node | None) -> bool:
    """Return whether a member that may belong to the envelope does: the type of a call, or an id before the name that
    the tool does not require.
    """
    if stray.role is KeyRole.TYPE:
        return stray.text[1:-1] in TYPES
    return stray.role is KeyRole.ID and machine.candidate.id is not None and (node is None or node.optional)


def settle(machine: Machine) -> None:
    """Decide at the end of an envelope what its buffered members are, and end the arguments."""
    reader, candidate = machine.reader, machine.candidate
    arguments, envelope = candidate.arguments, candidate.envelope
    if envelope.strays:
        place_declared(machine, roles=not envelope.contained)
        rename_strays(machine)
        nest_strays(machine)
        if not arguments.begun:
            place_others(machine)
    added = not envelope.others or add_others(machine)
    left = [key for key, stray in envelope.strays.items() if stray.role is None]
    if left:
        arguments.json.add_repair("ignored_member")
    described = root_of(machine) is not None
    if arguments.flat:
        end_flat(machine)
    elif not arguments.begun:
        machine.begin_arguments()
        if not (left and described):
            reader.emit_arguments("{}")
            arguments.complete = True
    elif described and not arguments.parameters and not COMMENT_KEYS.issuperset(left):
        arguments.complete = False
    arguments.complete = arguments.complete and added
    reader.target = False


def end_flat(machine: Machine) -> None:
    """End arguments that consist of members of the envelope."""
    arguments = machine.candidate.arguments
    arguments.json.stack.pop()
    machine.set_target()
    machine.reader.emit_arguments("}")
    arguments.flat, arguments.complete = False, True


def place_others(machine: Machine) -> None:
    """Make the only object among the buffered members the arguments, or all members if the tool has no schema."""
    candidate = machine.candidate
    root = root_of(machine)
    if root is None and takes_nothing(machine.tools.schema(candidate.name)):
        return
    strays = {key: stray.text for key, stray in candidate.envelope.strays.items() if stray.role is None and stray.text}
    objects = [key for key, text in strays.items() if text.startswith("{")]
    choices = [[key for key in objects if is_synonym(key)]]
    if root is not None:
        choices += [[key for key in objects if any(map(root.declares, load(strays[key])))], objects]
    elif len(strays) == 1:
        choices.append(objects)
    chosen = next((keys[0] for keys in choices if len(keys) == 1), None)
    if chosen is not None:
        candidate.arguments.json.add_repair("arguments_key")
        machine.begin_arguments()
        emit_typed(machine, strays[chosen], None if root is None else Typed(root))
        candidate.arguments.parameters.update(load(strays[chosen]))
        candidate.arguments.complete = True
        del candidate.envelope.strays[chosen]
    elif root is None:
        for key, text in strays.items():
            begin_member(machine, key)
            machine.reader.emit_arguments(text)
            del candidate.envelope.strays[key]


def emit_typed(machine: Machine, text: str, typed: Typed | None) -> None:
    """Emit a buffered value, repaired if it contradicts its schema."""
    if typed is not None:
        state = JsonState(machine.candidate.arguments.json.repairs, depth=machine.limits.depth, typed=typed)
        inner = json_nested.Nested(state, json_text.value)
        text = inner.push(text) + inner.finish()
    machine.reader.emit_arguments(text)
