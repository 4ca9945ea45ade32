"""JSON numbers, piece by piece: spelling is preserved, digits stream, and a sign, point or exponent waits for its first
digit.

In a `Dialect`, numbers may be spelled as in Python (`1_000`, `.5`, `5.`, `+1`, `0x10`) without being repaired.
"""

import re
from collections.abc import Callable, Generator

from statemachine.json.state import MAX_WORD, WORDS, JsonState, word
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.reader import Reader

whole = re.compile(r"-?(?:0|[1-9][0-9]*+)").match
digits = re.compile(r"[0-9]++").match
fraction = re.compile(r"\.[0-9]++").match
exponent = re.compile(r"[eE][+-]?[0-9]++").match
odd_number = re.compile(r"[-+]?[0-9]*+\.?[0-9]*+(?:[eE][+-]?[0-9]*+)?").match
python_number = re.compile(r"[-+]?(?:0[xXoObB][0-9a-fA-F_]*+|[0-9_]*+\.?[0-9_]*+(?:[eE][+-]?[0-9_]*+)?)").match
BASES = {"x": 16, "o": 8, "b": 2}


def number(reader: Reader, state: JsonState) -> Grammar:
    """Read a number and preserve its spelling. Digits stream; a sign, point or exponent waits for its first digit."""
    while True:
        found = whole(reader.text, reader.at)
        end = found.end() if found else reader.at
        if end < len(reader.text) and (found or len(reader.text) - reader.at > 1):
            break
        if found and found[0] not in ("0", "-0"):
            break
        yield from reader.more()
    after = reader.text[end : end + 1]
    odd = "" if state.dialect is None or found is None or found[0] not in ("0", "-0") else "xXoObB_"
    if found is None or after.isdigit() or (after and after in odd):
        yield from nonstandard_number(reader, state)
        return
    reader.take_arguments(end - reader.at)
    yield from more_digits(reader, state)
    for part in (fraction, exponent):
        yield from number_part(reader, state, part)


def number_part(reader: Reader, state: JsonState, part: Callable[[str, int], re.Match[str] | None]) -> Grammar:
    """Read the fraction or the exponent of a number, if present; drop a point or an `e` without digits."""
    starts = "." if part is fraction else "eE"
    if (yield from peek_number(reader, state)) not in starts:
        return
    while not (found := part(reader.text, reader.at)):
        begun = reader.text[reader.at :]
        if len(begun) > 2 or (len(begun) == 2 and (part is fraction or begun[1] not in "+-")):
            record_number_repair(state)
            reader.take(2 if part is exponent and len(begun) > 2 and begun[1] in "+-" else 1, "repair")
            return
        state.cut = False
        yield from reader.more()
        state.cut = True
    reader.take_arguments(len(found[0]))
    yield from more_digits(reader, state)


def more_digits(reader: Reader, state: JsonState) -> Grammar:
    """Read the digits that follow other digits; if a dialect is set, drop each `_` between digits."""
    while True:
        char = yield from peek_number(reader, state)
        if char == "_" and state.dialect is not None:
            reader.take(1, "repair")
            continue
        more = digits(reader.text, reader.at)
        if not more:
            return
        reader.take_arguments(len(more[0]))


def peek_number(reader: Reader, state: JsonState) -> Generator[None, None, str]:
    """Return the character after the digits; the number is complete if the text ends here."""
    state.cut = False
    char = yield from reader.peek()
    state.cut = True
    return char


def record_number_repair(state: JsonState) -> None:
    """Record the repair of a number with nonstandard spelling, unless a dialect is set and allows it."""
    if state.dialect is None:
        state.add_repair("number")


def nonstandard_number(reader: Reader, state: JsonState) -> Grammar:
    """Read a complete number in the spelling of another language (`.5`, `+1`, `007`), then emit it as strict JSON."""
    pattern = odd_number if state.dialect is None else python_number
    while True:
        if reader.text[reader.at] in "+-" and word(reader.text, reader.at + 1):
            yield from signed_word(reader, state)
            return
        found = pattern(reader.text, reader.at)
        if found is None or len(found[0]) > MAX_WORD:
            raise Mismatch
        if found.end() < len(reader.text):
            break
        yield from reader.more()
    strict = strict_number(found[0].replace("_", ""))
    record_number_repair(state)
    reader.take(len(found[0]), "repair")
    reader.emit_arguments(strict)


def strict_number(body: str) -> str:
    """Return a number in its JSON spelling.

    Raises:
        Mismatch: the text is not a number.
    """
    sign = "-" if body.startswith("-") else ""
    plain = body.lstrip("+-").replace("E", "e")
    base = BASES.get(plain[1:2].lower())
    if base is not None:
        try:
            return f"{sign}{int(plain[2:], base)}"
        except ValueError:
            raise Mismatch from None
    mantissa, _, power = plain.partition("e")
    integer, _, decimals = mantissa.partition(".")
    if not (integer or decimals):
        raise Mismatch
    strict = sign + (integer.lstrip("0") or "0") + (f".{decimals}" if decimals else "")
    return strict + (f"e{power}" if power.strip("+-") else "")


def signed_word(reader: Reader, state: JsonState) -> Grammar:
    """Read `-Infinity` and similar words as null, because JSON has no such numbers."""
    while True:
        found = word(reader.text, reader.at + 1)
        if not found or found.end() - reader.at > MAX_WORD:
            raise Mismatch
        if found.end() < len(reader.text):
            break
        yield from reader.more()
    if WORDS.get(found[0]) != "null":
        raise Mismatch
    state.add_repair("python_literal")
    reader.take(1 + len(found[0]), "repair")
    reader.emit_arguments("null")
