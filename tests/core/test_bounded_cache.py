"""A bounded cache of the most recently used values, limited by total weight."""

import json
from typing import Any

import pytest

from streamtool.core.bounded_cache import LruCache
from streamtool.core.errors import RequestError
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import body_fields
from streamtool.settings import LimitSettings


def test_the_most_recently_used_values_are_kept():
    kept = LruCache[str](10)
    for key in "abc":
        kept.put(key, key.upper(), 2)
    assert kept.get("a") == "A"
    kept.put("d", "D", 2)
    assert [kept.get(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert kept.weight == 9


def test_a_value_over_the_limit_is_not_stored_and_evicts_nothing():
    kept = LruCache[str](10)
    kept.put("a", "A", 2)
    kept.put("b", "B", 10)
    assert (kept.get("a"), kept.get("b"), kept.weight) == ("A", None, 3)


def test_a_value_replaces_the_previous_one():
    kept = LruCache[str](10)
    kept.put("a", "A", 5)
    kept.put("a", "B", 1)
    assert (kept.get("a"), kept.weight) == ("B", 2)
    kept.put("a", "C", 10)
    assert (kept.get("a"), kept.weight) == (None, 0)


def test_weightless_values_are_bounded_too():
    kept = LruCache[int](10)
    for number in range(100):
        kept.put(number, number, 0)
        assert kept.weight <= 10
    assert kept.weight >= 9


def test_storing_a_value_does_not_read_all_others(monkeypatch):
    """The weights are added up once for every eighth of the cache, rather than for every value."""
    kept, added = LruCache[int](1_000), []
    weight = LruCache.weight.fget
    monkeypatch.setattr(LruCache, "weight", property(lambda self: added.append(self) or weight(self)))
    for number in range(10_000):
        kept.put(number, number, 0)
        assert len(kept._values) <= 1_000
    assert len(added) <= 100


def _body(tools: list[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", "tools": tools, **more}).encode()


TOOLS = [{"type": "function", "function": {"name": f"f{n}", "description": "x" * 200}} for n in range(8)]


def test_tools_that_are_sent_again_are_the_objects_of_the_first_request():
    first, second = (body_fields(_body(TOOLS, user=user), LimitSettings()) for user in ("a", "b"))
    assert second["tools"] is first["tools"]
    assert first["tools"] == TOOLS
    assert {**second, "tools": TOOLS} == {"model": "m", "tools": TOOLS, "user": "b"}
    assert json.loads(wire.encode(second)) == {"model": "m", "tools": TOOLS, "user": "b"}


@pytest.mark.parametrize(
    "rest",
    [
        {"user": "\ud83d"},  # an incomplete character
        {"metadata": {"a": [[[[[[[[]]]]]]]]}},
        {"tools": TOOLS},
        {},
    ],
)
def test_a_body_means_the_same_whether_its_tools_are_known_or_not(rest: dict[str, Any]):
    marked = [*TOOLS, {"type": "function", "function": {"name": repr(sorted(rest))}}]
    body = _body(**{"tools": marked, **rest})
    first, second = (body_fields(body, LimitSettings()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "fields",
    [
        '"metadata": {"tools": TOOLS}, "tools" :\n TOOLS',
        '"metadata": {"tools": TOOLS}',
        '"tools": TOOLS, "metadata": {"tools": TOOLS}',
        '"tools": TOOLS, "tools": []',
        '"tools": [], "tools": TOOLS',
        '"tools": TOOLS, "tools": TOOLS',
        '"user": "\\"tools\\": TOOLS"',
    ],
)
def test_only_the_bodys_own_tools_are_taken_from_the_cache(fields: str):
    body_fields(_body(TOOLS), LimitSettings())
    body = "{" + fields.replace(': TOOLS"', ': []"').replace("TOOLS", json.dumps(TOOLS)) + "}"
    assert body_fields(body.encode(), LimitSettings()) == json.loads(body)


def test_lists_of_tools_that_begin_alike_are_cached_side_by_side():
    lists = [[*TOOLS, {"type": "function", "function": {"name": f"alike{n}"}}] for n in range(3)]
    first = [body_fields(_body(tools), LimitSettings())["tools"] for tools in lists]
    again = [body_fields(_body(tools), LimitSettings())["tools"] for tools in lists]
    assert first == lists
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_body_that_is_nested_too_deep_is_rejected_whether_its_tools_are_known_or_not():
    limits = LimitSettings(depth=8)
    assert body_fields(_body(TOOLS), limits)["tools"] == TOOLS
    for body in (_body(TOOLS, user=[[[[[[[[[]]]]]]]]]), _body([*TOOLS, {"a": [[[[[[[[[]]]]]]]]]}])):
        for _ in range(2):
            with pytest.raises(RequestError, match="nested more than 8 levels deep"):
                body_fields(body, limits)


@pytest.mark.parametrize("broken", [b"", b"{", b'"user": nope}', b'"user": "\xff"'])
def test_a_broken_body_with_known_tools_is_rejected_as_any_other(broken: bytes):
    body_fields(_body(TOOLS), LimitSettings())
    body = _body(TOOLS)[:-1] + b", " + broken
    with pytest.raises(RequestError, match="is not JSON"):
        body_fields(body, LimitSettings())
