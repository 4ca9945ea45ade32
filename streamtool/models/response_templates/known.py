"""Comparison of described formats with the rows of the table, which read more variations of the same calls."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from attrs import evolve

from statemachine import FORMATS, Call, parse, write
from statemachine.formats import REASONING, Format, MessageBody, Parameters, Section, Variant
from statemachine.formats.markers import spell
from statemachine.formats.table import STOPS

EXAMPLES: Final = (
    Call("some_tool", '{"key": "some text", "other": "more, text", "list": [1, "a"], "number": 2}'),
    Call("some_tool", "{}"),
)
"""Calls that are written in one format and read in another, to compare the two."""


def writes_alike(row: Format, form: Format) -> bool:
    """Return whether a row of the table reads and writes the same calls as a format. Messages with headers may be
    written in several ways, so only reading counts.
    """
    written = write(EXAMPLES, form)
    headed = any(isinstance(variant.body, MessageBody) for variant in row.variants)
    if not headed and "".join(written.split()) != "".join(write(EXAMPLES, row).split()):
        return False
    return reads_examples(row, written)


def reads_examples(form: Format, written: str) -> bool:
    """Return whether a format reads the example calls from this text, and nothing else."""
    text, calls = parse(written, formats=[form])
    found = [(call.name, json.loads(call.arguments)) for call in calls if call.complete and not call.repairs]
    return not text.strip() and found == [(call.name, json.loads(call.arguments)) for call in EXAMPLES]


def extended(row: Format, form: Format) -> Format:
    """Return a row of the table, or a copy of it with the sections and stops that only `form` has."""
    spans = {spans_of(one) for one in (*row.sections, *REASONING)}
    sections = tuple(one for one in form.sections if spans_of(one) not in spans)
    known = {*STOPS, *row.stops, row.close, *(close for _, close in row.wrappers)}
    stops = tuple(stop for stop in form.stops if stop not in known)
    if not sections and not stops:
        return row
    return evolve(row, name=form.name, alias_of="", sections=(*row.sections, *sections), stops=(*row.stops, *stops))


def spans_of(section: Section) -> tuple[str, str, bool]:
    """Return what a section looks like."""
    return spell(section.open), spell(section.close), section.text


def with_known_markers(form: Format) -> Format:
    """Return a format with its markers spelled as in the table, which allows more variations of the same markers."""
    (variant,) = form.variants
    body, rule = variant.body, variant.name_rule
    if isinstance(body, Parameters):
        key_rule = evolve(body.key_rule, ends=known_markers(body.key_rule.ends))
        body = evolve(body, key=known_marker(body.key), key_rule=key_rule, close=known_marker(body.close))
    if rule is not None:
        rule = evolve(rule, ends=known_markers(rule.ends))
    return evolve(
        form,
        variants=(Variant(body, rule),),
        openers=known_markers(form.openers),
        close=known_marker(form.close),
        wrappers=tuple((known_marker(opener), known_marker(close)) for opener, close in form.wrappers),
        around=known_marker(form.around),
        around_each=known_marker(form.around_each),
    )


def known_markers(found: Iterable[str]) -> tuple[str, ...]:
    """Return the markers as the table spells them."""
    return tuple(map(known_marker, found))


def known_marker(text: str) -> str:
    """Return a marker as the table spells it, or unchanged if it is not in the table."""
    known = table_markers().get(spell(text), text)
    return known if known.endswith("{ }") == text.endswith("{ }") else text


@cache
def table_markers() -> Mapping[str, str]:
    """Return the markers of the table that have optional or alternative parts, by their usual spelling."""
    found = [marker for row in FORMATS.values() for marker in markers_of(row)]
    return {spell(text): text for text in found if any(part in text for part in ("{:}", "{ns}", "{|}", "{*}"))}


def markers_of(form: Format) -> Iterator[str]:
    """Yield the markers of a format's calls."""
    yield from (*form.openers, form.close, *(side for pair in form.wrappers for side in pair))
    for variant in form.variants:
        yield from variant.name_rule.ends if variant.name_rule else ()
        if isinstance(variant.body, Parameters):
            yield from (variant.body.key, variant.body.close, *variant.body.key_rule.ends)
