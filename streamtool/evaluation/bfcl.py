"""Scenarios of the Berkeley Function Calling Leaderboard, from the package `bfcl-eval` (`pip install --no-deps
bfcl-eval`).

Its questions, tools and answers are used as they are, with the types of its schemas in the words of JSON Schema, and
its own checker decides (`bfcl_eval.eval_checker.ast_eval.ast_checker`). Only that module is imported, not the handlers
of models, which need dozens of libraries. Cases without a right call (irrelevance) are right if nothing is called.
Conversations of several turns are in `bfcl_multi_turn.py`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Final

from streamtool.core.conversation import Message, TextPart, Tool
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.evaluation import bfcl_multi_turn as multi_turn
from streamtool.evaluation.scenario import ExpectedCall, MadeCall, Scenario

CATEGORIES: Final = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
"""Categories with one turn."""
GROUPS: Final = (*CATEGORIES, *multi_turn.CATEGORIES)
"""All categories that can be measured."""
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Words of the data set for the types of JSON Schema."""
_CONFIG: Final = "bfcl_eval.constants.model_config"
_MODEL: Final = "streamtool"
"""Key of the model's configuration for the checker."""


def scenarios(categories: Sequence[str] = CATEGORIES) -> Iterator[Scenario]:
    """Yield the scenarios of these categories. Raises SettingsError if bfcl-eval or a library is not installed."""
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError("--suite bfcl: install the data with `pip install --no-deps bfcl-eval`", param="--suite")
    data = Path(spec.submodule_search_locations[0]) / "data"
    if {*categories} & {*multi_turn.CATEGORIES}:
        multi_turn.require_libraries()
    for category in categories:
        answers = data / "possible_answer" / f"BFCL_v4_{category}.json"
        known = {row["id"]: row["ground_truth"] for row in _rows(answers)} if answers.exists() else {}
        for case in _rows(data / f"BFCL_v4_{category}.json"):
            truth = known.get(case["id"], ())
            if category in multi_turn.CATEGORIES:
                yield multi_turn.scenario_of(case, truth, tuple(map(_tool, multi_turn.tools_of(case, data))))
            else:
                yield _scenario(case, category, truth)


def _rows(path: Path) -> Iterator[dict[str, Json]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _scenario(case: Mapping[str, Json], category: str, truth: Sequence[Mapping[str, Json]]) -> Scenario:
    functions = case["function"]
    names = {_name(function["name"]): function["name"] for function in functions}

    def check(calls: Sequence[MadeCall]) -> str:
        try:
            made = [{names.get(call.name, call.name): json.loads(call.arguments)} for call in calls if call.complete]
        except ValueError:
            return "the arguments are not JSON"
        if category == "live_relevance":
            return "" if made else "nothing was called"
        found = _checker().ast_checker(functions, made, list(truth), _python(), category, _MODEL)
        return "" if found["valid"] else "; ".join(map(str, found["error"]))

    expected = tuple(ExpectedCall(_name(name), {}) for call in truth for name in call)
    if category == "live_relevance":
        expected = tuple(ExpectedCall(name, {}) for name in names)
    return Scenario(
        str(case["id"]),
        category,
        tuple(Message(turn["role"], (TextPart(turn["content"]),)) for turn in case["question"][0]),
        tuple(map(_tool, functions)),
        steps=(expected,) if expected else (),
        checker=check if expected else None,
    )


def _tool(function: Mapping[str, Json]) -> Tool:
    return Tool(_name(function["name"]), function["description"], schema_of(function["parameters"]))


def _name(name: str) -> str:
    """Return the name of a tool without dots, which the names of most protocols cannot contain."""
    return name.replace(".", "_")


def schema_of(written: Json) -> Json:
    """Return the JSON Schema that a description in the data set means."""
    if isinstance(written, list):
        return [schema_of(one) for one in written]
    if not isinstance(written, dict):
        return written
    schema = {name: schema_of(value) for name, value in written.items()}
    if isinstance(written.get("type"), str):
        schema["type"] = _TYPES.get(written["type"], written["type"])
    return schema


def _checker() -> ModuleType:
    """Return the checker's module, with a configuration of models that contains only ours."""
    if _CONFIG not in sys.modules:
        stub = ModuleType(_CONFIG)
        stub.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
        sys.modules[_CONFIG] = stub
    return import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")


def _python() -> Json:
    return import_module("bfcl_eval.constants.enums").Language.PYTHON
