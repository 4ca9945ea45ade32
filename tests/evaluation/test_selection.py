"""An evaluation compares the selection of tools with a prompt that shows all of them."""

import trio
from support.dialects import said

from streamtool.cli.eval import EvalFlags
from streamtool.evaluation.measure import Measurement, ScenarioOutcome
from streamtool.evaluation.scenario import Scenario, suite
from streamtool.evaluation.variants import EvaluatedVariant
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream

SETTINGS = Settings(app_protocol="chat", formats=("invoke",))


def test_each_selection_is_added_to_the_variants():
    flags = EvalFlags("sample", formats=("invoke",), modes=("emulate", "native"), select=(8, 4, 8))
    assert [variant.name for variant in flags.variants()] == [
        "invoke",
        "invoke, select 8",
        "invoke, select 4",
        "native",
    ]
    assert [variant.applied(SETTINGS).select_tools for variant in flags.variants()] == [0, 8, 4, 0]


def test_a_variant_with_a_selection_sends_shorter_prompts_for_the_same_scenario():
    scenario = next(one for one in suite() if one.name == "100-tools")
    ((wanted,),) = scenario.steps

    def size(select: int) -> int:
        model = ScriptedUpstream(said("chat", f'<invoke name="{wanted.name}"></invoke>'))
        outcome = trio.run(_ask, model, EvaluatedVariant(format="invoke", select=select).applied(SETTINGS), scenario)
        assert (outcome.verdict.right_tool, outcome.error) == (True, "")
        return len(model.requests[0].body)

    assert size(8) < size(0)


async def _ask(model: ScriptedUpstream, settings: Settings, scenario: Scenario) -> ScenarioOutcome:
    return await Measurement(model, settings, "m", seconds=60.0).ask(scenario)
