"""Replies that repeat themselves are ended, and right replies never are."""

from inspect import signature

import pytest
import trio
from support.right_replies import made, right_answer
from trio.testing import MockClock

from statemachine import Call, write
from streamtool.cli import app
from streamtool.evaluation.measure import TOKENS, Measurement
from streamtool.evaluation.repetition import LENGTH, RepetitionDetector
from streamtool.evaluation.scenario import suite
from streamtool.evaluation.variants import FORMATS
from streamtool.settings import Settings
from streamtool.testing import Hang, Pause, Script, ScriptedUpstream, text

# the ends of replies by SmolLM2-135M-Instruct and Gemma 3 270M at temperature 0
LOOPS = [
    "I'm a math teacher.\n\n",
    "アニューシュラバラでは、",
    "0",
    "1. 88.00\n",
    '<tool_response name="return_order_id">\n',
    '        {\n            "city": "Sao Pau",\n            "days": 14,\n            "units": "celsius"\n        },\n',
]


def ended_at(whole: str, size: int) -> int | None:
    """Return how much of the text is read until the detector ends it, in pieces of `size` characters."""
    detector = RepetitionDetector()
    ends = range(size, len(whole) + size, size)
    return next((end for end in ends if detector.feed(whole[end - size : end])), None)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_repetitions_end_a_reply(loop, size):
    repeated = ended_at("Here is the list of orders:\n\n" + loop * 500, size)
    assert repeated is not None
    assert LENGTH <= repeated <= max(LENGTH, 4 * len(loop)) + 200


def test_numbers_do_not_hide_a_repetition():
    assert ended_at("".join(f"{number}. 88.00\n" for number in range(1, 90)), 4) is not None


def test_no_right_reply_of_the_suite_is_ended():
    for scenario in suite():
        calls = [Call(call.name, call.arguments) for step in scenario.steps for call in map(made, step)]
        replies = [right_answer(scenario), *(write(calls, name) for name in FORMATS if calls)]
        assert [reply for reply in replies if ended_at(reply, 1) is not None] == []


def test_a_reply_that_repeats_itself_is_ended_and_judged():
    async def main() -> None:
        endless = text("I do not know. " * 60, finish=None, done=False)
        upstream = ScriptedUpstream(Script(tuple(part for step in endless.steps for part in (step, Pause(0.02)))))
        measurement = Measurement(upstream, Settings(mode="emulate"), "looping", seconds=60.0)
        outcome = await measurement.ask(next(scenario for scenario in suite() if scenario.steps))
        assert outcome.repeated
        assert (outcome.verdict.right, outcome.verdict.called, outcome.error) == (False, False, "")
        assert 200 <= 4 * outcome.reply_tokens <= 300
        assert (upstream.left, upstream.finished) == (1, 0)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_reply_that_only_stalls_is_an_error():
    async def main() -> None:
        upstream = ScriptedUpstream(text("I do not know.", finish=None, done=False).then(Hang()))
        measurement = Measurement(upstream, Settings(mode="emulate"), "stalled", seconds=60.0)
        outcome = await measurement.ask(suite()[0])
        assert not outcome.repeated
        assert outcome.error == "no complete reply within 60 seconds"

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_command_limits_replies_like_the_measurement():
    assert signature(app.evaluate).parameters["max_tokens"].default == TOKENS
