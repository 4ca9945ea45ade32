"""The pipeline of stages for visible text, and its last stage."""

from typing import Final

from streamtool.core.reply import ReplyEvent, ReplyReasoningDelta, ReplyTextDelta
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.fabricated_results import FabricatedResultFilter
from streamtool.filters.held_text import OpeningFilter, TextBuffer
from streamtool.filters.stages import BufferingStage, Content
from streamtool.filters.stop_sequences import StopSequences
from streamtool.forcing.rules import Rules

_BUFFERING_REASONS: Final = (
    "it waits for the forced call",
    "the beginning of the reply may deny the tools",
    "the form of an answer is checked when it is complete",
    "it may be a fabricated result",
    "it may be a stop sequence",
)
"""The reasons why the stages buffer text, in the order of the stages."""
PARAGRAPH: Final = "\n\n"
"""Text between the visible texts of two attempts."""


class VisibleText:
    """The last stage: text that reaches it is visible. A stop sequence from the client ends the visible text and the
    reply.

    Text that may become a stop sequence stays buffered across attempts, because the next attempt continues after the
    visible text, including this part.
    """

    __slots__ = ("_choice", "_state", "_stops")

    def __init__(self, choice: int, state: ChoiceState, stop: tuple[str, ...]) -> None:
        self._choice = choice
        self._state = state
        self._stops = StopSequences(stop) if stop else None

    @property
    def active(self) -> bool:
        """Whether there are stop sequences to look for, or a separator to insert."""
        return self._stops is not None or self._state.separator != ""

    @property
    def holds(self) -> bool:
        """Whether the beginning of a possible stop sequence is buffered."""
        return self._stops is not None and self._stops.holds

    def restart(self) -> None:
        """Prepare for the next attempt, whose text becomes a new paragraph if visible text precedes it."""
        before = self._state.last_text + ("" if self._stops is None else self._stops.held)
        state = self._state
        state.separator = PARAGRAPH if before.strip() and not before[-1].isspace() else ""
        thought = state.last_reasoning
        state.reasoning_separator = PARAGRAPH if thought and not thought[-1].isspace() else ""

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Emit the event, or the part of its text that may be shown."""
        state = self._state
        if state.ended:
            return
        if state.separator and type(event) is ReplyTextDelta and event.text:
            if not event.text[0].isspace():
                event = ReplyTextDelta(self._choice, state.separator + event.text)
            state.separator = ""
        if type(event) is not ReplyTextDelta:
            self.close(out)
            if state.reasoning_separator and isinstance(event, ReplyReasoningDelta):
                event = self._separated(event)
            out.append(event)
            state.last_reasoning = event.text or state.last_reasoning
        elif self._stops is None:
            self._send(event, out)
        else:
            text, state.stop_sequence = self._stops.feed(event.text)
            state.ended = state.stop_sequence is not None
            self._send(ReplyTextDelta(self._choice, text), out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Emit the buffered text, which did not become a stop sequence."""
        if self._stops is not None:
            self._send(ReplyTextDelta(self._choice, self._stops.close()), out)

    def _separated(self, event: ReplyReasoningDelta) -> ReplyReasoningDelta:
        """Return the first reasoning of an attempt, as a new paragraph after that of the attempt before it."""
        if not event.text:
            return event
        separator, self._state.reasoning_separator = self._state.reasoning_separator, ""
        if event.text[0].isspace():
            return event
        return ReplyReasoningDelta(self._choice, separator + event.text, event.signature)

    def _send(self, event: ReplyTextDelta, out: list[ReplyEvent]) -> None:
        if event.text:
            self._state.last_text = event.text
            self._state.visible = self._state.visible or not event.text.isspace()
            out.append(event)


class TextFilter:
    """The stages for one choice's visible text. Those that the rules do not need are None."""

    __slots__ = ("_answer", "_hold", "_state", "_visible", "fabricated", "opening")

    def __init__(self, choice: int, rules: Rules, state: ChoiceState, tally: Tally) -> None:
        self._state = state
        self._visible = VisibleText(choice, state, rules.text.stop)
        self.fabricated = FabricatedResultFilter(choice, state, tally, self._visible)
        checks = rules.text.form is not None
        self._answer = TextBuffer(rules, tally, self.fabricated, active=True) if checks else None
        self.opening = OpeningFilter(rules, state, tally, self._answer or self.fabricated)
        self._hold = TextBuffer(rules, tally, self.opening, active=True) if rules.forced else None

    @property
    def idle(self) -> bool:
        """Whether all stages are inactive, so that text may bypass them."""
        buffers = (self._hold is not None and self._hold.active) or (self._answer is not None and self._answer.active)
        watches = self.opening.active or self.fabricated.active or self._visible.active
        return not (buffers or watches or self._state.ended)

    @property
    def holds(self) -> bool:
        """Whether text is held back until a forced call begins, the opening is decided, or the answer ends."""
        return any(stage is not None and stage.holds for stage in (self._hold, self.opening, self._answer))

    @property
    def buffering_reason(self) -> str:
        """The reason why text is buffered, or an empty string if none is."""
        stages: tuple[BufferingStage | None, ...] = (
            self._hold,
            self.opening,
            self._answer,
            self.fabricated,
            self._visible,
        )
        reasons = zip(stages, _BUFFERING_REASONS, strict=True)
        return next((why for stage, why in reasons if stage is not None and stage.holds), "")

    @property
    def answer(self) -> str:
        """The buffered answer."""
        return "" if self._answer is None else self._answer.text

    @property
    def buffered_answer_size(self) -> int:
        """Number of characters in the buffered answer."""
        return 0 if self._answer is None else self._answer.size

    def restart(self) -> None:
        """Reset for the next attempt."""
        if self._hold is not None:
            self._hold.restart(active=not self._state.calls)
        self.opening.restart()
        if self._answer is not None:
            self._answer.restart(active=not (self._state.calls or self._state.visible))
        self._visible.restart()

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Process text or reasoning that the model has written."""
        (self._hold or self.opening).feed(event, out)

    def end(self, out: list[ReplyEvent], *, broken: bool) -> None:
        """Note the end of the upstream's text. Text held back for a forced call stays buffered until the attempt is
        judged.
        """
        self.opening.end(out, broken=broken)
        self.fabricated.close(out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Flush all buffered output, in order."""
        (self._hold or self.opening).close(out)
