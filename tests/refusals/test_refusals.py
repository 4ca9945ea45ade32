"""Denials and announcements: the corpus, pieces of any size, buffering, and the phrases file."""

import functools
import hashlib
import itertools
import json
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusal_corpus import CORPUS, NEGATIVES, ROOT

from streamtool import sample
from streamtool.cli import main
from streamtool.core.errors import SettingsError
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.refusals import (
    OpeningWatch,
    Phrases,
    PhrasesError,
    default_phrases,
    extended_phrases,
    find_announcement,
)
from streamtool.refusals.characters import END, fold, fold_text
from streamtool.refusals.opening import HELD
from streamtool.server.services import open_phrases
from streamtool.settings import Settings, load
from streamtool.testing import Script, ScriptedUpstream, stream_asgi
from streamtool.testing import text as script
from streamtool.transport import ToolTransport

DENIALS = ("tools denied", "environment denied")
ANNOUNCED = "announced but not called"
SMALL = """
[en.denied]
before = ["i'm sorry , [but]"]
tools = ["i have no tools ."]
environment = ["i can't (read|open) files [on your <2> computer] ."]
unless = ["let me"]
[en.announced]
before = ["now ,"]
phrases = ["(let me|i'll) (check|run)"]
unless = ["if"]
"""


def measures(text: str) -> bool:
    """Return whether a text belongs to the half used only for measuring; phrases are tuned on the other half."""
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


MEASURING = [case for case in CORPUS if measures(case["text"])]
TUNING = [case for case in CORPUS if not measures(case["text"])]


def read(text: str, size: int = 0, phrases: Phrases | None = None) -> tuple[OpeningWatch, str]:
    """Return the machine after the whole text, and the text it let through."""
    opening = OpeningWatch(phrases)
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    shown = "".join(map(opening.feed, pieces))
    return opening, shown + opening.close()


def counts(cases: list[dict], expected: tuple[str, ...], found) -> tuple[int, int, int]:
    """Return the numbers of right, missed and wrong results; a denial of the wrong class counts as missed and wrong."""
    right = wrong = missed = 0
    for case in cases:
        want = case["class"] if case["class"] in expected else None
        have = found(case["text"])
        right += have is not None and have == want
        wrong += have is not None and have != want
        missed += want is not None and have != want
    return right, missed, wrong


HALVES = pytest.mark.parametrize("cases", [TUNING, MEASURING], ids=["tuning", "measuring"])
KINDS = pytest.mark.parametrize(
    ("expected", "found"),
    [
        (DENIALS, lambda text: read(text)[0].found),
        ((ANNOUNCED,), lambda text: find_announcement(text) and ANNOUNCED),
    ],
    ids=["denials", "announcements"],
)


# --- the corpus ------------------------------------------------------------------------------------------------------


def test_the_corpus_is_large_and_has_more_negatives_than_positives():
    assert len(CORPUS) >= 700
    assert len({case["text"] for case in CORPUS}) == len(CORPUS)
    assert len(NEGATIVES) * 2 >= len(CORPUS)
    assert {case["class"] for case in CORPUS} == {*DENIALS, ANNOUNCED, None}
    assert {case["language"] for case in CORPUS} == set(default_phrases().languages)


@HALVES
@KINDS
def test_detection_meets_its_precision_and_recall(cases, expected, found):
    right, missed, wrong = counts(cases, expected, found)
    assert right / (right + wrong) >= 0.99
    assert right / (right + missed) >= 0.9


@HALVES
@KINDS
def test_the_figures_in_the_docs_are_current(request, cases, expected, found):
    page = (ROOT / "docs" / "when-the-model-does-not-call.md").read_text(encoding="utf-8")
    right, missed, wrong = counts(cases, expected, found)
    kind, half = request.node.callspec.id.split("-")
    (line,) = re.findall(rf"^- {half} half: .*$", page, re.MULTILINE)
    assert f"{kind} {right} found, {missed} missed, {wrong} wrong" in line
    assert f"{len(CORPUS)} replies)" in page
    assert f"{len(NEGATIVES)} corpus replies that are neither" in " ".join(page.split())


@pytest.mark.parametrize(
    "text",
    [
        "I can't help with making weapons.",
        "Which file do you mean? I can't tell from your message.",
        "I've updated the file; you cannot run it without Python 3.11.",
        "The API does not have access to any tools.",
        '"I can\'t read files on your computer" is what it says.',
        "I can't run this for you because it would delete the database.",
        "I don't have access to your bank account.",
        "I don't have direct access to your files, but I can use the read tool.",
        "I can't read files on your computer directly. Let me use the tool.",
        "I can't read files on your computer directly, but I can use the read tool\n\nFirst",
        "I can't edit files on your computer, see config.yaml, until you confirm.",
    ],
)
def test_text_that_resembles_a_denial_is_unchanged(text):
    opening, shown = read(text)
    assert opening.found is None
    assert shown == text


@pytest.mark.parametrize(
    "text",
    [
        "I can't read files on your computer.",
        "\n\n  I can’t  read\nfiles on your computer.",
        "**I** *can't* read __files__ on your computer.",
        "I CAN'T READ FILES ON YOUR COMPUTER",
        "I\u200b can't re\u00adad files on your computer.",
        "Ｉ ｃａｎ＇ｔ ｒｅａｄ ｆｉｌｅｓ ｏｎ ｙｏｕｒ ｃｏｍｐｕｔｅｒ．",
        "I'm sorry, but I can't read files on your computer.",
        "I'm sorry — unfortunately, I can't read files on your computer. Please paste them here.",
    ],
)
def test_spelling_does_not_matter(text):
    opening, shown = read(text)
    assert opening.found == "environment denied"
    assert shown == ""
    assert opening.phrase.startswith("en: ")


def test_accents_may_be_separate_characters():
    for text in ("Je n'ai pas accès à Internet.", "Je n'ai pas acce\u0300s a\u0300 Internet."):
        assert read(text)[0].found == "environment denied"


# --- announcements ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Let me check the file.",
        "I'll run the tests now:",
        "The cause is in `io.py`. **Let me check the file.**\n\n",
        "Done with the first part.\n\nNow, let me run the tests…",
        "x" * 5000 + ". Let me check the file.",
    ],
)
def test_an_announcement_in_the_last_sentence(text):
    assert find_announcement(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Let me check the file. It is empty.",
        "Let me check: it is empty.",
        "Let me check the file:\n\n```\nempty\n```",
        "Shall I check the file? Or do you want to? Let me check the file?",
        '"Let me check the file."',
        "> Let me check the file.",
        "- Let me check the file.",
        "1. I'll run the tests.",
        "If you agree, let me check the file.",
        "Let me know.",
        "Let me check the file " + "and more " * 200,
    ],
)
def test_answers_lists_quotations_questions_and_conditions_do_not_announce(text):
    assert find_announcement(text) is None


# --- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_result_does_not_depend_on_the_split(size):
    for case in CORPUS:
        whole, shown = read(case["text"])
        cut, also = read(case["text"], size)
        assert (cut.found, cut.phrase, also) == (whole.found, whole.phrase, shown), case


@given(st.integers(0, len(CORPUS) - 1), st.lists(st.integers(1, 12), min_size=1, max_size=8))
@settings(max_examples=40)
def test_the_result_does_not_depend_on_random_splits(number, sizes):
    text = CORPUS[number]["text"]
    whole, shown = read(text)
    opening, out, at = OpeningWatch(), "", 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            break
        out += opening.feed(text[at : at + size])
        at += size
    out += opening.close()
    assert (opening.found, opening.phrase, out) == (whole.found, whole.phrase, shown)


@given(st.text(max_size=80))
def test_any_text_is_passed_through_exactly(text):
    opening, shown = read(text, 2)
    assert opening.found is not None or shown == text


# --- buffering -------------------------------------------------------------------------------------------------------


def test_text_that_begins_no_phrase_is_not_buffered():
    opening = OpeningWatch()
    text = "The file"
    assert opening.feed(text) is text
    assert opening.decided
    assert opening.held == 0


def test_a_possible_denial_is_buffered_until_it_is_ruled_out():
    opening = OpeningWatch()
    assert opening.feed("I'm sorry, but") == ""
    assert opening.held == 14
    assert not opening.decided
    assert opening.feed(" the") == ""  # may continue as "there are …"
    assert opening.feed(" file") == "I'm sorry, but the file"
    assert opening.decided


def test_no_phrase_begins_with_an_arbitrary_word():
    phrases = default_phrases()
    assert phrases.denied.step(phrases.denied.start(), "☃") is None
    for word in ("The", "Here", "Yes", "def", "#", "1", "你好吗", "Paris", "42", "{", "日本", "それ"):
        opening = OpeningWatch()
        opening.feed(word + " x")
        assert opening.decided, word


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry. " * 100,
        " " * 1000,
        "I understand that you want to " + "a " * 500,
        "\u200b" * 1000,
        "sorry, " * 100,
        "申し訳ありません" * 100,
    ],
)
def test_the_buffer_is_bounded(text):
    opening = OpeningWatch()
    shown = ""
    for char in text:
        shown += opening.feed(char)
        assert opening.held <= HELD
    assert shown + opening.close() == text


def test_a_complete_phrase_in_an_endless_sentence_is_a_denial():
    opening = OpeningWatch()
    for char in "I can't read files on your computer and" + " so on" * 100:
        assert opening.feed(char) == ""
    assert opening.found == "environment denied"
    assert opening.held == HELD + 1


def test_negatives_are_unchanged_except_for_buffering():
    for text in NEGATIVES:
        opening, held = OpeningWatch(), ""
        for piece in (text[at : at + 3] for at in range(0, len(text), 3)):
            before = opening.decided
            shown = opening.feed(piece)
            if before:
                assert shown is piece, text
            else:
                held += piece
                assert shown in ("", held), text
                held = "" if shown else held
            assert opening.held == len(held), text
        assert opening.close() == held, text
        assert opening.found is None, text


def test_negatives_are_buffered_only_briefly():
    most = []
    for text in NEGATIVES:
        opening, held = OpeningWatch(), 0
        for char in text:
            opening.feed(char)
            held = max(held, opening.held)
        most.append(held)
    assert sorted(most)[len(most) // 2] <= 12
    assert max(most) <= 120


def test_a_denial_is_found_before_the_reply_ends():
    opening = OpeningWatch()
    assert opening.feed("I can't read files on your computer. Please") == ""
    assert opening.found == "environment denied"
    assert opening.feed(" paste them.") == ""
    assert opening.close() == ""


def test_the_end_of_the_text_ends_a_phrase():
    opening = OpeningWatch()
    assert opening.feed("I have no tools") == ""
    assert opening.found is None
    assert opening.close() == ""
    assert opening.found == "tools denied"


def test_buffered_text_can_be_released_after_a_denial():
    opening = OpeningWatch()
    opening.feed("I have no tools. Please paste")
    assert opening.found == "tools denied"
    assert opening.release() == "I have no tools. Please paste"
    assert opening.feed(" it.") == " it."


# --- cost ------------------------------------------------------------------------------------------------------------


def least(run, rounds: int = 7) -> float:
    found = []
    for _ in range(rounds):
        before = time.thread_time()
        run()
        found.append(time.thread_time() - before)
    return min(found)


def test_the_cost_does_not_grow_with_the_reply():
    piece = "plain text " * 3
    long = piece * 100_000

    def feed(count: int) -> None:
        opening = OpeningWatch()
        for _ in range(count):
            opening.feed(piece)

    assert least(lambda: feed(40_000)) < 15 * least(lambda: feed(4_000))
    assert least(lambda: find_announcement(long)) < 10 * least(lambda: find_announcement(piece * 20)) + 0.001
    assert least(lambda: OpeningWatch().feed(long)) < 0.001


def test_the_cost_of_a_buffered_character_does_not_depend_on_its_position():
    def run(text: str) -> float:
        def feed() -> None:
            for _ in range(50):
                opening = OpeningWatch()
                for char in text:
                    opening.feed(char)

        return least(feed) / len(text)

    assert run("I'm sorry. " * 24) < 2 * run("I'm sorry. " * 4)


def test_earlier_texts_do_not_affect_the_result():
    """A node caches transitions by character and by character class; the two must not be confused."""
    texts = [case["text"] for case in CORPUS]
    random.Random(1).shuffle(texts)
    fresh = Phrases.parse(SMALL)
    for text in ("s l c p", "SLCPBAHWOE", *texts[:50]):
        read(text, phrases=fresh)
    assert read("I can't open files.", phrases=fresh)[0].found == "environment denied"
    assert find_announcement("Now let me check it.", fresh) == "en: (let me|i'll) (check|run)"
    assert not set("SLCPBAHWOE") & set(fold_text("SLCPBAHWOE" + "".join(texts)))


# --- the file --------------------------------------------------------------------------------------------------------


def found(phrase: str, text: str, *, spaces: bool = True, pieces: str = "") -> bool:
    """Return whether a text is a denial by a single phrase."""
    file = f"[x]\nspaces = {str(spaces).lower()}\n[x.pieces]\n{pieces}\n[x.denied]\ntools = ['''{phrase}''']\n"
    return read(text, phrases=Phrases.parse(file))[0].found is not None


@pytest.mark.parametrize(
    ("phrase", "yes", "no"),
    [
        ("no (tools|big plugins)", ["no tools", "no  big\nplugins!"], ["no", "no toolbox", "no big tools", "tools"]),
        ("no [more] tools", ["no tools", "no more tools"], ["no more", "no more more tools"]),
        ("[so] no tools", ["no tools", "so no tools"], ["sono tools"]),
        ("no tool[s] [here]", ["no tool", "no tools", "no tools here", "no tool, sir"], ["no toolhere"]),
        ("no <2> tools", ["no tools", "no big tools", "no a.b c-d tools"], ["no a b c tools", "no a. b tools"]),
        ("sorry , no", ["sorry no", "sorry, no", "sorry - no", "sorry... no", "sorry\nno"], ["sorryno", "sorry x no"]),
        ("no tools .", ["no tools", "no tools.", "no tools – x", "no tools (x", "no tools\nx"], ["no tools x"]),
        ("no (.|for you)", ["no.", "no", "no for you"], ["no for"]),
    ],
)
def test_notation(phrase, yes, no):
    for text in yes:
        assert found(phrase, text), text
    for text in no:
        assert not found(phrase, text), text


def test_without_spaces_between_words_spaces_are_optional_and_slots_match_characters():
    assert found("没有 <2> 工具", "没有工具", spaces=False)
    assert found("没有 <2> 工具", "没有 任何 工具。", spaces=False)
    assert not found("没有 <2> 工具", "没有一二三工具", spaces=False)


def test_pieces_expand_to_their_text():
    assert found("i {not} have tools", "I do not have tools", pieces='not = "(do not|don\'t)"')
    assert found("i {do_not} have tools", "I do not have tools", pieces='do_not = "do not"')
    assert not found("i {not} have tools", "I have tools", pieces='not = "(do not|don\'t)"')


def test_phrases_with_a_common_prefix_are_not_mixed_up():
    """`[a]b c` and `ab d` share "ab", but "b d" matches neither."""
    file = '[x.denied]\ntools = ["[a]b c", "ab d"]'
    phrases = Phrases.parse(file)
    assert [read(t, phrases=phrases)[0].found is not None for t in ("b c", "ab c", "ab d", "b d")] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("[en", "the phrases are not valid TOML"),
        ("en = 1", "en: expected a table"),
        ("[en]\nspace = false", "en.space: unknown key"),
        ("[en]\nspaces = 1", "en.spaces: expected true or false"),
        ("[en.pieces]\na = 1", "en.pieces.a: expected a phrase"),
        ("[en.denied]\ntool = []", "en.denied.tool: unknown key; the keys are before, environment"),
        ("[en.denied]\ntools = 'x'", "en.denied.tools: expected a list of phrases"),
        ("[en.denied]\ntools = ['a', 'b (c']", 'en.denied.tools[1]: "(" is never closed (column 3'),
        ("[en.denied]\ntools = ['b c)']", 'en.denied.tools[0]: ")" has no matching opening bracket (column 4'),
        ("[en.denied]\ntools = ['a {b}']", 'en.denied.tools[0]: unknown piece "b"'),
        ("[en.denied]\ntools = ['a {b']", 'en.denied.tools[0]: "{" is never closed'),
        ("[en.denied]\ntools = ['a <x> b']", 'en.denied.tools[0]: "<x>" is not a number of words'),
        ("[en.denied]\ntools = ['[a] [b]']", "en.denied.tools[0]: the phrase could be empty"),
        ("[en.announced]\nphrases = ['']", "en.announced.phrases[0]: the phrase could be empty"),
        ("[en.denied]\ntools = ['" + "(" * 5000 + "']", "en.denied.tools[0]: groups are nested too deeply"),
        ("[en.pieces]\na = '{a}'\n[en.denied]\nunless = ['{a}']", "contains itself"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_the_place(file, place):
    with pytest.raises(PhrasesError) as caught:
        Phrases.parse(file)
    assert place in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, SettingsError)


def test_an_empty_file_matches_and_buffers_nothing():
    opening, shown = read("I have no tools.", 1, Phrases.parse(""))
    assert (opening.found, shown) == (None, "I have no tools.")
    assert find_announcement("Let me check the file.", Phrases.parse("")) is None


@given(st.text("ab ()[]{}<>|,.1", max_size=24))
@settings(max_examples=50)
def test_any_phrase_is_parsed_or_rejected(phrase):
    file = f"[x.denied]\ntools = [{json.dumps(phrase)}]\nbefore = [{json.dumps(phrase)}]"
    try:
        phrases = Phrases.parse(file)
    except PhrasesError:
        return
    for text in ("a b", "ab, a.", "b"):
        read(text, 1, phrases)


def test_folding():
    assert fold_text("Ｉ ＣＡＮ’Ｔ… **É**\u200b") == "i can't... e"
    assert fold(END) == ""


# --- custom phrases --------------------------------------------------------------------------------------------------

OWN = """
[en.denied]
before = ["oh dear ,"]
tools = ["the toolbox is locked .", "{cannot} unlock the toolbox ."]
[en.announced]
phrases = ["off i go to"]
[nl.denied]
environment = ["ik kan geen bestanden lezen ."]
"""


@functools.cache
def own() -> Phrases:
    return extended_phrases(OWN)


def denies(text: str, phrases: Phrases | None) -> str | None:
    opening = OpeningWatch(phrases)
    opening.feed(text)
    opening.close()
    return opening.phrase or None


def test_custom_phrases_are_added_to_the_built_in_ones():
    phrases = own()
    assert denies("The toolbox is locked.", phrases) == "en: the toolbox is locked ."
    assert denies("Ik kan geen bestanden lezen.", phrases) == "nl: ik kan geen bestanden lezen ."
    assert denies("I can't read files on your computer.", phrases) is not None
    assert find_announcement("Fine. Off I go to the shop.", phrases) == "en: off i go to"
    assert find_announcement("Fine. Let me check the file.", phrases) is not None
    assert denies("The toolbox is locked.", None) is None
    assert phrases.languages == (*default_phrases().languages, "nl")


def test_custom_and_built_in_phrases_of_a_language_share_pieces_and_politeness():
    phrases = own()
    assert denies("I'm unable to unlock the toolbox.", phrases) == "en: {cannot} unlock the toolbox ."
    assert denies("I'm sorry, but the toolbox is locked.", phrases) is not None
    assert denies("Oh dear, I can't read files on your computer.", phrases) is not None
    assert denies("The toolbox is locked, but I can use the search tool.", phrases) is None


def test_custom_pieces_do_not_affect_built_in_phrases():
    phrases = extended_phrases('[en.pieces]\ncannot = "i refuse to"\n[en.denied]\ntools = ["{cannot} move ."]')
    assert denies("I refuse to move.", phrases) == "en: {cannot} move ."
    assert denies("I can't read files on your computer.", phrases) is not None
    assert denies("I refuse to read files on your computer.", phrases) is None


def test_custom_phrases_may_replace_the_built_in_ones():
    phrases = extended_phrases("replace = true\n[en.denied]\ntools = ['no tools .']")
    assert denies("No tools.", phrases) == "en: no tools ."
    assert denies("I can't read files on your computer.", phrases) is None
    assert find_announcement("Let me check the file.", phrases) is None
    assert phrases.languages == ("en",)


def test_adding_phrases_does_not_change_the_results_for_the_corpus():
    phrases = own()
    for case in CORPUS[::5]:
        assert denies(case["text"], phrases) == denies(case["text"], None), case["text"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"[en.denied]\ntools = ['ok', 'b (c']", ': en.denied.tools[1]: "(" is never closed'),
        (b"[en.denied]\ntools = ['{nothing}']", ': en.denied.tools[0]: unknown piece "nothing"'),
        (b"replace = 1", ": replace: expected true or false"),
        (b"[zh]\nspaces = true", ": zh.spaces: expected false, as in the built-in phrases"),
        (b"[en", ": the phrases are not valid TOML"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_an_unusable_file_is_an_error_that_names_it(tmp_path, text, told):
    file = tmp_path / "own.toml"
    if text is not None:
        file.write_bytes(text)
    for make in (lambda given: ToolMiddleware(sample.app, settings=given), lambda given: ToolTransport(settings=given)):
        with pytest.raises(SettingsError) as caught:
            make(Settings(phrases=str(file)))
        assert caught.value.message.startswith(f'phrases: "{file}"')
        assert told in caught.value.message
        assert caught.value.param == "phrases"
        make(Settings(phrases=str(file), refusals="pass"))


def test_the_file_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert denies("The toolbox is locked.", open_phrases(load('phrases = "own.toml"'))) is not None
    assert open_phrases(Settings()) is None  # the built-in phrases


ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}],
}


@pytest.mark.anyio
async def test_a_reply_matching_a_custom_phrase_is_retried(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(OWN, encoding="utf-8")
    call = script('<tool_call>{"name": "ping", "arguments": {}}</tool_call>')
    denied, announces = script("The toolbox is locked. Sorry."), script("Good. Off I go to the shop.")
    records: list[Record] = []

    async def ask(scripts: list[Script], own: str | None) -> None:
        app = ToolMiddleware(ScriptedUpstream(*scripts), settings=Settings(phrases=own), on_exchange=records.append)
        for _ in range(2):
            async with stream_asgi(app, body=json.dumps(ASKED).encode()) as reply:
                await reply.body()

    await ask([denied, call, announces, call], str(file))
    await ask([denied, announces], None)
    assert [record.calls for record in records] == [1, 1, 0, 0]
    details = [record.details for record in records]
    assert details == [("en: the toolbox is locked .",), ("en: off i go to",), (), ()]


def test_checking_the_settings_reads_the_file(tmp_path, capsys):
    config = tmp_path / "streamtool.toml"
    config.write_text(f"phrases = '{tmp_path / 'none.toml'}'", encoding="utf-8")
    assert main(["serve", "--check", "--config", str(config)]) == 2
    assert f'phrases: "{tmp_path / "none.toml"}" cannot be read' in capsys.readouterr().err
