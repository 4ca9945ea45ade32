"""BFCL's own right answers pass its own checker in our scenarios, and wrong ones fail."""

import ast
import json
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import trio

from statemachine import Call, write
from streamtool.core.conversation import Tool
from streamtool.evaluation import bfcl_multi_turn as multi_turn
from streamtool.evaluation.bfcl import CATEGORIES, scenarios
from streamtool.evaluation.judge import advance, begin, judge
from streamtool.evaluation.measure import Measurement
from streamtool.evaluation.scenario import MadeCall, Scenario
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, text

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed"),
]
needs_mpmath = pytest.mark.skipif(util.find_spec("mpmath") is None, reason="mpmath is not installed")
SINGLE_TURN = 3_491
MULTI_TURN = 200
DISPUTED = 30
"""Maximum number of right answers that their own checker rejects: they contradict the schema of their tool."""


def verdict(scenario: Scenario, calls: list[MadeCall]) -> bool:
    return judge(scenario, advance(scenario, begin(scenario), calls, "")).right


def answers(scenario: Scenario, truth: Any) -> list[MadeCall]:
    """Return right calls: the first accepted value of each parameter that need not be left out."""
    return [
        MadeCall(name.replace(".", "_"), json.dumps(first_of(accepted)))
        for call in truth
        for name, accepted in call.items()
    ]


def first_of(accepted: Any) -> Any:
    given = {name: [one for one in ways if one != ""] for name, ways in accepted.items()}
    return {name: nested(ways[0]) for name, ways in given.items() if ways}


def nested(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(one, list) for one in value.values()):
        return first_of(value)
    return [nested(one) for one in value] if isinstance(value, list) else value


def truths() -> dict[str, Any]:
    spec = util.find_spec("bfcl_eval")
    assert spec is not None
    (root,) = spec.submodule_search_locations or ()
    rows = (
        json.loads(line)
        for category in (*CATEGORIES, *multi_turn.CATEGORIES)
        if (file := Path(root) / "data" / "possible_answer" / f"BFCL_v4_{category}.json").exists()
        for line in file.read_text(encoding="utf-8").splitlines()
    )
    return {row["id"]: row["ground_truth"] for row in rows}


def test_right_answers_pass_and_wrong_ones_fail():
    known, disputed, count = truths(), [], 0
    for scenario in scenarios():
        count += 1
        if scenario.name not in known:
            silent = not scenario.steps
            assert verdict(scenario, []) == silent
            assert verdict(scenario, [MadeCall("anything", "{}")]) != silent
            continue
        right = answers(scenario, known[scenario.name])
        if not verdict(scenario, right):
            disputed.append(scenario.name)
        assert not verdict(scenario, [])
        assert not verdict(scenario, [*right, right[0]])
        assert not verdict(scenario, [MadeCall("unknown", right[0].arguments), *right[1:]])
    assert count == SINGLE_TURN
    assert len(disputed) <= DISPUTED, disputed


def written(source: str, tools: Sequence[Tool]) -> Call:
    """Return a right call, which the data set writes as Python, with the names of its positional arguments."""
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    schema = next(tool.parameters for tool in tools if tool.name == name)
    positional = zip((schema or {})["properties"], call.args, strict=False)
    named = ((keyword.arg, keyword.value) for keyword in call.keywords)
    return Call(name, json.dumps({key: ast.literal_eval(value) for key, value in (*positional, *named)}))


async def conducted(scenario: Scenario, turns: Sequence[Sequence[str]]) -> bool:
    """Return whether a model that makes these calls, each in a separate reply, is right."""
    scripts = []
    for turn in turns:
        scripts += [text(write([written(source, scenario.tools)], "tool_call")) for source in turn]
        scripts.append(text("Done."))
    measurement = Measurement(ScriptedUpstream(*scripts), Settings(), "m", seconds=60.0, naive=True)
    outcome = await measurement.ask(scenario)
    assert (outcome.error, outcome.requests) == ("", len(scripts))
    assert outcome.verdict.called == any(turns)
    return outcome.verdict.right


@needs_mpmath
def test_right_conversations_pass_and_wrong_ones_fail():
    known, wrong, count = truths(), [], 0
    for scenario in scenarios(multi_turn.CATEGORIES):
        count += 1
        right = known[scenario.name]
        if not trio.run(conducted, scenario, right):
            wrong.append(scenario.name)
        last = max(index for index, turn in enumerate(right) if turn)
        assert not trio.run(conducted, scenario, [*right[:last], [], *right[last + 1 :]]), "a turn lacks its calls"
    assert count == MULTI_TURN
    assert not wrong


@needs_mpmath
def test_a_call_that_is_not_a_name_with_json_values_is_never_executed():
    scenario = next(iter(scenarios(multi_turn.CATEGORIES)))
    assert scenario.session is not None
    session = scenario.session()
    good = MadeCall("pwd", "{}")
    for call in (
        MadeCall("__import__('os').system", '{"command": "true"}'),
        MadeCall("rmtree", "{}"),
        MadeCall("ls", "{\"a=__import__('os'), b\": true}"),
        MadeCall("ls", '{"class": true}'),
        MadeCall("ls", "[]"),
        MadeCall("ls", '{"a": ', complete=False),
    ):
        first, second = session.execute([call, good])
        assert first == "Error: this call is invalid", call
        assert "current_working_directory" in second
