"""`python -m conformance.export`: prints the table of formats and the conformance cases for use by other programs.

Prints one JSON object: `formats` (the rows; each body has its `kind`), `opt_in` (names), `reasoning` (the reasoning
spans that belong to no format), `markers` (the meanings of the placeholders in markers) and `cases` (`id`, `format`,
`title`, `text`, `tools`, `reason`, `options`, `events`). `statemachine/formats/format.py` documents the fields of a
row.
"""

import json
from enum import Enum
from typing import Any

import attrs

from conformance import cases
from statemachine import FORMATS, OPT_IN, Call, Format, write
from statemachine.formats import REASONING, Body
from streamtool.models.families import special_tokens

MARKERS = {
    "{ns}": "an optional XML namespace prefix and its colon",
    "{:}": "an optional suffix: a colon and a word",
    "{_}": "optional blanks (space, tab)",
    "{ }": "one whitespace character",
    "{*}": "optional whitespace, including line breaks",
    "{n}": "the same, written as a line break",
    "{word}": "an optional word, with optional whitespace on each side",
    "{|}": "a vertical bar, ordinary or full-width",
    "{=}": 'an optional name, `=f` or ` name="f"`, which must be that of the element that is closed',
    "{'}": "an optional quote, single or double",
    "{a}": "followed by a letter, which is not part of the marker",
    "{k}": "followed by a letter or a hyphen, which is not part of the marker",
    "{key}": "in the closer of a value: the key that opened it",
    "{tool}": "the name of an offered tool",
}
"""Meaning of each placeholder in markers."""


def document() -> dict[str, Any]:
    """Return the complete JSON document."""
    return {
        "formats": [row(form) for form in FORMATS.values()],
        "opt_in": sorted(OPT_IN),
        "reasoning": [plain(span) for span in REASONING],
        "markers": MARKERS,
        "cases": [case(found) for found in cases.all_cases(cases.FOLDER)],
    }


def row(form: Format) -> dict[str, Any]:
    """Return a format in JSON types, with derived values."""
    example = write([Call("get_weather", '{"city": "Paris", "days": 3}')], form.name)
    fields: dict[str, Any] = plain(form)
    return {**fields, "opt_in": form.name in OPT_IN, "special_tokens": list(special_tokens(form)), "example": example}


def case(found: cases.Case) -> dict[str, Any]:
    """Return a case in JSON types."""
    return {
        "id": found.id,
        "format": found.format,
        "title": found.title,
        "text": found.text,
        "tools": found.tools,
        "reason": found.reason,
        "options": found.options,
        "events": found.events,
    }


def plain(value: Any) -> Any:
    """Convert a value from the table to JSON types, and add the `kind` of each body."""
    if attrs.has(type(value)):
        kind = {"kind": type(value).__name__.removesuffix("Body").lower()} if isinstance(value, Body) else {}
        return kind | {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


if __name__ == "__main__":
    print(json.dumps(document(), ensure_ascii=False, indent=1))
