"""The JSON transducer passes strict JSON through unchanged; it repairs the rest as it streams and names each repair."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_oracle import Json, is_prefix
from support.statemachine_fold import fold, pieces
from support.strategies import TEXTS, cut, json_texts, json_values, objects
from support.sweeps import each

from statemachine import Limits, Parser, parse
from statemachine.events import ArgumentsDelta, CallEnd
from statemachine.json.nested import encoded_object
from statemachine.json.state import JsonState
from statemachine.json.text import value
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch
from statemachine.stream.emitter import Sink
from statemachine.stream.reader import Reader

CONTAINERS = st.one_of(objects(), st.lists(json_values(), max_size=4))
QUICK = settings(derandomize=True, max_examples=80, deadline=None, database=None)


class Transducer:
    """Reads one JSON value with `json/text.py` alone."""

    def __init__(self, *, depth: int = 128, outer: bool = False) -> None:
        self.reader = Reader()
        self.state = JsonState(depth=depth)
        self.outer = outer
        """Whether the value is encoded in a JSON string."""
        self.done = self.rejected = False
        self._grammar = self._read()
        next(self._grammar)

    @property
    def rest(self) -> str:
        """Return the text after the value."""
        return self.reader.text[self.reader.at :]

    def _read(self) -> Grammar:
        """Read the value and leave the rest."""
        reader = self.reader
        reader.sink, reader.target, reader.remaining = Sink.SYNTAX, True, 1 << 40
        yield
        try:
            yield from reader.peek()
            yield from encoded_object(reader, self.state, "") if self.outer else value(reader, self.state)
            self.done = True
        except Mismatch:
            self.rejected = True
        except EndOfText:
            pass
        while not reader.ended:
            yield

    def feed(self, text: str) -> list[Any]:
        """Return the events of a piece."""
        self.reader.append(text)
        self.reader.disarm()
        next(self._grammar, None)
        self.reader.compact()
        return self.reader.emitter.collect()

    def end(self) -> list[Any]:
        """End the input."""
        self.reader.ended = True
        return self.feed("")


def read(given_pieces: Iterable[str], *, end: bool = True, **options: Any) -> tuple[str, tuple[str, ...], Transducer]:
    """Return the strict JSON, the names of the repairs, and the transducer."""
    reader = Transducer(**options)
    out: list[str] = []
    judge = Json()
    for piece in given_pieces:
        for event in reader.feed(piece):
            assert isinstance(event, ArgumentsDelta)
            out.append(event.text)
            assert judge.feed(event.text), f"{''.join(out)!r} is not a prefix of JSON"
    if end:
        out += [event.text for event in reader.end() if isinstance(event, ArgumentsDelta)]
    return "".join(out), tuple(reader.state.repairs), reader


MENDS = [
    # given, strict, repairs in order
    ("{'a': 'b'}", '{"a": "b"}', ["single_quotes"]),
    ("{'a': 'it's'}", '{"a": "it\'s"}', ["single_quotes"]),
    ("{'a': 'x', 'b': 'say \"y\"'}", '{"a": "x", "b": "say \\"y\\""}', ["single_quotes"]),
    ("['', 'a' , 'b'\n]", '["", "a" , "b"\n]', ["single_quotes"]),
    ("{“a”: “b”}", '{"a": "b"}', ["smart_quotes"]),
    ("{“a”: “he said “b” too”}", None, ["smart_quotes"]),
    ("{‘a’: ‘it’s’}", '{"a": "it’s"}', ["smart_quotes"]),
    ("[1, 2, ]", "[1, 2 ]", ["trailing_comma"]),
    ('{"a": 1,}', '{"a": 1}', ["trailing_comma"]),
    ('{"a": [1,],\n}', '{"a": [1]\n}', ["trailing_comma"]),
    ("{a: 1, b_2: 2, $c: 3, d-e: 4}", '{"a": 1, "b_2": 2, "$c": 3, "d-e": 4}', ["unquoted_key"]),
    ("[True, False, None]", "[true, false, null]", ["python_literal"]),
    ("[undefined, NaN, Infinity, -Infinity]", "[null, null, null, null]", ["python_literal"]),
    ('{"a": 1 // one\n}', '{"a": 1 \n}', ["comment"]),
    ('{"a": /* one */ 1}', '{"a":  1}', ["comment"]),
    ('{"a": 1, /* two */ "b": 2}', '{"a": 1,  "b": 2}', ["comment"]),
    ("[1, # one\n2]", "[1, \n2]", ["comment"]),
    ("[/***/1]", "[1]", ["comment"]),
    ("[1, /* last */]", "[1 ]", ["comment", "trailing_comma"]),
    ('{"a": "b\nc\td\re"}', '{"a": "b\\nc\\td\\re"}', ["control_character"]),
    ('["\x00\x1f\x0b"]', '["\\u0000\\u001f\\u000b"]', ["control_character"]),
    (r'["\d \u12 \uZ \U \ \é"]', r'["\\d \\u12 \\uZ \\U \\ \\é"]', ["escape"]),
    (r'["\x41\x4"]', r'["\u0041\\x4"]', ["escape"]),
    (r"""["it\'s"]""", '["it\'s"]', ["escape"]),
    ('["a\\\nb"]', '["a\\\\\\nb"]', ["escape", "control_character"]),
    ("[.5, -.5, +1, 007, -007, 1., 1.e5, +.5]", "[0.5, -0.5, 1, 7, -7, 1, 1e5, 0.5]", ["number"]),
    ("[1e, 1e+, 2E-]", "[1, 1, 2]", ["number"]),
    ('{"a": [1, {"b": 2}', None, []),
    ('{"a": [1, 2}', '{"a": [1, 2]}', ["missing_closer"]),
    ('[{"a": [1]]', '[{"a": [1]}]', ["missing_closer"]),
]


@pytest.mark.parametrize(
    ("text", "strict", "names"), [mend for mend in MENDS if mend[1]], ids=lambda part: repr(part)[:40]
)
def test_each_repair_at_every_split(text: str, strict: str, names: list[str]) -> None:
    json.loads(strict)
    for end in range(len(text) + 1):
        out, repairs, reader = read([text[:end], text[end:]])
        assert (out, repairs, reader.done) == (strict, tuple(names), True), f"cut at {end}"
    assert read(text)[0] == strict


@each("text", [mend[0] for mend in MENDS], ids=repr)
def test_output_is_always_a_prefix_of_json(text: str) -> None:
    for end in range(len(text) + 1):
        read(text[:end], end=False)


@QUICK
@given(st.data(), json_texts(CONTAINERS))
def test_strict_json_passes_through_byte_for_byte(data: st.DataObject, text: str) -> None:
    for given_pieces in ([text], list(text), data.draw(cut(text))):
        out, repairs, reader = read(given_pieces)
        assert out == text
        assert repairs == ()
        assert reader.done


@pytest.mark.long
@settings(max_examples=4_000, deadline=None)
@given(st.data(), json_texts(CONTAINERS))
def test_long_strict_json_passes_through_byte_for_byte(data: st.DataObject, text: str) -> None:
    assert read(data.draw(cut(text)))[:2] == (text, ())


LOOSE = st.lists(
    st.sampled_from(
        [
            *"{}[]:,\"'“”‘’\\/#*\n\t -+.0129eE",
            "true",
            "None",
            "NaN",
            "a",
            "key",
            "//",
            "/*",
            "*/",
            "\\u00e9",
            "\\n",
            "\\x4",
            '"a": ',
            "'b'",
            "é",
        ]
    ),
    max_size=14,
).map("".join)


@QUICK
@given(st.data(), LOOSE.map(lambda rest: "{" + rest))
def test_any_text_yields_a_prefix_of_json_independent_of_the_split(data: st.DataObject, text: str) -> None:
    out, repairs, reader = read([text])
    assert is_prefix(out)
    for given_pieces in (list(text), data.draw(cut(text))):
        again, names, other = read(given_pieces)
        assert (again, names, other.done, other.rejected) == (out, repairs, reader.done, reader.rejected)


@QUICK
@given(LOOSE.map(lambda rest: "{" + rest))
def test_repairing_repaired_json_changes_nothing(text: str) -> None:
    out, _, reader = read([text])
    if reader.done:
        json.loads(out)
        assert read([out])[:2] == (out, ())


@QUICK
@given(LOOSE.map(lambda rest: "{" + rest))
def test_the_missing_closers_complete_the_json(text: str) -> None:
    out, _, reader = read([text], end=False)
    rest = reader.state.missing()
    held = len(reader.rest)
    if not reader.rejected and not reader.done and rest is not None and not held:
        json.loads(out + rest)


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-0",
        "0.0",
        "1.50",
        "1E5",
        "1e+05",
        "-1.0e-10",
        "12345678901234567890123",
        "0.1000000000000000055511",
        "1e400",
    ],
)
def test_numbers_keep_their_spelling(number: str) -> None:
    text = f'[{number}, {{"a": {number}}}]'
    for size in (0, 1, 2, 3):
        assert read(pieces(text, size))[:2] == (text, ())


def test_digits_are_emitted_as_they_arrive() -> None:
    reader = Transducer()
    reader.feed("[")
    assert [event.text for piece in ("12", "34", "56") for event in reader.feed(piece)] == ["12", "34", "56"]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("[1.", 1),
        ("[1e", 1),
        ("[1e+", 2),
        ("[-", 1),
        ("[1,", 1),
        ("[1, ", 2),
        ('["a\\', 1),
        ('["\\u00e', 5),
        ("[tru", 3),
    ],
)
def test_undecided_characters_are_buffered(text: str, waits: int) -> None:
    """A sign, a decimal point, an exponent, a comma, an incomplete escape, a literal."""
    reader = Transducer()
    out = "".join(event.text for char in text for event in reader.feed(char))
    assert len(text) - len(out) == waits


def test_depth_is_bounded_by_the_limit_not_by_the_stack() -> None:
    for depth in (1, 8, 128, 5000):
        text = "[" * depth + "]" * depth
        assert read(pieces(text, 7), depth=depth)[2].done
        out, _, reader = read(pieces("[" + text + "]", 7), depth=depth)
        assert reader.rejected
        assert out == "[" * depth


def test_bare_words_and_keys_are_bounded() -> None:
    assert read(["{" + "a" * 100 + ": 1}"])[2].rejected
    assert read(["[" + "a" * 10_000])[2].rejected


@pytest.mark.parametrize(
    "text",
    ["{,}", '{"a" 1}', '{"a": }', "{]", "[}", '{"a": 1 "b": 2}', "[1 2]", "{1: 2}", "[a]", "[--1]", "[+-1]", "[1_000]"],
)
def test_json_that_no_repair_covers_is_rejected(text: str) -> None:
    out, _, reader = read([text])
    assert reader.rejected
    assert is_prefix(out)


# ---- JSON encoded in a JSON string


@QUICK
@given(st.data(), json_texts(objects()), st.booleans())
def test_an_object_in_a_string_reads_back(data: st.DataObject, inner: str, ascii_only: bool) -> None:
    outer = json.dumps(inner, ensure_ascii=ascii_only)
    for given_pieces in ([outer], list(outer), data.draw(cut(outer))):
        out, repairs, reader = read(given_pieces, outer=True)
        assert reader.done
        assert repairs == ()
        assert json.loads(out) == json.loads(inner)


@QUICK
@given(st.data(), st.dictionaries(TEXTS, st.text('😀é\ud83d\ude00\ud800\\"a', max_size=6), max_size=3))
def test_surrogate_pairs_in_a_nested_string_may_be_split_anywhere(data: st.DataObject, inner: dict[str, str]) -> None:
    """Escaped once or twice, paired or lone: the value is the same."""
    for twice in (json.dumps(json.dumps(inner)), json.dumps(json.dumps(inner, ensure_ascii=False))):
        whole = read([twice], outer=True)[0]
        assert json.loads(whole) == json.loads(json.loads(twice))
        assert read(twice, outer=True)[0] == whole
        assert read(data.draw(cut(twice)), outer=True)[0] == whole


@pytest.mark.parametrize(
    "text",
    [r'"{\"a\": \"\ud83d\ude00 \\ud83d\\ude00 \ud83d\"}"', r'"{\"\\u00e9\": \"\\\\\\\"\\n\"}"', '"{\'a\': \\"b\\",}"'],
)
def test_a_nested_string_at_every_split(text: str) -> None:
    whole = read([text], outer=True)
    assert whole[2].done
    for end in range(len(text)):
        found = read([text[:end], text[end:]], outer=True)
        assert found[:2] == whole[:2], f"cut at {end}"


def test_each_piece_of_a_nested_string_is_emitted_immediately() -> None:
    reader = Transducer(outer=True)
    reader.feed('"{\\"a\\": \\"')
    for piece in ("some", " tex", "t é{"):
        assert [event.text for event in reader.feed(piece)] == [piece]


# ---- the same inside a call


def through_a_call(arguments: str, reason: str | None = None, size: int = 0) -> tuple[str, CallEnd]:
    """Return the arguments of a call, and its end."""
    parser = Parser({"f": {}})
    events = [
        event
        for piece in pieces(f'<tool_call>{{"name": "f", "arguments": {arguments}', size)
        for event in parser.feed(piece)
    ]
    events += parser.close(reason)
    end = next(event for event in events if isinstance(event, CallEnd))
    return "".join(event.text for event in events if isinstance(event, ArgumentsDelta)), end


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('{"a": 1', "}"),
        ('{"a": [1, 2', "]}"),
        ('{"a": {"b": true', "}}"),
        ('{"a": "x"', "}"),
        ('{"a": []', "}"),
        ('{"a": 12', "}"),
        ('{"a": 1.5', "}"),
        ('{"a": null', "}"),
    ],
)
def test_missing_closers_are_added_if_the_model_stopped(text: str, rest: str) -> None:
    for size in (0, 1):
        assert through_a_call(text, None, size) == (text + rest, CallEnd(0, complete=True, repairs=("missing_closer",)))
        assert through_a_call(text, "stop", size) == (
            text + rest,
            CallEnd(0, complete=True, repairs=("missing_closer",)),
        )
        assert through_a_call(text, "length", size) == (text, CallEnd(0, complete=False, repairs=()))


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ('{"a": "x', '{"a": "x'),
        ('{"a', '{"a'),
        ('{"a":', '{"a":'),
        ('{"a": tru', '{"a": '),
        ('{"a": -', '{"a": '),
        ('{"a": "x\\', '{"a": "x'),
        ('{"a": "\\ud83d', '{"a": "\\ud83d'),
    ],
)
def test_a_value_cut_in_the_middle_is_never_completed(text: str, out: str) -> None:
    for size in (0, 1):
        for reason in (None, "stop", "length"):
            found, end = through_a_call(text, reason, size)
            assert found == out
            assert not end.complete
            assert is_prefix(found)


# ---- values of the wrong type for the tool's schema


SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "late": {"type": "string"},
        "i": {"type": "integer"},
        "n": {"type": ["number", "null"]},
        "b": {"type": "boolean"},
        "si": {"type": ["string", "integer"]},
        "e": {"enum": ["a", "1"]},
        "l": {"type": "array", "items": {"type": "integer"}},
        "ls": {"type": "array", "items": {"type": "string"}},
        "o": {"$ref": "#/$defs/o"},
        "m": {"type": "object", "additionalProperties": {"type": "number"}},
        "any": {},
    },
    "required": ["s"],
    "$defs": {
        "o": {
            "type": "object",
            "properties": {"i": {"type": "integer"}, "s": {"type": "string"}, "o": {"$ref": "#/$defs/o"}},
            "required": ["s"],
        }
    },
}


def typed(members: str, size: int = 0, **options: Any) -> tuple[str, CallEnd, list[Any]]:
    """Return the arguments of a call of a tool with this schema, its end, and the other events."""
    parser = Parser({"f": SCHEMA}, formats=["tool_call"], **options)
    text = f'<tool_call>{{"name": "f", "arguments": {{{members}}}}}</tool_call>'
    events = [event for piece in pieces(text, size) for event in parser.feed(piece)]
    events += parser.close()
    end = next(event for event in events if isinstance(event, CallEnd))
    out = "".join(event.text for event in events if isinstance(event, ArgumentsDelta))
    assert is_prefix(out)
    return out, end, fold(events)[1:]


TYPED = [
    # given, emitted
    ('"i": "12"', '"i": 12'),
    ('"i": " -7 "', '"i": -7'),
    ('"i": "3.0"', '"i": 3.0'),
    ('"n": "1.5e3"', '"n": 1.5e3'),
    ('"n": "null"', '"n": null'),
    ('"n": "None"', '"n": null'),
    ('"b": "true"', '"b": true'),
    ('"b": "False"', '"b": false'),
    ('"s": 12', '"s": "12"'),
    ('"s": -1.50e1', '"s": "-1.50e1"'),
    ('"s": true', '"s": "true"'),
    ('"s": null', '"s": "null"'),
    ('"opt": 5', '"opt": "5"'),
    ('"e": 1', '"e": "1"'),
    ('"s": {"a": "b\\n\\"c"}', '"s": "{\\"a\\": \\"b\\\\n\\\\\\"c\\"}"'),
    ('"s": [1,\n 2]', '"s": "[1,\\n 2]"'),
    ('"s": []', '"s": "[]"'),
    ('"l": "[1, 2]"', '"l": [1, 2]'),
    ('"l": " [\\"1\\", 2] "', '"l":  [1, 2] '),
    ('"l": ["1", 2, "x"]', '"l": [1, 2, "x"]'),
    ('"ls": [1, "2", true, null, {"a": 1}]', '"ls": ["1", "2", "true", null, "{\\"a\\": 1}"]'),
    ('"o": "{\\"i\\": \\"1\\", \\"s\\": 2}"', '"o": {"i": 1, "s": "2"}'),
    ('"o": {"o": {"o": {"i": "5", "x": "5", "s": 5}}}', '"o": {"o": {"o": {"i": 5, "x": "5", "s": "5"}}}'),
    ('"m": {"x": "1", "y": 2}', '"m": {"x": 1, "y": 2}'),
    ("'i': '12', s: 12", '"i": 12, "s": "12"'),
]


@pytest.mark.parametrize(("members", "strict"), TYPED, ids=repr)
def test_values_of_the_wrong_type_are_repaired(members: str, strict: str) -> None:
    for size in (0, 1, 2, 3, 5):
        out, end, _ = typed(f'{members}, "any": [1, "1"]', size)
        assert out == f'{{{strict}, "any": [1, "1"]}}'
        assert end.complete
        assert "typed_value" in end.repairs


@pytest.mark.parametrize(
    "members",
    [
        '"s": "12", "i": 12, "n": null, "n": 1.5, "b": false, "l": [1], "ls": ["1"], "m": {"x": 1}',
        '"i": 3.0',
        '"i": "3.5"',
        '"i": "1e5"',
        '"i": "12 apples"',
        '"i": "012"',
        '"i": ""',
        '"i": " "',
        '"i": "-"',
        '"i": "null"',
        '"i": "\\u0031"',
        '"i": true',
        '"i": [1]',
        '"b": 1',
        '"b": "yes"',
        '"b": "truex"',
        '"l": 1',
        '"l": "{}"',
        '"l": "1"',
        '"o": "x"',
        '"opt": null, "late": null',
        '"si": true',
        '"any": "1"',
        '"other": "1"',
        '"o": {"x": "1"}',
        f'"i": "{"1" * 60}"',
    ],
)
def test_values_that_fit_or_cannot_be_repaired_are_unchanged(members: str) -> None:
    for size in (0, 1, 2, 3, 5):
        out, end, _ = typed(members, size)
        assert out == f"{{{members}}}"
        assert end.complete
        assert end.repairs == ()


def test_a_string_that_cannot_be_converted_streams_from_its_first_character() -> None:
    parser = Parser({"f": SCHEMA})
    parser.feed('<tool_call>{"name": "f", "arguments": {"i": ')
    said = [parser.feed(piece) for piece in ('"', "12", " ", "apples", " and", '"', ', "l":')]
    assert [[event.text for event in events] for events in said] == [
        *([], [], [], ['"12 apples'], [" and"], []),  # the quote is buffered until it is known to be the last one
        ['", "l":'],
    ]
    said = [parser.feed(piece) for piece in ('"[', "1", "2, ", "3", ']"')]
    assert [[event.text for event in events] for events in said] == [["["], ["1"], ["2"], [", 3"], ["]"]]
    parser.feed(', "s": ')
    said = [parser.feed(piece) for piece in ('{"', 'a": "b', ' c"', "}", ', "n"', ":")]
    assert [[event.text for event in events] for events in said] == [
        ['"{\\"'],
        ['a\\": \\"b'],
        [" c"],
        *([], []),
        ['\\"}", "n":'],
    ]


def test_keys_stream_although_they_are_looked_up() -> None:
    parser = Parser({"f": SCHEMA})
    parser.feed('<tool_call>{"name": "f", "arguments": {')
    for piece in ('"', "a lo", "ng k", "ey", '" ', ":"):
        assert [event.text for event in parser.feed(piece)] == [piece]


def test_a_key_waits_while_it_may_be_repaired() -> None:
    parser = Parser({"f": SCHEMA})
    parser.feed('<tool_call>{"name": "f", "arguments": {')
    said = [parser.feed(piece) for piece in ('"', "la", "T", "e", '" ', ":", ' "x')]
    assert [[event.text for event in events] for events in said] == [
        ['"'],
        ["la"],
        *([], [], []),
        ['te" :'],
        [' "x'],
    ]


@pytest.mark.parametrize("text", ["[1, 2", "[1} x", "[1] x", "[x]", "["])
def test_a_string_of_invalid_json_ends_the_call_as_incomplete(text: str) -> None:
    first = typed(f'"l": "{text}", "i": 1')
    assert not first[1].complete
    for size in (1, 2, 3, 5):
        assert typed(f'"l": "{text}", "i": 1', size) == first


@pytest.mark.parametrize(
    ("members", "out", "complete"),
    [
        ('"s": 12', '{"s": "12"}', True),
        ('"s": 1.', '{"s": "1"}', True),
        ('"s": -', '{"s": "', False),
        ('"s": {"a": [1', '{"s": "{\\"a\\": [1]}"}', True),
        ('"s": {"a": "b', '{"s": "{\\"a\\": \\"b', False),
        ('"i": "12', '{"i": "12', False),
        ('"i": "', '{"i": "', False),
        ('"l": "[1', '{"l": [1', False),
        ('"s": tru', '{"s": "', False),
    ],
)
def test_text_ending_inside_a_repaired_value(members: str, out: str, complete: bool) -> None:
    for size in (0, 1, 2, 3):
        parser = Parser({"f": SCHEMA})
        text = f'<tool_call>{{"name": "f", "arguments": {{{members}'
        events = [event for piece in pieces(text, size) for event in parser.feed(piece)] + parser.close()
        assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == out
        assert [event.complete for event in events if isinstance(event, CallEnd)] == [complete]


def test_arguments_in_a_string_are_typed_but_not_arguments_before_the_name() -> None:
    tools = {"f": SCHEMA}
    text, (call,) = parse('<tool_call>{"name": "f", "arguments": "{\\"i\\": \\"1\\"}"}</tool_call>', tools)
    assert (text, call.arguments) == ("", '{"i": 1}')
    _, (call,) = parse('<tool_call>{"arguments": {"i": "1"}, "name": "f"}</tool_call>', tools)
    assert call.arguments == '{"i": "1"}'
    _, (call,) = parse('<tool_call>{"name": "f", "arguments": {"i": "1"}}</tool_call>', ["f"])
    assert call.arguments == '{"i": "1"}'


MEMBER_VALUES = st.one_of(
    json_texts(json_values()),
    st.sampled_from(
        ["12", "-1", "1.5", "true", "null", "None", " 7", "[1]", '["1"]', '{"s": 1}', "{", "[1", "x", ""]
    ).map(json.dumps),
)


@QUICK
@given(
    st.data(),
    st.lists(st.tuples(st.sampled_from([*SCHEMA["properties"], "other"]), MEMBER_VALUES), max_size=4),
    st.sampled_from([1 << 20, 20, 40]),
)
def test_type_repairs_do_not_depend_on_the_split(
    data: st.DataObject, members: list[tuple[str, str]], room: int
) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{{", ".join(f"{json.dumps(k)}: {v}" for k, v in members)}}}}}'
    found = []
    for given_pieces in ([text], list(text), data.draw(cut(text))):
        parser = Parser({"f": SCHEMA}, limits=Limits(arguments=room))
        events = [event for piece in given_pieces for event in parser.feed(piece)] + parser.close()
        out = "".join(event.text for event in events if isinstance(event, ArgumentsDelta))
        assert is_prefix(out)
        if any(isinstance(event, CallEnd) and event.complete for event in events):
            json.loads(out)
        found.append(fold(events))
    assert found[1:] == found[:1] * 2
