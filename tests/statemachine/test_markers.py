"""Finding literals in text that arrives in pieces."""

import re
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from statemachine.formats.compile import FormatTables, tables_of
from statemachine.formats.markers import (
    MANY,
    MarkerNode,
    Markers,
    literals,
    spell,
    text_expression,
    trimmed_text_expression,
)
from statemachine.formats.scanner import Scanner, Scanners
from statemachine.formats.table import DEFAULT, FORMATS

QUICK = settings(derandomize=True, max_examples=100, deadline=None, database=None)


def value_at_start(markers: Markers[str], text: str) -> str | None:
    """Return the value of the marker at the start, "…" if one may have begun, or None."""
    found = markers.match(text, 0)
    if found is None:
        return None
    return "…" if found.lastindex is None else markers.values[found.lastindex - 1]


def test_complete_partial_and_absent_markers() -> None:
    markers = Markers([("<tool_call>", "call"), ("<think>", "think"), ("[X]", "x")])
    assert value_at_start(markers, "<tool_call>rest") == "call"
    assert value_at_start(markers, "<think>") == "think"
    assert value_at_start(markers, "[X]") == "x"
    for begun in ("<", "<t", "<th", "<tool_call", "["):
        assert value_at_start(markers, begun) == "…"
    for other in ("<b", "<tool call>", "x", "[Y"):
        assert value_at_start(markers, other) is None


@pytest.mark.parametrize("texts", [("<a", "<ab"), ("<ab", "<a"), ("<a", "<a")])
def test_markers_that_are_prefixes_of_others_are_rejected(texts: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="marker"):
        Markers([(text, text) for text in texts])


def test_marker_patterns() -> None:
    markers = Markers(
        [("<{ns}invoke{ }", "invoke"), ("LABEL{_}:", "label"), ("{{*}key{*}:", "key"), ("[{quote}", "quoted")]
    )
    for text in ("<invoke ", "<invoke\n", "<x:invoke ", "<a.b-c:invoke\t"):
        assert value_at_start(markers, text) == "invoke"
    for text in ("LABEL:", "LABEL  :", "LABEL\t:"):
        assert value_at_start(markers, text) == "label"
    assert value_at_start(markers, "{\n key :") == "key"
    for quote in "\"'“”‘’":
        assert value_at_start(markers, f"[{quote}") == "quoted"
    for text in ("<x", "<x:", "<x:inv", "LABEL ", "{ ", "{\nke"):
        assert value_at_start(markers, text) == "…"
    for text in ("<1", "<x:y", "LABEL\n:", "{ x", "[x"):
        assert value_at_start(markers, text) is None


def test_whitespace_in_markers_is_bounded() -> None:
    markers = Markers([("L{_}:", "l"), ("{{*}k", "k")])
    assert value_at_start(markers, "L" + " " * 1000) is None
    assert value_at_start(markers, "{" + "\n" * 1000) is None


def test_case_insensitive_letters() -> None:
    markers = Markers([("Action:", "a")], any_case=True)
    assert value_at_start(markers, "aCTION:") == "a"
    assert value_at_start(Markers([("Action:", "a")]), "action:") is None


WORDS = st.lists(st.text("<a/b>", min_size=1, max_size=5), min_size=1, max_size=5, unique=True)


@QUICK
@given(WORDS, st.text("<a/b>x", max_size=30))
def test_text_is_emitted_exactly_up_to_the_next_marker(words: list[str], text: str) -> None:
    assume(not any(one != other and other.startswith(one) for one in words for other in words))
    markers = Markers([(word, word) for word in words])
    found = re.compile(text_expression(markers)).match(text)
    assert found is not None
    stop = found.start(1) if found.lastindex else found.end()
    firsts = [text.index(word) for word in words if word in text]
    begun = [at for at in range(len(text)) if any(word.startswith(text[at:]) for word in words)]
    assert stop == min([*firsts, *begun, len(text)])
    if found.lastindex:
        assert found.end() == len(text)


TRIMMED = {
    words: re.compile(trimmed_text_expression(Markers([(word, word) for word in words])), re.DOTALL)
    for words in (
        *(("<a>",), ("<a>", "END"), ("<a>", "END", "\nT:"), ("\nT:",)),
        *(("ж>", "\nT:"), ("\rEND", "\nT:"), ("\r\nT:", "\nT:")),
    )
}


@pytest.mark.parametrize("words", TRIMMED)
@QUICK
@given(text=st.lists(st.sampled_from(["\n", "\r", "<a", ">", "END", "T:", "é", "ж", "x"]), max_size=8).map("".join))
def test_trimmed_text_ends_before_the_line_break_before_a_marker(words: tuple[str, ...], text: str) -> None:
    def ends(at: int) -> bool:
        for lead in ("", "\n", "\r", "\r\n"):
            after = text[at + len(lead) :]
            begun = any(after.startswith(word) or word.startswith(after) for word in words)
            if text.startswith(lead, at) and begun and (lead or after):
                return True
        return False

    stop = next((at for at in range(len(text)) if ends(at)), len(text))
    for found in (TRIMMED[words].match(text), TRIMMED[words].match("x" + text, 1)):
        assert found is not None
        assert (found.start(1) if found.lastindex else found.end()) - found.start() == stop
        if found.lastindex:
            assert found.end() == len(found.string)


@QUICK
@given(WORDS, st.text("<a/b>x", min_size=1, max_size=12))
def test_matching_agrees_with_string_comparison(words: list[str], text: str) -> None:
    assume(not any(one != other and other.startswith(one) for one in words for other in words))
    markers = Markers([(word, word) for word in words])
    whole = next((word for word in words if text.startswith(word)), None)
    begun = any(word.startswith(text) for word in words)
    assert value_at_start(markers, text) == (whole or ("…" if begun else None))


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("<{ns}invoke{ }", "<invoke"),
        ("TOOL{_}:{_}", "TOOL: "),
        ('"calls"{*}:', '"calls":'),
        ("ARGS{_}:", "ARGS:"),
        ("</{ns}x>", "</x>"),
    ],
)
def test_spelling_of_a_marker(marker: str, text: str) -> None:
    assert spell(marker) == text


TABLES = tables_of(DEFAULT, (), (), ())
SETS = {
    "lines": TABLES.line,
    "openers": TABLES.opening,
    "siblings": TABLES.siblings,
    "left over": TABLES.left_over,
    "at first": TABLES.scanners.get(first=True, fresh=True).at,
    "in text": TABLES.scanners.get().at,
    "in a wrapper": TABLES.scanners.get(fresh=True, closers=True).at,
}


SAMPLES = ["", " ", "\t", "\n", " \n", "a", "A", "_", "x.1", ":", ":a", '"', "'", "”", "|", "｜|", " key ", *"toolTOL"]
"""Texts that match parts of patterns."""


def spelling(random: Random, node: MarkerNode) -> str:
    """Return a text that some marker matches."""
    text = ""
    while not node.group:
        atom, node = random.choice(list(node.next.items()))
        piece = literals(atom) or [sample for sample in SAMPLES if re.fullmatch(atom, sample)]
        text += random.choice(piece) if piece else ""  # a lookahead matches nothing
    return text


@pytest.mark.parametrize("name", SETS)
def test_two_step_matching_agrees_with_a_single_expression(name: str) -> None:
    markers: Markers[Any] = SETS[name]
    once, random = re.compile(markers.expression()).match, Random(name)
    for _ in range(2000):
        text = spelling(random, markers.root)
        text = text[: random.randint(1, len(text))] + random.choice(["", "", " ", "x", "</", ">", "a:"])
        found, expected = markers.match(text, 0), once(text, 0)
        assert (found and (found.lastindex, found.end())) == (expected and (expected.lastindex, expected.end())), text


@pytest.mark.parametrize("name", SETS)
def test_a_part_of_the_expression_matches_like_all_of_it(name: str) -> None:
    root, random = SETS[name].root, Random(name)
    whole = re.compile(root.complete_expression()).match
    for _ in range(150):
        text = spelling(random, root) + random.choice(["", " ", "x", "</"])
        part = re.compile(root.complete_expression(text[:2])).match
        found, expected = part(text), whole(text)
        assert (found and (found.lastindex, found.end())) == (expected and (expected.lastindex, expected.end())), text


def test_the_first_match_among_many_markers_compiles_only_a_part() -> None:
    words = [f"<{chr(0x100 + n)}>" for n in range(MANY + 1)]
    markers = Markers([(word, word) for word in words])
    for text in (words[7], words[7][:2], "<x", *words, *words):
        expected = "…" if text == words[7][:2] else text if text in words else None
        assert value_at_start(markers, text) == expected


def test_two_threads_get_the_same_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    scanners, make = FormatTables((FORMATS["tool_call"],), ()).scanners, Scanners._make
    others: list[Scanner] = []

    def overtaken(self: Scanners, **situation: bool) -> Scanner:
        monkeypatch.setattr(Scanners, "_make", make)
        others.append(self.get(**situation))
        return make(self, **situation)

    monkeypatch.setattr(Scanners, "_make", overtaken)
    mine = scanners.get(closers=True)
    assert others[0] is mine is scanners.get(closers=True)
