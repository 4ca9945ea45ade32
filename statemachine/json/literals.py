r"""Literals of languages other than JSON, mainly Python. Emits strict JSON.

Theory of operation. Containers are alike in all languages and are read in `text.py`; the differences are defined by the
`Dialect` in `JsonState`: which brackets exist, and how keys, strings and words are written. Strings stream in runs that
convert their text (`python_to_json`); only escapes that a run cannot convert (`\x41`, octal escapes, `\U0001F600`) are
read one at a time.

Anything that is legal in the language is not a repair. Tolerated deviations are recorded by name: `bare_word` (a word
that is not a literal, where a string is allowed), `unquoted_key`, `control_character` (a line break in a single-line
string), `plain_quotes` (quotes where the language uses markers: `bare.py`), `inner_quote` (a quote inside a string),
`trailing_comma`, `python_literal` (`NaN` and similar words, which become null). `(…)` is always an array, even around a
single value.
"""

import re
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from json.encoder import encode_basestring
from re import Match

from attrs import frozen

from statemachine.json.numbers import number
from statemachine.json.state import MAX_WORD, WORDS, JsonState
from statemachine.json.text import skip
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.reader import Reader
from statemachine.stream.runs import Run, json_escape

MAX_KEY = 256
"""Maximum length of a bare key, in characters."""
BRACKETS: Mapping[str, str] = {"{": "}", "[": "]"}
KINDS = {"{": "object", "[": "array", "(": "array", **dict.fromkeys("+-.0123456789", "number")}
WORD_KINDS = {"true": "boolean", "false": "boolean", "null": "null"}

ESCAPED = {
    "\\n": "\\n",
    "\\t": "\\t",
    "\\r": "\\r",
    "\\\\": "\\\\",
    "\\'": "'",
    '\\"': '\\"',
    "\\a": "\\u0007",
    "\\b": "\\b",
    "\\f": "\\f",
    "\\v": "\\u000b",
}
"""JSON spellings of Python's single-character escapes."""
escapes = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)|[\"\x00-\x1f]", re.DOTALL).sub
odd = re.compile(r"\\[^nrtbfu\"']|[\x01-\x08\x0b\x0c\x0e-\x1f]").search
coded = re.compile(r"\\(?:x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})|([0-7]{1,3})|\r?\n)").match
begun = re.compile(
    r"\\(?:x[0-9a-fA-F]?+|U[0-9a-fA-F]{0,7}+|u[0-9a-fA-F]{0,3}+|[0-7]{1,2}+|\r)?+\Z",
).match
inner = re.compile(r"(\w)|[ \t]{0,16}+(?:\Z|(\w))").match
"""Matches the text after a quote if a word follows, either immediately (group 1) or after blanks (group 2)."""
QUOTATION_STARTS = tuple("-/\\$~@!?{")
"""Characters that may begin quoted text, and that cannot follow a string in an expression."""
prefix = re.compile(r"[rRbBuUfF]{0,2}+").match
bare_word = re.compile(r"[A-Za-z_][\w.-]*+").match
python_key = re.compile(r"[A-Za-z_$][\w$-]*+|[0-9-][0-9.]*+").match


def python_to_json(text: str) -> str:
    r"""Convert the text of a Python string to the text of a JSON string. Its escapes must be complete, and must be
    either single-character escapes (such as `\n`) or `\uXXXX`.

    Most escapes are the same in JSON. The few that differ, and the quotes, are replaced in bulk, which is four times as
    fast as replacing them one at a time. Pairs of backslashes are set aside meanwhile, so that each remaining backslash
    escapes the character after it.
    """
    if "\\" not in text:
        return encode_basestring(text)[1:-1]
    aside = text.replace("\\\\", "\0")
    if "\0" in text or odd(aside):
        return escapes(escape_to_json, text)
    aside = aside.replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
    return aside.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r").replace("\0", "\\\\")


def escape_to_json(found: Match[str]) -> str:
    """Return the JSON spelling of an escape, or of a character that JSON escapes."""
    text = found[0]
    known = ESCAPED.get(text)
    if known is not None:
        return known
    return text if text[1:2] == "u" else json_escape(text)


@frozen
class LiteralOpening:
    """Opener of a string, with the information needed to read the string."""

    length: int
    """Length of the opener."""
    closer: str
    run: Run
    lenient: Run | None = None
    """Run used after a line break that is not allowed; None if line breaks are allowed."""
    raw: bool = False
    """Whether escapes are disabled."""
    repair: str = ""
    """Name of the repair needed to read the string at all."""


def python_run(closer: str, *, raw: bool, lines: bool) -> Run:
    """Return the run for a Python string's text. It stops at the closer and, unless `lines` is set, at a line break."""
    mark = closer[0]
    stops = "" if lines else r"\r\n"
    plain = rf"[^{mark}\\{stops}]*+"
    escape = r"\\." if raw else r"\\(?:u[0-9a-fA-F]{4}|[^uUx0-7\r\n])"
    half = r"\\" if raw else r"\\(?:u[0-9a-fA-F]{0,3}+)?+"
    ways, waits = [escape], [half]
    if len(closer) == 3:
        ways.append(rf"{mark}{{1,2}}+(?!{mark}|\Z)")
        waits.append(f"{mark}{{1,2}}+")
    pattern = rf"{plain}(?:(?:{'|'.join(ways)}){plain})*+((?:{'|'.join(waits)})\Z)?+"
    return Run(
        pattern,
        convert=json_escape if raw else python_to_json,
        search=re.compile(rf"[{mark}\"\\\x00-\x1f]").search,
    )


@lru_cache(maxsize=32)
def python_opening(length: int, closer: str, *, raw: bool, repair: str = "") -> LiteralOpening:
    """Return the rules for reading a Python string."""
    whole = python_run(closer, raw=raw, lines=True)
    if len(closer) == 3:
        return LiteralOpening(length, closer, whole, raw=raw, repair=repair)
    return LiteralOpening(length, closer, python_run(closer, raw=raw, lines=False), whole, raw=raw, repair=repair)


class Python:
    """Dialect of Python literals; it also reads JSON literals."""

    __slots__ = ()

    brackets: Mapping[str, str] = {**BRACKETS, "(": ")"}
    trailing_comma = True
    comments = True
    sets = True
    """Whether braces may contain items instead of members: a set, which becomes an array."""
    bare_key: Callable[[str, int], Match[str] | None] = python_key
    key_repair = "unquoted_key"
    equals = False
    """Whether an equals sign may replace the colon after a key."""

    def begins(self, reader: Reader) -> Generator[None, None, LiteralOpening | None]:
        """Return how to read the string that begins here, or None if none begins here."""
        return (yield from python_begins(reader, ""))

    def opening(self, reader: Reader) -> Generator[None, None, tuple[int, tuple[str, ...]] | None]:
        """Return the opener's length and the possible closers of the string that begins here, or None if none begins
        here.
        """
        found = yield from self.begins(reader)
        return (found.length, (found.closer,)) if found else None

    def kind(self, reader: Reader) -> Generator[None, None, str]:
        """Return the JSON type of the value that begins here, or "" if the value is a word that the language does not
        define.
        """
        known = KINDS.get(reader.text[reader.at])
        if known:
            return known
        if (yield from self.begins(reader)):
            return "string"
        word = yield from full_match(reader, bare_word, MAX_WORD)
        return WORD_KINDS.get(WORDS.get(word, ""), "")

    def scalar(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a string, a number or a word."""
        if reader.text[reader.at] in "+-.0123456789":
            yield from number(reader, state)
            return
        found = yield from self.begins(reader)
        if found is None:
            yield from word(reader, state)
        else:
            yield from string(reader, state, found)

    def string(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a string."""
        found = yield from self.begins(reader)
        if found is None:
            raise Mismatch
        yield from string(reader, state, found)

    def key(self, reader: Reader, state: JsonState) -> Grammar:
        """Read a member's key, quoted or bare, and its colon."""
        found = yield from self.begins(reader)
        if found is None:
            name = (yield from full_match(reader, self.bare_key, MAX_KEY)).rstrip()
            if reader.at + len(name) >= len(reader.text):
                yield from reader.more()  # a key that is cut off by the end of the text is not a key
            if self.key_repair:
                state.add_repair(self.key_repair)
            reader.take(len(name), "argument")
            reader.emit_arguments(encode_basestring(name))
        else:
            yield from string(reader, state, found)
        yield from skip(reader, state)
        if self.equals and reader.text[reader.at] == "=":
            state.add_repair("key_separator")
            reader.take(1, "repair")
            reader.emit_arguments(":")
            return
        if reader.text[reader.at] != ":":
            raise Mismatch
        reader.take_arguments(1)


PYTHON = Python()


def python_begins(reader: Reader, repair: str) -> Generator[None, None, LiteralOpening | None]:
    """Return how to read the Python string that begins here with an optional prefix and quotes, or None if none begins
    here.
    """
    while True:
        letters = prefix(reader.text, reader.at)
        at = letters.end() if letters else reader.at
        quotes = reader.text[at : at + 3]
        if quotes:
            mark = quotes[0]
            if mark not in "\"'":
                return None
            if len(quotes) == 3 or quotes[1:] not in ("", mark) or reader.ended:
                closer = quotes if quotes == mark * 3 else mark
                raw = "r" in reader.text[reader.at : at].lower()
                return python_opening(at - reader.at + len(closer), closer, raw=raw, repair=repair)
        elif reader.ended:
            return None
        yield from reader.more()


def string(reader: Reader, state: JsonState, found: LiteralOpening) -> Grammar:
    """Read a string whose opener has been recognized."""
    state.quoted = True
    if found.repair:
        state.add_repair(found.repair)
    run, again = found.run, False
    reader.take(found.length, "argument")
    reader.emit_arguments('"')
    while True:
        yield from reader.flow(run)
        if reader.at >= len(reader.text):
            yield from reader.more()
        elif reader.text.startswith(found.closer, reader.at):
            if len(found.closer) > 1 or found.raw or not (yield from quote_is_text(reader, state, again=again)):
                break
            state.add_repair("inner_quote")
            again = True
            reader.take(1, "repair")
            reader.emit_arguments('\\"' if found.closer == '"' else found.closer)
        elif reader.text[reader.at] == "\\" and not found.raw:
            yield from escape(reader)
        elif reader.text[reader.at] in "\r\n" and found.lenient is not None:
            state.add_repair("control_character")
            run = found.lenient
        else:
            yield from reader.more()
    state.quoted = False
    reader.take(len(found.closer), "argument")
    reader.emit_arguments('"')


def quote_is_text(reader: Reader, state: JsonState, *, again: bool) -> Generator[None, None, bool]:
    """Return whether a quote that could close its string is part of its text, such as one inside a word (`it's`) or one
    that begins a quotation (`print("hi")`).

    `again` means that the string already contains such a quote. The next one then ends the string only if the text
    after it may follow a string there, or, where this is not known, if no word follows it.
    """
    if again and state.may_follow_string is not None:
        return not (yield from state.may_follow_string(1))
    while not reader.ended and (rest := inner(reader.text, reader.at + 1)) and not rest.lastindex:
        yield from reader.more()
    found = inner(reader.text, reader.at + 1)
    if found is not None and found.lastindex:
        return found.lastindex == 1 or again
    return state.may_follow_string is not None and reader.text[reader.at + 1 : reader.at + 2] in QUOTATION_STARTS


def escape(reader: Reader) -> Grammar:
    """Read a backslash that stopped the run: a numeric escape, a line continuation, or a literal backslash."""
    while not reader.ended and begun(reader.text, reader.at):
        yield from reader.more()
    found = coded(reader.text, reader.at)
    if found is None:
        if begun(reader.text, reader.at):
            yield from reader.more()
        reader.take(1, "argument")
        reader.emit_arguments("\\\\")
        return
    code = int(found[found.lastindex], 8 if found.lastindex == 3 else 16) if found.lastindex else -1
    length = len(found[0])
    if code > 0x10FFFF:
        reader.take(1, "argument")
        reader.emit_arguments("\\\\")
        return
    reader.take(length, "argument")
    if code >= 0:
        reader.emit_arguments(f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else json_escape(chr(code)))


def word(
    reader: Reader,
    state: JsonState,
    pattern: Callable[[str, int], Match[str] | None] = bare_word,
    limit: int = MAX_WORD,
) -> Grammar:
    """Read a word: a literal or, where the schema allows one, a string."""
    text = yield from full_match(reader, pattern, limit)
    name = text.rstrip()
    strict = WORDS.get(name)
    if strict is None:
        if (state.typed is not None and not state.typed.allows("string")) or reader.text.startswith(
            ("(", "{"), reader.at + len(text)
        ):
            raise Mismatch
        if reader.at + len(text) >= len(reader.text):
            yield from reader.more()  # the text may have been cut inside the word
        state.add_repair("bare_word")
        strict = encode_basestring(name)
    elif strict == "null" and name not in ("None", "null"):
        state.add_repair("python_literal")
    reader.take(len(name), "argument" if name == strict else "repair")
    reader.emit_arguments(strict)


def full_match(
    reader: Reader, pattern: Callable[[str, int], Match[str] | None], limit: int
) -> Generator[None, None, str]:
    """Return the complete match of the pattern at this position, without consuming it.

    Raises:
        Mismatch: the pattern does not match, or the match exceeds the limit.
    """
    while True:
        found = pattern(reader.text, reader.at)
        if not found or found.end() - reader.at > limit:
            raise Mismatch
        if found.end() < len(reader.text) or reader.ended:
            return found[0]
        yield from reader.more()
