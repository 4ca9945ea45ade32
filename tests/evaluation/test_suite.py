"""The suite and its judge: a right reply to each scenario passes, and wrong ones fail."""

import json
from typing import Any

from support.right_replies import one_of, right_replies
from support.sweeps import each

from streamtool.evaluation.judge import Verdict, advance, begin, judge
from streamtool.evaluation.scenario import MadeCall, Scenario, suite

SCENARIOS = {scenario.name: scenario for scenario in suite()}
names = each("name", SCENARIOS)


def verdict(scenario: Scenario, replies: list[tuple[list[MadeCall], str]]) -> Verdict:
    progress = begin(scenario)
    for calls, text in replies:
        progress = advance(scenario, progress, calls, text)
        if progress.done:
            break
    return judge(scenario, progress)


def changed(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case str():
            return f"{value} (changed)"
        case dict():
            key = next(iter(value), "added")
            return {**value, key: changed(value.get(key, ""))}
        case list():
            return [*value, value[0]] if value else ["added"]
    return value + 1


def test_there_are_enough_scenarios_of_each_kind():
    assert len(SCENARIOS) == len(suite()) >= 206
    groups = {scenario.group for scenario in suite()}
    assert groups == {
        "choice", "nested", "enum", "array", "numbers", "optional", "parallel", "dependent", "errors", "injection", "none",
        "many", "history", "demanded", "structured", "strings", "languages",
    }  # fmt: skip
    assert {8, 40, 100} <= {len(scenario.tools) for scenario in suite()}


@names
def test_a_right_conversation_passes(name: str):
    scenario = SCENARIOS[name]
    found = verdict(scenario, right_replies(scenario))
    assert (found.right, found.why) == (True, "")
    assert found.valid
    assert not found.false_call
    assert (found.expected, found.called, found.right_tool) == (bool(scenario.steps),) * 3


@names
def test_a_call_of_another_tool_fails(name: str):
    scenario = SCENARIOS[name]
    expected = {call.name for step in scenario.steps for call in step}
    other = next((tool.name for tool in scenario.tools if tool.name not in expected), "unknown")
    (calls, text), *rest = right_replies(scenario)
    wrong = [MadeCall(other, calls[0].arguments if calls else "{}"), *calls[1:]]
    found = verdict(scenario, [(wrong, text), *rest])
    assert not found.right
    assert found.why
    assert found.false_call == (not scenario.steps)


@names
def test_a_wrong_value_fails(name: str):
    scenario = SCENARIOS[name]
    replies = right_replies(scenario)
    if scenario.steps:
        (first, *others), text = replies[0]
        value = changed(json.loads(first.arguments))
        replies[0] = ([MadeCall(first.name, json.dumps(value)), *others], text)
    elif scenario.form is not None:
        replies[0] = ([], json.dumps(changed(scenario.value)))
    elif scenario.answer:
        replies[0] = ([], "I do not know.")
    else:  # any answer is right, but not a call
        replies[0] = ([MadeCall(scenario.tools[-1].name, "{}")], "")
    assert not verdict(scenario, replies).right


@names
def test_an_extra_call_fails(name: str):
    scenario = SCENARIOS[name]
    (calls, text), *rest = right_replies(scenario)
    extra = calls[-1] if calls else MadeCall("unknown", "{}")
    assert not verdict(scenario, [([*calls, extra], text), *rest]).right


@each("name", [scenario.name for scenario in suite() if scenario.steps])
def test_an_incomplete_call_fails(name: str):
    scenario = SCENARIOS[name]
    (first, *others), text = right_replies(scenario)[0]
    cut = MadeCall(first.name, first.arguments[:-1], complete=False)
    assert not verdict(scenario, [([cut, *others], text), *right_replies(scenario)[1:]]).right


def test_missing_calls_fail():
    for scenario in suite():
        if scenario.steps:
            found = verdict(scenario, [([], "Here you are.")])
            assert (found.right, found.called) == (False, False), scenario.name


def test_parallel_calls_belong_into_one_reply_unless_results_follow():
    (first, second), _ = right_replies(SCENARIOS["two-cities"])[0]
    assert verdict(SCENARIOS["two-cities"], [([second, first], "")]).right
    assert not verdict(SCENARIOS["two-cities"], [([first], ""), ([second], "")]).right


def test_strings_are_compared_regardless_of_case_unless_the_scenario_is_exact():
    weather = SCENARIOS["weather"]
    assert verdict(weather, [([MadeCall("get_weather", '{"city": " oslo"}')], "")]).right
    command = SCENARIOS["shell-quotes"]
    text = one_of(command.steps[0][0].arguments)["command"]
    assert verdict(command, [([MadeCall("run_command", json.dumps({"command": text}))], "")]).right
    assert not verdict(command, [([MadeCall("run_command", json.dumps({"command": f" {text}"}))], "")]).right
