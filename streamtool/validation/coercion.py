"""Arguments of the wrong type that can only mean one thing: what to write instead, and writing it.

The parser mends most of this as it streams; what is left are values whose type hangs on something else, and arguments
that no parser has read. Nothing is ever made up: a value keeps its text, in other quotes or brackets, or a `null` that
stands for "not given" is left out. Whether a mend helps is tried out by the caller.

Mends are made in the text, so what is not mended keeps every byte, numbers their spelling.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import frozen

Json = Any  # a decoded JSON value
Place = tuple[str | int, ...]
"""The keys and indexes on the way to a value."""
Name = Literal[
    "number_from_string",
    "boolean_from_string",
    "string_from_number",
    "json_from_string",
    "array_from_value",
    "null_dropped",
]
NUMBER: Final = 400
"""Characters of the longest number."""

_number = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?").fullmatch
_blank = re.compile(r"[ \t\r\n]*").match
_skip = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
"""Reads a value and says where it ends; numbers are not worked out."""


@frozen
class Coercion:
    """A change of one value."""

    place: Place
    name: Name


def coercions(place: Place, value: Json, types: frozenset[str]) -> Iterator[Coercion]:
    """What the value may be mended to when one of these types is wanted, the likeliest first. The whole stays."""
    if not place:
        return
    if isinstance(value, str):
        text = value.strip()
        if "boolean" in types and text.lower() in ("true", "false"):
            yield Coercion(place, "boolean_from_string")
        if types & {"number", "integer"} and len(text) <= NUMBER and _number(text):
            yield Coercion(place, "number_from_string")
        if ("object" if text[:1] == "{" else "array" if text[:1] == "[" else "") in types and _is_json(text):
            yield Coercion(place, "json_from_string")
    if value is None and isinstance(place[-1], str):
        yield Coercion(place, "null_dropped")
    if isinstance(value, int | float) and not isinstance(value, bool) and "string" in types:
        yield Coercion(place, "string_from_number")
    if "array" in types and value not in (None, "") and not isinstance(value, list):
        yield Coercion(place, "array_from_value")


def coerced(text: str, found: Sequence[Coercion]) -> str:
    """The JSON text with these values mended; no place may be inside of another one."""
    tree: dict[str | int, Json] = {}
    for mend in found:
        at = tree
        for step in mend.place[:-1]:
            at = at.setdefault(step, {})
        at[mend.place[-1]] = mend.name
    pieces = []
    done = 0
    for start, end, instead in _changes(text, _space(text, 0), tree):
        pieces += [text[done:start], instead]
        done = end
    return "".join([*pieces, text[done:]])


def _changes(text: str, start: int, tree: Mapping[str | int, Json]) -> Iterator[tuple[int, int, str]]:
    """What to write instead of which parts of the container that begins at `start`, in the order of the text."""
    children = list(_children(text, start))
    last = {child.key: child for child in children}  # of equal keys the last one counts
    kept = False
    for before, child, after in zip([None, *children], children, [*children[1:], None], strict=False):
        change = tree.get(child.key)
        if change == "null_dropped":
            # A comma goes with it: the one before it, or behind it when nothing is left before it.
            if kept and before is not None:
                yield before.end, child.end, ""
            else:
                yield child.opening, child.end if after is None else after.opening, ""
            continue
        kept = True
        if change is None or last[child.key] is not child:
            continue
        if isinstance(change, str):
            yield child.begin, child.end, _instead(change, text[child.begin : child.end])
        else:
            yield from _changes(text, child.begin, change)


@frozen(eq=False)
class _Child:
    """A member or an item: where it, its value begin and end in the text."""

    key: str | int
    opening: int
    begin: int
    end: int


def _children(text: str, start: int) -> Iterator[_Child]:
    """The members or items of the container that begins at `start`."""
    closer = "}" if text[start] == "{" else "]"
    at = _space(text, start + 1)
    number = 0
    while text[at] != closer:
        opening = at
        key: str | int = number
        if closer == "}":
            key, at = _skip(text, at)
            at = _space(text, _space(text, at) + 1)
        begin = at
        _, at = _skip(text, at)
        yield _Child(key, opening, begin, at)
        number += 1
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    """Where the white space at a place ends."""
    found = _blank(text, at)
    return at if found is None else found.end()


def _is_json(text: str) -> bool:
    """True if the text is one JSON value, and nothing stands behind it."""
    try:
        return bool(_skip(text, 0)[1] == len(text))
    except (ValueError, RecursionError):
        return False


def _instead(name: str, text: str) -> str:
    """What to write instead of a value's text."""
    if name == "string_from_number":
        return f'"{text}"'
    if name == "array_from_value":
        return f"[{text}]"
    inner = str(json.loads(text)).strip()
    return inner.lower() if name == "boolean_from_string" else inner
