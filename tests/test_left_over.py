"""Closers of calls that are left over, in formats of one's own, and for how long they are held."""

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
def test_markers_that_begin_with_others_make_no_format_unreadable(form: Format) -> None:
    assert parse("Hello.", {"f": {}}, formats=[form]) == ("Hello.", [])


def test_the_closer_of_a_format_of_ones_own_is_left_over_too() -> None:
    assert parse("Done.\n</call>", {"f": {}}, formats=[PREFIX]) == ("Done.", [])


def test_closers_are_held_while_nothing_else_has_come_and_no_longer_than_the_page_says() -> None:
    parser = Parser({"f": {}})
    parser.feed("Done.")
    held = []
    for char in "\n</parameter>\n</invoke>\n" + "\n" * MAX_LEFT_OVER:
        parser.feed(char)
        held.append(parser.held)
    assert held[:24] == list(range(1, 25))
    assert max(held) <= MAX_LEFT_OVER + 1


def test_text_behind_them_goes_out_in_its_own_feed() -> None:
    parser = Parser({"f": {}})
    parser.feed("Done.\n</invoke>\n")
    (event,) = parser.feed("More")
    assert event.text == "\n</invoke>\nMore"  # type: ignore[union-attr]  # it is text
