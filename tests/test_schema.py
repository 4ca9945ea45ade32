"""JSON Schema as signatures and lists."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtool.schema import first_sentence, markdown, notes, parameters, signature

WEATHER = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "description": "What it\nis"},
        "b": {"type": "integer", "default": 3},
        "c": {"enum": ["x", "y"]},
    },
    "required": ["a", "c"],
}


def one(schema, **root):
    return (
        signature("f", {"properties": {"p": schema}, "required": ["p"], **root}).removeprefix("f(p: ").removesuffix(")")
    )


def test_a_signature_tells_types_optional_parameters_defaults_and_enums():
    assert signature("f", WEATHER) == 'f(a: string, b?: integer = 3, c: "x"|"y")'


def test_a_tool_without_parameters_has_an_empty_signature():
    assert signature("f", None) == "f()"
    assert signature("f", {"type": "object"}) == "f()"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "(string|null)[]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "integer[][]"),
        ({"type": "object"}, "object"),
        ({"properties": {"x": {"type": "number"}}, "required": ["x"]}, "{x: number}"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{[key]: integer}"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string|string[]"),
        ({"oneOf": [{"const": 1}, {"const": "a"}, {"type": "null"}]}, '1|"a"|null'),
        ({"type": "string", "nullable": True}, "string|null"),
        ({"allOf": [{"type": "object", "properties": {"x": {"type": "null"}}}, {"required": ["x"]}]}, "{x: null}"),
        ({"$ref": "#/$defs/n"}, '"u"|"v"'),
        ({"$ref": "#/nowhere"}, "any"),
        ({"$ref": "http://elsewhere/schema"}, "any"),
        (True, "any"),
        ({}, "any"),
        ({"enum": []}, "any"),
        ({"type": "no) type"}, "any"),
    ],
)
def test_types(schema, text):
    assert one(schema, **{"$defs": {"n": {"enum": ["u", "v"]}}}) == text


def test_a_schema_that_refers_to_itself_ends_in_its_bare_type():
    root = {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}}
    assert one({"$ref": "#/$defs/node"}, **root) == "{next?: {next?: {next?: object}}}"


def test_a_schema_that_explodes_is_read_in_bounded_time():
    wide = {"type": "object", "properties": {str(i): {"$ref": "#"} for i in range(200)}}
    begun = time.perf_counter()
    assert len(signature("f", wide)) < 200_000
    assert time.perf_counter() - begun < 1


def test_names_that_are_no_words_are_quoted():
    assert signature("f", {"properties": {"a b": {}, "c-d.e$": {}}}) == 'f("a b"?: any, c-d.e$?: any)'


def test_a_long_default_is_left_out():
    assert signature("f", {"properties": {"a": {"type": "string", "default": "x" * 100}}}) == "f(a?: string)"


def test_notes_are_the_descriptions_on_one_line_each():
    assert notes(WEATHER) == ["a: What it is"]


def test_the_markdown_list_tells_everything_about_a_parameter():
    assert markdown(WEATHER) == [
        "- a (string) (required): What it is",
        "- b (integer) (optional, default: 3)",
        '- c ("x"|"y") (required)',
    ]


def test_the_first_sentence_of_a_text():
    assert first_sentence("Reads a file (v1.2).\nMore. And more.") == "Reads a file (v1.2)."
    assert first_sentence("no end\n\nanother paragraph") == "no end"
    assert first_sentence("  ") == ""


JSON = st.recursive(
    st.sampled_from([None, True, 3, "string", "object", "null", "a b", "#", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "anyOf", "allOf", "enum", "$ref", "$defs", "a", "default"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "allOf", "$defs", "$ref"]), JSON))
def test_no_schema_raises(schema):
    signature("f", schema)
    assert all(isinstance(parameter.type, str) for parameter in parameters(schema))
    markdown(schema)
