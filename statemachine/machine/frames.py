"""Stack of open frames: the memory of the pushdown automaton whose rules are in `states.py`.

The bottom frame is the reply itself. Above it, innermost last, are frames for reasoning, a fence, an object, a message
or a call, and for the wrappers around calls. Wrappers are transparent: the text between their markers is read as it
would be without them. The closer of a wrapper counts as markup whenever it arrives, even after other frames have ended.

Frames can be nested without limit, and open constructs are recorded nowhere else: another level of nesting needs
another frame, not another flag.
"""

from collections.abc import Sequence

from attrs import define

from statemachine.formats.scanner import TICK
from statemachine.machine.candidate import Candidate
from statemachine.machine.states import CALLS, TRANSITIONS, Input, State
from statemachine.stream.emitter import Sink

FENCE, REASONING, REJECT = State.FENCE, State.REASONING, Input.REJECT
NO_CLOSERS: tuple[str, ...] = ()


@define(eq=False, repr=False)
class Frame:
    """Open construct on the stack."""

    state: State | None
    """State in which the frame's text is read; None for a wrapper, whose text is read like the text around the
    wrapper.
    """
    sink: Sink
    """Destination of the frame's text outside calls."""
    closers: tuple[str, ...] = ()
    """Markers that may close the frame."""
    candidate: Candidate | None = None
    """The call, if the frame represents one."""


class Frames:
    """The stack, and the fields derived from it."""

    __slots__ = ("_stack", "reasoning", "state", "top", "trace", "wrappers")

    def __init__(self) -> None:
        self.top = Frame(State.TEXT, Sink.TEXT)
        """Innermost frame that is not a wrapper."""
        self._stack = [self.top]
        self.state = State.TEXT
        self.reasoning: tuple[str, ...] = ()
        """Closers of the surrounding reasoning; () outside reasoning."""
        self.wrappers: tuple[str, ...] = ()
        """Closers of the open wrappers, outermost first."""
        self.trace: list[State] | None = None
        """States passed through; None unless a test records them."""

    def apply(self, found: Input, *closers: str, candidate: Candidate | None = None) -> None:
        """Apply an input to the stack. Every change of state is made here."""
        move = TRANSITIONS[self.state][found]
        stack, top = self._stack, self.top
        # `top` is the innermost frame that is not a wrapper, so wrappers may be above it on the stack: wrappers that
        # were opened inside the reasoning that ends now. They outlive it, because their closers are still markup when
        # they arrive.
        if move.pop:
            if stack[-1] is top:
                stack.pop()
            else:  # wrappers stay open
                stack.remove(top)
            # A candidate that is the first thing in a fence has the fence's frame directly beneath it. A call turns the
            # fence into its wrapper (`open_wrappers`, which drops the frame); if the call was shown as text,
            # `open_wrappers` is not called and the frame is dropped here. Only a rejected candidate leaves the fence
            # open: then the fence is text. A move between two states of CALLS does not decide this yet.
            if stack and stack[-1].state is FENCE and found is not REJECT and move.push not in CALLS:
                stack.pop()
            if candidate is None:
                candidate = top.candidate
        state = move.push
        if state is None:
            # Without wrappers, the last frame of the stack is the innermost one, and the derived fields have not
            # changed. This is the case at the end of most calls; otherwise all fields are derived from the stack again.
            if self.wrappers or top.state is REASONING:
                self._derive()
            else:
                self._set_top(stack[-1])
            return
        sink = Sink.REASONING if state is REASONING else top.sink
        frame = Frame(state, sink, closers, candidate if state in CALLS else None)
        stack.append(frame)
        if state is REASONING:
            self.reasoning = closers
        self._set_top(frame)

    def candidate_opens_fence(self) -> bool:
        """Return whether the innermost frame is a candidate that is the first thing in a fence."""
        return len(self._stack) > 1 and self._stack[-2].state is FENCE

    def open_wrappers(self, closers: Sequence[str]) -> None:
        """Open wrappers around the innermost frame, given outermost first. A fence replaces any previous fence."""
        if any(close[0] == TICK for close in closers):
            self._stack = [frame for frame in self._stack if not is_fence(frame)]
            self._derive()
        # A wrapper encloses the call, but is opened after it, because its markers were buffered with the candidate. It
        # goes beneath the call's frame, so that it stays open when the call ends.
        at = len(self._stack) - (self.state in CALLS)
        self._stack[at:at] = [Frame(None, self.top.sink, (close,)) for close in closers if close not in self.wrappers]
        self._derive()

    def close_wrapper(self, close: str) -> None:
        """Close the wrapper that has this closer, and the wrappers inside it."""
        wrappers = [frame for frame in self._stack if frame.state is None]
        gone = wrappers[self.wrappers.index(close) :]
        self._stack = [frame for frame in self._stack if frame not in gone]
        self._derive()

    def _derive(self) -> None:
        """Derive the innermost frame, the reasoning and the wrappers from the stack."""
        top, reasoning, wrappers = self._stack[0], NO_CLOSERS, NO_CLOSERS
        for frame in self._stack[1:]:
            if frame.state is None:
                wrappers += frame.closers
            else:
                top = frame
                if frame.state is REASONING:
                    reasoning = frame.closers
        self.reasoning, self.wrappers = reasoning, wrappers
        self._set_top(top)

    def _set_top(self, frame: Frame) -> None:
        """Make a frame the innermost one."""
        self.top = frame
        self.state = state = frame.state or State.TEXT
        if self.trace is not None:
            self.trace.append(state)


def is_fence(frame: Frame) -> bool:
    """Return whether a frame is a code fence, or a wrapper that is one."""
    return frame.state is FENCE or (frame.state is None and frame.closers[0][0] == TICK)
