"""A call that is shown as code is text, in every format; a call after text is a call, as early as without the text."""

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.statemachine_fold import events_of, fold, pieces
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Call, CallStart, Event, Format, Parser, write
from statemachine.formats import JsonBody, NameRule, Variant

TOOLS: dict[str, Any] = {
    "send_money": {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}}},
    "ping": {"type": "object", "properties": {}},
}
CALL = Call("send_money", '{"to": "Mallory", "amount": 100}')
SIZES = (1, 2, 3, 7, 10_000)
OWN_FENCE = ("fenced", "tool_code", "continue", "rwkv")
"""Formats that contain fences: inside code that is not a fence itself, their fence ends the paragraph."""
JSON_FENCE = ("fenced", "tool_code", "object", "xlam", "action_object", "openai_fragment")
"""Formats without markers, which count in a fence of JSON, and those that are fences."""


def lines(text: str, prefix: str, first: str | None = None) -> str:
    """Return the text with a prefix before each line, and another one before the first."""
    begun = [(prefix if number or first is None else first) + line for number, line in enumerate(text.split("\n"))]
    return "\n".join(line.rstrip(" \t") for line in begun)


Place = Callable[[str], str]
SPANS: dict[str, Place] = {
    "one backtick": lambda q: f"The page says `{q}` near its end.",
    "two backticks": lambda q: f"The page says ``{q}`` near its end.",
    "two backticks and blanks": lambda q: f"The page says `` {q} `` near its end.",
    "three backticks": lambda q: f"The page says ```{q}``` near its end.",
    "two backticks around one": lambda q: f"The page says ``a ` b {q}`` near its end.",
    "after other code": lambda q: f"The `page` says ``{q}`` near `its` end.",
    "over lines": lambda q: f"The page says `write\n{q}\nplease` near its end.",
    "over lines of its own": lambda q: f"The page says `\n{q}\n` near its end.",
    "two backticks over lines": lambda q: f"The page says ``write\n{q}\nplease`` near its end.",
    "in a list": lambda q: f"It says:\n- write `{q}`\n- and wait",
    "in a heading": lambda q: f"# The page says `{q}`\n\nI did not do that.",
    "in bold": lambda q: f"The page says **`{q}`** near its end.",
    "in a table": lambda q: f"| a | b |\n|---|---|\n| x | `{q}` |\n",
    "after an odd backtick": lambda q: f"A ` alone, and the page says `{q}` near its end.",
    "after an apostrophe": lambda q: f"It`s that the page says `{q}` near its end.",
    "after an odd backtick, with words": lambda q: f"A ` alone, and the page says `please run {q} now` near its end.",
    "after an escaped backtick": lambda q: f"A \\` alone, and the page says `{q}` near its end.",
    "after an escaped backslash": lambda q: f"A \\\\`{q}` near its end.",
    "after a backslash in code": lambda q: f"A `\\` and the page says `{q}` near its end.",
    "after an odd backtick of another paragraph": lambda q: f"A ` alone.\n\nThe page says `{q}` near its end.",
}
FENCES: dict[str, Place] = {
    "a fence of tildes": lambda q: f"The page says:\n\n~~~\n{q}\n~~~\nI did not do that.",
    "a fence of tildes with a language": lambda q: f"The page says:\n\n~~~xml\n{q}\n~~~\nI did not do that.",
    "a longer fence of tildes": lambda q: f"The page says:\n\n~~~~ xml\n~~~\n{q}\n~~~~\nI did not do that.",
    "a fence of tildes around one of backticks": lambda q: f"It says:\n\n~~~\n```\n{q}\n```\n~~~\nI did not do that.",
    "a fence of tildes first": lambda q: f"~~~\n{q}\n~~~\nis what the page says.",
    "a fence of tildes after a line": lambda q: f"The page says:\n~~~\n{q}\n~~~\nI did not do that.",
    "a fence of tildes that is not closed": lambda q: f"The page says:\n\n~~~\n{q}\n",
    "a fence of a language": lambda q: f"The page says:\n\n```xml\n{q}\n```\nI did not do that.",
    "a fence of another language": lambda q: f"The page says:\n\n```python title=x\n{q}\n```\nI did not do that.",
    "a fence of a language, indented": lambda q: f"The page says:\n\n  ```xml\n{q}\n  ```\nI did not do that.",
    "a fence after other lines": lambda q: f"The page says:\n\n```\nplease write\n{q}\n```\nI did not do that.",
    "a fence after text on its line": lambda q: f"The page says: ```xml\n{q}\n```\nI did not do that.",
}
BLOCKS: dict[str, Place] = {
    "indented": lambda q: f"The page says:\n\n{lines(q, '    ')}\n\nI did not do that.",
    "indented by a tab": lambda q: f"The page says:\n\n{lines(q, chr(9))}\n\nI did not do that.",
    "indented by blanks and a tab": lambda q: f"The page says:\n\n{lines(q, '  ' + chr(9))}\n\nI did not do that.",
    "indented after other lines": lambda q: f"The page says:\n\n    write\n\n{lines(q, '    ')}\n\nI did not do that.",
    "indented after a line of blanks": lambda q: f"The page says:\n  \n{lines(q, '    ')}\n\nI did not do that.",
    "indented in a list": lambda q: f"- The page says:\n\n{lines(q, '      ')}\n\n- I did not do that.",
    "a block quote": lambda q: f"The page says:\n\n{lines(q, '> ')}\n\nI did not do that.",
    "a block quote in a list": lambda q: f"- The page says:\n{lines(q, '  > ')}\n- I did not do that.",
    "a block quote as a list item": lambda q: f"It says:\n\n- {lines(q, '  > ', '> ')}\n- I did not do that.",
    "a block quote as a numbered item": lambda q: f"It says:\n\n12. {lines(q, '    > ', '> ')}\n13. I did not.",
    "a block quote as an item of an item": lambda q: f"It says:\n\n- 1) {lines(q, '     > ', '> ')}\n- I did not.",
}
ENDINGS = {"": "", "a newline": "\n", "more text": "\n\nThat is all.", "another mention": " And `ping`, too."}


def calls_of(text: str, size: int, **options: Any) -> int:
    """Return the number of calls in a text that arrives in pieces."""
    parser = Parser(TOOLS, **options)
    events = [event for piece in pieces(text, size) for event in parser.feed(piece)]
    return sum(isinstance(event, CallStart) for event in [*events, *parser.close()])


def formats_of(form: str) -> tuple[dict[str, Any], ...]:
    """Return options for reading calls in this format: along with the default formats, and alone."""
    around = [name for name in FORMATS if name not in OPT_IN or name == form]
    return {"formats": around}, {"formats": [form]}


def check(
    form: str, choices: Iterable[dict[str, Any]], places: Iterable[tuple[str, Place]], sizes: Iterable[int],
    endings: Iterable[str],
) -> None:  # fmt: skip
    """Check that a call in a format is text in each place."""
    quoted = write([CALL], form).strip("\n")
    for options, (name, place), ending, size in itertools.product(choices, places, endings, sizes):
        text = place(quoted) + ending
        assert calls_of(text, size, **options) == 0, (name, ending, size, options, text)


def places(form: str) -> list[tuple[str, Place]]:
    """Return the places where a call in a format is text."""
    spans = [] if form in OWN_FENCE else list(SPANS.items())
    return [*spans, *FENCES.items(), *BLOCKS.items()]


def has_blank_line(form: str) -> bool:
    """Return whether calls in this format contain a blank line, which ends inline code."""
    return "\n\n" in write([CALL], form).strip("\n")


@each("form", sorted(FORMATS))
def test_a_call_in_code_is_text(form: str) -> None:
    """Every second place, with one choice of formats, one ending and one size; under `-m long`, all combinations."""
    rng = random.Random(form)
    for place in places(form)[sorted(FORMATS).index(form) % 2 :: 2]:
        check(form, [rng.choice(formats_of(form))], [place], [rng.choice(SIZES)], [rng.choice(list(ENDINGS.values()))])


@pytest.mark.long
@each("form", sorted(FORMATS))
def test_a_call_in_code_is_text_with_every_ending_and_size(form: str) -> None:
    check(form, formats_of(form), places(form), SIZES, ENDINGS.values())


def test_no_format_writes_blank_lines() -> None:
    assert [form for form in FORMATS if has_blank_line(form)] == []


# --- fences: an example in prose, or a reply that is wrapped

MARKED = sorted(set(FORMATS) - set(JSON_FENCE) - {"pythonic", "bare_call"})
LANGUAGES = ("xml", "html", "text", "python", "bash", "tool", "plaintext", "yaml")


@each("form", MARKED)
def test_a_call_with_markers_in_a_fence_after_text_is_text(form: str) -> None:
    quoted = write([CALL], form).strip("\n")
    for number, info in enumerate(("", "json", *LANGUAGES)):
        text = f"Write it like this:\n\n```{info}\n{quoted}\n```\n\nThen wait."
        assert calls_of(text, SIZES[number % len(SIZES)]) == 0, text


@each("form", MARKED)
def test_a_call_in_a_fence_before_any_text_is_a_call(form: str) -> None:
    written = write([CALL], form).strip("\n")
    if "```" in written or "\n~~~" in written:
        return
    for size, info in ((1, ""), (7, "xml"), (10_000, "text")):
        for text in (f"```{info}\n{written}\n```", f"<think>Hm.</think>\n\n```{info}\n{written}\n```\nDone."):
            assert calls_of(text, size, formats=formats_of(form)[0]["formats"]) == 1, text


@each("info", ["json action", "tool_call", "tool_use", "tool_code"])
def test_a_fence_that_announces_a_call_is_a_call_after_text(info: str) -> None:
    for size in SIZES:
        assert calls_of(f'I look.\n\n```{info}\n{{"tool": "ping", "arguments": {{}}}}\n```\nDone.', size) == 1
        assert calls_of(f"I look.\n\n```{info}\n{write([CALL], 'tool_call').strip()}\n```\nDone.", size) == 1


@each("info", ["", "json", "JSON"])
def test_json_in_a_fence_of_json_is_a_call_after_text(info: str) -> None:
    for size in SIZES:
        assert calls_of(f'I look.\n\n```{info}\n{{"tool": "ping", "arguments": {{}}}}\n```\nDone.', size) == 1


def test_calls_are_found_in_code_fences_on_request() -> None:
    quoted = write([CALL], "tool_call")
    for fence in ("```", "```xml", "~~~", "~~~ xml"):
        for size in SIZES:
            text = f"It says:\n\n{fence}\nthis\n{quoted}\n{fence[:3]}\n"
            assert calls_of(text, size, in_fences="calls") == 1, text


# --- calls after text

PROSE = (
    "I will look it up.\n",
    "Let me see `ping` and ``send_money``, then call.\n",
    "It`s odd, or ` is.\n\n",
    "# A heading with ` in it\n\n",
    "- a `list`\n- of items with ` in one\n\n",
    "1. First\n2. Then\n\n   ",
    "> a quote with `code` and ` more\n\n",
    "```python\nx = `1`\n```\n",
    "~~~\ncode\n~~~\n",
    "A path C:\\dir\\`, a \\` tick, $\\frac{1}{2}$.\n",
    "Text:\n\n    code = 1\n\nNow.\n",
    "| a | b |\n|---|---|\n| `x` | y |\n\n",
    "使用`ping`工具。\n",
    "**`ping`**: and *then*.\n",
    "`a``b` is code. ``` x ``` is, too.\n",
)
"""Text that models write before calls, with backticks that are closed, or end with their paragraph."""


def start_of(text: str, size: int, before: int, **options: Any) -> tuple[int, int]:
    """Return the number of calls, and how much of the first one had arrived when it started."""
    parser = Parser(TOOLS, **options)
    count, end, started = 0, 0, -1
    for piece in pieces(text, size):
        end += len(piece)
        for event in parser.feed(piece):
            if isinstance(event, CallStart):
                count, started = count + 1, end - before if started < 0 else started
    count += sum(isinstance(event, CallStart) for event in parser.close())
    return count, started


ANCHORED = ("action_object", "bare_call")
"""Formats whose call counts only before any text."""


@each("form", [form for form in sorted(FORMATS) if form not in ANCHORED])
def test_a_call_after_text_is_found_as_early_as_without_it(form: str) -> None:
    """Fifteen texts in pieces of one character and at once, along with the default formats or alone: 1,830 calls."""
    written = write([CALL], form).strip("\n")
    for number, options in enumerate(formats_of(form)):
        _, alone = start_of("Well.\n" + written, 1, 6, **options)
        for prose in PROSE[number::2]:
            assert start_of(prose + written, 10_000, len(prose), **options)[0] == 1, (prose, options)
            count, start = start_of(prose + written, 1, len(prose), **options)
            assert (count, start <= alone) == (1, True), (prose, options, start, alone)


@each("text", ["x\n =\\`{}", "```#`\n``` {}", "x\n\n  \\`{}", "\\``{}``", "a\n1. > {}", "`a`\\`{}"])
def test_code_does_not_depend_on_pieces(text: str) -> None:
    whole = text.replace("{}", write([CALL], "tool_call").strip("\n"))
    assert {calls_of(whole, size) for size in range(1, 12)} == {calls_of(whole, len(whole))}


@each("before", ["a\n{}    ", "a\r\n{}    ", "a `b\n{}    x ", "T\n\n{}      "])
@each("blank", [" \r\n", "\t\r\n", "  \r\n", " \n", "\r\n", "    \r\n \r\n"])
def test_a_blank_line_may_end_in_a_carriage_return(before: str, blank: str) -> None:
    for form in ("tool_call", "invoke", "qwen3_coder"):
        text = before.format(blank) + lines(write([CALL], form).strip("\n"), "    ", "")
        assert {calls_of(text, size) for size in SIZES} == {0}, text


HELD = (
    "x `a {}",
    "x `a\n{}",
    "{}",
    "a\n{}",
    "~~~{}",
    "a: {}",
    "a: ```{}",
    "- {}",
    "- a\n    ```\n    x\n{}",
    "a\n```\n{}",
)


@each("before", HELD)
def test_little_text_is_held(before: str) -> None:
    """At most 64 newlines, and as many other characters, wait for the text after them."""
    for unit in ("\n", "\r\n", "1", "-", "=", "_", "*", "`", "~", " ", "\t", "- ", "\n ", ":", "a", "# "):
        for size in (1, 4):
            parser, most = Parser(TOOLS), 0
            for piece in pieces(before.format(unit * 300), size):
                parser.feed(piece)
                most = max(most, parser.held)
            assert most <= 2 * 64 + 4, (before, unit, most)


# --- fences after other text on their line, in list items, and under code

READ = ("tool_call", "invoke", "qwen3_coder", "labelled")
JSON_CALL = '{"tool": "ping", "arguments": {}}'


def check_count(form: str, text: str, count: int) -> None:
    """Check the number of calls in a text in which `{}` stands for a call in a format, at several sizes."""
    whole = text.replace("{}", write([CALL], form).strip("\n"))
    for options, sizes in zip(formats_of(form), ((1, 10_000), (3,)), strict=True):
        found = [calls_of(whole, size, **options) for size in sizes]
        assert found == [count] * len(sizes), (whole, options, found)


MENTIONS = (
    "Wrap it in triple backticks (```).",
    "Use ``` to open a fence.",
    "Use ```python to start.",
    "Use ```a``` or ```.",
    "Use ```",
    "Use ```\nto open a fence.",
    "Use ````json",
    "- Use ```\n- Then",
    "* Use ```xml\n* Then",
    "1. Use ```\n2. Then",
    "# Use ```",
    "| a | ``` |\n|-|-|",
    "Use `````` or so.",
    "Note: ```python and ```.",
    "- ```python and more.",
)


@each("form", READ)
def test_backticks_that_are_only_mentioned_end_with_their_paragraph(form: str) -> None:
    for text in MENTIONS:
        check_count(form, f"{text}\n\nNow.\n\n{{}}", 1)
        check_count(form, f"{text}\n\n{{}}", 1)
        check_count(form, f"{text}\n\n```\nx\n{{}}\n```\n", 0)


BEFORE_FENCE = ("The page says: ", "**It says:** ", "It says:", "- ", "12. ", "- 1) ", "* **It says**: ", "It:\t")


@each("form", READ)
def test_a_fence_may_follow_a_colon_or_the_marker_of_a_list_item(form: str) -> None:
    for before in BEFORE_FENCE:
        for info in ("", "xml", "text"):
            for fence in ("```", "````"):
                check_count(form, f"Well.\n\n{before}{fence}{info}\n\n# x\n{{}}\n\n{fence}\n", 0)
                check_count(form, f"Well.\n\n{before}{fence}{info}\n\n# x\n\n{fence}\n\n{{}}", 1)


def test_a_fence_that_announces_a_call_may_follow_text_on_its_line() -> None:
    for before in BEFORE_FENCE:
        for info in ("json action", "tool_call", "tool_use", "tool_code"):
            for call in (JSON_CALL, write([CALL], "tool_call").strip("\n")):
                for size in SIZES:
                    assert calls_of(f"Well.\n{before}```{info}\n{call}\n```\nDone.", size) == 1, (before, info, call)


@each("form", MARKED)
def test_a_fence_may_follow_reasoning_on_its_line(form: str) -> None:
    for thought in ("<think>x</think>", "</think>", "<think>x\n</think> "):
        for info in ("", "xml", "json"):
            written = write([CALL], form).strip("\n")
            if "```" in written or "\n~~~" in written:
                continue
            for size in (1, 7):
                text = f"{thought}```{info}\n{written}\n```"
                assert calls_of(text, size, formats=formats_of(form)[0]["formats"]) == 1, text


ITEMS = (
    ("10. ", 4),
    ("- ", 4),
    ("- ", 2),
    ("-   ", 4),
    ("1. **Run**: ", 4),
    ("1) a\n     - ", 7),
    ("10. a:\n    ", 4),
    ("- a\n\n    ", 4),
    ("- a:\n    ", 4),
    ("1. a:\n     ", 5),
    ("- a\n  - b\n    - c:\n      ", 6),
    ("- a\n  - b\n    - ", 6),
    ("- a\n  - b\n    - c\n      - d:\n\t", 8),
)


@each("form", READ)
def test_a_fence_in_a_list_item_ends(form: str) -> None:
    for before, column in ITEMS:
        for fence in ("```py", "```", "~~~", "~~~ py"):
            if fence[0] == "~" and "**" in before:  # not a fence
                continue
            blank = " " * column
            for content in ("x\n", "", f"x\n\n{blank}  y\n"):
                end = f"{blank}{content}{blank if content else ''}{fence[:3]}"
                check_count(form, f"Well:\n\n{before}{fence}\n{end}\n\n{{}}", 1)


@each("form", READ)
def test_a_call_in_a_fence_of_a_list_item_is_text(form: str) -> None:
    quoted = write([CALL], form).strip("\n")
    for before, column in ITEMS:
        for fence in ("```xml", "~~~", "~~~ xml"):
            if fence[0] == "~" and "**" in before:
                continue
            for first in ("", "x\n"):
                text = lines(f"{first}{quoted}\n{fence[:3]}", " " * column)
                for size in (1, 3, 10_000):
                    whole = f"Well:\n\n{before}{fence}\n{text}\n"
                    assert calls_of(whole, size, **formats_of(form)[0]) == 0, whole


@each("form", READ)
def test_tildes_under_code_open_no_fence(form: str) -> None:
    for code in (
        "foo:\n    bar(x);\n    ~~~ ^ ~~~\n\nfix",
        "error: foo\n    bar(x);\n    ~~~~^\n\nI fix it.",
        "error TS2322:\n\n5   const a\n        ~~~\n\nI fix it.",
        "error:\n  x = y\n  ~~~~^~~~\nI fix it.",
        "error:\nx = y\n~~~~^~~~\nI fix it.",
        "~~~ a ~~~ and ~~~~",
    ):
        check_count(form, f"{code}\n\n{{}}", 1)


@each("form", READ)
def test_a_closing_line_that_is_indented_too_far_is_content(form: str) -> None:
    for fence, end in itertools.product(("~~~y", "```y"), ("\t", " \t", "    ", "   \t")):
        check_count(form, f"x\n{fence}\nz\n{end}{fence[:3]}\n{{}}\n{fence[:3]}\n", 0)
        check_count(form, f"x\n{fence}\nz\n   {fence[:3]}\n\n{{}}\n", 1)


@each("info", ["", "xml", "tool", "json"])
def test_later_fences_are_read_as_the_first_one_that_contained_a_call(info: str) -> None:
    fence = f"```{info}\n{{}}\n```"
    for form in ("tool_call", "invoke", "qwen3_coder"):
        check_count(form, f"{fence}\n\nand\n\n{fence}", 2)
        check_count(form, f"{fence}\nand\n{fence}\nand\n\n{fence}\n", 3)
        check_count(form, f"{fence}\n\nand\n\n```other\n{{}}\n```\n", 1)
        check_count(form, f"```{info}\nx\n```\n\nand\n\n{fence}", 0)


@each("ending", ["s", "es", "ed", "d", "'s"])
def test_an_ending_after_code_does_not_begin_code(ending: str) -> None:
    for form in READ:
        for code in ("`foo`", "``foo``", "`a` and `b`"):
            if form != "labelled":
                check_count(form, f"The {code}{ending} are here. {{}}", 1)
            check_count(form, f"The {code}{ending} are here.\n{{}}", 1)


@pytest.mark.parametrize("opener", ["-> call ", "* call ", "+call ", "1. call ", "12) call ", "> call "])
@pytest.mark.parametrize("before", ["", "<think>A</think>", "Hello.", "- one\n- two", "> quoted"])
@pytest.mark.parametrize("lines", ["\n", "\n\n", "\n \n"])
def test_newlines_before_an_opener_like_a_marker_of_a_block_are_markup(opener: str, before: str, lines: str) -> None:
    """Whatever the pieces: the opener waits with its newlines until it differs from such a marker."""
    form = Format("arrow", openers=(opener,), variants=(Variant(JsonBody(), NameRule(ends=("{",))),), close="<end>")
    text = f"{before}{lines}{opener}ping {{}}<end>"

    def read(size: int) -> list[Event]:
        parser = Parser(TOOLS, formats=(form,))
        return [event for piece in pieces(text, size) for event in parser.feed(piece)] + parser.close()

    whole = read(len(text))
    assert sum(isinstance(event, CallStart) for event in whole) == 1
    for size in range(1, 8):
        assert fold(read(size)) == fold(whole), size


@pytest.mark.parametrize("code", ["<function=", "<tool_call>", "a"])
def test_code_around_the_closer_of_reasoning_is_the_same_for_every_split(code: str) -> None:
    text = f"<think>`{code}</think>` b"
    whole = fold(events_of([text], TOOLS, "stop", calls_in_reasoning=True))
    for at in range(1, len(text)):
        assert fold(events_of([text[:at], text[at:]], TOOLS, "stop", calls_in_reasoning=True)) == whole, at
