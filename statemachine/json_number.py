"""JSON numbers, piece by piece: their spelling is kept, digits flow, what may lack its digits waits."""

import re
from collections.abc import Callable, Generator

from statemachine.notes import WORD, WORDS, Notes, word
from statemachine.reader import Grammar, Mismatch, Reader

whole = re.compile(r"-?(?:0|[1-9][0-9]*+)").match
digits = re.compile(r"[0-9]++").match
fraction = re.compile(r"\.[0-9]++").match
exponent = re.compile(r"[eE][+-]?[0-9]++").match
odd_number = re.compile(r"[-+]?[0-9]*+\.?[0-9]*+(?:[eE][+-]?[0-9]*+)?").match


def number(reader: Reader, notes: Notes) -> Grammar:
    """A number, its spelling kept; digits flow, what may lack its digits waits."""
    while True:
        found = whole(reader.text, reader.at)
        end = found.end() if found else reader.at
        if end < len(reader.text) and (found or len(reader.text) - reader.at > 1):
            break
        if found and found[0] not in ("0", "-0"):
            break
        yield from reader.more()
    after = reader.text[end : end + 1]
    if found is None or after.isdigit():
        yield from mended_number(reader, notes)
        return
    reader.keep(end - reader.at)
    while reader.at >= len(reader.text) or reader.text[reader.at] in "0123456789":
        more = digits(reader.text, reader.at)
        if more:
            reader.keep(len(more[0]))
        else:
            notes.cut = False
            yield from reader.more()
            notes.cut = True
    for part in (fraction, exponent):
        yield from number_part(reader, notes, part)


def number_part(reader: Reader, notes: Notes, part: Callable[[str, int], re.Match[str] | None]) -> Grammar:
    """The fraction or the exponent of a number, if it has one; a point or an `e` without digits is dropped."""
    starts = "." if part is fraction else "eE"
    if (yield from peek_number(reader, notes)) not in starts:
        return
    while not (found := part(reader.text, reader.at)):
        begun = reader.text[reader.at :]
        if len(begun) > 2 or (len(begun) == 2 and (part is fraction or begun[1] not in "+-")):
            notes.mend("number")
            reader.take(2 if len(begun) > 2 and begun[1] in "+-" else 1, "repair")
            return
        notes.cut = False
        yield from reader.more()
        notes.cut = True
    reader.keep(len(found[0]))
    while (yield from peek_number(reader, notes)) in "0123456789":
        more = digits(reader.text, reader.at)
        reader.keep(len(more[0]) if more else 1)


def peek_number(reader: Reader, notes: Notes) -> Generator[None, None, str]:
    """The character after digits; the number is whole if the text ends here."""
    notes.cut = False
    char = yield from reader.peek()
    notes.cut = True
    return char


def mended_number(reader: Reader, notes: Notes) -> Grammar:
    """A number as other languages write it (`.5`, `+1`, `007`), read whole and written strictly."""
    while True:
        if word(reader.text, reader.at + 1):
            yield from signed_word(reader, notes)
            return
        found = odd_number(reader.text, reader.at)
        if found is None or len(found[0]) > WORD:
            raise Mismatch
        if found.end() < len(reader.text):
            break
        yield from reader.more()
    body = found[0]
    sign = "-" if body.startswith("-") else ""
    digits_only = body.lstrip("+-")
    mantissa, _, power = digits_only.replace("E", "e").partition("e")
    integer, _, decimals = mantissa.partition(".")
    if not (integer or decimals):
        raise Mismatch
    strict = sign + (integer.lstrip("0") or "0") + (f".{decimals}" if decimals else "")
    notes.mend("number")
    reader.take(len(body), "repair")
    reader.out(strict + (f"e{power}" if power.strip("+-") else ""))


def signed_word(reader: Reader, notes: Notes) -> Grammar:
    """`-Infinity` and kin: JSON has no such numbers."""
    while True:
        found = word(reader.text, reader.at + 1)
        if not found or found.end() - reader.at > WORD:
            raise Mismatch
        if found.end() < len(reader.text):
            break
        yield from reader.more()
    if WORDS.get(found[0]) != "null":
        raise Mismatch
    notes.mend("python_literal")
    reader.take(1 + len(found[0]), "repair")
    reader.out("null")
