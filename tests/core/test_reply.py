"""The fold of a reply's events into a complete reply."""

from support.accumulated import accumulate

from streamtool.core.errors import UpstreamError
from streamtool.core.reply import (
    Choice,
    Reason,
    Reply,
    ReplyAccumulator,
    ReplyArgumentsDelta,
    ReplyCall,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoning,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyText,
    ReplyTextDelta,
    Usage,
    UsageReport,
)


def test_runs_are_joined_and_keep_their_order():
    reply = accumulate(
        [
            ReplyStart("r", 5, "m"),
            ReplyReasoningDelta(0, "hm"),
            ReplyReasoningDelta(0, "m"),
            ReplyTextDelta(0, "a"),
            ReplyTextDelta(0, ""),
            ReplyTextDelta(0, "b", b"raw"),
            ReplyCallStart(0, 0, "c", "f"),
            ReplyArgumentsDelta(0, 0, '{"x":'),
            ReplyArgumentsDelta(0, 0, "1}"),
            ReplyCallEnd(0, 0),
            ReplyTextDelta(0, "c"),
            ReplyFinish(0, Reason.STOP),
            UsageReport(Usage(1, 2)),
            UsageReport(Usage(3, 4, 1, 2)),
            ReplyEnd(),
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


def test_choices_are_ordered_by_index_however_they_interleave():
    reply = accumulate(
        [ReplyTextDelta(1, "b"), ReplyTextDelta(0, "a"), ReplyTextDelta(1, "c"), ReplyFinish(1, Reason.LENGTH)]
    )
    assert [(choice.index, choice.text, choice.reason) for choice in reply.choices] == [
        (0, "a", None),
        (1, "bc", Reason.LENGTH),
    ]


def test_a_call_without_its_end_is_incomplete():
    reply = accumulate(
        [ReplyCallStart(0, 0, None, "f"), ReplyArgumentsDelta(0, 0, '{"x'), ReplyFinish(0, Reason.LENGTH)]
    )
    assert reply.choices[0].calls == (ReplyCall(None, "f", '{"x', complete=False),)


def test_an_incomplete_call_stays_incomplete():
    reply = accumulate(
        [ReplyCallStart(0, 0, None, "f"), ReplyArgumentsDelta(0, 0, '{"x'), ReplyCallEnd(0, 0, complete=False)]
    )
    assert not reply.choices[0].calls[0].complete


def test_the_first_start_counts():
    assert accumulate([ReplyStart("a", 1, "m"), ReplyStart("b", 2, "n")]).id == "a"


def test_a_failure_keeps_the_reply_so_far():
    error = UpstreamError("gone")
    reply = accumulate([ReplyTextDelta(0, "a"), ReplyFailure(error)])
    assert reply.failure is error
    assert not reply.ended
    assert reply.choices[0].text == "a"


def test_events_can_be_folded_in_pieces():
    machine = ReplyAccumulator()
    machine.feed([ReplyTextDelta(0, "a")])
    assert machine.close().choices[0].text == "a"
    machine.feed([ReplyTextDelta(0, "b")])
    assert machine.close().choices[0].text == "ab"


def test_no_events_fold_into_a_reply_without_choices():
    assert accumulate([]) == Reply()
