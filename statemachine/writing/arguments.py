"""Arguments on their way into a format: checked, and taken apart without changing how they are spelled."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

scan = json.JSONDecoder().raw_decode
space = re.compile(r"[ \t\r\n]*+").match
piece = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\w.+-]++|[^\s]')
"""A string, a word, a number or a sign."""


class Written(Protocol):
    """What can be written: a name and JSON text of its arguments; an `id` is written where the format has a place."""

    @property
    def name(self) -> str:
        """The tool."""

    @property
    def arguments(self) -> str:
        """JSON text of one object; "" is an object without members."""


def arguments_of(call: Written) -> str:
    """The arguments on one line, everything else as it stands.

    Raises:
        ValueError: they are not one JSON object.

    """
    text = call.arguments.strip() or "{}"
    try:
        whole = isinstance(json.loads(text), dict)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"the arguments of {call.name!r} are not a JSON object: {text[:60]}")
    # strict JSON has no line end inside of a string, so each one here is white space
    return text.replace("\r", " ").replace("\n", " ")


def members(text: str) -> Iterator[tuple[str, object, str]]:
    """The members of an object that is strict JSON: key, value, and the value's own text."""
    at = skip(text, 1)
    while text[at] != "}":
        key, at = scan(text, at)
        at = skip(text, skip(text, at) + 1)
        value, end = scan(text, at)
        yield str(key), value, text[at:end]
        at = next_one(text, end)


def items(text: str) -> Iterator[tuple[object, str]]:
    """The items of an array that is strict JSON: value, and the value's own text."""
    at = skip(text, 1)
    while text[at] != "]":
        value, end = scan(text, at)
        yield value, text[at:end]
        at = next_one(text, end)


def next_one(text: str, at: int) -> int:
    """Past a comma, and to what comes next."""
    at = skip(text, at)
    return skip(text, at + 1) if text[at] == "," else at


def skip(text: str, at: int) -> int:
    """Past white space."""
    found = space(text, at)
    return found.end() if found else at


def retold(text: str, string: Callable[[str], str], key: Callable[[str], str], others: Mapping[str, str]) -> str:
    """Strict JSON in another language: `string` and `key` write strings, `others` says what else is written otherwise.

    White space between the parts is not kept. Takes one pass, however deep the text is.
    """
    out: list[str] = []
    last = ""
    for found in piece.finditer(text):
        part = found[0]
        if last:
            out.append(key(last) if part == ":" else string(last))
            last = ""
        if part[0] == '"':
            last = part
        else:
            out.append(others.get(part, part))
    if last:
        out.append(string(last))
    return "".join(out)
