"""Whether a double quote ends its string, or stands in it unescaped (`"She said "yes" to me"`).

Theory of operation. A quote ends its string if what follows can follow a string where it stands: a comma and what may
stand behind one there, or the brackets of what is open and, once all of it is closed, anything but a quote or a
backslash. What stands around the text (`state.Around`) counts too, and so does what ends a call whose brackets are
missing. Any other quote is text of the string. JSON that is valid is never read in another way.

The decision waits for what it needs and no longer: behind a comma for a key and its colon, else for the first character
that is no bracket. White space or a key that goes on for too long ends the string.
"""

import re
from collections.abc import Generator

from statemachine.json.state import WORDS, Around, JsonState, word
from statemachine.reader import Reader

KEY = 64
"""Characters of the longest key that is looked at; what is longer is taken for one."""

next_key = re.compile(rf'"[ \t\r\n]{{0,64}}+,[ \t\r\n]{{0,64}}+"[^"\\\x00-\x1f]{{0,{KEY}}}+"[ \t\r\n]{{0,64}}+:').match
"""The usual case in an object: the quote, a comma, a key and its colon."""
key_text = re.compile(rf'[^"\\\x00-\x1f]{{0,{KEY}}}+').match


def ends_string(reader: Reader, state: JsonState, around: Around, *, mended: bool) -> Generator[None, None, bool]:
    """True if the double quote here ends its string, which is a value.

    `mended`: another quote did not. Then the brackets must fit what is open; else there may be one too many.
    """
    stack = state.stack
    if stack and stack[-1] == "}" and next_key(reader.text, reader.at):
        return True
    outside = len(around.stack)
    stack = [*around.stack, *stack]
    offset = 1
    while True:
        begin = offset
        offset = yield from reader.past_blanks(begin)
        char = reader.text[reader.at + offset : reader.at + offset + 1]
        if offset < 0 or not char:
            return True
        if not stack:
            return char not in ('"\\}]' if mended else '"\\')
        if char in "}]":
            if char not in stack:
                return len(stack) <= outside
            while stack.pop() != char:
                pass
            offset += 1
        elif char == ",":
            return (yield from another(reader, offset + 1, stack[-1], around))
        elif char in "/#":
            return offset > begin  # a comment
        elif char == '"' and stack[-1] == "}":
            return offset > begin and (yield from is_key(reader, offset))  # the comma is missing
        elif len(stack) <= outside and "\n" in reader.text[reader.at + begin : reader.at + offset]:
            return char not in '"\\'  # the brackets around are missing
        else:
            return (yield from around.follows(offset))


def another(reader: Reader, offset: int, closer: str, around: Around) -> Generator[None, None, bool]:
    """True if what stands `offset` characters on may stand behind a comma, in what this closes."""
    offset = yield from reader.past_blanks(offset)
    char = reader.text[reader.at + offset : reader.at + offset + 1]
    if offset < 0 or not char or char in "}]/#'\u201c\u2018":
        return True
    if closer == "]" and char in '"{[-+.0123456789':
        return True
    if char == '"':
        return (yield from is_key(reader, offset))
    if char.isalpha() or char in "_$":
        text, offset = yield from whole_word(reader, offset)
        if closer == "]":
            return text in WORDS
        offset = yield from reader.past_blanks(offset)
        return offset < 0 or reader.text.startswith(":", reader.at + offset)
    return (yield from around.follows(offset))


def is_key(reader: Reader, offset: int) -> Generator[None, None, bool]:
    """True if the quote that stands `offset` characters on begins a key, with its colon."""
    while True:
        end = key_text(reader.text, reader.at + offset + 1).end()  # type: ignore[union-attr]  # {0,} always matches
        if end < len(reader.text) or reader.ended:
            break
        yield
    if not reader.text.startswith('"', end):
        return True  # long, cut, or escaped
    offset = yield from reader.past_blanks(end + 1 - reader.at)
    return offset < 0 or reader.text[reader.at + offset : reader.at + offset + 1] in (":", "")


def whole_word(reader: Reader, offset: int) -> Generator[None, None, tuple[str, int]]:
    """The word that stands `offset` characters on, and where it ends; "" if none stands there, or a very long one."""
    while True:
        found = word(reader.text, reader.at + offset)
        text = found[0] if found else ""
        if len(text) > KEY:
            return "", offset
        if not text or reader.at + offset + len(text) < len(reader.text) or reader.ended:
            return text, offset + len(text)
        yield
