"""Transition table: the effect of each input in each state.

Theory of operation. A parser reads a reply from left to right, once. It is a pushdown automaton: everything open has a
frame on a stack (`frames.py`), each frame has a `State`, and the state of the innermost frame determines what the next
character can be. Each finding of the grammar is an `Input`. `TRANSITIONS` is complete: states change only through
`Frames.apply`, and an input without an entry for the current state is always a bug in the grammar, never the fault of
the model's text. A `Move` pops the innermost frame, pushes a frame, or does both. After a pop, the frame beneath
determines how text is read, so the end of a call, a fence or an object is handled identically in text and in reasoning.

    text ──open──▶ candidate ──commit──▶ call ──end──▶ after ──end──▶ frame beneath
                     │  │                  └──break──▶ broken ──end──▶ after
                     │  ├──disown──▶ unknown ──end──▶ after
                     │  └──object──▶ object ──end──▶ frame beneath
                     └──reject──▶ frame beneath: text, reasoning, or the fence that the candidate opened

TEXT is text that is searched for openers, except inside inline code, indented code and block quotes. FENCE is a code
fence: text without openers.
OBJECT is a JSON object that turned out not to be a call: text through its closing brace. REASONING is a reasoning span.
MESSAGE is a message whose header shows that it contains nothing but text. CANDIDATE buffers what it consumes until it
is committed (CALL), disowned because its name is not offered (UNKNOWN: read to its end like a call, but sent to another
sink), or rejected; the header of a message may also turn out to begin reasoning or text. AFTER skips the closers of a
call and the newlines that follow them, and the newlines that follow the closer of a wrapper. BROKEN discards a call
that became unreadable and, with `malformed="discard"`, a call that was never committed. OVER discards everything after
the model's turn. CLOSED is final.

`python -m statemachine.machine.states` prints the table as a diagram, which also appears on the reference page about
states. Two more tables define which events may be emitted in each state (`EMITS`) and which events may follow each
event (`FOLLOWS`). The tests check every parser against them.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from attrs import frozen

from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta


class State(Enum):
    """State of the parser; see `Parser.state`."""

    TEXT = "text"
    FENCE = "fence"
    OBJECT = "object"
    REASONING = "reasoning"
    MESSAGE = "message"
    CANDIDATE = "candidate"
    CALL = "call"
    UNKNOWN = "unknown"
    BROKEN = "broken"
    AFTER = "after"
    OVER = "over"
    CLOSED = "closed"


State.__hash__ = object.__hash__  # type: ignore[method-assign]  # Enum's is a Python function, and lookups are frequent


class Input(Enum):
    """Finding of the grammar that may change the state."""

    FENCE = "a code fence"
    THINK = "a reasoning opener"
    OPEN = "a call opener"
    COMMIT = "the name is offered and the body has begun"
    DISOWN = "the name is not offered"
    OBJECT = "an object that is not a call"
    SAY = "a message that contains nothing but text"
    WRAP = "a message that contains a call in another format"
    UNWRAP = "the closer of a wrapper"
    REJECT = "text that does not continue what was read"
    BREAK = "a call that cannot be read"
    END = "the end of the innermost frame"
    TURN = "the beginning of another turn"
    CLOSE = "the end of the reply"

    __hash__ = object.__hash__


@frozen
class Move:
    """Effect of an input: pop the innermost frame, push a frame with a given state, or both."""

    pop: bool
    push: State | None = None


def push(state: State) -> Move:
    """Return the move that pushes a frame."""
    return Move(pop=False, push=state)


def replace(state: State) -> Move:
    """Return the move that replaces the innermost frame."""
    return Move(pop=True, push=state)


POP = Move(pop=True)
CLOSE = replace(State.CLOSED)

S, I = State, Input  # noqa: E741  (the table reads better with one letter)

TRANSITIONS: Mapping[State, Mapping[Input, Move]] = {
    S.TEXT: {
        I.FENCE: push(S.FENCE),
        I.THINK: push(S.REASONING),
        I.OPEN: push(S.CANDIDATE),
        I.OBJECT: push(S.OBJECT),
        I.UNWRAP: push(S.AFTER),
        I.TURN: push(S.OVER),
        I.CLOSE: CLOSE,
    },
    S.FENCE: {I.OPEN: push(S.CANDIDATE), I.END: POP, I.CLOSE: CLOSE},
    S.OBJECT: {I.END: POP, I.CLOSE: CLOSE},
    S.REASONING: {
        I.FENCE: push(S.FENCE),
        I.OPEN: push(S.CANDIDATE),
        I.OBJECT: push(S.OBJECT),
        I.UNWRAP: push(S.AFTER),
        I.TURN: push(S.OVER),
        I.END: POP,
        I.CLOSE: CLOSE,
    },
    S.MESSAGE: {I.END: POP, I.CLOSE: CLOSE},
    S.CANDIDATE: {
        I.COMMIT: replace(S.CALL),
        I.DISOWN: replace(S.UNKNOWN),
        I.OBJECT: replace(S.OBJECT),
        I.THINK: replace(S.REASONING),
        I.SAY: replace(S.MESSAGE),
        I.WRAP: POP,
        I.REJECT: POP,
        I.BREAK: replace(S.BROKEN),
        I.END: replace(S.AFTER),
        I.CLOSE: CLOSE,
    },
    S.CALL: {I.BREAK: replace(S.BROKEN), I.END: replace(S.AFTER), I.CLOSE: CLOSE},
    S.UNKNOWN: {I.REJECT: POP, I.END: replace(S.AFTER), I.CLOSE: CLOSE},
    S.BROKEN: {I.END: replace(S.AFTER), I.CLOSE: CLOSE},
    S.AFTER: {I.OPEN: replace(S.CANDIDATE), I.REJECT: POP, I.END: POP, I.CLOSE: CLOSE},
    S.OVER: {I.CLOSE: CLOSE},
    S.CLOSED: {},
}

EMITS: Mapping[State, frozenset[type[Event]]] = {
    S.TEXT: frozenset({TextDelta}),
    S.FENCE: frozenset({TextDelta, ReasoningDelta}),
    S.OBJECT: frozenset({TextDelta, ReasoningDelta}),
    S.REASONING: frozenset({ReasoningDelta}),
    S.MESSAGE: frozenset({TextDelta}),
    S.CANDIDATE: frozenset({TextDelta, ReasoningDelta, Discarded}),
    S.CALL: frozenset({CallStart, ArgumentsDelta, CallEnd, Discarded}),  # Discarded: the remainder of a truncated call
    S.UNKNOWN: frozenset({TextDelta, ReasoningDelta, Discarded}),
    S.BROKEN: frozenset({Discarded}),
    S.AFTER: frozenset({TextDelta, ReasoningDelta, Discarded}),
    S.OVER: frozenset({Discarded}),
    S.CLOSED: frozenset(),
}

OUTSIDE: frozenset[type[Event]] = frozenset({TextDelta, ReasoningDelta, Discarded, CallStart})
INSIDE: frozenset[type[Event]] = frozenset({ArgumentsDelta, CallEnd})
FOLLOWS: Mapping[type[Event] | None, frozenset[type[Event]]] = {
    None: OUTSIDE,
    TextDelta: OUTSIDE,
    ReasoningDelta: OUTSIDE,
    Discarded: OUTSIDE,
    CallStart: INSIDE,
    ArgumentsDelta: INSIDE,
    CallEnd: OUTSIDE,
}


class EventOrder:
    """Checks the order of one reply's events, using `FOLLOWS`, and the numbering of its calls."""

    __slots__ = ("_before", "_calls")

    def __init__(self) -> None:
        self._before: type[Event] | None = None
        self._calls = 0

    def violations_by(self, event: Event) -> list[str]:
        """Return the violations caused by the next event, or [] if it is legal."""
        found: list[str] = []
        kind, before = type(event), self._before
        if kind not in FOLLOWS[before]:
            found.append(f"{kind.__name__} after {before.__name__ if before else 'the start'}")
        match event:
            case CallStart(index=index):
                if index != self._calls:
                    found.append(f"call {index} begins where call {self._calls} is expected")
                self._calls += 1
            case ArgumentsDelta(index=index) | CallEnd(index=index):
                if index != self._calls - 1:
                    found.append(f"{kind.__name__} of call {index} inside call {self._calls - 1}")
            case TextDelta(text=text) | ReasoningDelta(text=text) | Discarded(text=text):
                if not text:
                    found.append(f"empty {kind.__name__}")
        self._before = kind
        return found

    def unfinished(self) -> list[str]:
        """Return the violations that exist if no further event follows."""
        return ["the last call has no end"] if self._before in (CallStart, ArgumentsDelta) else []


def violations(events: Iterable[Event]) -> list[str]:
    """Return the violations in the events of a complete reply, or [] if the events are legal."""
    order = EventOrder()
    return [wrong for event in events for wrong in order.violations_by(event)] + order.unfinished()


CALLS = frozenset({State.CANDIDATE, State.CALL, State.UNKNOWN, State.BROKEN, State.AFTER})
"""States in which a frame represents a call."""


def states_beneath() -> Mapping[State, frozenset[State]]:
    """Return, for each state, the states of the frames that may be directly beneath it."""
    found: dict[State, frozenset[State]] = {state: frozenset() for state in State}
    for _ in State:  # enough rounds for any sequence of replaced frames
        for state, _input, move in rows():
            if move.push is not None and move is not CLOSE:
                under = found[state] if move.pop else frozenset({state})
                found[move.push] |= under if move.push in CALLS else under - {State.FENCE}
    return found


def targets(state: State, found: Input) -> frozenset[State]:
    """Return the states that an input may lead to. A fence stays open only if the first thing in it is rejected."""
    move = TRANSITIONS[state][found]
    if move.push is not None:
        return frozenset({move.push})
    under = states_beneath()[state]
    return under if found is Input.REJECT else under - {State.FENCE}


def rows() -> Iterator[tuple[State, Input, Move]]:
    """Yield the rows of the table."""
    for state, row in TRANSITIONS.items():
        for found, move in row.items():
            yield state, found, move


def diagram() -> str:
    """Return the table as a Mermaid state diagram; a pop leads to every state that may be beneath."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.TEXT.value}"]
    for state, row in TRANSITIONS.items():
        by_target: dict[State, list[str]] = {}
        for found in row:
            for target in sorted(targets(state, found), key=list(State).index):
                by_target.setdefault(target, []).append(found.name.lower())
        lines += [f"    {state.value} --> {target.value}: {', '.join(names)}" for target, names in by_target.items()]
    lines.append(f"    {State.CLOSED.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
