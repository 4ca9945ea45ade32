"""Repair of arguments that have the wrong type but an unambiguous meaning: finding the possible repairs and applying
them.

The parser makes most of these repairs while it streams. This module handles values whose type depends on other values,
and arguments that no parser has read. Nothing is ever invented: a value keeps its text, in different quotes or
brackets, and a `null` that means "not given" is removed. The caller determines by trial whether a repair helps.

Repairs are made in the text, so that every other byte is preserved, including the spelling of numbers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from attrs import frozen

from streamtool.core.json_value import Json

Place = tuple[str | int, ...]
"""The path to a value: its keys and indexes."""
Name = Literal[
    "number_from_string",
    "boolean_from_string",
    "string_from_number",
    "json_from_string",
    "array_from_value",
    "null_dropped",
]
MAX_NUMBER_LENGTH: Final = 400
"""Maximum length of a number, in characters."""

_number = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?").fullmatch
_blank = re.compile(r"[ \t\r\n]*").match
_raw_decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
"""Decodes a JSON value without converting its numbers; returns the value and its end."""


@frozen
class Coercion:
    """A change to one value."""

    place: Place
    name: Name


def possible_coercions(place: Place, value: Json, types: frozenset[str]) -> Iterator[Coercion]:
    """Yield the possible repairs for a value that should have one of these types, the most likely one first.

    The top-level value is never repaired.
    """
    if not place:
        return
    if isinstance(value, str):
        text = value.strip()
        if "boolean" in types and text.lower() in ("true", "false"):
            yield Coercion(place, "boolean_from_string")
        if types & {"number", "integer"} and len(text) <= MAX_NUMBER_LENGTH and _number(text):
            yield Coercion(place, "number_from_string")
        if ("object" if text[:1] == "{" else "array" if text[:1] == "[" else "") in types and _is_json(text):
            yield Coercion(place, "json_from_string")
    if value is None and isinstance(place[-1], str):
        yield Coercion(place, "null_dropped")
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in types:
        yield Coercion(place, "string_from_number")
    if "array" in types and value not in (None, "") and not isinstance(value, list):
        yield Coercion(place, "array_from_value")


def apply_coercions(text: str, found: Sequence[Coercion]) -> str:
    """Return the JSON text with these values repaired. No value to repair may be inside another one."""
    tree: dict[str | int, Json] = {}
    for coercion in found:
        at = tree
        for step in coercion.place[:-1]:
            at = at.setdefault(step, {})
        at[coercion.place[-1]] = coercion.name
    pieces = []
    done = 0
    for start, end, instead in _changes(text, _skip_whitespace(text, 0), tree):
        pieces += [text[done:start], instead]
        done = end
    return "".join([*pieces, text[done:]])


def _changes(text: str, start: int, tree: Mapping[str | int, Json]) -> Iterator[tuple[int, int, str]]:
    """Yield the replacements (start, end, text) in the container that begins at `start`, in textual order."""
    children = list(_children(text, start))
    last = {child.key: child for child in children}  # if a key is repeated, its last occurrence counts
    kept = False
    for before, child, after in zip([None, *children], children, [*children[1:], None], strict=False):
        change = tree.get(child.key)
        if change == "null_dropped":
            # A comma is removed as well: the one before the value, or the one after it if nothing remains before it.
            if kept and before is not None:
                yield before.end, child.end, ""
            else:
                yield child.opening, child.end if after is None else after.opening, ""
            continue
        kept = True
        if change is None or last[child.key] is not child:
            continue
        if isinstance(change, str):
            yield child.begin, child.end, _replacement(change, text[child.begin : child.end])
        else:
            yield from _changes(text, child.begin, change)


@frozen(eq=False)
class _Child:
    """A member of an object or an item of an array: where it begins, and where its value begins and ends."""

    key: str | int
    opening: int
    begin: int
    end: int


def _children(text: str, start: int) -> Iterator[_Child]:
    """Yield the members or items of the container that begins at `start`."""
    closer = "}" if text[start] == "{" else "]"
    at = _skip_whitespace(text, start + 1)
    number = 0
    while text[at] != closer:
        opening = at
        key: str | int = number
        if closer == "}":
            key, at = _raw_decode(text, at)
            at = _skip_whitespace(text, _skip_whitespace(text, at) + 1)
        begin = at
        _, at = _raw_decode(text, at)
        yield _Child(key, opening, begin, at)
        number += 1
        at = _skip_whitespace(text, at)
        if text[at] == ",":
            at = _skip_whitespace(text, at + 1)


def _skip_whitespace(text: str, at: int) -> int:
    """Return the position after the whitespace that begins at `at`."""
    found = _blank(text, at)
    return at if found is None else found.end()


def _is_json(text: str) -> bool:
    """Return whether the text is exactly one JSON value."""
    try:
        return bool(_raw_decode(text, 0)[1] == len(text))
    except (ValueError, RecursionError):
        return False


def _replacement(name: str, text: str) -> str:
    """Return the replacement for the text of a value."""
    if name == "string_from_number":
        return f'"{text}"'
    if name == "array_from_value":
        return f"[{text}]"
    inner = str(json.loads(text)).strip()
    return inner.lower() if name == "boolean_from_string" else inner
