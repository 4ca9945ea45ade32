"""The conformance cases: each has the same outcome whole, in pieces and split in two.

`format_cases.py` describes how to write a case.
"""

import random
import re

import pytest
from support.common_cases import COMMON
from support.format_cases import FOLDER, Case, all_cases
from support.json_oracle import is_object, is_prefix
from support.statemachine_fold import calls_of, cuts, events_of, fold, outcome, pieces
from support.sweeps import each

from statemachine import FORMATS, Call, Parser, write
from statemachine.formats.markers import spell
from statemachine.machine.states import violations

CASES = all_cases()
SPLITS = 1
"""Maximum number of splits per case."""
NEAR = 12

MARKERS = sorted(
    {
        spell(marker).strip()
        for form in FORMATS.values()
        for marker in (*form.openers, form.close, *(side for pair in form.wrappers for side in pair))
        if marker
    }
    | {"<parameter", "</parameter>", "```", "<think>", "</think>"},
    key=len,
    reverse=True,
)
any_marker = re.compile("|".join(map(re.escape, MARKERS)))

every_file = pytest.mark.parametrize("file", sorted({case.format for case in CASES}))


def near_markers(text: str) -> set[int]:
    """Return the positions within `NEAR` characters of a marker.

    Of a marker repeated in a long value, only the first two and the last two occurrences count.
    """
    found: dict[str, list[re.Match[str]]] = {}
    for one in any_marker.finditer(text):
        found.setdefault(one[0], []).append(one)
    return {
        place
        for every in found.values()
        for one in (*every[:2], *every[-2:])
        for place in range(max(1, one.start() - NEAR), min(len(text), one.end() + NEAR))
    }


def test_every_format_has_a_file_with_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} >= set(FORMATS)
    assert {case.format for case in CASES} >= set(FORMATS)


@each("form", FORMATS)
def test_every_format_has_the_common_cases(form: str) -> None:
    assert {case.title for case in CASES if case.format == form} >= COMMON


def test_titles_are_unique_in_a_file() -> None:
    titles = [(case.format, case.title) for case in CASES]
    assert len(titles) == len(set(titles))


@every_file
def test_case(file: str) -> None:
    """Check each case of a file in one test: separate tests would take longer than the checks themselves."""
    each("case", [case for case in CASES if case.format == file], lambda case: case.id)(check)()


@each("form", FORMATS)
def test_a_call_directly_after_a_call_is_the_same_for_every_split(form: str) -> None:
    call = write([Call("ping", "{}")], form).strip("\n")
    for text in (call + call, f"{call} {call}"):
        whole = fold(events_of([text], {"ping": {}}, "stop", formats=FORMATS))
        for at in range(len(call) - 2, len(text) - len(call) + 3):
            assert fold(events_of([text[:at], text[at:]], {"ping": {}}, "stop", formats=FORMATS)) == whole, at


def check(case: Case) -> None:
    check_splits(case)
    check_events(case)
    check_ledger(case)


def check_splits(case: Case) -> None:
    """Split at some places near its markers; with `-m long`, at every place."""
    places = sorted(near_markers(case.text)) or range(1, len(case.text))
    for place in random.Random(case.id).sample(places, min(SPLITS, len(places))):
        found = outcome(cuts(case.text, [place]), case.tools, case.reason, **case.options)
        assert found == case.expected, (
            f"cut at {place}: …{case.text[max(0, place - 20) : place]!r} | {case.text[place : place + 20]!r}…"
        )


def check_events(case: Case) -> None:
    """Check that the events are legal character by character, and that arguments are always a prefix of JSON."""
    events = events_of(case.text, case.tools, case.reason, **case.options)
    assert violations(events) == []
    found = fold(events)
    assert found == case.expected, "character by character"
    for call in calls_of(found):
        assert is_object(call.arguments) if call.complete else is_prefix(call.arguments), call


def check_ledger(case: Case) -> None:
    """Check that the ledger of the whole text tiles it and does not change the events."""
    parser = Parser(case.tools, ledger=True, **case.options)
    events = parser.feed(case.text) + parser.close(case.reason)
    assert fold(events) == case.expected
    end = 0
    for span in parser.ledger:
        assert span.start == end
        assert span.end > span.start
        end = span.end
    assert end == len(case.text)


@pytest.mark.long
@every_file
def test_every_split(file: str) -> None:
    """Check each case of a file in one test, because merely collecting one test per case would take seconds."""
    each("case", [case for case in CASES if case.format == file], lambda case: case.id)(check_every_split)()


def check_every_split(case: Case) -> None:
    for size in range(1, 8):
        assert outcome(pieces(case.text, size), case.tools, case.reason, **case.options) == case.expected, size
    for place in range(1, len(case.text)):
        assert outcome(cuts(case.text, [place]), case.tools, case.reason, **case.options) == case.expected, place
