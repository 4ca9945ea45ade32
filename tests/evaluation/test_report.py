"""Reports of `streamtool eval`: figures by group, demanded calls, and the command that repeats the evaluation."""

import json

import pytest
from support.made_up_model import FORMATS, MadeUpModel
from support.servers import uvicorn_server

from streamtool.cli import main
from streamtool.cli.eval import EvalFlags
from streamtool.core.conversation import ToolChoice
from streamtool.evaluation.scenario import demanding, suite
from streamtool.prompting.turn_instructions import choice_text
from streamtool.testing import ScriptedUpstream, text

FLAGS = ("--format", "invoke", "--format", "object", "--mode", "emulate", "--requests", "72", "--no-calibration")

DEMAND = choice_text(ToolChoice("required"))


def report(url: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    assert main(["eval", url, *FLAGS, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def model() -> MadeUpModel:
    """Return a model that is right in both formats."""
    found = MadeUpModel()
    found.shares = dict.fromkeys([*FORMATS, ""], 1.0)
    return found


def test_figures_are_given_by_group_and_for_demanded_calls(model, capsys):
    with uvicorn_server(model) as upstream:
        found = report(upstream.url, capsys, "--group", "demanded", "--group", "none")
    demanded = [scenario for scenario in suite() if scenario.group == "demanded"]
    silent = [scenario for scenario in suite() if scenario.group == "none"]
    for figures in found["figures"]:
        assert figures["groups"] == {
            "demanded": {"right": len(demanded), "cases": len(demanded)},
            "none": {"right": len(silent), "cases": len(silent)},
        }
        count = sum(scenario.demands for scenario in demanded)  # the others forbid a call
        assert figures["demanded"] == {"right": count, "cases": count}
    assert "scenarios" not in found["subject"]


def test_the_length_of_replies_is_limited(model, tmp_path, capsys):
    limits: list[int] = []

    async def app(scope, receive, send):
        async def noted():
            message = await receive()
            if message.get("body"):
                limits.append(json.loads(message["body"])["max_tokens"])
            return message

        await model(scope, noted, send)

    flags = ("--group", "demanded", "--group", "none", "--requests", "4")
    file = str(tmp_path / "journal")
    with uvicorn_server(app) as upstream:
        found = report(upstream.url, capsys, *flags, "--max-tokens", "77", "--save", file)
        assert main(["eval", upstream.url, *FLAGS, *flags, "--resume", file]) == 2
        assert "limits replies to 77 tokens; repeat its --max-tokens" in capsys.readouterr().err
    assert 77 in limits
    assert "--max-tokens 77" in found["subject"]["command"]


def test_a_call_can_be_demanded_wherever_one_is_expected(model, tmp_path, capsys):
    groups = ("--group", "choice", "--group", "none", "--choice", "required")
    file = str(tmp_path / "journal")
    with uvicorn_server(model) as upstream:
        found = report(upstream.url, capsys, *groups, "--save", file)
        assert main(["eval", upstream.url, *FLAGS, *groups[:-2], "--resume", file]) == 2
        assert "repeat its --suite, --group and --choice" in capsys.readouterr().err
    assert found["subject"]["choice"] == "required"
    for figures in found["figures"]:
        assert figures["demanded"] == figures["groups"]["choice"]
        assert figures["demanded"]["cases"] > 10
        assert figures["groups"]["none"]["cases"] > 4
    told = [str(messages[-1]["content"]) for messages in model.prompts]
    assert sum(DEMAND in text for text in told) == sum(one["demanded"]["cases"] for one in found["figures"])


def test_only_an_expected_call_that_is_left_to_the_model_is_demanded():
    for scenario in suite():
        changed = demanding(scenario)
        if scenario.choice != "auto" or not scenario.steps:
            assert changed == scenario
        else:
            assert (changed.choice, changed.demands, changed.steps) == ("required", True, scenario.steps)


@pytest.mark.parametrize(("flags", "words"), [
    (EvalFlags("http://h"), ""),
    (EvalFlags("http://h", requests=200, seed=2, save="x", model="a b"), " --model 'a b' --requests 200 --seed 2"),
    (EvalFlags("http://h", modes=("naive",), suite="bfcl", groups=("multiple", "irrelevance"), choice="required"),
     " --mode naive --suite bfcl --group multiple --group irrelevance --choice required"),
    (EvalFlags("http://h", protocol="completions", formats=("invoke",), forcing=("grammar",), minutes=1.5),
     " --protocol completions --minutes 1.5 --format invoke --forcing grammar"),
    (EvalFlags("http://h", select=(4, 8)), " --select 4 --select 8"),
])  # fmt: skip
def test_the_report_contains_the_command_that_repeats_it(flags, words):
    assert flags.command == f"streamtool eval URL{words}"


def test_an_unknown_choice_is_rejected(capsys):
    assert main(["eval", "sample", "--choice", "any"]) == 2
    assert '--choice: "any" is unknown; known: auto, required' in capsys.readouterr().err


def test_no_settings_are_recommended_if_the_model_never_calls(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with uvicorn_server(ScriptedUpstream(lambda _: text("I would rather not."))) as served:
        flags = (
            "--model",
            "m",
            "--protocol",
            "chat",
            "--format",
            "invoke",
            "--format",
            "tool_call",
            "--mode",
            "emulate",
        )
        assert main(["eval", served.url, *flags, "--requests", "60", "--group", "none", "--group", "choice"]) == 0
    out, err = capsys.readouterr()
    assert "The model made no call in any variant" in out
    assert "[[model]]" not in out
    assert "the result is not saved" in err
