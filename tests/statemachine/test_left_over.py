"""Leftover closers, also of custom formats, and how long they are buffered."""

import pytest

from statemachine import Format, Parser, parse
from statemachine.formats.format import Envelope, NameRule, Parameters, Variant
from statemachine.grammar.left_over import MAX_LEFT_OVER

PREFIX = Format("prefix", openers=("<call",), variants=(Variant(Envelope()),), close="</call>")
COMPOSITE = Format(
    "composite",
    openers=("<act>{*}<name>",),
    variants=(
        Variant(
            Parameters(key="<k>", key_rule=NameRule(ends=("</k>",)), close="</v>"),
            NameRule(ends=("</name>",)),
        ),
    ),
    close="</v>{*}</act>",
)


@pytest.mark.parametrize("form", [PREFIX, COMPOSITE], ids=lambda form: form.name)
def test_markers_that_are_prefixes_of_others_keep_the_format_readable(form: Format) -> None:
    assert parse("Hello.", {"f": {}}, formats=[form]) == ("Hello.", [])


def test_leftover_closers_of_a_custom_format_are_dropped() -> None:
    assert parse("Done.\n</call>", {"f": {}}, formats=[PREFIX]) == ("Done.", [])


def test_leftover_closers_are_buffered_no_longer_than_documented() -> None:
    parser = Parser({"f": {}})
    parser.feed("Done.")
    held = []
    for char in "\n</parameter>\n</invoke>\n" + "\n" * MAX_LEFT_OVER:
        parser.feed(char)
        held.append(parser.held)
    assert held[:24] == list(range(1, 25))
    assert max(held) <= MAX_LEFT_OVER + 1


def test_text_after_leftover_closers_is_emitted_by_its_feed() -> None:
    parser = Parser({"f": {}})
    parser.feed("Done.\n</invoke>\n")
    (event,) = parser.feed("More")
    assert event.text == "\n</invoke>\nMore"  # type: ignore[union-attr]  # it is text
