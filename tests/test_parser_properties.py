"""What holds for every text, every set of options and every way of cutting: the parser's properties.

The examples are the same in each run; `-m long` looks at many more, and at other ones each time.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from json_oracle import Json, is_object
from statemachine_fold import Discard, Reasoning, Text, calls_of, events_of, fold, outcome
from strategies import REPLIES, SOUP, SOUP_TOOLS, cut, expressed_calls, json_calls, options, typed_calls

from statemachine import FORMATS, Parser, parse, write
from statemachine.events import ArgumentsDelta, CallStart
from statemachine.formats import REASONING, Expression, Parameters
from statemachine.states import violations

QUICK = settings(derandomize=True, max_examples=60, deadline=None, database=None)
FEW = settings(QUICK, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
FEWER = settings(FEW, max_examples=12)
LONG = settings(
    max_examples=4_000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
REASONS = st.sampled_from([None, "stop", "length"])


def both(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a property with few examples, and with many under `-m long`."""

    @pytest.mark.parametrize("effort", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
    def run(effort: settings) -> None:
        effort(test)()

    run.__doc__ = test.__doc__
    return run


@both
@given(st.data(), REPLIES, options(), REASONS)
def test_the_outcome_does_not_depend_on_the_pieces(
    data: st.DataObject, text: str, chosen: dict[str, Any], reason: str | None
) -> None:
    whole = outcome([text], SOUP_TOOLS, reason, **chosen)
    assert outcome(text, SOUP_TOOLS, reason, **chosen) == whole, "character by character"
    assert outcome(data.draw(cut(text)), SOUP_TOOLS, reason, **chosen) == whole


@both
@given(REPLIES, options(), REASONS)
def test_every_sequence_of_events_is_legal(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    for events in (events_of([text], SOUP_TOOLS, reason, **chosen), events_of(text, SOUP_TOOLS, reason, **chosen)):
        assert violations(events) == []


@both
@given(REPLIES, options(), REASONS)
def test_arguments_are_at_every_moment_a_prefix_of_json(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    events = events_of(text, SOUP_TOOLS, reason, **chosen)
    judge = Json()
    for event in events:
        match event:
            case CallStart():
                judge = Json()
            case ArgumentsDelta(text=piece):
                assert judge.feed(piece), f"{piece!r} makes no JSON in {events}"
    for call in calls_of(fold(events)):
        if call.complete:
            assert is_object(call.arguments), call
            assert isinstance(json.loads(call.arguments), dict)


@both
@given(REPLIES, options(), REASONS)
def test_nothing_is_lost(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    """The ledger tiles the text, and its text, reasoning and discards are what was emitted, newlines included."""
    parser = Parser(SOUP_TOOLS, ledger=True, **chosen)
    items = fold([*parser.feed(text), *parser.close(reason)])
    end = 0
    for span in parser.ledger:
        assert span.start == end < span.end
        end = span.end
    assert end == len(text)
    if "action_object" in (chosen["formats"] or ()):
        return  # its text and thoughts stand decoded in the events
    for kind, item in (("text", Text), ("reasoning", Reasoning), ("discard", Discard)):
        noted = "".join(text[span.start : span.end] for span in parser.ledger if span.kind == kind)
        assert noted == "".join(one.text for one in items if isinstance(one, item)), kind


@both
@given(REPLIES, options(), REASONS)
def test_without_tools_everything_is_text(text: str, chosen: dict[str, Any], reason: str | None) -> None:
    """Unchanged, newlines included; reasoning and the protocol that speaks in JSON are another matter."""
    assume(chosen["formats"] is None or "action_object" not in chosen["formats"])
    assume(not any(span.open in text for span in REASONING))
    chosen["unknown"] = "text"
    assert outcome([text], {}, reason, **chosen) == ([Text(text)] if text else [])


@both
@given(st.data(), REPLIES, options(), REASONS)
def test_the_ledger_changes_nothing(data: st.DataObject, text: str, chosen: dict[str, Any], reason: str | None) -> None:
    assert outcome(data.draw(cut(text)), SOUP_TOOLS, reason, ledger=True, **chosen) == outcome(
        [text], SOUP_TOOLS, reason, **chosen
    )


@both
@given(st.data(), REPLIES, REPLIES, REASONS)
def test_a_prefix_is_read_and_its_text_not_emitted(
    data: st.DataObject, prefix: str, text: str, reason: str | None
) -> None:
    """Never raises, stays legal, and does not depend on the pieces; text that is emitted was fed, not prefixed."""
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
def test_marker_soup(effort: settings) -> None:
    """Every marker of every format in any order: legal events, the same in pieces, no character lost."""

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
def test_after_the_end_nothing_comes(text: str) -> None:
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
    """True if both are JSON of the same value, keys in the same order."""
    return json.dumps(json.loads(left)) == json.dumps(json.loads(right))


def read_back(written: str, tools: dict[str, Any], form: str, expected: list[Any]) -> None:
    """Asserts that what was written is read as the calls that it was written from, by its format and by all together.

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
def test_what_is_written_is_read_back(form: str, effort: settings) -> None:
    """JSON bodies: any arguments."""

    @effort
    @given(json_calls())
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@pytest.mark.parametrize("form", PARAMETERS)
@pytest.mark.parametrize("effort", [FEWER, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_what_is_written_as_parameters_is_read_back(form: str, effort: settings) -> None:
    """Raw values: arguments typed by the schema. `strategies.writable` says which strings are lossy by nature."""
    if form == "tag" and effort is FEWER:  # compiled anew for every set of tools
        effort = settings(FEW, max_examples=5)

    @effort
    @given(typed_calls(FORMATS[form]))
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@pytest.mark.parametrize("form", sorted(EXPRESSIONS))
@pytest.mark.parametrize("effort", [FEW, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_what_is_written_as_an_expression_is_read_back(form: str, effort: settings) -> None:
    """Call expressions: any values, with names as keys. `strategies.expressed_calls` says what is written otherwise."""

    @effort
    @given(expressed_calls(EXPRESSIONS[form]))
    def check(made: tuple[list[Any], dict[str, Any]]) -> None:
        calls, tools = made
        read_back(write(calls, form), tools, form, calls)

    check()


@pytest.mark.parametrize("form", FORMATS)
def test_an_opener_that_comes_again_and_again_is_read_alike_in_pieces(form: str):
    """One character is the same object each time; that is no sign that nothing was read."""
    for opener in FORMATS[form].openers:
        marker = opener.replace("{ns}", "").replace("{ }", " ").replace("{*}", "").replace("{:}", "")
        text = f"Hi. {marker * 70}x{marker * 3}"
        whole = outcome([text], SOUP_TOOLS, None, formats=(form,))
        for size in (1, 2):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            assert outcome(pieces, SOUP_TOOLS, None, formats=(form,)) == whole
