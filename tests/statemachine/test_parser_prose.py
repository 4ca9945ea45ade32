"""Text that only mentions calls reaches the client unchanged and immediately: the parser buffers nothing needlessly."""

import json

import pytest
from support.format_cases import TOOLS
from support.statemachine_fold import Reasoning, Text, events_of, fold, outcome, pieces
from support.sweeps import each

from statemachine import Limits, Parser, ReasoningDelta, TextDelta

OFFERED = [{"name": name, "description": f"Does {name}.", "parameters": schema} for name, schema in TOOLS.items()]
OPENAI = [{"type": "function", "function": tool} for tool in OFFERED]

PROSE = {
    "a marker in a sentence": "Wrap it in <tool_call> and </tool_call>, or in <function_calls>; <invoke> and <parameter> go inside.",
    "reasoning tags in a sentence": "The <think> tag opens it, </think> closes it.",
    "reasoning tags on a line of their own": "Like this:\n<think>\nhm\n</think>\nand so on.",
    "labels in a sentence": "Say TOOL_CALL: ping and ARGUMENTS: {} to call it, or Action: ping.",
    "labels at a line start": "TOOL_CALL: means a call.\nARGUMENTS: come next.\nAction: takes a name.\nAction Input: takes JSON.\n",
    "mentions": "@alice said hi to @bob.\n@ping is a tool; @get_weather too.\nmail me@example.org\n@\n",
    "braces": "f(x) = {1, 2}; {name} and {{ mustache }}, {} and { }, a lone { or }.",
    "a call in backticks": 'Write `<tool_call>{"name": "ping", "arguments": {}}</tool_call>` or `{"tool": "ping"}` or `@ping {}`.',
    "a fenced JSON answer": 'Here:\n\n```json\n{"city": "Paris", "days": [1, 2, {"tool": "ping", "arguments": {}}]}\n```\n\nDone.',
    "a fenced answer that is a list": '```json\n[{"city": "Paris"}, {"city": "Oslo"}]\n```',
    "a JSON answer": '{"city": "Paris", "note": "a \\"quoted\\" } brace", "next": {"name": "ping", "arguments": {}}}',
    "a JSON answer over lines": '{\n  "answer": 42,\n  "list": [\n    1,\n    {"tool": "ping"}\n  ]\n}',
    "a JSON list": '[1, 2.50, "three", {"four": [5]}]',
    "an answer with a key that calls have": '{"name": "Ada", "id": 7, "type": "person", "age": 36}',
    "the offered tools": json.dumps(OFFERED),
    "the offered tools, indented": json.dumps(OFFERED, indent=2),
    "the offered tools as OpenAI tools": json.dumps(OPENAI, indent=2),
    "the offered tools in a fence": f"```json\n{json.dumps(OPENAI, indent=2)}\n```",
    "one offered tool": json.dumps(OFFERED[0]),
    "an offered tool inside function": json.dumps(OPENAI[0]),
    "code": "```python\n@app.get('/')\ndef f(x: dict[str, int]) -> None:\n    return {'a': [1, 2]}[x]  # <b>\n```\n",
    "html": '<html>\n<body class="a">\n<p>1 < 2 && 3 > 2</p>\n<invoices/><toolbox></toolbox>\n</body>\n</html>\n',
    "latex": "$\\frac{a}{b} \\in \\{1, 2\\}$ and $$\\begin{matrix} 1 & 2 \\\\ 3 & 4 \\end{matrix}$$",
    "lists and links": "- [x] done\n- [ ] to do\n1. [link](https://a.b/c?d={e})\n* `code`\n> quote\n\n| a | b |\n|---|---|\n",
    "odd backticks": "a ` b\nc `` d\n`e`f`\n```\n",
    "newlines": "a\n\n\nb\r\n\r\nc\n\r\n\rd\r\re\n \n \n f\n",
    "white space alone": " \n\n\t\r\n ",
    "ends in newlines": "text\n\n\n",
    "begins with newlines": "\n\n\ntext",
    "ends in a marker begun": "a <tool_ca",
    "ends in a brace": 'a {"',
    "unicode": "é e\u0301 😀 👩\u200d👩\u200d👧 \u2028 \ufeff “quotes” ‘single’ ｜▁｜ <｜tool▁calls▁begin｜>",
    "a lone surrogate": "a \ud83d b",
}


@each("text", PROSE.values(), ids=PROSE)
def test_prose_is_unchanged(text: str) -> None:
    for size in (0, 1, 2, 3, 4, 5, 7, 16):
        assert outcome(pieces(text, size), TOOLS) == ([Text(text)] if text else []), f"in pieces of {size}"


@each("text", PROSE.values(), ids=PROSE)
def test_prose_is_unchanged_at_every_split(text: str) -> None:
    text = text[:2048]
    for place in range(1, len(text), 1 + len(text) // 500):
        assert outcome([text[:place], text[place:]], TOOLS) == [Text(text)], place


@each("text", PROSE.values(), ids=PROSE)
def test_prose_after_other_text_is_unchanged(text: str) -> None:
    for before in ("Sure. ", "Sure.\n"):
        assert fold(events_of(pieces(before + text, 3), TOOLS)) == [Text(before + text)]


@pytest.mark.parametrize(
    "text",
    [
        "Plain prose, with commas; colons: and (brackets) - dashes, 'quotes' and \"double ones\", 1 + 1 = 2 % @ # $ ^ & * ~ | \\ /.",
        "Letters that begin labels: TOOL_CALL Action tool_call action TOOL_C A t T a in the middle of a line.",
        "mail me@example.org, a > b, ) and } after nothing",
    ],
)
def test_nothing_is_buffered_where_no_marker_can_begin(text: str) -> None:
    parser = Parser(TOOLS)
    parser.feed("Text. ")
    for char in text:
        assert parser.feed(char) == [TextDelta(char)]
        assert parser.held == 0


@each("text", [text for text in PROSE.values() if text], ids=[name for name, text in PROSE.items() if text])
def test_buffered_text_is_released_at_the_deciding_character(text: str) -> None:
    """In prose, buffered text never outlives its line by more than a marker."""
    parser = Parser(TOOLS)
    for number, char in enumerate(text):
        parser.feed(char)
        assert parser.held <= number + 1
    parser.close()
    assert parser.held == 0


def test_an_unchanged_piece_is_the_same_object() -> None:
    parser = Parser(TOOLS)
    parser.feed("Text. ")
    piece = "some more text, as it came"
    events = parser.feed(piece)
    assert len(events) == 1
    assert isinstance(events[0], TextDelta)
    assert events[0].text is piece


def test_each_piece_of_prose_is_emitted_by_its_feed() -> None:
    text = "The weather in Paris is fine today, and it will stay so. " * 20
    parser = Parser(TOOLS)
    for piece in pieces(text, 4):
        assert parser.feed(piece) == [TextDelta(piece)]


@each(
    ("text", "held"),
    [
        ("a <", 1),
        ("a <t", 2),
        ("a <tool_call", 10),
        ("a <tool_call>", 11),
        ("a <b", 2),  # possibly a namespace
        ("a <b:", 3),
        ("a <b:x", 0),
        ("a <b>", 0),
        ("a <b ", 0),
        ("a <1", 0),
        ("a < ", 0),
        ("a {", 1),
        ('a {"', 2),
        ("a {1", 0),
        ("a {b", 0),
        ("a [", 1),
        ("a [1", 0),
        ("a\n", 1),
        ("a\n\n", 2),
        ("a\nb", 0),
        ("a\r", 1),
        ("a\r\n", 2),
        ("a\nT", 2),
        ("a\nTO", 3),
        ("a\nTX", 0),
        ("a T", 0),
        ("a\n@", 2),
        ("a\n``", 3),
        ("a @", 0),
        ("a `", 0),
        ("a `<tool_call>{", 0),
        ("```python\nx = {", 0),
        ('{"a": 1, "b": {"tool', 0),
    ],
)
def test_only_a_possible_call_is_buffered(text: str, held: int) -> None:
    for size in (0, 1):
        parser = Parser(TOOLS)
        for piece in pieces(text, size):
            parser.feed(piece)
        assert parser.held == held, f"in pieces of {size}"


KIB = 1024


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "' + "x" * 4 * KIB,
        '{"name": "ping", "id": ["' + "x" * 4 * KIB,
        "{" + " " * 4 * KIB,
        '{"tool":' + "\n" * 4 * KIB,
        '```json\n{"id": "' + "x" * 4 * KIB,
        "x" + "\n" * 4 * KIB,
        "x" + "\r\n" * 4 * KIB,
        "x" + "\r" * 4 * KIB,
        "x\n" + " " * 4 * KIB,
        "x\n" + "\t\n" * 4 * KIB,
        "`" * 4 * KIB,
        "\n" + "`" * 4 * KIB,
        "{" * 4 * KIB,
        '{"' * 4 * KIB,
        "<" * 4 * KIB,
        "<a:" * 4 * KIB,
        "<" + "a" * 4 * KIB,
        "[" * 4 * KIB,
        "@" * 4 * KIB,
        "\n@" * 4 * KIB,
        "\n@" + "a" * 4 * KIB,
        "\nTOOL_CALL: " + "a" * 4 * KIB,
        "<think" * KIB,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_without_a_marker_at_most_a_kilobyte_is_buffered(text: str) -> None:
    """All of it is eventually emitted as text."""
    for size in (1, 7):
        parser = Parser(TOOLS)
        shown: list[str] = []
        most = 0
        for piece in pieces(text, size):
            shown += [event.text for event in parser.feed(piece) if isinstance(event, TextDelta)]
            most = max(most, parser.held)
        shown += [event.text for event in parser.close() if isinstance(event, TextDelta)]
        assert most <= KIB + 8
        assert "".join(shown) == text


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + " " * 10_000,
        '<tool_call>{"id": "' + "x" * 10_000,
        '<tool_call>{"arguments": {"a": "' + "x" * 10_000,
        "<function_calls>" + "\n" * 10_000,
        '<invoke name="' + "a" * 10_000,
        "<function=" + "a" * 10_000,
        "[TOOL_CALLS]" + "a" * 10_000,
        "[TOOL_CALLS][" + " " * 10_000,
        "\nTOOL_CALL:" + " " * 10_000,
        "\nAction: ping " + " " * 10_000,
    ],
    ids=lambda text: repr(text[:32]),
)
def test_with_a_marker_at_most_the_limit_is_buffered(text: str) -> None:

    parser = Parser(TOOLS, limits=Limits(held=4 * KIB))
    shown: list[str] = []
    for piece in pieces(text, 7):
        shown += [event.text for event in parser.feed(piece) if isinstance(event, TextDelta)]
        assert parser.held <= 4 * KIB + 16
    shown += [event.text for event in parser.close() if isinstance(event, TextDelta)]
    assert "".join(shown) == text


def test_reasoning_opens_only_at_the_start() -> None:
    assert outcome(["Hello <think>x</think>"], TOOLS) == [Text("Hello <think>x</think>")]


def test_a_second_reasoning_span_may_follow_the_first() -> None:

    for size in (0, 1):
        found = outcome(pieces("<think>a</think>\n<thinking>b</thinking>Hi <think>", size), TOOLS)
        assert found == [Reasoning("ab"), Text("Hi <think>")]


def test_reasoning_streams_immediately() -> None:

    parser = Parser(TOOLS)
    assert parser.feed("<think>") == []
    for piece in ("Some ", "{tho", "ught", "} <to", "ol_call>"):
        assert parser.feed(piece) == [ReasoningDelta(piece)]
    assert parser.feed("</thi") == []
    assert parser.held == 5
    assert parser.feed("ng>x") == [ReasoningDelta("</thing>x")]
