"""Preparation of arguments for a format: they are validated, and split without changing their spelling."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

scan = json.JSONDecoder().raw_decode
space = re.compile(r"[ \t\r\n]*+").match
piece = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\w.+-]++|[^\s]')
"""Matches a string, a word, a number or a punctuation mark."""


class Written(Protocol):
    """Call to be written: a name and the JSON text of its arguments.

    If the call has an `id`, it is written in formats that include ids.
    """

    @property
    def name(self) -> str:
        """Name of the tool."""

    @property
    def arguments(self) -> str:
        """JSON text of one object; an empty string stands for an object without members."""


def arguments_of(call: Written) -> str:
    """Return the arguments on one line, but otherwise unchanged.

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
    # strict JSON has no line breaks inside strings, so each one here is whitespace
    return text.replace("\r", " ").replace("\n", " ")


def members(text: str) -> Iterator[tuple[str, object, str]]:
    """Yield the members of a strict JSON object: key, value, and the value's original text."""
    at = skip(text, 1)
    while text[at] != "}":
        key, at = scan(text, at)
        at = skip(text, skip(text, at) + 1)
        value, end = scan(text, at)
        yield str(key), value, text[at:end]
        at = skip_comma(text, end)


def items(text: str) -> Iterator[tuple[object, str]]:
    """Yield each item of a strict JSON array: its value and its original text."""
    at = skip(text, 1)
    while text[at] != "]":
        value, end = scan(text, at)
        yield value, text[at:end]
        at = skip_comma(text, end)


def skip_comma(text: str, at: int) -> int:
    """Return the position after an optional comma and the whitespace around it."""
    at = skip(text, at)
    return skip(text, at + 1) if text[at] == "," else at


def skip(text: str, at: int) -> int:
    """Return the position after whitespace."""
    found = space(text, at)
    return found.end() if found else at


def rewrite_json(text: str, string: Callable[[str], str], key: Callable[[str], str], others: Mapping[str, str]) -> str:
    """Rewrite strict JSON in another language; `string` and `key` convert values and keys that are strings, and
    `others` maps all other tokens.

    Whitespace between tokens is dropped. One pass is enough, however deeply the JSON is nested.
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
