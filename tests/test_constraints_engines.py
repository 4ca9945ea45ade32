"""Engines let nothing pass under a constraint but what the parser reads, and what the schema allows as far as it goes.

Random sentences of real engines (`constraint_engines`) for the tools of MCP servers and agents (`tool_schemas.json`).
What a constraint does not say of a schema stands in a table of `docs/forcing.md`, which is the data of these tests.
"""

import copy
import json
import math
import random
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from constraint_engines import Llguidance, Refused, Xgrammar, sentence

from statemachine import FORMATS, parse
from statemachine.writing.bodies import parameter
from streamtool.constraints import call_schema, frame, grammar, structural_tag
from streamtool.constraints.call_frames import parameters_of
from streamtool.conversation import Tool
from streamtool.validation import schema_cost
from streamtool.validation.violations import SchemaViolation, violation_of

TESTS = Path(__file__).parent
SCHEMAS: dict[str, Any] = json.loads((TESTS / "tool_schemas.json").read_text(encoding="utf-8"))
JSON = [name for name in FORMATS if frame(name, "f").inside == "json"]
FREE = [name for name in FORMATS if frame(name, "f").inside == "free"]
READ = [name for name in FORMATS if name not in FREE]
ROW = re.compile(r"^\| ((?:`[^`|]+`(?:, )?)+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
EXCUSED = {
    "gitlab/get_merge_request": {"anyOf"},  # beside named members
    "google_calendar/create_event": {"oneOf"},
    "home_assistant/call_service": {"anyOf"},
    "jira/transition": {"additionalProperties"},  # beside `patternProperties`
}
"""Tools whose schemas have a keyword where it is not kept."""
UNIONS = {"generated/discriminated"}
"""Tools whose members differ from one alternative to the next, which marked parameters cannot say."""
KEY = "A-1"
"""What the pattern of `jira/transition` looks for, which chance does not write."""
ODD_KEYS = {("tag", "generated/odd_names"), ("minimax_m3", "generated/odd_names")}
"""Where a key is a tag of its own, it has to be a word."""


def left_out(column: int) -> set[str]:
    """The keywords that the table of the docs does not call kept."""
    page = (TESTS.parent / "docs" / "forcing.md").read_text(encoding="utf-8")
    section = page.partition("## What constraints leave out")[2].partition("\n## ")[0]
    return {
        word
        for row in ROW.finditer(section)
        if row[column + 1].strip() != "kept"
        for word in re.findall(r"`([^`]+)`", row[1])
    }


SCHEMA_GAPS, GRAMMAR_GAPS = left_out(1), left_out(2)


@pytest.fixture(scope="module", params=[Xgrammar, Llguidance], ids=["xgrammar", "llguidance"])
def engine(request: pytest.FixtureRequest) -> Xgrammar | Llguidance:
    return loaded(request.param)


@pytest.fixture(scope="module")
def xgrammar() -> Xgrammar:
    return loaded(Xgrammar)


def loaded(kind: Any) -> Any:
    pytest.importorskip(kind.__name__.lower())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the engines import warns of is theirs
        return kind()


def tool(name: str) -> Tool:
    return Tool(name.partition("/")[2], parameters=SCHEMAS[name])


def some(format: str, count: int = 5) -> list[str]:
    """Tools for a format, other ones for each."""
    return random.Random(format).sample(sorted(SCHEMAS), count)


def closers(format: str, one: Tool) -> list[str]:
    """What ends values and calls, for sentences that have grown long."""
    found = [frame(format, one.name).end or "\n", KEY]
    if frame(format, one.name).inside == "parameters":
        form, body = parameters_of(format)
        keys = [*(one.parameters or {}).get("properties", {}), "key"]
        found += [parameter(form, body, key, "hole", "hole").rpartition("hole")[2] for key in keys]
    return found


def sentences(engine: Any, compiled: Any, format: str, one: Tool, count: int) -> Iterator[str]:
    """Random sentences; most of them come to an end."""
    found = [
        sentence(engine.matcher(compiled), random.Random(f"{format} {one.name} {seed}"), closers(format, one))
        for seed in range(count)
    ]
    assert any(text is not None for text in found)
    yield from filter(None, found)


def violations(name: str, arguments: Any) -> list[SchemaViolation]:
    """What is wrong with arguments."""
    schema = copy.deepcopy(SCHEMAS[name])
    schema_cost.prepare(schema)  # `nullable` as the validator takes it
    validator = jsonschema_rs.validator_for({"type": "object", **schema})
    return [violation_of(error) for error in validator.iter_errors(arguments)]


def excused(one: SchemaViolation, gaps: set[str]) -> bool:
    """Whether a violation comes from what a constraint leaves out; of alternatives, all that is wrong in one of them."""
    path = ["", *map(str, one.path), one.keyword]
    words = {word for at, word in pairwise(path) if at not in ("properties", "$defs", "definitions")}
    return bool(words & gaps) or any(all(excused(leaf, gaps) for leaf in branch) for branch in one.branches)


def reads(text: str, name: str, one: Tool, listens: str, gaps: set[str]) -> None:
    """The parser reads the sentence as one call, and nothing is wrong with it but what the gaps allow."""
    said, calls = parse(text, {one.name: one.parameters or {}}, formats=[listens])
    assert (said, [(call.name, call.complete) for call in calls]) == ("", [(one.name, True)]), text
    arguments = json.loads(calls[0].arguments)
    assert isinstance(arguments, dict)
    if _beyond_judging(arguments):
        return
    allowed = gaps - {"anyOf", "oneOf"} | EXCUSED.get(name, set())
    if frame(listens, one.name).inside == "parameters" and name in UNIONS:
        allowed |= {"oneOf"}
    assert [one for one in violations(name, arguments) if not excused(one, allowed)] == [], text


def _beyond_judging(value: Any) -> bool:
    """A number that no float holds, or half of a surrogate pair, which the library cannot look at."""
    match value:
        case float():
            return math.isinf(value)
        case str():
            return re.search("[\ud800-\udfff]", value) is not None
        case dict():
            return any(_beyond_judging(part) for pair in value.items() for part in pair)
        case list():
            return any(map(_beyond_judging, value))
    return False


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_of_a_call(engine: Any, name: str):
    for format in ("tool_call", "llama3", "action_object"):
        compiled = engine.schema(call_schema([tool(name)], format))
        listens = format if format == "action_object" else "object"
        for text in sentences(engine, compiled, format, tool(name), 4):
            reads(text, name, tool(name), listens, SCHEMA_GAPS)


def test_a_schema_of_many_tools(engine: Any):
    by_name = {tool(name).name: name for name in SCHEMAS}
    offered = [tool(name) for name in by_name.values()]
    compiled = engine.schema(call_schema(offered, "tool_call"))
    for seed in range(30):
        text = sentence(engine.matcher(compiled), random.Random(seed))
        if text is not None:
            name = by_name[json.loads(text, strict=False)["name"]]
            reads(text, name, tool(name), "object", SCHEMA_GAPS)


@pytest.mark.parametrize("format", JSON)
def test_a_structural_tag(xgrammar: Xgrammar, format: str):
    for name in SCHEMAS if format == "tool_call" else some(format):
        one = tool(name)
        compiled = xgrammar.structural_tag(structural_tag([one], format, forced=True, parallel=False))
        for text in sentences(xgrammar, compiled, format, one, 3):
            reads(text.removesuffix("\n"), name, one, format, SCHEMA_GAPS)


@pytest.mark.parametrize("format", READ)
def test_a_grammar(engine: Any, format: str):
    for name in SCHEMAS if format in ("tool_call", "invoke") else some(format):
        if (format, name) in ODD_KEYS:
            continue
        made = grammar([tool(name)], format, forced=True, parallel=False, lazy=False)
        assert made is not None
        for text in sentences(engine, engine.grammar(made[0]), format, tool(name), 3):
            reads(text, name, tool(name), format, GRAMMAR_GAPS)


@pytest.mark.parametrize("format", FREE)
def test_free_arguments_are_taken(xgrammar: Xgrammar, format: str):
    offered = [tool(name) for name in some(format)]
    xgrammar.structural_tag(structural_tag(offered, format, forced=True, parallel=True))
    made = grammar(offered, format, forced=True, parallel=True, lazy=False)
    assert made is not None
    xgrammar.grammar(made[0])


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("uniqueItems", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        ("not", {"type": "string", "not": {"enum": ["a"]}}),
        ("if", {"if": {"type": "string"}, "then": {"minLength": 1}}),
    ],
)
def test_what_an_engine_refuses_is_left_out(keyword: str, schema: Any):
    llguidance = loaded(Llguidance)
    with pytest.raises(Refused, match=keyword):
        llguidance.schema({"type": "object", "properties": {"x": schema}})
    offered = [Tool("f", parameters={"type": "object", "properties": {"x": schema}})]
    llguidance.schema(call_schema(offered, "tool_call"))


def test_the_tools_have_what_real_tools_have():
    assert len(SCHEMAS) == 67
    text = json.dumps(SCHEMAS)
    for word in ("$ref", "enum", "anyOf", "oneOf", "allOf", "pattern", "minimum", "prefixItems", "nullable", "const"):
        assert f'"{word}"' in text
