"""What is held back of a call, and for how long, is what `docs/formats.md` says: in characters, for every format."""

import itertools
import json

import pytest
from statemachine_fold import calls_of, fold

from statemachine import FORMATS, Format, Parser
from statemachine.events import CallEnd, CallStart, Event
from statemachine.formats.markers import spelled
from statemachine.formats.scanner import MAX_NEWLINES
from streamtool.cli.holds import VALUES, Holds, example, formula, holds

KINDS = ("string", "integer", "boolean", "null", "array", "object")
NAMES = ("f", "a_tool_with_a_name_that_is_rather_long_for_a_tool")
KEYS = ("ab", "the_name_of_the_city_and_its_country")


def schema(key: str) -> dict[str, object]:
    """The schema of the example's arguments."""
    typed = {f"{key[:-1]}{number}": {"type": kind} for number, kind in enumerate(KINDS)}
    return {"type": "object", "properties": {key: {"type": "string"}, **typed}}


def fed(parser: Parser, text: str) -> list[tuple[str, int, list[Event]]]:
    """The phase, what is held and the events after each character."""
    phase, found = "outside", []
    for char in text:
        events = parser.feed(char)
        for event in events:
            phase = "inside" if isinstance(event, CallStart) else "outside" if isinstance(event, CallEnd) else phase
        found.append((phase, parser.held, events))
    return found


def parser_of(form: Format, tools: object, *, alone: bool) -> Parser:
    return Parser(tools, formats=[form.name] if alone else {*FORMATS} - {form.alias_of})


def bound(phase: str, known: Holds) -> int:
    """What may be held in a phase; values that are held whole are the longest of the example."""
    value = max(map(len, VALUES)) if known.values else 0
    return known.inside + value if phase == "inside" else max(known.opening, known.closing) + 1  # and one line end


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with all others"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_call_is_held_no_longer_than_the_page_says(name: str, alone: bool) -> None:
    form = FORMATS[name]
    for tool, key in itertools.product(NAMES, KEYS):
        tools = {tool: schema(key)}
        text = example(form, tool, key)
        parser = parser_of(form, tools, alone=alone)
        known = holds(form, tool, key)
        steps = fed(parser, text)
        for place, (phase, held, _) in enumerate(steps):
            assert held <= bound(phase, known), (phase, held, text[max(0, place + 1 - held) : place + 1])
        calls = calls_of(fold([event for _, _, events in steps for event in events] + parser.close()))
        assert [(call.name, call.complete) for call in calls] == [(tool, True)] * 3


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_starts_with_the_character_that_the_page_says(name: str) -> None:
    """The first call of a reply: what stands before its start is what was held, no character more."""
    form = FORMATS[name]
    for tool, key in itertools.product(NAMES, KEYS):
        steps = fed(parser_of(form, {tool: schema(key)}, alone=True), example(form, tool, key))
        start = next(place for place, (phase, _, _) in enumerate(steps) if phase == "inside")
        assert start < holds(form, tool, key).opening


@pytest.mark.parametrize("name", FORMATS)
def test_a_string_goes_out_as_it_comes(name: str) -> None:
    """Inside of a string of words nothing is held at all."""
    form = FORMATS[name]
    tools = {"f": {"type": "object", "properties": {"text": {"type": "string"}}}}
    words = " ".join(["word"] * 50)
    text = example(form, "f", "text").replace("a <b> & {c} [d]", words)
    at = text.index(words)
    steps = fed(parser_of(form, tools, alone=True), text)
    held = {held for _, held, _ in steps[at : at + len(words) - 1]}
    assert held == {0}


@pytest.mark.parametrize("name", FORMATS)
def test_a_marker_in_text_is_held_no_longer_than_itself(name: str) -> None:
    form = FORMATS[name]
    for opener in (*form.openers, *(opener for opener, _ in form.wrappers)):
        marker = spelled(opener)
        for end in range(1, len(marker)):
            parser = parser_of(form, {"f": {}}, alone=True)
            parser.feed("Some text. ")
            parser.feed(marker[:end])
            assert parser.held <= holds(form, "f", "key").marker
            parser.feed(" and more text.")
            assert parser.held == 0


def test_line_ends_are_held_up_to_their_bound() -> None:
    parser = Parser({"f": {}})
    parser.feed("Text.")
    parser.feed("\n" * 1000)
    assert parser.held <= MAX_NEWLINES + 1


def test_a_formula_says_what_a_bound_depends_on() -> None:
    assert formula(lambda name, key: 7) == "7"
    assert formula(lambda name, key: 7 + len(name)) == "7 + name"
    assert formula(lambda name, key: 2 * len(key) + len(name) + 1) == "1 + 2 × key + name"
    assert formula(lambda name, key: len(name)) == "name"


def test_the_example_has_a_value_of_each_kind() -> None:
    assert len({type(json.loads(value)) for value in VALUES}) == len(VALUES) == len(KINDS)


@pytest.mark.parametrize("before", ["", "Text. "])
def test_line_ends_behind_a_call_are_held_up_to_a_limit(before: str) -> None:
    parser = Parser({"ping": {}})
    parser.feed(before + '<tool_call>{"name": "ping", "arguments": {}}</tool_call>')
    assert max(held for _, held, _ in fed(parser, "\n" * 500)) <= 4 * MAX_NEWLINES + 1
