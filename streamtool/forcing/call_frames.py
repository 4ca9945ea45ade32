"""Frames of calls: the text that a format writes around a call's arguments, determined by writing a sample call.

A frame with a JSON body contains an object, a frame with marked parameters contains them one after the other, and one
with keyword arguments contains `key=value` with JSON values. Expressions with other values, and arguments in a
JSON string, are not constrained: the model writes them freely, up to the text that ends them.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal

from attrs import frozen

from statemachine import Call, write
from statemachine.formats import (
    Anchor,
    Envelope,
    Expression,
    Format,
    MessageBody,
    Parameters,
    Variant,
    find_format,
)
from statemachine.formats.markers import spell
from statemachine.writing.bodies import parameter

Inside = Literal["json", "parameters", "keywords", "free"]
"""The content inside a frame: a JSON object, marked parameters, keyword arguments, or free text."""

_NAME: Final = "some_tool"
_HOLE: Final = '{"some_key": "some_value"}'
_MIN_MARKER: Final = 4
"""Minimum length of a marker that counts as distinguishable from ordinary text."""


@frozen
class CallFrame:
    """The text around the arguments of a call to one tool."""

    lead: str
    """Everything before the name."""
    begin: str
    """Everything before the arguments, including the name."""
    end: str
    """Everything after the arguments; may be empty. Neither `begin` nor `end` includes line breaks around marked
    parameters.
    """
    trigger: str
    """A prefix of `begin` that can only be followed by a call."""
    inside: Inside
    line: bool
    """Whether the trigger is recognized only at the start of a line."""
    bare: bool
    """Whether calls are plain JSON, without any marker."""


def frame(format: str, name: str) -> CallFrame:
    """Return the frame of a call to the tool `name`."""
    form = find_format(format)
    lead = _lead(format)
    begin, end, inside = _around(form, name)
    return CallFrame(lead, begin, end, _trigger(form, lead, begin), inside, form.anchor is Anchor.LINE, _bare(form))


def separator(format: str) -> str:
    """Return the text that separates two calls."""
    form = find_format(format)
    return "\n" if form.lines or form.anchor is Anchor.LINE else ""


def allows_several(format: str) -> bool:
    """Return whether a reply may contain several calls in a row; a bare object or array must be alone in a reply."""
    form = find_format(format)
    return not _bare(form)


def parameters_of(format: str) -> tuple[Format, Parameters]:
    """Return the format and its body, for frames that contain marked parameters."""
    form = find_format(format)
    body = form.variants[0].body
    assert isinstance(body, Parameters)  # noqa: S101  noqa: S101  callers have checked `inside`
    return form, body


@lru_cache(maxsize=128)
def _lead(format: str) -> str:
    return write([Call(_NAME, "{}")], format).partition(_NAME)[0]


def _around(form: Format, name: str) -> tuple[str, str, Inside]:
    variant = form.variants[0]
    match variant.body:
        case Expression(brackets=brackets) as body:
            text = write([Call(name, "{}")], form)
            at = text.rindex(brackets) + 1
            return text[:at], text[at:], "free" if body.flag or body.quote else "keywords"
        case Parameters() as body:
            text = write([Call(name, _HOLE)], form)
            begin, _, end = text.rpartition(parameter(form, body, "some_key", "some_value", '"some_value"'))
            between = "\n" if form.lines else ""  # these are written with the parameters
            return begin.removesuffix(between), end.removeprefix(between), "parameters"
        case Envelope(as_string=True):
            begin, _, end = write([Call(name, _HOLE)], form).rpartition(json.dumps(_HOLE)[1:-1])
            return begin, end, "free"
        case _:
            begin, _, end = write([Call(name, _HOLE)], form).rpartition(_HOLE)
            return begin, end, "json"


def _trigger(form: Format, lead: str, begin: str) -> str:
    """Return the first marker if it is distinctive. Otherwise, return the text before the name or, if that is too
    short, the text before the arguments.
    """
    if form.anchor is Anchor.ANYWHERE:
        for marker in _markers(form, form.variants[0]):
            if len(marker) >= _MIN_MARKER and begin.startswith(marker):
                return marker
    return lead if len(lead) >= _MIN_MARKER else begin


def _markers(form: Format, variant: Variant) -> Iterator[str]:
    if isinstance(variant.body, MessageBody):  # this format's opener begins text messages as well
        return
    for marker in (form.around, form.around_each, *form.openers[:1]):
        if marker and "{tool}" not in marker:
            yield spell(marker)
    yield from (f"```{info}\n" for info in form.fence[:1])


def _bare(form: Format) -> bool:
    return not (form.openers or form.fence) and isinstance(form.variants[0].body, Envelope)
