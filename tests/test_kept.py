"""What is kept for later requests: the values that were used last, within a weight."""

from streamtool.kept import Kept


def test_the_values_that_were_used_last_are_kept():
    kept = Kept[str](10)
    for key in "abc":
        kept.put(key, key.upper(), 2)
    assert kept.get("a") == "A"
    kept.put("d", "D", 2)
    assert [kept.get(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert kept.weight == 9


def test_what_is_too_heavy_is_not_kept_and_drives_nothing_out():
    kept = Kept[str](10)
    kept.put("a", "A", 2)
    kept.put("b", "B", 10)
    assert (kept.get("a"), kept.get("b"), kept.weight) == ("A", None, 3)


def test_a_value_takes_the_place_of_the_one_before():
    kept = Kept[str](10)
    kept.put("a", "A", 5)
    kept.put("a", "B", 1)
    assert (kept.get("a"), kept.weight) == ("B", 2)
    kept.put("a", "C", 10)
    assert (kept.get("a"), kept.weight) == (None, 0)


def test_values_without_weight_are_bounded_too():
    kept = Kept[int](10)
    for number in range(100):
        kept.put(number, number, 0)
    assert kept.weight == 10
