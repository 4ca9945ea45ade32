"""The naive baseline: a short prompt and one regular expression, without streamtool, judged like every variant."""

import json

import pytest
import trio
from support.made_up_model import FORMATS, MadeUpModel
from support.servers import uvicorn_server
from trio.testing import MockClock

from streamtool.cli import main
from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolCall, ToolChoice, ToolResult
from streamtool.core.reply import Choice, ReplyText
from streamtool.evaluation import baseline
from streamtool.evaluation.measure import Measurement
from streamtool.evaluation.scenario import suite
from streamtool.settings import Settings

TOOL = Tool("ping", "Ping a host.", {"type": "object", "properties": {"host": {"type": "string"}}})
PROMPT = """\
You have access to the following tools:

[{"name": "ping", "description": "Ping a host.", \
"parameters": {"type": "object", "properties": {"host": {"type": "string"}}}}]

To call a tool, write a block in exactly this form:

<tool_call>
{"name": "tool_name", "arguments": {"parameter": "value"}}
</tool_call>

"""


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def texts(*messages: Message, tools: tuple[Tool, ...] = (TOOL,), choice: ToolChoice | None = None) -> list[str]:
    sent = baseline.without_tools(Conversation("eval", "m", messages, tools=tools, choice=choice or ToolChoice()))
    assert not sent.tools
    assert not sent.has_tool_history
    assert sent.choice == ToolChoice()
    return [message.text for message in sent.messages]


@pytest.mark.parametrize(("choice", "policy"), [
    (ToolChoice(), "Call a tool if it helps to answer. If no tool fits, reply in plain text."),
    (ToolChoice("none"), "Do not call any tool. Reply in plain text."),
    (ToolChoice("required"), "You must call at least one tool."),
    (ToolChoice("required", ("ping",)), 'You must call the tool "ping".'),
])  # fmt: skip
def test_the_tools_are_json_in_the_system_prompt(choice, policy):
    assert texts(user("Hi."), choice=choice) == [PROMPT + policy, "Hi."]


def test_past_calls_and_results_are_text():
    call = ToolCall("c1", "ping", '{"host": "a"}')
    system = Message("system", (TextPart("Be short."),))
    result = Message("user", results=(ToolResult("c1", (TextPart("pong"),)),))
    prompt, *others = texts(system, user("Hi."), Message("assistant", (TextPart("Wait."),), (call,)), result)
    assert prompt.startswith(f"Be short.\n\n{PROMPT}")
    assert others == [
        "Hi.",
        'Wait.\n<tool_call>\n{"name": "ping", "arguments": {"host": "a"}}\n</tool_call>',
        '<tool_result id="c1">\npong\n</tool_result>',
    ]
    assert texts(user("Hi."), tools=()) == ["Hi."]


@pytest.mark.parametrize(("text", "calls", "rest"), [
    ('Hm. <tool_call>{"name": "ping", "arguments": {"host": "a"}}</tool_call>', [("ping", '{"host": "a"}')], "Hm."),
    ('<tool_call>{"name": "ping"}</tool_call>\n<tool_call>\n{"name": "x"}\n</tool_call>', [("ping", "{}"), ("x", "{}")],
     ""),
    ('<tool_call>{"name": "ping", "arguments": {"host": "a",}}</tool_call>', [], None),
    ('<tool_call>{"name": "ping"}', [], None),
    ('{"name": "ping"}', [], None),
    ('<tool_call>{"tool": "ping"}</tool_call>', [], None),
    ("Hello.\n", [], None),
])  # fmt: skip
def test_only_the_pattern_is_a_call_and_nothing_is_repaired(text, calls, rest):
    found = baseline.with_calls(Choice(0, (ReplyText(text),)))
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert found.text == (text if rest is None else rest)


async def asked(model: MadeUpModel) -> list[str]:
    """Return the scenarios with wrong replies."""
    measurement = Measurement(model, Settings(), "made-up", seconds=60.0, naive=True)
    outcomes = [await measurement.ask(scenario) for scenario in suite()]
    assert {outcome.retries for outcome in outcomes} == {0}
    assert sum(outcome.requests for outcome in outcomes) == len(model.paths)
    return [outcome.scenario for outcome in outcomes if not outcome.verdict.right]


def test_a_model_that_follows_the_prompt_is_right_in_every_scenario():
    model = MadeUpModel()
    model.shares = dict.fromkeys([*FORMATS, ""], 1.0)
    assert trio.run(asked, model, clock=MockClock()) == []


def test_reports_name_the_baseline_and_serve_never_applies_it(tmp_path, capsys):
    model = MadeUpModel()
    model.shares = dict.fromkeys([*FORMATS, ""], 1.0)
    file = tmp_path / "calibrations.json"
    flags = ("--mode", "naive", "--requests", "50", "--calibrations", str(file))
    with uvicorn_server(model) as upstream:
        assert main(["eval", upstream.url, *flags, "--json"]) == 0
        out, err = capsys.readouterr()
        (figures,) = json.loads(out)["figures"]
        roles = {message["role"] for messages in model.prompts for message in messages}
        assert roles == {"system", "user", "assistant"}  # results are user messages
        assert (figures["variant"], figures["right"]) == ("naive baseline", figures["cases"])
        assert "the result is not saved for streamtool serve: only the baseline was measured" in err
        assert main(["eval", upstream.url, *flags, "--print-settings"]) == 0
        assert capsys.readouterr().out == "# The baseline has no settings.\n"
        assert not file.exists()

        best = ("--mode", "emulate", "--format", "invoke")
        assert main(["eval", upstream.url, *flags, *best, "--requests", "80", "--card"]) == 0
        first, second = capsys.readouterr().out.splitlines()[-2:]
        assert (first[:18], second[:10]) == ("| naive baseline |", "| invoke |")
        (saved,) = json.loads(file.read_text())
        assert (saved["mode"], saved["format"], saved["next"]) == ("emulate", "invoke", None)
