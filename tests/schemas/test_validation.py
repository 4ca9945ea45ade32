"""Arguments of a call are validated against the tool's schema: unambiguous errors are repaired, others reported."""

import json
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtool.core.bounded_cache import LruCache
from streamtool.schemas import validator
from streamtool.schemas.coercion import Coercion, apply_coercions
from streamtool.schemas.errors import MISSING, InvalidArguments
from streamtool.schemas.validator import Validator


def tool(*required: str, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def check(schema, arguments: str):
    return Validator.of(schema).check(arguments)


def fault(schema, arguments: str) -> InvalidArguments:
    text, found, names = check(schema, arguments)
    assert (text, names) == (arguments, ())
    assert found is not None
    return found


INTEGERS = {"type": "array", "items": {"type": "integer"}}
OPTIONS = tool("depth", depth={"type": "integer"}, deep={"type": "boolean"})
NULLABLE = {"anyOf": [OPTIONS, {"type": "null"}]}


# ---- valid arguments


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (None, "{}"),
        (None, ' {"a" : 1.50e+3}\n'),
        ({}, '{"a":"5"}'),
        (tool(n={"type": "number"}), '{"n": 1.50, "m": 12345678901234567890123}'),
        (tool(n={"type": "integer"}), '{"n": 3.0}'),
        (tool(n={"type": "string", "format": "date"}), '{"n": "no date"}'),
        (tool("n", n={"type": "string", "nullable": True}), '{"n": null}'),
        (tool(n={"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"type": "null"}}}, '{"n": null}'),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}}, '{"a":1,"b":2}'),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True}, '{"a":1}'),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"} | tool(n={"type": "string"}), '{"n":""}'),
        ({"$schema": "https://elsewhere/schema"} | tool(n={"type": "string"}), '{"n":""}'),
        ({"$id": "https://a/b", "properties": {"n": {"$ref": "https://a/b#/$defs/n"}}, "$defs": {"n": {}}}, '{"n":1}'),
        (tool(), ""),
        (tool(), "  "),
    ],
)
def test_valid_arguments_are_unchanged(schema, arguments):
    text, found, names = check(schema, arguments)
    assert text is arguments
    assert (found, names) == (None, ())


# ---- repairs


@pytest.mark.parametrize(
    ("schema", "arguments", "text", "names"),
    [
        (tool(n={"type": "integer"}), '{"n":"5", "x": 1.50}', '{"n":5, "x": 1.50}', ["number_from_string"]),
        (
            tool(n={"type": "number"}),
            '{"n": " 1234567890123456789.10 "}',
            '{"n": 1234567890123456789.10}',
            ["number_from_string"],
        ),
        (tool(n={"type": "integer"}), '{"n": "3.0"}', '{"n": 3.0}', ["number_from_string"]),
        (tool(n={"enum": [1, 2]}), '{"n": "2"}', '{"n": 2}', ["number_from_string"]),
        (tool(n={"const": 2}), '{"n": "2"}', '{"n": 2}', ["number_from_string"]),
        (tool(n={"type": "boolean"}), '{"n": "True"}', '{"n": true}', ["boolean_from_string"]),
        (tool(n={"type": "string"}), '{"n": 1.50}', '{"n": "1.50"}', ["string_from_number"]),
        (tool(n=INTEGERS), '{"n": "[1, 2.0]"}', '{"n": [1, 2.0]}', ["json_from_string"]),
        (tool(n=OPTIONS), r'{"n": "{\"depth\": 1e2}"}', '{"n": {"depth": 1e2}}', ["json_from_string"]),
        (tool(n=INTEGERS), '{"n": 5}', '{"n": [5]}', ["array_from_value"]),
        (
            tool(n={"type": "array", "items": OPTIONS}),
            '{"n": {"depth": 5}}',
            '{"n": [{"depth": 5}]}',
            ["array_from_value"],
        ),
        (tool(n={"type": "string"}), '{"n": null, "m": 1}', '{"m": 1}', ["null_dropped"]),
        (tool(n={"type": "string"}), '{ "m": 1 , "n": null }', '{ "m": 1 }', ["null_dropped"]),
        (tool(n={"type": "string"}), '{"n": null}', "{}", ["null_dropped"]),
        (tool(n={"anyOf": [{"type": "integer"}, {"type": "array"}]}), '{"n": "5"}', '{"n": 5}', ["number_from_string"]),
        # Consecutive repairs.
        (tool(n=INTEGERS), '{"n": "5"}', '{"n": [5]}', ["array_from_value", "number_from_string"]),
        (
            tool(n=OPTIONS),
            r'{"n": "{\"depth\": \"5\"}"}',
            '{"n": {"depth": 5}}',
            ["json_from_string", "number_from_string"],
        ),
        # Several at a time, and alternatives that only fit together.
        (tool(n=INTEGERS), '{"n": ["5", "6", 7]}', '{"n": [5, 6, 7]}', ["number_from_string"]),
        (
            tool(n=NULLABLE),
            '{"n": {"depth": "5", "deep": "false"}}',
            '{"n": {"depth": 5, "deep": false}}',
            ["number_from_string", "boolean_from_string"],
        ),
        (
            tool(a={"type": "string"}, b={"type": "integer"}, c={"type": "string"}),
            '{"a": null, "b": "1", "c": null, "d": null}',
            '{"b": 1, "d": null}',
            ["null_dropped", "number_from_string"],
        ),
        # Of duplicate keys the last one counts.
        (tool(n={"type": "integer"}), '{"n": "x", "n": "1"}', '{"n": "x", "n": 1}', ["number_from_string"]),
    ],
)
def test_unambiguous_errors_are_repaired(schema, arguments, text, names):
    found, wrong, done = check(schema, arguments)
    assert (found, wrong, list(done)) == (text, None, names)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (tool("n", n={"type": "string"}), '{"n": null}'),
        (tool(n={"type": "integer"}), '{"n": "5.5"}'),
        (tool(n={"type": "integer", "maximum": 3}), '{"n": "5"}'),
        (tool(n={"type": "integer"}), '{"n": "five"}'),
        (tool(n={"type": "integer"}), '{"n": ""}'),
        (tool(n={"type": "integer"}), '{"n": true}'),
        (tool(n={"type": "boolean"}), '{"n": "yes"}'),
        (tool(n={"type": "boolean"}), '{"n": 1}'),
        (tool(n=INTEGERS), '{"n": ["5", "x"], "m": "[1"}'),
        (tool(n=OPTIONS), r'{"n": "{\"depth\": 1}, \"m\": {}"}'),
        (tool(n=OPTIONS), r'{"n": "{\"depth\": NaN}"}'),
        (tool(n=OPTIONS), r'{"n": "{\"deep\": true}"}'),
        (tool(n=NULLABLE), '{"n": {"depth": "5", "deep": "maybe"}}'),
        (tool(n={"anyOf": [OPTIONS, {"type": "array"}]}), '{"n": {"deep": true}}'),
        (tool("n", n={}), "{}"),
        ({"type": "array"}, "{}"),
    ],
)
def test_arguments_that_would_stay_invalid_are_not_repaired(schema, arguments):
    text, wrong, names = check(schema, arguments)
    assert wrong is not None
    if '["5", "x"]' in arguments:  # one of the two items can be repaired, and is
        assert (text, names) == (arguments.replace('"5"', "5"), ("number_from_string",))
    else:
        assert (text, names) == (arguments, ())


def test_blank_arguments_are_an_empty_object():
    assert fault(tool("a", a={}), " ").message == 'The object lacks the required property "a".'


def test_errors_next_to_a_repair_are_reported():
    text, wrong, names = check(tool("a", a={}, n={"type": "integer"}), '{"n": "5"}')
    assert (text, names) == ('{"n": 5}', ("number_from_string",))
    assert wrong.message == 'The object lacks the required property "a".'


def test_a_repair_leaves_every_other_byte_unchanged():
    text = ' { "b" : [ 1.0 , {"x" :null,"n":"1", "y": null} ],\n"a": null , "a" :null, "c": 1E5 } '
    done = [
        Coercion(("b", 1, "n"), "number_from_string"),
        Coercion(("a",), "null_dropped"),
        Coercion(("b", 1, "x"), "null_dropped"),
    ]
    assert apply_coercions(text, done) == ' { "b" : [ 1.0 , {"n":1, "y": null} ], "c": 1E5 } '


# ---- faults


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("[1]", "They must be one JSON object, not an array."),
        ('"{}"', 'They must be one JSON object, not the string "{}".'),
        ('{"a": ', "They are not valid JSON: Expecting value: line 1 column 7 (char 6)."),
        ('{"a": NaN}', "They are not valid JSON: NaN is no number."),
        ("{} {}", "They are not valid JSON: Extra data: line 1 column 4 (char 3)."),
    ],
)
def test_arguments_must_be_one_json_object_whatever_the_schema(arguments, message):
    for schema in (None, tool(), {"$ref": "elsewhere"}):
        found = fault(schema, arguments)
        assert (found.place, found.message) == ("", message)


KIND = {
    "oneOf": [
        tool("kind", "x", kind={"const": "a"}, x={"type": "integer"}),
        tool("kind", "y", kind={"const": "b"}, y={"type": "integer"}),
    ]
}
CLOSED = tool("path", path={"type": "string"}, mode={"enum": ["r", "w"]}) | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "arguments", "place", "message"),
    [
        (tool("a", "b", a={}, b={}), "{}", "", 'The object lacks the required properties "a" and "b".'),
        (tool(o=tool("a", a={})), '{"o": {}}', "o", '`o` lacks the required property "a".'),
        (
            CLOSED,
            '{"pth": "x", "mode": "q"}',
            "",
            'The object lacks the required property "path"; it must not have "pth" (its nearest is "path").',
        ),
        (
            CLOSED,
            '{"path": "x", "zzz": 1}',
            "",
            'The object must not have "zzz" (it may have "path" and "mode").',
        ),
        (CLOSED, '{"path": "x", "mode": "q"}', "mode", '`mode` must be one of "r", "w", not the string "q".'),
        (tool(a={"type": "integer"}), '{"a": "x"}', "a", '`a` must be an integer, not the string "x".'),
        (tool(a={"type": ["number", "null"]}), '{"a": []}', "a", "`a` must be a number or null, not an array."),
        (tool(a={"const": 3}), '{"a": 4}', "a", "`a` must be 3, not the number 4."),
        (tool(a={"minimum": 3}), '{"a": 2}', "a", "`a` must be at least 3."),
        (tool(a={"pattern": "^x"}), '{"a": "y"}', "a", '`a` must match the pattern "^x".'),
        (tool(a={"minItems": 1}), '{"a": []}', "a", "`a` must have at least 1 items."),
        (tool(a={"not": {"type": "null"}}), '{"a": null}', "a", '`a` must not be of this form: {"type": "null"}.'),
        (tool(a=False), '{"a": 1}', "a", "`a` is not allowed."),
        ({"propertyNames": {"maxLength": 1}}, '{"ab": 1}', "", 'The object has a property whose name is not of this form: {"maxLength": 1}.'),
        (tool(a=KIND), '{"a": {"kind": "b", "y": "z"}}', "a.y", '`a.y` must be an integer, not the string "z".'),
        (tool(a=KIND), '{"a": {"kind": "b"}}', "a", '`a` lacks the required property "y".'),
        (tool(a=NULLABLE), '{"a": {"depth": "x"}}', "a.depth", '`a.depth` must be an integer, not the string "x".'),
        (tool(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}), '{"a": "x"}', "a", '`a` must be an integer or null, not the string "x".'),
        (tool(a={"oneOf": [{"minimum": 1}, {"minimum": 2}]}), '{"a": 3}', "a", "`a` fits more than one of the alternatives, and must fit exactly one."),
        (tool("z", z={}, a=tool(b={"items": {"type": "null"}})), '{"a": {"b": [null, 1]}}', "a.b[1]", "`a.b[1]` must be null, not the number 1."),
        (tool(**{"a b": {"properties": {"c.d": {"type": "null"}}}}), '{"a b": {"c.d": {}}}', '["a b"]["c.d"]', '`["a b"]["c.d"]` must be null, not an object.'),
    ],
)  # fmt: skip
def test_the_most_specific_fault_is_reported(schema, arguments, place, message):
    found = fault(schema, arguments)
    assert (found.place, found.message) == (place, message)


def test_the_message_shows_the_relevant_schema_and_the_arguments():
    schema = tool("path", path={"type": "string", "description": "Where"}, mode={"enum": ["r", "w"]})
    assert fault(schema, '{"mode":"r"}').sentence == (
        'The arguments of the call do not match the tool\'s schema. The object lacks the required property "path". '
        'That part of the schema is: {"type":"object","properties":{"path":{"type":"string","description":"Where"}},'
        '"required":["path"]}\n'
        'The arguments were: {"mode":"r"}'
    )


def test_a_fault_includes_the_value():
    assert fault(tool(a={"type": "null"}), '{"a": {"b": 1}}').value == {"b": 1}
    assert fault(None, "nothing").value is MISSING


def test_messages_are_short():
    long = "x" * 3_000
    many = {f"{long}{i}": {"description": long, "enum": [long] * 10} for i in range(50)}
    for schema, arguments in (
        ({"additionalProperties": False, "properties": many}, json.dumps({long: 1})),
        (tool(*many, **many), "{}"),
        (tool(a={"enum": [long] * 500}), json.dumps({"a": long})),
        (tool(a={"const": many}), json.dumps({"a": {long: long}})),
        ({"maxProperties": 0, "properties": many}, json.dumps(dict.fromkeys(many, 1))),
        ({"additionalProperties": {"type": "null"}}, json.dumps({long: 1})),
    ):
        found = check(schema, arguments)[1]
        assert found is None or len(found.sentence) < 8_000


# ---- hostile schemas


def chain(length: int, word: str):
    links = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}] * (2 if word == "anyOf" else 1)} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"required": ["z"]}}}


DEEP: dict = {"type": "string"}
for _ in range(2000):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no type"},
        {"properties": []},
        {"required": "a"},
        {"properties": {"a": 5}},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"pattern": "(((a{1,100}){1,100}){1,100}){1,100}"}}},
        {"properties": {str(i): {"pattern": "a{1,500}"} for i in range(1000)}},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"properties": {"a": {"$id": "http://a/b", "$ref": "#/c"}}},
        {"properties": {"a": {"$dynamicRef": "other.json#x"}}},
        chain(100, "allOf"),
        chain(15_000, "allOf"),
        chain(60, "anyOf"),
        DEEP,
        {"properties": {str(i): {} for i in range(30_000)}},
        *(
            {"anyOf": [way] * 400, "$defs": {"d": {"properties": {str(i): {} for i in range(300)}}}}
            for way in ({"$ref": "#/$defs/d"}, {"allOf": [{"allOf": [{"$ref": "#/$defs/d"}]}]})
        ),
        {"description": "x" * 3_000_000},
        {"a": object()},
        {"a": "\ud800"},
    ],
    ids=str.__class__,
)
def test_an_unusable_schema_is_not_validated_against(schema, monkeypatch):
    def refused(*_args, **_kwargs):
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr(socket, "socket", refused)
    begun = time.process_time()
    assert check(schema, '{"a": 1}') == ('{"a": 1}', None, ("schema_unusable",))
    assert check(schema, "[]")[1] is not None
    assert time.process_time() - begun < 2


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


TWICE = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["z"]}] * 2}
TREE = tool(label={"type": "string"}, a={"$ref": "#"}, kids={"type": "array", "items": {"$ref": "#"}})


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (chain(23, "anyOf"), '{"a": 1}'),
        (TWICE, nested(40)),
        (TREE, nested(200)),
        (TREE, nested(5000)),
        ({"items": {"enum": [[i] for i in range(10_000)]}, "properties": {"a": {"$ref": "#"}}}, '{"a": [' + "[1]," * 20_000 + "1]}"),
        (tool(a={"pattern": "(?=.*x)(?=y)"}), '{"a": "' + "ab" * 100_000 + '"}'),
        (tool(a={"pattern": r"(.)(.*)\1\1\1z"}), '{"a": "' + "ab" * 1_000 + '"}'),
        (tool(a={"pattern": "^[ab]*c$"}), '{"a": "' + "a" * 10_000_000 + '"}'),
        (tool(a={"type": "number"}), '{"a": 1e999}'),
        (tool(a={"type": "integer"}), '{"a": ' + "9" * 6000 + "}"),
        (tool(a={"type": "integer"}), r'{"a": "\ud800"}'),
    ],
    ids=range(11),
)  # fmt: skip
def test_validation_that_would_cost_too_much_is_skipped(schema, arguments):
    begun = time.process_time()
    assert check(schema, arguments) == (arguments, None, ("unchecked",))
    assert time.process_time() - begun < 2


def test_recursive_schemas_are_validated():
    assert check(TREE, '{"kids": [{"kids": [{"label": 5}]}]}') == (
        '{"kids": [{"kids": [{"label": "5"}]}]}',
        None,
        ("string_from_number",),
    )
    assert fault(TREE, '{"kids": [{"kids": [{"label": []}]}]}').place == "kids[0].kids[0].label"
    value = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/v"}}]}
    assert fault(tool(v={"$ref": "#/$defs/v"}) | {"$defs": {"v": value}}, '{"v": [["a", true]]}').place == "v[0][1]"


def test_a_schema_of_a_megabyte_is_validated():
    schema = tool("p1", **{f"p{i}": {"type": "integer", "description": "x" * 80} for i in range(8000)})
    begun = time.process_time()
    assert check(schema, '{"p1": "5"}') == ('{"p1": 5}', None, ("number_from_string",))
    assert fault(schema, '{"p1": []}').place == "p1"
    assert time.process_time() - begun < 2


def test_many_errors_take_bounded_time():
    schema = tool(n=INTEGERS)
    begun = time.process_time()
    assert check(schema, json.dumps({"n": ["5"] * 900})) == (
        json.dumps({"n": [5] * 900}),
        None,
        ("number_from_string",),
    )
    assert check(schema, json.dumps({"n": ["x"] * 8_000}))[1].place == "n[0]"
    assert check(schema, json.dumps({"n": ["x"] * 1_000_000}))[1].place == "n[0]"
    assert check(tool(n=NULLABLE), json.dumps({"n": {"a": [1] * 100_000}}))[1].message == "They do not validate."
    ways = {"anyOf": [{"anyOf": [{"anyOf": [{"type": "string", "maxLength": 0}] * 9}] * 9}] * 9}
    for schema in ({"items": ways}, ways, {"type": "array", "items": ways}):
        for count in (1, 5, 20, 400):
            wrong = check(tool(n=schema), json.dumps({"n": ["5"] * count}))[1]
            assert wrong is not None
    assert time.process_time() - begun < 5


def test_a_combinatorial_number_of_errors_is_not_fully_reported():
    """409 parts that each require 409 members: 167,281 errors from 34 KB of schema."""
    names = [f"p{number}" for number in range(409)]
    schema = {"type": "object", "allOf": [{"$ref": "#/$defs/d"}] * 409, "$defs": {"d": {"required": names}}}
    begun = time.process_time()
    wrong = check(schema, '{"a": "b"}')[1]
    assert wrong is not None
    assert wrong.message == 'The object lacks the required property "p0".'
    assert time.process_time() - begun < 1  # formerly 3 s


def test_boolean_schemas():
    assert Validator.of(True).check("{}") == ("{}", None, ())  # type: ignore[arg-type]
    assert Validator.of(False).check("{}")[1].message == "The object is not allowed."  # type: ignore[arg-type]
    assert Validator.of([]).check("{}")[2] == ("schema_unusable",)  # type: ignore[arg-type]


def test_the_number_of_cached_validators_is_bounded(monkeypatch):
    monkeypatch.setattr(validator, "_cache", LruCache(1000))
    first = Validator.of(tool(a={"title": "first"}))
    for number in range(20):
        assert Validator.of(tool(a={"title": "first"})) is first
        Validator.of(tool(a={"title": str(number)}))
    assert 500 < validator._cache.weight <= 1000
    for number in range(20):
        Validator.of(tool(a={"title": str(number)}))
    assert Validator.of(tool(a={"title": "first"})) is not first


def test_the_callers_schema_is_not_modified():
    schema = tool(a={"type": "string", "nullable": True, "format": "date"}) | {"$schema": "mine"}
    before = json.dumps(schema)
    check(schema, '{"a": 5}')
    assert json.dumps(schema) == before


# ---- any schema, any document

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "1", "true", "[1]", '{"a": "1"}', "x", 0.5])
)
NAMES = st.sampled_from(["a", "b", "$ref", "type", "x y"])
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
TYPES = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array"])


def objects(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "enum": st.lists(DOCUMENTS, min_size=1, max_size=3),
            "const": DOCUMENTS,
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "nullable": st.booleans(),
        },
    )


SCHEMAS = st.recursive(
    st.booleans()
    | st.sampled_from([{"$ref": "#"}, {"$ref": "#/properties/a"}, {}])
    | TYPES.map(lambda name: {"type": name}),
    objects,
    max_leaves=10,
)
ANYTHING = st.recursive(
    SCALARS | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "type", "properties", "required", "items", "anyOf", "$ref", "$id", "$defs", "pattern", "enum", "if", "then",
    ]), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def accepted_by_library(schema, arguments: str) -> bool:
    """Return whether the library alone accepts the arguments."""
    compiled = Validator.of(schema)._compiled
    return compiled is None or compiled.is_valid(json.loads(arguments))


@settings(max_examples=30, deadline=None)
@given(objects(SCHEMAS), st.dictionaries(NAMES, DOCUMENTS, max_size=4), st.sampled_from([None, 1]))
def test_valid_documents_are_unchanged_and_repaired_ones_validate(schema, document, indent):
    arguments = json.dumps(document, indent=indent)
    text, wrong, names = check(schema, arguments)
    assert "unchecked" not in names
    assert accepted_by_library(schema, text) == (wrong is None)
    if accepted_by_library(schema, arguments) or not names or "schema_unusable" in names:
        assert text is arguments
    if wrong is not None:
        assert wrong.message
        assert len(wrong.sentence) < 6_000


@settings(max_examples=50, deadline=None)
@given(ANYTHING, st.dictionaries(NAMES, DOCUMENTS, max_size=4).map(json.dumps) | st.text(max_size=20))
def test_nothing_raises(schema, arguments):
    text, wrong, names = check(schema, arguments)
    assert isinstance(text, str)
    assert "unchecked" not in names  # which would hide an exception
    assert wrong is None or wrong.sentence
