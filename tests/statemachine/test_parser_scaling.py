"""The cost of a piece does not depend on the length of the reply so far.

Measured as a ratio, so that a busy machine does not matter: the same workload at 1 KB and at 8 KB (64 KB under `-m
long`), in interleaved runs, taking the smallest time of each per piece. Quadratic cost would multiply it by 8. A factor
of two is allowed, because other processes evict the longer text from the cache first.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import law
from support.statemachine_fold import pieces
from support.sweeps import each

from statemachine import FORMATS, OPT_IN, Call, Parser, write

KIB = 1024
SMALL, LARGE = KIB, 8 * KIB
ALLOWED = 2
ROUNDS = 30
"""How often a suspicious measurement is repeated."""
TOOLS: dict[str, Any] = {
    "write_file": {"properties": {"content": {"type": "string"}, "list": {"type": "array"}, "any": {}}},
    "ping": {},
}
LINE = 'A line of "text" with <b>tags</b>, {braces} and \\ slashes.\n'


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Measure the parser without the check of its events."""
    law.relax()
    yield
    law.enforce()


def filled(text: str, size: int) -> str:
    """Return at least `size` characters of a repeated text."""
    return text * (size // len(text) + 1)


def call(form: str) -> Callable[[int], str]:
    """Return a call with a single string of the given size."""
    return lambda size: write([Call("write_file", json.dumps({"content": filled(LINE, size)}))], form)


def around(before: str, unit: str, after: str = "") -> Callable[[int], str]:
    """Return a repeated unit between two texts."""
    return lambda size: before + filled(unit, size) + after


WORKLOADS: dict[str, Callable[[int], str]] = {
    **{f"a call in {form}": call(form) for form in sorted(FORMATS)},
    "prose": around("", "The weather is fine today. "),
    "markdown": around("", "## Title\n\n- item `code` **bold**\n\n```py\nx = {1: 2}\n```\n\n"),
    "code": around("", "if (a < b) { return [x{1}]; } // <c>\n"),
    "html": around("", '<div class="a"><p>text</p></div>\n'),
    "newlines": around("a", "\n", "b"),
    "carriage returns": around("a", "\r\n", "b"),
    "blank lines": around("a", "\n   ", "b"),
    "line ends behind a call": around('<tool_call>{"name": "ping", "arguments": {}}</tool_call>', "\n"),
    "line ends behind text and a call": around('a <tool_call>{"name": "ping", "arguments": {}}</tool_call>', "\r\n"),
    "block quotes": around("a", "\n > <tool_call>"),
    "a long line of a block quote": around("a\n> ", "<tool_call> `"),
    "calls without their last brackets": around(
        "", '<tool_call>{"name": "ping", "arguments": {"a": {"b": 1</tool_call>\n'
    ),
    "braces": around("", "{"),
    "braces and quotes": around("", '{"'),
    "braces both ways": around("", "{}"),
    "nested objects": around('{"a":', '{"a":'),
    "brackets": around("", "["),
    "backticks": around("", "`"),
    "backticks on lines": around("", "\n`"),
    "newlines after a backtick": around("x `a ", "\n"),
    "carriage returns after a backtick": around("x `a ", "\r\n"),
    "digits after a backtick": around("x `a\n", "1"),
    "dashes after a backtick": around("x `a\n", "-"),
    "blanks in a line below a heading after a backtick": around("x `a\n= ", " "),
    "a line below a heading after a backtick": around("x `a\n", "="),
    "underscores after a backtick": around("x `a\n", "_"),
    "backticks after a backtick": around("x `a\n", "`"),
    "dashes and blanks after a backtick": around("x `a\n", "- "),
    "tildes": around("", "~"),
    "tildes after text": around("a\n", "~"),
    "an info string after tildes": around("~~~", "a"),
    "an info string after text and backticks": around("a: ```", "a"),
    "colons": around("a", ":"),
    "blanks after a colon": around("a:", " "),
    "backticks after a colon": around("a: ", "`"),
    "backticks in a list item": around("- ", "`"),
    "markers of list items": around("a\n", "- "),
    "blanks in an indented fence": around("- a\n    ```\n    x\n", " "),
    "lines of an indented fence": around("- a\n    ```\n    x\n", "\n    `"),
    "fences": around("", "```\nx\n```\n"),
    "an endless fence": around("```python\n", "x = {1}\n"),
    "angle brackets": around("", "<"),
    "openers": around("", "<tool_call>"),
    "openers of several formats": around("", "<function_calls><invoke <function=[TOOL_CALLS]\n@\nTOOL_CALL: "),
    "reasoning openers": around("", "<think>"),
    "reasoning": around("<think>", "Let me see. <b> "),
    "labels": around("", "TOOL_CALL: \n"),
    "an answer": around('{"answer": [', '{"a": "b"},'),
    "an answer of one string": around('{"answer": "', "text } "),
    "unknown calls": around("", '<tool_call>{"name": "nope", "arguments": {"a": 1}}</tool_call>\n'),
    "an unknown call": around(
        '<tool_call>{"name": "nope", "arguments": {"a": "', "x } <tool_call> ", '"}}</tool_call>'
    ),
    "an unknown call with parameters": around("<function=nope>\n<parameter=a>\n", "x </parameter> y\n", "</function>"),
    "broken calls": around("", '<tool_call>{"name": "ping", "arguments": {"a" oops}}</tool_call>\n'),
    "a broken call": around('<tool_call>{"name": "ping", "arguments": {"a" ', "oops </tool "),
    "calls": around("", '<tool_call>{"name": "ping", "arguments": {}}</tool_call>\n'),
    "an array of calls": around("[TOOL_CALLS][", '{"name": "ping", "arguments": {}}, ', '{"name": "ping"}]'),
    "single quotes": around("<tool_call>{'name': 'ping', 'arguments': {'a': '", "it's ' ", "'}}</tool_call>"),
    "smart quotes": around("<tool_call>{“name”: “ping”, “arguments”: {“a”: “", "text ", "”}}</tool_call>"),
    "raw newlines in a string": around('<tool_call>{"name": "ping", "arguments": {"a": "', "a\n\t", '"}}</tool_call>'),
    "bad escapes": around('<tool_call>{"name": "ping", "arguments": {"a": "', "\\d\\", '"}}</tool_call>'),
    "a long number": around('<tool_call>{"name": "ping", "arguments": {"a": ', "1", "}}</tool_call>"),
    "many members": around('<tool_call>{"name": "ping", "arguments": {', '"a": 1, ', '"b": 2}}</tool_call>'),
    "comments": around('<tool_call>{"name": "ping", "arguments": {', "/* c */ // d\n", "}}</tool_call>"),
    "a long comment": around('<tool_call>{"name": "ping", "arguments": {/*', " * ", "*/}}</tool_call>"),
    "commas": around('<tool_call>{"name": "ping", "arguments": {"a": 1,', " ,", "}}</tool_call>"),
    "white space in arguments": around('<tool_call>{"name": "ping", "arguments": {', " \n", "}}</tool_call>"),
    "white space after a comma": around(
        '<tool_call>{"name": "ping", "arguments": {"a": 1,', " ", '"b": 2}}</tool_call>'
    ),
    "encoded twice": around(
        '<tool_call>{"name": "ping", "arguments": "\\"{\\\\\\"a\\\\\\": \\\\\\"', "text ", '\\\\\\"}\\""}}'
    ),
    "arguments before the name": around('<tool_call>{"arguments": {"a": "', "text ", '"}, "name": "ping"}</tool_call>'),
    "a value of open type": around("<function=write_file>\n<parameter=any>\n[", "1, ", "2]\n</parameter>\n</function>"),
    "a value that is an array": around(
        "<function=write_file>\n<parameter=list>\n[", '"a", ', "2]\n</parameter>\n</function>"
    ),
    "closers in a value": around(
        "<function=write_file>\n<parameter=content>\n", "</parameter> x\n", "</parameter>\n</function>"
    ),
    "keys in a value": around(
        "<function=write_file>\n<parameter=content>\n", "<parameter=zzz> x\n", "</parameter>\n</function>"
    ),
    "call closers in a value": around(
        "<function=write_file>\n<parameter=content>\n", "</function> x\n", "</parameter>\n</function>"
    ),
    "many parameters": around("<function=ping>\n", "<parameter=a>\n1\n</parameter>\n", "</function>"),
    "attributes": around('<invoke name="ping" a="', "text ", '"/>'),
    "closing brackets": around("", "]"),
    "openers of special tokens": around("", "<|tool_call><｜DSML｜<|channel>]<]minimax[>[<|start|>"),
    "headers": around("", "<|start|>assistant<|channel|>commentary to="),
    "a long header": around("<|channel|>", "analysis "),
    "messages": around("", "<|start|>assistant<|channel|>final<|message|>Hello.\n<|end|>"),
    "reasoning of a message": around("<|channel|>analysis<|message|>", "Let me see. <|en\n"),
    "spans of text": around("", "<|START_RESPONSE|>Hi.<|END_RESPONSE|>"),
    "closers of special tokens": around("", "<channel|><|END_THINKING|>"),
    "objects in one block": around(
        "<tool_calls>", '{"name": "ping", "arguments": {}}\n', '{"name": "ping"}</tool_calls>'
    ),
    "a list of expressions": around("<|tool_call_start|>[", "ping(a=1), ", "ping()]<|tool_call_end|>"),
    "expressions on lines": around("<function_calls>", "ping(a=1)\n", "ping()</function_calls>"),
    "a Python string": around("<function_calls>ping(a='", "it\\'s \\x41 \\n ", "')</function_calls>"),
    "a Python string in three quotes": around('<function_calls>ping(a="""', '"" x\n', '""")</function_calls>'),
    "a Python list": around("<function_calls>ping(a=[", "1, {'b': (2, None)}, ", "3])</function_calls>"),
    "an unknown expression": around("<function_calls>nope(a=[", "1, ", "3])</function_calls>"),
    "a marked string": around('<|tool_call>call:ping{a:<|"|>', "text } <| ", '<|"|>}<tool_call|>'),
    "marked keys": around("<|tool_call>call:ping{", "a:1,", "b:2}<tool_call|>"),
    "elements": around(
        ']<]minimax[>[<invoke name="ping">]<]minimax[>[<a>',
        "]<]minimax[>[<item>x]<]minimax[>[</item>",
        "]<]minimax[>[</a>]<]minimax[>[</invoke>",
    ),
    "nested elements": around(']<]minimax[>[<invoke name="ping">', "]<]minimax[>[<a>"),
    "character data": around('<function name="ping"><param name="a"><![CDATA[', "x ]]> y ", "]]></param></function>"),
    "argument keys in a value": around(
        "<tool_call>ping\n<arg_key>a</arg_key>\n<arg_value>",
        "x <arg_key>b</arg_key> </arg_value> y\n",
        "</arg_value></tool_call>",
    ),
    "numbers in strings": around(
        '<tool_call>{"name": "write_file", "arguments": {"list": "[', "1, ", '2]"}}</tool_call>'
    ),
    "an object where a string is expected": around(
        '<tool_call>{"name": "write_file", "arguments": {"content": {"a": [', '"b\\n", ', '""]}}}</tool_call>'
    ),
}
FORMATS_OF = {f"a call in {form}": tuple(FORMATS) for form in OPT_IN}
"""Non-default sets of formats and tools to parse with."""


def parse_time(text: str, size: int, formats: tuple[str, ...] | None = None) -> float:
    """Return seconds per piece."""
    parser = Parser(TOOLS, formats=formats)
    cut = list(pieces(text, size))
    feed = parser.feed
    before = time.thread_time()
    for piece in cut:
        feed(piece)
    parser.close()
    return (time.thread_time() - before) / len(cut)


def growth(small: Callable[[], float], large: Callable[[], float], allowed: float = ALLOWED) -> float:
    """Return how much more the large workload costs per unit: the ratio of the minima of interleaved runs.

    A good ratio ends the measurement. A bad one is measured again, which removes noise but not quadratic cost.
    """
    least_small = least_large = float("inf")
    gc.disable()  # no collection during a run: with the objects of the whole suite it would cost more than the workload
    try:
        for _ in range(ROUNDS):
            least_small = min(least_small, *(small() for _ in range(4)))
            least_large = min(least_large, large())
            if least_large < allowed * least_small:
                break
    finally:
        gc.enable()
    return least_large / least_small


sizes = pytest.mark.parametrize("size", [LARGE, pytest.param(8 * LARGE, marks=pytest.mark.long)])


CALLS = [name for name in WORKLOADS if name.startswith("a call in ")]
"""Half of these are fed in small pieces, the other half in one piece."""


@sizes
@each("name", [name for name in WORKLOADS if name not in CALLS[::2]])
def test_the_cost_of_a_piece_is_independent_of_the_reply_length(name: str, size: int) -> None:
    small, large, formats = WORKLOADS[name](SMALL), WORKLOADS[name](size), FORMATS_OF.get(name)
    ratio = growth(lambda: parse_time(small, 4, formats), lambda: parse_time(large, 4, formats))
    assert ratio < ALLOWED, f"a piece costs {ratio:.1f} times as much"


@sizes
@each("name", [name for name in WORKLOADS if name not in CALLS[1::2]])
def test_the_cost_per_character_of_one_large_piece_is_constant(name: str, size: int) -> None:
    """Feed everything in one piece: the cost per character is bounded at any length."""
    small, large, formats = WORKLOADS[name](2 * KIB), WORKLOADS[name](size), FORMATS_OF.get(name)

    def per_character(text: str) -> float:
        return parse_time(text, 0, formats) / len(text)

    ratio = growth(lambda: per_character(small), lambda: per_character(large), 2)
    assert ratio < 2, f"a character costs {ratio:.1f} times as much"


@each("form", sorted(FORMATS))
def test_the_cost_of_writing_per_character_is_constant(form: str) -> None:
    def timed(size: int) -> Callable[[], float]:
        arguments = json.dumps({"content": filled(LINE, size)})

        def run() -> float:
            before = time.thread_time()
            write([Call("write_file", arguments)], form)
            return (time.thread_time() - before) / size

        return run

    # a large text costs less per character, because the fixed costs per call are amortized
    assert growth(timed(4 * KIB), timed(64 * KIB)) < ALLOWED


@each("form", sorted(FORMATS))
def test_the_cost_of_writing_per_call_is_constant(form: str) -> None:
    def timed(count: int) -> Callable[[], float]:
        calls = [Call("ping", '{"a": 1, "b": "x"}')] * count

        def run() -> float:
            before = time.thread_time()
            write(calls, form)
            return (time.thread_time() - before) / count

        return run

    assert growth(timed(50), timed(500)) < ALLOWED


def test_the_number_of_formats_does_not_affect_plain_text() -> None:
    """With all formats, plain text costs at most 1.2 times as much as with one."""
    text = filled("The weather is fine today. ", 8 * KIB)

    def run(formats: tuple[str, ...] | None) -> float:
        return parse_time(text, 4, formats)

    assert growth(lambda: run(("tool_call",)), lambda: run(None), 1.2) < 1.2


@pytest.mark.parametrize("tools", [1, 200])
def test_the_number_of_tools_does_not_affect_text(tools: int) -> None:
    text = filled("The weather is fine today. ", 8 * KIB)

    def run(count: int) -> float:
        parser = Parser({f"tool_{number}": {} for number in range(count)})
        before = time.thread_time()
        for piece in pieces(text, 4):
            parser.feed(piece)
        return time.thread_time() - before

    assert growth(lambda: run(1), lambda: run(tools)) < ALLOWED
