r"""Detection of the double quote that ends a string, which may contain unescaped quotes (`"She said "yes" to me"`).

Theory of operation. A quote ends its string if the text after it can follow a string in that position: either a comma
with a suitable next element, or the closers of open containers and, once all of them are closed, anything but a quote
or a backslash. The text around the JSON (`state.Around`) is considered too, as is anything that ends a call whose
brackets are missing. Any other quote is part of the string. Valid JSON is always read as a strict parser would read it.

A first quote that is followed by JSON in the wrong position ends its string too: the JSON is broken, and as text of
the string, the broken part would be a value that the model did not write (`{"a": "b"}{"a": "c"}`, `"b" "c"`).

The decision waits for no more text than it needs: after a comma, for a key and its colon; otherwise, for the first
character that is not a bracket. If the whitespace or a key is too long, the quote ends the string.

    ends    = follower / apart
    follower = closers "," next / closers [ WSP ] outside / closers comment / WSP key ":" / closers broken
    closers = *( WSP / "}" / "]" )             ; each must be open; an inner one may be missing
    next    = key ":" / value / "}" / "]"      ; a key in an object, a value in an array, a closer in both
    outside = any character except DQUOTE and "\"     ; only after the outermost closer
    broken  = [","] "{" ( key ":" / "}" ) / [","] "[" value / ":" / "+" DQUOTE / WSP DQUOTE    ; after a first quote
"""

import re
from collections.abc import Generator

from statemachine.json.separated import MAX_KEY, separated_key_follows, value_follows, whole_word
from statemachine.json.state import WORDS, Around, JsonState
from statemachine.stream.reader import Reader

BROKEN = '{[:+"'
"""Characters that may begin JSON where it cannot follow a string."""
CLOSES = {"{": "}", "[": "]"}
next_key = re.compile(
    rf'"[ \t\r\n]{{0,64}}+,[ \t\r\n]{{0,64}}+"[^"\\\x00-\x1f]{{0,{MAX_KEY}}}+"[ \t\r\n]{{0,64}}+:'
).match
"""Matches the usual case in an object: the quote, a comma, and a key with its colon."""
key_text = re.compile(rf'[^"\\\x00-\x1f]{{0,{MAX_KEY}}}+').match


def ends_string(
    reader: Reader, state: JsonState, around: Around, *, had_unescaped_quote: bool
) -> Generator[None, None, bool]:
    """Return whether the double quote here, in a string that began with one, ends the string.

    `had_unescaped_quote` means that an earlier quote in the string did not end it. The brackets must then match the
    open containers exactly; without such a quote, surplus brackets are allowed.
    """
    # The common case first: one regular expression recognizes most ends of strings without simulating the stack.
    stack = state.stack
    if stack and stack[-1] == "}" and next_key(reader.text, reader.at):
        return True
    if (yield from has_follower(reader, state, around, had_unescaped_quote=had_unescaped_quote)):
        return True
    if had_unescaped_quote:
        return (yield from separated_key_follows(reader))
    return (yield from value_follows(reader, state))


def has_follower(
    reader: Reader, state: JsonState, around: Around, *, had_unescaped_quote: bool
) -> Generator[None, None, bool]:
    """Return whether the text after the quote can follow a string in this position (`ends` without `apart`)."""
    stack = state.stack
    outside = len(around.stack)
    # The stack begins with the closers of the surrounding text, such as an envelope, because a quote may be followed by
    # closers of the JSON text and of its surroundings. `outside` marks the border: at or below it, the JSON text itself
    # has been closed.
    stack = [*around.stack, *stack]
    offset, closed = 1, False
    while True:
        begin = offset
        offset = yield from reader.whitespace_end(begin)
        char = reader.text[reader.at + offset : reader.at + offset + 1]
        if offset < 0 or not char:
            return True
        if not stack:
            if char == '"' and not had_unescaped_quote:
                return offset > begin
            return char not in ('"\\}]' if had_unescaped_quote else '"\\')
        # Closers are popped from a copy. Popping past others mirrors `text.close`, which repairs missing inner closers:
        # the two must agree, or a quote would count as an end that the reader then rejects.
        if char in "}]":
            if char in stack:
                while stack.pop() != char:
                    pass
            elif had_unescaped_quote or len(stack) <= outside:
                return len(stack) <= outside
            offset, closed = offset + 1, True
        elif char == ",":
            return (yield from may_follow_comma(reader, offset + 1, stack[-1], around, first=not had_unescaped_quote))
        elif char in "/#":
            return offset > begin  # a comment
        elif not had_unescaped_quote and char in BROKEN and not (char == '"' and offset == begin and closed):
            return (yield from is_broken(reader, offset, char, around, closed=closed, apart=offset > begin))
        elif char == '"' and stack[-1] == "}":
            return offset > begin and (yield from is_key_with_colon(reader, offset))  # the comma is missing
        elif len(stack) <= outside and "\n" in reader.text[reader.at + begin : reader.at + offset]:
            return char not in '"\\'  # the brackets around the JSON text are missing
        else:
            return (yield from around.follows(offset))


def is_broken(
    reader: Reader, offset: int, char: str, around: Around, *, closed: bool, apart: bool
) -> Generator[None, None, bool]:
    """Return whether the text at `offset`, which begins with this character and cannot follow a string, is JSON.

    `closed`: brackets are between the string and the text; `apart`: whitespace is.
    """
    if char in CLOSES:
        return closed and (yield from may_follow_comma(reader, offset + 1, CLOSES[char], around, first=True))
    if char == "+":
        offset = yield from reader.whitespace_end(offset + 1)
        return reader.text[reader.at + offset : reader.at + offset + 1] == '"'
    return char == ":" or apart or (yield from is_string_before(reader, offset, ":,}]"))


def may_follow_comma(
    reader: Reader, offset: int, closer: str, around: Around, *, first: bool
) -> Generator[None, None, bool]:
    """Return whether the text at `offset` may follow a comma in the container that `closer` closes, or with `first`
    (the string has no other quote), whether it is JSON.
    """
    offset = yield from reader.whitespace_end(offset)
    char = reader.text[reader.at + offset : reader.at + offset + 1]
    if offset < 0 or not char or char in "}]/#'\u201c\u2018" or (first and char in ",:"):
        return True
    # In an object, a string after a comma proves nothing (`"a", "b"` may be text), so it must be a key with its colon;
    # in an array, any value may follow.
    if closer == "]" and char in '"{[-+.0123456789':
        return True
    if char == '"':
        return (yield from is_string_before(reader, offset, ':,}]"' if first else ":"))
    if first and char in "{[":
        return (yield from is_broken(reader, offset, char, around, closed=True, apart=True))
    if char.isalpha() or char in "_$":
        text, offset = yield from whole_word(reader, offset)
        if closer == "]":
            return text in WORDS
        offset = yield from reader.whitespace_end(offset)
        return offset < 0 or reader.text.startswith(":", reader.at + offset)
    return (yield from around.follows(offset))


def is_key_with_colon(reader: Reader, offset: int) -> Generator[None, None, bool]:
    """Return whether the quote at `offset` begins a key with its colon, or a text too long to check."""
    return (yield from is_string_before(reader, offset, ":"))


def is_string_before(reader: Reader, offset: int, chars: str) -> Generator[None, None, bool]:
    """Return whether the quote at `offset` begins a string before one of these characters or the end of the text, or a
    text too long to check.
    """
    while True:
        end = key_text(reader.text, reader.at + offset + 1).end()  # type: ignore[union-attr]  # {0,} always matches
        if end < len(reader.text) or reader.ended:
            break
        yield
    if not reader.text.startswith('"', end):
        return True  # too long, cut off, or escaped
    offset = yield from reader.whitespace_end(end + 1 - reader.at)
    return offset < 0 or reader.text[reader.at + offset : reader.at + offset + 1] in chars
