"""Ids of calls: proposed by the model or the upstream, or new."""

from itertools import count

import pytest

from streamtool.filters.call_ids import CallIds


def test_an_id_that_is_missing_used_or_illegal_is_replaced():
    numbers = count()
    ids = CallIds(lambda prefix: f"{prefix}{next(numbers)}", "new_", ("old", "new_1"))
    assert [ids.take(proposed) for proposed in ("a", "old", "a", None, "two words", "x" * 41)] == [
        *("a", "new_0", "new_2", "new_3", "new_4", "new_5")
    ]
    assert [ids.is_generated(one) for one in ("a", "new_0")] == [False, True]


@pytest.mark.parametrize("made", ["same", "not legal"])
def test_ids_that_are_never_usable_are_an_error(made: str):
    ids = CallIds(lambda _: made, "", ("same",))
    with pytest.raises(ValueError, match="make ids that are unique"):
        ids.take(None)
