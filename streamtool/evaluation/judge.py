"""Judgment of a conversation: whether its calls and its answer are those that a scenario requires.

Values are compared, never texts of calls, and never by a model. A string equals the expected one regardless of case and
whitespace, unless the scenario is exact; a number equals the expected one whatever its type.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from streamtool.core.conversation import Tool
from streamtool.core.json_value import Json
from streamtool.evaluation.scenario import ExpectedCall, MadeCall, Scenario
from streamtool.schemas.validator import Validator

_ANY: Final = "*"
"""An expected value that any value equals."""
_MISSING: Final = object()
"""The value of an argument that is missing."""


@frozen
class Verdict:
    """The judgment of one conversation."""

    right: bool
    """Whether all calls and the answer are right, and nothing else was called."""
    called: bool
    """Whether a call was made where one was expected."""
    right_tool: bool
    """Whether the first call is one of the expected tools."""
    valid: bool
    """Whether the arguments of all calls match the schemas of their tools."""
    false_call: bool
    """Whether a call was made although none was expected."""
    expected: bool
    """Whether a call was expected."""
    why: str = ""
    """A short reason why it is not right."""


@frozen
class ScenarioProgress:
    """How much of a scenario the replies have fulfilled."""

    step: int = 0
    """Index of the current step."""
    open: tuple[ExpectedCall, ...] = ()
    """Calls of this step that have not been made."""
    calls: tuple[MadeCall, ...] = field(default=())
    """Calls so far."""
    failed: str = ""
    """Why the conversation cannot become right any more."""
    done: bool = False
    """Whether a reply without calls, or the last step, has ended the conversation."""
    answer: str = ""


def begin(scenario: Scenario) -> ScenarioProgress:
    """Return the progress before the first reply."""
    return ScenarioProgress(open=scenario.steps[0] if scenario.steps else ())


def advance(scenario: Scenario, before: ScenarioProgress, calls: Sequence[MadeCall], text: str) -> ScenarioProgress:
    """Return the progress after a reply with these calls and this text."""
    made = (*before.calls, *calls)
    if scenario.checker is not None:
        return ScenarioProgress(before.step, before.open, made, scenario.checker(made), done=True, answer=text)
    left = list(before.open)
    for call in calls:
        found = next((one for one in left if is_expected(one, call, exact=scenario.exact)), None)
        if found is None:
            return ScenarioProgress(before.step, tuple(left), made, _difference(left, call), done=True, answer=text)
        left.remove(found)
    if not calls:
        missing = f"{left[0].name} was not called" if left else ""
        return ScenarioProgress(before.step, tuple(left), made, missing, done=True, answer=text)
    if left:
        waits = scenario.continues or bool(scenario.results)  # the missing calls may follow the results of these
        missing = "" if waits else f"{left[0].name} was not called"
        return ScenarioProgress(before.step, tuple(left), made, missing, done=not waits, answer=text)
    step = before.step + 1
    more = step < len(scenario.steps)
    return ScenarioProgress(
        step,
        scenario.steps[step] if more else (),
        made,
        done=not more and not scenario.answer,
        answer=text,
    )


def judge(scenario: Scenario, progress: ScenarioProgress) -> Verdict:
    """Return the verdict on a conversation that has ended."""
    expected = bool(scenario.steps)
    called = bool(progress.calls)
    why = progress.failed or ("" if progress.done else "it did not end") or wrong_answer(scenario, progress.answer)
    names = {call.name for call in (scenario.steps[0] if expected else ())}
    valid = all(is_valid(scenario.tools, call) for call in progress.calls)
    return Verdict(
        right=not why,
        called=called and expected,
        right_tool=called and progress.calls[0].name in names,
        valid=valid,
        false_call=called and not expected,
        expected=expected,
        why=why,
    )


def wrong_answer(scenario: Scenario, text: str) -> str:
    """Return why the answer is wrong, or "" if it is right."""
    if scenario.form is not None:
        try:
            value = json.loads(text)
        except ValueError:
            return "the answer is not JSON"
        return "" if equals(scenario.value, value, exact=False) else "the answer has another value"
    found = [fragment.casefold() in text.casefold() for fragment in scenario.answer]
    if not found or (all(found) if scenario.all_of else any(found)):
        return ""
    return f"the answer does not contain {scenario.answer[0]!r}"


def is_valid(tools: Sequence[Tool], call: MadeCall) -> bool:
    """Return whether the call is complete, and its arguments match the schema of its tool."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None or not call.complete:
        return False
    checked, fault, _ = Validator.of(tool.parameters).check(call.arguments)
    return fault is None and checked == call.arguments  # repaired arguments were invalid


def is_expected(expected: ExpectedCall, call: MadeCall, *, exact: bool) -> bool:
    """Return whether the call is the expected one."""
    if call.name != expected.name or not call.complete:
        return False
    try:
        return equals(expected.arguments, json.loads(call.arguments), exact=exact)
    except ValueError:
        return False


def equals(expected: Json, found: Json, *, exact: bool) -> bool:
    """Return whether a value is the expected one, or one of several."""
    if isinstance(expected, Mapping) and "any" in expected:
        if found is _MISSING:
            return bool(expected.get("absent"))
        ways = expected["any"]
        return ways == _ANY or any(equals(way, found, exact=exact) for way in ways)
    match expected:
        case Mapping():
            if not isinstance(found, Mapping):
                return False
            keys = expected.keys() | found.keys()
            return all(key in expected and equals(expected[key], found.get(key, _MISSING), exact=exact) for key in keys)
        case list():
            if not isinstance(found, list) or len(found) != len(expected):
                return False
            return all(equals(one, other, exact=exact) for one, other in zip(expected, found, strict=True))
        case str():
            return isinstance(found, str) and (found == expected if exact else _plain(found) == _plain(expected))
        case bool() | None:
            return found is expected
    return isinstance(found, int | float) and not isinstance(found, bool) and found == expected


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _difference(left: Sequence[ExpectedCall], call: MadeCall) -> str:
    if not call.complete:
        return f"the call of {call.name} is incomplete"
    if any(one.name == call.name for one in left):
        return f"{call.name} was called with other arguments: {call.arguments}"
    return f"{call.name} was called, which was not expected"
