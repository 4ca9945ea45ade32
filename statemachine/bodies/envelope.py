"""JSON that contains both the name and the arguments: an object, an array of objects, or an object nested in another.

`openers.Keys` assigns each key a role; keys may appear in any order. Arguments that precede the name are queued. An
envelope without a marker is recognized as a call by its keys alone, and is committed late (`docs/design.md`).

    envelope  = object / "[" object *( [","] object ) [ "]" ] / object *( [ ";" / "," ] object )
    object    = "{" [ member *( "," member ) ] "}"
    member    = name / arguments / id / type / nested / calls / thought / final / ignored
    nested    = key ":" object                              ; "function", "tool_call" …, up to MAX_NESTING deep
    calls     = key ":" "[" object *( "," object ) "]"
    arguments = key ":" ( JSON-object / JSON-string )       ; the string contains the object
"""

import re
from collections.abc import Generator
from json.encoder import encode_basestring

from statemachine.bodies.envelope_members import (
    ENVELOPE_ROLES,
    TYPES,
    accepts,
    can_resume,
    declares,
    flat_member,
    holds_arguments,
    is_evidence,
    keep_member,
    note_queued_arguments,
    other_arguments,
    place_declared,
    resume_arguments,
    root_of,
    settle,
    stray_member,
)
from statemachine.bodies.json_object import arguments
from statemachine.endings import CallSurroundings, ends_call
from statemachine.formats.format import Envelope, Format, is_synonym
from statemachine.formats.markers import Markers
from statemachine.formats.openers import ANY_NAME, EnvelopeKey, KeyRole, Keys, envelope_of
from statemachine.json import nested as json_nested
from statemachine.json import text as json_text
from statemachine.json.state import JsonState
from statemachine.machine.candidate import Candidate
from statemachine.machine.machine import Machine
from statemachine.machine.states import State
from statemachine.names import is_spelling, without_namespace
from statemachine.schema import properties
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.emitter import Emitter, Sink

# Maximum number of levels of nested objects that may contain the call.
MAX_NESTING = 4
# Maximum number of characters of a thought that are emitted as reasoning; any further text is discarded.
MAX_THOUGHT = 200
schema_begins = Markers([('{{*}"type"{*}:{*}"object"', True)]).match
"""Matches the beginning of a JSON Schema for parameters."""
type_text = re.compile(r"\"([^\"\\\x00-\x1f]{0,64}+)(?:(\")|\Z)").match
another_object = re.compile(r"[ \t\r\n]{0,256}+(?:[;,][ \t\r\n]{0,256}+)?+(?:(\{)|\Z)").match
another_bare = re.compile(r"[ \t]{0,16}+(?:;[ \t\r\n]{0,256}+(?:(\{)|\Z)|\Z)").match


class NoCall(Exception):
    """The object is not a call and becomes text through its closing brace."""


def read(machine: Machine, keys: Keys) -> Grammar:
    """Read one envelope, or a sequence or array of envelopes, through the end of the last one."""
    reader = machine.reader
    yield from machine.skip_whitespace()
    marked, known = machine.candidate.marked, False
    if (yield from reader.peek()) == "[":
        yield from array(machine, keys)
        yield from skip_surplus_brackets(machine, marked=marked)
        return
    yield from members(machine, keys)
    end_element(machine)
    while machine.frames.state is not State.AFTER:
        # The `known` flag outlives the individual candidates: once an object has turned out to be a call, the
        # separators after it are syntax, even if a later object is not a call.
        known = known or machine.candidate.committed
        machine.end_body(alone=known)
        if not (yield from object_follows(machine, marked=marked)):
            return
        machine.open_next_element(marked=marked)
        yield from separator(machine)
        yield from members(machine, keys)
        end_element(machine)


def object_follows(machine: Machine, *, marked: bool) -> Generator[None, None, bool]:
    """Return whether another object follows. It may follow a separator; without a marker, it must follow a
    semicolon.
    """
    reader = machine.reader
    pattern = another_object if marked else another_bare
    yield from skip_surplus_brackets(machine, marked=marked)
    while True:
        found = pattern(reader.text, reader.at)
        if found is None or found.lastindex or reader.ended:
            return found is not None and found.lastindex is not None
        yield


def skip_surplus_brackets(machine: Machine, *, marked: bool) -> Grammar:
    """Skip surplus closing brackets, which are markup after a marked call."""
    reader = machine.reader
    while marked and (reader.at < len(reader.text) or not reader.ended):
        if reader.at >= len(reader.text):
            yield
        elif reader.text[reader.at] in "}]" and not (yield from ends_call(machine, 0, own=True)):
            reader.take(1)
        else:
            return


def separator(machine: Machine) -> Grammar:
    """Consume the separator before the next object; it belongs to that object's preamble."""
    reader = machine.reader
    yield from machine.skip_whitespace()
    if reader.text[reader.at] != "{":
        reader.take(1)
        yield from machine.skip_whitespace()
    machine.candidate.preamble = len(reader.buffered.pieces)


def array(machine: Machine, keys: Keys) -> Grammar:
    """Read an array of calls. Each element is a separate candidate.

    Brackets and commas are syntax from the first call on. Before it they are text, as are elements that are not calls.
    A missing closing bracket is implied.
    """
    reader = machine.reader
    reader.take(1)
    marked = machine.candidate.marked
    yield from machine.skip_whitespace()
    first, known = True, False
    while True:
        char = yield from reader.peek()
        if char == "]" and not first:
            reader.take(1)
            return
        if not first:
            if char == ",":
                reader.take(1)
                yield from machine.skip_whitespace()
            elif char != "{" or not marked:
                return
            if (yield from reader.peek()) == "]":
                continue
            machine.open_next_element(marked=marked)
        yield from members(machine, keys)
        end_element(machine)
        known = known or machine.candidate.committed
        machine.end_body(alone=known)
        first = False
        yield from machine.skip_whitespace()


def end_element(machine: Machine) -> None:
    """Decide at the closing brace of an envelope object whether it was a call."""
    candidate = machine.candidate
    # Everything is known here. An object without a name becomes text, unless its content has been emitted as text or
    # reasoning, or it contained an array of calls. An object with the name of an unknown tool counts as an unknown call
    # only if it has a key that only calls have, since any JSON object may have a `name`. An object with an offered name
    # but no arguments is a call with empty arguments if it has such a key, or if a marker opened it.
    if candidate.name is None:
        if candidate.envelope.emitted_text or machine.frames.state is not State.CANDIDATE:
            return
        raise NoCall
    if not candidate.offered:
        if machine.frames.state is State.CANDIDATE:
            if not candidate.envelope.has_call_key:
                raise NoCall
            machine.disown()
        return
    if not (candidate.arguments.begun or candidate.marked or candidate.envelope.has_call_key):
        raise NoCall
    settle(machine)


def members(machine: Machine, keys: Keys) -> Grammar:
    """Read the members of an envelope object through its closing brace."""
    reader = machine.reader
    candidate = machine.candidate
    if (yield from reader.peek()) != "{":
        raise Mismatch
    candidate.envelope.json.stack.append("}")
    reader.take(1)
    offset = yield from reader.whitespace_end(0)
    doubled = offset >= 0 and reader.text.startswith("{", reader.at + offset)
    if doubled:
        candidate.envelope.json.add_repair("doubled_braces")
        reader.take(offset + 1)
    while (name := (yield from next_key(machine, candidate))) is not None:
        found = keys.get(name)
        if ANY_NAME in keys and candidate.name is None and (found is None or name in machine.tools):
            yield from keyed_member(machine, keys[ANY_NAME], name)
            continue
        # Without a marker, the first key that no call has shows that the object is not a call. If the JSON needed a
        # repair, it may not even be an object, so `Mismatch` turns only its opening brace into text. Otherwise, the
        # entire object becomes text (`NoCall`), so that nothing inside it is mistaken for a call.
        unproved = found is None and not candidate.marked and not candidate.committed
        if unproved and not is_evidence(machine, name):
            if candidate.envelope.json.repairs:
                raise Mismatch
            raise NoCall
        if found is not None and found.role is KeyRole.ARGUMENTS:
            candidate.envelope.has_call_key = True
        yield from colon(machine)
        yield from (yield from any_member(machine, keys, found, name))
    if doubled:
        offset = yield from reader.whitespace_end(0)
        if offset >= 0 and reader.text.startswith("}", reader.at + offset):
            reader.take(offset + 1)


def any_member(machine: Machine, keys: Keys, found: EnvelopeKey | None, name: str) -> Generator[None, None, Grammar]:
    """Return the grammar that reads the value of a key, which may be an argument although the envelope has another role
    for it, or none.
    """
    candidate = machine.candidate
    role = found.role if found is not None else None
    if candidate.offered:
        if role is KeyRole.ARGUMENTS or (role is None and is_synonym(name)):
            prescribed = role is KeyRole.ARGUMENTS
            canonical = prescribed and name in ("arguments", candidate_envelope(candidate, found).arguments[0])
            holds = yield from holds_arguments(machine, name, prescribed=prescribed, canonical=canonical)
            if holds:
                known = can_resume(machine)
                return (yield from arguments_member(machine, found, name)) if known else other_arguments(machine)
            role = None
        if role in (KeyRole.NAME, KeyRole.TYPE) and declares(machine, name):
            return stray_member(machine, name, role)
        if role not in ENVELOPE_ROLES and accepts(machine, name):
            return flat_member(machine, name)
        if role is None:
            if not (candidate.marked or candidate.committed):
                raise NoCall
            return stray_member(machine, name)
    elif role is KeyRole.ARGUMENTS and candidate.arguments.begun and (candidate.marked or candidate.committed):
        return other_arguments(machine)
    elif candidate.name is None and candidate.marked and role in (None, KeyRole.TYPE):
        return stray_member(machine, name, role)
    return (yield from member(machine, keys, found, name))


def candidate_envelope(candidate: Candidate, found: EnvelopeKey | None) -> Envelope:
    """Return the envelope of the candidate's format, or of the format that a key belongs to."""
    form = candidate.format or (found.format if found is not None else None)
    return Envelope() if form is None else envelope_of(form)


def keyed_member(machine: Machine, found: EnvelopeKey, name: str) -> Grammar:
    """Read a member whose key is the tool name and whose value is the arguments."""
    set_name(machine, name, found.format, "name")
    yield from colon(machine)
    yield from (yield from arguments_member(machine, found, "arguments"))


def next_key(machine: Machine, candidate: Candidate) -> Generator[None, None, str | None]:
    """Consume the key of the next member and return it, or return None at the end of the object.

    At the end of the object, the closing brace has been consumed or has been found to be missing.
    """
    reader = machine.reader
    while True:
        yield from blank(machine)
        char = reader.text[reader.at]
        if char == "}":
            candidate.envelope.json.stack.pop()
            reader.take(1)
            return None
        # Models often omit the last brace. That is tolerated only after complete arguments; anywhere else, a missing
        # brace means that the object is broken, and a closer here must not complete it.
        over = candidate.arguments.complete or candidate.arguments.flat or candidate.envelope.others
        if over and (char == "]" or (char in "<[`" and (yield from ends_call(machine, 0, own=True)))):
            candidate.arguments.json.add_repair("missing_closer")
            candidate.envelope.json.stack.pop()
            return None
        if char != ",":
            return (yield from key(machine))
        reader.take(1)


def colon(machine: Machine) -> Grammar:
    """Consume the colon after a key, and whitespace up to the first character of the value."""
    reader = machine.reader
    yield from blank(machine)
    if reader.text[reader.at] != ":":
        raise Mismatch
    reader.take(1)
    yield from blank(machine)


def key(machine: Machine) -> Generator[None, None, str]:
    """Consume a key of the envelope and return it decoded."""
    reader = machine.reader
    state = machine.candidate.envelope.json
    if reader.text[reader.at] in json_text.QUOTES:
        return (yield from json_text.read_string(reader, state))
    name = yield from json_text.bare_word(reader)
    state.add_repair("unquoted_key")
    reader.take(len(name))
    return name


def blank(machine: Machine) -> Grammar:
    """Skip whitespace and comments around the members, up to the next significant character."""
    reader = machine.reader
    reader.target = False
    yield from json_text.skip(reader, machine.candidate.envelope.json)


def member(machine: Machine, keys: Keys, found: EnvelopeKey | None, name: str) -> Generator[None, None, Grammar]:
    """Return the grammar that reads the value of a key."""
    reader = machine.reader
    candidate = machine.candidate
    char = reader.text[reader.at]
    role = found.role if found else None
    if found is None:
        return ignored_member(machine)
    if found.nests and char == "{":
        return nested_member(machine, keys, found, name)
    if role is KeyRole.NAME and char in json_text.QUOTES:
        return name_member(machine, found, name)
    if role is KeyRole.ARGUMENTS:
        return (yield from arguments_member(machine, found, name))
    if role is KeyRole.CALLS and char == "[" and candidate.name is None:
        machine.candidate.format = found.format
        machine.set_marked(True)
        return array(machine, keys)
    if role in (KeyRole.THOUGHT, KeyRole.FINAL):
        return thought_or_final_member(machine, found, char)
    if role is KeyRole.ID:
        return id_member(machine, name)
    if candidate.marked or candidate.committed:
        return ignored_member(machine)
    if role is KeyRole.TYPE:
        return type_member(machine)
    raise NoCall


def thought_or_final_member(machine: Machine, found: EnvelopeKey, char: str) -> Grammar:
    """Return the grammar for a thought or a final answer. In a call, only a thought after the arguments is emitted."""
    candidate = machine.candidate
    thought = found.role is KeyRole.THOUGHT
    if thought and char == '"' and candidate.arguments.complete and machine.frames.state is State.CALL:
        machine.end_body()
        return emit_value(machine, found.format, Sink.REASONING, MAX_THOUGHT)
    if candidate.name is not None or candidate.envelope.depth_entered:
        return ignored_member(machine)
    if thought and char == '"':
        return emit_value(machine, found.format, Sink.REASONING, MAX_THOUGHT)
    if not thought and char == "{":
        return final_answer(machine, found.format)
    if candidate.marked or candidate.committed:
        return ignored_member(machine)
    raise NoCall


def name_member(machine: Machine, found: EnvelopeKey, key_name: str) -> Grammar:
    """Read the tool name."""
    reader = machine.reader
    envelope = machine.candidate.envelope
    text = yield from json_text.read_string(reader, envelope.json)
    envelope.has_call_key = envelope.has_call_key or found.decisive
    set_name(machine, text, found.format, key_name)


def set_name(machine: Machine, text: str, form: Format, key_name: str) -> None:
    """Record the name, and commit or disown the candidate if it is marked or its arguments have been queued.

    Without a marker, a name alone does not commit the candidate: only arguments make the object a call.
    """
    candidate = machine.candidate
    if candidate.name is not None:
        return
    if candidate.format is None:
        candidate.format = form
    body = envelope_of(candidate.format)
    if key_name not in ("name", body.name[0]):
        candidate.arguments.json.add_repair("name_key")
    machine.set_name(text)
    if not candidate.marked and candidate.offered:
        # Without a marker, only the exact name is recognized after text, and only another spelling of it before text.
        seen, name = machine.text_state.text_seen, machine.candidate.name or ""
        candidate.offered = without_namespace(text) == name or (not seen and is_spelling(text, name))
    if not candidate.offered and (candidate.marked or candidate.arguments.begun):
        machine.disown()
    if candidate.offered and (candidate.marked or candidate.arguments.begun):
        note_queued_arguments(machine)
        machine.commit()
        place_declared(machine)


def nested_member(machine: Machine, keys: Keys, found: EnvelopeKey, key_name: str) -> Grammar:
    """Read a call nested under a key.

    The `function` key alone is not decisive: `tool_choice` and tool descriptions contain it too.
    """
    candidate = machine.candidate
    if candidate.format is None:
        candidate.format = found.format
    candidate.envelope.depth_entered += 1
    candidate.envelope.has_call_key = candidate.envelope.has_call_key or key_name != "function"
    if candidate.envelope.depth_entered > MAX_NESTING:
        raise Mismatch
    if not envelope_of(candidate.format).written_nest:
        candidate.arguments.json.add_repair("nested_call")
    yield from members(machine, keys)


def arguments_member(machine: Machine, found: EnvelopeKey | None, key_name: str) -> Generator[None, None, Grammar]:
    """Return the grammar that reads the arguments; they are queued while the name is unknown."""
    candidate = machine.candidate
    if candidate.arguments.begun and not resume_arguments(machine):
        raise Mismatch
    if candidate.format is None and found is not None:
        candidate.format = found.format
    body = candidate_envelope(candidate, found)
    if key_name not in ("arguments", body.arguments[0]):
        candidate.arguments.json.add_repair("arguments_key")
    described = key_name == "parameters" and not (candidate.marked or candidate.committed)
    if described and (yield from is_schema(machine)):
        raise NoCall
    candidate.envelope.has_call_key = candidate.envelope.contained = True
    if candidate.name is not None and not candidate.offered and machine.frames.state is State.CANDIDATE:
        machine.disown()
    machine.set_target()
    # Without a schema, no member outside the object is known to be an argument.
    described = not candidate.offered or root_of(machine) is not None
    return arguments(machine, as_string=body.as_string, leave_open=described and not machine.tools.accepts_any)


def id_member(machine: Machine, key_name: str) -> Grammar:
    """Read the call's id, which is a string or a number. An id that follows the commit can no longer be reported; the
    repair `late_id` records this.
    """
    reader = machine.reader
    candidate = machine.candidate
    state = candidate.envelope.json
    written = ""
    if reader.text[reader.at] in json_text.QUOTES:
        text = yield from json_text.read_string(reader, state)
        written = encode_basestring(text)
    else:
        captured: list[str] = []
        reader.target = captured
        yield from json_text.value(reader, JsonState(state.repairs, depth=state.depth))
        reader.target = False
        text = "".join(captured)
    kept = candidate.name is None or declares(machine, key_name)
    if kept:
        keep_member(machine, key_name, written or text, KeyRole.ID)
    if not candidate.committed and text not in ("", "null"):
        candidate.id = text
    elif candidate.committed and not kept:
        candidate.arguments.json.add_repair("late_id")


def ignored_member(machine: Machine) -> Grammar:
    """Skip a value that is irrelevant to the call."""
    reader = machine.reader
    reader.target = False
    state = machine.candidate.envelope.json
    yield from json_text.value(reader, state)


def type_member(machine: Machine) -> Grammar:
    """Skip the `type` of an object without a marker.

    Raises:
        NoCall: no call has this type.
    """
    if (yield from has_foreign_type(machine)):
        raise NoCall
    yield from ignored_member(machine)


def final_answer(machine: Machine, form: Format) -> Grammar:
    """Read the final answer of the strict one-object protocol, and emit its content as text."""
    reader = machine.reader
    candidate = machine.candidate
    machine.candidate.format = form
    machine.set_marked(True)
    candidate.envelope.json.stack.append("}")
    reader.take(1)
    while (name := (yield from next_key(machine, candidate))) is not None:
        yield from colon(machine)
        if name == envelope_of(form).final[1]:
            yield from emit_value(machine, form, Sink.TEXT, 0)
        else:
            yield from ignored_member(machine)


def emit_value(machine: Machine, form: Format, sink: Sink, limit: int) -> Grammar:
    """Emit a value as text or reasoning: a string is decoded as it streams, and any other value is emitted as its JSON
    text.
    """
    machine.candidate.format = form
    machine.set_marked(True)
    candidate = machine.candidate
    candidate.envelope.emitted_text = True
    reader = machine.reader
    reader.release(Sink.SYNTAX)
    reader.target = TextTarget(reader.emitter, sink, limit, quoted=reader.text[reader.at] in json_text.QUOTES)
    state = JsonState(candidate.arguments.json.repairs, depth=machine.limits.depth, around=CallSurroundings(machine))
    yield from json_text.value(reader, state)
    reader.target = False


# --- evidence that an unmarked object is not a call


def has_foreign_type(machine: Machine) -> Generator[None, None, bool]:
    """Return whether the value here, the `type` of an object, is one that no call has."""
    reader = machine.reader
    while True:
        found = type_text(reader.text, reader.at)
        if found is None:
            return reader.text[reader.at] == '"'
        if found[2]:
            return found[1] not in TYPES
        yield from reader.more()


def is_schema(machine: Machine) -> Generator[None, None, bool]:
    """Return whether a JSON Schema begins here, in the position of the arguments: if so, the object describes a tool
    instead of calling it.

    The result is always False for a tool that declares a parameter named `type`.
    """
    reader = machine.reader
    tool = machine.tools.schema(machine.candidate.name)
    while "type" not in properties(tool):
        found = schema_begins(reader.text, reader.at)
        if found is None or found.lastindex:
            return found is not None
        yield from reader.more()
    return False


# --- text and reasoning in an envelope


class TextTarget:
    """Target that emits a value as text or reasoning, and discards everything beyond a limit.

    A string is decoded as it streams; any other value is emitted as its JSON text.
    """

    __slots__ = ("_emitter", "_high_surrogate", "_length", "_limit", "_quoted", "_sink")

    def __init__(self, emitter: Emitter, sink: Sink, limit: int, *, quoted: bool) -> None:
        self._emitter = emitter
        self._sink = sink
        self._limit = limit
        """In characters; 0 means unlimited."""
        self._quoted = quoted
        """Whether the value is a string."""
        self._high_surrogate = ""
        """First half of a surrogate pair that is waiting for its second half."""
        self._length = 0

    def append(self, piece: str) -> None:
        """Emit a piece of strict JSON."""
        if self._quoted:
            if piece == '"':
                return
            piece, self._high_surrogate = json_nested.split_surrogate(self._high_surrogate + piece)
            piece = json_nested.unescape(piece)
        room = len(piece)
        if self._limit:
            room = max(0, self._limit - self._length)
        self._emitter.put(self._sink, piece[:room])
        if room < len(piece):
            self._emitter.set_discard_reason("limit")
            self._emitter.put(Sink.DISCARD, piece[room:])
        self._length += len(piece)
