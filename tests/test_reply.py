"""The fold of a reply's events into one whole."""

from streamtool.errors import UpstreamError
from streamtool.reply import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Choice,
    End,
    Failure,
    Finish,
    Fold,
    Reason,
    ReasoningDelta,
    Reply,
    ReplyCall,
    ReplyReasoning,
    ReplyText,
    Start,
    TextDelta,
    Usage,
    UsageReport,
    fold,
)


def test_runs_are_joined_and_keep_their_order():
    reply = fold(
        [
            Start("r", 5, "m"),
            ReasoningDelta(0, "hm"),
            ReasoningDelta(0, "m"),
            TextDelta(0, "a"),
            TextDelta(0, ""),
            TextDelta(0, "b", b"raw"),
            CallStart(0, 0, "c", "f"),
            ArgumentsDelta(0, 0, '{"x":'),
            ArgumentsDelta(0, 0, "1}"),
            CallEnd(0, 0),
            TextDelta(0, "c"),
            Finish(0, Reason.STOP),
            UsageReport(Usage(1, 2)),
            UsageReport(Usage(3, 4, 1, 2)),
            End(),
        ]
    )
    assert reply == Reply(
        choices=(
            Choice(
                0,
                (ReplyReasoning("hmm"), ReplyText("ab"), ReplyCall("c", "f", '{"x":1}'), ReplyText("c")),
                Reason.STOP,
            ),
        ),
        usage=Usage(3, 4, 1, 2),
        ended=True,
        id="r",
        created=5,
        model="m",
    )
    choice = reply.choices[0]
    assert (choice.text, choice.reasoning, choice.calls) == ("abc", "hmm", (ReplyCall("c", "f", '{"x":1}'),))


def test_choices_are_ordered_by_index_however_they_are_mixed():
    reply = fold([TextDelta(1, "b"), TextDelta(0, "a"), TextDelta(1, "c"), Finish(1, Reason.LENGTH)])
    assert [(choice.index, choice.text, choice.reason) for choice in reply.choices] == [
        (0, "a", None),
        (1, "bc", Reason.LENGTH),
    ]


def test_a_call_without_its_end_is_incomplete():
    reply = fold([CallStart(0, 0, None, "f"), ArgumentsDelta(0, 0, '{"x'), Finish(0, Reason.LENGTH)])
    assert reply.choices[0].calls == (ReplyCall(None, "f", '{"x', complete=False),)


def test_an_incomplete_call_stays_incomplete():
    reply = fold([CallStart(0, 0, None, "f"), ArgumentsDelta(0, 0, '{"x'), CallEnd(0, 0, complete=False)])
    assert not reply.choices[0].calls[0].complete


def test_the_first_start_counts():
    assert fold([Start("a", 1, "m"), Start("b", 2, "n")]).id == "a"


def test_a_failure_is_kept_with_what_came_before():
    error = UpstreamError("gone")
    reply = fold([TextDelta(0, "a"), Failure(error)])
    assert reply.failure is error
    assert not reply.ended
    assert reply.choices[0].text == "a"


def test_it_can_be_fed_in_pieces():
    machine = Fold()
    machine.feed([TextDelta(0, "a")])
    assert machine.close().choices[0].text == "a"
    machine.feed([TextDelta(0, "b")])
    assert machine.close().choices[0].text == "ab"


def test_nothing_is_a_reply_without_choices():
    assert fold([]) == Reply()
