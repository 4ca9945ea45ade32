"""The JSON oracle that other tests rely on, checked against `json`."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_oracle import Json, is_object, is_prefix
from support.strategies import json_values

QUICK = settings(derandomize=True, max_examples=30, deadline=None, database=None)


def strict(text: str) -> bool:
    """Return whether `json` accepts it; the constants `NaN` and `Infinity` are excluded."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@QUICK
@given(json_values(), st.sampled_from([None, 0, 2]), st.booleans())
def test_accepts_every_prefix_of_json_output(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert all(is_prefix(text[:end]) for end in range(len(text) + 1))
    judge = Json()
    judge.feed(text)
    assert judge.whole


@QUICK
@given(st.text(alphabet='{}[]:,"\\u0019-+.eEtrufalsn \n\x01é', max_size=12))
def test_agrees_with_json_on_any_text(text: str) -> None:
    judge = Json()
    judge.feed(text)
    assert judge.whole == strict(text)


@pytest.mark.parametrize(
    "text", ['{"a" 1', "{a", "{,", "[1,]", '{"a":1,}', "01", "1.e", "-x", '"\\x', '"\n', "tru e", "}", "1 2", "[1}"]
)
def test_rejects_text_that_is_not_a_prefix_of_json(text: str) -> None:
    assert not is_prefix(text)


def test_an_object_allows_no_trailing_text() -> None:
    assert is_object(' {"a": 1} ')
    assert not is_object("[]")
    assert not is_object('{"a": 1} x')
    assert not is_object('{"a": 1')
