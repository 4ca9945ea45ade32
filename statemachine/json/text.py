"""Tolerant JSON in, strict JSON out, piece by piece, without re-reading.

Theory of operation. `value` is a transducer over a `Reader`: strict input is kept (number spelling, key order, escapes,
whitespace), anything else is repaired in place, and each kind of repair is recorded once in `JsonState`. At every
moment the output is a prefix of strict JSON: a comma waits until something follows it, and a number's sign, point or
exponent waits for its digit. Strings stream in runs. Input that cannot be repaired raises `Mismatch` at the first
offending character.

Nesting is tracked in an explicit stack of closers in `JsonState`: depth is limited by a number, not by Python's call
stack, and the missing closers are known if the text ends early.

Containers are read here for all languages; strings, words and keys of languages other than JSON are read by the
`Dialect` in `JsonState` (`literals.py`). Numbers are read in `numbers.py`, JSON inside a JSON string in `nested.py`,
and values that contradict their schema in `typed.py`, through `JsonState.typed`.
"""

import json
import re
from collections.abc import Callable, Generator
from json.encoder import encode_basestring

from statemachine.json.numbers import number
from statemachine.json.quotes import ends_string
from statemachine.json.separated import value_follows
from statemachine.json.state import CLOSES, MAX_WORD, WORDS, Around, JsonState, word
from statemachine.stream.buffer import Grammar, Mismatch, match_whitespace
from statemachine.stream.reader import Reader
from statemachine.stream.runs import Run

COMMENT_LINE = Run(r"[^\r\n]*+")
COMMENT_BLOCK = Run(r"(?:[^*]++|\*(?!/|\Z))*+(\*\Z)?+")
begins_comment = re.compile(r"//|/\*|#").match

# Text of a quoted string. Valid escapes pass; an incomplete escape at the end of the text waits.
TEXT_OF = r"[^{quotes}\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{{4}})[^{quotes}\\\x00-\x1f]*+)*+"
WAITS = r"(\\(?:u[0-9a-fA-F]{0,3}+)?+\Z)?+"


def string_run(quotes: str, convert: Callable[[str], str] | None = None) -> Run:
    """Return the run for a string's text up to one of the quotes."""
    search = re.compile(rf"[{quotes}\\\x00-\x1f]").search if convert is None else None
    return Run(TEXT_OF.format(quotes=quotes) + WAITS, convert=convert, search=search)


STRICT = string_run('"')
TO_MARKER = string_run('"<')
"""Run for the text of a string up to a quote or a marker that may be escaped."""
MARKUP_STARTS = "<[`\r\n"
"""First characters of markup that can only follow a call."""
AFTER_UNESCAPED_QUOTE = string_run('"' + MARKUP_STARTS)
"""Run for the text of a string after an unescaped quote."""
# Closers by opener. A left double quote is also accepted as a closer, since models write “ on both sides; `string` adds
# the plain double quote to all typographic ones.
CLOSERS = {'"': '"', "'": "'", "\u201c": "\u201d\u201c", "\u201d": "\u201d", "\u2018": "\u2019", "\u2019": "\u2019"}
LOOSE = {quote: string_run('"' + closers) for quote, closers in CLOSERS.items()}
QUOTE_NAMES = {"'": "single_quotes"}
QUOTES = frozenset(CLOSERS)
closes_single = re.compile(r"['\u2019][ \t\r\n]{0,64}+(?:[,:}\]]|(\Z))").match

CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
SIMPLE = frozenset('"\\/bfnrt')

BRACKETS = {"{": "}", "[": "]"}
plain_key = re.compile(r'"[^"\\\x00-\x1f]*+"[ \t\r\n]*+:').match
"""Matches a key that is already strict, and its colon."""
NUMBER_CHARS = frozenset("-+.0123456789eE")
STRICT_WORDS = frozenset(("true", "false", "null"))


def skip(reader: Reader, state: JsonState) -> Grammar:
    """Keep whitespace and drop comments, up to the next significant character."""
    while True:
        end = match_whitespace(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
        if end > reader.at:
            reader.take_arguments(end - reader.at)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "/#" and state.comments:
            yield from comment(reader, state)
        else:
            return


def comment(reader: Reader, state: JsonState) -> Grammar:
    """Drop a comment."""
    while not (found := begins_comment(reader.text, reader.at)):
        if reader.text[reader.at :] != "/":
            raise Mismatch
        yield from reader.more()
    state.add_repair("comment")
    target, reader.target = reader.target, False
    try:
        reader.take(len(found[0]), "repair")
        if found[0] == "/*":
            while not reader.text.startswith("*/", reader.at):
                yield from reader.flow(COMMENT_BLOCK)
                yield from reader.more() if reader.at >= len(reader.text) - 1 else ()
            reader.take(2, "repair")
        else:
            while reader.at >= len(reader.text) or reader.text[reader.at] not in "\r\n":
                yield from reader.flow(COMMENT_LINE)
                yield from reader.more() if reader.at >= len(reader.text) else ()
    finally:
        reader.target = target


def value(reader: Reader, state: JsonState) -> Grammar:
    """Read one complete JSON value.

    Raises:
        Mismatch: at the first character that cannot be repaired, or if the value is nested deeper than `state.depth`.
    """
    stack, dialect, typed = state.stack, state.dialect, state.typed
    brackets = BRACKETS if dialect is None else dialect.brackets
    base = len(stack)
    # One loop reads values at every depth. `stack[:base]` belongs to the caller, which may have containers open; the
    # value has ended when the stack is back at `base`.
    while True:
        yield from skip(reader, state)
        char = reader.text[reader.at]
        if typed is not None and typed.may_contradict(char):
            state.cut = True
            repaired = yield from typed.read_repaired(reader, state)
        else:
            repaired = False
        if repaired:
            pass
        elif char in brackets:
            if len(stack) >= state.depth:
                raise Mismatch
            if typed is not None:
                typed.enter(len(stack))
            stack.append(brackets[char])
            if state.resumed is not None:
                yield from resume(reader, state)
            else:
                bracket(reader, "[" if char == "(" else char)
            state.cut = True
            if not (yield from member(reader, state, base, first=True)):
                return
            continue
        else:
            # A scalar counts as cut off until it has been read to its end; only then can closers alone complete the
            # output.
            state.cut = True
            if dialect is not None:
                yield from dialect.scalar(reader, state)
            elif char in QUOTES:
                yield from string(reader, state, state.around)
            elif char in NUMBER_CHARS:
                yield from number(reader, state)
            else:
                yield from literal(reader, state)
        state.cut = False
        if len(stack) == base or not (yield from member(reader, state, base, first=False)):
            return


def member(reader: Reader, state: JsonState, base: int, *, first: bool) -> Generator[None, None, bool]:
    """Continue in the innermost container; return True where a value must follow, False after the last closer."""
    stack = state.stack
    while len(stack) > base:
        yield from skip(reader, state)
        char = reader.text[reader.at]
        if char in "}])":
            close(reader, state, char, base)
            first = False
            if state.doubled and len(stack) in state.doubled:
                yield from skip_second_brace(reader, state)
            continue
        if not first:
            # At the limit, fail before the comma is consumed: it would count as an argument without being emitted.
            if reader.target is True and not reader.remaining:
                raise Mismatch
            comma = yield from comma_and_space(reader, state)
            if reader.text[reader.at] in "}])":
                if state.dialect is None or not state.dialect.trailing_comma:
                    state.add_repair("trailing_comma")
                # After a trailing comma, only its whitespace is emitted, and another comma is not allowed.
                reader.emit_arguments(comma[1:])
                first = True
                continue
            reader.emit_arguments(comma)
            state.cut = True
        typed = state.typed
        if stack[-1] == "}":
            state.cut = True
            if first and char == "{":
                state.add_repair("doubled_braces")
                reader.take(1, "repair")
                state.doubled = {*(state.doubled or ()), len(stack) - 1}
                yield from skip(reader, state)
                if reader.text[reader.at] in "}])":
                    continue
            yield from key(reader, state) if typed is None else typed.key(reader, state)
        elif typed is not None:
            typed.item(len(stack) - 1)
        return True
    return False


def skip_second_brace(reader: Reader, state: JsonState) -> Grammar:
    """Skip the second closing brace of an object whose braces are doubled."""
    if state.doubled is not None:
        state.doubled.discard(len(state.stack))
    while reader.at >= len(reader.text) and not reader.ended:
        yield
    if reader.text.startswith("}", reader.at):
        reader.take(1, "repair")


def comma_and_space(reader: Reader, state: JsonState) -> Generator[None, None, str]:
    """Consume and return the comma here and the whitespace after it, which are emitted only once something follows.

    Between the members of an object, the comma may be missing.

    Raises:
        Mismatch: neither a comma nor the next key is here.
    """
    char = reader.text[reader.at]
    if char == '"' and state.stack[-1] == "}" and state.around is not None:
        state.add_repair("missing_comma")
        return ","
    if char != ",":
        raise Mismatch
    comma = [reader.take(1, "argument")]
    while True:
        end = match_whitespace(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
        if end > reader.at:
            comma.append(reader.take(end - reader.at, "argument"))
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "/#" and state.comments:
            yield from comment(reader, state)
        else:
            return "".join(comma)


def bracket(reader: Reader, strict: str) -> None:
    """Consume a bracket and emit its JSON equivalent."""
    if reader.text[reader.at] == strict:
        reader.take_arguments(1)
    else:
        reader.take(1, "repair")
        reader.emit_arguments(strict)


def close(reader: Reader, state: JsonState, char: str, base: int) -> None:
    """Consume a closer; first close inner containers that lack their own closers."""
    stack = state.stack
    # Only closers above `base` count: a closer of the surrounding text must not be consumed as one of ours.
    if char not in stack[base:]:
        raise Mismatch
    while stack[-1] != char:
        state.add_repair("missing_closer")
        reader.emit_arguments(CLOSES[stack.pop()])
    if len(stack) == 1 and state.typed is not None:
        state.typed.end_object(reader, state)
    if len(stack) == state.leave_open:
        withhold_closer(reader, state)
        reader.take(1, "argument")
        stack.pop()
    else:
        bracket(reader, CLOSES[stack.pop()])
    state.cut = False


def withhold_closer(reader: Reader, state: JsonState) -> None:
    """Withhold the closer of the innermost container, and reserve its character.

    Raises:
        Mismatch: the arguments would exceed their limit.
    """
    state.withheld = True
    if reader.target is True:
        if not reader.remaining:
            raise Mismatch
        reader.remaining -= 1


def resume(reader: Reader, state: JsonState) -> Grammar:
    """Consume the opener of a container that continues one already emitted."""
    separator, state.resumed, state.cut = state.resumed, None, True
    reader.take(1)
    yield from skip(reader, state)
    if separator and reader.text[reader.at] not in "}]":
        reader.emit_arguments(separator)


def empty_object(reader: Reader, state: JsonState) -> None:
    """Emit an object without members, except for the brackets that are withheld or have already been emitted."""
    if state.resumed is None:
        reader.emit_arguments("{")
    state.resumed = None
    if state.leave_open:
        withhold_closer(reader, state)
    else:
        reader.emit_arguments("}")


def key(reader: Reader, state: JsonState) -> Grammar:
    """Read a member's key and its colon."""
    if state.dialect is not None:
        yield from state.dialect.key(reader, state)
        return
    found = plain_key(reader.text, reader.at)
    if found is not None:
        reader.take_arguments(found.end() - reader.at)
        return
    char = reader.text[reader.at]
    if char in QUOTES:
        yield from string(reader, state)
    else:
        bare = yield from bare_word(reader)
        state.add_repair("unquoted_key")
        reader.take(len(bare), "repair")
        reader.emit_arguments(encode_basestring(bare))
    yield from skip(reader, state)
    if reader.text[reader.at] != ":":
        raise Mismatch
    reader.take_arguments(1)


def bare_word(reader: Reader) -> Generator[None, None, str]:
    """Return the complete word here, without consuming it."""
    while True:
        found = word(reader.text, reader.at)
        if not found or found.end() - reader.at > MAX_WORD:
            raise Mismatch
        if found.end() < len(reader.text) or reader.ended:
            return found[0]
        yield from reader.more()


def literal(reader: Reader, state: JsonState) -> Grammar:
    """Read `true`, `false`, `null`, or the equivalent word of another language."""
    name = yield from bare_word(reader)
    if name not in WORDS:
        raise Mismatch
    if name in STRICT_WORDS:
        reader.take_arguments(len(name))
    else:
        state.add_repair("python_literal")
        reader.take(len(name), "repair")
        reader.emit_arguments(WORDS[name])


def string(reader: Reader, state: JsonState, around: Around | None = None) -> Grammar:
    """Read a string: turn other quotes into double quotes, and escape raw control characters and stray backslashes.

    With `around`, a double quote that cannot end the string is escaped too. From that point on, reading stops at markup
    that can only follow the call, since the end of the string may have been missed.

    Raises:
        Mismatch: a string with such a quote reaches that markup.
    """
    quote = reader.text[reader.at]
    state.quoted = True
    if quote == '"':
        run, closers = STRICT if state.escaped_marker is None else TO_MARKER, '"'
        reader.take_arguments(1)
    else:
        run, closers = LOOSE[quote], CLOSERS[quote] + ('"' if quote != "'" else "")
        state.add_repair(QUOTE_NAMES.get(quote, "smart_quotes"))
        reader.take(1, "repair")
        reader.emit_arguments('"')
    while True:
        yield from reader.flow(run)
        if reader.at >= len(reader.text):
            yield from reader.more()
            continue
        char = reader.text[reader.at]
        if char in closers and (
            yield from quote_ends_string(reader, state, quote, around, had_unescaped_quote=run is AFTER_UNESCAPED_QUOTE)
        ):
            state.quoted = False
            if quote == '"':
                reader.take_arguments(1)
            else:
                reader.take(1, "repair")
                reader.emit_arguments('"')
            return
        if char == '"':
            # From here on, the run also stops at `MARKUP_STARTS`. The quote may have been the real end, followed by
            # broken JSON; without these stops, the remainder of the reply, including any calls, would become part of
            # the string.
            if quote == '"':
                state.add_repair("unescaped_quote")
                run = AFTER_UNESCAPED_QUOTE
            reader.take(1, "repair")
            reader.emit_arguments('\\"')
        elif (
            run is AFTER_UNESCAPED_QUOTE
            and char in MARKUP_STARTS
            and around is not None
            and (yield from around.follows(0))
        ):
            raise Mismatch
        elif char == "\\":
            yield from escape(reader, state)
        elif char < " ":
            state.add_repair("control_character")
            reader.take(1, "repair")
            reader.emit_arguments(CONTROL.get(char, f"\\u{ord(char):04x}"))
        elif state.escaped_marker is not None and (text := (yield from state.escaped_marker())):
            reader.emit_arguments(text)
        else:
            reader.take_arguments(1)


def quote_ends_string(
    reader: Reader, state: JsonState, quote: str, around: Around | None, *, had_unescaped_quote: bool
) -> Generator[None, None, bool]:
    """Return whether the closing quote here ends its string, which began with `quote`.

    `had_unescaped_quote` means that the string contains an earlier, unescaped quote.
    """
    if quote in "'\u2018":
        return (yield from apostrophe_ends_string(reader, state))
    return (
        around is None
        or quote != '"'
        or (yield from ends_string(reader, state, around, had_unescaped_quote=had_unescaped_quote))
    )


def apostrophe_ends_string(reader: Reader, state: JsonState) -> Generator[None, None, bool]:
    """Return whether the apostrophe here closes its string, which it does only if the text after it may follow a
    string, or is another value.
    """
    while True:
        found = closes_single(reader.text, reader.at)
        if found is None:
            return (yield from value_follows(reader, state, single=True))
        # At the end of the text, the apostrophe closes the string; if more text may come, the next character decides.
        if found.lastindex is None or reader.ended:
            return True
        yield from reader.more()


def escape(reader: Reader, state: JsonState) -> Grammar:
    """Read a backslash that stopped the run; escape it unless it begins a valid escape."""
    while len(reader.text) - reader.at < 2:
        yield from reader.more()
    char = reader.text[reader.at + 1]
    if char == "u" or char in SIMPLE:
        while (length := len(reader.text) - reader.at) < 6 and re.fullmatch(
            r"u[0-9a-fA-F]*", reader.text[reader.at + 1 :]
        ):
            yield from reader.more()
        if char in SIMPLE or (length >= 6 and re.match(r"[0-9a-fA-F]{4}", reader.text[reader.at + 2 : reader.at + 6])):
            reader.take_arguments(2 if char in SIMPLE else 6)
            return
    state.add_repair("escape")
    if char == "'":
        reader.take(2, "repair")
        reader.emit_arguments("'")
        return
    if char == "x":
        while len(reader.text) - reader.at < 4 and re.fullmatch(r"x[0-9a-fA-F]*", reader.text[reader.at + 1 :]):
            yield from reader.more()
        code = re.match(r"[0-9a-fA-F]{2}", reader.text[reader.at + 2 : reader.at + 4])
        if code:
            reader.take(4, "repair")
            reader.emit_arguments(f"\\u00{code[0]}")
            return
    reader.take(1, "repair")
    reader.emit_arguments("\\\\")


def read_string(reader: Reader, state: JsonState) -> Generator[None, None, str]:
    """Read a string that is not part of the arguments, and return its value."""
    target = reader.target
    text: list[str] = []
    reader.target = text
    try:
        yield from string(reader, state)
    finally:
        reader.target = target
    return str(json.loads("".join(text)))
