"""Constraints are derived from the table of formats and the tools; the parser reads every sentence they allow."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from support.gbnf import grammar
from support.sweeps import each

from statemachine import FORMATS, ArgumentsDelta, Call, CallStart, Parser, TextDelta, parse, write
from statemachine.formats.markers import spell
from statemachine.schema import SchemaWalker
from statemachine.writing.bodies import parameter
from streamtool.core.conversation import Tool
from streamtool.forcing import CallFrame, call_grammar, call_schema, call_structural_tag, frame
from streamtool.forcing.call_frames import allows_several, parameters_of, separator

names = each("format", FORMATS)
JSON = [name for name in FORMATS if frame(name, "f").inside == "json"]
MARKED = [name for name in FORMATS if frame(name, "f").inside == "parameters"]
KEYWORDS = [name for name in FORMATS if frame(name, "f").inside == "keywords"]
FREE = [name for name in FORMATS if frame(name, "f").inside == "free"]

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "depth": {"type": "integer"}},
    "required": ["root"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"],
        }
    },
}
X = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
PING = Tool("ping", parameters=X)
PONG = Tool("pong", parameters={"type": "object", "properties": {}, "additionalProperties": False})


# --- random tools

words = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
leaves = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["integer", "null"]},
        {"type": "string", "minLength": 1, "maxLength": 4},
        {"enum": ["celsius", 'fahren"heit', "<b>"]},
        {"type": "string", "enum": ["one", "two"]},
        {"const": 7},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"$ref": "#/$defs/node"},
        {},
    ]
)


def objects(inner: Any) -> Any:
    return st.dictionaries(words, inner, min_size=1, max_size=4).flatmap(
        lambda found: st.sets(st.sampled_from(list(found))).map(
            lambda required: {"type": "object", "properties": found, "required": sorted(required)}
        )
    )


values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, st.integers(0, 2)),
    ),
    max_leaves=5,
)
schemas = objects(values).map(lambda schema: {**schema, "$defs": TREE["$defs"]}) | st.just(TREE)
tools = st.dictionaries(words, schemas | st.none(), min_size=1, max_size=3).map(
    lambda found: [Tool(name, parameters=schema) for name, schema in found.items()]
)


def known(format: str, offered: list[Tool]) -> list[Tool]:
    """Return the tools; where names are markers, always with the same names, since each set of them needs its own
    parser.
    """
    return [evolve(offered[0], name="ping")] if format == "tag" else offered


def schemas_of(offered: list[Tool]) -> dict[str, Any]:
    return {tool.name: tool.parameters or {} for tool in offered}


def called(format: str, text: str, offered: list[Tool]) -> tuple[Tool, CallFrame]:
    """Return the called tool, found by the beginning of the text; the longest match, since a name may be a prefix of
    another.
    """
    framed = [(tool, frame(format, tool.name)) for tool in offered]
    return max((pair for pair in framed if text.startswith(pair[1].begin)), key=lambda pair: len(pair[1].begin))


def sentences(data: st.DataObject, text: str, **options: Any) -> str:
    chance = data.draw(st.randoms(use_true_random=False))
    return grammar(text).sentence(chance.randrange, **options)


def read_marked(format: str, inner: str, schema: Any) -> dict[str, Any]:
    """Return the arguments of marked parameters, read by searching for the markers that the writer produces."""
    form, body = parameters_of(format)
    found: dict[str, Any] = {}
    if form.lines:
        inner = inner.removeprefix("\n")
    samples = {"integer": 0, "number": 0.5, "boolean": True, "null": None, "object": {}, "array": []}
    walker = SchemaWalker(schema)
    while inner:
        for key, value in schema["properties"].items():
            kinds = walker.types(value)
            for kind in ["string"] if "string" in kinds else [kind for kind in samples if kind in kinds]:
                begin, _, end = parameter(form, body, key, samples.get(kind, "hole"), "hole").rpartition("hole")
                if inner.startswith(begin) and key not in found:
                    text = inner[len(begin) :]
                    if kind == "string":
                        found[key], _, inner = text.partition(end)
                        inner = inner.removeprefix("\n") if form.lines else inner
                        break
                    try:
                        found[key], at = json.JSONDecoder().raw_decode(text)
                    except ValueError:
                        continue
                    assert text[at:].startswith(end)
                    inner = text[at + len(end) :]
                    inner = inner.removeprefix("\n") if form.lines else inner
                    break
            else:
                continue
            break
        else:
            raise AssertionError(inner)
    return found


# --- grammars


@each("format", JSON)
@given(data=st.data(), offered=tools)
@hypothesis(max_examples=3)
def test_every_sentence_of_a_grammar_parses_to_its_call(format: str, data: st.DataObject, offered: list[Tool]):
    made = call_grammar(offered, format, forced=True, parallel=False, lazy=False)
    assert made is not None
    assert made[1] == ()
    text = sentences(data, made[0])
    tool, around = called(format, text, offered)
    assert text.endswith(around.end)
    arguments = json.loads(text[len(around.begin) : len(text) - len(around.end)])
    jsonschema_rs.validate(tool.parameters or {}, arguments)
    said, calls = parse(text, schemas_of(offered), formats=[format])
    assert said == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [(tool.name, arguments)]


@pytest.mark.parametrize("format", MARKED)
@given(data=st.data(), offered=tools)
@hypothesis(max_examples=3)
def test_every_sentence_of_marked_parameters_parses_to_its_call(format: str, data: st.DataObject, offered: list[Tool]):
    offered = known(format, [tool for tool in offered if tool.parameters] or [PING])
    made = call_grammar(offered, format, forced=True, parallel=False, lazy=False)
    assert made is not None
    text = sentences(data, made[0])
    tool, around = called(format, text, offered)
    arguments = read_marked(format, text[len(around.begin) : len(text) - len(around.end)], tool.parameters)
    said, calls = parse(text, schemas_of(offered), formats=[format])
    assert said == ""
    (call,) = calls
    assert call.name == tool.name
    walker = SchemaWalker(tool.parameters)
    kinds = {key: walker.types(value) for key, value in tool.parameters["properties"].items()}
    open_ = {key for key, found in kinds.items() if found > {"string"}}  # raw values of any type
    got = json.loads(call.arguments)
    assert got.keys() == arguments.keys()
    assert {key: got[key] for key in got.keys() - open_} == {key: arguments[key] for key in got.keys() - open_}


@pytest.mark.parametrize("format", KEYWORDS)
@given(data=st.data(), offered=tools)
@hypothesis(max_examples=3)
def test_every_sentence_of_keyword_arguments_parses_to_its_call(format: str, data: st.DataObject, offered: list[Tool]):
    made = call_grammar(offered, format, forced=True, parallel=False, lazy=False)
    assert made is not None
    text = sentences(data, made[0])
    tool, around = called(format, text, offered)
    assert text.endswith(around.end)
    said, calls = parse(text, schemas_of(offered), formats=[format])
    assert said == ""
    (call,) = calls
    assert (call.name, call.complete) == (tool.name, True)
    jsonschema_rs.validate(tool.parameters or {}, json.loads(call.arguments))


def options(format: str) -> tuple[str, str]:
    """Return a grammar of free text and calls, and one that starts at a trigger."""
    made = [call_grammar([PING, PONG], format, forced=False, parallel=True, lazy=lazy) for lazy in (False, True)]
    assert made[0] is not None
    assert made[1] is not None
    assert made[0][1] == ()
    assert set(made[1][1]) == {frame(format, tool.name).trigger for tool in (PING, PONG)}
    return made[0][0], made[1][0]


@names
def test_calls_may_follow_text_and_other_calls(format: str):
    free, lazy = (grammar(text) for text in options(format))
    one = write([Call("ping", '{"x": 1}')], format)
    two = one + separator(format) + write([Call("pong", "{}")], format)
    text = "Let me see.\n"
    assert free.accepts(text)
    assert free.accepts(text + one)
    assert lazy.accepts(one)
    assert not lazy.accepts(text)
    assert free.accepts(text + two) == lazy.accepts(two) == allows_several(format)
    if allows_several(format):
        assert [call.name for call in parse(two, schemas_of([PING, PONG]), formats=[format])[1]] == ["ping", "pong"]
    other = one.replace("ping", "peng")
    assert not lazy.accepts(other)
    assert free.accepts(text + other) == frame(format, "ping").trigger.__contains__("ping")
    if frame(format, "ping").inside != "free":
        assert not free.accepts(text + write([Call("ping", '{"x": "one"}')], format))
        assert not free.accepts(text + write([Call("ping", '{"y": 1}')], format))


@names
def test_free_text_is_any_text_without_the_start_of_a_call(format: str):
    rules = grammar(options(format)[0])
    for text in ("", "<", "a < b\n\n> c {} [x] ``` @you <tool", "mail me@ping.org", "Äh 🌡\n"):
        assert rules.accepts(text)
    for seed in range(10):
        text = rules.sentence(random.Random(seed).randrange, 60)
        assert rules.accepts(text)


def test_a_grammar_expresses_a_schema():
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
    }
    made = call_grammar([Tool("f", parameters=schema)], "tool_call", forced=True, parallel=False, lazy=False)
    assert made is not None
    assert made[0].splitlines() == [
        "root ::= r5",
        r'ws ::= ( " " | "\n" [ \t]{0,20} )?',
        'integer ::= "-"? ( "0" | [1-9] [0-9]{0,15} )',
        r'r2 ::= "," ws "\"unit\":" ws ( "\"C\"" | "\"F\"" )',
        r'r3 ::= ( "," ws "\"x\":" ws integer )? r2',
        r'r4 ::= "{" ws ( "\"x\":" ws integer r2 | "\"unit\":" ws ( "\"C\"" | "\"F\"" ) ) ws "}"',
        r'r5 ::= "<tool_call>\n{\"name\": \"f\", \"arguments\": " r4 "}\n</tool_call>"',
    ]


OPEN = Tool("f", parameters={"type": "object"})
NUMBERS = Tool("f", parameters={"type": "object", "additionalProperties": {"type": "number"}})


@each("format", MARKED)
@each("tool", [OPEN, NUMBERS, PONG], ids=["open", "numbers", "closed"])
@given(data=st.data())
@hypothesis(max_examples=5)
def test_a_tool_without_named_parameters_gets_a_grammar_that_the_parser_reads(
    format: str, tool: Tool, data: st.DataObject
):
    made = call_grammar([tool], format, forced=True, parallel=False, lazy=False)
    assert made is not None
    rules = grammar(made[0])
    assert rules.accepts(write([Call(tool.name, "{}")], format))
    around = frame(format, tool.name)
    assert not rules.accepts(f"{around.begin}l{around.end}")
    text = sentences(data, made[0])
    said, calls = parse(text, schemas_of([tool]), formats=[format])
    assert (said, [(call.name, call.complete) for call in calls]) == ("", [(tool.name, True)])
    jsonschema_rs.validate(tool.parameters, json.loads(calls[0].arguments))


@pytest.mark.parametrize("format", MARKED)
def test_a_value_cannot_contain_the_closer_of_its_call(format: str):
    tool = Tool("f", parameters={"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]})
    made = call_grammar([tool], format, forced=True, parallel=False, lazy=False)
    assert made is not None
    whole = write([Call("f", '{"x": "hole"}')], format)
    closer = spell(FORMATS[format].close).replace("{tool}", "f")
    assert closer in whole
    assert grammar(made[0]).accepts(whole)
    assert not grammar(made[0]).accepts(whole.replace("hole", f"a{closer}b"))


NESTED: Any = {"type": "string"}
for _ in range(400):
    NESTED = {"type": "object", "properties": {"in": NESTED}}
WIDE = {"type": "object", "properties": {f"p{i}": {"enum": [f"{i}-{j}" for j in range(200)]} for i in range(300)}}
CYCLE = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#"}},
}
LOOP = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": CYCLE["$defs"]}
ODD = {
    "type": "object",
    "properties": {
        "a": True,
        "b": {"type": "nonsense"},
        "c": {"type": ["string", 7]},
        "d": {"$ref": "https://elsewhere"},
        "e": {"items": 3},
        "f": {"allOf": [{"properties": {"y": {"const": None}}}, {"required": ["y"]}, 7]},
        "g": {"type": "string", "minLength": 9, "maxLength": 2},
        "h": {"prefixItems": [{"type": "null"}]},
        '"i\n': {"type": "array", "maxItems": 0},
    },
    "required": ["a", "missing", 5],
}


@pytest.mark.parametrize("schema", [NESTED, WIDE, CYCLE, LOOP, ODD, {"type": "array"}], ids=range(6))
@pytest.mark.parametrize("format", ["tool_call", "qwen3_coder", "pythonic"])
def test_a_schema_that_cannot_be_expressed_becomes_any_object(schema: Any, format: str):
    tool = Tool("f", parameters=schema)
    made = call_grammar([tool], format, forced=True, parallel=False, lazy=False)
    assert made is not None
    assert len(made[0]) < 250_000
    for seed in range(5):
        text = grammar(made[0]).sentence(random.Random(seed).randrange, 100)
        assert [call.name for call in parse(text, {"f": {}}, formats=[format])[1]] == ["f"] or format != "tool_call"
    json.dumps([call_schema([tool, PING], format), call_structural_tag([tool], format, forced=True, parallel=True)])


def test_too_many_tools_give_no_free_text_grammar():
    offered = [Tool(f"tool_number_{i}") for i in range(1000)]
    assert call_grammar(offered, "tag", forced=False, parallel=True, lazy=False) is None
    assert call_grammar(offered, "tool_call", forced=False, parallel=True, lazy=False) is not None


# --- schemas


def sample(schema: Any, root: Any, choose: random.Random, depth: int = 0) -> Any:
    """Return a value that fits one of the schemas generated here."""
    if "$ref" in schema:
        place = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            place = place[step] if step else place
        return sample(place, root, choose, depth + 1)
    for key in ("anyOf", "enum"):
        if key in schema:
            chosen = choose.choice(schema[key])
            return chosen if key == "enum" else sample(chosen, root, choose, depth + 1)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "null")
    match choose.choice(kind) if isinstance(kind, list) else kind:
        case "object":
            given = schema.get("properties", {})
            return {
                key: sample(value, root, choose, depth + 1)
                for key, value in given.items()
                if key in schema.get("required", ()) or (depth < 6 and choose.random() < 0.5)
            }
        case "array":
            count = schema.get("minItems", 0) + (choose.randrange(3) if depth < 6 else 0)
            return [sample(schema["items"], root, choose, depth + 1) for _ in range(count)]
        case "string":
            return "".join(choose.choices('ab <>"\\\n/{}é', k=choose.randrange(1, 5)))
        case "integer":
            return choose.randrange(-5, 1000)
        case "number":
            return choose.randrange(100) / 8
        case "boolean":
            return choose.random() < 0.5
    return None


@names
@given(offered=tools, seed=st.integers(0, 99))
@hypothesis(max_examples=3)
def test_every_object_of_a_call_schema_parses_to_its_call(format: str, offered: list[Tool], seed: int):
    schema = call_schema(offered, format)
    value = sample(schema, schema, random.Random(seed))
    jsonschema_rs.validate(schema, value)
    formats = [format if format == "action_object" else "object"]
    said, calls = parse(json.dumps(value), schemas_of(offered), formats=formats)
    assert (said, len(calls)) == ("", 1)
    inner = value.get("action", value)
    name, arguments = (found for key, found in inner.items() if key != "thought")
    assert (calls[0].name, json.loads(calls[0].arguments)) == (name, arguments)
    assert calls[0].name in schemas_of(offered)


def test_definitions_are_moved_to_the_top_of_the_call_schema():
    node = {
        "type": "object",
        "properties": {"value": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/part_0"}}},
        "required": ["value"],
        "additionalProperties": False,
    }
    assert call_schema([PING, Tool("tree", parameters=TREE)], "llama3")["$defs"] == {"part_0": node}
    two = call_schema([Tool("tree", parameters=TREE), Tool("wood", parameters=TREE)], "llama3")
    assert list(two["$defs"]) == ["part_0", "part_1"]


def test_a_call_uses_the_keys_of_its_format():
    assert call_schema([PING], "llama3") == {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": ["ping"]}, "parameters": PING.parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    raw = call_schema([Tool("run", custom=True)], "tool_call")["properties"]["arguments"]
    assert raw["properties"] == {"input": {"type": "string"}}


# --- structural tags


@names
@given(offered=tools, seed=st.integers(0, 99))
@hypothesis(max_examples=3)
def test_every_tag_parses_to_its_call(format: str, offered: list[Tool], seed: int):
    choose, offered = random.Random(seed), known(format, offered)
    made = call_structural_tag(offered, format, forced=True, parallel=False)["format"]
    assert (made["at_least_one"], made["stop_after_first"]) == (True, True)
    for tag in made["tags"]:
        assert sum(tag["begin"].startswith(trigger) for trigger in made["triggers"]) == 1
        assert tag["end"]
        if tag["content"]["type"] != "json_schema":
            assert frame(format, "f").inside != "json"
            continue
        schema = tag["content"]["json_schema"]
        arguments = sample(schema, schema, choose)
        text = f"{tag['begin']}{json.dumps(arguments)}{tag['end']}"
        said, calls = parse(f"Well.\n{text}", schemas_of(offered), formats=[format])
        if format == "action_object":
            continue  # a reply is a single object in this format
        assert said.strip() == "Well."
        assert [json.loads(call.arguments) for call in calls] == [arguments]


def test_a_structural_tag_in_the_form_that_servers_accept():
    assert call_structural_tag([PING], "tool_call", forced=False, parallel=True) == {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<tool_call>"],
            "tags": [
                {
                    "type": "tag",
                    "begin": '<tool_call>\n{"name": "ping", "arguments": ',
                    "content": {"type": "json_schema", "json_schema": PING.parameters},
                    "end": "}\n</tool_call>",
                }
            ],
            "at_least_one": False,
            "stop_after_first": False,
        },
    }


# --- prefills


@names
@each("named", [True, False])
def test_the_text_after_a_prefill_completes_the_call(format: str, named: bool):
    around = frame(format, "ping")
    beginning = (around.begin if named else around.lead).rstrip()
    whole = write([Call("ping", '{"x": 1}')], format)
    assert whole.startswith(beginning)
    parser = Parser({"ping": PING.parameters or {}}, formats=[format], prefix=beginning)
    events = [event for piece in whole[len(beginning) :] for event in parser.feed(piece)] + parser.close()
    assert [event for event in events if isinstance(event, TextDelta)] == []
    assert [event.name for event in events if isinstance(event, CallStart)] == ["ping"]
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '{"x": 1}'
