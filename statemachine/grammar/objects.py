"""JSON objects that are not calls. They are text through their closing brace, and calls inside them are ignored."""

from statemachine.formats.scanner import JSON_FLAT, JSON_OPEN
from statemachine.grammar.saying import emit_text, scanner_of
from statemachine.machine.machine import INSIDE, Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar
from statemachine.stream.runs import Run

OBJECT = Run(rf"{JSON_FLAT}(?:(?!)()|{JSON_OPEN}()\Z)?+")
STRING = Run(rf'(?:[^"\\]++|\\.)*+(?:(\\\Z)|"{JSON_FLAT}(?:()\Z|{JSON_OPEN}()\Z))?+')
OBJECT.next_runs, STRING.next_runs = {2: STRING}, {2: OBJECT, 3: STRING}
STRING_QUOTE = '"'


def open_plain_object(machine: Machine, newlines: int) -> bool:
    """Read the object here as text if its first keys show that it is not a call. Return whether they do."""
    reader = machine.reader
    begin = reader.at + newlines
    if reader.text[begin] == "[" or not scanner_of(machine).plain(reader.text, begin):
        return False
    emit_text(machine, newlines + 1)
    machine.frames.apply(Input.OBJECT, "}")
    return True


def emit_plain_array(machine: Machine, newlines: int) -> bool:
    """Emit the opening bracket of the array here as text if the keys of its first object show that it is not a call.

    Return whether they do.
    """
    reader = machine.reader
    begin = reader.text.find("{", reader.at + newlines)
    if reader.text[reader.at + newlines] != "[" or not scanner_of(machine).plain(reader.text, begin):
        return False
    emit_text(machine, begin - reader.at)
    return True


def enter_object(machine: Machine, *, quoted: bool) -> None:
    """Enter an object that is not a call, at a point where a run of text stopped inside its braces or inside one of its
    strings.
    """
    machine.text_state.place = INSIDE
    machine.frames.apply(Input.OBJECT, "}", *([STRING_QUOTE] if quoted else []))


def read(machine: Machine) -> Grammar:
    """Read an object through its closing brace, or until it stops being JSON. The frame's closers are its open
    containers.
    """
    reader = machine.reader
    frame = machine.frames.top
    reader.sink = frame.sink
    stack = list(frame.closers)
    run = OBJECT
    if stack[-1] == STRING_QUOTE:
        stack.pop()
        run = STRING
    # Advance over all available text first, so that it is emitted as one piece. The runs skip flat JSON and strings;
    # nesting is counted here, where they stop. Group 1 is an incomplete escape, which waits.
    while True:
        text, at = reader.text, reader.at
        while True:
            found = run.match(text, at)
            group = found.lastindex if found is not None else None
            at = at if found is None else found.end() if group is None else found.start(group)
            run = run.next_runs.get(group or 0, run)
            if group == 1 or at >= len(text):
                break
            char = text[at]
            if char == STRING_QUOTE:
                run = OBJECT if run is STRING else STRING
            elif char in "{[":
                stack.append("}" if char == "{" else "]")
            else:
                closes = char == stack[-1]
                stack.pop()
                if not (closes and stack):  # the end, or not JSON: openers count again
                    emit_text(machine, at + closes - reader.at)
                    machine.frames.apply(Input.END)
                    return
            at += 1
        emit_text(machine, at - reader.at)
        # Between two pieces only the run at this position matters, until a bracket changes the nesting: then `feed`
        # finds that the run does not accept the piece, and this loop continues.
        machine.note_visible_text(True)
        reader.arm(run, waiting=reader.at < len(text))
        yield from reader.more()
        run = reader.last_run or run
