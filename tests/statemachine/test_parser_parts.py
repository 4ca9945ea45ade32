"""Unit tests of the parser's parts (buffer, emitter, ledger, hold, reader, frames), and of a driver that never
hangs.
"""

import pytest

from statemachine import Parser, State
from statemachine.events import ArgumentsDelta, CallEnd, Discarded, ReasoningDelta, TextDelta
from statemachine.grammar import reply
from statemachine.machine.candidate import Candidate
from statemachine.machine.frames import Frames
from statemachine.machine.machine import Machine
from statemachine.machine.states import TRANSITIONS, Input, push
from statemachine.stream.buffer import Buffer, EndOfText, Grammar, Mismatch, Overflow
from statemachine.stream.emitter import Emitter, Ledger, Sink, Span
from statemachine.stream.reader import Reader
from statemachine.stream.runs import Run, json_escape


def test_a_buffer_keeps_unconsumed_text() -> None:
    buffer = Buffer()
    buffer.append("abc")
    buffer.at = 2
    buffer.append("de")
    assert (buffer.text, buffer.at) == ("cde", 0)
    buffer.at = 1
    buffer.give_back("x")
    assert (buffer.text, buffer.at) == ("xde", 0)


def test_peek_waits_for_text_until_the_buffer_has_ended() -> None:
    buffer = Buffer()
    peek = buffer.peek()
    next(peek)
    next(peek)
    buffer.append("a")
    with pytest.raises(StopIteration) as found:
        next(peek)
    assert found.value.value == "a"
    buffer.at, buffer.ended = 1, True
    with pytest.raises(EndOfText):
        next(buffer.peek())


def test_pieces_in_the_same_sink_are_one_event() -> None:
    emitter = Emitter()
    for piece in ("a", "", "b"):
        emitter.put(Sink.TEXT, piece)
    emitter.put(Sink.REASONING, "c")
    emitter.set_discard_reason("unknown")
    emitter.put(Sink.DISCARD, "d")
    emitter.set_discard_reason("malformed")
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


def test_the_hidden_prefix_is_skipped_and_the_rest_recorded() -> None:
    emitter = Emitter(Ledger())
    emitter.hide(3)
    emitter.route(Sink.SYNTAX, "<a", "syntax")
    emitter.route(Sink.TEXT, ">bc", "syntax")
    emitter.route(Sink.SYNTAX, "{}", "argument")
    assert emitter.collect() == [TextDelta("bc")]
    assert emitter.ledger is not None
    assert emitter.ledger.spans() == [Span("text", 0, 2), Span("argument", 2, 4)]


def test_buffered_text_is_released_to_the_given_sink() -> None:
    for sink, events in ((Sink.TEXT, [TextDelta("abc")]), (Sink.SYNTAX, [])):
        reader = Reader()
        reader.append("abc")
        reader.sink = Sink.HOLD
        assert reader.take(2) == "ab"
        assert (reader.buffered.text(), reader.buffered.length) == ("ab", 2)
        reader.release(sink)
        reader.take(1)
        assert (reader.emitter.collect(), reader.buffered.length) == (events, 0)


def test_buffered_text_overflows_at_the_first_character_over_the_limit() -> None:
    reader = Reader()
    reader.append("abcdef")
    reader.sink, reader.buffered.limit = Sink.HOLD, 4
    reader.take(3)
    with pytest.raises(Overflow):
        reader.take(2)
    assert (reader.buffered.text(), reader.at) == ("abcd", 4)


def test_arguments_stop_at_their_limit() -> None:
    reader = Reader()
    reader.append('a\n"b')
    reader.sink, reader.target, reader.remaining = Sink.SYNTAX, True, 4
    with pytest.raises(Mismatch):
        list(reader.flow(Run("[^x]*+", convert=json_escape)))
    assert reader.emitter.collect() == [ArgumentsDelta(-1, "a\\n")]
    assert reader.text[reader.at :] == '"b'


def test_a_run_continues_until_its_pattern_stops() -> None:
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
    frames.apply(Input.THINK, "</think>")
    frames.apply(Input.FENCE, "```")
    assert (frames.state, frames.top.sink, frames.reasoning) == (State.FENCE, Sink.REASONING, ("</think>",))
    frames.apply(Input.END)
    assert frames.state is State.REASONING
    frames.apply(Input.END)
    assert (frames.state, frames.top.sink, frames.reasoning) == (State.TEXT, Sink.TEXT, ())
    with pytest.raises(KeyError):
        frames.apply(Input.END)


def test_wrappers_stay_open_when_a_frame_ends() -> None:
    frames = Frames()
    frames.apply(Input.THINK, "</think>")
    frames.open_wrappers(("</a>", "</b>"))
    assert (frames.state, frames.wrappers) == (State.REASONING, ("</a>", "</b>"))
    frames.apply(Input.END)
    assert (frames.state, frames.wrappers) == (State.TEXT, ("</a>", "</b>"))
    frames.close_wrapper("</a>")
    assert frames.wrappers == ()


def test_wrappers_open_around_the_current_call() -> None:
    frames = Frames()
    frames.apply(Input.OPEN, candidate=Candidate())
    frames.apply(Input.COMMIT)
    frames.open_wrappers(("</a>",))
    frames.apply(Input.END)
    frames.apply(Input.END)
    assert (frames.state, frames.wrappers) == (State.TEXT, ("</a>",))


def test_a_fence_is_text_again_only_if_its_first_candidate_is_rejected() -> None:
    for found, state in ((Input.REJECT, State.FENCE), (Input.OBJECT, State.OBJECT), (Input.WRAP, State.TEXT)):
        frames = Frames()
        frames.apply(Input.FENCE, "```")
        frames.apply(Input.OPEN, candidate=Candidate())
        assert frames.candidate_opens_fence()
        frames.apply(found)
        assert frames.state is state
        assert not frames.candidate_opens_fence()


def test_calls_nest_as_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more row in the table, calls can nest: each frame keeps its own candidate."""
    monkeypatch.setitem(TRANSITIONS[State.CALL], Input.OPEN, push(State.CANDIDATE))  # type: ignore[arg-type]
    frames, outer, inner = Frames(), Candidate(), Candidate()
    frames.apply(Input.OPEN, candidate=outer)
    frames.apply(Input.COMMIT)
    frames.apply(Input.OPEN, candidate=inner)
    for found in (Input.COMMIT, Input.END, Input.END):
        assert frames.top.candidate is inner
        frames.apply(found)
    assert (frames.state, frames.top.candidate) == (State.CALL, outer)


@pytest.mark.parametrize("waits", [False, True])
def test_a_stuck_grammar_neither_hangs_nor_loses_text(monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
    def stuck(_machine: Machine) -> Grammar:
        if waits:
            yield

    monkeypatch.setitem(reply.READERS, State.TEXT, stuck)  # type: ignore[arg-type]
    parser = Parser(["ping"])
    events = [*parser.feed("ab"), *parser.feed("c"), *parser.close()]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "abc"
    assert parser.state is State.CLOSED
