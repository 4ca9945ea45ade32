"""Calls written as expressions: `f(a=1, b='x')` or `f{a:1}`, alone, in sequence or in a list.

A call is committed once its name is known to be that of an offered tool and its bracket has opened; its arguments
stream from that point on. Values are read by `json.text.value` in the format's dialect (`literals.py`) and typed by the
tool's schema (`typed.py`). Deviations from the language are tolerated and named in `repairs`: `positional_argument`,
`json_arguments` (one dict in place of all arguments), `key_separator`, `repeated_key`, `missing_closer`.

Arguments may also be flags, `{--a 1 --b "x"}`, with only blanks between a key, its value and the next flag.

    expressions = call *( *( WSP / ";" ) call ) / "[" call *( "," call ) [ "," ] "]"
    call        = name "(" [ arguments [ "," ] ] ")"        ; or the format's other brackets
    arguments   = dict / argument *( "," argument )
    argument    = [ key ( "=" / ":" ) ] value / flag [ value ]
"""

import json
import re
from collections.abc import Callable, Generator
from functools import lru_cache

from statemachine import schema
from statemachine.bodies.words import word
from statemachine.endings import ends_call, ends_line, stop_follows
from statemachine.formats.format import Anchor, Expression, Format
from statemachine.json import text as json_text
from statemachine.json import typed as json_typed
from statemachine.json.bare import dialect_of
from statemachine.json.nesting import Nesting
from statemachine.json.state import JsonState
from statemachine.json.typed import wants_items
from statemachine.machine.machine import Machine
from statemachine.names import without_namespace
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.runs import Run

OUTSIDE = Run(r"[^()\[\]{}\"'<]*+")
"""Text outside strings and brackets."""
MAX_KEY = 2048
"""Maximum length of a key, in its JSON form."""

keyword = re.compile(r"([A-Za-z_]\w{0,255}+)([ \t\r\n]{0,64}+)([=:])(?!=)").match
keyword_begun = re.compile(r"[A-Za-z_]\w{0,255}+[ \t\r\n]{0,64}+=?+\Z").match
arguments_begin = re.compile(
    r"[ \t\r\n]{0,64}+(?:\Z|(\))|[\"'{\[0-9+-]()|[A-Za-z_]\w{0,127}+[ \t]{0,16}+(?:\Z|=(?:\Z|(?!=)())))"
).match
"""Matches the beginning of arguments without a marker: a closing bracket (group 1), a literal or a keyword."""
semicolon_ends = re.compile(r"[ \t]{0,64}+;[ \t]{0,64}+(?:\Z|(?=\r?\n)()|\r\Z)").match
"""Matches a semicolon at the end of a line (with a group) or of the text."""
flag_text = re.compile(r"[\w.-]{1,255}+").match
# Text that may follow a string, with a group where it is complete.
SPACE = r"[ \t\r\n]{0,64}+"
WORD = r"[A-Za-z_]\w{0,255}+"
KEY = rf"{WORD}{SPACE}(?:\Z|[=:](?:\Z|(?!=)()))"
ITEM = r"[\"'{\[(\])}0-9+.#-]()|(?:True|False|None|true|false|null)(?=\W)()|[A-Za-z]{1,5}+\Z"
CALL = r"[A-Za-z_][\w.-]{0,255}+(?:\Z|\(())"
END = r"[\r\n]()|[ \t]{1,64}+(?:\Z|[\w\r\n]())"
ONE_LINE_STRING = r"'(?:[^'\\\r\n]|\\.)*+'|\"(?:[^\"\\\r\n]|\\.)*+\""
SIMPLE = rf"[^()\"'\r\n]|{ONE_LINE_STRING}"
short_call = re.compile(
    rf"\({SPACE}(?:\Z|{WORD}{SPACE}(?:\Z|=(?:\Z|(?!=)())))"
    rf"|\((?:{SIMPLE}|\((?:{SIMPLE})*+\)){{0,256}}+(?:\)()|\Z|\([^\r\n]{{0,256}}+\Z|[\"'][^\r\n]{{0,256}}+\Z)"
).match
"""Matches brackets up to the first keyword (group 1) or, without one, up to the closing bracket (group 2) in the same
line; without a group, a beginning of these.
"""
link_follows = re.compile(r"[ \t\r\n]{0,64}+(?:\Z|\](?:\Z|[(\[:\w]()))").match
another_call = re.compile(rf"[ \t;,]{{0,64}}+(?:\Z|{CALL})").match
key_follows = re.compile(rf"{SPACE}(?:\Z|[)#]()|{KEY})").match
argument_follows = re.compile(rf"{SPACE}(?:\Z|{KEY}|{ITEM})").match
item_follows = re.compile(rf"{SPACE}(?:\Z|{ITEM}|{WORD}{SPACE}(?:\Z|:()))").match
call_follows = re.compile(rf"\Z|;()|{END}|{SPACE},{SPACE}(?:\Z|{CALL})").match
list_follows = re.compile(rf"{SPACE}(?:\Z|,{SPACE}(?:\Z|\]()|{CALL})|\](?:\Z|{END}))|{END}").match


@lru_cache(maxsize=32)
def next_call(opener: str, brackets: str) -> Callable[[str, int], re.Match[str] | None]:
    """Return what matches a separator (group 1) and the name of another call in the same block, or their beginning at
    the end of the text, in which case no group matches. `brackets` may follow the name.

    If the opener ends with a word (`<|tool_call>{*}call:`), that word is repeated before each name.
    """
    word = opener.rpartition("{*}")[2] if "{*}" in opener else ""
    begun = r"(?:[A-Za-z_][\w.-]{0,255}+)?+\Z"
    for char in reversed(word):
        begun = f"(?:{re.escape(char)}{begun}|\\Z)"
    separator = r"[ \t\r\n;,]{0,256}+"
    name = rf"[A-Za-z_][\w.-]{{0,255}}+(?=[{re.escape(brackets)}])"
    return re.compile(f"({separator}{re.escape(word)}){name}|{separator}{begun}").match


def read(machine: Machine, form: Format, body: Expression) -> Grammar:
    """Read one or more calls, through the end of the list or of the last call, and end each of them."""
    machine.candidate.format = form
    yield from machine.skip_whitespace()
    if body.array:
        yield from call_list(machine, body)
        return
    yield from call(machine, body)
    yield from further_calls(machine, form, body)


def read_named(machine: Machine, form: Format, body: Expression) -> Grammar:
    """Read a call whose name and opening bracket have been read, and the calls after it.

    Without a marker, the arguments must begin like arguments, and a call without any must end its line.
    """
    reader = machine.reader
    while (found := arguments_begin(reader.text, reader.at)) and not found.lastindex:
        yield from reader.more()
    if found is None or (found.lastindex == 1 and not (yield from ends_statement(machine, found.end() - reader.at))):
        raise Mismatch
    machine.candidate.format = form
    machine.begin_arguments()
    arguments = Arguments(machine, body, body.brackets[1])
    yield from arguments.read()
    machine.candidate.arguments.complete = arguments.sound
    yield from further_calls(machine, form, body)


def ends_statement(machine: Machine, offset: int) -> Generator[None, None, bool]:
    """Return whether the line, or a statement of it, ends `offset` characters from here."""
    reader = machine.reader
    while reader.at + offset >= len(reader.text) and not reader.ended:
        yield
    return reader.text.startswith(";", reader.at + offset) or (yield from ends_line(machine, offset))


def further_calls(machine: Machine, form: Format, body: Expression) -> Grammar:
    """End a call, and read those that follow it."""
    reader, bare = machine.reader, machine.candidate.bare
    known = machine.candidate.committed
    machine.end_body()
    follows = next_call("" if bare or not form.openers else form.openers[0], body.brackets[0] + body.other_brackets[:1])
    while (length := (yield from separator_length(machine, follows))) >= 0:
        if not bare:
            reader.take(length)
        machine.open_next_element(marked=not bare)
        if bare:  # text, if the next call is not one
            reader.take(length)
        yield from call(machine, body)
        known = known or machine.candidate.committed
        machine.end_body(alone=known)
    while known and (over := semicolon_ends(reader.text, reader.at)) is not None:
        if over.lastindex or reader.ended:
            reader.take(over.end() - reader.at)
            break
        yield


def call_list(machine: Machine, body: Expression) -> Grammar:
    """Read calls in square brackets. Each is a separate candidate.

    Brackets and commas are syntax from the first call on.
    """
    reader = machine.reader
    if (yield from reader.peek()) != "[":
        raise Mismatch
    reader.take(1)
    yield from machine.skip_whitespace()
    known = False
    while True:
        yield from call(machine, body)
        known = known or machine.candidate.committed
        machine.end_body(alone=known)
        yield from machine.skip_whitespace()
        if (yield from reader.peek()) == ",":
            reader.take(1)
            yield from machine.skip_whitespace()
        elif reader.text[reader.at] != "]":
            # A missing `]` is implied only by markup that can only follow a call; before any other text, this is not a
            # list of calls.
            if (yield from ends_call(machine, 0, own=True)):
                return
            raise Mismatch
        if reader.text[reader.at] == "]":
            reader.take(1)
            return
        machine.open_next_element(marked=True)


def separator_length(
    machine: Machine, follows: Callable[[str, int], re.Match[str] | None]
) -> Generator[None, None, int]:
    """Return the length of the separator before the next call, or −1 if no call follows."""
    reader = machine.reader
    while (found := follows(reader.text, reader.at)) is not None:
        if found.lastindex:
            return found.end(1) - reader.at
        if reader.ended:
            break
        yield
    return -1


def call(machine: Machine, body: Expression) -> Grammar:
    """Read one call through its closing bracket."""
    reader = machine.reader
    candidate = machine.candidate
    name = yield from word(machine)
    head, _, again = name.partition(body.assign)
    name = head if head == again else name  # a repeated name: `f:f`
    if candidate.marked:
        yield from machine.skip_whitespace()
    brackets = next((pair for pair in (body.brackets, body.other_brackets) if reader.text[reader.at] in pair[:1]), "")
    if not brackets:
        raise Mismatch
    machine.set_name(name)
    # If the name is unknown, this counts as a call only after a marker, because any text may contain `word(`. The
    # arguments are skipped as one unit, so that a call quoted inside them is not executed.
    if not candidate.offered or (not candidate.marked and machine.text_state.text_seen and not is_same(name, machine)):
        if not candidate.marked:
            raise Mismatch
        machine.disown()
        yield from skip_arguments(machine, body)
        return
    form = candidate.format
    in_line = form is not None and form.anchor is Anchor.LINE and not candidate.bare
    in_list = body.array and not candidate.marked
    if brackets == "()" and (in_line or in_list) and not (yield from may_be_call(machine, in_line=in_line)):
        raise Mismatch
    machine.begin_arguments()
    reader.take(1)
    arguments = Arguments(machine, body, brackets[1])
    yield from arguments.read()
    candidate.arguments.complete = arguments.sound


def may_be_call(machine: Machine, *, in_line: bool) -> Generator[None, None, bool]:
    """Return whether the brackets here may be those of a call that no marker other than a label announces.

    Prose contains such expressions too, mostly without keywords: `Action: save() returns nothing`. So with `in_line`,
    brackets without a keyword must end their line, or another call must follow. In a list, which then is a link
    (`[save()](…)`), text must not directly follow the list.
    """
    reader = machine.reader
    while (found := short_call(reader.text, reader.at)) is not None and not found.lastindex:
        if reader.ended:
            return True
        yield
    if found is None or found.lastindex == 1:
        return True
    length = found.end() - reader.at
    if not in_line:
        while (link := link_follows(reader.text, reader.at + length)) is not None and not link.lastindex:
            if reader.ended:
                return True
            yield
        return link is None
    while (following := another_call(reader.text, reader.at + length)) is not None and not following.lastindex:
        if reader.ended:
            break
        yield
    if following is not None or (yield from ends_statement(machine, length)):
        return True
    return (yield from stop_follows(machine, length))


def is_same(name: str, machine: Machine) -> bool:
    """Return whether a name differs from that of the tool only in case and namespace prefixes."""
    return without_namespace(name).lower() == (machine.candidate.name or "").lower()


def bracketed_arguments(machine: Machine, body: Expression) -> Grammar:
    """Read the bracketed arguments of a call whose name has been read."""
    reader = machine.reader
    yield from machine.skip_whitespace()
    if reader.text[reader.at] != body.brackets[0]:
        raise Mismatch
    if not machine.candidate.offered:
        yield from skip_arguments(machine, body)
        return
    machine.begin_arguments()
    reader.take(1)
    arguments = Arguments(machine, body, body.brackets[1])
    yield from arguments.read()
    machine.candidate.arguments.complete = arguments.sound


def keyword_follows(machine: Machine) -> Generator[None, None, bool]:
    """Return whether an argument with a keyword follows."""
    reader = machine.reader
    yield from machine.skip_whitespace()
    while (found := keyword(reader.text, reader.at)) is None or found.end() >= len(reader.text):
        if found is None and not keyword_begun(reader.text, reader.at):
            return False
        yield from reader.more()
    return True


def arguments_in_brackets(machine: Machine) -> Grammar:
    """Read arguments up to their closing bracket, which belongs to the call's closer."""
    machine.begin_arguments()
    arguments = Arguments(machine, Expression(), ")", takes_close=False)
    yield from arguments.read()
    machine.candidate.arguments.complete = arguments.sound


def skip_arguments(machine: Machine, body: Expression) -> Grammar:
    """Skip the arguments of an unknown call through the matching bracket, whatever they contain."""
    reader = machine.reader
    reader.take(1)
    dialect, state, depth = dialect_of(body), JsonState(), 1
    # Only the number of open brackets is tracked, not their kinds, because the arguments need not be well-formed.
    # Strings are read according to the dialect, because brackets inside strings are ignored.
    while depth:
        yield from reader.flow(OUTSIDE)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "([{":
            reader.take(1)
            depth += 1
        elif reader.text[reader.at] in ")]}":
            reader.take(1)
            depth -= 1
        elif (yield from dialect.opening(reader)) is not None:
            yield from dialect.string(reader, state)
        else:
            reader.take(1)


class Arguments:
    """Reader for the arguments of one call, which it emits as one JSON object."""

    __slots__ = (
        "body",
        "close",
        "dialect",
        "free",
        "keyed",
        "machine",
        "nesting",
        "opened",
        "schema",
        "sound",
        "takes_close",
        "typed",
    )

    def __init__(self, machine: Machine, body: Expression, close: str, *, takes_close: bool = True) -> None:
        self.machine = machine
        self.body = body
        self.close = close
        """Closing bracket of the arguments."""
        self.takes_close = takes_close
        """Whether that bracket is consumed."""
        self.opened = False
        """Whether the object's opening brace has been emitted."""
        self.keyed = False
        """Whether an argument had a key, so that the further ones have keys too."""
        self.sound = True
        """False once an argument whose values belong together was repeated, so that one of them would be lost."""
        candidate = machine.candidate
        self.schema = machine.tools.schema(candidate.name) if candidate.offered else None
        self.free = list(schema.properties(self.schema)) if close == ")" else []
        """Parameters that positional arguments can fill."""
        state = candidate.arguments.json
        state.dialect = self.dialect = dialect_of(body)
        state.may_follow_string = self.may_follow_string if close == ")" else None
        if self.dialect.sets:
            self.typed: json_typed.Typed | None = json_typed.Typed(schema.arguments_node(self.schema), sets=True)
        else:
            self.typed = json_typed.typing_of(self.schema)
        state.typed = self.typed
        arguments = candidate.arguments
        arguments.parameters = set()
        self.nesting: Nesting | None = None
        if self.typed is not None:
            self.typed.given = arguments.parameters
            if machine.options.nest:
                self.nesting = self.typed.nesting = Nesting(self.typed.root, arguments.parameters)

    def read(self) -> Grammar:
        """Read all arguments and the closing bracket."""
        try:
            yield from self.read_all()
        except (EndOfText, Mismatch):
            if self.nesting is not None:
                state = self.machine.candidate.arguments.json
                self.nesting.end(self.machine.reader, state, cut=state.cut)
            raise

    def read_all(self) -> Grammar:
        """Read all arguments and the closing bracket, unless the text ends or becomes unreadable."""
        machine = self.machine
        reader = machine.reader
        state = machine.candidate.arguments.json
        # `cut` stays set until a value is complete, so that a call whose text ends after `f(` or `a=` is reported as
        # incomplete instead of being completed with braces.
        state.cut = True
        yield from self.blank()
        if reader.text[reader.at] == "{" and self.close == ")" and self.leading_dict_is_all():
            yield from self.dict_arguments()
            return
        while reader.text[reader.at] != self.close:
            yield from self.argument()
            yield from self.blank()
            if reader.text[reader.at] == ",":
                reader.take(1)
                yield from self.blank()
            elif self.body.flag and reader.text[reader.at] == self.body.flag[0]:
                continue
            elif (yield from self.closes()):
                break
            else:
                raise Mismatch
        # Without arguments, `{` has not been emitted yet.
        self.open_object()
        if self.nesting is not None:
            self.nesting.end(reader, state)
        state.stack.clear()
        reader.emit_arguments("}")
        self.end()

    def blank(self) -> Grammar:
        """Skip the whitespace and comments around the arguments, up to the next significant character, without emitting
        them.
        """
        machine = self.machine
        reader = machine.reader
        target, reader.target = reader.target, False
        try:
            yield from json_text.skip(reader, machine.candidate.arguments.json)
        finally:
            reader.target = target

    def closes(self) -> Generator[None, None, bool]:
        """Return whether the arguments end here, either at their closing bracket or because only the end of the call
        can follow.
        """
        machine = self.machine
        reader = machine.reader
        char = reader.text[reader.at]
        if char == self.close:
            return True
        if (char == "]" and self.body.array) or (yield from ends_call(machine, 0, own=True)):
            machine.candidate.arguments.json.add_repair("missing_closer")
            return True
        return False

    def may_follow_string(self, offset: int) -> Generator[None, None, bool]:
        """Return whether the text `offset` characters from here may follow a string: an item, or brackets that close
        what is open and then text that may follow the call.
        """
        reader = self.machine.reader
        stack = self.machine.candidate.arguments.json.stack[int(self.opened) :]
        while True:
            offset = yield from reader.whitespace_end(offset)
            char = reader.text[reader.at + offset : reader.at + offset + 1] if offset >= 0 else ""
            if not char:
                return True
            if not stack:
                return (yield from self.may_follow_value(offset, char))
            if char == ",":
                return (yield from self.matches(item_follows, offset + 1))
            if char == ":":
                return stack[-1] == "}"
            if char != stack.pop():
                return (yield from ends_call(self.machine, offset, own=True))
            offset += 1

    def may_follow_value(self, offset: int, char: str) -> Generator[None, None, bool]:
        """Return whether the text `offset` characters from here, which begins with `char`, may follow the value of an
        argument.
        """
        if char == ",":
            return (yield from self.matches(key_follows if self.keyed else argument_follows, offset + 1))
        if char == self.close:
            pattern = list_follows if self.body.array else call_follows
            if (yield from self.matches(pattern, offset + 1)):
                return True
            offset += 1
            end = yield from self.machine.reader.whitespace_end(offset)
            if self.body.array and end >= 0 and self.machine.reader.text.startswith("]", self.machine.reader.at + end):
                offset = end + 1
        elif char == "]" and self.body.array:
            offset += 1
        return (yield from ends_call(self.machine, offset, own=True))

    def matches(self, pattern: Callable[[str, int], re.Match[str] | None], offset: int) -> Generator[None, None, bool]:
        """Return whether the pattern matches at an offset, completely or up to the end of the reply."""
        reader = self.machine.reader
        while (found := pattern(reader.text, reader.at + offset)) is not None and not found.lastindex:
            if reader.ended:
                return True
            yield
        return found is not None

    def end(self) -> None:
        """Consume the closing bracket, if present."""
        machine = self.machine
        reader = machine.reader
        if self.takes_close and reader.text[reader.at] == self.close:
            reader.take(1)

    def open_object(self) -> bool:
        """Emit the object's opening brace if necessary; return True if it had already been emitted."""
        if self.opened:
            return True
        self.opened = True
        self.machine.candidate.arguments.json.stack.append("}")
        self.machine.reader.emit_arguments("{")
        return False

    def leading_dict_is_all(self) -> bool:
        """Return whether a leading dict must contain all arguments, because it cannot be the value of the first
        parameter.
        """
        return not self.free or "object" not in schema.types(self.schema, self.free[0])

    def dict_arguments(self) -> Grammar:
        """Read one dict that contains all arguments."""
        machine = self.machine
        reader = machine.reader
        state = machine.candidate.arguments.json
        state.add_repair("json_arguments")
        yield from json_text.value(reader, state)
        yield from self.blank()
        self.opened = True
        if not (yield from self.closes()):
            raise Mismatch
        self.end()

    def argument(self) -> Grammar:
        """Read one argument."""
        machine = self.machine
        reader = machine.reader
        arguments = machine.candidate.arguments
        state = arguments.json
        flagged = bool(self.body.flag) and reader.text[reader.at] == self.body.flag[0]
        key = yield from self.flag() if flagged else self.marked_key() if self.close == "}" else self.key()
        self.keyed = self.keyed or key is not None
        if key is None:
            key = self.positional_parameter()
        elif self.typed is not None and (near := self.typed.root.near(key, arguments.parameters)) is not None:
            state.add_repair("parameter_name")
            key = near
        nested = None if self.nesting is None or self.declares(key) else self.nesting.member(key)
        if self.nesting is not None and nested is not None and not flagged:
            self.open_object()
            yield from self.blank()
            self.nesting.begin(reader, key, nested[0])
            state.cut = True
            self.typed.expect(nested[1])  # type: ignore[union-attr]  # there is a schema
            yield from json_text.value(reader, state)
            self.nesting.pause(reader)
            return
        if key in arguments.parameters:
            state.add_repair("repeated_key")
            node = None if self.typed is None else self.typed.root.member(key)
            self.sound = self.sound and not wants_items(node)
        elif key in self.free:
            self.free.remove(key)
        more = bool(arguments.parameters)
        arguments.parameters.add(key)
        self.open_object()
        state.cut = True
        reader.emit_arguments((", " if more else "") + json.dumps(key, ensure_ascii=False) + ": ")
        yield from self.blank()
        if flagged and (yield from self.lacks_value()):
            reader.emit_arguments("true")
            state.cut = False
            return
        if self.typed is not None:
            self.typed.member(key)
        yield from json_text.value(reader, state)

    def declares(self, key: str) -> bool:
        """Return whether the schema describes this parameter."""
        return self.typed is not None and self.typed.root.member(key) is not None

    def key(self) -> Generator[None, None, str | None]:
        """Consume the key of an argument and its separator; return the key, or None for a positional argument."""
        machine = self.machine
        reader = machine.reader
        while True:
            # A word alone is inconclusive until the character after it is known: `a` may become `a=1` or `a==b`, or
            # remain `a`.
            found = keyword(reader.text, reader.at)
            if found is not None and found.end() < len(reader.text):
                break
            if found is None and not keyword_begun(reader.text, reader.at):
                return None
            yield from reader.more()
        if found[3] != self.body.assign:
            machine.candidate.arguments.json.add_repair("key_separator")
        reader.take(found.end() - reader.at)
        return found[1]

    def flag(self) -> Generator[None, None, str]:
        """Consume a flag and return its key."""
        reader = self.machine.reader
        for char in self.body.flag:
            if (yield from reader.peek()) != char:
                raise Mismatch
            reader.take(1)
        return (yield from word(self.machine, flag_text))

    def lacks_value(self) -> Generator[None, None, bool]:
        """Return whether the flag has no value."""
        reader, flag = self.machine.reader, self.body.flag
        while flag.startswith(reader.text[reader.at : reader.at + len(flag)]):
            if reader.text.startswith(flag, reader.at):
                return True
            yield from reader.more()
        return reader.text[reader.at] in (self.close, ",")

    def marked_key(self) -> Generator[None, None, str]:
        """Consume the key of an argument and its colon; return the key."""
        machine = self.machine
        reader = machine.reader
        key = KeyTarget()
        target, reader.target = reader.target, key
        try:
            yield from dialect_of(self.body).key(reader, machine.candidate.arguments.json)
        finally:
            reader.target = target
        if key.length > MAX_KEY:
            raise Mismatch
        return str(json.JSONDecoder().raw_decode("".join(key.pieces))[0])

    def positional_parameter(self) -> str:
        """Return the parameter that a positional argument fills.

        Raises:
            Mismatch: no parameter is left.
        """
        machine = self.machine
        if not machine.candidate.offered:
            return ""
        if not self.free:
            raise Mismatch
        machine.candidate.arguments.json.add_repair("positional_argument")
        return self.free[0]


class KeyTarget:
    """Target that collects a key; beyond the limit, it only counts the characters."""

    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0

    def append(self, piece: str) -> None:
        """Add a piece of the key's JSON."""
        self.length += len(piece)
        if self.length <= MAX_KEY:
            self.pieces.append(piece)
