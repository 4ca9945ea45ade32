"""A tool's parameters are reduced to the part of JSON Schema that every engine supports, keeping the meaning if
possible.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import each

from streamtool.core.conversation import Tool
from streamtool.forcing import arguments_schema, call_grammar

PAGE = (Path(__file__).parent.parent.parent / "docs" / "when-the-model-does-not-call.md").read_text(encoding="utf-8")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "components")
KEYWORDS = {
    word: row[2].strip()
    for row in re.finditer(
        r"^\| ((?:`[^`|]+`(?:, )?)+) \| ([^|]+) \| [^|]+ \|$",
        PAGE.partition("## What constraints leave out")[2],
        re.MULTILINE,
    )
    for word in re.findall(r"`([^`]+)`", row[1])
}
A, B = {"type": "string"}, {"type": "integer"}


def portable(schema: Any, **options: Any) -> Any:
    return arguments_schema(Tool("f", parameters=schema), **options)


def member(schema: Any, **beside: Any) -> Any:
    """Return the portable schema of a member."""
    return portable({"type": "object", "properties": {"x": schema}, **beside})["properties"]["x"]


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


@each(
    ("schema", "expected"),
    [
        ({"type": "string", "description": "x", "title": "X", "default": ""}, A),
        ({"type": ["integer", "null"]}, {"type": ["integer", "null"]}),
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": "string", "enum": ["a"]}),
        ({"anyOf": [A, B], "nullable": True}, {"anyOf": [A, B]}),
        ({"const": 7}, {"type": "number", "enum": [7]}),
        ({"enum": ["a", 1]}, {"type": ["string", "number"], "enum": ["a", 1]}),
        ({"oneOf": [A, {"anyOf": [B, {"type": "null"}]}]}, {"anyOf": [A, B, {"type": "null"}]}),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, {"type": "string", "enum": ["a", "b"]}),
        ({"type": "string", "anyOf": [{"enum": ["a"]}, B]}, {"type": "string", "enum": ["a"]}),
        ({"allOf": [{"type": "number", "minimum": 1}, {"maximum": 3}]}, {"type": "number", "minimum": 1, "maximum": 3}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "exclusiveMaximum": 2.5}, {"type": "integer", "maximum": 2}),
        ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 2}, {"type": "number", "exclusiveMinimum": 0}),
        ({"type": "integer", "minimum": 3, "maximum": 2}, B),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, {"type": "string", "pattern": "^[a-z]+$"}),
        ({"type": "string", "pattern": "^/a|b"}, {"type": "string", "pattern": "^(/a|b).*$"}),
        ({"type": "string", "pattern": "(?=a)", "minLength": 1}, {"type": "string", "minLength": 1}),
        ({"type": "string", "pattern": "("}, A),
        ({"type": "string", "format": "uri"}, A),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        (
            {"type": "array", "items": A, "uniqueItems": True, "minItems": 1},
            {"type": "array", "items": A, "minItems": 1},
        ),
        ({"items": A}, {"type": "array", "items": A}),
        ({"type": "array", "items": False}, {"type": "array", "maxItems": 0}),
        ({"type": "array", "items": [B, B]}, {"type": "array", "items": B, "minItems": 2, "maxItems": 2}),
        (
            {"type": "array", "items": [A, B], "additionalItems": False},
            {"type": "array", "prefixItems": [A, B], "items": False, "minItems": 2, "maxItems": 2},
        ),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": {}}, closed()),
        ({"properties": {"a": A, "b": False}, "required": ["a", "c"]}, closed("a", "c", a=A, c={})),
        ({"type": "object", "additionalProperties": A}, {"type": "object", "additionalProperties": A}),
        ({"type": "object", "patternProperties": {"^x": A}}, {"type": "object", "additionalProperties": A}),
        ({"not": {"type": "string"}}, {}),
        (True, {}),
        (7, {}),
    ],
)
def test_a_part_uses_only_keywords_that_engines_honour(schema: Any, expected: Any):
    assert member(schema) == expected


def test_alternatives_next_to_members_are_merged_into_them():
    whole = {
        "type": "object",
        "properties": {"a": A, "b": B},
        "required": ["a"],
        "anyOf": [{"required": ["b", "c"], "properties": {"c": A}}, {"required": ["c"]}, {"properties": {"c": B}}],
    }
    assert portable(whole) == closed("a", a=A, b=B, c={"anyOf": [A, B]})
    whole["anyOf"] = whole["anyOf"][:2]  # type: ignore[index]
    assert portable(whole) == closed("a", "c", a=A, b=B, c=A)


def test_alternatives_without_sibling_members_stay_alternatives():
    ways = [{"properties": {"a": A}, "required": ["a"]}, {"properties": {"b": B}}]
    whole = {"type": "object", "oneOf": ways}
    assert portable(whole) == {"anyOf": [closed("a", a=A), closed(b=B)]}
    assert portable(whole, flat=True) == closed(a=A, b=B)


def test_all_parts_of_an_object_are_merged():
    definitions = {"point": {"type": "object", "properties": {"x": B}, "required": ["x"]}}
    parts = {"allOf": [{"$ref": "#/$defs/point"}, {"properties": {"y": B}, "required": ["y"]}], "description": "Where."}
    assert member(parts, **{"$defs": definitions}) == closed("y", "x", x=B, y=B)


def test_references_become_definitions():
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    whole = {"type": "object", "properties": {"list": {"$ref": "#/$defs/n", "title": "List"}}, "$defs": {"n": node}}
    part = {"$ref": "#/$defs/part_0"}
    expected = closed(next={"anyOf": [part, {"type": "null"}]})
    assert portable(whole) == {**closed(list=part), "$defs": {"part_0": expected}}
    assert portable({"$ref": "#/$defs/n", "$defs": {"n": node}}) == {**expected, "$defs": {"part_0": expected}}


def test_no_reference_starts_with_itself():
    parts = {
        "a": {"anyOf": [{"type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}}, {"$ref": "#/$defs/f"}]},
        "e": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
        "f": {"anyOf": [{"$ref": "#/$defs/e"}, {"type": "boolean"}]},
        "g": {"$ref": "#/$defs/g"},
    }
    made = portable(
        {"type": "object", "properties": {key: {"$ref": f"#/$defs/{key}"} for key in parts}, "$defs": parts}
    )

    def begins(part: Any) -> set[str]:
        inner = [part, *part.get("anyOf", ())]
        return {one["$ref"].rpartition("/")[2] for one in inner if "$ref" in one}

    seen = {key: begins(part) for key, part in made["$defs"].items()}
    for key in seen:
        reached: set[str] = set()
        waiting = [key]
        while waiting:
            waiting += (new := seen[waiting.pop()] - reached)
            reached |= new
        assert key not in reached


DEEP: Any = {"type": "string"}
for _ in range(400):
    DEEP = {"type": "object", "properties": {"in": DEEP}}
DOUBLING = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/p0", "nullable": True}},
    "$defs": {
        f"p{i}": {"allOf": [{"properties": {key: {"$ref": f"#/$defs/p{i + 1}", "minItems": 1} for key in "ab"}}]}
        for i in range(40)
    },
}
SELF = {"type": "object", "$defs": {"s": {"anyOf": [{"allOf": [{"$ref": "#/$defs/s"}]}] * 3}}}
SELF["properties"] = {"x": {"type": "object", "anyOf": [{"$ref": "#/$defs/s"}] * 3}}
WIDE = {"type": "object", "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(5000)}}
CHAIN = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/c0"}},
    "$defs": {f"c{i}": {"anyOf": [{"$ref": f"#/$defs/c{i + 1}"}, {"$ref": f"#/$defs/c{i + 2}"}]} for i in range(1500)},
}


@pytest.mark.parametrize("schema", [DEEP, DOUBLING, SELF, WIDE, CHAIN, {"type": "array"}], ids=range(6))
def test_a_hostile_schema_becomes_an_object_within_bounds(schema: Any):
    start = time.process_time()
    made = portable(schema)
    assert time.process_time() - start < 5
    assert len(json.dumps(made)) < 1_000_000
    jsonschema_rs.validator_for(made)
    assert made["type"] == "object"


LOOSE = st.recursive(
    st.sampled_from([None, True, False, 3, -1.5, "string", "object", "null", "^a$", "(", "#", "#/$defs/a", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYWORDS, "nullable", "additionalItems", "$defs", "a"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from([*KEYWORDS, "$defs"]), LOOSE), LOOSE)
def test_no_schema_raises(schema: Any, member: Any):
    for whole in (schema, {**schema, "type": "object", "properties": {"x": member}, "$defs": {"a": member}}):
        for flat in (True, False):
            made = portable(whole, flat=flat)
            jsonschema_rs.validator_for(made)
            assert made.get("type", "object") == "object"
        assert call_grammar([Tool("f", parameters=whole)], "invoke", forced=True, parallel=True, lazy=False)


def test_raw_text_and_missing_parameters_have_their_own_schemas():
    assert arguments_schema(Tool("f", custom=True)) == closed("input", input=A)
    assert arguments_schema(Tool("f")) == closed()


TOOLS = json.loads((Path(__file__).parent.parent / "support" / "tool_schemas.json").read_text(encoding="utf-8"))


def keywords(schema: Any) -> Iterator[str]:
    for word, value in schema.items() if isinstance(schema, dict) else ():
        yield word
        if word not in ("enum", "const", "default", "discriminator", "dependentRequired"):
            parts = value.values() if word in MAPS else value if isinstance(value, list) else [value]
            yield from (inner for part in parts for inner in keywords(part))


@each("name", TOOLS)
def test_a_tool_uses_only_the_keywords_in_the_docs(name: str):
    kept = {word for word, cell in KEYWORDS.items() if cell not in ("left out", "members of any name")} - {
        "const",
        "oneOf",
    }
    assert set(keywords(portable(TOOLS[name]))) <= kept - {"allOf"} | {"$defs"}
    jsonschema_rs.validator_for(portable(TOOLS[name]))


def test_the_docs_cover_every_keyword_of_the_tools():
    silent = {"description", "title", "default", "discriminator", "$schema", "nullable", "additionalItems"}
    used = {word for schema in TOOLS.values() for word in keywords(schema)}
    assert used - silent - {*MAPS} <= KEYWORDS.keys()
