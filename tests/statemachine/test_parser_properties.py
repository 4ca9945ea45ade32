"""Properties of the parser for every text, every set of options and every split.

Each run uses the same examples; `-m long` tries many more, different ones each time.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.json_oracle import Json, is_object
from support.statemachine_fold import Discard, Reasoning, Text, calls_of, events_of, fold, outcome
from support.strategies import REPLIES, SOUP, SOUP_TOOLS, cut, expressed_calls, json_calls, options, typed_calls
from support.sweeps import each

from statemachine import FORMATS, Parser, parse, write
from statemachine.events import ArgumentsDelta, CallStart
from statemachine.formats import REASONING, Expression, Parameters
from statemachine.formats.table import STOPS
from statemachine.machine.states import violations

QUICK = settings(derandomize=True, max_examples=25, deadline=None, database=None)
FEW = settings(QUICK, max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
FEWER = settings(FEW, max_examples=3)
LONG = settings(
    max_examples=4_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
REASONS = st.sampled_from([None, "stop", "length"])
SPANS = [*REASONING, *(section for form in FORMATS.values() for section in form.sections)]
SPECIAL = re.compile("|".join(re.escape(mark) for span in SPANS for mark in (span.open.replace("{*}", ""), span.close)))
"""Matches a marker of reasoning or of a message in any format."""


def both(test: Callable[..., None]) -> Callable[..., None]:
    """Run a property with few examples, and with many under `-m long`."""

    @pytest.mark.parametrize("effort", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
    def run(effort: settings) -> None:
        effort(test)()

    run.__doc__ = test.__doc__
    return run


@both
@given(st.data(), REPLIES, options(), REASONS)
def test_the_outcome_does_not_depend_on_the_split(
    data: st.DataObject, text: str, chosen: dict[str, Any], reason: str | None
) -> None:
    whole = outcome([text], SOUP_TOOLS, reason, **chosen)
    assert outcome(text, SOUP_TOOLS, reason, **chosen) == whole, "character by character"
    assert outcome(data.draw(cut(text)), SOUP_TOOLS, reason, **chosen) == whole


@both
@given(st.data(), REPLIES, options(), REASONS)
def test_text_that_flows_need_not_be_fed(
    data: st.DataObject, text: str, chosen: dict[str, Any], reason: str | None
) -> None:
    for pieces in (data.draw(cut(text)), text):
        parser, skipped = Parser(SOUP_TOOLS, **chosen), Parser(SOUP_TOOLS, **chosen)
        flow = skipped.flow
        for piece in pieces:
            events = parser.feed(piece)
            if not piece or flow.scan is None or flow.scan(piece) is not None:
                assert skipped.feed(piece) == events
            elif flow.delta is not None:
                assert events == [flow.delta(piece)]
            elif flow.remaining >= len(piece):
                flow.remaining -= len(piece)
                [event] = events
                assert isinstance(event, ArgumentsDelta)
                assert event.text == piece
            else:
                assert skipped.feed(piece) == events
        assert skipped.close(reason) == parser.close(reason)


@both
@given(REPLIES, options(), REASONS)
def test_every_sequence_of_events_is_legal(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    for events in (events_of([text], SOUP_TOOLS, reason, **chosen), events_of(text, SOUP_TOOLS, reason, **chosen)):
        assert violations(events) == []


@both
@given(REPLIES, options(), REASONS)
def test_arguments_are_always_a_prefix_of_json(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    events = events_of(text, SOUP_TOOLS, reason, **chosen)
    judge = Json()
    for event in events:
        match event:
            case CallStart():
                judge = Json()
            case ArgumentsDelta(text=piece):
                assert judge.feed(piece), f"{piece!r} gives invalid JSON in {events}"
    for call in calls_of(fold(events)):
        if call.complete:
            assert is_object(call.arguments), call
            assert isinstance(json.loads(call.arguments), dict)


@both
@given(REPLIES, options(), REASONS)
def test_no_text_is_lost(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    """The ledger tiles the text; its text, reasoning and discards are those emitted, including newlines."""
    parser = Parser(SOUP_TOOLS, ledger=True, **chosen)
    items = fold([*parser.feed(text), *parser.close(reason)])
    end = 0
    for span in parser.ledger:
        assert span.start == end < span.end
        end = span.end
    assert end == len(text)
    if "action_object" in (chosen["formats"] or ()):
        return  # its text and reasoning are decoded in the events
    for kind, item in (("text", Text), ("reasoning", Reasoning), ("discard", Discard)):
        noted = "".join(text[span.start : span.end] for span in parser.ledger if span.kind == kind)
        assert noted == "".join(one.text for one in items if isinstance(one, item)), kind


@both
@given(REPLIES, options(), REASONS)
def test_without_tools_everything_is_text(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    """Unchanged, including newlines. Reasoning, special tokens and the JSON protocol are exceptions."""
    assume(chosen["formats"] is None or "action_object" not in chosen["formats"])
    assume(not any(span.open in text for span in REASONING))
    assume(not SPECIAL.search(re.sub(r"\s+", "", text)) and not text.rstrip().endswith(STOPS))
    chosen["unknown"] = "text"
    assert outcome([text], {}, reason, **chosen) == ([Text(text)] if text else [])


@both
@given(st.data(), REPLIES, options(), REASONS)
def test_the_ledger_does_not_change_the_events(
    data: st.DataObject, text: str, chosen: dict[str, Any], reason: str | None
) -> None:
    assert outcome(data.draw(cut(text)), SOUP_TOOLS, reason, ledger=True, **chosen) == outcome(
        [text], SOUP_TOOLS, reason, **chosen
    )


@both
@given(st.data(), REPLIES, REPLIES, REASONS)
def test_a_prefix_is_parsed_but_not_emitted(data: st.DataObject, prefix: str, text: str, reason: str | None) -> None:
    """Parsing never raises, stays legal and does not depend on the split; emitted text was fed, not prefixed."""
    whole = outcome([text], SOUP_TOOLS, reason, prefix=prefix)
    assert outcome(data.draw(cut(text)), SOUP_TOOLS, reason, prefix=prefix) == whole
    assert violations(events_of([text], SOUP_TOOLS, reason, prefix=prefix)) == []
    shown = "".join(item.text for item in whole if isinstance(item, Text | Reasoning | Discard))
    assert len(shown) <= len(text)


MANY = settings(
    max_examples=100_000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("effort", [QUICK, pytest.param(MANY, marks=pytest.mark.long)], ids=["quick", "long"])
def test_random_marker_sequences(effort: settings) -> None:
    """Every marker of every format in any order: events are legal, the same in pieces, and no character is lost."""

    @effort
    @given(SOUP.map("".join), st.integers(1, 7), REASONS)
    def check(text: str, size: int, reason: str | None) -> None:
        whole = Parser(SOUP_TOOLS)
        events = [*whole.feed(text), *whole.close(reason)]
        parser = Parser(SOUP_TOOLS, ledger=True)
        cut = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
        cut += parser.close(reason)
        assert violations(events) == violations(cut) == []
        assert fold(cut) == fold(events)
        end = 0
        for span in parser.ledger:
            assert span.start == end < span.end
            end = span.end
        assert end == len(text)

    check()


@both
@given(REPLIES)
def test_no_events_after_the_end(text: str) -> None:
    parser = Parser(SOUP_TOOLS)
    parser.feed(text)
    parser.close()
    assert parser.held == 0
    assert parser.close() == []


PARAMETERS = sorted(name for name, form in FORMATS.items() if isinstance(form.variants[0].body, Parameters))
EXPRESSIONS = {
    name: form.variants[0].body for name, form in FORMATS.items() if isinstance(form.variants[0].body, Expression)
}
JSON_FORMATS = sorted(set(FORMATS) - {*PARAMETERS, *EXPRESSIONS})


def same(left: str, right: str) -> bool:
    """Return whether both are JSON of the same value, with keys in the same order."""
    return json.dumps(json.loads(left)) == json.dumps(json.loads(right))


def read_back(written: str, tools: dict[str, Any], form: str, expected: list[Any]) -> None:
    """Assert that written text parses to the original calls, by its format alone and by all formats together.

    Formats whose openers are the tools' names are left out of the latter: they are compiled for each set of tools.
    """
    for formats in ((form,), tuple(name for name, other in FORMATS.items() if name == form or not other.by_tool)):
        text, calls = parse(written, tools, formats=formats)
        assert text == ""
        assert [call.name for call in calls] == [call.name for call in expected]
        assert all(same(one.arguments, other.arguments) for one, other in zip(calls, expected, strict=True)), calls
        assert all(call.complete and not call.repairs for call in calls_of(outcome([written], tools, formats=formats)))


@pytest.mark.parametrize("form", JSON_FORMATS)
@pytest.mark.parametrize("effort", [FEWER, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_written_calls_read_back(form: str, effort: settings) -> None:
    """JSON bodies: any arguments."""

    @effort
    @given(json_calls())
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@pytest.mark.parametrize("form", PARAMETERS)
@pytest.mark.parametrize("effort", [FEWER, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_written_parameters_read_back(form: str, effort: settings) -> None:
    """Raw values: arguments typed by the schema. `strategies.writable` defines the strings that are inherently
    lossy.
    """
    if form == "tag" and effort is FEWER:  # compiled again for every set of tools
        effort = settings(FEW, max_examples=3)

    @effort
    @given(typed_calls(FORMATS[form]))
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@pytest.mark.parametrize("form", sorted(EXPRESSIONS))
@pytest.mark.parametrize("effort", [FEW, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_written_expressions_read_back(form: str, effort: settings) -> None:
    """Call expressions: any values, with names as keys. `strategies.expressed_calls` defines the exceptions."""

    @effort
    @given(expressed_calls(EXPRESSIONS[form]))
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@each("form", FORMATS)
def test_a_repeated_opener_reads_the_same_in_pieces(form: str):
    """A single character is the same object each time, which must not be taken for a reader that made no progress."""
    for opener in FORMATS[form].openers:
        marker = opener.replace("{ns}", "").replace("{ }", " ").replace("{*}", "").replace("{:}", "")
        text = f"Hi. {marker * 70}x{marker * 3}"
        whole = outcome([text], SOUP_TOOLS, None, formats=(form,))
        for size in (1, 2):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert outcome(pieces, SOUP_TOOLS, None, formats=(form,)) == whole
