"""Marked parameters in any format: keys and their ends, marked types, quotes, elements, the end of a value."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_oracle import is_object
from support.statemachine_fold import Discard, FoldedCall, Item, Text, calls_of, cuts, fold, outcome, pieces
from support.strategies import cut

from statemachine import FORMATS, ArgumentsDelta, Call, Limits, Parser, write
from statemachine.bodies.parameter_markers import tables
from statemachine.formats import Parameters
from statemachine.formats.markers import spell

QUICK = settings(derandomize=True, max_examples=30, deadline=None, database=None)
SIZES = (0, 1, 2, 3, 5, 7)
OBJECT = {
    "type": "object",
    "properties": {
        "x": {"type": "string"},
        "n": {"type": "integer"},
        "l": {"type": "array", "items": {"type": "integer"}},
        "o": {"$ref": "#/properties/o"},
    },
}
TOOLS: dict[str, Any] = {
    "f": {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "o": OBJECT,
            "l": {"type": "array", "items": {"type": "string"}},
            "any": {},
            "so": {"type": ["string", "object"]},
        }
    },
    "g": {},
    "same": {"properties": {"same": {"type": "string"}, "other": {"type": "string"}}},
}
M = "]<]minimax[>["


def read(text: str, form: str, **options: Any) -> list[Item]:
    """Return the outcome of a text, the same however it is split, with and without the ledger; no text is lost."""
    whole = outcome([text], TOOLS, formats=[form], **options)
    for size in SIZES:
        assert outcome(pieces(text, size), TOOLS, formats=[form], **options) == whole, f"in pieces of {size}"
    for place in range(len(text)):
        assert outcome(cuts(text, [place]), TOOLS, formats=[form], **options) == whole, f"cut at {place}"
    parser = Parser(TOOLS, formats=[form], ledger=True, **options)
    assert fold([*parser.feed(text), *parser.close()]) == whole
    assert [span.start for span in parser.ledger] == [0, *(span.end for span in parser.ledger[:-1])]
    assert parser.ledger[-1].end == len(text)
    return whole


def arguments(text: str, form: str, *repairs: str, **options: Any) -> Any:
    """Return the arguments of the only call of a text, which is complete and was repaired as named."""
    (call,) = read(text, form, **options)
    assert isinstance(call, FoldedCall)
    assert (call.complete, call.repairs) == (True, repairs)
    assert is_object(call.arguments)
    return json.loads(call.arguments)


def elements(inner: str) -> str:
    """Return a call of `f` in the format whose values may consist of elements; write its tags with `<` and `/`."""
    return f'<invoke name="f">{inner}</invoke>'.replace("<", M + "<")


# ---- keys


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", "<function=g><parameter=location with spaces>\nx\n</parameter></function>"),
        ("qwen3_coder", "<function=g><parameter='location with spaces'>x</parameter></function>"),
        ("glm45", "<tool_call>g\n<arg_key> location with spaces </arg_key>\n<arg_value>x</arg_value></tool_call>"),
        ("glm45", "<tool_call:a>g<arg_key:b>location with spaces</arg_key:c><arg_value:d>x</arg_value></tool_call>"),
        ("invoke", '<invoke name="g"><parameter name="location with spaces">x</parameter></invoke>'),
        ("seed_oss", "<seed:tool_call><function=g><parameter=location with spaces>x</parameter></function>"),
    ],
)
def test_keys_may_contain_spaces(form: str, text: str) -> None:
    assert arguments(text, form) == {"location with spaces": "x"}


def test_a_key_repeated_by_its_closer_is_one_word() -> None:
    assert read("<g>\n<a b>\n1\n</a b>\n</g>", "tag") == [Text("<g>\n<a b>\n1\n</a b>\n</g>")]


def test_a_tag_with_attributes_is_not_a_key() -> None:
    text = '<g>\n<div class="x">text</div>\n</g>'
    assert read(text, "tag") == [Text(text)]


@pytest.mark.parametrize(
    "form", [name for name, form in FORMATS.items() if isinstance(form.variants[0].body, Parameters)]
)
def test_an_unterminated_key_is_buffered_up_to_a_limit(form: str) -> None:
    text = write([Call("g", '{"kkkk": "v"}')], form)
    parser = Parser(TOOLS, formats=[form])
    parser.feed(text[: text.index("kkkk")])
    for _ in range(200):
        parser.feed("kkkk")
    assert parser.held < 400


# ---- types


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        ("true", "12"),
        ("false", 12),
        ("TRUE", "12"),
        ("string", "12"),
        ("str", "12"),
        ("int", 12),
        ("Integer", 12),
        ("number", 12),
        ("float", 12),
        ("boolean", "12"),
        ("dict", "12"),
        ("list", "12"),
        ("null", "12"),
        ("", 12),
        ("date", 12),
    ],
)
def test_without_a_schema_the_marked_type_applies(mark: str, value: Any) -> None:
    attribute = (
        "<｜DSML｜invoke name='g'><｜DSML｜parameter name='a' string='{}'>12</｜DSML｜parameter></｜DSML｜invoke>"
    )
    assert arguments(attribute.format(mark), "deepseek_v32") == {"a": value}
    if mark:
        marked = (
            "<ifm|tool_call>g<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>{}</ifm|arg_type>"
            "<ifm|arg_value>12</ifm|arg_value></ifm|tool_call>"
        )
        assert arguments(marked.format(mark), "k2_horizon") == {"a": value}


@pytest.mark.parametrize(
    ("key", "mark", "text", "value"),
    [
        ("s", "integer", "1", "1"),
        ("n", "string", "1", 1),
        ("any", "string", "1", "1"),
        ("any", "object", "{}", {}),
        ("so", "object", "{}", {}),
        ("so", "string", "{}", "{}"),
        ("so", "integer", "{}", {}),
    ],
)
def test_the_schema_takes_precedence_over_a_marked_type(key: str, mark: str, text: str, value: Any) -> None:
    text = (
        f'<|open|>call tool="f"<|sep|><|open|>argument key="{key}" type="{mark}"<|sep|>{text}<|close|>argument<|sep|>'
        "<|close|>call<|sep|>"
    )
    assert arguments(text, "kimi_k3") == {key: value}


def test_a_value_marked_as_a_string_streams() -> None:
    parser = Parser(TOOLS)
    parser.feed('<｜DSML｜invoke name="g"><｜DSML｜parameter name="a" string="true">')
    assert parser.feed("12") == [ArgumentsDelta(0, "12")]
    assert parser.feed(" <｜") == [ArgumentsDelta(0, " ")]
    assert parser.feed("x") == [ArgumentsDelta(0, "<｜x")]


# ---- where a value ends


def test_a_closer_counts_if_a_key_or_the_end_of_the_call_follows_on_the_same_line() -> None:
    text = (
        "<tool_call>g<arg_key>a</arg_key><arg_value>x</arg_value> and </arg_value><arg_key>b</arg_key>"
        "<arg_value>y</arg_value>.</arg_value></tool_call>"
    )
    assert arguments(text, "glm47") == {"a": "x</arg_value> and ", "b": "y</arg_value>."}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<parameter=s>\nx\n</parameter>", "x"),
        ("<parameter=s>x</parameter>", "x"),
        ("<parameter=s>x\n</parameter>", "x\n"),
        ("<parameter=s>\nx</parameter>", "x"),
        ("<parameter=s>\n\n</parameter>", ""),
        ("<parameter=s>\r\n\r\nx\r\n</parameter>", "\r\nx"),
        ("<parameter=any>\n\n</parameter>", ""),
        ("<parameter=any>\n{\n</parameter>", "{"),
        ("<parameter=any>\n 12\n</parameter>", 12),
        ("<parameter=any>12\n</parameter>", 12),
        ("<parameter=any>x\n</parameter>", "x\n"),
        ("<parameter=n>\n\n</parameter>", ""),
    ],
)
def test_a_newline_before_the_closer_is_markup_if_one_follows_the_opener(text: str, value: Any) -> None:
    assert list(arguments(f"<function=f>{text}</function>", "qwen3_coder").values()) == [value]


def test_only_the_closer_of_the_open_key_counts() -> None:
    text = "<f>\n<s>\n<b>x</b>\n</n>\n</any>\n<p>\n</s>\n<n>\n1\n</n>\n</f>"
    assert arguments(text, "tag") == {"s": "<b>x</b>\n</n>\n</any>\n<p>", "n": 1}


def test_an_unclosed_parameter_ends_at_the_next_declared_key() -> None:
    assert arguments("<f><s>a <b> <n>1</n></f>", "tag", "missing_closer") == {"s": "a <b> ", "n": 1}


def test_without_a_schema_a_value_ends_only_at_the_closer_with_its_key() -> None:
    assert arguments("<g>\n<a>\n\n<b>\n</b>\n</a>\n</g>", "tag") == {"a": "\n<b>\n</b>"}


def test_a_key_named_like_the_tool() -> None:
    text = "<same>\n<same>\na </same> b\n</same>\n<other>\n<same>\n</other>\n</same>"
    assert arguments(text, "tag") == {"same": "a </same> b", "other": "<same>"}


def test_the_opener_of_another_call_is_not_a_key() -> None:
    first, second = read("<f>\n<n>\n1\n</n>\n<g>\n<a>\n2\n</a>\n</g>", "tag")
    assert first == FoldedCall("f", None, "tag", '{"n": 1}', complete=True, repairs=("missing_closer",))
    assert second == FoldedCall("g", None, "tag", '{"a": 2}', complete=True)


# ---- JSON in place of parameters


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", '<function=f>{"s": "</function>", "n": 1}</function>'),
        ("qwen3_coder", '<tool_call>\n<function=f>\n{"s": "</function>", "n": 1}\n</function>\n</tool_call>'),
        ("dots", '<invoke name="f">\n{"s": "</function>", "n": 1}\n</invoke>'),
        ("deepseek_v32", '<｜DSML｜invoke name="f">{"s": "</function>", "n": 1}</｜DSML｜invoke>'),
        ("tag", '<f>\n{"s": "</function>", "n": 1}\n</f>'),
    ],
)
def test_a_json_object_in_place_of_parameters(form: str, text: str) -> None:
    assert arguments(text, form) == {"s": "</function>", "n": 1}


def test_an_object_after_a_parameter_is_part_of_the_value() -> None:
    text = '<function=f><parameter=n>1</parameter>{"s": "x"}</function>'
    (call,) = read(text, "qwen3_coder")
    assert json.loads(call.arguments) == {"n": '1</parameter>{"s": "x"}'}
    assert (call.complete, call.repairs) == (False, ("missing_closer", "shown_markup"))


def test_an_unknown_call_with_json_is_read_to_its_end() -> None:
    text = '<function=nope>{"x": "<function=g></function>"}</function>'
    assert read(text, "qwen3_coder") == [Text(text)]


# ---- quotes around a value


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ('"s"><![CDATA[a < b]]>', "a < b"),
        ('"s"> \n<![CDATA[ x ]]>\n ', " x "),
        ('"s"><![CDATA[]]>', ""),
        ('"s"><![CDATA[a ]]> b ]]> ]]>', "a ]]> b ]]> "),
        (
            '"s"><![CDATA[</param></function><param name="n">1</param>]]>',
            '</param></function><param name="n">1</param>',
        ),
        ('"s">x <![CDATA[y]]>', "x <![CDATA[y]]>"),
        ('"s"> x', " x"),
        ('"s"><![CDATA', "<![CDATA"),
        ('"n"><![CDATA[ 3 ]]>', 3),
        ('"n"><![CDATA[three]]>', "three"),
        ('"o"><![CDATA[{"x": "]]>"}]]>', {"x": "]]>"}),
        ('"any"><![CDATA[[1, 2]]]>', [1, 2]),
        ('"any"><![CDATA[[1, 2]x]]>', "[1, 2]x"),
    ],
)
def test_quotes_around_a_value_are_markup(param: str, value: Any) -> None:
    text = f'<function name="f"><param name={param}</param></function>'
    assert list(arguments(text, "minicpm5").values()) == [value]


def test_a_quoted_value_without_its_closer() -> None:
    text = '<function name="f"><param name="s"><![CDATA[a]]></function>'
    assert arguments(text, "minicpm5", "missing_closer") == {"s": "a"}
    text = '<function name="f"><param name="s"><![CDATA[a]]> '
    assert arguments(text, "minicpm5", "missing_closer") == {"s": "a"}


def test_a_truncated_quoted_value() -> None:
    text = '<function name="f"><param name="s"><![CDATA[a]]></par'
    call, rest = read(text, "minicpm5")
    assert call == FoldedCall("f", None, "minicpm5", '{"s": "a', complete=False)
    assert rest == Discard("]]></par", "malformed")


# ---- elements in a value


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("<o><x>1</x><n>2</n></o>", {"o": {"x": "1", "n": 2}}),
        ("<o>\n  <x>a</x>\n  <n>2</n>\n</o>", {"o": {"x": "a", "n": 2}}),
        ("<o><l><item>1</item> <item>2</item></l></o>", {"o": {"l": [1, 2]}}),
        ("<o><o><o><x>true</x></o></o></o>", {"o": {"o": {"o": {"x": "true"}}}}),
        ("<o><free>5</free><text>five</text><none></none></o>", {"o": {"free": 5, "text": "five", "none": ""}}),
        ("<l><item>1</item><item> b </item></l>", {"l": ["1", " b "]}),
        ("<l><item><item>1</item></item></l>", {"l": [f"{M}<item>1{M}</item>"]}),
        ("<any><item><a>1</a></item><item><item>x</item></item></any>", {"any": [{"a": 1}, ["x"]]}),
        ("<any><a>1</a><item>2</item></any>", {"any": {"a": 1, "item": 2}}),
        ("<o><item>2</item></o>", {"o": {"item": 2}}),
        ("<l><entry>2</entry><item>3</item></l>", {"l": ["2", "3"]}),
        ("<so><a>1</a></so><s><a>1</a></s>", {"so": {"a": 1}, "s": f"{M}<a>1{M}</a>"}),
        ('<o>{"x": 1}</o><l>[]</l>', {"o": {"x": "1"}, "l": []}),
        ("<o></o><l></l>", {"o": {}, "l": []}),
        ("<any>[1]</any><n>5</n>", {"any": [1], "n": 5}),
        ("<o><x>a </x> b</x></o>", {"o": {"x": f"a {M}</x> b"}}),
        ("<o><x>a <z> </z> b</x></o><n>1</n>", {"o": {"x": f"a {M}<z> {M}</z> b"}, "n": 1}),
    ],
)
def test_elements_form_an_object_or_an_array(inner: str, value: Any) -> None:
    repairs = ("typed_value",) if '"x": 1' in inner else ()
    assert arguments(elements(inner), "minimax_m3", *repairs) == value


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("<o><x>a</o><n>1</n>", {"o": {"x": "a"}, "n": 1}),
        ("<o><o><x>a</x></o><n>1</n>", {"o": {"o": {"x": "a"}, "n": 1}}),
        ("<o><l><item>1</item><item>2</item></o><n>1</n>", {"o": {"l": [1, 2]}, "n": 1}),
        ("<o><x>a</x><o><n>1</n>", {"o": {"x": "a", "o": {"n": 1}}}),
    ],
)
def test_outer_closers_and_the_end_of_the_call_close_open_elements(inner: str, value: Any) -> None:
    assert arguments(elements(inner), "minimax_m3", "missing_closer") == value


def test_the_opener_of_another_call_closes_open_elements() -> None:
    first, second = read(elements("<o><o><x>a</x>").replace(f"{M}</invoke>", "") + elements("<n>1</n>"), "minimax_m3")
    assert first == FoldedCall(
        "f", None, "minimax_m3", '{"o": {"o": {"x": "a"}}}', complete=True, repairs=("missing_closer",)
    )
    assert second == FoldedCall("f", None, "minimax_m3", '{"n": 1}', complete=True)


def test_text_between_elements_makes_the_call_malformed() -> None:
    """Unless it can be the end of a string."""
    call, rest = read(elements("<o><l>[1]</l> oops </o>"), "minimax_m3")
    assert call == FoldedCall("f", None, "minimax_m3", '{"o": {"l": [1]', complete=False)
    assert rest == Discard(f"oops {M}</o>", "malformed")


def test_a_repeated_element_is_recorded() -> None:
    (call,) = calls_of(read(elements("<o><x>a</x><x>b</x></o>"), "minimax_m3"))
    assert (call.arguments, call.repairs) == ('{"o": {"x": "a", "x": "b"}}', ("repeated_key",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<o><x>a</x>", '{"o": {"x": "a"}}'),
        ("<any><item>1</item><item><b>2</b>", '{"any": [1, {"b": 2}]}'),
        ("<any><item>1</item><item><b>2</b></item>", '{"any": [1, {"b": 2}]}'),
    ],
)
def test_a_reply_that_stops_between_elements_is_completed(text: str, expected: str) -> None:
    (call,) = read(elements(text).replace(f"{M}</invoke>", ""), "minimax_m3")
    assert call == FoldedCall("f", None, "minimax_m3", expected, complete=True, repairs=("missing_closer",))


def test_a_string_in_elements_streams() -> None:
    parser = Parser(TOOLS)
    parser.feed(elements("<o><o><x>").replace(f"{M}</invoke>", ""))
    for piece in ("some", " tex", "t\u2028", " < >"):
        assert parser.feed(piece) == [ArgumentsDelta(0, piece)]


def test_elements_nested_too_deeply_are_text_of_a_string() -> None:
    text = elements("<any><a><b><c><d>x</d></c></b></a></any>")
    assert arguments(text, "minimax_m3", limits=Limits(depth=3)) == {
        "any": {"a": {"b": f"{M}<c>{M}<d>x{M}</d>{M}</c>"}}
    }


def test_depth_does_not_use_the_stack() -> None:
    text = elements("<any>" + "<a>" * 2000 + "x" + "</a>" * 2000 + "</any>")
    (call,) = calls_of(outcome(pieces(text, 500), TOOLS, limits=Limits(depth=2500)))
    assert call.arguments == '{"any": ' + '{"a": ' * 2000 + '"x"' + "}" * 2001
    assert call.complete


# ---- everything together


def _soup() -> list[str]:
    """Return markers of all formats with parameters, keys of the tools, and text that may separate them."""
    parts = ["\n", "\r\n", " ", "x", "1", "{", "}", "[1]", '{"x": 1}', "true", '"', "<", "]", "</", "<!", "text "]
    for form in FORMATS.values():
        for variant in form.variants:
            if isinstance(body := variant.body, Parameters):
                for key in ("s", "n", "o", "item"):
                    start, close = spell(body.key), spell(body.close).replace("{key}", key)
                    tag = f'{start} {body.key_rule.attribute}="{key}"' if body.key_rule.attribute else start + key
                    parts += [f"{tag}{spell(body.key_rule.ends[0])}", close, *body.quote]
                parts.append(spell(form.close).replace("{tool}", "f"))
    return sorted(set(parts))


STARTS = (
    ("qwen3_coder", "<function=f>"),
    ("tag", "<f>"),
    ("minimax_m3", elements("").replace(f"{M}</invoke>", "")),
    ("minicpm5", '<function name="f">'),
    ("glm47", "<tool_call>f"),
    ("kimi_k3", '<|open|>call tool="f"<|sep|>'),
    ("deepseek_v32", '<｜DSML｜invoke name="f">'),
    ("k2_horizon", "<ifm|tool_call>g"),
)


@QUICK
@given(st.data(), st.sampled_from(STARTS), st.lists(st.sampled_from(_soup()), max_size=20))
def test_any_text_after_an_opener(data: st.DataObject, start: tuple[str, str], parts: list[str]) -> None:
    """Check that no text raises, that the outcome does not depend on the split, and that complete arguments are
    JSON.
    """
    form, opener = start
    text = opener + "".join(parts)
    whole = outcome([text], TOOLS, formats=[form])
    assert outcome(text, TOOLS, formats=[form]) == whole
    assert outcome(data.draw(cut(text)), TOOLS, formats=[form]) == whole
    for call in calls_of(whole):
        assert not call.complete or is_object(call.arguments)


def test_undeclared_keys_compile_no_patterns() -> None:
    tables.cache_clear()
    text = "<g>" + "".join(f"<k{number}>v</k{number}>" for number in range(2000)) + "</g>"
    before = time.process_time()
    (call,) = calls_of(outcome([text], TOOLS, formats=["tag"]))
    assert len(json.loads(call.arguments)) == 2000
    assert tables.cache_info().misses <= 1
    assert time.process_time() - before < 2
