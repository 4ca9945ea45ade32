"""The comparison of a call's arguments, as they arrive, with those of an earlier call."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtool.filters.repeated_calls import ArgumentsMatcher, is_same

VALUES = st.dictionaries(
    st.text("ab\n", max_size=2),
    st.recursive(
        st.integers(-2, 12) | st.booleans() | st.none() | st.text('a"\\\né', max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def matches(earlier: str, later: str, size: int) -> bool:
    matcher = ArgumentsMatcher(earlier)
    return all(matcher.feed(later[i : i + size]) for i in range(0, len(later), size))


@given(VALUES, st.randoms(), st.integers(1, 9), st.booleans())
def test_the_same_arguments_match_in_any_order_and_spelling(value: Any, random: Any, size: int, escaped: bool):
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shuffled(item[key]) for key in random.sample(sorted(item), len(item))}
        return [shuffled(one) for one in item] if isinstance(item, list) else item

    earlier, later = json.dumps(value), json.dumps(shuffled(value), indent=1, ensure_ascii=escaped)
    assert matches(earlier, later, size)
    assert is_same(json.loads(earlier), json.loads(later))


@given(VALUES, VALUES, st.integers(1, 9))
def test_complete_arguments_that_differ_are_distinguished(one: Any, other: Any, size: int):
    earlier, later = json.dumps(one), json.dumps(other)
    assert matches(earlier, later, size) or not is_same(one, other)
    assert is_same(one, other) == is_same(other, one)


@pytest.mark.parametrize(
    ("earlier", "later", "seen"),
    [
        ('{"x": 1}', '{"x": 12}', '{"x": 12}'),
        ('{"x": 1}', '{"x": 1, "y": 2}', '{"x": 1, "y"'),
        ('{"x": "one two"}', '{"x": "one three"}', '{"x": "one th'),
        ('{"x": "one\\ntwo"}', '{"x": "one\\nthree"}', '{"x": "one\\nth'),
        ('{"x": "é\\ntwo"}', '{"x": "\\u00e9\\u000athree"}', '{"x": "\\u00e9\\u000ath'),
        ('{"x": [{"a": 1, "b": "cd"}]}', '{"x": [{"b": "ce", "a": 1}]}', '{"x": [{"b": "ce'),
        ("raw text", "raw words", "raw w"),
        ("{}", '{"x": 1}', '{"x"'),
    ],
)
def test_the_character_at_which_a_difference_is_certain(earlier: str, later: str, seen: str):
    matcher = ArgumentsMatcher(earlier)
    read = next(i + 1 for i, char in enumerate(later) if not matcher.feed(char))
    assert read <= len(seen)
    assert not matcher.feed(later[read:])


SAME = {
    "1 as a string": (1, "1", True),
    "a float": (1, 1.0, True),
    "a float as a string": (1, " 1.0", True),
    "true as a string": (True, "true", True),
    "null as a string": (None, "null", True),
    "whitespace around": ("l1", "l1\n", True),
    "an object as a string": ({"a": [1, 2]}, '{"a": [1, 2]}', True),
    "a list as a string": (["b"], '[ "b" ]', True),
    "nested": ([{"a": "1"}], [{"a": 1}], True),
    "two strings": ("1", "1.0", False),
    "whitespace inside": ("l1 l2", "l1  l2", False),
    "true and 1": (True, 1, False),
    "other numbers": (1, "12", False),
    "other text": ("l1", "l1\nl2", False),
    "other objects": ({"a": 1}, '{"a": 2}', False),
    "null and nothing": (None, "", False),
}


@pytest.mark.parametrize("case", SAME)
def test_values_of_other_types(case: str):
    one, other, same = SAME[case]
    for earlier, later in ((one, other), (other, one)):
        assert is_same(earlier, later) == same
        for size in (1, 3, 100):
            found = matches(json.dumps({"x": earlier, "y": 0}), json.dumps({"x": later, "y": 0}), size)
            assert found == same, size
