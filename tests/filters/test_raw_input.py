"""The raw text of a custom tool's call streams out of the surrounding JSON, however the JSON is split and escaped."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import each

from streamtool.filters.raw_input import RawInput


def taken(*pieces: str, complete: bool = True) -> list[str]:
    machine = RawInput()
    out = [machine.feed(piece) for piece in pieces]
    return [*out, machine.close() if complete else ""]


def test_each_piece_yields_its_text():
    assert taken('{"input": "a', "b\\n", 'c"', "}") == ["a", "b\n", "c", "", ""]


@each("size", [1, 2, 3, 5, 100])
@each("text", ["", "plain", 'a "quoted"\\ \n\t\b\f/ \x00\x7f', "🌡 ä \ud7ff\ue000", "*** Begin Patch\n+\t\\n\n*** End"])
@each("plain", [True, False])
def test_the_text_does_not_depend_on_the_split(text: str, size: int, plain: bool):
    written = json.dumps({"input": text}, ensure_ascii=plain)
    assert "".join(taken(*(written[i : i + size] for i in range(0, len(written), size)))) == text


@given(st.text(), st.booleans(), st.randoms(use_true_random=False))
def test_any_text(text: str, plain: bool, chance: random.Random):
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    written = "  " + json.dumps({"input": text, "more": {"input": "no"}}, ensure_ascii=plain, indent=2)
    cuts = sorted(chance.randrange(len(written)) for _ in range(4))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert "".join(taken(*pieces)) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x\\ny"}', "x\ny"),
        ('{"path": "a", "input": "b"}', "b"),
        ('{"inputs": "x"}', "x"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
        ("{}", "{}"),
        ('"x"', '"x"'),
    ],
)
def test_other_shapes_are_buffered_until_they_end(arguments: str, text: str):
    pieces = taken(*arguments)
    assert "".join(pieces[:-1]) == ""
    assert pieces[-1] == text


def test_a_truncated_call_yields_the_text_so_far():
    assert "".join(taken('{"input": "ab\\', complete=False)) == "ab"
    assert "".join(taken('{"input": "ab\\ud83d', complete=False)) == "ab"


def test_an_unpaired_surrogate():
    assert "".join(taken('{"input": "a\\ud83dx, and more"}')) == "a\ufffdx, and more"
    assert "".join(taken('{"input": "a\\ude00x"}')) == "a\ufffdx"
