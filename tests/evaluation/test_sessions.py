"""Conversations whose calls another suite executes: several turns, results, and the limit of replies."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from streamtool.core.conversation import Message, TextPart, Tool
from streamtool.evaluation.measure import MAX_STEPS, Measurement, ScenarioOutcome
from streamtool.evaluation.scenario import ExpectedCall, MadeCall, Scenario
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, status, text

PING = Tool("ping", "Ping a host.", {"type": "object", "properties": {"host": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "ping", "arguments": {"host": "a"}}\n</tool_call>'


class Recorded:
    """A session that answers each call with its number. It is right if there were calls in each turn."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.calls = 0

    def execute(self, calls: Sequence[MadeCall]) -> Sequence[str]:
        self.calls += len(calls)
        return [f"result {self.calls}" for _ in calls]

    def end_turn(self) -> None:
        self.turns.append(self.calls)
        self.calls = 0

    def fault(self) -> str:
        return "" if all(self.turns) else "a turn lacks its calls"


async def conducted(*replies: str | Script, naive: bool) -> tuple[ScenarioOutcome, list[Any], Recorded]:
    """Return the outcome, the messages of the last request, and the session."""
    session = Recorded()
    scenario = Scenario(
        "s", "g", (Message("user", (TextPart("First."),)),), (PING,), steps=((ExpectedCall("ping", {}),),),
        session=lambda: session, turns=(Message("user", (TextPart("Second."),)),),
    )  # fmt: skip
    upstream = ScriptedUpstream(*(reply if isinstance(reply, Script) else text(reply) for reply in replies))
    settings = Settings(app_protocol="chat", formats=("tool_call",), format="tool_call", refusals="pass")
    outcome = await Measurement(upstream, settings, "m", seconds=60.0, naive=naive).ask(scenario)
    return outcome, json.loads(upstream.requests[-1].body)["messages"], session


@pytest.mark.parametrize("naive", [True, False])
def test_each_turn_ends_with_a_reply_without_calls(naive):
    outcome, messages, session = trio.run(lambda: conducted(CALL, CALL, "Done.", CALL, "Bye.", naive=naive))
    assert (outcome.verdict.right, outcome.verdict.right_tool, outcome.requests) == (True, True, 5)
    assert session.turns == [2, 1]
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert [part in str(messages) for part in ("First.", "Second.", "result 1", "result 2", "result 3")] == [
        True, True, True, True, False,
    ]  # fmt: skip


def test_the_session_judges_the_calls():
    outcome, _, session = trio.run(lambda: conducted(CALL, "Done.", "Bye.", naive=True))
    assert (outcome.verdict.right, outcome.verdict.why) == (False, "a turn lacks its calls")
    assert session.turns == [1, 0]


def test_a_turn_that_does_not_end_is_wrong():
    outcome, _, session = trio.run(lambda: conducted(*[CALL] * (MAX_STEPS + 1), naive=True))
    assert (outcome.verdict.right, outcome.verdict.why) == (False, "it did not end")
    assert (outcome.requests, session.turns) == (MAX_STEPS, [])


def test_an_error_of_the_upstream_ends_the_conversation():
    outcome, _, _ = trio.run(lambda: conducted(CALL, status(500, "no memory"), naive=True))
    assert (outcome.verdict.right, outcome.error, outcome.requests) == (False, "no memory", 2)
