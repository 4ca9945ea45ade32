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
        sink, at = top.sink, stack.index(top)
        if move.pop:
            del stack[at]
            if found is not Input.REJECT and move.push not in CALLS and self.fenced(at):
                del stack[at - 1]  # what stood first in the fence was no code: the fence is its markup
        if move.push is not None:
            if move.push is State.REASONING:
                sink = Sink.REASONING
            kept = top.candidate if move.pop and candidate is None else candidate
            stack.append(Frame(move.push, sink, closers, kept if move.push in CALLS else None))
        self._settle()

    def fenced(self, at: int = -1) -> bool:
        """True if a fence lies beneath the innermost frame: a candidate stands first in it."""
        return len(self._stack) > 1 and self._stack[at - 1].state is State.FENCE

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
        """What follows from the stack."""
        self.wrappers, self.reasoning = (), ()
        for frame in self._stack:
            if frame.state is None:
                self.wrappers += frame.closers
                continue
            self.top = frame
            if frame.state is State.REASONING:
                self.reasoning = frame.closers
        self.state = self.top.state or State.TEXT
        if self.trace is not None:
            self.trace.append(self.state)


def is_fence(frame: Frame) -> bool:
    """True for a code fence, and for one that is the wrapper of a call."""
    return frame.state is State.FENCE or (frame.state is None and frame.closers[0][0] == TICK)
