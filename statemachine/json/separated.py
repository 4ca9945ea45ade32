r"""Detection of a key or a value that follows a quote after a short text (`"a"; {"x": "b"}`, `"a" && "b"`).

Theory of operation. `quotes.py` decides whether a quote ends its string by the text that may follow a string. The
separators here may not follow one; but as text of the string, they would join two values to one that the model did not
write. A quote inside a value, on the other hand, is usually followed by the quoted text itself, and the next quote by
the remainder of the value. The text between two quotes, and the string after them, therefore decide:

    apart     = text quote key quote ":"                          ; text without quotes, up to MAX_KEY characters
              / separator ( "{" ( key ":" / "}" ) / "[" value )
              / separator quote value quote ( "," / "}" / "]" / apart )
              / separator number-or-literal ( "}" / "]" / "," ( quote / "{" / "[" ) )
              / blanks word ( ":" / "=" ) value                   ; a key that the schema names, if there is one
    separator = punctuation / words between blanks or punctuation ; an escape such as `\n` is a blank
    value     = text that begins neither with a blank nor with punctuation

A quote is double, single or typographic, and may be escaped. Text that is too long to check counts as a value.
"""

import re
from collections.abc import Generator

from statemachine.json.state import JsonState, word
from statemachine.stream.reader import Reader

MAX_KEY = 64
"""Maximum length of a key to look for; longer text is assumed to be a key."""
ENDS = ("", ",", "}", "]")
"""Characters after a string that is a value; "" if they are not known."""
SEPARATED = 8
"""Maximum number of strings to look at, each separated from the one before (`"a" && "b" && "c"`)."""
OPENS = ("{", "[")
QUOTES = "\"'\u201c\u2018"
QUOTED = {
    quote: re.compile(rf"(?P<content>[^{closers}\\\x00-\x1f]{{0,{MAX_KEY}}}+)(?P<closer>\\?[{closers}])?+").match
    for quote, closers in {'"': '"', "'": "'", "\u201c": '\u201d\u201c"', "\u2018": "\u2019'"}.items()
}
"""Matches the content and the closer of a string, by the quote that opened it."""
short = re.compile(rf"(?:[^{QUOTES}{{\[]|(?<=\w)(?<!\\[nrt])'){{0,{MAX_KEY}}}+").match
is_separator = re.compile(r"(?:[ \t\r\n;,]|[^\w\x00-\x7f])++").fullmatch
escaped_blank = re.compile(r"\\[nrt]").sub
has_word = re.compile(r"[^\W_]").search
closers_first = re.compile(r"\W*[}\]]").match
is_operator = re.compile(r"(?:\+|[-=]>|/)\s*+").fullmatch
words_between = re.compile(r"(?:[\s,;|&}\]]|[^\w\x00-\x7f])(?:.*[^\w$])?+", re.DOTALL).fullmatch
bare_key = re.compile(
    r"(?<![\w$])(?P<key>[^\W\d][\w$-]*+)[ \t\r\n]*+(?::=|[:=])[ \t\r\n]*+"
    r"(?:(?P<value>-?\d[\d.eE+-]*+|[Tt]rue|[Ff]alse|null|None)[ \t\r\n]*+(?:[,}\]]|\Z)|\Z)"
).search

scalar = re.compile(
    r"(?<![\w.$-])(?:-?\d[\d.eE+-]*+|[Tt]rue|[Ff]alse|null|None)[ \t\r\n]*+(?:[}\]]|,[ \t\r\n]*+\Z)"
).search
"""Matches a value without quotes and the text after a value."""
item = re.compile(r"\]|(?:-?\d[\d.]*+(?:[eE][+-]?\d++)?+|[Tt]rue|[Ff]alse|null|None)(?!-\d|\w)").match
"""Matches the first item of an array if it is not in quotes."""


def separated_key_follows(reader: Reader) -> Generator[None, None, bool]:
    """Return whether only a separator other than a comma is between the quote here and a key with its colon."""
    text = yield from short_text(reader, 1)
    if not is_separator(text):
        return False
    content, after, _ = yield from quoted_text(reader, 1 + len(text))
    return after == ":" and is_key(content)


def value_follows(reader: Reader, state: JsonState, *, single: bool = False) -> Generator[None, None, bool]:
    """Return whether a key or a value follows the quote here, after a short text (`apart`).

    With `single`, the quote is an apostrophe, which does not end its string before a word (`it's`).
    """
    offset = 1
    for count in range(SEPARATED):
        text = yield from short_text(reader, offset)
        end = offset + len(text)
        char = reader.text[reader.at + end : reader.at + end + 1]
        if single and count == 0 and text[:1].isalnum():
            return False
        if count == 0 and (yield from bare_key_follows(reader, state, text, end)):
            return True
        if count == 0 and (found := scalar(text)) and found.start() and separates(text[: found.start()]):
            return True
        if char in OPENS:
            return may_precede_bracket(text) and (yield from opens_value(reader, end))
        if char == "" or char not in QUOTES:
            return False
        content, after, offset = yield from quoted_text(reader, end)
        if count == 0 and after == ":" and is_key(content):
            return True
        if not separates(text) or not begins_value(text, content):
            return False
        if after in ENDS:
            return True
    return True


def bare_key_follows(reader: Reader, state: JsonState, text: str, end: int) -> Generator[None, None, bool]:
    """Return whether this text after a string contains a key without quotes, and its value in the text or at `end`.

    The schema decides if it describes the open containers. Without a schema, the text must not begin with a word, and
    the text after a string must not belong to source code (`x="y">`).
    """
    found = bare_key(text)
    if found is None:
        return False
    char = reader.text[reader.at + end : reader.at + end + 1]
    if found["value"] is None and (char not in (*QUOTES, *OPENS)):
        return False
    typed = state.typed
    named = [] if typed is None else [typed.names(depth, found["key"]) for depth in range(len(state.stack))]
    if True in named or False in named or text[0].isalnum():
        return True in named
    if found["value"] is not None or char in OPENS:
        return True
    _, after, _ = yield from quoted_text(reader, end)
    return after not in (">", ")")


def opens_value(reader: Reader, offset: int) -> Generator[None, None, bool]:
    """Return whether the bracket at `offset` opens an object with a key, or an array of JSON values."""
    begin = yield from reader.whitespace_end(offset + 1)
    char = reader.text[reader.at + begin : reader.at + begin + 1]
    if reader.text[reader.at + offset] == "[":
        return char in (*QUOTES, *OPENS) or item((yield from short_text(reader, begin))) is not None
    if begin < 0 or char in ("", "}"):
        return True
    if char == "\\":  # a quote that is escaped
        begin += 1
        yield from wait_for(reader, begin)
        char = reader.text[reader.at + begin : reader.at + begin + 1]
    if char != "" and char in QUOTES:
        _, after, _ = yield from quoted_text(reader, begin)
        return after in ("", ":")
    name, begin = yield from whole_word(reader, begin)
    begin = yield from reader.whitespace_end(begin)
    return name != "" and reader.text[reader.at + begin : reader.at + begin + 1] in ("", ":", "=")


def separates(text: str) -> bool:
    """Return whether this text may separate two values: punctuation, or words between blanks or punctuation."""
    text = escaped_blank(" ", text)
    if not has_word(text):
        return text == "" or text.lstrip("}]") != ""
    return words_between(text) is not None


def may_precede_bracket(text: str) -> bool:
    """Return whether this text may separate a value from a container: closers and any text, or words between blanks."""
    text = escaped_blank(" ", text)
    return any(matches(text) is not None for matches in (closers_first, words_between, is_operator))


def begins_value(separator: str, content: str) -> bool:
    """Return whether a string after this separator is a value rather than the remainder of a text (`cut -d"|" -f1`,
    `split("|")`).
    """
    if not content:
        return separator[:1].isspace() and separator[-1].isspace()
    return content.startswith(("./", "..")) or not (content[0].isspace() or content[0] in ")]},;:>|&=+*?!.")


def is_key(content: str) -> bool:
    """Return whether this text of a string is likely to be a key."""
    return content != "" and (content[0].isalnum() or content[0] in "_$@") and not content[-1].isspace()


def short_text(reader: Reader, offset: int) -> Generator[None, None, str]:
    """Return the text from `offset` to the next quote or opening bracket, cut at `MAX_KEY` characters."""
    while True:
        found = short(reader.text, reader.at + offset)
        if found is not None and (found.end() < len(reader.text) or reader.ended):
            return found[0]
        yield


def quoted_text(reader: Reader, offset: int) -> Generator[None, None, tuple[str, str, int]]:
    """Return the content of the string at `offset`, the first character after the string and whitespace, and the offset
    of the string's end.

    If the string is too long, cut off, or contains an escape, the content is its beginning, and the character is "".
    """
    pattern = QUOTED.get(reader.text[reader.at + offset : reader.at + offset + 1])
    if pattern is None:
        return "", " ", offset
    while True:
        found = pattern(reader.text, reader.at + offset + 1)
        if found is not None and (found["closer"] or found.end() + 1 < len(reader.text) or reader.ended):
            break
        yield
    end = found.end() - reader.at
    if not found["closer"]:
        return found["content"], "", end
    begin = yield from reader.whitespace_end(end)
    return found["content"], "" if begin < 0 else reader.text[reader.at + begin : reader.at + begin + 1], end


def wait_for(reader: Reader, offset: int) -> Generator[None, None, None]:
    """Wait until the character at `offset` has arrived, or the text has ended."""
    while reader.at + offset >= len(reader.text) and not reader.ended:
        yield


def whole_word(reader: Reader, offset: int) -> Generator[None, None, tuple[str, int]]:
    """Return the word at `offset` and the offset of its end, or "" if no word is there or it is too long."""
    while True:
        found = word(reader.text, reader.at + offset)
        text = found[0] if found else ""
        if len(text) > MAX_KEY:
            return "", offset
        if not text or reader.at + offset + len(text) < len(reader.text) or reader.ended:
            return text, offset + len(text)
        yield
