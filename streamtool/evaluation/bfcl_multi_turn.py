"""Conversations of several turns in the Berkeley Function Calling Leaderboard, whose tools act on simulated systems.

The data set contains the tools as Python classes. Its own executor runs the calls, and its own checker compares the
state of the systems and the results with those of the right calls, after each turn
(`bfcl_eval.eval_checker.multi_turn_eval`). The executor evaluates calls as Python source, so calls are written here
from an offered name, identifiers and JSON values, never from the model's text.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Final

from streamtool.core.conversation import Message, TextPart, Tool
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.evaluation.scenario import ExpectedCall, MadeCall, Scenario

CATEGORIES: Final = ("multi_turn_base",)
_EVALUATION: Final = "bfcl_eval.eval_checker.multi_turn_eval"
_NEEDS: Final = "mpmath"
"""A library that one of the simulated systems imports."""
_numbers: Final = itertools.count()
"""Numbers of the conversations: the executor keeps the systems of each under its name."""


class MultiTurnSession:
    """The simulated systems of one conversation, and the calls that were made in it."""

    def __init__(self, case: Mapping[str, Json], truth: Sequence[Sequence[str]], tools: Sequence[Tool]) -> None:
        self._case = case
        self._truth = truth
        self._names = {tool.name for tool in tools}
        self._turns: list[list[list[str]]] = []
        self._steps: list[list[str]] = []
        """Source of the calls in each reply of this turn."""
        self._model = f"streamtool_{next(_numbers)}"

    def execute(self, calls: Sequence[MadeCall]) -> Sequence[str]:
        """Execute the calls of a reply, and return the result of each. Only valid calls count for the checker."""
        sources = [self._source(call) for call in calls]
        valid = [source for source in sources if source]
        self._steps.append(valid)
        found, _ = _utils().execute_multi_turn_func_call(
            valid, self._case["initial_config"], self._case["involved_classes"], self._model, self._case["id"]
        )
        results = iter(found)
        return [next(results) if source else "Error: this call is invalid" for source in sources]

    def end_turn(self) -> None:
        """Note that a reply without calls has ended the turn."""
        self._turns.append(self._steps)
        self._steps = []

    def fault(self) -> str:
        """Return why the calls are wrong, or "". Ends the conversation."""
        checker = import_module(f"{_EVALUATION}.multi_turn_checker")
        found = checker.multi_turn_checker(self._turns, self._truth, self._case, "", self._model)
        kept = vars(_utils())
        for name in [name for name in kept if name.startswith(f"{self._model}_")]:
            del kept[name]
        return "" if found["valid"] else str(found["error_message"])

    def _source(self, call: MadeCall) -> str:
        """Return a call as Python source, or "" if it is invalid."""
        try:
            arguments = json.loads(call.arguments) if call.complete and call.name in self._names else None
        except ValueError:
            return ""
        if not isinstance(arguments, dict) or not all(
            name.isidentifier() and not iskeyword(name) for name in arguments
        ):
            return ""
        return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def scenario_of(case: Mapping[str, Json], truth: Sequence[Sequence[str]], tools: Sequence[Tool]) -> Scenario:
    """Return the scenario of a case with these right calls for each turn, as Python source."""
    first, *others = (Message("user", (TextPart(turn[0]["content"]),)) for turn in case["question"])
    names = [source.partition("(")[0] for source in truth[0]]
    return Scenario(
        str(case["id"]),
        str(case["id"]).rpartition("_")[0],
        (first,),
        tuple(tools),
        steps=(tuple(ExpectedCall(name, {}) for name in names),),
        session=lambda: MultiTurnSession(case, truth, tools),
        turns=tuple(others),
    )


def tools_of(case: Mapping[str, Json], data: Path) -> Iterator[Mapping[str, Json]]:
    """Yield the descriptions of the tools of a case. `data` is the folder of the data set."""
    files = import_module("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    for system in case["involved_classes"]:
        for line in (data / "multi_turn_func_doc" / files[system]).read_text(encoding="utf-8").splitlines():
            if (tool := json.loads(line))["name"] not in case.get("excluded_function", ()):
                yield tool


def require_libraries() -> None:
    """Raise SettingsError if a library of the simulated systems is missing."""
    if find_spec(_NEEDS) is None:
        raise SettingsError(
            f"--suite bfcl: {', '.join(CATEGORIES)} needs `pip install {_NEEDS}`, or choose other groups with --group",
            param="--suite",
        )


def _utils() -> ModuleType:
    return import_module(f"{_EVALUATION}.multi_turn_utils")
