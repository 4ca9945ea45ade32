"""JSON Schema rendered as signatures and lists, and types that the parser derives from it, including members and
items.
"""

import time
from functools import partialmethod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.schema import ANY, MAX_LOOKUP_PARTS, SchemaWalker, described_node, types
from streamtool.schemas.parameters import described_signature, first_sentence, parameter_list, parameters, signature

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


def test_a_signature_shows_types_optional_parameters_defaults_and_enums():
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


def test_a_recursive_schema_is_cut_to_its_bare_type():
    root = {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}}
    assert one({"$ref": "#/$defs/node"}, **root) == "{next?: {next?: {next?: object}}}"


def test_an_exploding_schema_is_read_in_bounded_time():
    wide = {"type": "object", "properties": {str(i): {"$ref": "#"} for i in range(200)}}
    begun = time.process_time()
    assert len(signature("f", wide)) < 200_000
    assert time.process_time() - begun < 1


def test_names_that_are_not_identifiers_are_quoted():
    assert signature("f", {"properties": {"a b": {}, "c-d.e$": {}}}) == 'f("a b"?: any, c-d.e$?: any)'


def test_a_long_default_is_omitted():
    assert signature("f", {"properties": {"a": {"type": "string", "default": "x" * 100}}}) == "f(a?: string)"


def test_descriptions_are_on_one_line_each():
    assert described_signature("f", WEATHER) == 'f(\n a: string // What it is\n b?: integer = 3\n c: "x"|"y"\n)'
    assert described_signature("f", {"properties": {"a": {}}}) == "f(a?: any)"


def test_the_markdown_list_describes_each_parameter_fully():
    assert parameter_list(WEATHER) == [
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
    parameter_list(schema)


# ---- the parser's view of a schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "number", "null"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, {"null"}),
        ({"properties": {}}, {"object"}),
        ({"$ref": "#/$defs/n"}, {"integer"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "elsewhere"}, ANY),
        ({"type": "string", "enum": [1]}, ANY),
        (True, ANY),
        ({}, ANY),
    ],
)
def test_the_types_that_a_schema_allows(schema, expected):
    root = {"properties": {"p": schema}, "$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types(root, "p") == expected
    assert (
        described_node(root).member("p").types == expected
        if isinstance(schema, dict)
        else described_node(root).member("p") is not None
    )


NESTED = {
    "properties": {
        "list": {"type": "array", "items": {"type": "integer"}},
        "tuple": {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
        "map": {"additionalProperties": {"type": "number"}},
        "either": {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "properties": {"x": {"type": "integer"}}},
                {"type": "object", "properties": {"x": {"type": "boolean"}}},
            ]
        },
        "open": {"anyOf": [{"type": "object", "properties": {"x": {"type": "integer"}}}, {"type": "object"}]},
        "both": {
            "allOf": [
                {"properties": {"x": {"type": ["integer", "null"]}}, "required": ["x"]},
                {"properties": {"x": {"type": ["null", "string"]}, "y": {"type": "string"}}},
            ]
        },
        "tree": {"$ref": "#/$defs/tree"},
    },
    "required": ["list"],
    "$defs": {"tree": {"properties": {"label": {"type": "string"}, "kids": {"items": {"$ref": "#/$defs/tree"}}}}},
}


def test_a_node_leads_to_its_members_and_items():
    root = described_node(NESTED)
    assert root.types == ANY
    assert root.member("list").items().types == {"integer"}
    assert root.member("tuple").items() is None
    assert root.member("map").member("anything").types == {"number", "integer"}
    assert root.member("either").member("x").types == {"integer", "boolean"}
    assert root.member("open").member("x") is None
    assert root.member("both").member("x").types == {"null"}
    assert root.member("both").member("y").types == {"string"}
    assert root.member("tree").member("kids").items().member("kids").items().member("label").types == {"string"}
    assert root.member("nothing") is None
    assert root.member("list").member("x") is None
    assert root.member("list") is root.member("list")


def test_a_node_knows_whether_it_is_optional():
    root = described_node(NESTED)
    assert not root.member("list").optional
    assert root.member("map").optional
    assert not root.member("both").member("x").optional
    assert root.member("both").member("y").optional


def test_a_schema_without_members_has_no_node():
    for schema in (None, True, {}, {"type": "object"}, {"properties": {}}, "object", {"items": {"type": "string"}}):
        assert described_node(schema) is None


def test_all_lookups_together_read_a_bounded_number_of_subschemas(monkeypatch):
    """A reply may contain any number of keys, and each is looked up in all alternatives."""
    ways = [{"type": "object", "additionalProperties": {"$ref": "#/properties/a"}} for _ in range(30)]
    node = described_node({"type": "object", "properties": {"a": {"anyOf": ways}}}).member("a")
    reads = 0

    def read(self, *given, of):
        nonlocal reads
        reads += 1
        return of(self, *given)

    for name in ("_part", "_collect_names"):
        monkeypatch.setattr(SchemaWalker, name, partialmethod(read, of=getattr(SchemaWalker, name)))
    for number in range(1_000):
        inner = node.member(f"k{number}")
        assert inner is None or inner.near("other", ()) is None
    assert MAX_LOOKUP_PARTS < reads < 2 * MAX_LOOKUP_PARTS


def test_members_that_need_no_alternatives_are_found_however_many_there_are():
    defs = {"M": {"additionalProperties": {"type": "integer"}}, "O": {"properties": {"n": {"type": "null"}}}}
    declared = {name: {"$ref": f"#/$defs/{name}"} for name in defs}
    node = described_node({"properties": declared, "$defs": defs})
    for number in range(MAX_LOOKUP_PARTS + 1):
        assert node.member("M").member(f"k{number}").types == {"integer"}
    assert node.member("O").member("n").types == {"null"}


def test_a_lookup_is_cached_for_all_values_with_the_same_subschema():
    """A map may have more entries than lookups in alternatives are allowed."""
    ways = [{"type": "object", "properties": {"n": {"type": "integer"}, word: {}}} for word in "ab"]
    node = described_node({"type": "object", "additionalProperties": {"anyOf": ways}})
    for number in range(MAX_LOOKUP_PARTS):
        assert node.member(f"k{number}").member("n").types == {"integer"}


def test_a_schema_with_exploding_parts_is_read_in_bounded_time():
    wide = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(20)}, "$ref": "#/$defs/d0"}
    begun = time.process_time()
    assert SchemaWalker(wide).types(wide) == ANY
    assert described_node({**wide, "properties": {"p": wide}}).member("p") is None
    assert time.process_time() - begun < 1


@given(st.dictionaries(st.sampled_from(["properties", "items", "required", "allOf", "anyOf", "$ref", "$defs"]), JSON))
def test_building_a_node_never_raises(schema):
    found = described_node(schema)
    for key in ("a", "type", "", "$ref"):
        member = found.member(key) if found else None
        if member is not None:
            assert member.types <= ANY
            assert member.items() is None or member.items().types <= ANY
            assert member.member("a") is None or member.member("a").types <= ANY
