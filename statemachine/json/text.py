"""Tolerant JSON in, strict JSON out, piece by piece, never re-reading.

Theory of operation. `value` is a transducer over a `Reader`: what is already strict is kept (number spelling, key
order, escapes, white space), the rest is mended where it stands, and each kind of mend is named once in `JsonState`.
The output is at every moment a prefix of strict JSON: a comma waits until something follows it, a number's sign, point
or exponent until its digit. Strings flow in runs. What no mend explains raises `Mismatch` at that character.

Nesting is an explicit stack of closers in `JsonState`, so that depth is bounded by a number and not by Python, and so
that a text that ends early knows what is missing.

Containers are read here in every language; the strings, words and keys of others than JSON by the `Dialect` in
`JsonState` (`literals.py`). Numbers are read in `numbers.py`; JSON that stands inside of a JSON string in `nested.py`;
values that contradict their schema in `typed.py`, by way of `JsonState.typed`.
"""

import json
import re
from collections.abc import Callable, Generator
from json.encoder import encode_basestring

from statemachine.buffer import Grammar, Mismatch, space
from statemachine.json.numbers import number
from statemachine.json.quotes import ends_string
from statemachine.json.state import CLOSES, WORD, WORDS, Around, JsonState, word
from statemachine.reader import Reader
from statemachine.runs import Run

COMMENT_LINE = Run(r"[^\r\n]*+")
COMMENT_BLOCK = Run(r"(?:[^*]++|\*(?!/|\Z))*+(\*\Z)?+")
begins_comment = re.compile(r"//|/\*|#").match

# The text of a string in its quotes. Valid escapes pass; half an escape at the end of the text waits.
TEXT_OF = r"[^{quotes}\\\x00-\x1f]*+(?:\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{{4}})[^{quotes}\\\x00-\x1f]*+)*+"
WAITS = r"(\\(?:u[0-9a-fA-F]{0,3}+)?+\Z)?+"


def string_run(quotes: str, convert: Callable[[str], str] | None = None) -> Run:
    """The run of a string's text that ends at one of the quotes."""
    search = re.compile(rf"[{quotes}\\\x00-\x1f]").search if convert is None else None
    return Run(TEXT_OF.format(quotes=quotes) + WAITS, convert=convert, search=search)


STRICT = string_run('"')
BEGINS = "<[`\r\n"
"""How what can only follow a call begins."""
MENDED = string_run('"' + BEGINS)
"""The run of a string that held a quote unescaped."""
CLOSERS = {'"': '"', "'": "'", "\u201c": "\u201d\u201c", "\u201d": "\u201d", "\u2018": "\u2019", "\u2019": "\u2019"}
LOOSE = {quote: string_run('"' + closers) for quote, closers in CLOSERS.items()}
QUOTE_NAMES = {"'": "single_quotes"}
QUOTES = frozenset(CLOSERS)
closes_single = re.compile(r"['\u2019][ \t\r\n]{0,64}+(?:[,:}\]]|(\Z))").match

CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
SIMPLE = frozenset('"\\/bfnrt')

BRACKETS = {"{": "}", "[": "]"}
plain_key = re.compile(r'"[^"\\\x00-\x1f]*+"[ \t\r\n]*+:').match
"""A key that is already strict, and its colon."""
NUMBER_CHARS = frozenset("-+.0123456789eE")
STRICT_WORDS = frozenset(("true", "false", "null"))


def skip(reader: Reader, state: JsonState) -> Grammar:
    """White space is kept, comments are dropped; then a character is there."""
    while True:
        end = space(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
        if end > reader.at:
            reader.keep(end - reader.at)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "/#" and state.comments:
            yield from comment(reader, state)
        else:
            return


def comment(reader: Reader, state: JsonState) -> Grammar:
    """A comment is dropped."""
    while not (found := begins_comment(reader.text, reader.at)):
        if reader.text[reader.at :] != "/":
            raise Mismatch
        yield from reader.more()
    state.mend("comment")
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
    """One JSON value, to its end.

    Raises:
        Mismatch: at the first character that no mend explains; nested deeper than `state.depth`.

    """
    stack, dialect, typed = state.stack, state.dialect, state.typed
    brackets = BRACKETS if dialect is None else dialect.brackets
    base = len(stack)
    while True:
        yield from skip(reader, state)
        char = reader.text[reader.at]
        if typed is not None and typed.odd(char):
            state.cut = True
            mended = yield from typed.mended(reader, state)
        else:
            mended = False
        if mended:
            pass
        elif char in brackets:
            if len(stack) >= state.depth:
                raise Mismatch
            if typed is not None:
                typed.enter(len(stack))
            stack.append(brackets[char])
            bracket(reader, "[" if char == "(" else char)
            state.cut = True
            if not (yield from member(reader, state, base, first=True)):
                return
            continue
        else:
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
    """Goes on in the innermost container, to where a value must come (true) or past the last closer (false)."""
    stack = state.stack
    while len(stack) > base:
        yield from skip(reader, state)
        char = reader.text[reader.at]
        if char in "}])":
            close(reader, state, char, base)
            first = False
            continue
        if not first:
            if reader.target is True and not reader.room:
                raise Mismatch
            comma = yield from comma_and_space(reader, state)
            if reader.text[reader.at] in "}])":
                if state.dialect is None or not state.dialect.trailing_comma:
                    state.mend("trailing_comma")
                reader.out(comma[1:])
                first = True
                continue
            reader.out(comma)
            state.cut = True
        typed = state.typed
        if stack[-1] == "}":
            state.cut = True
            yield from key(reader, state) if typed is None else typed.key(reader, state)
        elif typed is not None:
            typed.item(len(stack) - 1)
        return True
    return False


def comma_and_space(reader: Reader, state: JsonState) -> Generator[None, None, str]:
    """The comma that stands here and the white space after it, consumed: not arguments until something follows.

    Between the members of an object it may be missing.

    Raises:
        Mismatch: something else stands here.

    """
    char = reader.text[reader.at]
    if char == '"' and state.stack[-1] == "}" and state.around is not None:
        state.mend("missing_comma")
        return ","
    if char != ",":
        raise Mismatch
    comma = [reader.take(1, "argument")]
    while True:
        end = space(reader.text, reader.at).end()  # type: ignore[union-attr]  # * always matches
        if end > reader.at:
            comma.append(reader.take(end - reader.at, "argument"))
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text[reader.at] in "/#" and state.comments:
            yield from comment(reader, state)
        else:
            return "".join(comma)


def bracket(reader: Reader, strict: str) -> None:
    """Consumes a bracket, and emits the one that JSON has in its place."""
    if reader.text[reader.at] == strict:
        reader.keep(1)
    else:
        reader.take(1, "repair")
        reader.out(strict)


def close(reader: Reader, state: JsonState, char: str, base: int) -> None:
    """A closer; inner containers that lack theirs are closed first."""
    stack = state.stack
    if char not in stack[base:]:
        raise Mismatch
    while stack[-1] != char:
        state.mend("missing_closer")
        reader.out(CLOSES[stack.pop()])
    bracket(reader, CLOSES[stack.pop()])
    state.cut = False


def key(reader: Reader, state: JsonState) -> Grammar:
    """A member's key and its colon."""
    if state.dialect is not None:
        yield from state.dialect.key(reader, state)
        return
    found = plain_key(reader.text, reader.at)
    if found is not None:
        reader.keep(found.end() - reader.at)
        return
    char = reader.text[reader.at]
    if char in QUOTES:
        yield from string(reader, state)
    else:
        bare = yield from bare_word(reader)
        state.mend("unquoted_key")
        reader.take(len(bare), "repair")
        reader.out(encode_basestring(bare))
    yield from skip(reader, state)
    if reader.text[reader.at] != ":":
        raise Mismatch
    reader.keep(1)


def bare_word(reader: Reader) -> Generator[None, None, str]:
    """The word that stands here, whole, not consumed."""
    while True:
        found = word(reader.text, reader.at)
        if not found or found.end() - reader.at > WORD:
            raise Mismatch
        if found.end() < len(reader.text) or reader.ended:
            return found[0]
        yield from reader.more()


def literal(reader: Reader, state: JsonState) -> Grammar:
    """`true`, `false`, `null`, and what other languages write for them."""
    name = yield from bare_word(reader)
    if name not in WORDS:
        raise Mismatch
    if name in STRICT_WORDS:
        reader.keep(len(name))
    else:
        state.mend("python_literal")
        reader.take(len(name), "repair")
        reader.out(WORDS[name])


def string(reader: Reader, state: JsonState, around: Around | None = None) -> Grammar:
    """A string; other quotes become double quotes, raw control characters and stray backslashes are escaped.

    With `around`, a double quote that cannot end the string is escaped too. From there on, what can only follow the
    call ends the reading: the string may be one whose end was missed.

    Raises:
        Mismatch: a string that held such a quote meets what can only follow the call.

    """
    quote = reader.text[reader.at]
    state.quoted = True
    if quote == '"':
        run, closers = STRICT, '"'
        reader.keep(1)
    else:
        run, closers = LOOSE[quote], CLOSERS[quote] + ('"' if quote != "'" else "")
        state.mend(QUOTE_NAMES.get(quote, "smart_quotes"))
        reader.take(1, "repair")
        reader.out('"')
    while True:
        yield from reader.flow(run)
        if reader.at >= len(reader.text):
            yield from reader.more()
            continue
        char = reader.text[reader.at]
        if char in closers and (yield from ends(reader, state, quote, around, mended=run is MENDED)):
            state.quoted = False
            if quote == '"':
                reader.keep(1)
            else:
                reader.take(1, "repair")
                reader.out('"')
            return
        if char == '"':
            if quote == '"':
                state.mend("unescaped_quote")
                run = MENDED
            reader.take(1, "repair")
            reader.out('\\"')
        elif run is MENDED and char in BEGINS and around is not None and (yield from around.follows(0)):
            raise Mismatch
        elif char == "\\":
            yield from escape(reader, state)
        elif char < " ":
            state.mend("control_character")
            reader.take(1, "repair")
            reader.out(CONTROL.get(char, f"\\u{ord(char):04x}"))
        else:
            reader.keep(1)


def ends(
    reader: Reader, state: JsonState, quote: str, around: Around | None, *, mended: bool
) -> Generator[None, None, bool]:
    """True if the closing quote here ends its string, which began with this quote; `mended`: and held one unescaped."""
    if quote in "'\u2018":
        return (yield from ends_single(reader))
    return around is None or quote != '"' or (yield from ends_string(reader, state, around, mended=mended))


def ends_single(reader: Reader) -> Generator[None, None, bool]:
    """True if the apostrophe here closes its string: only if what may follow a string follows."""
    while True:
        found = closes_single(reader.text, reader.at)
        if found is None:
            return False
        if found.lastindex is None or reader.ended:
            return True
        yield from reader.more()


def escape(reader: Reader, state: JsonState) -> Grammar:
    """A backslash that does not begin a valid escape."""
    while len(reader.text) - reader.at < 2:
        yield from reader.more()
    char = reader.text[reader.at + 1]
    if char == "u" or char in SIMPLE:
        while (length := len(reader.text) - reader.at) < 6 and re.fullmatch(
            r"u[0-9a-fA-F]*", reader.text[reader.at + 1 :]
        ):
            yield from reader.more()
        if char in SIMPLE or (length >= 6 and re.match(r"[0-9a-fA-F]{4}", reader.text[reader.at + 2 : reader.at + 6])):
            reader.keep(2 if char in SIMPLE else 6)
            return
    state.mend("escape")
    if char == "'":
        reader.take(2, "repair")
        reader.out("'")
        return
    if char == "x":
        while len(reader.text) - reader.at < 4 and re.fullmatch(r"x[0-9a-fA-F]*", reader.text[reader.at + 1 :]):
            yield from reader.more()
        code = re.match(r"[0-9a-fA-F]{2}", reader.text[reader.at + 2 : reader.at + 4])
        if code:
            reader.take(4, "repair")
            reader.out(f"\\u00{code[0]}")
            return
    reader.take(1, "repair")
    reader.out("\\\\")


def read_string(reader: Reader, state: JsonState) -> Generator[None, None, str]:
    """A string's value, whole; not part of the arguments."""
    target = reader.target
    text: list[str] = []
    reader.target = text
    try:
        yield from string(reader, state)
    finally:
        reader.target = target
    return str(json.loads("".join(text)))
