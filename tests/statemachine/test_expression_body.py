"""Call expressions, Python's and those with marked strings: parsed as a unit and through a parser."""

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_oracle import is_prefix
from support.statemachine_fold import Discard, FoldedCall, Item, Text, calls_of, fold, pieces, text_of
from support.strategies import cut
from support.sweeps import each

from statemachine import Parser
from statemachine.bodies import expression
from statemachine.events import ArgumentsDelta, Event
from statemachine.formats import Expression, Format, Variant
from statemachine.formats.compile import tables_of
from statemachine.machine.machine import Limits, Machine, MachineOptions
from statemachine.machine.states import violations
from statemachine.stream.buffer import EndOfText, Grammar, Mismatch, Overflow
from statemachine.stream.emitter import Emitter, Ledger, Sink
from statemachine.stream.reader import Reader
from statemachine.tools import Toolset

PYTHON = Expression()
LIST = Expression(array=True)
MARKED = Expression(brackets="{}", assign=":", quote='<|"|>')
QUICK = settings(derandomize=True, max_examples=60, deadline=None, database=None)
SIZES = (0, 1, 2, 3, 5)
TOOL = {
    "type": "object",
    "properties": {
        "a": {},
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["s"],
}


class Unit:
    """Reads one expression and then text; `</x>` closes the call."""

    def __init__(
        self,
        body: Expression,
        tools: Any = None,
        *,
        marked: bool = True,
        unknown: str = "text",
        limits: Limits | None = None,
        ledger: bool = False,
    ) -> None:
        form = Format("unit", (Variant(body),), ("<x>",), "</x>")
        sink = Sink.TEXT if unknown == "text" else Sink.DISCARD
        options = MachineOptions(unknown=sink, discard_malformed=False, fence_calls=False, calls_in_reasoning=False)
        self.reader = Reader(Emitter(Ledger() if ledger else None))
        tables = tables_of((), (), (form,), ())
        toolset = Toolset({"f": {}, "g": {}} if tools is None else tools)
        self.machine = Machine(self.reader, tables, toolset, options, limits or Limits())
        self._grammar = self._read(form, body, marked=marked)
        next(self._grammar)

    def _read(self, form: Format, body: Expression, *, marked: bool) -> Grammar:
        """Read the calls, then pass through the rest as text."""
        yield
        machine, reader = self.machine, self.reader
        machine.open_candidate()
        machine.set_marked(marked)
        try:
            yield from expression.read(machine, form, body)
        except (Mismatch, Overflow):
            if machine.candidate.committed:
                machine.emit_end()
                reader.emitter.set_discard_reason("malformed")
                reader.sink = Sink.DISCARD
            else:
                reader.release(Sink.TEXT)
        except EndOfText:
            if machine.candidate.committed:
                missing = machine.candidate.arguments.missing()
                reader.emitter.put(Sink.SYNTAX, missing or "")
                machine.candidate.arguments.complete = missing is not None
                machine.emit_end()
            else:
                reader.release(Sink.TEXT)
        else:
            reader.sink = Sink.TEXT
        reader.target = False
        while True:
            reader.take(len(reader.text) - reader.at)
            if reader.ended:
                return
            yield

    def feed(self, text: str) -> list[Event]:
        """Return the events of a piece."""
        self.reader.append(text)
        self.reader.disarm()
        next(self._grammar, None)
        self.reader.compact()
        return self.reader.emitter.collect()

    def end(self) -> list[Event]:
        """End the input."""
        self.reader.ended = True
        return self.feed("")


def run(given_pieces: Iterable[str], body: Expression, *args: Any, **options: Any) -> list[Item]:
    """Return the outcome of the pieces fed."""
    unit = Unit(body, *args, **options)
    events: list[Event] = []
    for piece in given_pieces:
        events += unit.feed(piece)
    items = fold([*events, *unit.end()])
    for item in items:
        if isinstance(item, FoldedCall):
            assert is_prefix(item.arguments), item.arguments
            if item.complete:
                assert isinstance(json.loads(item.arguments), dict)
    return items


def outcome(text: str, body: Expression, *args: Any, **options: Any) -> list[Item]:
    """Return the outcome, and check that it is the same at every piece size."""
    found = run(pieces(text, 0), body, *args, **options)
    for size in SIZES:
        assert run(pieces(text, size), body, *args, **options) == found, f"in pieces of {size}"
    return found


def call(arguments: str, *repairs: str, name: str = "f", complete: bool = True) -> FoldedCall:
    """Return an expected call."""
    return FoldedCall(name, None, "unit", arguments, complete, repairs)


VALUES = [
    # as written in Python, as JSON
    ("1", "1"),
    ("-1.50", "-1.50"),
    ("1e5", "1e5"),
    ("1_000", "1000"),
    ("1_0.5_0e1_0", "10.50e10"),
    (".5", "0.5"),
    ("5.", "5"),
    ("+1", "1"),
    ("0x1F", "31"),
    ("-0b11", "-3"),
    ("0o17", "15"),
    ("True", "true"),
    ("False", "false"),
    ("None", "null"),
    ("true", "true"),
    ("null", "null"),
    ("'x'", '"x"'),
    ('"x"', '"x"'),
    ("''", '""'),
    ('""', '""'),
    ("'say \"hi\"'", '"say \\"hi\\""'),
    ('"it\'s"', '"it\'s"'),
    (r"'it\'s'", '"it\'s"'),
    (r"'\n\t\r\\\a\b\f\v\"'", r'"\n\t\r\\\u0007\b\f\u000b\""'),
    (r"'\0\12\101\1018'", r'"\u0000\nAA8"'),
    (r"'\x41\xe9\u00e9\U0001F600'", '"Aé\\u00e9😀"'),
    (r"'\d\8\x4\u12\U0011FFFF1\N{DASH}\é'", r'"\\d\\8\\x4\\u12\\U0011FFFF1\\N{DASH}\\é"'),
    ("'a\\\nb\\\r\nc'", '"abc"'),
    ("'''a'b''c\n\"d\"'''", '"a\'b\'\'c\\n\\"d\\""'),
    ('"""a"b\\"""""c"""', None),
    ('"""a"b\\""""', '"a\\"b\\""'),
    ("''''''", '""'),
    (r"r'\d\'x'", r'"\\d\\\'x"'.replace("\\'", "'")),
    (r"R'''\d'\n'''", r'"\\d\'\\n"'.replace("\\'", "'")),
    ("b'x'", '"x"'),
    ("rb'x'", '"x"'),
    ("f'{x}'", '"{x}"'),
    ("u'é'", '"é"'),
    ("[1, 'a', None]", '[1, "a", null]'),
    ("(1, 2)", "[1, 2]"),
    ("{1, 2}", "[1, 2]"),
    ("{'a', 'b'}", '["a", "b"]'),
    ("{'a': {(1, 2),}}", '{"a": [[1, 2]]}'),
    ("{'{', ':'}", '["{", ":"]'),
    ("(1,)", "[1]"),
    ("()", "[]"),
    ("{}", "{}"),
    ("[[], {}, ()]", "[[], {}, []]"),
    ("[1, 2,\n]", "[1, 2\n]"),
    ("{'a': {'b': (1, [True])}, \"c\": 'd',}", '{"a": {"b": [1, [true]]}, "c": "d"}'),
]


@each(("written", "strict"), [value for value in VALUES if value[1]], ids=repr)
def test_python_literals_are_not_repairs(written: str, strict: str) -> None:
    assert outcome(f"f(a={written})", PYTHON) == [call(f'{{"a": {strict}}}')]
    nested = outcome(f"f(a=[{written},{{'b':{written}}}], c = {written} )", PYTHON)
    assert nested == [call(f'{{"a": [{strict},{{"b":{strict}}}], "c": {strict}}}')]


MENDED = [
    ("celsius", '"celsius"', "bare_word"),
    ("Unit.CELSIUS", '"Unit.CELSIUS"', "bare_word"),
    ("'a\nb\nc'", '"a\\nb\\nc"', "control_character"),
    ("{a: 1}", '{"a": 1}', "unquoted_key"),
    ("{1: 'x'}", '{"1": "x"}', "unquoted_key"),
    ("[1 # one\n]", "[1 \n]", "comment"),
    ("NaN", "null", "python_literal"),
]


@pytest.mark.parametrize(("written", "strict", "mend"), MENDED, ids=repr)
def test_values_that_python_lacks_are_repaired_and_recorded(written: str, strict: str, mend: str) -> None:
    assert outcome(f"f(a={written})", PYTHON) == [call(f'{{"a": {strict}}}', mend)]


@pytest.mark.parametrize(
    ("text", "emitted"),
    [
        ("f(a=g(1))", "{"),
        ("f(a=1+2)", '{"a": 1'),
        ("f(a='x' 'y')", '{"a": "x"'),
        ("f(a=[x for x in y])", '{"a": ["x"'),
        ("f(a=1j)", '{"a": 1'),
        ("f(a=1 b=2)", '{"a": 1'),
        ("f(a==1)", ""),
        ("f(**x)", ""),
        ("f(1)", ""),
        ("f(a=[1)", '{"a": [1'),
    ],
)
def test_an_unparsable_argument_ends_the_call_as_incomplete(text: str, emitted: str) -> None:
    first, rest = outcome(text, PYTHON)
    assert isinstance(first, FoldedCall)
    assert not first.complete
    assert first.arguments.startswith(emitted)
    assert isinstance(rest, Discard)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f()", "{}"),
        ("f( )", "{}"),
        ("f(\n  a = 1 ,\n  b\t=\t'x' ,\n)", '{"a": 1, "b": "x"}'),
        ("f (a=1)", '{"a": 1}'),
        ("f(_a1=1)", '{"_a1": 1}'),
    ],
)
def test_whitespace_and_commas(text: str, arguments: str) -> None:
    assert outcome(text, PYTHON) == [call(arguments)]


def test_positional_arguments_fill_the_remaining_parameters() -> None:
    tools = {"f": TOOL}
    assert outcome("f([1], 's')", PYTHON, tools) == [call('{"a": [1], "s": "s"}', "positional_argument")]
    assert outcome("f(1, n=2, 'x')", PYTHON, tools)[0] == call('{"a": 1, "n": 2, "s": "x"}', "positional_argument")
    (first, *_) = outcome("f(1, 'x', 3, [4], 5)", PYTHON, tools)
    assert isinstance(first, FoldedCall)
    assert not first.complete


def test_a_single_dict_may_hold_all_arguments() -> None:
    tools = {"f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}
    assert outcome("f({'s': 'x', 'n': '3'})", PYTHON, tools) == [
        call('{"s": "x", "n": 3}', "json_arguments", "typed_value")
    ]
    assert outcome('f({"b": 1})', PYTHON) == [call('{"b": 1}', "json_arguments")]
    assert outcome("f({'x': 1})", PYTHON, {"f": TOOL}) == [call('{"a": {"x": 1}}', "positional_argument")]


def test_malformed_keys() -> None:
    assert outcome("f(a=1, a=2)", PYTHON) == [call('{"a": 1, "a": 2}', "repeated_key")]
    assert outcome("f(a: 1)", PYTHON) == [call('{"a": 1}', "key_separator")]
    assert outcome("f(a=1</x>", PYTHON) == [call('{"a": 1}', "missing_closer"), Text("</x>")]
    assert outcome("[f(a=1]", LIST) == [call('{"a": 1}', "missing_closer")]


def test_values_are_typed_by_the_schema() -> None:
    tools = {"f": TOOL}
    assert outcome("f(s=12, n='7')", PYTHON, tools) == [call('{"s": "12", "n": 7}', "typed_value")]
    assert outcome("f(s=True, l=['1', 2])", PYTHON, tools) == [call('{"s": "true", "l": [1, 2]}', "typed_value")]
    assert outcome("f(s={'x': (1, 'y')})", PYTHON, tools) == [
        call('{"s": "{\\"x\\": [1, \\"y\\"]}"}', "typed_value"),
    ]
    assert outcome("f(l='[1, \"2\"]')", PYTHON, tools) == [call('{"l": [1, 2]}', "typed_value")]
    assert outcome("f(l='''[1,\n 2]''')", PYTHON, tools) == [call('{"l": [1,\n 2]}', "typed_value")]
    assert outcome("f(n='seven', s=r'x')", PYTHON, tools) == [call('{"n": "seven", "s": "x"}')]
    assert outcome("f(s=celsius)", PYTHON, tools) == [call('{"s": "celsius"}', "bare_word")]
    first = outcome("f(n=celsius)", PYTHON, tools)[0]
    assert isinstance(first, FoldedCall)
    assert not first.complete


def test_consecutive_calls() -> None:
    two = [call('{"a": 1}'), call("{}", name="g")]
    for text in ("f(a=1)\ng()", "f(a=1)g()", "f(a=1); g()", "f(a=1)\r\n\r\n  g()"):
        assert outcome(text, PYTHON) == two
    for rest in ("", "\n```", "\n</x>", "\nand more", " g", " g (x)", "\n\n", ";;", "\n1(2)"):
        assert outcome("f(a=1)\ng()" + rest, PYTHON) == two + ([Text(rest)] if rest else [])


def test_a_list_of_calls() -> None:
    two = [call('{"a": [1]}'), call("{}", name="g")]
    for text in ("[f(a=[1]), g()]", "[ f(a=[1]) , g(), ]", "[f(a=[1]),g()\n]"):
        assert outcome(text, LIST) == two
    assert outcome("[f(a=[1]), g()</x>", LIST) == [*two, Text("</x>")]
    assert outcome("[f(a=[1]), g()] and", LIST) == [*two, Text(" and")]
    assert outcome("[f(a=1), g(", LIST) == [call('{"a": 1}'), call("", name="g", complete=False)]
    assert outcome("[f(a=1), g", LIST)[0] == call('{"a": 1}')


@pytest.mark.parametrize("text", ["[]", "[1, 2]", "[f]", "[f, g]", "[", "[ ", "[f", "[(f)]", "f()"])
def test_a_list_without_calls_is_text(text: str) -> None:
    assert outcome(text, LIST) == [Text(text)]
    assert outcome(text, LIST, marked=False) == [Text(text)]


def test_an_unknown_call_is_entirely_text() -> None:
    text = "nope(a='<x>f(b=1)</x>', 2, b=g)"
    assert outcome(text, PYTHON) == [Text(text)]
    assert outcome(text + "\nf(a=1)", PYTHON) == [Text(text + "\n"), call('{"a": 1}')]
    assert outcome(f"[f(), {text}, g()]", LIST) == [call("{}"), Text(text), call("{}", name="g")]
    assert outcome(f"[{text}, g()]", LIST) == [Text(f"[{text}, "), call("{}", name="g")]
    assert outcome(text, PYTHON, unknown="discard") == [Discard(text, "unknown")]


def test_a_bare_list_is_text_if_its_first_name_is_unknown() -> None:
    assert outcome("[nope(a=1), f()]", LIST, marked=False) == [Text("[nope(a=1), f()]")]
    assert outcome("[f (see above)]", LIST, marked=False) == [Text("[f (see above)]")]
    assert outcome("[f(), nope(a=1), g()]", LIST, marked=False) == [
        call("{}"),
        Text("nope(a=1)"),
        call("{}", name="g"),
    ]


MARKED_VALUES = [
    ('<|"|>x<|"|>', '"x"'),
    ('<|"|><|"|>', '"x"'.replace("x", "")),
    ('<|"|>say "hi"\\n\n<|x<|"\'<|"|>', '"say \\"hi\\"\\\\n\\n<|x<|\\"\'"'),
    ("42", "42"),
    ("true", "true"),
    ("null", "null"),
    ("None", "null"),
    ('[<|"|>a<|"|>,1,[]]', '["a",1,[]]'),
    ('{k:<|"|>v<|"|>,n:{},my key:1}', '{"k":"v","n":{},"my key":1}'),
    ('{<|"|>k:"<|"|>:1}', '{"k:\\"":1}'),
]


@pytest.mark.parametrize(("written", "strict"), MARKED_VALUES, ids=repr)
def test_values_with_marked_strings(written: str, strict: str) -> None:
    text = f"f{{k:{written},other-key.x : {written} }}"
    assert outcome(text + "</x>", MARKED) == [call(f'{{"k": {strict}, "other-key.x": {strict}}}'), Text("</x>")]


@pytest.mark.parametrize(
    ("text", "arguments", "mends"),
    [
        ("f{}", "{}", []),
        ("f{k:celsius}", '{"k": "celsius"}', ["bare_word"]),
        ('f{k:"x\\n",}', '{"k": "x\\n"}', ["plain_quotes"]),
        ('f{"k":1}', '{"k": 1}', ["plain_quotes"]),
        ("f{k:[1,]}", '{"k": [1]}', ["trailing_comma"]),
        ("f{k:1</x>", '{"k": 1}', ["missing_closer"]),
    ],
)
def test_repairs_with_marked_strings(text: str, arguments: str, mends: list[str]) -> None:
    assert outcome(text, MARKED)[0] == call(arguments, *mends)


def test_marked_values_are_typed_by_the_schema() -> None:
    text = 'f{n:<|"|>7<|"|>,s:12,l:<|"|>[1,"2"]<|"|>}'
    assert outcome(text, MARKED, {"f": TOOL}) == [call('{"n": 7, "s": "12", "l": [1,2]}', "typed_value")]
    assert outcome('f{n:<|"|>7 <|x<|"|>}', MARKED, {"f": TOOL}) == [call('{"n": "7 <|x"}')]


@pytest.mark.parametrize(
    ("text", "arguments", "complete"),
    [
        ("f(", "", False),
        ("f(a", "", False),
        ("f(a=", "", False),
        ("f(a=1", '{"a": 1}', True),
        ("f(a=1,", '{"a": 1}', True),
        ("f(a=1, b", '{"a": 1}', True),
        ("f(a=(1, 2", '{"a": [1, 2]}', True),
        ("f(a='x", '{"a": "x', False),
        ("f(a='x\\", '{"a": "x', False),
        ("f(a='''x''", '{"a": "x', False),
        ("f(a=tru", '{"a": ', False),
        ("f(s=12", '{"s": "12"}', True),
        ("f(s={'x': [1", '{"s": "{\\"x\\": [1]}"}', True),
        ("f(s=[", '{"s": "[', False),
        ("f(n='1", '{"n": "1', False),
    ],
)
def test_truncated_expressions(text: str, arguments: str, complete: bool) -> None:
    (found,) = outcome(text, PYTHON, {"f": TOOL})
    assert isinstance(found, FoldedCall)
    assert (found.arguments, found.complete) == (arguments, complete)


def values(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str], *, tuples: bool) -> st.SearchStrategy[Any]:
    """Generate values for leaves."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(keys, inner, max_size=3),
            *([st.tuples(inner), st.tuples(inner, inner)] if tuples else []),
        ),
        max_leaves=8,
    )


CHARS = st.one_of(
    st.characters(exclude_categories=("Cs",)), st.sampled_from("\"'\\\n\r\t\x00\x07\x7f {}[](),=:<|>é😀0ux")
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(CHARS, max_size=12),
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON, with numbers equal to the last bit."""
    if isinstance(one, float) and isinstance(other, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@QUICK
@given(st.data(), st.dictionaries(NAMES, values(LEAVES, st.text(CHARS, max_size=6), tuples=True), max_size=4))
def test_the_repr_of_any_value_reads_back(data: st.DataObject, arguments: dict[str, Any]) -> None:
    text = f"f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    for given_pieces in ([text], list(text), data.draw(cut(text))):
        (found,) = run(given_pieces, PYTHON)
        assert isinstance(found, FoldedCall)
        assert found.complete
        assert found.repairs == ()
        assert same(json.loads(found.arguments), json.loads(json.dumps(arguments)))


def marked(value: Any) -> str:
    """Write a value with marked strings."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{marked(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(marked, value)) + "]"
        case _:
            return json.dumps(value)


@QUICK
@given(
    st.data(),
    st.dictionaries(
        NAMES,
        values(
            LEAVES.filter(lambda leaf: not isinstance(leaf, str) or '<|"|>' not in leaf + "<|"), NAMES, tuples=False
        ),
        max_size=4,
    ),
)
def test_values_with_marked_strings_read_back(data: st.DataObject, arguments: dict[str, Any]) -> None:
    text = "f" + marked(arguments)
    for given_pieces in ([text], list(text), data.draw(cut(text))):
        (found,) = run(given_pieces, MARKED)
        assert isinstance(found, FoldedCall)
        assert found.complete
        assert found.repairs == ()
        assert same(json.loads(found.arguments), arguments)


SOUP = st.lists(
    st.sampled_from(
        [
            *"()[]{},:=;\"'\\#+-._0159 \n<",
            "f(",
            "a=",
            "g()",
            "nope(",
            "True",
            "x",
            "'''",
            '"""',
            "\\x41",
            "\\u00",
            "r'",
            "0x",
            "1_0",
            "s=",
            "n='",
            "l=[",
            '<|"|>',
            "<|",
            "</x>",
        ]
    ),
    max_size=12,
).map("".join)


@QUICK
@given(st.data(), SOUP, st.sampled_from([(PYTHON, "f("), (LIST, "[f("), (MARKED, "f{"), (PYTHON, ""), (LIST, "[")]))
def test_the_outcome_does_not_depend_on_the_split(data: st.DataObject, soup: str, body: Any) -> None:
    text = body[1] + soup
    tools = {"f": TOOL, "g": None}
    found = run([text], body[0], tools)
    assert run(list(text), body[0], tools) == found
    assert run(data.draw(cut(text)), body[0], tools) == found


@pytest.mark.parametrize("body", [PYTHON, MARKED], ids=["python", "marked"])
def test_each_piece_of_a_string_is_emitted_by_its_feed(body: Expression) -> None:
    unit = Unit(body, {"f": {"properties": {"a": {"type": "string"}}}})
    opener = "f(a='x" if body is PYTHON else 'f{a:<|"|>'
    unit.feed(opener)
    for piece in ("some", " text", "\n\nmore {", '"quoted"', " é", "\\\\"):
        said = "".join(event.text for event in unit.feed(piece) if isinstance(event, ArgumentsDelta))
        assert said == json.dumps(piece if body is MARKED else piece.replace("\\\\", "\\"), ensure_ascii=False)[1:-1]


@pytest.mark.parametrize(("opener", "deep"), [("f(a=", "["), ("f(a=", "("), ("f(a=", "{'a':")])
def test_depth_is_bounded(opener: str, deep: str) -> None:
    found = outcome(opener + deep * 200, PYTHON)[0]
    assert isinstance(found, FoldedCall)
    assert not found.complete
    assert found.arguments.count("[") + found.arguments.count("{") == 128


def test_names_keys_and_arguments_are_bounded() -> None:
    assert outcome("n" * 300 + "(a=1)", PYTHON) == [Text("n" * 300 + "(a=1)")]
    for text, body in (("f(" + "k" * 300 + "=1)", PYTHON), ('f{<|"|>' + "k" * 3000 + '<|"|>:1}', MARKED)):
        found = outcome(text, body)[0]
        assert isinstance(found, FoldedCall)
        assert not found.complete
    for text in (r"f(a='a\n\"\u00e9\xe9\U0001F600\\\\\\\\", 'f(s={"a": "\\n\\n\\n\\n\\n\\n"})'):
        for room in range(6, 40):
            outcome(text * 2, PYTHON, {"f": TOOL}, limits=Limits(arguments=room))


def test_the_ledger_tiles_the_text() -> None:
    text = "[f(a='x\\n', b=(1, 2), s=12), g()]"
    for size in SIZES:
        unit = Unit(LIST, {"f": TOOL, "g": None}, ledger=True)
        for piece in pieces(text, size):
            unit.feed(piece)
        unit.end()
        ledger = unit.reader.emitter.ledger
        assert ledger is not None
        assert sum(span.end - span.start for span in ledger.spans()) == len(text)


# ---- through a parser


OFFERED = {"f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}, "g": None}
F, G = '{"a": "x", "n": 1}', "{}"
THROUGH = [
    ("pythonic", "[f(a='x', n=1), g()]", ""),
    ("pythonic", "<|python_start|>[f(a='x', n=1), g()]<|python_end|>", ""),
    ("pythonic", "[f(a='x', n='1'), g()]\nmore", "more"),
    ("lfm2", 'so: <|tool_call_start|>[f(a="x", n=1), g()]<|tool_call_end|> more', "so:  more"),
    ("lfm2", '<|tool_call_start|>[{"name": "f", "arguments": ' + F + '}, {"name": "g"}]<|tool_call_end|>', ""),
    ("olmo3", "<function_calls>f(a='x', n=1)\ng()</function_calls> more", " more"),
    ("olmo3", "<function_calls>\r\nf(a='x', n=1)\r\ng()\r\n</function_calls>", ""),
    (
        "gemma4",
        '<|tool_call>call:f{a:<|"|>x<|"|>,n:1}<tool_call|><|tool_call>call:g{}<tool_call|>',
        "",
    ),
    (
        "functiongemma",
        "<start_function_call>call:f{a:<escape>x<escape>,n:1}<end_function_call><start_function_call>call:g{}",
        "",
    ),
    ("tool_code", "Now:\n```tool_code\nf(a='x', n=1)\ng()\n```\nmore", "Now:more"),
]


def through(given_pieces: Iterable[str], **options: Any) -> list[Item]:
    """Return the outcome of a reply."""
    parser = Parser(OFFERED, **options)
    events = [event for piece in given_pieces for event in parser.feed(piece)] + parser.close()
    assert violations(events) == []
    return fold(events)


@pytest.mark.parametrize(("form", "text", "visible"), THROUGH, ids=repr)
def test_formats_with_expressions(form: str, text: str, visible: str) -> None:
    for options in ({"formats": [form]}, {}):
        found = through([text], **options)
        for size in SIZES:
            assert through(pieces(text, size), **options) == found
        assert [(item.name, item.format, item.arguments, item.complete) for item in calls_of(found)] == [
            ("f", form, F, True),
            ("g", form, G, True),
        ]
        assert text_of(found).replace("\n", "") == visible


@pytest.mark.parametrize(
    "text",
    [
        "[f] is a reference",
        "[nope(a=1)]",
        "so [f(a='x')]",
        "```tool_code\nx = f(a='x')\n```",
        "```python\nf(a='x')\n```",
        "```tool_code\nnope('<tool_call>')\n```",
        '<|tool_call>call:nope{a:<|"|><|tool_call>call:f{}<tool_call|><|"|>}<tool_call|>',
        "<function_calls>nope(a='<function_calls>f()</function_calls>')</function_calls>",
    ],
)
def test_text_without_a_call_stays_text(text: str) -> None:
    for size in SIZES:
        assert through(pieces(text, size)) == [Text(text)]


def test_markers_in_strings_are_data() -> None:
    text = '<|tool_call>call:f{a:<|"|>}<tool_call|><|tool_call>call:g{}<|"|>}<tool_call|>'
    (found,) = through([text])
    assert isinstance(found, FoldedCall)
    assert json.loads(found.arguments) == {"a": "}<tool_call|><|tool_call>call:g{}"}
    text = "[f(a='<tool_call>)]', n=2)]"
    (found,) = through([text])
    assert isinstance(found, FoldedCall)
    assert json.loads(found.arguments) == {"a": "<tool_call>)]", "n": 2}
