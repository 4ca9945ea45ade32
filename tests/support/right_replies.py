"""Right replies to the scenarios of `streamtool eval`."""

import json
from collections.abc import Mapping

from streamtool.core.json_value import Json
from streamtool.evaluation.scenario import ExpectedCall, MadeCall, Scenario


def one_of(expected: Json) -> Json:
    """Return a value that the suite accepts; `...` if the argument may be omitted."""
    match expected:
        case {"any": _, "absent": True}:
            return ...
        case {"any": "*"}:
            return "anything"
        case {"any": [first, *_]}:
            return one_of(first)
        case Mapping():
            return {key: found for key, value in expected.items() if (found := one_of(value)) is not ...}
        case list():
            return [one_of(value) for value in expected]
    return expected


def made(call: ExpectedCall) -> MadeCall:
    return MadeCall(call.name, json.dumps(one_of(call.arguments), ensure_ascii=False))


def right_answer(scenario: Scenario) -> str:
    if scenario.form is not None:
        return json.dumps(scenario.value)
    return f"It is {' '.join(scenario.answer)}."


def right_replies(scenario: Scenario) -> list[tuple[list[MadeCall], str]]:
    """Return the calls and the text of each reply of a right conversation."""
    return [*(([made(call) for call in step], "") for step in scenario.steps), ([], right_answer(scenario))]
