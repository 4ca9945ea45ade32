"""The law: what each input does in each state.

Theory of operation. A parser reads a reply from left to right, once. It is a pushdown automaton: what is open lies on a
stack of frames (`frames.py`), each with its `State`, and the innermost one says what the next character may turn out to
be. What the grammar finds is an `Input`. `TRANSITIONS` is the whole law: the stack changes only through `Frames.go`,
and an input that the table does not know in a state is a bug of ours, never of the model's text. A `Move` pops the
innermost frame, pushes one, or does both. After a pop the frame beneath says what the text is, so the end of a call, a
fence or an object is the same in text and in reasoning.

    text ──open──▶ candidate ──commit──▶ call ──end──▶ after ──end──▶ what is beneath
                     │  │                  └──break──▶ broken ──end──▶ after
                     │  ├──disown──▶ unknown ──end──▶ after
                     │  └──object──▶ object ──end──▶ what is beneath
                     └──reject──▶ what is beneath: text, reasoning, or the fence in which the candidate stood first

TEXT is where openers are looked for, except in inline code. FENCE is a code fence: text in which none is looked for.
OBJECT is a JSON object that turned out to be no call: text to its closing brace. REASONING is a reasoning span. MESSAGE
is a message whose header says that it is text and nothing else. CANDIDATE holds what it consumes until it commits
(CALL), is disowned because its name is not offered (UNKNOWN: read to its end like a call, with another sink), or is
rejected; the header of a message may also turn out to begin reasoning or text. AFTER skips the closers of a call and
the line ends that follow them, and the line ends that follow the closer of a wrapper. BROKEN discards a call that
stopped being readable, and with `malformed="discard"` also one that was never committed. CLOSED is final.

The same table as a picture is `docs/states.md`, generated from here by `python -m statemachine.states`. What may be
emitted, and in which order, are the other two tables: `EMITS` by state, `FOLLOWS` by the event before. `checks.py`
holds every parser of the tests to them.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from attrs import frozen

from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta


class State(Enum):
    """Where the machine is; `Parser.state`."""

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
    CLOSED = "closed"

    __hash__ = object.__hash__  # that of Enum is a function in Python, and states are looked up all the time


class Input(Enum):
    """What the grammar found."""

    FENCE = "a code fence"
    THINK = "an opener of reasoning"
    OPEN = "an opener of a call"
    COMMIT = "the name is offered and the body has begun"
    DISOWN = "the name is not offered"
    OBJECT = "an object that is no call"
    SAY = "a message that is text and nothing else"
    WRAP = "a message that holds a call in another format"
    UNWRAP = "the closer of a wrapper"
    REJECT = "nothing goes on like this"
    BREAK = "a call that cannot be read"
    END = "the end of what was open"
    CLOSE = "the end of the reply"

    __hash__ = object.__hash__


@frozen
class Move:
    """What an input does: the innermost frame goes (`pop`), a frame of a state comes (`push`), or both."""

    pop: bool
    push: State | None = None


def push(state: State) -> Move:
    """A frame more."""
    return Move(pop=False, push=state)


def become(state: State) -> Move:
    """Another frame in the place of the innermost one."""
    return Move(pop=True, push=state)


POP = Move(pop=True)
CLOSE = become(State.CLOSED)

S, I = State, Input  # noqa: E741  (the table reads better with one letter)

TRANSITIONS: Mapping[State, Mapping[Input, Move]] = {
    S.TEXT: {
        I.FENCE: push(S.FENCE),
        I.THINK: push(S.REASONING),
        I.OPEN: push(S.CANDIDATE),
        I.OBJECT: push(S.OBJECT),
        I.UNWRAP: push(S.AFTER),
        I.CLOSE: CLOSE,
    },
    S.FENCE: {I.OPEN: push(S.CANDIDATE), I.END: POP, I.CLOSE: CLOSE},
    S.OBJECT: {I.END: POP, I.CLOSE: CLOSE},
    S.REASONING: {
        I.FENCE: push(S.FENCE),
        I.OPEN: push(S.CANDIDATE),
        I.OBJECT: push(S.OBJECT),
        I.UNWRAP: push(S.AFTER),
        I.END: POP,
        I.CLOSE: CLOSE,
    },
    S.MESSAGE: {I.END: POP, I.CLOSE: CLOSE},
    S.CANDIDATE: {
        I.COMMIT: become(S.CALL),
        I.DISOWN: become(S.UNKNOWN),
        I.OBJECT: become(S.OBJECT),
        I.THINK: become(S.REASONING),
        I.SAY: become(S.MESSAGE),
        I.WRAP: POP,
        I.REJECT: POP,
        I.BREAK: become(S.BROKEN),
        I.END: become(S.AFTER),
        I.CLOSE: CLOSE,
    },
    S.CALL: {I.BREAK: become(S.BROKEN), I.END: become(S.AFTER), I.CLOSE: CLOSE},
    S.UNKNOWN: {I.REJECT: POP, I.END: become(S.AFTER), I.CLOSE: CLOSE},
    S.BROKEN: {I.END: become(S.AFTER), I.CLOSE: CLOSE},
    S.AFTER: {I.OPEN: become(S.CANDIDATE), I.REJECT: POP, I.END: POP, I.CLOSE: CLOSE},
    S.CLOSED: {},
}

EMITS: Mapping[State, frozenset[type[Event]]] = {
    S.TEXT: frozenset({TextDelta}),
    S.FENCE: frozenset({TextDelta, ReasoningDelta}),
    S.OBJECT: frozenset({TextDelta, ReasoningDelta}),
    S.REASONING: frozenset({ReasoningDelta}),
    S.MESSAGE: frozenset({TextDelta}),
    S.CANDIDATE: frozenset({TextDelta, ReasoningDelta, Discarded}),
    S.CALL: frozenset({CallStart, ArgumentsDelta, CallEnd, Discarded}),  # Discarded: what a cut call still held
    S.UNKNOWN: frozenset({TextDelta, ReasoningDelta, Discarded}),
    S.BROKEN: frozenset({Discarded}),
    S.AFTER: frozenset({TextDelta, ReasoningDelta, Discarded}),
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


class Order:
    """The order of the events of one reply: `FOLLOWS`, and the numbering of calls."""

    __slots__ = ("_before", "_calls")

    def __init__(self) -> None:
        self._before: type[Event] | None = None
        self._calls = 0

    def wrong(self, event: Event) -> list[str]:
        """What is wrong with the next event; [] if it is legal."""
        found: list[str] = []
        kind, before = type(event), self._before
        if kind not in FOLLOWS[before]:
            found.append(f"{kind.__name__} after {before.__name__ if before else 'the start'}")
        match event:
            case CallStart(index=index):
                if index != self._calls:
                    found.append(f"call {index} begins where {self._calls} is next")
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
        """What is wrong if nothing more comes."""
        return ["the last call has no end"] if self._before in (CallStart, ArgumentsDelta) else []


def violations(events: Iterable[Event]) -> list[str]:
    """What is wrong with the events of a whole reply; [] if they are legal."""
    order = Order()
    return [wrong for event in events for wrong in order.wrong(event)] + order.unfinished()


CALLS = frozenset({State.CANDIDATE, State.CALL, State.UNKNOWN, State.BROKEN, State.AFTER})
"""The states of a call."""


def beneath() -> Mapping[State, frozenset[State]]:
    """The states that a frame of each state may lie on."""
    found: dict[State, frozenset[State]] = {state: frozenset() for state in State}
    for _ in State:  # as often as a frame can become another one
        for state, _input, move in rows():
            if move.push is not None and move is not CLOSE:
                under = found[state] if move.pop else frozenset({state})
                found[move.push] |= under if move.push in CALLS else under - {State.FENCE}
    return found


def targets(state: State, found: Input) -> frozenset[State]:
    """The states to which an input may lead. A fence stays one only if what stood first in it is rejected."""
    move = TRANSITIONS[state][found]
    if move.push is not None:
        return frozenset({move.push})
    under = beneath()[state]
    return under if found is Input.REJECT else under - {State.FENCE}


def rows() -> Iterator[tuple[State, Input, Move]]:
    """The rows of the table."""
    for state, row in TRANSITIONS.items():
        for found, move in row.items():
            yield state, found, move


def diagram() -> str:
    """The table as a Mermaid state diagram; a pop leads to every state that may be beneath."""
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
