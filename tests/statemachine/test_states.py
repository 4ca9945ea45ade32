"""The transition table is complete, uses every state, and treats an unknown input as a bug of ours."""

import itertools

import pytest
from support.law import CheckedParser
from support.statemachine_fold import pieces
from support.strategies import SOUP_TOOLS

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, Parser, ReasoningDelta, State, TextDelta
from statemachine.machine.states import (
    EMITS,
    FOLLOWS,
    TRANSITIONS,
    Input,
    diagram,
    rows,
    states_beneath,
    targets,
    violations,
)

START, MORE, END = CallStart(0, "f", None, "tool_call"), ArgumentsDelta(0, "{}"), CallEnd(0, True)


def test_the_table_covers_every_state_and_every_input() -> None:
    assert set(TRANSITIONS) == set(State) == set(EMITS)
    assert {found for row in TRANSITIONS.values() for found in row} == set(Input)


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.TEXT}
    for _ in State:
        reached |= {target for state in reached for found in TRANSITIONS[state] for target in targets(state, found)}
    assert reached == set(State)
    for state in set(State) - {State.CLOSED}:
        assert targets(state, Input.CLOSE) == {State.CLOSED}
    assert TRANSITIONS[State.CLOSED] == {}
    assert EMITS[State.CLOSED] == frozenset()


def test_only_pushed_states_are_popped() -> None:
    under = states_beneath()
    for state, _found, move in rows():
        assert not move.pop or state is State.TEXT or under[state], state


def test_call_events_occur_only_inside_a_call() -> None:
    for state, kinds in EMITS.items():
        assert (CallStart in kinds) == (ArgumentsDelta in kinds) == (CallEnd in kinds) == (state is State.CALL)
    assert all(kind in FOLLOWS for kind in (TextDelta, ReasoningDelta, CallStart, ArgumentsDelta, CallEnd, Discarded))


def test_the_diagram_shows_every_transition() -> None:
    drawn = diagram()
    assert drawn.startswith("stateDiagram-v2\n    [*] --> text\n")
    for state, row in TRANSITIONS.items():
        for found in row:
            for target in targets(state, found):
                start = f"    {state.value} --> {target.value}:"
                assert found.name.lower() in next(line for line in drawn.splitlines() if line.startswith(start))


LEGAL: list[list[Event]] = [
    [],
    [TextDelta("a"), START, MORE, END, TextDelta("b")],
    [
        START,
        END,
        Discarded("x", "malformed"),
        CallStart(1, "f", None, "tool_call"),
        ArgumentsDelta(1, "{"),
        ArgumentsDelta(1, "}"),
        CallEnd(1, True),
    ],
    [ReasoningDelta("a"), TextDelta("b"), ReasoningDelta("c")],
]
ILLEGAL: list[tuple[list[Event], str]] = [
    ([MORE], "ArgumentsDelta after the start"),
    ([END], "CallEnd after the start"),
    ([START, TextDelta("a"), END], "TextDelta after CallStart"),
    ([START, Discarded("a", "unknown"), END], "Discarded after CallStart"),
    ([START, START], "CallStart after CallStart"),
    ([START, END, START, END], "call 0 begins where call 1 is expected"),
    ([CallStart(1, "f", None, "x"), CallEnd(1, True)], "call 1 begins where call 0 is expected"),
    ([START, ArgumentsDelta(1, "{}"), END], "ArgumentsDelta of call 1 inside call 0"),
    ([START, END, MORE], "ArgumentsDelta after CallEnd"),
    ([START, MORE], "the last call has no end"),
    ([TextDelta("")], "empty TextDelta"),
    ([Discarded("", "unknown")], "empty Discarded"),
]


@pytest.mark.parametrize("events", LEGAL)
def test_legal_sequences(events: list[Event]) -> None:
    assert violations(events) == []


@pytest.mark.parametrize(("events", "sentence"), ILLEGAL)
def test_illegal_sequences_are_reported(events: list[Event], sentence: str) -> None:
    assert sentence in violations(events)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", State.TEXT),
        ("Some text", State.TEXT),
        ("a `", State.TEXT),
        ("<thi", State.TEXT),
        ("<think>a", State.REASONING),
        ("<think>a</think>", State.TEXT),
        ("<tool_call>", State.CANDIDATE),
        ('<tool_call>{"na', State.CANDIDATE),
        ('<tool_call>{"name": "ping"', State.CALL),
        ('<tool_call>{"name": "nope"', State.UNKNOWN),
        ('{"tool": "ping"', State.CANDIDATE),
        ('{"tool": "ping", "arguments": {', State.CALL),
        ('{"city": ', State.OBJECT),
        ('{"city": 1} ', State.TEXT),
        ("```py\nx", State.FENCE),
        ("```py\nx\n```\n.", State.TEXT),
        ('<tool_call>{"name": "ping", "arguments": {"a" oops ', State.BROKEN),
        ('<tool_call>{"name": "ping", "arguments": {}}', State.AFTER),
        ('<tool_call>{"name": "ping", "arguments": {}}</tool_call>x', State.TEXT),
        ("<function=ping>\n", State.CANDIDATE),
        ("<function=ping>\n</function>x", State.TEXT),
        ("a<|im_end|>\n<|im_start|>", State.TEXT),
        ("a<|im_end|>\n<|im_start|>user", State.TEXT),
        ("a<|im_end|>\n<|im_start|>user\n", State.OVER),
        ("@ping {", State.CALL),
        ("@alice s", State.TEXT),
    ],
)
def test_the_state_after_a_text(text: str, state: State) -> None:
    for size in (0, 1):
        parser = Parser(SOUP_TOOLS)
        for piece in pieces(text, size):
            parser.feed(piece)
        assert parser.state is state, f"in pieces of {size}"


def test_closing_is_final() -> None:
    parser = Parser(SOUP_TOOLS)
    parser.feed("a <too")
    assert parser.close() == [TextDelta("<too")]
    assert parser.state is State.CLOSED
    assert parser.close() == []


def test_the_machine_moves_only_by_the_table() -> None:
    parser = CheckedParser(SOUP_TOOLS)
    for char in '<think>a</think>b <tool_call>{"name": "nope"}</tool_call>\n{"a": 1}\n```\nx\n```\n<tool_call>{"name": "ping", "arguments": {x':
        before = parser.state
        trace = parser._machine.frames.trace = [before]
        Parser.feed(parser, char)
        for one, other in itertools.pairwise(trace):
            assert one is other or other in {to for found in TRANSITIONS[one] for to in targets(one, found)}
        assert trace[-1] is parser.state


@pytest.mark.parametrize("options", [{"unknown": "shout"}, {"in_fences": "maybe"}, {"formats": ["nope"]}])
def test_invalid_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shout|maybe|nope"):
        Parser(SOUP_TOOLS, **options)  # type: ignore[arg-type]
