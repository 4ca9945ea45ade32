"""A call as a format writes it, around its arguments: found by writing one and looking where the arguments stand.

Bodies of JSON take any object in that place. Marked parameters take parameters there, one after the other; expressions
and arguments in a JSON string are left to the model, up to what ends them.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal

from attrs import frozen

from statemachine import FORMATS, Call, write
from statemachine.formats import Anchor, Envelope, Expression, Format, MessageBody, Parameters, Variant
from statemachine.formats.markers import spelled
from statemachine.writing.bodies import parameter

Inside = Literal["json", "parameters", "free"]
"""What stands between the two ends of a frame: a JSON object, marked parameters, or what the model likes."""

_NAME: Final = "some_tool"
_HOLE: Final = '{"some_key": "some_value"}'
_SHORTEST: Final = 4
"""Characters of a marker that is no ordinary text by itself."""


@frozen
class CallFrame:
    """A call of one tool, around its arguments."""

    lead: str
    """Everything before the name."""
    begin: str
    """Everything before the arguments, the name included."""
    end: str
    """Everything after them; may be empty. Marked parameters stand on lines of their own between both, if they do."""
    trigger: str
    """Beginning of `begin` after which nothing but a call can follow."""
    inside: Inside
    line: bool
    """It counts at the beginning of a line only."""
    bare: bool
    """There is no marker: a call is JSON and nothing else."""


def frame(format: str, name: str) -> CallFrame:
    """The frame of a call of the tool `name`."""
    form = FORMATS[format]
    lead = _lead(format)
    begin, end, inside = _around(form, name)
    return CallFrame(lead, begin, end, _trigger(form, lead, begin), inside, form.anchor is Anchor.LINE, _bare(form))


def separator(format: str) -> str:
    """What stands between two calls."""
    form = FORMATS[format]
    return "\n" if form.lines or form.anchor is Anchor.LINE else ""


def several(format: str) -> bool:
    """Whether calls may follow one another: bare objects and arrays are alone in a reply."""
    form = FORMATS[format]
    return not _bare(form)


def parameters_of(format: str) -> tuple[Format, Parameters]:
    """The format and its body, if what stands inside of its frames is marked parameters."""
    form = FORMATS[format]
    body = form.variants[0].body
    assert isinstance(body, Parameters)  # noqa: S101  whoever calls has seen `inside`
    return form, body


@lru_cache(maxsize=128)
def _lead(format: str) -> str:
    return write([Call(_NAME, "{}")], format).partition(_NAME)[0]


def _around(form: Format, name: str) -> tuple[str, str, Inside]:
    variant = form.variants[0]
    match variant.body:
        case Expression(brackets=brackets):
            text = write([Call(name, "{}")], form)
            at = text.rindex(brackets) + 1
            return text[:at], text[at:], "free"
        case Parameters() as body:
            text = write([Call(name, _HOLE)], form)
            begin, _, end = text.rpartition(parameter(form, body, "some_key", "some_value", '"some_value"'))
            between = "\n" if form.lines else ""  # it stands with the parameters
            return begin.removesuffix(between), end.removeprefix(between), "parameters"
        case Envelope(as_string=True):
            begin, _, end = write([Call(name, _HOLE)], form).rpartition(json.dumps(_HOLE)[1:-1])
            return begin, end, "free"
        case _:
            begin, _, end = write([Call(name, _HOLE)], form).rpartition(_HOLE)
            return begin, end, "json"


def _trigger(form: Format, lead: str, begin: str) -> str:
    """The first marker where it is unlike any text, else all before the name, or all before the arguments."""
    if form.anchor is Anchor.ANYWHERE:
        for marker in _markers(form, form.variants[0]):
            if len(marker) >= _SHORTEST and begin.startswith(marker):
                return marker
    return lead if len(lead) >= _SHORTEST else begin


def _markers(form: Format, variant: Variant) -> Iterator[str]:
    if isinstance(variant.body, MessageBody):  # its opener begins text as well
        return
    for marker in (form.around, form.around_each, *form.openers[:1]):
        if marker and "{tool}" not in marker:
            yield spelled(marker)
    yield from (f"```{info}\n" for info in form.fence[:1])


def _bare(form: Format) -> bool:
    return not (form.openers or form.fence) and isinstance(form.variants[0].body, Envelope)
