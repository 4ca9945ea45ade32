"""The stack of what is open: the pushdown automaton's memory. Its law is `states.py`.

The reply itself is the first frame. On it lie, innermost last: reasoning, a fence, an object, a message, a call;
and the wrappers around calls, which are transparent: what stands between their markers is what it would be without
them, and their closers are markup until they have come, whatever ends meanwhile.

Frames nest without limit, and nothing else says what is open: a depth more is a frame more, not a flag more.
"""

from collections.abc import Sequence

from attrs import define

from statemachine.candidate import TICK, Candidate
from statemachine.emitter import Sink
from statemachine.states import CALLS, TRANSITIONS, Input, State

FENCE, REASONING, REJECT = State.FENCE, State.REASONING, Input.REJECT
NONE: tuple[str, ...] = ()


@define(eq=False)
class Frame:
    """Something that is open."""

    state: State | None
    """None: a wrapper, in which the text is what it is around it."""
    sink: Sink
    """Where its text goes that is no call."""
    closers: tuple[str, ...] = ()
    """What may close it."""
    candidate: Candidate | None = None
    """The call that it is."""


class Frames:
    """The stack, and what follows from it."""

    __slots__ = ("_stack", "reasoning", "state", "top", "trace", "wrappers")

    def __init__(self) -> None:
        self.top = Frame(State.TEXT, Sink.TEXT)
        """The innermost frame that is no wrapper."""
        self._stack = [self.top]
        self.state = State.TEXT
        self.reasoning: tuple[str, ...] = ()
        """What closes the reasoning around; () in text."""
        self.wrappers: tuple[str, ...] = ()
        """Closers of the wrappers that are open, outermost first."""
        self.trace: list[State] | None = None
        """The states passed through, for those who check the law."""

    def go(self, found: Input, *closers: str, candidate: Candidate | None = None) -> None:
        """The one way to change state."""
        move = TRANSITIONS[self.state][found]
        stack, top = self._stack, self.top
        if move.pop:
            if stack[-1] is top:
                stack.pop()
            else:  # wrappers stay open
                stack.remove(top)
            if stack and stack[-1].state is FENCE and found is not REJECT and move.push not in CALLS:
                stack.pop()  # what stood first in the fence was no code: the fence is its markup
            if candidate is None:
                candidate = top.candidate
        state = move.push
        if state is None:
            if self.wrappers or top.state is REASONING:
                self._settle()
            else:
                self._innermost(stack[-1])
            return
        sink = Sink.REASONING if state is REASONING else top.sink
        frame = Frame(state, sink, closers, candidate if state in CALLS else None)
        stack.append(frame)
        if state is REASONING:
            self.reasoning = closers
        self._innermost(frame)

    def fenced(self) -> bool:
        """True if a fence lies beneath the innermost frame: a candidate stands first in it."""
        return len(self._stack) > 1 and self._stack[-2].state is FENCE

    def wrap(self, closers: Sequence[str]) -> None:
        """Wrappers have opened around what is innermost, outermost first; a fence replaces the one before."""
        if any(close[0] == TICK for close in closers):
            self._stack = [frame for frame in self._stack if not is_fence(frame)]
            self._settle()
        at = len(self._stack) - (self.state in CALLS)
        self._stack[at:at] = [Frame(None, self.top.sink, (close,)) for close in closers if close not in self.wrappers]
        self._settle()

    def unwrap(self, close: str) -> None:
        """The innermost wrapper with this closer ends, and so do those inside of it."""
        wrappers = [frame for frame in self._stack if frame.state is None]
        gone = wrappers[self.wrappers.index(close) :]
        self._stack = [frame for frame in self._stack if frame not in gone]
        self._settle()

    def _settle(self) -> None:
        """What follows from the stack, after something was taken from it."""
        top, reasoning, wrappers = self._stack[0], NONE, NONE
        for frame in self._stack[1:]:
            if frame.state is None:
                wrappers += frame.closers
            else:
                top = frame
                if frame.state is REASONING:
                    reasoning = frame.closers
        self.reasoning, self.wrappers = reasoning, wrappers
        self._innermost(top)

    def _innermost(self, frame: Frame) -> None:
        """A frame says what the text is."""
        self.top = frame
        self.state = state = frame.state or State.TEXT
        if self.trace is not None:
            self.trace.append(state)


def is_fence(frame: Frame) -> bool:
    """True for a code fence, and for one that is the wrapper of a call."""
    return frame.state is FENCE or (frame.state is None and frame.closers[0][0] == TICK)
