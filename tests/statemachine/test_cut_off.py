"""A reply that is cut off in the markup before a call's name: the client never sees that markup."""

from typing import Any

import pytest
from support.statemachine_fold import events_of, fold, pieces, text_of
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Call, CallStart, write
from statemachine.formats.markers import spell
from statemachine.grammar.reply import MIN_OPENER

TOOLS: dict[str, Any] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
}
CALL = Call("get_weather", '{"city": "Oslo", "days": 3}')
UNMARKED = ("fenced", "object", "xlam", "action_object", "tool_code", "bare_call", "continue")
"""Formats that are JSON or code, which is text when it is cut off."""
WORDS = {"react": "Action", "ui_tars": "Action", "phi4": "functools", "labelled": "TOOL_CALL"}
"""Openers that begin with a word; a part of such a word is text."""
MARKED = [form for form in FORMATS if form not in UNMARKED]


def outcome(form: str, text: str, reason: str, size: int = 1) -> tuple[str, int]:
    """Return the visible text and the number of calls."""
    around = [name for name in FORMATS if name not in OPT_IN or name == form]
    events = events_of(pieces(text, size), TOOLS, reason, formats=around)
    return text_of(fold(events)), sum(isinstance(event, CallStart) for event in events)


@each("form", MARKED)
def test_a_cut_call_leaves_no_markup(form: str) -> None:
    before = "I look it up.\n\n"
    written = write([CALL], form).strip("\n")
    word = len(WORDS.get(form, ""))
    for end in range(max(MIN_OPENER, word + 1), len(written), 2):
        cut = before + written[:end]
        assert outcome(form, cut, "length", 1 + end % 5)[0].strip() == before.strip(), cut


@each("form", FORMATS)
def test_nothing_of_it_is_lost_if_the_model_stopped(form: str) -> None:
    before = "I look it up.\n\n"
    written = write([CALL], form).strip("\n")
    for end in range(1, len(written), 3):
        cut = before + written[:end]
        shown, calls = outcome(form, cut, "stop", 1 + end % 5)
        assert calls or form == "action_object" or shown == cut, cut


@each("form", FORMATS)
def test_an_indented_opener_that_is_cut_is_the_same_for_every_split(form: str) -> None:
    for opener in map(spell, (*FORMATS[form].openers, *(opener for opener, _ in FORMATS[form].wrappers))):
        for before in ("a\n ", "<think>a</think>\r\n\t"):
            text = before + opener[:-1]
            whole = fold(events_of([text], TOOLS, "length"))
            for at in range(1, len(text)):
                assert fold(events_of([text[:at], text[at:]], TOOLS, "length")) == whole, (text[:at], text[at:])


@each("form", FORMATS)
def test_an_opener_directly_after_code_is_the_same_for_every_split(form: str) -> None:
    for opener in map(spell, FORMATS[form].openers):
        text = f"`f`{opener}<|im_end|>"
        whole = fold(events_of([text], TOOLS, "stop"))
        for at in range(1, len(text)):
            assert fold(events_of([text[:at], text[at:]], TOOLS, "stop")) == whole, (text[:at], text[at:])


@pytest.mark.parametrize(
    "text",
    [
        "if a <",
        "a <b",
        "#include <std",
        "an array [1, 2",
        "```json\n{",
        '{"a": [1, 2',
        "Say `<tool_call>",
        "```xml\n<tool_call>\n{",
        "See [TODO",
        "Use x -> to",
        "Action",
        "<toolbox>",
        "> quoted",
        "<div class='inv",
    ],
)
@pytest.mark.parametrize("before", ["", "Well. ", "Well.\n\n"])
def test_text_that_is_cut_off_stays_text(text: str, before: str) -> None:
    for size in (1, 3, 100):
        assert outcome("tool_call", before + text, "length", size) == (before + text, 0)
