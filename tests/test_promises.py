"""Each promise to operators has its tests, and no sentence of the pages that make promises is forgotten."""

import re
from collections.abc import Iterator

import pytest

from streamtool.settings import (
    CircuitSettings,
    LimitSettings,
    Settings,
    StoreSettings,
    TimeoutSettings,
    UpstreamSettings,
)
from tools import promises_page
from tools.promises_page import Sentence

UNITS = {"KB": 2**10, "MB": 2**20, "s": 1, "h": 3600}
DEFAULTS = {
    "limits": LimitSettings(),
    "store": StoreSettings(),
    "timeout": TimeoutSettings(),
    "circuit": CircuitSettings(),
    "": Settings(),
}
WORDS = {
    "circuit.failures": "After five failures",
    "circuit.seconds": "for thirty seconds",
    "health_seconds": "every ten seconds",
}
"""Settings whose defaults are written out, and the words."""


def test_each_promise_has_tests_that_exist():
    known = promises_page.tests()
    for promise in promises_page.promises():
        assert promise.tests, promise.text
        assert {*promise.tests} <= known, promise.text


def test_each_promise_is_listed_once():
    texts = [promise.text for promise in promises_page.promises()]
    assert len(texts) >= 76
    assert {text for text in texts if texts.count(text) > 1} == set()


def test_each_sentence_makes_a_promise_or_is_listed_as_making_none():
    """Add a new sentence to `tools/promises.toml`, with its tests."""
    assert [f"{one.page}: {one.text}" for one in promises_page.without_promise()] == []


def test_a_new_item_row_or_sentence_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def longer(page: str) -> list[Sentence]:
        return [*read(page), Sentence(page, "Limits", "a new promise")]

    read = promises_page.sentences
    monkeypatch.setattr(promises_page, "sentences", longer)
    assert [one.text for one in promises_page.without_promise()] == ["a new promise"] * len(promises_page.PAGES)


def test_a_sentence_that_is_no_longer_on_the_page_is_reported():
    with pytest.raises(ValueError, match=r"0 sentences of security\.md begin with 'It was never written'"):
        promises_page._made({"security.md": ["It was never written"]})


def limits() -> Iterator[tuple[str, str]]:
    """Yield each setting in the table of limits, with the default shown there."""
    for row in promises_page.sentences("security.md"):
        if row.heading == "Limits" and " | " in row.text:
            table = ""
            names: list[str] = []
            for part in re.split(r"[,;] (?:then )?", row.text.split(" | ")[1]):
                if found := re.fullmatch(r"(?:(\w+)\.)?([a-z]+(?:_[a-z]+)*)", part):
                    if part == "unlimited":
                        yield from ((name, part) for name in names)
                        continue
                    table = found[1] or ("" if part in ("grace", "retries", "shutdown_delay") else table)
                    names.append(f"{table}.{found[2]}")
                elif names:
                    yield names[-1], part


def test_the_limits_are_the_defaults():
    checked = set()
    for name, shown in limits():
        if not (found := re.fullmatch(r"([\d,]+|unlimited)(?: (\w+))?", shown)):
            continue
        table, _, key = name.rpartition(".")
        wanted = 0 if found[1] == "unlimited" else int(found[1].replace(",", "")) * UNITS.get(found[2], 1)
        assert getattr(DEFAULTS[table], key) == wanted, name
        checked.add(name)
    described = {f"limits.{name}" for name in LimitSettings.__slots__ if name not in ("keys", "__weakref__")}
    assert described <= checked
    assert {"store.size", "store.seconds", "timeout.first_byte", "timeout.idle"} <= checked
    assert {".retries", ".grace", ".shutdown_delay"} <= checked
    page = (promises_page.ROOT / "docs" / "operating.md").read_text("utf-8")
    assert all(words in " ".join(page.split()) for words in WORDS.values())
    circuit, upstream = CircuitSettings(), UpstreamSettings(name="u", url="http://u")
    assert (circuit.failures, circuit.seconds, upstream.health_seconds) == (5, 30, 10)
