"""Under a constraint, engines allow only text that the parser reads, and that the schema allows as far as supported.

Random sentences of real engines (`constraint_engines`) for the tools of MCP servers and agents (`tool_schemas.json`).
A table of `docs/when-the-model-does-not-call.md` lists what a constraint leaves out of a schema; it is the data of
these tests.
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
from support.constraint_engines import Llguidance, Refused, Xgrammar, sentence
from support.sweeps import each

from statemachine import FORMATS, parse
from statemachine.writing.bodies import parameter
from streamtool.core.conversation import Tool
from streamtool.forcing import call_grammar, call_schema, call_structural_tag, frame
from streamtool.forcing.call_frames import parameters_of
from streamtool.forcing.continuation import rest_grammar
from streamtool.schemas import cost as schema_cost
from streamtool.schemas.violations import SchemaViolation, violation_of

TESTS = Path(__file__).parent.parent
SCHEMAS: dict[str, Any] = json.loads((TESTS / "support" / "tool_schemas.json").read_text(encoding="utf-8"))
JSON = [name for name in FORMATS if frame(name, "f").inside == "json"]
FREE = [name for name in FORMATS if frame(name, "f").inside == "free"]
READ = [name for name in FORMATS if name not in FREE]
ROW = re.compile(r"^\| ((?:`[^`|]+`(?:, )?)+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
EXCUSED = {
    "gitlab/get_merge_request": {"anyOf"},  # next to named members
    "google_calendar/create_event": {"oneOf"},
    "home_assistant/call_service": {"anyOf"},
    "jira/transition": {"additionalProperties"},  # next to `patternProperties`
}
"""Tools whose schemas have a keyword in a place where it is not kept."""
UNIONS = {"generated/discriminated"}
"""Tools whose members differ between alternatives, which marked parameters cannot express."""
KEY = "A-1"
"""Literal required by the pattern of `jira/transition`, which random generation never produces."""
ODD_KEYS = {("tag", "generated/odd_names"), ("minimax_m3", "generated/odd_names")}
"""Formats in which a key is a tag and so has to be a word."""


def left_out(column: int) -> set[str]:
    """Keywords that the table of the docs does not list as kept."""
    page = (TESTS.parent / "docs" / "when-the-model-does-not-call.md").read_text(encoding="utf-8")
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
        warnings.simplefilter("ignore")  # warnings from the engines' own imports
        return kind()


def tool(name: str) -> Tool:
    return Tool(name.partition("/")[2], parameters=SCHEMAS[name])


def some(format: str, count: int = 2) -> list[str]:
    """Return tools for a format; each format gets different ones."""
    return random.Random(format).sample(sorted(SCHEMAS), count)


def closers(format: str, one: Tool) -> list[str]:
    """Return the strings that end values and calls, for sentences that have grown long."""
    found = [frame(format, one.name).end or "\n", KEY]
    if frame(format, one.name).inside == "parameters":
        form, body = parameters_of(format)
        keys = [*(one.parameters or {}).get("properties", {}), "key"]
        found += [parameter(form, body, key, "hole", "hole").rpartition("hole")[2] for key in keys]
    return found


def sentences(engine: Any, compiled: Any, format: str, one: Tool, count: int) -> Iterator[str]:
    """Return random sentences, most of them complete."""
    found = [
        sentence(engine.matcher(compiled), random.Random(f"{format} {one.name} {seed}"), closers(format, one))
        for seed in range(count)
    ]
    assert any(text is not None for text in found)
    yield from filter(None, found)


def violations(name: str, arguments: Any) -> list[SchemaViolation]:
    """Yield the schema violations of arguments."""
    schema = copy.deepcopy(SCHEMAS[name])
    schema_cost.measure_cost(schema)  # `nullable` as the validator interprets it
    validator = jsonschema_rs.validator_for({"type": "object", **schema})
    return [violation_of(error) for error in validator.iter_errors(arguments)]


def excused(one: SchemaViolation, gaps: set[str]) -> bool:
    """Return whether a violation is due to a keyword that the constraint leaves out; for alternatives, all violations
    of one.
    """
    path = ["", *map(str, one.path), one.keyword]
    words = {word for at, word in pairwise(path) if at not in ("properties", "$defs", "definitions")}
    return bool(words & gaps) or any(all(excused(leaf, gaps) for leaf in branch) for branch in one.branches)


def reads(text: str, name: str, one: Tool, listens: str, gaps: set[str]) -> None:
    """Check that the parser reads the sentence as one call whose only violations are due to known gaps."""
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
    """Return whether arguments contain a number beyond any float, or an unpaired surrogate, which the library cannot
    handle.
    """
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


@each("name", SCHEMAS)
def test_a_schema_of_a_call(engine: Any, name: str):
    for format in ("tool_call", "llama3", "action_object"):
        compiled = engine.schema(call_schema([tool(name)], format))
        listens = format if format == "action_object" else "object"
        for text in sentences(engine, compiled, format, tool(name), 2):
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


@each("format", JSON)
def test_a_structural_tag(xgrammar: Xgrammar, format: str):
    for name in SCHEMAS if format == "tool_call" else some(format):
        one = tool(name)
        compiled = xgrammar.structural_tag(call_structural_tag([one], format, forced=True, parallel=False))
        for text in sentences(xgrammar, compiled, format, one, 3):
            reads(text.removesuffix("\n"), name, one, format, SCHEMA_GAPS)


@each("format", READ)
def test_a_grammar(engine: Any, format: str):
    for name in SCHEMAS if format == "invoke" else some(format):
        if (format, name) in ODD_KEYS:
            continue
        made = call_grammar([tool(name)], format, forced=True, parallel=False, lazy=False)
        assert made is not None
        for text in sentences(engine, engine.grammar(made[0]), format, tool(name), 2):
            reads(text, name, tool(name), format, GRAMMAR_GAPS)


@pytest.mark.parametrize("format", FREE)
def test_engines_accept_free_arguments(xgrammar: Xgrammar, format: str):
    offered = [tool(name) for name in some(format)]
    xgrammar.structural_tag(call_structural_tag(offered, format, forced=True, parallel=True))
    made = call_grammar(offered, format, forced=True, parallel=True, lazy=False)
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
def test_keywords_that_an_engine_rejects_are_left_out(keyword: str, schema: Any):
    llguidance = loaded(Llguidance)
    with pytest.raises(Refused, match=keyword):
        llguidance.schema({"type": "object", "properties": {"x": schema}})
    offered = [Tool("f", parameters={"type": "object", "properties": {"x": schema}})]
    llguidance.schema(call_schema(offered, "tool_call"))


def test_the_tools_cover_the_keywords_of_real_tools():
    assert len(SCHEMAS) == 67
    text = json.dumps(SCHEMAS)
    for word in ("$ref", "enum", "anyOf", "oneOf", "allOf", "pattern", "minimum", "prefixItems", "nullable", "const"):
        assert f'"{word}"' in text


@pytest.mark.long
@each("format", READ)
def test_the_grammar_of_a_rest(engine: Any, format: str):
    check_rest(engine, format)


@each("format", ["tool_call", "invoke", "pythonic"])
def test_the_grammar_of_a_rest_in_a_few_formats(engine: Any, format: str):
    check_rest(engine, format)


def check_rest(engine: Any, format: str) -> None:
    """Check that after a beginning, the same bytes may follow in the whole grammar and in that of the rest."""
    chance = random.Random(format)
    (name,) = some(format, 1)
    if (format, name) in ODD_KEYS:
        return
    made = call_grammar([tool(name)], format, forced=True, parallel=chance.random() < 0.5, lazy=False)
    assert made is not None
    whole = engine.grammar(made[0])
    for text in sentences(engine, whole, format, tool(name), 3):
        cut = chance.randrange(len(text) + 1)
        again = text[max(0, cut - chance.randrange(5)) : cut]
        rest = rest_grammar(made[0], text[:cut], again)
        assert rest is not None
        before, after = engine.matcher(whole), engine.matcher(engine.grammar(rest))
        for byte in text[:cut].encode():
            before.take(byte)
        for byte in again.encode():
            assert list(after.allowed()) == [byte]
            after.take(byte)
        following = text[cut:].encode()
        for at, byte in enumerate(following):
            if at < 3 or chance.random() < 0.05:
                assert set(after.allowed()) == set(before.allowed())
            before.take(byte)
            after.take(byte)
        assert set(after.allowed()) == set(before.allowed())
