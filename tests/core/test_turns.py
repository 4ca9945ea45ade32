"""The state of a conversation, derived from its messages."""

import pytest

from streamtool.core.conversation import Message, TextPart, ToolCall, ToolResult
from streamtool.core.turns import Pairing, Turn, turn_of, unanswered_calls

USER = Message("user", (TextPart("do it"),))
SYSTEM = Message("system", (TextPart("be good"),))
ANSWER = Message("assistant", (TextPart("done"),))
A, B = ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}")
CALLS = Message("assistant", calls=(A, B))


def result(id, text="ok", *, content=()):
    return Message("user", content, results=(ToolResult(id, (TextPart(text),)),))


@pytest.mark.parametrize(
    ("messages", "state"),
    [
        ([], Turn.FIRST_DECISION),
        ([SYSTEM, USER], Turn.FIRST_DECISION),
        ([USER, CALLS], Turn.CALL_EMITTED),
        ([USER, CALLS, SYSTEM], Turn.CALL_EMITTED),
        ([USER, CALLS, result("a")], Turn.WAITING),
        ([USER, CALLS, result("b"), result("a")], Turn.NEXT_DECISION),
        ([USER, CALLS, result("a"), result("b"), SYSTEM], Turn.NEXT_DECISION),
        ([USER, CALLS, result("a"), USER], Turn.NEXT_DECISION),
        ([USER, CALLS, result("a", content=(TextPart("and now?"),))], Turn.NEXT_DECISION),
        ([USER, CALLS, USER], Turn.FIRST_DECISION),
        ([USER, ANSWER], Turn.FINAL),
        ([USER, CALLS, result("a"), result("b"), ANSWER], Turn.FINAL),
        ([USER, result("x")], Turn.NEXT_DECISION),
    ],
)
def test_the_state_follows_from_the_messages(messages, state):
    assert turn_of(messages) is state


def test_tool_history_does_not_make_a_further_call_mandatory():
    assert turn_of([USER, CALLS, result("a"), result("b"), ANSWER, USER]) is Turn.FIRST_DECISION


def test_calls_at_the_end_of_a_conversation_are_unanswered():
    assert unanswered_calls([USER, CALLS, result("b")]) == [A]
    assert unanswered_calls([USER, CALLS, result("b"), result("a")]) == []
    assert unanswered_calls([USER, CALLS, USER]) == []
    assert unanswered_calls([USER, CALLS, ANSWER]) == []
    assert unanswered_calls([USER, CALLS, SYSTEM]) == [A, B]


def test_a_legacy_result_answers_the_call_of_its_name():
    pairing = Pairing()
    pairing.emit([ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")])
    assert pairing.answer(ToolResult("f", ())) == ToolCall("1", "f", "{}")
    assert pairing.answer(ToolResult("f", ())) == ToolCall("2", "f", "{}")
    assert pairing.answer(ToolResult("f", ())) is None


def test_a_repeated_id_belongs_to_the_later_call():
    pairing = Pairing()
    pairing.emit([A])
    pairing.emit([ToolCall("a", "other", "{}")])
    found = pairing.answer(ToolResult("a", ()))
    assert found is not None
    assert found.name == "other"


def test_a_late_result_still_finds_its_call():
    pairing = Pairing()
    pairing.emit([A])
    assert pairing.interrupt() == [A]
    assert pairing.answer(ToolResult("a", ())) is A
    assert pairing.answer(ToolResult("a", ())) is None
