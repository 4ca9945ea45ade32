"""The law: the states of the machine, and which input openers from which to which.

Theory of operation. A parser reads a reply from left to right, once. At any moment it is in exactly one `State`, which
says what the next character may turn out to be; nothing else about its position is visible from outside. What it finds
is an `Input`. `TRANSITIONS` is the whole law: the parser moves only through `Machine.go`, and an input that the table
does not know in a state is a bug of ours, never of the model's text.

    text ──OPEN──▶ candidate ──COMMIT──▶ call ──END──▶ after ──DONE──▶ text
                     │  │                  └──BREAK──▶ broken ──END──▶ after
                     │  ├──DISOWN──▶ unknown ──END──▶ after
                     │  └──DEMOTE──▶ object ──END──▶ text
                     └──REJECT──▶ text (or fence, when the candidate stood first in one)

TEXT is where openers are looked for, except in inline code. FENCE is a code fence: text in which none is looked for.
OBJECT is a JSON object that turned out to be no call: text to its closing brace. REASONING is a reasoning span; a call
found inside (when that is allowed) returns to it. CANDIDATE holds what it consumes until it commits (CALL), is disowned
because its name is not offered (UNKNOWN: read to its end like a call, with another sink), or is rejected; the header of
a message may also turn out to begin reasoning or text. AFTER skips
the closers of a call. BROKEN discards a call that stopped being readable, and with `malformed="discard"` also one that
was never committed. CLOSED is final.

The same table as a picture is `docs/states.md`, generated from here by `python -m statemachine.states`. What may be
emitted, and in which order, are the other two tables: `EMITS` by state, `FOLLOWS` by the event before.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta


class State(Enum):
    """Where the machine is; `Parser.state`."""

    TEXT = "text"
    FENCE = "fence"
    OBJECT = "object"
    REASONING = "reasoning"
    CANDIDATE = "candidate"
    CALL = "call"
    UNKNOWN = "unknown"
    BROKEN = "broken"
    AFTER = "after"
    CLOSED = "closed"


class Input(Enum):
    """What the machine found."""

    FENCE = "a fence that is no call"
    THINK = "a reasoning opener"
    THOUGHT = "a reasoning closer"
    OPEN = "an opener"
    COMMIT = "the name is offered and the body has begun"
    DISOWN = "the name is not offered"
    DEMOTE = "an object that is no call"
    SAY = "a message that is text"
    REJECT = "no call continues so"
    BREAK = "a call that cannot be read"
    END = "the end of the span"
    DONE = "no more closers; back to text"
    RESUME = "the end of the span; back to reasoning"
    CLOSE = "the end of the text"


S, I = State, Input  # noqa: E741  (the table reads better with one letter)

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    S.TEXT: {I.THINK: S.REASONING, I.OPEN: S.CANDIDATE, I.DONE: S.TEXT, I.CLOSE: S.CLOSED},
    S.FENCE: {I.END: S.TEXT, I.RESUME: S.REASONING, I.CLOSE: S.CLOSED},
    S.OBJECT: {I.END: S.TEXT, I.REJECT: S.TEXT, I.RESUME: S.REASONING, I.CLOSE: S.CLOSED},
    S.REASONING: {I.THOUGHT: S.TEXT, I.OPEN: S.CANDIDATE, I.DONE: S.REASONING, I.CLOSE: S.CLOSED},
    S.CANDIDATE: {
        I.COMMIT: S.CALL,
        I.DISOWN: S.UNKNOWN,
        I.DEMOTE: S.OBJECT,
        I.FENCE: S.FENCE,
        I.THINK: S.REASONING,
        I.SAY: S.TEXT,
        I.REJECT: S.TEXT,
        I.RESUME: S.REASONING,
        I.BREAK: S.BROKEN,
        I.END: S.AFTER,
        I.CLOSE: S.CLOSED,
    },
    S.CALL: {I.END: S.AFTER, I.BREAK: S.BROKEN, I.CLOSE: S.CLOSED},
    S.UNKNOWN: {I.END: S.AFTER, I.REJECT: S.TEXT, I.RESUME: S.REASONING, I.CLOSE: S.CLOSED},
    S.BROKEN: {I.END: S.AFTER, I.CLOSE: S.CLOSED},
    S.AFTER: {I.OPEN: S.CANDIDATE, I.REJECT: S.TEXT, I.DONE: S.TEXT, I.RESUME: S.REASONING, I.CLOSE: S.CLOSED},
    S.CLOSED: {},
}

EMITS: Mapping[State, frozenset[type[Event]]] = {
    S.TEXT: frozenset({TextDelta}),
    S.FENCE: frozenset({TextDelta, ReasoningDelta}),
    S.OBJECT: frozenset({TextDelta, ReasoningDelta}),
    S.REASONING: frozenset({ReasoningDelta}),
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


def violations(events: Iterable[Event]) -> list[str]:
    """What is wrong with an emitted sequence by `FOLLOWS` and by the numbering of calls; [] if it is legal."""
    wrong: list[str] = []
    before: type[Event] | None = None
    calls = 0
    for event in events:
        kind = type(event)
        if kind not in FOLLOWS[before]:
            wrong.append(f"{kind.__name__} after {before.__name__ if before else 'the start'}")
        match event:
            case CallStart(index=index):
                if index != calls:
                    wrong.append(f"call {index} begins where {calls} is next")
                calls += 1
            case ArgumentsDelta(index=index) | CallEnd(index=index):
                if index != calls - 1:
                    wrong.append(f"{kind.__name__} of call {index} inside call {calls - 1}")
            case TextDelta(text=text) | ReasoningDelta(text=text) | Discarded(text=text):
                if not text:
                    wrong.append(f"empty {kind.__name__}")
        before = kind
    if before in (CallStart, ArgumentsDelta):
        wrong.append("the last call has no end")
    return wrong


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.TEXT.value}"]
    for state, row in TRANSITIONS.items():
        by_target: dict[State, list[str]] = {}
        for found, target in row.items():
            by_target.setdefault(target, []).append(found.name.lower())
        lines += [f"    {state.value} --> {target.value}: {', '.join(names)}" for target, names in by_target.items()]
    lines.append(f"    {State.CLOSED.value} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
