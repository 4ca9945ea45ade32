"""The JSON transducer: strict JSON passes through untouched, the rest is mended as it streams, and each mend is named."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_oracle import Json, is_prefix
from statemachine_fold import pieces
from strategies import TEXTS, cut, json_texts, json_values, objects

from statemachine import Parser
from statemachine.events import ArgumentsDelta, CallEnd
from statemachine.json_nested import doubled
from statemachine.json_text import value
from statemachine.notes import Notes
from statemachine.reader import Ended, Grammar, Mismatch, Reader, Sink

CONTAINERS = st.one_of(objects(), st.lists(json_values(), max_size=4))
QUICK = settings(derandomize=True, max_examples=200, deadline=None, database=None)


class Transducer(Reader):
    """One JSON value, read by `json_text` alone."""

    __slots__ = ("done", "notes", "outer", "rejected")

    def __init__(self, *, depth: int = 128, outer: bool = False) -> None:
        self.notes = Notes(depth=depth)
        self.outer = outer
        """The value stands in a JSON string."""
        self.done = self.rejected = False
        super().__init__(ledger=False)

    def grammar(self) -> Grammar:
        """The value; what follows is left."""
        self.sink, self.target, self.room = Sink.SYNTAX, True, 1 << 40
        yield
        try:
            yield from self.peek()
            yield from doubled(self, self.notes, "") if self.outer else value(self, self.notes)
            self.done = True
        except Mismatch:
            self.rejected = True
        except Ended:
            pass
        while not self.ended:
            yield

    def end(self) -> list[Any]:
        """There is no more."""
        self.ended = True
        self.scan = self.run = None
        return self._advance()


def read(given_pieces: Iterable[str], *, end: bool = True, **options: Any) -> tuple[str, tuple[str, ...], Transducer]:
    """The strict JSON, the names of the mends, and the transducer."""
    reader = Transducer(**options)
    out: list[str] = []
    judge = Json()
    for piece in given_pieces:
        for event in reader.feed(piece):
            assert isinstance(event, ArgumentsDelta)
            out.append(event.text)
            assert judge.feed(event.text), f"{''.join(out)!r} is no prefix of JSON"
    if end:
        out += [event.text for event in reader.end() if isinstance(event, ArgumentsDelta)]
    return "".join(out), tuple(reader.notes.repairs), reader


MENDS = [
    # given, strict, the mends in order
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
def test_each_mend_at_every_split(text: str, strict: str, names: list[str]) -> None:
    json.loads(strict)
    for end in range(len(text) + 1):
        out, repairs, reader = read([text[:end], text[end:]])
        assert (out, repairs, reader.done) == (strict, tuple(names), True), f"cut at {end}"
    assert read(text)[0] == strict


@pytest.mark.parametrize("text", [mend[0] for mend in MENDS], ids=repr)
def test_what_goes_out_is_always_a_prefix_of_json(text: str) -> None:
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
def test_strict_json_passes_through_byte_for_byte_at_length(data: st.DataObject, text: str) -> None:
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
def test_any_text_makes_a_prefix_of_json_and_the_same_one_at_every_cut(data: st.DataObject, text: str) -> None:
    out, repairs, reader = read([text])
    assert is_prefix(out)
    for given_pieces in (list(text), data.draw(cut(text))):
        again, names, other = read(given_pieces)
        assert (again, names, other.done, other.rejected) == (out, repairs, reader.done, reader.rejected)


@QUICK
@given(LOOSE.map(lambda rest: "{" + rest))
def test_mending_what_was_mended_changes_nothing(text: str) -> None:
    out, _, reader = read([text])
    if reader.done:
        json.loads(out)
        assert read([out])[:2] == (out, ())


@QUICK
@given(LOOSE.map(lambda rest: "{" + rest))
def test_the_missing_closers_make_it_whole(text: str) -> None:
    out, _, reader = read([text], end=False)
    rest = reader.notes.missing()
    held = reader.held
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


def test_digits_flow() -> None:
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
def test_what_waits(text: str, waits: int) -> None:
    """A sign, a point, an exponent, a comma, half an escape, a word."""
    reader = Transducer()
    out = "".join(event.text for char in text for event in reader.feed(char))
    assert len(text) - len(out) == waits


def test_depth_is_bounded_by_a_number_not_by_python() -> None:
    for depth in (1, 8, 128, 5000):
        text = "[" * depth + "]" * depth
        assert read(pieces(text, 7), depth=depth)[2].done
        out, _, reader = read(pieces("[" + text + "]", 7), depth=depth)
        assert reader.rejected
        assert out == "[" * depth


def test_a_word_and_a_key_are_bounded() -> None:
    assert read(["{" + "a" * 100 + ": 1}"])[2].rejected
    assert read(["[" + "a" * 10_000])[2].rejected


@pytest.mark.parametrize(
    "text",
    ["{,}", '{"a" 1}', '{"a": }', "{]", "[}", '{"a": 1 "b": 2}', "[1 2]", "{1: 2}", "[a]", "[--1]", "[+-1]", "[1_000]"],
)
def test_what_no_mend_explains_is_refused(text: str) -> None:
    out, _, reader = read([text])
    assert reader.rejected
    assert is_prefix(out)


# ---- JSON inside of a JSON string


@QUICK
@given(st.data(), json_texts(objects()), st.booleans())
def test_an_object_in_a_string_comes_out_as_it_was(data: st.DataObject, inner: str, ascii_only: bool) -> None:
    outer = json.dumps(inner, ensure_ascii=ascii_only)
    for given_pieces in ([outer], list(outer), data.draw(cut(outer))):
        out, repairs, reader = read(given_pieces, outer=True)
        assert reader.done
        assert repairs == ()
        assert json.loads(out) == json.loads(inner)


@QUICK
@given(st.data(), st.dictionaries(TEXTS, st.text('😀é\ud83d\ude00\ud800\\"a', max_size=6), max_size=3))
def test_surrogate_pairs_in_a_string_in_a_string_are_cut_anywhere(data: st.DataObject, inner: dict[str, str]) -> None:
    """Escaped once, twice, whole or lone: what comes out is the same value."""
    for twice in (json.dumps(json.dumps(inner)), json.dumps(json.dumps(inner, ensure_ascii=False))):
        whole = read([twice], outer=True)[0]
        assert json.loads(whole) == json.loads(json.loads(twice))
        assert read(twice, outer=True)[0] == whole
        assert read(data.draw(cut(twice)), outer=True)[0] == whole


@pytest.mark.parametrize(
    "text",
    [r'"{\"a\": \"\ud83d\ude00 \\ud83d\\ude00 \ud83d\"}"', r'"{\"\\u00e9\": \"\\\\\\\"\\n\"}"', '"{\'a\': \\"b\\",}"'],
)
def test_a_string_in_a_string_at_every_split(text: str) -> None:
    whole = read([text], outer=True)
    assert whole[2].done
    for end in range(len(text)):
        found = read([text[:end], text[end:]], outer=True)
        assert found[:2] == whole[:2], f"cut at {end}"


def test_each_piece_of_a_string_in_a_string_leaves_at_once() -> None:
    reader = Transducer(outer=True)
    reader.feed('"{\\"a\\": \\"')
    for piece in ("some", " tex", "t é{"):
        assert [event.text for event in reader.feed(piece)] == [piece]


# ---- the same through a call


def through_a_call(arguments: str, reason: str | None = None, size: int = 0) -> tuple[str, CallEnd]:
    """The arguments of a call, and its end."""
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
def test_missing_closers_are_added_when_the_model_stopped_by_itself(text: str, rest: str) -> None:
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
def test_what_is_cut_in_the_middle_is_never_completed(text: str, out: str) -> None:
    for size in (0, 1):
        for reason in (None, "stop", "length"):
            found, end = through_a_call(text, reason, size)
            assert found == out
            assert not end.complete
            assert is_prefix(found)
