"""Unit tests of a choice's filters: passing, buffering, and that an unchanged event is the same object."""

from itertools import count
from typing import Any

import pytest
from attrs import field, frozen

from statemachine import Parser
from streamtool.core.conversation import Conversation, Options, Tool, ToolChoice
from streamtool.core.reply import Reason, ReplyCallStart, ReplyEvent, ReplyFinish, ReplyReasoningDelta, ReplyTextDelta
from streamtool.filters import CallIds, ChoiceFilter
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.fabricated_results import FabricatedResultFilter
from streamtool.filters.held_text import OpeningFilter, TextBuffer
from streamtool.filters.text_filter import VisibleText
from streamtool.forcing import Rules, rules_for
from streamtool.settings import LimitSettings, Settings

PING = Tool("ping", parameters={"type": "object", "properties": {}})


def rules(mode: str = "auto", *, held: int = 1000, stop: tuple[str, ...] = (), **fields: Any) -> Rules:
    choice, options = ToolChoice(mode), Options(stop=stop)  # type: ignore[arg-type]
    conversation = Conversation("chat", "m", (), tools=(PING,), choice=choice, stream=True, options=options)
    return rules_for(conversation, Settings(limits=LimitSettings(held=held), **fields))


def deltas(*pieces: str) -> list[ReplyTextDelta]:
    return [ReplyTextDelta(0, piece, raw=piece.encode()) for piece in pieces]


@frozen
class Sink:
    """Records the events that the tested filter passes on."""

    got: list[ReplyEvent] = field(factory=list)

    def feed(self, event: Any, out: list[ReplyEvent]) -> None:
        self.got.append(event)

    def close(self, out: list[ReplyEvent]) -> None:
        self.got.append(ReplyFinish(0, Reason.STOP))


CLOSED = ReplyFinish(0, Reason.STOP)


def test_text_is_buffered_for_a_forced_call_and_reasoning_only_after_text():
    sink, tally = Sink(), Tally()
    stage = TextBuffer(rules("required"), tally, sink, active=True)
    before, after = ReplyReasoningDelta(0, "hm"), ReplyReasoningDelta(0, "so")
    (text,) = deltas("Well.")
    for event in (before, text, after):
        stage.feed(event, [])
    assert (sink.got, tally.held) == ([before], 7)
    stage.close([])
    assert sink.got == [before, text, after, CLOSED]
    assert sink.got[1] is text
    assert not stage.active


def test_beyond_the_limit_nothing_is_buffered_for_a_forced_call():
    sink = Sink()
    stage = TextBuffer(rules("required", held=5), Tally(), sink, active=True)
    texts = deltas("Well", ", now", " then")
    for event in texts:
        stage.feed(event, [])
    assert sink.got == [*texts[:2], CLOSED, texts[2]]


def test_an_opening_is_buffered_until_a_denial_is_ruled_out_and_passes_unchanged():
    sink, tally = Sink(), Tally()
    stage = OpeningFilter(rules(), ChoiceState(may_retry=True), tally, sink)
    texts = deltas("I don't have", " any", " doubts.", " None.")
    for event in texts[:2]:
        stage.feed(event, [])
    assert (sink.got, stage.active, stage.holds) == ([], True, True)
    for event in texts[2:]:
        stage.feed(event, [])
    assert all(got is event for got, event in zip(sink.got, texts, strict=True))
    assert (stage.active, tally.held) == (False, 24)  # "doubts" might have been a topic


@pytest.mark.parametrize("may_retry", [True, False])
def test_a_denial_ends_an_attempt_if_a_retry_is_possible(may_retry: bool):
    sink, state = Sink(), ChoiceState(may_retry)
    stage = OpeningFilter(rules(), state, Tally(), sink)
    (text,) = deltas("I don't have access to any tools.")
    stage.feed(text, [])
    stage.end([], broken=False)
    found = state.rejected if may_retry else state.tolerated
    assert found is not None
    assert (found.cause, state.ended, sink.got) == ("tools denied", may_retry, [] if may_retry else [text])


@pytest.mark.parametrize(
    ("pieces", "shown", "over"),
    [
        (("\n", "<tool_", "response>1"), "", True),
        (("\n", "<tool_", "box>"), "\n<tool_box>", False),
        (("Done.",), "Done.", False),
    ],
)
def test_a_made_up_result_after_a_call_ends_the_reply(pieces: tuple[str, ...], shown: str, over: bool):
    sink, state, tally = Sink(), ChoiceState(may_retry=False), Tally()
    stage = FabricatedResultFilter(0, state, tally, sink)
    stage.watch()
    for event in deltas(*pieces):
        stage.feed(event, [])
    assert ("".join(event.text for event in sink.got), state.ended) == (shown, over)  # type: ignore[union-attr]
    assert tally.discarded == ({"invented result": len("".join(pieces))} if over else {})


def test_visible_text_ends_at_a_stop_sequence():
    state, out = ChoiceState(may_retry=False), list[ReplyEvent]()
    stage = VisibleText(0, state, ("END",))
    for event in deltas("a E", "N", "D b"):
        stage.feed(event, out)
    assert ("".join(event.text for event in out), state.stop_sequence) == ("a ", "END")  # type: ignore[union-attr]
    assert state.ended


def choice(found: Rules) -> ChoiceFilter:
    numbers = count(1)
    ids = CallIds(lambda prefix: f"{prefix}{next(numbers)}", "call_", ())
    return ChoiceFilter(found, 0, ids, lambda _: Parser(found.callable), may_retry=True)


def test_text_and_arguments_pass_immediately_and_text_is_the_same_event():
    tried, out = choice(rules(refusals="pass")), list[ReplyEvent]()
    for event in deltas("Let me see. ", "Now:"):
        tried.feed(event, out)
        assert out[-1] is event
    for text in ('\n<tool_call>{"name": "ping", "arguments": {', '"x": ', '"abc'):
        tried.feed(ReplyTextDelta(0, text), out)
        assert out[-1].text.endswith(text[-1:])  # type: ignore[union-attr]
    assert [type(event) for event in out].count(ReplyCallStart) == 1


def test_text_after_a_full_buffer_is_the_same_event():
    tried, out = choice(rules("required", held=5)), list[ReplyEvent]()
    texts = deltas("Well, now", " then")
    for event in texts:
        tried.feed(event, out)
    assert [event.text for event in out] == ["Well, now", " then"]  # type: ignore[union-attr]
    assert out[1] is texts[1]


def test_a_new_attempt_keeps_visible_text_and_drops_buffered_text():
    tried, out = choice(rules(malformed="retry")), list[ReplyEvent]()
    for event in deltas("The answer is this.", " I"):
        tried.feed(event, out)
    tried.state.unreadable = 1
    tried.restart(may_retry=False)
    assert (tried.state.visible, tried.state.unreadable, tried.state.may_retry) == (True, 0, False)
    assert tried.written == "The answer is this. I"


def test_an_excerpt_remains_when_the_text_that_the_model_has_written_is_replaced():
    made = ChoiceFilter(rules(), 0, CallIds(lambda _: "id", "", ()), lambda _: Parser(), may_retry=True)
    (text,) = deltas("One two three.")
    made.feed(text, [])
    before = made.excerpt()
    before.add("two three")
    before.join()
    made.continue_call("One", Parser())
    (more,) = deltas(" four five six.")
    made.feed(more, [])
    assert (made.written, str(before)) == ("One four five six.", "two three")
    made.restart(may_retry=True)
    assert (made.written, str(before)) == ("One four five six.", "two three")  # the client has seen it
