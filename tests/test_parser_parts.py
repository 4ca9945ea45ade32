"""The parts of the parser, each alone: buffer, emitter, ledger, hold, reader, frames; and the driver that never hangs."""

import pytest

from statemachine import Parser, State
from statemachine.buffer import Buffer, Ended, Grammar, Mismatch, Overflow
from statemachine.candidate import Candidate
from statemachine.emitter import Emitter, Ledger, Sink, Span
from statemachine.events import ArgumentsDelta, CallEnd, Discarded, ReasoningDelta, TextDelta
from statemachine.frames import Frames
from statemachine.grammar import reply
from statemachine.machine import Machine
from statemachine.reader import Reader
from statemachine.runs import Run, quote
from statemachine.states import TRANSITIONS, Input, push


def test_a_buffer_keeps_what_is_not_consumed() -> None:
    buffer = Buffer()
    buffer.append("abc")
    buffer.at = 2
    buffer.append("de")
    assert (buffer.text, buffer.at) == ("cde", 0)
    buffer.at = 1
    buffer.give_back("x")
    assert (buffer.text, buffer.at) == ("xde", 0)


def test_a_buffer_waits_until_its_text_is_over() -> None:
    buffer = Buffer()
    peek = buffer.peek()
    next(peek)
    next(peek)
    buffer.append("a")
    with pytest.raises(StopIteration) as found:
        next(peek)
    assert found.value.value == "a"
    buffer.at, buffer.ended = 1, True
    with pytest.raises(Ended):
        next(buffer.peek())


def test_pieces_in_the_same_sink_are_one_event() -> None:
    emitter = Emitter()
    for piece in ("a", "", "b"):
        emitter.put(Sink.TEXT, piece)
    emitter.put(Sink.REASONING, "c")
    emitter.because("unknown")
    emitter.put(Sink.DISCARD, "d")
    emitter.because("malformed")
    emitter.put(Sink.DISCARD, "e")
    emitter.index = 3
    emitter.put(Sink.SYNTAX, "{}")
    emitter.emit(CallEnd(3, True))
    assert emitter.collect() == [
        TextDelta("ab"),
        ReasoningDelta("c"),
        Discarded("d", "unknown"),
        Discarded("e", "malformed"),
        ArgumentsDelta(3, "{}"),
        CallEnd(3, True),
    ]
    assert emitter.collect() == []


def test_the_prefix_is_counted_off_and_the_rest_recorded() -> None:
    emitter = Emitter(Ledger())
    emitter.hide(3)
    emitter.raw(Sink.SYNTAX, "<a", "syntax")
    emitter.raw(Sink.TEXT, ">bc", "syntax")
    emitter.raw(Sink.SYNTAX, "{}", "argument")
    assert emitter.collect() == [TextDelta("bc")]
    assert emitter.ledger is not None
    assert emitter.ledger.spans() == [Span("text", 0, 2), Span("argument", 2, 4)]


def test_what_is_held_is_released_where_it_belongs() -> None:
    for sink, events in ((Sink.TEXT, [TextDelta("abc")]), (Sink.SYNTAX, [])):
        reader = Reader()
        reader.append("abc")
        reader.sink = Sink.HOLD
        assert reader.take(2) == "ab"
        assert (reader.hold.text(), reader.hold.length) == ("ab", 2)
        reader.release(sink)
        reader.take(1)
        assert (reader.emitter.collect(), reader.hold.length) == (events, 0)


def test_what_may_not_be_held_overflows_at_the_first_character_too_many() -> None:
    reader = Reader()
    reader.append("abcdef")
    reader.sink, reader.hold.limit = Sink.HOLD, 4
    reader.take(3)
    with pytest.raises(Overflow):
        reader.take(2)
    assert (reader.hold.text(), reader.at) == ("abcd", 4)


def test_arguments_stop_at_their_limit() -> None:
    reader = Reader()
    reader.append('a\n"b')
    reader.sink, reader.target, reader.room = Sink.SYNTAX, True, 4
    with pytest.raises(Mismatch):
        list(reader.flow(Run("[^x]*+", convert=quote)))
    assert reader.emitter.collect() == [ArgumentsDelta(-1, "a\\n")]
    assert reader.text[reader.at :] == '"b'


def test_a_run_goes_on_by_itself_until_its_pattern_stops() -> None:
    reader = Reader()
    run = Run("[^<]*+")
    flow = reader.flow(run)
    reader.append("ab")
    next(flow)
    assert (reader.run, reader.delta) == (run, TextDelta)
    reader.append("cd<e")
    reader.disarm()
    assert list(flow) == []
    assert reader.text[reader.at :] == "<e"
    assert reader.emitter.collect() == [TextDelta("abcd")]


def test_the_state_is_that_of_the_innermost_frame() -> None:
    frames = Frames()
    frames.go(Input.THINK, "</think>")
    frames.go(Input.FENCE, "```")
    assert (frames.state, frames.top.sink, frames.reasoning) == (State.FENCE, Sink.REASONING, ("</think>",))
    frames.go(Input.END)
    assert frames.state is State.REASONING
    frames.go(Input.END)
    assert (frames.state, frames.top.sink, frames.reasoning) == (State.TEXT, Sink.TEXT, ())
    with pytest.raises(KeyError):
        frames.go(Input.END)


def test_a_wrapper_is_transparent_and_stays_open_whatever_ends() -> None:
    frames = Frames()
    frames.go(Input.THINK, "</think>")
    frames.wrap(("</a>", "</b>"))
    assert (frames.state, frames.wrappers) == (State.REASONING, ("</a>", "</b>"))
    frames.go(Input.END)
    assert (frames.state, frames.wrappers) == (State.TEXT, ("</a>", "</b>"))
    frames.unwrap("</a>")
    assert frames.wrappers == ()


def test_wrappers_open_around_the_call_that_is_read() -> None:
    frames = Frames()
    frames.go(Input.OPEN, candidate=Candidate())
    frames.go(Input.COMMIT)
    frames.wrap(("</a>",))
    frames.go(Input.END)
    frames.go(Input.END)
    assert (frames.state, frames.wrappers) == (State.TEXT, ("</a>",))


def test_a_fence_is_text_again_only_when_what_stood_first_is_rejected() -> None:
    for found, state in ((Input.REJECT, State.FENCE), (Input.OBJECT, State.OBJECT), (Input.WRAP, State.TEXT)):
        frames = Frames()
        frames.go(Input.FENCE, "```")
        frames.go(Input.OPEN, candidate=Candidate())
        assert frames.fenced()
        frames.go(found)
        assert frames.state is state
        assert not frames.fenced()


def test_calls_nest_as_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row more in the table, and a call may stand in a call: each frame keeps its own candidate."""
    monkeypatch.setitem(TRANSITIONS[State.CALL], Input.OPEN, push(State.CANDIDATE))  # type: ignore[arg-type]
    frames, outer, inner = Frames(), Candidate(), Candidate()
    frames.go(Input.OPEN, candidate=outer)
    frames.go(Input.COMMIT)
    frames.go(Input.OPEN, candidate=inner)
    for found in (Input.COMMIT, Input.END, Input.END):
        assert frames.top.candidate is inner
        frames.go(found)
    assert (frames.state, frames.top.candidate) == (State.CALL, outer)


@pytest.mark.parametrize("waits", [False, True])
def test_a_grammar_that_does_not_move_neither_hangs_nor_loses_text(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    def stuck(_machine: Machine) -> Grammar:
        if waits:
            yield

    monkeypatch.setitem(reply.READ, State.TEXT, stuck)  # type: ignore[arg-type]
    parser = Parser(["ping"])
    events = [*parser.feed("ab"), *parser.feed("c"), *parser.close()]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "abc"
    assert parser.state is State.CLOSED
