"""Translation of a response template into a format."""

import json
from collections.abc import Mapping
from hashlib import sha256

from attrs import evolve, frozen

from statemachine import FORMATS, write
from statemachine.formats import DEFAULT, Format, FormatError, MessageBody, add_format, rivals_of
from statemachine.formats.compile import tables_of
from statemachine.formats.format import check_formats
from statemachine.formats.table import STOPS
from streamtool.core.json_value import Json
from streamtool.models.chat_templates import Recognised
from streamtool.models.response_templates.calls import calls_of
from streamtool.models.response_templates.fields import (
    CALLS,
    REASONING_FIELDS,
    TEXT,
    all_sections,
    ends_at_calls,
    fields_of,
    markers,
    sections_of,
    starts_of,
    without_prefixes,
)
from streamtool.models.response_templates.known import (
    EXAMPLES,
    extended,
    reads_examples,
    with_known_markers,
    writes_alike,
)
from streamtool.models.response_templates.messages import messages_of
from streamtool.models.response_templates.patterns import Edge, PatternError, unique


@frozen
class Described:
    """The format and the reasoning opener that a response template describes."""

    format: str
    """Name of the format: a row of the table if it reads the same calls and sections."""
    opener: str = ""
    """Reasoning opener that the prompt contains, because reasoning begins with the reply, or ""."""
    opener_on_request: str = ""
    """Reasoning opener that the prompt may contain, because reasoning begins with the reply if it is closed later."""
    calls_end_reasoning: bool = False
    """Whether a call ends reasoning that has no closer."""


def read(template: Json) -> Described:
    """Read a response template. Its format, if not a row of the table, is then known by a name that is derived from the
    template, so that different templates have different names.

    Raises:
        FormatError: the template is invalid, has no field `tool_calls`, or contains a construct that is not supported.
    """
    form, opener, always, ends = translate(template)
    row = next(
        (FORMATS[name] for name in FORMATS if name in rivals_of(form) and writes_alike(FORMATS[name], form)), None
    )
    if row is not None:
        form = extended(row, form)
    if form != row:
        check_markers(form)
        add_format(form)
    return Described(form.name, opener if always else "", opener, ends)


def check_markers(form: Format) -> None:
    """Reject a format whose markers cannot be distinguished from one another, or from those of other formats, or whose
    own calls would not be read.

    Raises:
        FormatError: a marker is also another marker, or begins with one; or calls are not read as they are written.
    """
    if form.close in form.openers:
        raise FormatError(f"the marker {form.close!r} both opens and closes a call")
    try:
        check_formats({form.name: form})
        tables_of(tuple(name for name in DEFAULT if name not in rivals_of(form)), (), (form,), ())
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"the markers of the template are ambiguous: {error}") from None
    written = write(EXAMPLES, form)
    if not reads_examples(form, written):
        raise FormatError(f"calls that are written as the template describes them are not read: {written!r}")


def as_recognised(described: Described, template: Recognised | None) -> Recognised:
    """Return what is known about a model from its response template and, if it is known, from its chat template."""
    return Recognised(
        described.format,
        "response_template",
        (template.opener if template else "") or described.opener,
        (template.opener_on_request if template else "") or described.opener_on_request,
        described=True,
        calls_end_reasoning=described.calls_end_reasoning,
    )


def translate(template: Json) -> tuple[Format, str, bool, bool]:
    """Return the format of a template, the reasoning opener that the prompt may contain ("" if none), whether the
    prompt always contains it, and whether a call ends reasoning that has no closer.

    Raises:
        FormatError: the template is invalid, has no field `tool_calls`, or contains a construct that is not supported.
    """
    if not isinstance(template, Mapping):
        raise FormatError("a response template is an object with 'fields'")
    fields = fields_of(template)
    digest = sha256(json.dumps(template, sort_keys=True, default=str).encode()).hexdigest()
    name = f"response_template_{digest[:8]}"
    calls = fields.pop(CALLS, None)
    if calls is None:
        raise FormatError(f"the template has no field '{CALLS}', so it describes no calls")
    try:
        form = messages_of(name, starts_of(template), calls, fields) or calls_of(name, calls)
    except PatternError as error:
        raise calls.error(str(error)) from None
    sections = [] if isinstance(form.variants[0].body, MessageBody) else list(sections_of(fields))
    stops = list(form.stops)
    for field in fields.values():
        if field.name == TEXT and not field.opens:
            ends = markers(field.closes)
            stops += ends
            if form.close in (*ends, *STOPS):  # it ends the turn, not the call
                stops.append(form.close)
                form = evolve(form, close="")
    if any(isinstance(piece, Edge) and piece.text.startswith("(") for way in calls.closes for piece in way):
        form = evolve(form, closed=False)
    form = with_known_markers(
        evolve(form, sections=tuple(unique(sections)), stops=without_prefixes(unique(stops), form.close))
    )
    begun = [field for field in fields.values() if field.name in REASONING_FIELDS and field.in_prompt]
    opener = next((section.open for field in begun for section in all_sections(field)), "")
    always = any(piece == Edge("^") for field in begun for way in field.opens for piece in way)
    by_calls = [ends_at_calls(field, form) for field in fields.values()]
    return form, opener, always, any(by_calls)
