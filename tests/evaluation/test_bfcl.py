"""BFCL's own right answers pass its own checker in our scenarios, and wrong ones fail."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from streamtool.evaluation.bfcl import CATEGORIES, scenarios
from streamtool.evaluation.judge import advance, begin, judge
from streamtool.evaluation.scenario import MadeCall, Scenario

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed"),
]
SINGLE_TURN = 3_491
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
        for category in CATEGORIES
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
