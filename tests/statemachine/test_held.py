"""The parser buffers no more of a call than `docs/reference/formats.md` lists: in characters, for every format."""

import itertools
import json

import pytest
from support.statemachine_fold import calls_of, fold
from support.sweeps import each

from statemachine import FORMATS, Format, Parser
from statemachine.events import CallEnd, CallStart, Event
from statemachine.formats.markers import spell
from statemachine.formats.scanner import MAX_NEWLINES
from streamtool.cli.holds import VALUES, BufferBounds, buffer_bounds, example, formula

KINDS = ("string", "integer", "boolean", "null", "array", "object")
NAMES = ("f", "a_tool_with_a_name_that_is_rather_long_for_a_tool")
KEYS = ("ab", "the_name_of_the_city_and_its_country")


def schema(key: str) -> dict[str, object]:
    """Return the schema of the example's arguments."""
    typed = {f"{key[:-1]}{number}": {"type": kind} for number, kind in enumerate(KINDS)}
    return {"type": "object", "properties": {key: {"type": "string"}, **typed}}


def fed(parser: Parser, text: str) -> list[tuple[str, int, list[Event]]]:
    """Return the phase, the number of buffered characters and the events after each character."""
    phase, found = "outside", []
    for char in text:
        events = parser.feed(char)
        for event in events:
            phase = "inside" if isinstance(event, CallStart) else "outside" if isinstance(event, CallEnd) else phase
        found.append((phase, parser.held, events))
    return found


def parser_of(form: Format, tools: object, *, alone: bool) -> Parser:
    return Parser(tools, formats=[form.name] if alone else {*FORMATS} - {form.alias_of})


def bound(phase: str, known: BufferBounds) -> int:
    """Return how much may be buffered in a phase; a value that is buffered whole counts with the example's longest
    value.
    """
    value = max(map(len, VALUES)) if known.values else 0
    return known.inside + value if phase == "inside" else max(known.opening, known.closing) + 1  # and one newline


@each("alone", [True, False], ids=["alone", "with all others"])
@each("name", FORMATS)
def test_a_call_is_buffered_no_longer_than_documented(name: str, alone: bool) -> None:
    form = FORMATS[name]
    for tool, key in list(itertools.product(NAMES, KEYS))[alone::2]:
        tools = {tool: schema(key)}
        text = example(form, tool, key)
        parser = parser_of(form, tools, alone=alone)
        known = buffer_bounds(form, tool, key)
        steps = fed(parser, text)
        for place, (phase, held, _) in enumerate(steps):
            assert held <= bound(phase, known), (phase, held, text[max(0, place + 1 - held) : place + 1])
        calls = calls_of(fold([event for _, _, events in steps for event in events] + parser.close()))
        assert [(call.name, call.complete) for call in calls] == [(tool, True)] * 3


@each("name", FORMATS)
def test_a_call_starts_at_the_documented_character(name: str) -> None:
    """The text before the start of a reply's first call is exactly what was buffered."""
    form = FORMATS[name]
    for tool, key in itertools.product(NAMES, KEYS):
        steps = fed(parser_of(form, {tool: schema(key)}, alone=True), example(form, tool, key))
        start = next(place for place, (phase, _, _) in enumerate(steps) if phase == "inside")
        assert start < buffer_bounds(form, tool, key).opening


@each("name", FORMATS)
def test_a_string_is_emitted_as_it_arrives(name: str) -> None:
    """Nothing is buffered inside a string of plain words."""
    form = FORMATS[name]
    tools = {"f": {"type": "object", "properties": {"text": {"type": "string"}}}}
    words = " ".join(["word"] * 50)
    text = example(form, "f", "text").replace("a <b> & {c} [d]", words)
    at = text.index(words)
    steps = fed(parser_of(form, tools, alone=True), text)
    held = {held for _, held, _ in steps[at : at + len(words) - 1]}
    assert held == {0}


@each("name", FORMATS)
def test_a_marker_in_text_is_buffered_no_longer_than_its_length(name: str) -> None:
    form = FORMATS[name]
    for opener in (*form.openers, *(opener for opener, _ in form.wrappers)):
        marker = spell(opener)
        for end in range(1, len(marker)):
            parser = parser_of(form, {"f": {}}, alone=True)
            parser.feed("Some text. ")
            parser.feed(marker[:end])
            assert parser.held <= buffer_bounds(form, "f", "key").marker
            parser.feed(" and more text.")
            assert parser.held == 0


def test_newlines_are_buffered_up_to_their_limit() -> None:
    parser = Parser({"f": {}})
    parser.feed("Text.")
    parser.feed("\n" * 1000)
    assert parser.held <= MAX_NEWLINES + 1


def test_a_formula_shows_what_a_bound_depends_on() -> None:
    assert formula(lambda name, key: 7) == "7"
    assert formula(lambda name, key: 7 + len(name)) == "7 + name"
    assert formula(lambda name, key: 2 * len(key) + len(name) + 1) == "1 + 2 × key + name"
    assert formula(lambda name, key: len(name)) == "name"


def test_the_example_has_a_value_of_each_kind() -> None:
    assert len({type(json.loads(value)) for value in VALUES}) == len(VALUES) == len(KINDS)


@pytest.mark.parametrize("before", ["", "Text. "])
def test_newlines_after_a_call_are_buffered_up_to_a_limit(before: str) -> None:
    parser = Parser({"ping": {}})
    parser.feed(before + '<tool_call>{"name": "ping", "arguments": {}}</tool_call>')
    assert max(held for _, held, _ in fed(parser, "\n" * 500)) <= 4 * MAX_NEWLINES + 1
